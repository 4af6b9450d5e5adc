"""torch's autograd on the emulated device: torch's own engine for CPU tensors, which is shown where gradients live.

A tensor that moves keeps its history (`moved`). What a `torch.autograd.Function` of the script's gets in its backward
are tensors of the device on which its forward gave its results; so are those results, if it has saved them: torch saves
their data alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.autograd.function import BackwardCFunction, Function
from torch.utils._pytree import tree_leaves, tree_map_only

from ..device import DEVICE
from ..state.global_memory import HOST

GRAD = torch.Tensor.grad.__get__


class Moved(Function):
    """A copy elsewhere; gradients are what they are, wherever."""

    @staticmethod
    def forward(ctx, tensor, move):
        there = move(tensor.detach())
        result = torch.Tensor._make_subclass(type(there), there.detach())  # no view, so that it may be changed in place
        result.__dict__.update(there.__dict__)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def moved(tensor: torch.Tensor, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Move a tensor that requires gradients: a leaf (just made) becomes a leaf there, another a copy with history."""
    if tensor.is_leaf:
        return move(tensor.detach()).requires_grad_()
    return Moved.apply(tensor, move)


def install(kind: type, to_device: Callable, mode: Callable) -> None:
    """Serve `torch.autograd.Function`. kind: the class of the device's tensors, which `to_device` makes, with their
    `index`; mode: makes the context in which torch's API knows them, if it is not entered yet."""
    apply, backward = Function.apply.__func__, BackwardCFunction.apply

    @functools.wraps(apply)
    def apply_there(cls, *args, **kwargs):
        result = apply(cls, *args, **kwargs)
        for each in tree_leaves(result):
            if isinstance(each, kind) and isinstance(each.grad_fn, BackwardCFunction):
                each.grad_fn.emulated_device = each.index
        return result

    @functools.wraps(backward)
    def backward_there(self, *gradients):
        index = getattr(self, "emulated_device", None)
        if index is None or self._forward_cls is Moved:
            return backward(self, *gradients)
        gradients = tree_map_only(torch.Tensor, functools.partial(to_device, index=index), gradients)
        with mode():
            return backward(self, *gradients)

    def there(x, index: int):
        plain = isinstance(x, torch.Tensor) and not isinstance(x, kind)
        region = DEVICE.region_at(x.data_ptr(), 1) if plain else None
        return x if region is None or region.device == HOST else to_device(x, index=index)

    def saved_there(self):
        saved, index = saved_tensors.__get__(self), getattr(self, "emulated_device", None)
        return saved if index is None else tuple(there(x, index) for x in saved)

    saved_tensors = BackwardCFunction.saved_tensors
    BackwardCFunction.saved_tensors = property(saved_there)
    Function.apply = classmethod(apply_there)
    BackwardCFunction.apply = backward_there
