"""Fetches from textures by the rules of formats/texels.py, from fields that lie in memory. Rules, see jit/rules.py.

As in access.py, what is plain is done here; all else changes nothing and is left to Python.
"""

from __future__ import annotations

from typing import NamedTuple

from ..formats import texels
from ..jit.llvm import LANES
from ..jit.rules import Rule, float64, int8, int16, int32, int64, ones, room, rule, where
from ..state.shadow import WORD
from . import access
from . import context_fields as of

PARTS = [access.Form(False, "global", size, 1, nc=True) for size in (1, WORD)]


class Fetch(NamedTuple):
    """A fetch from a texture of this geometry. integers: coordinates are texels, not floats."""

    geometry: str
    integers: bool

    @property
    def shared(self) -> bool:
        return False

    @property
    def number(self) -> int:
        return 1 + list(texels.COORDINATES).index(self.geometry)

    @property
    def rule(self) -> Rule:
        return fetch

    def __str__(self) -> str:
        return f"fetch.{self.geometry}{'.integers' * self.integers}"


def rows(array, first, count: int) -> list:
    """`count` rows of all lanes, the first one from an element on."""
    return [array[first + k * LANES, LANES] for k in range(count)]


def keep(array, vectors) -> None:
    for k, vector in enumerate(vectors):
        array[k * LANES, LANES] = vector


@rule
def may_read(c, w, a, size):
    """What becomes of the read of a texel: see access.py."""
    found = access.PLAIN
    for form in PARTS:
        for k in range(0, where(form.parted == (size < WORD), size, 0), form.size):
            found = found | access.look(c, w, a + k, 1, 0, form)
    return found


@rule
def note_read(c, w, a, size, number):
    for form in PARTS:
        for k in range(0, where(form.parted == (size < WORD), size, 0), form.size):
            access.note_access(c, w, a + k, 1, 0, number, form)


@rule
def fetch(context, coordinates, active, values_at, step, row, _, form):
    """Lanes `active` fetch from the texture of a row of images.OBJECTS, by coordinates [up to 4, 32] of 32 bits;
    values: of each channel [4, 32]. step: the number of the instruction.

    Returns whether it is left to Python. First all is looked at, then all is done.
    """
    c, t, given, values = int64(context), int64(row), int32(coordinates), int32(values_at)
    values[0 : 4 * LANES] = 0
    if active == 0:
        return False
    if t[texels.GEOMETRY] != form.number or t[texels.ONLY_INTEGERS] and not form.integers or not access.has_room(c, 1):
        return True
    if t[texels.LINEAR] and not form.integers:
        return fetch_texels(c, t, given, active, values, step, True, form)
    return fetch_texels(c, t, given, active, values, step, False, form)


@rule
def fetch_texels(c, t, given, active, values, step, filters, form):
    coordinates = rows(given, 0, texels.COORDINATES[form.geometry])
    found, weights = texels.places(t, form.geometry, coordinates, form.integers, filters)
    corners, size = len(found), t[texels.TEXEL]
    places, bits = room(corners * LANES), room(4 * corners * LANES, int32)
    keep(places, found)
    at, kept, moved, other = 0, access.PLAIN, 0, 0
    for lane in ones(active):
        for corner in range(corners):
            place = places[corner * LANES + lane]
            if place != 0:
                if at == 0:
                    at = access.window_of(c, place, size)
                    if at == 0:
                        return True
                    other = place
                kept = kept | may_read(c, int64(at), place, size)
                moved = where(place == other, moved, moved | 1) + 2
    if kept & access.LEFT:
        return True
    shadowed, number = 0, 0
    if at != 0 and int64(at)[of.FLAGS] & of.SHADOWED:
        shadowed, number = 1, access.event(c, step, kept, PARTS[1])
    bits[0 : 4 * corners * LANES] = 0
    for lane in ones(active):
        for corner in range(corners):
            place = places[corner * LANES + lane]
            if place != 0:
                if shadowed:
                    note_read(c, int64(at), place, size, number)
                for channel in range(t[texels.CHANNELS]):
                    for kind in (int8, int16, int32):
                        if t[texels.BITS] == kind.bits:
                            bits[(channel * corners + corner) * LANES + lane] = kind(place)[channel]
    c[of.BYTES_LOADED] += where(moved & 1 != 0, moved >> 1, where(moved != 0, 1, 0)) * size
    for channel in range(t[texels.CHANNELS]):
        each, border = rows(bits, channel * corners * LANES, corners), float64(t.address)[texels.BORDERS + channel]
        numbers = list(map(lambda one, place: texels.value(t, one, place, border, False), each, found))
        keep(values.at(channel * LANES), [texels.registers(t, numbers, each, found, weights)])
    return False
