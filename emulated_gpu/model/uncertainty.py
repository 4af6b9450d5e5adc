"""How wrong a modelled time may be: intervals from whole kernels whose times were published or measured.

whole_kernels.json has them, each with its time on silicon and the model's. `plain`: kernels of others on a B200, none
of which uses programmatic dependent launch (PDL); emulated_gpu/VALIDATION.md has the tables. The model's errors differ
by what a time is of, so that an interval rests on the points of its own kind (`kind`). `dependent`: nobody has
published a kernel with PDL, so the load side of this repo's submission stands for them, measured on an H200 with PDL
and without (silicon/entry/h200_loads.py): a time with PDL is as uncertain as one without, and as PDL makes it on top.

whole_kernels_h200.json: CUTLASS's kernels and our own on an H200, for times on that machine, of whatever kind: point ->
measured, modelled us. `python -m silicon.whole_kernels.hopper table . --write silicon/whole_kernels/README.md` writes
it and the table there.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from pathlib import Path

from .profile import load

POINTS = json.loads(Path(__file__).with_name("whole_kernels.json").read_text())
POINTS_H200 = json.loads(Path(__file__).with_name("whole_kernels_h200.json").read_text())
ALONE, BYTES_BOUND, LATENCY_BOUND = KINDS = "single calls", "in a row, bytes-bound", "in a row, latency-bound"
HALF = 0.5  # of the time in which HBM at its full rate brings what is read: from there on a call is bytes-bound


def basis(machine: str) -> str:
    """Return the basis of the intervals as a sentence without its full stop. machine: b200 or h200."""
    whose = {
        "b200": "public kernels on a B200 (single calls, or calls in a row that are bound by bytes or by latency)",
        "h200": "CUTLASS's kernels and our own on an H200",
    }[machine]
    return (
        f"may be: nine of ten known errors of the model are smaller, those of {whose}; with programmatic dependent "
        "launch, whose errors only an H200 shows, theirs are added. See emulated_gpu/VALIDATION.md"
    )


BASIS = basis("b200")
COVERED = 0.9  # share of the known errors that lie within an interval


def kind(us: float, read_mb: float, alone: bool = False, machine: str = "b200") -> str:
    """Return which of KINDS a modelled time belongs to; the known errors of that kind make its interval.

    us: of a call. read_mb: what the call reads from HBM, in 10^6 bytes. alone: one call between two events, not one of
    several back to back.
    """
    if alone:
        return ALONE
    return BYTES_BOUND if read_mb / _full_rate(machine) >= HALF * us else LATENCY_BOUND


@functools.cache
def _full_rate(machine: str) -> float:
    """TB/s, which are 10^6 bytes a microsecond, that HBM is read with where enough is under way."""
    return load(machine)["hbm"]["read_tb_s"]


def kind_of(point: dict) -> str:
    """Return which of KINDS a point of `plain` belongs to."""
    return kind(point["modelled_us"], point["read_mb"], not point["in a row"])


def errors(of: str, pdl: bool = False, machine: str = "b200") -> list[float]:
    """Signed relative errors of the model, ascending: -0.1 is a modelled time that is 10 % too short.

    of: one of KINDS; an H200's are not told apart by it.
    """
    if machine == "h200":
        plain = [modelled / measured for measured, modelled in POINTS_H200.values()]
    else:
        plain = [point["modelled_us"] / point["published_us"] for point in POINTS["plain"] if kind_of(point) == of]
    if not pdl:
        return sorted(ratio - 1 for ratio in plain)
    added = [
        point["modelled_us"] / point["measured_us"] * point["plain_measured_us"] / point["plain_modelled_us"]
        for point in POINTS["dependent"]
    ]
    return sorted(ratio * more - 1 for ratio in plain for more in added)


def interval(us: float, of: str, pdl: bool = False, machine: str = "b200") -> tuple[float, float]:
    """Where the time on the machine may lie of which the model says `us` microseconds: COVERED of the known errors.

    of: one of KINDS. With PDL a latency-bound time's holds COVERED of the load side's own errors, too: on a B200 its
    problems are latency-bound.
    """
    low, high = narrowest(errors(of, pdl, machine))
    if pdl and (of, machine) == (LATENCY_BOUND, "b200"):
        own = narrowest(sorted(point["modelled_us"] / point["measured_us"] - 1 for point in POINTS["dependent"]))
        low, high = min(low, own[0]), max(high, own[1])
    return us / (1 + high), us / (1 + low)


def corrected(between: tuple[float, float]) -> float:
    """Return a modelled time with the known bias of the model taken out: the middle of its interval, by ratio.

    This is the value to print beside the interval. No other is less wrong at worst, whichever end is true, and none
    that lies outside can come out. between: of `interval` or `mean_interval`, in any unit.
    """
    low, high = between
    return min(max(math.sqrt(low * high), low), high)


def of_point(point: dict) -> float:
    """Return the modelled time of a point of `plain` with the known bias of the model taken out, in microseconds."""
    return corrected(interval(point["modelled_us"], kind_of(point)))


def narrowest(known: list[float]) -> tuple[float, float]:
    """The two of the known values, which ascend, that are the closest of those with COVERED of all from one to the
    other, both counted; of several the lowest."""
    count = math.ceil(COVERED * len(known))
    return min(zip(known, known[count - 1 :]), key=lambda ends: round(ends[1] - ends[0], 9))


def best_public(args: dict) -> dict | None:
    """The public kernel that the model finds fastest on a case of sizes m, n, k, of those in the file."""
    sizes = json.loads(json.dumps([args[size] for size in "mnk"]))  # lists, as the file has them
    of_case = [p for p in POINTS["plain"] if [p[size] for size in "mnk"] == sizes and p["in a row"]]
    return min(of_case, key=lambda point: point["modelled_us"], default=None)


def mean_interval(intervals: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the interval of a geometric mean, as if all its cases were wrong alike, as one kernel's cases are."""
    low, high = map(statistics.geometric_mean, zip(*intervals, strict=True))
    return low, high
