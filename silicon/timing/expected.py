"""The output that the loads kernel must write, computed from its input with NumPy."""

from __future__ import annotations

import numpy as np

from .points import Map, Point


def loads_output(point: Point, source: np.ndarray) -> np.ndarray:
    """The bytes that a point of the kernel `loads` writes, uint8 [bytes written], from its input, uint8 [nbytes].

    Each lane stores its sum over a tile's chunks.
    """
    where, _, tiles, unique, tile_bytes, _, out_bytes = point.args
    chunk, cluster = point.options["chunk"], point.cluster
    chunks = -(-tile_bytes // chunk)
    number = np.arange(unique)[:, None] * chunks + np.arange(chunks)  # [unique, chunks]
    if isinstance(where, Map):  # the first row of a box is not moved by the swizzle
        boxes = where.pitch // 128
        starts = number // boxes * (chunk // 128) * where.pitch + number % boxes * 128
    else:
        starts = np.arange(unique)[:, None] * tile_bytes + np.arange(chunks) * chunk
    words = source.view(np.uint32)[starts[..., None] // 4 + np.arange(32)]  # [unique, chunks, lane]
    lanes = words.sum(axis=1, dtype=np.uint32)[np.arange(tiles) % unique]  # [tiles, lane]
    vectors = np.arange(out_bytes // 16) % 32  # 16-byte stores of a tile, by lane
    out = np.repeat(lanes[:, vectors], 4, axis=1)  # [tiles, out_bytes / 4]
    return np.repeat(out, cluster, axis=0).reshape(-1).view(np.uint8)
