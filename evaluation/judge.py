"""Judges a submission: cases in, a verdict for each out.

The threat model. A submission is Python that may run any code in its own process, may start others, and wants a verdict
or a time that it does not deserve.

Held, on the emulator, is everything that is reported. The submission's process (worker.py) is told addresses of memory
that it shares with the judge's, and what it launches is sent to the judge's process as data: PTX, geometry, parameters.
That process (bench.py, emulated.py), which imports nothing of the submission's, makes the inputs and the exact results,
runs the launches with all checks, reads what they wrote, and finds out whether inputs changed. A time is modelled from
the launches of calls in a row that were only noted when the submission made them; once its process has ended, a call
among them that nobody could foresee is run with inputs that the submission has never seen, and has to give the exact
result by its launches alone; the others, timed with the same inputs, have to launch, move and multiply the same; and
what is faster than the speed of light is no time. Sizes near the listed ones and a call more, at secret places, are
part of every run. The two processes are kept apart by the system (isolation.py): the result says by what.

Held on a GPU: results, as far as a process of the submission's can give them (its bytes are compared by the judge).
Not held there: a native attack on the timer, which has to be in the submission's process; it is taken before the
submission is imported, replacements are found, impossible times are refused, untimed repeats look like timed ones.

Not held anywhere: the machine against the submission. It runs with the rights of a user, of another one where the judge
is root; where it is the same user, that user's other processes and files are within its reach, the judge's memory not.
Nothing partial passes, and what goes wrong in the judge is no pass either.
"""

import atexit
import contextlib
import os
import tempfile

import numpy as np

from evaluation import isolation, jobs, sandbox
from evaluation.verdict import Options, Refused, Verdict, geomean_us
from task import TestCase

__all__ = ["Options", "Refused", "Verdict", "geomean_us", "judge", "stop"]

_nursery: sandbox.Nursery | None = None


def nursery() -> sandbox.Nursery:
    """The one of this process: importing torch takes seconds."""
    global _nursery
    if _nursery is None or _nursery.process.poll() is not None:
        isolation.shield()
        _nursery = sandbox.Nursery.spawn()
    return _nursery


@atexit.register
def stop() -> None:
    """Ends all processes below this one."""
    global _nursery
    ending, _nursery = _nursery, None
    if ending is not None:
        ending.close()
        with contextlib.suppress(Exception):
            ending.process.wait(5)


class Bench:
    """A process that judges one case after the other."""

    def __init__(self, of: sandbox.Nursery, options: Options, directory: str):
        self.nursery = of
        mine, theirs = sandbox.pair()
        self.pid = of.start("bench.serve", fds=(theirs.fileno(),))
        theirs.close()
        self.channel = sandbox.Channel(mine)
        self.channel.send((options, directory, [os.getpid(), *of.pids()]))

    def judge(self, case: TestCase, extra: bool) -> Verdict:
        try:
            self.channel.send((case, extra))
            return self.channel.receive()[0]
        except (EOFError, OSError):
            return Verdict(case.spec, reason="evaluator: the judging process has died")

    def end(self) -> None:
        self.channel.close()
        with contextlib.suppress(EOFError, OSError):
            self.nursery.end(self.pid)


def judge(cases: list[TestCase], options: Options, on_verdict=lambda index, verdict: None) -> list[Verdict]:
    """One verdict per case, in the order of the cases; `on_verdict` is called as they come in."""
    verdicts = [Verdict(case.spec) for case in cases]
    rng = np.random.default_rng(options.secret)
    order = rng.permutation(len(cases)).tolist()
    extra = order[0] if order else None  # the case that gets other sizes and a call more
    if options.timed:
        order.sort(key=lambda index: -work(cases[index]))  # what takes longest, first

    def done(index: int, verdict: Verdict) -> None:
        verdicts[index] = verdict
        on_verdict(index, verdict)

    with tempfile.TemporaryDirectory(prefix="group-gemm-", ignore_cleanup_errors=True) as root:
        os.chmod(root, 0o711)  # the worker, another user, has a folder inside
        parent = nursery()
        benches = []
        try:
            for i in range(min(options.jobs, len(cases))):
                directory = os.path.join(root, str(i))
                os.mkdir(directory, 0o711)
                benches.append(Bench(parent, options, directory))
            jobs.share(order, benches, lambda bench, index: bench.judge(cases[index], index == extra), done)
        finally:
            for bench in benches:
                bench.end()
    return verdicts


def work(case: TestCase) -> int:
    """Multiplications, about."""
    sizes = ([case.args[x]] if isinstance(case.args[x], int) else case.args[x] for x in "mnk")
    return sum(m * n * k for m, n, k in zip(*sizes))
