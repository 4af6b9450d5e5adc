"""Machine code does what the Python does: every translated form on random operands, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from corpus.kernels import KERNELS

from emulator.errors import EmulatorError
from emulator.formats import alu
from emulator.machine.warp import UNITS
from emulator.native.region import Region
from emulator.ptx.isa import lookup
from emulator.ptx.parse import parse
from emulator.ptx.program import Program
from emulator.ptx.syntax import SINK, Imm, Instr, Kernel, Mem, Reg, Special, Symbol, Target, leaves, rewritten
from silicon.golden.cases import CASES

POOL = 8  # registers of each width
WIDTHS = (1, 16, 32, 64)
BATCH = 60  # forms that are compiled together


def register(bits: int, k: int) -> Reg:
    return Reg(WIDTHS.index(bits) * POOL + k, f"{bits}.{k}", bits)


REGISTERS = [register(bits, k) for bits in WIDTHS for k in range(POOL)]


def pooled(instr: Instr) -> Instr | None:
    """The instruction with registers of the pool: equal ones stay equal. None where it has too many, or others."""
    names: dict[int, Reg] = {}
    taken = dict.fromkeys(WIDTHS, 0)
    of = [o for operand in (*instr.operands, instr.guard) for o in leaves(operand) if isinstance(o, Reg)]
    for r in of:
        if r.bits not in WIDTHS:
            return None
        if r.index not in names:
            if taken[r.bits] == POOL:
                return None
            names[r.index] = register(r.bits, taken[r.bits])
            taken[r.bits] += 1

    def leaf(x):
        return names[x.index] if isinstance(x, Reg) else x

    operands = tuple(rewritten(o, leaf) for o in instr.operands)
    guard = None if instr.guard is None else leaf(instr.guard)
    return Instr(instr.op, operands, guard, instr.negated, instr.line, instr.text)


def shape(instr: Instr) -> tuple:
    """What tells forms apart: the opcode, the kinds and widths of operands, literals where they are modes of a shift."""

    def one(o):
        match o:
            case Reg():
                return o.bits
            case Imm():
                return "imm"
            case Special() | Symbol():
                return type(o).__name__
        return str(o) if o is SINK else type(o).__name__

    return instr.op, tuple(tuple(map(one, leaves(o))) for o in instr.operands), instr.guard is not None, instr.negated


def straight(instrs: list[Instr]) -> Program:
    """A program in which each of the instructions is a block of its own."""
    out = []
    for i in instrs:
        out += [i, Instr("bra.uni", (Target(len(out) + 2, "next"),), None, False, 0, "bra.uni next")]
    out.append(Instr("exit", (), None, False, 0, "exit"))
    return Program(Kernel("forms", [], out, REGISTERS))


def region_of(program: Program, varying: set[int]) -> Region:
    region = Region(program, list(range(len(program.start) - 1)), [1.0] * len(program.start), UNITS)
    region.varying = varying
    return region


ALL = {r.index for r in REGISTERS}


@pytest.fixture(scope="module")
def forms() -> list[Instr]:
    """One instruction of each form that has a translation, in the registers of the pool."""
    found = {}
    for text in [*(c.ptx for c in CASES), *(k.header + k.ptx for k in KERNELS.values())]:
        for kernel in parse(text).kernels.values():
            for instr in kernel.instrs:
                handler = lookup(instr)
                if handler is None or handler.ends_block or any(isinstance(o, (Mem, Symbol)) for o in instr.operands):
                    continue
                key = shape(instr)
                if key not in found and (small := pooled(instr)) is not None:
                    found[key] = small
    candidates, kept = list(found.values()), []
    region = region_of(straight(candidates), ALL)
    region.translate()
    for b in region.blocks:
        steps = region.steps[b]
        index = region.program.start[b]
        if steps[0].text is not None and region.program.kernel.instrs[index].op != "bra.uni":
            kept.append(region.program.kernel.instrs[index])
    return kept


class Lanes(SimpleNamespace):
    """A group of lanes as far as arithmetic asks for it."""

    def special(self, name: str):
        if name.startswith("tid"):
            return self.lanes.astype(np.uint32) + 64
        return (self.lanes * 3).astype(np.uint32) if name.startswith("lane") else len(name)

    def converged(self, members) -> bool:
        return True

    def uniform(self, guard):
        if alu.is_array(guard):
            assert guard.all() or not guard.any()
            return bool(guard[0])
        return guard


INTERESTING = {
    16: [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0x7FFF, 0x8001, 0x03FF, 0x3F80, 0x0080, 0xFFFF],
    32: [0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x00000001, 0x80000001,
         0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xC2FC0000, 0x33000000, 0x477FF000, 0x4F000000, 0xCF000000, 31, 32, 33],
    64: [0, 1 << 63, 0x3FF0000000000000, 0x7FF0000000000000, 0x7FF8000000000000, (1 << 64) - 1, 1, 0x41DFFFFFFFC00000],
}  # fmt: skip


def operand(rng, bits: int, n: int) -> np.ndarray:
    if bits == 1:
        return rng.integers(0, 2, n).astype(bool)
    kind = rng.integers(4, size=n)
    wild = (
        rng.integers(0, 1 << bits, n, np.uint64, endpoint=False)
        if bits < 64
        else rng.integers(0, 1 << 64, n, np.uint64)
    )
    special = rng.choice(np.array(INTERESTING[bits], np.uint64), n)
    small = rng.integers(0, 70, n).astype(np.uint64)
    with np.errstate(all="ignore"):
        real = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(alu.F[bits]).view(alu.U[bits])
    return np.choose(kind, [wild, special, small, real.astype(np.uint64)]).astype(alu.U[bits])


def group(rng, n: int, uniform: bool) -> Lanes:
    lanes = np.sort(rng.permutation(32)[:n])
    registers = [operand(rng, r.bits, 1 if uniform else n) for r in REGISTERS]
    mask = sum(1 << int(lane) for lane in lanes)
    return Lanes(
        R=[v[0].item() for v in registers] if uniform else registers,
        n=n, lanes=lanes, lane_mask=mask, t=0.0, pc=0, join=None, engine=SimpleNamespace(heap=[(-9.0, 0, None)]),
        clock=SimpleNamespace(quantum=0.0, moves_data=True), warp=SimpleNamespace(live_mask=mask),
    )  # fmt: skip


def values(g: Lanes) -> list:
    return [v.tolist() if alu.is_array(v) else v for v in g.R]


def differences(
    program: Program, region: Region, rng, n: int, uniform: bool, trials: int
) -> tuple[list[str], set[str]]:
    """(instructions that machine code and Python execute differently, those that it left to Python every time)"""
    wrong, left = [], set()
    for b in region.blocks:
        instr = program.kernel.instrs[program.start[b]]
        if instr.op == "bra.uni" or region.steps[b][0].text is None:
            continue
        taken = False
        for _ in range(trials):
            g = group(rng, n, uniform)
            other = Lanes(**{**vars(g), "R": list(g.R)})
            before = list(g.R)
            with np.errstate(all="ignore"):
                try:
                    region.python(b, 0, 1)(other)
                except EmulatorError:
                    continue
            leaves_it = region.by_number[region.enters[b, 0](g)]
            if leaves_it.step is not None:
                continue
            leaves_it.save(g)
            taken = True
            mine, theirs = values(g), values(other)
            for r, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                y = y if isinstance(y, list) or not isinstance(x, list) else [y] * n
                if x != y:
                    k = next((k for k in range(n) if x[k] != y[k]), 0) if isinstance(x, list) else 0
                    shown = [f"{v[k] if isinstance(v, list) else v:#x}" for v in (x, y)]
                    sources = [
                        f"{(v[k] if alu.is_array(v) else v):#x}"
                        for v in (before[o.index] for p in instr.operands for o in leaves(p) if isinstance(o, Reg))
                    ]
                    wrong.append(f"{instr.text} (register {REGISTERS[r].name}): {shown} of {sources}")
                    break
        if not taken:
            left.add(instr.op)
    return wrong, left


@pytest.mark.parametrize("n, uniform", [(32, False), (5, False), (32, True)], ids=["32 lanes", "5 lanes", "one value"])
def test_forms(forms, n, uniform):
    rng = np.random.default_rng(n + uniform)
    wrong, left = [], set()
    for at in range(0, len(forms), BATCH):
        program = straight(forms[at : at + BATCH])
        region = region_of(program, set() if uniform else ALL)
        region.compile()
        found, untouched = differences(program, region, rng, n, uniform, 4)
        wrong += found
        left |= untouched
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
    print(len(forms), sorted(left))
