"""Cases of mma.sync, PTX ISA 9.7.14.5: every shape and type of sm_90, four warps of their own numbers in each.

Registers of A and B are inputs, [thread, register]; those of C come, and D's go, by a buffer. A case's name says the
form, and which numbers: small ones whose sums lose nothing, those of many magnitudes, infinities and their like.
"""

from __future__ import annotations

import numpy as np

from .case import Case, noise, of_body, source, updated
from .wgmma import small, wild

THREADS = 128
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8, "f64": 64, "s8": 8, "s4": 4, "b1": 1}
BITS |= {"u8": 8, "u4": 4, "s32": 32}
FLOATS = [
    *((f"m16n8k{k}", d, "f16", "f16") for k in (8, 16) for d in ("f32", "f16")),
    *((f"m16n8k{k}", "f32", "bf16", "bf16") for k in (8, 16)),
    *((f"m16n8k{k}", "f32", "tf32", "tf32") for k in (4, 8)),
    *((f"m16n8k{k}", d, a, b) for k, d, a, b in (
        (32, "f32", "e4m3", "e4m3"), (32, "f32", "e5m2", "e4m3"), (32, "f16", "e4m3", "e5m2"),
        (16, "f32", "e4m3", "e5m2"), (16, "f16", "e5m2", "e5m2"),
    )),
]  # fmt: skip
DOUBLES = [(f"m{m}n8k{k}", "f64", "f64", "f64") for m, k in ((8, 4), (16, 4), (16, 8), (16, 16))]
WHOLE = [
    *(("m8n8k16", "s32", a, b) for a, b in (("s8", "u8"), ("u8", "s8"))),
    *((f"m16n8k{k}", "s32", a, b) for k in (16, 32) for a, b in (("s8", "s8"), ("u8", "u8"), ("u8", "s8"))),
    ("m8n8k32", "s32", "s4", "u4"),
    *((f"m16n8k{k}", "s32", a, b) for k in (32, 64) for a, b in (("s4", "s4"), ("u4", "s4"))),
    *((shape, "s32", "b1", "b1") for shape in ("m8n8k128", "m16n8k128", "m16n8k256")),
]
MAGNITUDES = {
    "f16": [(-3, 3), (-14, 5)], "bf16": [(-2, 2), (-30, 30)], "tf32": [(-2, 2), (-60, 60)],
    "e4m3": [(-1, 1), (-6, 8)], "e5m2": [(-2, 2), (-14, 15)],
}  # fmt: skip
SPECIAL = {
    "f16": [0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7E01, 0x3C00, 0xBC00, 0x7BFF],
    "bf16": [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0x3F80, 0xBF80, 0x7F7F],
    "tf32": [0, 1 << 31, 1 << 13, 0x1FFF, 0x7F800000, 0xFF800000, 0x7FC02000, 0x3F800000, 0xBF800000, 0x7F7FE000],
    "f32": [0, 1 << 31, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x3F800000, 0xBF800001, 0x7F7FFFFF],
    "e4m3": [0, 0x80, 1, 0x81, 0x7F, 0xFF, 0x38, 0xB8, 0x7E, 0xFE],
    "e5m2": [0, 0x80, 1, 0x81, 0x7C, 0xFC, 0x7E, 0x3C, 0xBC, 0x7B],
}


