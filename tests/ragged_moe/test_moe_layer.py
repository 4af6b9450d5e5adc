"""The layer: what it refuses, its configs, what is packed. Its kernels: layer_checks.py."""

import base64
import dataclasses
import json
import pathlib

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode

from ragged_moe.integrations import flashinfer_bench
from ragged_moe.kernels.config import SMEM
from ragged_moe.kernels.routing import MAX_CHUNK, MAX_CTAS, THREADS, grid_of
from ragged_moe.layers import deepseek_layer
from ragged_moe.layers.signatures import LAYER_CALL
from ragged_moe.measure import layer as layer_bench
from ragged_moe.reference import layer as d
from ragged_moe.runtime import device
from ragged_moe.runtime import sizes as p
from ragged_moe.tuning import sm90, sm100
from tests import forked
from tests.submission.test_machine_code import most_used
from tests.thorough import all_but

ROOT = pathlib.Path(__file__).parents[2]

SIZES = p.Sizes(hidden=256, intermediate=128, local=4)


def operands() -> dict:
    x = d.draw(SIZES, 3)
    return vars(x) | {"output": torch.empty(3, 256, dtype=torch.bfloat16)}


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """CPU tensors are taken for an emulated GPU's, and no kernels are made for it."""
    monkeypatch.setattr(deepseek_layer, "layer_of", lambda *_: pytest.fail("it was not refused"))
    monkeypatch.setattr(device, "emulated", lambda: True)
    monkeypatch.setattr(device.EmulatedGpu, "reaches", lambda *_: True)


@pytest.mark.parametrize(
    "name, change, sentence",
    [
        ("hidden_states", lambda t: t[0], "hidden_states must be a tensor [T, H]"),
        (
            "hidden_states",
            lambda t: t.float(),
            "hidden_states has type torch.float32, but must have torch.float8_e4m3fn",
        ),
        (
            "hidden_states",
            lambda t: t[:, :200],
            "hidden_states: dimension H is 200, but must be a multiple of 128 from",
        ),
        ("routing_logits", lambda t: t[:, :128], "routing_logits: dimension 1 is 128, but must be 256"),
        (
            "routing_bias",
            lambda t: t.half(),
            "routing_bias has type torch.float16, but must have torch.bfloat16 or torch.float32",
        ),
        ("routing_bias", lambda t: None, "routing_bias is None, but must be a tensor"),
        ("hidden_states_scale", lambda t: t.T, "hidden_states_scale: dimension 0 is 3, but must be 2"),
        ("gemm1_weights", lambda t: t[:, :128], "gemm1_weights: dimension 1 is 128, but must be 256"),
        ("gemm1_weights_scale", lambda t: t.double(), "gemm1_weights_scale has type torch.float64"),
        ("gemm2_weights", lambda t: t[:0], "gemm2_weights: dimension E is 0, but must be from 1 to 32"),
        (
            "gemm2_weights_scale",
            lambda t: t.to("meta"),
            "gemm2_weights_scale is on meta, but must be on cpu, as hidden",
        ),
        (
            "local_expert_offset",
            lambda x: 253,
            "local_expert_offset is 253, but must be from 0 to 252, as 4 of 256 experts are local",
        ),
        ("local_expert_offset", lambda x: -1, "local_expert_offset is -1, but must be from 0 to 252"),
        ("local_expert_offset", lambda x: 1.5, "local_expert_offset is 1.5, but must be an int"),
        ("local_expert_offset", lambda x: True, "local_expert_offset is True, but must be an int"),
        ("local_expert_offset", torch.tensor, "local_expert_offset is a Tensor, but must be an int"),
        ("routed_scaling_factor", str, "routed_scaling_factor is '2.5', but must be a finite number of the host's"),
        ("output", lambda t: t.half(), "output has type torch.float16, but must have torch.bfloat16"),
        (
            "output",
            lambda t: torch.empty(769, dtype=t.dtype)[1:].view(3, 256),
            "output starts at an address that is not",
        ),
        ("output", lambda t: t.T.contiguous().T, "output: dimension 0 has stride 1, but must have 256"),
    ],
)
def test_refused(name, change, sentence):
    given = operands()
    given[name] = change(given[name])
    with pytest.raises(ValueError, match="^" + sentence.replace("[", r"\[").replace("(", r"\(")):
        deepseek_layer.run(**given)


