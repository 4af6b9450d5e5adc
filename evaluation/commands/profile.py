"""Does `python eval.py profile`: shows where the modelled time of a submission's calls goes; nothing is judged.

The submission is imported and timed in one process of its own (model_process.py).
"""

import dataclasses
import importlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import emulated_gpu
import reference
import task
import utils
from emulated_gpu.model import ranking, report, uncertainty
from emulated_gpu.model.profile import load
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.trace import Trace
from emulated_gpu.page.verdicts import VERDICTS
from emulated_gpu.page.write import fill, views
from emulated_gpu.serve.host import timed_run
from emulated_gpu.serve.mended import Mended
from emulated_gpu.serve.torch_device.install import install
from evaluation.commands import interrupt, model_process
from evaluation.commands.show import Screen
from evaluation.judge import configs, modelled
from evaluation.judge.guards import Guards
from evaluation.judge.inputs import mapped
from evaluation.judge.loading import load_submission
from evaluation.judge.task import Task
from evaluation.judge.verdict import MEMORY_BANDWIDTH
from evaluation.tasks.data import copied
from evaluation.tasks.entry import KERNEL
from evaluation.tasks.estimate import size
from evaluation.tasks.modules import FolderModules
from evaluation.tasks.read import read

NOT_JUDGED = "not judged"  # the status of what is modelled alone
ALONE = "Modelled alone, not judged: no result was checked."
FIRST_S = 40.0  # what is judged and timed longer than that, by an estimate, is modelled alone before


@dataclasses.dataclass
class Request:
    """Says what to time."""

    submission: str
    args: dict  # m, n, k, g or l, seed
    profile: str = "b200"
    calls: int = 0  # 0: as many as the grader times together
    extrapolate: bool = True
    timeline: str | None = None  # where to write one
    page: str | None = None  # likewise, an HTML file
    baseline: str | None = None  # one of an earlier profile, which that holds this one against
    title: str = ""  # of that
    memory: float = 16.0  # GiB of private memory
    task_dir: str | None = None  # the task of others that it is of
    config: dict[str, str] | None = None  # entries of its Config that differ from what is submitted
    until: float = math.inf  # time.monotonic() when there is to be an answer, from what there is by then
    gains: int = 0  # processes that say what mending would bring

    @property
    def size(self) -> float:
        """Estimates how long it takes, in any unit."""
        if self.task_dir:
            return size(self.args)
        sizes = ([self.args[x]] if isinstance(self.args[x], int) else self.args[x] for x in "mnk")
        return sum((m + n) * k for m, n, k in zip(*sizes))

    @property
    def reads(self) -> float:
        """Counts the bytes that a call has to read; 0: nobody knows."""
        return 0.0 if self.task_dir else modelled.bytes_read(self.args)

    @property
    def floor(self) -> str:
        """Says what is known of a time without a model."""
        if not self.reads:
            return "nothing is known of its time"
        least = f"{self.reads / MEMORY_BANDWIDTH * 1e6:.2f} us at least, to read its {self.reads / 1e6:.3g} MB"
        return f"all that is known is that a call takes {least}"


# ---- in the child process


def givens(request: Request) -> tuple[Callable, int, tuple]:
    """Makes what gives each call its inputs, and says how many calls there are, and how they are made."""
    if request.task_dir:
        of = read(request.task_dir)
        if of.devices > 1:
            raise configs.Unusable("a task of several GPUs: `python -m emulated_gpu profile --devices` models them")
        FolderModules(of.modules).__enter__()  # for as long as this process lives
        args = {name: tuple(value) if isinstance(value, list) else value for name, value in request.args.items()}
        data = of.author().generate(**args)
        return lambda: copied(data), request.calls, of.entry
    kind = reference.task_of(request.args)
    data = kind.generate_input(**request.args, device=torch.device("cpu"))

    def on_device(item):
        there = emulated_gpu.device_tensors(item, copy=False)
        return mapped(lambda tensor: torch.ops.emulated_gpu.to_cuda(tensor, 0), there)

    return lambda: kind.upload(data, on_device), request.calls or kind.calls, KERNEL


