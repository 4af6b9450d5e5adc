"""Small correct kernels, by hand: each exercises one way to synchronise, and what it writes does not depend on luck.

A kernel is PTX, its launch and the expected output. `bugs.py` plants one mistake at a time in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulated_gpu.chip import B200, H200, Chip
from emulated_gpu.formats.tensormap import TensorMap, encode

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
ROWS, COLUMNS, DEPTH = 128, 16, 16  # of the matrix product
# f32 accumulator, f16 operands, N, M (PTX ISA 9.7.16.4.2); K-major without swizzle: LBO 128, SBO 256, version 1
INSTRUCTION = 1 << 4 | COLUMNS >> 3 << 17 | ROWS >> 4 << 24
MATRIX = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46


@dataclass(frozen=True)
class Kernel:
    """launches: the kernels of `ptx` to run in order on `chip`, each with (grid, block, cluster, dependent launch).

    Every kernel takes the output and, if `source` is not empty, the input: 32-bit words.
    """

    name: str
    ptx: str
    expected: np.ndarray  # 32-bit words of the output
    source: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    launches: tuple = ()
    chip: Chip = B200

    @property
    def header(self) -> str:
        return HEADER.replace(B200.arch, self.chip.arch)


def entry(name: str, body: str, source: bool = False, shared: str = "") -> str:
    """A kernel with registers `t` thread, `w` warp, `lane`, `out` and `src` addresses, r, s, f, d, p to use freely."""
    parameters = ".param .u64 p_out" + (", .param .u64 p_src" if source else "")
    variables = "\n".join(f".shared {v};" for v in shared.split(";") if v.strip())
    load = "ld.param.u64 src, [p_src];\n" if source else ""
    return f"""
.visible .entry {name}({parameters})
{{
.reg .b32 t, w, lane, k, phase, slot, r<40>, f<20>;
.reg .b64 out, src, at, to, d<8>;
.reg .pred p, q, first, elected;
{variables}
mov.u32 t, %tid.x;
shr.u32 w, t, 5;
and.b32 lane, t, 31;
setp.eq.u32 first, t, 0;
setp.eq.u32 elected, lane, 0;
ld.param.u64 out, [p_out];
{load}{body}
ret;
}}
"""


def wait(barrier: str, parity: str, form: str = "mbarrier.try_wait.parity.shared::cta.b64") -> str:
    return f"""{{
.reg .pred passed;
again:
{form} passed, [{barrier}], {parity};
@!passed bra again;
}}"""


STORE = "mad.wide.u32 to, t, 4, out;\nst.global.b32 [to], r0;"  # r0 to out[t]
FENCE = "fence.proxy.async.shared::cta;"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
WORDS = np.arange(1000, 1512, dtype=np.uint32)


def _copy() -> Kernel:
    """One thread copies 1 KiB into shared memory, all read it."""
    body = f"""
@!first bra ready;
mbarrier.init.shared::cta.b64 [full], 1;
fence.mbarrier_init.release.cluster;
ready:
bar.sync 0;
@!first bra read;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 1024;
{COPY} [buffer], [src], 1024, [full];
read:
{wait("full", "0")}
mov.u32 r1, buffer;
mad.lo.u32 r1, t, 4, r1;
ld.shared.b32 r0, [r1];
{STORE}
bar.sync 0;
@first mbarrier.inval.shared::cta.b64 [full];
"""
    ptx = entry("copy", body, True, ".align 128 .b8 buffer[1024]; .align 8 .b64 full")
    return Kernel("copy", ptx, WORDS[:64], WORDS, (("copy", 1, 64, None, False),))


def _ring() -> Kernel:
    """A producer and a consumer warp share two buffers of 128 bytes; the consumer sums six of them."""
    body = f"""
