"""Orders of one launch tried on purpose: one or two warps stopped where they meet others; a failing order shrunk.

A warp is stopped between two meetings (strong accesses, atomics, arrivals, waits: units/group.Meeting) until the others
have gone far. Such an order is tried if the meeting behind it comes before one of another warp, with the same word or
barrier, that could come first: one of the two writes, they do not commute, and the other warp has known until then of
nothing that the stopped one does later (state/order.py). Orders that differ only in the CTA come later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import EmulatorError
from .schedule import ORDERLY, WHAT, Delay, Met, Schedule, Watched

STOP = 40_000, 16_000  # ticks: of the first warp, and of a second one, which may stop while the first one does
MOST_MET = 20_000  # meetings of a launch that is looked through
OTHERS = 16  # later meetings about one word that are held against one

Late = Mapping[Delay, float]


@dataclass
class Outcome:
    """What a launch does in an order: its first finding, or what of its results differs; None if neither."""

    found: EmulatorError | None
    watched: Watched


Run = Callable[[Schedule], Outcome]


@dataclass
class Cause:
    """A failing order, by the few delays that cause it. of: how many there were at first; runs: of the launch."""

    schedule: Schedule
    outcome: Outcome
    of: int
    runs: int

    def told(self) -> tuple[str, ...]:
        """Say what is late, a line each, and how to have that order again."""
        late = self.schedule.late or {}
        few = f"{len(late)} delay{'s' * (len(late) != 1)} cause{'s' * (len(late) == 1)} it"
        few += f", of {self.of} that differ between the two orders" if self.of > len(late) else ""
        if not late:
            few = f"no order causes it, but what else seed {self.schedule.seed} draws: elected lanes, what memory holds"
        lines = [f"order: {few} ({self.runs} runs of this launch)"]
        for delay, ticks in list(late.items())[:6]:
            at = self.outcome.watched.places.get(delay) or f"warp {delay.warp} of the grid's CTA {delay.cta}"
            lines.append(f"  {ticks:.0f} ticks later {WHAT[delay.what]}: {at}")
        lines += [f"  and {len(late) - 6} more"] * (len(late) > 6)
        return *lines, f"again: run --replay {self.schedule}"


def candidates(met: list[Met]) -> list[Delay]:
    """Return where to stop a warp, so that something comes in another order than it did; the likeliest first."""
    by_word: dict[object, dict[tuple[int, int], list[int]]] = {}
    before: list[Met | None] = []  # the meeting of the same warp before each
    last: dict[tuple[int, int], Met] = {}
    for at, one in enumerate(met[:MOST_MET]):
        warp = one.delay[:2]
        before.append(last.get(warp))
        last[warp] = one
        for word in one.words:
            looks = by_word.setdefault(word, {}).setdefault(warp, [])
            if len(looks) > 1 and _again(met[looks[-2]], met[looks[-1]]) and _again(met[looks[-1]], one):
                looks[-1] = at  # of a poll the first and the last
            else:
                looks.append(at)
    ranked: dict[tuple, dict[Delay, None]] = {}
    for warps in by_word.values():
        places = sorted(at for looks in warps.values() for at in looks) if len(warps) > 1 else []
        for k, at in enumerate(places):
            one, previous = met[at], before[at]
            stop = Delay(*one.delay[:2], "starts", 0) if previous is None else previous.delay
            until = 0 if previous is None else previous.now
            for other in _others(met, places, k):
                if _known(before[other], one) <= until:
                    shown = _known(met[other], one) > until  # the other one has looked at what this one did
                    rank = (0 if not one.writes else 1 if not met[other].commutes else 2) + 2 * shown
                    ranked.setdefault((rank, one.block, met[other].block), {})[stop] = None
    return list(dict.fromkeys(_in_turn(ranked[key] for key in sorted(ranked))))


def _others(met: list[Met], places: list[int], k: int) -> Iterator[int]:
    """Yield the meetings behind one about a word that do not go together with it, the first of each warp."""
    one, seen = met[places[k]], set()
    for other in places[k + 1 :]:
        that = met[other]
        warp = that.delay[:2]
        apart = (one.writes or that.writes) and not (one.commutes and that.commutes)
        if warp != one.delay[:2] and apart and (warp, that.block) not in seen:
            seen.add((warp, that.block))
            yield other
            if len(seen) == OTHERS:
                return


def _again(a: Met, b: Met) -> bool:
    """Whether a warp looks at the same once more."""
    return a.delay[:2] == b.delay[:2] and a.block == b.block and not a.writes and not b.writes


def _known(that: Met | None, one: Met) -> int:
    """Return up to which event who has come to a meeting, or to none, knows what the warp of another one did."""
    return 0 if that is None else that.known.known((one.known.space, one.uid))


def _in_turn(lots: Iterable[Iterable[Delay]]) -> Iterator[Delay]:
    """Yield one of each lot, then a second one of each, and so on."""
    waiting = deque(iter(lot) for lot in lots)
    while waiting:
        lot = waiting.popleft()
        if (one := next(lot, None)) is not None:
            yield one
            waiting.append(lot)


def search(run: Run, launch: int, watched: Watched, most: int) -> Cause | None:
    """Try orders of a launch that finds nothing in schedule 0, `most` of them: with one stop, then with two.

    watched: of that run. Returns the first order in which it finds something.
    """
    first = candidates(watched.met)
    orders: deque[dict[Delay, float]] = deque({stop: STOP[0]} for stop in first)
    behind: list[deque[dict[Delay, float]]] = []
    for runs in range(1, most + 1):
        while not orders and behind:
            orders.extend(lot.popleft() for lot in behind if lot)
            behind = [lot for lot in behind if lot]
        if not orders:
            return None
        late = orders.popleft()
        schedule = Schedule(0, late, launch)
        outcome = run(schedule)
        if outcome.found is not None:
            return Cause(schedule, outcome, len(late), runs)
        if len(late) == 1:
            more = (stop for stop in candidates(outcome.watched.met) if stop not in late)
            behind.append(deque(late | {stop: STOP[1]} for stop in more))
    return None


def shrink(run: Run, launch: int, schedule: Schedule, watched: tuple[Watched, Watched], most: int) -> Cause | None:
    """Return few delays that make a launch fail that fails under a schedule and does not under number 0.

    run: its outcome is one only if it is of the same kind. watched: of both runs, the failing one first. Halves,
    quarters and so on of the delays are left out as long as it fails (delta debugging), in at most `most` runs. None:
    the delays alone, without what else there is of the failing run, do not make it fail.
    """
    failing, right = watched
    late = {d: ticks for d, ticks in sorted(failing.late.items()) if right.late.get(d, ORDERLY.get(d.what)) != ticks}
    runs = 0
    found: tuple[Schedule, Outcome] | None = None

    def fails(late: Late, seed: int) -> bool:
        nonlocal runs, found
        runs += 1
        tried = Schedule(seed, dict(late), launch)
        outcome = run(tried)
        if outcome.found is None:
            return False
        found = tried, outcome
        return True

    seed = next((seed for seed in dict.fromkeys((0, schedule.seed)) if fails(late, seed)), None)
    if seed is None:
        return None
    of, parts = len(late), 2
    if fails({}, seed):
        late = {}
    while len(late) > 1 and runs < most:
        keys = list(late)
        size = -(-len(keys) // parts)
        lots = [keys[k : k + size] for k in range(0, len(keys), size)]
        for lot in lots if parts == 2 else []:
            if runs < most and fails({d: late[d] for d in lot}, seed):
                late, parts = {d: late[d] for d in lot}, 2
                break
        else:
            for lot in lots:
                rest = {d: ticks for d, ticks in late.items() if d not in lot}
                if runs < most and fails(rest, seed):
                    late, parts = rest, max(parts - 1, 2)
                    break
            else:
                if parts >= len(keys):
                    break
                parts = min(2 * parts, len(keys))
    assert found is not None
    return Cause(*found, of, runs)
