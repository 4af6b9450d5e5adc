"""A page of what was found: each finding with the source lines of both parties and the events that led there."""

from __future__ import annotations

import re
from pathlib import Path

from .. import finding_rows
from ..machine.launch import Launch
from . import hot
from .titles import title_of
from .write import FOLDER, filled, texts

MOST_EVENTS = 400  # of a launch, the last ones
LOC = re.compile(r"PTX line \d+(?:, |: .* \()([^\s(),]+:\d+(?: > [^\s(),]+)*)\)")  # of a party, of the place itself
WARP = re.compile(r"warp \d+ of CTA \(\d+, \d+, \d+\)")


def events(launch: Launch) -> list[list]:
    """[number, track, what] of events that others could observe, in the order in which they happened: of a launch, and
    of what was found in it meanwhile, the last ones and that of the other party.

    A track is a warp, or what goes on for one beside it: copies, the tensor core.
    """
    order, numbers = launch.order, set()
    for last, other in [*launch.reported, (launch.order.now, 0)]:
        numbers |= {*range(max(1, last + 1 - MOST_EVENTS), last + 1), other} - {0}
    found = []
    for number in sorted(numbers):
        text = order.who(number)
        warp = WARP.search(text)
        if warp:
            own = 0 < order.component[number] <= order.spaces[order.space[number]].warps
            found.append([number, warp[0] if own else f"for {warp[0]}", text])
    return found


def of_runs(runs: list[dict]) -> list[dict]:
    """The findings of a report's runs, each mistake once, with the events before it; see serve/run.py."""
    kept = {(run["schedule"], one["launch"]): one["events"] for run in runs for one in run["events"]}
    found = finding_rows.of_runs(runs)
    return [one | {"events": kept.get((one["schedule"], one["launch"]), [])} for one in found]


def write_findings(
    file: Path, title: str, findings: list[dict], sources: dict[str, Path], elsewhere: bool = True,
    none: str = "nothing was found",
) -> None:  # fmt: skip
    """Write the page. findings: rows (rows.py) with `of` and `events`. sources: file name in line info -> where its
    text is; elsewhere: or where line info says. none: what to say where there are no findings."""
    shown, files = [], set()
    for one in findings:
        here = [hot.calls(loc) for loc in LOC.findall(one["where"])]
        there = [place for place in map(hot.calls, LOC.findall(one["message"])) if place not in here]
        files |= {name for place in (*there, *here) for name, _ in place}
        warp = WARP.search(one["where"])
        row = {name: one[name] for name in ("class", "kind", "message", "where", "of", "other")}
        row["title"] = title_of(one["kind"])
        row |= {"here": here, "there": there, "warp": warp and warp[0], "events": before(one)}
        shown.append(row)
    data = {"title": title, "findings": shown, "none": none, "sources": texts(files, sources, elsewhere)}
    file.write_text(filled((FOLDER / "findings.html").read_text(), data, (FOLDER / "findings.js").read_text()))


def before(finding: dict) -> list[list]:
    """The events of a finding's launch that had happened until then: the last ones, and that of the other party."""
    until = [event for event in finding["events"] if event[0] <= (finding["event"] or event[0])]
    other = [event for event in until[:-MOST_EVENTS] if event[0] == finding["other"]]
    return other + until[-MOST_EVENTS:]
