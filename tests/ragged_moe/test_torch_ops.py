"""What `import ragged_moe` alone gives."""

import inspect

import pytest
import torch

import ragged_moe
from ragged_moe.runtime import gradients
from tests import forked

NAMES = "batched_experts batched_experts_out experts experts_out grouped_gemm_fp8 grouped_gemm_fp8_out route".split()
CODE = """
import sys, ragged_moe, torch
for name in sys.argv[1:]:
    print(getattr(torch.ops.ragged_moe, name).default._schema)
assert "cutlass" not in sys.modules  # an emulated GPU may still be installed
"""


def test_operators_are_there_after_the_import():
    """In a process of its own, before a function has been touched, and without CuTe DSL."""
    done = forked.module("-c", CODE, *NAMES)
    assert done.returncode == 0, done.stderr
    assert [line.partition("(")[0] for line in done.stdout.splitlines()] == [f"ragged_moe::{name}" for name in NAMES]


@pytest.mark.parametrize("function", [gradients.requires_grad, gradients.any_requires_grad])
def test_who_requires_gradients(function):
    """By torch's own function, which a version may be without, and by what stands for it then."""
    x, learning = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert not function(x, None, 1.0, "tokens_first", True)
    assert function(x, learning, None) and function(x, None, learning)


@pytest.mark.parametrize("name", "experts batched_experts grouped_gemm_fp8 grouped_gemm_nvfp4 run".split())
def test_out_of_operands_that_learn(name):
    """Nobody would hear of a backward: it is refused, with an operator or without, unless torch records nothing."""
    taken, a = inspect.signature(getattr(ragged_moe, name)).parameters, torch.zeros(2, 64)
    given = {x: None for x, of in taken.items() if of.default is of.empty}
    given |= {x: torch.zeros(1, 1, 1, 2048, dtype=torch.uint8) for x in ("a", "b", "b_scale") if x in given}
    given |= {next(iter(given)): a, "output" if name == "run" else "out": torch.zeros(2, 64, requires_grad=True)}
    if name == "grouped_gemm_fp8":
        given["b"] = torch.zeros(1, 64, 64)
    with pytest.raises(RuntimeError, match=f"^ragged_moe.{name} writes to out, but an operand requires gradients, of"):
        getattr(ragged_moe, name)(**given)
    with torch.no_grad(), pytest.raises((ValueError, TypeError)):
        getattr(ragged_moe, name)(**given)
