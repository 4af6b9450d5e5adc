"""What undoing one thing is said to bring, against the modelled time of a kernel in which it is really changed.

Each pair is a kernel, what is undone, and a kernel with the change made. The bar: the gain within 30 % of the real
one, of the same sign.
"""

import dataclasses

import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.model import undone
from emulated_gpu.model.profile import load
from emulated_gpu.model.run import TimedRun
from tests.thorough import all_but

WITHIN = 0.30
SMS = 148
HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 src, .param .u64 out, .param .u32 turns)
{
  .extern .shared .align 128 .b8 dynamic[];
  .reg .pred p, q, lead; .reg .b32 i, n, tid, cta, lane, x, y, s, at, slot, phase, full, empty, warp;
  .reg .b64 a, b, o, d;
  ld.param.u64 a, [src]; ld.param.u64 o, [out]; ld.param.u32 n, [turns];
  mov.u32 tid, %tid.x; mov.u32 cta, %ctaid.x; and.b32 lane, tid, 31; mov.u32 i, 0; mov.u32 s, 0; mov.u32 at, dynamic;
"""
TAIL = """
  mad.lo.u32 x, cta, 128, tid; mul.wide.u32 d, x, 4; add.u64 o, o, d; st.global.u32 [o], s; ret;
}
"""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Launches of one kernel, one behind the other. sm: of shared memory, bytes."""

    body: str
    grid: int = SMS
    threads: int = 128
    turns: int = 16
    shared: int = 4096
    launches: int = 1
    pdl: bool = False

    def us(self, what=(), busy: float = 1.0) -> float:
        """Microseconds of all launches, by the model, with this undone."""
        src, out = allocate(1 << 25), allocate(1 << 20)
        for array in (src, out):
            DEVICE.adopt(array, "array")
        way = undone.Undone.of(what, busy)
        with emulated_gpu.session() as here:
            here.recorded = []
            for _ in range(self.launches):
                emulated_gpu.launch(HEAD + self.body + TAIL, "kernel", self.grid, self.threads, [src, out, self.turns],
                                    shared=self.shared, pdl=self.pdl)  # fmt: skip
            run = TimedRun(load("b200"), DEVICE.memory, here.recorded, undone=way).run()
        return run.profile.us(way.shown(max(launch.interval[1] for launch in run.launches)))


def of_shared(stride: int) -> str:
    """Return a loop in which lanes read shared memory, words at a distance."""
    return f"""
  mul.lo.u32 x, lane, {4 * stride}; add.u32 at, at, x;
L: ld.shared.u32 x, [at]; add.u32 s, s, x; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;"""


def of_columns(apart: int, turn: int, op: str = "ld") -> str:
    """Return a loop of eight accesses: lanes lie `apart` bytes from each other, accesses `turn`; a warp has 32 KiB."""
    load = "ld.global.u32 r{0}, [a+{1}];" if op == "ld" else "st.global.u32 [a+{1}], s;"
    accesses = " ".join(load.format(k, k * turn) for k in range(8))
    added = " ".join(f"add.u32 s, s, r{k};" for k in range(8) if op == "ld")
    return f"""
  .reg .b32 r<8>; shr.u32 x, tid, 5; mad.lo.u32 x, cta, 4, x; mul.wide.u32 d, x, 32768; add.u64 a, a, d;
  mul.wide.u32 d, lane, {apart}; add.u64 a, a, d;
L: {accesses} {added} add.u64 a, a, {8 * turn}; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;"""


CHAIN = "add.u32 s, s, x; " + " ".join(["mad.lo.u32 s, s, s, s;"] * 40)
LOADING = f"""
  mul.wide.u32 d, tid, 4; add.u64 a, a, d; mul.wide.u32 d, cta, 512; add.u64 a, a, d;
L: LOAD {CHAIN} add.u64 a, a, 76288; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;"""
SPIN = """
L: mad.lo.u32 s, s, s, s; mad.lo.u32 s, s, s, s; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;"""


def ring(stages: int, loads: bool = True) -> str:
    """Return a ring of bulk loads of 4 KiB by one warp, used by another, which takes 20 dependent products for each."""
    arrive = "mbarrier.arrive.shared.b64 _, [full];"
    bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [y], [a], 4096, [full];"
    announce = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 4096;" if loads else arrive
    return f"""
  shr.u32 warp, tid, 5; setp.eq.u32 lead, tid, 0; mov.u32 slot, 0; mov.u32 phase, 0; mul.wide.u32 d, cta, 65536;
  add.u64 a, a, d;
  @!lead bra READY;
I: shl.b32 x, slot, 4; add.u32 x, x, at; mbarrier.init.shared::cta.b64 [x], 1; mbarrier.init.shared::cta.b64 [x+8], 1;
  add.u32 slot, slot, 1; setp.lt.u32 p, slot, {stages}; @p bra I;
  fence.mbarrier_init.release.cluster; mov.u32 slot, 0;
READY: bar.sync 0;
  setp.eq.u32 p, lane, 0; @!p bra DONE; setp.eq.u32 p, warp, 1; @p bra USE;
NEXT: shl.b32 x, slot, 4; add.u32 full, x, at; add.u32 empty, full, 8; xor.b32 y, phase, 1;
E: mbarrier.try_wait.parity.shared::cta.b64 p, [empty], y; @!p bra E;
  {announce} mad.lo.u32 y, slot, 4096, at; add.u32 y, y, 1024;
  {bulk if loads else ""} add.u64 a, a, 4096;
  add.u32 slot, slot, 1; setp.eq.u32 p, slot, {stages}; selp.b32 slot, 0, slot, p; selp.b32 y, 1, 0, p;
  xor.b32 phase, phase, y; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra NEXT; bra DONE;
USE: shl.b32 x, slot, 4; add.u32 full, x, at; add.u32 empty, full, 8;
F: mbarrier.try_wait.parity.shared::cta.b64 p, [full], phase; @!p bra F;
  {" ".join(["mad.lo.u32 s, s, s, s;"] * 20)} mbarrier.arrive.shared.b64 _, [empty];
  add.u32 slot, slot, 1; setp.eq.u32 p, slot, {stages}; selp.b32 slot, 0, slot, p; selp.b32 y, 1, 0, p;
  xor.b32 phase, phase, y; add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra USE;
DONE:"""


