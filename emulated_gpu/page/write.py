"""What the page shows, gathered from a timed run and the report about it, and the file with it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from ..model.run import TimedRun
from ..model.timeline import COLOURS, Timeline
from ..model.trace import Span, Spread, Trace
from . import hot

FOLDER = Path(__file__).parent
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>')
BINS = 600  # of the map of SMs
MOST_SPANS = 25_000  # in the details of SMs
MOST_LINES, MOST_PTX = 400, 4_000  # in the tables
VERDICTS = 5


def write_page(file: Path, title: str, run: TimedRun, trace: Trace, report: dict, sources: dict[str, Path]) -> None:
    """Write the page of a profile. report: of model/report.py. sources: file name in line info -> where its text is."""
    fill(file, [gathered(title, run, trace, report, sources)])


def gathered(title: str, run: TimedRun, trace: Trace, report: dict, sources: dict[str, Path]) -> dict:
    """What the page shows of a profile; arguments as of `write`."""
    timeline = Timeline(run, trace)
    found = hot.instructions(timeline)
    lines = hot.lines(found, trace)
    return {
        "title": title,
        "basis": f"profile {report['profile']}; {report['validation']}",
        "launches": report["launches"],
        "kernels": report["kernels"],
        "facts": report["breakdown"]["facts"],
        "verdicts": verdicts(timeline, report, lines),
        "peak": run.profile["hbm"]["read_tb_s"],
        "sms": len(run.placement.sms),
        "lines": [
            {
                "shown": str(one), "calls": one.calls, "us": rounded(one.us), "ptx": sorted(one.ptx),
                "spread": spread_of(one),
            }
            for one in lines[:MOST_LINES]
        ],  # fmt: skip
        "sources": texts({file for one in lines for file, _ in one.calls}, sources),
        "ptx": listing(found),
        "map": state_map(timeline),
        "spans": spans(timeline),
    }


def fill(file: Path, views: list[dict], compared: dict | None = None) -> None:
    """Write a page of one profile, or of several side by side. compared: `said`, a sentence, and `rows` of a table."""
    data = {"views": views, "compared": compared}
    file.write_text(filled((FOLDER / "page.html").read_text(), data, (FOLDER / "page.js").read_text()))


def filled(page: str, data: dict, own: str) -> str:
    """Put data, ECharts and the page's own script into its text."""
    script = (FOLDER / "echarts.min.js").read_text() + "\n" + own
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # it stands inside of a script element
    return page.replace("__DATA__", text).replace("__SCRIPT__", script.replace("</script", "<\\/script"))


def views(file: Path) -> list[dict]:
    """What `fill` wrote into a page."""
    return json.loads(DATA.search(file.read_text())[1])["views"]


def rounded(us: dict) -> dict[str, float]:
    return {reason: round(value, 4) for reason, value in us.items() if value >= 5e-5}


def texts(files: set[str], sources: dict[str, Path], elsewhere: bool = True) -> dict[str, list[str]]:
    """The lines of the source files that can be read. elsewhere: also where line info itself says that they lie."""
    found = {}
    for name in sorted(files):
        path = sources.get(Path(name).name, Path(name) if elsewhere else None)
        try:
            if path is not None:
                found[name] = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
    return found


def listing(found: dict) -> list[list]:
    """[kernel, PTX line, instruction, calls, us by reason] of all instructions of the kernels that were timed."""
    rows = []
    for program in dict.fromkeys(program for program, _ in found):
        kernel = program.kernel
        for number, instr in enumerate(kernel.instrs[:MOST_PTX]):
            us = rounded(found.get((program, number), {}))
            rows.append([kernel.title, instr.line, instr.shown(), instr.loc, us])
    return rows


def state_map(timeline: Timeline) -> dict:
    """Return the state of each SM over time, as runs [SM, first bin, bins, state]."""
    end = max(launch.end for launch in timeline.launches)
    edges = np.linspace(0.0, end, BINS + 1)
    names, state = timeline.states(edges)
    runs = []
    for sm, row in enumerate(state):
        cuts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        runs += [[sm, a, b - a, int(row[a])] for a, b in zip(cuts, cuts[1:])]
    return {"us": timeline.us(end), "bins": BINS, "names": names, "colours": [COLOURS[x] for x in names], "runs": runs}


