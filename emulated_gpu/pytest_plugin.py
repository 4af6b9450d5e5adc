"""pytest: `@pytest.mark.emulated("b200", schedules=8)` runs a test on an emulated GPU, in a process of its own.

What the emulator finds fails the test, with the report, even where the test swallows the error. pytest-xdist's `-n`
spreads such tests like any others. docs/pytest.md has examples.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from . import packages
from .chip import CHIPS
from .device import DEVICE
from .model.profile import load
from .model.report import report as modelled
from .model.run import TimedRun
from .model.tally import tallied
from .model.trace import Trace
from .serve.run import Options, environment, install

CHILD = "EMULATED_GPU_PYTEST"  # in a process that runs one test: the file for its reports
TIMELINE = "EMULATED_GPU_TIMELINE"  # there: the folder for the timeline
OWN = str(Path(__file__).parent) + os.sep
PACKAGES = {"site-packages", "dist-packages"}  # folders of others' code: it is not what a traceback is to end at
MARKER = (
    'emulated(machine="b200", schedules=1, strict=False, timeout=0): run the test in a process of its own on an '
    "emulated GPU, once under each of `schedules` orders of events; a launch of more than `timeout` seconds is a hang"
)


@dataclass(frozen=True)
class Emulated:
    """The arguments of the marker. Raises TypeError for others, ValueError for values that it does not take."""

    machine: str = "b200"
    schedules: int = 1
    strict: bool = False
    timeout: float = 0.0

    def __post_init__(self):
        if self.machine not in CHIPS:
            raise ValueError(f"machine {self.machine!r}: there are {', '.join(CHIPS)}")
        if not isinstance(self.schedules, int) or self.schedules < 1:
            raise ValueError(f"schedules={self.schedules!r}: at least 1")
        if not isinstance(self.timeout, (int, float)) or not self.timeout >= 0:
            raise ValueError(f"timeout={self.timeout!r}: seconds, 0 for none")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulated-gpu", "tests on an emulated GPU")
    group.addoption("--emulated-timeline", metavar="DIR", help="Model the launches of each emulated test: a timeline.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    if CHILD in os.environ:
        for name in filter(packages.has, ("torch", "cutlass")):
            importlib.import_module(name)  # the first one's import installs the device: serve/startup/sitecustomize.py
            break
        else:
            install()
        if os.environ.get(TIMELINE):
            DEVICE.session.timed, DEVICE.session.kept = [], []


# -- in the process of one test
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo) -> None:
    """Have the traceback of what the emulator raises end at the line of the user's that led there."""
    if CHILD not in os.environ or call.excinfo is None:
        return
    file, last = "", None
    for frame in frames_of(call.excinfo.tb):
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(OWN) and PACKAGES.isdisjoint(Path(file).parts):
            last = frame
    if last is not None and file.startswith(OWN):
        last.tb_next = None  # pytest reads the chain of frames again, so that nothing less would do


def frames_of(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the frames of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hand a report of this one test to the process that shows it."""
    if CHILD in os.environ:
        with open(os.environ[CHILD], "a") as file:
            file.write(json.dumps(report._to_json(), default=str) + "\n")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Model what the test has launched, if somebody wants a timeline and nothing was wrong."""
    launches, folder = DEVICE.session.timed, os.environ.get(TIMELINE)
    if CHILD not in os.environ or not folder or not launches or DEVICE.session.findings:
        return
    name = DEVICE.chip.machine
    DEVICE.session, trace = DEVICE.session.after(), Trace()
    timed = TimedRun(load(name), DEVICE.memory, launches, trace)
    counted = [tallied(one.launch) for one in timed.launches]
    found = modelled(timed.run(), trace, counted, Path(folder))
    Path(folder, "profile.json").write_text(json.dumps(found, indent=1) + "\n")


# -- in pytest's process
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a marked test elsewhere, and log what is reported there."""
    marker = item.get_closest_marker("emulated")
    if marker is None or CHILD in os.environ:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_of(item, marker):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def reports_of(item: pytest.Item, marker: pytest.Mark) -> list[pytest.TestReport]:
    """Return the reports of a test: of the first schedule that fails, else of the last one."""
    try:
        wanted = Emulated(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        said = str(error).replace("Emulated.__init__()", f"it takes {', '.join(Emulated.__match_args__)}, and")
        return [failed(item, f"@pytest.mark.emulated: {said}", 0.0)]
    for seed in range(wanted.schedules):
        reports = run_elsewhere(item, wanted, seed)
        if any(report.failed for report in reports):
            for report in reports:
                report.sections.append(("emulated-gpu", f"under schedule {seed} of {wanted.schedules}"))
            break
    return reports


def run_elsewhere(item: pytest.Item, wanted: Emulated, seed: int) -> list[pytest.TestReport]:
    """Run the test under one schedule in a process of its own."""
    config, began = item.config, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="emulated-gpu-pytest-") as folder:
        reports, findings = Path(folder, "reports.jsonl"), Path(folder, "findings.jsonl")
        for file in (reports, findings):
            file.touch()
        options = Options(seed, machine=wanted.machine, findings=str(findings), strict=wanted.strict)
        options.timeout = wanted.timeout
        variables = environment(options) | {CHILD: str(reports)}
        if timelines := config.getoption("emulated_timeline"):
            variables[TIMELINE] = str(Path(timelines).absolute() / re.sub(r"[^\w.\[\]-]+", "_", item.nodeid))
        test = f"{item.path}::{item.nodeid.partition('::')[2]}"
        command = [sys.executable, "-m", "pytest", test, "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["-p", __name__, "--rootdir", str(config.rootpath)]
        command += ["-n0"] * config.pluginmanager.hasplugin("xdist")
        command += ["-c", str(config.inipath)] * bool(config.inipath)
        process = subprocess.run(
            command, cwd=config.invocation_params.dir, env=clean(os.environ) | variables, capture_output=True, text=True
        )
        found = [read(line) for line in reports.read_text().splitlines()]
        rows = [json.loads(line) for line in findings.read_text().splitlines()]
    texts = [f"{one['kind']}: {one['message']}\n  at {one['where']}" for one in rows if one["class"] == "wrong"]
    wrong = "\n".join(texts)
    if not found:
        said = (process.stdout + process.stderr).strip()
        return [failed(item, f"its process ended with {process.returncode}:\n{said}", time.monotonic() - began)]
    call = next((report for report in found if report.when == "call"), found[-1])
    if wrong and not call.failed:
        call.outcome, call.longrepr = "failed", wrong
    elif wrong:
        call.sections.append(("what the emulator found", wrong))
    return found


def read(line: str) -> pytest.TestReport:
    """Make the report that a process wrote. Where a test was skipped is a tuple, which JSON does not have."""
    data = json.loads(line)
    if isinstance(data["longrepr"], list):
        data["longrepr"] = tuple(data["longrepr"])
    return pytest.TestReport._from_json(data)


def clean(variables) -> dict[str, str]:
    """Leave out what pytest and pytest-xdist tell their own processes."""
    return {name: value for name, value in variables.items() if not name.startswith("PYTEST_")}


def failed(item: pytest.Item, why: str, seconds: float) -> pytest.TestReport:
    """Make the report of a test that could not be run."""
    return pytest.TestReport(
        item.nodeid, item.location, {name: 1 for name in item.keywords}, "failed", why, "call", duration=seconds
    )
