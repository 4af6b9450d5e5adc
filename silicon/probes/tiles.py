"""Measures the loads of a dense GEMM without its arithmetic: tiles that several CTAs of an H200 get from L2.

    python3 -m silicon.probes.tiles run [FILE]     on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.tiles model           the same copies on the model, beside tiles.json

CTA c of `batches` x `columns` x `rows` tiles (rows fastest) gets, step by step, 16 KiB of A and 16 KiB of B: 128 rows
of 128 bytes, by one tensor copy each, six steps in flight. Rows lie as far apart as those of a matrix with that many
steps in K, or side by side, so that a box is 16 KiB in one piece. A step begins no sooner than `pace` cycles after the
one before, as wgmmas would have it. Recorded are the cycles of the slowest CTA and of the median one, again from L2.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from silicon.cuda_driver import SM_90, Gpu
from silicon.probes import cycles, ring

TABLE = Path(__file__).with_suffix(".json")
STEPS, STAGES, ROWS, ROW = (8, 16, 64), 6, 128, 128  # of K; in flight; of a tile; bytes of each
BOX = ROWS * ROW
RING, SHARED = 1024, 1024 + STAGES * 2 * BOX
GRIDS, PACES = ((1, 8, 16), (4, 8, 4), (2, 8, 8), (1, 8, 8)), (0, 512)  # batches, columns, rows; cycles
SWIZZLE_128B = 3

KERNEL = f"""{SM_90}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 out, .param .u32 number,
  .param .u32 x_step, .param .u32 y_step, .param .u32 pace)
{{
  .reg .pred p; .reg .b32 r<16>, done, stage, phase, steps, over, down, x, ya, yb, gap;
  .reg .b64 ma, mb, o, start, stop, next, now, d;
  mov.u32 r0, %tid.x; setp.ne.u32 p, r0, 0; @p bra DONE;
  mov.u64 ma, a; cvta.param.u64 ma, ma; mov.u64 mb, b; cvta.param.u64 mb, mb;
  ld.param.u64 o, [out]; ld.param.u32 steps, [number]; ld.param.u32 over, [x_step];
  ld.param.u32 down, [y_step];
  ld.param.u32 gap, [pace]; cvt.u64.u32 d, gap;
  mov.u32 r0, %ctaid.x; mov.u32 r2, %nctaid.x; mov.u32 r3, %ctaid.y; mov.u32 r4, %nctaid.y; mov.u32 r5, %ctaid.z;
  mad.lo.u32 r6, r5, r2, r0; mad.lo.u32 r7, r5, r4, r3;
  mul.lo.u32 ya, r6, {ROWS}; mul.lo.u32 yb, r7, {ROWS};
  setp.ne.u32 p, down, 0; @!p bra HERE;
  mul.lo.u32 ya, ya, steps; mul.lo.u32 yb, yb, steps;
HERE: mad.lo.u32 r7, r7, r2, r0; mul.wide.u32 stop, r7, 8; add.u64 o, o, stop;
  mov.u32 r1, smem; mov.b32 done, 0; mov.b32 x, 0;
{ring.begun(STAGES)}
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1; mov.u64 start, %clock64; mov.u64 next, start;
NEXT: mad.lo.u32 r5, stage, 8, r1; mad.lo.u32 r6, stage, {2 * BOX}, r1;
  setp.lt.u32 p, done, {STAGES}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra WAIT;
  add.u64 next, next, d;
SPIN: mov.u64 now, %clock64; setp.lt.u64 p, now, next; @p bra SPIN;
  mov.u64 next, now;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r5], {2 * BOX};
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r6+{RING}], [ma, {{x, ya}}], [r5];
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [r6+{RING + BOX}], [mb, {{x, yb}}], [r5];
  add.u32 x, x, over; add.u32 ya, ya, down; add.u32 yb, yb, down;
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {STAGES}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, steps; @p bra NEXT;
{ring.ended(STAGES)}
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o], stop;
DONE: ret;
}}
"""


def points() -> dict[str, tuple]:
    """Grid, steps, pace, and whether a box is in one piece, by name."""
    found = {}
    for grid, steps, pace, piece in product(GRIDS, STEPS, PACES, (False, True)):
        name = "batches {}, columns {}, rows {}".format(*grid) + f", {steps} steps, pace {pace}"
        found[name + ", in one piece" * piece] = grid, steps, pace, piece
    return found


def operand(steps: int, tiles: int, piece: bool) -> tuple[list[int], list[int]]:
    """The dims and strides of A or B as bytes: rows that long, or boxes one behind the other."""
    rows = tiles * ROWS
    return ([ROW, rows * steps], [ROW]) if piece else ([ROW * steps, rows], [ROW * steps])


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    gpu, found = Gpu(), {}
    kernel = gpu.kernel(KERNEL, shared=SHARED)
    data, out = [gpu.allocate(1 << 25) for _ in range(2)], gpu.allocate(1 << 12)
    for name, ((batches, columns, rows), steps, pace, piece) in points().items():
        maps = []
        for at, tiles in zip(data, (batches * rows, batches * columns), strict=True):
            maps.append(gpu.tensormap(at, *operand(steps, tiles, piece), [ROW, ROWS], swizzle=SWIZZLE_128B))
        args = [*maps, out, steps, 0 if piece else ROW, ROWS if piece else 0, pace]
        launch = gpu.launch(kernel, (rows, columns, batches), 32, args, shared=SHARED)
        found[name] = cycles.measured(gpu, out, batches * columns * rows, 8, lambda _, launch=launch: launch())
    cycles.write_recording(file, gpu, found)


def on_the_model(point: tuple, profile) -> list[float]:
    """A point's cycles on the timing model, as the recording has them."""
    import emulated_gpu
    from emulated_gpu.formats.tensormap import TensorMap, encode

    (batches, columns, rows), steps, pace, piece = point
    a, b, *outs = cycles.allocated(1 << 25, 1 << 25, 1 << 12, 1 << 12)
    maps = []
    for at, tiles in ((a, batches * rows), (b, batches * columns)):
        dims, strides = map(tuple, operand(steps, tiles, piece))
        maps.append(encode(TensorMap(at.ctypes.data, "u8", dims, strides, (ROW, ROWS), (1, 1), swizzle=128)))
    with emulated_gpu.timing(profile):
        for out in outs:
            args = [*maps, out, steps, 0 if piece else ROW, ROWS if piece else 0, pace]
            emulated_gpu.launch(KERNEL, "kernel", (rows, columns, batches), 32, args, shared=SHARED)
    return cycles.slowest_and_median(outs[-1][: 8 * batches * columns * rows])


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, points(), on_the_model)
