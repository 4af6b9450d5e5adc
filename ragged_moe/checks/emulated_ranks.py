"""`python -m ragged_moe check parallel --emulated` runs these: ranks.py on this many emulated GPUs, right, and
with faults."""

import concurrent.futures
import datetime
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import click

from emulated_gpu.machine.schedule import Schedule
from ragged_moe.checks import amount

SCRIPT = Path(__file__).with_name("ranks.py")
# What is planted, and what must be said; {last} is the last rank. ranks.py plants them.
FAULTS = {
    "tokens without release": "race: ",
    "sums without release": "race: ",
    "a window written again too early": "may still read",
    "a wrong rank": "of the norm from the reference",
    "a rank that has ended": "lanes {last}, PTX line",  # of the trap: a lane waits for each rank
    "a rank that is late": "lanes {last}, PTX line",
}
FEW = "tokens without release", "a rank that has ended"  # of each kind of thing that is said, a quick one
SECONDS = 9.0  # of a run, for each rank, on a core
MOST_EXPERTS = 16  # of a token
OF_GEMMS = {"tma", "mma", "commit"}  # what only GEMMs do; to let it be late takes long while other GPUs poll


def schedules_of(count: int) -> list[int]:
    """The first schedules that delay what crosses GPUs, and nothing of the GEMMs, which ragged_moe check layer
    has."""
    seeds = (seed for seed in itertools.count() if not OF_GEMMS & Schedule(seed).lazy_classes())
    return list(itertools.islice(seeds, count))


def run_ranks(ranks: int, schedule: int, *options: str) -> dict:
    """Run ranks.py on this many emulated H200s; return its exit status, what it says, and the seconds that it takes."""
    start = time.monotonic()
    command = [sys.executable, "-m", "emulated_gpu", "run", "--machine", "h200", "--devices", str(ranks)]
    command += ["--schedule", str(schedule), str(SCRIPT), *options]
    done = subprocess.run(command, cwd=SCRIPT.parents[2], capture_output=True, text=True)
    return {"status": done.returncode, "said": sorted(done.stdout.splitlines()), "text": done.stdout + done.stderr,
            "seconds": time.monotonic() - start}  # fmt: skip


def check_emulated(ranks: int, schedules: int, jobs: int, file: str | None, everything: bool) -> None:
    """Check calls under this many schedules, tokens of 1 to 16 experts, and faults; ClickException if one is wrong.

    Not everything: calls, and the FEW faults.
    """
    planted, more = tuple(FAULTS) if everything else FEW, everything
    runs = [f"schedule {n}" for n in range(schedules)] + [*planted] + ["experts"] * more
    amount.say(runs, schedules + len(FAULTS) + 1, SECONDS * ranks, "runs")
    found: list[dict] = []

    def note(what: str, right: bool, done: dict) -> None:
        found.append({"checked": what, "right": right})
        click.echo(f"{'ok' if right else 'WRONG'} {ranks} ranks, {what}, {done['seconds']:.0f} s")
        if not right:
            click.echo(done["text"][-4000:])

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        calls = {seed: pool.submit(run_ranks, ranks, seed) for seed in schedules_of(schedules)}
        faults = {fault: pool.submit(run_ranks, ranks, 0, "--fault", fault) for fault in planted}
        experts = pool.submit(run_ranks, ranks, 0, "--top-k", str(MOST_EXPERTS)) if more else None
        first = calls[0].result()["said"]  # a digest of what each rank has
        for seed, one in calls.items():
            done = one.result()
            same = done["said"] == first and len(first) == ranks
            note(f"calls one behind the other, schedule {seed}", not done["status"] and same, done)
        for fault, one in faults.items():
            done = one.result()
            said = FAULTS[fault].format(last=ranks - 1) in done["text"]
            note(f"planted and found: {fault}", bool(done["status"]) and said, done)
        if experts:
            note(f"1 to {MOST_EXPERTS} experts of a token", not experts.result()["status"], experts.result())
    if file:
        result = {"machine": "h200, emulated", "ranks": ranks, "date": datetime.date.today().isoformat()}
        Path(file).write_text(json.dumps(result | {"checks": found}, indent=1) + "\n")
    if not all(one["right"] for one in found):
        raise click.ClickException("something is wrong")