def form(shape: str, d: str, a: str, b: str) -> tuple[str, tuple[int, int, int]]:
    """The modifiers of an mma.sync, and how many registers a thread has of A, B and D."""
    m, k = (int(x) for x in shape[1:].split("n8k"))
    word = 64 if a == "f64" else 32
    of_b = k * BITS[a] // word // 4
    return f"{shape}.row.col", (of_b * m // 8, of_b, m * BITS[d] // word // 4)


def mma(name: str, which: tuple[str, str, str, str], a, b, c, before: str = "", after: str = "") -> Case:
    """A case of one form. a, b, c: the registers of all threads in order, of any dtype."""
    shape, d, *kinds = which
    text, counts = form(*which)
    wide = "b64" if d == "f64" else "b32"
    nbytes = 8 if d == "f64" else 4
    body, names = "    .reg .b64 at;\n", []
    for register, pointer, count in zip("abc", ("in_a", "in_b", "out"), counts):
        body += f"    .reg .{wide} {register}<{count}>;\n    mad.wide.u32 at, tid, {nbytes * count}, {pointer};\n"
        body += "".join(f"    ld.global.{wide} {register}{n}, [at+{nbytes * n}];\n" for n in range(count))
        names.append("{" + ", ".join(f"{register}{n}" for n in range(count)) + "}")
    types = ".".join((d, *kinds, d))
    body += f"    mma.sync.aligned.{text}{before}.{types}{after} {names[2]}, {', '.join(names)};\n"
    body += "".join(f"    st.global.{wide} [at+{nbytes * n}], c{n};\n" for n in range(counts[2]))
    args = (updated(c), source(a), source(b))
    for arg, count in zip(args, (counts[2], *counts[:2])):
        assert arg.data.nbytes == THREADS * count * nbytes, (name, arg.data.nbytes, count)
    return of_body(f"mma_sync_{name}", "ptr out, ptr in_a, ptr in_b", body, args, THREADS)


def sizes(which: tuple[str, str, str, str]) -> list[int]:
    """How many elements four warps have of A, B and D."""
    return [THREADS * n * (64 if which[1] == "f64" else 32) // BITS[k]
            for n, k in zip(form(*which)[1], (which[2], which[2], which[1]))]  # fmt: skip


def floats() -> list[Case]:
    """Cases of small numbers, of those of two ranges of magnitudes, and of infinities, NaN, zeros and subnormals."""
    cases = []
    for seed, which in enumerate(FLOATS):
        shape, d, a, b = which
        na, nb, nd = sizes(which)
        title = f"{shape}_{d}_{a}_{b}"
        cases.append(mma(f"{title}_small", which, *(small(k, n, 40 * seed + j) for j, (k, n) in enumerate(
            ((a, na), (b, nb), (d, nd))))))  # fmt: skip
        for turn, ((low, high), (low_b, high_b)) in enumerate(zip(MAGNITUDES[a], MAGNITUDES[b])):
            if d == "f16":
                low, high, low_b, high_b = -6, 1 + turn, -6, 1 + turn
            limits = (-10, 8) if d == "f16" else (low + low_b - 8, high + high_b + 6)
            at = 4000 + 40 * seed + 10 * turn
            codes = wild(a, na, at, low, high), wild(b, nb, at + 2, low_b, high_b), wild(d, nd, at + 4, *limits)
            cases.append(mma(f"{title}_wild_{turn}", which, *codes))
        picked = []
        for j, (kind, n, rare) in enumerate(((a, na, 24), (b, nb, 24), (d, nd, 2))):
            codes = small(kind, n, 8000 + 10 * seed + j)
            values = np.array(SPECIAL[kind], codes.dtype)
            at = noise(4 * n, 8500 + 10 * seed + j).view(np.uint32)
            picked.append(np.where(at % rare == 0, values[(at >> 8) % len(values)], codes))
        cases.append(mma(f"{title}_special", which, *picked))
    return cases


def doubles() -> list[Case]:
    """Cases of f64: of many magnitudes, and of products that cancel, where the order of the sum shows."""
    cases = []
    for seed, which in enumerate(DOUBLES):
        values = [wild("f32", n, 9000 + 40 * seed + 5 * j, -40, 40).view(np.float32).astype(np.float64) * (1 + 2.0**-40)
                  for j, n in enumerate(sizes(which))]  # fmt: skip
        cases.append(mma(f"{which[0]}_f64_wild", which, *values))
        near = [v / np.abs(v) * (1 + (i % 7) * 2.0**-50) for v in values for i in [np.arange(len(v))]]
        cases.append(mma(f"{which[0]}_f64_near", which, *near))
    return cases


def whole_numbers() -> list[Case]:
    """Cases of integers of 8, 4 and one bit, of random bits, onto accumulators near the ends of s32."""
    cases = []
    for seed, which in enumerate(WHOLE):
        shape, d, a, b = which
        na, nb, nd = sizes(which)
        codes = [noise(n * BITS[a] // 8, 9500 + 10 * seed + j) for j, n in enumerate((na, nb))]
        c = noise(4 * nd, 9700 + seed).view(np.int32) >> 8
        edge = np.where(c & 1, 2**31 - 1 - (c & 0xFFF), -(2**31) + (c & 0xFFF)).astype(np.int32)
        c = np.where(c & 6, c, edge).astype(np.int32)
        title = f"{shape}_{a}_{b}"
        if a == "b1":
            for how in ("xor", "and"):
                cases.append(mma(f"{title}_{how}", which, *codes, c, after=f".{how}.popc"))
        else:
            cases.append(mma(title, which, *codes, c))
            cases.append(mma(f"{title}_satfinite", which, *codes, c, before=".satfinite"))
    return cases


CASES = [*floats(), *doubles(), *whole_numbers()]
