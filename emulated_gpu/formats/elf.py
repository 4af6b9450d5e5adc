"""ELF files of 64 bits (https://refspecs.linuxfoundation.org/elf/elf.pdf): shared libraries and cubins."""

from __future__ import annotations

import mmap
import struct

MAGIC = 0x464C457F  # of the first four bytes
HEADER = 64  # bytes, with which a file begins
SHARED = 3  # ET_DYN, which position-independent executables are, too
FUNCTION = 2  # STT_FUNC
ABSENT = 0  # SHN_UNDEF: the symbol is somebody else's
NEEDED = 1  # DT_NEEDED


def is_cubin(header: bytes) -> bool:
    """Return whether a file that begins so has machine code of a GPU: e_machine is EM_CUDA."""
    return int.from_bytes(header[18:20], "little") == 190


def size(header: bytes) -> int:
    """Return the bytes of a file up to the end of its tables of sections and of segments, one of which is its end."""
    segments, sections = struct.unpack_from("<QQ", header, 32)
    segment, many, section, more = struct.unpack_from("<HHHH", header, 54)
    return max(segments + segment * many, sections + section * more)


def sections(file: bytes | mmap.mmap, wanted: tuple[str, ...] | None = None) -> dict[str, bytes]:
    """Return the sections of a file, by name: all of them, or those of the wanted names that it has."""
    places = places_of_sections(file).items()
    return {name: file[at : at + size] for name, (at, size) in places if wanted is None or name in wanted}


def places_of_sections(file: bytes | mmap.mmap) -> dict[str, tuple[int, int]]:
    """Return where each section of a file begins, and its bytes, by name."""
    offset, count, names = struct.unpack_from("<Q", file, 40)[0], *struct.unpack_from("<HH", file, 60)
    headers = [struct.unpack_from("<IIQQQQ", file, offset + 64 * i) for i in range(count)]
    start = headers[names][4] if headers else 0
    return {text(file, start + h[0]): (h[4], h[5]) for h in headers}


def text(strings: bytes | mmap.mmap, at: int) -> str:
    """Return the text that begins at a place of a table of strings."""
    return strings[at : strings.find(b"\0", at)].decode()


def exported(file: bytes) -> list[str]:
    """Return the names of the functions that a shared library has for others."""
    parts = sections(file)
    symbols = struct.iter_unpack("<IBBHQQ", parts[".dynsym"])
    return [text(parts[".dynstr"], s[0]) for s in symbols if s[1] & 15 == FUNCTION and s[3] != ABSENT]


def functions(parts: dict[str, bytes]) -> dict[str, int]:
    """Return name -> address of all functions in a file's sections, none if it was stripped of its table of symbols."""
    symbols = struct.iter_unpack("<IBBHQQ", parts.get(".symtab", b""))
    return {text(parts[".strtab"], s[0]): s[4] for s in symbols if s[1] & 15 == FUNCTION and s[3] != ABSENT}


def needed(parts: dict[str, bytes]) -> list[str]:
    """Return the names of the shared libraries that a file says it needs, from its sections."""
    entries = struct.iter_unpack("<QQ", parts.get(".dynamic", b""))
    return [text(parts[".dynstr"], value) for tag, value in entries if tag == NEEDED]
