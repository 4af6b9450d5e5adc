"""`python -m moe.parallel_check --emulated` runs these: ranks.py on so many emulated GPUs, right, and with faults."""

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

import click

SCRIPT = Path(__file__).with_name("ranks.py")
# What is planted, and what must be said; {last} is the last rank. ranks.py plants them.
FAULTS = {
    "tokens without release": "race: ",
    "sums without release": "race: ",
    "a buffer reused too early": "race: ",
    "a wrong rank": "of the norm from the reference",
    "a rank that has ended": "rank {last} has not sent its tokens within",
    "a rank that is late": "rank {last} has not sent its tokens within",
}
MOST_EXPERTS = 16  # of a token


def run(ranks: int, *options: str) -> tuple[int, str, float]:
    """(exit status, what it says, seconds) of ranks.py on so many emulated H200s."""
    start = time.monotonic()
    command = [sys.executable, "-m", "emulator", "run", "--machine", "h200", "--devices", str(ranks), str(SCRIPT)]
    done = subprocess.run([*command, *options], cwd=SCRIPT.parents[2], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def check_emulated(ranks: int, schedules: int, file: str | None) -> None:
    """Check calls under so many schedules, tokens of 1 to 16 experts, and faults; ClickException if one is wrong."""
    found: list[dict] = []

    def note(what: str, right: bool, seconds: float, text: str) -> None:
        found.append({"checked": what, "right": right, "seconds": round(seconds)})
        click.echo(f"{'ok' if right else 'WRONG'} {ranks} ranks, {what}, {seconds:.0f} s")
        if not right:
            click.echo(text)

    for what, *options in (
        (f"calls one behind the other, {schedules} schedules", "--schedules", str(schedules)),
        (f"1 to {MOST_EXPERTS} experts of a token", "--top-k", str(MOST_EXPERTS)),
    ):
        status, text, seconds = run(ranks, *options)
        note(what, not status and "right" in text.splitlines(), seconds, text[-4000:])
    for fault, must in FAULTS.items():
        status, text, seconds = run(ranks, "--fault", fault)
        note(f"planted and found: {fault}", bool(status) and must.format(last=ranks - 1) in text, seconds, text[-4000:])
    if file:
        result = {"machine": "h200, emulated", "ranks": ranks, "schedules": schedules, "checks": found}
        result["date"] = datetime.date.today().isoformat()
        Path(file).write_text(json.dumps(result, indent=1) + "\n")
    if not all(one["right"] for one in found):
        raise click.ClickException("something is wrong")
