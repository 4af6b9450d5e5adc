"""Machine code does what the Python does: every translated form, kernels with all that they leave, their faults."""

from __future__ import annotations

import ast
import ctypes
import re
import textwrap
import weakref
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from corpus.kernels import KERNELS
from llvmlite import binding as llvm

import emulated_gpu
from emulated_gpu import build_cache
from emulated_gpu.device import allocate
from emulated_gpu.errors import EmulatorError
from emulated_gpu.formats import alu
from emulated_gpu.jit.llvm import Compiler
from emulated_gpu.machine.cta import Cluster, Cta
from emulated_gpu.machine.warp import UNITS
from emulated_gpu.model.tally import tallied
from emulated_gpu.native import access, hot_blocks
from emulated_gpu.native.region import WRITTEN, Region
from emulated_gpu.native.translate import FORMATS
from emulated_gpu.ptx.control_flow import ControlFlow, mask_of
from emulated_gpu.ptx.isa import lookup
from emulated_gpu.ptx.parse import parse
from emulated_gpu.ptx.syntax import SINK, Imm, Instr, Kernel, Mem, Reg, Special, Symbol, Target, leaves, rewritten
from emulated_gpu.state.order import Order
from silicon.golden.cases import CASES
from tests.thorough import all_but

POOL = 8  # registers of each width
WIDTHS = (1, 16, 32, 64)
BATCH = 60  # forms that are compiled together
TRIALS = 4


def register(bits: int, k: int) -> Reg:
    return Reg(WIDTHS.index(bits) * POOL + k, f"{bits}.{k}", bits)


REGISTERS = [register(bits, k) for bits in WIDTHS for k in range(POOL)]
ALL = {r.index for r in REGISTERS}


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
    """What tells forms apart: the opcode, the kinds and widths of operands."""

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


def straight(instrs: list[Instr]) -> ControlFlow:
    """A program in which each of the instructions is a block of its own, behind which all registers are read."""
    out = []
    for i in instrs:
        out += [i, Instr("bra.uni", (Target(len(out) + 2, "next"),), None, False, 0, "bra.uni next")]
    out.append(Instr("exit", (), None, False, 0, "exit"))
    program = ControlFlow(Kernel("forms", [], out, REGISTERS))
    program.live = program.live_out = [mask_of(ALL)] * len(program.live)
    return program


def region_of(program: ControlFlow, varying: set[int]) -> Region:
    region = Region(program, list(range(len(program.start) - 1)), [1.0] * len(program.start), UNITS)
    region.varying = varying
    return region


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    """Machine code has no address of this process in it: other processes take it."""
    compiled, export = Compiler.compiled, Compiler.export

    def exported(self, name: str, text_of):
        looked_through(self, text_of())
        return export(self, name, text_of)

    def looked_through(self, text: str):
        maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        ours = [range(int(first, 16), int(end, 16)) for first, end in maps]
        assert not [n for n in map(int, re.findall(r"\b\d{13,15}\b", text)) if any(n in r for r in ours)]
        return compiled(self, text)

    monkeypatch.setattr(Compiler, "compiled", looked_through)
    monkeypatch.setattr(Compiler, "export", exported)


@pytest.fixture(scope="module")
def region() -> Region:
    """Every form of instruction of the recorded cases and of the corpus that has no memory operand, translated."""
    found = {}
    for text in [*(c.ptx for c in CASES), *(k.header + k.ptx for k in KERNELS.values())]:
        for kernel in parse(text).kernels.values():
            for instr in kernel.instrs:
                handler = lookup(instr)
                if handler is None or handler.ends_block or instr.op.startswith("cp."):
                    continue
                if any(isinstance(o, (Mem, Symbol)) for o in instr.operands):
                    continue
                key = shape(instr)
                if key not in found and (small := pooled(instr)) is not None:
                    found[key] = small
    region = region_of(straight(list(found.values())), ALL)
    region.translate()
    return region


@pytest.fixture(scope="module")
def forms(region) -> list[Instr]:
    """One instruction of each form that has a translation and Python of its own, in the registers of the pool."""
    kept = {}
    for b in region.blocks:
        index = region.program.start[b]
        step = region.steps[index]
        if step.text is not None and region.program.kernel.instrs[index].op != "bra.uni":
            kept.setdefault(region.program.written(b)[1][0], region.program.kernel.instrs[index])
    return list(kept.values())


