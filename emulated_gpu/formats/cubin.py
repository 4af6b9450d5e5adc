"""What ptxas says of a kernel in the ELF file that it makes (cubin): registers, stack.

NVIDIA's sections are not documented and read
as `cuobjdump -res-usage` shows them: .nv.info has records (format, attribute, size or value), of which some hold pairs
(symbol, number).
"""

from __future__ import annotations

import functools
import struct

from . import elf

ATTRIBUTES = {0x11: "frame", 0x12: "min stack", 0x2F: "registers"}


@functools.lru_cache(maxsize=64)  # a launch asks for it, and a script launches a kernel often
def resources(cubin: bytes) -> dict[str, dict[str, int]]:
    """Return {kernel: (registers, bytes of stack frame)} per thread; spills and arrays live in the frame."""
    parts = elf.sections(cubin)
    info, symbols, names = parts[".nv.info"], parts[".symtab"], parts[".strtab"]
    found: dict[str, dict[str, int]] = {}
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if attribute in ATTRIBUTES:
                symbol, number = struct.unpack_from("<II", info, at)
                name = elf.text(names, struct.unpack_from("<I", symbols, 24 * symbol)[0])
                found.setdefault(name, {})[ATTRIBUTES[attribute]] = number
            at += value
    return found


def of_kernel(cubin: bytes | None, name: str) -> dict[str, int]:
    """Return what `resources` says of the kernel of this name; {} without a cubin."""
    return resources(cubin).get(name, {}) if cubin else {}