@!first bra ready;
mbarrier.init.shared::cta.b64 [full], 1;
mbarrier.init.shared::cta.b64 [full+8], 1;
mbarrier.init.shared::cta.b64 [empty], 32;
mbarrier.init.shared::cta.b64 [empty+8], 32;
fence.mbarrier_init.release.cluster;
ready:
bar.sync 0;
mov.u32 k, 0;
mov.u32 slot, 0;
mov.u32 r0, 0;
setp.ne.u32 p, w, 0;
@p bra consumer;
@!first bra finish;
mov.u32 phase, 1;
produce:
shl.b32 r1, slot, 3;
mov.u32 r2, empty;
add.u32 r2, r2, r1;
{wait("r2", "phase")}
mov.u32 r3, full;
add.u32 r3, r3, r1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 128;
mov.u32 r4, buffer;
mad.lo.u32 r4, slot, 128, r4;
mad.wide.u32 at, k, 128, src;
{COPY} [r4], [at], 128, [r3];
add.u32 k, k, 1;
xor.b32 slot, slot, 1;
setp.eq.u32 p, slot, 0;
@p xor.b32 phase, phase, 1;
setp.lt.u32 p, k, 6;
@p bra produce;
bra finish;
consumer:
mov.u32 phase, 0;
consume:
shl.b32 r1, slot, 3;
mov.u32 r3, full;
add.u32 r3, r3, r1;
{wait("r3", "phase")}
mov.u32 r4, buffer;
mad.lo.u32 r4, slot, 128, r4;
mad.lo.u32 r4, lane, 4, r4;
ld.shared.b32 r5, [r4];
add.u32 r0, r0, r5;
mov.u32 r2, empty;
add.u32 r2, r2, r1;
fence.proxy.async.shared::cta;
mbarrier.arrive.shared::cta.b64 _, [r2];
add.u32 k, k, 1;
xor.b32 slot, slot, 1;
setp.eq.u32 p, slot, 0;
@p xor.b32 phase, phase, 1;
setp.lt.u32 p, k, 6;
@p bra consume;
mad.wide.u32 to, lane, 4, out;
st.global.b32 [to], r0;
finish:
"""
    ptx = entry("ring", body, True, ".align 128 .b8 buffer[256]; .align 8 .b8 full[16]; .align 8 .b8 empty[16]")
    return Kernel(
        "ring", ptx, WORDS[:192].reshape(6, 32).sum(0, dtype=np.uint32), WORDS, (("ring", 1, 64, None, False),)
    )


def _store() -> Kernel:
    """Two warps fill a buffer that one thread stores to global memory, twice."""

    def half(value: str, offset: int) -> str:
        return f"""
add.u32 r0, t, {value};
st.shared.b32 [r1], r0;
{FENCE}
bar.sync 0;
@!first bra stored{offset};
add.u64 at, out, {offset};
cp.async.bulk.global.shared::cta.bulk_group [at], [buffer], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
stored{offset}:
bar.sync 0;"""

    body = "mov.u32 r1, buffer;\nmad.lo.u32 r1, t, 4, r1;" + half("5", 0) + half("70", 256)
    ptx = entry("store", body, shared=".align 128 .b8 buffer[256]")
    t = np.arange(64, dtype=np.uint32)
    return Kernel("store", ptx, np.concatenate((t + 5, t + 70)), launches=(("store", 1, 64, None, False),))


_ALLOCATE = """
setp.ne.u32 p, w, 0;
@p bra allocated;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], 32;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
allocated:
"""
_FREE = """
bar.sync 0;
setp.ne.u32 p, w, 0;
@p bra freed;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 r20, 32;
freed:
"""
_LANES = "shl.b32 r21, w, 21;\nadd.u32 r21, r21, r20;  // the lanes of this warp"


def _operands(value: str = "0x3c003c00") -> str:
    """Fill A and B with one half: 32 bytes of A from every thread, of B from the first 16."""
    return f"""
