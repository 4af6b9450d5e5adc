"""ragged_moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

`import ragged_moe` registers torch.ops.ragged_moe.experts, .experts_out, .batched_experts, .batched_experts_out,
.route, .grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under torch.compile ragged_moe's functions call them by themselves.
They have no gradients: backward says so. CuTe DSL is imported with the first call, not with this.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor
from torch._C import DispatchKey

from ragged_moe.layers.signatures import BATCHED_CALL, EXPERTS_CALL, GEMM_CALL, ROUTE_CALL
from ragged_moe.runtime.signature import Signature

LIBRARY = torch.library.Library("ragged_moe", "FRAGMENT")
BELOW_AUTOGRAD, EAGER = torch._C._after_autograd_keyset, (DispatchKey.CUDA, DispatchKey.CPU)


def nothing(*_, **__) -> None:
    """The fake of an operator that writes to `out`."""


def operator(of: Signature, out: bool = False) -> Callable:
    """Decorate the function that torch.ops.ragged_moe.NAME, or NAME_out, runs; returns the operator.

    As torch.library.custom_op, which takes the host 20 us a call more, and 190 for one that mutates.
    """
    name, fake = of.name + "_out" * out, nothing if out else of.fake

    def register(function: Callable):
        LIBRARY.define(of.schema(out))
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"ragged_moe::{name}", fake, lib=LIBRARY)
        made = getattr(torch.ops.ragged_moe, name).default
        autograd = functools.partial(without_gradients, made, function)
        LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
        return made

    return register


@functools.cache
def functions() -> SimpleNamespace:
    """Return what the operators run, imported now."""
    from ragged_moe.layers.batched_experts import batched_experts
    from ragged_moe.layers.experts import experts
    from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8
    from ragged_moe.layers.route import route

    all_of_them = experts, batched_experts, route, grouped_gemm_fp8
    return SimpleNamespace(**{function.__name__: function for function in all_of_them})


def requires_grad(*args, **options) -> bool:
    """Whether any of these values is a tensor that requires gradients."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in (*args, *options.values()))


# torch's own, in C++, is private: a version may be without it
any_requires_grad = getattr(torch._C, "_any_requires_grad", requires_grad)


@functools.cache
def is_eager(keys: int) -> bool:
    """Whether nothing is between autograd and the function for a set of dispatch keys, of these bits."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & BELOW_AUTOGRAD
    return below.highestPriorityTypeId() in EAGER


def without_gradients(made, function: Callable, keys, *args, **options):
    """Run an operator behind autograd. What it returns refuses a backward; a call that writes to `out` is refused.

    Where nothing is between autograd and the function, as a tracer would be, it is called here: to go through torch
    once more takes as long as all that the function does.
    """
    learns = torch.is_grad_enabled() and any_requires_grad(*args, **options)
    if learns and not made._schema.returns:
        raise RuntimeError(f"{made} writes to out, but an operand requires gradients, of which there are none")
    if not learns and is_eager(keys.raw_repr()):
        return function(*args, **options)
    below = keys & BELOW_AUTOGRAD
    with torch._C._AutoDispatchBelowAutograd():
        found = made.redispatch(below, *args, **options)
    if not learns:
        return found
    learning = [x for x in (*args, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
    several = isinstance(found, tuple)
    results = found if several else (found,)
    results = NoGradients.apply(str(made), len(results), *results, *learning)
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


@operator(EXPERTS_CALL)
def experts_op(*operands, **options) -> Tensor:
    """ragged_moe.experts into a new tensor."""
    return functions().experts(*operands, **options)


@operator(EXPERTS_CALL, out=True)
def experts_out_op(out: Tensor, *operands, **options) -> None:
    """ragged_moe.experts into `out`."""
    functions().experts(*operands, out=out, **options)


@operator(BATCHED_CALL)
def batched_experts_op(*operands, **options) -> Tensor:
    """ragged_moe.batched_experts into a new tensor."""
    return functions().batched_experts(*operands, **options)


@operator(BATCHED_CALL, out=True)
def batched_experts_out_op(out: Tensor, *operands, **options) -> None:
    """ragged_moe.batched_experts into `out`."""
    functions().batched_experts(*operands, out=out, **options)


@operator(ROUTE_CALL)
def route_op(*operands, **options) -> tuple[Tensor, Tensor]:
    """ragged_moe.route."""
    return functions().route(*operands, **options)


@operator(GEMM_CALL)
def grouped_gemm_op(*operands) -> Tensor:
    """ragged_moe.grouped_gemm_fp8 into a new tensor."""
    return functions().grouped_gemm_fp8(*operands)


@operator(GEMM_CALL, out=True)
def grouped_gemm_out_op(out: Tensor, *operands) -> None:
    """ragged_moe.grouped_gemm_fp8 into `out`."""
    functions().grouped_gemm_fp8(*operands, out)
