"""Run a Python script, unchanged, as on a B200 or an H200: `python -m emulated_gpu run SCRIPT.py [ARGS...]`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from .. import packages
from ..chip import CHIPS
from ..device import DEVICE
from ..errors import EmulatorError, Fault, HostOrderFault, Unsupported
from ..finding_rows import NOT_PROMISED, WRONG, of_runs, row_of
from ..machine.hosts import Stopped
from ..machine.launch import Launch
from ..machine.schedule import Schedule
from ..page.findings import events
from ..sessions import Session
from . import doors
from .cuda_cpp import executables, toolkit
from .cute import cute_dsl
from .host import installs as installing
from .host import watch
from .host.after_import import after_import

ROOT = Path(__file__).resolve().parents[2]  # where emulated_gpu/ is
# For the processes that the script starts: the Options
OPTIONS = "EMULATED_GPU_RUN"
SEED = "EMULATED_GPU_SEED"  # of what a script draws without a seed of its own: one for all schedules that are compared
PYTHON = "EMULATED_GPU_PYTHON"  # with which `nvidia-smi` runs
LAUNCH_FAILURE = "cudaErrorLaunchFailure"
LAUNCH, EVENTS = "launch", "events"  # classes of lines that are no findings: a launch, and what happened in one
OTHER_ARCH = re.compile(r"expects arch to be \S*sm_90")  # CuTe DSL's 25 lines
HOPPER = "this is code of sm_90a and the machine a B200: `run --machine h200` is a Hopper GPU"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Options:
    """Holds the options of a run, for the script's process and those that it starts.

    explore: in how many other orders each launch is tried, too. replay: an order of events as Schedule.of_text reads
    it, in place of a schedule's number.
    machine: a key of chip.CHIPS. most: findings before launches fail. timed: whether the model times what is between
    events. findings: a file that gets a line of JSON for each finding, note and launch. strict: whether notes are
    findings. crowded: as of calls.session. timeout: seconds that a launch may take, 0 for any time. devices: how many
    GPUs there are; ranks: as how many processes the script runs, each a thread, 0 for one a device. events: whether to
    keep the last events of launches with findings.
    """

    schedule: int = 0
    checks: bool = True
    machine: str = "b200"
    most: int = 1
    timed: bool = False
    findings: str = ""
    strict: bool = False
    crowded: bool = False
    timeout: float = 0.0
    devices: int = 1
    ranks: int = 0
    events: bool = False
    explore: int = 0
    replay: str = ""

    @classmethod
    def of_environment(cls) -> Options:
        return cls(**json.loads(os.environ.get(OPTIONS, "{}")))


# Notes on what a script in any language does
OF_SCRIPTS = {"cas-guess", "never-written", "selected-away", "non-coherent-load"}


@dataclass
class Loud(Session):
    """Shows findings when they are made: the script, or the process it started, may swallow the error.

    file: gets them, and what each launch wrote, as lines of JSON; with `events` the last ones of launches with
    findings, too. timeout: seconds that a launch may take.
    """

    file: str = ""
    timeout: float = 0.0
    events: bool = False
    shown: int = field(default=0, init=False)

    def add(self, error: EmulatorError) -> None:
        super().add(error)
        for found in self.errors[self.shown :]:
            self.show("emulated-gpu", WRONG, found)
        self.shown = len(self.errors)

    def note(self, note: Fault) -> None:
        before = len(self.notes)
        super().note(note)
        if len(self.notes) == before:
            return
        again = any(note.note == other.note for other in self.notes[:-1])  # its rule has been told
        if compiler := self.compiler_of(note):
            note.message += f" ({compiler}'s compiler has written this, not the script)"
        whose = "CUDA" if isinstance(note, HostOrderFault) else "the PTX ISA"
        head = f"emulated-gpu: note, not promised by {whose}"
        self.show(head, NOT_PROMISED, note, f"{note.note} again, at {note.where}" if again and note.where else "")

    def compiler_of(self, note: Fault) -> str:
        """Name whose compiler wrote what a note is about, if it is not the script: "" if it may be."""
        kernel = note.where.removeprefix("kernel ").partition(",")[0]
        return "" if note.note in OF_SCRIPTS else DEVICE.compilers.get(kernel, "")

    def show(self, head: str, of: str, found: EmulatorError, briefly: str = "") -> None:
        """of: the class of the finding; briefly: what to say in place of all."""
        print(f"{head}: {briefly or found}", file=sys.stderr, flush=True)
        self.write(row_of(of, found))

    def write(self, row: dict) -> None:
        if self.file:
            with open(self.file, "a") as file:
                file.write(json.dumps(row | {"schedule": self.schedule.seed, "launch": self.launches}) + "\n")

    def watched(self, running: Callable[[], list[Launch]]):
        return watch.watched(running, self.timeout)

    def ended(self, launch: Launch) -> None:
        if self.file:
            row = {"class": LAUNCH, "kernel": launch.program.kernel.title, "device": launch.device}
            self.write(row | {"wrote": written(launch)})
        if self.file and self.events and (launch.running or launch.faults):  # it was stopped, or had findings
            self.write({"class": EVENTS, "events": events(launch)})


def written(launch: Launch) -> list[list[str]]:
    """Return names and digests of the memory that a launch wrote to; none for a launch without checks.

    What several devices may access is left out: others may be at it.
    """
    found = []
    for region, used in launch.dependencies.own.regions.values():
        if used[1].any() and not region.peers:
            found.append([region.name, hashlib.blake2b(region.data, digest_size=8).hexdigest()])
    return sorted(found)


def configure() -> None:
    """Set what CuTe DSL reads when it is imported, for the machine that the environment asks for."""
    cute_dsl.choose(Options.of_environment().machine)
    cute_dsl.configure()


def install() -> None:
    """Serve the cuda device in this process, as the environment asks for, and torch's if there is torch."""
    configure()
    options = Options.of_environment()
    DEVICE.become(options.devices)
    installing.forbid()
    if packages.has("torch"):
        from .ranks import distributed
        from .torch_device.install import install as install_torch

        install_torch()
        distributed.offer(distributed.Alone)
    else:
        doors.install()
        after_import("triton", lambda: packages.need("Triton on the emulated GPU", "torch"))
    start(options)
    seed()


