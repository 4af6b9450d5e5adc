"""A task that others wrote: its reference and its check run in the examiner, on copies.

Nothing is known about such a task but that its author's check says whether an output is right. So results pass by
that, not bit by bit; which tensors are outputs, and that inputs come back unchanged, is not checked; and fresh inputs
are the task's own, from a secret seed. A task of several GPUs has a list of data, one a rank, and of results.
"""

import contextlib
import dataclasses
import functools
import random
import re
from collections.abc import Iterator

import numpy as np
import torch

import emulated_gpu
from emulated_gpu.serve.torch_device.install import install
from evaluation.judge.inputs import Taken
from evaluation.judge.loading import explain
from evaluation.judge.shared_tensors import Placed, Role
from evaluation.judge.task import Call
from evaluation.judge.verdict import Refused
from evaluation.tasks import data as any_data
from evaluation.tasks.estimate import size
from evaluation.tasks.modules import FolderModules
from evaluation.tasks.others import Author, OthersTask
from evaluation.tasks.ranks import together
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


SAME = "its inputs do not depend on a seed: a result that is kept from the first call passes"
NODE = (
    "launches of a task of several GPUs run one after the other here, not beside each other: kernels that wait for "
    "those of another GPU hang, and there is no time (docs/two_gpus.md has both, without a judge)"
)


@functools.cache
def modules_of(modules: tuple[tuple[str, str], ...], devices: int) -> FolderModules:
    """Makes what a task's modules are imported with, once in this process, which gets this many emulated GPUs."""
    emulated_gpu.DEVICE.become(devices)
    install()
    return FolderModules(dict(modules))


@dataclasses.dataclass(frozen=True)
class GivenTask:
    """Is a task that others wrote."""

    of: OthersTask
    graded = True
    columns = ()

    @property
    def modules(self) -> dict[str, str]:
        return self.of.modules

    @property
    def entry(self) -> tuple:
        return self.of.entry

    @property
    def devices(self) -> int:
        return self.of.devices

    @contextlib.contextmanager
    def case(self, trial):
        with modules_of(tuple(self.modules.items()), self.devices):
            try:
                author = self.of.author()
            except Exception as error:
                raise Refused(f"the task's reference: {explain(error)}") from None
            yield GivenCase(trial, self.of, author)

    def name(self, cases: list[TestCase]) -> str:
        return self.of.name

    def notes(self, device: str) -> list[str]:
        said = [f"{self.of.name}, compared by {self.of.tolerance()}"]
        return [*said, GUARANTEES_ON_GPU if device == "cuda" else GUARANTEES, *([NODE] if self.devices > 1 else ())]

    def described(self) -> dict:
        return {"task_dir": self.of.path, "compared_by": self.of.tolerance()}

    def title(self, case: TestCase) -> str:
        return case.spec

    def weight(self, case: TestCase, timed: bool = False) -> float:
        return size(case.args)

    def order(self, case: TestCase, timed: bool) -> float:
        return size(case.args)

    def estimate_from(self, weights: list[float]) -> list[TestCase]:
        """Lists the two smallest tests, of different sizes, if all cases are large beside the smallest: from two it
        shows how the seconds grow."""
        of_size = {size(case.args): case for case in self.of.tests}
        small = sorted(of_size)[:2]
        if not small or min(weights) < LARGE * small[0]:
            return []
        return [of_size[each] for each in small if each < min(weights)]

    def extra_columns(self, case: TestCase, us: float) -> list[str]:
        return []


