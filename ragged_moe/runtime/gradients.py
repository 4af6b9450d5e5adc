"""Calls whose operands require gradients: no function here has any, and a backward says so by its name."""

from collections.abc import Callable

import torch
from torch import Tensor


def requires_grad(*values) -> bool:
    """Whether any of these values is a tensor that requires gradients."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in values)


# torch's own, in C++, is private: a version may be without it
any_requires_grad = getattr(torch._C, "_any_requires_grad", requires_grad)


def learns(*operands) -> bool:
    """Whether torch would keep the gradient of an operation on these operands, of which some may be no tensors."""
    return torch.is_grad_enabled() and any_requires_grad(*operands)


def refusing(name: str, call: Callable[[], Tensor | tuple[Tensor, ...]], operands: tuple, out: Tensor | None = None):
    """Return what `call` does with operands that learn, so that a backward is refused by `name`.

    RuntimeError if the call writes to `out`, whose backward nobody would hear of.
    """
    if out is not None:
        raise RuntimeError(f"{name} writes to out, but an operand requires gradients, of which there are none")
    with torch.no_grad():
        found = call()
    several = isinstance(found, tuple)
    results = found if several else (found,)
    require = [x for x in operands if isinstance(x, Tensor) and x.requires_grad]
    results = NoGradients.apply(name, len(results), *results, *require)
    return results if several else results[0]


class NoGradients(torch.autograd.Function):
    """Results of operands that require gradients."""

    @staticmethod
    def forward(ctx, name: str, results: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        ctx.mark_non_differentiable(*(x for x in tensors[:results] if not x.is_floating_point()))
        return tensors[:results]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"{ctx.name} has no gradients")