mov.b32 r10, {value};
mov.u32 r1, a;
mad.lo.u32 r1, t, 32, r1;
st.shared.v4.b32 [r1], {{r10, r10, r10, r10}};
st.shared.v4.b32 [r1+16], {{r10, r10, r10, r10}};
setp.ge.u32 p, t, 16;
@p bra filled;
mov.u32 r1, b;
mad.lo.u32 r1, t, 32, r1;
st.shared.v4.b32 [r1], {{r10, r10, r10, r10}};
st.shared.v4.b32 [r1+16], {{r10, r10, r10, r10}};
filled:
"""


_DESCRIPTORS = f"""
mov.u32 r1, a;
shr.u32 r1, r1, 4;
cvt.u64.u32 d0, r1;
or.b64 d0, d0, {MATRIX};
mov.u32 r1, b;
shr.u32 r1, r1, 4;
cvt.u64.u32 d1, r1;
or.b64 d1, d1, {MATRIX};
mov.b32 r2, {INSTRUCTION};
"""
_MMA = "tcgen05.mma.cta_group::1.kind::f16 [r20], d0, d1, r2, "
_COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "
_LOAD = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {f0, f1, f2, f3}, [r21];"
_TILE = ".align 128 .b8 a[4096]; .align 128 .b8 b[512]; .align 8 .b64 done; .align 8 .b64 free; .align 4 .b32 address"


def _product() -> Kernel:
    """Two accumulating products of ones, read by four warps."""
    body = f"""
{_ALLOCATE}
@!first bra ready;
mbarrier.init.shared::cta.b64 [done], 1;
fence.mbarrier_init.release.cluster;
ready:
{_operands()}
{FENCE}
bar.sync 0;
ld.shared.b32 r20, [address];
{_LANES}
@!first bra issued;
{_DESCRIPTORS}
setp.ne.u32 q, t, t;
{_MMA} q;
mov.u32 k, 0;
rest:  // until the first product has landed: the second one needs no wait all the same
nanosleep.u32 100;
add.u32 k, k, 1;
setp.lt.u32 p, k, 10;
@p bra rest;
setp.eq.u32 q, t, t;
{_MMA} q;
{_COMMIT}[done];
issued:
{wait("done", "0")}
tcgen05.fence::after_thread_sync;
{_LOAD}
tcgen05.wait::ld.sync.aligned;
mov.b32 r0, f3;
{STORE}
{_FREE}
"""
    ptx = entry("product", body, shared=_TILE)
    ones = np.full(ROWS, 2 * DEPTH, np.float32).view(np.uint32)
    return Kernel("product", ptx, ones, launches=(("product", 1, 128, None, False),))


_WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, "
_BEHIND = "p, 1, 1, 0, 0;"


def _warpgroup() -> Kernel:
    """Products of sm_90, on an accumulator that begins with the thread's number: A from shared memory and registers."""
    body = f"""
{_operands().replace("32, r1", "16, r1").replace("st.shared.v4.b32 [r1+16], {r10, r10, r10, r10};", "")}
{FENCE}
bar.sync 0;
mov.u32 r1, a;
shr.u32 r1, r1, 4;
cvt.u64.u32 d0, r1;
or.b64 d0, d0, {MATRIX & ~(1 << 46)};
mov.u32 r1, b;
shr.u32 r1, r1, 4;
cvt.u64.u32 d1, r1;
or.b64 d1, d1, {MATRIX & ~(1 << 46)};
cvt.rn.f32.u32 f0, t;
mov.b32 f1, f0;
mov.b32 f2, f0;
mov.b32 f3, f0;
and.b32 r2, t, 1;
shl.b32 r2, r2, 10;
mad.lo.u32 r2, r2, 0x10001, r10;
mov.b32 r3, r2;
mov.b32 r4, r2;
mov.b32 r5, r2;
setp.eq.u32 p, t, t;
wgmma.fence.sync.aligned; // first
{_WGMMA} d0, d1, {_BEHIND}
{_WGMMA} {{r2, r3, r4, r5}}, d1, p, 1, 1, 0;
wgmma.commit_group.sync.aligned; // first
wgmma.wait_group.sync.aligned 0; // first
sub.u32 r6, r2, r3;
add.f32 f0, f0, 0f3f800000;
mov.u32 r1, a;
mad.lo.u32 r1, t, 16, r1;
mov.b32 r7, 0x40004000;
st.shared.v4.b32 [r1], {{r7, r7, r7, r7}};
{FENCE} // second
bar.sync 0; // second
wgmma.fence.sync.aligned; // second
{_WGMMA} d0, d1, p, 1, -1, 0, 0;
wgmma.commit_group.sync.aligned; // second
wgmma.wait_group.sync.aligned 0; // second
cvt.rzi.u32.f32 r0, f0;
add.u32 r0, r0, r6;
{STORE}
"""
    ptx = entry("warpgroup", body, shared=".align 128 .b8 a[2048]; .align 128 .b8 b[256]")
    # 16 ones; 8 ones and 8 twos; one; less 16 twos
    expected = np.arange(128, dtype=np.uint32) + 16 + 24 + 1 - 32
    return Kernel("warpgroup", ptx, expected, launches=(("warpgroup", 1, 128, None, False),), chip=H200)


