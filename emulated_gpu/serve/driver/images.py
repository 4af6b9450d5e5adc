"""CUDA arrays, texture objects and surface objects, by the driver's functions in C.

An array is memory of the device whose rows lie one behind the other; what a GPU's order of texels is nobody can see.
"""

from __future__ import annotations

import ctypes
import itertools
import operator

from ...device import DEVICE
from ...errors import Unsupported
from ...formats.texels import BORDER, CLAMP, FORMATS, MIRROR, WRAP, TexelForm
from ...state.images import OBJECTS, Image, Surface, Texture
from . import cuda_bindings, launches

AS_INTEGER, NORMALIZED, SRGB, SEAMLESS = 1, 2, 0x10, 0x40  # CU_TRSF_*
KNOWN_FLAGS = Image.LAYERED | Image.SURFACE | Image.CUBE | Image.GATHER
OF_ARRAY, OF_MIPMAPS, OF_LINEAR, OF_PITCH = range(4)  # CUresourcetype
ALIGNMENT, ROW_ALIGNMENT, LONGEST = 14, 51, 69  # of textures, CUdevice_attribute
LARGEST = {1: (21,), 2: (22, 23), 3: (24, 25, 26)}  # number of dimensions -> of each
INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE

_handles = itertools.count(1)
_arrays: dict[int, Image] = {}


class Descriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_uint), ("channels", ctypes.c_uint),
    ]  # fmt: skip


class Descriptor3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
        ("format", ctypes.c_uint), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


