"""What is compiled before calls need it, and what a second process finds on the disk."""

import functools
import os
from pathlib import Path

import pytest
import torch

import ragged_moe
from ragged_moe import warm_up
from ragged_moe.kernels import disk_cache
from ragged_moe.kernels.block_scaled import W4A4, W4A8
from ragged_moe.layers import (
    batched_experts,
    bf16_layer,
    deepseek_layer,
    experts,
    fp4_layer,
    grouped_gemm_fp4,
    grouped_gemm_fp8,
    route,
)
from ragged_moe.layers.repeated_calls import Calls
from ragged_moe.layers.signatures import BATCHED_CALL, BF16_EXPERTS, E4M3_EXPERTS, EXPERTS_FORMS, packing
from ragged_moe.runtime import device, workspace
from ragged_moe.runtime import sizes as p
from ragged_moe.tuning import sm90
from tests import forked

CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch) -> list[tuple[str, str]]:
    """Class and variant of each program that is made, for a GPU that is none."""
    gpu, seen = object.__new__(Idle), []
    gpu.index, gpu.sms, gpu.capability = 0, 132, (9, 0)

    def program(host, words, variant):
        seen.append((type(host).__name__, variant))
        return lambda *words: None

    for module in (
        grouped_gemm_fp8, deepseek_layer, fp4_layer, bf16_layer, warm_up, experts, batched_experts, route, workspace
    ):  # fmt: skip
        monkeypatch.setattr(module, "device_of", lambda *_: gpu)
    for module in (grouped_gemm_fp8, grouped_gemm_fp4, deepseek_layer, experts, batched_experts, route):
        monkeypatch.setattr(module, "Program", program)
    for module in (grouped_gemm_fp8, deepseek_layer, fp4_layer):
        monkeypatch.setattr(module, "launcher", launchers)
    for module, name in ((experts, "assign_program"), (experts, "quantise_program"),
                         (batched_experts, "program"), (route, "program")):  # fmt: skip
        monkeypatch.setattr(module, name, functools.cache(getattr(module, name).__wrapped__))
    monkeypatch.setattr(warm_up, "current_device", lambda: CPU)
    arena = workspace.Arena(CPU, 0)
    for module in (warm_up, experts, batched_experts, route):
        monkeypatch.setattr(module, "layer_of", functools.cache(deepseek_layer.Layer), raising=False)
        monkeypatch.setattr(module, "arena_of", lambda *_: arena, raising=False)
        monkeypatch.setattr(module, "fp4_layer_of", functools.cache(fp4_layer.fp4_layer_of.__wrapped__), raising=False)
        cached = functools.cache(bf16_layer.bf16_layer_of.__wrapped__)
        monkeypatch.setattr(module, "bf16_layer_of", cached, raising=False)
    monkeypatch.setattr(experts, "scale_of_one", lambda _: torch.ones(1))
    for module in (experts, batched_experts, route):
        monkeypatch.setattr(module, "calls", Calls())
    for name in ("routing", "permute", "permute_quantised", "gemm1", "finalise"):
        cached = functools.cache(getattr(deepseek_layer, f"{name}_program").__wrapped__)
        for module in (deepseek_layer, fp4_layer, warm_up):
            if hasattr(module, f"{name}_program"):
                monkeypatch.setattr(module, f"{name}_program", cached)
    launchers.cache_clear()
    return seen


launchers = functools.cache(grouped_gemm_fp8.Launcher)


class Idle(device.Gpu):
    """A GPU on whose one stream nothing runs."""

    def is_current(self) -> bool:
        return True

    def stream(self) -> int:
        return 0

    def order(self) -> tuple[int, int]:
        return 0, 0


def test_kernels_of_grouped_gemms(made):
    """All that the table chooses in the range, each once."""
    ragged_moe.warmup(grouped_gemms=[(range(0, 3000), 8, 4096, 7168), (64, 8, 4096, 7168)])
    chosen = {sm90.choose_gemm(m, 8, 4096, 7168) for m in range(1, 3000)}
    assert sorted(made) == sorted(("GroupedGemm", repr(config)) for config in chosen) and len(chosen) > 3


