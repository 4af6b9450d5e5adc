"""A task that others wrote: its reference and its check run in the examiner, on copies.

Nothing is known about such a task but that `check_implementation(data, output)` says whether an output is right. So
results pass by that, not bit by bit; which tensors are outputs, and that inputs come back unchanged, is not checked;
and fresh inputs are the task's own, from a secret seed.
"""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Iterator

import numpy as np
import torch

from emulated_gpu.serve import torch_cuda
from evaluation.judge.inputs import Taken
from evaluation.judge.loading import explain
from evaluation.judge.shared_tensors import Placed, Role
from evaluation.judge.task import Call
from evaluation.judge.verdict import Refused
from evaluation.tasks import data as any_data
from evaluation.tasks.estimate import size
from evaluation.tasks.folder import FolderModules, TaskFolder
from task import TestCase, combine_seeds

EXPANDED = 2**30  # bytes, at most, of a result whose elements lie in one another's place
SEEN = 1000  # number of the first inputs that recorded calls get
LARGE = 64  # times the size of a folder's smallest test: nobody knows how long that takes
GUARANTEES = (
    "held: two calls a case with the same tensors, the second with inputs of a secret seed; the task's own check, on "
    "copies, in the judge's process; all checks of the emulator. Not held: equality bit by bit, outputs unwritten "
    "before a call, inputs unchanged (evaluation/README.md)"
)
GUARANTEES_ON_GPU = (
    "held: what the grader holds. The folder's own eval.py runs, in a process that the submission shares, with inputs "
    "of a secret seed"
)


@functools.cache
def modules_of(modules: tuple[tuple[str, str], ...]) -> FolderModules:
    """Makes what a folder's modules are imported with, once in this process, which gets an emulated GPU."""
    torch_cuda.install()
    return FolderModules(dict(modules))


@dataclasses.dataclass(frozen=True)
class FolderTask:
    """Is the task of a folder."""

    folder: TaskFolder
    graded = True
    columns = ()

    @property
    def modules(self) -> dict[str, str]:
        return self.folder.modules

    @contextlib.contextmanager
    def case(self, trial):
        with modules_of(tuple(self.modules.items())) as modules:
            try:
                reference = modules.reference()
            except Exception as error:
                raise Refused(f"the task's reference.py: {explain(error)}") from None
            yield FolderCase(trial, self.folder, reference)

    def name(self, cases: list[TestCase]) -> str:
        return self.folder.name

    def notes(self, device: str) -> list[str]:
        compared = f"{self.folder.name}, compared by {self.folder.tolerance()}"
        return [compared, GUARANTEES_ON_GPU if device == "cuda" else GUARANTEES]

    def described(self) -> dict:
        return {"task_dir": self.folder.path, "compared_by": self.folder.tolerance()}

    def title(self, case: TestCase) -> str:
        return case.spec

    def weight(self, case: TestCase, timed: bool = False) -> float:
        return size(case.args)

    def order(self, case: TestCase, timed: bool) -> float:
        return size(case.args)

    def estimate_from(self, weights: list[float]) -> list[TestCase]:
        """Lists the two smallest tests, of different sizes, if all cases are large beside the smallest: from two it
        shows how the seconds grow."""
        of_size = {size(case.args): case for case in self.folder.tests}
        small = sorted(of_size)[:2]
        if not small or min(weights) < LARGE * small[0]:
            return []
        return [of_size[each] for each in small if each < min(weights)]

    def extra_columns(self, case: TestCase, us: float) -> list[str]:
        return []


