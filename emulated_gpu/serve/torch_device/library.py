"""The library of C++ that torch's dispatcher calls: the wheel's, or built by g++ on first use; then loaded.

Each version of torch gets its own, since tables of virtual functions change. CUDA's headers are not needed. Python is
none of its business. `python -m emulated_gpu.serve.torch_device.library` puts it where wheels take it from.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import shutil
import sys
from pathlib import Path

import torch

from ...errors import Unsupported
from ..cuda_cpp import toolkit

HERE = Path(__file__).parent
SOURCES = [  # one after the other they are one text
    f"{name}.cpp"
    for name in "memory draws device layouts undefined graphs nondeterministic dtypes rounded operators".split()
]
NAME = "libemulated_torch.so"
DIMENSIONS, OPERANDS, NAME_BYTES = 8, 6, 48
_int, _i64 = ctypes.c_int, ctypes.c_int64
TOLD = ctypes.CFUNCTYPE(_int, _int, _i64, _i64)
UNDEFINED = ctypes.CFUNCTYPE(_i64, ctypes.c_uint64, _i64, ctypes.c_uint64)
SPOILT = ctypes.CFUNCTYPE(None, ctypes.c_uint64, _i64, ctypes.c_uint64, ctypes.c_char_p)


class Event(ctypes.Structure):
    """`Event` of memory.cpp: what became memory of a device (bytes >= 0), ceased to be, or is its capture's."""

    _fields_ = [
        ("at", ctypes.c_uint64), ("bytes", _i64), ("device", ctypes.c_int32), ("dtype", ctypes.c_int32),
        ("dimensions", ctypes.c_int32), ("recorded", ctypes.c_int32), ("sizes", _i64 * DIMENSIONS), ("queue", _i64),
        ("born", _i64),
    ]  # fmt: skip


class Operand(ctypes.Structure):
    """`Operand` of memory.cpp: elements that an operator has read or written."""

    _fields_ = [
        ("at", ctypes.c_uint64), ("writes", ctypes.c_int32), ("dimensions", ctypes.c_int32), ("item", _i64),
        ("sizes", _i64 * DIMENSIONS), ("strides", _i64 * DIMENSIONS),
    ]  # fmt: skip


BEFORE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, _int, ctypes.c_char_p, ctypes.POINTER(Operand))


class Work(ctypes.Structure):
    """`Work` of memory.cpp: an operator that has run."""

    _fields_ = [
        ("name", ctypes.c_char * NAME_BYTES), ("queue", _i64), ("number", _i64), ("thread", _i64),
        ("device", ctypes.c_int32), ("waits", ctypes.c_int32), ("count", ctypes.c_int32), ("partly", ctypes.c_int32),
        ("operands", Operand * OPERANDS),
    ]  # fmt: skip


class Count(ctypes.Structure):
    """`Count` of memory.cpp: bytes or allocations."""

    _fields_ = [("now", _i64), ("most", _i64), ("ever", _i64), ("freed", _i64)]


SIGNATURES = {
    "install": (None, _int, BEFORE, TOLD, UNDEFINED, SPOILT, _int), "watch": (None, _int),
    "capture": (_int, _int, _int), "have": (_int, ctypes.c_uint64, _int),
    "of_capture": (_i64, _int, _int, ctypes.POINTER(ctypes.c_uint64), _i64),
    "register": (None, ctypes.c_uint64, _i64), "limit": (None, _int, _i64),
    "written": (_int, ctypes.c_uint64), "spoil": (None, ctypes.c_uint64), "current_queue": (_i64, _int),
    "works": (_i64, ctypes.POINTER(Work), _i64), "works_waiting": (_i64,),
    "devices": (None, _int), "room": (None, _int, _int), "arena": (None, ctypes.c_uint64, ctypes.c_uint64),
    "current": (_int,), "set": (None, _int), "attentive": (None, _int), "keep": (None, _int), "waiting": (_i64,),
    "fetch": (_i64, ctypes.POINTER(Event), _i64), "counts": (ctypes.POINTER(Count), _int, _int),
}  # fmt: skip


def prebuilt(text: str) -> Path:
    """Return where a wheel has the library of this text for this release of torch, if it has it."""
    release, abi = torch.__version__.partition("+")[0], torch._C._GLIBCXX_USE_CXX11_ABI
    key = f"{release} {abi} {platform.system()} {platform.machine()} {text}"
    return HERE / "prebuilt" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


@functools.cache
def path() -> Path:
    """Return the library for this torch; builds it if there is none (half a minute). Raises Unsupported without g++."""
    text = "\n".join((HERE / name).read_text() for name in SOURCES)
    return there if (there := prebuilt(text)).exists() else built(text)


def built(text: str) -> Path:
    """Return the library that g++ makes of a text, now or before."""
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    command = ["-std=c++20", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]  # the last two: as torch's
    command.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    key = NAME, [text], command, torch.__version__, str(torch.version.git_version)
    if (there := toolkit.found(*key)) is not None:
        return there
    if shutil.which("g++") is None:
        raise Unsupported(
            f"torch's device cuda needs g++ once, to build {NAME} for torch {torch.__version__}: it is not on PATH, "
            "and this installation brings no library that is built for it"
        )
    print(f"emulated-gpu: building {NAME} for torch {torch.__version__}, once", file=sys.stderr, flush=True)
    where = [*(f"-I{folder}" for folder in includes), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    return toolkit.built(*key, where=where)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library, whose functions are those of `SIGNATURES` with `emulated_` in front."""
    library = ctypes.CDLL(str(path()))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, f"emulated_{name}")
        function.restype, function.argtypes = result, arguments
    return library


if __name__ == "__main__":
    source = "\n".join((HERE / name).read_text() for name in SOURCES)
    prebuilt(source).parent.mkdir(exist_ok=True)
    shutil.copy(built(source), prebuilt(source))
