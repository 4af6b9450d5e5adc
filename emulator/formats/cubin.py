"""What ptxas says of a kernel in the ELF file that it makes (cubin): registers, stack.

The sections are ELF's (https://refspecs.linuxfoundation.org/elf/elf.pdf); those of NVIDIA are not documented and read
as `cuobjdump -res-usage` shows them: .nv.info has records (format, attribute, size or value), of which some hold pairs
(symbol, number).
"""

from __future__ import annotations

import struct

ATTRIBUTES = {0x11: "frame", 0x12: "min stack", 0x2F: "registers"}


def sections(cubin: bytes) -> dict[str, bytes]:
    """The sections of an ELF file, by name."""
    offset, count, names = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + 64 * i) for i in range(count)]
    start = headers[names][4]
    return {cubin[start + h[0] :].partition(b"\0")[0].decode(): cubin[h[4] : h[4] + h[5]] for h in headers}


def resources(cubin: bytes) -> dict[str, dict[str, int]]:
    """Return {kernel: (registers, bytes of stack frame)} per thread; spills and arrays live in the frame."""
    parts = sections(cubin)
    info, symbols, names = parts[".nv.info"], parts[".symtab"], parts[".strtab"]
    found: dict[str, dict[str, int]] = {}
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if attribute in ATTRIBUTES:
                symbol, number = struct.unpack_from("<II", info, at)
                name = names[struct.unpack_from("<I", symbols, 24 * symbol)[0] :].partition(b"\0")[0].decode()
                found.setdefault(name, {})[ATTRIBUTES[attribute]] = number
            at += value
    return found
