"""K = 96 of sm_103, K = 128 and 64 (FP8) of sm_107, what else their tcgen05 has: against products computed apart."""

import numpy as np
import pytest
from corpus.kernels import HEADER

import emulated_gpu
from emulated_gpu.chip import CHIPS
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats import instruction_descriptor, matrix_descriptor
from emulated_gpu.state.tensor_memory import TensorMemory
from emulated_gpu.units.mma import _load_shared as load_shared
from emulated_gpu.units.mma import mma, scale_factors
from tests.emulated_gpu.units.test_tcgen05_forms import SCALES, kernel, scale_image, small_float, store, vector

M, N = 128, 64
PLACES = {"a": 0, "b": 8192, "sfa": 12288, "sfb": 13312}
BYTES = 14336
BIT = {96: 1 << 31, 128: 1 << 3}  # of the instruction descriptor
MACHINE = {96: "b300", 128: "rubin"}
# kind, scale_vec of K = 64, codes of scale factors and their values
SCALED = {
    "mxf4nvf4 4X": ("mxf4nvf4", 4, {0x30: 0.5, 0x38: 1, 0x40: 2}, 0),
    "mxf4nvf4 2X": ("mxf4nvf4", 2, {126: 0.5, 127: 1, 129: 4}, 1 << 23),
    "mxf4": ("mxf4", 2, {126: 0.5, 127: 1, 129: 4}, 1 << 23),
    "mxf4nvf4 4X ue5m3": ("mxf4nvf4", 4, {0x70: 0.5, 0x78: 1, 0x83: 2.75}, 2 << 23),
    "mxf4nvf4 2X ue5m3": ("mxf4nvf4", 2, {0x70: 0.5, 0x78: 1, 0x83: 2.75}, 2 << 23),
}
PROBLEMS = [(k, at, one) for one in SCALED for k, at in ((96, 0), (96, 2), (128, 0)) if k == 128 or "5m3" not in one]


@pytest.fixture
def machine(monkeypatch):
    """Make a machine the device's."""
    return lambda name: monkeypatch.setattr(DEVICE, "chip", CHIPS[name])


def descriptor(register, name, strides, offset=0):
    at = f"mov.u32 r1, image;\nadd.u32 r1, r1, {PLACES[name] + offset};\nshr.u32 r1, r1, 4;\n"
    return f"{at}cvt.u64.u32 {register}, r1;\nor.b64 {register}, {register}, {strides};\n"


def operand(rng, rows, k):
    """(bytes [rows, k / 2], values [rows, k]) of FP4, the even one in the low bits."""
    codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
    values = np.vectorize(lambda code: small_float(int(code), 2, 1))(codes)
    return codes[:, ::2] | codes[:, 1::2] << 4, values


