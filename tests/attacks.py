"""Judge each submission of tests/cheats, in `test` and in `benchmark`, and record what the judge says.

    python -m tests.attacks          # all of them, a quarter of an hour
    python -m tests.attacks counter  # those whose name or kind contains a word

`make test` runs most of them, each in the command that its first lines name. `python -m worklog.pages` then redraws
evaluation/ATTACKS.md. The exit code is 1 if a submission that must not pass does, or has a time that it must not have.
"""

import ast
import json
import re
import sys
import tempfile
from pathlib import Path

import click

from evaluation import ROOT
from evaluation.judge.judge import Options, judge
from task import TestCase, format_case

RESULTS = ROOT / "worklog" / "results" / "attacks.json"
CHEATS = ROOT / "tests" / "cheats"
SIZES = {"test": ((40, 24), (48, 32), (128, 64)), "benchmark": ((16, 8), (32, 16), (128, 64))}  # m, n, k of two groups
KEYS = re.compile(r"^# (kind|caught|benchmark|calls|timed|passes the test): (.*)$", re.MULTILINE)
PATIENCE = 8  # seconds, where a hang is what is looked for


def files() -> list[Path]:
    """Lists the cheats: those that compute on the host, then those that launch kernels."""
    return [*sorted(CHEATS.glob("*.py")), *sorted((CHEATS / "kernels").glob("*.py"))]


def told(cheat: Path) -> dict[str, str]:
    """Reads what a cheat says of itself: its kind, and the judge's reason in test (`caught`) and benchmark."""
    return dict(KEYS.findall(cheat.read_text()))


def timed_calls(cheat: Path) -> int:
    """Says how many calls a benchmark of it has at the least: more for one that is wrong in some."""
    return int(told(cheat).get("calls", 1))


def text(cheat: Path) -> str:
    """Gives the submission: a cheat that launches kernels is added to one that launches its own."""
    return (ROOT / "tests" / "naive_kernel.py").read_text() * (cheat.parent.name == "kernels") + cheat.read_text()


def judged(submission: Path, command: str, hangs: bool, calls: int) -> dict:
    """Judges one case: its status, its reason, and why it has no time, or its time and how many calls were timed."""
    m, n, k = SIZES[command]
    args = {"m": m, "n": n, "k": k, "g": len(m), "seed": 0}
    timed = command == "benchmark"
    patience, calls = PATIENCE if hangs else 120, calls if timed else 4
    options = Options(str(submission), "emulated", jobs=1, timeout=patience, timed=timed, calls=calls)
    (verdict,) = judge([TestCase(format_case(args), args)], options)
    found = {"status": verdict.status, "reason": verdict.reason.partition("\n")[0]}
    if timed:
        reply = verdict.modelled or {"error": "none"}
        found |= {key: reply[key] for key in ("error", "us", "simulated", "all_run") if key in reply}
    return found


def held(says: dict[str, str], command: str, found: dict) -> bool:
    """Tells whether a verdict is one that such a submission may have."""
    if command == "test":
        return found["status"] == "fail" or "caught" not in says
    if found["status"] == "fail" or "error" in found:
        return True
    return found["simulated"] == 15 if "timed" in says else "benchmark" not in says  # `test` alone has these inputs


@click.command(help=__doc__)
@click.argument("word", default="")
def main(word: str):
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for cheat in files():
            says, name = told(cheat), cheat.stem
            if word not in f"{name} {says['kind']}":
                continue
            submission = Path(scratch, "submission.py")
            submission.write_text(text(cheat))
            row = {"kind": says["kind"], "what": " ".join(ast.get_docstring(ast.parse(cheat.read_text())).split())}
            for command in SIZES:
                row[command] = judged(submission, command, "hang" in says.get("caught", ""), timed_calls(cheat))
                passed = not held(says, command, row[command])
                bad += passed
                click.echo(f"{name}, {command}: {said(row[command])[:150]}{'  NOT HELD' * passed}")
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            known[name] = row
            kept = {name: known[name] for name in sorted(known) if name in {one.stem for one in files()}}
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    sys.exit(min(bad, 1))


def said(found: dict) -> str:
    """Writes a verdict on a line."""
    timed = f"{found['us']:.1f} us of {found['simulated']} calls" if "us" in found else found.get("error", "")
    return f"{found['status']}; {found['reason'] or timed}".removesuffix("; ")


if __name__ == "__main__":
    main()
