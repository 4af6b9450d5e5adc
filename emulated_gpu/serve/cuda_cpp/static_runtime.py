"""Shared libraries that use CUDA's runtime or driver, and are loaded in this process.

Whoever loads CUDA's libraries by their names gets the stand-ins. A runtime that nvcc has linked in, its default, asks
the driver whether it is NVIDIA's own, so it is not given another one to talk to: each of its functions, which the
library's table of symbols names, becomes a jump to that of the stand-in for libcudart (`entry_points.py`). What the
library has registered when it was loaded, it registers once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import importlib.machinery
import mmap
import os
import re
import sys
from pathlib import Path

from ... import build_cache
from ...errors import Unsupported
from ...formats import elf
from ..host import entry_points
from . import runtime, toolkit

PARTS = (".symtab", ".strtab", ".dynamic", ".dynstr")  # sections that tell what a library has and needs
RUNTIME_FUNCTION = re.compile(r"_*cuda(?!RegisterLinkedBinary|UnregisterBinaryUtil)[A-Z]\w*")
OWN_STREAM = re.compile(r"_pt[sd][sz]$")  # of functions whose default queue is the thread's own
REGISTERS = "__sti____cudaRegisterAll"  # nvcc's constructors, one a source file
HAS_RUNTIME = "cudaGetDeviceCount"
STAND_INS = re.compile(r"lib(cuda|cudart|cublas|cublasLt)\.so(\.\d+)*")  # CUDA's libraries, of whatever version
NVRTC = re.compile(r"libnvrtc\.so(\.\d+)*")  # which is no stand-in: it compiles without a GPU
INSIDE = b"cuGetExportTable"  # what CUDA's runtime asks the driver for, as others do not
STRIPPED = "{}: CUDA's runtime is in it, stripped of the symbols that name its functions"
LOOKED_FOR = b"libcuda.so", b"libcudart.so"  # in the constants of who loads them by dlopen
# Packages whose calls of CUDA are answered in Python, though some of their libraries look for the driver, too
IN_PYTHON = re.compile(r"/(torch|triton|nvidia_cutlass_dsl|nvidia|cuda|numba_cuda)/")
LLVM = "/llvmlite/"  # whose library of 150 MB this emulator loads itself: there is nothing of CUDA in it


def parts_of(path: str) -> dict[str, bytes]:
    """Return `PARTS` of a shared library or program, nothing of any other file."""
    with open(path, "rb") as file:
        if file.read(4) != elf.MAGIC.to_bytes(4, "little"):
            return {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return elf.sections(content, PARTS)


def wants(needed: list[str]) -> bool:
    return bool({toolkit.RUNTIME, toolkit.DRIVER} & {*needed})


def looks_for_driver(path: str) -> bool:
    """Return whether a library, or one beside it that it needs, names CUDA's libraries, as who loads them itself does.

    Such a dlopen finds what has been loaded under that name before.
    """
    if IN_PYTHON.search(path):
        return False
    if holds(path, *LOOKED_FOR):
        return True
    beside = (os.path.join(os.path.dirname(path), name) for name in elf.needed(parts_of(path)))
    return any(looks_for_driver(os.path.realpath(one)) for one in beside if os.path.isfile(one))


def holds(path: str, *texts: bytes) -> bool:
    """Return whether one of the texts is among the constants of a library or program."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at, size = elf.places_of_sections(content).get(".rodata", (0, 0))
        return any(content.find(text, at, at + size) >= 0 for text in texts)


def stand_in(name: str) -> str:
    """Return the stand-in's path for a name of CUDA's driver or runtime, pip's NVRTC for its own, which torch's builds
    with CUDA bring along, and any other name as it is.

    Raises OSError, as a machine without the library does, where there is no nvcc, whose headers say what it has.
    """
    if NVRTC.fullmatch(name):
        return nvrtc(name)
    found = STAND_INS.fullmatch(os.path.basename(name))
    if not found or Path(name).parent.parent in build_cache.folders():  # it is one
        return name
    try:
        load_driver()
        # The runtime's has the driver's functions, too; libcuda would get NVIDIA's, if torch has loaded that before
        return str(toolkit.blas() if "blas" in found[1] else toolkit.cudart())
    except Unsupported as why:
        raise OSError(f"{name}: {why}") from why


