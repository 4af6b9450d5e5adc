"""Where an address of compiled code is: file and line, if debug information has them, or how far in which file."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess

from ...state import host_order


class Info(ctypes.Structure):
    """Dl_info."""

    _fields_ = [
        ("file", ctypes.c_char_p), ("base", ctypes.c_uint64), ("symbol", ctypes.c_char_p), ("at", ctypes.c_uint64)
    ]  # fmt: skip


@functools.cache
def line_of(address: int) -> str:
    info = Info()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)) or not info.file:
        return f"{address:#x}"
    file, offset = os.fsdecode(info.file), address - info.base
    if tool := shutil.which("addr2line"):  # of the call, behind which the address is
        done = subprocess.run([tool, "-e", file, f"{offset - 1:#x}"], capture_output=True, text=True)
        line = done.stdout.split(" ")[0].strip()
        if done.returncode == 0 and line and not line.startswith("?") and not line.endswith((":?", ":0")):
            return os.path.basename(line)
    return f"{os.path.basename(file)}+{offset:#x}"


def install() -> None:
    """Let reports have the lines of compiled code."""
    host_order.COMPILED.line_of = line_of
