"""Measures how fast boxes come from DRAM by their shape, and by how far the lines lie apart that are read together.

    python3 -m silicon.probes.boxes run [FILE]     on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.boxes model           the same copies on the model, beside boxes.json

Each CTA, one an SM, copies 1 MiB of a row-major matrix by tensor copies of boxes, `stages` under way. A CTA goes along
the rows of a band of its own, as a GEMM along K ("along"), or takes boxes from anywhere ("anywhere"): boxes that lie
together in pieces of this many bytes, if `piece` is given. No launch before has read what it copies, and nothing is
stored, so that the L2 holds nothing to be written back. Recorded are the cycles of the slowest CTA and of the median
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from silicon.cuda_driver import SM_90, TENSORMAP_BYTES, Gpu

from . import cycles, ring

TABLE = Path(__file__).with_suffix(".json")
DATA, EACH, SMS = 1 << 30, 1 << 20, 132  # bytes of all the data; copied by a CTA; CTAs
ROUNDS = 6  # launches; the first is not counted
RING, LIST = 1024, 2048  # bytes of the mbarriers; where the boxes of a CTA are listed
ELEMENT, INT64 = 8, 5  # bytes of an element; its CUtensorMapDataType
MOST = 192 << 10  # bytes under way


class Pattern(NamedTuple):
    """Boxes of `rows` rows of `row` bytes of a matrix whose rows lie `pitch` bytes apart."""

    row: int
    rows: int
    pitch: int
    stages: int
    along: bool = True
    piece: int = 0

    @property
    def name(self) -> str:
        where = "along" if self.along else "anywhere" + f" in pieces of {self.piece >> 10} KiB" * bool(self.piece)
        return f"{self.stages} x {self.rows} rows of {self.row} B, pitch {self.pitch}, {where}"

    @property
    def box(self) -> int:
        """Bytes of a box."""
        return self.row * self.rows

    @property
    def matrix(self) -> tuple[int, int]:
        """How many boxes lie side by side in the matrix, and how many above each other."""
        return self.pitch // self.row, DATA // self.pitch // self.rows


def _patterns() -> list[Pattern]:
    found = []
    for kib in (48, 192):  # the shape of boxes of 16 KiB, of one matrix
        for row in (128, 256, 512, 1024, 2048):
            for along in (True, False):
                found.append(Pattern(row, (16 << 10) // row, 4096, kib // 16, along))
    for pitch in (768, 1024, 2048, 3584, 8192):  # of operands of GEMMs
        found += [Pattern(128, 128, pitch, stages, along) for stages in (3, 12) for along in (True, False)]
    for row in (64, 128, 256, 1024, 2048):  # of 4 KiB
        found += [Pattern(row, 4096 // row, 4096, 12, along) for along in (True, False)]
    for stages in (3, 12):  # boxes that are one piece, this many of them together
        found += [Pattern(2048, 8, 2048, stages, True)]
        found += [Pattern(2048, 8, 2048, stages, False, piece) for piece in (0, 32 << 10, 64 << 10, 256 << 10, 1 << 20)]
    found += [Pattern(2048, rows, 2048, (48 << 10) // 2048 // rows, False) for rows in (1, 2, 4)]
    return list({pattern.name: pattern for pattern in found}.values())


PATTERNS = _patterns()


def lists(pattern: Pattern, turn: int) -> np.ndarray:
    """The boxes that each CTA copies in a launch, uint32 [CTA, count]: box of the row, and << 8, row of boxes."""
    side, high = pattern.matrix
    count = EACH // pattern.box
    if pattern.along:
        bands = -(-count // side)  # of a CTA: the last one may not be used up
        step = np.arange(count)
        band = (turn * SMS * bands + (step // side)[None, :] * SMS + np.arange(SMS)[:, None]) % high
        return (band << 8 | (step % side)[None, :]).astype(np.uint32)
    together = max(1, pattern.piece // pattern.box)  # boxes, where one after the other is one piece
    assert together == 1 or side == 1
    rng = np.random.default_rng(turn)
    at = rng.choice(side * high // together, SMS * count // together, replace=False) * together
    box = (at[:, None] + np.arange(together)).reshape(SMS, count)
    return (box // side << 8 | box % side).astype(np.uint32)


def kernel(pattern: Pattern) -> str:
    """PTX: arguments the tensor map by value, out (u64 [CTA]: cycles), lists (u32 [CTA][count])."""
    count, stages, box = EACH // pattern.box, pattern.stages, pattern.box
    data = -(-(LIST + 4 * count) // 1024) * 1024
    return f"""{SM_90}.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 64 .b8 map[{TENSORMAP_BYTES}], .param .u64 out, .param .u64 lists)
{{
  .reg .pred p; .reg .b32 r<8>, done, stage, phase, which, x, y; .reg .b64 m, o, l, d, start, stop;
  mov.u32 r0, %ctaid.x; mov.u32 r1, smem; mov.u32 r2, %tid.x; add.u32 which, r1, {LIST};
  ld.param.u64 l, [lists]; mul.wide.u32 d, r0, {4 * count}; add.u64 l, l, d;
  ld.param.u64 o, [out]; mul.wide.u32 d, r0, 8; add.u64 o, o, d;
  mov.b32 r3, r2;
LISTS: setp.ge.u32 p, r3, {count}; @p bra LISTED;
  mul.wide.u32 d, r3, 4; add.u64 d, d, l; ld.global.u32 r4, [d]; mad.lo.u32 r5, r3, 4, which; st.shared.u32 [r5], r4;
  add.u32 r3, r3, 32; bra LISTS;
LISTED: bar.warp.sync 0xffffffff;
  setp.ne.u32 p, r2, 0; @p bra DONE;
  mov.u64 m, map; cvta.param.u64 m, m; mov.b32 done, 0;
{ring.begun(stages)}
  mov.b32 done, 0; mov.b32 stage, 0; mov.b32 phase, 1; mov.u64 start, %clock64;
NEXT: ld.shared.u32 r4, [which]; add.u32 which, which, 4;
  and.b32 x, r4, 255; mul.lo.u32 x, x, {pattern.row // ELEMENT}; shr.u32 y, r4, 8; mul.lo.u32 y, y, {pattern.rows};
  mad.lo.u32 r5, stage, 8, r1; mad.lo.u32 r6, stage, {box}, r1;
  setp.lt.u32 p, done, {stages}; @p bra FREE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [r5], phase; @!p bra WAIT;
FREE: mbarrier.arrive.expect_tx.shared::cta.b64 _, [r5], {box};
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r6+{data}], [m, {{x, y}}], [r5];
  add.u32 done, done, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages}; @!p bra MORE;
  mov.b32 stage, 0; xor.b32 phase, phase, 1;
MORE: setp.lt.u32 p, done, {count}; @p bra NEXT;
{ring.ended(stages)}
  mov.u64 stop, %clock64; sub.u64 stop, stop, start; st.global.u64 [o], stop;
DONE: ret;
}}
"""


SHARED = LIST + 4 * (EACH // 2048) + 1024 + MOST  # one CTA an SM


def measure_all(file: Path) -> None:
    """Measures all patterns and writes the file."""
    gpu, found = Gpu(), {}
    data, out, room = gpu.allocate(DATA), gpu.allocate(1 << 12), gpu.allocate(1 << 19)
    for pattern in PATTERNS:
        dims = [pattern.pitch // ELEMENT, DATA // pattern.pitch]
        box = [pattern.row // ELEMENT, pattern.rows]
        tensor = gpu.tensormap(data, dims, [pattern.pitch], box, dtype=INT64)
        function = gpu.kernel(kernel(pattern), shared=SHARED)
        launch = gpu.launch(function, SMS, 32, [tensor, out, room], shared=SHARED)

        def launched(turn: int, pattern=pattern, launch=launch) -> None:
            gpu.write(room, lists(pattern, turn))
            launch()

        found[pattern.name] = cycles.measured(gpu, out, SMS, ROUNDS, launched)
    cycles.write_recording(file, gpu, found)


def on_the_model(pattern: Pattern, profile) -> list[float]:
    """A pattern's cycles on the timing model, as the recording has them."""
    import emulated_gpu
    from emulated_gpu.formats.tensormap import TensorMap, encode

    data, out, room = cycles.allocated(DATA, 1 << 12, 1 << 19)
    table = lists(pattern, 1)
    room[: table.nbytes] = table.ravel().view(np.uint8)
    shape, box = (pattern.pitch // ELEMENT, DATA // pattern.pitch), (pattern.row // ELEMENT, pattern.rows)
    tensor = encode(TensorMap(data.ctypes.data, "s64", shape, (pattern.pitch,), box, (1, 1)))
    with emulated_gpu.timing(profile.with_({"l2.dirty_at_start": 0.0})):
        emulated_gpu.launch(kernel(pattern), "kernel", SMS, 32, [tensor, out, room], shared=SHARED)
    return cycles.slowest_and_median(out[: 8 * SMS])


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, {pattern.name: pattern for pattern in PATTERNS}, on_the_model)
