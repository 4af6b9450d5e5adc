"""Compiled kernels on disk, so that a process loads in milliseconds what another one has compiled in seconds.

CuTe DSL's own file cache would not do: its key is made of the traced program and of all of the DSL's files, 300 MB, so
that a hit costs about as much as compiling. This one keeps what the DSL exports for ahead-of-time use (the host's
object code with the cubin in it), under a key that is known before anything is traced: `key`.

The folder is $RAGGED_MOE_CACHE_DIR, else ragged-moe-kernels in $XDG_CACHE_HOME or ~/.cache. Files are written under
other names and then renamed, so processes may share it. If it cannot be written, or is not this user's alone, kernels
are compiled as without it. So they are if the environment sets options of the DSL (CUTE_DSL_*, but for HARMLESS), which
change what is compiled or want to see it, and on an emulated GPU, which must see the PTX.
"""

import contextlib
import functools
import hashlib
import os
import platform
import stat
import tempfile
from pathlib import Path

import cutlass
from cuda.bindings import runtime
from cutlass.cute.runtime import load_module
from cutlass.cutlass_dsl import CuTeDSL

from ragged_moe.runtime.device import emulated

SOURCES = Path(__file__).parents[1]  # ragged_moe/
PREFIX = "moe"  # of the exported symbols
HARMLESS = "CUTE_DSL_ARCH", "CUTE_DSL_LIBS", "CUTE_DSL_CACHE_DIR"  # the first is part of the key
DIGEST = hashlib.sha256().digest_size  # bytes behind the object, which say that it is complete


def is_on() -> bool:
    """Whether kernels may come from the disk."""
    options = any(name.startswith("CUTE_DSL_") and name not in HARMLESS for name in os.environ)
    return not options and not emulated()


def folder() -> Path | None:
    """Where compiled kernels are, made if it is not there; None if no folder is this user's alone."""
    try:
        named = os.environ.get("RAGGED_MOE_CACHE_DIR")
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(named) if named else Path(base) / "ragged-moe-kernels"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if is_private(path) else None
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None


def is_private(path: Path) -> bool:
    """Whether it is this user's, and nobody else can write to it: what is in it will be run."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def environment() -> str:
    """Return what kernels depend on beside themselves: moe's sources, the DSL, the GPU, its driver, and the CPU."""
    sources = hashlib.sha256()
    for file in sorted(SOURCES.rglob("*.py")):
        sources.update(f"{file.relative_to(SOURCES)} {file.stat().st_size}\n".encode() + file.read_bytes())
    arch = CuTeDSL._get_dsl().envar.arch
    return f"{sources.hexdigest()} {cutlass.__version__} {arch} {runtime.cudaDriverGetVersion()} {cpu()}"


def cpu() -> str:
    """The instructions that the host's object code may use."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return f"{platform.node()} {platform.machine()}"


def key(host, variant: str) -> str:
    """The name of a kernel's file. variant: what tells it from all others of its class."""
    text = f"{type(host).__module__}.{type(host).__qualname__} {variant} {environment()}"
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str):
    """The compiled function of this key, or None."""
    at = folder()
    if at is None:
        return None
    try:
        file = at / f"{name}.o"
        content = file.read_bytes()
        if not is_private(file) or hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
            return None
        return load_module(str(file))[PREFIX]
    except Exception:  # none there, of another format: it is compiled then
        return None


def store(name: str, compiled) -> None:
    """Keep a compiled function under this key, if that can be."""
    at = folder()
    if at is None:
        return
    try:
        content = compiled.dump_to_object(PREFIX)
        handle, temporary = tempfile.mkstemp(dir=at)
    except Exception:  # cannot be exported, or written
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        os.replace(temporary, at / f"{name}.o")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
