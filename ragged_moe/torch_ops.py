"""ragged_moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

`import ragged_moe` registers torch.ops.ragged_moe.experts, .experts_out, .batched_experts, .batched_experts_out,
.route, .grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under torch.compile ragged_moe's functions call them by themselves.
They have no gradients: backward says so. CuTe DSL is imported with the first call, not with this.
"""

import functools
import importlib
from collections.abc import Callable

import torch
from torch._C import DispatchKey

from ragged_moe.layers.signatures import BATCHED_CALL, EXPERTS_CALL, GEMM_CALL, ROUTE_CALL
from ragged_moe.runtime.gradients import learns, refusing
from ragged_moe.runtime.signature import Signature

LIBRARY = torch.library.Library("ragged_moe", "FRAGMENT")
BELOW_AUTOGRAD, EAGER = torch._C._after_autograd_keyset, (DispatchKey.CUDA, DispatchKey.CPU)


def nothing(*_, **__) -> None:
    """The fake of an operator that writes to `out`."""


@functools.cache
def served(name: str) -> Callable:
    """Return the function that an operator runs, imported now."""
    return getattr(importlib.import_module("ragged_moe"), name)


@functools.cache
def is_eager(keys: int) -> bool:
    """Whether nothing is between autograd and the function for a set of dispatch keys, of these bits."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & BELOW_AUTOGRAD
    return below.highestPriorityTypeId() in EAGER


def operator(of: Signature, out: bool = False) -> Callable:
    """Register torch.ops.ragged_moe.NAME, or NAME_out, which calls the function NAME; returns it.

    As torch.library.custom_op, which takes the host 20 us a call more, and 190 for one that mutates. Behind autograd
    what it returns refuses a backward; a call that writes to `out` is refused. Where nothing is between autograd and
    the function, as a tracer would be, it is called here: to go through torch once more takes as long as all that the
    function does.
    """
    function, name = of.name, of.name + "_out" * out

    if out:

        def run(to, *operands, **options) -> None:
            served(function)(*operands, out=to, **options)
    else:

        def run(*operands, **options):
            return served(function)(*operands, **options)

    def autograd(keys, *args, **options):
        if is_eager(keys.raw_repr()):
            return run(*args, **options)  # which minds gradients itself
        operands = *args, *options.values()
        if learns(*operands):
            call = functools.partial(below_autograd, made, keys, args, options)
            return refusing(f"ragged_moe.{of.name}", call, operands, args[0] if out else None)
        return below_autograd(made, keys, args, options)

    LIBRARY.define(of.schema(out))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ragged_moe::{name}", nothing if out else of.fake, lib=LIBRARY)
    made = getattr(torch.ops.ragged_moe, name).default
    LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    return made


def below_autograd(made, keys, args: tuple, options: dict):
    """Run an operator by torch, behind autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return made.redispatch(keys & BELOW_AUTOGRAD, *args, **options)


experts_op, experts_out_op = operator(EXPERTS_CALL), operator(EXPERTS_CALL, out=True)
batched_experts_op, batched_experts_out_op = operator(BATCHED_CALL), operator(BATCHED_CALL, out=True)
route_op = operator(ROUTE_CALL)
grouped_gemm_op, grouped_gemm_out_op = operator(GEMM_CALL), operator(GEMM_CALL, out=True)
