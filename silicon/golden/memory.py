"""Cases of loads, stores, state spaces and atomics.

PTX ISA 9.7.9.8-.14 (ld, st), 9.7.9.25.2-.3 (cp.async), 9.7.13.5-6 (atom, red), 5.1.
"""

from __future__ import annotations

import numpy as np

from .case import (
    SMALL,
    SMALL2,
    Case,
    fill_shared,
    halves,
    noise,
    of_body,
    output,
    per_thread,
    read_shared,
    singles,
    source,
    updated,
    write_shared,
)

N = 64
SRC = noise(4096, 80)


def address(space: str, nbytes: int) -> str:
    """PTX that sets %rd1 to the thread's own slot of `nbytes`: in global or shared memory, or by a generic address."""
    if space == "global":
        return f"mad.wide.u32 %rd1, thread, {nbytes}, src;"
    if space == "shared":
        return f"mad.lo.u32 %r1, tid, {nbytes}, smem; cvt.u64.u32 %rd1, %r1;"
    return f"mad.lo.u32 %r1, tid, {nbytes}, smem; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1;"


def combine(regs: list[str], bits: int) -> str:
    """PTX that folds vector elements into d64, each with its own weight."""
    text = "mov.b64 d64, 0;"
    for i, reg in enumerate(regs):
        wide = f"mov.b64 %rd2, {reg};" if bits == 64 else f"cvt.u64.u{bits} %rd2, {reg};"
        text += f" {wide} mad.lo.u64 d64, d64, {2 * i + 3}, %rd2;"
    return text


def vector_load(space: str, count: int, bits: int) -> str:
    regs = [f"v{i}" for i in range(count)]
    operand = regs[0] if count == 1 else "{" + ", ".join(regs) + "}"
    suffix = "" if space == "generic" else f".{space}"
    decl = f".reg .b{max(bits, 16)} {', '.join(regs)};"
    vector = "" if count == 1 else f".v{count}"
    fold = combine(regs, max(bits, 16))
    return f"{{ {decl} {address(space, count * bits // 8)} ld{suffix}{vector}.b{bits} {operand}, [%rd1]; {fold} }}"


def sub_word(space: str, kind: str, bits: int, index: int) -> str:
    return f"{{ {address(space, 8)} ld.{space}.{kind} d{bits}, [%rd1+{index}]; }}"


SHARED_COPY = write_shared(0, 4096) + "\n    bar.sync 0;"
WIDTHS = [(1, 8), (2, 8), (4, 8), (1, 16), (2, 16), (4, 16), (1, 32), (2, 32), (4, 32), (1, 64), (2, 64)]


def atomic(space: str, op: str, kind: str, operand: str, width: int, third: str = "") -> str:
    """PTX whose result is the old value of the thread's own word, which starts as input b.

    The new value is checked through a plain load.
    """
    reg = "%rd1" if space == "global" else "%r1"
    where = "mad.wide.u32 %rd1, thread, 8, cell;" if space == "global" else "mad.lo.u32 %r1, tid, 8, smem;"
    fold = {
        2: "shl.b16 old, old, 3; xor.b16 d16, old, now;",
        4: "mad.lo.u32 d32, old, 3, now;",
        8: "mad.lo.u64 d64, old, 3, now;",
    }[width]
    bits = 8 * width
    return (
        f"{{ .reg .b{bits} old, now; {where} st.{space}.b{bits} [{reg}], b{bits};"
        f" atom.{space}.{op}.{kind} old, [{reg}], {operand}{third}; ld.{space}.b{bits} now, [{reg}]; {fold} }}"
    )


INT_ATOMS = [
    ("add", "u32"),
    ("add", "s32"),
    ("min", "u32"),
    ("min", "s32"),
    ("max", "u32"),
    ("max", "s32"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "b32"),
    ("or", "b32"),
    ("xor", "b32"),
    ("exch", "b32"),
]
LONG_ATOMS = [
    ("add", "u64"),
    ("min", "u64"),
    ("min", "s64"),
    ("max", "u64"),
    ("max", "s64"),
    ("and", "b64"),
    ("or", "b64"),
    ("xor", "b64"),
    ("exch", "b64"),
]