def start(options: Options) -> None:
    """Make what is launched from now on what the options ask for."""
    schedule = Schedule.of_text(options.replay or str(options.schedule))
    session = Loud(
        schedule, options.checks, options.most, options.strict, options.crowded, options.explore,
        file=options.findings,
    )  # fmt: skip
    session.timeout, session.events = options.timeout, options.events
    if options.timed:
        session.timed, session.kept = [], []
    DEVICE.session = session


def seed() -> None:
    """Let this process draw what all do whose outputs are compared."""
    if number := os.environ.get(SEED):
        seeds = [random.seed, np.random.seed]
        if packages.has("torch"):
            import torch

            seeds.append(torch.manual_seed)
        for seeded in seeds:
            seeded(int(number))


def environment(options: Options, installs: bool = False) -> dict[str, str]:
    """Variables with which every Python process gets the emulated device when it imports torch or CuTe DSL, and every
    process finds an `nvidia-smi` that knows it, libcuda and nvcc."""
    startup, cuda = Path(__file__).parent / "startup", for_cuda()
    path = [str(startup), str(ROOT), os.environ.get("PYTHONPATH", "")]
    programs = [startup / "bin", *(Path(home, "bin") for name, home in cuda.items() if name == "CUDA_HOME")]
    return {
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "PATH": os.pathsep.join([*map(str, programs), os.environ.get("PATH", os.defpath)]),
        PYTHON: sys.executable,
        OPTIONS: json.dumps(vars(options)),
        installing.ALLOWED: str(int(installs)),
        **cuda,
    }


def for_cuda() -> dict[str, str]:
    """Variables by which others find libcuda and compile CUDA C++ as for this device; none where there is no nvcc."""
    try:
        driver, home = toolkit.driver().parent, toolkit.led()
    except Unsupported:
        return {}
    found = {"CUDA_HOME": str(home)}
    libraries = [str(driver), os.environ.get("LD_LIBRARY_PATH", "")]
    found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    with contextlib.suppress(Unsupported):  # without a libpython, Python's processes alone have the device
        found |= toolkit.for_python()
    return found


