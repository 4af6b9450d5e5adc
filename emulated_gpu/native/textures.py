"""Fetches from textures: what units/textures.py does, lane by lane, of what images.row tells. Rules, see jit/rules.py.

As in access.py, what is plain is done here; all else changes nothing and is left to Python.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..formats.texels import BORDER, FAR, FRACTION, MIRROR, WRAP
from ..jit.llvm import LANES, Value
from ..jit.rules import Rule, float32, float64, int8, int16, int32, int64, ones, real, room, rule, where
from ..state import images
from ..state.shadow import WORD
from . import access
from . import context_fields as of

AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
ONE = float(1 << FRACTION)  # the sum of a filter's weights along an axis


class Fetch(NamedTuple):
    """A fetch from a texture of this geometry. integers: coordinates are texels, not floats."""

    geometry: str
    integers: bool

    @property
    def shared(self) -> bool:
        return False

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(range(AXES[self.geometry]))

    @property
    def layered(self) -> bool:
        return self.geometry.startswith("a")

    @property
    def unit(self) -> float:
        """One, over the sum of a filter's weights."""
        return ONE ** -len(self.axes)

    @property
    def number(self) -> int:
        return images.GEOMETRIES.index(self.geometry)

    @property
    def rule(self) -> Rule:
        return fetch

    def __str__(self) -> str:
        return f"fetch.{self.geometry}{'.integers' * self.integers}"


# -- numbers -----------------------------------------------------------------------------------------------------------
def floor(x):
    return x.code.intrinsic("floor", x) if isinstance(x, Value) else float(math.floor(x))


def whole(x):
    """A float64 without a fraction as an integer."""
    return x.code.convert("fptosi", x, 64) if isinstance(x, Value) else int(x)


def double(x):
    return x.code.convert("fpext", x, 64, True) if isinstance(x, Value) else x


def single(x):
    return x.code.convert("fptrunc", x, 32, True) if isinstance(x, Value) else np.float32(x).item()


def bits_of(x):
    """Those of the float32 that a float64 is rounded to."""
    if isinstance(x, Value):
        return x.code.cast(x.code.convert("bitcast", single(x), 32), 64)
    return int(np.float32(x).view(np.uint32))


def signed(x, bits: int):
    """An integer of fewer bits than 64 with its sign."""
    return (x ^ 1 << bits - 1) - (1 << bits - 1)


# -- places ------------------------------------------------------------------------------------------------------------
@rule
def in_texels(t, axis, given):
    """A coordinate of a float, in texels from the first one's edge."""
    x = where(given == given, given, 0.0)
    x = where(x < -FAR, -FAR, x)
    x = where(x > FAR, FAR, x)
    mode = t[images.MODES + axis]
    if t[images.NORMALIZED]:
        if mode == WRAP or mode == MIRROR:  # noqa: SIM109
            before = floor(x)
            x = x - before
            if mode == MIRROR and before != 2.0 * floor(before / 2.0):
                x = 1.0 - x
        x = double(single(x * real(t[images.SIZES + axis])))
    return x


@rule
def is_outside(t, axis, index):
    return t[images.MODES + axis] == BORDER and (index < 0.0 or index >= real(t[images.SIZES + axis]))


@rule
def placed(t, axis, index):
    """The index of a texel, which may be outside, as its axis has it."""
    size = real(t[images.SIZES + axis])
    if t[images.MODES + axis] == WRAP:
        return index - size * floor(index / size)
    low = where(index < 0.0, 0.0, index)
    return where(low > size - 1.0, size - 1.0, low)


@rule
def find(t, coordinates, lane, corners, places, weights, form):
    """Where the texels of a lane lie, 0 of one outside; and the second's weight along each axis."""
    first, at = room(3, float64), t[images.ADDRESS]
    if form.layered:
        layer = real(signed(int32(coordinates)[lane], 32))
        layer = where(layer < 0.0, 0.0, layer)
        last = real(t[images.LAYERS] - 1)
        at = at + whole(where(layer > last, last, layer)) * t[images.LAYER]
    for axis in form.axes:
        place = (axis + form.layered) * LANES + lane
        if form.integers:
            x = real(signed(int32(coordinates)[place], 32))
        else:
            x = in_texels(t, axis, double(float32(coordinates)[place]))
        if corners > 1:
            fixed = floor((x - 0.5) * ONE + 0.5)
            first[axis] = floor(fixed / ONE)
            weights[axis * LANES + lane] = fixed - ONE * first[axis]
        else:
            first[axis] = floor(x)
    for corner in range(corners):
        here, inside = at + 0, 1
        for axis in form.axes:
            index = first[axis] + real(corner >> axis & 1)
            if is_outside(t, axis, index):
                inside = 0
            here = here + whole(placed(t, axis, index)) * t[images.STRIDES + axis]
        places[corner * LANES + lane] = where(inside != 0, here, 0)


