"""How long wgmma.mma_async takes (sm_90): the four tensor cores of an SM work on one instruction together.

They are busy for N / 2 cycles, whatever the types, or as long as the operands take to come out of shared memory, 128
bytes a cycle. With A in registers each takes some cycles more. What a group of them takes from its first instruction to
the end of wait_group is that sum and a latency that has the fetch of one instruction's operands in it, up to 32 cycles.
Measured: silicon/probes/wgmma.py.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..formats.wgmma_form import K_BYTES, M, WgmmaForm
from ..units.wgmma import WARPS

LINE = 128  # bytes that shared memory gives in a cycle
FETCH = 32  # cycles


def issue(clock, group, form: WgmmaForm) -> float:
    """Return when an instruction is complete that all four warps have issued now."""
    if "wgmma" not in clock.p:
        raise Unsupported(f"wgmma: profile {clock.p.name} has no figures for it")
    figures, sm = clock.p["wgmma"], clock.sms[group.cta.sm]
    nbytes = (form.n + (0 if form.a_in_registers else M)) * K_BYTES
    busy = form.n * figures["cycles_per_column"]
    if form.a_in_registers:
        busy = max(busy, figures["register_a_cycles"]) + figures["register_cycles"]
    busy = max(busy, nbytes / LINE)
    start, took = clock.multiplies(group, clock.engine.now, group.t, busy)
    sm.shared.read_operands(clock.engine.now, start, sm.tensor, nbytes / (busy * LINE))
    clock.trace.duty(group, "mma", WARPS)
    return sm.tensor + (figures["latency_cycles"] + min(nbytes / LINE, FETCH)) * took / busy
