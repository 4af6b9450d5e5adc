"""What is asked of a task that others wrote, in whichever form: folder.py, kernelbench.py and flashinfer.py have them.

A task's author is trusted: `author` runs in the judge's process.
"""

import dataclasses
import functools
from collections.abc import Callable

from evaluation.tasks.entry import KERNEL
from task import TestCase


@dataclasses.dataclass(frozen=True)
class Author:
    """Holds what a task's author has written. generate(**args): makes the data of a call. check(data, returned): says
    whether a result is right, and what is wrong. seeded: whether generate takes a seed."""

    generate: Callable
    check: Callable[..., tuple[bool, str]]
    seeded: bool = True


@dataclasses.dataclass(frozen=True)
class OthersTask:
    """Is a task of others. modules: names -> absolute paths; a submission may import them.

    evaluator: path of the grader's program, which says how often it calls, or None. entry: see entry.py. devices: the
    number of GPUs; each has a rank.
    """

    path: str
    name: str
    modules: dict[str, str]
    tests: list[TestCase]
    benchmarks: list[TestCase]
    evaluator: str | None = None
    entry: tuple = KERNEL
    devices: int = 1

    def cases(self, section: str) -> list[TestCase]:
        """Lists the cases of a section, "tests" or "benchmarks"."""
        return self.tests if section == "tests" else self.benchmarks

    def calls(self, input_bytes: int) -> int:
        """Says how many calls, each on inputs of its own, are timed together. input_bytes: of one call's inputs."""
        return 1

    def tolerance(self) -> str:
        """Says by what results are compared."""
        raise NotImplementedError

    def author(self) -> Author:
        """Imports what the author has written; to be called where `modules` can be imported. Raises ValueError, and
        what that raises."""
        raise NotImplementedError


def verdict_of(said) -> tuple[bool, str]:
    """Reads what a check_implementation returned: (passed, what is wrong). Raises TypeError for what it may not."""
    good, message = said if isinstance(said, tuple) and len(said) == 2 else (not said, said)
    if isinstance(said, bool):
        good, message = said, ""
    if not isinstance(good, bool) or not isinstance(message, (str, list, type(None))):
        raise TypeError(f"check_implementation returned {type(said).__name__}, not (passed, message)")
    return good, str(message or "the task's check finds the result wrong")


def close(got, want, rtol: float, atol: float, what: str = "the result") -> str:
    """Compares tensors by shape, dtype and torch.allclose: what is wrong, or ""."""
    import torch

    from evaluation.tasks import patterns

    if not isinstance(got, torch.Tensor):
        return f"{what} is {type(got).__name__}, no tensor"
    if got.shape != want.shape:
        return f"{what} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"{what} is {got.dtype}, expected {want.dtype}"
    if got.is_cuda != want.is_cuda:
        return f"{what} is on {got.device}, expected {want.device}"
    if torch.allclose(got, want, rtol=rtol, atol=atol):
        return ""
    wrong = ~torch.isclose(got, want, rtol=rtol, atol=atol)
    at = tuple(wrong.nonzero()[0].tolist())
    count = f"{int(wrong.count_nonzero())} of {wrong.numel()} elements"
    said = f"{count} of {what} are not within rtol {rtol:g}, atol {atol:g}: first at {at}: {got[at]} for {want[at]}"
    if wrong.dim() < 2:
        return said
    near = functools.partial(torch.isclose, rtol=rtol, atol=atol, equal_nan=True)
    numbers, right = (x.reshape(-1, x.shape[-1]).double() for x in (got, want))
    why = patterns.explain(numbers, right, same=near)
    return "; ".join(filter(None, [said, why]))
