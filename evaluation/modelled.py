"""Modelled times: a submission's launches on the emulator's timing model (emulator/model).

What is predicted is what the grader measures: calls back to back, each on inputs of its own, with L2 cold and full of
the dirty lines of the flush; the end of the last call over the number of calls. Time on the host is not in it: on a
B200 the next call is queued while the GPU works.

Simulating 15 calls takes minutes, but they soon repeat themselves. `Steady` (emulator/model/steady.py) stops then
and extrapolates, and says so.
`eval.py benchmark`, `sweep` and `compare` time launches that the judge has taken from the submission's process
(`bench.Modelling`). `profile` asks for a time here: the submission is imported and timed in one process, nothing of it
is checked, and nothing of it is held against a submission that cheats its author.
"""

import contextlib
import dataclasses
import importlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import emulator
import reference
import task
import utils
from emulator.model import report, uncertainty
from emulator.model.profile import load
from emulator.model.run import TimedRun
from emulator.model.steady import Steady
from emulator.model.timeline import Timeline
from emulator.model.trace import Trace
from evaluation import configs, worker
from evaluation.jobs import share
from evaluation.statistics import geometric_mean
from evaluation.verdict import MEMORY_BANDWIDTH
from task import read_task_yaml

ROOT = Path(__file__).resolve().parent.parent
# Of each task's four benchmarks, in microseconds.
SPEED_OF_LIGHT = {"nvfp4_group_gemm": (18.833, 10.667, 2.406, 1.525), "nvfp4_dual_gemm": (4.708, 8.714, 2.125, 6.535)}


def replied(run: TimedRun, steady: Steady, launches: int) -> dict:
    """What is said about a run: times in microseconds. launches: of one call.

    us: what the grader reads from its two events, over the number of calls; us_interval: where it may lie on a B200.
    """
    us = run.profile.us
    time = (us(steady.total()) + run.profile["launch"]["events_ns"] / 1e3) / steady.calls
    pdl = any(launch.launch.pdl for launch in run.launches[:launches])
    return {
        "us": time,
        "us_interval": list(uncertainty.interval(time, pdl, run.profile.name)),
        "pdl": pdl,
        "calls": steady.calls,
        "simulated": len(steady.ends),
        "ends_us": [us(end) for end in steady.ends],
        "interval_us": {kind: us(cycles) for kind, cycles in steady.interval.items()},
        "launches": launches,
        "profile": run.profile.name,
        "validation": run.profile.validation,
    }


def time_launches(
    device, queue: list, launches: int, calls: int, profile: str = "b200", breakdown: bool = False
) -> tuple[dict, list[dict]]:
    """(a reply, what each launch moved and multiplied) of an `emulated.Device`'s queue of `calls` calls.

    breakdown: the reply has one, of the last but one interval between launches that was simulated.
    """
    steady, trace = Steady([launches * (i + 1) for i in range(calls)]), Trace() if breakdown else None
    run, counted = device.time(queue, load(profile), trace, steady)
    reply = replied(run, steady, launches)
    if breakdown:
        reply["breakdown"] = Timeline(run, trace).breakdown()
    return reply, counted


def speed_of_light(args: dict) -> float:
    """Microseconds below which no call of a case can be: the task's figure, or reading each byte once."""
    kind = reference.task_of(args)
    for case, limit in zip(read_task_yaml((ROOT / kind.file).read_text(), "benchmarks"), SPEED_OF_LIGHT[kind.name]):
        if all(args[name] == case.args[name] for name in args if name != "seed"):
            return limit
    if kind is reference.DUAL_GEMM:
        numbers = (args["m"] + 2 * args["n"]) * args["k"] * args["l"]
    else:
        numbers = sum((m + n) * k for m, n, k in zip(args["m"], args["n"], args["k"]))
    return (numbers / 2 + numbers / reference.BLOCK) / MEMORY_BANDWIDTH * 1e6