def test_a_translation_is_kept(region, monkeypatch, tmp_path):
    """Of the same text and registers it is the same, and not made again."""
    monkeypatch.setenv(build_cache.CACHE, str(tmp_path))
    regions = [Region(region.program, region.blocks[:40], region.costs, UNITS) for _ in range(3)]
    regions[0].translate()
    made = Region._translated
    monkeypatch.setattr(Region, "_translated", lambda self: pytest.fail("made again"))
    regions[1].translate()
    assert regions[0].steps == regions[1].steps and any(step.text for step in regions[0].steps.values())
    assert all(getattr(regions[0].code, name) == getattr(regions[1].code, name) for name in WRITTEN)
    monkeypatch.setattr(Region, "_translated", made)
    regions[2].varying = region.varying
    regions[2].translate()
    assert regions[2].steps != regions[0].steps and len([*tmp_path.glob("machine-code-*/*")]) == 2


# What stays Python of formats/: exact rationals, and what a later stmatrix does in the place of a conversion
OPS = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt")
RATIONALS = {f"{op}.{mode}.f64" for op, mode in product(OPS, ("rz", "rm", "rp"))}


def test_arithmetic_has_one_text(region):
    """Machine code comes of all functions that handlers of the registry write calls of."""
    left = set()
    for b in region.blocks:
        index = region.program.start[b]
        instr, step = region.program.kernel.instrs[index], region.steps[index]
        text = region.program.written(b)[1][0]
        nodes = ast.walk(ast.parse(textwrap.dedent(text)))
        called = {ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call)}
        of_formats = {name for name in called if name.split(".")[0] in FORMATS and name != "alu.some"}
        constants = all(not isinstance(o, Reg) for p in instr.operands[1:] for o in leaves(p))
        if of_formats == called - {"g.converged"} and step.text is None and "g.carry" not in text and not constants:
            left.add(instr.op)
    assert left <= RATIONALS, left - RATIONALS


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


def operands(rng, bits: int, count: int) -> np.ndarray:
    """Bits of everything: random ones, special ones, small integers, numbers."""
    if bits == 1:
        return rng.integers(0, 2, count).astype(bool)
    wild = rng.integers(0, 1 << bits, count, np.uint64) if bits < 64 else rng.integers(0, 1 << 64, count, np.uint64)
    special = rng.choice(np.array(INTERESTING[bits], np.uint64), count)
    small = rng.integers(0, 70, count).astype(np.uint64)
    real = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(alu.F[bits]).view(alu.U[bits])
    kind = rng.integers(4, size=count)
    return np.choose(kind, [wild, special, small, real.astype(np.uint64)]).astype(alu.U[bits])


@pytest.fixture(scope="module")
def stock() -> dict[int, np.ndarray]:
    with np.errstate(all="ignore"):
        return {bits: operands(np.random.default_rng(bits), bits, 40_000) for bits in WIDTHS}


def group(rng, stock: dict[int, np.ndarray], n: int, uniform: bool) -> Lanes:
    lanes = np.sort(rng.permutation(32)[:n])
    starts = rng.integers(0, 40_000 - 32, len(REGISTERS)).tolist()
    taken = [stock[r.bits][at : at + n] for r, at in zip(REGISTERS, starts)]
    mask = sum(1 << int(lane) for lane in lanes)
    return Lanes(
        R=[v[0].item() for v in taken] if uniform else taken,
        n=n, lanes=lanes, lane_mask=mask, t=0.0, pc=0, join=None, engine=SimpleNamespace(heap=[(-9.0, 0, None)]),
        clock=SimpleNamespace(quantum=0.0), cta=SimpleNamespace(computes_mma=True),
        warp=SimpleNamespace(live_mask=mask, actor=SimpleNamespace(epoch=1)),
    )  # fmt: skip


