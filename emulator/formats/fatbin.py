"""What is in a fat binary, as nvcc and CuTe DSL put it into a host object file.

The layout is not documented; it is as `cuobjdump` shows it. A wrapper {u32 magic; u32 version; u64 data; ...} points to
{u32 magic; u16 version; u16 header bytes; u64 bytes}, which entries follow:
{u16 kind; u16 version; u32 header bytes; u64 bytes; u32 compressed bytes; ...}.
"""

from __future__ import annotations

import ctypes
import struct

from ..errors import Unsupported

WRAPPER, MAGIC, PTX, CUBIN = 0x466243B1, 0xBA55ED50, 1, 2


def texts_at(wrapper: int) -> list[str]:
    """Return the PTX texts, one an architecture, of the fat binary whose wrapper is at this address.

    Raises Unsupported for what is laid out in another way, and where there are none.
    """
    magic, _, data = struct.unpack("<IIQ", ctypes.string_at(wrapper, 16))
    if magic != WRAPPER:
        raise Unsupported(f"a fat binary's wrapper with magic number {magic:#x}")
    texts = [text.rstrip(b"\0").decode() for text in parts(data, PTX)]
    if not texts:
        raise Unsupported("a fat binary that has machine code alone: nvcc's -gencode with code=compute_... keeps PTX")
    return texts


def parts(data: int, wanted: int) -> list[bytes]:
    """Return the contents of one kind, PTX or CUBIN, of the fat binary (without a wrapper) at this address.

    Raises Unsupported for what is laid out in another way, and for compressed contents of that kind.
    """
    magic, _, header, size = struct.unpack("<IHHQ", ctypes.string_at(data, 16))
    if magic != MAGIC:
        raise Unsupported(f"a fat binary with magic number {magic:#x}")
    found, at, end = [], data + header, data + header + size
    while at < end:
        kind, _, header, size, compressed = struct.unpack("<HHIQI", ctypes.string_at(at, 20))
        if kind == wanted:
            if compressed:
                raise Unsupported("compressed contents of a fat binary: nvcc's --no-compress leaves them as they are")
            found.append(ctypes.string_at(at + header, size))
        at += header + size
    return found