class FolderCase:
    """Makes inputs and checks results with a folder's `reference`, which is its module."""

    samples = False
    floor = 0.0  # nobody knows what a call has to read

    def __init__(self, trial, folder: TaskFolder, reference):
        self.args, self.folder, self.reference = trial.args, folder, reference
        self.heap, self.arena, secret = trial.examiner.heap, trial.examiner.arena, trial.options.secret
        self.hidden = combine_seeds(self.args["seed"], secret) if "seed" in self.args else None
        self.rng = np.random.default_rng(combine_seeds(self.hidden or 0, secret + 1))
        self.before: dict[int, list] = {}  # id of a recorded call's placed inputs -> what lay where its results are

    def generate(self, call: int):
        """Makes the inputs of a call: the first has the case's own seed, the others one that nobody knows."""
        args = dict(self.args)
        if call and self.hidden is not None:
            args["seed"] = self.hidden + 42 * call
        seed = int(args.get("seed", 0)) % 2**32
        for seeded in (random.seed, np.random.seed, torch.manual_seed):  # of what a reference draws without a generator
            seeded(seed)
        try:
            return self.reference.generate_input(**args)
        except Exception as error:
            raise Refused(f"generate_input: {explain(error)}") from None

    @functools.cached_property
    def seen(self):
        """Is what the host sees in recorded calls, and no launch does."""
        return self.generate(SEEN)

    @functools.cached_property
    def timed_calls(self) -> int:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in any_data.tensors(self.seen)}
        return self.folder.calls(sum(storage.nbytes() for storage in storages.values()))

    def calls(self, count: int, extra: bool) -> Iterator[Call]:
        """Gives the calls, each with inputs of its own. extra: one more."""
        for number in range(count + extra):
            data = self.generate(number)
            yield Call(lambda data=data: data, functools.partial(self.problems, data), number)

    def recorded(self, count: int) -> list[Call]:
        def check(data, returned) -> list[str]:
            return self.problems(data(), returned)

        made = [functools.partial(self.generate, SEEN + 1 + number) for number in range(count)]
        return [Call(data, functools.partial(check, data)) for data in made]

    def room(self) -> Placed:
        placed = self.place(self.seen)
        placed.fill(self.seen)
        return placed

    def place(self, data) -> Placed:
        """Makes room for data; all of it may be written, as nobody knows which tensors are outputs."""
        return Placed(data, self.heap, lambda tensor, number: Role(f"tensor[{number}]", tensor.is_cuda, True, True))

    def live(self, spec: dict) -> torch.Tensor:
        """Makes a live view of a returned tensor. Raises Refused, or ValueError for what is none."""
        try:
            found = any_data.tensor_at(self.arena.view, spec)
        except ValueError as error:
            where = str(spec["device"])[:20]
            raise Refused(f"the returned tensor, on {where}, is not in the device's memory: {error}") from None
        if found.numel() * found.element_size() > max(int(spec["bytes"]), EXPANDED):  # a copy has them all
            raise Refused(f"the returned tensor has {found.numel()} elements in {int(spec['bytes'])} bytes")
        return found

    def results(self, returned: dict, placed: Placed, held: Taken) -> dict:
        """Gives what describes a result, which can be read."""
        self.copied(returned)
        return returned

    def copied(self, results: dict) -> object:
        """Copies a result. Raises Refused, or what garbage raises."""

        def copy(spec: dict) -> torch.Tensor:
            found = self.live(spec)
            return found.cuda() if str(spec["device"]).startswith("cuda") else found.clone()

        try:
            return any_data.rebuilt(results, copy)
        except any_data.NoResult as error:
            raise Refused(str(error)) from None

    def clear(self, placed: Placed, results: dict) -> None:
        """Writes over the results of a call what lay there when it was recorded: a launch may add to that."""
        views = []
        any_data.rebuilt(results, lambda spec: views.append(self.live(spec)))
        known = self.before.setdefault(id(placed), [view.clone() for view in views])
        for view, content in zip(views, known, strict=True):
            view.copy_(content)

    def problems(self, data, returned) -> list[str]:
        """Says what the task's check_implementation finds wrong with a result."""
        try:
            said = self.reference.check_implementation(any_data.copied(data), returned)
        except Exception as error:
            return [f"check_implementation: {type(error).__name__}: {str(error)[:1000]}"]
        good, message = said if isinstance(said, tuple) and len(said) == 2 else (not said, said)
        if isinstance(said, bool):
            good, message = said, ""
        if not isinstance(good, bool) or not isinstance(message, (str, list, type(None))):
            return [f"check_implementation returned {type(said).__name__}, not (passed, message)"]
        told = " ".join(str(message or "the task's check finds the result wrong").split())[:1000]
        return [] if good else [told]
