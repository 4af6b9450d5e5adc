"""What the command lines of silicon/ share, and the sentence that ends a program where there is no GPU."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from silicon.cuda_driver import NoGpu


def parser(doc: str) -> argparse.ArgumentParser:
    """A parser whose --help shows a module's docstring as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def existing(text: str) -> Path:
    """Return the path that an argument names. ArgumentTypeError, which the parser says, if nothing is there."""
    if not (path := Path(text)).exists():
        raise argparse.ArgumentTypeError(f"there is no {text}")
    return path


@contextlib.contextmanager
def on_gpu() -> Iterator[None]:
    """Ends the program with one sentence if the block finds no GPU."""
    try:
        yield
    except NoGpu as error:
        sys.exit(f"this measures on a GPU, and this machine has none: {error}")


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds --set, whose values `profile_with` takes."""
    parser.add_argument("--set", nargs="*", default=[], help="figures to replace: unit.figure=value")


def profile_with(settings: list[str], name: str = "h200"):
    """The machine profile of that name with figures replaced, each setting a "unit.figure=value"."""
    from emulated_gpu.model.profile import load  # not needed, and not there, on the machine with the GPU

    return load(name).with_({key: float(value) for key, value in (s.split("=") for s in settings)})


def write_table(file: Path, name: str, text: str) -> None:
    """Replaces what stands in a page between the markers <!-- name --> and <!-- /name -->."""
    before, _, rest = file.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    assert end, f"{file} has no markers of {name}"
    file.write_text(f"{before}<!-- {name} -->\n{text}\n{end}{after}")


def main(doc: str, table: Path, run: Callable[[Path], None], model: Callable) -> None:
    """Runs the command line "run FILE", or "model" for the points whose name contains --only, with --set's profile.

    run(file) measures and writes the file, by default `table`; model(only, profile) prints the model's figures.
    """
    arguments = parser(doc)
    arguments.add_argument("what", choices=("run", "model"))
    arguments.add_argument("file", nargs="?", type=Path, default=table)
    arguments.add_argument("--only", default="", help="points whose name contains this")
    add_set(arguments)
    options = arguments.parse_args()
    if options.what == "model":
        return model(options.only, profile_with(options.set))
    with on_gpu():
        run(options.file)
