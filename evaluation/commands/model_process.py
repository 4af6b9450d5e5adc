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

import emulated_gpu
from emulated_gpu.model import report
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.time_of_call import replied
from emulated_gpu.model.trace import Trace
from emulated_gpu.page.write import write_page
from emulated_gpu.serve.host import watch
from emulated_gpu.serve.profile import sources
from evaluation import ROOT
from evaluation.judge import configs
from evaluation.judge.jobs import share
from evaluation.judge.loading import explain
from evaluation.judge.verdict import legible

BEAT_S = 1.0  # how often what a process says is looked for

# ---- in the child process


@contextlib.contextmanager
def timing(profile: str, trace: Trace | None, enough: Steady | None, compute: bool = False):
    """Is emulated_gpu.timing, and says on stderr how far a launch is that takes long."""
    block: list[str] = []
    with watch.watched(lambda: [one.launch for timed in block if timed.run for one in timed.run.active]):
        with emulated_gpu.timing(profile, trace, enough, compute) as timed:
            block.append(timed)
            yield timed


def timed_reply(request, timed, steady: Steady, trace: Trace | None, launches: list[int], page: str = "") -> dict:
    """Makes the reply for calls that have been timed, and the page of request.page, whose title is `page`.

    launches: how many there were up to the end of each call.
    """
    if not request.extrapolate:
        steady.ends = [timed.run.launches[count - 1].end for count in launches]
    reply = replied(timed.run, steady, launches[0])
    if request.timeline:
        found = report.report(timed.run, trace, timed.counted, Path(request.timeline))
        reply |= {key: found[key] for key in ("breakdown", "kernels")}
        if page:
            write_page(Path(request.page), page, timed.run, trace, found, sources(request.submission))
    return reply


def child(kind: type, serve) -> None:
    """Does `python -m MODULE REQUEST REPLY`; both files hold JSON. kind: the request's class, which `serve` replies
    to."""
    request, reply = map(Path, sys.argv[1:])
    request = kind(**json.loads(request.read_text()))
    resource.setrlimit(resource.RLIMIT_DATA, (int(request.memory * 2**30),) * 2)
    try:
        answer = serve(request)
    except configs.Unusable as error:
        answer = {"error": str(error), "unusable": True}
    except BaseException as error:
        answer = {"error": explain(error)}
    reply.write_text(json.dumps(answer))


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
            try:
                if not ends(process, timeout, Path(log.name), on_beat):
                    return {"error": f"no time within {timeout:g} s, process killed"}
            finally:
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
