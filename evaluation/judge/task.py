"""What the judge asks of a task: this repository's two (own_task.py), or one that others wrote (given_task.py).

Nothing else in the judge, and on the command line only what finds the cases, knows which of them it has.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

import numpy as np

from evaluation.judge.inputs import Taken
from evaluation.judge.shared_tensors import Placed
from task import TestCase


@dataclasses.dataclass
class Call:
    """Says what a call gets, and how its result is judged."""

    data: Callable[[], object]  # makes it, the same each time
    check: Callable[..., list[str]]  # says what is wrong with a copy of a result; also in parts, see Case.samples
    schedule: int = 0
    sizes: Hashable = None  # calls of equal sizes get the same tensors
    told: str = ""  # before the reason, if it fails
    poison: float = math.nan  # what outputs, float16, hold before it


class Case(Protocol):
    """Is a case while it is judged. rng: secret. timed_calls: how many are timed together. floor: the microseconds
    that one of them takes at least. samples: whether parts of a result can be checked by themselves: a recorded call's
    check then takes what `left_out` says, too. contest: as of emulated_gpu.model.profile.load. untimed: why its calls
    can have no time, or ""."""

    untimed: str
    rng: np.random.Generator
    timed_calls: int
    floor: float
    samples: bool
    contest: bool

    def calls(self, count: int, extra: bool) -> Iterator[Call]:
        """Gives the calls to make, each with inputs of its own. extra: and more, which only the judge knows of."""

    def recorded(self, count: int) -> list[Call]:
        """Gives this many calls to record, in which the host sees what `room` has in it."""

    def room(self) -> Placed:
        """Makes room for a call to record."""

    def place(self, data) -> Placed:
        """Makes room for data."""

    def results(self, returned: dict, placed: Placed, held: Taken):
        """Makes of what a call on `placed` returned what `copied` and `clear` need. held: where it must not lie.
        Raises Refused, or for garbage another Exception."""

    def extents(self, results) -> list[tuple[int, int]]:
        """Lists where results lie: (address, bytes)."""

    def left_out(self, results, not_computed: list[tuple[int, np.ndarray]]):
        """Says what of results is left out. not_computed: address, bool [bytes] of memory where it would be."""

    def copied(self, results):
        """Copies results, which the submission's process may still change. Raises Refused."""

    def clear(self, placed: Placed, results, poison: float) -> None:
        """Spoils the results of a recorded call. poison: of its Call."""


class Task(Protocol):
    """Is a task. modules: name -> path of what its submissions import, beside this repository's modules. entry: how a
    submission is called (../tasks/entry.py). devices: how many GPUs. graded: whether its own program judges it on a
    GPU, of any kind (folder_on_gpu.py). columns: the last ones of the table of modelled times."""

    modules: dict[str, str]
    entry: tuple
    devices: int
    graded: bool
    columns: tuple[str, ...]

    def case(self, trial) -> contextlib.AbstractContextManager[Case]:
        """Gets ready for a trial.Trial. Raises Refused."""

    def name(self, cases: list[TestCase]) -> str:
        """Names the task of these cases."""

    def notes(self, device: str) -> list[str]:
        """Says what holds for results, where that is not what holds for this repository's tasks."""

    def described(self) -> dict:
        """Gives what --json says of the task."""

    def title(self, case: TestCase) -> str:
        """Writes a case's sizes."""

    def weight(self, case: TestCase, timed: bool) -> float:
        """Estimates how long a case takes, in a unit of the task's own."""

    def order(self, case: TestCase, timed: bool) -> float:
        """Orders cases; equal ones come in a secret order."""

    def estimate_from(self, weights: list[float]) -> list[TestCase] | None:
        """Lists small cases that tell how long cases of these weights may take, and None where that is known."""

    def extra_columns(self, case: TestCase, us: float) -> list[str]:
        """Fills `columns` for a modelled time."""
