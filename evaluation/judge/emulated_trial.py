"""Runs a case on the emulator: calls one after the other, each with inputs of its own, or calls that are timed."""

import time
from collections.abc import Callable

from emulator.errors import EmulatorError
from evaluation.judge import inputs
from evaluation.judge.placed import Placed, taken
from evaluation.judge.recorded_calls import NotTimed, RecordedCalls
from evaluation.judge.submission_process import SubmissionProcess
from evaluation.judge.trial import Trial, near
from evaluation.judge.verdict import Refused, Verdict


class EmulatedTrial(Trial):
    """Runs a case on the emulator. Where Options.timed is set, its time is modelled, and what was timed is checked in
    place of calls."""

    def run(self, extra: bool) -> None:
        """Raises Refused unless every call was right. extra: as of EmulatedCalls.run."""
        if self.options.timed:
            try:
                self.verdict.modelled = RecordedCalls(self).time()
                calls = []  # an audit has been right
            except NotTimed as error:
                self.verdict.modelled = {"error": str(error)}
                self.verdict.mismatches = self.verdict.ulps = None  # of a call without what its host does
                calls = [0, 1]
        else:
            calls = [*range(max(2, self.options.calls))]
        EmulatedCalls(self).run(calls, extra)


def called(process: SubmissionProcess, number: int, schedule: int) -> dict:
    """Has the process call the kernel on an object, and runs each launch when it comes: the reply. Raises Refused."""
    device = process.device

    def take(message) -> dict:
        try:
            device.run(device.understand(message))
        except EmulatorError as error:
            return {"error": error.message, "kind": error.kind}
        return {"error": None}

    try:
        return process.ask("result", take, op="call", number=number, schedule=schedule, record=False)
    except Refused:
        if device.findings:
            process.kill()
            raise Refused("; ".join(device.findings)) from None
        raise


def result_of(process: SubmissionProcess, placed, number: int, schedule: int, verdict: Verdict, read: Callable):
    """Makes a call on a placed object and returns read(what came back), read at once: the process may still change it.

    The verdict keeps its seconds and notes. Raises Refused, and ends the process, for what the device has found in the
    call, and for a result that is none.
    """
    device = process.device
    device.begin((placed,), schedule)
    begin = time.perf_counter()
    reply = called(process, number, schedule)
    verdict.seconds += time.perf_counter() - begin
    try:
        verdict.note(device.notes)
        if device.findings:
            raise Refused("; ".join(device.findings))
        if wrong := reply.get("wrong"):
            raise Refused(str(wrong)[:1000])
        with process.answering("result"):
            return read(reply["returned"])
    except Refused:
        process.kill()
        raise


class EmulatedCalls:
    """Makes calls one after the other on the same object; each launch has run when the submission goes on."""

    def __init__(self, trial: Trial):
        self.trial, self.process, self.heap = trial, trial.process, trial.examiner.heap
        self.placed: dict[tuple, Placed] = {}  # sizes -> an object of them
        self.numbers: dict[tuple, int] = {}  # its number in the submission's process
        self.device = None

    def run(self, calls: list[int], extra: bool) -> None:
        """Makes the calls: the first has the case's own inputs, the others some that nobody knows. Raises Refused.

        From the third on every second one has former inputs in disguise: a result that was kept is a wrong result.
        extra: with a call more, one with sizes near the case's, and one whose inputs have all numbers of their formats.
        """
        trial = self.trial
        plan = [(trial.args, schedule, False) for schedule in calls]
        if extra:
            more = [(near(trial.args, trial.rng), 0, False)]
            if plan:
                plan.append((trial.args, 0, False))
                more += [(trial.args, 0, True)] if trial.task.generate_full_range_input else []
            for call in more:
                plan.insert(int(trial.rng.integers(1, len(plan) + 1)) if plan else 0, call)
        try:
            seeds = []  # of the inputs of the case's own sizes
            for number, (args, schedule, full_range) in enumerate(plan):
                listed = args is trial.args and not full_range
                disguise, seed = None, trial.hidden + 42 * number
                if listed and not number:
                    seed = args["seed"]
                elif listed and len(seeds) % 2 == 0:
                    seed, disguise = int(trial.rng.choice(seeds)), int(trial.rng.integers(2**31))
                if listed:
                    seeds.append(seed)
                self.call(args, seed, schedule, disguise, full_range)
        except Refused as error:
            if full_range:
                raise Refused(f"with all FP4 numbers and scales: {error}") from None
            if args is not trial.args:
                sizes = ", ".join(f"{name} {args[name]}" for name in "mnk")
                raise Refused(f"with other sizes ({sizes}): {error}") from None
            raise
        finally:
            for placed in self.placed.values():
                self.device.drop(placed)
                placed.release()

    def call(self, args: dict, seed: int, schedule: int, disguise: int | None, full_range: bool) -> None:
        """Makes one call; raises Refused unless it was right. disguise: a seed for what is done to the inputs, or
        None."""
        trial = self.trial
        data = trial.generate(args, seed, full_range)
        if disguise is not None:
            inputs.disguise(data, inputs.draw(disguise, data))
        if self.process.pid is None:
            self.process.start()
        self.device = device = self.process.device
        key = tuple(args[name] for name in "mnk")
        if key not in self.placed:
            self.placed[key] = Placed(data, trial.task.on_host, self.heap)
            device.register(self.placed[key])
            self.numbers[key] = self.process.place(self.placed[key].spec)
        number, placed = self.numbers[key], self.placed[key]
        placed.fill(data)
        known = inputs.Known(data)  # beforehand: results are taken at once

        def copied(places: list) -> list:
            return [result.clone() for result in trial.results(places, inputs.outputs(data), taken(placed))]

        returned = result_of(self.process, placed, number, schedule, trial.verdict, copied)
        trial.judge_results(returned, data, known.outputs(None), placed)
