"""How long wgmma.mma_async takes (sm_90): the four tensor cores of an SM work on one instruction together.

They are busy for N / 2 cycles, or as long as the operands take to come out of shared memory, 128 bytes a cycle
(tests/timing/operands.py); the result can be used some cycles later.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..formats.wgmma_form import K_BYTES, M, WgmmaForm

LINE = 128  # bytes that shared memory gives in a cycle


def issue(clock, group, form: WgmmaForm) -> float:
    """The tensor core takes an instruction that all warps have issued: when it is complete."""
    if "wgmma" not in clock.p.units:
        raise Unsupported(f"wgmma: profile {clock.p.name} has no figures for it")
    figures, sm = clock.p["wgmma"], clock.sms[group.cta.sm]
    nbytes = (form.n + (0 if form.a_in_registers else M)) * K_BYTES
    busy = max(form.n * figures["cycles_per_column"], nbytes / LINE)
    start = max(sm.tensor, group.t)
    sm.tensor = start + busy
    sm.shared.read_operands(clock.engine.now, start, sm.tensor, nbytes / (busy * LINE))
    clock.trace.tensor(group, group.cta, start, sm.tensor)
    return sm.tensor + figures["latency_cycles"]