def differences(program: ControlFlow, region: Region, rng, stock, n: int, uniform: bool) -> tuple[list[str], set[str]]:
    """(instructions that machine code and Python execute differently, those that it left to Python every time)"""
    wrong, left = [], set()
    for first in map(program.start.__getitem__, region.blocks):
        instr = program.kernel.instrs[first]
        if instr.op == "bra.uni" or region.steps[first].text is None:
            continue
        registers = [o.index for p in instr.operands for o in leaves(p) if isinstance(o, Reg)]
        done = False
        for _ in range(TRIALS):
            g = group(rng, stock, n, uniform)
            other = Lanes(**{**vars(g), "R": list(g.R)})
            before = list(g.R)
            try:
                region.python(first, first + 1)(other)
            except EmulatorError:
                continue
            end = region.by_number[region.enterer(first)(g)]
            if end.following is None:
                continue
            (end.save or region._saver(end))(g)
            done = True
            for r in registers:
                x, y = (v.tolist() if alu.is_array(v) else [v] * n for v in (g.R[r], other.R[r]))
                for k in range(n):
                    if x[k] != y[k]:
                        sources = [v[k] if alu.is_array(v) else v for v in (before[q] for q in registers)]
                        wrong.append(f"{instr.text}: {x[k]:#x}, not {y[k]:#x}, of {[f'{v:#x}' for v in sources]}")
                        break
        if not done:
            left.add(instr.op)
    return wrong, left


# Of 32 lanes one may always have a result that lies so near the middle between two floats that Python decides; these
# shuffles name lanes that take no part
TANH = {f"tanh.approx.{kind}" for kind in ("f32", "f16", "bf16")}
DOUBTFUL = {*TANH, "sin.approx.f32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32"}


@pytest.mark.parametrize("uniform", [False, True], ids=["lanes that differ", "one value"])
def test_forms(forms, stock, uniform):
    """By a whole warp, and by a few lanes of one."""
    assert len(forms) > 400
    rng = np.random.default_rng(uniform)
    wrong, left = [], set()
    with np.errstate(all="ignore"):
        for at in range(0, len(forms), BATCH):
            program = straight(forms[at : at + BATCH])
            region = region_of(program, set() if uniform else ALL)
            region.translate()
            region.compile()
            few, _ = differences(program, region, rng, stock, 5, uniform)
            whole, untouched = differences(program, region, rng, stock, 32, uniform)
            wrong += few + whole
            left |= untouched
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
    assert left <= DOUBTFUL


def test_blocks_that_lose_stay_python(forms):
    """Also when a register turns out to vary, and all is translated again."""
    region = region_of(straight(forms[:3]), set())
    region.left = {2}
    for _ in range(2):
        region.translate()
        region.divide()
        assert {step.block for step in region.steps.values() if step.text is None} == region.left


def accesses() -> list[Instr]:
    """Every form of load and store that is translated, in the registers of the pool."""
    lines = []
    for space, bits, count in product(("shared", "global", "local"), (8, 16, 32, 64), (1, 2, 4)):
        names = [f"{'h' if bits < 32 else 'r' if bits == 32 else 'd'}{k}" for k in range(count)]
        values = f"{{{', '.join(names)}}}" if count > 1 else names[0]
        form = f"{space}{f'.v{count}' * (count > 1)}.b{bits}"
        lines += [f"ld.{form} {values}, [d7];", f"st.{form} [d7], {values};"]
    head = HEADER[: HEADER.index(".shared")] + ".reg .b16 h<4>; .reg .b32 r<4>; .reg .b64 d<8>;"
    text = f"{head} {' '.join(lines)} ret; }}"
    return [pooled(instr) for instr in parse(text).kernels["k"].instrs[:-1]]


def test_access_forms(monkeypatch):
    """LLVM parses each, at one address and at each lane's, beside an instruction that declares what it declares."""
    parsed = []
    compiler = SimpleNamespace(
        function=lambda text: parsed.append(llvm.parse_assembly(text)) or len, kept=lambda what, make: make()
    )
    monkeypatch.setattr("emulated_gpu.native.region.compiler", lambda: compiler)
    count, value = register(32, 6), register(32, 7)
    counted = Instr("popc.b32", (count, value), None, False, 0, "popc.b32")
    for instr in accesses():
        (address,) = (o.base for o in instr.operands if isinstance(o, Mem))
        for varying in (ALL, ALL - {address.index, value.index}):
            region = region_of(straight([counted, instr]), varying)
            region.translate()
            region.compile()
            parsed[-1].verify()
            assert len(region.code.forms) == 1, instr.text