def atoms(space: str) -> list[str]:
    ops = [atomic(space, op, k, "a32", 4) for op, k in INT_ATOMS] + [
        atomic(space, op, k, "a64", 8) for op, k in LONG_ATOMS
    ]
    ops += [atomic(space, "cas", "b32", "b32", 4, ", a32"), atomic(space, "cas", "b32", "a32", 4, ", b32")]
    ops += [atomic(space, "cas", "b64", "b64", 8, ", a64"), atomic(space, "cas", "b16", "b16", 2, ", a16")]
    return ops


CELL = (("cell", updated(np.zeros(8 * N, np.uint8))),)
WORDS = {
    "a32": noise(4 * N, 81).view(np.uint32),
    "b32": noise(4 * N, 82).view(np.uint32),
    "a64": noise(8 * N, 83).view(np.uint64),
    "b64": noise(8 * N, 84).view(np.uint64),
    "a16": noise(2 * N, 85).view(np.uint16),
    "b16": noise(2 * N, 86).view(np.uint16),
}


def floats32(seed: int) -> np.ndarray:
    return singles(seed, N).view(np.uint32)


def floats16(seed: int, kind: str) -> np.ndarray:
    """Words of two floats of this kind, f16 or bf16, near one each."""
    return halves(seed, kind, 2 * N).view(np.uint32)


FLOATS = {
    "a32": floats32(87),
    "b32": floats32(88),
    "h32": floats16(89, "f16"),
    "g32": floats16(90, "f16"),
    "k32": floats16(91, "bf16"),
    "l32": floats16(92, "bf16"),
}
SUBNORMAL = {"a32": SMALL, "b32": SMALL2}


def float_atom(space: str, kind: str, a: str, b: str, op: str = "add") -> str:
    reg = "%rd1" if space == "global" else "%r1"
    where = "mad.wide.u32 %rd1, thread, 8, cell;" if space == "global" else "mad.lo.u32 %r1, tid, 8, smem;"
    return (
        f"{{ .reg .b32 old; {where} st.{space}.b32 [{reg}], {b}; atom.{space}.{op}.{kind} old, [{reg}], {a};"
        f" ld.{space}.b32 d32, [{reg}]; }}"
    )


def contended(space: str) -> str:
    """A case whose two warps, in global memory of several CTAs, hit the same words with operations that commute."""
    reg = "cell" if space == "global" else "smem"
    ops = [
        ("add.u32", "a32"),
        ("min.s32", "a32"),
        ("max.u32", "a32"),
        ("and.b32", "c32"),
        ("or.b32", "e32"),
        ("xor.b32", "a32"),
        ("inc.u32", "96"),
        ("dec.u32", "45"),
        ("add.f32", "f32"),
        ("add.noftz.f16x2", "h32"),
        ("add.noftz.bf16x2", "k32"),
    ]
    text = (
        ".reg .b32 c32, e32, f32, h32, k32; or.b32 c32, a32, 0xfffffffe; and.b32 e32, a32, 0x11; and.b32 f32, tid, 7;"
    )
    text += " cvt.rn.f32.u32 f32, f32; mov.b32 h32, 0x3c004000; mov.b32 k32, 0x3f804000;\n"
    return text + "\n".join(f"    red.{space}.{op} [{reg}+{16 * i}], {x};" for i, (op, x) in enumerate(ops))


def cp_async(size: int, cache: str, source_bytes: str) -> Case:
    body = (
        write_shared(0, 1024)
        + f"""
    bar.sync 0;
    mad.lo.u32 %r1, tid, {size}, smem;
    sub.u32 %r2, 63, tid;
    mad.wide.u32 %rd1, %r2, {size}, src;
    and.b32 %r3, tid, 15;
    min.u32 %r3, %r3, {size};
    cp.async.{cache}.shared.global [%r1], [%rd1], {size}{source_bytes};
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
"""
        + read_shared(0, 1024)
    )
    name = f"cp_async_{cache}_{size}" + ("_zfill" if source_bytes else "")
    return of_body(name, "ptr out, ptr src", body, (output(1024), source(noise(1024, 93))), shared=1024)


