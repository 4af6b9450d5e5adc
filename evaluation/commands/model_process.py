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
import threading
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
from evaluation.judge.jobs import share, shared
from evaluation.judge.loading import explain
from evaluation.judge.verdict import legible

BEAT_S = 1.0  # how often what a process says is looked for
ANSWER = "all calls are modelled: "  # begins what is told before it is known what mending brings
PATIENCE_S = 60.0  # for what interrupted processes make of what is done: 8 s of a core, which may be shared
ENOUGH = 0.25  # of what a call reads: what is known then is taken for the whole
LEAST_S = 30.0  # in which a process that starts within a deadline has a first answer
_asked: set[subprocess.Popen] = set()  # processes that have not replied
_hurried = threading.Event()  # no process starts any more

# ---- in the child process


def timed_reply(
    request, timed, steady: Steady, trace: Trace | None, launches: list[int], page: str = "",
    mended: Mended | None = None, show=lambda reply: None,
) -> dict:  # fmt: skip
    """Makes the reply for calls that have been timed, and the page of request.page, whose title is `page`.

    launches: how many there were up to the end of each call. mended: says what mending brings. show: gets the reply,
    and again as more is known. A run that was cut before its first launch began has an error, one within the first call
    the time that this takes at least.
    """
    run, each = timed.run, launches[0]
    if not request.extrapolate or run.was_cut:
        steady.ends = [end for count in launches if (end := run.launches[count - 1].end) is not None]
    partial = report.partial(run)
    if run.cut_off.get(0, 1.0) is None and each == 1 and request.reads:
        read = run.launches[0].read_bytes
        if read > ENOUGH * request.reads:
            run.cut_off[0] = min(1.0, read / request.reads)
            what = f"the {read / 1e6:.0f} of {request.reads / 1e6:.0f} MB that a call has to read"
            partial = f"no CTA is at its end: times, bytes and products are extrapolated from {what}"
    if not steady.ends:
        ended = [launch.end for launch in run.launches[:each] if launch.end is not None]
        if not ended:
            return {"error": f"the time was over before a launch was modelled: {request.floor}"}
        steady.ends, each = ended[-1:], len(ended)
        partial = f"{each} of the {launches[0]} launches of a call are done: no more is known"
    done = run.cut_off.get(0, 1.0) if each == launches[0] else None
    steady.ends = [end / (done or 1.0) for end in steady.ends]
    reply = replied(run, steady, each)
    if done is None:
        reply, partial = report.whole(reply, None), f"{partial}; {request.floor}"
    reply |= {"launches": launches[0], "partial": partial, "done": done}
    show(reply)
    if not request.timeline or trace is None:
        return reply
    timeline = Timeline(run, trace)
    lines = hot.lines(hot.instructions(timeline), trace)
    written: list[str] = []

    def so_far(found: dict) -> dict:
        return reply | {key: found[key] for key in ("breakdown", "kernels", "verdicts", "gains")} | {"written": written}

    def show_first(found: dict) -> None:
        found |= {"partial": partial, "verdicts": verdicts(timeline, found, lines), "gains": []}
        show(so_far(found))

    found = report.report(run, trace, timed.counted, Path(request.timeline), show_first)

    def write() -> None:
        if page:
            before = request.baseline and Path(request.baseline)
            write_page(Path(request.page), page, run, trace, found, sources(request.submission), before)

    written.append(request.timeline)
    write()
    written += [request.page] if page else []
    show(so_far(found))
    if mended and mended.jobs and not run.was_cut:
        may_be = uncertainty.written(reply["us_interval"])
        told = f"{reply['us_corrected']:.2f} us a call ({may_be}); Ctrl-C shows what is known"
        watch.on_stderr(f"{ANSWER}{told}")
    for gains in mended.gains(timeline, found) if mended else ():
        found |= {"verdicts": with_gains(timeline, found, lines, gains), "gains": [one.told() for one in gains]}
        show(so_far(found))
    if found["gains"]:
        write()
    return so_far(found)


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

    timeout: seconds until the process is killed; before, it answers with what it has. on_beat: is told how far it is.
    """
    if _hurried.is_set() or timeout <= 0:
        return {"error": f"not begun: {request.floor}"}
    request = dataclasses.replace(request, until=time.monotonic() + timeout)
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
                    return {"error": f"no time within {timeout:.3g} s, process killed: {request.floor}"}
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
    """Has processes that are asked reply now, with what they have; waits until that is told, for PATIENCE_S at most. No
    other one is started."""
    end = time.monotonic() + PATIENCE_S
    _hurried.set()
    for process in [*_asked]:
        process.send_signal(signal.SIGINT)
    while shared() and time.monotonic() < end:
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
    requests: list, jobs: int, timeout: float, on_reply=lambda index, reply: None, on_beat=lambda index, text: None,
    within: float | None = None,
) -> list[dict]:  # fmt: skip
    """Asks for a reply to each request, the largest problems first; `on_reply` is called as they come in, `on_beat`, in
    some thread, to say how far one is that takes long.

    timeout: seconds for each. within: seconds for all, shared out between those that wait, LEAST_S for one at least."""
    replies: list[dict] = [{"error": "not run"} for _ in requests]
    waiting, until = len(requests), time.monotonic() + (math.inf if within is None else within)

    def done(index: int, reply: dict) -> None:
        replies[index] = reply
        on_reply(index, reply)

    def one(_, index: int) -> dict:
        nonlocal waiting
        left, turns = until - time.monotonic(), -(-waiting // jobs)
        waiting -= 1
        limit = min(timeout, left, max(left / turns, LEAST_S))
        return ask(requests[index], limit, lambda text: on_beat(index, text))

    order = sorted(range(len(requests)), key=lambda index: requests[index].size, reverse=True)
    share(order, range(min(jobs, len(requests))), one, done)
    return replies
