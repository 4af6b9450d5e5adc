"""What the page shows, gathered from a timed run and the report about it, and the file with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from ..model.run import TimedRun
from ..model.timeline import COLOURS, Timeline
from ..model.trace import Span, Trace
from . import hot
from .sass import sass
from .verdicts import figures_of, spread_of, verdicts

FOLDER = Path(__file__).parent
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>')
BINS = 600  # of the map of SMs
MOST_SPANS = 25_000  # in the details of SMs
MOST_LINES, MOST_PTX = 400, 4_000  # in the tables


def write_page(
    file: Path, title: str, run: TimedRun, trace: Trace, report: dict, sources: dict[str, Path],
    baseline: Path | None = None,
) -> None:  # fmt: skip
    """Write the page of a profile. report: of model/report.py, with `verdicts`. sources: file name in line info ->
    where its text is. baseline: the page of another profile, which this one is held against."""
    view = gathered(title, run, trace, report, sources)
    if baseline is not None:
        view["baseline"] = held_against(views(baseline)[0], view["kernels"])
    fill(file, [view])


def held_against(other: dict, kernels: list[dict]) -> dict:
    """Return what a page shows of another profile: the time of its kernel that takes most, or of that of the same name,
    and of each line of its source, in us."""
    most = max(kernels, key=lambda kernel: kernel["us_corrected"] * len(kernel["launches"]))
    same = [kernel for kernel in other["kernels"] if kernel["title"] == most["title"]]
    of = max(same or other["kernels"], key=lambda kernel: kernel["us_corrected"] * len(kernel["launches"]))
    lines = {line["shown"]: sum(line["us"].values()) for line in other["lines"]}
    return {"title": other["title"], "us": of["us"], "us_corrected": of["us_corrected"], "lines": lines}


def gathered(title: str, run: TimedRun, trace: Trace, report: dict, sources: dict[str, Path]) -> dict:
    """What the page shows of a profile; arguments as of `write`."""
    timeline = Timeline(run, trace)
    found = hot.instructions(timeline)
    lines = hot.lines(found, trace)
    return {
        "title": title,
        "basis": f"profile {report['profile']}; {report['validation']}",
        "launches": report["launches"],
        "kernels": [kernel | {"occupancy": occupancy(timeline, kernel)} for kernel in report["kernels"]],
        "facts": report["breakdown"]["facts"],
        "shares": report["breakdown"]["shares"],
        "partial": report.get("partial", ""),
        "verdicts": report["verdicts"] if "verdicts" in report else verdicts(timeline, report, lines),
        "peak": run.profile["hbm"]["read_tb_s"],
        "sms": len(run.placement.sms),
        "lines": [
            {
                "shown": str(one), "calls": one.calls, "us": rounded(one.us), "ptx": sorted(one.ptx),
                "spread": spread_of(one.spread), "figures": figures_of(one.spread),
            }
            for one in lines[:MOST_LINES]
        ],  # fmt: skip
        "sources": texts({file for one in lines for file, _ in one.calls}, sources),
        "ptx": listing(found, hot.spreads(trace)),
        "sass": machine_code(found),
        "map": state_map(timeline),
        "spans": spans(timeline),
    }


def occupancy(timeline: Timeline, kernel: dict) -> dict[str, float]:
    """Return which share of the warps that SMs have room for a kernel has: in theory where its CTAs fill an SM, and
    achieved in the mean of all SMs, from its first warp to its last."""
    most = timeline.run.launches[0].launch.chip.threads_per_sm // 32
    warps = -(-kernel["threads"] // 32)
    lives, longest = 0.0, 0.0
    for number in kernel["launches"]:
        spans = [s for s in timeline.trace.spans if s.kind == "warp" and s.launch == number]
        if spans:
            lives += sum(s.end - s.start for s in spans)
            longest += max(s.end for s in spans) - min(s.start for s in spans)
    room = longest * len(timeline.run.placement.sms) * most
    return {"theoretical": kernel["ctas_per_sm"] * warps / most, "achieved": lives / room if room else 0.0}


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
    """What `fill` wrote into a page. Raises ValueError for another file."""
    found = DATA.search(file.read_text(errors="replace"))
    data = json.loads(found[1]) if found else {}
    if not data.get("views"):
        raise ValueError(f"{file} is no page of a profile")
    return data["views"]


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


def listing(found: dict, spreads: dict) -> list[list]:
    """[kernel, PTX line, instruction, calls, us by reason, what its accesses take in words and figures] of all
    instructions of the kernels that were timed."""
    rows: list[list] = []
    for program in dict.fromkeys(program for program, _ in found):
        kernel = program.kernel
        for number, instr in enumerate(kernel.instrs[:MOST_PTX]):
            us = rounded(found.get((program, number), {}))
            spread = spreads.get((program, number), {})
            took = [spread_of(spread), figures_of(spread)] if spread else []
            rows.append([kernel.title, instr.line, instr.shown(), instr.loc, us, *took])
    return rows


def machine_code(found: dict) -> list[list]:
    """[kernel, address, instruction, PTX line, stall, scoreboards that it waits for] of what ptxas makes of the kernels
    that were timed, as sass.py has it."""
    rows: list[list] = []
    for program in dict.fromkeys(program for program, _ in found):
        kernel = program.kernel
        of_kernel = sass(kernel.source).get(kernel.name, [])
        rows += ([kernel.title, f"{one.address:04x}", one.text, *one[2:]] for one in of_kernel[:MOST_PTX])
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
                track = f"warp {span.warp}: {timeline.role_of(span)}"
                what = "alive" if span.kind == "warp" else f"waits for {timeline.reason_of(span)}"
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
        track = f"warp {by.warp}: {timeline.role(by.program, by.warp)}"
    return [place, track, shown(by.program, by.program.instruction_at(by.block, by.lineno)), by.sm]


def shown(program, instr) -> str:
    """An instruction's place, as `lines` names it."""
    return str(hot.Line(hot.lines_of(instr))) if instr is not None else program.kernel.title
