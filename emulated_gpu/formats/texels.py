"""Texels: what their bits mean, and which of them a coordinate asks for, with which weights.

From the CUDA C++ programming guide, "Texture Fetching". Where it leaves something open: the fraction of a linear filter
is rounded to nearest to its 8 bits; sums are exact and rounded once; addressing modes act on each texel of a filter; a
normalized coordinate times the size is rounded to a float, so that k / N is the edge of texel k.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

WRAP, CLAMP, MIRROR, BORDER = range(4)  # CUaddress_mode
FRACTION = 8  # bits of a weight
FAR = float(1 << 40)  # texels: as far as coordinates go


@dataclass(frozen=True)
class TexelForm:
    """What a texel is made of: `channels` unsigned ("u"), signed ("s") or floating-point ("f") numbers of `bits`."""

    kind: str
    bits: int
    channels: int

    @property
    def size(self) -> int:
        """Bytes of a texel."""
        return self.bits // 8 * self.channels

    @property
    def normalizes(self) -> bool:
        """Whether texels can be read as fractions of the largest number."""
        return self.kind != "f" and self.bits < 32


FORMATS = {  # CUarray_format -> kind and bits of a channel
    0x01: ("u", 8), 0x02: ("u", 16), 0x03: ("u", 32), 0x08: ("s", 8), 0x09: ("s", 16), 0x0A: ("s", 32),
    0x10: ("f", 16), 0x20: ("f", 32),
}  # fmt: skip


def integers(raw: np.ndarray, form: TexelForm) -> np.ndarray:
    """Channels, unsigned integers of their bytes, as registers uint32: signs are extended, halves become floats."""
    if form.kind == "f":
        return raw.view(f"f{form.bits // 8}").astype(np.float32).view(np.uint32)
    if form.kind == "s":
        return raw.view(f"i{form.bits // 8}").astype(np.int32).view(np.uint32)
    return raw.astype(np.uint32)


def floats(raw: np.ndarray, form: TexelForm, srgb: bool) -> np.ndarray:
    """Channels [channels, ...], unsigned integers of their bytes, as float64: integers become fractions of the largest
    number. srgb: the first three are in that encoding."""
    if form.kind == "f":
        return raw.view(f"f{form.bits // 8}").astype(np.float64)
    if form.kind == "s":
        return np.maximum(raw.view(f"i{form.bits // 8}") / ((1 << form.bits - 1) - 1), -1.0)
    values = raw / ((1 << form.bits) - 1)
    if srgb:
        coded = values[:3]
        values[:3] = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    return values


def in_texels(coordinate: np.ndarray, size: int, mode: int, normalized: bool) -> np.ndarray:
    """Coordinates of floats, float64, in texels from the first one's edge."""
    x = np.minimum(np.maximum(np.where(coordinate == coordinate, coordinate, 0.0), -FAR), FAR)
    if normalized and mode in (WRAP, MIRROR):
        whole = np.floor(x)
        x = x - whole
        if mode == MIRROR:
            x = np.where(whole % 2 == 1, 1 - x, x)
    return (x * size).astype(np.float32).astype(np.float64) if normalized else x


def placed(index: np.ndarray, size: int, mode: int) -> tuple[np.ndarray, np.ndarray | bool]:
    """Indices of texels, int64, that may be outside -> (where they are taken from, whether they are inside: True where
    all are). A coordinate that is mirrored is outside by at most one texel, which clamping mirrors."""
    if mode == WRAP:
        return index % size, True
    inside = (index >= 0) & (index < size) if mode == BORDER else True
    return np.minimum(np.maximum(index, 0), size - 1), inside


def nearest(x: np.ndarray) -> np.ndarray:
    """The texel that a coordinate in texels is in."""
    return np.floor(x).astype(np.int64)


def between(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of the two texels whose centres a coordinate in texels is between, and the second's weight of 256."""
    fixed = np.floor((x - 0.5) * (1 << FRACTION) + 0.5).astype(np.int64)
    return fixed >> FRACTION, fixed & (1 << FRACTION) - 1


@functools.cache
def corners(axes: int) -> list[tuple[int, ...]]:
    """Which texels of each axis a linear filter takes, 0 the first; the first axis changes fastest."""
    return [corner[::-1] for corner in itertools.product((0, 1), repeat=axes)]


def filtered(values: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """The linear filter of values [channels, corners, n]; weights: of each axis, as of `between`. Returns float32."""
    total = np.zeros(values.shape[::2])
    with np.errstate(all="ignore"):
        for k, corner in enumerate(corners(len(weights))):
            weight = np.ones(values.shape[-1])
            for second, of_second in zip(corner, weights, strict=True):
                weight = weight * (of_second if second else (1 << FRACTION) - of_second)
            total += values[:, k] * (weight / (1 << FRACTION * len(weights)))
        return total.astype(np.float32)


def on_cube(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A direction -> the face of a cube and the normalized coordinates there ("Cubemap Textures")."""
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    along = [(ax >= ay) & (ax >= az), ay >= az]
    face = np.select(along, [np.where(x >= 0, 0, 1), np.where(y >= 0, 2, 3)], np.where(z >= 0, 4, 5))
    m = np.select(along, [ax, ay], az)
    s = np.choose(face, [-z, z, x, x, x, -x])
    t = np.choose(face, [-y, -y, z, -z, -y, -y])
    with np.errstate(all="ignore"):
        return face.astype(np.int64), (s / m + 1) / 2, (t / m + 1) / 2
