"""Findings as rows of a report: what a row has, where its parties are, and each mistake once.

A row is what emulated_gpu/RUN.md says of `findings`, as JSON has it; `of` says where it was seen, `events` what
happened before (page/findings.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import EmulatorError

WRONG, NOT_PROMISED = "wrong", "not promised"  # classes; the second one: errors.NOTES
_PLACE = re.compile(r"PTX line (\d+)(.*?)(?=PTX line|\n|$)")
_SOURCE = re.compile(r"[(, ]([^\s():,]+):(\d+)(?: > |\))")
_OF_HOST = re.compile(r"(?:^|\()([^\s():,]+\.\w+):(\d+)(?:$|\))")  # of what the host has given to streams
_KERNEL = re.compile(r"kernel ([^\s,:]+)")


def row_of(of_class: str, found: EmulatorError) -> dict:
    """Return what a row has of a finding itself."""
    return {
        "class": of_class, "kind": found.kind, "message": found.message, "where": found.where, "before": found.before,
        "order": found.order,
        "event": found.event, "other": found.other,
    }  # fmt: skip


def places(finding: dict) -> list[tuple[str, int]]:
    """Return (file, line) of the outermost call of each party, of the finding's own place first; without duplicates."""
    found = []
    for text in (finding["where"], finding["message"]):
        for line, behind in _PLACE.findall(text):
            source = _SOURCE.search(behind)
            place = (source[1], int(source[2])) if source else ("kernel.ptx", int(line))
            if place not in found:
                found.append(place)
    if not found:
        named = [place for text in (finding["where"], finding["message"]) for place in _OF_HOST.findall(text)]
        found = [(file, int(line)) for file, line in dict.fromkeys(named)]
    return found


def unique(findings: Iterable[dict]) -> list[dict]:
    """Return the first row of each mistake: one class and kind at the same lines of a kernel, whoever came first there.

    `of` of what is returned counts the others: `schedule 0, launch 1, and 7 times more`.
    """
    first: dict[tuple, dict] = {}
    count: dict[tuple, int] = {}
    for finding in findings:
        at = tuple(sorted(places(finding))) or finding["message"]
        key = finding["class"], finding["kind"], *_KERNEL.findall(finding["where"])[:1], at
        first.setdefault(key, finding)
        count[key] = count.get(key, 0) + 1
    more = {key: f", and {n - 1} time{'s' * (n > 2)} more" * (n > 1) for key, n in count.items()}
    return [one | ({"of": one["of"] + more[key]} if "of" in one else {}) for key, one in first.items()]


def of_runs(runs: list[dict]) -> list[dict]:
    """Return the findings of all `runs` of a report, with `of`, each mistake once."""
    return unique(
        one | {"of": f"schedule {one['schedule']}, launch {one['launch']}"} for run in runs for one in run["findings"]
    )
