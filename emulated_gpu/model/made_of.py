"""Of what a modelled time is made: by these shares a kernel is like those whose times are known, or unlike them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..formats import cubin
from .sm import SCHEDULERS

if TYPE_CHECKING:
    from .run import TimedLaunch, TimedRun
    from .tally import Life

WORDS = {
    "hbm": "HBM at its full rate would bring what is read in",
    "tensor": "the tensor cores multiply for",
    "issue": "instructions take the schedulers' turns for",
    "warp": "a CTA's busiest warp executes for",
}


class MadeOf(NamedTuple):
    """Shares of a time. hbm: in which HBM at its full rate brings what is read; tensor: for which the tensor cores of
    all SMs multiply; issue: of the turns of all SMs' schedulers, those that instructions take; warp: of the CTAs'
    lives, for which the busiest warp of each executes and does not wait for others: near 1 where they wait for it."""

    hbm: float
    tensor: float
    issue: float
    warp: float

    def rounded(self) -> dict[str, float]:
        """Return the shares by name, as recordings keep them."""
        return {name: round(share, 3) for name, share in self._asdict().items()}


def made_of(run: TimedRun, last: int, count: int = 1) -> MadeOf:
    """Return it of the launch of number `last` and as many before it as make `count`, which were counted (tally.py)."""
    launches = run.launches[last + 1 - count : last + 1]
    before = run.launches[last - count] if last >= count else None
    begin = before.interval[1] if before else 0.0
    cycles = max(launches[-1].interval[1] - begin, 1.0)
    sms = len(run.clock.sms)
    read = run.read_mb(last, count) / (run.profile["hbm"]["read_tb_s"] * run.profile.us(cycles))
    busy = launches[-1].tensor_busy - (before.tensor_busy if before else 0.0)
    turns = lived = worked = 0.0
    for timed in launches:
        executed = getattr(timed.launch.clock, "executed_blocks", [])
        costs = timed.launch.costs
        turns += sum(times * getattr(costs[block], "slots", 0.0) for block, times in enumerate(executed) if times)
        for warps in _by_cta(getattr(timed.launch.clock, "lives", {})).values():
            lived += max(warp.end for warp in warps) - min(warp.begin for warp in warps)
            worked += max(warp.busy for warp in warps)
    return MadeOf(read, busy / (sms * cycles), turns / (SCHEDULERS * sms * cycles), worked / lived if lived else 0.0)


def beyond(launches: Iterable[TimedLaunch]) -> str:
    """Say what of the code of launches no kernel has whose time is known, or ""."""
    for timed in launches:
        program = timed.launch.program
        if stack := cubin.of_kernel(program.machine_code, program.kernel.name).get("frame"):
            return f"{stack} bytes of stack a thread, whose accesses the model does not have"
        if any(instr.op.startswith("mma.sync") for instr in program.kernel.instrs):
            return "it multiplies by mma.sync, and times of such kernels were up to 27 % off on an H200"
    return ""


def _by_cta(lives: dict[tuple[int, int], Life]) -> dict[int, list[Life]]:
    found: dict[int, list[Life]] = {}
    for (cta, _), life in lives.items():
        found.setdefault(cta, []).append(life)
    return found