# -- kernels -----------------------------------------------------------------------------------------------------------
HEADER = """.version 8.8
.target sm_90
.address_size 64
.visible .entry k(.param .b64 out, .param .b64 in) {
.shared .align 16 .b8 buffer[1536];
.local .align 16 .b8 own[64];
.reg .pred p<4>; .reg .b16 h<4>; .reg .b32 r<20>; .reg .f32 f<8>; .reg .b64 d<12>;
ld.param.b64 d0, [out]; ld.param.b64 d1, [in]; mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x;
mad.lo.u32 r2, r1, 64, r0; mul.wide.u32 d2, r2, 4; add.u64 d3, d0, d2; add.u64 d4, d1, d2;
mov.u32 r3, buffer; shl.b32 r4, r0, 2; add.u32 r5, r3, r4; xor.b32 r6, r4, 252; add.u32 r6, r6, r3;
setp.lt.u32 p0, r0, 40;
"""
MEMORY = """
mov.u32 r10, 0;
LOOP:
ld.global.b32 r7, [d4]; st.shared.b32 [r5], r7; bar.sync 0;
ld.shared.b32 r8, [r6]; add.u32 r8, r8, r7;
ld.shared.b32 r9, [buffer+16]; add.u32 r8, r8, r9;
@p0 ld.global.b32 r7, [d4+256]; add.u32 r8, r8, r7;
@p0 st.global.b32 [d3], r8; bar.sync 0;
and.b32 r11, r0, 15; mad.lo.u32 r11, r11, 16, r3; ld.shared.v4.b32 {r12, r13, r14, r15}, [r11];
add.u32 r12, r12, r13; add.u32 r14, r14, r15; add.u32 r12, r12, r14; st.global.b32 [d3], r12; bar.sync 0;
shfl.sync.bfly.b32 r12, r12, 5, 31, -1; cvt.rn.f32.u32 f0, r12; ex2.approx.f32 f1, f0; st.shared.f32 [r6], f1;
setp.gt.u32 p1, r12, 77; @p1 bra AWAY; add.u32 r12, r12, 1; st.global.b32 [d3], r12;
AWAY: bar.sync 0; setp.lt.u32 p3, r2, 32; @p3 st.global.b64 [d0+1016], d2;
bar.sync 0; shl.b32 r16, r0, 1; add.u32 r16, r16, r3; cvt.u64.u32 d5, r0; add.u64 d6, d4, 1;
ld.global.u16 h0, [d4+2]; ld.u8 h1, [d6]; add.u16 h0, h0, h1; st.shared.b16 [r16+512], h0; ld.b32 r17, [d4];
@p0 st.b16 [d3], h0; @p0 st.global.b8 [d3+3], h1; st.shared.v2.b16 [r5+768], {h0, h1}; bar.sync 0;
ld.shared.s8 r18, [r16+513]; ld.shared.v2.u16 {h2, h3}, [r6+768]; add.u16 h2, h2, h3; cvt.u32.u16 r19, h2;
add.u32 r18, r18, r19; add.u32 r18, r18, r17; ld.global.b16 h1, [d3]; cvt.u32.u16 r19, h1; add.u32 r18, r18, r19;
xor.b32 r10, r10, 256; st.shared.b32 [r5], r18; xor.b32 r10, r10, 256; bar.sync 0;
and.b32 r11, r0, 0; cvt.u64.u32 d7, r11; add.u64 d7, d1, d7; ld.global.b32 r17, [d7]; add.u32 r18, r18, r17;
popc.b32 r19, r10; add.u32 r18, r18, r19;
setp.lt.u32 p3, r0, 3; @p3 ld.global.b32 r17, [d7+8]; st.shared.b32 [r5], r17; bar.sync 0;
mov.u64 d8, own; add.u32 r7, r10, r0; and.b32 r7, r7, 7; mul.wide.u32 d9, r7, 4; add.u64 d9, d9, d8;
st.local.b32 [d9], r18; st.local.v2.b16 [d8+32], {h0, h1}; @p0 st.local.b64 [d8+40], d3; ld.local.u8 r8, [d9+1];
ld.local.v2.u16 {h2, h3}, [d8+32]; ld.local.b32 r7, [d9]; @p0 ld.local.b64 d10, [d8+40]; @p0 st.global.b8 [d3], h3;
add.u32 r8, r8, r7; st.shared.b32 [r5], r8; bar.sync 0;
add.u32 r10, r10, 1; setp.lt.u32 p2, r10, 6; @p2 bra LOOP;
ret; }
"""
ROWS = """
mov.u32 r10, 0; mad.lo.u32 r11, r0, 16, r3; mul.wide.u32 d5, r0, 16; add.u64 d5, d1, d5;
xor.b32 r16, r0, 32; mad.lo.u32 r16, r16, 16, r3; and.b32 r17, r0, 0; add.u32 r17, r17, r3;
mad.lo.u32 r18, r0, 8, r3; mul.wide.u32 d8, r2, 8; add.u64 d8, d0, d8; mul.wide.u32 d10, r1, 256; add.u64 d10, d10, d3;
shr.u32 r19, r0, 5; mad.lo.u32 r19, r19, 128, r5;
LOOP:
ld.global.v4.b32 {r12, r13, r14, r15}, [d5]; st.shared.v4.b32 [r11], {r12, r13, r14, r15}; bar.sync 0;
ld.shared.v4.b32 {r12, r13, r14, r15}, [r16]; add.u32 r12, r12, r15; ld.shared.v2.b64 {d6, d7}, [r11];
xor.b64 d6, d6, d7; ld.shared.b32 r7, [r5+4]; add.u32 r12, r12, r7; ld.shared.b32 r7, [r17+8]; add.u32 r12, r12, r7;
ld.shared.v2.b64 {d7, d9}, [r17+32]; add.u64 d6, d6, d9; @p0 ld.shared.b32 r8, [r17+64]; @p0 add.u32 r12, r12, r8;
ld.shared.b64 d7, [r18+256]; xor.b64 d6, d6, d7; bar.sync 0;
st.shared.v2.b32 [r18], {r12, r14}; st.shared.b64 [r18+512], d6; bar.sync 0;
st.shared.b32 [r5], r12; bar.sync 0; ld.shared.v2.b32 {r12, r13}, [r18+8];
ld.shared.v2.b32 {r12, r13}, [r18]; ld.shared.b64 d6, [r18+504]; ld.shared.b32 r7, [r19];
add.u32 r12, r12, r7; ld.shared.v2.b32 {r7, r8}, [r17+1016]; add.u32 r13, r13, r8; bar.sync 0;
st.global.v2.b32 [d8], {r12, r13}; ld.global.b64 d7, [d8]; ld.global.v2.b32 {r14, r15}, [d8]; add.u64 d6, d6, d7;
st.global.b64 [d8], d6; bar.sync 0; ld.global.b32 r7, [d10]; add.u32 r7, r7, r14; bar.sync 0;
st.global.b32 [d10], r7; bar.sync 0;
add.u32 r10, r10, 1; setp.lt.u32 p2, r10, 4; @p2 bra LOOP;
ret; }
"""


