"""Times calls that mix kernels of their own with torch's operations: kernels are modelled, operations are priced.

Both are recorded, and the judge carries both out on inputs that nobody has seen (library.py): what the submission's
process does not tell is not in the results. Such a time is labelled, and only `benchmark` has it: nothing is ranked by
it. All calls that are recorded are timed, as what operations leave behind is not looked at.
"""

import dataclasses
import functools
import time

from emulated_gpu.errors import EmulatorError
from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import load
from evaluation.judge import emulated, library, modelled
from evaluation.judge.recorded_calls import CHANGED, LAUNCHES, NotTimed, RecordedCalls
from evaluation.judge.shared_tensors import THEIRS, taken
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.verdict import Refused

CALLS = 3  # that are recorded and timed together, at most


class Unmixed(Exception):
    """No operation of torch's was told."""


class MixedCalls(RecordedCalls):
    """Has the submission's process make calls, which tell launches and operations; then times and checks them."""

    def time(self) -> dict:
        """Times and checks the calls: a reply of `modelled` that has `priced`. Raises NotTimed or Unmixed."""
        trial = self.trial
        with self.prepared(min(CALLS, self.case.timed_calls)) as (device, calls, placed):
            try:
                steps, places = self.record(device, placed)
            except Refused as error:
                raise NotTimed(str(error)) from None
            finally:
                self.process.kill()
            self.arena.renew()
            begin = time.perf_counter()
            try:
                with limit(trial.options.timeout, working=True):
                    return self.check(device, calls, placed, steps, places)
            except Late:
                raise NotTimed(f"no time within {trial.options.timeout:g} s of computing") from None
            except (Refused, EmulatorError) as error:
                raise NotTimed(str(error)) from None
            except MemoryError:
                raise NotTimed("out of memory") from None
            finally:
                trial.verdict.seconds += time.perf_counter() - begin
                trial.verdict.note(device.notes)

    def record(self, device: emulated.Device, placed: list) -> tuple[list, list]:
        """Collects the launches and operations of each call, in order, and live views of its results. Raises Refused,
        NotTimed or Unmixed."""
        steps, places, held = [], [], taken(*placed)
        for one in placed:
            one.number, found = self.process.place(one.spec), []

            def take(message, found=found) -> dict:
                if len(found) >= LAUNCHES:
                    raise Refused(f"more than {LAUNCHES} launches and operations in a call")
                told = message.get("library")
                found.append(library.understand(told) if told is not None else device.understand(message))
                return {"error": None}

            reply = self.process.ask(
                "result", take, op="call", number=one.number, schedule=0, record=True, library=True
            )
            steps.append(found)
            with self.process.answering("result"):
                places.append(self.case.results(reply["returned"], one, held))
        self.process.ask("result", op="guards")
        if unknown := next((step for call in steps for step in call if isinstance(step, str)), None):
            raise NotTimed(unknown)
        if not any(isinstance(step, library.Operation) for step in steps[0]):
            raise Unmixed
        for number, call in enumerate(steps):
            if [step.shape for step in call] != [step.shape for step in steps[0]]:
                raise NotTimed(f"call {number} does not do what call 0 does")
        return steps, places

    def check(self, device: emulated.Device, calls: list, placed: list, steps: list, places: list) -> dict:
        trial, case = self.trial, self.case
        launches = [step for call in steps for step in call if isinstance(step, emulated.Queued)]
        regions = {region[:2] for queued in launches for region in queued.regions}
        operations = [step for step in steps[0] if isinstance(step, library.Operation)]
        priced = library.priced(operations, len(steps[0]) - len(operations))

        def carry_out(number: int, operation: library.Operation) -> None:
            own = [(one.address, one.size, one.role.written) for one in placed[number].storages.values()]

            def may(address: int, size: int, write: bool) -> bool:
                inside = THEIRS <= address and address + size <= self.arena.end
                return inside or any(
                    start <= address and address + size <= start + length and (written or not write)
                    for start, length, written in own
                )

            operation.run(self.arena.view, functools.partial(may, write=False), functools.partial(may, write=True))

        def right(number: int) -> None:
            if problems := calls[number].check(case.copied(places[number])):
                told = "; ".join(problems[:3])
                raise NotTimed(f"launches and operations of a call alone do not give its result: {told}")

        def clear() -> None:
            for one, results, call in zip(placed, places, calls, strict=True):
                case.clear(one, results, call.poison)

        clear()
        before = device.snapshot(regions)
        reply = self.modelled(device, calls, placed, steps, carry_out)
        for number in range(len(steps)):
            right(number)
        for one in placed:
            device.drop(one)
        for schedule in range(trial.options.calls):
            number = int(case.rng.integers(len(steps)))
            device.restore(before)
            clear()
            device.register(placed[number])
            contents = calls[number].data()
            placed[number].fill(contents, calls[number].poison)
            device.begin((placed[number],), schedule)
            for step in steps[number]:
                if isinstance(step, library.Operation):
                    carry_out(number, step)
                else:
                    device.run(step)
            right(number)
            if not placed[number].unchanged(lambda contents=contents: contents):
                raise NotTimed(CHANGED)
            device.drop(placed[number])
        reply["us"] += priced["us"]
        reply["us_interval"] = [us + priced["us"] for us in reply["us_interval"]]
        reply["us_corrected"] = uncertainty.corrected(tuple(reply["us_interval"]))
        if reply["us"] < case.floor:
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {case.floor:.3f} us")
        return reply | {"floor_us": case.floor, "priced": priced | {"share": priced["us"] / reply["us"]}}

    def modelled(self, device: emulated.Device, calls: list, placed: list, steps: list, carry_out) -> dict:
        """Times the launches, between which operations are carried out: a reply. Of calls without one it says zero."""
        options, queue, starts, waiting = self.trial.options, [], [], []

        def put(number: int) -> None:
            placed[number].fill(calls[number].data(), calls[number].poison)

        for number, call in enumerate(steps):
            waiting.append(functools.partial(put, number))
            for step in call:
                if isinstance(step, library.Operation):
                    waiting.append(functools.partial(carry_out, number, step))
                    continue
                if waiting:  # what comes behind an operation is no dependent of a launch
                    step = dataclasses.replace(step, options=step.options | {"pdl": False})
                queue.append(step)
                starts.append(functools.partial(lambda todo: [one() for one in todo], waiting))
                waiting = []
        if queue:
            reply, _ = modelled.time_launches(
                device, queue, starts, len(steps), options.profile, options.breakdown, lambda run: False, None
            )
        else:
            profile = load(options.profile)
            reply = {"us": 0.0, "us_corrected": 0.0, "us_interval": [0.0, 0.0], "errors_of": "priced", "pdl": False}
            reply |= {"calls": len(steps), "simulated": 0, "ends_us": [], "interval_us": {}, "launches": 0}
            reply |= {"profile": profile.name, "validation": profile.validation}
        for one in waiting:
            one()
        return reply | {"compared": 1.0}
