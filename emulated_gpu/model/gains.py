"""What undoing one thing would bring to launches that have been timed: they are timed again with it undone.

Launches change memory, on which kernels may depend. So a `Spare` process is split off before they run, whose memory
stays as it was; it splits off one for each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import ranking, undone
from .profile import Profile
from .run import Recorded, TimedRun
from .timeline import Timeline
from .undone import Undone

LEAST = 0.005  # of a time: what a gain must be to be told
BEST = 2  # gains whose combination is tried
WITHIN = {undone.DEPENDENT: undone.LAUNCHES, undone.STAGE: undone.LOADS}  # of which more is undone by another
MOSTLY_BUSY = 0.95  # of the time of SMs


class Gain(NamedTuple):
    """What undoing brings. what: of undone.WAYS, one or several. share: of the time; us of of_us: of a round of
    launches, without the model's known bias; between: how much it may be, us, where the time has a bracket.

    tells: whether the model has never had the order of two times wrong that differ so much; None: nobody knows.
    """

    what: tuple[str, ...]
    share: float
    us: float
    of_us: float
    between: tuple[float, float] | None
    tells: bool | None

    @property
    def title(self) -> str:
        return " and ".join(undone.WAYS[one] for one in self.what)

    def said(self) -> str:
        """Say it in a few words."""
        text = f"with {self.title} at most {100 * self.share:.0f} % less: {self.us:.2f} of {self.of_us:.2f} us"
        if self.between:
            text += " ({:.2f} to {:.2f})".format(*self.between)
        return f"{text}, less than the model can tell" if self.tells is False else text

    def told(self) -> dict:
        """Return it as reports have it."""
        return {**self._asdict(), "what": list(self.what), "title": self.title, "said": self.said()}


class Asked(NamedTuple):
    """What is to be run again: the first launches, which are `rounds` times the same, with each of `ways` undone.

    busy: as of Undone. running: the share of the time in which any SM has CTAs.
    """

    launches: int
    rounds: int
    ways: list[str]
    busy: float
    running: float


class Spare:
    """A process split off before the launches run. Its memory stays as it is now."""

    def __init__(self, recorded: list[Recorded], profile: Profile, compute: bool):
        self.answers, ours = os.pipe()
        theirs, self.requests = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of BLAS, which do not work now
            self.process = os.fork()
        if not self.process:
            with _ending():
                os.close(self.requests)
                os.close(self.answers)
                _serve(theirs, ours, recorded, profile, compute)
        os.close(theirs)
        os.close(ours)

    def ask(self, number: int, count: int, way: Undone) -> None:
        """Have the first `count` launches run with this undone; `answers_until` has the time, under this number."""
        request = {"number": number, "count": count, "what": sorted(way.what), "busy": way.busy}
        os.write(self.requests, json.dumps(request).encode() + b"\n")

    def answers_until(self, end: float) -> Iterator[tuple[int, float | None]]:
        """Yield (number, cycles or None for what failed) as they come, and (-1, None) every second, until `end`."""
        rest = b""
        while time.monotonic() < end:
            if not select.select([self.answers], [], [], min(1.0, end - time.monotonic()))[0]:
                yield -1, None
                continue
            come = os.read(self.answers, 65536)
            if not come:
                return
            *lines, rest = (rest + come).split(b"\n")
            for line in lines:
                number, cycles = json.loads(line)
                yield number, cycles

    def close(self) -> None:
        """End it, and what it has split off."""
        os.close(self.requests)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        os.close(self.answers)


@contextlib.contextmanager
def _ending():
    """End the process with the block, which belongs to nobody outside."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has split it off ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        yield
    finally:
        os._exit(0)


def _serve(requests: int, answers: int, recorded: list[Recorded], profile: Profile, compute: bool) -> None:
    """Split off a process for each request, a line of JSON, until there is nobody to ask; then end them all."""
    working: list[int] = []
    rest = b""
    while come := os.read(requests, 65536):
        *lines, rest = (rest + come).split(b"\n")
        for line in lines:
            child = os.fork()
            if child:
                working.append(child)
                continue
            with _ending():
                asked, cycles = json.loads(line), None
                try:
                    way = Undone.of(asked["what"], asked["busy"])
                    cycles = time_with(way, recorded[: asked["count"]], profile, compute)
                finally:  # what fails has no gain
                    os.write(answers, json.dumps([asked["number"], cycles]).encode() + b"\n")
    for child in working:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def time_with(way: Undone, recorded: list[Recorded], profile: Profile, compute: bool = False) -> float:
    """Return how many cycles launches take, back to back, with something undone."""
    run = TimedRun(profile, recorded[0].memory, recorded, computes_mma=compute, undone=way).run()
    return way.shown(max(launch.interval[1] for launch in run.launches))


