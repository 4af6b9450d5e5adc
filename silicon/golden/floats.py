"""Cases of floating point: PTX ISA 9.7.3 (f32, f64), 9.7.4 (f16, bf16), 9.7.9 (cvt), 9.7.5 (set, setp)."""

from __future__ import annotations

import numpy as np

from .case import Case, noise, patterns, per_thread, spread
from .integer import A32, flag

N = 96
F32 = patterns(
    "0 80000000 1 80000001 7FFFFF 800000 807FFFFF 80800000 3F800000 BF800000 3F800001 3F7FFFFF 7F7FFFFF "
    "FF7FFFFF 7F800000 FF800000 7FC00000 7F800001 FFC12345 40490FDB 33800000 4B800000 34000000 5F000000 "
    "1F000000 400000 3EAAAAAB C2C80000 DA24260 42F60000",
    np.uint32,
)
F16 = patterns(
    "0 8000 1 8001 3FF 400 83FF 3C00 BC00 3C01 7BFF FBFF 7C00 FC00 7E00 7D01 FE55 3555 4248 1400 5800 200",
    np.uint16,
)
BF16 = patterns(
    "0 8000 1 8001 7F 80 807F 3F80 BF80 3F81 7F7F FF7F 7F80 FF80 7FC0 7F81 FFD5 3EAB 4049 3380 4B80 40",
    np.uint16,
)


def near_one(seed: int) -> np.ndarray:
    """f32 bits with random fractions and exponents within 2^+-12, where sums and products round in every direction."""
    x = noise(4 * N, seed).view(np.uint32)
    return (x & np.uint32(0x807FFFFF)) | ((x >> np.uint32(23)) % np.uint32(25) + np.uint32(115)) << np.uint32(23)


def mixed(edges: np.ndarray, stride: int, seed: int) -> np.ndarray:
    out = spread(edges, N, stride, seed)
    if edges.dtype == np.uint32:
        out[1::2] = near_one(seed)[1::2]
    return out


A, B, C = mixed(F32, 1, 21), mixed(F32, 7, 22), mixed(F32, 11, 23)
AE, BE, CE = spread(F32, N, 1, 24), spread(F32, N, 7, 25), spread(F32, N, 11, 26)
F32_IN = {"a32": A, "b32": B, "c32": C}
F32_EDGE = {"a32": AE, "b32": BE, "c32": CE}
HALF = {"a16": spread(F16, N, 1, 27), "b16": spread(F16, N, 7, 28), "c16": spread(F16, N, 5, 29)}
BHALF = {"a16": spread(BF16, N, 1, 30), "b16": spread(BF16, N, 7, 31), "c16": spread(BF16, N, 5, 32)}


def pairs(edges: np.ndarray) -> dict[str, np.ndarray]:
    """Operands a32, b32, c32 that pack two 16-bit floats each."""
    return {f"{r}32": spread(edges, 2 * N, s, 33 + s).view(np.uint32) for r, s in (("a", 1), ("b", 7), ("c", 5))}


