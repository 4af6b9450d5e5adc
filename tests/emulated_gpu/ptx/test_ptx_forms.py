"""Forms of PTX that compilers write and that are easily taken for mistakes, each with its neighbour that is one."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats import convert, instruction_descriptor, matrix_descriptor, wgmma_descriptor
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {
.reg .b16 h, b; .reg .b32 lo, never, never2, x, y, z; .reg .f32 f, g; .reg .b64 o, pair;
ld.param.u64 o, [out];
"""


def run(body: str, dtype=np.float32, size: int = 4) -> np.ndarray:
    out = np.zeros(size, dtype)
    emulated_gpu.launch(HEAD + body + "ret; }", "k", 1, 1, [out])
    return out


def test_mixed_precision_sums_round_once():
    out = run("""mov.b16 h, 0x3e00; mov.b16 b, 0x3fc0; mov.f32 f, 0f40000000;
        fma.rn.f32.bf16 g, b, b, f; st.global.f32 [o], g;
        fma.rn.f32.f16 g, h, h, f; st.global.f32 [o+4], g;
        add.rz.f32.f16 g, h, f; st.global.f32 [o+8], g;
        sub.rn.f32.bf16 g, b, f; st.global.f32 [o+12], g;""")
    assert out.tolist() == [4.25, 4.25, 3.5, -0.5]


@pytest.mark.parametrize("lane", [0, 1, 4])
def test_what_a_shuffle_takes_of_absent_lanes_matters_where_it_is_used(lane):
    """A maximum of eight lanes by shuffles down with mask 0xff, as CUTLASS has it: lanes 4 to 7 read lanes 8 to 11."""
    text = HEAD + f""".reg .pred p; mov.u32 x, %tid.x; setp.ge.u32 p, x, 8; @p bra OUT; add.u32 y, x, 3;
        shfl.sync.down.b32 z, y, 4, 31, 255; max.u32 y, y, z; shfl.sync.down.b32 z, y, 2, 31, 255; max.u32 y, y, z;
        shfl.sync.down.b32 z, y, 1, 31, 255; max.u32 y, y, z; shfl.sync.idx.b32 y, y, {lane}, 31, 255;
        mul.wide.u32 pair, x, 4; add.u64 o, o, pair; st.global.b32 [o], y; OUT:"""
    out = np.zeros(8, np.int32)
    if lane:
        match = r"down shuffle takes the value of a lane .*; st.global.b32 \(PTX line 10\) uses it"
        with pytest.raises(Fault, match=match) as caught:
            emulated_gpu.launch(text + " ret; }", "k", 1, 32, [out])
        assert caught.value.kind == "divergence" and "PTX line 8" in caught.value.where
    else:
        emulated_gpu.launch(text + " ret; }", "k", 1, 32, [out])
        assert out.tolist() == [10] * 8


@pytest.mark.parametrize(
    "form",
    [
        "add.rn.f64.f16 g, h, f",
        "add.rn.ftz.f32.f16 g, h, f",
        "fma.rn.relu.f32.bf16 g, b, b, f",
        "mul.rn.f32.bf16 g, b, f",
        *"""sub.u16x2 x, x, x; neg.s16x2 x, x; cvt.u32.bf16 x, b; cvt.f32.s32 f, x; cvt.f16.f32 h, f
cvt.rna.relu.tf32.f32 x, f; cvt.rp.satfinite.f16.f32 h, f; cvt.rn.ftz.satfinite.f16.f32 h, f; cvt.rm.bf16x2.f32 x, f, g
atom.global.max.noftz.bf16x2 x, [o], x; red.global.min.noftz.bf16x2 [o], x; cp.async.ca.shared.global [s], [o], 4, 4, p
cp.async.cg.shared.global [s], [o], 16, 8, p; rsqrt.rn.f32 g, f; ex2.rn.f32 g, f; cvt.rni.f32.s32 f, x
cvt.rn.s32.f32 x, f; min.xorsign.f32 g, f, f; max.abs.f32 g, f, f; min.xorsign.abs.f32 g, f, f, f; max.f16 h, h, h, h
cvt.rz.satfinite.e4m3x2.f32 h, f, f; cvt.rn.ue8m0x2.f32 h, f, f; cvt.rz.satfinite.ue8m0x2.f16x2 h, x
cvt.rz.satfinite.relu.ue8m0x2.f32 h, f, f""".replace("\n", "; ").split("; "),
    ],
)
def test_what_no_target_has_is_refused(form):
    """As ptxas refuses them for all targets, 13.4 or 13.0."""
    begin = ".reg .pred p; .shared .b32 s[8]; mov.b16 h, 0; mov.b16 b, 0; mov.b32 x, 0; mov.f32 f, 0f40000000;"
    with pytest.raises(Unsupported, match="PTX line 7"):
        run(f"{begin} mov.f32 g, f; setp.eq.u32 p, x, 0; {form}; st.global.f32 [o], g;")


