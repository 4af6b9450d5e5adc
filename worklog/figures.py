"""Figures of the pages, read from the files in which they were recorded: microseconds per call of the four cases.

results/group_gemm.json has submission.py, and with pdl=False, prefetch=0, as silicon.whole_kernels.published modelled
the kernels beside it. dual_gemm.json is what `python eval.py benchmark --task nvfp4_dual_gemm --json FILE` wrote, case
1 by a run of its own, before tensor memory had a B200's rate.
results/emulator_speed.json has what `python -m emulated_gpu.speed --json FILE` measured, before and now.
results/public.json has what a leaderboard says of others.
tests/public/record.json has what became of public scripts on the emulator, as `python -m tests.public` wrote it;
drawn.json beside it, of tests drawn from others' suites, as `python -m tests.public.drawn` did.
emulated_gpu/model/whole_kernels.json has what others published of B200s, and what the timing model says of their
kernels; intervals of modelled times are of it as it is now, whatever the runs said.
silicon/entry/h200_loads.json has what an H200 measured.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from emulated_gpu.model import uncertainty

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
DRAWN = ROOT / "tests" / "public" / "drawn.json"
SCRIPTS = ROOT / "tests" / "public" / "record.json"
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


def any_task() -> dict:
    """Return the record of tests/any_task.py: task -> case, door, template, right, wrong."""
    return json.loads((RESULTS / "any_task.json").read_text())


def attacks() -> dict:
    """Return the record of tests/attacks.py: name -> kind, what it does, and the verdicts of test and benchmark."""
    return json.loads((RESULTS / "attacks.json").read_text())


def public() -> dict:
    return json.loads((RESULTS / "public.json").read_text())


def speed() -> dict:
    """How fast the emulator runs: `before` machine code and `now`, each by case what emulated_gpu/speed.py writes."""
    return json.loads((RESULTS / "emulator_speed.json").read_text())


def scripts() -> dict[str, dict[str, dict]]:
    """Return the record of `python -m tests.public`: name of a script -> machine -> its row."""
    return json.loads(SCRIPTS.read_text())


def drawn() -> dict[str, dict]:
    """Return the record of `python -m tests.public.drawn`: suite -> machine -> counts of verdicts and others."""
    return json.loads(DRAWN.read_text())


def points_of(kernel: str) -> list[dict]:
    """The cases of a kernel of whole_kernels.json whose calls were timed in a row."""
    return [p for p in uncertainty.POINTS["plain"] if p["kernel"] == kernel and p["in a row"]]


def of_public(kernel: str, what: str) -> tuple[Row, Row]:
    """A public kernel, of which no one has PDL, on the model and as its author published it."""
    points = points_of(kernel)
    modelled = tuple(point["modelled_us"] for point in points)
    may_be = tuple(uncertainty.interval(us, contest=True) for us in modelled)
    return Row("modelled", what, modelled, may_be), Row("published", what, tuple(p["published_us"] for p in points))


def of_ours(what: str, replies: list[dict]) -> Row:
    """Modelled times of this repository. replies: of the cases."""
    us = tuple(reply["us"] for reply in replies)
    pdl = (reply["modelled"]["pdl"] for reply in replies)
    may_be = (uncertainty.interval(*of, contest=True) for of in zip(us, pdl, strict=True))
    return Row("modelled", what, us, tuple(may_be))


def speed_of_light(task: str) -> Row:
    """Read the speed of light of each case from the task's description."""
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
        rows[name] = of_ours(what, [case[side] for case in compared["cases"]])
    v6b, v2 = (of_public(kernel, kernel) for kernel in ("gau.nernst, v6b", "NaregAmirianMegan, v2"))
    return rows | {
        "v6b, modelled": v6b[0],
        "v2, modelled": v2[0],
        "v6b": v6b[1],
        "rank 1": best(GROUP, "gau.nernst", 1),
        "rank 2": best(GROUP, "guaguabear", 2),
        "v2": v2[1],
        "loads and stores": Row("measured", "this repository, loads and stores alone", loads("submission", "name")),
        "loads": Row("measured", "loads alone, each byte once, one CTA per SM", loads("loads only", "mode")),
        "light": speed_of_light(GROUP),
    }


def dual_gemm() -> dict[str, Row]:
    """Name -> row, for docs/dual.md."""
    cases = json.loads((RESULTS / "dual_gemm.json").read_text())["cases"]
    guaguabear = of_public("dual GEMM, guaguabear", "guaguabear's kernel")
    return {
        "ours": of_ours("this repository, as submitted", cases),
        "guaguabear, modelled": guaguabear[0],
        "guaguabear": guaguabear[1],
        "rank 1": best(DUAL, "gau.nernst", 1),
        "light": speed_of_light(DUAL),
    }
