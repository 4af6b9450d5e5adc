"""Measures what tensor copies cost by the rows of their boxes: how many bytes a row has, how rows lie, in every form.

    python3 -m silicon.probes.rows_of_boxes run [FILE]     on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.rows_of_boxes model           the same copies on the model, beside rows_of_boxes.json

One thread of each CTA copies boxes that lie in the L2, a launch before having read them: loads through a ring of
stages, loads into both CTAs of a cluster, stores, reductions and prefetches one behind the other, these with a load at
the end. Recorded are the cycles of the slowest CTA and of the median one. Half of the points are held out, by a hash of
their names.
"""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path
from typing import NamedTuple

from silicon.cuda_driver import SM_90, TENSORMAP_BYTES, Gpu

from . import cycles, ring

TABLE = Path(__file__).with_suffix(".json")
DATA, PITCH, SMS = 1 << 30, 4096, 132
ROUNDS = 5  # launches; the first is not counted
APART = 2  # boxes of a CTA, which it copies in turn
ELEMENT, UINT32 = 4, 2  # bytes of an element; its CUtensorMapDataType
HEAD, MOST = 1024, 192 << 10  # bytes of the mbarriers; of boxes under way
SWIZZLES = (0, 32, 64, 128)
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
FORMS = {
    "load": LOAD + " [{shared}], [m, {at}], [{barrier}];",
    "multicast": LOAD + ".multicast::cluster [{shared}], [m, {at}], [{barrier}], both;",
    "store": "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [m, {at}], [{shared}];",
    "reduce": "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group [m, {at}], [{shared}];",
    "prefetch": "cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [m, {at}];",
}


