"""nvcc and its headers, and the stand-ins for CUDA's libraries, which are built once for each version of all that."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import build_cache
from ...errors import Unsupported
from . import nvcc

HERE = Path(__file__).parent
BLAS_HEADERS = "include/cublas_v2.h", "include/cublasLt.h"
HEADERS = HERE / "include"  # in the place of those that torch's headers include and torch's CPU build or nvcc lack
LIGHT = HERE / "light"  # headers that are tried before torch's own
PROFILER = HERE / "include" / "profiler" / "cuda_profiler_api.h"
HOST_COMPILER = HERE / "bin" / "g++"  # the system's C++ compiler, by light_first.sh
RUNTIME, DRIVER, TORCH = "libcudart.so.13", "libcuda.so.1", "libtorch_cuda.so"
PRELOADED = "libemulated_program.so"
PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")  # of the system's libraries
BLAS = "libcublas.so.13"
# Other names that host code is linked to
NAMES = {
    RUNTIME: ("libcudart.so", "libcuda.so"),
    BLAS: ("libcublas.so", "libcublasLt.so", "libcublasLt.so.13"),
    TORCH: ("libc10_cuda.so",),
}
LED = "cuda-home-"  # what the names of `led` begin with
NEWEST_VERSION = 10**6  # CUDA's, later than any
# By which runtime.cpp knows who has called the runtime; not of what makes no context, and of what headers have
CALLS = (
    "-finstrument-functions", "-finstrument-functions-exclude-file-list=/include/",
    "-finstrument-functions-exclude-function-list=emulator_,Error,Register,Version",
)  # fmt: skip
MISSING = "CUDA C++ needs nvcc of CUDA 13: pip install 'emulated-gpu[cuda]', or set CUDA_HOME"


@dataclass(frozen=True)
class Toolkit:
    """Where nvcc lies: `home`/bin/nvcc, with the headers in `home`/include."""

    home: Path

    @property
    def nvcc(self) -> Path:
        return self.home / "bin" / "nvcc"

    @property
    def include(self) -> Path:
        return self.home / "include"


def candidates() -> list[Path]:
    """Return where a CUDA toolkit may be, the best first: what the user says, what pip installed, what is on PATH."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        homes.append(Path(folder, "cu13"))
    if found := shutil.which("nvcc"):
        homes.append(Path(os.path.realpath(found)).parents[1])
        homes.append(Path("/usr/local/cuda"))
    return homes


@functools.cache
def find() -> Toolkit:
    """Return the toolkit. Raises Unsupported, with what to install, where there is no nvcc or no C++ compiler."""
    for home in candidates():
        if home.name.startswith(LED):
            home = (home / "include").resolve().parent
        if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime_api.h").exists():
            if shutil.which("g++") is None:
                raise Unsupported("CUDA C++ needs g++, which is not on PATH")
            return Toolkit(home)
    raise Unsupported(MISSING)


@functools.cache
def led() -> Path:
    """Return a folder like the toolkit's own whose nvcc compiles for the emulated device: CUDA_HOME for who compiles.

    Everything else in it leads to the toolkit, whose lib is lib64, too: pip's has it by the first name alone.
    """
    home = find().home
    digest = hashlib.sha256(f"{home} {sys.executable} {HERE} lib64".encode()).hexdigest()[:16]
    target = build_cache.writable() / f"{LED}{digest}"
    if target.exists():
        return target
    with making(target) as made:
        (made / "bin").mkdir()
        for one in [*home.iterdir(), *(home / "bin").iterdir()]:
            place = made / one.relative_to(home)
            if not place.exists():
                place.symlink_to(one.resolve())
        if not (made / "lib64").exists():
            (made / "lib64").symlink_to(home / "lib")
        nvcc_here = made / "bin" / "nvcc"
        nvcc_here.unlink()
        nvcc_here.write_text(f'#!/bin/sh\nexec {compiler()} "$@"\n')
        nvcc_here.chmod(0o755)
    return target