@pytest.mark.parametrize("bias", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("offset", [0, 252, np.int32(7), np.uint8(7)])
def test_good_operands_reach_the_layer(offset, bias):
    """The test of the tests above."""
    given = operands()
    given |= {"local_expert_offset": offset, "routing_bias": given["routing_bias"].to(bias)}
    with pytest.raises(pytest.fail.Exception, match="it was not refused"):
        deepseek_layer.run(**given)


@pytest.mark.parametrize("kind, sentence", [
    ("fake", "routing_logits has no memory on the GPU: it is a fake tensor, or one that torch traces"),
    ("meta", "hidden_states is on meta, but must be on a CUDA GPU"),
    ("cpu", "hidden_states is on cpu, but must be on a CUDA GPU"),
    ("host", "routing_logits is not in the emulated GPU's memory: emulated_gpu.device_tensors makes a copy that is"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_tensors_without_memory_are_refused(monkeypatch, kind, sentence):
    """In one sentence, before the layer's kernels are made, and output stays as it was."""
    monkeypatch.undo()
    monkeypatch.setattr(deepseek_layer, "layer_of", lambda *_: pytest.fail("it was not refused"))
    given, mode = operands(), FakeTensorMode()
    output = given["output"].fill_(7)
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor) and name != "output"}
    if kind == "fake":
        monkeypatch.setattr(deepseek_layer, "device_of", lambda *_: object.__new__(device.Gpu))
        given |= {name: mode.from_tensor(x) for name, x in tensors.items()}
    elif kind == "meta":
        given |= {name: x.to("meta") for name, x in tensors.items()}
    monkeypatch.setattr(device, "emulated", lambda: kind == "host")  # another test may have installed one
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        deepseek_layer.run(**given)
    assert (output == 7).all()


def test_more_tokens_than_routing_does_are_refused():
    x = d.draw(p.Sizes(128, 128, 1), 16385)
    with pytest.raises(ValueError, match="^hidden_states: dimension T is 16385, but must be from 0 to 16384"):
        deepseek_layer.run(*vars(x).values(), torch.empty(16385, 128, dtype=torch.bfloat16))


@pytest.mark.parametrize("sms", [4 * 33, 148])
def test_routing_grid(sms):
    """Every token has a place, in no more CTAs than run at once, and masks fit into shared memory."""
    for tokens in [*range(1, 300), 2047, 2048, 2049, 16383, 16384]:
        grid, chunk = grid_of(tokens, sms)
        assert (grid - 1) * chunk < tokens <= grid * chunk and grid <= min(sms, MAX_CTAS) and chunk <= MAX_CHUNK


def test_configs():
    """Every config is chosen for some rows, and fits into shared memory with stages for all three scale warps."""
    for tuning in (sm90, sm100):
        assert {tuning.choose_gemm1(rows, 32) for rows in (1, 256, 512, 2048, 4096)} == set(tuning.GEMM1)
        assert all(config.smem <= SMEM and config.stages >= 4 for config in tuning.GEMM1)


def test_configs_of_a_b200():
    """Tokens are on the lanes of tensor memory where weights there would take longer than they take from memory."""
    assert [sm100.choose_gemm1(rows, 32).swap_ab for rows in (1, 512, 513, 2048, 16384)] == [1, 1, 0, 0, 0]


def test_when_routing_prefetches(monkeypatch):
    """From 8 to 32 rows an expert: beyond, some have two tiles of rows, and what GEMM1 begins with is not known."""
    one, seen = deepseek_layer.Layer(torch.device("cpu"), SIZES), []
    monkeypatch.setattr(deepseek_layer, "routing_program", lambda *_: lambda *words: seen.append(words[-4] > 0))
    for tokens in (255, 256, 1055, 1056, 2048):
        x = dataclasses.replace(d.draw(SIZES, 1), hidden_states=torch.empty(tokens, 0))
        one.route(x, one.space(tokens))
    assert seen == [False, True, True, False, False]


COMPILE = """
import base64, ctypes
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr
from ragged_moe.kernels.routing import WORDS, Routing
from tests import quick_dsl
quick_dsl.install()
words = (ctypes.c_int64 * WORDS)()
made = cute.compile(Routing(), make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic))
print(base64.b64encode(made.artifacts.CUBIN).decode())
"""


@pytest.mark.parametrize("arch", all_but(["sm_100a"], ["sm_90a", "sm_100a"]))
def test_an_sm_has_room_for_two_ctas_of_routing(arch, tmp_path):
    """Of its 65536 registers: those of two layers at once must all be under way, as they wait for each other."""
    variables = {"CUTE_DSL_ARCH": arch, "CUTE_DSL_KEEP": "cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
    done = forked.module("-c", COMPILE, CUTE_DSL_DUMP_DIR=str(tmp_path), **variables)
    assert done.returncode == 0, done.stderr
    registers = most_used(base64.b64decode(done.stdout.splitlines()[-1]))["registers"]
    assert 0 < registers * 2 * THREADS <= 65536, registers


def test_trace_set(tmp_path):
    """The definition that is packed has the layer's tensors, and its reference the layer's result."""
    fixed = flashinfer_bench.definition()["axes"].items()
    axes = {"seq_len": 5} | {name: x["value"] for name, x in fixed if "value" in x}
    h, i, e = (axes[f"{name}"] for name in ("hidden_size", "intermediate_size", "num_local_experts"))
    specs = flashinfer_bench.definition()["inputs"] | flashinfer_bench.definition()["outputs"]
    for name, dtype, shape, _ in LAYER_CALL.expected({"T": 5, "H": h, "I": i, "E": e}):
        assert str(dtype) == f"torch.{specs[name]['dtype']}" and [axes[x] for x in specs[name]["shape"]] == list(shape)
    assert list(specs) == [*vars(d.draw(SIZES, 0)), "output"]
    module, x = {}, d.draw(SIZES, 30, 0, 16)
    exec(flashinfer_bench.REFERENCE, module)
    assert d.distance(module["run"](*vars(x).values()), d.layer(x)) < 0.004  # rounded to bf16
    arguments = ["--folder", str(tmp_path), "--author", "someone", "--tokens", "1,64"]
    assert CliRunner().invoke(flashinfer_bench.main, arguments).exit_code == 0
    lines = (tmp_path / "workloads" / "moe" / f"{flashinfer_bench.DEFINITION}.jsonl").read_text().splitlines()
    assert [json.loads(x)["workload"]["axes"]["seq_len"] for x in lines] == [1, 64]
    assert len(list(tmp_path.glob("*/moe/*.json"))) == 2
    assert "nothing to write" in CliRunner().invoke(flashinfer_bench.main, ["--author", "someone"]).output


def test_peer_table():
    """What is said of a row: the ratio is to the best peer."""
    us = {"whole": 30.0, "whole, in a graph": 20.0, "peer": 40.0, "peer, in a graph": 21.0}
    row = {"T": 2048, "us": us, "peers": ["peer"], "ratio": 0.75, "ratio, in a graph": 20 / 21}
    assert layer_bench.peer_table([row], ", in a graph").splitlines()[-1] == "| 2048 | 20.0 | 21.0 | 0.952 |"


def test_packed(tmp_path):
    """It is complete: imported from elsewhere, as FlashInfer-Bench does, it has the definition's arguments."""
    packed = flashinfer_bench.solution("name", "author")
    for source in packed["sources"]:
        file = tmp_path / "fib_python_name" / source["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source["content"])
    path, function = packed["spec"]["entry_point"].split("::")
    code = (
        f"import inspect, fib_python_name.{path.removesuffix('.py')} as m; import ragged_moe.layers.deepseek_layer;"
        " print(ragged_moe.layers.deepseek_layer.__file__);"
    )
    code += f" print(*inspect.signature(m.{function}).parameters)"
    done = forked.module("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    where, parameters = done.stdout.splitlines()
    assert where.startswith(str(tmp_path)) and parameters.split() == [*vars(d.draw(SIZES, 0)), "output"]
