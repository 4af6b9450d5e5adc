"""Shared libraries with CUDA's runtime linked into them, nvcc's default: its functions lead to the stand-in.

Such a runtime asks the driver whether it is NVIDIA's own, so it is not given another one to talk to: each of its
functions, which the library's table of symbols names, becomes a jump to that of the stand-in for libcudart
(`entry_points.py`). What the library has registered when it was loaded, it registers once more.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import mmap
import os
import re

from ...errors import Unsupported
from ...formats import elf
from ..driver import c_driver, launches
from ..host import entry_points
from . import runtime, toolkit

PARTS = (".symtab", ".strtab", ".dynamic", ".dynstr")  # sections that tell what a library has and needs
RUNTIME_FUNCTION = re.compile(r"_*cuda[A-Z]\w*")
OWN_STREAM = re.compile(r"_pt[sd][sz]$")  # of functions whose default queue is the thread's own
REGISTERS = "__sti____cudaRegisterAll"  # nvcc's constructors, one a source file
HAS_RUNTIME = "cudaGetDeviceCount"


def parts_of(path: str) -> dict[str, bytes]:
    """Return `PARTS` of a shared library or program, nothing of any other file."""
    with open(path, "rb") as file:
        if file.read(4) != elf.MAGIC.to_bytes(4, "little"):
            return {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return elf.sections(content, PARTS)


def wants(needed: list[str]) -> bool:
    return bool({toolkit.RUNTIME, toolkit.DRIVER} & {*needed})


@functools.cache
def load_driver() -> None:
    """Load the stand-ins under the names of CUDA's libraries, by which others find them that are loaded later."""
    runtime.load()
    ctypes.CDLL(str(toolkit.driver()), mode=ctypes.RTLD_GLOBAL)


def lead(functions: dict[str, int], base: int) -> None:
    """Make the runtime's functions in a library or program that begins at `base` jump to the stand-in's."""
    stand_in = runtime.load()
    for name, address in functions.items():
        if RUNTIME_FUNCTION.fullmatch(name):
            entry_points.lead(base + address, function_of(stand_in, OWN_STREAM.sub("", name)))


def function_of(stand_in: ctypes.CDLL, name: str) -> int:
    """Return the address of the stand-in's function, or of one that refuses by the name."""
    found = getattr(stand_in, name, None)
    return ctypes.cast(found, ctypes.c_void_p).value if found is not None else refusal(name)


@functools.cache
def refusal(name: str) -> int:
    def refuse():
        raise Unsupported(f"{name}() on the emulated device")

    return c_driver.pointer(launches.guarded(refuse), []).value


_served: set[str] = set()
_left: list[str] = []  # folders


def serve(path: str) -> None:
    """Serve a shared library before it is loaded by others: one that has CUDA's runtime inside, or needs its library.

    Raises Unsupported where that is so and there is no nvcc, whose headers say what the stand-in has.
    """
    path = os.path.realpath(path)
    if path in _served or not os.path.isfile(path) or path.startswith(tuple(_left)):
        return
    _served.add(path)
    parts = parts_of(path)
    if wants(elf.needed(parts)):
        load_driver()
    functions = elf.functions(parts)
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


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL.__new__(ctypes.CDLL)
    _load_any(library, path)
    return library


_load_any = ctypes.CDLL.__init__


@functools.cache
def install() -> None:
    """Look at every shared library that is loaded by ctypes, and at every compiled module of Python."""

    @functools.wraps(_load_any)
    def load(self, name, *args, **kwargs):
        if isinstance(name, (str, os.PathLike)):
            serve(os.fspath(name))
        _load_any(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = load
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
