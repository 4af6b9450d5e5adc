"""Each form of tcgen05, as PTX, from shared memory to registers, against products and layouts computed apart.

Layouts are those of the PTX ISA (9.7.16) and of CUTLASS (include/cute/atom/{mma,copy}_traits_sm100*.hpp). One kernel
carries data through: bytes of each CTA in shared memory, perhaps tensor memory, product, registers, global memory.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from corpus.kernels import FENCE, HEADER, entry, wait

import emulated_gpu
from emulated_gpu.machine.warp import Group
from tests.thorough import all_but_every

N, D, A, SFA, SFB = 64, 0, 64, 80, 84  # columns of the product; where things lie in tensor memory
IMAGE = {"a": 0, "b": 4096, "sfa": 8192, "sfb": 8704, "end": 9728}  # of a CTA, in global and in shared memory
MATRIX = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46  # K-major, no swizzle: 8 rows of 16 bytes, 2 of these side by side
SCALES = 128 >> 4 << 32 | 1 << 46  # rows of 16 bytes


def small_float(code, exponent_bits, mantissa_bits):
    bias, fields = 2 ** (exponent_bits - 1) - 1, code & (1 << exponent_bits + mantissa_bits) - 1
    field, mantissa = fields >> mantissa_bits, fields & (1 << mantissa_bits) - 1
    value = (mantissa / 2**mantissa_bits + (field > 0)) * 2.0 ** (max(field, 1) - bias)
    return -value if code >> exponent_bits + mantissa_bits else value


# type -> code in the instruction descriptor, bits, codes to draw from, their values
FLOATS = {"e4m3": (0, 4, 3), "e5m2": (1, 5, 2), "e2m3": (3, 2, 3), "e3m2": (4, 3, 2), "e2m1": (5, 2, 1)}
TYPES = {}
for name, (number, exponent, mantissa) in FLOATS.items():
    bits = 1 + exponent + mantissa
    drawn = [c for c in range(1 << bits) if abs(small_float(c, exponent, mantissa)) in (0, 0.25, 0.5, 1, 1.5, 2, 3)]
    TYPES[name] = (number, bits, drawn, [small_float(c, exponent, mantissa) for c in drawn])
TYPES["f16"] = (0, 16, [0, 0x3C00, 0xC000, 0x4500, 0xB800], [0, 1, -2, 5, -0.5])
TYPES["bf16"] = (1, 16, [0, 0x3F80, 0xC000, 0x40A0, 0xBF00], [0, 1, -2, 5, -0.5])
TYPES["tf32"] = (2, 32, [0, 0x3F800000, 0xC0000000, 0x40A00000, 0xBF000000], [0, 1, -2, 5, -0.5])
TYPES["s8"] = (1, 8, [0, 1, 0xFE, 100, 0x80], [0, 1, -2, 100, -128])
TYPES["u8"] = (0, 8, [0, 1, 0xFE, 100, 0x80], [0, 1, 254, 100, 128])
PACKED = {4: ".b8x16.b4x16_p64", 6: ".b8x16.b6x16_p32"} | dict.fromkeys((8, 16, 32), "")  # bits -> format of tcgen05.cp
UE4M3, UE8M0 = {0x30: 0.5, 0x38: 1, 0x40: 2}, {126: 0.5, 127: 1, 129: 4}


@dataclass(frozen=True)
class Form:
    kind: str
    a: str
    b: str
    group: int = 1
    m: int = 128
    from_tmem: bool = False
    vec: int = 0  # scale factors for each row
    scales: str = ""

    def __str__(self):
        scale = f"{self.scales}x{self.vec}" if self.vec else ""
        return f"{self.kind} {self.a} {self.b} {scale} m{self.m} group{self.group}" + " tmem" * self.from_tmem


PLAIN = [("f16", "f16", "f16"), ("f16", "bf16", "bf16"), ("tf32", "tf32", "tf32"), ("i8", "s8", "u8")]
PLAIN += [("f8f6f4", a, b) for a, b in (("e4m3", "e5m2"), ("e2m1", "e3m2"), ("e3m2", "e2m3"), ("e2m3", "e2m1"))]
SCALED = [("mxf8f6f4", "e5m2", "e4m3", 1, "ue8m0"), ("mxf8f6f4", "e2m1", "e3m2", 1, "ue8m0")]
SCALED += [("mxf8f6f4", "e2m3", "e2m1", 1, "ue8m0"), ("mxf4", "e2m1", "e2m1", 2, "ue8m0")]
SCALED += [("mxf4nvf4", "e2m1", "e2m1", 2, "ue8m0"), ("mxf4nvf4", "e2m1", "e2m1", 4, "ue4m3")]
FORMS = [
    Form(kind, a, b, group, m, from_tmem)
    for kind, a, b in PLAIN
    for group, m in ((1, 64), (1, 128), (2, 128), (2, 256))
    for from_tmem in (False, True)
] + [
    Form(kind, a, b, group, m, from_tmem, vec, scales)
    for kind, a, b, vec, scales in SCALED
    for group, m in ((1, 128), (2, 128), (2, 256))
    for from_tmem in (False, True)
]


def elements(rng, kind, name, rows):
    """(bytes [rows, 32], values [rows, K]) of one instruction's K."""
    _, bits, codes, values = TYPES[name]
    packed = kind in ("mxf4", "mxf4nvf4")
    k = 64 if packed else 32 * 8 // max(bits, 8)
    which = rng.integers(0, len(codes), (rows, k))
    drawn = np.array(codes, np.uint32)[which]
    if packed:
        data = (drawn[:, ::2] | drawn[:, 1::2] << 4).astype(np.uint8)
    elif bits < 8:  # 16 elements in the first bytes of 16
        data = np.zeros((rows, 32), np.uint8)
        for r, c in np.ndindex(rows, 2):
            number = sum(int(x) << bits * i for i, x in enumerate(drawn[r, 16 * c : 16 * c + 16]))
            data[r, 16 * c : 16 * c + 16] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
    else:
        data = drawn.astype(f"u{bits // 8}").view(np.uint8).reshape(rows, 32)
    return data, np.array(values, float)[which]


