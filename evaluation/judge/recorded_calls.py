"""Records the launches of calls in a row, in the submission's process; when that has ended, times and checks them."""

import contextlib
import hashlib
import os
import time

from emulated_gpu.arena import BASE
from emulated_gpu.errors import EmulatorError, ResultsDecide
from evaluation.judge import emulated
from evaluation.judge.shared_tensors import OURS, THEIRS, taken
from evaluation.judge.task import Case
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.timed_calls import NotTimed, Recording, TimedCalls
from evaluation.judge.verdict import Refused

LAUNCHES = 10_000  # of one call


class RecordedCalls:
    """Has the submission's process make the calls and ends it; then times, and checks, what it launched."""

    told = "the launches of a call alone"
    more = ". What torch or other host code computes is no launch: it has no time"
    sampled = True  # a timed launch need not compute all of its results

    def __init__(self, trial, case: Case):
        """trial: a trial.Trial of the case."""
        self.trial, self.case, self.process = trial, case, trial.process
        self.arena, self.heap = trial.examiner.arena, trial.examiner.heap
        self.rewritten = False  # whether the host has changed memory between launches
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
                timed = TimedCalls(self, Recording(device, calls, placed, *self.record(device, placed)))
            except Refused as error:
                raise NotTimed(str(error)) from None
            finally:
                self.process.kill()  # from here on nothing of the submission's runs,
            self.arena.renew()  # and nobody to whom it may have handed the memory has it
            begin = time.perf_counter()
            try:
                with limit(trial.options.timeout, working=True):
                    return self.check(timed)
            except Late:
                why = timed.why and f": {timed.why}, so that all calls are run"
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

    def check(self, timed: TimedCalls) -> dict:
        """Times the calls and checks them: a reply of `modelled`. Raises NotTimed, Refused or EmulatorError."""
        return timed.check()

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