def serve(request: Request, show) -> dict:
    """Times one request: the reply. Runs in a process of its own."""
    install()  # before the submission imports the DSL
    given, calls, entry = givens(request)
    guards = Guards([reference, task, utils, *(m for n, m in sys.modules.items() if n.startswith("emulated_gpu"))])
    kernel = load_submission(request.submission, entry)
    if request.config:
        sizes = {name: value for name, value in request.args.items() if name != "seed"}
        configs.choose(sys.modules["submission"], sizes, request.config)
    launches: list[int] = []
    trace = Trace() if request.timeline else None
    steady = Steady(launches)
    held = []
    enough = steady if request.extrapolate else None
    profile = load(request.profile, contest=not request.task_dir)
    with Mended(request.gains, request.until) as mended:
        with emulated_gpu.timing(profile, trace, enough, around=mended.around) as timed:
            for _ in range(calls):
                data = given()
                held.append((data, kernel(data)))  # as the grader holds both: what a call allocates is no other call's
                launches.append(len(emulated_gpu.DEVICE.session.recorded))
            if not launches[-1]:
                raise configs.Unusable("custom_kernel launched no kernel of its own: nothing to time")
        if replaced := guards.replaced():
            raise configs.Unusable("; ".join(replaced))
        title = f"{os.path.basename(request.submission)}, {request.title}" if request.page else ""
        return model_process.timed_reply(request, timed, steady, trace, launches, title, mended, show)


# ---- in the evaluator's process


@dataclasses.dataclass
class Wanted:
    """Says how cases are to be profiled."""

    profile: str
    jobs: int
    timeout: float  # seconds a case
    out: str = ""  # a folder for timelines
    calls: int = 4
    html: str | None = None  # a file for a page; of several cases each has its own
    baseline: str | None = None  # likewise, pages of an earlier profile that these are held against
    tries: tuple[dict[str, str], ...] = ()  # changes of Config that are modelled, too
    within: float | None = None  # seconds for an answer
    gains: bool = True  # whether to say what mending would bring
    begun: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """Says how many seconds are left for an answer, which what was done before modelling has had a part of."""
        return self.within and self.begun + self.within - time.monotonic()