def core_matrices(rows):
    """bytes [rows, 32] as MATRIX finds them."""
    return rows.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).ravel()


def scale_image(codes):
    """codes [rows <= 128, vec] in 32 rows of 16 bytes: row r in row r % 32, 4-byte word r / 32."""
    image = np.zeros((32, 4, 4), np.uint8)
    for r, row in enumerate(codes):
        image[r % 32, r // 32, : len(row)] = row
    return image.ravel()


def rows_of(form):
    """(lane, column) of each element [rows of a CTA, N] of D: ISA 9.7.16.10.5."""
    r, c = np.ogrid[: form.m // form.group, :N]
    if form.m == 64:
        return r // 16 * 32 + r % 16 + 0 * c, c + 0 * r
    if form.group == 2 and form.m == 128:
        return r + 64 * (c >= N // 2), c % (N // 2) + 0 * r
    return r + 0 * c, c + 0 * r


def instruction(form):
    bits = N >> 3 << 17
    if form.kind in ("mxf4", "mxf4nvf4"):
        return bits | 1 << 7 | 1 << 10 | (form.scales == "ue8m0") << 23 | form.m >> 7 << 27
    bits |= TYPES[form.a][0] << 7 | TYPES[form.b][0] << 10
    if form.vec:
        return bits | 1 << 23 | form.m >> 7 << 27
    return bits | (2 if form.kind == "i8" else 1) << 4 | form.m >> 4 << 24


def descriptor(register, name, strides, offset=0):
    return f"""
mov.u32 r1, image;
add.u32 r1, r1, {IMAGE[name] + offset};
shr.u32 r1, r1, 4;
cvt.u64.u32 {register}, r1;
or.b64 {register}, {register}, {strides};"""


def kernel(group, issue, load, shared_bytes=IMAGE["end"], columns=128):
    """Copies the CTA's image to shared memory, lets one thread `issue` (r20: tensor memory), and `load`s in all warps
    (r21: the same, at the lanes of the warp) what is stored by each thread in turn. `done` is signalled by `issue`."""
    pair = group == 2
    leader = "@!first bra issued;"
    if pair:
        leader = "mov.u32 r3, %cluster_ctarank;\nor.b32 r3, r3, t;\nsetp.ne.u32 p, r3, 0;\n@p bra issued;"
    meet = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" if pair else "bar.sync 0;"
    commit = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    commit += ".multicast::cluster.b64 [r4], 3;" if pair else ".b64 [r4];"
    body = f"""
setp.ne.u32 p, w, 0;
@p bra allocated;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [address], {columns};
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
allocated:
@!first bra ready;
mbarrier.init.shared::cta.b64 [done], 1;
fence.mbarrier_init.release.cluster;
ready:
mov.u32 r5, %ctaid.x;
mad.wide.u32 src, r5, {shared_bytes}, src;
shl.b32 k, t, 4;
fill:
cvt.u64.u32 at, k;
add.u64 at, at, src;
ld.global.v4.b32 {{r10, r11, r12, r13}}, [at];
mov.u32 r1, image;
add.u32 r1, r1, k;
st.shared.v4.b32 [r1], {{r10, r11, r12, r13}};
add.u32 k, k, 2048;
setp.lt.u32 p, k, {shared_bytes};
@p bra fill;
{FENCE}
{meet}
ld.shared.b32 r20, [address];
shl.b32 r21, w, 21;
add.u32 r21, r21, r20;
{leader}
{issue}
mov.u32 r4, done;
{commit}
issued:
{wait("done", "0")}
tcgen05.fence::after_thread_sync;
{load}
{meet}
setp.ne.u32 p, w, 0;
@p bra freed;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 r20, {columns};
freed:
"""
    ptx = entry("form", body, True, f".align 128 .b8 image[{shared_bytes}]; .align 8 .b64 done; .align 4 .b32 address")
    return HEADER + ptx.replace("f<20>", "v<64>")


def store(registers):
    """Each thread's registers v0.. to its place in the output."""
    lines = ["mov.u32 r5, %ctaid.x;", "mad.lo.u32 r5, r5, 128, t;", f"mad.wide.u32 to, r5, {4 * registers}, out;"]
    return "\n".join(lines + [f"st.global.b32 [to+{4 * i}], v{i};" for i in range(registers)])


def vector(registers):
    return "{" + ", ".join(f"v{i}" for i in range(registers)) + "}"


def run(ptx, image, ctas, registers, schedule=0):
    """uint32 [ctas, 128 threads, registers]."""
    out = np.zeros((ctas, 128, registers), np.uint32)
    with emulated_gpu.session(schedule):
        emulated_gpu.launch(ptx, "form", ctas, 128, [out, image], cluster=ctas if ctas > 1 else None)
    return out


def copy(form, shape, to, register="d4", source=""):
    return f"add.u32 r6, r20, {to};\ntcgen05.cp.cta_group::{form.group}.{shape}{source} [r6], {register};"


@pytest.mark.parametrize("form", all_but_every(2, FORMS), ids=str)
def test_mma(form):
    rng = np.random.default_rng(form.m)
    two_by_two = form.group == 2 and form.m == 128
    a, a_values = elements(rng, form.kind, form.a, form.m)
    b, b_values = elements(rng, form.kind, form.b, N)
    image = np.zeros((form.group, IMAGE["end"]), np.uint8)
    issue = descriptor("d0", "a", MATRIX) + descriptor("d1", "b", MATRIX) + f"\nmov.b32 r2, {instruction(form)};"
    height = form.m // form.group
    for rank in range(form.group):
        for name, data in (("a", a[height * rank :][:height]), ("b", b[N // form.group * rank :][: N // form.group])):
            image[rank, IMAGE[name] :][: data.size] = core_matrices(data)
    if form.from_tmem:
        packed = PACKED[TYPES[form.a][1] if form.kind in ("f8f6f4", "mxf8f6f4") else 8]
        if form.m == 64:  # lanes 0..15 of every 32: what tcgen05.cp writes by 32 has 16 lanes too many
            blocks = image[0, : 64 * 32].reshape(8, 256)
            spread = np.zeros((16, 256), np.uint8)
            spread[[0, 1, 4, 5, 8, 9, 12, 13]] = blocks
            image[0, :4096] = spread.ravel()
        if two_by_two:  # the rows twice, 16 bytes at a time
            for half in range(2):
                rows = np.ascontiguousarray(a.reshape(2, 64, 2, 16)[:, :, half])
                image[:, 1024 * half :][:, :1024] = rows.reshape(2, 1024)
                issue += descriptor("d4", "a", SCALES, 1024 * half)
                issue += "\n" + copy(form, "64x128b.warpx2::02_13", A + 4 * half, source=packed)
        else:
            issue += "\n" + copy(form, "128x256b", A, "d0", packed)
    operands = f"[r22], {'[r23]' if form.from_tmem else 'd0'}, d1, r2"
    scale = ""
    if form.vec:
        choices = UE4M3 if form.scales == "ue4m3" else UE8M0
        sfa, sfb = (rng.choice(np.array(list(choices), np.uint8), (rows, form.vec)) for rows in (form.m, N))
        for rank in range(form.group):
            image[rank, IMAGE["sfa"] :][:512] = scale_image(sfa[height * rank :][:height])
            if two_by_two:
                halves = [scale_image(half) for half in (sfb[: N // 2], sfb[N // 2 :])]
                image[rank, IMAGE["sfb"] :][:1024] = np.concatenate(halves)
            else:
                image[rank, IMAGE["sfb"] :][:512] = scale_image(sfb)
        issue += descriptor("d4", "sfa", SCALES) + "\n" + copy(form, "32x128b.warpx4", SFA)
        issue += descriptor("d4", "sfb", SCALES) + "\n"
        issue += copy(form, "64x128b.warpx2::01_23" if two_by_two else "32x128b.warpx4", SFB)
        value = np.vectorize(choices.get, otypes=[float])
        k = a_values.shape[1]
        a_values = a_values * np.repeat(value(sfa), k // form.vec, 1)
        b_values = b_values * np.repeat(value(sfb), k // form.vec, 1)
        operands += ", [r24], [r25]"
        scale = f".block_scale.scale_vec::{form.vec}X"
    issue += f"""
add.u32 r22, r20, {D};
add.u32 r23, r20, {A};
add.u32 r24, r20, {SFA};
add.u32 r25, r20, {SFB};
setp.ne.u32 q, t, t;
tcgen05.mma.cta_group::{form.group}.kind::{form.kind}{scale} {operands}, q;
setp.eq.u32 q, t, t;
tcgen05.mma.cta_group::{form.group}.kind::{form.kind}{scale} {operands}, q;"""
    width = N // 2 if two_by_two else N
    if form.m == 64:  # the other lanes hold nothing
        load = f"tcgen05.ld.sync.aligned.16x64b.x32.b32 {vector(32)}, [r21];\ntcgen05.wait::ld.sync.aligned;\n" + store(
            32
        )
    else:
        load = f"tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {vector(width)}, [r21];\n"
        load += "tcgen05.wait::ld.sync.aligned;\n" + store(width)
    got = run(kernel(form.group, issue, load), image, form.group, 32 if form.m == 64 else width)
    expected = 2 * a_values @ b_values.T
    lane, column = rows_of(form)
    for rank in range(form.group):
        if form.m == 64:  # thread t, register i: lane t / 4 + 8 * (t % 2), column t / 2 % 2 + 2 i
            thread = lane // 32 * 32 + lane % 8 * 4 + lane % 16 // 8 + column % 2 * 2
            words = got[rank][thread, column // 2]
        else:
            words = got[rank][lane, column]
        words = words.view(np.int32) if form.kind == "i8" else words.view(np.float32)
        np.testing.assert_array_equal(words, expected[height * rank :][:height])


# shape -> bytes of a row, rows, lanes (first, row) that take it
COPIES = {
    "128x256b": (32, 128, lambda row: [row]),
    "128x128b": (16, 128, lambda row: [row]),
    "64x128b.warpx2::02_13": (16, 64, lambda row: [row, row + 64]),
    "64x128b.warpx2::01_23": (16, 64, lambda row: [row % 32 + row // 32 * 64 + 32 * i for i in range(2)]),
    "32x128b.warpx4": (16, 32, lambda row: [row + 32 * i for i in range(4)]),
    "4x256b": (32, 4, lambda row: [32 * row]),
}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bits, shift", [(8, 0), (4, 2), (6, 1)])
@pytest.mark.parametrize("shape", COPIES)
def test_cp(shape, bits, shift, group):
    """First zeros everywhere, then the copy: what it leaves alone stays zero."""
    form, rng = Form("", "", "", group), np.random.default_rng(bits)
    width, rows, lanes = COPIES[shape]
    data = rng.integers(0, 256, (group, 128, width), np.uint8)
    image = np.zeros((group, IMAGE["end"]), np.uint8)
    for rank in range(group):
        rows_image = core_matrices(data[rank]) if width == 32 else data[rank].ravel()
        image[rank, 4096:][: rows_image.size] = rows_image
    issue = descriptor("d0", "a", MATRIX) + "\n" + copy(form, "128x256b", 0, "d0")
    issue += descriptor("d1", "b", MATRIX if width == 32 else SCALES) + "\n" + copy(form, shape, 0, "d1", PACKED[bits])
    load = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [r21];\ntcgen05.wait::ld.sync.aligned;\n" + store(8)
    got = run(kernel(group, issue, load), image, group, 8)
    for rank in range(group):
        expected = np.zeros((128, 32), np.uint8)
        for row in range(rows):
            for chunk in range(0, width, 16):
                number = int.from_bytes(data[rank, row, chunk : chunk + 16].tobytes(), "little")
                moved = [(number >> bits * i & (1 << bits) - 1) << shift for i in range(16)]
                for lane in lanes(row):
                    expected[lane, chunk : chunk + 16] = moved
        np.testing.assert_array_equal(got[rank], expected.view(np.uint32))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("lane", [0, 32, 64, 96])
def test_shift(lane, group):
    form, rng = Form("", "", "", group), np.random.default_rng(lane)
    data = rng.integers(0, 256, (group, 128, 32), np.uint8)
    image = np.zeros((group, IMAGE["end"]), np.uint8)
    for rank in range(group):
        image[rank, :4096] = core_matrices(data[rank])
    issue = descriptor("d0", "a", MATRIX) + "\n" + copy(form, "128x256b", 0, "d0")
    issue += f"\nadd.u32 r6, r20, {lane << 16};\ntcgen05.shift.cta_group::{group}.down [r6];"
    load = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [r21];\ntcgen05.wait::ld.sync.aligned;\n" + store(8)
    rows = np.arange(128)
    rows[lane : lane + 31] += 1
    for schedule in (0, 8):
        got = run(kernel(group, issue, load), image, group, 8, schedule)
        np.testing.assert_array_equal(got, data[:, rows].copy().view(np.uint32))


# shape -> registers of .x1, columns of .x1, (lane, column) of register i of thread t: 9.7.16.2.3.1
FRAGMENTS = {
    "32x32b": (1, 1, lambda t, i: (t, i)),
    "16x64b": (1, 2, lambda t, i: (t // 4 + t % 2 * 8, t // 2 % 2 + 2 * i)),
    "16x128b": (2, 4, lambda t, i: (t // 4 + i % 2 * 8, t % 4 + i // 2 * 4)),
    "16x256b": (4, 8, lambda t, i: (t // 4 + i // 2 % 2 * 8, t % 4 * 2 + i % 2 + i // 4 * 8)),
    "16x32bx2": (1, 1, lambda t, i: (t % 16, i + t // 16 * 16)),  # with 16 for immHalfSplitoff
}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("shape", FRAGMENTS)
def test_ld_and_st(shape, num, halves):
    """What tcgen05.st stores by 32x32b, tcgen05.ld finds by `shape`, and the other way round."""
    per, span, place = FRAGMENTS[shape]
    registers, columns = per * num, 64
    split = ", 16" if shape == "16x32bx2" else ""
    number = "".join(f"shl.b32 v{i}, t, 8;\nor.b32 v{i}, v{i}, {i};\n" for i in range(columns))
    plain, shaped = f"32x32b.x{columns}", f"{shape}.x{num}"
    pack, unpack = (".pack::16b", ".unpack::16b") if halves else ("", "")
    load = f"""
{number}tcgen05.st.sync.aligned.{plain}.b32 [r21], {vector(columns)};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.{shaped}{pack}.b32 {vector(registers)}, [r21]{split};
tcgen05.wait::ld.sync.aligned;
{store(registers)}"""
    got = run(kernel(1, "", load), np.zeros((1, IMAGE["end"]), np.uint8), 1, registers)[0]
    scale = 2 if halves else 1

    def cell(t, i):
        lane, column = place(t % 32, i)
        if shape == "16x32bx2" and halves:
            column = column % 16 * 2 + (16 if t % 32 >= 16 else 0)
        else:
            column *= scale
        return t // 32 * 32 + lane, column

    for t, i in np.ndindex(128, registers):
        lane, column = cell(t, i)
        low = lane << 8 | column
        assert got[t, i] == (low | low + 1 << 16 if halves else low)
    other = "".join(f"shl.b32 v{i}, t, 8;\nor.b32 v{i}, v{i}, {i << 20 | 0x80};\n" for i in range(registers))
    back = f"""
{number}tcgen05.st.sync.aligned.{plain}.b32 [r21], {vector(columns)};
tcgen05.wait::st.sync.aligned;
{other}tcgen05.st.sync.aligned.{shaped}{unpack}.b32 [r21]{split}, {vector(registers)};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.{plain}.b32 {vector(columns)}, [r21];
tcgen05.wait::ld.sync.aligned;
{store(columns)}"""
    got = run(kernel(1, "", back), np.zeros((1, IMAGE["end"]), np.uint8), 1, columns)[0]
    expected = np.arange(128, dtype=np.uint32)[:, None] << 8 | np.arange(columns, dtype=np.uint32)
    for t, i in np.ndindex(128, registers):
        (lane, column), value = cell(t, i), t << 8 | i << 20 | 0x80
        expected[lane, column] = value & 0xFFFF if halves else value
        if halves:
            expected[lane, column + 1] = value >> 16
    np.testing.assert_array_equal(got, expected)


def test_ld_before_divergence(monkeypatch):
    """A warp that has not waited for a load, but for its registers, may diverge and meet again any number of times."""
    pending, merge = [], Group.merge

    def watched(*args, **kwargs):
        merged = merge(*args, **kwargs)
        pending.append(len(merged.loads))
        return merged

    monkeypatch.setattr(Group, "merge", watched)
    apart = "add.u32 v0, v0, 1;\nactivemask.b32 r1;\n"
    turns = "".join(f"setp.gt.u32 p, lane, {i};\n@p bra next{i};\n{apart}next{i}:\n" for i in range(12))
    load = f"""
mov.b32 v0, t;
tcgen05.st.sync.aligned.32x32b.x1.b32 [r21], {{v0}};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{v0}}, [r21];
{turns}{store(1)}
tcgen05.wait::ld.sync.aligned;"""
    got = run(kernel(1, "", load), np.zeros((1, IMAGE["end"]), np.uint8), 1, 1)[0, :, 0]
    t = np.arange(128)
    np.testing.assert_array_equal(got, t + np.maximum(12 - t % 32, 0))
    assert len(pending) >= 48 and max(pending) == 1