@pytest.mark.parametrize("k, first, scaled", PROBLEMS)
def test_mma(k, scaled, first, machine):
    """first: the byte of the words at which the scale factors begin."""
    kind, vec, values, of_scale = SCALED[scaled]
    rng, vec = np.random.default_rng(k), vec * k // 64
    machine(MACHINE[k])
    a, of_a = operand(rng, M, k)
    b, of_b = operand(rng, N, k)
    image = np.zeros(BYTES, np.uint8)
    for name, data in ("a", a), ("b", b):  # 8 rows of 16 bytes, side by side
        placed = data.reshape(-1, 8, k // 32, 16).transpose(0, 2, 1, 3).ravel()
        image[PLACES[name] :][: placed.size] = placed
    issue = ""
    side_by_side = 128 >> 4 << 16 | k // 32 * 128 >> 4 << 32 | 1 << 46
    issue += descriptor("d0", "a", side_by_side) + descriptor("d1", "b", side_by_side)
    factors = []
    for name, rows, column in ("sfa", M, 80), ("sfb", N, 88):
        codes = rng.choice(np.array(list(values), np.uint8), (rows, vec))
        factors.append(np.vectorize(values.get, otypes=[float])(codes))
        words = np.zeros((rows, 8), np.uint8)
        words[:, first : first + vec] = codes
        for i in range(2):
            placed = scale_image(words[:, 4 * i : 4 * i + 4])
            image[PLACES[name] + 512 * i :][:512] = placed
            issue += descriptor("d4", name, SCALES, 512 * i) + f"add.u32 r6, r20, {column + 4 * i};\n"
            issue += "tcgen05.cp.cta_group::1.32x128b.warpx4 [r6], d4;\n"
    form = N >> 3 << 17 | M >> 7 << 27 | 1 << 7 | 1 << 10 | of_scale | BIT[k] | first << 29 | first << 4
    block = "block16" if SCALED[scaled][1] == 4 else "block32"
    mma = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.{block} [r20], d0, d1, r2, [r24], [r25], q;\n"
    issue += f"mov.b32 r2, {form:#x};\nadd.u32 r24, r20, 80;\nadd.u32 r25, r20, 88;\n"
    issue += f"setp.ne.u32 q, t, t;\n{mma}setp.eq.u32 q, t, t;\n{mma}"
    load = f"tcgen05.ld.sync.aligned.32x32b.x64.b32 {vector(64)}, [r21];\ntcgen05.wait::ld.sync.aligned;\n" + store(64)
    ptx = kernel(1, issue, load, BYTES).replace("sm_100a", CHIPS[MACHINE[k]].arch)
    out = np.zeros((1, M, N), np.uint32)
    with emulated_gpu.session():
        emulated_gpu.launch(ptx, "form", 1, M, [out, image])
    per = k // vec
    products = [x * np.repeat(scale, per, 1) for x, scale in zip((of_a, of_b), factors)]
    np.testing.assert_array_equal(out[0].view(np.float32), 2 * products[0] @ products[1].T)


@pytest.mark.parametrize("name, k, error", [
    ("b200", 96, Unsupported), ("b200", 128, Fault), ("b300", 96, None), ("b300", 128, Fault), ("rubin", 96, None),
    ("rubin", 128, None),
])  # fmt: skip
def test_a_chip_has_the_k_of_its_file(name, k, error):
    idesc = N >> 3 << 17 | M >> 7 << 27 | 1 << 7 | 1 << 10 | BIT[k]
    decode = lambda: instruction_descriptor.decode(idesc, "mxf4nvf4", 1, 4, CHIPS[name].fp4_k)  # noqa: E731
    if error:
        with pytest.raises(error):
            decode()
    else:
        assert (decode().k, decode().scale_vec) == (k, k // 16)


@pytest.mark.parametrize("kind, bit, scales, ids", [("f8f6f4", 29, 0, (0,)), ("mxf8f6f4", 31, 2, (0, 2))])
@pytest.mark.parametrize("group", [1, 2])
def test_fp8_of_sm_107_has_another_k(kind, bit, scales, ids, group):
    rng, m, of_f32 = np.random.default_rng(bit), 128 * group, 0 if scales else 1 << 4
    idesc = 16 >> 3 << 17 | 1 << 10 | 1 << bit | of_f32 | (1 << 23 | group << 27 if scales else m >> 4 << 24)
    form = instruction_descriptor.MmaForm(kind, group)
    for id_ in ids:
        d = form.decode(idesc | id_ << 29 | id_ << 4 if scales else idesc, CHIPS["rubin"])
        assert (d.m, d.n, d.k, d.scale_vec, d.sfa_id, d.a_columns) == (m, 16, 64, scales, id_, 16)
    for chip in CHIPS["b200"], CHIPS["b300"]:
        with pytest.raises(Fault, match="reserved"):
            form.decode(idesc, chip)
    if scales:
        with pytest.raises(Fault, match="scale factor ids 1, 0"):
            form.decode(idesc | 1 << 29, CHIPS["rubin"])
    elements, factors = (rng.integers(0, 0x50, (2, 8, 64)), rng.integers(120, 130, (2, 8, scales)))
    a, b = d.a_type.values[elements[0]], d.b_type.values[elements[1]]
    if scales:
        a, b = (x * np.repeat(2.0 ** (of - 127), 32, 1) for x, of in zip((a, b), factors))
    got = mma(d, *elements.astype(np.uint8), None, *(factors.astype(np.uint8) if scales else (None, None)))
    np.testing.assert_allclose(got, a @ b.T, rtol=1e-5)


@pytest.mark.parametrize("code, bits", [(5, 4), (4, 6), (3, 6)])
def test_small_elements_lie_side_by_side_with_the_other_k(code, bits):
    """A row of 64 takes 32 or 48 bytes of shared memory, where that of K = 32 takes 32 with padding."""
    rng = np.random.default_rng(code)
    idesc = 8 >> 3 << 17 | 1 << 31 | 1 << 23 | 1 << 27 | code << 10
    d = instruction_descriptor.MmaForm("mxf8f6f4", 1).decode(idesc, CHIPS["rubin"])
    codes = rng.integers(0, 1 << bits, (8, 64))
    lines = [sum(int(x) << bits * i for i, x in enumerate(row)).to_bytes(8 * bits, "little") for row in codes]
    smem = np.zeros(1024, np.uint8)
    for row, line in enumerate(lines):  # no swizzle: chunks of 16 bytes, eight rows of them side by side
        for chunk in range(bits // 2):
            smem[128 * chunk + 16 * row :][:16] = np.frombuffer(line[16 * chunk :][:16], np.uint8)
    got = load_shared(smem, encode(0, 128, 0, 0), 8, 64, d, False)
    np.testing.assert_array_equal(got, codes)
    assert d.packs(d.b_type) and not d.packs(d.a_type)


def test_scale_factors_of_sm_107():
    idesc, k = N >> 3 << 17 | M >> 7 << 27 | 1 << 7 | 1 << 10, CHIPS["rubin"].fp4_k
    got = instruction_descriptor.decode(idesc | 2 << 23, "mxf4nvf4", 1, 4, k).scale_type.values
    assert got[[0, 1, 7, 8, 0x78, 0xFE]].tolist() == [0, 2**-17, 7 * 2**-17, 2**-14, 1, 114688] and np.isnan(got[0xFF])
    for form, kind, has in (2, "mxf4nvf4", (64, 96)), (3, "mxf4nvf4", k), (2, "mxf4", k):
        with pytest.raises(Fault, match="reserved bits|scale type ue5m3"):
            instruction_descriptor.decode(idesc | form << 23, kind, 1, None if kind == "mxf4" else 4, has)


def test_both_bits_are_no_k():
    with pytest.raises(Fault, match="K = 96 and K = 128"):
        both = 8 << 17 | 1 << 27 | 1 << 7 | 1 << 10 | BIT[96] | BIT[128]
        instruction_descriptor.decode(both, "mxf4", 1, 2, (64, 96, 128))


def encode(start, lbo, sbo, mode=2, more=0):
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | mode << 61 | more


@pytest.mark.parametrize("span, mode", [(128, 2), (64, 4), (32, 6)])
def test_an_absolute_leading_dimension_is_where_k_goes_on(span, mode):
    """A ring of stages of `span` bytes a row: what K = 96 takes, 48 bytes, begins in one and may end in the next."""
    stages, rows = [0x4000, 0x8000, 0x2000], 16
    of_b300 = matrix_descriptor.of_chip(CHIPS["b300"])
    for block in range(span * 2 // 48):
        at = 48 * block
        stage, offset = divmod(at, span)
        desc = encode(stages[stage] + offset, stages[stage + 1], 8 * span, mode, 1 << 52) | of_b300
        index = matrix_descriptor.chunks(desc, rows, 96, False, 4)
        for row in range(rows):
            for chunk in range(3):
                stage, offset = divmod(at + 16 * chunk, span)
                address = stages[stage] + row * span + offset
                bits = {128: 7, 64: 3, 32: 1}[span]  # a swizzle: bits of the address above 7 go to those above 4
                assert index[row, chunk] == (address ^ (address >> 7 & bits) << 4) // 16


def test_other_chips_have_no_absolute_leading_dimension():
    with pytest.raises(Unsupported, match="absolute leading dimension"):
        matrix_descriptor.decode(encode(0, 1024, 1024, more=1 << 52))


def test_an_address_has_another_bit_on_rubin_alone():
    desc = encode(0, 0, 1024, more=1 << 14)
    with pytest.raises(Fault, match="malformed"):
        matrix_descriptor.decode(desc)
    of_rubin = matrix_descriptor.of_chip(CHIPS["rubin"])
    assert matrix_descriptor.decode(desc | of_rubin).start == 1 << 18
    assert matrix_descriptor.decode(encode(0, 1 << 18, 1024) | of_rubin).lbo == 1 << 18
    with pytest.raises(Unsupported, match="segment of K"):
        matrix_descriptor.decode(encode(0, 0, 1024, more=1 << 53) | of_rubin)


@pytest.mark.parametrize("rows, step", [(64, 4), (128, 4), (192, 8), (256, 8)])
def test_the_next_scale_factors_come_behind_those_of_all_rows(rows, step):
    tmem, rng = TensorMemory(), np.random.default_rng(0)
    tmem.alloc(64)
    words = rng.integers(0, 2**32, (32, 16), np.uint64).astype(np.uint32)
    for partition in range(4):
        tmem.write(32 * partition, 0, words, "test")
    found = scale_factors(tmem, 0, rows, 6, 2)
    for row in range(rows):
        cells = [int(words[row % 32, row // 32 + step * i]) for i in range(2)]
        expected = b"".join(cell.to_bytes(4, "little") for cell in cells)[2:8]
        assert found[row].tobytes() == expected


def test_exclusive_columns():
    tmem = TensorMemory(exclusive=576)
    with pytest.raises(Fault, match="power of two"):
        TensorMemory().alloc(576, True)
    assert tmem.room(512) == 0 and tmem.alloc(576, True) == 0
    with pytest.raises(Fault, match="dealloc without .exclusive"):
        tmem.close(0, 576)
    tmem.close(0, 576, exclusive=True)
    tmem.dealloc(0, 576)
    tmem._last_size = 576
    assert tmem.alloc(512) == 0
    with pytest.raises(Fault, match="dealloc with .exclusive"):
        tmem.close(0, 512, exclusive=True)


ALLOC = (
    HEADER.replace("sm_100a", "sm_107a")
    + """
.visible .entry k(.param .u64 p) {
.reg .u32 r<4>; .reg .u64 d; .shared .align 4 .b32 at;
ld.param.u64 d, [p];
tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [at], 576;
bar.sync 0;
ld.shared.b32 r1, [at];
add.u32 r2, r1, 575;
mov.u32 r3, %tid.x;
tcgen05.st.sync.aligned.32x32b.x1.b32 [r2], {r3};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {r3}, [r2];
tcgen05.wait::ld.sync.aligned;
tcgen05.dealloc.exclusive.cta_group::1.sync.aligned.b32 r1, 576;
mad.wide.u32 d, r3, 4, d;
st.global.b32 [d], r3;
ret;
}
"""
)


def test_a_kernel_gets_all_columns_of_rubin_by_exclusive(machine):
    machine("rubin")
    out = np.zeros(32, np.uint32)
    with emulated_gpu.session():
        emulated_gpu.launch(ALLOC, "k", 3, 32, [out])  # of three CTAs each waits for the tensor memory of its SM
    assert out.tolist() == list(range(32))


def test_other_chips_have_no_more_columns_by_exclusive(machine):
    machine("b300")
    out, text = np.zeros(32, np.uint32), ALLOC.replace("sm_107a", "sm_103a")
    with pytest.raises(Fault, match="576 columns: must be a power of two"), emulated_gpu.session():
        emulated_gpu.launch(text, "k", 1, 32, [out])
    with emulated_gpu.session():
        emulated_gpu.launch(text.replace("576", "512").replace("575", "511"), "k", 2, 32, [out])
    assert out.tolist() == list(range(32))
