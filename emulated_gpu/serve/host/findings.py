"""Findings for other tools: SARIF 2.1.0 (code scanning, editors), and annotations of GitHub's workflows.

A finding here is a row of `run --json` (emulated_gpu/RUN.md), each mistake once. Its places are the lines of source, or
of PTX where there is no line information, of the instruction that was found and then of the other party.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import KINDS, NOTES
from ...finding_rows import WRONG, places

HELP = "https://docs.nvidia.com/cuda/parallel-thread-execution/"


def workflow_commands(rows: list[dict]) -> Iterator[str]:
    """A workflow command of GitHub's for each finding: an error, or a notice for what the ISA does not promise."""
    for finding in rows:
        level = "error" if finding["class"] == WRONG else "notice"
        at = at_lines(finding)
        where = f" file={_escaped(at[0][0], True)},line={at[0][1]}," if at else " "
        title = _escaped(f"emulated-gpu: {finding['kind']}", True)
        yield f"::{level}{where}title={title}::{_escaped(finding['message'])}"


def sarif(rows: list[dict]) -> dict:
    """Findings as a SARIF log with one run. A rule is a class of findings."""
    results = []
    for finding in rows:
        locations = [
            {"physicalLocation": {"artifactLocation": {"uri": file}, "region": {"startLine": line}}}
            for file, line in at_lines(finding)
        ]
        told = *finding.get("before", ()), *finding.get("order", ())
        result = {
            "ruleId": finding["kind"],
            "level": "error" if finding["class"] == WRONG else "note",
            "message": {"text": "\n".join([finding["message"], finding["where"], *told]).strip()},
            "locations": locations[:1],
            "relatedLocations": locations[1:],
        }
        results.append(result)
    rules = [{"id": kind, "shortDescription": {"text": text}, "helpUri": HELP} for kind, text in KINDS.items()]
    more = {result["ruleId"] for result in results} - KINDS.keys()
    rules += [{"id": kind, "shortDescription": {"text": kind}, "helpUri": HELP} for kind in sorted(more)]
    driver = {"name": "emulated-gpu", "rules": rules, "properties": {"notes": NOTES}}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def at_lines(finding: dict) -> list[tuple[str, int]]:
    """The lines of a finding; the first one of its `file`, if that is all that is known."""
    return places(finding) or ([(finding["file"], 1)] if "file" in finding else [])


def _escaped(text: str, property_: bool = False) -> str:
    """Text of a workflow command, or of a property of one."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text