def run_script(
    script: str, args: list[str], options: Options, installs: bool = False, session: Session | None = None
) -> int:
    """Run the script as `python script args` would; returns its exit status, or 1 if a launch failed here.

    installs: whether it may install packages; what else it may do, it may do with the user's rights. session: of the
    launches of this process, if not that of the options.
    """
    if executables.is_program(script):
        try:
            return executables.run_executable(script, args, environment(options, installs), options.devices)
        except Unsupported as why:
            start(options)
            DEVICE.session.add(why)
            return 1
    os.environ.update(environment(options, installs))
    try:
        install()
    except Unsupported as why:  # there is a GPU, or no compiler for what torch needs
        start(options)
        DEVICE.session.add(why)
        return 1
    DEVICE.session = session or DEVICE.session
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.path.append(str(ROOT))  # which was there as the current folder, or not at all
    if options.devices > 1 and options.ranks != 1:
        packages.need("a script with a rank for each device", "torch")
        from .ranks import ranks

        raised = ranks.run_script(script, options.ranks or options.devices)
    else:
        raised = [None]
        try:
            runpy.run_path(script, run_name="__main__")
            DEVICE.synchronize_all()
        except BaseException as e:
            raised = [e]
    if not isinstance(failure := DEVICE.session.failure, Exception | None):
        raised = [failure]  # Ctrl-C in a callback: the script has only seen an error number
    statuses = [exit_status(e) for e in raised]
    return next(filter(None, statuses), 0) or int(bool(DEVICE.session.findings))


def exit_status(raised: BaseException | None) -> int:
    """Return what a process ends with that raises this, and say what Python would."""
    if raised is None or isinstance(raised, Stopped):
        return 0
    if isinstance(raised, KeyboardInterrupt):
        raise raised
    if isinstance(raised, SystemExit):
        if raised.code is not None and not isinstance(raised.code, int):
            print(raised.code, file=sys.stderr)
        return raised.code if isinstance(raised.code, int) else int(raised.code is not None)
    said = explained(raised)
    print(said if sys.stderr.isatty() else COLOURS.sub("", said), file=sys.stderr, end="")
    return 1


def run_once(script: str, args: list[str], options: Options, installs: bool) -> dict:
    """Run the script; what emulated_gpu/RUN.md says of JSON reports, on Ctrl-C of what was done until then."""
    with tempfile.TemporaryDirectory(prefix="emulated-gpu-run-") as folder:
        findings = Path(folder, "findings.jsonl")
        findings.touch()
        try:
            status = run_script(script, args, dataclasses.replace(options, findings=str(findings)), installs)
        except KeyboardInterrupt:
            status = interrupted()
        rows = [json.loads(line) for line in findings.read_text().splitlines()]
    found = report_of(rows, options.schedule, status, options.events)
    status = found["exit_status"]
    return {"script": script, "args": args, "machine": options.machine, "exit_status": status, "runs": [found]}


def interrupted() -> int:
    """Say that Ctrl-C has ended what is running; returns the exit status."""
    print("\ninterrupted by SIGINT", file=sys.stderr, flush=True)
    return 128 + signal.SIGINT


def report_of(rows: list[dict], schedule: int, status: int, events: bool) -> dict:
    """An entry of `runs`, from what sessions wrote: of the script's process, whose exit status it is, and of those that
    it started. events: whether they kept events."""
    found = [row for row in rows if row["class"] not in (LAUNCH, EVENTS)]
    happened = [{"launch": row["launch"], "events": row["events"]} for row in rows if row["class"] == EVENTS]
    status = status or int(any(one["class"] == WRONG for one in found))
    done = sorted((row for row in rows if row["class"] == LAUNCH), key=lambda row: row["device"])
    launches = [{"kernel": row["kernel"], "wrote": row["wrote"]} for row in done]
    entry = {"schedule": schedule, "exit_status": status, "findings": found, "launches": launches}
    return entry | ({"events": happened} if events else {})


