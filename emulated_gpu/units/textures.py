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
CORNERS_OF_GATHER = [2, 3, 1, 0]  # PTX ISA 9.7.10.2: counter-clockwise from the lower left


def fetch(g: LaneGroup, geometry: str, handle, coordinates: tuple, mask, integers: bool, component=None) -> tuple:
    """tex: four registers. integers: coordinates are texels, not floats. component: tld4, that channel of the four
    texels that a linear filter would take."""
    who = g.origin("texture fetch" if component is None else "texture gather") if g.launch.checks else None
    alike = mask is True and not any(map(alu.is_array, (handle, *coordinates)))
    if mask is True and not alike and not alu.is_array(handle):  # all lanes, of one texture
        parts = {handle: slice(None)}
    else:
        positions = np.array([0] if alike else active(g, mask), np.int64)
        handles = g.lane_array(handle, 64)[positions]
        parts = {n: positions[handles == np.uint64(n)] for n in np.unique(handles).tolist()}
    out = np.zeros((4, 1 if alike else g.n), np.uint32)
    for number, these in parts.items():
        texture = object_of(number, Texture, geometry)
        image = texture.image
        if image.linear and not integers:
            raise Unsupported(f"a fetch by floats from {geometry} memory of this kind")
        registers = [g.lane_array(x, 32).astype(np.uint32, copy=False)[these] for x in coordinates]
        filters = component is not None or texture.linear_filter and not integers
        with np.errstate(all="ignore"):
            found, weights = texels.places(texture.fields, geometry, registers, integers, filters)
            bits, places = _bits(g, image.form, np.array(found), g.lanes[these], who)
            border = np.array(texture.border)[: len(bits), None, None]
            values = texels.value(texture.fields, bits, places, border, texture.srgb)
            if component is None:  # [corners, channels, lanes]
                values, bits, places = (x.swapaxes(0, 1) for x in (values, bits, places))
            elif component < len(bits):  # of one corner, as whose channels four are taken
                values, bits, places = (x[component][None, CORNERS_OF_GATHER] for x in (values, bits, places))
            else:
                continue
            found = texels.registers(texture.fields, values, bits, places, weights)
            out[: len(found), these] = found
    if alike or g.n == 1:
        return tuple(int(row[0]) for row in out)
    return tuple(out)


def _bits(g: LaneGroup, form: texels.TexelForm, places: np.ndarray, lanes: np.ndarray, who) -> tuple:
    """Fetch texels; returns uint32 [channels, corners, lanes], of halves as floats, 0 of a place that is 0; and places
    likewise."""
    bits = np.zeros((form.channels, *places.shape), f"u{form.bits // 8}")
    if (inside := places != 0).any():
        addresses, asked = places[inside].astype(np.uint64), np.broadcast_to(lanes, places.shape)[inside]
        bits[:, inside] = access.texels(g, addresses, form.bits // 8, form.channels, asked, who)
    if (form.kind, form.bits) == ("f", 16):
        bits = bits.view(np.float16).astype(np.float32).view(np.uint32)
    return bits.astype(np.uint32, copy=False), np.broadcast_to(places, bits.shape)


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
