"""Judges one case on the emulator: calls one after the other, each with inputs of its own, or calls that are timed."""

import time

from emulated_gpu.errors import EmulatorError
from evaluation.judge.mixed_calls import MixedCalls, Unmixed
from evaluation.judge.recorded_calls import RecordedCalls
from evaluation.judge.shared_tensors import Placed, taken
from evaluation.judge.task import Call, Case
from evaluation.judge.timed_calls import CHANGED, NotTimed
from evaluation.judge.verdict import Refused, Verdict
from evaluation.tasks import data as any_data
from task import TestCase


class Trial:
    """Holds a case and its verdict so far. examiner: an Examiner, for its memory and its process."""

    def __init__(self, case: TestCase, examiner):
        self.examiner, self.options, self.process = examiner, examiner.options, examiner.process
        self.verdict, self.args = Verdict(case.spec), case.args

    def run(self, extra: bool) -> None:
        """Raises Refused unless every call was right. extra: with more calls, which only the judge knows of.

        Where Options.timed is set, the time is modelled, and what was timed is checked in place of calls.
        """
        with self.options.task.case(self) as case:
            count = max(2, self.options.calls)
            if self.options.timed and case.untimed:
                self.verdict.modelled = {"error": case.untimed}
            elif self.options.timed:
                try:
                    self.verdict.modelled = RecordedCalls(self, case).time()
                    count = 0  # an audit has been right
                except NotTimed as error:
                    self.verdict.modelled = self.priced(case, str(error))
                    self.verdict.mismatches = self.verdict.ulps = None  # of a call without what its host does
            self.calls(case, count, extra)

    def priced(self, case: Case, why: str) -> dict:
        """Times calls in which torch computes, too, where that is asked for: a reply. why: they have no other time."""
        if not self.options.priced:
            return {"error": why}
        try:
            return MixedCalls(self, case).time()
        except Unmixed:
            return {"error": why}
        except NotTimed as error:
            return {"error": f"{why}. No priced time either: {error}"}

    def calls(self, case: Case, count: int, extra: bool) -> None:
        """Makes the calls of a case; each launch has run when the submission goes on. Raises Refused."""
        objects: dict[object, Placed] = {}  # by Call.sizes
        try:
            for call in case.calls(count, extra):
                try:
                    self.call(case, call, objects)
                except Refused as error:
                    self.process.kill()
                    raise Refused(f"{call.told}{error}") from None
        finally:
            for placed in objects.values():
                self.process.device.drop(placed)
                placed.release()

    def call(self, case: Case, call: Call, objects: dict[object, Placed]) -> None:
        """Makes one call. Raises Refused unless it was right."""
        if self.process.pid is None:
            self.process.start()
        if call.sizes not in objects:
            placed = objects[call.sizes] = case.place(call.data())
            self.process.device.register(placed)
            placed.number = self.process.place(placed.spec)
        placed = objects[call.sizes]
        placed.fill(call.data(), call.poison)
        problems = call.check(self.result_of(case, call, placed))
        if not placed.unchanged(call.data):
            problems.append(CHANGED)
        if problems:
            raise Refused("; ".join(problems[:3]))
        self.process.ask("result", op="guards")

    def result_of(self, case: Case, call: Call, placed: Placed):
        """Has the submission called on an object, and returns a copy of what it returned, made at once: its process may
        still change that. Raises Refused, for findings of the device in that call, too."""
        process, device, begin = self.process, self.process.device, time.perf_counter()

        def take(message) -> dict:
            try:
                device.run(device.understand(message))
            except EmulatorError as error:
                return {"error": error.message, "kind": error.kind}
            return {"error": None}

        device.begin((placed,), call.schedule)
        try:
            reply = process.ask("result", take, op="call", number=placed.number, schedule=call.schedule, record=False)
        except Refused:
            if device.findings:
                raise Refused("; ".join(device.findings)) from None
            raise
        self.verdict.seconds += time.perf_counter() - begin
        self.verdict.note(device.notes)
        if device.findings:
            raise Refused("; ".join(device.findings))
        with process.answering("result"):
            results = case.results(reply["returned"], placed, taken(placed))
            found = case.copied(results)
            process.stand_still()
            if not any_data.same(found, case.copied(results)):
                raise Refused("its results change after it has returned them")
            return found
