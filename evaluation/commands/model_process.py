"""Models the times of launches that nobody judges, in a process of their own: for `profile`, and for ragged_moe/.

A request is a dataclass with `size` and `memory`; its module, run as a script, replies to it (`child`). Nothing that
such a process says is checked, or held against a submission that cheats its author.
"""

import contextlib
import dataclasses
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulated_gpu.model import report, uncertainty
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.time_of_call import replied
from emulated_gpu.model.timeline import Timeline
from emulated_gpu.model.trace import Trace
from emulated_gpu.page import hot
from emulated_gpu.page.verdicts import verdicts, with_gains
from emulated_gpu.page.write import write_page
from emulated_gpu.serve.host import watch
from emulated_gpu.serve.mended import Mended
from emulated_gpu.serve.profile import sources
from evaluation import ROOT
from evaluation.judge import configs
from evaluation.judge.jobs import share
from evaluation.judge.loading import explain
from evaluation.judge.verdict import legible

BEAT_S = 1.0  # how often what a process says is looked for
ANSWER = "all calls are modelled: "  # begins what is told before it is known what mending brings
PATIENCE_S = 60.0  # for what interrupted processes make of what is done: 8 s of a core, which may be shared
_asked: set[subprocess.Popen] = set()  # processes that have not replied

# ---- in the child process


def timed_reply(
    request, timed, steady: Steady, trace: Trace | None, launches: list[int], page: str = "",
    mended: Mended | None = None, show=lambda reply: None,
) -> dict:  # fmt: skip
    """Makes the reply for calls that have been timed, and the page of request.page, whose title is `page`.

    launches: how many there were up to the end of each call. mended: says what mending brings, after `show` has got the
    reply without that. Raises Unusable if the run was cut before the first call had ended.
    """
    run = timed.run
    if not request.extrapolate:
        steady.ends = [end for count in launches if (end := run.launches[count - 1].end) is not None]
    if not steady.ends:
        done = sum(launch.end is not None for launch in run.launches)
        raise configs.Unusable(f"of the {launches[0]} launches of the first call {done} were done in time")
    reply = replied(run, steady, launches[0])
    if run.cut_off:
        reply = report.whole(reply, run.cut_off[0])
    if not request.timeline or trace is None:
        return reply
    found = report.report(run, trace, timed.counted, Path(request.timeline))
    timeline = Timeline(run, trace)
    lines = hot.lines(hot.instructions(timeline), trace)
    found |= {"verdicts": verdicts(timeline, found, lines), "gains": []}

    def so_far() -> dict:
        return reply | {key: found[key] for key in ("breakdown", "kernels", "partial", "verdicts", "gains")}

    def write() -> None:
        if page:
            before = request.baseline and Path(request.baseline)
            write_page(Path(request.page), page, run, trace, found, sources(request.submission), before)

    write()
    show(so_far())
    if mended and mended.jobs and not run.was_cut:
        may_be = uncertainty.written(reply["us_interval"])
        told = f"{reply['us_corrected']:.2f} us a call ({may_be}); Ctrl-C shows what is known"
        watch.on_stderr(f"{ANSWER}{told}")
    for gains in mended.gains(timeline, found) if mended else ():
        found |= {"verdicts": with_gains(timeline, found, lines, gains), "gains": [one.told() for one in gains]}
        show(so_far())
    if found["gains"]:
        write()
    return so_far()


def child(kind: type, serve) -> None:
    """Does `python -m MODULE REQUEST REPLY`; both files hold JSON. kind: the request's class, which `serve` replies
    to; serve(request, show): show is given a reply that may become better."""
    request, reply = map(Path, sys.argv[1:])
    request = kind(**json.loads(request.read_text()))
    resource.setrlimit(resource.RLIMIT_DATA, (int(request.memory * 2**30),) * 2)

    def show(answer: dict) -> None:
        written = reply.with_suffix(".new")
        written.write_text(json.dumps(answer))
        written.replace(reply)

    try:
        show(serve(request, show))
    except configs.Unusable as error:
        show({"error": str(error), "unusable": True})
    except KeyboardInterrupt:
        if not reply.exists():
            show({"error": "interrupted before anything was timed"})
    except BaseException as error:
        show({"error": explain(error)})


# ---- in the evaluator's process


def ask(request, timeout: float, on_beat=lambda text: None) -> dict:
    """Runs the module of the request's class as a script, and returns its reply, or {"error": reason}.

    timeout: seconds until the process is killed. on_beat: is told how far it is.
    """
    with tempfile.TemporaryDirectory(prefix="group-gemm-") as directory:
        files = [os.path.join(directory, name) for name in ("request.json", "reply.json")]
        Path(files[0]).write_text(json.dumps(dataclasses.asdict(request)))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", type(request).__module__, *files]
        with open(os.path.join(directory, "log"), "wb") as log:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            _asked.add(process)
            try:
                if not ends(process, timeout, Path(log.name), on_beat) and not Path(files[1]).exists():
                    return {"error": f"no time within {timeout:g} s, process killed"}
            finally:
                _asked.discard(process)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            reply = json.loads(Path(files[1]).read_text())
            if "error" in reply:
                reply["error"] = legible(reply["error"])
            elif not (math.isfinite(reply["us"]) and reply["us"] > 0):
                reply = {"error": f"{reply['us']} is not a time"}
        except (OSError, ValueError, KeyError, TypeError):
            lines = Path(directory, "log").read_text(errors="replace").strip().splitlines()
            last = legible(lines[-1] if lines else "no output")
            return {"error": f"the process ended with code {process.returncode}: {last}"}
        return reply


def hurry() -> None:
    """Has processes that are asked reply now, with what they have; waits for them, for PATIENCE_S at most."""
    end = time.monotonic() + PATIENCE_S
    for process in [*_asked]:
        process.send_signal(signal.SIGINT)
    while _asked and time.monotonic() < end:
        time.sleep(0.02)


def ends(process: subprocess.Popen, timeout: float, log: Path, on_beat) -> bool:
    """Waits for a process to end, for this many seconds, and passes on what `timing` says meanwhile: whether it has."""
    deadline, told = time.monotonic() + timeout, 0
    while True:
        try:
            process.wait(max(0.0, min(BEAT_S, deadline - time.monotonic())))
            return True
        except subprocess.TimeoutExpired:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(watch.SAYS)]
            for line in lines[told:]:
                on_beat(legible(line.removeprefix(watch.SAYS)))
            told = len(lines)
            if time.monotonic() >= deadline:
                return False


def ask_all(
    requests: list, jobs: int, timeout: float, on_reply=lambda index, reply: None, on_beat=lambda index, text: None
) -> list[dict]:
    """Asks for a reply to each request, the largest problems first; `on_reply` is called as they come in, `on_beat`, in
    some thread, to say how far one is that takes long."""
    replies: list[dict] = [{"error": "not run"} for _ in requests]

    def done(index: int, reply: dict) -> None:
        replies[index] = reply
        on_reply(index, reply)

    order = sorted(range(len(requests)), key=lambda index: requests[index].size, reverse=True)
    processes = range(min(jobs, len(requests)))
    share(order, processes, lambda _, index: ask(requests[index], timeout, lambda text: on_beat(index, text)), done)
    return replies