COPIES = """
mov.u32 r10, 0; shr.u32 r11, r0, 3; and.b32 r11, r11, 3; xor.b32 r11, r11, r0; shl.b32 r11, r11, 3;
add.u32 r11, r11, r3;
mul.wide.u32 d5, r0, 8; add.u64 d5, d1, d5; and.b32 r12, r0, 4; shl.b32 r18, r0, 3; add.u32 r18, r18, r3;
and.b32 r17, r0, 31; shl.b32 r17, r17, 4; add.u32 r17, r17, r3; mov.u32 r19, 0;
st.shared.b8 [r18+513], r0;
LOOP:
cp.async.ca.shared.global [r11], [d5], 8; cp.async.commit_group;
cp.async.ca.shared.global [r18+512], [d4], 4, r12; @p0 cp.async.ca.shared.global [r18+516], [d4+4], 4;
and.b32 r16, r18, -16; cp.async.ca.shared.global [r16+1024], [d4], 4;
cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r7, r8, r9, r13}, [r17];
add.u32 r7, r7, r8; xor.b32 r9, r9, r13; mad.lo.u32 r19, r7, 5, r19; mad.lo.u32 r19, r9, 7, r19;
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r14, r15}, [r17]; mad.lo.u32 r14, r14, 3, r15; add.u32 r19, r19, r14;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r7}, [r17+16]; add.u32 r19, r19, r7;
cp.async.wait_group 0; bar.sync 0;
ld.shared.b32 r7, [r18+512]; mad.lo.u32 r19, r7, 9, r19; @p0 ld.shared.b32 r8, [r18+516]; @p0 add.u32 r19, r19, r8;
st.global.b32 [d3], r19; bar.sync 0;
add.u32 r10, r10, 1; setp.lt.u32 p2, r10, 4; @p2 bra LOOP;
ret; }
"""


