"""What is compiled before calls need it, and what a second process finds on the disk."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import moe
from moe import compile_ahead, device, grouped_gemm, layer
from moe import problem as p
from moe.kernels import disk_cache
from moe.tuning import sm90

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch) -> list[tuple[str, str]]:
    """Class and variant of each program that is made, for a GPU that is none."""
    gpu, seen = object.__new__(device.Gpu), []
    gpu.index, gpu.sms, gpu.capability = 0, 132, (9, 0)

    def program(host, words, variant):
        seen.append((type(host).__name__, variant))
        return lambda *words: None

    for module in (grouped_gemm, layer, compile_ahead):
        monkeypatch.setattr(module, "device_of", lambda *_: gpu)
    for module in (grouped_gemm, layer):
        monkeypatch.setattr(module, "Program", program)
        monkeypatch.setattr(module, "launcher", launchers)
    monkeypatch.setattr(grouped_gemm, "launcher", launchers)
    monkeypatch.setattr(compile_ahead, "current_device", lambda: CPU)
    monkeypatch.setattr(compile_ahead, "layer_of", functools.cache(layer.Layer))
    for name in ("routing", "permute", "gemm1", "finalise"):
        monkeypatch.setattr(layer, f"{name}_program", functools.cache(getattr(layer, f"{name}_program").__wrapped__))
    launchers.cache_clear()
    return seen


launchers = functools.cache(grouped_gemm.Launcher)


def test_kernels_of_grouped_gemms(made):
    """All that the table chooses in the range, each once."""
    moe.warmup(grouped_gemms=[(range(0, 3000), 8, 4096, 7168), (64, 8, 4096, 7168)])
    chosen = {sm90.choose_gemm(m, 8, 4096, 7168) for m in range(1, 3000)}
    assert sorted(made) == sorted(("GroupedGemm", repr(config)) for config in chosen) and len(chosen) > 3


@pytest.mark.parametrize("bias", [torch.bfloat16, torch.float32])
def test_kernels_of_layers(made, monkeypatch, bias):
    """Calls of the sizes that were named compile nothing more."""
    sizes = p.Sizes(256, 128, 32)
    moe.warmup(layers=[((1, 64, 200, 3000, 0), 256, 128, 32)], routing_bias=bias)
    names = [name for name, _ in made]
    assert names.count("Routing") == names.count("Permute") == names.count("Finalise") == 1
    assert ("Routing", f"f32_bias={bias is torch.float32}") in made
    before, one = list(made), compile_ahead.layer_of(CPU, sizes)
    assert {repr(config) for t in (1, 64, 200, 3000) for config in one.configs(t)} <= {variant for _, variant in made}
    for t in (1, 64, 200, 3000):
        one.compile(t, bias)
    assert made == before
    one.compile(64, torch.bfloat16 if bias is torch.float32 else torch.float32)
    assert len(made) == len(before) + 1


def test_sizes_that_calls_refuse(made):
    with pytest.raises(ValueError, match="^b: dimension N is 100, but must be a multiple of 128"):
        moe.warmup(grouped_gemms=[(1, 8, 100, 128)])
    with pytest.raises(ValueError, match="^hidden_states: dimension T is 16385, but must be from 0 to 16384"):
        moe.warmup(layers=[(16385, 256, 128, 4)])
    assert not made


SCRIPT = """
import ctypes, sys, time
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr
from moe.kernels import permute, program
from tests import quick_dsl

quick_dsl.install()
words = (ctypes.c_int64 * permute.WORDS)()
pointer = make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic)
compiles, compile_ = [], cute.compile
cute.compile = lambda *arguments: compiles.append(1) or compile_(*arguments)
begin = time.perf_counter()
found = program.compiled(permute.Permute(), "", pointer)
assert "Permute" in found.function_name and len(found.kernel_info) == 1, found.function_name
print(len(compiles), time.perf_counter() - begin)
"""


def compiles(folder: Path, **env: str) -> tuple[int, float]:
    """How often a process compiles to have the permute kernel of an H200, and after how many seconds it has it."""
    clean = {name: x for name, x in os.environ.items() if not name.startswith("CUTE_DSL_")}
    clean |= {"CUTE_DSL_ARCH": "sm_90a", "MOE_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)} | env
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=clean, capture_output=True, text=True)
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
    monkeypatch.setenv("MOE_CACHE_DIR", str(tmp_path / "kernels"))

    class Compiled:
        def dump_to_object(self, prefix: str) -> bytes:
            return b"object"

    monkeypatch.setattr(disk_cache.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    disk_cache.store("key", Compiled())
    assert not list((tmp_path / "kernels").iterdir())
    monkeypatch.undo()
    monkeypatch.setenv("MOE_CACHE_DIR", str(tmp_path / "kernels"))
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
