"""What holds a kernel up, in sentences: what it is, with its figure and its line, and what mending it would bring."""

from __future__ import annotations

from collections import Counter

from ..model import undone
from ..model.gains import Gain
from ..model.timeline import Timeline
from ..model.trace import Spread
from . import hot

VERDICTS = 5


def verdicts(timeline: Timeline, report: dict, lines: list[hot.Line]) -> list[dict]:
    """Up to five sentences, each with its figure and, where it has one, its line; what weighs most comes first.

    undo: the way (undone.WAYS) to undo what a sentence names, if there is one.
    """
    found = [*weighed(timeline, lines), *of_kernels(report)]
    found.sort(key=lambda one: -one["weight"])
    return [{name: what for name, what in one.items() if name != "weight"} for one in found[:VERDICTS]]


def weighed(timeline: Timeline, lines: list[hot.Line]) -> list[dict]:
    """All sentences about what holds warps up, each with a weight."""
    waits = of_waits(timeline, lines)
    return [*of_sms(timeline), *waits, *of_loads(timeline, waits), *of_accesses(timeline, lines)]


def with_gains(timeline: Timeline, report: dict, lines: list[hot.Line], gains: list[Gain]) -> list[dict]:
    """Return the sentences in the order of what mending them would bring: `gain` says it, and `share` is it.

    What brings something and stands in no sentence has one; what has no gain comes behind.
    """
    by_way = {one.what[0]: one for one in gains if len(one.what) == 1}
    found = [*weighed(timeline, lines), *of_kernels(report)]
    found.sort(key=lambda one: -one["weight"])
    rest = [way for way in by_way if all(verdict.get("undo") != way for verdict in found)]
    found += [{"text": COSTS[way], "weight": 0.0, "undo": way} for way in rest]
    shown, seen = [], set()
    for one in sorted(found, key=lambda one: -(by_way[one["undo"]].share if one.get("undo") in by_way else 0.0)):
        way = one.get("undo")
        if way in by_way and way not in seen:
            shown.append(one | {"gain": by_way[way].said(), "share": by_way[way].share})
        elif way not in by_way:
            shown.append(one)
        seen.add(way)
    shown = [{name: what for name, what in one.items() if name != "weight"} for one in shown[:VERDICTS]]
    together = [one for one in gains if len(one.what) > 1]
    return shown + [{"text": "both together", "gain": one.said(), "share": one.share} for one in together]


def of_sms(timeline: Timeline) -> list[dict]:
    """Say whether SMs have nothing to do."""
    shown = timeline.shown
    used = len({timeline.sm_of[key] for key in timeline.life if key[0] == shown.number})
    count = len(timeline.run.placement.sms)
    if used == count:
        return []
    title = shown.launch.program.kernel.title
    text = f"{used} of {count} SMs have work in launch {shown.number} ({title}): more, smaller CTAs would use all"
    return [{"text": text, "weight": 1 - used / count, "undo": undone.IDLE}]


def of_waits(timeline: Timeline, lines: list[hot.Line]) -> list[dict]:
    """Say what each role of warps waits for most, as a share of its life, and where."""
    lives: dict[str, float] = {}
    waits: dict[tuple[str, str], float] = {}
    for span in timeline.trace.spans:
        role, cycles = timeline.role_of(span), span.end - span.start
        if span.kind == "warp":
            lives[role] = lives.get(role, 0.0) + cycles
        elif span.kind == "wait":
            key = role, timeline.reason_of(span)
            waits[key] = waits.get(key, 0.0) + cycles
    out = []
    for (role, reason), cycles in waits.items():
        share = cycles / lives[role] if lives.get(role) else 0.0
        if share < 0.1:
            continue
        where = max(lines, key=lambda line: line.us[f"waits for {reason}"])
        text = f"{role} warps wait {100 * share:.0f} % of their time for {reason}"
        # What feeds the tensor core matters more, and who has no part hardly: of Triton's warps some only wait for work
        weight = min(share, 1.0) * (1.0 if "MMA" in role or role == "all" else 0.2 if role == "other" else 0.6)
        found = {"text": text, "weight": weight, "shown": str(where)}
        out.append(found | ({"undo": MENDED[reason]} if reason in MENDED else {}))
    return out


def of_loads(timeline: Timeline, waits: list[dict]) -> list[dict]:
    """Say, where warps wait for loads, what rate the bytes under way and their latency allow (Little's law)."""
    weight = max((wait["weight"] for wait in waits if wait["text"].endswith("for loads")), default=0.0)
    number = timeline.shown.number
    loads = [span for span in timeline.trace.spans if span.kind == "load" and span.launch == number]
    if not weight or not loads:
        return []
    latency = sum((span.end - span.start) * span.nbytes for span in loads) / sum(span.nbytes for span in loads)
    under_way: Counter = Counter()
    most: Counter = Counter()  # bytes of an SM: now, and at most
    for _, sm, nbytes in sorted(step for s in loads for step in ((s.start, s.sm, s.nbytes), (s.end, s.sm, -s.nbytes))):
        under_way[sm] += nbytes
        most[sm] = max(most[sm], under_way[sm])
    rate, peak = sum(most.values()) / timeline.us(latency) / 1e6, timeline.run.profile["hbm"]["read_tb_s"]
    text = (
        f"TMA loads take {timeline.us(latency):.2f} us in the mean, with at most {max(most.values()) / 1e3:.0f} KB "
        f"under way in an SM: {rate:.1f} TB/s from all of them, where HBM reads {peak:.1f}"
    )
    if rate < 1.5 * peak:
        text += "; more or larger stages would keep more under way"
    return [{"text": text, "weight": 0.9 * weight, "undo": undone.STAGE}]


