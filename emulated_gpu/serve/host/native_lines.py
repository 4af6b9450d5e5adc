"""Where addresses of compiled code are: file and line, if debug information has them, or how far in which file."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable

from ...state import host_order

# Files that only stand between a program's own code and the emulator: the stand-ins, Python, what Python calls C by
BETWEEN = re.compile(
    r"(lib(cuda|cudart|cublas|cublasLt|torch_cuda|emulated_program|python[\d.]*|ffi|c)\.so[\d.]*"
    r"|_ctypes\..*|python[\d.]*|ld-linux.*)"
)
# Files of which no line is the user's: CUDA's and C++'s headers, and what nvcc makes of templates
HEADERS = re.compile(
    r".*/(include/cuda|cub|thrust|crt|c\+\+)/(.*/)?\w+(\.(h|hpp|cuh|inl))?|.*/cuda_runtime\.h|.*\.cudafe1\.cpp"
)
MOST = 256  # return addresses that are looked at


class Info(ctypes.Structure):
    """Dl_info."""

    _fields_ = [
        ("file", ctypes.c_char_p), ("base", ctypes.c_uint64), ("symbol", ctypes.c_char_p), ("at", ctypes.c_uint64)
    ]  # fmt: skip


@functools.cache
def place_of(address: int) -> tuple[str, int]:
    """Return the file that an address is of, "" if there is none, and how far in it that is."""
    info = Info()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)) or not info.file:
        return "", address
    return os.fsdecode(info.file), address - info.base


@functools.cache
def is_own(address: int) -> bool:
    """Return whether an address is of the program's own code."""
    file, _ = place_of(address)
    return bool(file) and not BETWEEN.fullmatch(os.path.basename(file)) and not host_order.stands_between(file)


@functools.cache
def lines(address: int) -> list[str]:
    """Return file:line of what makes the call behind which an address is, the innermost of inlined functions first; []
    if nothing says that."""
    file, offset = place_of(address)
    tool = shutil.which("addr2line")
    if not tool or not file:
        return []
    said = subprocess.run([tool, "-i", "-e", file, f"{offset - 1:#x}"], capture_output=True, text=True).stdout
    found = [line.split(" ")[0] for line in said.splitlines()]
    return [line for line in found if not line.startswith("?") and not line.endswith((":?", ":0"))]


@functools.cache
def line_of(addresses: tuple[int, ...]) -> str:
    """Return the line of the innermost call that stands in no header of CUDA's or of C++'s."""
    for address in addresses:
        known = lines(address)
        if not known:
            break
        for line in known:
            if not HEADERS.fullmatch(line.rpartition(":")[0]):
                return os.path.basename(line)
    file, offset = place_of(addresses[0])
    return f"{os.path.basename(file)}+{offset:#x}"


def install(stack: Callable[[ctypes.Array, int], int]) -> None:
    """Let reports have the lines of compiled code. stack: puts return addresses into an array of a size, the
    innermost first, and returns how many."""
    at = (ctypes.c_uint64 * MOST)()

    def caller() -> tuple[int, ...]:
        found = at[: stack(at, MOST)]
        return tuple(found[next((n for n, address in enumerate(found) if is_own(address)), MOST) :])

    host_order.COMPILED.caller, host_order.COMPILED.line_of = caller, line_of
