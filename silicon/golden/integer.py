"""Cases of integers, logic and moves: PTX ISA 9.7.1, 9.7.2, 9.7.7, 9.7.8, 9.7.9 (prmt, cvt between integers), 9.3."""

from __future__ import annotations

import numpy as np

from .case import Case, patterns, per_thread, spread

N = 96
E32 = patterns(
    "0 1 2 3 7 8 1F 20 21 40 7F 80 FF 7FFF 8000 FFFF 10000 7FFFFFFF 80000000 80000001 FFFFFFFF FFFFFFFE "
    "55555555 AAAAAAAA 12345678 89ABCDEF FFFFFF80 FFFF8000",
    np.uint32,
)
E16 = patterns(
    "0 1 2 F 10 11 7F 80 FF 100 7FFF 8000 8001 FFFF FFFE 5A5A",
    np.uint16,
)
E64 = np.concatenate([E32.astype(np.uint64), E32.astype(np.uint64) << np.uint64(32), ~E32.astype(np.uint64)])

A32, B32, C32 = spread(E32, N, 1, 1), spread(E32, N, 11, 2), spread(E32, N, 5, 3)
A16, B16, C16 = spread(E16, N, 1, 4), spread(E16, N, 7, 5), spread(E16, N, 5, 6)
A64, B64, C64 = spread(E64, N, 1, 7), spread(E64, N, 11, 8), spread(E64, N, 5, 9)
IN32 = {"a32": A32, "b32": B32, "c32": C32}
IN16 = {"a16": A16, "b16": B16, "c16": C16}
IN64 = {"a64": A64, "b64": B64, "c64": C64}
# bfe and bfi of 64 bits are instruction sequences that do not wrap positions at 256, whatever the ISA says
SHIFT8 = np.tile(
    patterns(
        "0 1 4 F 10 1F 20 21 3F 40 41 FF 8 28 18 7",
        np.uint32,
    ),
    N // 16,
)
SHIFT = np.tile(
    patterns(
        "0 1 4 F 10 1F 20 21 3F 40 41 FF 100 80000000 FFFFFFFF 7",
        np.uint32,
    ),
    N // 16,
)


def binary(op: str, types: list[str]) -> list[str]:
    """Instructions `op.type d, a, b` for each type, in registers of its width."""
    return [f"{op}.{t} d{_bits(t)}, a{_bits(t)}, b{_bits(t)}" for t in types]


def ternary(op: str, types: list[str]) -> list[str]:
    return [f"{op}.{t} d{_bits(t)}, a{_bits(t)}, b{_bits(t)}, c{_bits(t)}" for t in types]


def _bits(type_name: str) -> int:
    return 32 if "x2" in type_name else int(type_name.lstrip("usbf"))


def flag(setp: str, invert: bool = False) -> str:
    return f"{{ .reg .pred t; {setp.replace('$', 't')}; selp.b32 d32, {'0, 1' if invert else '1, 0'}, t; }}"


def fields(bits: int) -> list[tuple[str, str]]:
    """Where a bit field of a value of 32 or 64 bits begins, and how long it is."""
    return [("n32", "m32") if bits == 32 else ("i32", "j32"), ("0", "8"), ("31", "1"), ("16", "32"), ("5", "0")]


WIDE = ["u32", "s32", "u64", "s64"]
ALL = ["u16", "s16", *WIDE]
EVERY = {**IN32, **IN16, **IN64}

