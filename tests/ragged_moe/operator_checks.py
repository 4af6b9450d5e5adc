"""torch.library.opcheck of each operator of ragged_moe.torch_ops, whose kernels run on the emulated GPU.

test_moe_kernel.py runs this in a process of its own, with MOE_MACHINE=h200.
"""

import dataclasses
import os

import pytest
import torch
from torch.library import opcheck

import emulated_gpu
from tests.ragged_moe.emulated import fp8_experts, without_cuda
from tests.thorough import all_but

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
TESTS = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"


@pytest.fixture(scope="module")
def ops():
    """ragged_moe.torch_ops, whose functions work on copies in device memory: tensors that opcheck makes are the
    CPU's."""
    without_cuda(os.environ["MOE_MACHINE"])
    from ragged_moe import torch_ops
    from ragged_moe.runtime.dispatch import is_eager, keys_of

    def served(function):
        def call(*args, out=None, **options):
            if not is_eager(keys_of(*args, out, *options.values())):
                return function(*args, **options, **({} if out is None else {"out": out}))
            with emulated_gpu.session():
                given, (args, options, there) = args, emulated_gpu.device_tensors((args, options, out))
                for x, copy in zip(given, args):
                    if isinstance(x, torch.Tensor):
                        copy.requires_grad_(x.requires_grad)
                made = function(*args, **options, **({} if out is None else {"out": there}))
                if out is None:
                    return tuple(x.clone() for x in made) if isinstance(made, tuple) else made.clone()
                return out.copy_(there)

        return call

    made = {name: served(torch_ops.served(name)) for name in ("experts", "batched_experts", "route")}
    gemm = torch_ops.served("grouped_gemm_fp8")
    made["grouped_gemm_fp8"] = served(lambda *args, out=None: gemm(*args[:5], out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_ops, "served", made.__getitem__)
        with emulated_gpu.DEVICE.as_chip(dataclasses.replace(emulated_gpu.DEVICE.chip, sms=1)):
            yield torch_ops


def operands(name: str) -> tuple:
    """Arguments of an operator, behind `out`."""
    if name == "route":
        return torch.randn(3, 16), 2
    weights = fp8_experts(128, 128, 2, 1.0)
    if name == "experts":
        return torch.randn(3, 128).to(BF16), torch.tensor([[0, 1], [1, -1], [0, 1]]), torch.rand(3, 2), *weights
    if name == "batched_experts":
        counts = torch.tensor([3, 3], dtype=torch.int32)  # no more rows: those behind counts are not written
        return torch.randn(2, 3, 128).to(BF16), counts, *weights
    rows = torch.randn(3, 128).to(E4M3), torch.rand(1, 3)
    return *rows, *weights[2:], torch.tensor([0, 2, 3], dtype=torch.int32)


@pytest.mark.parametrize("name", all_but(["route"], ["route", "grouped_gemm_fp8", "experts", "batched_experts"]))
def test_operators(ops, name):
    """Schema, autograd, the fakes and what torch.compile does with dynamic shapes, also with `out`; no gradients."""
    given = operands(name)
    # test_schema compares operands before and behind a call, which torch cannot do in e4m3
    tests = TESTS if name == "route" else TESTS[1:]
    operator = getattr(torch.ops.ragged_moe, name)
    assert opcheck(operator.default, given, test_utils=tests) == dict.fromkeys(tests, "SUCCESS")
    learning = (given[0].float().requires_grad_().to(given[0].dtype), *given[1:])
    for call in operator, ops.served(name):
        made = call(*learning)
        with pytest.raises(RuntimeError, match=f"^ragged_moe.{name} has no gradients$"):
            (made[1] if name == "route" else made).sum().backward()
    if name != "route":
        operator = getattr(torch.ops.ragged_moe, f"{name}_out")
        out = torch.zeros_like(made.detach())
        assert opcheck(operator.default, (out, *given), test_utils=tests) == dict.fromkeys(tests, "SUCCESS")
        out = torch.zeros_like(out)
        with pytest.raises(RuntimeError, match=f"^ragged_moe.{name} writes to out, but an operand requires gradients"):
            operator(out, *learning)
        assert not out.any()
