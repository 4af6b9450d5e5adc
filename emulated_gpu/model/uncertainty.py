"""How wrong a modelled time may be: brackets from whole kernels whose times were published or measured.

whole_kernels.json has them, each with its time on silicon and the model's. `plain`: kernels of others on a B200, none
of which uses programmatic dependent launch (PDL); emulated_gpu/VALIDATION.md has the tables. A time on silicon is the
model's, times a constant, an effect of the kernel's author, one of the kernel and a rest. The constant belongs to the
contests' problems for which two authors wrote kernels (`contests`): with one author it may be the author's own. It is
the mean over these kernels, each of which counts the same. Elsewhere it is 1: of families outside, that errs less than
the contests' constant and than the mean of the other families outside. The bracket is that of a kernel whose author the
model has not met: its width is what each author's kernels differ by from the constant that all others' give. It is a
factor, so that a time that changes little has a bracket that does. A kernel of whose time HBM, the tensor cores or
instructions take more or less than of any that is known (`made_of`) gets none: `unlike` says why.

`strangers`: kernels of other families, which nobody had in sight when the model was made. Each family counts as an
author for the width. A family of which one point is known makes nothing known.

`dependent`: nobody has published a kernel with PDL, so the load side of this repo's submission stands for them,
measured on an H200 with PDL and without (silicon/entry/h200_loads.py): a time with PDL is as uncertain as one without,
and as PDL makes it on top.

whole_kernels_h200.json: CUTLASS's kernels and our own on an H200, for times on that machine and on an H100: point ->
measured, modelled us. `python -m silicon.whole_kernels.hopper table . --write silicon/whole_kernels/README.md` writes
it and the table there. Authors are the families there, and all share a constant: with it they err as without it.
Kernels whose accumulators do not fit the registers are left out: a kernel with a stack has no bracket.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from .made_of import WORDS, MadeOf
from .profile import Profile, load
from .sm_clock import sustained_us

POINTS = json.loads(Path(__file__).with_name("whole_kernels.json").read_text())
POINTS_H200 = json.loads(Path(__file__).with_name("whole_kernels_h200.json").read_text())
SPILLING = "2xacc 128x128"  # of the H200's: two accumulators of 128 registers a thread
COVERED = 0.9  # share of the times on silicon that a bracket claims to hold
BEYOND, ROOM = 1.25, 0.02  # a share may be this many times the most and the least that is known, and so much more
NVFP4_FLOPS = 2 * 128 * 256 * 64 / 128  # of an SM in a cycle: M = 128, N = 256, K = 64 in 128 cycles


class Known(NamedTuple):
    """A point: who wrote the kernel, which it is, and the logarithm of its time on silicon over the model's.

    shares: whether the constant is its, too.
    """

    author: str
    kernel: str
    error: float
    shares: bool = False


def basis(machine: str) -> str:
    """Return the basis of the brackets as a sentence without its full stop. machine: b200, h200 or h100."""
    whose = {
        "b200": "public kernels on a B200",
        "h200": "CUTLASS's kernels and our own on an H200",
        "h100": "CUTLASS's kernels and our own on an H200: none was timed on an H100",
    }[machine]
    return (
        f"may be: nine of ten times of a kernel whose author and family the model has not met, by known errors of "
        f"{whose}; with programmatic dependent launch, whose errors only an H200 shows, theirs are added; a kernel of "
        "which a time is made otherwise gets no bracket. See emulated_gpu/VALIDATION.md"
    )


BASIS = basis("b200")


def known(machine: str = "b200") -> list[Known]:
    """List the points that brackets of a machine rest on."""
    if machine == "b200":
        shared = contests()
        return [
            Known(of["author"], of["kernel"], math.log(of["published_us"] / modelled_us(of)), problem(of) in shared)
            for of in [*POINTS["plain"], *met_more_than_once()]
        ]
    return [
        Known(name.split(" ")[0], name.partition("/")[0], math.log(measured / modelled), True)
        for name, (measured, modelled) in POINTS_H200.items()
        if not name.startswith(SPILLING)
    ]


def problem(point: dict) -> str:
    """Return what a point's kernel computes; of `plain` it is "group GEMM", "dual GEMM" or "GEMM"."""
    return "group GEMM" if isinstance(point.get("m"), list) else point["kernel"].partition(",")[0]