def _tiles() -> Kernel:
    """Three products into one accumulator: warp 4 multiplies, warps 0..3 read and hand the accumulator back."""
    body = f"""
{_ALLOCATE}
@!first bra ready;
mbarrier.init.shared::cta.b64 [done], 1;
mbarrier.init.shared::cta.b64 [free], 4;
fence.mbarrier_init.release.cluster;
ready:
setp.ge.u32 p, t, 128;
@p bra filled;
{_operands().replace("filled:", "")}
filled:
{FENCE}
bar.sync 0;
ld.shared.b32 r20, [address];
{_LANES}
mov.u32 k, 0;
setp.eq.u32 p, w, 4;
@!p bra epilogue;
@!elected bra finish;
{_DESCRIPTORS}
mov.u32 phase, 1;
multiply:
{wait("free", "phase")}
tcgen05.fence::after_thread_sync;
setp.ne.u32 q, t, t;
{_MMA} q;
{_COMMIT}[done];
xor.b32 phase, phase, 1;
add.u32 k, k, 1;
setp.lt.u32 p, k, 3;
@p bra multiply;
bra finish;
epilogue:
mov.u32 phase, 0;
mov.b32 f10, 0;
tile:
{wait("done", "phase")}
tcgen05.fence::after_thread_sync;
{_LOAD}
tcgen05.wait::ld.sync.aligned;
tcgen05.fence::before_thread_sync;
@elected mbarrier.arrive.shared::cta.b64 _, [free];
add.f32 f10, f10, f2;
xor.b32 phase, phase, 1;
add.u32 k, k, 1;
setp.lt.u32 p, k, 3;
@p bra tile;
mov.b32 r0, f10;
{STORE}
finish:
{_FREE}
"""
    ptx = entry("tiles", body, shared=_TILE)
    ones = np.full(ROWS, 3 * DEPTH, np.float32).view(np.uint32)
    return Kernel("tiles", ptx, ones, launches=(("tiles", 1, 160, None, False),))


def _tensor_memory() -> Kernel:
    """Threads write tensor memory and read it back; a tcgen05.cp from shared memory is read, too."""
    body = f"""
{_ALLOCATE}
@!first bra ready;
mbarrier.init.shared::cta.b64 [done], 1;
fence.mbarrier_init.release.cluster;
ready:
{_operands("7")}
{FENCE}
bar.sync 0;
ld.shared.b32 r20, [address];
{_LANES}
@!first bra issued;
{_DESCRIPTORS}
add.u32 r3, r20, 8;
tcgen05.cp.cta_group::1.128x256b [r3], d0;
{_COMMIT}[done];
issued:
mov.b32 r4, t;
tcgen05.st.sync.aligned.32x32b.x1.b32 [r21], {{r4}};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r5}}, [r21];
tcgen05.wait::ld.sync.aligned;
{wait("done", "0")}
tcgen05.fence::after_thread_sync;
add.u32 r6, r21, 8;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r7}}, [r6];
tcgen05.wait::ld.sync.aligned;
add.u32 r0, r5, r7;
{STORE}
{_FREE}
"""
    ptx = entry("tensor_memory", body, shared=_TILE)
    expected = np.arange(ROWS, dtype=np.uint32) + 7
    return Kernel("tensor_memory", ptx, expected, launches=(("tensor_memory", 1, 128, None, False),))


def _pair() -> Kernel:
    """Two CTAs of a cluster write to each other's shared memory and signal each other."""
    body = f"""
@!first bra ready;
mbarrier.init.shared::cta.b64 [full], 64;
fence.mbarrier_init.release.cluster;
ready:
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mov.u32 r5, %cluster_ctarank;
xor.b32 r6, r5, 1;
mov.u32 r1, buffer;
mad.lo.u32 r1, t, 4, r1;
mapa.shared::cluster.u32 r2, r1, r6;
mad.lo.u32 r3, r5, 100, t;
st.shared::cluster.b32 [r2], r3;
mov.u32 r4, full;
mapa.shared::cluster.u32 r4, r4, r6;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r4];
{wait("full", "0", "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64")}
ld.shared.b32 r0, [r1];
mad.lo.u32 t, r5, 64, t;
{STORE}
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
"""
    ptx = entry("pair", body, shared=".align 128 .b8 buffer[256]; .align 8 .b64 full")
    t = np.arange(64, dtype=np.uint32)
    return Kernel("pair", ptx, np.concatenate((t + 100, t)), launches=(("pair", 2, 64, 2, False),))


