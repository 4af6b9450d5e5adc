"""What `import ragged_moe` alone gives."""

import subprocess
import sys

import pytest
import torch

from ragged_moe import torch_ops

NAMES = "batched_experts batched_experts_out experts experts_out grouped_gemm_fp8 grouped_gemm_fp8_out route".split()
CODE = """
import sys, ragged_moe, torch
for name in sys.argv[1:]:
    print(getattr(torch.ops.ragged_moe, name).default._schema)
assert "cutlass" not in sys.modules  # an emulated GPU may still be installed
"""


def test_operators_are_there_after_the_import():
    """In a fresh process, before a function has been touched, and without CuTe DSL."""
    done = subprocess.run([sys.executable, "-c", CODE, *NAMES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.partition("(")[0] for line in done.stdout.splitlines()] == [f"ragged_moe::{name}" for name in NAMES]


@pytest.mark.parametrize("function", [torch_ops.requires_grad, torch_ops.any_requires_grad])
def test_who_requires_gradients(function):
    """By torch's own function, which a version may be without, and by what stands for it then."""
    x, learning = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert not function(x, None, 1.0, scale=None, bias=x, layout="tokens_first", gate_first=True)
    assert function(x, learning, scale=None) and function(x, None, bias=learning)