def test_a_copy_that_ignores_its_source_fills_with_zeros():
    """cp.async, ignore-src (PTX ISA 9.7.9.25.3.1)."""
    out = run(""".reg .pred p; .shared .b32 s[4]; mov.f32 f, 0f40000000; st.global.f32 [o], f; st.global.f32 [o+4], f;
        mov.b32 x, 1; setp.eq.u32 p, x, 1; mov.b32 y, s; add.u32 z, y, 4; st.shared.f32 [y], f;
        cp.async.ca.shared.global [y], [o], 4, p; cp.async.ca.shared.global [z], [o+4], 4, !p; cp.async.wait_all;
        ld.shared.f32 f, [y]; ld.shared.f32 g, [z]; st.global.f32 [o+8], f; st.global.f32 [o+12], g;""")
    assert out.tolist() == [2, 2, 0, 2]


def test_small_floats_become_two_bf16():
    out = run("mov.b16 h, 0xb844; cvt.rn.bf16x2.e4m3x2 x, h; st.global.b32 [o], x;"
              "cvt.rn.bf16x2.e5m2x2 x, h; st.global.b32 [o+4], x;", np.uint16, 8)  # fmt: skip
    values = (out.astype(np.uint32) << 16).view(np.float32)
    assert values[:4].tolist() == [3.0, -1.0, 4.0, -0.5]


def test_an_undefined_part_of_a_vector_is_garbage_that_nobody_needs():
    body = "mov.b32 lo, 7; mov.b64 pair, {lo, never}; mov.b64 {x, y}, pair; st.global.b32 [o], x;"
    assert run(body, np.int32)[0] == 7
    body = "mov.b32 lo, 7; prmt.b32 x, never, never2, 0x3340; prmt.b32 y, lo, x, 0x3210; st.global.b32 [o], y;"
    assert run(body, np.int32)[0] == 7
    body = "mov.f32 f, 0f40000000; cvt.rn.satfinite.e4m3x2.f32 h, never, f; st.global.b8 [o], h;"
    assert run(body, np.uint8)[0] == 0x40
    body = "shfl.sync.idx.b32 x, never, 0, 31, 1; mov.b32 lo, 7; st.global.b32 [o], lo;"
    assert run(body, np.int32)[0] == 7


@pytest.mark.parametrize(
    "body",
    [
        "cvt.rn.satfinite.e4m3x2.f32 h, never, never2; st.global.b8 [o], h;",
        "mov.b64 pair, {never, never2}; st.global.b64 [o], pair;",
        "mov.b32 lo, 7; mov.b64 pair, {lo, never}; st.global.b64 [o], pair; add.u32 x, never, 1; st.global.b32 [o], x;",
    ],
)
def test_a_register_that_nothing_writes_is_a_fault_elsewhere(body):
    with pytest.raises(Fault, match="read before anything was written"):
        run(body)