def contests() -> set[str]:
    """Return the problems whose kernels share a B200's constant: those for which two authors wrote some of `plain`."""
    authors = Counter(of for of, _ in {(problem(point), point["author"]) for point in POINTS["plain"]})
    return {of for of, count in authors.items() if count > 1}


def modelled_us(point: dict) -> float:
    """Return the model's microseconds of a point, at the clock that its row of calls leaves."""
    us = point["modelled_us"]
    return sustained_us(load("b200"), us, point["made_of"]["tensor"]) if point.get("long row") else us


def met_more_than_once() -> list[dict]:
    """List the strangers of families of which more than one point is known."""
    strangers = POINTS["strangers"]
    count = Counter(point["author"] for point in strangers)
    return [point for point in strangers if count[point["author"]] > 1]


def _by_kernel(points: list[Known]) -> dict[str, list[list[float]]]:
    """Errors of each author's kernels."""
    found: dict[str, dict[str, list[float]]] = {}
    for point in points:
        found.setdefault(point.author, {}).setdefault(point.kernel, []).append(point.error)
    return {author: [*kernels.values()] for author, kernels in found.items()}


def constant(points: list[Known]) -> float:
    """Return the constant as a logarithm: the mean over the kernels that share it, or 0 if none does."""
    authors = _by_kernel([point for point in points if point.shares]).values()
    return statistics.fmean([statistics.fmean(kernel) for kernels in authors for kernel in kernels] or [0.0])


def _apart(points: list[Known], author: str) -> tuple[list[Known], list[Known]]:
    """Return an author's points, with what is left of their errors by the others' constant, and the others' points."""
    others = [point for point in points if point.author != author]
    mine = [point for point in points if point.author == author]
    return [point._replace(error=point.error - constant(others) * point.shares) for point in mine], others


def width(points: list[Known]) -> float:
    """Return half the width of a bracket as a logarithm, from the points of two authors or more.

    Each author's kernels are held against the constant of the others', and each author counts the same.
    """
    missed = []
    for author in dict.fromkeys(point.author for point in points):
        [kernels] = _by_kernel(_apart(points, author)[0]).values()
        missed.append(statistics.fmean(statistics.fmean(e**2 for e in kernel) for kernel in kernels))
    return statistics.NormalDist().inv_cdf((1 + COVERED) / 2) * math.sqrt(statistics.fmean(missed))


def held(points: list[Known]) -> dict[str, tuple[int, int]]:
    """Return how many of each author's points lie in the bracket that all others' make, and how many there are."""
    found = {}
    for author in dict.fromkeys(point.author for point in points):
        mine, others = _apart(points, author)
        most = width(others)
        found[author] = sum(abs(point.error) <= most for point in mine), len(mine)
    return found


def added_by_pdl() -> list[float]:
    """Return by how much silicon's gain by PDL differs from the model's, as logarithms of ratios of times."""
    return [
        math.log(point["measured_us"] / point["modelled_us"] * point["plain_modelled_us"] / point["plain_measured_us"])
        for point in POINTS["dependent"]
    ]


def interval(us: float, pdl: bool = False, machine: str = "b200", contest: bool = False) -> tuple[float, float]:
    """Return the interval of the time on the machine, given the model's `us` microseconds. contest: of a kernel for one
    of `contests`, whose constant on a B200 is theirs alone."""
    points = known(machine)
    middle, half = constant(points) * (contest or machine != "b200"), width(points)
    if pdl:
        added = added_by_pdl()
        middle += statistics.fmean(added)
        spread = statistics.pstdev(added) * statistics.NormalDist().inv_cdf((1 + COVERED) / 2)
        half = math.hypot(half, spread)
    return us * math.exp(middle - half), us * math.exp(middle + half)