def vector_store(space: str) -> Case:
    """A case that stores with every width to a 1 KiB band each; upper bits of narrow registers must not leak."""
    text, reg = "", "%rd1"
    for band, (count, bits) in enumerate(WIDTHS):
        regs = {8: "%h", 16: "%h", 32: "%r1", 64: "%rd1"}[bits]
        operand = ", ".join(f"{regs}{i}" for i in range(count))
        operand = operand if count == 1 else f"{{{operand}}}"
        vector = "" if count == 1 else f".v{count}"
        if space == "shared":
            where, reg = f"mad.lo.u32 %r2, tid, {count * bits // 8}, smem;", "%r2"
        else:
            where = f"mad.wide.u32 %rd1, thread, {count * bits // 8}, out;"
        text += f"    {where} st.{space}{vector}.b{bits} [{reg}+{1024 * band}], {operand};\n"
    size = 1024 * len(WIDTHS)
    setup = "".join(
        f"    mul.lo.u32 %r1{i}, tid, {2654435761 + 2 * i}; cvt.u16.u32 %h{i}, %r1{i};"
        f" mov.b64 %rd1{i}, {{%r1{i}, tid}};\n"
        for i in range(4)
    )
    if space == "shared":
        text = fill_shared(0, size) + "\n    bar.sync 0;\n" + setup + text + "    bar.sync 0;" + read_shared(0, size)
    else:
        text = setup + text
    return of_body(f"st_{space}_widths", "ptr out", text, (output(size),), 32, shared=size)


MODULE_DATA = """.const .align 4 .b32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
.global .align 8 .b8 bytes[8] = {0xf0, 0x9f, 0x98, 0x80, 0x00, 0x7f, 0x80, 0xff};
.global .align 4 .f32 values[4] = {0f3F800000, 0fC0000000, 0f40490FDB, 0f00000000};
.global .align 16 .b32 counter[4];
.shared .align 16 .b32 scratch[64];
.visible .shared .align 8 .b64 slot;
"""

