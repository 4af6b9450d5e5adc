"""Figures of the pages, read from the files in which they were recorded: microseconds per call of the four cases.

results/group_gemm.json and dual_gemm.json are what `python eval.py compare submission.py
submission.py:pdl=False,prefetch=0 --json FILE` and `python eval.py benchmark --task nvfp4_dual_gemm --json FILE` wrote,
case 1 of the latter by a run of its own.
results/emulator_speed.json has what `python -m emulator.speed --json FILE` measured, before and now.
results/public.json has what others published of B200s, and what the timing model says of one author's kernels.
emulator/model/whole_kernels.json has the other public kernels, silicon/entry/h200_loads.json what an H200 measured.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from emulator.model import uncertainty

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
LOADS = ROOT / "silicon" / "entry" / "h200_loads.json"
AS_SUBMITTED = "PDL, L2 prefetch before the wait"
TASKS = {"nvfp4_group_gemm": "task.yml", "nvfp4_dual_gemm": "task_dual.yml"}
GROUP, DUAL = TASKS


@dataclass(frozen=True)
class Row:
    """Times of one kernel. us: of the four cases, or none if only the mean is known.

    kind: "modelled", "published", "measured" or "computed", and of which machine. intervals: of modelled times, where
    the time on a B200 may lie.
    """

    kind: str
    what: str
    us: tuple[float, ...] = ()
    intervals: tuple[tuple[float, float], ...] = ()
    mean_us: float = field(default=0.0)  # worked out where the cases are known

    @property
    def geomean_us(self) -> float:
        return statistics.geometric_mean(self.us) if self.us else self.mean_us

    @property
    def mean_interval(self) -> tuple[float, float] | None:
        return uncertainty.mean_interval(self.intervals) if self.intervals else None


def public() -> dict:
    return json.loads((RESULTS / "public.json").read_text())


def speed() -> dict:
    """How fast the emulator runs: `before` machine code and `now`, each by case what emulator/speed.py writes."""
    return json.loads((RESULTS / "emulator_speed.json").read_text())


def of_other(what: str, us: list[float]) -> Row:
    """A modelled row of a kernel without PDL."""
    return Row("modelled", what, tuple(us), tuple(uncertainty.interval(time, pdl=False) for time in us))


def ladder(kernel: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(published, modelled) times of a kernel of whole_kernels.json."""
    points = [point for point in uncertainty.POINTS["plain"] if point["kernel"] == kernel]
    return tuple(point["published_us"] for point in points), tuple(point["modelled_us"] for point in points)


def speed_of_light(task: str) -> Row:
    """From the task's description."""
    said = re.search(r"Speed of light at 1.5 GHz: (.*) us", (ROOT / TASKS[task]).read_text())[1]
    return Row("computed", "speed of light at 1.5 GHz", tuple(map(float, re.findall(r"\d+\.\d+", said))))


def best(task: str, name: str, rank: int) -> Row:
    """An author's best entry on the leaderboard, which shows only the mean."""
    mean = public()["leaderboard"][task]["best geomean, us"][name]
    return Row("published", f"{name}, rank {rank} of the leaderboard", mean_us=mean)


def loads(kind: str, name: str) -> tuple[float, ...]:
    """The faster of the two rounds of each case, as submitted. kind: of h200_loads.json; name: the mode's key there."""
    record = json.loads(LOADS.read_text())[kind]
    return tuple(min(x["us"]) for case in range(4) for x in record if (x["case"], x[name]) == (case, AS_SUBMITTED))


def group_gemm() -> dict[str, Row]:
    """Name -> row, for README.md and its picture."""
    compared = json.loads((RESULTS / "group_gemm.json").read_text())
    rows = {}
    for name, side, what in (
        ("ours", "a", "this repository, as submitted"),
        ("ours, plain", "b", "this repository, without PDL and L2 prefetch"),
    ):
        cases = [case[side] for case in compared["cases"]]
        intervals = tuple(tuple(case["us_interval"]) for case in cases)
        rows[name] = Row("modelled", what, tuple(case["us"] for case in cases), intervals)
    [v6c] = [kernel for kernel in public()["gau.nernst"]["15 calls in a row"] if kernel["kernel"] == "v6c"]
    published, modelled = ladder("NaregAmirianMegan, v2")
    return rows | {
        "v6c, modelled": of_other("gau.nernst, v6c", v6c["modelled_us"]),
        "v2, modelled": of_other("NaregAmirianMegan, v2", list(modelled)),
        "v6c": Row("published", "gau.nernst, v6c", tuple(v6c["published_us"])),
        "rank 1": best(GROUP, "gau.nernst", 1),
        "rank 2": best(GROUP, "guaguabear", 2),
        "v2": Row("published", "NaregAmirianMegan, v2", published),
        "loads and stores": Row("measured", "this repository, loads and stores alone", loads("submission", "name")),
        "loads": Row("measured", "loads alone, each byte once, one CTA per SM", loads("loads only", "mode")),
        "light": speed_of_light(GROUP),
    }


def dual_gemm() -> dict[str, Row]:
    """Name -> row, for docs/dual.md."""
    cases = json.loads((RESULTS / "dual_gemm.json").read_text())["cases"]
    published, modelled = ladder("dual GEMM, guaguabear")
    intervals = tuple(tuple(case["us_interval"]) for case in cases)
    return {
        "ours": Row("modelled", "this repository, as submitted", tuple(case["us"] for case in cases), intervals),
        "guaguabear, modelled": of_other("guaguabear's kernel", list(modelled)),
        "guaguabear": Row("published", "guaguabear's kernel", published),
        "rank 1": best(DUAL, "gau.nernst", 1),
        "light": speed_of_light(DUAL),
    }