class Seen:
    """What a launch leaves: results, what it has moved, the order of events and shadows, or how it failed."""

    def __init__(self, body: str, out: np.ndarray, given: np.ndarray, monkeypatch, hot: bool):
        launches, shared = [], []

        class Watched(emulated_gpu.machine.launch.Launch):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self.counted = tallied(self)
                launches.append(self)

        monkeypatch.setattr(emulated_gpu.device, "Launch", Watched)
        monkeypatch.setattr(Order, "part", lambda order: None)
        monkeypatch.setattr(Cta, "exit", lambda cta, f=CTA_EXIT: (shared.append(cta.smem), f(cta))[1])
        monkeypatch.setattr(hot_blocks, "START", -1e9 if hot else 1e9)
        monkeypatch.setattr(hot_blocks, "CROSSING", -1e3 if hot else 4.0)
        regions = []
        monkeypatch.setattr(Region, "compile", lambda self: (regions.append(self), COMPILE(self))[1])
        out[:] = 0
        self.error = ""
        # a text of its own, or the program of the other way would be found
        text = HEADER + body + ("" if hot else " ")
        try:
            emulated_gpu.launch(text, "k", 2, 64, [out, given])
        except EmulatorError as e:
            self.error = f"{e} {e.where}"
        assert bool(regions) == hot
        (launch,) = launches
        order = launch.order
        self.out, self.time, self.now = out.tolist(), launch.engine.now, order.now
        self.noted = [f"{note} {note.where}" for note in launch.notes]
        self.counted = launch.counted
        self.events = [a[: order.now + 1].tolist() for a in (order.component, order.space, order.marks)]
        self.who = [str(order.origin(n)) for n in range(order.now + 1)]
        shadows = [shadow for _, shadow in launch.shadow.regions.values() if shadow.words.written.any()]
        shadows += [smem.shadow for smem in shared]
        self.shadows = [
            [plane.written.tolist(), [row.tolist() for row in plane.reads if row.any()]]
            for shadow in shadows for plane in (shadow.words, shadow.bytes) if plane is not None
        ]  # fmt: skip
        self.settled = [shadow.words.settled.tolist() for _, shadow in launch.shadow.regions.values()]
        self.lanes = [smem.lanes.table.tolist() for smem in shared if smem.lanes]
        self.valid = [smem.valid.tolist() for smem in shared]
        self.busy = [smem.busy.tolist() for smem in shared]
        self.used = [used[1].tolist() for _, used in launch.dependencies.own.regions.values() if used.any()]


CTA_EXIT, COMPILE = Cta.exit, Region.compile


def both(body: str, monkeypatch) -> tuple[Seen, Seen]:
    out, given = (allocate(1024).view(np.uint32) for _ in range(2))  # else copies, each elsewhere
    given[:] = np.arange(256) * 3
    return Seen(body, out, given, monkeypatch, True), Seen(body, out, given, monkeypatch, False)


def test_a_kernel_leaves_the_same(monkeypatch):
    """Results, time, bytes moved, events in order and who they were, shadows, what the next launch waits for."""
    mine, theirs = both(MEMORY, monkeypatch)
    assert any(map(any, mine.settled))
    assert not mine.error and any(mine.out) and mine.counted["global_load"] and mine.counted["global_store"]
    for name, value in vars(theirs).items():
        assert getattr(mine, name) == value, name


def test_rows_leave_the_same(monkeypatch):
    """Elements of all widths by whole warps, one lane's behind the other's, and all at one address."""
    mine, theirs = both(ROWS, monkeypatch)
    assert not mine.error and any(mine.out)
    for name, value in vars(theirs).items():
        assert getattr(mine, name) == value, name