class GivenCase:
    """Makes inputs and checks results with what the task's author has written."""

    samples = contest = False
    floor = 0.0  # nobody knows what a call has to read

    def __init__(self, trial, of: OthersTask, author: Author):
        self.args, self.of, self.author, self.verdict = trial.args, of, author, trial.verdict
        self.heap, self.arena, secret = trial.examiner.heap, trial.examiner.arena, trial.options.secret
        self.untimed = NODE if of.devices > 1 else ""
        self.hidden = combine_seeds(int(self.args.get("seed", 0)), secret)
        self.rng = np.random.default_rng(combine_seeds(self.hidden, secret + 1))
        self.before: dict[int, list] = {}  # id of a recorded call's placed inputs -> what lay where its results are
        if self.args.get("world_size", 1) != of.devices and of.devices > 1:
            raise Refused(f"world_size is {self.args.get('world_size')}, and the task's is {of.devices}")

    def generate(self, call: int):
        """Makes the inputs of a call: the first has the case's own seed, the others one that nobody knows."""
        args, seed = dict(self.args), int(self.args.get("seed", 0))
        if call:
            seed = self.hidden + 42 * call
            if self.author.seeded:
                args["seed"] = seed
        for seeded in (random.seed, np.random.seed, torch.manual_seed):  # of what a reference draws without a generator
            seeded(seed % 2**32)
        try:
            if self.of.devices > 1:
                return together(self.of.devices, lambda rank: self.author.generate(**args, rank=rank))
            return self.author.generate(**args)
        except Exception as error:
            raise Refused(f"generate_input: {explain(error)}") from None

    @functools.cached_property
    def seen(self):
        """Is what the host sees in recorded calls, and no launch does."""
        return self.generate(SEEN)

    @functools.cached_property
    def timed_calls(self) -> int:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in any_data.tensors(self.seen)}
        return self.of.calls(sum(storage.nbytes() for storage in storages.values()))

    def calls(self, count: int, extra: bool) -> Iterator[Call]:
        """Gives the calls, each with inputs of its own. extra: one more."""
        first = None
        for number in range(count + extra):
            data = self.generate(number)
            if not number:
                first = any_data.copied(data)  # a call may write into what it gets
            elif first is not None:
                if any_data.same(first, data):
                    self.verdict.limits.append(SAME)
                first = None
            check = functools.partial(self.problems, data)
            yield Call(lambda data=data: data, check, number, sizes=any_data.form(data))

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
        """Makes a live view of a returned tensor. Raises Refused, or ValueError if it is no tensor."""
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

    def extents(self, results: dict) -> list[tuple[int, int]]:
        """Lists where results lie: (address, bytes)."""
        found = []
        any_data.rebuilt(results, lambda spec: found.append((int(spec["address"]), int(spec["bytes"]))))
        return found

    def copied(self, results: dict) -> object:
        """Copies a result. Raises Refused, or what garbage raises."""

        def copy(spec: dict) -> torch.Tensor:
            found, where = self.live(spec), re.fullmatch(r"cuda(:\d{1,3})?", str(spec["device"]))
            if where and int((where[1] or ":0")[1:]) >= self.of.devices:
                raise ValueError(f"{where[0]} is no device here")
            return found.to(where[0]) if where else found.clone()

        try:
            return any_data.rebuilt(results, copy)
        except any_data.NoResult as error:
            raise Refused(str(error)) from None

    def clear(self, placed: Placed, results: dict, poison: float) -> None:
        """Writes over the results of a call what lay there when it was recorded: a launch may add to that."""
        views = []
        any_data.rebuilt(results, lambda spec: views.append(self.live(spec)))
        known = self.before.setdefault(id(placed), [view.clone() for view in views])
        for view, content in zip(views, known, strict=True):
            view.copy_(content)

    def problems(self, data, returned) -> list[str]:
        """Says what the author's check finds wrong with a result."""
        try:
            if self.of.devices == 1:
                found = [self.author.check(any_data.copied(data), returned)]
            elif not isinstance(returned, list) or len(returned) != self.of.devices:
                return ["the submission's process has not answered for each rank"]
            else:
                copies = any_data.copied(data)
                found = together(self.of.devices, lambda rank: self.author.check(copies[rank], returned[rank]))
        except Exception as error:
            return [f"check_implementation: {type(error).__name__}: {str(error)[:1000]}"]
        several = len(found) > 1
        return [
            (f"rank {rank}: " if several else "") + " ".join(told.split())[:1000]
            for rank, (good, told) in enumerate(found) if not good
        ]  # fmt: skip
