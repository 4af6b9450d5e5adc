"""Times recorded calls on the model, and checks what was timed, and the rest.

Each call gets inputs of its own, which come into being when its first launch starts, and some clusters of the timed run
compute: their results are compared. A call that was not simulated must be like one that was (same_calls.py); where that
does not follow from what its kernels can read, all calls are simulated, and all are checked. Else a drawn one is.
"""

import contextlib
import dataclasses
import functools
import math

import numpy as np
import torch

from emulated_gpu.errors import ResultsDecide
from emulated_gpu.model.profile import load
from emulated_gpu.model.tally import instructions
from evaluation.judge import emulated, modelled, same_calls
from evaluation.judge.task import Call

SHARE, PATTERN = 8, 4096  # one of SHARE clusters computes in a timed launch; after PATTERN the draw repeats itself
CHANGED = "the submission changed its inputs"
LEFT = "kernels leave something in memory from call to call"


class NotTimed(Exception):
    """There is no modelled time; the message says why."""


class LeftBehind(Exception):
    """A call that was checked has left something in memory, which those that were timed had not."""


def other_launch(first: list, queue: list) -> str:
    """Says which launch of a call is the first that is not like that of call 0, whose launches are `first`, or ""."""
    for number, (one, other) in enumerate(zip(first, queue)):
        if one.shape != other.shape:
            same = one.kernel == other.kernel
            what = "another geometry, other options or other code" if same else f"not {one.kernel[:60]}"
            return f"its launch {number} is {other.kernel[:60]}, {what}; a kernel made or chosen later has no time"
    return "" if len(first) == len(queue) else f"it has {len(queue)} launches, not {len(first)}"


def overlap(region: tuple, ranges: list[tuple[int, int]]) -> bool:
    """Tells whether a region of the submission's has a byte of a range, (address, bytes)."""
    start, size, *_ = region
    return any(first < start + size and start < first + length for first, length in ranges)


def drawn(rng: np.random.Generator, timed: int, count: int) -> int:
    """Draws one of `count` calls, every second time one of the first few, which were timed. A kernel may tell these
    from the others, by where its own memory lies."""
    among_timed = timed >= count or rng.integers(2)
    return int(rng.integers(min(timed, count)) if among_timed else rng.integers(timed, count))


