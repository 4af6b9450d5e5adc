"""Measures how fast SMs of an H200 get lines that other SMs get, too, in the patterns of a GEMM's tiles.

    python3 -m silicon.probes.shared_lines run [FILE]     on an H200, with NumPy and libcuda.so.1
    python -m silicon.probes.shared_lines model           the same copies on the model, beside shared_lines.json

CTA c of `batches` x `columns` x `rows` tiles (rows fastest) copies the blocks of its row and those of its column in
turn, 16 KiB each, 128 KiB in flight (halves.py). Or groups of CTAs, some distance from each other, copy the same eight
blocks again and again. Recorded are the cycles of the slowest CTA and of the median one, after a fill and again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from silicon.cuda_driver import Gpu, Timer

from . import cycles
from .halves import SHARED, copies

TABLE = Path(__file__).with_suffix(".json")
BLOCK, STAGES = 16384, 8  # bytes, in both halves of the L2; copies in flight
KERNEL = copies(BLOCK, STAGES, "%ctaid.x")
COUNT, BLOCKS = 32, 8192  # blocks that a CTA copies; of all the data
PATTERNS = (  # batches, columns, rows
    (1, 8, 16), (1, 16, 8), (1, 8, 8), (2, 8, 8), (4, 8, 4), (4, 4, 8), (8, 8, 2), (8, 4, 4), (16, 8, 1), (16, 2, 4),
    (32, 2, 2), (64, 1, 2), (64, 2, 1), (128, 1, 1), (16, 1, 8), (8, 1, 16), (4, 1, 32), (1, 1, 128),
)  # fmt: skip

GROUPS = (1, 1), *((size, 1 << i) for size in (2, 4, 8, 16) for i in range(7) if size << i <= 128)  # size, apart
Pattern = tuple[int, ...]


def name(pattern: Pattern) -> str:
    """A pattern in words: a group's size and distance, or the tiles' batches, columns and rows."""
    if len(pattern) == 2:
        return "groups of {}, {} apart".format(*pattern)
    return "batches {}, columns {}, rows {}".format(*pattern)


def table(pattern: Pattern):
    """The blocks that each CTA copies, in no order: int32 [CTA, COUNT]."""
    blocks, half = np.random.default_rng(0).permutation(BLOCKS), COUNT // 2
    if len(pattern) == 2:
        size, apart = pattern
        cta = np.arange(128)
        group = cta // (size * apart) * apart + cta % apart
        return np.tile(blocks[:1024].reshape(128, 8)[group], (1, COUNT // 8)).astype(np.int32)
    batches, columns, rows = pattern
    of_rows = blocks[: batches * rows * half].reshape(batches, rows, half)
    of_columns = blocks[BLOCKS // 2 :][: batches * columns * half].reshape(batches, columns, half)
    out = np.empty((batches, columns, rows, half, 2), np.int32)
    out[..., 0] = of_rows[:, None]
    out[..., 1] = of_columns[:, :, None]
    return out.reshape(batches * columns * rows, COUNT)


def measure_all(file: Path) -> None:
    """Measures all patterns and writes the file."""
    gpu, found = Gpu(), {}
    flush, kernel = Timer(gpu).flush, gpu.kernel(KERNEL, shared=SHARED)
    data, out, lists = gpu.allocate(BLOCKS * BLOCK), gpu.allocate(1 << 12), gpu.allocate(1 << 20)
    for pattern in PATTERNS + GROUPS:
        blocks, seen = table(pattern), []
        gpu.write(lists, blocks)
        launch = gpu.launch(kernel, len(blocks), 32, [out, data, lists, COUNT], shared=SHARED)
        for _ in range(7):
            flush()
            for _ in range(2):
                launch()
                seen.append(cycles.slowest_and_median(gpu.read(out, 8 * len(blocks))))
        cold, again = (np.median(seen[i::2], axis=0) for i in (0, 1))
        found[name(pattern)] = {"cold": cold.tolist(), "again": again.tolist()}
    cycles.write_recording(file, gpu, found)


def on_the_model(pattern: Pattern, profile) -> dict[str, list[float]]:
    """A pattern's cycles on the timing model, as the recording has them."""
    import emulated_gpu

    blocks = table(pattern)
    data, lists, *outs = cycles.allocated(BLOCKS * BLOCK, 1 << 20, 1 << 12, 1 << 12)
    lists[: blocks.nbytes] = blocks.ravel().view(np.uint8)
    with emulated_gpu.timing(profile):
        for out in outs:
            emulated_gpu.launch(KERNEL, "kernel", len(blocks), 32, [out, data, lists, COUNT], shared=SHARED)
    found = [cycles.slowest_and_median(out[: 8 * len(blocks)]) for out in outs]
    return dict(zip(("cold", "again"), found))


if __name__ == "__main__":
    patterns = {name(pattern): pattern for pattern in PATTERNS + GROUPS}
    cycles.main(__doc__, TABLE, measure_all, patterns, on_the_model)