def least_shares(point: dict) -> tuple[float, float]:
    """Return what HBM and the tensor cores have at least to do for a point of `plain`, as shares of its modelled time.

    By its sizes: tiles that are padded make the tensor cores' share larger.
    """
    b200 = load("b200")
    m, n, k = ([point[size]] if isinstance(point[size], int) else point[size] for size in "mnk")
    products = 2 if "dual" in point["kernel"] else 1
    flops = products * sum(2 * a * b * c for a, b, c in zip(m, n, k, strict=True))
    cycles = flops / (NVFP4_FLOPS * b200["sm"]["count"])
    us = point["modelled_us"]
    return point["read_mb"] / b200["hbm"]["read_tb_s"] / us, b200.us(cycles) / us


def known_shares(point: dict) -> dict[str, float]:
    """Return what is known of what a point's time is made of: what was noted, or what its sizes say."""
    if "made_of" in point:
        return point["made_of"]
    return dict(zip(("hbm", "tensor"), least_shares(point), strict=True))


@functools.cache
def spanned() -> dict[str, tuple[float, float]]:
    """Return the least and the most that is known of each share."""
    shares = [known_shares(point) for point in [*POINTS["plain"], *met_more_than_once()]]
    found = {name: [of[name] for of in shares if name in of] for name in WORDS}
    return {name: (min(values), max(values)) for name, values in found.items()}


def unlike(shares: MadeOf | None, machine: str = "b200", beyond: str = "") -> str:
    """Say why a modelled time has no bracket, or "". beyond: of made_of.py, what the known kernels do not have.

    On a B200 a time of which HBM, the tensor cores or instructions take much more or less than of any that is known has
    none.
    """
    if beyond:
        return f"no bracket: {beyond}"
    if shares is None or machine != "b200":
        return ""
    for name, (least, most) in spanned().items():
        share = getattr(shares, name)
        if not least / BEYOND <= share <= most * BEYOND + ROOM:
            return (
                f"no bracket: {WORDS[name]} {share:.1%} of the time, in kernels whose times are known {least:.1%} to "
                f"{most:.1%}"
            )
    return ""


class Estimate(NamedTuple):
    """us: the model's own time; corrected: the best estimate; between: where it may lie, or None, and why not."""

    us: float
    corrected: float
    between: tuple[float, float] | None
    unlike: str

    def told(self) -> dict:
        """Return it as reports have it."""
        between = list(self.between) if self.between else None
        return {"us": self.us, "us_corrected": self.corrected, "us_interval": between, "unlike": self.unlike}


def estimate(us: float, shares: MadeOf | None, profile: Profile, pdl: bool = False, beyond: str = "") -> Estimate:
    """Return what is known of a time, given the model's `us`. A kernel unlike all that is known keeps `us` as it is."""
    if why := unlike(shares, profile.name, beyond):
        return Estimate(us, us, None, why)
    between = interval(us, pdl, profile.name, profile.contest)
    return Estimate(us, corrected(between), between, "")


def corrected(between: tuple[float, float]) -> float:
    """Return a modelled time with the known bias of the model taken out: the middle of its interval, by ratio.

    between: of `interval` or `mean_interval`, in any unit.
    """
    low, high = between
    return min(max(math.sqrt(low * high), low), high)


def of_point(point: dict) -> float:
    """Return the modelled time of a point of `plain` with the known bias of the model taken out, in microseconds."""
    return corrected(interval(point["modelled_us"], contest=problem(point) in contests()))


def written(between: tuple[float, float] | list[float] | None) -> str:
    """Write a bracket as tables have it."""
    return "{:.2f} to {:.2f}".format(*between) if between else "-"


def best_public(args: dict) -> dict | None:
    """The public kernel that the model finds fastest on a case of sizes m, n, k, of those in the file."""
    sizes = json.loads(json.dumps([args[size] for size in "mnk"]))  # lists, as the file has them
    of_case = [p for p in POINTS["plain"] if [p[size] for size in "mnk"] == sizes and p["in a row"]]
    return min(of_case, key=lambda point: point["modelled_us"], default=None)


def mean_interval(intervals: list) -> tuple[float, float] | None:
    """Return the interval of a geometric mean, as if all its cases were wrong alike, as one kernel's cases are; None if
    one of them has none."""
    if None in intervals:
        return None
    low, high = map(statistics.geometric_mean, zip(*intervals, strict=True))
    return low, high
