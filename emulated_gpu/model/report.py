"""What `profile` says of a timed run: the time of each launch, what each kernel uses, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from ..chip import Chip
from ..formats import cubin
from ..state.shared_memory import BASE
from ..state.tensor_memory import COLUMNS
from . import timeline, uncertainty
from .made_of import MadeOf, beyond, made_of
from .run import TimedLaunch, TimedRun
from .sm_clock import sustained_us
from .trace import Trace

MOVED = {  # what is shown of the counts of tally.py: bytes
    "TMA loads": ("tma_load", "bulk_load"), "TMA stores": ("tma_store", "bulk_store"),
    "thread loads": ("global_load", "async_load"), "thread stores": ("global_store",),
    "atomics": ("global_atomic", "global_reduction"), "shared memory of other CTAs": ("cluster",),
}  # fmt: skip


def report(
    run: TimedRun, trace: Trace, counted: list[dict[str, int]], folder: Path,
    show: Callable[[dict], None] = lambda found: None,
) -> dict:  # fmt: skip
    """Writes timeline.json.gz and overview.png to the folder; returns what emulated_gpu/RUN.md says of JSON reports.

    counted: what each launch moved and multiplied, see tally.py. show: gets the report before the files are written.
    """
    over_time = timeline.Timeline(run, trace)
    launches = [of_launch(launch) for launch in run.launches if launch.end is not None]
    found: dict = {
        "kind": "modelled",
        "profile": run.profile.name,
        "validation": run.profile.validation,
        "launches": launches,
        "kernels": kernels(run, trace, counted),
        "breakdown": over_time.breakdown(),
        "folder": str(folder),
        "partial": partial(run),
    }
    if run.cut_off:
        share = run.cut_off[0]
        found |= {name: [whole(row, share) for row in found[name]] for name in ("launches", "kernels")}
    show(found)
    found["breakdown"]["facts"] += timeline.write_timeline(over_time, folder)
    return found


def partial(run: TimedRun) -> str:
    """Say what a run that was cut has not done, and what its times are then; "" for a whole one."""
    ended = sum(launch.end is not None for launch in run.launches)
    if not run.cut_off and not (run.was_cut and ended < len(run.launches)):
        return ""
    if not run.cut_off:
        return f"{ended} of {len(run.launches)} launches are done; the others are taken to be like these"
    launch, share = run.launches[0].launch, run.cut_off[0]
    title = launch.program.kernel.title
    if share is None:
        return (
            f"{title} has not got to the end of one of its {math.prod(launch.grid)} CTAs: its times are of what is "
            "done, and no more is known"
        )
    done = (launch.started - len(launch.running)) * math.prod(launch.cluster)
    return (
        f"{done} of {math.prod(launch.grid)} CTAs of {title} are done: its times, bytes and products are extrapolated "
        "from them"
    )


SCALED = (
    "us", "us_corrected", "us_interval", "first_us", "end_us", "moved_bytes", "hbm_bytes", "flops", "floors_us",
    "sustained_us",
)  # fmt: skip


def whole(row: dict, share: float | None) -> dict:
    """Return what is told of a launch of which this share has run as if all had. None: nobody knows how much has."""
    if share is None:
        least = f"no bracket: it takes {row['us']:.2f} us at least, and had not ended then"
        return row | {"us_corrected": row["us"], "us_interval": None, "unlike": least}

    def scaled(value):
        if isinstance(value, dict):
            return {name: scaled(one) for name, one in value.items()}
        return [one / share for one in value] if isinstance(value, list) else value and value / share

    return row | {name: scaled(row[name]) for name in SCALED if name in row}


def of_launch(launch: TimedLaunch) -> dict:
    """us: what the model says from the end of the launch before, or its own start if there is none, to its end;
    us_corrected: the same with the model's known bias taken out; us_interval: where it may lie, or None, and `unlike`
    why."""
    run, us, before = launch.run, launch.run.profile.us, launch.before
    start, end = launch.interval
    time = us(end - (before.interval[1] if before else 0.0))
    shares = made_of(run, launch.number)
    told = uncertainty.estimate(time, shares, run.profile, launch.launch.pdl, beyond([launch])).told()
    return {
        "launch": launch.number,
        "kernel": launch.launch.program.kernel.name,
        "title": launch.launch.program.kernel.title,
        **told,
        "start_us": us(start),
        "end_us": us(end),
        "pdl": launch.launch.pdl,
    }


def kernels(run: TimedRun, trace: Trace, counted: list[dict[str, int]]) -> list[dict]:
    """A row for each kernel and geometry: resources, and, in the mean of its launches, bytes, FLOPs and the floors."""
    rows: dict[tuple, list[int]] = {}
    for n, timed in enumerate(run.launches):
        launch = timed.launch
        if timed.end is not None:
            key = id(launch.program), launch.grid, launch.block, launch.cluster, launch.dynamic_shared, launch.pdl
            rows.setdefault(key, []).append(n)
    return [row(run, trace, counted, numbers) for numbers in rows.values()]


def row(run: TimedRun, trace: Trace, counted: list[dict[str, int]], numbers: list[int]) -> dict:
    """Make the row of launches, by their numbers, that are alike."""
    profile, chosen = run.profile, [run.launches[n] for n in numbers]
    launch = chosen[-1].launch

    def mean(values) -> float:
        return sum(values) / len(numbers)

    read, back, given = (count / len(numbers) for count in traffic(run, numbers))
    used = resources(launch.program)
    threads, shared = math.prod(launch.block), launch.shared_bytes - BASE
    first = chosen[0].interval
    us = mean(of_launch(timed)["us"] for timed in chosen)
    shares = MadeOf(*map(mean, zip(*(made_of(run, n) for n in numbers), strict=True)))
    told = uncertainty.estimate(us, shares, profile, launch.pdl, beyond(chosen[-1:])).told()
    return {
        "kernel": launch.program.kernel.name,
        "title": launch.program.kernel.title,
        "launches": numbers,
        **told,
        "made_of": shares._asdict(),
        "first_us": profile.us(first[1] - first[0]),
        "grid": list(launch.grid),
        "cluster": list(launch.cluster),
        "threads": threads,
        "registers": used.get("registers"),
        "stack_bytes": used.get("frame"),
        "shared_bytes": shared,
        "tensor_memory_columns": launch.tmem_columns,
        **resident(launch.chip, threads, shared, used.get("registers"), launch.tmem_columns),
        "moved_bytes": {name: mean(counted[n][c] for n in numbers for c in of) for name, of in MOVED.items()},
        "hbm_bytes": read + back,
        "l2_hits": max(0.0, 1 - read / given) if given else 0.0,
        "flops": mean(counted[n]["flops"] for n in numbers),
        "floors_us": floors_us(run, trace, numbers, read + back),
        "sustained_us": sustained_us(profile, us, shares.tensor),
    }


def traffic(run: TimedRun, numbers: list[int]) -> tuple[float, float, float]:
    """Return how many bytes HBM read, HBM wrote, and L2 gave from the end of the launch before to that of each."""
    chosen = [run.launches[n] for n in numbers]
    spans = [((timed.before.interval[1] if timed.before else 0.0), timed.interval[1]) for timed in chosen]
    inside = [row for row in run.clock.memory.log or [] for start, end in spans if start < row[0] <= end]
    read, back, given = (sum(row[column] for row in inside) for column in (1, 2, 3))
    return read, back, given


def floors_us(run: TimedRun, trace: Trace, numbers: list[int], hbm: float) -> dict[str, float]:
    """Return what launches take at least, in the mean: HBM's bytes at its best rate, tensor cores' busy time.

    hbm: bytes of a launch that HBM reads and writes, in the mean.
    """
    profile = run.profile
    busy = sum(s.end - s.start for s in trace.spans if s.kind == "tensor" and s.launch in set(numbers))
    return {
        "HBM": hbm / (profile["hbm"]["read_tb_s"] * 1e6),
        "tensor cores": profile.us(busy / len(numbers) / len(run.placement.sms)),
    }


def resources(program) -> dict:
    """Return what the machine code of a program's kernel uses, {} where there is none: registers, frame."""
    return cubin.of_kernel(program.machine_code, program.kernel.name)


