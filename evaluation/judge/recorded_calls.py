"""Records the launches of calls in a row and times them on the model; calls drawn afterwards have to be right."""

import contextlib
import hashlib
import os
import time

from emulator.arena import BASE
from emulator.errors import EmulatorError
from evaluation.judge import emulated, inputs, modelled
from evaluation.judge.placed import OURS, THEIRS, Placed, taken
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.trial import Trial
from evaluation.judge.verdict import Refused

LAUNCHES = 10_000  # of one call


class NotTimed(Exception):
    """There is no modelled time; the message says why."""


class RecordedCalls:
    """Has the submission's process make the calls and ends it; then times, and checks, what it launched."""

    def __init__(self, trial: Trial):
        self.trial, self.process = trial, trial.process
        self.arena, self.heap = trial.examiner.arena, trial.examiner.heap
        self.rewritten = False

    @contextlib.contextmanager
    def prepared(self, calls: int):
        """Gives (a device, data, that of each call placed) for this block; the submission's process will be a new
        one."""
        trial = self.trial
        data = trial.generate(trial.args, trial.hidden)
        self.process.kill()  # the calls are the first of a process, as in any other run
        device = emulated.Device(self.arena, THEIRS, trial.options.strict)
        placed = [Placed(data, trial.task.on_host, self.heap) for _ in range(calls)]
        try:
            for one in placed:
                device.register(one)
            yield device, data, placed
        finally:
            for one in placed:
                one.show(one)
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
        with self.prepared(trial.task.calls) as (device, data, placed):
            try:
                queues, places = self.record(device, placed)
            except Refused as error:
                raise NotTimed(str(error)) from None
            finally:
                self.process.kill()  # from here on nothing of the submission's runs
            begin = time.perf_counter()
            try:
                with limit(trial.options.timeout):
                    return self.check(device, data, placed, queues, places)
            except Late:
                raise NotTimed(f"no time within {trial.options.timeout:g} s") from None
            except (Refused, EmulatorError) as error:
                raise NotTimed(str(error)) from None
            except MemoryError:
                raise NotTimed("out of memory") from None
            finally:
                trial.verdict.seconds += time.perf_counter() - begin
                trial.verdict.note(device.notes)

    def record(self, device: emulated.Device, placed: list[Placed]) -> tuple[list, list]:
        """Collects the launches of each call, and live views of what each says are its results. Raises Refused."""
        queues, places, seen, held = [], [], {}, taken(*placed)  # the grader holds all results, too
        for number in [self.process.place(one.spec) for one in placed]:
            queue = []

            def take(message) -> dict:
                queued = device.understand(message)
                if len(queue) >= LAUNCHES:
                    raise Refused(f"more than {LAUNCHES} launches in a call")
                queue.append(queued)
                for start, size, *_ in queued.regions:
                    digest = self.digest(start, size)
                    self.rewritten |= seen.setdefault((start, size), digest) != digest
                return {"error": None}

            reply = self.process.ask("result", take, op="call", number=number, schedule=0, record=True)
            if wrong := reply.get("wrong"):
                raise Refused(str(wrong)[:1000])
            queues.append(queue)
            with self.process.answering("result"):
                places.append(self.trial.results(reply["returned"], inputs.outputs(placed[0].data), held))
        return queues, places

    def digest(self, start: int, size: int) -> bytes:
        """Digests the contents of memory; skips holes, which reading through the mapping would fill."""
        fd, at, end, found = self.arena.fd, start - BASE, start - BASE + size, hashlib.blake2b()
        while at < end:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # only holes up to the end of the file
                break
            stop = min(end, os.lseek(fd, at, os.SEEK_HOLE))
            if at < stop and (data := os.pread(fd, stop - at, at)).strip(b"\0"):
                found.update(at.to_bytes(8, "little") + data)
            at = stop
        return found.digest()

    def check(self, device: emulated.Device, data, placed: list[Placed], queues: list, places: list) -> dict:
        """Times recorded launches, and checks calls that are drawn. Raises NotTimed, Refused or EmulatorError.

        queues, places: what `record` returned. The audited calls get the inputs `data` under new schedules.
        """
        trial = self.trial
        if not queues[-1]:
            raise NotTimed("custom_kernel launched no kernel of its own: nothing to time")
        first = [queued.shape for queued in queues[0]]
        for number, queue in enumerate(queues):
            if [queued.shape for queued in queue] != first:
                raise NotTimed(f"call {number} does not launch what call 0 launches")
        if self.rewritten:
            raise NotTimed("the host changes device memory between launches: how long that takes is not modelled")
        launches = [queued for queue in queues for queued in queue]
        before = device.snapshot({region[:2] for queued in launches for region in queued.regions})
        for one in placed:  # each call loads what the audited one will
            one.show(placed[0])
        placed[0].fill(data)
        profile, breakdown = trial.options.profile, trial.options.breakdown
        reply, counted = modelled.time_launches(device, launches, len(first), trial.task.calls, profile, breakdown)
        ended = [counted[i : i + len(first)] for i in range(0, reply["simulated"] * len(first), len(first))]
        if not all(emulated.alike(counts, ended[0]) for counts in ended):
            raise NotTimed("calls with equal launches do not load, store and multiply the same")
        floor = modelled.speed_of_light(trial.args)
        if reply["us"] < floor:
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {floor:.3f} us")
        known = inputs.Known(data)
        for schedule in range(trial.options.calls):
            number = int(trial.rng.integers(min(2, reply["simulated"] - 1), reply["simulated"]))
            device.restore(before)
            for result in inputs.outputs(placed[number].data) + places[number]:
                result.fill_(float("nan"))
            device.begin((placed[number],), schedule)
            counts = [device.run(queued) for queued in queues[number]]
            try:
                trial.judge_results(places[number], data, known, placed[number])
            except Refused as error:
                raise NotTimed(f"the launches of a call alone do not give its result: {error}") from None
            if not emulated.alike(counts, ended[0]):
                raise NotTimed("the timed launches do not load, store and multiply what those that were checked do")
        return reply
