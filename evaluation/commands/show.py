"""Shows what commands say: lines, tables, how far they are, results in JSON, and one sentence for what cannot be done.

On a terminal with rich's boxes, colours and bars. Piped, or with NO_COLOR set (https://no-color.org), plain: a row is
one line, columns stand two spaces apart, nothing is wrapped or cut; progress then goes to stderr, a line for each case.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from emulated_gpu.serve.host.beside import beside
from emulated_gpu.serve.host.watch import on_stderr

QUIET_S = 20.0  # behind which a command says how far it is


class Failure(click.ClickException):
    """Ends a command with one sentence on stderr and exit code 2."""

    exit_code = 2


def dump_json(path: str, result: dict, what: str = "results") -> None:
    """Writes a result for --json. Raises Failure, which says `what` could not be written."""
    try:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise Failure(f"cannot write the {what}: {error}") from None


class Screen:
    """Writes to standard output."""

    def __init__(self):
        self.console = Console()
        self.plain = not self.console.is_terminal or bool(os.environ.get("NO_COLOR"))
        self.heard = 0.0  # time.monotonic() when somebody said how far something is
        self.refresh: Callable[[str], None] | None = None  # shows a text behind the bar

    def line(self, *parts) -> None:
        """Writes one line of strings, and (string, style) for what has a colour on a terminal."""
        if self.plain:
            print("".join(part if isinstance(part, str) else part[0] for part in parts), flush=True)
        else:
            self.console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)

    def beat(self, text: str, stays: bool = False) -> None:
        """Says how far something is that takes long: on a terminal behind the bar, if there is one, or, where it stays,
        above."""
        self.heard = time.monotonic()
        if self.plain:
            on_stderr(text, begin="")
        elif self.refresh is not None and not stays:
            self.refresh(text)
        else:
            self.console.print(Text(text), highlight=False)

    def table(self, columns: list[str], rows: list[list], title: str = "") -> None:
        """Writes a table. Columns whose names start with '<' are texts, the others figures. A cell is a string or
        (string, style)."""
        names, texts = [name.removeprefix("<") for name in columns], [name.startswith("<") for name in columns]
        if not self.plain:
            table = Table(title=title or None, title_justify="left")
            for name, text in zip(names, texts):
                table.add_column(name, justify="left" if text else "right")
            for row in rows:
                table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row))
            return self.console.print(table)
        if title:
            print(title)
        cells = [names] + [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            aligned = (cell.ljust(n) if text else cell.rjust(n) for cell, n, text in zip(row, widths, texts))
            print("  ".join(aligned).rstrip())
        sys.stdout.flush()

    @contextlib.contextmanager
    def progress(self, what: str, work: list[float], unit: str = "case", workers: int | None = 1):
        """Gives a function to be called with the index of each job that is done.

        work: seconds that each takes, about; once one is done only their ratios count. workers: that share them,
        None if the seconds are not those of this machine. Where nobody says anything for QUIET_S, what is done is said.
        """
        begin, total = time.monotonic(), sum(work) or 1.0
        done: list[int] = []
        seconds = max(total / workers, max(work, default=0)) if workers else 0.0
        end = begin + seconds  # as expected when the last job ended: what takes longer has no end that is told

        def ended(index: int) -> None:
            nonlocal end
            done.append(index)
            end = (now := time.monotonic()) + (now - begin) * (total / sum(work[index] for index in done) - 1)

        def state() -> str:
            left = end - time.monotonic()
            more = f", about {duration(left)} left" if left > 0 and len(done) < len(work) else ""
            return f"{len(done)} of {len(work)} done{more}"

        if self.plain:
            on_stderr(f"{what}: {count(len(work), unit)}{f', about {duration(seconds)}' * bool(workers)}", begin="")

            def say() -> None:
                self.heard = time.monotonic()
                so_far = duration(time.monotonic() - begin)
                on_stderr(f"{what}: {state()}, {so_far} so far", begin="")

            def advance(index: int) -> None:
                ended(index)
                say()

            self.heard = begin
            with self._saying(say):
                yield advance
            return
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
        with Progress(*columns, console=self.console) as bars:
            bar = bars.add_task(what, total=total, state=state())

            def advance(index: int) -> None:
                ended(index)
                bars.update(bar, advance=work[index], state=state())

            self.refresh = lambda text: bars.update(bar, state=f"{state()}; {text}")
            try:
                yield advance
            finally:
                self.refresh = None

    @contextlib.contextmanager
    def _saying(self, say: Callable[[], None]):
        """Calls say() in this block whenever nobody has said for QUIET_S how far something is."""

        def watch(over: threading.Event) -> None:
            while not over.wait(max(0.0, self.heard + QUIET_S - time.monotonic())):
                if time.monotonic() >= self.heard + QUIET_S:
                    say()

        with beside(watch):
            yield


def count(number: int, thing: str) -> str:
    """Writes `1 case`, `2 cases`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
