"""Findings for other tools: SARIF 2.1.0 (code scanning, editors), and annotations of GitHub's workflows.

A finding here is a row of `run --json` (emulator/README.md). Its places are the lines of source, or of PTX where there
is no line information, of the instruction that was found and then of the other party.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import KINDS, NOTES

HELP = "https://docs.nvidia.com/cuda/parallel-thread-execution/"
_PLACE = re.compile(r"PTX line (\d+)(.*?)(?=PTX line|\n|$)")
_SOURCE = re.compile(r"[(, ]([^\s():,]+):(\d+)(?: > |\))")


def places(finding: dict) -> list[tuple[str, int]]:
    """(file, line) of the outermost call of each party, of the finding's own place first; without duplicates."""
    found = []
    for text in (finding["where"], finding["message"]):
        for line, behind in _PLACE.findall(text):
            source = _SOURCE.search(behind)
            place = (source[1], int(source[2])) if source else ("kernel.ptx", int(line))
            if place not in found:
                found.append(place)
    return found


def annotations(report: dict) -> Iterator[str]:
    """A workflow command of GitHub's for each finding: an error, or a notice for what the ISA does not promise."""
    for finding in _unique(report):
        level = "error" if finding["class"] == "wrong" else "notice"
        at = places(finding)
        where = f" file={_escaped(at[0][0], True)},line={at[0][1]}," if at else " "
        title = _escaped(f"emulator: {finding['kind']}", True)
        yield f"::{level}{where}title={title}::{_escaped(finding['message'])}"


def sarif(report: dict) -> dict:
    """The report as a SARIF log with one run. A rule is a class of findings."""
    results = []
    for finding in _unique(report):
        locations = [
            {"physicalLocation": {"artifactLocation": {"uri": file}, "region": {"startLine": line}}}
            for file, line in places(finding)
        ]
        result = {
            "ruleId": finding["kind"],
            "level": "error" if finding["class"] == "wrong" else "note",
            "message": {"text": "\n".join([finding["message"], finding["where"], *finding.get("before", ())]).strip()},
            "locations": locations[:1],
            "relatedLocations": locations[1:],
        }
        results.append(result)
    rules = [{"id": kind, "shortDescription": {"text": text}, "helpUri": HELP} for kind, text in KINDS.items()]
    more = {result["ruleId"] for result in results} - KINDS.keys()
    rules += [{"id": kind, "shortDescription": {"text": kind}, "helpUri": HELP} for kind in sorted(more)]
    driver = {"name": "emulator", "rules": rules, "properties": {"notes": NOTES}}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _unique(report: dict) -> list[dict]:
    """Each finding once, whatever the schedules that have it."""
    found = {}
    for run in report["runs"]:
        for finding in run["findings"]:
            found.setdefault((finding["kind"], tuple(sorted(places(finding))) or finding["message"]), finding)
    return [*found.values()]


def _escaped(text: str, property_: bool = False) -> str:
    """Text of a workflow command, or of a property of one."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text
