"""wmma.load, wmma.mma, wmma.store: all shapes, types and layouts, against NumPy on numbers whose sums are exact."""

import itertools

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault
from emulated_gpu.formats.element_types import TF32, U1
from emulated_gpu.formats.wmma_form import _SHAPES, Fragment, sizes
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
KERNEL = HEAD + """.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{
    .reg .b64 a, b, c, d; .reg .{kind} x<8>, y<8>, z<8>, w<8>;
    ld.param.u64 a, [pa]; ld.param.u64 b, [pb]; ld.param.u64 c, [pc]; ld.param.u64 d, [pd];
    wmma.load.a.sync.aligned.{la}.{shape}.global.{ab} {{{x}}}, [a], {sa};
    wmma.load.b.sync.aligned.{lb}.{shape}.global.{ab} {{{y}}}, [b], {sb};
    wmma.load.c.sync.aligned.{lc}.{shape}.global.{cd} {{{z}}}, [c], {sc};
    wmma.mma.{bitwise}sync.aligned.{la}.{lb}.{shape}.{types} {{{w}}}, {{{x}}}, {{{y}}}, {{{z}}};
    wmma.store.d.sync.aligned.{lc}.{shape}.global.{cd} [d], {{{w}}}, {sc}; ret; }}
"""
FORMS = [
    (a, d, shape, *layouts)
    for a, (shapes, results) in _SHAPES.items() for d in results for shape in shapes
    for layouts in itertools.product(("row", "col"), repeat=3)
    if a.bits >= 8 or layouts[:2] == ("row", "col")
]  # fmt: skip


def packed(matrix: np.ndarray, kind, row_major: bool, pad: int = 0) -> tuple[np.ndarray, int]:
    """A matrix of small integers as memory has it, and its leading dimension. pad: elements behind each line."""
    lines = matrix if row_major else matrix.T
    lines = np.ascontiguousarray(np.pad(lines, ((0, 0), (0, pad))))
    if kind.bits < 8:
        bits = (lines.reshape(-1)[:, None] >> np.arange(kind.bits) & 1).astype(np.uint8)
        return np.packbits(bits.ravel(), bitorder="little"), lines.shape[1]
    if kind.name.startswith(("s", "u")):
        return lines.astype(f"i{kind.bits // 8}").view(np.uint8), lines.shape[1]
    if kind.name == "bf16":
        return (lines.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), lines.shape[1]
    dtype = {16: np.float16, 32: np.float32, 64: np.float64}[32 if kind is TF32 else kind.bits]
    return np.ascontiguousarray(lines, dtype), lines.shape[1]


@pytest.mark.parametrize(
    ("a_type", "d_type", "shape", "la", "lb", "lc"), FORMS, ids=lambda v: v if isinstance(v, str) else v.name
)
def test_products(a_type, d_type, shape, la, lb, lc):
    m, n, k = sizes(shape)
    draw = np.random.default_rng(m + n)
    low, high = (0, 2) if a_type is U1 else (0, 8) if a_type.name in ("u8", "u4") else (-4, 5)
    a, b = draw.integers(low, high, (m, k)), draw.integers(low, high, (k, n))
    c = draw.integers(-50, 50, (m, n))
    registers = {
        role: Fragment(role, shape, kind, True if role != "b" else a_type.bits >= 8).registers
        for role, kind in (("a", a_type), ("b", a_type), ("d", d_type))
    }
    names = {x: ", ".join(f"{x}{r}" for r in range(registers[role])) for x, role in zip("xyzw", "abdd", strict=True)}
    memory, strides = zip(
        packed(a, a_type, la == "row", 16 if a_type.bits >= 8 else 0),
        packed(b, a_type, lb == "row"), packed(c, d_type, lc == "row", 8), strict=True,
    )  # fmt: skip
    pair = f"{d_type.name}.{d_type.name}"
    name = "b1" if a_type is U1 else a_type.name
    types = pair if name == "f16" else f"{d_type.name}.{name}.{name}.{d_type.name}"
    types += ".rn" * (name == "f64" and lc == "row")  # as nvcc writes it
    text = KERNEL.format(
        kind="b64" if a_type.name == "f64" else "b32", la=la, lb=lb, lc=lc, shape=shape, types=types, **names,
        ab=name, cd=d_type.name, bitwise="xor.popc." if a_type is U1 else "",
        **dict(zip(("sa", "sb", "sc"), strides, strict=True)),
    )  # fmt: skip
    out = np.zeros_like(memory[2])
    with emulated_gpu.session(strict=True):
        emulated_gpu.launch(text, "k", 1, 32, [*memory, out])
    product = (a[:, :, None] ^ b[None]).sum(axis=1) if a_type is U1 else a @ b
    assert (out == packed(product + c, d_type, lc == "row", 8)[0]).all()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k8.f16 {x0}, [a];", "a fragment of a"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {x0, x1}, [a];", "2 registers where 8 are due"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 {x0}, {x0}, {x0}, {x0};", "C of f16 and D of f32"),
    ],
)
def test_what_is_not_served_is_refused(line, why):
    text = f"{HEAD}.visible .entry k() {{ .reg .b64 a; .reg .b32 x<8>; {line} ret; }}"
    program = ControlFlow(parse(text).kernels["k"])
    source, _ = program.write(0).finish()
    assert why in source


def test_two_warps_without_a_barrier():
    """What a warp stores to shared memory another one loads as a fragment."""
    body = """.visible .entry k(.param .u64 p) { .shared .align 32 .b8 tile[512]; .reg .b32 t, at, x<8>; .reg .pred q;
        mov.u32 t, %tid.x; mad.lo.u32 at, t, 8, tile; st.shared.v2.b32 [at], {t, t}; MEND setp.gt.u32 q, t, 31; @q ret;
        wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {x0, x1, x2, x3, x4, x5, x6, x7}, [tile], 16; ret; }"""
    emulated_gpu.launch(HEAD + body.replace("MEND", "bar.sync 0;"), "k", 1, 64, [np.zeros(4, np.uint32)])
    with pytest.raises(emulated_gpu.Fault) as found:
        emulated_gpu.launch(HEAD + body.replace("MEND", ""), "k", 1, 64, [np.zeros(4, np.uint32)])
    assert found.value.kind in ("race", "uninitialized-read")


@pytest.mark.parametrize("what", ["wmma.load.a", "wmma.store.d"])
def test_a_race_names_the_line_of_both(what):
    """Warp 0 accesses a matrix by wmma, warp 1 writes to it: both are told by the lines of their PTX."""
    names = ", ".join(f"x{k}" for k in range(8))
    access = f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {{{names}}}, [a], 16;"
    if what == "wmma.store.d":
        access = f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [a], {{{names}}}, 16;"
    text = HEAD + ".visible .entry k(.param .u64 pa) {\n.reg .b64 a; .reg .b32 t, x<8>; .reg .pred p;\n"
    text += "".join(f"mov.b32 x{k}, 0;" for k in range(8)) + "\nld.param.u64 a, [pa];\nmov.u32 t, %tid.x;\n"
    text += f"setp.gt.u32 p, t, 31;\n@p bra other;\n{access}\nret;\nother: st.global.b32 [a], t;\nret; }}\n"
    with pytest.raises(Fault, match=r"(?s)race.* of warp 0 of CTA \(0, 0, 0\) \(PTX line 11\).* PTX line 13"):
        emulated_gpu.launch(text, "k", 1, 64, [np.zeros(1024, np.uint8)])
