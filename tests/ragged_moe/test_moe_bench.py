"""What ragged_moe bench gemm and ragged_moe bench layer refuse, and what they say of rows with MXFP4
weights."""

import contextlib
import math
import sys
import types

import pytest
import torch
from click.testing import CliRunner

import emulated_gpu
import ragged_moe.measure
from ragged_moe.__main__ import cli
from ragged_moe.commands import bench_gemm, bench_layer, modelled
from ragged_moe.measure.contest import FP8, W4A8, W4A16
from ragged_moe.measure.grouped_gemm import FORMATS, GEMM, QUANTISER, geomeans
from ragged_moe.measure.layer_fp4 import mxfp4_table
from ragged_moe.measure.markdown import table

BOTH = pytest.mark.parametrize("command", [bench_gemm.main, bench_layer.main], ids=["bench", "layer_bench"])


def refused(command, tmp_path, *arguments: str) -> str:
    """The last line of what the command says, which fails and writes nothing."""
    file = tmp_path / "results.json"
    result = CliRunner().invoke(command, [*arguments, "--json", str(file)])
    assert result.exit_code and isinstance(result.exception, SystemExit) and not file.exists()
    return result.output.splitlines()[-1]


def test_a_package_that_is_missing_is_named(monkeypatch):
    for module in "commands.bench_transformers", "measure.transformers":
        monkeypatch.delitem(sys.modules, f"ragged_moe.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = CliRunner().invoke(cli, ["bench", "transformers", "--json", "file"])
    assert result.exit_code == 1
    assert result.output == "Error: bench transformers needs transformers, which is not installed\n"
    assert "Here it needs transformers" in CliRunner().invoke(cli, ["bench"]).output


@BOTH
def test_what_does_not_fit_the_format(command, tmp_path):
    assert refused(command, tmp_path, "--format", "mxfp4", "--no-peers").endswith("are of --format fp8")
    assert refused(command, tmp_path, "--format", "nvfp4", "--peers").endswith("are of --format fp8")
    of_marlin = refused(command, tmp_path, "--format", "mxfp4", "--marlin", str(tmp_path))
    assert of_marlin.endswith("--marlin is a peer of --format nvfp4")


@BOTH
def test_gpus(command, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "there is no GPU here" in refused(command, tmp_path, "--format", "mxfp4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA B200")
    found = refused(command, tmp_path, "--format", "mxfp4")
    assert found == "Error: --format mxfp4 needs a Hopper GPU: this is a NVIDIA B200"


def test_numbers(tmp_path):
    assert "'1,x' must be numbers from 0 on, separated by commas" in refused(bench_gemm.main, tmp_path, "--rows", "1,x")
    found = refused(bench_gemm.main, tmp_path, "--format", "mxfp4", "--rows", "3,44")
    assert found == "Error: --rows has 44, but --format mxfp4 has rows 0 to 43"
    assert "'0' must be numbers from 1 on" in refused(bench_layer.main, tmp_path, "--tokens", "0")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["gemm", "--m", "4,x", "--n", "128", "--k", "128"], "must be the rows of each expert"),
        (["gemm", "--m", "0,0", "--n", "128", "--k", "128"], "must be the rows of each expert"),
        (["gemm", "--m", "4", "--n", "100", "--k", "128"], "100 must be a multiple of 128"),
        (["layer", "--tokens", "0"], "0 is not in the range 1<=x<=16384"),
        (["layer", "--tokens", "1", "--format", "nvfp4", "--machine", "h200"], "nvfp4 is modelled on a b200 alone"),
    ],
)
def test_what_is_not_modelled(arguments, sentence):
    result = CliRunner().invoke(cli, ["model", *arguments])
    assert result.exit_code == 2 and sentence in result.output


def test_rows_with_mxfp4():
    """W4A8 is compared with its quantiser, then without."""
    us = {W4A16: 100.0, W4A8: 80.0, GEMM: 60.0, QUANTISER: 19.0, FP8: 50.0}
    row = {"experts": 8, "m": [64] * 8, "n": 5760, "k": 2880, "us": us, "TFLOPS": 321.4}
    found = table(FORMATS["mxfp4"].columns, [row]).splitlines()[-1]
    assert found == "| 8 x 64 | 5760 | 2880 | 100.0 | 80.0 | 60.0 | 19.0 | 50.0 | 0.80 | 0.60 | 1.60 | 321 |"
    other = row | {"us": us | {W4A8: 20.0}}
    assert geomeans("mxfp4", [row, other]) == pytest.approx({W4A16: 0.4, FP8: 0.8})
    layers = {W4A16: 12.0, W4A8: 9.0, f"{W4A16}, in a graph": 10.0, f"{W4A8}, in a graph": 8.0}
    found = mxfp4_table([{"T": 64, "us": layers}]).splitlines()[-1]
    assert found == "| 64 | 10.0 | 12.0 | 8.0 | 9.0 | 0.80 | 0.75 |"


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("bench experts", "there is no GPU here"),
        ("check graphs", "there is no GPU here"),
        ("check parallel", "rank 1 has no GPU: this machine has 0"),
        ("check parallel --lose killed", "each on a GPU: this machine has 0"),
        ("bench parallel", "rank 1 has no GPU: this machine has 0"),
    ],
)
def test_what_wants_gpus_says_so(line, sentence, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("LOCAL_RANK", "1")  # as torchrun starts them
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1 and result.output.startswith("Error: ") and sentence in result.output


def test_a_model_that_is_interrupted_before_a_call_has_ended(monkeypatch):
    """With a kernel that does nothing in the place of the GEMM."""
    ptx = ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\nret;\n}"
    calls = [lambda: emulated_gpu.launch(ptx, "k", 1, 32, [])] * 2
    stand_in = types.SimpleNamespace(of_problem=lambda *_: (calls, 1, {}, (), False))
    monkeypatch.setattr(ragged_moe.measure, "modelled", stand_in, raising=False)
    monkeypatch.setattr(emulated_gpu, "install", lambda machine: None)

    @contextlib.contextmanager
    def cut(run):
        run.engine.at(-math.inf, run.cut)
        yield

    monkeypatch.setattr(modelled, "answering", cut)
    result = CliRunner().invoke(cli, "model gemm --m 4 --n 128 --k 128 --calls 2".split())
    assert result.output == "Error: interrupted before a call had ended: nothing is known of what it takes\n"