@pytest.mark.parametrize("bias", [torch.bfloat16, torch.float32])
def test_kernels_of_layers(made, monkeypatch, bias):
    """Calls of the sizes that were named compile nothing more."""
    sizes = p.Sizes(256, 128, 32)
    ragged_moe.warmup(layers=[((1, 64, 200, 3000, 0), 256, 128, 32)], routing_bias=bias)
    names = [name for name, _ in made]
    assert names.count("Routing") == names.count("Permute") == names.count("Finalise") == 1
    assert ("Routing", f"f32_bias={bias is torch.float32}") in made
    before, one = list(made), warm_up.layer_of(CPU, sizes)
    assert {repr(config) for t in (1, 64, 200, 3000) for config in one.configs(t)} <= {variant for _, variant in made}
    ragged_moe.warmup(layers=[((1, 64, 200, 3000), 256, 128, 32)], routing_bias=bias)
    assert made == before
    other = torch.bfloat16 if bias is torch.float32 else torch.float32
    ragged_moe.warmup(layers=[(64, 256, 128, 32)], routing_bias=other)
    assert len(made) == len(before) + 1


TOKENS, LOCAL = (1, 40, 700), 4
EXPERTS = {"tokens": TOKENS, "hidden": 256, "intermediate": 128, "local": LOCAL, "top_k": 2, "num_experts": 8}
BATCHED = {"most": 64, "hidden": 256, "intermediate": 128, "local": LOCAL, "expected_m": (1, 20, 64)}
VARIANTS = {  # of ragged_moe.experts: what warmup is told, and the call's own options, types and packing
    "bf16": {},
    "e4m3": {"hidden_dtype": torch.float8_e4m3fn},
    "int64": {"ids_dtype": torch.int64, "gate_first": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0},
    "on the input": {"top_k": 1, "apply_router_weight_on_input": True},
    "of channels": {"channels": True},
    "weights in bf16": {"bf16": True},
    "packed": {"packed": True, "limit": 7.0},
    "biased": {"packed": True, "biased": True},
    "packed for e4m3": {"packed": True, "activation": "fp8", "biased": True},
}