CASES: list[Case] = [
    per_thread(
        "int_add_sub",
        [*binary("add", ALL), *binary("sub", ALL), "add.sat.s32 d32, a32, b32", "sub.sat.s32 d32, a32, b32"],
        EVERY,
        N,
    ),
    per_thread(
        "int_packed_16",
        [f"{op}.{t} d32, a32, b32" for op in ("add", "min", "max") for t in ("u16x2", "s16x2")]
        + ["min.relu.s16x2 d32, a32, b32", "max.relu.s16x2 d32, a32, b32"],
        IN32,
        N,
    ),
    per_thread(
        "int_mul",
        [
            *binary("mul.lo", ALL),
            *binary("mul.hi", ALL),
            "mul.wide.u16 d32, a16, b16",
            "mul.wide.s16 d32, a16, b16",
            "mul.wide.u32 d64, a32, b32",
            "mul.wide.s32 d64, a32, b32",
            "mul24.lo.u32 d32, a32, b32",
            "mul24.hi.s32 d32, a32, b32",
            "mul24.lo.s32 d32, a32, b32",
            "mul24.hi.u32 d32, a32, b32",
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_mad",
        [
            *ternary("mad.lo", ALL),
            *ternary("mad.hi", WIDE),
            "mad.hi.sat.s32 d32, a32, b32, c32",
            "mad.wide.u16 d32, a16, b16, c32",
            "mad.wide.s16 d32, a16, b16, c32",
            "mad.wide.u32 d64, a32, b32, c64",
            "mad.wide.s32 d64, a32, b32, c64",
            "mad24.lo.s32 d32, a32, b32, c32",
            "mad24.hi.u32 d32, a32, b32, c32",
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_div_rem",
        [*binary("div", ALL), *binary("rem", ALL)],
        {
            "a32": A32,
            "b32": np.where(B32 == 0, 5, B32).astype(np.uint32),
            "a16": A16,
            "b16": np.where(B16 == 0, 5, B16).astype(np.uint16),
            "a64": A64,
            "b64": np.where(B64 == 0, 5, B64).astype(np.uint64),
        },
        N,
    ),
    per_thread(
        "int_div_by_zero",
        [*binary("div", WIDE), *binary("rem", WIDE)],
        {"a32": A32, "b32": np.zeros(N, np.uint32), "a64": A64, "b64": np.zeros(N, np.uint64)},
        N,
    ),
    per_thread(
        "int_min_max",
        [*binary("min", ALL), *binary("max", ALL), "min.relu.s32 d32, a32, b32", "max.relu.s32 d32, a32, b32"],
        EVERY,
        N,
    ),
    per_thread(
        "int_abs_neg_sad",
        [*[f"{op}.s{w} d{w}, a{w}" for op in ("abs", "neg") for w in (16, 32, 64)], *ternary("sad", ALL)],
        EVERY,
        N,
    ),
    per_thread(
        "int_logic",
        [
            *binary("and", ["b16", "b32", "b64"]),
            *binary("or", ["b16", "b32", "b64"]),
            *binary("xor", ["b16", "b32", "b64"]),
            *[f"{op}.b{w} d{w}, a{w}" for op in ("not", "cnot") for w in (16, 32, 64)],
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_shift",
        [
            f"{op}.{kind}{w} d{w}, a{w}, n32"
            for w in (16, 32, 64)
            for op, kind in (("shl", "b"), ("shr", "b"), ("shr", "u"), ("shr", "s"))
        ],
        {**EVERY, "n32": SHIFT},
        N,
    ),
    per_thread(
        "int_funnel_shift",
        [f"shf.{way}.{mode}.b32 d32, a32, b32, n32" for way in "lr" for mode in ("clamp", "wrap")],
        {**IN32, "n32": SHIFT},
        N,
    ),
    per_thread(
        "int_lop3",
        [
            f"lop3.b32 d32, a32, b32, c32, {lut}"
            for lut in (0x00, 0xFF, 0xF0, 0xCC, 0xAA, 0x80, 0xFE, 0x96, 0xE8, 0x1A, 0x40, 0xD8, 0x2D, 0x78)
        ]
        + [
            "{ .reg .pred t, u; setp.lt.s32 u, a32, b32; .reg .b32 x;"
            f" lop3.{op}.b32 x|t, a32, b32, c32, 0x78, u; selp.b32 d32, 1, 0, t; xor.b32 d32, d32, x; }}"
            for op in ("and", "or")
        ],
        IN32,
        N,
    ),
    per_thread(
        "int_prmt",
        [f"prmt.b32{m} d32, a32, b32, n32" for m in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")]
        + [
            f"prmt.b32 d32, a32, b32, {s}"
            for s in ("0x3210", "0x7654", "0x0123", "0x5410", "0x7632", "0x8888", "0xfa50", "0xba98")
        ],
        {**IN32, "n32": spread(np.arange(16, dtype=np.uint32) * 0x1357, N, 1, 11)},
        N,
    ),
    per_thread(
        "int_bfe",
        [f"bfe.{t} d{_bits(t)}, a{_bits(t)}, {x}, {y}" for t in WIDE for x, y in fields(_bits(t))],
        {**IN32, **IN64, "n32": SHIFT, "m32": np.roll(SHIFT, 5), "i32": SHIFT8, "j32": np.roll(SHIFT8, 5)},
        N,
    ),
    per_thread(
        "int_bfi",
        [f"bfi.b{w} d{w}, a{w}, b{w}, {x}, {y}" for w in (32, 64) for x, y in fields(w)],
        {**IN32, **IN64, "n32": SHIFT, "m32": np.roll(SHIFT, 3), "i32": SHIFT8, "j32": np.roll(SHIFT8, 3)},
        N,
    ),
    per_thread(
        "int_bits",
        [
            "popc.b32 d32, a32",
            "popc.b64 d32, a64",
            "clz.b32 d32, a32",
            "clz.b64 d32, a64",
            "brev.b32 d32, a32",
            "brev.b64 d64, a64",
            *[f"bfind{s}.{t} d32, a{_bits(t)}" for s in ("", ".shiftamt") for t in WIDE],
        ],
        {**IN32, **IN64},
        N,
    ),
    per_thread(
        "int_masks",
        ["bmsk.clamp.b32 d32, n32, m32", "bmsk.wrap.b32 d32, n32, m32"],
        {**IN32, "n32": SHIFT, "m32": np.roll(SHIFT, 7)},
        N,
    ),
    per_thread(
        "int_szext_fns",
        [
            "szext.clamp.u32 d32, a32, n32",
            "szext.wrap.u32 d32, a32, n32",
            "szext.clamp.s32 d32, a32, n32",
            "szext.wrap.s32 d32, a32, n32",
            "{ .reg .b32 x; and.b32 x, n32, 31; fns.b32 d32, a32, x, 1; }",
            "{ .reg .b32 x; and.b32 x, n32, 31; fns.b32 d32, a32, x, -2; }",
            "{ .reg .b32 x; and.b32 x, n32, 31; fns.b32 d32, a32, x, 0; }",
        ],
        {**IN32, "n32": SHIFT, "m32": np.roll(SHIFT, 7)},
        N,
    ),
    per_thread(
        "int_dot",
        [f"dp4a.{x}.{y} d32, a32, b32, c32" for x in ("u32", "s32") for y in ("u32", "s32")]
        + [
            f"dp2a.{h}.{x}.{y} d32, a32, b32, c32" for h in ("lo", "hi") for x in ("u32", "s32") for y in ("u32", "s32")
        ],
        IN32,
        N,
    ),
    per_thread(
        "int_carry",
        [
            "{ .reg .b32 x, y; add.cc.u32 x, a32, b32; addc.cc.u32 y, c32, a32; addc.u32 d32, x, y; }",
            "{ .reg .b32 x, y; sub.cc.u32 x, a32, b32; subc.cc.u32 y, c32, a32; subc.u32 d32, x, y; }",
            "{ .reg .b32 x, y; mad.lo.cc.u32 x, a32, b32, c32; madc.hi.u32 y, a32, b32, 0; mov.b64 d64, {x, y}; }",
            "{ .reg .b32 x, y; mad.lo.cc.u32 x, a32, b32, c32; madc.hi.cc.u32 y, a32, b32, c32; addc.u32 y, y, 0;"
            " mov.b64 d64, {x, y}; }",
            "{ .reg .b64 x, y; add.cc.u64 x, a64, b64; addc.u64 d64, x, c64; }",
            "{ .reg .b64 x, y; sub.cc.s64 x, a64, b64; subc.s64 d64, x, c64; }",
        ],
        {**IN32, **IN64},
        N,
    ),
    per_thread(
        "int_setp",
        [
            flag(f"setp.{c}.{t} $, a{_bits(t)}, b{_bits(t)}")
            for t in ALL
            for c in ("lt", "ge", "eq")
        ]
        + [flag(f"setp.{c}.u32 $, a32, b32") for c in ("lo", "ls", "hi", "hs", "ne")]
        + [flag(f"setp.{c}.b32 $, a32, b32") for c in ("eq", "ne")]
        + [
            f"{{ .reg .pred t, u, v; setp.gt.u32 v, b32, c32; setp.{c}.{b}.s32 t|u, a32, b32, {n}v; .reg .b32 x;"
            " selp.b32 d32, 1, 0, t; selp.b32 x, 2, 0, u; or.b32 d32, d32, x; }"
            for c in ("lt", "ne")
            for b in ("and", "or", "xor")
            for n in ("", "!")
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_select",
        [
            "set.lt.u32.s32 d32, a32, b32",
            "set.ge.s32.u32 d32, a32, b32",
            "set.eq.u32.s16 d32, a16, b16",
            "set.ne.f32.u64 d32, a64, b64",
            "slct.s32.s32 d32, a32, b32, c32",
            "slct.u64.s32 d64, a64, b64, c32",
            "slct.b32.f32 d32, a32, b32, c32",
            "slct.f32.s32 d32, a32, b32, c32",
            *[
                f"{{ .reg .pred t; setp.lt.s32 t, a32, b32; selp.{t} d{_bits(t)}, a{_bits(t)}, b{_bits(t)}, t; }}"
                for t in ("b16", "b32", "b64", "s32", "f32")
            ],
            "{ .reg .pred t, u; setp.lt.s32 t, a32, b32; setp.lt.u32 u, a32, b32; and.pred t, t, u; not.pred u, u;"
            " xor.pred t, t, u; or.pred t, t, u; mov.pred u, t; selp.b32 d32, 1, 0, u; }",
            "{ .reg .pred t; setp.lt.s32 t, a32, b32; mov.b32 d32, 7; @t add.u32 d32, d32, a32;"
            " @!t sub.u32 d32, d32, b32; }",
        ],
        EVERY,
        N,
    ),
    per_thread("int_convert", [f"cvt.{d}.{s} d{_bits(d)}, a{_bits(s)}" for d in ALL for s in ALL if d != s], EVERY, N),
    per_thread(
        "int_convert_narrow",
        [
            f"{{ .reg .b32 x; cvt.{sat}{d}.{s} x, a{_bits(s)}; mov.b32 d32, x; }}"
            for sat in ("", "sat.")
            for d in ("u8", "s8")
            for s in WIDE
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_convert_sat",
        [
            f"cvt.sat.{d}.{s} d{_bits(d)}, a{_bits(s)}"
            for d, s in (
                ("u16", "s32"),
                ("s16", "s32"),
                ("s16", "u32"),
                ("u32", "s32"),
                ("s32", "u32"),
                ("s32", "s64"),
                ("u32", "s64"),
                ("u64", "s64"),
                ("s64", "u64"),
                ("u32", "u64"),
            )
        ]
        + [
            "cvt.u32.u8 d32, a32",
            "cvt.s32.s8 d32, a32",
            "cvt.s64.s8 d64, a32",
            "cvt.u16.s8 d16, a32",
            *[f"cvt.pack.sat.{d}.s32 d32, a32, b32" for d in ("u16", "s16")],
            *[f"cvt.pack.sat.{d}.s32.b32 d32, a32, b32, c32" for d in ("u8", "s8")],
        ],
        EVERY,
        N,
    ),
    per_thread(
        "int_convert_pack", [f"cvt.pack.sat.{d}.s32.b32 d32, a32, b32, c32" for d in ("u4", "s4", "u2", "s2")], IN32, N
    ),
    per_thread(
        "moves",
        [
            "{ .reg .b32 x, y; mov.b64 {x, y}, a64; mov.b64 d64, {y, x}; }",
            "{ .reg .b16 x, y; mov.b32 {x, y}, a32; mov.b32 d32, {y, x}; }",
            "{ .reg .b16 x, y, z, w; mov.b64 {x, y, z, w}, a64; mov.b64 d64, {w, x, z, y}; }",
            "{ .reg .b8 x, y, z, w; mov.b32 {x, y, z, w}, a32; mov.b32 d32, {w, x, z, y}; }",
            "{ .reg .b32 x; mov.b64 {x, _}, a64; mov.b32 d32, x; }",
            "{ .reg .b128 x; mov.b128 x, {a64, b64}; .reg .b64 y, z; mov.b128 {y, z}, x; sub.u64 d64, y, z; }",
            "mov.b32 d32, 0xdeadbeef",
            "mov.b32 d32, 0f3f800000",
            "mov.f32 d32, 1.5",
            "mov.b64 d64, 0d3ff8000000000000",
            "mov.s32 d32, -5",
            "mov.b32 d32, (3 << 4 | 1) * 2 - 7",
        ],
        EVERY,
        N,
    ),
]