@dataclasses.dataclass
class Request:
    """What to time."""

    submission: str
    args: dict  # m, n, k, g or l, seed
    profile: str = "b200"
    calls: int = 0  # 0: as many as the grader times together
    extrapolate: bool = True
    timeline: str | None = None  # where to write one
    memory: float = 16.0  # GiB of private memory

    @property
    def size(self) -> float:
        """About how long it takes, in any unit."""
        sizes = ([self.args[x]] if isinstance(self.args[x], int) else self.args[x] for x in "mnk")
        return sum((m + n) * k for m, n, k in zip(*sizes))


# ---- in the child process


def serve(request: Request) -> dict:
    """The times of one request; runs in a process of its own."""
    emulator.install()  # before the submission imports the DSL
    guards = worker.Guards([reference, task, utils, *(m for n, m in sys.modules.items() if n.startswith("emulator"))])
    kernel = worker.load_submission(request.submission)
    kind = reference.task_of(request.args)
    data, calls = kind.generate_input(**request.args), request.calls or kind.calls
    launches, trace = [], Trace() if request.timeline else None
    steady = Steady(launches)
    held = []
    with emulator.timing(request.profile, trace, steady if request.extrapolate else None) as timed:
        for _ in range(calls):
            given = kind.upload(data, lambda item: emulator.device_tensors(item, copy=False))
            held.append((given, kernel(given)))  # as the grader holds both: what one call allocates is no other call's
            launches.append(len(emulator.DEVICE.session.recorded))
        if not launches[-1]:
            raise configs.Unusable("custom_kernel launched no kernel of its own: nothing to time")
    if replaced := guards.replaced():
        raise configs.Unusable("; ".join(replaced))
    return timed_reply(request, timed, steady, trace, launches)


def timed_reply(request, timed, steady: Steady, trace: Trace | None, launches: list[int]) -> dict:
    """What the process replies of calls that have been timed. launches: so many there were up to the end of each."""
    if not request.extrapolate:
        steady.ends = [timed.run.launches[count - 1].end for count in launches]
    reply = replied(timed.run, steady, launches[0])
    if request.timeline:
        found = report.report(timed.run, trace, timed.counted, Path(request.timeline))
        reply |= {key: found[key] for key in ("breakdown", "kernels")}
    return reply


def child(kind: type, serve) -> None:
    """`python -m MODULE REQUEST REPLY`: both files hold JSON. kind: the request's class, which `serve` replies to."""
    request, reply = map(Path, sys.argv[1:])
    request = kind(**json.loads(request.read_text()))
    resource.setrlimit(resource.RLIMIT_DATA, (int(request.memory * 2**30),) * 2)
    try:
        answer = serve(request)
    except configs.Unusable as error:
        answer = {"error": str(error), "unusable": True}
    except BaseException as error:
        answer = {"error": worker.explain(error)}
    reply.write_text(json.dumps(answer))


# ---- in the evaluator's process


def ask(request, timeout: float) -> dict:
    """The reply to a request, or {"error": reason}. Its class's module, run as a script, serves it."""
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
    """A reply to each request, the largest problems first; `on_reply` is called as they come in."""
    replies: list[dict] = [{"error": "not run"} for _ in requests]

    def done(index: int, reply: dict) -> None:
        replies[index] = reply
        on_reply(index, reply)

    order = sorted(range(len(requests)), key=lambda index: requests[index].size, reverse=True)
    processes = range(min(jobs, len(requests)))
    share(order, processes, lambda _, index: ask(requests[index], timeout), done)
    return replies


def geomean_us(replies: list[dict]) -> float | None:
    """Geometric mean; None unless every case has a time."""
    return geometric_mean(None if "error" in reply else reply["us"] for reply in replies)


def geomean_interval(replies: list[dict]) -> tuple[float, float]:
    """Where the geometric mean may lie, if every case has a time."""
    return uncertainty.mean_interval([reply["us_interval"] for reply in replies])


def label(replies: list[dict]) -> str:
    """What must stand wherever modelled times do."""
    first = next(reply for reply in replies if "error" not in reply)
    return f"modelled (profile {first['profile']}; validation error {first['validation']}; see emulator/VALIDATION.md)"


if __name__ == "__main__":
    own = importlib.import_module("evaluation.modelled")  # under its own name, which Guards and pickles know
    own.child(own.Request, own.serve)
