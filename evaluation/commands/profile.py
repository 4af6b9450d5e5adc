"""Does `python eval.py profile`: shows where the modelled time of a submission's calls goes; nothing is judged.

The submission is imported and timed in one process of its own (model_process.py).
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import emulator
import reference
import task
import utils
from emulator.model import report
from emulator.model.steady import Steady
from emulator.model.trace import Trace
from emulator.serve import torch_cuda
from evaluation.commands import interrupt, model_process
from evaluation.commands.cases import shapes
from evaluation.commands.show import Screen
from evaluation.judge import configs, modelled
from evaluation.judge.guards import Guards
from evaluation.judge.inputs import mapped
from evaluation.judge.loading import load_submission
from evaluation.tasks.data import copied
from evaluation.tasks.estimate import size
from evaluation.tasks.folder import FolderModules, TaskFolder


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
    title: str = ""  # of that
    memory: float = 16.0  # GiB of private memory
    modules: dict[str, str] | None = None  # of a task's folder: names -> paths

    @property
    def size(self) -> float:
        """Estimates how long it takes, in any unit."""
        if self.modules:
            return size(self.args)
        sizes = ([self.args[x]] if isinstance(self.args[x], int) else self.args[x] for x in "mnk")
        return sum((m + n) * k for m, n, k in zip(*sizes))


# ---- in the child process


def givens(request: Request) -> tuple[Callable, int]:
    """Makes what gives each call its inputs, and says how many calls there are."""
    if request.modules:
        own = FolderModules(request.modules).__enter__().reference()  # for as long as this process lives
        args = {name: tuple(value) if isinstance(value, list) else value for name, value in request.args.items()}
        data = own.generate_input(**args)
        return lambda: copied(data), request.calls
    kind = reference.task_of(request.args)
    data = kind.generate_input(**request.args, device=torch.device("cpu"))

    def on_device(item):
        there = emulator.device_tensors(item, copy=False)
        return mapped(lambda tensor: tensor.as_subclass(torch_cuda.CudaTensor), there)

    return lambda: kind.upload(data, on_device), request.calls or kind.calls


def serve(request: Request) -> dict:
    """Times one request: the reply. Runs in a process of its own."""
    torch_cuda.install()  # before the submission imports the DSL
    given, calls = givens(request)
    guards = Guards([reference, task, utils, *(m for n, m in sys.modules.items() if n.startswith("emulator"))])
    kernel = load_submission(request.submission)
    launches, trace = [], Trace() if request.timeline else None
    steady = Steady(launches)
    held = []
    with model_process.timing(request.profile, trace, steady if request.extrapolate else None) as timed:
        for _ in range(calls):
            data = given()
            held.append((data, kernel(data)))  # as the grader holds both: what one call allocates is no other call's
            launches.append(len(emulator.DEVICE.session.recorded))
        if not launches[-1]:
            raise configs.Unusable("custom_kernel launched no kernel of its own: nothing to time")
    if replaced := guards.replaced():
        raise configs.Unusable("; ".join(replaced))
    title = f"{os.path.basename(request.submission)}, {request.title}" if request.page else ""
    return model_process.timed_reply(request, timed, steady, trace, launches, title)


# ---- in the evaluator's process


def run(
    screen: Screen, submission: str, cases: list[tuple[int, task.TestCase]], profile: str, calls: int, out: str,
    jobs: int, timeout: float, folder: TaskFolder | None = None, html: str | None = None,
) -> list[dict]:  # fmt: skip
    """Profiles each (number, case) and shows it: the replies. out: a folder for timelines. timeout: seconds a case.
    folder: the task, if it is none of this repository's. html: a file for a page; of several cases each has its own."""
    folders = [os.path.abspath(os.path.join(out, f"case{number}")) for number, _ in cases]
    modules = folder.modules if folder else None
    pages = [page_of(html, number, len(cases)) for number, _ in cases]
    titles = [f"case {number}: {case.spec if folder else shapes(case.args)}" for number, case in cases]
    requests = [
        Request(
            submission, case.args, profile, calls, extrapolate=False, timeline=to, page=page, title=title,
            modules=modules,
        )
        for (_, case), to, page, title in zip(cases, folders, pages, titles)
    ]  # fmt: skip
    done: dict[int, dict] = {}

    def conclude() -> None:
        for index, reply in sorted(done.items()):
            number, case = cases[index]
            if "error" in reply:
                screen.line((f"case {number}", "red"), f": {reply['error']}")
            else:
                show(screen, requests[index].title, reply, folders[index], requests[index].page)
        if good := [reply for reply in done.values() if "error" not in reply]:
            screen.line(f"Times are {modelled.label(good)}.")

    weights = [1.0] * len(cases)
    with interrupt.showing(conclude), screen.progress("modelling profiles", weights, workers=None) as advance:

        def ended(index: int, reply: dict) -> None:
            done[index] = reply
            advance(index)

        def beat(index: int, text: str) -> None:
            screen.beat(f"case {cases[index][0]}: {text}")

        replies = model_process.ask_all(requests, jobs, timeout, ended, beat)
    conclude()
    return replies


def page_of(html: str | None, number: int, cases: int) -> str | None:
    """Names the page of a case: the file that was asked for, with the case's number where there are several."""
    if html is None:
        return None
    file = Path(html).absolute()
    return str(file if cases == 1 else file.with_stem(f"{file.stem}-case{number}"))


def show(screen: Screen, title: str, reply: dict, folder: str, page: str | None) -> None:
    """Shows where the time of one case goes. folder, page: where its timeline and its page are."""
    rows = [[name, f"{100 * share:.1f}"] for name, share in reply["breakdown"]["shares"].items()]
    screen.table(["<share of the steady interval", "%"], rows, title)
    uses = [line for kernel in reply["kernels"] for line in report.kernel_lines(kernel)]
    files = [f"{folder}: timeline.json.gz, overview.png", *([page] if page else [])]
    for line in (*reply["breakdown"]["facts"], *uses, *files):
        screen.line(f"  {line}")


if __name__ == "__main__":
    own = importlib.import_module("evaluation.commands.profile")  # under its own name, which Guards and pickles know
    model_process.child(own.Request, own.serve)
