"""Folders of what is built once and kept: machine code, stand-ins of libraries, PTX of exported kernels."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from . import scratch

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
        if os.access(folder, os.W_OK):
            return folder
    return scratch.folder()


def found(*place: str) -> Path | None:
    """Return where a file lies in one of these folders, the first that has it."""
    return next((file for folder in folders() if (file := folder.joinpath(*place)).exists()), None)


def keep(data: bytes, *place: str) -> None:
    """Write a file into a folder of these, whole or not at all: others may be reading it. Raises OSError."""
    target = writable().joinpath(*place)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_name(f".{target.name}-{os.getpid()}-{threading.get_ident()}")
    unfinished.write_bytes(data)
    unfinished.replace(target)
