"""Make the functions of a loaded shared library jump to functions of this process, whoever calls them.

CuTe DSL's host code, whether it was compiled just now, loaded from a file or is called by TVM FFI, calls CUDA by way of
`libcute_dsl_runtime.so`, which has NVIDIA's runtime inside. Linkers resolve its names each in a way of its own, but all
of them lead to the same few bytes of machine code: those are overwritten here, in this process's memory only.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from pathlib import Path

from ...errors import Unsupported
from ...formats.elf import exported

JUMP = 0xE9  # jmp rel32
# What ends something of CUDA's has no effect, and may be called when Python is gone: a function that returns 0
WITHOUT_EFFECT = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)
FAR = b"\x48\xb8%s\xff\xe0"  # movabs rax, address; jmp rax


def replace(path: str | Path, replacements: dict[str, int], otherwise) -> None:
    """Load a library, and lead its functions elsewhere.

    path: of the file. replacements: name -> address of a C function. otherwise: called with the name of each function
    that the library exports and `replacements` does not have; returns an address, or None to leave it.
    Raises Unsupported on another machine than x86-64.
    """
    if platform.machine() != "x86_64":
        raise Unsupported(f"CuTe DSL's host code on {platform.machine()}: its calls are led here on x86-64 alone")
    library = ctypes.CDLL(str(path))
    for name in exported(Path(path).read_bytes()):
        address = replacements.get(name) or otherwise(name)
        if address is not None:
            lead(ctypes.cast(getattr(library, name), ctypes.c_void_p).value, address)


def lead(function: int, to: int) -> None:
    """Overwrite the machine code of a function by a jump. One that is only a jump itself is followed first."""
    code = ctypes.string_at(function, 5)
    if code[0] == JUMP:  # the library's own functions call what is there
        function += 5 + struct.unpack_from("<i", code, 1)[0]
    text = FAR.replace(b"%s", struct.pack("<Q", to))
    page = function & -mmap.PAGESIZE
    size = function + len(text) - page
    libc = ctypes.CDLL(None, use_errno=True)
    for access in (mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, mmap.PROT_READ | mmap.PROT_EXEC):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), access):
            raise Unsupported("this system lets nobody change machine code, which CuTe DSL's host code needs here")
        if access & mmap.PROT_WRITE:
            ctypes.memmove(function, text, len(text))
