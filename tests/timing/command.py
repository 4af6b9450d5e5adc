"""What the commands of this folder share: points run on an H200 or on the model, whose figures may be replaced."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", nargs="*", default=[], help="figures to replace: unit.figure=value")


def profile_with(settings: list[str], name: str = "h200"):
    """The machine profile of that name with figures replaced, each setting a "unit.figure=value"."""
    from emulator.model.profile import load  # not needed, and not there, on the machine with the GPU

    return load(name).with_({key: float(value) for key, value in (s.split("=") for s in settings)})


def main(doc: str, table: Path, run: Callable[[Path], None], model: Callable) -> None:
    """Command line: "run FILE", or "model" for the points whose name contains --only, with the profile of --set."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "model"))
    parser.add_argument("file", nargs="?", type=Path, default=table)
    parser.add_argument("--only", default="", help="points whose name contains this")
    add_set(parser)
    options = parser.parse_args()
    run(options.file) if options.what == "run" else model(options.only, profile_with(options.set))
