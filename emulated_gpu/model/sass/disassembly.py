"""The machine code of a PTX module: instruction by instruction, with control words and lines of the PTX.

ptxas -lineinfo keeps a table from machine code to lines of PTX, and `nvdisasm -gp -hex` prints both. What ptxas has
decided when to issue stands in the upper bits of each instruction's 128, alike on sm_90 and sm_100: 105-108 cycles
until the next one, 110-112 the barrier that its result sets, 113-115 the one that reading its sources does (7: none),
116-121 the barriers for which it waits. Nobody has documented that; tests/emulated_gpu/model/test_sass.py holds it to
times that an H200 took.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from ...formats import elf
from ...ptx.parse import parse

BARRIERS = 6
PTX_LINES = ".nv_debug_line_sass"  # the section that an author's machine code has if it knows lines of PTX
FIRST = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/")
SECOND = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
LEAVES = {"BRA", "EXIT", "RET", "BRX", "BRXU", "CALL", "JMP"}


class Sass(NamedTuple):
    """One instruction. op: its opcode with modifiers; guarded: whether a predicate may leave it out; line: of the PTX,
    0 for none; begins: whether it begins a block.

    stall: cycles until the next may be issued; sets, read: the barrier that is up until its result is there, until its
    sources have been read; waits: those that must be down, a bit each.
    """

    op: str
    guarded: bool
    line: int
    stall: int
    sets: int
    read: int
    waits: int
    begins: bool

    @property
    def opcode(self) -> str:
        return self.op.partition(".")[0]

    @property
    def leaves(self) -> bool:
        """Whether what follows it is another block."""
        return self.opcode in LEAVES


class MachineCode(NamedTuple):
    """The kernels of a module by name. lines: for each the PTX line of each of its PTX instructions, by their numbers;
    made_by: who has compiled it, for people."""

    kernels: dict[str, list[Sass]]
    lines: dict[str, list[int]]
    made_by: str


def _tool(*names: str) -> str | None:
    """The path of a program that a package of NVIDIA's or Triton has brought."""
    for package, folder in (("nvidia", "cu13/bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            for name in names:
                if (path := Path(place, folder, name)).exists():
                    return str(path)
    return None


@functools.cache
def tools() -> tuple[str | None, str | None]:
    """The paths of ptxas and nvdisasm; None for what is not installed."""
    return _tool("ptxas"), _tool("nvdisasm")


@functools.cache
def version(tool: str) -> str:
    """The number of a tool's version."""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+(\.\d+)+)", said)
    return found[1] if found else "of an unknown version"


@functools.lru_cache(maxsize=64)
def machine_code(text: str, arch: str, made: bytes | None = None) -> MachineCode | str:
    """The machine code of a PTX module, or in words why there is none.

    made: what its author's ptxas has made of it; used if it knows lines of the PTX, else the installed ptxas compiles.
    """
    ptxas, nvdisasm = tools()
    if nvdisasm is None:
        return "classes of PTX: nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)"
    if made is not None and PTX_LINES in elf.sections(made):
        code, made_by, module = made, "its author's ptxas", parse(text)
    elif ptxas is None:
        return "classes of PTX: ptxas is not installed (pip install nvidia-cuda-nvcc)"
    else:
        module, lone = parse(text), text
        if any(_shared_lines(kernel.instrs) for kernel in module.kernels.values()):
            lone = re.sub(r";(?![^\S\n]*\n)", ";\n", re.sub(r"//.*", "", text))
            module = parse(lone)
        assembled = _assemble(lone, arch, ptxas)
        if isinstance(assembled, str):
            return assembled
        code, made_by = assembled, f"machine code by ptxas {version(ptxas)}"
    lines = {name: [i.line for i in kernel.instrs] for name, kernel in module.kernels.items()}
    return MachineCode(_read(_disassemble(code, nvdisasm)), lines, made_by)


def _shared_lines(instrs) -> bool:
    return any(a.line == b.line for a, b in zip(instrs, instrs[1:]))


def _assemble(text: str, arch: str, ptxas: str) -> bytes | str:
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text.rstrip("\0"))
        command = [ptxas, f"-arch={arch}", "-lineinfo", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"classes of PTX: ptxas refuses it: {' '.join(done.stderr.split())[:200]}"
        return cubin.read_bytes()


def _disassemble(cubin: bytes, nvdisasm: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [nvdisasm, "-c", "-hex", "-gp", file.name], capture_output=True, text=True, check=True
        ).stdout


def _read(listing: str) -> dict[str, list[Sass]]:
    kernels: dict[str, list[Sass]] = {}
    code, line, text, begins = None, 0, None, False
    for row in listing.splitlines():
        if row.startswith(".text."):
            code, line, begins = kernels.setdefault(row[6:].rstrip(":"), []), 0, True
        elif code is None:
            continue
        elif row.startswith(".L_x_"):
            begins = True
        elif found := LINE.match(row):
            line = int(found[1])
        elif found := FIRST.match(row):
            text = found[1]
        elif text is not None and (found := SECOND.match(row)):
            high = int(found[1], 16) >> 41
            guarded = text.startswith("@")
            op = text.split()[guarded]
            code.append(Sass(op, guarded, line, high & 15, high >> 5 & 7, high >> 8 & 7, high >> 11 & 63, begins))
            text, begins = None, code[-1].leaves
    return kernels