@contextlib.contextmanager
def making(target: Path) -> Iterator[Path]:
    """Give a new folder, which becomes `target` in the end, unless another process was faster."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        made = Path(folder, "made")
        made.mkdir()
        yield made
        with contextlib.suppress(OSError):
            os.rename(made, target)


def place_of(name: str, texts: list[str], command: list[str], *depends: str) -> str:
    """Return the folder of a library among what is built: by its name and by all that makes it another one."""
    everything = [*texts, *command, *depends, *NAMES.get(name, ()), sys.version]
    return f"{Path(name).stem}-{hashlib.sha256(chr(0).join(everything).encode()).hexdigest()[:16]}"


def found(name: str, texts: list[str], command: list[str], *depends: str) -> Path | None:
    """Return the shared library that `built` would, if it has been built already."""
    return build_cache.found(place_of(name, texts, command, *depends), name)


def built(name: str, texts: list[str], command: list[str], *depends: str, where: Sequence[str] = ()) -> Path:
    """Return the shared library `name`, which g++ builds from texts of C++ unless it has done so before.

    depends: what else makes it another library, such as versions; where: options that do not. Processes that build it
    at the same time each build it, and the first one's is kept. Raises Unsupported with g++'s errors.
    """
    there = found(name, texts, command, *depends)
    if there is not None:
        return there
    target = build_cache.writable() / place_of(name, texts, command, *depends)
    with making(target) as made:
        files = [made.parent / f"{i}.cpp" for i in range(len(texts))]
        for file, text in zip(files, texts):
            file.write_text(text)
        gxx("-O1", "-fPIC", "-shared", f"-Wl,-soname,{name}", *files, *command, *where, "-o", made / name)
        for alias in NAMES.get(name, ()):
            (made / alias).symlink_to(name)
    return target / name


def gxx(*arguments: str | Path) -> None:
    """Run g++, which is to make its last argument. Raises Unsupported with its errors."""
    done = subprocess.run(["g++", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Unsupported(f"g++ cannot build {Path(arguments[-1]).name}:\n{done.stderr[-3000:]}")


RUNTIME_FUNCTION = re.compile(r"CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(")
DRIVER_FUNCTION = re.compile(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w+)\s*\(([^;]*?)\)\s*;")
NEWEST = re.compile(r"#define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?(\1\w*)")  # the function of a name now
FORM = re.compile(r"typedef\s+CUresult\s+\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)\)\(([^;]*)\);")
PROTOTYPE = re.compile(r"CUDARTAPI\s+(cuda\w+)\s*\(([^;]*)\)\s*;")
# Functions of the runtime that take what the driver's of that name take, or the one behind the colon, and do the same,
# when what they are given is `known` (runtime.hpp)
FORWARDED = """
    DeviceSynchronize:CtxSynchronize DeviceReset:CtxSynchronize DeviceGetLimit:CtxGetLimit DeviceSetLimit:CtxSetLimit
    HostGetDevicePointer:MemHostGetDevicePointer HostUnregister:MemHostUnregister HostGetFlags:MemHostGetFlags
    FreeHost:MemFreeHost DeviceGetPCIBusId DeviceGraphMemTrim CtxResetPersistingL2Cache MemPoolSetAccess
    FuncGetName FuncGetParamInfo OccupancyMaxActiveBlocksPerMultiprocessor
    OccupancyMaxActiveBlocksPerMultiprocessorWithFlags OccupancyMaxActiveClusters OccupancyAvailableDynamicSMemPerBlock
    EventCreateWithFlags:EventCreate EventRecord EventRecordWithFlags EventSynchronize EventQuery EventElapsedTime
    StreamSynchronize StreamQuery StreamWaitEvent StreamCopyAttributes StreamIsCapturing StreamBeginCapture
    ThreadExchangeStreamCaptureMode LaunchHostFunc MallocFromPoolAsync:MemAllocFromPoolAsync
    GraphInstantiate:GraphInstantiateWithFlags GraphAddKernelNode GraphKernelNodeSetParams GraphExecKernelNodeSetParams
    GraphCreate GraphDestroy GraphAddChildGraphNode GraphChildGraphNodeGetGraph GraphAddEmptyNode
    GraphAddEventRecordNode GraphAddEventWaitNode GraphAddMemAllocNode GraphAddMemFreeNode GraphDestroyNode
    GraphKernelNodeGetParams GraphMemsetNodeGetParams GraphMemsetNodeSetParams GraphHostNodeGetParams
    GraphHostNodeSetParams GraphAddHostNode GraphNodeGetType GraphGetNodes GraphGetRootNodes GraphGetEdges
    GraphNodeGetDependencies GraphNodeGetDependentNodes GraphAddDependencies GraphRemoveDependencies GraphClone
    GraphNodeFindInClone GraphInstantiateWithFlags GraphExecDestroy GraphExecHostNodeSetParams
    GraphNodeSetEnabled GraphNodeGetEnabled DeviceGetDefaultMemPool DeviceGetMemPool DeviceSetMemPool
    MemPoolCreate MemPoolDestroy MemPoolTrimTo MemPoolSetAttribute MemPoolGetAttribute LibraryLoadData
    LibraryLoadFromFile LibraryUnload LibraryGetKernel LibraryGetGlobal LibraryGetKernelCount
    LibraryEnumerateKernels MemGetInfo DeviceGetByPCIBusId