ROUND = ("rn", "rz", "rm", "rp")
# f64 operands without NaN: a NaN's payload is not specified
F64 = patterns(
    "0 8000000000000000 1 FFFFFFFFFFFFF 10000000000000 3FF0000000000000 BFF0000000000000 3FF0000000000001 "
    "7FEFFFFFFFFFFFFF 7FF0000000000000 400921FB54442D18 3CA0000000000000 41DFFFFFFFC00000 "
    "C1E0000000000000 3FD5555555555555 47EFFFFFE0000000 3690000000000000 36A0000000000000 "
    "380FFFFFC0000000 43E0000000000000",
    np.uint64,
)
D_IN = {
    f"{r}64": F64[(np.arange(N) * s + np.arange(N) // len(F64)) % len(F64)] for r, s in (("a", 1), ("b", 7), ("c", 3))
}
POSITIVE = {k: v & np.uint32(0x7FFFFFFF) for k, v in F32_IN.items()}
ANGLE = (noise(4 * N, 40).view(np.uint32) % np.uint32(0x00C90FDB)) + np.uint32(0x3FC90FDB - 0x00C90FDB)  # 2^-1 .. pi/2
NORMAL = {
    "a32": near_one(41) & np.uint32(0x7FFFFFFF),
    "b32": near_one(42) & np.uint32(0x7FFFFFFF),
    "angle32": ANGLE,
    "s32": (near_one(43) & np.uint32(0x807FFFFF)) | np.uint32(0x40000000),
}
INT_LIKE = np.concatenate(
    [
        F32,
        (
            np.array(
                [
                    0.5,
                    1.5,
                    2.5,
                    -0.5,
                    -1.5,
                    -2.5,
                    127.5,
                    128,
                    -128.5,
                    255.5,
                    256,
                    32767.5,
                    -32768.5,
                    65535.5,
                    2147483520,
                    2147483648,
                    -2147483648,
                    -2147483904,
                    4294967040,
                    4294967296,
                    9.2233715e18,
                    9.223372e18,
                    1.8446743e19,
                    1.8446744e19,
                    -0.9999,
                    0.99999,
                ],
                np.float32,
            )
        ).view(np.uint32),
    ]
)
I32 = spread(INT_LIKE, N, 1, 44)
CODES8 = np.arange(128, dtype=np.uint32) * 2 | (np.arange(128, dtype=np.uint32) * 2 + 1) << np.uint32(
    8
)  # every 8-bit code, in pairs
# f32 values around every rounding boundary of e4m3 and e5m2
# Around the largest numbers of f16, bf16 and tf32, and where they round up to none
NEAR_LARGEST = patterns(
    "477FE000 477FEFFF 477FF000 477FFFFF 47800000 7F7F0000 7F7F7FFF 7F7F8000 7F7FDFFF 7F7FE000 7F7FEFFF 7F7FF000 "
    "7F7FFFFF C77FEFFF C77FF000 C7800000 FF7F7FFF FF7F8000 FF7FEFFF FF7FF000 FF7FFFFF 7F800000 FF800000 7FC00000 "
    "FFC12345 7F800001",
    np.uint32,
)
FP8 = np.concatenate(
    [
        patterns(
            "0 80000000 7FC00000 7F800000 FF800000 3A800000 3A800001 3B000000 3AC00000 37800000 37800001 38000000 "
            "43E00000 43E80000 43E80001 43F00000 43F80000 47600000 47700000 47680000 47680001 47800000 C3E80000 "
            "C3E80001 C7700000 1 80000001 3C880000 3C900000 3C980000 3F880000 3F980000",
            np.uint32,
        ),
        (noise(4 * 64, 45).view(np.uint32) & np.uint32(0x80F80000)) + np.uint32(0x3B800000),
    ]
)


def each(op: str, types: list[str], operands: str = "a32, b32") -> list[str]:
    return [f"{op}{t} d32, {operands}" for t in types]


def frounds(op: str, operands: str) -> list[str]:
    return [f"{op}.{r}.{t} d32, {operands}" for r in ROUND for t in ("f32", "ftz.f32")]


def half_ops(t: str, d: str, a: str, b: str, c: str) -> list[str]:
    """Instructions that f16, f16x2, bf16 and bf16x2 share, then those that only the f16 forms have."""
    ops = [f"{op}.rn.{t} {d}, {a}, {b}" for op in ("add", "sub", "mul")]
    ops += [f"fma.rn{m}.{t} {d}, {a}, {b}, {c}" for m in ("", ".relu")]
    ops += [
        f"{op}{m}.{t} {d}, {a}, {b}" for op in ("min", "max") for m in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")
    ]
    ops += [f"{op}.{t} {d}, {a}" for op in ("neg", "abs")]
    if not t.startswith("b"):
        ops += [f"{op}{m}.{t} {d}, {a}, {b}" for op in ("add", "sub", "mul") for m in (".ftz", ".sat", ".rn.ftz.sat")]
        ops += [f"fma.rn{m}.{t} {d}, {a}, {b}, {c}" for m in (".ftz", ".sat", ".ftz.relu")]
        ops += [f"{op}.ftz.{t} {d}, {a}, {b}" for op in ("min", "max")]
    return ops


CMP = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")

CASES: list[Case] = [
    per_thread(
        "f32_add",
        frounds("add", "a32, b32") + ["add.sat.f32 d32, a32, b32", "add.ftz.sat.f32 d32, a32, b32"],
        F32_IN,
        N,
    ),
    per_thread("f32_sub", frounds("sub", "a32, b32") + ["sub.sat.f32 d32, a32, b32"], F32_EDGE, N),
    per_thread("f32_mul", frounds("mul", "a32, b32") + ["mul.sat.f32 d32, a32, b32"], F32_IN, N),
    per_thread(
        "f32_fma",
        frounds("fma", "a32, b32, c32") + ["fma.rn.sat.f32 d32, a32, b32, c32", "mad.rn.f32 d32, a32, b32, c32"],
        F32_IN,
        N,
    ),
    per_thread("f32_fma_edges", frounds("fma", "a32, b32, c32"), F32_EDGE, N),
    per_thread("f32_div", frounds("div", "a32, b32"), F32_IN, N),
    per_thread("f32_rcp_sqrt", frounds("rcp", "a32") + frounds("sqrt", "a32"), {"a32": A}, N),
    per_thread(
        "f32_min_max",
        [
            f"{op}{m}.f32 d32, a32, b32"
            for op in ("min", "max")
            for m in ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs")
        ],
        F32_EDGE,
        N,
    ),
    per_thread(
        "f32_sign_class",
        [
            "abs.f32 d32, a32",
            "abs.ftz.f32 d32, a32",
            "neg.f32 d32, a32",
            "neg.ftz.f32 d32, a32",
            "copysign.f32 d32, a32, b32",
            *[
                flag(f"testp.{k}.f32 $, a32")
                for k in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
            ],
        ],
        F32_EDGE,
        N,
    ),
    per_thread(
        "f32_setp",
        [flag(f"setp.{c}{z}.f32 $, a32, b32") for z in ("", ".ftz") for c in CMP],
        {"a32": AE, "b32": np.where(np.arange(N) % 3, BE, AE)},
        N,
    ),
    per_thread(
        "f32_set",
        [
            *[f"set.{c}.u32.f32 d32, a32, b32" for c in ("lt", "geu", "nan")],
            "set.gt.f32.f32 d32, a32, b32",
            "set.lt.ftz.s32.f32 d32, a32, b32",
            "slct.ftz.f32.f32 d32, a32, b32, c32",
        ],
        F32_EDGE,
        N,
    ),
    # tolerances: the distance of this GPU's results from the correctly rounded ones
    per_thread(
        "f32_approx",
        [
            ("rcp.approx.ftz.f32 d32, a32", 1),
            ("rcp.approx.f32 d32, a32", 1),
            ("div.approx.f32 d32, a32, b32", 2),
            ("div.full.f32 d32, a32, b32", 2),
            ("sqrt.approx.f32 d32, a32", 1),
            ("rsqrt.approx.f32 d32, a32", 1),
            ("ex2.approx.f32 d32, s32", 2),
            ("ex2.approx.ftz.f32 d32, s32", 2),
            ("lg2.approx.f32 d32, b32", 5),
            ("tanh.approx.f32 d32, s32", 42),
            ("sin.approx.f32 d32, angle32", 6),
            ("cos.approx.ftz.f32 d32, angle32", 45),
        ],
        NORMAL,
        N,
    ),
    per_thread(
        "f32_approx_special",
        [
            *[
                f"{op} d32, a32"
                for op in (
                    "rcp.approx.ftz.f32",
                    "sqrt.approx.ftz.f32",
                    "rsqrt.approx.ftz.f32",
                    "ex2.approx.ftz.f32",
                    "lg2.approx.ftz.f32",
                )
            ],
            ("tanh.approx.f32 d32, a32", 128),
        ],
        {
            "a32": np.resize(
                patterns(
                    "0 80000000 7F800000 FF800000 7FC00000 3F800000 1 80000001",
                    np.uint32,
                ),
                N,
            )
        },
        N,
    ),
    per_thread(
        "f64_arith",
        [
            *[f"{op}.{r}.f64 d64, a64, b64" for op in ("add", "sub", "mul") for r in ROUND],
            *[f"fma.{r}.f64 d64, a64, b64, c64" for r in ROUND],
        ],
        {
            k: np.where(
                (v & np.uint64(0x7FF0000000000000)) == np.uint64(0x7FF0000000000000), np.uint64(0x3FF8000000000003), v
            )
            for k, v in D_IN.items()
        },
        N,
    ),
    per_thread(
        "f64_other",
        [
            "min.f64 d64, a64, b64",
            "max.f64 d64, a64, b64",
            "abs.f64 d64, a64",
            "neg.f64 d64, a64",
            "copysign.f64 d64, a64, b64",
            *[flag(f"setp.{c}.f64 $, a64, b64") for c in ("lt", "ge", "eq", "neu")],
            "cvt.rn.f32.f64 d32, a64",
            "cvt.rz.f32.f64 d32, a64",
            "cvt.rm.f32.f64 d32, a64",
            "cvt.rp.f32.f64 d32, a64",
            "cvt.rzi.s32.f64 d32, a64",
            "cvt.rni.s64.f64 d64, a64",
            "cvt.rmi.u32.f64 d32, a64",
        ],
        D_IN,
        N,
    ),
    per_thread(
        "f64_div_sqrt",
        ["div.rn.f64 d64, a64, b64", "rcp.rn.f64 d64, b64", "sqrt.rn.f64 d64, b64"],
        {
            "a64": D_IN["a64"] & np.uint64(0x3FFFFFFFFFFFFFFF) | np.uint64(0x3000000000000000),
            "b64": D_IN["b64"] & np.uint64(0x3FFFFFFFFFFFFFFF) | np.uint64(0x3000000000000000),
        },
        N,
    ),
    per_thread("f16_arith", half_ops("f16", "d16", "a16", "b16", "c16"), HALF, N),
    per_thread("f16x2_arith", half_ops("f16x2", "d32", "a32", "b32", "c32"), pairs(F16), N),
    per_thread("bf16_arith", half_ops("bf16", "d16", "a16", "b16", "c16"), BHALF, N),
    per_thread("bf16x2_arith", half_ops("bf16x2", "d32", "a32", "b32", "c32"), pairs(BF16), N),
    per_thread(
        "half_compare",
        [
            *[flag(f"setp.{c}.f16 $, a16, b16") for c in CMP],
            "set.gt.u32.f16 d32, a16, b16",
            "set.le.f16.f16 d16, a16, b16",
        ],
        HALF,
        N,
    ),
    per_thread(
        "packed_compare",
        [
            *[f"set.{c}.f16x2.f16x2 d32, a32, b32" for c in ("lt", "geu", "num")],
            "{ .reg .pred t, u; setp.lt.f16x2 t|u, a32, b32; .reg .b32 x; selp.b32 d32, 1, 0, t; selp.b32 x, 2, 0, u;"
            " or.b32 d32, d32, x; }",
            "{ .reg .pred t, u; setp.ge.ftz.f16x2 t|u, a32, b32; .reg .b32 x;"
            " selp.b32 d32, 1, 0, t; selp.b32 x, 2, 0, u; or.b32 d32, d32, x; }",
        ],
        pairs(F16),
        N,
    ),
    per_thread("bf16_compare", [*[flag(f"setp.{c}.bf16 $, a16, b16") for c in CMP]], BHALF, N),
    per_thread(
        "packed_bf16_compare",
        [
            *[f"set.{c}.bf16x2.bf16x2 d32, a32, b32" for c in ("lt", "geu", "num")],
            "{ .reg .pred t, u; setp.gt.bf16x2 t|u, a32, b32; .reg .b32 x; selp.b32 d32, 1, 0, t; selp.b32 x, 2, 0, u;"
            " or.b32 d32, d32, x; }",
        ],
        pairs(BF16),
        N,
    ),
    per_thread(
        "cvt_f32_to_f16",
        [f"cvt.{r}{m}.f16.f32 d16, a32" for r in ROUND for m in ("", ".ftz", ".sat")]
        + [f"cvt.{r}{m}.f16.f32 d16, a32" for r in ("rn", "rz") for m in (".relu",)],
        {"a32": np.concatenate([F32, FP8])[:N]},
        N,
    ),
    per_thread(
        "cvt_f32_to_f16_near",
        [f"cvt.{r}.f16.f32 d16, a32" for r in ROUND] + ["cvt.rn.relu.f16.f32 d16, a32"],
        {"a32": (noise(4 * N, 46).view(np.uint32) & np.uint32(0x81FFF000)) + np.uint32(0x32800000)},
        N,
    ),
    per_thread(
        "cvt_f32_to_f16x2",
        [f"cvt.{r}{m}.f16x2.f32 d32, a32, b32" for r in ("rn", "rz") for m in ("", ".relu")],
        F32_IN,
        N,
    ),
    per_thread(
        "cvt_f32_to_bf16",
        [f"cvt.{r}.bf16.f32 d16, a32" for r in ROUND]
        + [f"cvt.{r}.relu.bf16.f32 d16, a32" for r in ("rn", "rz")]
        + [f"cvt.{r}{m}.bf16x2.f32 d32, a32, b32" for r in ("rn", "rz") for m in ("", ".relu")],
        {"a32": A, "b32": near_one(47) & np.uint32(0xFFFF8000)},
        N,
    ),
    per_thread(
        "cvt_f32_to_tf32",
        [f"cvt.{r}.tf32.f32 d32, a32" for r in ("rna", "rn", "rz", "rn.relu", "rz.relu")],
        {"a32": np.where(np.arange(N) % 2, A, A & np.uint32(0xFFFFF000))},
        N,
    ),
    per_thread(
        "cvt_f32_satfinite",
        [f"cvt.{r}{m}.satfinite.{t}.f32 d16, a32" for t in ("f16", "bf16") for r in ("rn", "rz") for m in ("", ".relu")]
        + [f"cvt.{r}.satfinite.{t}.f32 d32, a32, b32" for t in ("f16x2", "bf16x2") for r in ("rn", "rz.relu")]
        + ["cvt.rna.satfinite.tf32.f32 d32, a32"],
        {"a32": np.concatenate([NEAR_LARGEST, A])[:N], "b32": np.roll(np.concatenate([NEAR_LARGEST, A])[:N], 17)},
        N,
    ),
    per_thread(
        "cvt_f32_to_fp8",
        [f"cvt.rn.satfinite{m}.{t}.f32 d16, a32, b32" for t in ("e4m3x2", "e5m2x2") for m in ("", ".relu")],
        {"a32": FP8, "b32": np.roll(FP8, 17)},
        len(FP8),
    ),
    per_thread(
        "cvt_f16x2_to_fp8",
        [f"cvt.rn.satfinite{m}.{t}.f16x2 d16, a32" for t in ("e4m3x2", "e5m2x2") for m in ("", ".relu")],
        pairs(F16),
        N,
    ),
    per_thread(
        "cvt_fp8_to_f16x2",
        [
            "{ .reg .b16 x; cvt.u16.u32 x, a32; cvt.rn%s.f16x2.%s d32, x; }" % (m, t)
            for t in ("e4m3x2", "e5m2x2")
            for m in ("", ".relu")
        ],
        {"a32": CODES8},
        128,
    ),
    per_thread(
        "cvt_half_to_f32",
        [
            "cvt.f32.f16 d32, a16",
            "cvt.ftz.f32.f16 d32, a16",
            "cvt.f32.bf16 d32, b16",
            "cvt.sat.f32.f16 d32, a16",
            "cvt.rn.bf16.f16 d16, a16",
            "cvt.rn.f16.bf16 d16, b16",
            "cvt.rz.f16.bf16 d16, b16",
            "cvt.f64.f16 d64, c16",
        ],
        {
            "a16": np.concatenate([F16, noise(2 * (512 - len(F16)), 48).view(np.uint16)]),
            "b16": np.concatenate([BF16, noise(2 * (512 - len(BF16)), 49).view(np.uint16)]),
            "c16": np.resize(np.array([0, 0x3C00, 0x8001, 0x7BFF, 0xFC00, 0x03FF], np.uint16), 512),
        },
        512,
    ),
    per_thread(
        "cvt_f32_to_int",
        [f"cvt.{r}.{t}.f32 d{t[1:]}, a32" for r in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32", "s64", "u64")]
        + ["cvt.rni.ftz.s32.f32 d32, a32", "cvt.rmi.ftz.s32.f32 d32, a32"],
        {"a32": I32},
        N,
    ),
    per_thread(
        "cvt_f32_to_small_int",
        [f"cvt.{r}.{t}.f32 d16, a32" for r in ("rni", "rzi") for t in ("s16", "u16")]
        + [
            f"{{ .reg .b32 x; cvt.{r}{s}.{t}.f32 x, a32; mov.b32 d32, x; }}"
            for r in ("rni", "rzi")
            for s in ("", ".sat")
            for t in ("s8", "u8")
        ],
        {"a32": I32},
        N,
    ),
    per_thread(
        "cvt_half_to_int",
        [f"cvt.{r}.{t}.f16 d{t[1:]}, a16" for r in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32", "s16", "u16")]
        + [f"cvt.rzi.{t}.bf16 d32, b16" for t in ("s32", "u32")],
        {
            "a16": spread(
                np.concatenate([F16, np.array([0x3800, 0x3E00, 0x4100, 0xB800, 0xBE00, 0x7800, 0xF800], np.uint16)]),
                N,
                1,
                50,
            ),
            "b16": BHALF["b16"],
        },
        N,
    ),
    per_thread(
        "cvt_int_to_float",
        [
            f"cvt.{r}.f32.{t} d32, {a}"
            for r in ROUND
            for t, a in (("s32", "a32"), ("u32", "a32"), ("s64", "a64"), ("u64", "a64"))
        ]
        + [f"cvt.{r}.f16.{t} d16, a32" for r in ROUND for t in ("s32", "u32")]
        + [
            "cvt.rn.f64.s32 d64, a32",
            "cvt.rn.f64.u64 d64, a64",
            "cvt.rn.bf16.s32 d16, a32",
            "cvt.rn.bf16.u32 d16, a32",
        ],
        {
            "a32": np.where(
                np.arange(N) % 2,
                A32,
                noise(4 * N, 51).view(np.uint32) >> (np.arange(N, dtype=np.uint32) % np.uint32(24)),
            ),
            "a64": noise(8 * N, 52).view(np.uint64) >> (np.arange(N, dtype=np.uint64) % np.uint64(48)),
        },
        N,
    ),
    per_thread(
        "cvt_f32_to_f32",
        [f"cvt.{r}{m}.f32.f32 d32, a32" for r in ("rni", "rzi", "rmi", "rpi") for m in ("", ".ftz", ".sat")]
        + ["cvt.ftz.f32.f32 d32, a32", "cvt.sat.f32.f32 d32, a32", "cvt.ftz.sat.f32.f32 d32, a32"],
        {"a32": I32},
        N,
    ),
    per_thread(
        "cvt_f16_to_f16",
        [f"cvt.{r}.f16.f16 d16, a16" for r in ("rni", "rzi", "rmi", "rpi")] + ["cvt.sat.f16.f16 d16, a16"],
        {"a16": spread(np.concatenate([F16, np.array([0x3800, 0x3E00, 0x4100, 0xB800, 0xBE00], np.uint16)]), N, 1, 53)},
        N,
    ),
    per_thread(
        "half_approx",
        [
            ("ex2.approx.f16 d16, a16", 2),
            ("ex2.approx.ftz.bf16 d16, b16", 2),
            ("tanh.approx.f16 d16, a16", 2),
            ("tanh.approx.bf16 d16, b16", 1),
        ],
        {
            "a16": (noise(2 * N, 54).view(np.uint16) & np.uint16(0x83FF)) | np.uint16(0x3C00),
            "b16": (noise(2 * N, 55).view(np.uint16) & np.uint16(0x807F)) | np.uint16(0x3F80),
        },
        N,
    ),
]
