"""Draw tests of Triton's test_core.py at random and run them on the emulator: how many pass, and what stops the others.

    python -m tests.public.drawn FOLDER [--machine h200] [--seed 0] [--count 300] [--only WORD]

FOLDER is a checkout of Triton's repository, of about the time of the installed release. Tests are taken in an order
that the seed draws, until `count` of them have run: what the file skips on the machine does not count. They share a
process, in which each has 60 s of CPU time and findings of its own; one that passes with a finding has not passed.
Results go to drawn.json, beside this file, from which `python -m worklog.pages` draws a table of
emulated_gpu/PUBLIC.md; with --only, which takes tests whose name has the word, they are shown alone. Exit status 1 if a
test neither passes nor has a word of explanation.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from emulated_gpu.device import DEVICE
from emulated_gpu.sessions import Session
from tests.public.__main__ import PLACE, ROOT, versions
from tests.public.cases import explanation

FILE = "python/test/unit/language/test_core.py"
RECORD = Path(__file__).with_name("drawn.json")
LIMIT = 60  # seconds of CPU time for a test
MEMORY = 12 << 30  # bytes of address space for the process


class TooLong(BaseException):
    """A test has used up its CPU time."""


def too_long(*_) -> None:
    raise TooLong(f"more than {LIMIT} s of CPU time")


def verdict(errors: Sequence[Exception], report: pytest.TestReport) -> dict[str, str]:
    """Whether a test `agrees`, has a `finding`, was `refused`, took `too long`, `fails` or was `skipped`; and why."""
    if errors:
        first = errors[0]
        kind = "refused" if first.kind == "unsupported" else "finding"
        return {"verdict": kind, "why": PLACE.sub("", str(first).splitlines()[0])}
    if report.passed or report.skipped:
        return {"verdict": "agrees" if report.passed else "skipped", "why": ""}
    said = report.longreprtext
    lines = [line[1:].strip() for line in said.splitlines() if line.startswith("E  ")] or [said.strip()]
    kind = "refused" if "Unsupported: " in said else "too long" if "TooLong" in said else "fails"
    return {"verdict": kind, "why": lines[0]}


class Draw:
    """A pytest plugin: runs tests in the order drawn until enough have run.

    done: rows of tests that an earlier process has run. out: the file that gets a line of JSON when a test begins
    (`begun`: its name) and its row when it has ended: test, verdict, why, seconds, launches.
    """

    def __init__(self, seed: int, count: int, only: str, done: list[dict], out: Path):
        self.seed, self.only, self.out = seed, only, out
        self.left = count - sum(row["verdict"] != "skipped" for row in done)
        self.known = {row["test"] for row in done}
        self.report: pytest.TestReport | None = None

    def write(self, row: dict) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.nodeid)
        random.Random(self.seed).shuffle(items)
        items[:] = [item for item in items if self.only in item.name and item.name not in self.known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.write({"begun": item.name})
        DEVICE.session, self.report, began = Session(), None, time.process_time()
        signal.signal(signal.SIGPROF, too_long)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            row = {"test": item.name, "seconds": round(time.process_time() - began, 1)}
            row |= {"launches": DEVICE.session.launches} | verdict(DEVICE.session.errors, self.report)
            self.write(row)
            self.left -= row["verdict"] != "skipped"
            if self.left <= 0:
                item.session.shouldstop = "enough have run"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.report is None or report.when == "call" or report.failed:
            self.report = report


def work(file: str, seed: str, count: str, only: str, rows: str) -> None:
    """Run the file's tests that `rows`, a file, has not yet: in a process of the emulator's."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = Path(rows)
    done = [row for row in map(json.loads, out.read_text().splitlines()) if "test" in row]
    options = [file, "-q", "--tb=short", "-c", os.devnull, "--rootdir", str(Path(file).parents[3]), "-W", "ignore"]
    pytest.main([*options, "-p", "no:cacheprovider"], plugins=[Draw(int(seed), int(count), only, done, out)])


def draw(file: Path, machine: str, seed: int, count: int, only: str) -> list[dict]:
    """Run the tests, in a new process whenever one ends before it is done; returns a row for each."""
    with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
        rows = Path(folder, "rows")
        rows.touch()
        line = [sys.executable, "-m", "emulated_gpu", "run", "--machine", machine, __file__, str(file), str(seed)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = {"TRITON_CACHE_DIR": folder} | os.environ | {"PYTHONPATH": path}
        while True:
            done = subprocess.run([*line, str(count), only, str(rows)], env=variables, capture_output=True, text=True)
            said = [json.loads(one) for one in rows.read_text().splitlines()]
            if not said:
                raise click.ClickException(f"no test has run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            if "begun" not in said[-1]:
                return [row for row in said if "test" in row]
            why = f"its process ended with {done.returncode}"
            row = {"test": said[-1]["begun"], "verdict": "fails", "why": why, "seconds": 0.0, "launches": 0}
            with rows.open("a") as out:
                out.write(json.dumps(row) + "\n")


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--machine", type=click.Choice(["b200", "h200"]), default="b200")
@click.option("--seed", default=0, help="Of the order.")
@click.option("--count", default=300, type=click.IntRange(1), help="Of tests that run.")
@click.option("--only", default="", metavar="WORD", help="Tests whose name has the word; nothing is recorded.")
def main(folder: Path, machine: str, seed: int, count: int, only: str):
    file = folder.resolve() / FILE
    if not file.exists():
        raise click.ClickException(f"{folder} has no {FILE}: it is to be a checkout of Triton's repository")
    rows = draw(file, machine, seed, count, only)
    counts = Counter(row["verdict"] for row in rows)
    others = [row for row in rows if row["verdict"] not in ("agrees", "skipped")]
    for row in others:
        said = explanation(row["test"]) or row["why"][:150]
        print(f"{row['verdict']:9} {row['seconds']:5.1f} s  {row['test']}  {said}")
    print(", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)))
    if not only:
        known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        kept = [{key: row[key] for key in ("test", "verdict", "why")} for row in others]
        known[machine] = {
            "seed": seed, "counts": counts, "seconds": round(sum(row["seconds"] for row in rows)), "others": kept,
            "versions": versions(),
        }  # fmt: skip
        RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    sys.exit(int(any(not explanation(row["test"]) for row in others)))


if __name__ == "__main__":
    work(*sys.argv[1:]) if len(sys.argv) == 6 and Path(sys.argv[1]).is_file() else main()
