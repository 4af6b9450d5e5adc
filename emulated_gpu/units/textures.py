"""Fetches from textures: which texels lanes ask for, and what comes of them (PTX ISA 9.7.10, CUDA guide "Textures").

Coordinates are registers of 32 bits, floats or signed integers. Results are four registers of 32 bits; channels that
the texture does not have are 0. Textures have one level, whatever level is asked for.
"""

from __future__ import annotations

import numpy as np

from ..errors import Unsupported
from ..formats import alu, texels
from ..state.images import OBJECTS, Image, Surface, Texture, object_of
from . import access
from .addresses import active, pick
from .group import LaneGroup

OBJECT_KINDS = {"texture": Texture, "surface": Surface}
CORNERS_OF_GATHER = ((0, 1), (1, 1), (1, 0), (0, 0))  # PTX ISA 9.7.10.2: counter-clockwise from the lower left


def fetch(g: LaneGroup, geometry: str, handle, coordinates: tuple, mask, integers: bool) -> tuple:
    """tex: four registers. integers: coordinates are texels, not floats."""
    who = g.origin("texture fetch") if g.launch.checks else None

    def one(texture: Texture, where: list[np.ndarray], lanes: np.ndarray) -> np.ndarray:
        axes, layer = _axes(texture, where, integers)
        if texture.linear_filter and not integers:
            pairs = [texels.between(x) for x in axes]
            corners = texels.corners(len(axes))
            places = [[first + corner[a] for corner in corners] for a, (first, _) in enumerate(pairs)]
            raw, inside = _texels(g, texture, [np.array(p) for p in places], layer, lanes, who)
            return texels.filtered(_values(texture, raw, inside), [w for _, w in pairs]).view(np.uint32)
        raw, inside = _texels(g, texture, [texels.nearest(x)[None] for x in axes], layer, lanes, who)
        if texture.fractions:
            return _values(texture, raw, inside)[:, 0].astype(np.float32).view(np.uint32)
        return np.where(inside, texels.integers(raw, texture.image.form), 0)[:, 0]

    return _each(g, geometry, handle, coordinates, mask, one)


def gather(g: LaneGroup, geometry: str, handle, coordinates: tuple, mask, component: int) -> tuple:
    """tld4: one channel of the four texels that a linear filter would take."""
    who = g.origin("texture gather") if g.launch.checks else None

    def one(texture: Texture, where: list[np.ndarray], lanes: np.ndarray) -> np.ndarray:
        axes, layer = _axes(texture, where, False)
        firsts = [texels.between(x)[0] for x in axes]
        places = [np.array([first + corner[a] for corner in CORNERS_OF_GATHER]) for a, first in enumerate(firsts)]
        raw, inside = _texels(g, texture, places, layer, lanes, who)
        if component >= len(raw):
            return np.zeros((4, len(lanes)), np.uint32)
        if texture.fractions:
            return _values(texture, raw, inside)[component].astype(np.float32).view(np.uint32)
        return np.where(inside, texels.integers(raw, texture.image.form), 0)[component]

    return _each(g, geometry, handle, coordinates, mask, one)


def rows() -> int:
    """Where machine code finds what it needs of texture objects (state/images.py)."""
    return OBJECTS.at


def query(g: LaneGroup, what: str, kind: str, handle, mask):
    """txq, suq: a property of what an object of a kind, "texture" or "surface", is made of."""
    values = np.zeros(g.n, np.uint32)
    for number in active(g, mask):
        values[number] = _property(object_of(pick(handle, number), OBJECT_KINDS[kind]).image, what)
    return values if alu.is_array(handle) else int(values.max(initial=0))


def _property(image: Image, what: str) -> int:
    layers = image.depth if image.flags & image.LAYERED else 0
    known = {
        "width": image.width, "height": image.height, "depth": 0 if layers else image.depth, "array_size": layers,
        "num_mipmap_levels": 1, "num_samples": 1,
    }  # fmt: skip
    return known[what]


def _each(g: LaneGroup, geometry: str, handle, coordinates: tuple, mask, one) -> tuple:
    """Call `one` with each texture that lanes name, their coordinates and their numbers; put its results together."""
    alike = mask is True and not any(map(alu.is_array, (handle, *coordinates)))
    if mask is True and not alike and not alu.is_array(handle):  # all lanes, of one texture
        parts = {handle: slice(None)}
    else:
        positions = np.array([0] if alike else active(g, mask), np.int64)
        handles = g.lane_array(handle, 64)[positions]
        parts = {n: positions[handles == np.uint64(n)] for n in np.unique(handles).tolist()}
    out = np.zeros((4, 1 if alike else g.n), np.uint32)
    for number, these in parts.items():
        where = [g.lane_array(x, 32).astype(np.uint32, copy=False)[these] for x in coordinates]
        found = one(object_of(number, Texture, geometry), where, g.lanes[these])
        out[: len(found), these] = found
    if alike or g.n == 1:
        return tuple(int(row[0]) for row in out)
    return tuple(out)


def _axes(texture: Texture, where: list[np.ndarray], integers: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Coordinates in texels, float64, by axis; and which layer, face or both are meant, an index of slices."""
    image, (geometry, normalized) = texture.image, (texture.image.geometry, texture.normalized)
    layer = np.zeros(len(where[0]), np.int64)
    if geometry.startswith("a"):
        layers = image.depth // (6 if geometry == "acube" else 1)
        layer, where = np.clip(where[0].view(np.int32).astype(np.int64), 0, layers - 1), where[1:]
    if integers and geometry in ("1d", "2d", "3d", "a1d", "a2d"):
        return [x.view(np.int32).astype(np.float64) for x in where], layer
    if integers or image.linear:
        raise Unsupported(f"a fetch by {'integers' if integers else 'floats'} from {geometry} memory of this kind")
    numbers = [x.view(np.float32).astype(np.float64) for x in where]
    if geometry.endswith("cube"):
        face, *numbers = texels.on_cube(*numbers)
        layer, normalized = layer * 6 + face, True
    sizes = image.width, image.height, image.depth
    return [
        texels.in_texels(x, size, mode, normalized) for x, size, mode in zip(numbers, sizes, texture.modes)
    ], layer  # fmt: skip


def _texels(g: LaneGroup, texture: Texture, places: list[np.ndarray], layer: np.ndarray, lanes: np.ndarray, who):
    """Fetch texels; places: indices [texels a lane, lanes] by axis.

    Returns channels [channels, texels, lanes], unsigned integers of their bytes; and which texels are inside.
    """
    image = texture.image
    inside = np.ones(places[0].shape, bool)
    index = []
    for place, size, mode in zip(places, (image.width, image.height, image.depth), texture.modes):
        mode = texels.BORDER if image.linear else mode
        where, within = texels.placed(place, size, mode)
        index.append(where)
        inside &= within
    x, y, z = (*index, *[np.zeros_like(x) for x in [index[0]] * (3 - len(index))])
    if layer.any():
        z = z + layer
    addresses = (image.address + (z * image.rows + y) * image.pitch + x * image.form.size).astype(np.uint64)
    size, channels = image.form.bits // 8, image.form.channels
    raw = np.zeros((channels, *inside.shape), f"u{size}")
    if inside.any():
        asked = np.broadcast_to(lanes, inside.shape)[inside]
        raw[:, inside] = access.texels(g, addresses[inside], size, channels, asked, who)
    return raw, inside


def _values(texture: Texture, raw: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Channels as float64, [channels, texels, lanes]: of the border where they are outside."""
    values = texels.floats(raw, texture.image.form, texture.srgb)
    return np.where(inside, values, np.array(texture.border[: len(raw)])[:, None, None])
