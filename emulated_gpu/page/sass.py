"""What ptxas makes of PTX, where there is one and nvdisasm: SASS, with the PTX line that each instruction is of.

The control word of an instruction says for how many cycles its warp issues nothing behind it, and what it waits for
before. These bits are not documented by NVIDIA; they are read as Jia et al., "Dissecting the NVIDIA Volta GPU
architecture via microbenchmarking" (arXiv:1804.06826), have them, which chains of instructions on an H200 bear out.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECONDS = 60  # for a tool; a kernel of ten thousand instructions takes five
WORD = r"/\* 0x([0-9a-f]{16}) \*/"
LINE = re.compile(r'//## File "\.nv_debug_ptx_txt", line (\d+)')
INSTRUCTION = re.compile(rf"/\*([0-9a-f]{{4,}})\*/\s+(.*?)\s*;?\s+{WORD}")
KERNEL = re.compile(r"\.section\s+\.text\.([^\s,]+)")
TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


class Sass(NamedTuple):
    """An instruction. address: in its kernel; line: of PTX, 0 if ptxas names none; stall: cycles in which its warp
    issues nothing behind it; waits: the scoreboards, 0 to 5, that it waits for."""

    address: int
    text: str
    line: int
    stall: int
    waits: tuple[int, ...]


def tools(name: str) -> Iterator[str]:
    """Yield where a tool of CUDA's is: in Triton's package, which has the newest, pip's, CUDA_HOME, on PATH."""
    for package, inside in (("triton", "backends/nvidia/bin"), ("nvidia", "*/bin")):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            yield from map(str, sorted(Path(folder).glob(f"{inside}/{name}*"), reverse=True))
    if home := os.environ.get("CUDA_HOME"):
        yield from map(str, Path(home).glob(f"bin/{name}"))
    if found := shutil.which(name):
        yield found


def asked(*command: str) -> str | None:
    """Return what a tool prints, or None where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


@functools.lru_cache(maxsize=8)  # a page is written again when more is known
def sass(text: str) -> dict[str, list[Sass]]:
    """Return the instructions of each kernel of a PTX module; {} where no ptxas takes it, or there is no nvdisasm."""
    target = TARGET.search(text)
    if not target:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(text)
        options = "-lineinfo", f"-arch={target[1]}", str(ptx), "-o", str(cubin)
        if all(asked(tool, *options) is None for tool in tools("ptxas")):
            return {}
        for tool in tools("nvdisasm"):
            if (shown := asked(tool, "-c", "-hex", "-gp", str(cubin))) is not None:
                return read(shown)
    return {}


def read(shown: str) -> dict[str, list[Sass]]:
    """Return the instructions in what `nvdisasm -c -hex -gp` prints, by kernel."""
    found: dict[str, list[Sass]] = {}
    rows, line, pending = found.setdefault("", []), 0, None
    for one in shown.splitlines():
        if kernel := KERNEL.search(one):
            rows, line = found.setdefault(kernel[1], []), 0
        elif at := LINE.search(one):
            line = int(at[1])
        elif instruction := INSTRUCTION.search(one):
            pending = int(instruction[1], 16), " ".join(instruction[2].split()), line
        elif pending and (word := re.search(WORD, one)):
            bits = int(word[1], 16) >> 41  # of the 128, from bit 105 on
            rows.append(Sass(*pending, bits & 15, tuple(n for n in range(6) if bits >> 11 + n & 1)))
            pending = None
    return {kernel: rows for kernel, rows in found.items() if rows}
