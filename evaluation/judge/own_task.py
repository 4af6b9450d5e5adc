"""nvfp4_group_gemm and nvfp4_dual_gemm: exact results, and inputs in a secret disguise for each call."""

import contextlib
import functools
import math
from collections.abc import Iterator

import numpy as np
import torch

import reference
from emulated_gpu.model import uncertainty
from evaluation.judge import inputs, modelled
from evaluation.judge.shared_tensors import Placed, Role
from evaluation.judge.task import Call
from evaluation.judge.verdict import Refused, compare, ulps
from evaluation.tasks import data as any_data
from evaluation.tasks import patterns, products
from evaluation.tasks.entry import KERNEL
from task import TestCase, combine_seeds

# What sizes are multiples of, as all are that a task lists. The dual GEMM's text promises multiples of the tile
STEPS = {"nvfp4_group_gemm": {"m": 8, "n": 128, "k": 256}, "nvfp4_dual_gemm": {"m": 256, "n": 128, "k": 256}}


class OwnTask:
    """Is the task of this repository that a case's arguments name."""

    modules: dict[str, str] = {}
    entry, devices = KERNEL, 1
    graded = False
    columns = "speed of light", "% of it", "<best public kernel, modelled"

    def case(self, trial):
        return contextlib.nullcontext(OwnCase(trial))

    def name(self, cases: list[TestCase]) -> str:
        return " and ".join(sorted({reference.task_of(case.args).name for case in cases}))

    def notes(self, device: str) -> list[str]:
        return []

    def described(self) -> dict:
        return {}

    def title(self, case: TestCase) -> str:
        """Writes sizes, equal ones of groups once: `g 2, m 96+128, n 128+256, k 512`, or `m 256, n 512, k 256, l 1`."""
        args = case.args
        if reference.task_of(args) is reference.DUAL_GEMM:
            return ", ".join(f"{key} {args[key]}" for key in "mnkl")
        sizes = {key: args[key][:1] if len(set(args[key])) == 1 else args[key] for key in "mnk"}
        return f"g {args['g']}, " + ", ".join(f"{key} {'+'.join(map(str, values))}" for key, values in sizes.items())

    def weight(self, case: TestCase, timed: bool = False) -> float:
        """Estimates the seconds of one core on the emulator, within a factor of two for submission.py on an x86
        core."""
        sizes = [*zip(*([case.args[x]] if isinstance(case.args[x], int) else case.args[x] for x in "mnk"))]
        multiplied, written = sum(m * n * k for m, n, k in sizes), sum(m * n for m, n, _ in sizes)
        return 20 + 2e-9 * multiplied if timed else 3 + 6e-9 * multiplied + 3e-6 * written

    def order(self, case: TestCase, timed: bool) -> float:
        return -self.weight(case, timed) if timed else 0.0  # what takes longest, first

    def estimate_from(self, weights: list[float]) -> None:
        return None

    def extra_columns(self, case: TestCase, us: float) -> list[str]:
        limit, public = modelled.listed_limit(case.args), uncertainty.best_public(case.args)
        share = f"{100 * limit / us:.0f}" if limit else "-"
        return [str(limit or "-"), share, f"{uncertainty.of_point(public):.2f}, {public['kernel']}" if public else "-"]