def mma(turns: bool) -> str:
    """Return a loop of tcgen05.mma and its commit, awaited each turn."""
    product = "tcgen05.mma.cta_group::1.kind::f16 [y], b, b, 0x8400490, q;" if turns else ""
    return f"""
  .reg .b32 done; setp.eq.u32 lead, tid, 0; add.u32 done, at, 8; setp.ne.u32 q, tid, 999; mov.u32 phase, 0;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 512;
  @lead mbarrier.init.shared::cta.b64 [done], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
  ld.shared.b32 y, [at]; mov.b64 b, 0x4000004000010040;
  @!lead bra AFTER;
L: {" ".join([product] * 4)}
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
W: mbarrier.try_wait.parity.shared::cta.b64 p, [done], phase; @!p bra W; xor.b32 phase, phase, 1;
  add.u32 i, i, 1; setp.lt.u32 p, i, n; @p bra L;
AFTER: bar.warp.sync -1; tcgen05.dealloc.cta_group::1.sync.aligned.b32 y, 512;"""


DEPENDENT = "griddepcontrol.launch_dependents; griddepcontrol.wait;"
COLUMNS = {"threads": 64, "turns": 4, "shared": 0}
LOAD = LOADING.replace("LOAD", "ld.global.u32 x, [a];")
PAIRS = {
    "bank conflicts": (Kernel(of_shared(32), 2), ["conflicts"], Kernel(of_shared(1), 2)),
    "eight-way bank conflicts": (Kernel(of_shared(8), 2, 512, 64), ["conflicts"], Kernel(of_shared(1), 2, 512, 64)),
    "columns": (Kernel(of_columns(128, 4), **COLUMNS), ["scattered"], Kernel(of_columns(4, 128), **COLUMNS)),
    "columns stored": (
        Kernel(of_columns(128, 4, "st"), 16, **COLUMNS), ["scattered"], Kernel(of_columns(4, 128, "st"), 16, **COLUMNS),
    ),
    "loads": (Kernel(LOAD, 16), ["loads"], Kernel(LOADING.replace("LOAD", "mov.u32 x, s;"), 16)),
    "bulk loads": (Kernel(ring(2), 16, 64, shared=65536), ["loads"], Kernel(ring(2, False), 16, 64, shared=65536)),
    "a third stage": (Kernel(ring(2), 16, 64, shared=65536), ["stage"], Kernel(ring(3), 16, 64, shared=65536)),
    "a fifth stage": (Kernel(ring(4), 16, 64, shared=65536), ["stage"], Kernel(ring(5), 16, 64, shared=65536)),
    "MMAs": (Kernel(mma(True), 4, 32), ["mmas"], Kernel(mma(False), 4, 32)),
    "occupancy": (Kernel(LOAD, 592, 32, 4, 110_000), ["room"], Kernel(LOAD, 592, 32, 4, 1024)),
    "PDL": (
        Kernel(SPIN, 148, 32, 64, launches=4), ["dependent"],
        Kernel(DEPENDENT + SPIN, 148, 32, 64, launches=4, pdl=True),
    ),
    "one launch": (Kernel(SPIN, 74, 32, 64, launches=4), ["launches"], Kernel(SPIN, 296, 32, 64)),
    "idle SMs": (Kernel(SPIN, 37, 32, 256), ["idle"], Kernel(SPIN, 148, 32, 64)),
    "idle SMs that load": (Kernel(LOAD, 37, 32, 32), ["idle"], Kernel(LOAD, 148, 32, 8)),
}  # fmt: skip


LONG = "eight-way bank conflicts", "columns", "a fifth stage", "idle SMs that load"


@pytest.mark.parametrize("pair", all_but([pair for pair in PAIRS if pair not in LONG], PAIRS))
def test_the_gain_of_a_pair(pair):
    slow, what, fast = PAIRS[pair]
    before = slow.us()
    busy = slow.grid / SMS if what == [undone.IDLE] else 1.0
    promised, real = before - slow.us(what, busy), before - fast.us()
    assert promised * real > 0
    assert promised == pytest.approx(real, rel=WITHIN), f"of {before:.2f} us"


def test_one_more_stage_brings_nothing_where_memory_is_at_its_limit():
    full = Kernel(ring(8), SMS, 64, 12, 65536)
    assert full.us(["stage"]) == pytest.approx(full.us(), rel=0.02)


def test_what_nothing_undoes_is_refused():
    with pytest.raises(ValueError, match="nothing undoes gravity; there are conflicts, "):
        undone.Undone.of(["gravity"])
