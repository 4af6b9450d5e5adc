"""Options of commands: what is written, how long something may take, and which command has which."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


def of_other_commands(error: click.NoSuchOption, group: click.Group) -> click.NoSuchOption:
    """Return the error that also names the commands of a group which do have the option."""
    have = ((name, p) for name, command in group.commands.items() for p in command.params)
    if others := [name for name, p in have if error.option_name in (*p.opts, *p.secondary_opts)]:
        why = f"No such option {error.option_name!r}: it is an option of {', '.join(others)}."
        return click.NoSuchOption(error.option_name, why, ctx=error.ctx)
    return error


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
