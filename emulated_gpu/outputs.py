"""Callbacks of options of commands: what is written, and how long something may take."""

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
    if str(path) == "-":
        raise click.UsageError("cannot write -: it would be a file of that name; the screen is /dev/stdout")
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


def duration(context, option, text: str | None) -> float | None:
    """Callback of an option that is a time: `60s`, `2m` or `90`, in seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m") else (text, "s")
    try:
        found = float(number) * {"s": 1.0, "m": 60.0}[unit]
    except ValueError:
        found = 0.0
    if not found > 0:
        raise click.BadParameter(f"{text!r} is no time: write 60s or 2m")
    return found
