"""Records the launches of calls in a row and times them on the model; what was timed, and the rest, has to be right.

Each call gets inputs of its own, which come into being when its first launch starts, and some clusters of the timed run
compute: their results are compared. A call that was not simulated must be like one that was (same_calls.py); where that
does not follow from what its kernels can read, all calls are simulated, and all are checked. Else a drawn one is.
"""

import contextlib
import functools
import hashlib
import math
import os
import time
from collections.abc import Callable

import numpy as np
import torch

from emulated_gpu.arena import BASE
from emulated_gpu.errors import EmulatorError, ResultsDecide
from emulated_gpu.model.tally import instructions
from evaluation.judge import emulated, modelled, same_calls
from evaluation.judge.shared_tensors import OURS, THEIRS, taken
from evaluation.judge.task import Call, Case
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.verdict import Refused

LAUNCHES = 10_000  # of one call
SHARE, PATTERN = 8, 4096  # one of SHARE clusters computes in a timed launch; after PATTERN the draw repeats itself
CHANGED = "the submission changed its inputs"


class NotTimed(Exception):
    """There is no modelled time; the message says why."""


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
    """Draws one of `count` calls, of which the first few were timed: every second time one of these. A kernel may tell
    them from the others, by where its own memory lies."""
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


class LeftBehind(Exception):
    """A call that was checked has left something in memory, which those that were timed had not."""


