"""Time what a script launches on the model: `python -m emulated_gpu profile SCRIPT.py [ARGS...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from ..device import DEVICE, Session
from ..errors import Unsupported
from ..model.node import TimedNode
from ..model.profile import load
from ..model.report import report
from ..model.run import TimedRun
from ..model.tally import tallied
from ..model.trace import Trace
from ..page.write import write_page
from . import run as running
from .host.watch import watched


def profile(
    script: str, args: list[str], machine: str, folder: Path, most: int, page: Path | None, compute: bool = False
) -> dict:
    """Run the script with its first `most` launches recorded, then these back to back on the model; see report().

    page: the HTML file to write, too. compute: whether tensor cores compute, which kernels need that await values.

    What the launches would compute is not computed: the script finds zeros, or what was there. If it ends with an error
    for that, what it launched before is timed. Raises Unsupported if it launched nothing, or what stops the launches.
    """
    recording, status = record(script, args, running.Options(machine=machine), most)
    recorded = recording.recorded
    DEVICE.session = recording.after()
    trace = Trace()

    def tell(run: TimedRun) -> bool:
        done = sum(launch.end is not None for launch in run.launches)
        print(f"emulated-gpu: launch {done} of {len(recorded)}", file=sys.stderr, flush=True)
        return False

    timed = TimedRun(load(machine), DEVICE.memory, recorded, trace, tell, compute)
    counted = [tallied(one.launch) for one in timed.launches]
    try:
        with watched(lambda: [each.launch for each in timed.active]):
            timed.run()
    except KeyboardInterrupt:
        done = sum(launch.end is not None for launch in timed.launches)
        if not done:
            raise
        print(f"emulated-gpu: interrupted; of {len(recorded)} launches {done} are done", file=sys.stderr, flush=True)
    found = report(timed, trace, counted, folder)
    if page is not None:
        write_page(page, " ".join([Path(script).name, *args]), timed, trace, found, sources(script))
    return {"script": script, "args": args, "exit_status": status} | found


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
    recorded = recording.recorded
    if not recorded:
        raise Unsupported(f"{script} launched no kernel in this process: nothing to time")
    left_out = recording.launches - len(recorded)
    more = f", {left_out} more left out" * bool(left_out)
    what = "1 launch" if len(recorded) == 1 else f"{len(recorded)} launches"
    print(f"emulated-gpu: modelling {what}{more}; nothing was computed for the script to check", file=sys.stderr)
    return recording, status


def sources(script: str) -> dict[str, Path]:
    """Where the files are that line info may name: the script and the modules that it imported, by their names."""
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    return {Path(file).name: Path(file) for file in (*files, script) if file and file.endswith(".py")}