def _meet() -> Kernel:
    """Warps hand a value on through shared memory, a named barrier each, and sum it across lanes."""
    body = """
mov.u32 r1, buffer;
mad.lo.u32 r1, lane, 4, r1;
setp.eq.u32 p, w, 0;
@!p bra second;
st.shared.b32 [r1], t;
bar.arrive 1, 64;
bra finish;
second:
bar.sync 1, 64;
ld.shared.b32 r0, [r1];
shfl.sync.bfly.b32 r2, r0, 16, 31, 0xffffffff;
add.u32 r0, r0, r2;
mad.wide.u32 to, lane, 4, out;
st.global.b32 [to], r0;
finish:
"""
    ptx = entry("meet", body, shared=".align 128 .b8 buffer[128]")
    lanes = np.arange(32, dtype=np.uint32)
    return Kernel("meet", ptx, lanes + (lanes ^ 16), launches=(("meet", 1, 64, None, False),))


def _reuse() -> Kernel:
    """Two warps reduce twice by the same words of shared memory, and all read the first sum before the second."""

    def reduced(first: int) -> str:
        return f"""
add.u32 r2, w, {first};
@elected st.shared.b32 [r1], r2;
bar.sync 0;
@first ld.shared.v2.b32 {{r3, r4}}, [words];
@first add.u32 r3, r3, r4;
@first st.shared.b32 [words], r3;
bar.sync 0;
"""

    body = f"""
mov.u32 r1, words;
mad.lo.u32 r1, w, 4, r1;
{reduced(1)}
ld.shared.b32 r5, [words];
bar.sync 0; // second
{reduced(10)}
ld.shared.b32 r0, [words];
add.u32 r0, r0, r5;
{STORE}
"""
    expected = np.full(64, 1 + 2 + 10 + 11, np.uint32)
    ptx = entry("reuse", body, shared=".align 8 .b32 words[2]")
    return Kernel("reuse", ptx, expected, launches=(("reuse", 1, 64, None, False),))


def _plain() -> Kernel:
    """Global, local and parameter memory, one thread an element."""
    body = f"""
.local .align 8 .b8 stack[16];
mad.wide.u32 at, t, 8, src;
ld.global.v2.b32 {{r2, r3}}, [at];
add.u32 r4, r2, r3;
st.local.b32 [stack+4], r4;
ld.local.b32 r0, [stack+4];
{STORE}
"""
    source = WORDS[:64]
    return Kernel(
        "plain", entry("plain", body, True), source[0::2] + source[1::2], source, (("plain", 1, 32, None, False),)
    )


def _chain() -> Kernel:
    """Three dependent launches: each adds one to what the one before wrote."""

    def step(name: str, load: str) -> str:
        return entry(name, f"""
mad.wide.u32 to, t, 4, out;
prefetch.global.L2 [to];
griddepcontrol.wait;
{load}
add.u32 r0, r0, 1;
st.global.b32 [to], r0;
griddepcontrol.launch_dependents;
""")  # fmt: skip

    # two more, which only bugs launch: one that writes before it waits, one that does nothing
    early = entry("early", "mad.wide.u32 to, t, 4, out;\nst.global.b32 [to], t;\ngriddepcontrol.wait;")
    idle = entry("idle", "griddepcontrol.launch_dependents;")
    ptx = (
        early
        + idle
        + step("begin", "mov.u32 r0, t;")
        + step("middle", "ld.global.b32 r0, [to];")
        + step("end", "ld.global.b32 r0, [to];")
    )
    launches = tuple((name, 1, 32, None, True) for name in ("begin", "middle", "end"))
    return Kernel("chain", ptx, np.arange(32, dtype=np.uint32) + 3, launches=launches)