COSTS = {  # what holds launches up, where no other sentence says it
    undone.CONFLICTS: "lanes meet in banks of shared memory",
    undone.SCATTERED: "accesses to global memory touch more sectors than they need",
    undone.LOADS: "warps wait for what they load",
    undone.MMAS: "warps wait for the tensor cores",
    undone.STAGE: "loads wait until a stage is free",
    undone.ROOM: "shared memory limits the CTAs of an SM",
    undone.DEPENDENT: "a launch starts when the one before has ended",
    undone.LAUNCHES: "launches begin and end, one behind the other",
    undone.IDLE: "SMs have no CTA for a part of the time",
}
MENDED = {"loads": undone.LOADS, "the tensor core": undone.MMAS, "the launch before": undone.DEPENDENT}
WASTED = {
    "shared memory": undone.CONFLICTS, "global loads": undone.SCATTERED, "global stores": undone.SCATTERED,
}  # fmt: skip
HELD = {
    hot.LONG: "the long scoreboard (uses of what global or local memory has not delivered yet)",
    hot.SHORT: "the short scoreboard (uses of what shared memory or another unit of the SM has not delivered yet)",
}


def of_accesses(timeline: Timeline, lines: list[hot.Line]) -> list[dict]:
    """Name the line that accesses to memory hold up most, for each way."""
    total, out = sum(line.us.total() for line in lines) or 1.0, []
    program_of = {one.number: one.launch.program for one in timeline.launches}
    warps = Counter(program_of.get(span.launch) for span in timeline.trace.spans if span.kind == "warp")
    for way in (*hot.ACCESSES, *hot.STALLS):
        where = max(lines, key=lambda line: line.us[way])
        us = where.us[way]
        if us / total >= 0.02:
            why = excess(way, where.spread[way]) + ": " if way in where.spread else ""
            each = us / max(1, sum(warps[program] for program in where.programs))
            one = way == "shared memory" or way in hot.STALLS
            text = f"{why}{HELD.get(way, way)} hold{'s' * one} a warp up for {each:.2f} us in the mean, "
            text += f"{100 * us / total:.0f} % of the time of warps"
            weight = us / total + 0.3 * bool(why)  # there it is known what to change
            found = {"text": text, "weight": weight, "shown": str(where)}
            undo = WASTED.get(way) if why else undone.LOADS if way in ("global loads", hot.LONG) else None
            out.append(found | ({"undo": undo} if undo else {}))
    return out


def spread_of(spread: dict[str, Spread]) -> str:
    """Say by what accesses at a place take more than they have to. spread: of a hot.Line."""
    return ", ".join(excess(way, spread[way]) for way in hot.ACCESSES if way in spread)


def figures_of(spread: dict[str, Spread]) -> list[float]:
    """Return what `spread_of` says as figures: sectors an access, those that would do, degree of bank conflicts; 0 for
    what is as it should be."""
    of_global = [spread[way] for way in ("global loads", "global stores") if way in spread]
    worst = max(of_global, key=lambda one: one.took / one.least, default=None)
    sectors = [round(worst.took / worst.count, 2), round(worst.least / worst.count, 2)] if worst else [0, 0]
    return [*sectors, round(spread["shared memory"].most, 2) if "shared memory" in spread else 0]


def excess(way: str, spread: Spread) -> str:
    """Say by what accesses of a way take more than they have to."""
    if way == "shared memory":
        return f"{spread.most:.0f}-way bank conflicts"
    took, least = spread.took / spread.count, spread.least / spread.count
    return f"{took:.0f} sectors of 32 bytes an access, {least:.0f} would do"


def of_kernels(report: dict) -> list[dict]:
    """Say which floor a kernel is near, and whether it spills."""
    out = []
    for kernel in report["kernels"]:
        name, floor = max(kernel["floors_us"].items(), key=lambda item: item[1])
        share = floor / kernel["us"] if kernel["us"] else 0.0
        text = (
            f"{kernel['title']} takes {kernel['us']:.2f} us in the model; "
            f"its floor by {name} is {floor:.2f} us ({100 * share:.0f} %)"
        )
        out.append({"text": text, "weight": 0.4 + 0.5 * (share > 0.7)})
        if kernel["stack_bytes"]:
            text = f"{kernel['title']} keeps {kernel['stack_bytes']} bytes a thread on the stack: spills or arrays"
            out.append({"text": text, "weight": 0.5})
    return out
