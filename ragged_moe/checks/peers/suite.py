"""Runs a peer's test files by pytest, with ragged_moe's functions in its kernels' place, and says what came of each.

A program of its own, as an emulated GPU serves it to a script: python -m ragged_moe check peers starts it.
"""

import importlib
import json
import math
import random
import re
import signal
import sys
import traceback
from pathlib import Path

import click
import pytest

from ragged_moe.checks.peers import calls
from ragged_moe.checks.peers.stand_ins import Absent, Finder, NotServed

PASSED, FAILED, REFUSED, NOT_APPLICABLE = "passes", "fails", "refused", "not applicable"
WORST = FAILED, REFUSED, PASSED, NOT_APPLICABLE  # of a function's parameters, the first that there is


class TooLong(BaseException):
    """A test has taken longer than it may."""


def size(item) -> int:
    """The product of all whole numbers among an item's parameters: roughly what it computes."""
    return math.prod(numbers(list(getattr(getattr(item, "callspec", None), "params", {}).values())))


def numbers(x: object) -> list[int]:
    """Whole numbers above 0 of a parameter, also of one that is a tuple or a list."""
    if isinstance(x, (tuple, list)):
        return [n for y in x for n in numbers(y)]
    return [x] if type(x) is int and x > 0 else []


class Suite:
    """A plug-in of pytest.

    each: how many parameters of a function are run: the smallest, and others at random. most: the size of the largest;
    0 is any. seconds: that one may take. found: of each function a list of (outcome, why, parameters).
    """

    def __init__(self, each: int, most: int, seconds: int):
        self.each, self.most, self.seconds, self.is_late = each, most, seconds, False
        self.found: dict[str, list[tuple[str, str, str]]] = {}
        self.counts: dict[str, int] = {}

    def note(self, name: str, outcome: str, why: str, parameters: str = "") -> None:
        self.found.setdefault(name, []).append((outcome, " ".join(why.split())[:300], parameters))

    def pytest_collectreport(self, report) -> None:
        if report.outcome == "passed" or not report.nodeid.endswith(".py"):
            return
        if report.outcome == "skipped":
            self.note(report.nodeid, NOT_APPLICABLE, f"its file says: {report.longrepr[2]}")
        else:
            self.note(report.nodeid, NOT_APPLICABLE, f"its file needs what is not here: {last_line(report.longrepr)}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list) -> None:
        by_function: dict[str, list] = {}
        for item in items:
            by_function.setdefault(name_of(item), []).append(item)
        kept = []
        for name, variants in by_function.items():
            self.counts[name] = len(variants)
            variants.sort(key=size)
            fit = [x for x in variants if not self.most or size(x) <= self.most]
            if not fit:
                self.note(name, NOT_APPLICABLE, "its smallest sizes are for a card")
            others = fit[1:]
            random.Random(name).shuffle(others)
            kept += [*fit[:1], *others[: self.each - 1]]
        items[:] = kept

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self):
        calls.judged.clear()
        Absent.in_test = True
        self.is_late = False
        signal.signal(signal.SIGALRM, self.end)
        signal.alarm(self.seconds)
        yield
        signal.alarm(0)
        Absent.in_test = False

    def end(self, *_) -> None:
        """The time is over: of a launch that this interrupts another error comes out."""
        self.is_late = True
        raise TooLong

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "teardown" or report.when == "setup" and report.passed:
            return
        called = " and ".join(sorted(calls.judged))
        parameters = getattr(getattr(item, "callspec", None), "id", "")
        outcome, why = self.outcome(call.excinfo, called)
        self.note(name_of(item), outcome, why, parameters)
        click.echo(f"{outcome}: {name_of(item)}[{parameters}] {why}"[:400], err=True)

    def outcome(self, raised, called: str) -> tuple[str, str]:
        """Of a test that raised this, or nothing, and has called these functions."""
        if raised is None:
            return (PASSED, called) if called else (NOT_APPLICABLE, "it calls nothing that is served here")
        error = raised.value
        if isinstance(error, NotServed):
            return NOT_APPLICABLE, f"it calls {error}"
        if isinstance(error, pytest.skip.Exception):
            return NOT_APPLICABLE, f"it says: {error}"
        if self.is_late:
            return NOT_APPLICABLE, f"it takes more than {self.seconds} s here"
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if isinstance(error, ValueError) and (isinstance(error, calls.Refused) or "ragged_moe" in last.parts):
            return REFUSED, str(error)
        if called:
            return FAILED, f"{type(error).__name__}: {error}"
        return NOT_APPLICABLE, f"it needs what is not here: {type(error).__name__}: {error}"

    def table(self) -> list[dict]:
        """A row for each function: what came of it, and why, of the parameters that were run."""
        rows = []
        for name, variants in self.found.items():
            outcome = next(x for x in WORST if any(x == y for y, *_ in variants))
            why = next(why for y, why, _ in variants if y == outcome)
            ran = {x: sum(y == x for y, *_ in variants) for x in WORST}
            row = {"test": name, "outcome": outcome, "why": why, "of": self.counts.get(name, 0)}
            rows.append(row | {"run": {x: n for x, n in ran.items() if n}})
        return rows


def name_of(item) -> str:
    name = item.nodeid.partition("[")[0]
    return item.path.name + name if name.startswith("::") else name  # a file of ours, outside of the sources


def last_line(said: object) -> str:
    """The last line that says what was raised."""
    lines = [x[1:].strip() for x in str(said).splitlines() if x.startswith("E ")]
    return re.sub(r"\s+", " ", lines[-1] if lines else str(said)[-200:])


@click.command()
@click.argument("peer")
@click.argument("sources", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--each", type=int, default=2)
@click.option("--most", type=int, default=0)
@click.option("--seconds", type=int, default=120)
@click.option("--only", default="")
@click.option("--table", "file", type=click.Path(path_type=Path))
def main(peer: str, sources: Path, each: int, most: int, seconds: int, only: str, file: Path) -> None:
    """Run PEER's tests, which lie in SOURCES, and write the table to a JSON file."""
    of = importlib.import_module(f"ragged_moe.checks.peers.{peer}")
    served = of.served()
    Finder(sources, of.PACKAGES, of.OWN, served).install()
    of.own(served)
    suite = Suite(each, most, seconds)
    tests = [str(sources / x) for x in of.TESTS if (sources / x).exists()]
    options = "--noconftest --continue-on-collection-errors -p no:cacheprovider -p no:terminal -c /dev/null".split()
    plugins = [suite] if of.FIXTURES is None else [suite, of.FIXTURES]
    pytest.main([*options, "--rootdir", str(sources), *(("-k", only) if only else ()), *tests], plugins=plugins)
    file.write_text(json.dumps(suite.table(), indent=1) + "\n")


if __name__ == "__main__":
    main(args=sys.argv[1:])