""".split()
CHECKED = re.compile(r"(?:cuda(?:Stream|Event)_t |const struct cudaKernelNodeParams \*|const void \*(?=func))\s*(\w+)")
# Those that do what the same with Async behind their names does, and wait for it
WAITING = """
    Memcpy Memcpy2D Memcpy3D MemcpyToSymbol MemcpyFromSymbol MemcpyPeer Memcpy2DToArray Memcpy2DFromArray
    Memset Memset2D Memset3D
""".split()
PER_THREAD = re.compile(r"__CUDART_API_PTSZ\((cuda\w+)\)")  # functions of which no queue may be the thread's own one
SERVED = re.compile(r"^cudaError_t (cuda\w+)\(([^{;]*?)\) \{", re.MULTILINE)
ERROR = re.compile(r"^\s*(cudaSuccess|cudaError\w+)\s*=\s*(\d+)", re.MULTILINE)
PARAMETER = re.compile(r"(const\s+)?((?:unsigned )?(?:long )*\w+)\s*(\**)")


def header(toolkit: Toolkit, name: str) -> str:
    return (toolkit.include / name).read_text(errors="replace")


@functools.cache
def driver_headers(toolkit: Toolkit) -> str:
    """Return the text of all headers of libcuda's functions, as far as the toolkit has them."""
    files = [toolkit.include / f"cuda{of}.h" for of in ("", "GL", "EGL", "VDPAU")]
    files.append(PROFILER.with_name("cudaProfiler.h"))
    return "\n".join(file.read_text(errors="replace") for file in files if file.exists())


def types_of(parameters: str) -> list[str]:
    """Return the types of a prototype's parameters, as `c_driver` has them: 'char const *' of `const char *x`."""
    found = []
    for one in parameters.split(",") if parameters.strip() not in ("", "void") else ():
        const, name, stars = PARAMETER.match(one.strip()).groups()
        stars += "*" * one.count("[")
        found.append(name + " const" * bool(const) + " " * bool(stars) + stars)
    return found


@functools.cache
def newest(toolkit: Toolkit) -> dict[str, str]:
    """Return the driver's functions whose names in libcuda have a version: name in programs -> name in libcuda."""
    return dict(NEWEST.findall(driver_headers(toolkit)))