def test_copies_leave_the_same(monkeypatch):
    """cp.async in whole rows, swizzled, with gaps, of some lanes, of zeros, to one word, to bytes; rows of matrices."""
    mine, theirs = both(COPIES, monkeypatch)
    assert not mine.error and any(mine.out)
    for name, value in vars(theirs).items():
        assert getattr(mine, name) == value, name


@pytest.fixture
def access_in_python(monkeypatch):
    """Machine code calls the rules of accesses as Python; returns the forms that were called."""
    called: set[access.Form] = set()
    kept: list = []  # which machine code calls

    def export(form):
        def call(*arguments):
            called.add(form)
            return bool(form.rule(*arguments, form))

        kinds = [ctypes.c_bool, *(ctypes.c_bool if bits == 1 else ctypes.c_int64 for bits in access.ARGUMENTS)]
        kept.append(ctypes.PYFUNCTYPE(*kinds)(call))
        llvm.add_symbol(str(form), ctypes.cast(kept[-1], ctypes.c_void_p).value)

    name = access.Form.__str__
    monkeypatch.setattr(access.Form, "__str__", lambda form: f"python.{name(form)}")
    monkeypatch.setattr(access, "export", export)
    monkeypatch.setattr(Compiler, "kept", lambda self, what, make: make())
    yield called
    kept.clear()


@pytest.mark.parametrize("body", all_but([ROWS], [MEMORY, ROWS]), ids=["lanes", "rows"])
def test_rules_of_accesses_as_python_leave_the_same(body, access_in_python, monkeypatch):
    """Their one text, run instead of compiled."""
    mine, theirs = both(body + "    ", monkeypatch)  # a program of its own
    assert not mine.error and any(mine.out) and len(access_in_python) > 8
    for name, value in vars(theirs).items():
        assert getattr(mine, name) == value, name


def test_machine_code_keeps_no_launch(monkeypatch):
    """It lives as long as its kernel; a launch has gigabytes of shared memory and shadows."""
    alive = weakref.WeakSet()

    class Watched(emulated_gpu.machine.launch.Launch):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            alive.add(self)

    monkeypatch.setattr(emulated_gpu.device, "Launch", Watched)
    monkeypatch.setattr(hot_blocks, "START", -1e9)
    monkeypatch.setattr(hot_blocks, "CROSSING", -1e3)
    out, given = (allocate(1024).view(np.uint32) for _ in range(2))
    text = HEADER + MEMORY + "  "
    for _ in range(2):
        emulated_gpu.launch(text, "k", 2, 64, [out, given])
        assert not alive
    program = emulated_gpu.DEVICE.module(text).program("k").predicated
    assert any(isinstance(block, hot_blocks.Native) for block in program.blocks)


def test_ended_clusters_are_freed(monkeypatch):
    """At once, though the log names their warps: a search for garbage would take as long as they ran."""
    ended, left = [], []

    def part(cluster, original=Cluster.part):
        left.append(sum(before() is not None for before in ended))
        ended.append(weakref.ref(cluster))
        original(cluster)

    monkeypatch.setattr(Cluster, "part", part)
    out, given = (allocate(1024).view(np.uint32) for _ in range(2))
    with emulated_gpu.session(most=99) as session:
        emulated_gpu.launch(HEADER + FAULTS["CTAs"] + "   ", "k", 4, 64, [out, given])
    assert left == [0] * 4
    assert "store of warp 0 of CTA (0, 0, 0)" in str(session.errors[0])


