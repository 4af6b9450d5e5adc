"""Runs drawn tests of a file under `python -m emulated_gpu run`: what `tests.public.drawn` starts.

It imports nothing of ours but emulated_gpu: the suite's folder of tests may have the name of ours.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulated_gpu.device import DEVICE
from emulated_gpu.sessions import Session

LIMIT = 60  # seconds of CPU time for a test
MEMORY = 12 << 30  # bytes of data for the process: addresses that a device only reserves do not count


class TooLong(BaseException):
    """A test has used up its CPU time."""


def too_long(*_) -> None:
    raise TooLong(f"more than {LIMIT} s of CPU time")


def verdict(errors: Sequence[Exception], report: pytest.TestReport) -> dict[str, str]:
    """Whether a test `agrees`, has a `finding`, was `refused`, took `too long`, `fails` or was `skipped`; and why."""
    if errors:
        first = errors[0]
        kind = "refused" if first.kind == "unsupported" else "finding"
        return {"verdict": kind, "why": str(first).splitlines()[0]}
    if isinstance(DEVICE.session.failure, TooLong):  # in a callback: the test has only seen an error number
        return {"verdict": "too long", "why": str(DEVICE.session.failure)}
    if report.passed or report.skipped:
        return {"verdict": "agrees" if report.passed else "skipped", "why": ""}
    said = report.longreprtext
    lines = [line[1:].strip() for line in said.splitlines() if line.startswith("E  ")] or [said.strip()]
    kind = "refused" if "Unsupported: " in said else "too long" if "TooLong" in said else "fails"
    return {"verdict": kind, "why": lines[0]}


class Draw:
    """A pytest plugin: runs tests in the order drawn until enough have run.

    only: what their names have. done: rows of tests that an earlier process has run. out: the file that gets a line of
    JSON when a test begins (`begun`: its name) and its row when it has ended: test, verdict, why, seconds, launches.
    """

    def __init__(self, seed: int, count: int, only: str, done: list[dict], out: Path):
        self.seed, self.only, self.out = seed, only, out
        self.left = count - sum(row["verdict"] != "skipped" for row in done)
        self.known = {row["test"] for row in done}
        self.report: pytest.TestReport | None = None

    def write(self, row: dict) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    @pytest.hookimpl(trylast=True)  # of those that have the suite's words
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.nodeid)
        random.Random(self.seed).shuffle(items)
        items[:] = [item for item in items if self.only in item.name and name_of(item) not in self.known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.write({"begun": name_of(item)})
        DEVICE.session, self.report, began = Session(), None, time.process_time()
        signal.signal(signal.SIGPROF, too_long)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            row = {"test": name_of(item), "seconds": round(time.process_time() - began, 1)}
            row |= {"launches": DEVICE.session.launches} | verdict(DEVICE.session.errors, self.report)
            self.write(row)
            self.left -= row["verdict"] != "skipped"
            if self.left <= 0:
                item.session.shouldstop = "enough have run"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.report is None or report.when == "call" or report.failed:
            self.report = report


def name_of(item: pytest.Item) -> str:
    """A test's name in its file."""
    return item.nodeid.partition("::")[2]


def work(file: str, root: str, words: str, seed: str, count: str, only: str, rows: str) -> None:
    """Run the file's tests that `rows`, a file, has not yet: in a process of the emulator's."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    out = Path(rows)
    done = [row for row in map(json.loads, out.read_text().splitlines()) if "test" in row]
    line = [file, "-q", "--tb=short", "-c", os.devnull, "--rootdir", root, "-W", "ignore", "-k", words]
    pytest.main([*line, "-p", "no:cacheprovider"], plugins=[Draw(int(seed), int(count), only, done, out)])


if __name__ == "__main__":
    work(*sys.argv[1:])
