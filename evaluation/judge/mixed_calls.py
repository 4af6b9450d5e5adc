"""Times calls that mix kernels of their own with torch's operations: kernels are modelled, operations are priced.

Both are recorded, and the judge carries both out on inputs that nobody has seen (library.py): what the submission's
process does not tell is not in the results. All that is asked of a call of launches alone (timed_calls.py) is asked
of such a call, too. Its time is labelled, and only `benchmark` has it: nothing is ranked by it.
"""

import functools

from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import load
from evaluation.judge import emulated, library
from evaluation.judge.recorded_calls import LAUNCHES, RecordedCalls
from evaluation.judge.shared_tensors import THEIRS
from evaluation.judge.timed_calls import CHANGED, NotTimed, TimedCalls, overlap
from evaluation.judge.verdict import Refused


class Unmixed(Exception):
    """No operation of torch's was told."""


class MixedCalls(RecordedCalls):
    """Has the submission's process make calls, which tell launches and operations; then times and checks them."""

    told = "launches and operations of a call alone"
    more = ""
    sampled = False  # operations read all
    asked = {"library": True}

    def record(self, device: emulated.Device, placed: list) -> tuple[list, list]:
        """Collects the launches and operations of each call, in order, and live views of its results. Raises Refused,
        NotTimed or Unmixed."""
        # Of each call: its operations before each launch, and behind the last
        self.operations: list[list[list[library.Operation]]] = [[[]] for _ in placed]
        queues, places = super().record(device, placed)
        first = [one for some in self.operations[0] for one in some]
        if not first:
            raise Unmixed
        shapes = [[[one.shape for one in some] for some in call] for call in self.operations]
        for number, call in enumerate(shapes):
            if call != shapes[0]:
                raise NotTimed(f"call {number} does not do what call 0 does")
        self.priced: dict = library.priced(first, len(queues[0]))
        self.places = [self.case.extents(results) for results in places]
        self.placed = placed
        return queues, places

    def understood(self, device: emulated.Device, message) -> emulated.Queued | None:
        steps = self.operations[len(self.new) - 1]
        if "library" not in message:
            queued = device.understand(message)
            if steps[-1] or len(steps) == 1:  # what comes behind an operation is no dependent of a launch
                queued.options["pdl"] = False
            steps.append([])
            return queued
        if sum(map(len, steps)) >= LAUNCHES:
            raise Refused(f"more than {LAUNCHES} operations in a call")
        steps[-1].append(operation := library.understand(message["library"]))
        self.look_at([place for place in operation.places() if self.theirs(*place)])
        return None

    def theirs(self, address: int, size: int) -> bool:
        """Tells whether that is memory of the submission's."""
        return THEIRS <= address and address + size <= self.arena.end

    def between(self, number: int, place: int) -> None:
        own = [(one.address, one.size, one.role.written) for one in self.placed[number].storages.values()]
        others = [extent for i, each in enumerate(self.places) for extent in each if i != number]

        def may(address: int, size: int, write: bool) -> bool:
            if self.theirs(address, size):
                return not overlap((address, size), others)
            return any(
                start <= address and address + size <= start + length and (written or not write)
                for start, length, written in own
            )

        read, write = (functools.partial(may, write=each) for each in (False, True))
        for operation in self.operations[number][place]:
            operation.run(self.arena.view, read, write)
        if place == len(self.operations[number]) - 1:
            for start, size in self.made(number):
                if not overlap((start, size), self.places[number]):
                    self.arena.view(start, size)[:] = 0

    def made(self, number: int) -> list[tuple[int, int]]:
        """Lists where results of a call's operations are that come into being with them."""
        operations = [one for some in self.operations[number] for one in some if not one.written]
        return [place for one in operations for place in one.places(results=True) if self.theirs(*place)]

    def given(self, number: int) -> list[int]:
        return [start for some in self.operations[number] for one in some for start, _ in one.places()]

    def own(self) -> list[tuple[int, int]]:
        return [place for number in range(len(self.operations)) for place in self.made(number)]

    def with_rest(self, reply: dict) -> dict:
        us = reply["us"] + self.priced["us"]
        interval = reply["us_interval"] and [each + self.priced["us"] for each in reply["us_interval"]]
        best = uncertainty.corrected(tuple(interval)) if interval else us
        reply |= {"us": us, "us_interval": interval, "us_corrected": best}
        return reply | {"priced": self.priced | {"share": self.priced["us"] / us}}

    def check(self, timed: TimedCalls) -> dict:
        if any(timed.queues):
            return super().check(timed)
        if self.rewritten:
            raise NotTimed("the host changes device memory between operations: how long that takes is not modelled")
        timed.clear()
        for number, (one, call) in enumerate(zip(timed.placed, timed.calls, strict=True)):
            contents = call.data()
            one.fill(contents, call.poison)
            self.between(number, 0)
            timed.compare_results(number)
            if not one.unchanged(lambda contents=contents: contents):
                raise NotTimed(CHANGED)
        profile = load(self.trial.options.profile)
        reply = {"us": 0.0, "us_interval": [0.0, 0.0], "unlike": "", "pdl": False, "calls": len(timed.calls)}
        reply |= {"simulated": 0, "ends_us": [], "interval_us": {}, "launches": 0, "compared": 1.0}
        reply = self.with_rest(reply | {"profile": profile.name, "validation": profile.validation})
        if reply["us"] < self.case.floor:
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {self.case.floor:.3f} us")
        return reply | {"floor_us": self.case.floor}