# -- memory ------------------------------------------------------------------------------------------------------------
PARTS, WORDS = (access.Form(False, "global", size, 1, nc=True) for size in (1, WORD))


@rule
def may_read(c, w, a, size):
    """What becomes of the read of a texel: see access.py."""
    found = access.PLAIN
    for k in range(where(size < WORD, size, size // WORD)):
        if size < WORD:
            one = access.look(c, w, a + k, 1, 0, PARTS)
        else:
            one = access.look(c, w, a + k * WORD, 1, 0, WORDS)
        if one == access.LEFT:
            return access.LEFT
        found = found | one
    return found


@rule
def note_read(c, w, a, size, number):
    for k in range(where(size < WORD, size, size // WORD)):
        if size < WORD:
            access.note_access(c, w, a + k, 1, 0, number, PARTS)
        else:
            access.note_access(c, w, a + k * WORD, 1, 0, number, WORDS)


@rule
def raw(t, a, channel):
    """A channel's bits."""
    if t[images.BITS] == 32:
        return int32(a)[channel]
    if t[images.BITS] == 16:
        return int16(a)[channel]
    return int8(a)[channel]


@rule
def with_sign(t, a, channel):
    bits = raw(t, a, channel)
    if t[images.SIGNED]:
        sign = 1 << t[images.BITS] - 1
        return (bits ^ sign) - sign
    return bits


@rule
def value(t, a, channel):
    """A channel as a float64; of the border at 0."""
    if a == 0:
        return float64(t.at(images.BORDER).address)[channel]
    if t[images.REAL]:
        return double(float32(a)[channel])
    fraction = real(with_sign(t, a, channel)) / float64(t.address)[images.LARGEST]
    return where(fraction < -1.0, -1.0, fraction)


@rule
def filtered(t, places, weights, lane, channel, form):
    """A channel's linear filter, a float64."""
    sums = room(2, float64)
    sums[0] = 0.0
    for corner in range(1 << len(form.axes)):
        sums[1] = form.unit
        for axis in form.axes:
            second = weights[axis * LANES + lane]
            sums[1] = sums[1] * where(corner >> axis & 1 != 0, second, ONE - second)
        sums[0] = sums[0] + value(t, places[corner * LANES + lane], channel) * sums[1]
    return sums[0]


@rule
def fetch(context, coordinates, active, values_at, step, row, _, form):
    """Lanes `active` fetch from the texture of a row of images.TABLE, by coordinates [up to 4, 32] of 32 bits; values:
    of each channel [4, 32]. step: the number of the instruction.

    Returns whether it is left to Python. First all is looked at, then all is done.
    """
    c, t, values = int64(context), int64(row), int32(values_at)
    values[0 : 4 * LANES] = 0
    if active == 0:
        return False
    if t[images.GEOMETRY] != form.number or t[images.ONLY_INTEGERS] and not form.integers:
        return True
    if not access.has_room(c, 1):
        return True
    places, weights = room(LANES << len(form.axes)), room(LANES * 3, float64)
    filters = 0 if form.integers else t[images.LINEAR]
    corners, size = where(filters != 0, 1 << len(form.axes), 1), t[images.TEXEL]
    at, found, moved, other = 0, access.PLAIN, 0, 0
    for lane in ones(active):
        find(t, coordinates, lane, corners, places, weights, form)
        for corner in range(corners):
            place = places[corner * LANES + lane]
            if place != 0:
                if at == 0:
                    at = access.window_of(c, place, size)
                    if at == 0:
                        return True
                    other = place
                one = may_read(c, int64(at), place, size)
                if one == access.LEFT:
                    return True
                found = found | one
                moved = where(place == other, moved, moved | 1) + 2
    if at != 0 and int64(at)[of.FLAGS] & of.SHADOWED:
        number = access.event(c, step, found, WORDS)
        for lane in ones(active):
            for corner in range(corners):
                if places[corner * LANES + lane] != 0:
                    note_read(c, int64(at), places[corner * LANES + lane], size, number)
    c[of.BYTES_LOADED] += where(moved & 1 != 0, moved >> 1, where(moved != 0, 1, 0)) * size
    for lane in ones(active):
        for channel in range(t[images.CHANNELS]):
            if filters:
                values[channel * LANES + lane] = bits_of(filtered(t, places, weights, lane, channel, form))
            elif t[images.FRACTIONS]:
                values[channel * LANES + lane] = bits_of(value(t, places[lane], channel))
            elif places[lane] != 0:
                values[channel * LANES + lane] = with_sign(t, places[lane], channel)
    return False