def spans(timeline: Timeline) -> dict:
    """[track, start, end, what] in us of SMs: all of them where they are few enough, else every this many.

    A wait goes on with its place in the source and, if an mbarrier woke the warp, the track, the place and the SM of
    what arrived there last. Texts are numbers of a list, `texts`.
    """
    texts: dict[str, int] = {}
    of_sm: dict[int, list] = {}
    for span in timeline.trace.spans:
        of_sm.setdefault(span.sm, []).append(span)
    total = sum(map(len, of_sm.values()))
    step = max(1, -(-total // MOST_SPANS))
    chosen = sorted(of_sm)[::step]
    us = timeline.us
    found: dict = {}
    for sm in chosen:
        rows = found[sm] = []
        for span in of_sm[sm]:
            if span.kind == "tensor":
                track, what = "tensor core", "MMA"
            elif span.kind in ("load", "store"):
                track, what = f"TMA {span.kind}s", f"{span.nbytes} B"
            else:
                track = f"warp {span.warp}: {timeline.role(span.warp)}"
                what = "alive" if span.kind == "warp" else f"waits for {timeline.reason(span.what)}"
            row = [track, round(us(span.start), 3), round(us(span.end), 3), what, *ends_of(timeline, span)]
            rows.append([texts.setdefault(item, len(texts)) if isinstance(item, str) else item for item in row])
        rows.sort(key=lambda row: row[3] != texts.get("alive"))  # waits are drawn over lives
    return {"texts": [*texts], "sms": found}


def ends_of(timeline: Timeline, span: Span) -> list:
    """What a row of a wait has beyond those of others: see `spans`."""
    if span.kind != "wait":
        return []
    program, block = span.at
    place = shown(program, program.kernel.instrs[program.start[block]])
    if span.by is None:
        return [place]
    by = span.by
    if by.label.startswith("tcgen05"):
        track = "tensor core"
    elif "copy" in by.label:
        track = "TMA loads"
    else:
        track = f"warp {by.warp}: {timeline.role(by.warp)}"
    return [place, track, shown(by.program, by.program.instruction_at(by.block, by.lineno)), by.sm]


def shown(program, instr) -> str:
    """An instruction's place, as `lines` names it."""
    return str(hot.Line(hot.lines_of(instr))) if instr is not None else program.kernel.title


def verdicts(timeline: Timeline, report: dict, lines: list[hot.Line]) -> list[dict]:
    """Up to five sentences, each with its figure and, where it has one, its line; what weighs most comes first."""
    waits = of_waits(timeline, lines)
    found = [*of_sms(timeline), *waits, *of_loads(timeline, waits), *of_accesses(timeline, lines), *of_kernels(report)]
    found.sort(key=lambda one: -one.pop("weight"))
    return found[:VERDICTS]


def of_sms(timeline: Timeline) -> list[dict]:
    """Say whether SMs have nothing to do."""
    shown = timeline.launches[max(0, len(timeline.launches) - 2)]
    used = len({timeline.sm_of[key] for key in timeline.life if key[0] == shown.number})
    count = len(timeline.run.placement.sms)
    if used == count:
        return []
    title = shown.launch.program.kernel.title
    text = f"{used} of {count} SMs have work in launch {shown.number} ({title}): more, smaller CTAs would use all"
    return [{"text": text, "weight": 1 - used / count}]


def of_waits(timeline: Timeline, lines: list[hot.Line]) -> list[dict]:
    """Say what each role of warps waits for most, as a share of its life, and where."""
    lives: dict[str, float] = {}
    waits: dict[tuple[str, str], float] = {}
    for span in timeline.trace.spans:
        role, cycles = timeline.role(span.warp), span.end - span.start
        if span.kind == "warp":
            lives[role] = lives.get(role, 0.0) + cycles
        elif span.kind == "wait":
            key = role, timeline.reason(span.what)
            waits[key] = waits.get(key, 0.0) + cycles
    out = []
    for (role, reason), cycles in waits.items():
        share = cycles / lives[role] if lives.get(role) else 0.0
        if share < 0.1:
            continue
        where = max(lines, key=lambda line: line.us[f"waits for {reason}"])
        text = f"{role} warps wait {100 * share:.0f} % of their time for {reason}"
        weight = min(share, 1.0) * (1.0 if role == "MMA" else 0.6)  # what feeds the tensor core matters more
        out.append({"text": text, "weight": weight, "shown": str(where)})
    return out


def of_loads(timeline: Timeline, waits: list[dict]) -> list[dict]:
    """Say, where warps wait for loads, what rate the bytes under way and their latency allow (Little's law)."""
    weight = max((wait["weight"] for wait in waits if wait["text"].endswith("for loads")), default=0.0)
    shown = timeline.launches[max(0, len(timeline.launches) - 2)]
    loads = [span for span in timeline.trace.spans if span.kind == "load" and span.launch == shown.number]
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
    return [{"text": text, "weight": 0.9 * weight}]


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
            out.append({"text": text, "weight": weight, "shown": str(where)})
    return out


def spread_of(line: hot.Line) -> str:
    """Say by what accesses at a line take more than they have to."""
    return ", ".join(excess(way, line.spread[way]) for way in hot.ACCESSES if way in line.spread)


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