def run_schedules(script: str, args: list[str], options: Options, installs: bool, count: int, jobs: int) -> dict:
    """Run the script once under each of the schedules 0 to count - 1, each in a process of its own; as `run_once`.

    jobs: how many at a time. With more than one, what each says is shown when it has ended, in the order of schedules.
    """
    runs, processes, ended = [], [], 0
    drawn = {SEED: str(random.randrange(2**31))}

    def one(seed: int) -> tuple[dict | None, int, tuple[bytes | None, bytes | None]]:
        with tempfile.TemporaryDirectory(prefix="emulated-gpu-run-") as folder:
            report = Path(folder, "report.json")
            command = [sys.executable, "-m", "emulated_gpu", "run", "--schedule", str(seed)]
            command += ["--machine", options.machine]
            command += ["--keep-going", str(options.most), "--json", str(report), *["--installs"] * installs]
            command += ["--timed"] * options.timed + ["--strict"] * options.strict
            command += ["--crowded"] * options.crowded
            command += ["--devices", str(options.devices), "--ranks", str(options.ranks)]
            command += ["--events"] * options.events + ["--explore", str(options.explore)]
            command += ["--timeout", str(options.timeout)] * bool(options.timeout)
            command += [*["--no-checks"] * (not options.checks), script, *args]
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            output = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE if jobs > 1 else None)
            process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path} | drawn, **output)
            processes.append(process)
            said = process.communicate()
            found = json.loads(report.read_text())["runs"][0] if report.exists() and report.stat().st_size else None
            return found, process.returncode, said

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for seed, (found, status, said) in enumerate(pool.map(one, range(count))):
                for file, text in zip((sys.stdout, sys.stderr), said):
                    file.write((text or b"").decode(errors="replace"))
                    file.flush()
                runs += [found] if found else []
                findings = found["findings"] if found else []
                kinds = ", ".join(each["kind"] for each in findings if each["class"] == WRONG)
                print(f"emulated-gpu: schedule {seed}: {kinds or f'exit status {status}'}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            ended = interrupted()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
    failed = ended or int(len(runs) < count)
    status = next((each["exit_status"] for each in runs if each["exit_status"]), failed)
    return {"script": script, "args": args, "machine": options.machine, "exit_status": status, "runs": runs}


def summary(runs: list[dict]) -> str:
    """Say what there was: launches, schedules, findings, and whether every schedule left the same in memory."""
    launches = [len(each["launches"]) for each in runs] or [0]
    several = min(launches) != max(launches)
    parts = [f"{min(launches)} to {max(launches)} launches" if several else counted(launches[0], "launch")]
    if len(runs) > 1:
        parts.append(f"{len(runs)} schedules")
    found = of_runs(runs)
    parts.append(counted(sum(one["class"] == WRONG for one in found), "finding"))
    if notes := sum(one["class"] != WRONG for one in found):
        parts.append(counted(notes, "note"))
    if outputs := differences(runs):
        parts.append(outputs)
    return ", ".join(parts)


def differences(runs: list[dict]) -> str:
    """Say whether all schedules left the same in the memory that each launch wrote; "" if that is not known.

    Launches are compared by their order; those of several processes, which have none, as they come.
    """
    if len(runs) < 2 or any(one["class"] == WRONG for each in runs for one in each["findings"]):
        return ""
    first = runs[0]
    if not any(launch["wrote"] for launch in first["launches"]):
        return ""
    for other in runs[1:]:
        for number, (a, b) in enumerate(zip(first["launches"], other["launches"]), 1):
            if a != b:
                names = sorted({name for name, _ in {*map(tuple, a["wrote"])} ^ {*map(tuple, b["wrote"])}})
                what = f"{', '.join(names) or 'other memory'} after launch {number} ({a['kernel']})"
                return f"outputs DIFFER: {what}, under schedules {first['schedule']} and {other['schedule']}"
    return "outputs equal in all"


def counted(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{plural * (number != 1)}"


def is_launch_failure(error: BaseException) -> bool:
    """Whether an error is how CuTe DSL, by itself or by TVM FFI, says that a launch has failed."""
    return any(of.__name__ == "DSLCudaRuntimeError" for of in type(error).__mro__) or LAUNCH_FAILURE in str(error)


def explained(error: BaseException) -> str:
    """The traceback of what a script raises, as if it ran without us; of a finding, which has been shown, the place.

    Of what CuTe DSL raises, too, the frames are the script's: line and column of its own code are in the message.
    """
    folders = [str(ROOT / "emulated_gpu"), os.path.dirname(click.__file__)]
    known = error in DEVICE.session.errors or DEVICE.session.failure and is_launch_failure(error)
    known = known or any(str(one) == str(error) for one in DEVICE.session.errors)  # torch's operators raise its text
    hopper = bool(OTHER_ARCH.search(str(error))) and DEVICE.chip is CHIPS["b200"]
    if known or hopper or type(error).__module__.partition(".")[0] == "cutlass":
        folders += [os.path.dirname(module.__file__) for module in [sys.modules.get("cutlass")] if module]
    found = traceback.TracebackException.from_exception(error)
    part = found
    while part is not None:
        frames = [frame for frame in part.stack if not frame.filename.startswith((*folders, "<frozen runpy"))]
        part.stack = traceback.StackSummary.from_list([f for f in frames if f.filename != runpy.__file__])
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    if known or hopper:
        why = f"emulated-gpu: {HOPPER}\n" if hopper else "the finding above\n"
        return "".join(["Traceback (most recent call last):\n", *found.stack.format(), why])
    return "".join(found.format())
