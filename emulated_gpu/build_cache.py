"""Folders of what is built once and kept: machine code, stand-ins of libraries, PTX of exported kernels."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from . import scratch

MOST = 4096  # files of a folder of what is taken again
DIGEST = hashlib.sha256().digest_size
CACHE = "EMULATED_GPU_CACHE"  # environment: folders of what is built, which come before the user's cache folder


def folders() -> list[Path]:
    """Return where what is built is looked for: the folders of the environment, then the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(f) for f in (*os.environ.get(CACHE, "").split(os.pathsep), os.path.join(home, "emulated-gpu")) if f]


def writable() -> Path:
    """Return the first of these folders that can be written to; else a new one, for this process."""
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK, effective_ids=True):  # the judge's workers have another user's rights
            return folder
    return scratch.folder()


def found(*place: str) -> Path | None:
    """Return where a file lies in one of these folders, the first that has it."""
    return next((file for folder in folders() if os.path.exists(file := folder.joinpath(*place))), None)


def keep(data: bytes, *place: str) -> None:
    """Write a file into a folder of these, whole or not at all: others may be reading it. Raises OSError."""
    target = writable().joinpath(*place)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_name(f".{target.name}-{os.getpid()}-{threading.get_ident()}")
    unfinished.write_bytes(data)
    unfinished.replace(target)


def taken(folder: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Return what has been kept under a name, else what `make` gives, which is kept now.

    folder: of it the MOST files stay that were used last. name: says all that the bytes depend on. A file that is
    damaged is made again.
    """
    data = b""
    with contextlib.suppress(OSError):
        if (file := found(folder, name)) is not None:
            data = file.read_bytes()
            os.utime(file)
    if hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:
        return data[DIGEST:]
    data = make()
    with contextlib.suppress(OSError):  # no room, or nowhere to write
        keep(hashlib.sha256(data).digest() + data, folder, name)
        files = list((writable() / folder).iterdir())
        if len(files) > MOST:
            for file in sorted(files, key=os.path.getmtime)[: MOST // 2]:
                file.unlink()
    return data