class Resource(ctypes.Structure):
    """CUDA_RESOURCE_DESC; the union as that of memory in rows, which begins as the others do."""

    _fields_ = [
        ("type", ctypes.c_uint), ("address", ctypes.c_uint64), ("format", ctypes.c_uint), ("channels", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("pitch", ctypes.c_size_t),
    ]  # fmt: skip


class Sampler(ctypes.Structure):
    """CUDA_TEXTURE_DESC."""

    _fields_ = [
        ("modes", ctypes.c_uint * 3), ("filter", ctypes.c_uint), ("flags", ctypes.c_uint),
        ("anisotropy", ctypes.c_uint), ("mipmap_filter", ctypes.c_uint), ("mipmap", ctypes.c_float * 3),
        ("border", ctypes.c_float * 4),
    ]  # fmt: skip


def form_of(number: int, channels: int) -> TexelForm:
    if number not in FORMATS:
        raise Unsupported(f"CUarray_format {number:#x} on the emulated device, which has integers, halves and floats")
    if channels not in (1, 2, 4):
        raise launches.WrongCall(f"texels of {channels} channels, which have 1, 2 or 4")
    return TexelForm(*FORMATS[number], channels)


def array_of(handle: int) -> Image:
    """Return the CUDA array of a handle. Raises WrongCall for one that is not, or not any more."""
    if handle not in _arrays:
        raise launches.WrongCall(f"{handle:#x} is no CUDA array, or not any more", INVALID_HANDLE)
    return _arrays[handle]


def create(out: int, width: int, height: int, depth: int, form: TexelForm, flags: int = 0) -> None:
    if flags & ~KNOWN_FLAGS:
        raise Unsupported(f"a CUDA array with the flags {flags & ~KNOWN_FLAGS:#x} on the emulated device")
    layers = flags & (Image.LAYERED | Image.CUBE)
    most = 1 if layers else 3 if depth else 2 if height else 1  # layers have other limits than these
    too_large = any(map(operator.gt, (width, height, depth), map(cuda_bindings.attribute, LARGEST[most])))
    if not width or layers and not depth or depth and not height and not layers or too_large:
        raise launches.WrongCall(f"a CUDA array of {width} x {height} x {depth} texels")
    if flags & Image.CUBE and (width != height or depth % 6):
        raise launches.WrongCall(f"cubes of {width} x {height} texels with {depth} faces")
    image = Image(0, form, width, height, depth, width * form.size, flags)
    address = cuda_bindings.allocate_bytes(image.size)
    region = DEVICE.region_at(address, 1)
    if region is not None:
        region.name = f"a CUDA array of {image.shape} texels"
    handle = next(_handles)
    _arrays[handle] = Image(address, form, width, height, depth, image.pitch, flags)
    ctypes.c_uint64.from_address(out).value = handle


def create_2d(out: int, at: int) -> None:
    """cuArrayCreate."""
    d = Descriptor.from_address(at)
    create(out, d.width, d.height, 0, form_of(d.format, d.channels))


def create_3d(out: int, at: int) -> None:
    """cuArray3DCreate."""
    d = Descriptor3D.from_address(at)
    create(out, d.width, d.height, d.depth, form_of(d.format, d.channels), d.flags)


def destroy(handle: int) -> None:
    """cuArrayDestroy."""
    cuda_bindings.free_bytes(array_of(handle).address, by="cudaFreeArray")
    del _arrays[handle]


def describe(kind: type[Descriptor] | type[Descriptor3D]):
    """Return cuArrayGetDescriptor, or cuArray3DGetDescriptor."""

    def described(out: int, handle: int) -> None:
        image = array_of(handle)
        number = next(n for n, form in FORMATS.items() if form == (image.form.kind, image.form.bits))
        known = {"format": number, "channels": image.form.channels}
        for name in (field[0] for field in kind._fields_):
            setattr(kind.from_address(out), name, known.get(name, getattr(image, name, 0)))

    return described


def image_of(at: int) -> Image:
    """The texels that a CUDA_RESOURCE_DESC names."""
    r = Resource.from_address(at)
    if r.type == OF_ARRAY:
        return array_of(r.address)
    if r.type == OF_MIPMAPS:
        raise Unsupported("a mipmapped array on the emulated device, whose textures have one level")
    if r.type not in (OF_LINEAR, OF_PITCH):
        raise launches.WrongCall(f"a resource of type {r.type}")
    form = form_of(r.format, r.channels)
    if r.address % cuda_bindings.attribute(ALIGNMENT):
        raise launches.WrongCall(f"a texture at {r.address:#x}, which is no multiple of textureAlignment")
    if r.type == OF_LINEAR:
        size, height, pitch = r.width, 0, 0
        width = size // form.size
        longest = cuda_bindings.attribute(LONGEST)
        if not 0 < width <= longest:
            raise launches.WrongCall(f"a texture of {width} texels of linear memory, which may have {longest}")
    else:
        width, height, pitch = r.width, r.height, r.pitch
        size = pitch * (height - 1) + width * form.size
        apart = pitch % cuda_bindings.attribute(ROW_ALIGNMENT)
        if not width or not height or pitch < width * form.size or apart:
            raise launches.WrongCall(f"a texture of {width} x {height} texels in rows of {pitch} bytes")
    launches.check_memory("a texture of", r.address, size, True)
    return Image(r.address, form, width, height, 0, pitch, linear=r.type == OF_LINEAR)


def create_texture(out: int, resource: int, sampler: int, view: int) -> None:
    """cuTexObjectCreate."""
    if view:
        raise Unsupported("a texture with a resource view on the emulated device")
    image, s = image_of(resource), Sampler.from_address(sampler)
    fractions = image.form.kind == "f" or not s.flags & AS_INTEGER and image.form.normalizes
    normalized, cube = bool(s.flags & NORMALIZED), "cube" in image.geometry
    if not fractions and (s.filter or not s.flags & AS_INTEGER or any(s.border)):
        raise launches.WrongCall("a texture of integers has no filter, no fractions, and no border's colour here")
    if s.flags & SEAMLESS and s.filter or s.flags & SRGB and (image.form.kind, image.form.bits) != ("u", 8):
        raise Unsupported("a filter across the edges of a cube, or sRGB of other than bytes, on the emulated device")
    if s.anisotropy > 1:
        raise Unsupported("an anisotropic filter on the emulated device")
    if any(mode > BORDER for mode in s.modes) or image.linear and s.filter:
        raise launches.WrongCall("an address mode that there is not, or a filter of linear memory")
    x, y, z = (CLAMP if mode in (WRAP, MIRROR) and not normalized or cube else mode for mode in s.modes)
    red, green, blue, alpha = s.border
    border = (red, green, blue, alpha)
    texture = Texture(
        image, (x, y, z), bool(s.filter), normalized, fractions, bool(s.flags & SRGB),
        (0.0, 0.0, 0.0, 0.0) if image.linear else border,
    )  # fmt: skip
    keep(out, texture)


def create_surface(out: int, resource: int) -> None:
    """cuSurfObjectCreate."""
    image = image_of(resource)
    if not image.flags & Image.SURFACE:
        raise launches.WrongCall("a surface of what is no CUDA array with cudaArraySurfaceLoadStore")
    keep(out, Surface(image))


def keep(out: int, made: Texture | Surface) -> None:
    handle = next(_handles)
    OBJECTS[handle] = made
    ctypes.c_uint64.from_address(out).value = handle


def destroy_object(handle: int) -> None:
    """cuTexObjectDestroy, cuSurfObjectDestroy."""
    if OBJECTS.get(handle) is None:
        raise launches.WrongCall(f"{handle:#x} is no texture or surface object, or not any more")
    OBJECTS[handle] = None


FUNCTIONS = {
    "cuArrayCreate": create_2d, "cuArray3DCreate": create_3d, "cuArrayDestroy": destroy,
    "cuArrayGetDescriptor": describe(Descriptor), "cuArray3DGetDescriptor": describe(Descriptor3D),
    "cuTexObjectCreate": create_texture, "cuTexObjectDestroy": destroy_object,
    "cuSurfObjectCreate": create_surface, "cuSurfObjectDestroy": destroy_object,
}  # fmt: skip
