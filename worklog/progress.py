"""Draws worklog/progress.png: what is modelled and what is measured, each by itself.

    .venv/bin/python -m worklog.progress

Left the steps of the worklog that have modelled times of all four cases, from the table of worklog/README.md. Right
the loads and stores of the submission on an H200 beside loads alone, from silicon/entry/h200_loads.json.
"""

import json
import math
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parent
MODE = "PDL, L2 prefetch before the wait"  # as submitted


def steps(text: str) -> list[tuple[str, list[float]]]:
    """(number, times of the four cases) of the rows that have all four; row 0 is published."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[0].isdigit() and all(re.fullmatch(r"[0-9.]+", cell) for cell in cells[3:7]):
            found.append((cells[0], [float(cell) for cell in cells[3:7]]))
    return [row for row in found if row[0] != "0"]


def draw_modelled(axes) -> None:
    rows = steps((FOLDER / "README.md").read_text())
    names = [name for name, _ in rows]
    for case in range(4):
        axes.plot(names, [times[case] for _, times in rows], "o--", alpha=0.5, label=f"case {case}")
    means = [math.exp(sum(map(math.log, times)) / 4) for _, times in rows]
    axes.plot(names, means, "ko-", label="geometric mean")
    for name, mean in zip(names, means):
        axes.annotate(f"{mean:.1f}", (name, mean), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
    axes.set(title="MODELLED for a B200, too fast (VALIDATION.md)", xlabel="row of the worklog", ylabel="us per call")
    axes.set(yscale="log", ylim=(3, 60))
    axes.set_yticks([3, 5, 10, 20, 30], [3, 5, 10, 20, 30])
    axes.minorticks_off()
    axes.legend(fontsize="small", ncols=5, loc="upper center")


def draw_measured(axes) -> None:
    record = json.loads((FOLDER.parent / "silicon" / "entry" / "h200_loads.json").read_text())
    loads = [min(x["us"]) for case in range(4) for x in record["loads only"] if (x["case"], x["mode"]) == (case, MODE)]
    ours = [min(x["us"]) for case in range(4) for x in record["submission"] if (x["case"], x["name"]) == (case, MODE)]
    for shift, values, label in ((-0.2, ours, "loads and stores, as submitted"), (0.2, loads, "loads alone")):
        bars = axes.bar([case + shift for case in range(4)], values, 0.38, label=label)
        axes.bar_label(bars, [f"{value:.1f}" for value in values], fontsize=8)
    axes.set(title=f"MEASURED on an {record['machine']['card']}", xlabel="case", ylabel="us per call")
    axes.set_xticks(range(4))
    axes.legend(fontsize="small")


def main():
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(3, 2))
    draw_modelled(left)
    draw_measured(right)
    figure.savefig(FOLDER / "progress.png", dpi=110)


if __name__ == "__main__":
    main()
