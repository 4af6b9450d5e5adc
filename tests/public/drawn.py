"""Draw tests of others' suites at random and run them on the emulator: how many pass, and what stops the others.

    python -m tests.public.drawn FOLDER... [--suite WORD]... [--machine h200] [--seed 0] [--only WORD] [--list]

suites.py names the suites; a FOLDER is a checkout of a project's repository, and suites whose file is in none of them
keep what is recorded. Tests are taken in an order that the seed draws, until the suite's count of them have run: what
the file skips on the machine does not count. They share a process, in which each has 60 s of CPU time and findings of
its own; one that passes with a finding has not passed. Results go to drawn.json, beside this file, from which `python
-m worklog.pages` draws tables of emulated_gpu/PUBLIC.md; with --only, which takes tests whose name has the word, they
are shown alone. What the tests import has to be installed. Exit status 1 if a test neither passes nor has a word of
explanation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from tests.public.__main__ import PLACE, ROOT, found, versions
from tests.public.suites import SUITES, Suite

RECORD = Path(__file__).with_name("drawn.json")
CHILD = Path(__file__).with_name("drawn_tests.py")


def draw(suite: Suite, folder: Path, machine: str, seed: int, only: str) -> list[dict]:
    """Run the tests, in a new process whenever one ends before it is done; returns a row for each."""
    with tempfile.TemporaryDirectory(prefix="drawn-") as made:
        rows = Path(made, "rows")
        rows.touch()
        what = [str(folder / suite.file), str(folder), suite.words, str(seed), str(suite.count), only, str(rows)]
        line = [sys.executable, "-m", "emulated_gpu", "run", "--machine", machine, str(CHILD), *what]
        path = [str(folder), *(str(folder / one) for one in suite.path), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        variables = {"TRITON_CACHE_DIR": made} | os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        while True:
            done = subprocess.run(line, env=variables, capture_output=True, text=True)
            said = [json.loads(one) for one in rows.read_text().splitlines()]
            if not said:
                raise click.ClickException(f"no test has run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            if "begun" not in said[-1]:
                return [row | {"why": PLACE.sub("", row["why"])} for row in said if "test" in row]
            why = f"its process ended with {done.returncode}"
            row = {"test": said[-1]["begun"], "verdict": "fails", "why": why, "seconds": 0.0, "launches": 0}
            with rows.open("a") as out:
                out.write(json.dumps(row) + "\n")


def record(suite: Suite, machine: str, seed: int, rows: list[dict]) -> None:
    """Write what became of a suite to RECORD."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    counts = Counter(row["verdict"] for row in rows)
    others = [row for row in rows if row["verdict"] not in ("agrees", "skipped")]
    known.setdefault(suite.name, {})[machine] = {
        "seed": seed, "counts": counts, "seconds": round(sum(row["seconds"] for row in rows)),
        "launches": sum(row["launches"] for row in rows), "versions": versions(),
        "others": [{key: row[key] for key in ("test", "verdict", "why")} for row in others],
    }  # fmt: skip
    RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--suite", "chosen", multiple=True, metavar="WORD", help="Suites whose name has these words.")
@click.option("--machine", type=click.Choice(["b200", "h200"]), default="b200")
@click.option("--seed", default=0, help="Of the order.")
@click.option("--only", default="", metavar="WORD", help="Tests whose name has the word; nothing is recorded.")
@click.option("--list", "show", is_flag=True, help="Say which suites there are, and run nothing.")
def main(folders: tuple[Path, ...], chosen: tuple[str, ...], machine: str, seed: int, only: str, show: bool):
    unexplained = 0
    for suite in SUITES:
        if machine not in suite.machines or not all(word in suite.name for word in chosen):
            continue
        file = found(suite.file, [folder.resolve() for folder in folders])
        if show:
            print(f"{suite.name}: {suite.count} of {suite.file}")
        if show or file is None:
            continue
        rows = draw(suite, file.parents[suite.file.count("/")], machine, seed, only)
        for row in rows:
            if row["verdict"] not in ("agrees", "skipped"):
                said = suite.explanation(row["test"])
                print(f"{row['verdict']:9} {row['seconds']:5.1f} s  {row['test']}  {said or row['why'][:150]}")
                unexplained += not said
        counts = Counter(row["verdict"] for row in rows)
        print(f"{suite.name}: {', '.join(f'{counts[kind]} {kind}' for kind in sorted(counts))}", flush=True)
        if not only:
            record(suite, machine, seed, rows)
    sys.exit(int(unexplained > 0))


if __name__ == "__main__":
    main()
