"""Judges one case: what all ways of running it share."""

import functools

import numpy as np
import torch

import reference
from evaluation.judge import inputs, modelled
from evaluation.judge.placed import Placed
from evaluation.judge.verdict import Refused, Verdict, compare, ulps
from task import TestCase, combine_seeds


def near(args: dict, rng: np.random.Generator) -> dict:
    """Draws sizes next to those of a case: each a step more or less, of what the sizes of its kind are multiples of."""

    def moved(name: str, sizes):
        single = isinstance(sizes, int)
        values = [sizes] if single else list(sizes)
        largest = {"m": 8, "n": 128, "k": 256}[name]
        step = min(largest, *(v & -v for v in values if v)) if any(values) else 0
        changed = [max(step, v + step * int(rng.choice((-1, 1)))) if v else 0 for v in values]
        return changed[0] if single else tuple(changed)

    while True:
        found = {name: moved(name, value) if name in "mnk" else value for name, value in args.items()}
        if any(found[name] != args[name] for name in "mnk") or not any(np.atleast_1d(args["m"])):
            return found


class Trial:
    """Holds a case, its verdict so far, and the checks of results. examiner: an Examiner, for its memory and its
    process.

    EmulatedTrial, GpuTrial and MeasuredTrial run it: `run(extra)` raises Refused unless every call was right.
    """

    def __init__(self, case: TestCase, examiner):
        self.examiner, self.options, self.process = examiner, examiner.options, examiner.process
        self.verdict, self.args = Verdict(case.spec), case.args
        self.task = reference.task_of(case.args)
        self.exact = self.options.device != "cuda" and self.task is reference.GROUP_GEMM  # exact in any order
        self.hidden = combine_seeds(case.args["seed"], self.options.secret)
        self.rng = np.random.default_rng(combine_seeds(self.hidden, 1))

    def check(self, group: int, got: torch.Tensor, want: torch.Tensor) -> str:
        """Counts a group's result in the verdict; says what is wrong with it, or ""."""
        verdict = self.verdict
        count, problem = compare(group, got, want, self.exact)
        verdict.mismatches = (verdict.mismatches or 0) + count
        if not problem:
            verdict.ulps = max(verdict.ulps or 0, ulps(got, want) if count else 0)
        return problem

    @property
    def timed_calls(self) -> int:
        return self.task.calls

    def contents(self, count: int) -> "Disguised":
        """Makes what so many recorded calls get."""
        return Disguised(self, count)

    def generate(self, args: dict, seed: int, full_range: bool = False):
        """Makes inputs of these sizes, in host memory. full_range: with all numbers of the formats."""
        make = self.task.generate_full_range_input if full_range else self.task.generate_input
        return make(**{**args, "seed": seed}, device=torch.device("cpu"))

    def results(self, places: list, outputs: list[torch.Tensor], taken: inputs.Taken) -> list[torch.Tensor]:
        """Makes live views of what was returned; raises Refused unless that is like the c tensors, and is these or new.

        places: as the submission's process describes them. outputs: the c tensors. taken: what new ones may not lie in.
        """
        if len(places) != len(outputs):
            raise Refused(f"custom_kernel returned {len(places)} tensors for {len(outputs)} groups")
        found = []
        for group, (place, c) in enumerate(zip(places, outputs)):
            shape, stride = (tuple(map(int, place[name])) for name in ("shape", "stride"))
            dtype = str(place["dtype"])
            if (shape, dtype) != (tuple(c.shape), str(c.dtype)):
                raise Refused(f"group {group}: returned {shape} {dtype}, not {tuple(c.shape)} {c.dtype}")
            if not c.numel():
                found.append(c)
                continue
            size = inputs.extent(shape, stride)
            try:
                view = self.examiner.arena.view(int(place["address"]), size)
            except ValueError:
                where = f"the returned tensor, on {str(place['device'])[:20]}, is not in the device's memory"
                raise Refused(f"group {group}: {where}") from None
            if min(stride) < 0:
                raise ValueError("a negative stride")
            if there := taken.add(int(place["address"]), size, f"the result of group {group}, maybe of another call"):
                raise Refused(f"group {group}: the returned tensor is not new, it lies in {there}")
            found.append(torch.from_numpy(view).view(torch.float16).as_strided(shape, stride))
        return found

    def judge_results(self, returned: list[torch.Tensor], data, expected, placed: Placed) -> None:
        """Compares every element of every result with the expected one; raises Refused for wrong results, and where
        the inputs are no longer `data`, unless that is None."""
        problems = []
        for group, (got, want) in enumerate(zip(returned, expected)):
            if want.numel() and (problem := self.check(group, got.clone().view(want.shape), want)):
                problems.append(problem)
        self.verdict.mismatches = self.verdict.mismatches or 0
        if data is not None and not placed.unchanged(data):
            problems.append("the submission changed its inputs")
        if problems:
            self.process.kill()
            raise Refused("; ".join(problems[:3]))


class Disguised:
    """Holds what the recorded calls of a case get: one data, in a disguise for each, so that one reference knows all
    results."""

    def __init__(self, trial: Trial, calls: int):
        self.trial = trial
        self.plain = trial.generate(trial.args, trial.hidden)
        self.drawn = [inputs.draw(int(trial.rng.integers(2**31)), self.plain) for _ in range(calls)]

    @functools.cached_property
    def known(self) -> inputs.Known:
        return inputs.Known(self.plain)

    def placed(self) -> Placed:
        """Makes room for the data of a call; nothing is in it yet."""
        return Placed(self.plain, self.trial.task.on_host, self.trial.examiner.heap)

    def data(self, number: int):
        """Makes the data of a call."""
        data = inputs.mapped(torch.clone, self.plain)
        inputs.disguise(data, self.drawn[number])
        return data

    def results(self, returned: list, held: inputs.Taken) -> list[torch.Tensor]:
        """Makes live views of what a call returned. Raises Refused."""
        return self.trial.results(returned, inputs.outputs(self.plain), held)

    def check(self, number: int, results: list[torch.Tensor]) -> None:
        """Raises Refused unless these are the results of a call's data."""
        self.trial.judge_results(results, None, self.known.outputs(self.drawn[number]), None)

    def unchanged(self, number: int, placed: Placed) -> bool:
        """Tells whether a call has left its inputs as they were."""
        return placed.unchanged(self.data(number))

    def clear(self, placed: Placed, results: list[torch.Tensor]) -> None:
        """Writes NaN over the results of a call."""
        for result in inputs.outputs(placed.data) + results:
            result.fill_(float("nan"))

    def floor(self) -> float:
        """Computes the microseconds that a call takes at least."""
        return modelled.speed_of_light(self.trial.args)
