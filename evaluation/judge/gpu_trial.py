"""Runs a case on a GPU, in the submission's process: untimed calls, or repeats that are timed back to back."""

import contextlib
import time

import torch

from evaluation.judge import inputs
from evaluation.judge.own_task import OwnCase, near
from evaluation.judge.statistics import Stats, calculate_stats, precise_enough
from evaluation.judge.verdict import Refused, Verdict, check_time
from task import TestCase

AUDITED = 0.2  # share of the repeats in which every result is taken right after its call; their times do not count


class GpuCase:
    """Holds a case's inputs on a GPU, in the submission's process, and their results in shared memory."""

    device = "cuda"  # where the judge computes what they should be

    def __init__(self, trial: "GpuTrial", args: dict, count: int = 1, objects: int = 1, full_range: bool = False):
        """Sets it up. count: how many contents there are. objects: how many inputs the kernel gets to see. full_range:
        whether they have all numbers of their formats."""
        self.trial, self.process, self.objects = trial, trial.process, objects
        self.heap, own = trial.examiner.heap, trial.own
        self.placed, self.known = [], []
        for i in range(count):
            data = own.generate(args, args["seed"] if not i else own.hidden + 42 * i, full_range)
            self.placed.append(own.place(data))
            self.placed[-1].fill(data)
            self.known.append(inputs.Known(inputs.mapped(lambda tensor: tensor.to(self.device), data)))
        self.data = data  # the last contents: all have the same sizes
        self.elements = sum(c.numel() for c in inputs.outputs(data))
        self.buffer = self.heap.take(2 * objects * self.elements)
        contents = [placed.spec for placed in self.placed]
        request = {"task": own.task.name, "objects": objects, "results": self.buffer.ctypes.data}
        self.process.ask("set-up", op="case", contents=contents, **request)

    def repeat(self, fresh: bool, audit: bool, timed: bool) -> float:
        """Makes one call per object in a secret order, and compares the results: the nanoseconds per call.

        fresh: with other contents in a new disguise. audit: each result is taken right after its call. Raises Refused.
        """
        trial, rng, count, begin = self.trial, self.trial.rng, len(self.placed), time.perf_counter()
        turn = int(rng.integers(1, count)) if fresh and count > 1 else 0
        contents = [(i + turn) % count for i in range(self.objects)]
        disguises = [int(rng.integers(2**31)) if fresh else None for _ in contents]
        order = rng.permutation(self.objects).tolist()
        self.buffer[:] = 0xFF  # NaN
        request = {"contents": contents, "disguises": disguises, "order": order, "audit": audit, "timed": timed}
        reply = self.process.ask("result", op="repeat", **request)
        trial.verdict.seconds += time.perf_counter() - begin
        problems, outputs = [], inputs.outputs(self.data)
        bits = torch.from_numpy(self.buffer).view(torch.float16).view(self.objects, -1)
        for i in range(self.objects):
            drawn = inputs.draw(disguises[i], self.data) if disguises[i] is not None else None
            parts = bits[i].clone().split([c.numel() for c in outputs])
            returned = [part.view(c.shape) for part, c in zip(parts, outputs)]
            problems += trial.own.problems(self.known[contents[i]], drawn, returned)
        if problems:
            raise Refused("; ".join(problems[:3]))
        return reply["ns"]

    def once(self) -> None:
        """Makes one untimed repeat with the inputs as they are, and releases the memory. Raises Refused."""
        try:
            self.repeat(fresh=False, audit=False, timed=False)
        finally:
            self.release()

    def release(self) -> None:
        for placed in self.placed:
            placed.release()
        self.heap.give(self.buffer.ctypes.data, len(self.buffer))


