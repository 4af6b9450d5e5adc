"""Textures and surfaces: how texels lie in global memory, and the objects by which kernels read and write them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import texels
from ..formats.texels import TexelForm


@dataclass(frozen=True)
class Image:
    """Texels of a CUDA array, or of other global memory that a texture reads.

    height and depth are 0 of what has fewer dimensions. depth: also the layers of what is `layered`, and six faces a
    cube. pitch: bytes from row to row. linear: memory of one dimension that is no array.
    """

    address: int
    form: TexelForm
    width: int
    height: int
    depth: int
    pitch: int
    flags: int = 0
    linear: bool = False

    LAYERED, SURFACE, CUBE, GATHER = 1, 2, 4, 8  # of CUDA_ARRAY3D_*

    @property
    def geometry(self) -> str:
        """The name of its form in PTX: 1d, 2d, 3d, a1d, a2d, cube, acube."""
        if self.flags & self.CUBE:
            return "acube" if self.flags & self.LAYERED else "cube"
        if self.flags & self.LAYERED:
            return "a2d" if self.height else "a1d"
        return "3d" if self.depth else "2d" if self.height else "1d"

    @property
    def rows(self) -> int:
        return max(self.height, 1)

    @property
    def slices(self) -> int:
        return max(self.depth, 1)

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.pitch * self.rows * self.slices

    @property
    def shape(self) -> str:
        return " x ".join(str(one) for one in (self.width, self.height, self.depth) if one)


@dataclass(frozen=True)
class Texture:
    """A texture object. modes: of addressing, by axis; fractions: texels are read as floats, integers as fractions."""

    image: Image
    modes: tuple[int, int, int]
    linear_filter: bool
    normalized: bool
    fractions: bool
    srgb: bool
    border: tuple[float, float, float, float]

    @functools.cached_property
    def fields(self) -> list:
        """As formats/texels.py reads it."""
        image, form = self.image, self.image.form
        known = not self.srgb and (form.kind, form.bits) != ("f", 16)
        each_slice = image.pitch * image.rows
        return [
            known * (1 + list(texels.COORDINATES).index(image.geometry)), image.address, each_slice,
            image.slices // (6 if image.flags & image.CUBE else 1), form.size, form.bits, form.channels,
            (form.kind == "s") << form.bits - 1, (1 << form.bits - (form.kind == "s")) - 1, form.kind == "f",
            self.linear_filter, self.normalized or "cube" in image.geometry, self.fractions, image.linear,
            image.width, image.rows, image.slices,
            *(texels.BORDER if image.linear else mode for mode in self.modes),
            form.size, image.pitch, each_slice, *self.border,
        ]  # fmt: skip


@dataclass(frozen=True)
class Surface:
    """A surface object."""

    image: Image


class Objects(dict[int, "Texture | Surface | None"]):
    """Objects by handle; None: destroyed. rows, at `at`: for machine code, of the first ones, or zeros."""

    ROOM = 1 << 14

    def __init__(self):
        self.rows = np.zeros((self.ROOM, texels.FIELDS), np.int64)
        self.at = self.rows.ctypes.data

    def __setitem__(self, handle: int, made: Texture | Surface | None) -> None:
        super().__setitem__(handle, made)
        if handle < self.ROOM:
            self.rows[handle] = 0
            if isinstance(made, Texture):
                self.rows[handle, : texels.BORDERS] = made.fields[: texels.BORDERS]
                self.rows.view(np.float64)[handle, texels.BORDERS :] = made.border


OBJECTS = Objects()


def object_of(handle: int, kind: type[Texture] | type[Surface], geometry: str = ""):
    """Return the object of a handle. geometry: that it must have, if any.

    Raises a Fault for what is no object of that kind, Unsupported for one of another geometry.
    """
    name = kind.__name__.lower()
    found = OBJECTS.get(handle)
    if handle in OBJECTS and found is None:
        raise Fault("use-after-free", f"{name} object {handle:#x} is used, which has been destroyed")
    if not isinstance(found, kind):
        raise Fault("out-of-bounds", f"{handle:#x} is no {name} object")
    if geometry not in ("", found.image.geometry):
        raise Unsupported(f"an access .{geometry} to a {name} of geometry .{found.image.geometry}")
    return found