MATRICES = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
.reg .b32 lane, at, r<4>; .reg .b64 i, o; .shared .align 16 .b8 tile[512];
ld.param.u64 i, [in]; ld.param.u64 o, [out];
cvta.to.global.u64 i, i; cvta.to.global.u64 o, o;
mov.u32 lane, %tid.x; mov.u32 at, tile; mad.wide.u32 i, lane, 16, i; mad.lo.u32 at, lane, 16, at;
"""


def moved(body: str, data: np.ndarray) -> np.ndarray:
    """Run a body in which each lane has `i`, `o` and `at`: its 16 bytes of data, and of a tile in shared memory."""
    out = np.zeros(512, np.uint8)
    emulated_gpu.launch(MATRICES + body + "ret; }", "k", 1, 32, [data, out])
    return out


@pytest.mark.parametrize("count", [1, 2])
def test_ldmatrix_of_bytes_transposes_them(count):
    data = np.random.default_rng(7).integers(0, 256, 512, np.uint8)  # two matrices of 16 rows
    registers = ["r0", "r1", "r2", "r3"][: 2 * count]
    stores = "".join(f"st.global.b32 [o+{4 * k}], {r};" for k, r in enumerate(registers))
    out = moved(
        f"""ld.global.v4.b32 {{r0, r1, r2, r3}}, [i]; st.shared.v4.b32 [at], {{r0, r1, r2, r3}}; bar.sync 0;
        ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {{{", ".join(registers)}}}, [at];
        mad.wide.u32 o, lane, 16, o; {stores}""",
        data,
    ).reshape(32, 4, 4)
    for lane in range(32):
        for k in range(2 * count):  # register k has four rows of a column
            matrix = data.reshape(2, 16, 16)[k // 2]
            assert out[lane, k].tolist() == matrix[4 * (lane % 4) :, lane // 4 + 8 * (k % 2)][:4].tolist()


@pytest.mark.parametrize("form, bits", [("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)])
@pytest.mark.parametrize("shape, rows, count", [("m8n16", 8, 4), ("m16n16", 16, 2), ("m16n16", 16, 1)])
def test_ldmatrix_unpacks_elements_of_6_and_4_bits(form, bits, shape, rows, count):
    """9.7.14.5.15: a row's 16 elements lie in its first 12 or 8 bytes; nobody has written the rest, and that is none
    of its business."""
    data = np.random.default_rng(9).integers(0, 256, (32, 16), np.uint8)
    trans, registers = ".trans" * (rows == 16), ["r0", "r1", "r2", "r3"][: count * rows // 8]
    stores = "".join(f"st.global.b32 [o+{4 * k}], {r};" for k, r in enumerate(registers))
    third = "ld.global.b32 r2, [i+8]; st.shared.b32 [at+8], r2;" * (bits == 6)
    out = moved(
        f"""ld.global.v2.b32 {{r0, r1}}, [i]; st.shared.v2.b32 [at], {{r0, r1}}; {third} bar.sync 0;
        ldmatrix.sync.aligned.{shape}.x{count}{trans}.shared.{form} {{{", ".join(registers)}}}, [at];
        mad.wide.u32 o, lane, 16, o; {stores}""",
        data.ravel(),
    ).reshape(32, 4, 4)
    numbers = [int.from_bytes(row[: 2 * bits].tobytes(), "little") for row in data]
    elements = np.array([[n >> bits * k & (1 << bits) - 1 for k in range(16)] for n in numbers]).reshape(-1, rows, 16)
    for lane, k in np.ndindex(32, len(registers)):
        part = elements[k // (rows // 8)]
        column, row = lane // 4 + 8 * (k % 2), lane // 4
        four = part[4 * (lane % 4) :, column][:4] if trans else part[row, 4 * (lane % 4) :][:4]
        assert out[lane, k].tolist() == four.tolist()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes_transposes_them(count):
    data = np.random.default_rng(8).integers(0, 256, 512, np.uint8)
    registers = ["r0", "r1", "r2", "r3"][:count]
    out = moved(
        f"""ld.global.v4.b32 {{r0, r1, r2, r3}}, [i];
        stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [at], {{{", ".join(registers)}}};
        bar.sync 0; .reg .pred mine; setp.lt.u32 mine, lane, {8 * count};
        @mine ld.shared.v4.b32 {{r0, r1, r2, r3}}, [at]; mad.wide.u32 o, lane, 16, o;
        @mine st.global.v4.b32 [o], {{r0, r1, r2, r3}};""",
        data,
    ).reshape(4, 8, 16)
    for lane in range(32):
        for k, byte in np.ndindex(count, 4):  # bytes 0, 1: two rows of a column; 2, 3: of that 8 columns on
            row, column = 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)
            assert out[k, row, column] == data.reshape(32, 4, 4)[lane, k, byte]


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_stmatrix_converts_what_nobody_else_reads(to, again, trans):
    """again: somebody reads the halves of the second matrix, so that they are made where PTX does."""
    data = np.random.default_rng(9).integers(0, 2**32, (32, 4), np.uint32) & 0xB7FFFFFF  # no infinities as f16
    data[5] = 0x7F800001, 0xFF812345, 0x477FEFFF, 0x33000001  # NaN, the most, and what is just above zero
    body = f""".reg .b32 first, second; ld.global.v4.b32 {{r0, r1, r2, r3}}, [i];
        cvt.rn.{to}x2.f32 first, r1, r0; cvt.rn.{to}x2.f32 second, r3, r2; mov.b32 r1, 0;
        stmatrix.sync.aligned.m8n8.x2{".trans" * trans}.shared.b16 [at], {{first, second}};
        bar.sync 0; .reg .pred mine; setp.lt.u32 mine, lane, 16;
        @mine ld.shared.v4.b32 {{r0, r1, r2, r3}}, [at]; mad.wide.u32 o, lane, 16, o;
        @mine st.global.v4.b32 [o], {{r0, r1, r2, r3}}; {"@mine st.global.b32 [o+256], second;" * again}"""
    out = moved(body, data.view(np.uint8).ravel()).view(np.uint16)
    each = convert.to_halves(data[:, [1, 3]].ravel(), data[:, [0, 2]].ravel(), to).view(np.uint16).reshape(8, 4, 2, 2)
    matrices = each.transpose(2, 0, 1, 3).reshape(2, 8, 8)  # lane 4 * row + column / 2
    assert (out[:128] == (matrices.swapaxes(1, 2) if trans else matrices).ravel()).all()
    program = ControlFlow(parse(MATRICES + body + "ret; }").kernels["k"], "ptx")
    texts = "".join(program.write(b, alone=True).finish()[0] for b in range(len(program.start)))
    assert texts.count("later_halves") == 2 - again


@pytest.mark.parametrize(
    "form, why",
    [
        ("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {r0, r1}, [at]", "m16n16 x1 of 8 bits without .trans"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r0}, [at]", "register count"),
        ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b8 {r0, r1}, [at]", "m8n8 x1 of 8 bits"),
        ("ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64 {r0}, [at]", "m8n16 x1 of 4 bits"),
        ("ldmatrix.sync.aligned.m16n16.x1.shared.b8x16.b6x16_p32 {r0}, [at]", "m16n16 x1 of 6 bits without .trans"),
        ("stmatrix.sync.aligned.m16n8.x1.shared.b8 [at], {lane}", "m16n8 of 8 bits without .trans"),
    ],
)
def test_matrices_that_do_not_exist_are_refused(form, why):
    with pytest.raises(Unsupported, match=why):
        moved(form + ";", np.zeros(512, np.uint8))


def test_bit_12_means_nothing_where_operands_have_4_bits():
    decode = instruction_descriptor.decode
    assert decode(0x08401480, "mxf4nvf4", 2, 4) == decode(0x08400480, "mxf4nvf4", 2, 4)
    with pytest.raises(Fault, match="element types"):  # there it is a bit of B's type
        decode(0x08801400 | 7 << 10, "mxf8f6f4", 2, 1)


def test_a_base_offset_means_nothing_without_a_swizzle():
    offset = 3 << 49
    assert matrix_descriptor.decode(1 << 46 | 64 | offset) == matrix_descriptor.decode(1 << 46 | 64)
    assert wgmma_descriptor.decode(64 | offset) == wgmma_descriptor.decode(64)
    for decode, desc in ((matrix_descriptor.decode, 1 << 46 | 2 << 61), (wgmma_descriptor.decode, 1 << 62)):
        with pytest.raises(Unsupported, match="base offset 3"):
            decode(desc | offset)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("cells", [1, 5, 32])
def test_atomics_of_lanes_that_meet_in_a_cell(space, cells):
    """Each lane finds what those before it have left there, and the last one's result stays."""
    body = f""".reg .b32 a, t, old, v; .reg .b64 at, w; .reg .pred p; .shared .align 8 .b8 s[128];
        mov.u32 t, %tid.x; rem.u32 a, t, {cells}; mul.wide.u32 at, t, 4; add.u64 w, o, at;
        mov.u64 pair, s; add.u64 pair, pair, at;
        st.global.b32 [w], 0; st.shared.b32 [pair], 0; bar.sync 0; mul.wide.u32 at, a, 4;
        {"add.u64 pair, o, at" if space == "global" else "mov.u64 pair, s; add.u64 pair, pair, at"};
        cvt.rn.f32.u32 f, t; add.f32 f, f, 0f3F000000; setp.ne.u32 p, t, 7;
        @p atom.add.{space}.f32 g, [pair], f; @!p mov.f32 g, 0fBF800000; bar.sync 0; st.global.f32 [w+128], g;
        ld.{space}.b32 v, [pair]; bar.sync 0; @p bra LAST; exit; LAST: add.u64 w, o, at; st.global.b32 [w], v;"""
    out = np.zeros(64, np.float32)
    emulated_gpu.launch(HEAD + body + "ret; }", "k", 1, 32, [out])
    sums, found = np.zeros(cells, np.float32), np.full(32, -1, np.float32)
    for lane in set(range(32)) - {7}:
        found[lane] = sums[lane % cells]
        sums[lane % cells] += lane + 0.5
    assert out[32:].tolist() == found.tolist()
    assert out[:cells].tolist() == sums.tolist()
