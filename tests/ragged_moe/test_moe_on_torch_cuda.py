"""A user's script with cuda tensors, as `python -m emulated_gpu run` serves them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGINNING = """
import torch
import ragged_moe
from tests import quick_dsl

quick_dsl.install()
"""
GEMM = """
from ragged_moe.checks.grouped_gemm import BOUND, Case, error

case = Case((3, 0, 20), 256, 256)
operands = [x.cuda() for x in case.draw()]
assert operands[0].device == torch.device("cuda", 0)
out = ragged_moe.grouped_gemm_fp8(*operands)
assert out.is_cuda and error(out.cpu(), case.draw()) <= BOUND
out = torch.empty(23, 256, dtype=torch.bfloat16, device="cuda")
assert ragged_moe.grouped_gemm_fp8(*operands, out=out) is out and error(out.cpu(), case.draw()) <= BOUND
try:
    ragged_moe.grouped_gemm_fp8(*case.draw())
except ValueError as e:
    print(e)
"""
LAYER = """
from ragged_moe.runtime.sizes import Sizes
from ragged_moe.reference import layer as reference

x = reference.draw(Sizes(256, 128, 4), 5)
x.routing_logits[:, :4] += 4
output = torch.full((5, 256), torch.nan, dtype=torch.bfloat16, device="cuda")
ragged_moe.run(*(t.cuda() for t in x.tensors()), 0, 2.5, output)
assert reference.distance(output.cpu(), reference.quantised_layer(x)) < 0.02

try:
    ragged_moe.run(*x.tensors(), 0, 2.5, output.cpu())
except ValueError as e:
    print(e)
"""


SCRIPTS = [("b200", GEMM, "a"), ("h200", LAYER, "routing_logits")]


@pytest.mark.slow
@pytest.mark.thorough  # `make test` has a script of two ranks
@pytest.mark.parametrize("machine, script, first", SCRIPTS)
def test_a_script_with_cuda_tensors(machine, script, first, tmp_path):
    """A call computes what it should, and tensors that have stayed on the host are refused."""
    path = tmp_path / "script.py"
    path.write_text(BEGINNING + script)
    command = [sys.executable, "-m", "emulated_gpu", "run", "--machine", machine, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"{first} is not in the emulated GPU's memory")


GRAPHS = """
from ragged_moe.checks.graphs import Case, wrong
from ragged_moe.runtime.device import gpu
from ragged_moe.runtime.sizes import Sizes

gpu(torch.device("cuda", 0)).sms = 6  # CTAs for all SMs would take long
print(wrong(Case(Sizes(256, 128, 8, 2, 8), 5, 2), 2))
"""


@pytest.mark.slow
@pytest.mark.thorough  # `python -m ragged_moe check graphs` does it on a GPU
def test_a_graph_whose_maps_change(tmp_path):
    """Replays of an emulated CUDA graph, counts of replicas and all else written anew between two."""
    path = tmp_path / "script.py"
    path.write_text(BEGINNING + GRAPHS)
    command = [sys.executable, "-m", "emulated_gpu", "run", "--machine", "h200", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == ["None"] and ", 0 findings" in done.stderr, done.stderr[-4000:]
