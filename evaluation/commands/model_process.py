"""Models the times of launches that nobody judges, in a process of their own: for `profile`, and for moe/.

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
from pathlib import Path

from emulator.model import report
from emulator.model.steady import Steady
from emulator.model.trace import Trace
from evaluation import ROOT
from evaluation.judge import configs, modelled
from evaluation.judge.jobs import share
from evaluation.judge.loading import explain

# ---- in the child process


def timed_reply(request, timed, steady: Steady, trace: Trace | None, launches: list[int]) -> dict:
    """Makes the reply for calls that have been timed. launches: how many there were up to the end of each call."""
    if not request.extrapolate:
        steady.ends = [timed.run.launches[count - 1].end for count in launches]
    reply = modelled.replied(timed.run, steady, launches[0])
    if request.timeline:
        found = report.report(timed.run, trace, timed.counted, Path(request.timeline))
        reply |= {key: found[key] for key in ("breakdown", "kernels")}
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


def ask(request, timeout: float) -> dict:
    """Runs the module of the request's class as a script, and returns its reply, or {"error": reason}.

    timeout: seconds until the process is killed.
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
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                return {"error": f"no time within {timeout:g} s, process killed"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            reply = json.loads(Path(files[1]).read_text())
            if "error" not in reply and not (math.isfinite(reply["us"]) and reply["us"] > 0):
                reply = {"error": f"{reply['us']} is not a time"}
        except (OSError, ValueError, KeyError, TypeError):
            lines = Path(directory, "log").read_text(errors="replace").strip().splitlines()
            return {"error": f"the process ended with code {process.returncode}: {lines[-1] if lines else 'no output'}"}
        return reply


def ask_all(requests: list, jobs: int, timeout: float, on_reply=lambda index, reply: None) -> list[dict]:
    """Asks for a reply to each request, the largest problems first; `on_reply` is called as they come in."""
    replies: list[dict] = [{"error": "not run"} for _ in requests]

    def done(index: int, reply: dict) -> None:
        replies[index] = reply
        on_reply(index, reply)

    order = sorted(range(len(requests)), key=lambda index: requests[index].size, reverse=True)
    processes = range(min(jobs, len(requests)))
    share(order, processes, lambda _, index: ask(requests[index], timeout), done)
    return replies
