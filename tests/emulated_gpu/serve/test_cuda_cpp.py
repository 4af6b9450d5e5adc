"""CUDA C++ on the emulator. The checks share one process, which nothing else may share with them."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import check_scripts
import pytest
import torch

from emulated_gpu.errors import Unsupported
from emulated_gpu.serve.cuda_cpp import executables, nvcc, static_runtime, toolkit
from tests import forked

CHECKS = Path(__file__).with_name("cuda_cpp_checks.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(tmp_path_factory, CHECKS)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_cuda_cpp(results, name):
    assert results[name] == ""


@pytest.mark.parametrize("given, expected", [
    ("-gencode=arch=compute_100a,code=sm_100a -O3", "-gencode=arch=compute_100a,code=compute_100a -O3"),
    ("-gencode arch=compute_90a,code=[sm_90a,compute_90a]", "-gencode arch=compute_90a,code=compute_90a"),
    ("-arch=sm_100a -DX=sm_1", "-arch=compute_100a -DX=sm_1 -code=compute_100a"),
    ("-arch sm_90a", "-arch compute_90a -code=compute_90a"),
    ("-arch=compute_100a -code=sm_100a", "-arch=compute_100a -code=compute_100a"),
])  # fmt: skip
def test_nvcc_is_asked_for_ptx_alone(given, expected):
    assert nvcc.for_ptx(given.split()) == ["--no-compress", "-lineinfo", *expected.split()]


@pytest.mark.parametrize(
    "given, expected",
    [
        ("x.cu -o x", "-gencode=arch=compute_100a,code=compute_100a x.cu -o x"),
        ("-arch=sm_90a x.cu", "-arch=compute_90a x.cu -code=compute_90a"),
        ("-gencode arch=compute_90,code=sm_90 x.cu", "-gencode arch=compute_90,code=compute_90 x.cu"),
        ("--gpu-architecture=sm_90 -c x.cu", "--gpu-architecture=compute_90 -c x.cu -code=compute_90"),
        ("-rdc=true x.cu -lcudadevrt -lcurand -lcufft_static", "-gencode=arch=compute_100a,code=compute_100a x.cu"),
    ],
)
def test_a_program_is_for_a_b200_if_nothing_is_said_and_finds_the_libraries(given, expected):
    home, (compiler, *command) = toolkit.find().home, toolkit.program_command(given.split())
    assert compiler == str(home / "bin" / "nvcc") and command[-3:-1] == [f"-L{home}/lib", f"-I{home}/include/cccl"]
    assert command[-1] == f"-isystem={toolkit.PROFILER.parent}"
    assert command[:-3] == ["--no-compress", "-lineinfo", *expected.split()]
    assert toolkit.program_command(["-cubin", "x.cu"])[:4] == [*shlex.split(toolkit.compiler()), "-cubin"]


def test_what_is_not_served_is_said_in_a_sentence():
    why, curand = toolkit.why_it_is_not_served, "undefined reference to `curandCreateGenerator'"
    assert why(curand).startswith("curandCreateGenerator: of CUDA's libraries")
    assert "dynamic parallelism" in why("kernel launch from __global__ functions requires separate compilation mode")
    assert not why("undefined reference to `mine'")
    assert "cublasSrot is none" in why('identifier "cublasSrot" is undefined')


@pytest.mark.parametrize("given, several", [
    ("a.cu b.cu -o x", False), ("-rdc=true a.cu -o x", False), ("-rdc=true a.cu b.cu", True), ("a.o b.o -o x", True),
    ("-rdc=true -c a.cu b.cu", False), ("-dc a.cu", False), ("-arch sm_90 -dlink a.o -o d.o", True),
])  # fmt: skip
def test_device_code_of_several_files_is_linked(given, several):
    assert nvcc.links(given.split()) is several
    assert (toolkit.program_command(given.split())[0] == str(toolkit.find().nvcc)) is not several


PARTS = r"""
#include <cstdio>
#ifdef FIRST
extern __device__ int scale;
__device__ int twice(int);
__managed__ int result = 5;
static __device__ int offset = 1;
__global__ void k() { result += twice(offset) * scale; }
int main() {
  k<<<1, 1>>>();
  cudaDeviceSynchronize();
  printf("%d\n", result);
}
#else
__device__ int scale = 7;
static __device__ int offset = 0;
__device__ int twice(int x) { return 2 * x + offset; }
#endif
"""


def test_a_program_of_two_files_runs_with_variables_that_are_the_hosts_too(tmp_path):
    first, second = tmp_path / "a.cu", tmp_path / "b.cu"
    first.write_text(f"#define FIRST\n{PARTS}")
    second.write_text(PARTS)
    forked.emulated_gpu("nvcc", "-rdc=true", first, second, "-o", tmp_path / "x").check_returncode()
    done = forked.emulated_gpu("run", tmp_path / "x")
    assert (done.returncode, done.stdout) == (0, "19\n"), done.stderr


def test_a_torch_whose_headers_cannot_be_precompiled_goes_without(monkeypatch, tmp_path):
    def fails(*arguments):
        raise Unsupported("g++ cannot build extension.h.gch")

    monkeypatch.setattr(toolkit, "gxx", fails)
    monkeypatch.setattr(toolkit.build_cache, "writable", lambda: tmp_path)
    assert [*toolkit.precompiled.__wrapped__().rglob("*.gch")] == []


def test_a_machine_without_nvcc_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(toolkit, "candidates", list)
    toolkit.find.cache_clear()
    try:
        with pytest.raises(Unsupported, match=r"CUDA C\+\+ needs nvcc .*: pip install"):
            toolkit.find()
    finally:
        toolkit.find.cache_clear()


PROGRAM = r"""
#include <cstdio>
__global__ void fill(int *x) { x[threadIdx.x] = threadIdx.x; }
int main(int argc, char **argv) {
  int *x, last = 0;
  cudaMalloc(&x, 128);
  fill<<<1, argc * 16>>>(x);
  cudaMemcpy(&last, x + 31, 4, cudaMemcpyDeviceToHost);
  printf("%s %d\n", argv[1], last);
  return 7;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """PROGRAM, with CUDA's runtime linked in, as nvcc does it."""
    folder, home = tmp_path_factory.mktemp("program"), toolkit.find().home
    (folder / "p.cu").write_text(PROGRAM)
    command = [home / "bin" / "nvcc", "-gencode", "arch=compute_90,code=compute_90", "-lineinfo", f"-L{home / 'lib'}"]
    subprocess.run([*command, "p.cu", "-o", "p"], cwd=folder, check=True, capture_output=True)
    return folder / "p"


@pytest.mark.slow
def test_a_program_runs_and_its_faults_are_found(program):
    done = forked.emulated_gpu("run", "--keep-going", 2, program, "given", "more")
    assert (done.returncode, done.stdout) == (7, "given 31\n"), done.stderr
    assert "out-of-bounds: write of 4 bytes" in done.stderr and "p.cu:3)" in done.stderr, done.stderr
    assert "1 launch, 1 finding" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_program_launches_is_modelled(program, tmp_path):
    """It has not been computed when the program looks for it; what is written is as of a script."""
    options = ["--machine", "h200", "--no-gains", "--out", tmp_path, "--json", tmp_path / "found.json"]
    done = forked.emulated_gpu("profile", *options, program, "given")
    assert (done.returncode, done.stdout[:8]) == (0, "given 0\n"), done.stderr
    assert "modelling 1 launch;" in done.stderr and "ended with exit status 7" in done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["exit_status"] == 7 and found["args"] == ["given"]
    assert [row["kernel"] for row in found["launches"]] == ["_Z4fillPi"] and 0 < found["launches"][0]["us"] < 10
    assert (tmp_path / "timeline.json.gz").exists()


def run_source(name: str, folder: Path, *options: str) -> Callable[..., subprocess.CompletedProcess]:
    """Build a program that lies beside this file for an H200; returns what runs it."""
    program, source = folder / "program", Path(__file__).with_name(name)
    done = forked.emulated_gpu("nvcc", "-arch=sm_90", source, *options, "-o", program)
    assert done.returncode == 0, done.stderr
    return functools.partial(forked.emulated_gpu, "run", "--machine", "h200", program)


@pytest.mark.slow
def test_wrong_calls_have_cudas_own_errors_and_later_launches_run(tmp_path):
    done = run_source("errors.cu", tmp_path)()
    assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
    assert "copy to 0x" in done.stderr and "260 bytes, of which allocation 0 has 256: cudaError 1" in done.stderr
    assert "4 launches, 11 findings" in done.stderr, done.stderr


@pytest.mark.slow
def test_graphs_run_again_what_they_were_given_and_leave_unordered_what_they_do_not_order(tmp_path):
    run = run_source("graphs.cu", tmp_path, "-lcuda")
    done, racing = run(), run("race")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert "launches, 0 findings" in done.stderr, done.stderr
    assert racing.returncode == 1 and "stream-race: launch 2" in racing.stderr, racing.stderr


@pytest.mark.thorough  # nvcc takes half a minute of CPU time
def test_cubs_algorithms_of_the_device(tmp_path):
    forked.emulated_gpu("nvcc", Path(__file__).with_name("cub.cu"), "-o", tmp_path / "cub").check_returncode()
    done = forked.emulated_gpu("run", tmp_path / "cub")
    right = "reduce right\nscan right\nsort right\nmerge right\n"
    assert (done.returncode, done.stdout) == (0, right), done.stdout + done.stderr


def test_programs_that_cannot_be_led_here_are_refused(program, tmp_path):
    with pytest.raises(Unsupported, match="true: a program without CUDA's runtime"):
        executables.run_executable("/bin/true", [], {}, 1)
    subprocess.run(["strip", program, "-o", tmp_path / "p"], check=True)
    with pytest.raises(Unsupported, match="p: CUDA's runtime is in it, stripped of the symbols"):
        executables.run_executable(str(tmp_path / "p"), [], {}, 1)
    with pytest.raises(Unsupported, match="a program on 2 devices"):
        executables.run_executable(str(program), [], {}, 2)


def test_a_program_that_a_signal_ends_is_said_to_be(capsys):
    assert executables.status_of(["/bin/sh", "-c", "kill -SEGV $$"], {}) == 139
    assert capsys.readouterr().err == "emulated-gpu: /bin/sh: ended by signal 11 (Segmentation fault)\n"
    assert executables.status_of(["/bin/sh", "-c", "exit 3"], {}) == 3 and not capsys.readouterr().err


def test_a_module_that_needs_cuda_is_none_without_nvcc(monkeypatch):
    """Packages try such modules, and go on without them."""

    def refuse(path):
        raise Unsupported(f"no nvcc for {path}")

    monkeypatch.setattr(static_runtime, "serve", refuse)
    create = static_runtime.importing(lambda loader, spec: spec.origin)
    with pytest.raises(ImportError, match="no nvcc for x.so"):
        create(None, SimpleNamespace(name="x", origin="x.so"))


@pytest.mark.parametrize("prototype, types", [
    ("const char *symbol, void **pfn, cuuint64_t flags", ["char const *", "void **", "cuuint64_t"]),
    ("CUmodule *module, const void* image, unsigned int n", ["CUmodule *", "void const *", "unsigned int"]),
    ("const cuuint32_t dims[2]", ["cuuint32_t const *"]),
    ("void", []),
])  # fmt: skip
def test_types_of_prototypes(prototype, types):
    assert toolkit.types_of(prototype) == types


def test_every_function_of_cudas_headers_is_served_or_refused():
    """The texts of the headers are CUDA's; what is served must be named there."""
    found = toolkit.find()
    served = "".join(toolkit.runtime_texts())
    others = toolkit.others(found, served)
    refused = set(re.findall(r"int (cu\w+)\(\)", others))
    headers = "".join((found.include / h).read_text(errors="replace") for h in ("cuda_runtime_api.h", "cuda.h"))
    assert {"cudaIpcOpenMemHandle", "cudaMallocMipmappedArray"} <= refused and "cudaMalloc" not in refused
    slots = set(re.findall(r"SLOT\((\w+),", others))
    assert {"cuGraphLaunch", "cuMemAlloc_v2", "cuCtxCreate_v2", "cuLaunchKernel"} <= slots
    for name in re.findall(r"^\w[\w *]*?\b(cu(?:da)?[A-Z]\w+)\(", served, re.MULTILINE):
        named = static_runtime.OWN_STREAM.sub("", name)  # as programs have it
        assert named in headers or name.startswith("cudaProfiler"), name  # whose header pip's packages do not have
        assert name not in refused, name


COMPILER = """#!/bin/sh
echo "$@" >> calls
case "$*" in
  *light*-c*bad.cpp*) echo "of the attempt"; exit 1 ;;
  *light*) echo "a warning" >&2 ;;
  *) echo "of the build" >&2; exit 3 ;;
esac
"""


@pytest.mark.parametrize("arguments, calls, said, status", [
    ("-O3 -c good.cpp", ["-I LIGHT -O3 -c good.cpp"], "a warning\n", 0),
    ("-O3 -c bad.cpp", ["-I LIGHT -O3 -c bad.cpp", "-O3 -c bad.cpp"], "of the build\n", 3),
    ("good.o -o good.so", ["good.o -o good.so"], "of the build\n", 3),
])  # fmt: skip
def test_what_light_headers_are_not_enough_for_is_compiled_as_asked(arguments, calls, said, status, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    script = toolkit.HERE / "light_first.sh"
    command = ["sh", script, compiler, *arguments.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)
    light = str(script.parent / "light")
    assert (tmp_path / "calls").read_text().splitlines() == [call.replace("LIGHT", light) for call in calls]


def preprocessed(text: str, *options: str) -> str:
    """Return a text of C++ with the headers of torch and of Python, its macros as they are."""
    root = Path(torch.__file__).parent / "include"
    folders = [*options, root, root / "torch" / "csrc" / "api" / "include", sysconfig.get_paths()["include"]]
    command = ["g++", "-std=c++20", "-E", "-fdirectives-only", "-P", "-x", "c++"]
    command += [*(f"-I{folder}" for folder in folders), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_light_headers_convert_the_same_types_of_python():
    """A conversion that they lacked would be missed at a call only, when no compiler asks for torch's own headers."""
    found = []
    for folder in ([], [toolkit.HERE / "light"]):
        text = preprocessed("#include <torch/extension.h>\n", *folder)
        found.append(sorted(re.findall(r"(?:struct|class) [\w ]*type_caster<[^{;]*\{", text)))
    assert len(found[0]) > 10 and found[0] == found[1]


@pytest.mark.thorough
def test_gxx_takes_what_is_precompiled(tmp_path):
    (tmp_path / "x.cpp").write_text("#include <torch/extension.h>\n")
    command = ["/bin/sh", toolkit.HERE / "light_first.sh", "g++", "-std=c++20", "-fPIC", "-DTORCH_EXTENSION_NAME=x"]
    command += ["-DTORCH_API_INCLUDE_EXTENSION_H", *toolkit.torchs_includes(), "-H", "-c", "x.cpp"]
    given = os.environ | {"EMULATED_GPU_PRECOMPILED": str(toolkit.precompiled())}
    said = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True).stderr
    assert said.splitlines()[0] == f"! {toolkit.precompiled()}/torch/extension.h.gch", said


@pytest.mark.thorough
def test_light_headers_give_the_same_ptx(tmp_path):
    source = (ROOT / "docs" / "scale_cuda.py").read_text().split('"""')[3]
    complex_too = "c10::complex<float> twice(c10::complex<float> z) { return z * 2.0f + z; }"
    text = f"#include <torch/types.h>\n#include <cuda_runtime.h>\n__device__ {complex_too}\n{source}"
    Path(tmp_path, "x.cu").write_text(text)
    root = Path(torch.__file__).parent / "include"
    command = [toolkit.find().nvcc, "-ptx", "-std=c++20", "-arch=compute_100a", "-lineinfo", "x.cu", "-o", "x.ptx"]
    command += ["--expt-relaxed-constexpr", f"-I{toolkit.HEADERS}"]
    made = []
    for folder in ([], [f"-I{toolkit.HERE / 'light'}"]):
        given = [*folder, f"-I{root}", f"-I{root / 'torch' / 'csrc' / 'api' / 'include'}"]
        subprocess.run([*command, *given], cwd=tmp_path, check=True, capture_output=True)
        unused = r"(?m)^\.global \.align 1 \.b8 _ZN\w+_INTERNAL_\w+(4cuda3std|6thrust)\w+\[1\];\n"  # Thrust's
        made.append(re.sub(unused, "", (tmp_path / "x.ptx").read_text()))
    assert ".visible .entry" in made[0] and made[0] == made[1]


def test_libraries_of_another_clone_are_taken(tmp_path, monkeypatch):
    """Where their texts lie is no part of what they are found by."""
    libraries = toolkit.cudart, toolkit.blas, toolkit.driver, toolkit.preloaded
    found = [library() for library in libraries]
    monkeypatch.setattr(toolkit, "HERE", shutil.copytree(toolkit.HERE, tmp_path / "clone"))
    monkeypatch.setattr(toolkit, "HEADERS", toolkit.HERE / "include")
    assert [library.__wrapped__() for library in libraries] == found