def resident(chip: Chip, threads: int, shared: int, registers: int | None, columns: int) -> dict:
    """Return how many CTAs fit an SM, and what limits them. registers: per thread, None if not known."""
    limits = chip.rooms(shared, threads, registers or 0)
    if columns:
        limits["tensor memory"] = COLUMNS // columns
    limit = min(limits, key=limits.__getitem__)
    return {"ctas_per_sm": limits[limit], "limited_by": limit}


def lines(found: dict) -> list[str]:
    """The report as plain text."""
    out = [f"{'launch':>6} {'us':>9} {'may be':>15} {'starts':>9} {'ends':>9}  kernel"]
    for one in found["launches"]:
        name = one["title"] + ", dependent" * one["pdl"]
        times = f"{one['us_corrected']:9.2f} {between(one):>15} {one['start_us']:9.2f} {one['end_us']:9.2f}"
        out.append(f"{one['launch']:6} {times}  {name}")
    for kernel in found["kernels"]:
        out += ["", *kernel_lines(kernel)]
        out += [f"  {kernel['unlike']}"] if kernel["unlike"] else []
    out += [f"PARTIAL: {found['partial']}"] if found.get("partial") else []
    out += ["", "us, may be: without a bias that is known of such kernels; all other times are the model's own"]
    return [*out, "", *breakdown_lines(found["breakdown"])]


