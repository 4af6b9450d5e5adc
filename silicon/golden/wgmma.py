"""Cases of sm_90's tensor core: wgmma, PTX ISA 9.7.15.

A case fills shared memory with bytes that its descriptors make matrices of; D comes and goes by a buffer of registers,
[thread, register]. A case's name says what it is about: the widths N and types, where A is, layouts of operands, signs
and predicates, and how sums are rounded.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from .case import Case, noise, of_body, source, updated, write_shared

THREADS = 128
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
NONE, B128, B64, B32 = range(4)  # the field of a descriptor
SPAN = {NONE: 16, B128: 128, B64: 64, B32: 32}


def descriptor(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    """A matrix descriptor relative to the CTA's shared memory, whose address the kernel adds. All in bytes."""
    return start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle << 62


@dataclass(frozen=True)
class Op:
    """A wgmma.mma_async: descriptors of A (None: in registers) and of B, and the operands behind them."""

    a: int | None
    b: int
    scale_d: bool = True
    signs: str = "1, 1"
    transposed: str = "0, 0"


@dataclass(frozen=True)
class Shape:
    n: int
    d: str
    a: str
    b: str
    satfinite: bool = False

    @property
    def name(self) -> str:
        return f"m64n{self.n}k{256 // BITS[self.a]}{'.satfinite' * self.satfinite}.{self.d}.{self.a}.{self.b}"

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    def text(self, op: Op) -> str:
        d = ", ".join(f"d{i}" for i in range(self.registers))
        a = "{a0, a1, a2, a3}" if op.a is None else "desc_a"
        text = "" if op.a is None else f"add.u64 desc_a, base, {op.a};"
        rest = [op.signs] if self.d != "s32" else []
        if BITS[self.a] == 16:
            rest.append(op.transposed if op.a is not None else op.transposed.split(", ")[1])
        return f"""    {text} add.u64 desc_b, base, {op.b}; setp.ne.u32 q, {int(op.scale_d)}, 0;
    wgmma.mma_async.sync.aligned.{self.name} {{{d}}}, {", ".join([a, "desc_b", "q", *rest])};
"""


