"""Draws worklog/progress.png from the table of worklog/README.md: the modelled or published times of each step.

.venv/bin/python -m worklog.progress
"""

import math
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parent
RECORD, GOAL = 13.09, 10.0  # us, geometric means: fastest published submission; what this worklog is after


def steps(text: str) -> list[tuple[str, list[float]]]:
    """(number, times of the four cases) of the rows that have all four."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[0].isdigit() and all(re.fullmatch(r"[0-9.]+", cell) for cell in cells[3:7]):
            found.append((cells[0], [float(cell) for cell in cells[3:7]]))
    return found


def main():
    rows = steps((FOLDER / "README.md").read_text())
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    names = [name for name, _ in rows]
    for case in range(4):
        axes.plot(names, [times[case] for _, times in rows], "o--", alpha=0.5, label=f"case {case}")
    means = [math.exp(sum(map(math.log, times)) / 4) for _, times in rows]
    axes.plot(names, means, "ko-", label="geometric mean")
    for name, mean in zip(names, means):
        axes.annotate(f"{mean:.1f}", (name, mean), textcoords="offset points", xytext=(0, 6), ha="center")
    axes.axhline(RECORD, color="gray", linestyle=":", label=f"published record {RECORD}")
    axes.axhline(GOAL, color="green", linestyle=":", label=f"goal {GOAL}")
    axes.set(yscale="log", xlabel="row of the worklog (0 published, others modelled)", ylabel="us per call")
    axes.set_yticks([3, 5, 10, 20, 50, 100, 300], [3, 5, 10, 20, 50, 100, 300])
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(FOLDER / "progress.png", dpi=110)


if __name__ == "__main__":
    main()
