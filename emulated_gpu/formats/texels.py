"""Texels: what their bits mean, and which of them a coordinate asks for, with which weights.

From the CUDA C++ programming guide, "Texture Fetching". Where it leaves something open: the fraction of a linear filter
is rounded to nearest to its 8 bits; sums are exact and rounded once; addressing modes act on each texel of a filter; a
normalized coordinate times the size is rounded to a float, so that k / N is the edge of texel k.

Registers and numbers, float64, are arrays, or in machine code Values, as in alu.py; `t` has the fields of a texture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..jit.rules import real, rule, where
from .alu import ieee, number, raw, resized
from .convert import whole_number

WRAP, CLAMP, MIRROR, BORDER = range(4)  # CUaddress_mode
ONE = 256.0  # the sum of a filter's weights along an axis
FAR = float(1 << 40)  # texels: as far as coordinates go
# Registers of a coordinate: the layer, if any, and one for each axis of the texture, or of a cube's directions
COORDINATES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 2, "a2d": 3, "cube": 3, "acube": 4}
# Fields of a texture, ints but for its border. GEOMETRY: 0 of what machine code does not know; SIGN: that bit, or 0;
# LARGEST: the number that stands for 1
GEOMETRY, ADDRESS, LAYER, LAYERS, TEXEL, BITS, CHANNELS, SIGN, LARGEST, REAL, LINEAR, NORMALIZED = range(12)
FRACTIONS, ONLY_INTEGERS, SIZES, MODES, STRIDES, BORDERS, FIELDS = 12, 13, 14, 17, 20, 23, 27


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


# -- places ------------------------------------------------------------------------------------------------------------
def on_cube(x, y, z) -> tuple:
    """A direction -> the face of a cube and the normalized coordinates there ("Cubemap Textures")."""
    along_x, along_y = (abs(x) >= abs(y)) & (abs(x) >= abs(z)), abs(y) >= abs(z)
    major = where(along_x, x, where(along_y, y, z))
    face = where(along_x, 0, where(along_y, 2, 4)) + where(major >= 0.0, 0, 1)
    s = where(along_x, where(x >= 0.0, -z, z), where(along_y | (z >= 0.0), x, -x))
    t = where(along_x, -y, where(along_y, where(y >= 0.0, z, -z), -y))
    return whole_number(face, 32, True), (s / abs(major) + 1.0) / 2.0, (t / abs(major) + 1.0) / 2.0


@rule
def in_texels(given, size, mode, normalized):
    """Coordinates of floats, in texels from the first one's edge."""
    x = where(given == given, given, 0.0)
    x = where(x < -FAR, -FAR, where(x > FAR, FAR, x))
    if normalized:
        if mode == WRAP or mode == MIRROR:  # noqa: SIM109
            turns = ieee("floor", x)
            x = x - turns
            if mode == MIRROR:
                x = where(turns != ieee("floor", turns / 2.0) * 2.0, 1.0 - x, x)
        x = resized(resized(x * size, 32), 64)
    return x


@rule
def taken_from(index, size, mode):
    """Indices of texels, which may be outside, as their axis has them. A coordinate that is mirrored is outside by at
    most one texel, which clamping mirrors."""
    if mode == WRAP:
        return index - ieee("floor", index / size) * size
    return where(index < 0.0, 0.0, where(index > size - 1.0, size - 1.0, index))


def places(t, geometry: str, coordinates, integers: bool, filters: bool) -> tuple[list, list]:
    """Coordinates, registers -> the addresses of the texels that they ask for, 0 of one outside; and of each axis the
    weight of the second texel. A linear filter takes two along each axis, the first axis changing fastest.

    integers: coordinates are texels, not floats.
    """
    layer = 0.0
    if geometry.startswith("a"):
        layer, coordinates = whole_number(coordinates[0], 32, True), coordinates[1:]
        layer = taken_from(layer, real(t[LAYERS]), CLAMP)
    numbers = [whole_number(x, 32, True) if integers else number(x, "f32", 64) for x in coordinates]
    if geometry.endswith("cube"):
        face, *numbers = on_cube(*numbers)
        layer = layer * 6.0 + face
    found, weights = [(layer * real(t[LAYER]), True)], []
    for axis, x in enumerate(numbers):
        size, mode, along = real(t[SIZES + axis]), t[MODES + axis], []
        x = x if integers else in_texels(x, size, mode, t[NORMALIZED])
        if filters:
            fixed = ieee("floor", (x - 0.5) * ONE + 0.5)
            first = ieee("floor", fixed / ONE)
            weights.append(fixed - first * ONE)
        else:
            first = ieee("floor", x)
        for index in (first, first + 1.0) if filters else (first,):
            inside = (mode != BORDER) | (index >= 0.0) & (index < size)
            along.append((taken_from(index, size, mode) * real(t[STRIDES + axis]), inside))
        found = [(before + offset, ok & inside) for offset, inside in along for before, ok in found]
    return [where(inside, t[ADDRESS] + whole(offset), 0) for offset, inside in found], weights


def whole(x):
    """Numbers without a fraction as integers."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.code.convert("fptosi", x, 64)


# -- values ------------------------------------------------------------------------------------------------------------
def extended(t, bits):
    """A channel's bits, uint32, with their sign."""
    return (bits ^ t[SIGN]) - t[SIGN]


@rule
def value(t, bits, place, border, srgb):
    """Channels as numbers, the border's where their place is 0: integers become fractions of the largest number. srgb:
    the first three are in that encoding, which machine code does not know."""
    if t[REAL]:
        x = number(bits, "f32", 64)
    else:
        x = whole_number(extended(t, bits), 32, True) / real(t[LARGEST])
        x = where(x < -1.0, -1.0, x)
    if srgb:
        x[:3] = where(x[:3] <= 0.04045, x[:3] / 12.92, ((x[:3] + 0.055) / 1.055) ** 2.4)
    return where(place != 0, x, border)


def filtered(values, weights):
    """The linear filter of values by corner; a single one as it is. weights: see `places`."""
    if len(values) == 1:
        return values[0]
    factors, total = [ONE ** -len(weights)], 0.0
    for second in weights:
        factors = [factor * weight for weight in (ONE - second, second) for factor in factors]
    for x, factor in zip(values, factors, strict=True):
        total = x * factor + total
    return total


def registers(t, values, bits, places, weights):
    """What lanes get, by corner of a filter: of values, or as integers, which have no filter."""
    as_integers = where(places[0] != 0, extended(t, bits[0]), 0)
    return where(t[FRACTIONS] != 0, raw(resized(filtered(values, weights), 32)), as_integers)
