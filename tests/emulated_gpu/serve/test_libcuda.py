"""libcuda.so.1 as a file: scripts, libraries, programs and processes that scripts start find it by its name."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emulated_gpu
from emulated_gpu.errors import WrongCall
from emulated_gpu.serve.cuda_cpp import libcuda, static_runtime, toolkit
from emulated_gpu.serve.cute import cute_dsl
from emulated_gpu.serve.driver import cuda_bindings, launches
from emulated_gpu.serve.torch_device import memory
from tests import forked

HERE = Path(__file__).parent
DEVICES = """
import ctypes, ctypes.util
driver, count = ctypes.CDLL({}), ctypes.c_int()
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""


def done(*command, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, cwd=HERE.parents[2], **kwargs)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("libcuda") / "program"
    built = done("gcc", "-w", HERE / "libcuda.c", "-o", made, "-ldl")
    assert built.returncode == 0, built.stderr
    return made


def test_a_program_that_loads_the_driver_runs(program):
    ran = done(sys.executable, "-m", "emulated_gpu", "run", program, "refused")
    assert (ran.stdout, ran.returncode) == ("OK\n", 1) and "2 launches, 2 findings" in ran.stderr, ran.stderr


def test_files_in_the_users_folder_are_no_modules_of_pythons(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    places = toolkit.for_python()["EMULATED_GPU_PYTHONPATH"].split(os.pathsep)
    assert places[0] == str(HERE.parents[2]) and not {"", str(tmp_path)} & {*places}


def test_what_a_script_starts_has_the_device_too(program, tmp_path):
    script = tmp_path / "script.py"
    child = DEVICES.format("'libcuda.so.1'")
    script.write_text(f"import subprocess, sys\nsubprocess.run(['{program}'])\n"
                      f"subprocess.run([sys.executable, '-c', {child!r}])")  # fmt: skip
    ran = forked.emulated_gpu("run", script)
    assert (ran.stdout, ran.returncode) == ("OK\n0 0 1\n", 0), ran.stderr


def test_without_run_there_is_no_device(program):
    folder = toolkit.driver().parent
    ran = done(program, env={"LD_LIBRARY_PATH": str(folder)})
    assert ran.stdout.startswith("get && of(\"cuInit\"") and ran.returncode == 1


@pytest.mark.parametrize("name", ["'libcuda.so'", "ctypes.util.find_library('cuda')"])
def test_a_script_loads_the_driver_by_its_name(name, tmp_path):
    """Also where another library is known by the runtime's name, as in torch's builds with CUDA."""
    script, other = tmp_path / "script.py", tmp_path / "libother.so"
    options = "-shared", "-x", "c", os.devnull, "-Wl,-soname,libcudart.so.13"
    assert done("gcc", *options, "-o", other).returncode == 0
    script.write_text(f"import ctypes\nctypes.CDLL('{other}')\n{DEVICES.format(name)}")
    ran = forked.emulated_gpu("run", script)
    assert (ran.stdout, ran.returncode) == ("0 0 1\n", 0), ran.stderr


def test_it_is_said_that_jax_has_no_device(tmp_path, monkeypatch, capsys):
    (tmp_path / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "xla_cuda13" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    libcuda.install()
    importlib.import_module("jax_plugins.xla_cuda13")
    assert "jax has its CPU alone" in capsys.readouterr().err


def test_ctrl_c_in_the_driver_ends_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import ctypes
from emulated_gpu.device import DEVICE
def interrupted(*_):
    raise KeyboardInterrupt
DEVICE.synchronize = interrupted
driver = ctypes.CDLL("libcuda.so.1")
print(driver.cuCtxSynchronize(), flush=True)
""")
    ran = forked.emulated_gpu("run", script)
    assert (ran.stdout, ran.returncode) == ("719\n", 130), ran.stderr
    assert "\ninterrupted by SIGINT\n" in ran.stderr


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("callback", [
    lambda _: launches.guarded(interrupted)(),
    lambda _: cute_dsl._callback("interrupted")(interrupted) and cute_dsl._callbacks.pop("interrupted")(),
    lambda patch: patch(memory, "await_", interrupted) or memory.before(1, 0, b"aten::add", None),
    lambda patch: patch(memory, "words_unwritten", interrupted) or memory.undefined(0, 4, 0),
])  # fmt: skip
def test_no_callback_loses_ctrl_c(callback, monkeypatch):
    with pytest.raises(KeyboardInterrupt), emulated_gpu.session():
        callback(monkeypatch.setattr)


@pytest.mark.parametrize("make", [cuda_bindings.allocate_bytes, cuda_bindings.allocate_pinned])
def test_memory_that_the_machine_lacks_is_cudas_error(make, monkeypatch):
    def lacking(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cuda_bindings, "allocate", lacking)
    with pytest.raises(WrongCall, match="64 bytes, which this machine does not have") as why:
        make(64)
    assert why.value.status == cuda_bindings.NO_MEMORY


def test_a_cubin_that_nvcc_makes_is_known_by_its_ptx(tmp_path):
    (tmp_path / "twice.cu").write_text('extern "C" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }')
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, subprocess, numpy as np
from cuda.bindings import driver as d
made = "{tmp_path}/twice.cubin"
nvcc = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
subprocess.run([nvcc, "-cubin", "-arch=sm_100a", "{tmp_path}/twice.cu", "-o", made], check=True)
d.cuInit(0)
_, module = d.cuModuleLoadData(open(made, "rb").read())
_, kernel = d.cuModuleGetFunction(module, b"twice")
_, memory = d.cuMemAlloc(16)
values = np.arange(4, dtype=np.int32)
d.cuMemcpyHtoD(memory, values.ctypes.data, 16)
d.cuLaunchKernel(kernel, 1, 1, 1, 4, 1, 1, 0, 0, ((memory,), (None,)), 0)
d.cuMemcpyDtoH(values.ctypes.data, memory, 16)
print(values.tolist())
""")
    ran = forked.emulated_gpu("run", script)
    assert (ran.stdout, ran.returncode) == ("[0, 2, 4, 6]\n", 0), ran.stderr


@pytest.mark.parametrize("text, found", [("libcuda.so.1", True), ("libcudart.so", True), ("libcurand.so", False)])
def test_a_library_that_will_load_the_driver_is_known_by_the_name_in_it(text, found, tmp_path):
    source, library, above = tmp_path / "x.c", tmp_path / "libbelow.so", tmp_path / "libabove.so"
    source.write_text(f'const char *below() {{ return "{text}"; }}')
    assert done("gcc", "-shared", "-fPIC", source, "-o", library, "-Wl,-soname,libbelow.so").returncode == 0
    source.write_text("const char *below(); const char *above() { return below(); }")
    assert done("gcc", "-shared", "-fPIC", source, "-o", above, f"-L{tmp_path}", "-lbelow").returncode == 0
    assert static_runtime.looks_for_driver(str(library)) is static_runtime.looks_for_driver(str(above)) is found


def test_a_library_whose_runtime_has_no_names_finds_no_device_and_it_is_said(tmp_path, capsys):
    source, library = tmp_path / "x.c", tmp_path / "libstripped.so"
    source.write_text('const char *names[] = {"libcuda.so.1", "cuGetExportTable"};')
    assert done("gcc", "-shared", "-fPIC", source, "-o", library).returncode == 0
    static_runtime.serve(str(library))
    assert "stripped of the symbols that name its functions: it finds no device" in capsys.readouterr().err
