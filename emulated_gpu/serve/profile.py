"""Time what a script or a program launches on the model: `python -m emulated_gpu profile SCRIPT.py [ARGS...]`.

A program's kernels are in its own process: there they are modelled when it has ended.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..device import DEVICE
from ..errors import EmulatorError, Unsupported
from ..model.node import TimedNode
from ..model.profile import load
from ..model.report import report
from ..model.run import TimedRun
from ..model.tally import tallied
from ..model.timeline import Timeline
from ..model.trace import Trace
from ..page import hot
from ..page.verdicts import verdicts, with_gains
from ..page.write import write_page
from ..sessions import Session
from . import run as running
from .cuda_cpp import executables
from .host.watch import watched
from .mended import Mended


@dataclass(frozen=True)
class Wanted:
    """What `profile` is asked for. machine: of chip.CHIPS; folder: for the timeline; most: launches that are timed;
    page: the HTML file to write, too; compute: whether tensor cores compute, which kernels need that await values;
    within: seconds for an answer, from what there is by then, or None; gains: whether to say what mending would bring;
    jobs: processes for that; baseline: a page of an earlier profile, to be shown beside this one.
    """

    machine: str
    folder: Path
    most: int
    page: Path | None = None
    compute: bool = False
    within: float | None = None
    gains: bool = True
    jobs: int = 1
    baseline: Path | None = None


def profile(script: str, args: list[str], wanted: Wanted, show: Callable[[dict], None] = lambda found: None) -> dict:
    """Run the script with its first launches recorded, then these back to back on the model; see report().

    show: is given what is found before it is known what mending would bring.

    What the launches would compute is not computed: the script finds zeros, or what was there. If it ends with an error
    for that, what it launched before is timed. Raises Unsupported if it launched nothing, or what stops the launches.
    """
    until = time.monotonic() + wanted.within if wanted.within else math.inf
    options = running.Options(machine=wanted.machine)
    if not executables.is_program(script):
        recording, status = record(script, args, options, wanted.most)
        return modelled(recording, script, args, wanted, until, show) | {"exit_status": status}
    with tempfile.TemporaryDirectory(prefix="emulated-gpu-profile-") as folder:
        asked = Path(folder, "asked")
        asked.write_bytes(pickle.dumps((script, args, wanted, until)))
        environment = running.environment(options) | {executables.PROFILE: str(asked)}
        status = executables.run_executable(script, args, environment, 1)
        found = pickle.loads(asked.read_bytes())
    if isinstance(found, EmulatorError):
        raise found
    if not isinstance(found, dict):
        raise Unsupported(f"{script} ended with exit status {status}, and not by exit(): nothing is modelled")
    say_status(script, status)
    show(found)
    return found | {"exit_status": status}


def in_program(asked: str) -> Callable[[], None]:
    """Record from now on what this program launches; returns what models it and answers in the file that asked."""
    script, args, wanted, until = pickle.loads(Path(asked).read_bytes())
    recording = DEVICE.session = running.Loud(recorded=[], most_recorded=wanted.most, kept=[])
    here = os.getcwd()

    def answer() -> None:
        os.chdir(here)
        try:
            say_recorded(script, recording, 0)
            found: dict | EmulatorError = modelled(recording, script, args, wanted, until)
        except EmulatorError as error:
            found = error
        Path(asked).write_bytes(pickle.dumps(found))

    return answer


def modelled(
    recording: Session, script: str, args: list[str], wanted: Wanted, until: float, show=lambda found: None
) -> dict:
    """Model what has been recorded."""
    recorded = recording.recorded
    DEVICE.session = recording.after()
    trace, machine = Trace(), load(wanted.machine)
    timed = TimedRun(machine, DEVICE.memory, recorded, trace, computes_mma=wanted.compute)
    counted = [tallied(one.launch) for one in timed.launches]
    found: dict = {"script": script, "args": args}
    with Mended(wanted.jobs if wanted.gains else 0, until) as mended:
        with mended.around(timed):
            timed.run()
        if not timed.ends_us():
            titles = ", ".join(dict.fromkeys(one.launch.program.kernel.title for one in timed.launches))
            what = f"before one of its {len(timed.launches)} launches ({titles}) was modelled"
            raise Unsupported(f"{script}: the time was over {what}: nothing is known of what they take")
        found |= report(timed, trace, counted, wanted.folder)
        timeline = Timeline(timed, trace)
        lines = hot.lines(hot.instructions(timeline), trace)
        found |= {"verdicts": verdicts(timeline, found, lines), "gains": []}
        show(found)
        for gains in mended.gains(timeline, found):
            told = {"verdicts": with_gains(timeline, found, lines, gains), "gains": [one.told() for one in gains]}
            found |= told
    if wanted.page is not None:
        title = " ".join([Path(script).name, *args])
        write_page(wanted.page, title, timed, trace, found, sources(script), wanted.baseline)
    return found


def profile_devices(
    script: str, args: list[str], options: running.Options, folder: Path, most: int, compute: bool = False
) -> dict:
    """Do the same for a script that several devices run: `devices` of what it returns has the report of each.

    All devices begin at once; what their hosts would wait for in between takes no time.
    """
    recording, status = record(script, args, options, most)
    traces = [Trace() for _ in DEVICE.memories]
    DEVICE.session = recording.after()
    node = TimedNode(load(options.machine), DEVICE.memories, recording.recorded, traces, compute)
    counted = [[tallied(one.launch) for one in run.launches] for run in node.runs]
    with watched(lambda: [each.launch for run in node.runs for each in run.active]):
        node.run()
    found = [
        report(run, trace, counts, folder / f"device{number}")
        for number, (run, trace, counts) in enumerate(zip(node.runs, traces, counted, strict=True))
    ]
    return {"script": script, "args": args, "exit_status": status, "devices": found}


def record(script: str, args: list[str], options: running.Options, most: int) -> tuple[Session, int]:
    """Run the script, but for its launches; return the session that has the first of these, and the exit status.

    The session also keeps the memory that they work on.
    """
    recording = running.Loud(recorded=[], most_recorded=most, kept=[])
    status = running.run_script(script, args, options, session=recording)
    say_recorded(script, recording, status)
    say_status(script, status)
    return recording, status


def say_recorded(script: str, recording: Session, status: int) -> None:
    """Say what is going to be modelled. Raises Unsupported if that is nothing."""
    recorded = recording.recorded
    if not recorded:
        how = f"ended with exit status {status} before it launched a kernel" if status else "launched no kernel"
        raise Unsupported(f"{script} {how} in this process: nothing to time")
    left_out = recording.launches - len(recorded)
    more = f", {left_out} more left out" * bool(left_out)
    what = "1 launch" if len(recorded) == 1 else f"{len(recorded)} launches"
    print(f"emulated-gpu: modelling {what}{more}; nothing was computed for the script to check", file=sys.stderr)


def say_status(script: str, status: int) -> None:
    """Say what it means if a script has failed."""
    if status:
        print(
            f"emulated-gpu: {script} ended with exit status {status}, perhaps by a check of its own of what was not "
            "computed; the launches before are modelled, what it would have launched behind is not",
            file=sys.stderr,
        )


def sources(script: str) -> dict[str, Path]:
    """Where the files are that line info may name: the script and the modules that it imported, by their names."""
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    return {Path(file).name: Path(file) for file in (*files, script) if file and file.endswith(".py")}
