"""Measures the loads of a group GEMM's k-steps, which a consumer frees: what of a step is neither products nor issue.

    python3 -m silicon.probes.k_steps run [FILE]     on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.k_steps model           the same copies on the model, beside k_steps.json

CTA c of 120 gets tile (c // 40, c % 40), step by step: 128 rows of 128 bytes of A and of B by a tensor copy each, and
2 KiB of scales of either by a bulk copy, into one of up to five stages, as a public kernel for a B200 does
(NaregAmirianMegan/NVFP4_Kernels, nvfp4_grouped_gemm/v2.py). Two CTAs of a cluster have their rows of A in common: each
copies them, or the first one for both. A consumer awaits the bytes, holds the stage for `work` cycles, as products
would, and frees it in all CTAs of the cluster. Recorded are the cycles of the slowest CTA and of the median one, behind
a fill of 1 GiB, which leaves lines that have to be written back, behind loads of 177 MB more, which leave none, and
again, from L2.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from silicon.cuda_driver import SM_90, Gpu, Launch, Timer
from silicon.probes import cycles

TABLE = Path(__file__).with_suffix(".json")
COLUMNS, ROWS_OF_TILES, ROWS, ROW, SCALES = 40, 3, 128, 128, 2048
CTAS, BOX = COLUMNS * ROWS_OF_TILES, ROWS * ROW
SIZE = 2 * BOX + 2 * SCALES
RING, FREED = 1024, 64  # where the stages begin; a stage's second mbarrier, behind its first
SHARED = 1024 + RING + 5 * SIZE
STEPS, WORKS = (6, 16, 28), (0, 500)
OTHERS = 8  # inputs of 22 MB that are loaded to leave the L2 clean
TIMINGS = "behind a fill", "behind loads", "again"
SWIZZLE_128B = 3


class Ring(NamedTuple):
    """CTAs of a cluster, whether one copies A for all of them, and the stages."""

    cluster: int = 1
    multicast: bool = False
    stages: int = 5

    def __str__(self) -> str:
        pair = "" if self.cluster == 1 else ", pairs, A by multicast" if self.multicast else ", pairs"
        return f"{self.stages} stage{'s' * (self.stages > 1)}{pair}"


RINGS = Ring(), Ring(2), Ring(2, True), Ring(stages=3), Ring(stages=1)


def kernel(ring: Ring) -> str:
    """The PTX of a ring."""
    cluster, shared_a, stages = ring
    bulk = "cp.async.bulk{}.shared::cluster.global{}.mbarrier::complete_tx::bytes{}"
    tensor, scales = bulk.format(".tensor.2d", ".tile", ""), bulk.format("", "", "")
    both = bulk.format(".tensor.2d", ".tile", ".multicast::cluster")
    load_a = f"@lead {both} [slot+{RING}], [ma, {{x, ya}}], [full], mask;" if shared_a else (
        f"{tensor} [slot+{RING}], [ma, {{x, ya}}], [full];"
    )  # fmt: skip
    free = "\n  ".join(
        f"mapa.shared::cluster.u32 far, full, {rank}; mbarrier.arrive.shared::cluster.b64 _, [far+{FREED}];"
        for rank in range(cluster)
    )
    return f"""{SM_90}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 sfa, .param .u64 sfb,
  .param .u64 out, .param .u32 number, .param .u32 work)
{{
  .reg .pred p, lead; .reg .b16 mask; .reg .b32 r<8>, done, stage, phase, steps, x, ya, yb, full, slot, far;
  .reg .b64 ma, mb, fa, fb, o, start, now, until, q;
  mov.u64 ma, a; cvta.param.u64 ma, ma; mov.u64 mb, b; cvta.param.u64 mb, mb;
  ld.param.u32 steps, [number]; ld.param.u64 fa, [sfa]; ld.param.u64 fb, [sfb]; ld.param.u64 o, [out];
  mov.u32 r1, smem; mov.u32 r0, %tid.x; mov.u32 r2, %ctaid.x; mov.b16 mask, 3;
  div.u32 r3, r2, {COLUMNS}; mul.lo.u32 r4, r3, {COLUMNS}; sub.u32 r4, r2, r4;
  mul.lo.u32 ya, r3, {ROWS}; mul.lo.u32 yb, r4, {ROWS};
  mul.lo.u32 r5, steps, {SCALES}; mul.wide.u32 q, r3, r5; add.u64 fa, fa, q; mul.wide.u32 q, r4, r5; add.u64 fb, fb, q;
  mul.wide.u32 q, r2, 8; add.u64 o, o, q;
  mov.u32 r6, %cluster_ctarank; setp.eq.u32 lead, r6, 0;
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1; mov.b32 x, 0;
  setp.ne.u32 p, r0, 0; @p bra READY;
INIT: mad.lo.u32 full, done, 8, r1; mbarrier.init.shared::cta.b64 [full], 1;
  mbarrier.init.shared::cta.b64 [full+{FREED}], {cluster};
  add.u32 done, done, 1; setp.lt.u32 p, done, {stages}; @p bra INIT;
  mov.b32 done, 0; fence.mbarrier_init.release.cluster;
READY: barrier.cluster.arrive; barrier.cluster.wait;
  mov.u64 start, %clock64;
  setp.eq.u32 p, r0, 32; @p bra USE;
  setp.ne.u32 p, r0, 0; @p bra END;
NEXT: mad.lo.u32 full, stage, 8, r1; mad.lo.u32 slot, stage, {SIZE}, r1;
  setp.lt.u32 p, done, {stages}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [full+{FREED}], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], {SIZE};
  {load_a}
  {tensor} [slot+{RING + BOX}], [mb, {{x, yb}}], [full];
  {scales} [slot+{RING + 2 * BOX}], [fa], {SCALES}, [full];
  {scales} [slot+{RING + 2 * BOX + SCALES}], [fb], {SCALES}, [full];
  add.u32 x, x, {ROW}; add.u64 fa, fa, {SCALES}; add.u64 fb, fb, {SCALES};
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, steps; @p bra NEXT;
  bra END;
USE: mov.b32 phase, 0; ld.param.u32 r7, [work];
GET: mad.lo.u32 full, stage, 8, r1;
GOT: mbarrier.try_wait.parity.shared::cta.b64 p, [full], phase; @!p bra GOT;
  mov.u64 now, %clock64; cvt.u64.u32 until, r7; add.u64 until, until, now;
SPIN: mov.u64 now, %clock64; setp.lt.u64 p, now, until; @p bra SPIN;
  {free}
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra REST;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
REST: setp.lt.u32 p, done, steps; @p bra GET;
  mov.u64 now, %clock64; sub.u64 now, now, start; st.global.u64 [o], now;
END: barrier.cluster.arrive; barrier.cluster.wait;
  ret;
}}
"""


def points() -> dict[str, tuple[Ring, int, int]]:
    """Ring, steps, work, by name."""
    return {
        f"{ring}; {steps} steps, work {work}": (ring, steps, work) for ring, steps, work in product(RINGS, STEPS, WORKS)
    }


def operand(steps: int, tiles: int) -> tuple[list[int], list[int]]:
    """The dims and strides of A or B as bytes."""
    return [ROW * steps, tiles * ROWS], [ROW * steps]


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    gpu, found = Gpu(), {}
    flush, kernels = Timer(gpu).flush, {ring: gpu.kernel(kernel(ring), shared=SHARED) for ring in RINGS}
    inputs, out = [[gpu.allocate(1 << 25) for _ in range(4)] for _ in range(1 + OTHERS)], gpu.allocate(1 << 12)

    def prepared(data: list[int], ring: Ring, steps: int, work: int) -> Launch:
        maps = [
            gpu.tensormap(at, *operand(steps, tiles), [ROW, ROWS], swizzle=SWIZZLE_128B)
            for at, tiles in zip(data, (ROWS_OF_TILES, COLUMNS))
        ]
        args = [*maps, *data[2:], out, steps, work]
        return gpu.launch(kernels[ring], CTAS, 64, args, (ring.cluster, 1, 1), SHARED)

    others = [prepared(data, RINGS[0], max(STEPS), 0) for data in inputs[1:]]
    before = (flush,), (flush, *others), ()
    for name, point in points().items():
        launch = prepared(inputs[0], *point)
        seen: list[list[list[float]]] = [[] for _ in TIMINGS]
        for _ in range(7):
            for each, first in zip(seen, before, strict=True):
                for other in first:
                    other()
                launch()
                each.append(cycles.slowest_and_median(gpu.read(out, 8 * CTAS)))
        found[name] = {timing: np.median(each, axis=0).tolist() for timing, each in zip(TIMINGS, seen, strict=True)}
    cycles.write_recording(file, gpu, found)


def on_the_model(point: tuple[Ring, int, int], profile) -> dict[str, list[float]]:
    """A point's cycles on the timing model, as the recording has them."""
    import emulated_gpu
    from emulated_gpu.formats.tensormap import TensorMap, encode

    ring, steps, work = point
    *data, out, again = cycles.allocated(*[1 << 25] * 4, 1 << 12, 1 << 12)
    outs = out, again
    maps = []
    for at, tiles in zip(data, (ROWS_OF_TILES, COLUMNS)):
        dims, strides = map(tuple, operand(steps, tiles))
        maps.append(encode(TensorMap(at.ctypes.data, "u8", dims, strides, (ROW, ROWS), (1, 1), swizzle=128)))
    found = {}
    for timings, dirty in ((TIMINGS[:1], {}), (TIMINGS[1:], {"l2.dirty_at_start": 0.0})):
        with emulated_gpu.timing(profile.with_(dirty)):
            for out in outs[: len(timings)]:
                args = [*maps, *(at.ctypes.data for at in data[2:]), out, steps, work]
                emulated_gpu.launch(kernel(ring), "kernel", CTAS, 64, args, cluster=(ring.cluster, 1, 1), shared=SHARED)
        found |= {timing: cycles.slowest_and_median(out[: 8 * CTAS]) for timing, out in zip(timings, outs)}
    return found


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, points(), on_the_model)
