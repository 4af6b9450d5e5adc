"""PTX of one thread's ring of copies under way: how a probe's kernel begins it, and how it ends.

Registers: r1, where the mbarriers lie, 8 bytes each; done, stage, phase and r5 (.b32), p (.pred).
"""


def begun(stages: int) -> str:
    """PTX that initialises a stage's mbarrier each, which one arrival completes. Needs done = 0."""
    return f"""INIT: mad.lo.u32 r5, done, 8, r1; mbarrier.init.shared::cta.b64 [r5], 1;
  add.u32 done, done, 1; setp.lt.u32 p, done, {stages}; @p bra INIT;
  fence.mbarrier_init.release.cluster;"""


def ended(stages: int) -> str:
    """PTX that waits for the last copy into each stage."""
    return f"""  mov.b32 done, 0;
EACH: mad.lo.u32 r5, stage, 8, r1;
LAST: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra LAST;
  add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra STAY;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
STAY: add.u32 done, done, 1; setp.lt.u32 p, done, {stages}; @p bra EACH;"""
