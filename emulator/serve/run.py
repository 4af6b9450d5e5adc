"""Run a Python script, unchanged, as on a B200 or an H200: `python -m emulator run SCRIPT.py [ARGS...]`."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import click

from ..device import DEVICE, Session
from ..errors import EmulatorError, Fault
from ..machine.schedule import Schedule
from . import cute_dsl
from . import installs as installing

ROOT = Path(__file__).resolve().parents[2]  # where emulator/ is
# For the processes that the script starts: the Options
OPTIONS = "EMULATOR_RUN"


@dataclass
class Options:
    """What a run is to be like, in the script's process and those that it starts.

    machine: a key of chip.CHIPS. most: findings before launches fail. timed: whether the model times what is between
    events. findings: a file that gets a line of JSON for each finding and note. strict: whether notes are findings.
    """

    schedule: int = 0
    checks: bool = True
    machine: str = "b200"
    most: int = 1
    timed: bool = False
    findings: str = ""
    strict: bool = False

    @classmethod
    def of_environment(cls) -> Options:
        return cls(**json.loads(os.environ.get(OPTIONS, "{}")))


@dataclass
class Loud(Session):
    """Shows findings when they are made: the script, or the process it started, may swallow the error."""

    file: str = ""
    shown: int = field(default=0, init=False)

    def add(self, error: EmulatorError) -> None:
        super().add(error)
        for found in self.errors[self.shown :]:
            self.show("emulator", "wrong", found)
        self.shown = len(self.errors)

    def note(self, note: Fault) -> None:
        before = len(self.notes)
        super().note(note)
        if len(self.notes) > before:
            self.show("emulator: note, not promised by the PTX ISA", "not promised", note)

    def show(self, head: str, of: str, found: EmulatorError) -> None:
        """of: the class of the finding."""
        print(f"{head}: {found}", file=sys.stderr, flush=True)
        if self.file:
            with open(self.file, "a") as file:
                row = {"class": of, "kind": found.kind, "message": found.message, "where": found.where}
                file.write(json.dumps(row | {"schedule": self.schedule.seed, "launch": self.launches}) + "\n")


def configure() -> None:
    """Set what CuTe DSL reads when it is imported, for the machine that the environment asks for."""
    cute_dsl.choose(Options.of_environment().machine)
    cute_dsl.configure()


def install() -> None:
    """Serve the cuda device in this process, as the environment asks for."""
    configure()
    from . import torch_cuda

    options = Options.of_environment()
    installing.forbid()
    torch_cuda.install()
    schedule = Schedule(options.schedule)
    session = Loud(schedule, options.checks, options.most, options.strict, file=options.findings)
    if options.timed:
        session.timed, session.kept = [], []
    DEVICE.session = session


def run(script: str, args: list[str], options: Options, installs: bool = False, session: Session | None = None) -> int:
    """Run the script as `python script args` would; returns its exit status, or 1 if a launch failed here.

    installs: whether it may install packages; what else it may do, it may do with the user's rights. session: of the
    launches of this process, if not that of the options.
    """
    path = [str(Path(__file__).parent / "startup"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
    os.environ[OPTIONS] = json.dumps(vars(options))
    os.environ[installing.ALLOWED] = str(int(installs))
    install()
    DEVICE.session = session or DEVICE.session
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.path.append(str(ROOT))  # which was there as the current folder, or not at all
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        if e.code is not None and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        print(explained(e), file=sys.stderr, end="")
        status = 1
    return status or int(bool(DEVICE.session.findings))


def run_once(script: str, args: list[str], options: Options, installs: bool) -> dict:
    """Run the script; what emulator/README.md says of JSON reports."""
    with tempfile.TemporaryDirectory(prefix="emulator-run-") as folder:
        findings = Path(folder, "findings.jsonl")
        findings.touch()
        status = run(script, args, dataclasses.replace(options, findings=str(findings)), installs)
        found = [json.loads(line) for line in findings.read_text().splitlines()]
    status = status or int(any(one["class"] == "wrong" for one in found))  # of processes that it started, too
    runs = [{"schedule": options.schedule, "exit_status": status, "findings": found}]
    return {"script": script, "args": args, "machine": options.machine, "exit_status": status, "runs": runs}


def run_schedules(script: str, args: list[str], options: Options, installs: bool, count: int) -> dict:
    """Run the script once under each of the schedules 0 to count - 1, each in a process of its own; as `run_once`."""
    runs = []
    for seed in range(count):
        with tempfile.TemporaryDirectory(prefix="emulator-run-") as folder:
            report = Path(folder, "report.json")
            command = [sys.executable, "-m", "emulator", "run", "--schedule", str(seed), "--machine", options.machine]
            command += ["--keep-going", str(options.most), "--json", str(report), *["--installs"] * installs]
            command += ["--timed"] * options.timed + ["--strict"] * options.strict
            command += [*["--no-checks"] * (not options.checks), script, *args]
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            status = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
            runs += json.loads(report.read_text())["runs"] if report.exists() else []
        findings = runs[-1]["findings"] if runs else []
        kinds = ", ".join(found["kind"] for found in findings if found["class"] == "wrong")
        print(f"emulator: schedule {seed}: {kinds or f'exit status {status}'}", file=sys.stderr, flush=True)
    status = next((one["exit_status"] for one in runs if one["exit_status"]), int(len(runs) < count))
    return {"script": script, "args": args, "machine": options.machine, "exit_status": status, "runs": runs}


def explained(error: BaseException) -> str:
    """The traceback of what a script raises, as if it ran without us; of a finding, which has been shown, the place."""
    folders = [str(ROOT / "emulator"), os.path.dirname(click.__file__)]
    known = error in DEVICE.session.errors or DEVICE.session.failure and type(error).__name__ == "DSLCudaRuntimeError"
    if known:
        folders += [os.path.dirname(module.__file__) for module in [sys.modules.get("cutlass")] if module]
    found = traceback.TracebackException.from_exception(error)
    part = found
    while part is not None:
        frames = [frame for frame in part.stack if not frame.filename.startswith((*folders, "<frozen runpy"))]
        part.stack = traceback.StackSummary.from_list([f for f in frames if f.filename != runpy.__file__])
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    if known:
        return "".join(["Traceback (most recent call last):\n", *found.stack.format(), "the finding above\n"])
    return "".join(found.format())
