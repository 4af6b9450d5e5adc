"""What mypy finds may only become less: `python -m tests.findings_of_types`, a part of `make lint`.

findings_of_types.txt has how many findings each file may have; a file that is not in it may have none. Where there are
fewer than that, `--lower` writes the lower numbers down, and never a higher one. Counts are of the versions in
constraints.txt: with other versions of torch or NumPy a file can have more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = Path(__file__).with_suffix(".txt")
SUMMARY = re.compile(r"^(Found \d+ error|Success)", re.MULTILINE)
FINDING = re.compile(r"(?P<file>[\w/]+\.py):\d+: error: ")


def allowed_in(text: str) -> Counter[str]:
    """Read lines of a file and its count. Raises ValueError for another line."""
    return Counter({file: int(count) for file, count in (line.rsplit(" ", 1) for line in text.splitlines())})


def counts_of(output: str) -> Counter[str]:
    """Count mypy's findings by file. Raises ValueError for output without mypy's last line, which did not look."""
    if not SUMMARY.search(output):
        raise ValueError(f"mypy did not look: {output.strip()}")
    return Counter(found["file"] for found in map(FINDING.match, output.splitlines()) if found)


def problems(allowed: Counter[str], found: Counter[str], output: str) -> list[str]:
    """Return what to say: the findings of files that have more than they may, or that numbers are to be lowered."""
    worse = {file: count for file, count in found.items() if count > allowed[file]}
    said = [line for line in output.splitlines() if (m := FINDING.match(line)) and m["file"] in worse]
    said += [f"{file}: {count} findings of mypy, {allowed[file]} are allowed" for file, count in sorted(worse.items())]
    if not worse and found != allowed:
        said.append("mypy finds less than it may: python -m tests.findings_of_types --lower")
    return said


def lowered(allowed: Counter[str], found: Counter[str]) -> str:
    """Return the text of the allowed numbers, each at most what it was."""
    least = allowed & found
    return "".join(f"{file} {count}\n" for file, count in sorted(least.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write down lower numbers")
    lower = parser.parse_args().lower
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    try:
        allowed, found = allowed_in(ALLOWED.read_text()), counts_of(done.stdout)
    except ValueError:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 2
    if lower:
        ALLOWED.write_text(lowered(allowed, found))
        allowed = allowed_in(ALLOWED.read_text())
    said = problems(allowed, found, done.stdout)
    print("\n".join([*said, f"mypy: {found.total()} findings, {allowed.total()} are allowed"]))
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