CASES: list[Case] = [
    *[
        per_thread(
            f"ld_{space}_widths",
            [vector_load(space, n, b) for n, b in WIDTHS],
            {},
            N,
            extra=(("src", source(SRC)),),
            prelude=SHARED_COPY,
            shared=4096,
        )
        for space in ("global", "shared", "generic")
    ],
    per_thread(
        "ld_sub_word",
        [
            sub_word(space, k, bits, i)
            for space in ("global", "shared")
            for k, i in (("s8", 0), ("s8", 3), ("u8", 5), ("s16", 2), ("u16", 4), ("b8", 7))
            for bits in (16, 32, 64)
        ]
        + [sub_word("global", k, 64, 4) for k in ("s32", "u32", "b32")],
        {},
        32,
        extra=(("src", source(SRC)),),
        prelude=SHARED_COPY,
        shared=4096,
    ),
    per_thread(
        "ld_modifiers",
        [
            f"{{ mad.wide.u32 %rd1, thread, 4, src; ld{m}.b32 d32, [%rd1]; }}"
            for m in (
                ".global.nc",
                ".global.nc.L1::no_allocate",
                ".global.L1::evict_first",
                ".global.L1::no_allocate.L2::128B",
                ".global.ca",
                ".global.cg",
                ".global.cs",
                ".global.cv",
                ".global.lu",
                ".volatile.global",
                ".relaxed.gpu.global",
                ".acquire.sys.global",
                ".acquire.cta.global",
                ".weak.global",
                ".relaxed.cluster.global",
                ".global.nc.L2::256B",
                ".global.L1::evict_last",
                ".mmio.relaxed.sys.global",
            )
        ]
        + [
            "{ .reg .b64 pol; createpolicy.fractional.L2::evict_last.b64 pol, 1.0; mad.wide.u32 %rd1, thread, 4, src;"
            " ld.global.L2::cache_hint.b32 d32, [%rd1], pol; }",
            "{ mad.wide.u32 %rd1, thread, 4, src; prefetch.global.L2 [%rd1]; prefetch.global.L1 [%rd1];"
            " prefetch.global.L2::evict_last [%rd1];"
            " prefetchu.L1 [%rd1]; ldu.global.b32 d32, [%rd1]; }",
        ],
        {},
        N,
        extra=(("src", source(SRC)),),
    ),
    per_thread(
        "st_modifiers",
        [
            f"{{ mad.wide.u32 %rd1, thread, 8, cell; st{m}.b32 [%rd1], a32; add.u32 a32, a32, 77; fence.acq_rel.gpu;"
            " ld.global.b32 d32, [%rd1]; }"
            for m in (
                ".global.wb",
                ".global.cg",
                ".global.cs",
                ".global.wt",
                ".volatile.global",
                ".relaxed.gpu.global",
                ".release.sys.global",
                ".global.L1::no_allocate",
                ".release.cta.global",
                ".weak.global",
            )
        ],
        {"a32": WORDS["a32"]},
        N,
        extra=CELL,
    ),
    vector_store("global"),
    vector_store("shared"),
    # a predicated-off vector load leaves every register, a predicated-off store every byte
    per_thread(
        "predicated_vectors",
        [
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; .reg .b32 x, y, z, w; mov.b32 x, 1; mov.b32 y, 2; mov.b32 z, 3;"
            " mov.b32 w, 4;"
            " mad.wide.u32 %rd1, thread, 16, src; @t ld.global.v4.b32 {x, y, z, w}, [%rd1]; xor.b32 x, x, y;"
            " mad.lo.u32 z, z, 5, w;"
            " mad.lo.u32 d32, x, 3, z; }",
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; mad.wide.u32 %rd1, thread, 8, cell;"
            " @!t st.global.v2.b32 [%rd1], {a32, tid};"
            " ld.global.b32 d32, [%rd1+4]; }",
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; mad.wide.u32 %rd1, thread, 8, cell; mov.b64 d64, 9;"
            " @t atom.global.exch.b64 d64, [%rd1], 55; }",
        ],
        {"a32": WORDS["a32"]},
        N,
        extra=(("src", source(SRC)), *CELL),
    ),
    per_thread(
        "local_memory",
        [
            """{ .local .align 16 .b8 stack[128]; .reg .b32 i, at, x, y, z, w; .reg .pred more; .reg .b64 g;
            mov.u32 at, stack; mov.b32 i, 0;
    FILL: mad.lo.u32 x, a32, i, tid; st.local.b32 [at], x; add.u32 at, at, 4; add.u32 i, i, 1;
    setp.lt.u32 more, i, 32; @more bra FILL;
      mov.u32 at, stack; and.b32 x, a32, 31; mad.lo.u32 x, x, 4, at; ld.local.b32 d32, [x];
      ld.local.v4.b32 {x, y, z, w}, [stack+48]; xor.b32 d32, d32, y; add.u32 d32, d32, w;
      mov.u64 g, stack; cvta.local.u64 g, g; ld.b32 z, [g+20]; xor.b32 d32, d32, z; st.b8 [g+21], 255;
      ld.local.s8 z, [stack+21]; mad.lo.u32 d32, d32, 3, z; }"""
        ],
        {"a32": WORDS["a32"]},
        N,
    ),
    per_thread(
        "module_data",
        [
            "{ .reg .b64 g; .reg .b32 i; and.b32 i, tid, 7; mov.u64 g, table; mad.wide.u32 g, i, 4, g;"
            " ld.const.b32 d32, [g]; }",
            "ld.const.b32 d32, [table+16]",
            "{ .reg .b64 g; .reg .b32 i; and.b32 i, tid, 7; mov.u64 g, bytes; cvt.u64.u32 %rd1, i;"
            " add.u64 g, g, %rd1; ld.global.s8 d32, [g]; }",
            "ld.global.f32 d32, [values+8]",
            "{ .reg .b64 g; cvta.global.u64 g, values; ld.f32 d32, [g+4]; }",
            "{ .reg .b32 at; mov.u32 at, scratch; mad.lo.u32 at, tid, 4, at; st.shared.b32 [at], tid; bar.sync 0;"
            " ld.shared.b32 d32, [scratch+200]; }",
            "{ red.global.add.u32 [counter+4], 3; bar.sync 0; ld.global.b32 d32, [counter+4]; }",
            "{ st.shared.b64 [slot], 1311768467463790320; bar.sync 0; ld.shared.b32 d32, [slot+4]; }",
            "{ .reg .b64 g; cvta.const.u64 g, table; ld.b32 d32, [g+20]; }",
        ],
        {},
        N,
        globals=MODULE_DATA,
    ),
    # the largest block of shared memory that a CTA can have, to its last byte
    per_thread(
        "largest_shared",
        [
            "{ .reg .b32 at; mad.lo.u32 at, tid, 7264, smem; st.shared.b32 [at+7260], a32; bar.sync 0;"
            " xor.b32 at, tid, 31; mad.lo.u32 at, at, 7264, smem; ld.shared.b32 d32, [at+7260]; }",
            "mov.u32 d32, %dynamic_smem_size",
        ],
        {"a32": noise(128, 105).view(np.uint32)},
        32,
        shared=232448,
    ),
    # where things are: dynamic shared memory begins 1 KiB into the window, generic addresses convert both ways
    per_thread(
        "address_spaces",
        [
            "mov.u32 d32, dynamic",
            "{ .reg .b64 g, h; cvt.u64.u32 g, smem; cvta.shared.u64 h, g; cvta.to.shared.u64 d64, h; }",
            "{ .reg .b64 g; cvta.global.u64 g, src; cvta.to.global.u64 g, g; sub.u64 d64, g, src; }",
            *[
                f"{{ .reg .pred t; .reg .b64 g, h; cvt.u64.u32 g, smem; cvta.shared.u64 h, g; isspacep.{s} t, h;"
                " selp.b32 d32, 1, 0, t; }"
                for s in ("shared", "global", "local", "const", "shared::cta", "shared::cluster")
            ],
            *[
                f"{{ .reg .pred t; isspacep.{s} t, src; selp.b32 d32, 1, 0, t; }}"
                for s in ("global", "shared", "local")
            ],
            "mov.u32 d32, %dynamic_smem_size",
            "mov.u32 d32, %total_smem_size",
        ],
        {},
        32,
        extra=(("src", source(SRC)),),
        shared=2048,
    ),
    *[cp_async(n, c, "") for n, c in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg"))],
    *[cp_async(n, c, ", %r3") for n, c in ((4, "ca"), (8, "ca"), (16, "cg"))],
    per_thread("atom_global", atoms("global"), WORDS, N, extra=CELL),
    per_thread("atom_shared", atoms("shared"), WORDS, N, shared=8 * N),
    *[
        per_thread(
            f"atom_float_{space}",
            [
                float_atom(space, "f32", "a32", "b32"),
                float_atom(space, "noftz.f16x2", "h32", "g32"),
                float_atom(space, "noftz.bf16x2", "k32", "l32"),
                float_atom(space, "b32", "a32", "b32", "exch"),
            ],
            FLOATS,
            N,
            shared=8 * N,
            extra=CELL if space == "global" else (),
        )
        for space in ("global", "shared")
    ],
    per_thread(
        "atom_scalar_half",
        [
            f"{{ .reg .b16 old; mad.wide.u32 %rd1, thread, 8, cell; st.global.b32 [%rd1], {b}; cvt.u16.u32 %h1, {a};"
            f" atom.global.add.noftz.{k} old, [%rd1+2], %h1; ld.global.b32 d32, [%rd1]; }}"
            for k, a, b in (("f16", "h32", "g32"), ("bf16", "k32", "l32"))
        ],
        FLOATS,
        N,
        extra=CELL,
    ),
    per_thread(
        "atom_f64",
        [
            "{ .reg .b64 old; mad.wide.u32 %rd1, thread, 8, cell; st.global.b64 [%rd1], b64;"
            " atom.global.add.f64 old, [%rd1], a64;"
            " ld.global.b64 d64, [%rd1]; }"
        ],
        {
            "a64": floats32(94).view(np.float32).astype(np.float64).view(np.uint64),
            "b64": (floats32(95).view(np.float32) / 3).astype(np.float64).view(np.uint64),
        },
        N,
        extra=CELL,
    ),
    per_thread("atom_f32_subnormal_global", [float_atom("global", "f32", "a32", "b32")], SUBNORMAL, N, extra=CELL),
    per_thread("atom_f32_subnormal_shared", [float_atom("shared", "f32", "a32", "b32")], SUBNORMAL, N, shared=8 * N),
    of_body(
        "red_f32_subnormal",
        "ptr cell, ptr src, ptr out",
        write_shared(0, 256)
        + """
    bar.sync 0;
    mad.wide.u32 %rd1, tid, 4, src; ld.global.b32 %r1, [%rd1+256]; mad.wide.u32 %rd1, tid, 4, cell;
    mad.lo.u32 %r2, tid, 4, smem;
    red.global.add.f32 [%rd1], %r1; red.shared.add.f32 [%r2], %r1;
    bar.sync 0;
"""
        + read_shared(0, 256),
        (updated(SMALL2), source(np.concatenate([SMALL2, SMALL])), output(256)),
        shared=256,
    ),
    of_body(
        "red_vector",
        "ptr cell, ptr src",
        """
    mad.wide.u32 %rd1, thread, 16, cell; mad.wide.u32 %rd2, thread, 16, src;
    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd2];
    red.global.add.v4.f32 [%rd1], {%r1, %r2, %r3, %r4};
    red.global.add.v2.f32 [%rd1+512], {%r3, %r4};
    red.global.add.noftz.v4.f16x2 [%rd1+1024], {%r4, %r3, %r2, %r1};
    red.global.min.noftz.v2.bf16x2 [%rd1+1536], {%r1, %r2};
    mov.b32 {%h1, %h2}, %r1; mov.b32 {%h3, %h4}, %r2;
    red.global.max.noftz.v4.f16 [%rd1+2048], {%h1, %h2, %h3, %h4};
""",
        (
            updated(
                np.concatenate(
                    [
                        floats32(96)[:64].repeat(4),
                        floats16(97, "f16").repeat(2),
                        floats16(98, "bf16").repeat(2),
                        floats16(99, "f16").repeat(2),
                    ]
                )
            ),
            source(floats16(100, "f16").repeat(2)),
        ),
        32,
    ),
    per_thread(
        "atom_vector",
        [
            "{ .reg .b32 x, y, z, w; mad.wide.u32 %rd1, thread, 16, cell;"
            " atom.global.add.v4.f32 {x, y, z, w}, [%rd1], {a32, b32, a32, b32};"
            " xor.b32 x, x, y; xor.b32 z, z, w; mad.lo.u32 d32, x, 3, z; }"
        ],
        {"a32": FLOATS["a32"], "b32": FLOATS["b32"]},
        N,
        extra=(("cell", updated(np.concatenate([floats32(101)] * 4))),),
    ),
    per_thread(
        "atom_b128",
        [
            "{ .reg .b128 x, y; .reg .b64 l, h; mad.wide.u32 %rd1, thread, 16, cell; mov.b128 x, {a64, b64};"
            " atom.global.exch.b128 y, [%rd1], x;"
            " mov.b128 {l, h}, y; mad.lo.u64 d64, l, 3, h; }",
            "{ .reg .b128 x, y, z; .reg .b64 l, h; mad.wide.u32 %rd1, thread, 16, cell; mov.b128 x, {a64, b64};"
            " mov.b128 z, {b64, a64};"
            " atom.global.cas.b128 y, [%rd1], x, z; mov.b128 {l, h}, y; mad.lo.u64 d64, l, 3, h; }",
        ],
        {"a64": WORDS["a64"], "b64": WORDS["b64"]},
        N,
        extra=(("cell", updated(noise(16 * N, 102))),),
    ),
    per_thread(
        "red_contended_global",
        ["{ .reg .b32 nothing; mov.b32 nothing, 0; " + contended("global") + " mov.b32 d32, nothing; }"],
        {"a32": noise(256 * 4, 103).view(np.uint32)},
        64,
        grid=(4, 1, 1),
        extra=(("cell", updated(np.zeros(256, np.uint8))),),
    ),
    of_body(
        "red_contended_shared",
        "ptr out, ptr src",
        write_shared(0, 256)
        + """
    bar.sync 0;
    .reg .b32 a32; mad.wide.u32 %rd1, tid, 4, src; ld.global.b32 a32, [%rd1+256];
"""
        + contended("shared")
        + "\n    bar.sync 0;"
        + read_shared(0, 256),
        (output(256), source(np.concatenate([np.zeros(256, np.uint8), noise(256, 104)]))),
        shared=256,
    ),
    per_thread(
        "atom_scopes",
        [
            f"{{ .reg .b32 old; mad.wide.u32 %rd1, thread, 8, cell; atom.{m}.add.u32 old, [%rd1], a32;"
            " mov.b32 d32, old; }"
            for m in ("relaxed.gpu.global", "acq_rel.cta.global", "release.sys.global", "acquire.cluster.global")
        ]
        + [
            "{ .reg .b64 g; mad.wide.u32 g, thread, 8, cell; cvta.global.u64 g, g; atom.add.u32 d32, [g], a32; }",
            "{ .reg .b64 g; mad.wide.u32 g, thread, 8, cell; cvta.global.u64 g, g; red.release.gpu.add.u32 [g], a32;"
            " ld.acquire.gpu.b32 d32, [g]; }",
            "{ .reg .b64 g; mad.wide.u32 g, thread, 8, cell; red.relaxed.gpu.global.add.u64 [g], 1; fence.sc.gpu;"
            " membar.gl; membar.sys; fence.acq_rel.sys;"
            " ld.relaxed.sys.global.b64 g, [g]; cvt.u32.u64 d32, g; }",
        ],
        {"a32": WORDS["a32"]},
        N,
        extra=CELL,
    ),
]
