"""Options of commands that name what is written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


def to_be_written(context, option, path):
    """Callback of an option that names a file, or by the name `out` a folder: what cannot be written is said before the
    work is done. The folder is made, and so is that of `results`, which are kept from run to run."""
    if path is None:
        return None
    place = Path(path)
    try:
        if option.name == "out":
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        else:
            if option.name == "results":
                place.parent.mkdir(parents=True, exist_ok=True)
            there = place.exists()
            place.open("a").close()
            if not there:
                place.unlink()
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
    return path