class Pattern(NamedTuple):
    """Boxes of `sizes`, rows of `row` bytes and the outer dimensions, whose steps are `strides` bytes."""

    form: str
    row: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    stages: int
    count: int
    ctas: int
    swizzle: int = 0
    beyond: bool = False  # half of the box, its second outer dimension, lies beyond the tensor's end

    @property
    def name(self) -> str:
        shape = " x ".join(f"{n} at {s}" for n, s in zip(self.sizes, self.strides, strict=True))
        what = f"{self.form}, rows of {self.row} B, {shape}, {self.count} by {self.stages}, {self.ctas} CTAs"
        return what + f", swizzle {self.swizzle}" * bool(self.swizzle) + ", half beyond" * self.beyond

    @property
    def held_out(self) -> bool:
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0

    @property
    def box(self) -> int:
        """Bytes of a box in shared memory."""
        return self.row * prod(self.sizes)

    @property
    def room(self) -> int:
        """Bytes that a stage has in shared memory, where rows lie as far apart as the swizzle spans."""
        return -(-max(self.row, self.swizzle) * prod(self.sizes) // 1024) * 1024

    @property
    def rank(self) -> int:
        return 1 + len(self.sizes)

    @property
    def dims(self) -> tuple[int, ...]:
        """Elements of the tensor: boxes follow each other along dimension 1."""
        outer = (1,) if self.beyond else self.sizes[1:]
        return self.row // ELEMENT, self.sizes[0] * APART * SMS, *outer

    @property
    def boxes(self) -> tuple[int, ...]:
        return self.row // ELEMENT, *self.sizes

    @property
    def cluster(self) -> int:
        return 2 if self.form == "multicast" else 1


def _patterns() -> list[Pattern]:
    found = []

    def add(form: str, row: int, sizes: tuple, strides: tuple, stages: int, count: int, ctas: int, **more) -> None:
        most = MOST // (row * prod(sizes))
        found.append(Pattern(form, row, sizes, strides, min(stages, most), count, ctas, **more))

    for row in (16, 32, 48, 64, 96, 128, 256, 512):
        rows = min(256, (4 << 10) // row // 8 * 8)
        for ctas in (1, SMS):
            for stages in (2, 12):  # two dimensions, lines apart
                add("load", row, (rows,), (PITCH,), stages, 48, ctas)
        add("load", row, (rows,), (PITCH,), 1, 1, 1)
        if row <= 128:
            for ctas in (1, SMS):  # slices along K, as a K-major operand without a swizzle wants them
                add("load", row, (64, 128 // row if 128 % row == 0 else 1), (PITCH, row), 8, 48, ctas)
        add("load", row, (rows,), (row,), 12, 48, 1)  # in one piece
        add("load", row, (rows // 4, 4), (PITCH, 512), 12, 48, 1)
    for row in (16, 32, 64, 128):
        add("load", row, (32, 4, 2), (PITCH, 1024, 512), 8, 48, 1)
        add("load", row, (16, 2, 4, 2), (PITCH, 2048, 512, 128), 8, 48, 1)
        add("load", row, (8, 32), (row, 8 * row), 12, 48, 1)
        add("load", row, (64,), (PITCH,), 12, 48, 1)
        add("load", row, (8,), (PITCH,), 12, 48, 1)
        add("load", row, (32, 2), (PITCH, 512), 12, 48, 1, beyond=True)
        for swizzle in SWIZZLES:
            if swizzle and row <= swizzle:
                add("load", row, (64,), (PITCH,), 12, 48, 1, swizzle=swizzle)
                add("load", row, (64,), (PITCH,), 12, 48, SMS, swizzle=swizzle)
                add("store", row, (64,), (PITCH,), 12, 48, 1, swizzle=swizzle)
    for form in ("multicast", "store", "reduce", "prefetch"):
        for row in (16, 32, 64, 128, 256):
            rows = min(256, (4 << 10) // row)
            for ctas in (2 if form == "multicast" else 1, SMS):
                add(form, row, (rows,), (PITCH,), 12, 12 if form == "multicast" else 48, ctas)
            if row <= 128:
                both = form == "multicast"
                add(form, row, (64, 128 // row), (PITCH, row), 8, 8 if both else 48, 1 + both)
            if form != "multicast":
                add(form, row, (rows,), (row,), 12, 48, 1)
    return list({pattern.name: pattern for pattern in found}.values())


PATTERNS = _patterns()


def kernel(pattern: Pattern) -> str:
    """PTX: arguments the tensor map by value, out (u64 [CTA]: cycles)."""
    count, stages, box = pattern.count, pattern.stages, pattern.box
    room = pattern.room
    at = "{" + ", ".join(["0", "y", "0", "0", "0"][: pattern.rank]) + "}"
    copy = FORMS[pattern.form].format(rank=pattern.rank, at=at, shared=f"r6+{HEAD}", barrier="r5")
    loads = pattern.form in ("load", "multicast")
    issued = copy if loads or pattern.form == "prefetch" else f"{copy} cp.async.bulk.commit_group;"
    waits = (
        f"""setp.lt.u32 p, done, {stages}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r5], {box};"""
        if loads
        else ""
    )
    if pattern.form == "multicast":  # the first CTA copies for both
        issued = f"@first {copy}"
    last = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], {box};\n  mov.b32 r6, r1;\n  "
    last += FORMS["load"].format(rank=pattern.rank, at=at, shared=f"r6+{HEAD}", barrier="r1")
    last += "\nEACH: mbarrier.try_wait.parity.shared::cta.b64 p, [r1], 0; @!p bra EACH;"
    ends = {"load": ring.ended(stages), "multicast": ring.ended(stages), "prefetch": last}.get(
        pattern.form, "  cp.async.bulk.wait_group 0;"
    )
    return f"""{SM_90}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 map[{TENSORMAP_BYTES}], .param .u64 out)
{{
  .reg .pred p, first; .reg .b32 r<8>, done, stage, phase, y; .reg .b64 m, o, d, start, stop; .reg .b16 both;
  mov.u32 r0, %ctaid.x; mov.u32 r1, smem; mov.b16 both, 3; mov.u32 r2, %cluster_ctarank; setp.eq.u32 first, r2, 0;
  mov.u32 r2, %tid.x; setp.ne.u32 p, r2, 0; @p bra DONE;
  ld.param.u64 o, [out]; mul.wide.u32 d, r0, 8; add.u64 o, o, d;
  mov.u64 m, map; cvta.param.u64 m, m; mov.b32 done, 0; prefetch.tensormap [m];
{ring.begun(stages)}
DONE: barrier.cluster.arrive; barrier.cluster.wait; setp.ne.u32 p, r2, 0; @p bra END;
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1; mov.u64 start, %clock64;
NEXT: and.b32 y, done, {APART - 1}; mad.lo.u32 y, r0, {APART}, y; mul.lo.u32 y, y, {pattern.sizes[0]};
  mad.lo.u32 r5, stage, 8, r1; mad.lo.u32 r6, stage, {room}, r1;
  {waits}
  {issued}
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, {count}; @p bra NEXT;
{ends}
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o], stop;
END: barrier.cluster.arrive; barrier.cluster.wait; ret;
}}
"""


def shared(pattern: Pattern) -> int:
    """Bytes of dynamic shared memory."""
    return HEAD + pattern.stages * pattern.room


def measure_all(file: Path) -> None:
    """Measures all patterns and writes the file."""
    gpu, found = Gpu(), {}
    data, out = gpu.allocate(DATA), gpu.allocate(1 << 12)
    gpu.fill(data, 0, DATA)
    for pattern in PATTERNS:
        swizzle = SWIZZLES.index(pattern.swizzle)
        tensor = gpu.tensormap(data, pattern.dims, pattern.strides, pattern.boxes, dtype=UINT32, swizzle=swizzle)
        function = gpu.kernel(kernel(pattern), shared=shared(pattern))
        launch = gpu.launch(function, pattern.ctas, 32, [tensor, out], cluster=pattern.cluster, shared=shared(pattern))
        found[pattern.name] = cycles.measured(gpu, out, pattern.ctas, ROUNDS, lambda turn, launch=launch: launch())
    cycles.write_recording(file, gpu, found)


def on_the_model(pattern: Pattern, profile) -> list[float]:
    """A pattern's cycles on the timing model in the second of two launches, as the recording has them."""
    import emulated_gpu
    from emulated_gpu.formats.tensormap import TensorMap, encode

    extent = max((n - 1) * step for n, step in zip(pattern.dims[1:], pattern.strides, strict=True)) + (64 << 10)
    data, out = cycles.allocated(extent, 1 << 12)
    steps = (1,) * pattern.rank
    described = data.ctypes.data, "u32", pattern.dims, pattern.strides, pattern.boxes, steps, pattern.swizzle
    tensor, text = encode(TensorMap(*described)), kernel(pattern)
    with emulated_gpu.timing(profile.with_({"l2.dirty_at_start": 0.0})):
        for _ in range(2):
            emulated_gpu.launch(
                text, "kernel", pattern.ctas, 32, [tensor, out], cluster=pattern.cluster, shared=shared(pattern)
            )
    return cycles.slowest_and_median(out[: 8 * pattern.ctas])


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, {pattern.name: pattern for pattern in PATTERNS}, on_the_model)
