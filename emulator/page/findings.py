"""A page of what `run` found: each finding with the source lines of both parties and the events that led there."""

from __future__ import annotations

import re
from pathlib import Path

from ..machine.launch import Launch
from . import hot
from .write import FOLDER, filled, texts

MOST_EVENTS = 400  # of a launch, the last ones
LOC = re.compile(r"PTX line \d+(?:, |: .* \()([^\s(),]+:\d+(?: > [^\s(),]+)*)\)")  # of a party, of the place itself
WARP = re.compile(r"warp \d+ of CTA \(\d+, \d+, \d+\)")


def events(launch: Launch) -> list[list]:
    """[number, track, what] of the last events that others could observe, in the order in which they happened.

    A track is a warp, or what goes on for one beside it: copies, the tensor core.
    """
    order, found = launch.order, []
    for number in range(max(1, order.now + 1 - MOST_EVENTS), order.now + 1):
        text = order.who(number)
        warp = WARP.search(text)
        if warp:
            own = 0 < order.component[number] <= order.spaces[order.space[number]].warps
            found.append([number, warp[0] if own else f"for {warp[0]}", text])
    return found


def write(file: Path, title: str, report: dict, sources: dict[str, Path]) -> None:
    """Write the page. report: of serve/run.py. sources: file name in line info -> where its text is."""
    rows, files = [], set()
    for run in report["runs"]:
        kept = {one["launch"]: one["events"] for one in run["events"]}
        for one in run["findings"]:
            there = [hot.calls(loc) for loc in LOC.findall(one["message"])]
            here = [hot.calls(loc) for loc in LOC.findall(one["where"])]
            files |= {name for place in (*there, *here) for name, _ in place}
            warp = WARP.search(one["where"])
            row = {name: one[name] for name in ("class", "kind", "message", "where", "schedule", "launch")}
            row |= {"here": here, "there": there, "warp": warp and warp[0], "events": kept.get(one["launch"], [])}
            rows.append(row)
    data = {"title": title, "findings": rows, "sources": texts(files, sources)}
    file.write_text(filled((FOLDER / "findings.html").read_text(), data, (FOLDER / "findings.js").read_text()))
