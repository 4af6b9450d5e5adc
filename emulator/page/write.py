"""What the page shows, gathered from a timed run and the report about it, and the file with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..model.run import TimedRun
from ..model.timeline import COLOURS, Timeline
from ..model.trace import Trace
from . import hot

FOLDER = Path(__file__).parent
BINS = 600  # of the map of SMs
MOST_SPANS = 25_000  # in the details of SMs
MOST_LINES, MOST_PTX = 400, 4_000  # in the tables
VERDICTS = 5


def write(file: Path, title: str, run: TimedRun, trace: Trace, report: dict, sources: dict[str, Path]) -> None:
    """Write the page. report: of model/report.py. sources: file name in line info -> where its text is."""
    timeline = Timeline(run, trace)
    found = hot.instructions(timeline)
    lines = hot.lines(found)
    data = {
        "title": title,
        "basis": f"profile {report['profile']}; {report['validation']}",
        "launches": report["launches"],
        "kernels": report["kernels"],
        "facts": report["breakdown"]["facts"],
        "verdicts": verdicts(timeline, report, lines),
        "peak": run.profile["hbm"]["read_tb_s"],
        "sms": len(run.placement.sms),
        "lines": [
            {"shown": str(one), "calls": one.calls, "us": rounded(one.us), "ptx": sorted(one.ptx)}
            for one in lines[:MOST_LINES]
        ],
        "sources": texts({file for one in lines for file, _ in one.calls}, sources),
        "ptx": listing(found),
        "map": state_map(timeline),
        "spans": spans(timeline),
    }
    page = (FOLDER / "page.html").read_text()
    script = (FOLDER / "echarts.min.js").read_text() + "\n" + (FOLDER / "page.js").read_text()
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")  # it stands inside of a script element
    file.write_text(page.replace("__DATA__", text).replace("__SCRIPT__", script.replace("</script", "<\\/script")))


def rounded(us: dict) -> dict[str, float]:
    return {reason: round(value, 4) for reason, value in us.items() if value >= 5e-5}


def texts(files: set[str], sources: dict[str, Path]) -> dict[str, list[str]]:
    """The lines of the source files that can be read."""
    found = {}
    for name in sorted(files):
        try:
            found[name] = sources.get(Path(name).name, Path(name)).read_text(errors="replace").splitlines()
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
    """[track, start, end, what] in us of SMs: all of them where they are few enough, else every so many."""
    of_sm: dict[int, list] = {}
    for span in timeline.trace.spans:
        of_sm.setdefault(span.sm, []).append(span)
    total = sum(map(len, of_sm.values()))
    step = max(1, -(-total // MOST_SPANS))
    chosen = sorted(of_sm)[::step]
    us, found = timeline.us, {}
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
            rows.append([track, round(us(span.start), 4), round(us(span.end), 4), what])
        rows.sort(key=lambda row: row[3] != "alive")  # waits are drawn over lives
    return found


def verdicts(timeline: Timeline, report: dict, lines: list[hot.Line]) -> list[dict]:
    """Up to five sentences, each with its figure and, where it has one, its line; what weighs most comes first."""
    found = [*of_sms(timeline), *of_waits(timeline, lines), *of_accesses(lines), *of_kernels(report)]
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


def of_accesses(lines: list[hot.Line]) -> list[dict]:
    """Name the line that accesses to memory hold up most, for each way."""
    total, out = sum(line.us.total() for line in lines) or 1.0, []
    for way in hot.ACCESSES:
        where = max(lines, key=lambda line: line.us[way])
        us = where.us[way]
        if us / total >= 0.02:
            why = " (bank conflicts, or a full queue)" if way == "shared memory" else ""
            text = f"{way}{why} hold warps up for {us:.2f} us in all, {100 * us / total:.0f} % of the time of warps"
            out.append({"text": text, "weight": us / total, "shown": str(where)})
    return out


def of_kernels(report: dict) -> list[dict]:
    """Say which floor a kernel is near, and whether it spills."""
    out = []
    for kernel in report["kernels"]:
        name, floor = max(kernel["floors_us"].items(), key=lambda item: item[1])
        share = floor / kernel["us"] if kernel["us"] else 0.0
        text = (
            f"{kernel['title']} takes {kernel['us']:.2f} us; "
            f"its floor by {name} is {floor:.2f} us ({100 * share:.0f} %)"
        )
        out.append({"text": text, "weight": 0.4 + 0.5 * (share > 0.7)})
        if kernel["stack_bytes"]:
            text = f"{kernel['title']} keeps {kernel['stack_bytes']} bytes a thread on the stack: spills or arrays"
            out.append({"text": text, "weight": 0.5})
    return out