def near(args: dict, rng: np.random.Generator, smaller: bool = False) -> dict:
    """Draws sizes near a case's: each is a step more or less; a step is what its task's sizes are multiples of.

    smaller: N and K are any number of steps up to their own, which takes a quarter of the time.
    """
    steps = STEPS[reference.task_of(args).name]

    def moved(name: str, sizes):
        single = isinstance(sizes, int)
        values = [sizes] if single else list(sizes)
        step = min(steps[name], *(v & -v for v in values if v)) if any(values) else 0
        if smaller and name != "m":
            changed = [step * int(rng.integers(1, v // step, endpoint=True)) if v else 0 for v in values]
        else:
            changed = [max(step, v + step * int(rng.choice((-1, 1)))) if v else 0 for v in values]
        return changed[0] if single else tuple(changed)

    while True:
        found = {name: moved(name, value) if name in "mnk" else value for name, value in args.items()}
        if any(found[name] != args[name] for name in "mnk") or not any(np.atleast_1d(args["m"])):
            return found


def poisons(rng: np.random.Generator) -> Iterator[float]:
    """Draws what outputs hold before each of many calls: of three in a row one is NaN, one infinite, one finite."""
    while True:
        finite, infinite = float(np.float16(rng.uniform(2, 60_000))), math.inf
        for drawn in rng.permutation([math.nan, infinite, finite]):
            yield float(drawn) * float(rng.choice((-1, 1)))


def reference_operands(data, group: int) -> products.Operands:
    """Decodes the operands of a group of nvfp4_group_gemm."""
    (a, b, _), (sfa, sfb), reordered = (data[i][group] for i in range(3))
    numbers = [reference.decode_fp4(packed[:, :, 0]).double() for packed in (a, b)]
    scales = [each[:, :, 0].double() for each in (sfa, sfb)]
    memory = [each[..., 0].permute(2, 4, 0, 1, 3).double().flatten() for each in reordered]
    return dict(zip((*products.EVERY, "memory of sfa", "memory of sfb"), (*numbers, *scales, *memory), strict=True))


class OwnCase:
    """Makes the inputs of a case, and checks results: counts in the verdict of `trial` what differs."""

    samples = contest = True
    untimed = ""

    def __init__(self, trial):
        self.args, self.verdict = trial.args, trial.verdict
        self.heap, self.arena = trial.examiner.heap, trial.examiner.arena
        self.task, self.timed = reference.task_of(self.args), trial.options.timed
        self.exact = trial.options.device != "cuda" and self.task is reference.GROUP_GEMM  # exact in any order
        self.hidden = combine_seeds(self.args["seed"], trial.options.secret)
        self.rng = np.random.default_rng(combine_seeds(self.hidden, 1))
        self.timed_calls, self.floor = self.task.calls, modelled.speed_of_light(self.args)

    def generate(self, args: dict, seed: int, full_range: bool = False):
        """Makes inputs of these sizes, in host memory. full_range: with all numbers of the formats."""
        make = self.task.generate_full_range_input if full_range else self.task.generate_input
        return make(**{**args, "seed": seed}, device=torch.device("cpu"))

    def place(self, data) -> Placed:
        """Makes room for data: only its c may be written, and all but that has contents."""
        outputs = {id(c) for c in inputs.outputs(data)}
        roles = {}
        for i, item in enumerate(data):
            for name, tensor in inputs.named(item, f"tensor[{i}]"):
                output = id(tensor) in outputs
                roles[id(tensor)] = Role(name, i not in self.task.on_host, given=not output, written=output)
        return Placed(data, self.heap, lambda tensor, number: roles[id(tensor)])

    def calls(self, count: int, extra: bool) -> Iterator[Call]:
        """Gives the calls: the first has the case's own inputs, the others some that nobody knows.

        From the third on every second one has former inputs in disguise: a result that was kept is a wrong result.
        extra: with a call more, one with sizes near the case's, and one whose inputs have all numbers of their formats.
        """
        plan = [(self.args, schedule, False) for schedule in range(count)]
        if extra:
            more = [(near(self.args, self.rng, self.timed), 0, False)]
            if plan:
                plan.append((self.args, 0, False))
                more += [(self.args, 0, True)] if self.task.generate_full_range_input else []
            for call in more:
                plan.insert(int(self.rng.integers(1, len(plan) + 1)) if plan else 0, call)
        poison = poisons(self.rng)
        seeds: list[int] = []  # of the inputs of the case's own sizes
        for number, (args, schedule, full_range) in enumerate(plan):
            listed = args is self.args and not full_range
            disguise, seed, told = None, self.hidden + 42 * number, ""
            if listed and not number:
                seed = args["seed"]
            elif listed and len(seeds) % 2 == 0:
                seed, disguise = int(self.rng.choice(seeds)), int(self.rng.integers(2**31))
            if listed:
                seeds.append(seed)
            elif full_range:
                told = "with all FP4 numbers and scales: "
            else:
                told = f"with other sizes ({', '.join(f'{name} {args[name]}' for name in 'mnk')}): "
            data = self.generate(args, seed, full_range)
            if disguise is not None:
                inputs.disguise(data, inputs.draw(disguise, data))
            known = inputs.Known(data)  # beforehand: results are taken at once
            before = next(poison)
            check = functools.partial(self.problems, known, None, poison=before, data=data)
            yield Call(lambda data=data: data, check, schedule, tuple(args[name] for name in "mnk"), told, before)

    @functools.cached_property
    def plain(self):
        """Is the one data that recorded calls get, each in a disguise, so that one reference knows all results."""
        return self.generate(self.args, self.hidden)

    @functools.cached_property
    def known(self) -> inputs.Known:
        return inputs.Known(self.plain)

    def recorded(self, count: int) -> list[Call]:
        drawn = [inputs.draw(int(self.rng.integers(2**31)), self.plain) for _ in range(count)]

        def data(disguise: list[inputs.Disguise]):
            made = inputs.mapped(torch.clone, self.plain)
            inputs.disguise(made, disguise)
            return made

        def check(disguise, before: float, returned: list[torch.Tensor], left_out=None) -> list[str]:
            return self.problems(self.known, disguise, returned, left_out, before)

        return [
            Call(functools.partial(data, each), functools.partial(check, each, before), poison=before)
            for each, before in zip(drawn, poisons(self.rng))
        ]

    def room(self) -> Placed:
        return self.place(self.plain)

    def results(self, returned: dict, placed: Placed, held: inputs.Taken) -> list[torch.Tensor]:
        """Makes live views of what was returned; raises Refused unless that is like the c tensors, and is these or
        new."""
        specs, outputs = inputs.result_specs(returned, self.task is reference.DUAL_GEMM), placed.outputs()
        if len(specs) != len(outputs):
            raise Refused(f"custom_kernel returned {len(specs)} tensors for {len(outputs)} groups")
        found = []
        for group, (spec, c) in enumerate(zip(specs, outputs)):
            shape, stride = (tuple(map(int, spec[name])) for name in ("shape", "stride"))
            dtype = str(spec["dtype"])
            if (shape, dtype) != (tuple(c.shape), str(c.dtype)):
                raise Refused(f"group {group}: returned {shape} {dtype}, not {tuple(c.shape)} {c.dtype}")
            if not c.numel():
                found.append(c)
                continue
            if min(stride) < 0:
                raise ValueError("a negative stride")
            size = any_data.extent(shape, stride, c.element_size())
            try:
                view = self.arena.view(int(spec["address"]), size)
            except ValueError:
                where = f"the returned tensor, on {str(spec['device'])[:20]}, is not in the device's memory"
                raise Refused(f"group {group}: {where}") from None
            if there := held.add(int(spec["address"]), size, f"the result of group {group}, maybe of another call"):
                raise Refused(f"group {group}: the returned tensor is not new, it lies in {there}")
            found.append(torch.from_numpy(view).view(c.dtype).as_strided(shape, stride))
        return found

    def check(self, group: int, got: torch.Tensor, wants: list[torch.Tensor], poison: float, data=None) -> str:
        """Counts a group's result in the verdict; says what is wrong with it, and why perhaps, or "". wants: of all
        groups; data: what it is made of, if that is known."""
        want = wants[group]
        count, problem = compare(group, got, want, self.exact, poison)
        self.verdict.mismatches = (self.verdict.mismatches or 0) + count
        if not problem:
            self.verdict.ulps = max(self.verdict.ulps or 0, ulps(got, want) if count else 0)
            return ""
        others = tuple(other[:, :, 0] for number, other in enumerate(wants) if number != group)
        known = [] if data is None or self.task is not reference.GROUP_GEMM else range(len(wants))
        operands = tuple(functools.partial(reference_operands, data, n) for n in sorted(known, key=group.__ne__))
        further = functools.partial(products.mistakes, operands=operands) if operands else None
        why = patterns.explain(got[:, :, 0], want[:, :, 0], others, further)
        return f"{problem}; {why}" if why else problem

    def problems(
        self, known: inputs.Known, disguise, returned: list[torch.Tensor], left_out=None, poison: float = math.nan,
        data=None,
    ) -> list[str]:  # fmt: skip
        """Compares every element of every result with the expected one: what is wrong. disguise: of the known data.
        left_out: bool, like each result, the elements that are not compared. poison: what was there before. data: what
        the results are made of, in host memory, for an explanation."""
        wants = [*known.outputs(disguise)]
        if left_out is not None:
            returned = [torch.where(*of) for of in zip(left_out, wants, returned, strict=True)]
        pairs = enumerate(zip(returned, wants))
        found = [self.check(group, got, wants, poison, data) for group, (got, want) in pairs if want.numel()]
        self.verdict.mismatches = self.verdict.mismatches or 0
        return [*filter(None, found)]

    def extents(self, results: list[torch.Tensor]) -> list[tuple[int, int]]:
        """Lists where results lie: (address, bytes)."""
        return [(r.data_ptr(), any_data.extent(r.shape, r.stride(), r.element_size())) for r in results]

    def left_out(self, results: list[torch.Tensor], not_computed: list[tuple[int, np.ndarray]]) -> list[torch.Tensor]:
        """Says which elements of results a run has left out: bool, like each of them."""
        found = []
        for result in results:
            start = result.data_ptr()
            marks = np.zeros(any_data.extent(result.shape, result.stride(), result.element_size()), bool)
            for first, of_memory in not_computed:
                lo, hi = max(start, first), min(start + len(marks), first + len(of_memory))
                if lo < hi:
                    marks[lo - start : hi - start] = of_memory[lo - first : hi - first]
            shape, stride = result.shape, result.stride()
            found.append(torch.from_numpy(marks).view(torch.int16).as_strided(shape, stride) != 0)
        return found

    def copied(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        return [result.clone() for result in results]

    def clear(self, placed: Placed, results: list[torch.Tensor], poison: float) -> None:
        """Writes the poison over the results of a call."""
        for result in placed.outputs() + results:
            result.fill_(poison)
