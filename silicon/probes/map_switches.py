"""Measures what it costs to go on to other tensor maps while the memory is busy.

    python3 -m silicon.probes.map_switches run [FILE]     on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.map_switches model           the same copies on the model, beside map_switches.json

Each CTA, one an SM, copies 84 stages of 16 KiB from DRAM, `stages` under way, each by four boxes of 32 rows of 128
bytes through the four tensor maps of a group, as a grouped GEMM loads two operands and their scales. It goes through
`groups` groups one after the other, an equal share of the stages each; all bytes are read once, and no launch before
has read them. The maps are parameters (by value) or lie in memory, prefetched a group ahead or not.
Recorded, of an H100, are the cycles of the slowest CTA and of the median one.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from silicon.cuda_driver import SM_90, TENSORMAP_BYTES, Gpu

from . import cycles, ring

TABLE = Path(__file__).with_suffix(".json")
STEPS, FAN, GROUPS, ROUNDS, SMS = 84, 4, 7, 4, 132  # stages; maps of a group; most groups; launches; CTAs
ROW, ROWS = 128, 32  # bytes and rows of a box
BOX = ROW * ROWS
RING = 1024
EACH = ROUNDS * SMS * STEPS * BOX  # bytes of a map: what ROUNDS launches read of it if there is but one group
MOST = 12  # stages under way


class Point(NamedTuple):
    """A launch; ctas: how many of the SMs copy."""

    groups: int
    stages: int = MOST
    ctas: int = SMS
    by_value: bool = True
    prefetch: bool = False

    @property
    def name(self) -> str:
        maps = "by value" if self.by_value else "in memory"
        return f"{self.groups} groups, {self.stages} stages, {self.ctas} CTAs, {maps}{', prefetched' * self.prefetch}"


POINTS = [
    Point(groups, stages, ctas, by_value, prefetch)
    for by_value in (True, False)
    for prefetch in (False, True)
    for stages, ctas in ((MOST, SMS), (6, SMS), (MOST, 1))
    for groups in (1, 2, 3, 7)
]


def kernel(stages: int, prefetch: bool) -> str:
    """PTX: arguments maps by value, maps in memory or 0, out (u64 [CTA]: cycles), stages of a group, first stage."""
    copies = "\n".join(
        f"""  add.u64 m{i}, m, {i * TENSORMAP_BYTES};
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [r6+{RING + i * BOX}], [m{i}, {{zero, y}}], [r5];"""
        for i in range(FAN)
    )
    ahead = "  setp.ne.u32 p, left, each; @p bra SAME; add.u32 r7, done, each; setp.ge.u32 p, r7, {}; @p bra SAME;\n"
    ahead = ahead.format(STEPS) + "".join(
        f"  prefetch.tensormap [m+{(FAN + i) * TENSORMAP_BYTES}];\n" for i in range(FAN)
    )
    return f"""{SM_90}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 maps[{GROUPS * FAN * TENSORMAP_BYTES}], .param .u64 memory,
  .param .u64 out, .param .u32 share, .param .u32 first)
{{
  .reg .pred p; .reg .b32 r<8>, done, stage, phase, y, left, each, zero; .reg .b64 m<4>, m, o, d, start, stop;
  mov.u32 r0, %tid.x; setp.ne.u32 p, r0, 0; @p bra DONE;
  ld.param.u64 m, [memory]; setp.ne.u64 p, m, 0; @p bra THERE;
  mov.u64 m, maps; cvta.param.u64 m, m;
THERE: ld.param.u64 o, [out]; ld.param.u32 each, [share]; ld.param.u32 y, [first]; mov.b32 zero, 0;
  mov.u32 r0, %ctaid.x; mul.wide.u32 d, r0, 8; add.u64 o, o, d;
  mad.lo.u32 y, r0, {STEPS}, y; mul.lo.u32 y, y, {ROWS};
  mov.u32 r1, smem; mov.b32 done, 0;
{ring.begun(stages)}
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1; mov.b32 left, each; mov.u64 start, %clock64;
NEXT: mad.lo.u32 r5, stage, 8, r1; mad.lo.u32 r6, stage, {FAN * BOX}, r1;
  setp.lt.u32 p, done, {stages}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r5], {FAN * BOX};
{copies}
{ahead if prefetch else ""}
SAME: add.u32 y, y, {ROWS}; sub.u32 left, left, 1; setp.ne.u32 p, left, 0; @p bra STAYS;
  mov.b32 left, each; add.u64 m, m, {FAN * TENSORMAP_BYTES};
STAYS: add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, {STEPS}; @p bra NEXT;
{ring.ended(stages)}
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o], stop;
DONE: ret;
}}
"""


def arguments(point: Point, turn: int, maps: bytes, memory, out) -> list:
    """The kernel's arguments for the launch of a turn, whose maps are these."""
    return [maps, 0 if point.by_value else memory, out, STEPS // point.groups, turn * SMS * STEPS]


def measure_all(file: Path) -> None:
    """Measures all points and writes the file."""
    gpu, found, kernels = Gpu(), {}, {}
    count = GROUPS * FAN
    data, room, out = gpu.allocate(EACH * count), gpu.allocate(1 << 16), gpu.allocate(1 << 12)
    shared = RING + MOST * FAN * BOX
    maps = b"".join(
        gpu.tensormap(data + EACH * i, [ROW, EACH // ROW], [ROW], [ROW, ROWS], swizzle=3) for i in range(count)
    )
    gpu.write(room, maps)
    for point in POINTS:
        shape = point.stages, point.prefetch
        if shape not in kernels:
            kernels[shape] = gpu.kernel(kernel(*shape), shared=shared)

        def launched(turn: int, point=point, function=kernels[shape]) -> None:
            gpu.launch(function, point.ctas, 32, arguments(point, turn, maps, room, out), shared=shared)()

        found[point.name] = cycles.measured(gpu, out, point.ctas, ROUNDS, launched)
    cycles.write_recording(file, gpu, found)


def on_the_model(point: Point, profile) -> list[float]:
    """A point's cycles on the timing model, as the recording has them."""
    import emulated_gpu
    from emulated_gpu.formats.tensormap import TensorMap, encode

    used = FAN * point.groups
    data, room, out = cycles.allocated(EACH * used, 1 << 16, 1 << 12)
    start, shape = data.ctypes.data, (ROW, EACH // ROW)
    each = [TensorMap(start + EACH * i, "u8", shape, (ROW,), (ROW, ROWS), (1, 1), swizzle=128) for i in range(used)]
    maps = b"".join(map(encode, each)).ljust(GROUPS * FAN * TENSORMAP_BYTES, b"\0")
    room[: len(maps)] = np.frombuffer(maps, np.uint8)
    with emulated_gpu.timing(profile.with_({"l2.dirty_at_start": 0.0})):
        args = arguments(point, 1, maps, room, out)
        shared = RING + MOST * FAN * BOX
        emulated_gpu.launch(kernel(point.stages, point.prefetch), "kernel", point.ctas, 32, args, shared=shared)
    return cycles.slowest_and_median(out[: 8 * point.ctas])


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, {point.name: point for point in POINTS}, on_the_model)
