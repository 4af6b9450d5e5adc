"""What is in a fat binary, as nvcc and CuTe DSL put it into a host object file.

The layout is not documented; it is as `cuobjdump` shows it. A wrapper {u32 magic; u32 version; u64 data; ...} points to
{u32 magic; u16 version; u16 header bytes; u64 bytes}, which entries follow:
{u16 kind; u16 version; u32 header bytes; u64 bytes; u32 compressed bytes; ...; at 40 u64 flags; at 56 u64 bytes once
they are decompressed}. nvcc 13 compresses by Zstandard what it is not told to leave.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Iterator

from ..errors import Unsupported

WRAPPER, MAGIC, PTX, CUBIN = 0x466243B1, 0xBA55ED50, 1, 2
LINKED = 2  # a wrapper's version: of several fat binaries, whose addresses are in an array with a 0 at its end
ZSTANDARD = 0x8000  # a flag


def linked_at(wrapper: int) -> list[list[str]]:
    """Return the PTX texts, one an architecture, of each fat binary that is linked to others by the wrapper at this
    address, or of its only one.

    Raises Unsupported for what is laid out in another way, and where there are none.
    """
    magic, version, data, others = struct.unpack("<IIQQ", ctypes.string_at(wrapper, 24))
    if magic != WRAPPER:
        raise Unsupported(f"a fat binary's wrapper with magic number {magic:#x}")
    binaries = [data] if version != LINKED else list(itertools.takewhile(bool, pointers_at(others)))
    return [texts for binary in binaries if (texts := texts_at(binary, version != LINKED))]


def pointers_at(address: int) -> Iterator[int]:
    for at in itertools.count(address, 8):
        yield ctypes.c_uint64.from_address(at).value


def texts_at(data: int, needed: bool = True) -> list[str]:
    """Return the PTX texts, one an architecture, of the fat binary (without a wrapper) at this address.

    Raises Unsupported if it has none that is needed.
    """
    texts = [text.rstrip(b"\0").decode() for text in parts(data, PTX)]
    if not texts and needed:
        raise Unsupported("a fat binary that has machine code alone: nvcc's -gencode with code=compute_... keeps PTX")
    return texts


def parts(data: int, wanted: int) -> list[bytes]:
    """Return the contents of one kind, PTX or CUBIN, of the fat binary (without a wrapper) at this address.

    Raises Unsupported for what is laid out in another way, and for contents that cannot be decompressed.
    """
    found = []
    for kind, at in entries(data):
        header, size, compressed = struct.unpack("<IQI", ctypes.string_at(at + 4, 16))
        if kind == wanted:
            content = ctypes.string_at(at + header, compressed or size)
            if compressed:
                (flags,), (size,) = (struct.unpack("<Q", ctypes.string_at(at + place, 8)) for place in (40, 56))
                content = decompressed(content, flags, size)
            found.append(content)
    return found


def entries(data: int) -> Iterator[tuple[int, int]]:
    """Yield (kind, address) of the entries of the fat binary (without a wrapper) at this address."""
    magic, _, header, size = struct.unpack("<IHHQ", ctypes.string_at(data, 16))
    if magic != MAGIC:
        raise Unsupported(f"a fat binary with magic number {magic:#x}")
    at, end = data + header, data + header + size
    while at < end:
        kind, _, header, size = struct.unpack("<HHIQ", ctypes.string_at(at, 16))
        yield kind, at
        at += header + size


def machine_code(wrapper: int) -> list[str]:
    """Return the architectures of the machine code, as sm_100, in the fat binary whose wrapper is at this address."""
    data = struct.unpack("<IIQ", ctypes.string_at(wrapper, 16))[2]
    return [f"sm_{struct.unpack('<I', ctypes.string_at(at + 28, 4))[0]}" for kind, at in entries(data) if kind == CUBIN]


@functools.cache
def zstandard():
    """Return the system's libzstd, None if it has none."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return library


def decompressed(content: bytes, flags: int, size: int) -> bytes:
    """Return the `size` bytes that a compressed entry with these flags stands for. Raises Unsupported if it cannot."""
    leave = "nvcc's --no-compress leaves them as they are"
    if not flags & ZSTANDARD:
        raise Unsupported(f"contents of a fat binary that are compressed in another way than by Zstandard: {leave}")
    if (library := zstandard()) is None:
        raise Unsupported(f"contents of a fat binary compressed by Zstandard, and there is no libzstd.so.1: {leave}")
    out = ctypes.create_string_buffer(size)
    if library.ZSTD_decompress(out, size, content, len(content)) != size:
        raise Unsupported(f"contents of a fat binary that Zstandard does not decompress to {size} bytes: {leave}")
    return out.raw