def _gather() -> Kernel:
    """Per-thread asynchronous copies, then a sum over neighbours."""
    body = f"""
mov.u32 r1, buffer;
mad.lo.u32 r1, t, 4, r1;
mad.wide.u32 at, t, 4, src;
cp.async.ca.shared.global [r1], [at], 4;
cp.async.ca.shared.global [r1], [at], 4;  // again: harmless
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
xor.b32 r2, t, 63;
mov.u32 r3, buffer;
mad.lo.u32 r3, r2, 4, r3;
ld.shared.b32 r0, [r3];
{STORE}
"""
    ptx = entry("gather", body, True, ".align 128 .b8 buffer[256]")
    return Kernel("gather", ptx, WORDS[:64][::-1], WORDS, (("gather", 1, 64, None, False),))


def _tail() -> Kernel:
    """Per-thread asynchronous copies of what there is of 16 bytes, also none: the rest is zeros."""
    body = f"""
mov.u32 r1, buffer;
mad.lo.u32 r2, t, 16, r1;
mad.wide.u32 at, t, 16, src;
mad.lo.s32 r3, t, -16, 56;
max.s32 r3, r3, 0;
min.s32 r3, r3, 16;
setp.lt.u32 p, t, 5;
@p cp.async.cg.shared.global [r2], [at], 16, r3;
cp.async.wait_all;
bar.warp.sync 0xffffffff;
mov.b32 r0, 0;
mad.lo.u32 r1, t, 4, r1;
setp.lt.u32 p, t, 20;
@p ld.shared.b32 r0, [r1];
{STORE}
"""
    ptx = entry("tail", body, True, ".align 128 .b8 buffer[128]")
    expected = np.concatenate((WORDS[:14], np.zeros(18, np.uint32)))
    return Kernel("tail", ptx, expected, WORDS[:14], (("tail", 1, 32, None, False),))


def _remap() -> Kernel:
    """A warp completes a tensor map in shared memory, hands it to the TMA unit and loads a box through it."""
    body = f"""
@!first bra ready;
mbarrier.init.shared::cta.b64 [full], 1;
fence.mbarrier_init.release.cluster;
ready:
mov.u32 r1, map;
mad.lo.u32 r1, t, 4, r1;
mad.wide.u32 at, t, 4, src;
ld.global.b32 r2, [at];
st.shared.b32 [r1], r2;
bar.warp.sync 0xffffffff;
add.u64 at, src, 128;
@first tensormap.replace.tile.global_address.shared::cta.b1024.b64 [map], at;
bar.warp.sync 0xffffffff;
mov.u64 to, descriptor;
cvta.global.u64 to, to;
mov.u32 r3, map;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [to], [r3], 128;
fence.proxy.tensormap::generic.acquire.gpu [to], 128;
mov.u32 r4, 0;
@!first bra read;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 128;
cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [buffer], [to, {{r4}}], [full];
read:
{wait("full", "0")}
mov.u32 r1, buffer;
mad.lo.u32 r1, t, 4, r1;
ld.shared.b32 r0, [r1];
add.u32 r0, r0, 1;
mov.u32 r1, result;
mad.lo.u32 r1, t, 4, r1;
st.shared.b32 [r1], r0;
{FENCE}
bar.warp.sync 0xffffffff;
@!first bra stored;
cp.async.bulk.global.shared::cta.bulk_group [out], [result], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
stored:
"""
    shared = ".align 128 .b8 map[128]; .align 128 .b8 buffer[128]; .align 128 .b8 result[128]; .align 8 .b64 full"
    ptx = ".global .align 128 .b8 descriptor[128];\n" + entry("remap", body, True, shared)
    tensor_map = np.frombuffer(encode(TensorMap(0, "u32", (32,), (), (32,), (1,))), np.uint32)
    source = np.concatenate((tensor_map, WORDS[:32]))
    return Kernel("remap", ptx, WORDS[:32] + 1, source, (("remap", 1, 32, None, False),))


KERNELS = {
    k.name: k
    for k in (
        _copy(),
        _ring(),
        _store(),
        _product(),
        _warpgroup(),
        _tiles(),
        _tensor_memory(),
        _pair(),
        _meet(),
        _reuse(),
        _plain(),
        _chain(),
        _gather(),
        _tail(),
        _remap(),
    )  # fmt: skip
}