@functools.cache
def driver_functions(toolkit: Toolkit) -> dict[str, tuple[str, list[str]]]:
    """Return the functions of libcuda: their names there -> (the name without a version, types of its parameters).

    cuda.h has the newest form of each first; a second one of the same name is the oldest, which has no version.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for name, parameters in DRIVER_FUNCTION.findall(driver_headers(toolkit)):
        in_library = newest(toolkit).get(name, name)
        found.setdefault(name if in_library in found else in_library, (base(name), types_of(parameters)))
    return found


@functools.cache
def forms(toolkit: Toolkit) -> dict[str, list[tuple[int, list[str]]]]:
    """Return the forms of each function that programs may ask the driver for: (CUDA's version since when, types)."""
    found: dict[str, list[tuple[int, list[str]]]] = {}
    for name, since, parameters in FORM.findall(header(toolkit, "cudaTypedefs.h")):
        types = [re.sub(r"^(?!CUdeviceptr_v1)(CU\w+)_v\d+\b", r"\1", one) for one in types_of(parameters)]
        found.setdefault(base(name), []).append((int(since), types))
    return {name: sorted(each, key=lambda one: one[0]) for name, each in found.items()}


def base(name: str) -> str:
    """Return a function's name without the version of its form."""
    return re.sub(r"_v\d+$", "", name)


SLOTS = """#include <cstring>
extern "C" {
int emulator_refuse(const char *);
__attribute__((visibility("hidden"))) extern void *emulator_slots[];
#ifdef __x86_64__
#define JUMP __attribute__((naked, no_instrument_function))
#define SLOT(name, at) JUMP void name() { asm("jmp *emulator_slots+" #at "(%rip)"); }
#else
#define SLOT(name, at) int name() { return emulator_refuse(#name); }
#endif
"""
FIND = """
void emulator_slot(const char *name, void *function) {
  for (auto &one : functions)
    if (!std::strcmp(one.name, name)) emulator_slots[&one - functions] = function;
}
void *emulator_function(const char *name) {
  for (auto &one : functions)
    if (!std::strcmp(one.name, name)) return one.function;
  return nullptr;
}
}
"""


def others(toolkit: Toolkit, served: str) -> str:
    """Return C++ for the driver's functions and those of the runtime that the text `served` does not have: they refuse;
    and for the names of errors.

    Those of the driver jump to where a table leads, in which `emulator_slot` puts what serves them.
    """
    own = set(re.findall(r"^\w[\w *]*?\b(cuda\w+)\(", served, re.MULTILINE))
    runtime = sorted(set(RUNTIME_FUNCTION.findall(header(toolkit, "cuda_runtime_api.h"))) - own)
    driver = sorted(driver_functions(toolkit))
    refusals = ", ".join(f"(void *)refuse_{i}" for i in range(len(driver)))
    table = ", ".join(f'{{"{name}", (void *){name}}}' for name in driver)
    errors = "".join(f'case {n}: return "{name}"; ' for name, n in ERROR.findall(header(toolkit, "driver_types.h")))
    return "\n".join([
        SLOTS,
        *(f'int {name}() {{ return emulator_refuse("{name}"); }}' for name in runtime),
        *(f'static int refuse_{i}() {{ return emulator_refuse("{name}"); }}' for i, name in enumerate(driver)),
        f"void *emulator_slots[] = {{{refusals}}};",
        *(f"SLOT({name}, {8 * i})" for i, name in enumerate(driver)),
        f"static struct {{ const char *name; void *function; }} functions[] = {{{table}}};",
        FIND,
        f'extern "C" const char *emulator_error_name(int status) '
        f'{{ switch (status) {{ {errors} default: return "unrecognized error code"; }} }}',
    ])  # fmt: skip


def named(parameters: str) -> tuple[str, list[str]]:
    """Return a prototype's parameters, each with a name, and the names."""
    each = re.sub(r"__dv\(\w*\)", "", parameters).split(",") if parameters.strip() not in ("", "void") else []
    each = [one + f" _{i}" * (len(re.findall(r"\w+", one)) == 1) for i, one in enumerate(each)]
    return ", ".join(each), [re.findall(r"\w+", one)[-1] for one in each]


def forwarded(toolkit: Toolkit) -> str:
    """Return C++ for what the driver does under the same name, and for what waits."""
    known, made = dict(PROTOTYPE.findall(header(toolkit, "cuda_runtime_api.h"))), []
    for one in FORWARDED:
        name, _, driver = one.partition(":")
        parameters, given = named(known[f"cuda{name}"])
        call = f"reinterpret_cast<decltype(&cuda{name})>(&cu{driver or name})({', '.join(given)})"
        checks = "".join(f"if (int status = known({one})) return kept(status); " for one in CHECKED.findall(parameters))
        made.append(f"cudaError_t cuda{name}({parameters}) {{ {checks}return kept({call}); }}")
    for name in WAITING:
        parameters, given = named(known[f"cuda{name}"])
        for end, queue in (("", "nullptr"), ("_ptds", "cudaStreamPerThread")):
            call = f"cuda{name}Async({', '.join(given)}, {queue})"
            made.append(f"cudaError_t cuda{name}{end}({parameters}) {{ Waiting now; return {call}; }}")
    return "\n".join(['#include "runtime.hpp"', 'extern "C" {', *made, "}"])


def per_thread(toolkit: Toolkit, served: str) -> str:
    """Return C++ for what programs call that are compiled with --default-stream per-thread, of what `served` has."""
    names, made = {*PER_THREAD.findall(header(toolkit, "cuda_runtime_api.h"))}, []
    for name, parameters in SERVED.findall(served):
        if name in names and (queue := re.search(r"cudaStream_t (\w+)", parameters)):
            each, given = named(parameters)
            call = ", ".join(f"own({one})" if one == queue[1] else one for one in given)
            made.append(f"cudaError_t {name}_ptsz({each}) {{ return {name}({call}); }}")
    return "\n".join(['#include "runtime.hpp"', 'extern "C" {', *made, "}"])


def named_attributes(toolkit: Toolkit) -> str:
    """Return C++ for the members of cudaDeviceProp that are called as attributes of a device are."""
    text = header(toolkit, "driver_types.h")
    attributes = {name.lower(): name for name in re.findall(r"cudaDevAttr(\w+)\s*=", text)}
    struct = text.partition("struct __device_builtin__ cudaDeviceProp")[2].partition("};")[0]
    members = re.findall(r"(?:int|size_t) +(\w+);", struct)
    known = [one for one in members if one.lower() in attributes]
    made = [f"p->{one} = attribute(cudaDevAttr{attributes[one.lower()]});" for one in known]
    return "\n".join(['#include "runtime.hpp"', "void named_attributes(cudaDeviceProp *p) {", *made, "}"])


def version(toolkit: Toolkit) -> str:
    return hashlib.sha256((toolkit.include / "cuda_runtime_api.h").read_bytes()).hexdigest()


@functools.cache
def cudart() -> Path:
    """Return the stand-in for CUDA's runtime and driver; builds it if there is none yet (2 s)."""
    toolkit, own = find(), runtime_texts()
    texts = [*own, others(toolkit, "".join(own)), per_thread(toolkit, "".join(own)), named_attributes(toolkit)]
    # Versions of symbols are as NVIDIA's library has them: its own name
    options, where = ["-std=c++17", "-Wl,--default-symver", *CALLS], [f"-I{toolkit.include}", f"-I{HERE}"]
    return built(RUNTIME, texts, options, (HERE / "runtime.hpp").read_text(), version(toolkit), where=where)


def runtime_texts() -> list[str]:
    """Return the texts of what the stand-in for CUDA's runtime serves itself."""
    return [*(path.read_text() for path in sorted(HERE.glob("runtime*.cpp"))), forwarded(find())]


@functools.cache
def blas() -> Path:
    """Return the stand-in for cuBLAS and cuBLASLt; builds it if there is none yet (2 s)."""
    runtime, texts = cudart().parent, [(HERE / one).read_text() for one in ("blas.cpp", *BLAS_HEADERS)]
    options, where = ["-std=c++17", "-lcudart", f"-Wl,-rpath,{runtime}"], [HEADERS, find().include]
    return built(BLAS, texts[:1], options, *texts[1:], where=[f"-L{runtime}", *(f"-I{folder}" for folder in where)])


@functools.cache
def driver() -> Path:
    """Return the stand-in for libcuda, for who asks for that name: the functions are in the one for the runtime."""
    runtime = cudart().parent
    options = ["-Wl,--no-as-needed", f"-L{runtime}", "-lcudart", f"-Wl,-rpath,{runtime}"]
    return with_python(DRIVER, "driver.cpp", *options)


def with_python(name: str, text: str, *options: str) -> Path:
    """Return a library that runs Python in its process."""
    text, python, header = ((HERE / one).read_text() for one in (text, "python.cpp", "python.hpp"))
    return built(name, [text, python], ["-std=c++17", *options, "-ldl"], header, where=[f"-I{HERE}"])


@functools.cache
def preloaded() -> Path:
    """Return the library that starts Python in a program before its own code."""
    return with_python(PRELOADED, "program.cpp")


def libpython() -> str:
    """Return the path of this Python's shared library. Raises Unsupported if it has none."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    for folder in (sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib"), *PLACES):
        for one in (name, f"libpython{sysconfig.get_python_version()}.so.1.0"):
            if ".so" in one and os.path.exists(os.path.join(folder, one)):
                return os.path.join(folder, one)
    raise Unsupported(f"a program of CUDA runs with Python inside, of which there is no libpython"
                      f"{sysconfig.get_python_version()}.so here: a package of the system's, or a Python of its own")


def for_python() -> dict[str, str]:
    """Return the variables by which `python.cpp` starts this Python in another process."""
    here = os.getcwd()  # of the user: a `random.py` there is no module of Python's
    path = [str(HERE.parents[2]), *(folder for folder in sys.path if folder and folder != here)]
    return {
        "EMULATED_GPU_LIBPYTHON": libpython(),
        "EMULATED_GPU_PYTHONHOME": sys.base_prefix,
        "EMULATED_GPU_PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def torchs_includes() -> list[str]:
    """Return options by which g++ finds torch's headers and CUDA's."""
    import torch

    root = Path(torch.__file__).parent / "include"
    return [f"-I{folder}" for folder in (root, root / "torch" / "csrc" / "api" / "include", find().include)]


@functools.cache
def precompiled() -> Path:
    """Return a folder that has torch/extension.h of light/ precompiled, which g++ takes before the header itself; makes
    it if there is none yet (13 s, 240 MB).

    A build with other options than those that torch's `load_inline` has of itself does not get it.
    """
    import torch

    texts = [file.read_text() for file in sorted(LIGHT.rglob("*.h"))]
    command = ["-std=c++20", "-fPIC", "-DTORCH_API_INCLUDE_EXTENSION_H", "-x", "c++-header"]
    gxx_version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True).stdout
    versions = torch.__version__, str(torch.version.git_version), gxx_version
    target = build_cache.writable() / place_of("torch-headers", texts, command, *versions)
    if not target.exists():
        where = [f"-I{LIGHT}", *torchs_includes(), f"-I{sysconfig.get_paths()['include']}"]
        with making(target) as made, contextlib.suppress(Unsupported):  # a torch that it does not fit goes without
            (made / "torch").mkdir()
            gxx(*where, *command, LIGHT / "torch" / "extension.h", "-o", made / "torch" / "extension.h.gch")
    return target


@functools.cache
def libraries() -> tuple[Path, Path]:
    """Return the stand-ins for CUDA's runtime and for torch's libraries; builds what there is not yet (15 s)."""
    import torch

    toolkit = find()
    root = Path(torch.__file__).parent
    command = ["-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    where = [*torchs_includes(), "-idirafter", str(HEADERS), f"-L{root / 'lib'}"]
    command += [f"-L{cudart().parent}", "-lcudart", "-ltorch", "-ltorch_cpu", "-lc10"]
    text, *headers = (file.read_text() for file in (HERE / "torch_cuda.cpp", *sorted(HEADERS.rglob("*.h"))))
    versions = torch.__version__, str(torch.version.git_version), version(toolkit)
    return cudart(), built(TORCH, [text], command, *headers, *versions, where=where)


NOT_SERVED = "curand|cufft|cusolver|cusparse|cudnn|nccl|npp|nvjpeg"
LEFT_OUT = re.compile(rf"-l(cudadevrt|nvToolsExt|({NOT_SERVED})\w*)")


def why_it_is_not_served(said: str) -> str:
    """Return in a sentence what nvcc, which says this, cannot build for the emulated device; "" for mistakes."""
    if "requires separate compilation mode" in said:
        return "a kernel that launches kernels (dynamic parallelism) is not served"
    if found := re.search(rf"undefined reference to `(({NOT_SERVED})\w*)'", said):
        return f"{found[1]}: of CUDA's libraries cuBLAS is served; the others are machine code, and PTX runs here"
    if found := re.search(r'identifier "(cublas\w+)" is undefined|.(cublas\w+). was not declared', said):
        return f"{found[1] or found[2]} is none of the functions of cuBLAS that are served (RUN.md)"
    return ""


def program_command(arguments: Sequence[str]) -> list[str]:
    """Return the command of nvcc for a program that runs here: PTX alone, with lines, for a B200 if nothing is said.

    Of pip's nvcc, which does not know them, it has the folders of CUDA's libraries and of CCCL's headers. A program
    that asks for libcuda or cuBLAS is linked to the stand-in. Many ask for libraries of which they use headers alone,
    and for relocatable device code of one file, which grids that synchronise have needed once.
    """
    arguments = [one for one in arguments if not LEFT_OUT.fullmatch(one)]
    several = nvcc.links(arguments)
    if not several and not any(nvcc.COMPILE.fullmatch(one) for one in arguments):
        arguments = [one for one in arguments if not nvcc.RELOCATABLE.fullmatch(one)]
    toolkit, named = find(), any(re.match(r"--?(arch|gencode|gpu-arch|generate-code)", one) for one in arguments)
    folders = [("-L", toolkit.home / "lib"), ("-I", toolkit.include / "cccl")]
    target = [] if named else ["-gencode=arch=compute_100a,code=compute_100a"]
    found = [f"{option}{folder}" for option, folder in folders if folder.is_dir()]
    if not (toolkit.include / PROFILER.name).exists():
        found.append(f"-isystem={PROFILER.parent}")
    if {"-lcuda", "-lcudart"} & {*arguments}:  # pip's nvcc has neither by this name
        found.append(f"-L{cudart().parent}")
    if "-lnvrtc" in arguments and len(nvrtc := [*(toolkit.home / "lib").glob("libnvrtc.so*")]) == 1:  # nor this one
        arguments = [f"-l:{nvrtc[0].name}" if one == "-lnvrtc" else one for one in arguments]
    if any(one.startswith("-lcublas") for one in arguments):
        found += [f"-isystem={HEADERS}", f"-L{blas().parent}", "-Xlinker", "--allow-shlib-undefined"]
    if several or nvcc.CUBIN & {*arguments}:
        return [*shlex.split(compiler()), *(target if several else []), *arguments, *found]
    return [str(toolkit.nvcc), *nvcc.for_ptx([*target, *arguments]), *found]


def compiler() -> str:
    """Return the command that compiles CUDA C++ to PTX, and to a cubin if it is asked for one, for a shell."""
    return shlex.join([sys.executable, str(HERE / "nvcc.py"), str(find().nvcc)])