def wgmma(
    name: str,
    shape: Shape,
    ops: list[Op] | list[list[Op]],
    shared: np.ndarray,
    c: np.ndarray | None = None,
    a: np.ndarray | None = None,
    between: str = "",
    warpgroups: int = 1,
) -> Case:
    """A case of the wgmmas of one group, or of several groups.

    c: every thread's D before; a: A's registers, uint32 [threads, 4]; between: PTX after each group's wait.
    """
    groups = [list(g) for g in ops] if isinstance(ops[0], list) else [list(ops)]
    count, threads = shape.registers, THREADS * warpgroups
    kind = {"f32": "f32", "f16": "b32", "s32": "s32"}[shape.d]
    image = np.ascontiguousarray(shared).view(np.uint8).reshape(-1)
    room = -(-len(image) // 1024) * 1024
    image = np.concatenate([image, np.zeros(room - len(image), np.uint8)])
    body = f"""    .reg .{kind} d<{count}>, e<{count}>; .reg .b32 a<4>; .reg .b64 base, desc_a, desc_b, at;
{write_shared(0, room)}
    shr.u32 %r0, smem, 4; cvt.u64.u32 base, %r0; fence.proxy.async.shared::cta; bar.sync 0;
    mad.wide.u32 at, tid, {4 * count}, out;
"""
    body += "".join(f"    ld.global.b32 d{i}, [at+{4 * i}]; mov.b32 e{i}, 0;\n" for i in range(count))
    if a is not None:
        body += "    mad.wide.u32 %rd0, tid, 16, regs; ld.global.v4.b32 {a0, a1, a2, a3}, [%rd0];\n"
    for group in groups:
        body += "    wgmma.fence.sync.aligned;\n" + "".join(shape.text(op) for op in group)
        body += f"    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n{between}"
    body += "".join(f"    st.global.b32 [at+{4 * i}], d{i};\n" for i in range(count))
    if c is None:
        c = np.zeros((threads, count), np.uint32)
    args = [updated(c), source(image)]
    params = "ptr out, ptr src"
    if a is not None:
        args.append(source(a))
        params += ", ptr regs"
    return of_body(f"wgmma_{name}", params, body, tuple(args), threads, shared=room)


# -- numbers -----------------------------------------------------------------------------------------------------------


def small(kind: str, count: int, seed: int) -> np.ndarray:
    """The codes of `count` integers from -3 to 3 (u8: 0 to 6): no sum of their products loses a bit."""
    values = (noise(count, seed) % 7).astype(np.int64) - 3
    if kind == "s8":
        return values.astype(np.int8).view(np.uint8)
    if kind == "u8":
        return (values + 3).astype(np.uint8)
    return encode(kind, values.astype(np.float64))


def encode(kind: str, values: np.ndarray) -> np.ndarray:
    """The codes of float64 values, which the type must hold exactly."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    if kind == "bf16":
        return (bits >> 16).astype(np.uint16)
    if kind in ("tf32", "f32"):
        return bits
    f16 = values.astype(np.float16).view(np.uint16)
    if kind == "e5m2":
        return (f16 >> 8).astype(np.uint8)
    sign, magnitude = f16 >> 8 & 0x80, f16 & 0x7FFF  # e4m3: exponents from -6 on
    code = np.where(magnitude == 0, 0, (magnitude >> 7).astype(np.int64) - (8 << 3))
    assert (code[magnitude != 0] >= 8).all(), "subnormal"
    return (sign | code.astype(np.uint16)).astype(np.uint8)


def wild(kind: str, count: int, seed: int, low: int, high: int) -> np.ndarray:
    """Random codes, [count]: any sign and significand, exponents from low to high."""
    bits = noise(4 * count, seed).view(np.uint32)
    exponent = low + ((bits >> 8 & 0xFFF) % (high - low + 1)).astype(np.int64)
    digits = {"f16": 10, "bf16": 7, "tf32": 10, "f32": 23, "e4m3": 3, "e5m2": 2}[kind]
    significand = 1 + (noise(4 * count, seed + 1).view(np.uint32) >> 9 >> (23 - digits)) / 2.0**digits
    values = np.ldexp(significand, exponent)
    return encode(kind, np.where(bits & 1, -1.0, 1.0) * (np.minimum(values, 448) if kind == "e4m3" else values))


def rows(codes: np.ndarray, count: int) -> np.ndarray:
    """A K-major operand of `count` rows of 32 bytes without a swizzle: 8 rows x 16 bytes together, as bytes."""
    return codes.reshape(count // 8, 8, 2, -1).transpose(0, 2, 1, 3).copy().view(np.uint8).reshape(-1)


def operands(shape: Shape, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Op]:
    """Shared memory that holds A [64, K] and B [N, K] as `rows` lays them out, and the wgmma on them."""
    image = np.concatenate([rows(a, 64), rows(b, shape.n)])
    return image, Op(descriptor(0, 128, 256, NONE), descriptor(2048, 128, 256, NONE))


def registers_of(d: np.ndarray) -> np.ndarray:
    """D [64, N] as threads have it, uint32 [128, registers]: PTX ISA 9.7.15.5.1, figure of D."""
    if d.dtype.itemsize == 2:
        pairs = d.view(np.uint32)  # [64, N / 2]
        return pairs.reshape(4, 2, 8, -1, 4).transpose(0, 2, 4, 3, 1).reshape(THREADS, -1).copy()
    return d.view(np.uint32).reshape(4, 2, 8, -1, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(THREADS, -1).copy()


def a_registers(a: np.ndarray) -> np.ndarray:
    """A [64, K] as threads have it, uint32 [128, 4]."""
    words = np.ascontiguousarray(a).view(np.uint32).reshape(4, 2, 8, 2, 4)  # warp, half of rows, row, half of K, word
    return words.transpose(0, 2, 4, 3, 1).reshape(THREADS, 4).copy()


# -- cases -------------------------------------------------------------------------------------------------------------
COMBINATIONS = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"), ("f16", "e4m3", "e5m2"), ("f32", "e5m2", "e4m3"), ("f16", "e5m2", "e5m2"),
    ("s32", "s8", "s8"), ("s32", "u8", "u8"), ("s32", "s8", "u8"), ("s32", "u8", "s8"),
]  # fmt: skip


def widths() -> list[Case]:
    """Cases of every N for some types, and of every type with several N."""
    cases = []
    turn = itertools.cycle(COMBINATIONS)
    for n in range(8, 257, 8):
        d, a, b = next(turn)
        if d == "s32" and n > 32 and n % 16:
            d, a, b = "f32", "f16", "f16"
        shape = Shape(n, d, a, b)
        k = 256 // BITS[a]
        image, op = operands(shape, small(a, 64 * k, 900 + n), small(b, n * k, 700 + n))
        cases.append(wgmma(f"n{n}_{d}_{a}_{b}", shape, [op], image))
    return cases


def from_registers() -> list[Case]:
    cases = []
    for d, a, b in COMBINATIONS:
        shape, k = Shape(16, d, a, b), 256 // BITS[a]
        codes = small(a, 64 * k, 31).reshape(64, k)
        image, op = operands(shape, codes, small(b, 16 * k, 32))
        cases.append(wgmma(f"a_in_registers_{d}_{a}_{b}", shape, [Op(None, op.b)], image, a=a_registers(codes)))
    return cases


def layouts() -> list[Case]:
    """Cases of swizzles, strides, transposes and starts inside a row, on small numbers in shared memory."""
    cases = []
    shape = Shape(64, "f16", "f16", "f16")
    image = small("f16", 32768 // 2, 41)
    for swizzle in (NONE, B128, B64, B32):
        span = SPAN[swizzle]
        steps = (0, 32, 64, 96)[: max(span // 32, 1)]
        for step in steps:  # K-major: 8 rows of a span each, 8 of which lie sbo apart
            a = descriptor(step, 144 if swizzle == NONE else 16, 8 * span + 1024 * (swizzle != NONE), swizzle)
            b = descriptor(16384 + step, 128, 8 * span if swizzle else 2048, swizzle)
            cases.append(wgmma(f"k_major_{span}_step_{step}", shape, [Op(a, b)], image))
        lbo, sbo = (2048, 128) if swizzle == NONE else (8 * span, 2 * 8 * span + 1024)
        m_major = descriptor(0, lbo, sbo, swizzle)
        n_major = descriptor(16384, 1024 if swizzle else 128, 4096 if swizzle else 1024, swizzle)
        k_a, k_b = descriptor(0, 128, 256, NONE), descriptor(16384, 128, 256, NONE)
        cases.append(wgmma(f"a_transposed_{span}", shape, [Op(m_major, k_b, transposed="1, 0")], image))
        cases.append(wgmma(f"b_transposed_{span}", shape, [Op(k_a, n_major, transposed="0, 1")], image))
        cases.append(wgmma(f"both_transposed_{span}", shape, [Op(m_major, n_major, transposed="1, 1")], image))
    wide = Shape(192, "f16", "f16", "f16")
    n_major = descriptor(8192, 4096, 1024, B128)
    cases.append(
        wgmma("b_transposed_128_n192", wide, [Op(descriptor(0, 128, 256, NONE), n_major, transposed="0, 1")], image)
    )
    for kind, swizzle in (("e4m3", B128), ("e5m2", B64), ("s8", B32), ("tf32", B128), ("tf32", B64)):
        d = "s32" if kind == "s8" else "f32"
        narrow, span = Shape(32, d, kind, kind), SPAN[swizzle]
        data = small(kind, 8192 * 8 // BITS[kind] * 2, 42)
        op = Op(descriptor(32 % span, 16, 8 * span, swizzle), descriptor(8192, 16, 8 * span, swizzle))
        cases.append(wgmma(f"k_major_{span}_{kind}", narrow, [op], data))
    a = a_registers(small("f16", 64 * 16, 43).reshape(64, 16))
    op = Op(None, descriptor(0, 4096, 1024, B128), transposed="0, 1")
    cases.append(wgmma("a_in_registers_b_transposed", shape, [op], image, a=a))
    return cases


def operands_behind() -> list[Case]:
    """Cases of signs, scale-d and .satfinite, of several wgmmas in a group and of several groups."""
    cases = []
    shape = Shape(8, "f32", "f16", "f16")
    image, op = operands(shape, small("f16", 1024, 51), small("f16", 128, 52))
    c = registers_of(np.arange(512, dtype=np.float32).reshape(64, 8))
    for signs, scale_d in (("1, 1", False), ("-1, 1", True), ("1, -1", True), ("-1, -1", True)):
        name = f"signs_{signs.replace(', ', '_').replace('-', 'minus')}{'' if scale_d else '_scale_d_0'}"
        cases.append(wgmma(name, shape, [Op(op.a, op.b, scale_d, signs)], image, c=c))
    two = operands(Shape(8, "f32", "e4m3", "e5m2"), small("e4m3", 2048, 53), small("e5m2", 256, 54))
    signed = Op(two[1].a, two[1].b, signs="1, -1")
    cases.append(wgmma("signs_1_minus1_e4m3", Shape(8, "f32", "e4m3", "e5m2"), [signed], two[0], c=c))
    cases.append(wgmma("chain", shape, [op] * 3, image, c=c))
    cases.append(wgmma("groups", shape, [[op], [op, op], [op]], image, c=c))
    for satfinite in (False, True):
        limit = Shape(8, "s32", "s8", "u8", satfinite)
        large = noise(2048, 55), noise(256, 56)
        data, of = operands(limit, *large)
        edge = np.where(noise(512, 57).astype(bool) & (np.arange(512) % 2 == 0), 2**31 - 5000, -(2**31) + 5000)
        edge = registers_of(edge.astype(np.int32).reshape(64, 8))
        cases.append(wgmma(f"s32_beyond{'_satfinite' * satfinite}", limit, [of, of], data, c=edge))
    return cases


def rounding() -> list[Case]:
    """Cases that sum numbers of many magnitudes onto accumulators of many magnitudes."""
    cases = []
    ranges = {
        "f16": [(-3, 3), (-14, 5), (-9, 9)], "bf16": [(-2, 2), (-12, 12), (-30, 30), (-62, 60)],
        "tf32": [(-2, 2), (-12, 12), (-60, 60)], "e4m3": [(-1, 1), (-6, 8), (-6, 0)],
        "e5m2": [(-2, 2), (-14, 15), (-7, 7)],
    }  # fmt: skip
    for (d, a, b), seed in zip(COMBINATIONS[:8], itertools.count(2000, 100)):
        shape, k = Shape(16, d, a, b), 256 // BITS[a]
        for (low, high), (low_b, high_b), s in zip(ranges[a], ranges[b], itertools.count(seed, 10)):
            if d == "f16" and a == "f16" and high > 5:
                continue
            if d == "f16" and max(high, high_b) > 7:
                low, high, low_b, high_b = -6, 1, -6, 1
            image, op = operands(shape, wild(a, 64 * k, s, low, high), wild(b, 16 * k, s + 2, low_b, high_b))
            limits = (-10, 8) if d == "f16" else (low + low_b - 8, high + high_b + 6)
            c = wild(d, 64 * 16, s + 4, *limits).view(np.float16 if d == "f16" else np.float32)
            c = registers_of(c.reshape(64, 16))
            cases.append(wgmma(f"round_{d}_{a}_{b}_{low}_{high}".replace("-", "m"), shape, [op], image, c=c))
            zero = np.zeros_like(c)
            cases.append(wgmma(f"round_{d}_{a}_{b}_{low}_{high}_c0".replace("-", "m"), shape, [op] * 2, image, c=zero))
    return cases


def pinned(kind: str, d: str) -> Case:
    """Operands whose sums tell the alignment: a large product, its negative, and a small one that is cut off.

    Row m of A: 1 in columns 0 and 1, a small power of two in column 2 + m % (K - 2). Column n of B: for n < 4 large
    and its negative in rows 0, 1 or in other places of K; significands of small ones all ones. C: 0, or the large one's
    negative (n = 4, 5), or itself small (n = 6), or -2 ** -20 (n = 7).
    """
    k = 256 // BITS[kind]
    digits = {"f16": 10, "bf16": 7, "tf32": 10, "e4m3": 3, "e5m2": 2}[kind]
    ones = 2 - 2.0**-digits
    a, b, c = np.zeros((64, k)), np.zeros((8, k)), np.zeros((64, 8))
    for m in range(64):
        a[m, :] = 2.0 ** -(m % 6) * ones
        a[m, 0] = a[m, 1] = a[m, k // 2] = a[m, k - 1] = 1
    large, little = 2.0**6, 2.0**-6
    b[0, [0, 1]], b[0, 2:] = (large, -large), little
    b[0, [k // 2, k - 1]] = 0
    b[1, [0, k - 1]], b[1, 3] = (large, -large), little
    b[2, [0, k // 2]], b[2, 3] = (large, -large), little
    b[3, [0, 1]], b[3, k // 2 + 1] = (large, -large), little
    b[4, 0], b[4, 3] = large, little
    b[5, k - 1], b[5, 3] = large, -little
    b[6, [0, 1]] = large, -large
    b[7, 3] = little
    for m in range(64):
        c[m, 4], c[m, 5] = -large, -large
        c[m, 6] = 2.0 ** (6 - m % 32) * (1 + 2.0**-9)
        c[m, 7] = -(2.0**-20) if d == "f32" else -(2.0**-12)
    shape = Shape(8, d, kind, kind)
    image, op = operands(shape, encode(kind, a), encode(kind, b))
    values = registers_of(c.astype(np.float32 if d == "f32" else np.float16))
    return wgmma(f"pinned_{d}_{kind}", shape, [op], image, c=values)


def specials() -> list[Case]:
    """Cases of infinities, NaN, zeros of both signs, subnormals, sums out of range, and accumulators alone."""
    cases = []
    for d, a, b in COMBINATIONS[:8]:
        shape, k = Shape(8, d, a, b), 256 // BITS[a]
        unit = np.ones((64, k))
        codes_a, codes_b = encode(a, unit), encode(b, np.ones((8, k)))
        wide = {8: np.uint8, 16: np.uint16, 32: np.uint32}[BITS[a]]
        top = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F800000, "e4m3": 0x7F, "e5m2": 0x7C}
        patterns = [0, 1 << (BITS[a] - 1), 1, 2, 3, (1 << (BITS[a] - 1)) | 1, top[a], top[a] | 1 << (BITS[a] - 1),
                    top[a] - 1, (top[a] - 1) | 1 << (BITS[a] - 1)]  # fmt: skip
        if a == "tf32":
            patterns[2:6] = [1 << 13, 2 << 13, 0x1FFF, 0x803FE000]
        if a != "e4m3":
            patterns.append(top[a] | (3 if a != "tf32" else 3 << 13))
        for m in range(64):
            codes_a[m] = np.array(patterns[m % len(patterns)], np.uint32).astype(wide)
            codes_a[m, 2 : 2 + m // 8] = np.array(patterns[m * 7 % len(patterns)], np.uint32).astype(wide)
        codes_b[1], codes_b[2], codes_b[3, 5] = encode(b, -np.ones(k)), 0, 0
        codes_b[4] = encode(b, np.full(k, 2.0**7))
        codes_b[5] = encode(b, np.full(k, 2.0**-6))
        bits = np.array([0, 0x80000000, 1, 0x00400000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0x7FC00001, 0xFF800000,
                         0x00800001, 0x807FFFFF, 0x33D6BF95], np.uint32)  # fmt: skip
        if d == "f16":
            bits = np.array(
                [0, 0x8000, 1, 0x200, 0x7BFF, 0xFBFF, 0x7C00, 0x7E01, 0xFC00, 0x401, 0x83FF, 0x1555], np.uint16
            )
        c = bits[(np.arange(64)[:, None] * 5 + np.arange(8) * 3 + np.arange(64)[:, None] // 12) % len(bits)]
        image, op = operands(shape, codes_a, codes_b)
        cases.append(wgmma(f"special_{d}_{a}_{b}", shape, [op], image, c=registers_of(c)))
    for kind in ("f16", "e4m3"):  # A is zero: what becomes of accumulators alone
        shape, k = Shape(8, "f32", kind, kind), 256 // BITS[kind]
        b = encode(kind, np.repeat([[1.0], [2.0**7], [2.0**-6], [0], [1], [1], [1], [1]], k, axis=1))
        image, op = operands(shape, np.zeros((64, k), b.dtype), b)
        c = np.concatenate(
            [wild("f32", 256, 77, -126, 126), wild("f32", 128, 79, -126, -100), noise(512, 78).view(np.uint32)]
        )
        cases.append(wgmma(f"accumulator_alone_{kind}", shape, [op], image, c=registers_of(c.reshape(64, 8))))
    return cases


def long_sums() -> list[Case]:
    """Cases that show why DeepGEMM promotes: FP8 products of one sign, K = 4096, promoted every K = 128 or never.

    The accumulator has 14 bits: its error grows with K. Of sums that are moved to f32 registers and added there with
    add.f32 every four instructions, nothing gets lost before.
    """
    cases = []
    for kind in ("e4m3", "bf16"):
        shape, k = Shape(8, "f32", kind, kind), 256 // BITS[kind]
        a, b = (wild(kind, count * k, 90 + count, -1, 1) & (0x7F if kind == "e4m3" else 0x7FFF) for count in (64, 8))
        image, op = operands(shape, a, b)
        cases.append(wgmma(f"sum_of_4096_{kind}", shape, [op] * (4096 // k), image))
        if kind == "e4m3":
            add = "".join(f"    add.f32 e{i}, e{i}, d{i}; mov.b32 d{i}, 0;\n" for i in range(4))
            promoted = wgmma(f"sum_of_4096_{kind}_promoted", shape, [[op] * 4] * 32, image, between=add)
            ends = "".join(f"    mov.b32 d{i}, e{i};\n" for i in range(4))
            before, store, after = promoted.ptx.rpartition("    st.global.b32 [at+0], d0;")
            cases.append(Case(promoted.name, before + ends + store + after, promoted.args, shared=promoted.shared))
    return cases


def two_warpgroups() -> Case:
    """A case of two warpgroups, each with its own rows of A: descriptors depend on the warpgroup's number."""
    shape = Shape(32, "f32", "bf16", "bf16")
    a, b = small("bf16", 128 * 16, 95), small("bf16", 32 * 16, 96)
    image = np.concatenate([rows(a, 128), rows(b, 32)])
    case = wgmma("two_warpgroups", shape, [Op(0, descriptor(4096, 128, 256, NONE))], image, warpgroups=2,
                 c=np.zeros((256, 16), np.uint32))  # fmt: skip
    fixed = descriptor(0, 128, 256, NONE)
    text = f"shr.u32 %r1, tid, 7; mul.wide.u32 desc_a, %r1, {2048 >> 4}; add.u64 desc_a, desc_a, {fixed}; " \
           "add.u64 desc_a, desc_a, base;"  # fmt: skip
    return Case(
        case.name, case.ptx.replace("add.u64 desc_a, base, 0;", text), case.args, block=case.block, shared=case.shared
    )


CASES = [
    *widths(), *from_registers(), *layouts(), *operands_behind(), *rounding(),
    *(pinned(kind, d) for kind, d in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"),
                                      ("e4m3", "f32"), ("e4m3", "f16"), ("e5m2", "f32"))),
    *specials(), *long_sums(), two_warpgroups(),
]  # fmt: skip