def kernel_lines(kernel: dict) -> list[str]:
    """Return the lines of plain text that tell what a kernel uses."""
    unknown = "unknown (no machine code)"
    registers, stack = (unknown if kernel[name] is None else kernel[name] for name in ("registers", "stack_bytes"))
    grid, cluster = (" x ".join(map(str, kernel[name])) for name in ("grid", "cluster"))
    moved = ", ".join(f"{name} {size(count)}" for name, count in kernel["moved_bytes"].items() if count)
    floors = ", ".join(f"{name} {us:.2f} us" for name, us in kernel["floors_us"].items())
    return [
        f"{kernel['title']}: {len(kernel['launches'])} x {kernel['us_corrected']:.2f} us ({between(kernel)}; the "
        f"model's own {kernel['us']:.2f})",
        f"  grid {grid}, cluster {cluster}, {kernel['threads']} threads",
        f"  registers per thread: {registers}; stack (spills, arrays): {stack} bytes",
        f"  shared memory {kernel['shared_bytes']} bytes, tensor memory {kernel['tensor_memory_columns']} columns",
        f"  CTAs per SM: {kernel['ctas_per_sm']}, limited by {kernel['limited_by']}",
        f"  moved: {moved or 'nothing'}; HBM {size(kernel['hbm_bytes'])}, L2 hits {100 * kernel['l2_hits']:.0f} %; "
        f"{kernel['flops'] / 1e9:.3f} GFLOP by MMAs",
        f"  floors: {floors}",
        *sustained(kernel),
    ]


def sustained(kernel: dict) -> list[str]:
    """Say what the power limit makes of a launch in a long row of them, if it slows it."""
    us, of = kernel["sustained_us"], kernel["us"]
    if us <= of:
        return []
    return [f"  in a row of more than some milliseconds the power limit slows it: {us:.2f} us at most for {of:.2f}"]


def between(timed: dict) -> str:
    """Say between which times a launch may lie."""
    return "{:.2f}..{:.2f}".format(*timed["us_interval"]) if timed["us_interval"] else "no bracket"


def verdict_lines(verdicts: list[dict]) -> list[str]:
    """What holds the launches up, as plain text, and what mending it would bring, where that is known."""
    if not verdicts:
        return []
    known = any("gain" in one for one in verdicts)
    rest = ", and what undoing it brings when all is modelled again without it" if known else ""
    out = [f"what holds them up{rest}:"]
    for number, one in enumerate(verdicts, 1):
        place = f" ({one['shown']})" if one.get("shown") else ""
        out.append(f"  {number}. {one['text']}{place}" + (f": {one['gain']}" if "gain" in one else ""))
    return out


def breakdown_lines(breakdown: dict) -> list[str]:
    """Where the time of all SMs goes, as plain text."""
    shares = [f"  {100 * share:5.1f} %  {name}" for name, share in breakdown["shares"].items()]
    return ["time of all SMs in the interval between the last launches:", *shares, *breakdown["facts"]]


def size(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.2f} KB"
