"""ragged_moe's calls as operators of torch (torch.library): for torch.compile, torch.export and whoever wants a schema.

`import ragged_moe` registers torch.ops.ragged_moe.experts, .experts_out, .batched_experts, .batched_experts_out,
.route, .grouped_gemm_fp8 and .grouped_gemm_fp8_out. Under torch.compile ragged_moe's functions call them by themselves.
They have no gradients: backward says so. CuTe DSL is imported with the first call, not with this.
"""

import functools
import importlib
from collections.abc import Callable

import torch

from ragged_moe.layers.signatures import BATCHED_CALL, EXPERTS_CALL, GEMM_CALL, ROUTE_CALL
from ragged_moe.runtime.dispatch import below_autograd, is_eager
from ragged_moe.runtime.gradients import learns, refusing
from ragged_moe.runtime.signature import Signature

LIBRARY = torch.library.Library("ragged_moe", "FRAGMENT")


@functools.cache
def served(name: str) -> Callable:
    """Return the function that an operator runs, imported now."""
    return getattr(importlib.import_module("ragged_moe"), name)


def operator(of: Signature, out: bool = False, asks: bool = False) -> Callable:
    """Register torch.ops.ragged_moe.NAME, or NAME_out, which calls the function NAME; returns it.

    As torch.library.custom_op, which takes the host 20 us a call more, and 190 for one that mutates. The function is
    called for autograd: to go through torch once more takes as long as all that it does. It refuses a backward, and a
    call that writes to `out`. It hands back what is to go by torch, as to a tracer (`Function.first`), or, as to be
    handed the dispatch keys takes 1 us, has it done here (`asks`).
    """
    function, name = of.name, of.name + "_out" * out

    if out:

        def run(to, *operands, **options) -> None:
            served(function)(*operands, out=to, **options)

        def fake(to, *operands, **options) -> None:
            of.fake(*operands, to=to, **options)
    else:
        fake = of.fake

        def run(*operands, **options):
            return served(function)(*operands, **options)

    def by_keys(keys, *args, **options):
        if is_eager(keys.raw_repr()):
            return run(*args, **options)
        if learns(*args):
            call = functools.partial(by_keys, keys, *args, **options)
            return refusing(f"ragged_moe.{function}", call, args, args[0] if out else None)
        with below_autograd():
            return made(*args, **options)

    LIBRARY.define(of.schema(out))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ragged_moe::{name}", fake, lib=LIBRARY)
    made = getattr(torch.ops.ragged_moe, name).default
    LIBRARY.impl(name, by_keys if asks else run, "Autograd", with_keyset=asks)
    return made


experts_op, experts_out_op = operator(EXPERTS_CALL), operator(EXPERTS_CALL, out=True)
batched_experts_op, batched_experts_out_op = operator(BATCHED_CALL), operator(BATCHED_CALL, out=True)
route_op = operator(ROUTE_CALL)
grouped_gemm_op, grouped_gemm_out_op = operator(GEMM_CALL, asks=True), operator(GEMM_CALL, out=True, asks=True)