class RecordedCalls:
    """Has the submission's process make the calls and ends it; then times, and checks, what it launched."""

    told = "the launches of a call alone"
    more = ". What torch or other host code computes is no launch: it has no time"
    sampled = True  # a timed launch need not compute all of its results

    def __init__(self, trial, case: Case):
        """trial: a trial.Trial of the case."""
        self.trial, self.case, self.process = trial, case, trial.process
        self.arena, self.heap = trial.examiner.arena, trial.examiner.heap
        self.rewritten, self.why = False, ""  # why all calls have to be simulated
        self.kept: dict = {}  # what lay in memory before the first call
        self.new: list[list[tuple[int, int]]] = []  # of each call: the submission's memory that was not there before
        self.seen: dict[tuple[int, int], bytes] = {}  # that memory, and a digest of what was in it

    @contextlib.contextmanager
    def prepared(self, calls: int):
        """Gives (a device, the calls, where each call's data will be) for this block; the submission's process will be
        a new one."""
        recorded = self.case.recorded(calls)
        self.process.kill()  # the calls are the first of a process, as in any other run
        device = self.process.new_device(int(self.case.rng.integers(2**31)))
        rooms = [self.case.room() for _ in range(calls)]
        placed = [rooms[i] for i in self.case.rng.permutation(calls)]  # no address tells which call comes next
        try:
            for one in placed:
                device.register(one)
            yield device, recorded, placed
        finally:
            for one in placed:
                one.release()
            self.arena.clear(THEIRS, self.arena.size - OURS)

    def shared_memory(self) -> int:
        """Finds the dynamic bytes that a call's launches ask for, at most; runs none of them. Raises Refused."""
        with self.prepared(1) as (device, _, placed):
            try:
                (queue,), _ = self.record(device, placed)
            finally:
                self.process.kill()
        return max((queued.options["dynamic_shared"] for queued in queue), default=0)

    def time(self) -> dict:
        """Times and checks the calls: a reply of `modelled`. Raises NotTimed."""
        trial = self.trial
        with self.prepared(self.case.timed_calls) as (device, calls, placed):
            try:
                queues, places = self.record(device, placed)
            except Refused as error:
                raise NotTimed(str(error)) from None
            finally:
                self.process.kill()  # from here on nothing of the submission's runs,
            self.arena.renew()  # and nobody to whom it may have handed the memory has it
            begin = time.perf_counter()
            try:
                with limit(trial.options.timeout, working=True):
                    return self.check(device, calls, placed, queues, places)
            except Late:
                why = self.why and f": {self.why}, so that all calls are run"
                raise NotTimed(f"no time within {trial.options.timeout:g} s of computing{why}") from None
            except (Refused, EmulatorError) as error:
                raise NotTimed(str(error)) from None
            except ResultsDecide as error:
                raise NotTimed(f"it depends on results, but only where they are computed: {error}") from None
            except MemoryError:
                raise NotTimed("out of memory") from None
            finally:
                trial.verdict.seconds += time.perf_counter() - begin
                trial.verdict.note(device.notes)

    def record(self, device: emulated.Device, placed: list) -> tuple[list, list]:
        """Collects the launches of each call, and live views of what each says are its results. Raises Refused."""
        queues, places, held = [], [], taken(*placed)  # the grader holds all results, too
        for one in placed:  # in turn: nobody knows where the next one's will be
            one.number = self.process.place(one.spec)
            queue: list[emulated.Queued] = []
            self.new.append([])

            def take(message, queue=queue) -> dict:
                if (queued := self.understood(device, message)) is None:
                    return {"error": None}
                if len(queue) >= LAUNCHES:
                    raise Refused(f"more than {LAUNCHES} launches in a call")
                queue.append(queued)
                self.look_at([region[:2] for region in queued.regions])
                return {"error": None}

            asked = {"op": "call", "number": one.number, "schedule": 0, "record": True}
            reply = self.process.ask("result", take, **asked, **self.asked)
            queues.append(queue)
            with self.process.answering("result"):
                places.append(self.case.results(reply["returned"], one, held))
        self.process.ask("result", op="guards")
        return queues, places

    def look_at(self, ranges: list[tuple[int, int]]) -> None:
        """Notes what of the submission's memory, (address, bytes), is new with this call, and whether the host has
        changed the rest."""
        for start, size in ranges:
            digest = self.digest(start, size)
            if (start, size) not in self.seen:
                self.new[-1].append((start, size))
            self.rewritten |= self.seen.setdefault((start, size), digest) != digest

    # What a call may have beside its launches: nothing here

    asked: dict = {}  # of the submission's process, beside a call's launches

    def understood(self, device: emulated.Device, message) -> emulated.Queued | None:
        """Reads what the submission's process tells in a call: a launch, or None. Raises Refused or Garbled."""
        return device.understand(message)

    def between(self, number: int, place: int) -> None:
        """Does what a call has before one of its launches, or behind the last. Raises Refused."""

    def given(self, number: int) -> list[int]:
        """Lists the addresses that the host gives a call beside its launches' parameters."""
        return []

    def own(self) -> list[tuple[int, int]]:
        """Lists memory, (address, bytes), that has contents in its call alone: results are never in it."""
        return []

    def with_rest(self, reply: dict) -> dict:
        """Adds to the time of a call's launches what the rest of it takes. Raises Refused."""
        return reply

    def digest(self, start: int, size: int) -> bytes:
        """Digests the contents of memory; skips holes, which reading through the mapping would fill."""
        found = hashlib.blake2b()
        for first, end in self.arena.data(start, size):
            if (data := os.pread(self.arena.fd, end - first, first - BASE)).strip(b"\0"):
                found.update(first.to_bytes(8, "little") + data)
        return found.digest()

    def look(self, device: emulated.Device, queues: list, given: list, kept: Callable[[], dict], run) -> bool:
        """Tells, when a call of a timed run has ended, whether all behind it do the same; else `why` says why not.

        kept: what has been left in memory. The next call may have begun, but before griddepcontrol.wait returns, which
        it does not yet, it has no business with what this one writes.
        """
        step = len(queues[0])
        ended = sum(timed.end is not None for timed in run.launches) // step
        for queued, timed in zip((q for queue in queues[:ended] for q in queue), run.launches):
            queued.read |= timed.launch.params.read
        last = run.launches[ended * step - 1].launch
        if last.cooperative and (ended == len(queues) or run.launches[ended * step].start is None):
            last.check_barrier()  # else it is found when all calls have been simulated
        if not self.why and kept() != self.kept:
            self.why = "kernels leave something in memory from call to call"
        if not self.why and ended > 1:
            kinds = same_calls.numbered(given, queues)
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

    def timed(self, device: emulated.Device, queues: list, places: list, starts: list, again, alike, parts) -> tuple:
        """Times the launches: a reply of `modelled`, what each moved and multiplied, and what of the results of each
        call that was timed is left out, None for nothing. again: gets ready for another run. alike, parts: as of
        `modelled.time_launches`.

        Where a result can be compared in parts, one of SHARE clusters computes; but where a kernel could tell, all do.
        """
        launches, options = [queued for queue in queues for queued in queue], self.trial.options
        run = functools.partial(
            modelled.time_launches, device, launches, starts, self.case.timed_calls, options.profile, options.breakdown,
            alike, parts,
        )  # fmt: skip
        if self.sampled and self.case.samples and any(map(device.computes, queues[0])):
            with contextlib.suppress(ResultsDecide):
                reply, counted = run(some_clusters(self.case.rng, queues[0], len(queues)))
                simulated = places[: reply["simulated"]]
                left_out = [self.case.left_out(results, device.not_computed) for results in simulated]
                parts = [part for call in left_out for part in call]
                compared = sum(int((~part).count_nonzero()) for part in parts)
                return reply | {"compared": compared / max(1, sum(map(torch.numel, parts)))}, counted, left_out
            again()
        reply, counted = run()
        return reply | {"compared": 1.0}, counted, [None] * reply["simulated"]

    def check(self, device: emulated.Device, calls: list[Call], placed: list, queues: list, places: list) -> dict:
        """Times recorded launches, and checks them: once more if only then it shows that all have to be simulated.
        Raises NotTimed, Refused or EmulatorError."""
        try:
            return self.checked(device, calls, placed, queues, places)
        except LeftBehind:
            self.why = "kernels leave something in memory from call to call"
            return self.checked(device, calls, placed, queues, places)

    def checked(self, device: emulated.Device, calls: list[Call], placed: list, queues: list, places: list) -> dict:
        """Times recorded launches, and checks them. Raises NotTimed, Refused or EmulatorError, and LeftBehind.

        queues, places: what `record` returned.
        """
        trial = self.trial
        first = queues[0]
        for number, queue in enumerate(queues):
            if other := other_launch(first, queue):
                raise NotTimed(f"call {number} does not launch what call 0 launches: {other}")
        if not first:
            raise NotTimed("custom_kernel launched no kernel of its own: nothing to time")
        if self.rewritten:
            raise NotTimed("the host changes device memory between launches: how long that takes is not modelled")
        regions = {*self.seen}
        given = [
            same_calls.Given(self.arena, queue, one.taken, new, self.given(number))
            for number, (queue, one, new) in enumerate(zip(queues, placed, self.new, strict=True))
        ]
        finished = 0  # of timed calls, also what they have behind their launches

        def start(number: int, place: int) -> None:
            """Does what comes before a launch of a timed call."""
            nonlocal finished
            if not place:
                if finished < number:
                    self.between(finished, len(first))
                    finished = number
                put(number)
            self.between(number, place)

        def put(number: int) -> None:
            placed[number].fill(calls[number].data(), calls[number].poison)

        def right(number: int, when: str = "", left_out=None) -> None:
            parts = () if left_out is None else (left_out,)
            if problems := calls[number].check(self.case.copied(places[number]), *parts):
                told = f"{self.told} do not give its result{when}: {'; '.join(problems[:3])}"
                raise NotTimed(f"{told}{self.more}")

        def clear() -> None:
            for one, results, call in zip(placed, places, calls, strict=True):
                self.case.clear(one, results, call.poison)

        extents = [self.case.extents(results) for results in places]

        def parts() -> list:
            """Gives each launch the memory of its call alone: not other calls' data, and no results of theirs."""
            found = []
            for number, (queue, one) in enumerate(zip(queues, placed, strict=True)):
                others = [extent for i, each in enumerate(extents) for extent in each if i != number]
                hidden = [
                    region for region in {region for queued in queue for region in queued.regions}
                    if overlap(region, others) and not overlap(region, extents[number])
                ]  # fmt: skip
                found += [device.part(queue, one, hidden)] * len(queue)
            return found

        device.spoil(regions)
        clear()
        before = device.snapshot(regions)
        starts = [functools.partial(start, number, i) for number in range(len(queues)) for i in range(len(first))]
        own = [*(extent for each in extents for extent in each), *self.own()]
        kept = functools.partial(device.left_behind, regions, own)
        self.kept = kept()
        if not self.why and same_calls.count_or_tell_time(first):
            self.why = "a kernel reads a timer or %gridid"

        def again() -> None:
            nonlocal finished
            finished = 0
            device.restore(before)
            clear()

        look = functools.partial(self.look, device, queues, given, kept)
        reply, counted, left_out = self.timed(device, queues, places, starts, again, look, parts)
        if self.why and reply["simulated"] < len(queues):
            again()
            reply, counted, left_out = self.timed(device, queues, places, starts, again, look, parts)
        simulated = reply["simulated"]
        for number in range(finished, simulated):
            self.between(number, len(first))
        ended = [counted[i : i + len(first)] for i in range(0, simulated * len(first), len(first))]
        of_kernels, reply = reply["us"], self.with_rest(reply)
        if reply["us"] < (floor := self.case.floor):
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {floor:.3f} us")
        reply["floor_us"] = floor
        for number in range(simulated):
            right(number, " when timed", left_out[number])
        if not self.why and not all(emulated.alike(counts, ended[0]) for counts in ended):
            raise NotTimed("calls with equal launches do not load, store and multiply the same")
        clear()
        kinds = same_calls.numbered(given, queues)
        for one in placed:  # each call has its own, by which no kernel can tell what was run before
            device.drop(one)
        pdl = queues[0][0].options["pdl"] and len(queues) > 1
        if not self.case.samples and not pdl:  # nobody knows what a call has to read: at least what it does
            device.footprints = []
        nothing = (lambda first: False) if left_out[0] is not None and not self.why else None
        for schedule in range(trial.options.calls):
            drawn_call = drawn(self.case.rng, simulated, len(queues) - pdl)
            device.restore(before)
            clear()
            for number in range(len(queues)) if self.why else range(drawn_call, drawn_call + 1 + pdl):
                checks = number == drawn_call or bool(self.why)  # it may know its number
                last = device.predecessor
                device.register(placed[number])
                contents = calls[number].data()
                placed[number].fill(contents, calls[number].poison)
                device.begin((placed[number],), schedule)
                device.follow(last if number == drawn_call + 1 else None)
                device.number = number * len(first)
                follows = nothing if number != drawn_call else None  # only looked at for whether it waits
                counts = []
                for i, queued in enumerate(queues[number]):
                    self.between(number, i)
                    counts.append(device.run(queued, checks, follows))
                self.between(number, len(first))
                if follows is None:
                    right(number)
                if checks and not placed[number].unchanged(lambda contents=contents: contents):
                    raise NotTimed(CHANGED)
                if not emulated.alike(counts, ended[number if self.why else 0]):
                    raise NotTimed("the timed launches do not load, store and multiply what those that were checked do")
                if device.footprints:
                    floor = modelled.floor_of(*device.touched(placed[number]))
                    if of_kernels < floor:
                        what = f"moving what its kernels touch takes, {floor:.3f} us"
                        raise NotTimed(f"{of_kernels:.3f} us is less than {what}")
                    reply["floor_us"] = max(reply.get("floor_us", 0.0), floor)
                    device.footprints = []
                device.drop(placed[number])
                if number == drawn_call and not self.why and kept() != self.kept:
                    for one in placed:
                        device.register(one)
                    again()
                    raise LeftBehind
        if not self.why and same_calls.numbered(given, queues) != kinds:
            raise NotTimed("only some calls read what the host gives each of its own")
        return reply | ({"all_run": self.why} if self.why else {})
