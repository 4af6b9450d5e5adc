"""Judges a submission: cases in, a verdict for each out. README.md, two folders up from here, has the threat model.

This is the command line's end: it starts the processes (sandbox.py) and shares the cases between examiners. Nothing
partial passes, and what goes wrong in the judge is no pass either.
"""

import contextlib
import os
import tempfile

import numpy as np

from evaluation.judge import examiner, folder_on_gpu, jobs, sandbox
from evaluation.judge.options import Options
from evaluation.judge.statistics import Stats
from evaluation.judge.verdict import Refused, Verdict, geomean_us
from task import TestCase

__all__ = [
    "Options",
    "Refused",
    "Verdict",
    "configs_of",
    "geomean_us",
    "judge",
    "measure_pairs",
    "shared_memory",
]

DIED = "evaluator: the judging process has died"

class ExaminerProcess:
    """Holds a process that judges one case after the other (examiner.py). submissions: how many that has at once."""

    def __init__(self, of: sandbox.Nursery, options: Options, directory: str, submissions: int = 1):
        self.nursery = of
        mine, theirs = sandbox.pair()
        self.pid = of.start(examiner.serve, submissions, fds=(theirs.fileno(),), apart=True)
        theirs.close()
        self.channel = sandbox.Channel(mine)
        self.channel.send((options, directory, [os.getpid(), *of.pids()]))
        self.on_beat = lambda text: None  # is told how far a request is

    def ask(self, *request, died):
        """Sends a request and returns the reply, or `died` if the process has."""
        try:
            self.channel.send(request)
            while isinstance(reply := self.channel.receive()[0], sandbox.Beat):
                self.on_beat(reply.text)
            return reply
        except (EOFError, OSError):
            return died

    def judge(self, case: TestCase, extra: bool, options: Options) -> Verdict:
        return self.ask("case", case, extra, options, died=Verdict(case.spec, reason=DIED))

    def end(self) -> None:
        self.channel.close()
        with contextlib.suppress(EOFError, OSError):
            self.nursery.end(self.pid)


@contextlib.contextmanager
def examiners(options: Options, count: int, submissions: int = 1):
    """Starts this many examiners, each able to hold this many submissions; they end with this block."""
    with tempfile.TemporaryDirectory(prefix="group-gemm-", ignore_cleanup_errors=True) as root:
        os.chmod(root, 0o711)  # the worker, another user, has a folder inside
        parent, started = sandbox.nursery(), []
        try:
            for i in range(count):
                directory = os.path.join(root, str(i))
                os.mkdir(directory, 0o711)
                started.append(ExaminerProcess(parent, options, directory, submissions))
            yield started
        finally:
            for one in started:
                one.end()


def configs_of(asked: list[tuple[dict, dict[str, str]]], options: Options) -> list[dict]:
    """Finds the submission's Config for each (arguments of a case, changes): {"config": all of it, "line": the entry of
    its table}, or {"error": one sentence}. Raises Refused where the submission cannot be imported."""
    with examiners(options, 1) as (one,):
        found = one.ask("configs", asked, died=Refused(DIED))
    if isinstance(found, Refused):
        raise found
    return found


def shared_memory(case: TestCase, each: list[Options]) -> list[int | Refused]:
    """Finds the dynamic bytes of shared memory that the submission's launches ask for under each of the options."""
    with examiners(each[0], 1) as (one,):
        return [one.ask("shared_memory", case, options, died=Refused(DIED)) for options in each]


def measure_pairs(
    cases: list[TestCase], both: tuple[Options, Options], on_pair=lambda index, pair: None
) -> list[tuple[Verdict, Verdict, Stats | None]]:
    """Times two submissions on a GPU in turns: for each case both verdicts, and by how many nanoseconds a call of the
    second takes longer than one of the first in the same round, None where one failed."""
    pairs = []
    with examiners(both[0], 1, submissions=2) as (one,):
        for index, case in enumerate(cases):
            died = *(Verdict(case.spec, reason=DIED) for _ in both), None
            pairs.append(one.ask("pair", case, [*both], died=died))
            on_pair(index, pairs[-1])
    return pairs


def judge(
    cases: list[TestCase],
    options: Options | list[Options],
    on_verdict=lambda index, verdict: None,
    on_start=lambda index: None,
    on_beat=lambda index, text: None,
) -> list[Verdict]:
    """Judges cases: one verdict for each, in their order; `on_verdict(index, verdict)` is called as they come in; in
    some thread, `on_start(index)` before a case, and `on_beat(index, text)` to say how far one is that takes long.

    options: for all cases, or one for each, which then agree in all but the submission and its config.
    """
    each = [options] * len(cases) if isinstance(options, Options) else options
    if not cases:
        return []
    options = each[0]
    if options.device == "cuda" and options.task.graded:
        verdicts = folder_on_gpu.judge(cases, options)
        for index, verdict in enumerate(verdicts):
            on_verdict(index, verdict)
        return verdicts
    verdicts = [Verdict(case.spec) for case in cases]
    rng = np.random.default_rng(options.secret)
    order = rng.permutation(len(cases)).tolist()
    extra = order[0] if options.extra else None  # the case that gets other sizes and a call more
    order.sort(key=lambda index: options.task.order(cases[index], options.timed))

    def done(index: int, verdict: Verdict) -> None:
        verdicts[index] = verdict
        on_verdict(index, verdict)

    def one_case(one: ExaminerProcess, index: int) -> Verdict:
        on_start(index)
        one.on_beat = lambda text: on_beat(index, text)
        return one.judge(cases[index], index == extra, each[index])

    with examiners(options, min(options.jobs, len(cases))) as all_of_them:
        jobs.share(order, all_of_them, one_case, done)
    return verdicts