class GpuTrial:
    """Runs a case of this repository's tasks on a GPU, whose time nobody asked for. examiner: as of trial.Trial."""

    def __init__(self, case: TestCase, examiner):
        self.examiner, self.options, self.process = examiner, examiner.options, examiner.process
        self.verdict, self.args = Verdict(case.spec), case.args
        self.own = OwnCase(self)
        self.rng = self.own.rng

    def run(self, extra: bool) -> None:
        """Raises Refused unless every call was right. extra: as of OwnCase.calls."""
        calls = [(self.args, None)] + [(self.args, i) for i in range(1, max(2, self.options.calls) + extra)]
        calls += [(near(self.args, self.rng), len(calls))] if extra else []
        for args, hidden in calls:
            seed = self.args["seed"] if hidden is None else self.own.hidden + 42 * hidden
            GpuCase(self, {**args, "seed": seed}).once()
        if extra and self.own.task.generate_full_range_input:
            GpuCase(self, {**self.args, "seed": self.own.hidden + 42 * len(calls)}, full_range=True).once()


class MeasuredTrial(GpuTrial):
    """Times a case on a GPU, calls back to back as the grader does; every result of every repeat is compared."""

    case: GpuCase | None = None

    def call(self, fresh: bool, audit: bool = False) -> float:
        """Makes one timed repeat: the nanoseconds per call. Raises Refused."""
        return self.case.repeat(fresh, audit, timed=True)

    @contextlib.contextmanager
    def set_up(self):
        """Has the inputs on the GPU during this block, and gives the bytes that a call has to read."""
        self.case = GpuCase(self, self.args, self.own.timed_calls, self.own.timed_calls)
        try:
            yield inputs.read_bytes(self.case.data)
        finally:
            self.case.release()

    def run(self, extra: bool) -> None:
        """Times it, raising Refused unless every call was right. extra: with a call of sizes near the case's."""
        with self.set_up() as read:
            measure([self], read)
        if extra:
            GpuCase(self, near(self.args, self.rng)).once()


def measure(trials: list[MeasuredTrial], read: int) -> list[list[float]]:
    """Times trials, in an order that is drawn for each round, until each is precise enough. Returns the nanoseconds per
    call of each trial and round. read: bytes that a call has to read. Raises Refused, whose `trial` is the one that
    failed."""

    def call(trial: MeasuredTrial, **how) -> float:
        try:
            ns = trial.call(**how)
            check_time(ns, read)
        except Refused as error:
            error.trial = trial
            raise
        return ns

    def precise() -> bool:
        spent = (time.perf_counter_ns() - begin) / len(trials)
        return all(precise_enough(ns, spent, 30e9) for ns in durations)

    for trial in trials:
        call(trial, fresh=False, audit=True)  # compiles, too
    rng, begin = trials[0].rng, time.perf_counter_ns()
    durations: list[list[float]] = [[] for _ in trials]
    while len(durations[0]) < 100 and not precise():
        audit = rng.random() < AUDITED
        for i in rng.permutation(len(trials)):
            ns = call(trials[i], fresh=True, audit=audit)
            durations[i] += [] if audit else [ns]
    for trial, of_trial in zip(trials, durations):
        call(trial, fresh=True, audit=True)
        trial.verdict.times = calculate_stats(of_trial)
    return durations


def measure_in_turns(trials: list[MeasuredTrial]) -> Stats | None:
    """Gives its verdict to each of two trials that are timed together. Returns by how many nanoseconds a call of the
    second takes longer, in the same round, or None where one has failed."""
    try:
        with contextlib.ExitStack() as stack:
            reads = []
            for trial in trials:
                failed = trial
                reads.append(stack.enter_context(trial.set_up()))
            first, second = measure(trials, *reads[:1])
    except Refused as error:
        failed = getattr(error, "trial", failed)
        for trial in trials:
            trial.verdict.reason = str(error) if trial is failed else "not timed: the other one has failed"
            trial.verdict.times = None
        return None
    for trial in trials:
        trial.verdict.status, trial.verdict.reason = "pass", ""
    return calculate_stats([b - a for a, b in zip(first, second)])