def call_experts(tokens: int, given: dict) -> None:
    """Call ragged_moe.experts as these arguments of warmup say."""
    options = {name: given[name] for name in ("gate_first", "limit", "alpha", "shift", "apply_router_weight_on_input")
               if name in given}  # fmt: skip
    hidden, k = torch.zeros(tokens, 256).to(given.get("hidden_dtype", torch.bfloat16)), given["top_k"]
    if hidden.dtype is torch.float8_e4m3fn:
        options |= {"hidden_scale": torch.ones(tokens, 2), "hidden_scale_layout": "tokens_first"}
    letters, form = {"T": tokens, "H": 256, "I": 128, "E": LOCAL, "k": k}, E4M3_EXPERTS[None]
    if given.get("packed"):
        capability = workspace.device_of().capability
        name = packing(capability, given.get("mxfp4", False), given.get("activation"))
        form = EXPERTS_FORMS[name]
    elif given.get("bf16"):
        form = BF16_EXPERTS
    dims = dict.fromkeys(("w13_scale", "w2_scale"), 2 if given.get("channels") else 3)
    weights = [torch.zeros(x.shape).to(x.dtype) for x in form.expected(letters, dims)[3:]]
    if given.get("bf16"):
        weights = weights[0], None, weights[1], None
    if given.get("packed"):
        *weights, options["w13_global"], options["w2_global"] = weights
    if given.get("biased"):
        options |= {"w13_bias": torch.zeros(LOCAL, 256), "w2_bias": torch.zeros(LOCAL, 256)}
    ids = torch.zeros(tokens, given["top_k"]).to(given.get("ids_dtype", torch.int32))
    ragged_moe.experts(hidden, ids, torch.ones(tokens, given["top_k"]), *weights, num_experts=8, **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_of_experts(made, variant):
    """Calls of what was named compile nothing more, whatever their options; one of another type does."""
    given = EXPERTS | VARIANTS[variant]
    ragged_moe.warmup(experts=[given])
    before = list(made)
    for tokens in TOKENS:
        call_experts(tokens, given)
    assert made == before and len(set(before)) == len(before) >= 5
    other = torch.int32 if variant == "int64" else torch.int64
    call_experts(TOKENS[0], given | {"ids_dtype": other})
    assert [name for name, _ in made[len(before) :]] == ["Assign"]


@pytest.mark.parametrize("form", [W4A4, W4A8])
def test_kernels_of_packed_experts_on_blackwell(made, form):
    workspace.device_of().capability = 10, 0
    given = EXPERTS | {"packed": True, "limit": 7.0} | ({"mxfp4": True, "biased": True} if form is W4A8 else {})
    ragged_moe.warmup(experts=[given])
    before = list(made)
    for tokens in TOKENS:
        call_experts(tokens, given)
    of_assign = [variant for name, variant in before if name == "Assign"]
    assert made == before and of_assign and all(f"quantiser=QuantiseBlocks(form={form}" in x for x in of_assign)
    assert all(f"block_scaled={form}" in variant for name, variant in before if name == "GroupedGemm")


@pytest.mark.parametrize("scaled", [False, True])
def test_kernels_of_batched_experts(made, scaled):
    ragged_moe.warmup(batched_experts=[BATCHED | {"scaled": scaled}])
    before = list(made)
    hidden = torch.zeros(LOCAL, 64, 256).to(torch.float8_e4m3fn if scaled else torch.bfloat16)
    expected = BATCHED_CALL.expected({"E": LOCAL, "M": 64, "H": 256, "I": 128})
    weights = [torch.zeros(x.shape).to(x.dtype) for x in expected[2:]]
    options = {"hidden_scale": torch.ones(LOCAL, 64, 2)} if scaled else {}
    for expected in BATCHED["expected_m"]:
        ragged_moe.batched_experts(hidden, torch.zeros(LOCAL).int(), *weights, expected_m=expected, **options)
    assert made == before and len(set(before)) == len(before) >= 5


def test_kernels_of_routers(made):
    ragged_moe.warmup(routers=[{"experts": 64, "top_k": 6}, {"experts": 128, "top_k": 8, "bias": torch.float32}])
    before = list(made)
    ragged_moe.route(torch.zeros(3, 64), 6)
    ragged_moe.route(torch.zeros(9, 128), 8, bias=torch.zeros(128))
    assert made == before and len(before) == 2
    ragged_moe.route(torch.zeros(9, 128).bfloat16(), 8, bias=torch.zeros(128))
    assert len(made) == 3


def test_sizes_that_calls_refuse(made):
    with pytest.raises(ValueError, match="^b: dimension N is 100, but must be a multiple of 128"):
        ragged_moe.warmup(grouped_gemms=[(1, 8, 100, 128)])
    with pytest.raises(ValueError, match="^hidden_states: dimension T is 16385, but must be from 0 to 16384"):
        ragged_moe.warmup(layers=[(16385, 256, 128, 4)])
    with pytest.raises(ValueError, match="^hidden: dimension T is 65537, but must be from 0 to 65536"):
        ragged_moe.warmup(experts=[EXPERTS | {"tokens": 65537}])
    with pytest.raises(ValueError, match="^expected_m is 0, but must be an int from 1 on"):
        ragged_moe.warmup(batched_experts=[BATCHED | {"expected_m": 0}])
    with pytest.raises(ValueError, match="^top_k is 9, but must be from 1 to 8"):
        ragged_moe.warmup(routers=[{"experts": 8, "top_k": 9}])
    with pytest.raises(TypeError, match="unexpected keyword argument 'topk'"):
        ragged_moe.warmup(experts=[EXPERTS | {"topk": 2}])
    assert not made


def compiles(folder: Path, what: str = "permute", **variables: str) -> tuple[int, float]:
    """How often a process compiles to have the permute kernel of an H200, or what else count_compiles.py has, and after
    how many seconds it has it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CUTE_DSL_")]:
            patch.delenv(name)
        variables = {"CUTE_DSL_ARCH": "sm_90a", "RAGGED_MOE_CACHE_DIR": str(folder)} | variables
        done = forked.module("tests.ragged_moe.count_compiles", what, **variables)
    assert done.returncode == 0, done.stderr
    count, seconds = done.stdout.split()
    return int(count), float(seconds)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    """Unless what is there is damaged."""
    folder = tmp_path / "kernels"
    assert compiles(folder)[0] == 1
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and file.suffix == ".o"
    count, seconds = compiles(folder)
    assert count == 0 and seconds < 2
    whole = file.read_bytes()
    file.write_bytes(whole[:5000] + bytes(100) + whole[5100:])
    assert compiles(folder)[0] == 1 and file.read_bytes()[-32:] == whole[-32:]


@pytest.mark.thorough
def test_a_second_process_warms_up_in_two_seconds(tmp_path):
    """For all that a rank of DeepSeek-V3 calls with up to 4096 tokens."""
    assert compiles(tmp_path / "kernels", "model")[0] >= 12
    count, seconds = compiles(tmp_path / "kernels", "model")
    assert count == 0 and seconds < 2


@pytest.mark.thorough
def test_what_others_have_compiled_is_not_taken(tmp_path):
    """For another GPU, with options of the DSL, or in a folder where anybody could have put it."""
    folder = tmp_path / "kernels"
    assert compiles(folder)[0] == 1
    assert compiles(folder, CUTE_DSL_ARCH="sm_100a")[0] == 1 and len(list(folder.iterdir())) == 2
    assert compiles(folder, CUTE_DSL_LINEINFO="1")[0] == 1 and len(list(folder.iterdir())) == 2
    folder.chmod(0o777)
    assert compiles(folder)[0] == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_made(tmp_path):
    """Kernels are compiled then, as without it."""
    (tmp_path / "file").write_text("")
    assert compiles(tmp_path / "file" / "kernels")[0] == 1


def test_key(monkeypatch, tmp_path):
    """It tells kernels, variants, sources, DSLs and drivers apart."""
    (tmp_path / "a.py").write_text("x = 1")
    monkeypatch.setattr(disk_cache, "SOURCES", tmp_path)
    seen = set()

    def add(host, variant: str) -> None:
        disk_cache.environment.cache_clear()
        seen.add(disk_cache.key(host, variant))

    add(1, "")
    add(1, "")
    add("", "")
    add("", "variant")
    (tmp_path / "a.py").write_text("x = 2")
    add("", "variant")
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    add("", "variant")
    monkeypatch.setattr(disk_cache.cutlass, "__version__", "0")
    add("", "variant")
    monkeypatch.setattr(disk_cache.runtime, "cudaDriverGetVersion", lambda: (0, 99990))
    add("", "variant")
    monkeypatch.setattr(disk_cache, "cpu", lambda: "another")
    add("", "variant")
    disk_cache.environment.cache_clear()
    assert len(seen) == 8


def test_writers_leave_whole_files(monkeypatch, tmp_path):
    """A process that dies, or cannot write, leaves nothing under the key."""
    monkeypatch.setenv("RAGGED_MOE_CACHE_DIR", str(tmp_path / "kernels"))

    class Compiled:
        def dump_to_object(self, prefix: str) -> bytes:
            return b"object"

    monkeypatch.setattr(disk_cache.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    disk_cache.store("key", Compiled())
    assert not list((tmp_path / "kernels").iterdir())
    monkeypatch.undo()
    monkeypatch.setenv("RAGGED_MOE_CACHE_DIR", str(tmp_path / "kernels"))
    disk_cache.store("key", Compiled())
    assert [file.name for file in (tmp_path / "kernels").iterdir()] == ["key.o"]
    assert disk_cache.load("key") is None  # it is no object


def test_when_kernels_are_not_kept(monkeypatch):
    for name in list(os.environ):
        if name.startswith("CUTE_DSL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUTE_DSL_LIBS", "libcute_dsl_runtime.so")
    monkeypatch.setattr(disk_cache, "emulated", lambda: False)  # another test may have installed one
    assert disk_cache.is_on()
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    assert not disk_cache.is_on()
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING")
    monkeypatch.setattr(disk_cache, "emulated", lambda: True)
    assert not disk_cache.is_on()