def profile_cases(
    screen: Screen, submission: str, of: Task, cases: list[tuple[int, task.TestCase]], wanted: Wanted
) -> list[dict]:
    """Profiles each (number, case) of a task and shows it: the replies."""
    html, tries = wanted.html, wanted.tries
    folders = [os.path.abspath(os.path.join(wanted.out, f"case{number}")) for number, _ in cases]
    pages = [None if html is None else page_of(html, number, len(cases)) for number, _ in cases]
    titles = [f"case {number}: {of.title(case)}" for number, case in cases]
    requests = [
        Request(
            submission, case.args, wanted.profile, wanted.calls, extrapolate=False, timeline=to, page=page, title=title,
            task_dir=of.described().get("task_dir"),
            gains=max(1, wanted.jobs // len(cases)) if wanted.gains else 0,
            baseline=wanted.baseline and page_of(wanted.baseline, number, len(cases)),
        )
        for (number, case), to, page, title in zip(cases, folders, pages, titles)
    ]  # fmt: skip
    experiments = [
        dataclasses.replace(request, config=change, timeline=None, page=None, gains=0)
        for request in requests
        for change in tries
    ]

    def conclude(done: dict[int, dict]) -> None:
        for index, reply in sorted(done.items()):
            if index >= len(cases):
                continue
            number, case = cases[index]
            if "error" in reply:
                screen.line((f"case {number}", "red"), f": {reply['error']}")
            else:
                show(screen, requests[index].title, reply, folders[index], requests[index].page)
                ends = {change: done[at] for change, at in experiments_of(index).items() if at in done}
                said = [experiment(dict(change), reply, other) for change, other in ends.items()]
                for text in said:
                    screen.line(f"  {text}")
                if said and requests[index].page:
                    add_verdicts(Path(requests[index].page), said)
        if good := [reply for reply in done.values() if "error" not in reply]:
            screen.line(f"Times are {modelled.label(good)}.")

    def experiments_of(index: int) -> dict[tuple, int]:
        """Which requests try what with a case: the items of a change -> a number."""
        return {tuple(change.items()): len(cases) + index * len(tries) + at for at, change in enumerate(tries)}

    def ended(index: int, reply: dict) -> None:
        if index >= len(cases) and "error" in reply:  # else it is told when all else has been modelled
            screen.beat(experiment(tries[(index - len(cases)) % len(tries)], {}, reply), stays=True)

    numbers = [number for number, _ in cases] + [number for number, _ in cases for _ in tries]
    named = [(f"case {number}", request) for number, request in zip(numbers, requests + experiments, strict=True)]
    return modelled_unjudged(screen, named, wanted, conclude, ended)[: len(cases)]


def unknown(reply: dict) -> str:
    """Says why a reply of what is modelled unjudged has no time, or ""."""
    if reply.get("done", 1.0):
        return reply.get("error", "")
    return f"{reply['unlike'].removeprefix('no bracket: ')}; {reply['partial']}"


def to_the_same_call(replies: list[dict]) -> list[dict]:
    """Takes of replies the times up to the last call of which all have one: later calls differ from the first."""
    count = min((reply["simulated"] for reply in replies if "us" in reply), default=0)
    return [up_to(reply, count) if reply.get("simulated", 0) > count else reply for reply in replies]


def up_to(reply: dict, calls: int) -> dict:
    """Takes of a reply whose calls have all been simulated the time of the first ones."""
    factor = reply["ends_us"][calls - 1] / calls / (reply["ends_us"][-1] / reply["simulated"])
    between = reply["us_interval"] and [factor * us for us in reply["us_interval"]]
    times = {name: factor * reply[name] for name in ("us", "us_corrected")}
    return reply | times | {"us_interval": between, "calls": calls, "simulated": calls}


def modelled_unjudged(
    screen: Screen, named: list[tuple[str, Request]], wanted: Wanted, conclude: Callable[[dict[int, dict]], None],
    on_reply=lambda index, reply: None,
) -> list[dict]:  # fmt: skip
    """Models requests, each of which has a name, and says how far they are: the replies.

    conclude: is called with what replies there are, by their numbers: all, or on Ctrl-C those of what is done.
    """
    done: dict[int, dict] = {}

    def interrupted() -> None:
        screen.line("interrupted: what is known is being told, within a minute; another Ctrl-C ends at once")
        model_process.hurry()
        conclude(done)

    with interrupt.showing(interrupted), screen.progress("modelling", [1.0] * len(named), "run", None) as advance:

        def ended(index: int, reply: dict) -> None:
            done[index] = reply
            advance(index)
            on_reply(index, reply)

        def beat(index: int, text: str) -> None:
            answers = text.startswith((timed_run.FIRST, model_process.ANSWER))
            screen.beat(f"{named[index][0]}: {text}", stays=answers)

        requests = [request for _, request in named]
        replies = model_process.ask_all(requests, wanted.jobs, wanted.timeout, ended, beat, wanted.left)
    conclude(done)
    return replies


def experiment(change: dict[str, str], reply: dict, other: dict) -> str:
    """Says what the model gives for a change. reply, other: of what is submitted, and of that."""
    name = ",".join(f"{field}={value}" for field, value in change.items())
    if "error" in other:
        why = " ".join(other["error"].split())
        return f"experiment: {why if why.startswith(name) else f'{name}: {why}'}"
    us, before = other["us_corrected"], reply["us_corrected"]
    tells = ranking.tells(reply["us"], other["us"])
    may_be = uncertainty.written(other["us_interval"])
    times = f"{us:.2f} us a call ({may_be}) instead of {before:.2f}"
    known = "a difference that it can tell" if tells else "less than it can tell"
    return f"experiment: with {name} the model says {times}, {known}"


def add_verdicts(page: Path, texts: list[str]) -> None:
    """Puts sentences in the place of a page's last verdicts."""
    (view,) = views(page)
    view["verdicts"] = [*view["verdicts"][: max(0, VERDICTS - len(texts))], *({"text": text} for text in texts)]
    fill(page, [view])


def page_of(html: str, number: int, cases: int) -> str:
    """Names the page of a case: the file that was asked for, with the case's number where there are several."""
    file = Path(html).absolute()
    return str(file if cases == 1 else file.with_stem(f"{file.stem}-case{number}"))


def show(screen: Screen, title: str, reply: dict, folder: str, page: str | None) -> None:
    """Shows where the time of one case goes. folder, page: where its timeline and its page are."""
    if "breakdown" not in reply:
        may_be = uncertainty.written(reply["us_interval"]) if reply["us_interval"] else reply["unlike"]
        screen.line(f"{title}: {reply['us_corrected']:.2f} us a call ({may_be}); no time was left to say where it goes")
        return
    rows = [[name, f"{100 * share:.1f}"] for name, share in reply["breakdown"]["shares"].items()]
    screen.table(["<share of the steady interval", "%"], rows, title)
    uses = [line for kernel in reply["kernels"] for line in report.kernel_lines(kernel)]
    names = {folder: f"{folder}: timeline.json.gz, overview.png"} | ({page: page} if page else {})
    files = [name if file in reply["written"] else f"no time was left for {name}" for file, name in names.items()]
    partly = [f"PARTIAL: {reply['partial']}"] if reply["partial"] else []
    held_up = report.verdict_lines(reply["verdicts"])
    for line in (*partly, *reply["breakdown"]["facts"], *uses, *held_up, *files):
        screen.line(f"  {line}")


if __name__ == "__main__":
    own = importlib.import_module("evaluation.commands.profile")  # under its own name, which Guards and pickles know
    model_process.child(own.Request, own.serve)