def some_clusters(rng: np.random.Generator, first: list, calls: int) -> list:
    """Draws for each launch of this many calls, of which `first` are the first one's, which clusters compute in a timed
    run: one of SHARE, others in each of SHARE calls in a row. Gives functions of a cluster's first CTA."""

    def drawn(turns: np.ndarray, call: int, queued):
        grid, size = queued.grid, queued.options["cluster"] or (1, 1, 1)
        share = min(SHARE, len(turns))

        def computes(at: tuple[int, int, int]) -> bool:
            x, y, z = (place // step for place, step in zip(at, size))
            number = x + grid[0] // size[0] * (y + grid[1] // size[1] * z)
            return turns[number % len(turns)] % share == call % share

        return computes

    counts = [math.prod(q.grid) // max(1, math.prod(q.options["cluster"] or (1,))) for q in first]
    turns = [rng.permutation(min(PATTERN, count)) for count in counts]
    return [drawn(one, call, queued) for call in range(calls) for one, queued in zip(turns, first)]


@dataclasses.dataclass
class Recording:
    """Holds calls that a submission's process has made.

    placed: where the data of each lies; queues: the launches of each; results: live views of what each says they are.
    """

    device: emulated.Device
    calls: list[Call]
    placed: list
    queues: list[list[emulated.Queued]]
    results: list


class TimedCalls:
    """Times a recording, and checks it. recorder: the RecordedCalls that made it; it knows what calls have beside
    launches."""

    def __init__(self, recorder, recording: Recording):
        self.recorder, self.case, self.options = recorder, recorder.case, recorder.trial.options
        self.device, self.calls, self.placed = recording.device, recording.calls, recording.placed
        self.queues, self.results = recording.queues, recording.results
        self.why = ""  # all calls have to be simulated

    def check(self) -> dict:
        """Times the calls, and checks them: a reply of `modelled`. Once more, if only then it shows that all have to be
        simulated. Raises NotTimed, Refused or EmulatorError."""
        self.compare_launches()
        try:
            return self.checked()
        except LeftBehind:
            self.why = LEFT
            return self.checked()

    def checked(self) -> dict:
        """Does so once. Raises LeftBehind, too."""
        self.prepare()
        reply, counted, left_out = self.timed()
        if self.why and reply["simulated"] < len(self.queues):
            self.again()
            reply, counted, left_out = self.timed()
        simulated, of_kernels = reply["simulated"], reply["us"]
        for number in range(self.finished, simulated):
            self.recorder.between(number, self.step)
        reply = self.recorder.with_rest(reply) | {"floor_us": self.case.floor}
        if reply["us"] < self.case.floor:
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {self.case.floor:.3f} us")
        for number in range(simulated):
            self.compare_results(number, " when timed", left_out[number])
        counts = [counted[i : i + self.step] for i in range(0, simulated * self.step, self.step)]
        if not self.why and not all(emulated.alike(each, counts[0]) for each in counts):
            raise NotTimed("calls with equal launches do not load, store and multiply the same")
        floor = self.check_untimed(counts, of_kernels, sampled=left_out[0] is not None)
        reply["floor_us"] = max(reply["floor_us"], floor)
        return reply | ({"all_run": self.why} if self.why else {})

    def compare_launches(self) -> None:
        """Raises NotTimed unless all calls launch the same, and nothing but launches changes the device's memory."""
        for number, queue in enumerate(self.queues):
            if other := other_launch(self.queues[0], queue):
                raise NotTimed(f"call {number} does not launch what call 0 launches: {other}")
        if not self.queues[0]:
            raise NotTimed("custom_kernel launched no kernel of its own: nothing to time")
        if self.recorder.rewritten:
            raise NotTimed("the host changes device memory between launches: how long that takes is not modelled")

    def prepare(self) -> None:
        """Notes what the host has given each call, and what lies in memory before the first."""
        recorder = self.recorder
        self.step = len(self.queues[0])  # launches of a call
        self.given = [
            same_calls.Given(recorder.arena, queue, one.taken, new, recorder.given(number))
            for number, (queue, one, new) in enumerate(zip(self.queues, self.placed, recorder.new, strict=True))
        ]
        self.finished = 0  # timed calls whose operations behind their launches have been done
        self.extents = [self.case.extents(results) for results in self.results]
        self.regions = {*recorder.seen}
        self.device.spoil(self.regions)
        self.clear()
        self.before = self.device.snapshot(self.regions)
        self.kept = self.left_behind()
        if not self.why and same_calls.count_or_tell_time(self.queues[0]):
            self.why = "a kernel reads a timer or %gridid"

    def again(self) -> None:
        """Makes the memory what it was before the first call."""
        self.finished = 0
        self.device.restore(self.before)
        self.clear()

    def clear(self) -> None:
        for one, results, call in zip(self.placed, self.results, self.calls, strict=True):
            self.case.clear(one, results, call.poison)

    def left_behind(self) -> dict:
        """Copies what has been left in memory that is no result."""
        own = [*(extent for each in self.extents for extent in each), *self.recorder.own()]
        return self.device.left_behind(self.regions, own)

    def fill(self, number: int) -> None:
        self.placed[number].fill(self.calls[number].data(), self.calls[number].poison)

    def start(self, number: int, place: int) -> None:
        """Does what comes before a launch of a timed call."""
        if not place:
            if self.finished < number:
                self.recorder.between(self.finished, self.step)
                self.finished = number
            self.fill(number)
        self.recorder.between(number, place)

    def compare_results(self, number: int, when: str = "", left_out=None) -> None:
        """Raises NotTimed unless a call's results are right. left_out: which were not computed; None: all were."""
        parts = () if left_out is None else (left_out,)
        if problems := self.calls[number].check(self.case.copied(self.results[number]), *parts):
            told = f"{self.recorder.told} do not give its result{when}: {'; '.join(problems[:3])}"
            raise NotTimed(f"{told}{self.recorder.more}")

    def parts(self) -> list:
        """Gives each launch the memory of its call alone: not other calls' data, and no results of theirs."""
        found = []
        for number, (queue, one) in enumerate(zip(self.queues, self.placed, strict=True)):
            others = [extent for i, each in enumerate(self.extents) for extent in each if i != number]
            hidden = [
                region for region in {region for queued in queue for region in queued.regions}
                if overlap(region, others) and not overlap(region, self.extents[number])
            ]  # fmt: skip
            found += [self.device.part(queue, one, hidden)] * len(queue)
        return found

    def look(self, run) -> bool:
        """Tells, when a call of a timed run has ended, whether all behind it do the same; else `why` says why not.

        The next call may have begun, but before griddepcontrol.wait returns, which it does not yet, it has no business
        with what this one writes.
        """
        step, queues = self.step, self.queues
        ended = sum(timed.end is not None for timed in run.launches) // step
        for queued, timed in zip((q for queue in queues[:ended] for q in queue), run.launches):
            queued.read |= timed.launch.params.read
        last = run.launches[ended * step - 1].launch
        if last.cooperative and (ended == len(queues) or run.launches[ended * step].start is None):
            last.check_barrier()  # else it is found when all calls have been simulated
        if not self.why and self.left_behind() != self.kept:
            self.why = LEFT
        if not self.why and ended > 1:
            kinds = same_calls.numbered(self.given, queues)
            if kinds[ended - 1] != kinds[-1]:
                self.why = "the host gives later calls something else"
        if not self.why and ended > 2:
            before, last = (
                [instructions(timed.launch) for timed in run.launches[first : first + step]]
                for first in ((ended - 2) * step, (ended - 1) * step)
            )
            if not all(map(same_calls.alike_instructions, before, last)):
                self.why = "calls execute more or fewer instructions than those before them"
        return not self.why

    def timed(self) -> tuple[dict, list, list]:
        """Times the launches: a reply of `modelled`, what each moved and multiplied, and what of the results of each
        call that was timed is left out, None for nothing.

        Where a result can be compared in parts, one of SHARE clusters computes; but where a kernel could tell, all do.
        """
        launches, options = [queued for queue in self.queues for queued in queue], self.options
        starts = [
            functools.partial(self.start, number, i) for number in range(len(self.queues)) for i in range(self.step)
        ]
        run = functools.partial(
            modelled.time_launches, self.device, launches, starts, self.case.timed_calls,
            load(options.profile, self.case.contest), options.breakdown, self.look, self.parts,
        )  # fmt: skip
        if self.recorder.sampled and self.case.samples and any(map(self.device.computes, self.queues[0])):
            with contextlib.suppress(ResultsDecide):
                reply, counted = run(some_clusters(self.case.rng, self.queues[0], len(self.queues)))
                simulated = self.results[: reply["simulated"]]
                left_out = [self.case.left_out(results, self.device.not_computed) for results in simulated]
                parts = [part for call in left_out for part in call]
                compared = sum(int((~part).count_nonzero()) for part in parts)
                return reply | {"compared": compared / max(1, sum(map(torch.numel, parts)))}, counted, left_out
            self.again()
        reply, counted = run()
        return reply | {"compared": 1.0}, counted, [None] * reply["simulated"]

    def check_untimed(self, counts: list, of_kernels: float, sampled: bool) -> float:
        """Runs calls with all checks: a drawn one under each schedule, or all, if all had to be simulated. Returns the
        microseconds that what they touch takes at least, 0.0 where that is not asked for. Raises NotTimed, LeftBehind.

        counts: what the launches of each timed call moved and multiplied; of_kernels: the microseconds of a call's
        launches; sampled: whether only some clusters computed when timed.
        """
        device, queues, floor = self.device, self.queues, 0.0
        self.clear()
        kinds = same_calls.numbered(self.given, queues)
        for one in self.placed:  # each call has its own, by which no kernel can tell what was run before
            device.drop(one)
        pdl = queues[0][0].options["pdl"] and len(queues) > 1
        if not self.case.samples and not pdl:  # nobody knows what a call has to read: at least what it does
            device.footprints = []
        # The call behind a drawn one is only looked at for whether it waits
        nothing = (lambda first: False) if sampled and not self.why else None
        for schedule in range(self.options.calls):
            chosen = drawn(self.case.rng, len(counts), len(queues) - pdl)
            device.restore(self.before)
            self.clear()
            for number in range(len(queues)) if self.why else range(chosen, chosen + 1 + pdl):
                follows = nothing if number != chosen else None
                last = device.predecessor
                device.register(self.placed[number])
                device.begin((self.placed[number],), schedule)
                device.follow(last if number == chosen + 1 else None)
                expected = counts[number if self.why else 0]
                self.run_call(number, number == chosen or bool(self.why), follows, expected)
                if device.footprints:
                    floor = max(floor, self.floor_of_touched(number, of_kernels))
                device.drop(self.placed[number])
                if number == chosen and not self.why and self.left_behind() != self.kept:
                    for one in self.placed:
                        device.register(one)
                    self.again()
                    raise LeftBehind
        if not self.why and same_calls.numbered(self.given, queues) != kinds:
            raise NotTimed("only some calls read what the host gives each of its own")
        return floor

    def run_call(self, number: int, checks: bool, follows, expected: list) -> None:
        """Runs one call on fresh inputs. Raises NotTimed unless it does, and gives, what it has to.

        checks: all of them; it may know its number. follows: which clusters compute; None: all, and its results count.
        expected: what its launches moved and multiplied when timed.
        """
        device, placed, call = self.device, self.placed[number], self.calls[number]
        contents = call.data()
        placed.fill(contents, call.poison)
        device.number = number * self.step
        counts = []
        for i, queued in enumerate(self.queues[number]):
            self.recorder.between(number, i)
            counts.append(device.run(queued, checks, follows))
        self.recorder.between(number, self.step)
        if follows is None:
            self.compare_results(number)
        if checks and not placed.unchanged(lambda: contents):
            raise NotTimed(CHANGED)
        if not emulated.alike(counts, expected):
            raise NotTimed("the timed launches do not load, store and multiply what those that were checked do")

    def floor_of_touched(self, number: int, of_kernels: float) -> float:
        """Computes the microseconds that moving what a call has touched takes. Raises NotTimed if it took less."""
        floor = modelled.floor_of(*self.device.touched(self.placed[number]))
        if of_kernels < floor:
            what = f"moving what its kernels touch takes, {floor:.3f} us"
            raise NotTimed(f"{of_kernels:.3f} us is less than {what}")
        self.device.footprints = []
        return floor
