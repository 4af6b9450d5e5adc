"""Judges cases in a process of its own, the judge's; the submission's process is another. See ../README.md."""

import contextlib
import os
import resource
import socket
from collections.abc import Callable

import torch

from emulated_gpu.arena import BASE, PAGE, Arena, Heap
from emulated_gpu.errors import EmulatorError
from emulated_gpu.finding_rows import row_of
from emulated_gpu.machine.launch import Launch
from emulated_gpu.page.findings import events
from evaluation.judge import isolation
from evaluation.judge.gpu_trial import GpuTrial, MeasuredTrial, measure_in_turns
from evaluation.judge.options import Options
from evaluation.judge.recorded_calls import RecordedCalls
from evaluation.judge.sandbox import Beat, Channel, Nursery
from evaluation.judge.shared_tensors import OURS, THEIRS
from evaluation.judge.statistics import Stats
from evaluation.judge.submission_process import USERS_CACHE, SubmissionProcess
from evaluation.judge.trial import Trial
from evaluation.judge.verdict import Refused, Verdict, legible
from task import TestCase

HELD = 8.0  # GiB that the judge's process may need beside what the submission's kernels do


class Examiner:
    """Judges cases one after the other. arena, heap: the memory shared with the submission's process, and the judge's
    part of it. say: is told how far a long launch is."""

    def __init__(
        self, options: Options, nursery: Nursery, directory: str, judges: list[int], arena: Arena, heap: Heap,
        say: Callable[[str], None], user: int | None = None,
    ):  # fmt: skip
        self.options, self.arena, self.heap = options, arena, heap
        self.process = SubmissionProcess(options, nursery, self.arena, directory, judges, say, self.keep, user)
        self.rows: list[dict] = []  # of what was found in the case that is judged

    def keep(self, of_class: str, found: EmulatorError, launch: Launch | None) -> None:
        """Keeps a row of a finding or note."""
        of = f"schedule {launch.schedule.seed}, launch {launch.number}" if launch else "a launch that cannot be"
        happened = events(launch) if launch and self.options.events else []
        self.rows.append(row_of(of_class, found) | {"of": of, "events": happened})

    def turn_to(self, options: Options, args: dict) -> None:
        """Gets ready for a case of these arguments under these options: the process ends if it has another Config."""
        config: tuple[dict, dict[str, str]] | None = None
        if options.config is not None:
            config = {name: value for name, value in args.items() if name != "seed"}, options.config
        if (options.submission, config) != (self.options.submission, self.process.config):
            self.process.kill()
        self.options = self.process.options = options
        self.process.config = config

    def configs(self, asked: list[tuple[dict, dict]]) -> list[dict]:
        """Returns what configs.described says in the submission's process. Raises Refused."""
        reply = self.process.ask("import", op="configs", asked=asked)
        with self.process.answering("import"):
            return [{str(name): legible(value) for name, value in of.items()} for of in reply["configs"]]

    def shared_memory(self, case: TestCase, options: Options) -> int:
        """Returns the dynamic bytes of shared memory that the case's launches ask for. Raises Refused."""
        self.turn_to(options, case.args)
        trial = Trial(case, self)
        with options.task.case(trial) as hooks:
            return RecordedCalls(trial, hooks).shared_memory()

    def verdict(self, case: TestCase, extra: bool, options: Options) -> Verdict:
        """Judges a case. extra: with a call more, and one with sizes near those of the case."""
        verdict = Verdict(case.spec)
        self.rows.clear()
        try:
            self.turn_to(options, case.args)
            kind = Trial if options.device != "cuda" else MeasuredTrial if options.timed else GpuTrial
            trial = kind(case, self)
            verdict = trial.verdict
            trial.run(extra)
            verdict.status, verdict.reason = "pass", ""
        except Refused as error:
            verdict.reason = str(error)
        except Exception as error:  # the judge's own failure is no pass either
            verdict.reason = f"evaluator: {type(error).__name__}: {error}"
            self.process.kill()
        if verdict.modelled is None and options.timed and options.device != "cuda":
            verdict.modelled = {"error": "the results are wrong"}
        verdict.reason = legible(verdict.reason)
        if verdict.modelled and "error" in verdict.modelled:
            verdict.modelled["error"] = legible(verdict.modelled["error"])
        verdict.isolation = self.process.isolation
        verdict.findings = [*self.rows]
        return verdict


def pair(examiners: list[Examiner], case: TestCase, both: list[Options]) -> tuple[Verdict, Verdict, Stats | None]:
    """Times two submissions on a case in turns, on a GPU: both verdicts, and by how many nanoseconds a call of the
    second takes longer in the same round, or None."""
    verdicts, rounds = [Verdict(case.spec) for _ in examiners], None
    try:
        trials = []
        for examiner, options in zip(examiners, both):
            examiner.turn_to(options, case.args)
            trials.append(MeasuredTrial(case, examiner))
        verdicts = [trial.verdict for trial in trials]
        rounds = measure_in_turns(trials)
    except Exception as error:  # the judge's own failure is no pass either
        for examiner, verdict in zip(examiners, verdicts):
            examiner.process.kill()
            verdict.status, verdict.reason = "fail", f"evaluator: {type(error).__name__}: {error}"
    for examiner, verdict in zip(examiners, verdicts):
        verdict.isolation = examiner.process.isolation
    return verdicts[0], verdicts[1], rounds


def serve(submissions: int, fd: int) -> None:
    """Serves as the process's main function until the judge closes `fd`. submissions: how many it may hold at once."""
    nurseries = [Nursery.fork() for _ in range(submissions)]  # before there is what a worker must not see
    channel, users = Channel(socket.socket(fileno=fd)), contextlib.ExitStack()
    try:
        (options, directory, judges), _ = channel.receive()
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
        if options.device != "cuda":
            resource.setrlimit(resource.RLIMIT_DATA, (int((options.memory + HELD) * 2**30),) * 2)
        judges += [pid for nursery in nurseries for pid in nursery.pids()]
        arena = Arena.create(OURS + int(options.memory * 2**30) // PAGE * PAGE)
        heap, examiners = Heap(arena, BASE, THEIRS), []

        def say(text: str) -> None:
            with contextlib.suppress(OSError):  # the judge is gone, and so will this process be
                channel.send(Beat(legible(text)))

        for number, nursery in enumerate(nurseries):  # all use the one arena: each knows it at the same addresses
            own = os.path.join(directory, str(number))
            os.mkdir(own, 0o711)
            user = users.enter_context(isolation.own_user(USERS_CACHE / "users"))
            examiners.append(Examiner(options, nursery, own, judges, arena, heap, say, user))
        while True:
            (what, *arguments), _ = channel.receive()
            if what == "pair":
                channel.send(pair(examiners, *arguments))
            elif what in ("configs", "shared_memory"):
                try:
                    channel.send(getattr(examiners[0], what)(*arguments))
                except Refused as error:
                    channel.send(error)
            else:
                channel.send(examiners[0].verdict(*arguments))
    except EOFError:
        pass
    finally:
        for nursery in nurseries:
            nursery.close()
