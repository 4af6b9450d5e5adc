"""mma.sync with a .kind (sm_120) against float64, its fragments placed by hand; and how sm_80 and sm_89 round."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu import Unsupported
from emulated_gpu.chip import CHIPS
from emulated_gpu.device import DEVICE
from emulated_gpu.formats.element_types import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, TF32, UE4M3, UE8M0
from emulated_gpu.formats.mma_sync_form import MmaSyncForm
from emulated_gpu.units.mma_sync import product

KERNEL = """.version 8.8
.target TARGET
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 ps, .param .u64 pd) {
  .reg .b32 r<10>; .reg .f32 f<9>; .reg .b64 d<8>;
  ld.param.u64 d1, [pa]; ld.param.u64 d2, [pb]; ld.param.u64 d3, [pc]; ld.param.u64 d4, [ps]; ld.param.u64 d5, [pd];
  mov.u32 r9, %tid.x; mul.wide.u32 d6, r9, 16; mul.wide.u32 d7, r9, 8;
  add.u64 d1, d1, d6; add.u64 d3, d3, d6; add.u64 d5, d5, d6; add.u64 d2, d2, d7; add.u64 d4, d4, d7;
  ld.global.v4.b32 {r1,r2,r3,r4}, [d1]; ld.global.v2.b32 {r5,r6}, [d2];
  ld.global.v4.f32 {f1,f2,f3,f4}, [d3]; ld.global.v2.b32 {r7,r8}, [d4];
  MMA {f5,f6,f7,f8}, {r1,r2,r3,r4}, {r5,r6}, {f1,f2,f3,f4}SCALES;
  st.global.v4.f32 [d5], {f5,f6,f7,f8}; ret;
}
"""
MX = "mma.sync.aligned.m16n8k64.row.col.kind::{}.block_scale{}.f32.e2m1.e2m1.f32.{}"


def run(op: str, arrays, scales: str = "", target: str = "sm_120a", machine: str = "rtx5090") -> None:
    text = KERNEL.replace("TARGET", target).replace("MMA", op).replace("SCALES", scales)
    with DEVICE.as_chip(CHIPS[machine]), emulated_gpu.session():
        emulated_gpu.launch(text, "k", 1, 32, arrays)


def codes(rng, of, rows: int, k: int) -> np.ndarray:
    """Draw finite codes of a type, uint8 [rows, k]."""
    drawn = rng.integers(0, 1 << of.bits, (rows, k)).astype(np.uint8)
    return np.where(np.isfinite(of.values[drawn]), drawn, 0).astype(np.uint8)


def packed(x: np.ndarray, of, k: int) -> np.ndarray:
    """The 32 bytes of each row: two elements a byte if K is 64, else one, of 4 bits in bits 2 to 5."""
    if k == 64:
        return x[:, ::2] | x[:, 1::2] << 4
    return x << 2 if of.bits == 4 else x


@pytest.mark.parametrize("kind, vec, a_type, b_type, k, scale, selectors", [
    ("mxf4nvf4", 4, E2M1, E2M1, 64, UE4M3, (0, 0, 0, 0)),
    ("mxf4nvf4", 4, E2M1, E2M1, 64, UE4M3, (0, 1, 0, 3)),
    ("mxf4nvf4", 2, E2M1, E2M1, 64, UE8M0, (2, 1, 0, 2)),
    ("mxf4", 2, E2M1, E2M1, 64, UE8M0, (0, 0, 2, 1)),
    ("mxf8f6f4", 1, E4M3, E5M2, 32, UE8M0, (3, 1, 2, 0)),
    ("mxf8f6f4", 1, E2M1, E3M2, 32, UE8M0, (0, 0, 1, 3)),
    ("f8f6f4", 0, E4M3, E4M3, 32, None, ()),
    ("f8f6f4", 0, E2M3, E2M1, 32, None, ()),
])  # fmt: skip
def test_kinds(kind, vec, a_type, b_type, k, scale, selectors):
    """D [16, 8] is A [16, k] * B [8, k] + C but for truncation; scales come from the lanes selected alone."""
    rng = np.random.default_rng(1)
    a_codes, b_codes = codes(rng, a_type, 16, k), codes(rng, b_type, 8, k)
    c_values = rng.standard_normal((16, 8)).astype(np.float32)
    a, b, c = np.zeros((32, 4, 4), np.uint8), np.zeros((32, 2, 4), np.uint8), np.zeros((32, 4), np.float32)
    a_bytes, b_bytes = packed(a_codes, a_type, k), packed(b_codes, b_type, k)
    for lane in range(32):
        row, pair = divmod(lane, 4)
        for r in range(4):
            a[lane, r] = a_bytes[row + 8 * (r % 2), 16 * (r // 2) + 4 * pair :][:4]
        for r in range(2):
            b[lane, r] = b_bytes[row, 16 * r + 4 * pair :][:4]
        c[lane] = c_values[[row, row, row + 8, row + 8], [2 * pair, 2 * pair + 1] * 2]
    words = rng.integers(0, 256, (32, 2, 4)).astype(np.uint8)  # what nobody may look at
    x, y, text = a_type.values[a_codes], b_type.values[b_codes], ""
    op = f"mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}"
    if scale:
        low, high = (0x20, 0x60) if scale is UE4M3 else (120, 134)
        of_a, of_b = (rng.integers(low, high, (n, vec)).astype(np.uint8) for n in (16, 8))
        a_byte, a_thread, b_byte, b_thread = selectors
        for m in range(16):
            words[4 * (m % 8) + 2 * a_thread + m // 8, 0, a_byte : a_byte + vec] = of_a[m]
        for n in range(8):
            words[4 * n + b_thread, 1, b_byte : b_byte + vec] = of_b[n]
        x, y = (v * np.repeat(scale.values[s], k // vec, 1) for v, s in ((x, of_a), (y, of_b)))
        text = ",{{r7}},{{{},{}}},{{r8}},{{{},{}}}".format(*selectors)
        op += f".block_scale.scale_vec::{vec}X"
    op += f".f32.{a_type.name}.{b_type.name}.f32" + (f".{scale.name}" if scale else "")
    out = np.zeros((32, 4), np.float32)
    run(op, [a, b, c, words, out], text)
    d = np.zeros((16, 8), np.float32)
    for lane in range(32):
        row, pair = divmod(lane, 4)
        d[row, 2 * pair : 2 * pair + 2], d[row + 8, 2 * pair : 2 * pair + 2] = out[lane, :2], out[lane, 2:]
    exact = x @ y.T + c_values
    most = (np.abs(x) @ np.abs(y).T + np.abs(c_values)).max()
    assert np.abs(d - exact).max() <= most * 2.0**-22 and d.any()


@pytest.mark.parametrize("op, why", [
    (MX.format("mxf4", ".scale_vec::4X", "ue8m0"), "scale_vec::4X of ue8m0"),
    (MX.format("mxf4", "", "ue4m3"), "scale_vec::2X of ue4m3"),
    (MX.format("mxf4nvf4", ".scale_vec::2X", "ue4m3"), "scale_vec::2X of ue4m3"),
])  # fmt: skip
def test_forms_that_the_isa_does_not_list(op, why):
    with pytest.raises(Unsupported, match=why):
        run(op, [np.zeros(512, np.uint8)] * 5, ",{r7},{0,0},{r8},{0,0}")


def test_selectors_out_of_range():
    with pytest.raises(Unsupported, match="byte id 1, thread id 0 of scale_vec::4X"):
        run(MX.format("mxf4nvf4", ".scale_vec::4X", "ue4m3"), [np.zeros(512, np.uint8)] * 5, ",{r7},{1,0},{r8},{0,0}")


def first_element(of, k: int, row: list[float], column: list[float], compute: int) -> float:
    """D[0, 0] of a row of A and a column of B whose other elements are 0, and C = 0."""
    def words(values, rows):
        x = np.zeros((rows, k))
        x[0, : len(values)] = values
        if of is F16:
            raw = x.astype(np.float16).view(np.uint16)
        elif of in (BF16, TF32):
            raw = x.astype(np.float32).view(np.uint32) >> (16 if of is BF16 else 0)
            raw = raw.astype(np.uint16) if of is BF16 else raw
        else:
            order = {float(v): i for i, v in enumerate(of.values) if np.isfinite(v)}
            raw = np.vectorize(lambda v: order[float(v)])(x).astype(np.uint8)
        return np.ascontiguousarray(raw).view(np.uint32)

    form = MmaSyncForm(f"m16n8k{k}", of, of, F32)
    return float(product(form, words(row, 16), words(column, 8), np.zeros((16, 8), np.float32), compute)[0, 0])


@pytest.mark.parametrize("of", [F16, BF16])
def test_sm_80_keeps_one_bit_less_and_adds_halves_of_k(of):
    """Four products of 2 ** -24 beside 2: Hopper's bits reach them, Ampere's end at 2 ** -23."""
    small = [2.0**-12] * 4
    assert first_element(of, 16, [1.0, *small], [2.0, *small], 90) == 2 + 2.0**-22
    assert first_element(of, 16, [1.0, *small], [2.0, *small], 80) == 2
    # 2 - 2 in the first half of K leaves room for 2 ** -30 in the second
    row, column = [1.0, 1.0, *[0.0] * 6, 2.0**-15], [2.0, -2.0, *[0.0] * 6, 2.0**-15]
    assert first_element(of, 16, row, column, 80) == 2.0**-30 and first_element(of, 16, row, column, 90) == 0


def test_sm_89_keeps_thirteen_bits_of_fp8():
    """256 + 2 ** -6 needs fourteen bits below 256, 256 + 2 ** -4 twelve."""
    assert first_element(E4M3, 32, [16.0, 0.125], [16.0, 0.125], 89) == 256
    assert first_element(E4M3, 32, [16.0, 0.125], [16.0, 0.125], 90) == 256 + 2.0**-6
    assert first_element(E4M3, 32, [16.0, 0.5], [16.0, 0.125], 89) == 256 + 2.0**-4


def test_sm_120_adds_all_products_of_fp8_at_once():
    """Before it those of bytes 0 and 1, which cancel, come before that of byte 2; 2 ** 16 has bits down to 2 ** -9."""
    row, column = [256.0, 256.0, 2.0**-6], [256.0, -256.0, 2.0**-6]
    assert [first_element(E4M3, 32, row, column, of) for of in (90, 100, 103, 120, 121)] == [2.0**-12] * 3 + [0, 0]


def test_kind_f8f6f4_of_sm_100_is_made_of_halves_too():
    rng, order = np.random.default_rng(5), "row.col.{}f32.e4m3.e4m3.f32"
    a, b = (rng.integers(0, 0x7F, shape).astype(np.uint8) for shape in ((16, 32), (8, 32)))
    results = []
    for name in "", "kind::f8f6f4.":
        results.append(np.zeros(128, np.float32))
        arrays = [a, b, np.zeros(128, np.float32), np.zeros(64, np.uint32), results[-1]]
        run(f"mma.sync.aligned.m16n8k32.{order.format(name)}", arrays, target="sm_103a", machine="b300")
    np.testing.assert_array_equal(*results)
