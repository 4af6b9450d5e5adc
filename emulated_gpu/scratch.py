"""A temporary folder that goes with the processes that use it, however they end."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "emulated-gpu-held-"  # of no other temporary folder, which nobody locks
YOUNG_S = 60.0  # a folder may be made, and not yet held


@functools.cache
def folder() -> Path:
    """Make a folder for this process and those that it forks.

    It is removed when this process exits. Where it is killed, or ends by os._exit, the next process that makes one
    removes it: as long as one of its own lives, the folder is locked. Raises OSError where none can be made.
    """
    sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_SH)  # open until the last of them ends: forks share it
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def sweep(parent: Path) -> None:
    """Remove the folders below parent that no process holds any more."""
    for left in parent.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):  # held, another user's, or gone
            looked_at = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(looked_at, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(looked_at).st_mtime > YOUNG_S:
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(looked_at)