FAULTS = {
    "out-of-bounds": "ld.global.b32 r7, [d4+1024]; st.global.b32 [d3], r7; ret; }",
    "misaligned": "add.u64 d3, d3, 2; st.global.b32 [d3], r0; ret; }",
    "shared bounds": "st.shared.b32 [r5+16384], r0; ret; }",
    "unwritten": "ld.shared.b32 r7, [r5]; st.global.b32 [d3], r7; ret; }",
    "local bounds": "mov.u64 d5, own; add.u64 d5, d5, d2; st.local.b32 [d5], r0; st.global.b32 [d3], r0; ret; }",
    "unwritten local": "mov.u64 d5, own; @p0 st.local.b32 [d5], r0; ld.local.b32 r7, [d5];"
    "st.global.b32 [d3], r7; ret; }",
    "no barrier": "st.shared.b32 [r5], r0; ld.shared.b32 r7, [r6]; st.global.b32 [d3], r7; ret; }",
    "overwritten": "st.shared.b32 [r5], r0; bar.sync 0; ld.shared.b32 r7, [r6]; st.shared.b32 [r5], r1;"
    "st.global.b32 [d3], r7; ret; }",
    "bytes of other lanes": "mov.u32 r10, 0; mov.u16 h0, 1; mad.lo.u32 r6, r0, 2, r3;"
    "LOOP: st.shared.v2.u8 [r6], {h0, h0}; shr.u32 r7, r10, 1; xor.b32 r7, r7, r0; mad.lo.u32 r7, r7, 2, r3;"
    "ld.shared.v2.u8 {h1, h2}, [r7]; cvt.u32.u16 r8, h1; st.global.b32 [d3], r8;"
    "add.u32 r10, r10, 1; setp.lt.u32 p2, r10, 3; @p2 bra LOOP; ret; }",
    "CTAs": "mul.wide.u32 d5, r0, 4; add.u64 d5, d0, d5; add.u32 r7, r0, r1; st.global.b32 [d5], r7; ret; }",
    "what CTAs have read": "ld.global.b32 r7, [d1+64]; ld.global.b32 r8, [d1+64]; add.u32 r7, r7, r8;"
    "st.global.b32 [d3], r7; setp.gt.u32 p3, r2, 126; @p3 st.global.b32 [d1+64], r7; ret; }",
    "a row of other lanes": "mad.lo.u32 r6, r0, 8, r3; st.shared.v2.b32 [r6], {r0, r1}; ld.shared.b32 r7, [r5];"
    "st.global.b32 [d3], r7; ret; }",
    "a row that lanes read": "mad.lo.u32 r6, r0, 16, r3; st.shared.v4.b32 [r6], {r0, r1, r0, r1}; bar.sync 0;"
    "shr.u32 r7, r0, 5; mad.lo.u32 r7, r7, 384, r5; add.u32 r6, r7, r4; ld.shared.v2.b32 {r8, r9}, [r6];"
    "st.shared.b32 [r7], r4; st.global.b32 [d3], r8; ret; }",
    "a row of another warp": "xor.b32 r6, r4, 128; add.u32 r6, r6, r3; st.shared.b32 [r6], r0; bar.sync 0;"
    "st.shared.b32 [r5], r0; ld.shared.b32 r7, [r6]; st.global.b32 [d3], r7; ret; }",
    "a row that is read": "st.shared.b32 [r5], r0; xor.b32 r6, r4, 128; add.u32 r6, r6, r3; bar.sync 0;"
    "ld.shared.b32 r7, [r6]; st.shared.b32 [r5], r7; st.global.b32 [d3], r7; ret; }",
    "one word": "and.b32 r6, r0, 0; add.u32 r6, r6, r3; st.shared.b32 [r5], r0; bar.sync 0;"
    "@p0 st.shared.b32 [r5], r6; ld.shared.b32 r7, [r6]; st.global.b32 [d3], r7; ret; }",
    "unset register": "setp.gt.u32 p3, r0, 90; add.u32 r7, r16, 1; @p3 mov.u32 r17, 1; st.global.b32 [d3], r7; ret; }",
}


@pytest.mark.parametrize("body", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told_the_same(body, monkeypatch):
    mine, theirs = both(body, monkeypatch)
    assert mine.error or mine.noted
    assert (mine.error, mine.noted, mine.lanes) == (theirs.error, theirs.noted, theirs.lanes)


def test_timed_runs_stay_python(monkeypatch):
    """The model charges blocks one by one, and what the tensor core would compute is left out."""
    monkeypatch.setattr(hot_blocks, "START", -1e9)
    monkeypatch.setattr(Region, "compile", lambda self: pytest.fail("compiled"))
    out, given = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    with emulated_gpu.timing("b200"):
        emulated_gpu.launch(HEADER + MEMORY, "k", 2, 64, [out, given])
