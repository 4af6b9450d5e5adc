"""Models times on the emulator's timing model (emulated_gpu/model), and says what they are worth.

What is predicted is what the grader measures: calls back to back, each on inputs of its own, with L2 cold and full of
the dirty lines of the flush; the end of the last call over the number of calls. Time on the host is not in it: on a
B200 the next call is queued while the GPU works.

Simulating 15 calls takes minutes, but they soon repeat themselves. `Steady` (emulated_gpu/model/steady.py) stops then
and extrapolates, and says so.
"""

import statistics

import reference
from emulated_gpu.model import uncertainty
from emulated_gpu.model.profile import Profile
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.time_of_call import replied
from emulated_gpu.model.timeline import Timeline
from emulated_gpu.model.trace import Trace
from evaluation import ROOT
from evaluation.judge.statistics import geometric_mean
from evaluation.judge.verdict import MEMORY_BANDWIDTH
from task import read_task_yaml

PRICED = 4  # operations that are named
L2_BANDWIDTH = 20e12  # bytes/s, more than all SMs of a B200 can store: 64 a cycle each

# Of each task's four benchmarks, in microseconds.
SPEED_OF_LIGHT = {"nvfp4_group_gemm": (18.833, 10.667, 2.406, 1.525), "nvfp4_dual_gemm": (4.708, 8.714, 2.125, 6.535)}


def time_launches(
    device, queue: list, before: list, calls: int, profile: Profile, breakdown: bool, alike, parts, computes=None
) -> tuple[dict, list[dict]]:
    """Times an `emulated.Device`'s queue of `calls` calls: (a reply, what each launch moved and multiplied).

    before: for each call what is done when its first launch starts, or for each launch. breakdown: the reply has one of
    the last but one interval between launches that was simulated. alike: see Steady. computes, parts: see
    `emulated.Device.time`.
    """
    launches = len(queue) // calls
    each = len(before) == len(queue)
    starts = before if each else [one for call in before for one in (call, *[None] * (launches - 1))]
    steady = Steady([launches * (i + 1) for i in range(calls)], alike)
    trace = Trace() if breakdown else None
    run, counted = device.time(queue, starts, profile, trace, steady, computes, parts)
    reply = replied(run, steady, launches)
    if breakdown:
        reply["breakdown"] = Timeline(run, trace).breakdown()
    return reply, counted


def listed_limit(args: dict) -> float | None:
    """Finds the task's figure for the microseconds that a call of a benchmark takes at least; None for others."""
    kind = reference.task_of(args)
    for case, limit in zip(read_task_yaml((ROOT / kind.file).read_text(), "benchmarks"), SPEED_OF_LIGHT[kind.name]):
        if all(args[name] == case.args[name] for name in args if name != "seed"):
            return limit
    return None


def floor_of(read: int, touched: int) -> float:
    """Computes the microseconds that a call takes at least by the bytes that it reads of its data, each once, and by
    those that it touches: what it only writes may stay in the L2."""
    return max(read / MEMORY_BANDWIDTH, touched / L2_BANDWIDTH) * 1e6


def speed_of_light(args: dict) -> float:
    """Computes the microseconds that a call of a case takes at least: the task's figure, or reading each byte once."""
    return listed_limit(args) or bytes_read(args) / MEMORY_BANDWIDTH * 1e6


def bytes_read(args: dict) -> float:
    """Counts the bytes of a call's data, each once."""
    if reference.task_of(args) is reference.DUAL_GEMM:
        numbers = (args["m"] + 2 * args["n"]) * args["k"] * args["l"]
    else:
        numbers = sum((m + n) * k for m, n, k in zip(args["m"], args["n"], args["k"]))
    return numbers / 2 + numbers / reference.BLOCK


def geomean_us(replies: list[dict]) -> float | None:
    """Takes the geometric mean, in microseconds; None unless every case has a time."""
    return geometric_mean(None if "error" in reply else reply["us"] for reply in replies)


def geomean_corrected(replies: list[dict]) -> float:
    """Takes the geometric mean of what the model says without its known bias, in microseconds."""
    return statistics.geometric_mean(reply["us_corrected"] for reply in replies)


def geomean_interval(replies: list[dict]) -> tuple[float, float] | None:
    """Says where the geometric mean may lie, in microseconds, if every case has a bracket."""
    return uncertainty.mean_interval([reply["us_interval"] for reply in replies])


def said_of_price(priced: dict) -> str:
    """Says what of a call's time is priced: library.py has the rates and who measured them."""
    largest = priced["operations"][:PRICED]
    each = "; ".join(f"{one['what']} {one['us']:.1f} us ({one['count']}, by {one['bound_by']})" for one in largest)
    more = f"; {len(priced['operations']) - PRICED} more" if len(priced["operations"]) > PRICED else ""
    return (
        f"{priced['us']:.2f} us of it are torch's operations at public rates of a B200, not modelled: {each}{more}. "
        f"The interval is of the kernels alone. The host needs some {priced['host_us']:.0f} us to queue a call"
    )


def label(replies: list[dict]) -> str:
    """Says in words what must stand wherever modelled times do."""
    first = next(reply for reply in replies if "error" not in reply)
    told = f"validation error {first['validation']}; see emulated_gpu/VALIDATION.md"
    return f"modelled (profile {first['profile']}; {told})"


def labelled(replies: list[dict]) -> dict:
    """Says in JSON what must stand wherever modelled times do; nothing if there are none. replies: with a time each."""
    return {"profile": replies[0]["profile"], "label": label(replies)} if replies else {}