def asked(timeline: Timeline, report: dict) -> Asked:
    """Say what is worth undoing in a run that was traced, and in how many of its launches. report: of report.py."""
    run, trace = timeline.run, timeline.trace
    ended = [launch for launch in run.launches if launch.end is not None]
    ways = []
    kinds = {way for *_, way in trace.spread}
    kernels = report["kernels"]
    if "shared memory" in kinds:
        ways.append(undone.CONFLICTS)
    if {"global loads", "global stores"} & kinds:
        ways.append(undone.SCATTERED)
    if any(kernel["moved_bytes"][name] for kernel in kernels for name in ("TMA loads", "thread loads")):
        ways.append(undone.LOADS)
    if any(kernel["flops"] for kernel in kernels):
        ways.append(undone.MMAS)
    if any(kernel["moved_bytes"]["TMA loads"] for kernel in kernels):
        ways.append(undone.STAGE)
    if any(kernel["limited_by"] == "shared memory" for kernel in kernels):
        ways.append(undone.ROOM)
    if any(not launch.launch.pdl for launch in ended[1:]):
        ways.append(undone.DEPENDENT)
    if len(ended) > 1:
        ways.append(undone.LAUNCHES)
    busy, every = busy_share(timeline)
    running = every / max(launch.interval[1] for launch in ended)
    if busy < MOSTLY_BUSY:
        ways.append(undone.IDLE)
    return Asked(*enough_of([(launch.launch.program, launch.launch.grid) for launch in ended]), ways, busy, running)


def enough_of(launches: list) -> tuple[int, int]:
    """Return how many launches to run again, and how many rounds these are: two, where they repeat themselves."""
    for period in range(1, len(launches) // 2 + 1):
        if all(launches[i] == launches[i % period] for i in range(len(launches))):
            return 2 * period, 2
    return len(launches), 1


def busy_share(timeline: Timeline) -> tuple[float, float]:
    """Return for which share of the time of all SMs they have CTAs, while any has, and for how long any has."""
    lives: dict[int, list[tuple[float, float]]] = {}
    for key, life in timeline.life.items():
        lives.setdefault(timeline.sm_of[key], []).append(life)
    every = covered([life for of_sm in lives.values() for life in of_sm])
    return sum(map(covered, lives.values())) / (every * len(timeline.run.placement.sms)) if every else 1.0, every


def covered(spans: list[tuple[float, float]]) -> float:
    """Return how long some span lasts at any time."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def gains(
    spare: Spare, run: TimedRun, report: dict, wanted: Asked, jobs: int, until: float,
    said: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Gain]]:  # fmt: skip
    """Yield what undoing brings, the most first, each time that more is known, until `until` (time.monotonic).

    jobs: processes at a time. said: is told how far they are.
    """
    whole = Whole.of(run, report, wanted)
    waiting: list[tuple[str, ...]] = [(way,) for way in wanted.ways]
    running: dict[int, tuple[str, ...]] = {}
    found: list[Gain] = []
    number, combined = 0, False

    def start() -> None:
        nonlocal number
        while waiting and len(running) < jobs:
            running[number] = waiting.pop(0)
            spare.ask(number, wanted.launches, Undone.of(running[number], wanted.busy))
            number += 1

    start()
    answers = spare.answers_until(until)
    while running:
        answer = next(answers, None)
        if answer is None:
            return
        came, cycles = answer
        if came < 0:
            said(f"{len(found)} of {len(wanted.ways)} gains known")
            continue
        what = running.pop(came)
        if cycles is not None:
            if undone.IDLE in what:
                cycles = max(cycles, whole.cycles * (1 - most_of(what, wanted, found)))
            found.append(whole.gain(what, cycles))
            found.sort(key=lambda one: -one.share)
            yield told(found)
        if not waiting and not running and not combined:
            combined = True
            best = best_of(told(found))
            waiting += [best] * (len(best) == BEST)
        start()


def most_of(what: tuple[str, ...], wanted: Asked, found: list[Gain]) -> float:
    """Return which share of the time undoing IDLE, with others whose gains are found, brings at most: SMs get work
    while others have some, and launches begin and end as long as before."""
    others = sum(one.share for one in found if one.what[0] in what and one.what[0] != undone.IDLE)
    most = (1 - wanted.busy) * wanted.running + others
    return most if {undone.DEPENDENT, undone.LAUNCHES} & {*what} else max(others, min(most, wanted.running))


def best_of(found: list[Gain]) -> tuple[str, ...]:
    """Return the ways whose combination is worth trying: the best ones, of which none is a part of another."""
    ways = [one.what[0] for one in found]
    return tuple(way for way in ways if WITHIN.get(way) not in ways)[:BEST]


class Whole(NamedTuple):
    """What gains are held against: cycles of all launches that run again; of a round, us without the model's known bias
    and between what; whether it is of a machine for which `ranking` holds."""

    cycles: float
    us: float
    between: tuple[float, float] | None
    ranked: bool

    @classmethod
    def of(cls, run: TimedRun, report: dict, wanted: Asked) -> Whole:
        launches = report["launches"][: wanted.launches]
        cycles = max(launch.interval[1] for launch in run.launches[: wanted.launches])
        own = sum(launch["us"] for launch in launches)

        def of_round(times: list[float]) -> float:
            return run.profile.us(cycles) / wanted.rounds * sum(times) / own

        intervals, between = [launch["us_interval"] for launch in launches], None
        if all(intervals):
            between = of_round([low for low, _ in intervals]), of_round([high for _, high in intervals])
        us = of_round([launch["us_corrected"] for launch in launches])
        return cls(cycles, us, between, run.profile.name == "b200")

    def gain(self, what: tuple[str, ...], cycles: float) -> Gain:
        """Return the gain of a run that takes this many cycles."""
        share = 1 - cycles / self.cycles
        tells = ranking.tells(self.cycles, cycles) if self.ranked and cycles > 0 else None
        between = (share * self.between[0], share * self.between[1]) if self.between else None
        return Gain(what, share, share * self.us, self.us, between, tells)


def told(found: list[Gain]) -> list[Gain]:
    """Return the gains that are worth a word."""
    return [one for one in found if one.share >= LEAST]