@functools.cache
def nvrtc(name: str) -> str:
    """Return where NVRTC lies in the toolkit, having loaded what it loads by name; the name where it is not there."""
    for home in toolkit.candidates():
        for folder in (home / "lib", home / "lib64"):
            if (folder / name).exists():
                for built_in in folder.glob("libnvrtc-builtins.so.*"):
                    _load(str(built_in))
                return str(folder / name)
    return name


@functools.cache
def load_driver() -> None:
    """Load the stand-ins under the names of CUDA's libraries, by which others find them that are loaded later."""
    runtime.load()
    _load(str(toolkit.driver()), ctypes.RTLD_GLOBAL)


def lead(functions: dict[str, int], base: int) -> None:
    """Make the runtime's functions in a library or program that begins at `base` jump to the stand-in's."""
    stand_in = runtime.load()
    for name, address in functions.items():
        if RUNTIME_FUNCTION.fullmatch(name):
            served = name if hasattr(stand_in, name) else OWN_STREAM.sub("", name)
            entry_points.lead(base + address, function_of(stand_in, served))


def function_of(stand_in: ctypes.CDLL, name: str) -> int:
    """Return the address of the stand-in's function, or of one that refuses by the name."""
    found = getattr(stand_in, name, None)
    return ctypes.cast(found, ctypes.c_void_p).value if found is not None else runtime.refusal(name)


_served: set[str] = set()
_left: list[str] = []  # folders


def serve(path: str) -> None:
    """Serve a shared library before it is loaded by others: one that has CUDA's runtime inside, or needs its library.

    Raises Unsupported where that is so and there is no nvcc, whose headers say what the stand-in has.
    """
    path = os.path.realpath(path)
    if path in _served or LLVM in path or not os.path.isfile(path) or path.startswith(tuple(_left)):
        return
    _served.add(path)
    parts = parts_of(path)
    names = parts.get(".strtab", b"")
    functions = elf.functions(parts) if HAS_RUNTIME.encode() in names else {}  # LLVM's library has 70,000
    if wants(elf.needed(parts)):
        load_driver()
    elif HAS_RUNTIME not in functions and parts and looks_for_driver(path):
        if holds(path, INSIDE):
            print(f"emulated-gpu: {STRIPPED.format(path)}: it finds no device", file=sys.stderr)
            return
        with contextlib.suppress(Unsupported):  # without the driver such a library does what it does without a GPU
            load_driver()
    if HAS_RUNTIME not in functions or os.path.basename(path) == toolkit.RUNTIME:
        return
    load_driver()
    base = base_of(_load(path))
    lead(functions, base)
    for name, address in functions.items():
        if REGISTERS in name:
            ctypes.CFUNCTYPE(None)(base + address)()


def base_of(library: ctypes.CDLL) -> int:
    """Return where a library, or the program, has been loaded: its addresses are from there on."""
    return ctypes.c_uint64.from_address(library._handle).value  # l_addr, the first of a link_map


def leave(folder: str) -> None:
    """Let the libraries in a folder be as they are: with no device."""
    _left.append(os.path.join(os.path.realpath(folder), ""))


def _load(path: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    library = ctypes.CDLL.__new__(ctypes.CDLL)
    _load_any(library, path, mode)
    return library


_load_any = ctypes.CDLL.__init__


@functools.cache
def install() -> None:
    """Look at every shared library that is loaded by ctypes, and at every compiled module of Python."""

    @functools.wraps(_load_any)
    def load(self, name, *args, **kwargs):
        if isinstance(name, (str, os.PathLike)):
            name = stand_in(os.fspath(name))
            serve(name)
        _load_any(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = load
    find = ctypes.util.find_library
    ctypes.util.find_library = lambda name: toolkit.DRIVER if name == "cuda" else find(name)
    loader = importlib.machinery.ExtensionFileLoader
    loader.create_module = importing(loader.create_module)


def importing(create):
    """Return `create_module` of a loader of compiled modules: what cannot be served cannot be imported."""

    @functools.wraps(create)
    def create_module(self, spec):
        try:
            serve(spec.origin)
        except Unsupported as why:
            raise ImportError(str(why), name=spec.name, path=spec.origin) from why
        return create(self, spec)

    return create_module
