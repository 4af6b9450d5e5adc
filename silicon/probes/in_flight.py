"""Measures how fast SMs get lines from DRAM, by what they have under way, and where the lines lie.

    python3 -m silicon.probes.in_flight run [FILE]     on a Hopper GPU, with NumPy and libcuda.so.1
    python -m silicon.probes.in_flight model           the same copies on the model, beside in_flight.json

Each CTA copies 1 MiB, `stages` blocks under way, from memory that no launch before has read: its own blocks in a row,
or pieces of some bytes from anywhere, or block by block in turn with the other CTAs. Or `shared` of every four blocks
are those of a group of CTAs, some distance from each other. Nothing is stored, so that the L2 holds nothing to be
written back. Recorded, of an H100, are the cycles of the slowest CTA and of the median one. `model` takes the profile
of an H200: --set hbm.read_tb_s=3.2 makes its memory as fast as the H100's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from silicon.cuda_driver import Gpu

from . import cycles
from .halves import SHARED, copies

TABLE = Path(__file__).with_suffix(".json")
DATA, EACH = 1 << 30, 1 << 20  # bytes of all the data; copied by a CTA
ROUNDS = 7  # launches; the first is not counted
OWN, IN_TURN = 0, -1  # instead of bytes of a piece


class Pattern(NamedTuple):
    """Copies of `ctas` CTAs. piece: bytes in one place, OWN or IN_TURN; shared: of four blocks, with `group` CTAs."""

    block: int
    stages: int
    ctas: int = 132
    piece: int = OWN
    shared: int = 0
    group: int = 1
    apart: int = 1

    @property
    def name(self) -> str:
        where = {OWN: "own", IN_TURN: "in turn"}.get(self.piece, f"pieces of {self.piece} B")
        group = f", {self.shared} of 4 shared by {self.group}, {self.apart} apart" if self.shared else ""
        return f"{self.stages} x {self.block} B, {self.ctas} CTAs, {where}{group}"


def _patterns() -> list[Pattern]:
    found = [Pattern(4096, n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    found += [Pattern(16384, n) for n in (1, 2, 3, 4, 6, 8)]
    for ctas in (16, 33, 66, 99):
        found += [Pattern(4096, n, ctas) for n in (2, 4, 8, 12, 16, 24, 32)]
        found += [Pattern(16384, n, ctas) for n in (1, 4, 8)]
    for kib in (8, 24, 48):
        for block in (2048, 4096, 8192):
            found += [Pattern(block, kib * 1024 // block, piece=piece) for piece in (OWN, block, IN_TURN)]
    for shared in (1, 2, 3):
        for group, apart in ((132, 1), (33, 4), (4, 1), (4, 33), (2, 1), (2, 66)):
            found += [Pattern(4096, n, 132, OWN, shared, group, apart) for n in (8, 32)]
        found += [Pattern(16384, 8, 132, OWN, shared, 132, 1)]
    return list({pattern.name: pattern for pattern in found}.values())


PATTERNS = _patterns()


def lists(pattern: Pattern, seed: int) -> np.ndarray:
    """The blocks that each CTA copies, int32 [CTA, count], of data that this seed's launch alone reads."""
    block, _, ctas, piece, shared, group, apart = pattern
    count, rng = EACH // block, np.random.default_rng(seed)
    blocks = DATA // block
    first = seed * ctas * count % (blocks - ctas * count)
    if piece == IN_TURN:
        return (first + np.arange(count)[None, :] * ctas + np.arange(ctas)[:, None]).astype(np.int32)
    if piece == OWN:
        table = first + np.arange(ctas * count).reshape(ctas, count)
    else:
        of_piece = piece // block
        at = rng.choice(blocks // of_piece, ctas * count // of_piece, replace=False) * of_piece
        table = (at[:, None] + np.arange(of_piece)).reshape(ctas, count)
    if shared:
        cta = np.arange(ctas)
        leader = cta // (group * apart) * group * apart + cta % apart
        common = np.arange(count) % 4 < shared
        table[:, common] = table[leader][:, common]
    return table.astype(np.int32)


def measure_all(file: Path) -> None:
    """Measures all patterns and writes the file."""
    gpu, found, kernels = Gpu(), {}, {}
    data, out, room = gpu.allocate(DATA), gpu.allocate(1 << 12), gpu.allocate(1 << 21)
    for pattern in PATTERNS:
        shape = pattern.block, pattern.stages
        if shape not in kernels:
            kernels[shape] = gpu.kernel(copies(*shape, "%ctaid.x"), shared=SHARED)
        launch = gpu.launch(
            kernels[shape], pattern.ctas, 32, [out, data, room, EACH // pattern.block], shared=SHARED
        )

        def launched(seed: int, pattern=pattern, launch=launch) -> None:
            gpu.write(room, lists(pattern, seed))
            launch()

        found[pattern.name] = cycles.measured(gpu, out, pattern.ctas, ROUNDS, launched)
    cycles.write_recording(file, gpu, found)


def on_the_model(pattern: Pattern, profile) -> list[float]:
    """A pattern's cycles on the timing model, as the recording has them."""
    import emulated_gpu

    data, room, out = cycles.allocated(DATA, 1 << 21, 1 << 12)
    table = lists(pattern, 1)
    room[: table.nbytes] = table.ravel().view(np.uint8)
    kernel = copies(pattern.block, pattern.stages, "%ctaid.x")
    with emulated_gpu.timing(profile.with_({"l2.dirty_at_start": 0.0})):
        args = [out, data, room, EACH // pattern.block]
        emulated_gpu.launch(kernel, "kernel", pattern.ctas, 32, args, shared=SHARED)
    return cycles.slowest_and_median(out[: 8 * pattern.ctas])


if __name__ == "__main__":
    cycles.main(__doc__, TABLE, measure_all, {pattern.name: pattern for pattern in PATTERNS}, on_the_model)
