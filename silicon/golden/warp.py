"""Cases in which lanes of a warp, or warps of a CTA, exchange values or meet.

PTX ISA 9.7.9.6 (shfl), 9.7.13.1-2, .9-.12, .14 (bar, vote, match, activemask, redux, elect), 9.7.14.5 (ldmatrix,
stmatrix, movmatrix).
"""

from __future__ import annotations

import numpy as np

from .case import Case, noise, of_body, output, per_thread, read_shared, source, write_shared

LANES = np.arange(32, dtype=np.uint32)
A = noise(128, 60).view(np.uint32)
FULL = "0xffffffff"


def shuffle(mode: str, lane: str, clamp: str) -> str:
    """PTX whose result is the shuffled value with the in-range predicate in its top bit."""
    return (
        f"{{ .reg .pred t; .reg .b32 x; shfl.sync.{mode}.b32 d32|t, a32, {lane}, {clamp}, {FULL};"
        " selp.b32 x, 0x80000000, 0, t; xor.b32 d32, d32, x; }"
    )


def c(segment: int, clamp: int) -> str:
    return hex(segment << 8 | clamp)


def vote(kind: str, mask: str = FULL) -> str:
    return f"{{ .reg .pred t, u; setp.lt.s32 t, a32, b32; vote.sync.{kind}.pred u, t, {mask}; selp.b32 d32, 1, 0, u; }}"


# lanes 0-7, 12, 13, 20 and 31 take the branch, the others run the same text: member masks of converged subsets
SUBSET = 0x801030FF


def in_subsets(op: str) -> str:
    """PTX that runs `op` with `mask` replaced, once in the lanes of SUBSET and once in all others."""
    op = op if op.endswith("}") else op + ";"
    return f"""{{ .reg .pred in; .reg .b32 bit; shl.b32 bit, 1, tid; and.b32 bit, bit, {SUBSET}; setp.ne.u32 in, bit, 0;
      @!in bra OTHERS;
      {op.replace("mask", hex(SUBSET))}
      bra JOIN;
    OTHERS:
      {op.replace("mask", hex(SUBSET ^ 0xFFFFFFFF))}
    JOIN: bar.warp.sync {FULL}; }}"""


def matrix_case(name: str, op: str, count: int, store: bool) -> Case:
    """A case whose warp loads or stores `count` 8x8 matrices of 16-bit elements, in rows of scattered order."""
    regs = ", ".join(f"%r{i}" for i in range(count))
    address = "mad.lo.u32 %r8, tid, 5, 3; and.b32 %r8, %r8, 31; mad.lo.u32 %r8, %r8, 16, smem;"
    vector = f"{{{regs}}}"
    buffer, access = ("src", "ld.global.b32 %r{}, [%rd1];") if store else ("out", "st.global.b32 [%rd1], %r{};")
    moves = "".join(
        f"mad.lo.u32 %r9, tid, {4 * count}, {4 * i}; cvt.u64.u32 %rd1, %r9; add.u64 %rd1, %rd1, {buffer};"
        f" {access.format(i)}\n    "
        for i in range(count)
    )
    body = write_shared(0, 512) + f"\n    bar.sync 0;\n    {address}\n    "
    if store:
        body += f"{moves}{op} [%r8], {vector};\n    bar.sync 0;\n" + read_shared(0, 512)
    else:
        body += f"{op} {vector}, [%r8];\n    {moves}"
    size = 512 if store else 128 * count
    return of_body(name, "ptr out, ptr src", body, (output(size), source(noise(512, 61))), 32, shared=512)


def exchange(barrier: str, threads: int, name: str) -> Case:
    """PTX in which a thread writes its slot, meets the others and reads the mirrored thread's, three times."""
    step = f"""
    mad.lo.u32 %r1, tid, 4, smem;
    sub.u32 %r2, {threads - 1}, tid;
    mad.lo.u32 %r2, %r2, 4, smem;
    mov.b32 %r3, a32;
""" + "".join(
        f"""
    st.shared.b32 [%r1+{1024 * k}], %r3;
    {barrier}
    ld.shared.b32 %r4, [%r2+{1024 * k}];
    mad.lo.u32 %r3, %r3, 3, %r4;
"""
        for k in range(3)
    )
    return per_thread(
        name, [f"{{ {step} mov.b32 d32, %r3; }}"], {"a32": noise(4 * threads, 62).view(np.uint32)}, threads, shared=3072
    )


CASES: list[Case] = [
    per_thread(
        "shfl_idx",
        [
            shuffle("idx", "n32", c(s, k))
            for s, k in ((0, 31), (16, 31), (24, 31), (28, 31), (0, 15), (30, 1), (24, 7), (8, 23))
        ]
        + [shuffle("idx", lane, c(0, 31)) for lane in ("0", "5", "31", "37", "tid")],
        {"a32": A, "n32": noise(128, 63).view(np.uint32) & np.uint32(63)},
        32,
    ),
    per_thread(
        "shfl_up",
        [
            shuffle("up", n, c(s, k))
            for n in ("1", "2", "7", "16", "n32")
            for s, k in ((0, 0), (16, 0), (24, 0), (28, 3), (0, 4))
        ],
        {"a32": A, "n32": LANES * np.uint32(3)},
        32,
    ),
    per_thread(
        "shfl_down",
        [
            shuffle("down", n, c(s, k))
            for n in ("1", "2", "7", "16", "n32")
            for s, k in ((0, 31), (16, 31), (24, 31), (28, 31), (0, 11))
        ],
        {"a32": A, "n32": LANES * np.uint32(3)},
        32,
    ),
    per_thread(
        "shfl_bfly",
        [
            shuffle("bfly", n, c(s, k))
            for n in ("1", "2", "4", "16", "31", "n32")
            for s, k in ((0, 31), (16, 31), (24, 31), (0, 15))
        ],
        {"a32": A, "n32": LANES ^ np.uint32(9)},
        32,
    ),
    per_thread(
        "shfl_subsets",
        [
            in_subsets("shfl.sync.idx.b32 d32, a32, n32, 31, mask"),
            in_subsets("shfl.sync.bfly.b32 d32, a32, 0, 31, mask"),
        ],
        {
            "a32": A,
            "n32": np.array(
                [[i for i in range(32) if (SUBSET >> i & 1) == (SUBSET >> lane & 1)][lane % 12] for lane in range(32)],
                np.uint32,
            ),
        },
        32,
    ),
    per_thread(
        "vote",
        [vote(k) for k in ("all", "any", "uni")]
        + [
            "{ .reg .pred t; setp.lt.s32 t, a32, b32; vote.sync.ballot.b32 d32, t, 0xffffffff; }",
            "{ .reg .pred t; setp.ne.s32 t, a32, a32; vote.sync.ballot.b32 d32, !t, 0xffffffff; }",
            *[in_subsets(vote(k, "mask")) for k in ("all", "any", "uni")],
            in_subsets("{ .reg .pred t; setp.lt.s32 t, a32, b32; vote.sync.ballot.b32 d32, t, mask; }"),
            "{ .reg .pred t, u; setp.ge.u32 t, tid, 0; vote.sync.all.pred u, t, 0xffffffff; selp.b32 d32, 1, 0, u; }",
            "{ .reg .pred t, u; setp.gt.u32 t, tid, 99; vote.sync.uni.pred u, t, 0xffffffff; selp.b32 d32, 1, 0, u; }",
        ],
        {"a32": A, "b32": noise(128, 64).view(np.uint32)},
        32,
    ),
    per_thread(
        "match",
        [
            "match.any.sync.b32 d32, k32, 0xffffffff",
            "match.any.sync.b64 d32, k64, 0xffffffff",
            "{ .reg .pred t; .reg .b32 x; match.all.sync.b32 d32|t, k32, 0xffffffff; selp.b32 x, 1, 0, t;"
            " xor.b32 d32, d32, x; }",
            "{ .reg .pred t; .reg .b32 x; match.all.sync.b32 d32|t, 77, 0xffffffff; selp.b32 x, 1, 0, t;"
            " xor.b32 d32, d32, x; }",
            "{ .reg .pred t; .reg .b32 x; match.all.sync.b64 d32|t, k64, 0xffffffff; selp.b32 x, 1, 0, t;"
            " xor.b32 d32, d32, x; }",
            in_subsets("match.any.sync.b32 d32, k32, mask"),
            in_subsets(
                "{ .reg .pred t; .reg .b32 x; match.all.sync.b32 d32|t, 5, mask; selp.b32 x, 1, 0, t;"
                " xor.b32 d32, d32, x; }"
            ),
        ],
        {"k32": LANES % np.uint32(5), "k64": (LANES % np.uint32(3)).astype(np.uint64) << np.uint64(33)},
        32,
    ),
    per_thread(
        "redux",
        [f"redux.sync.{op}.{t} d32, a32, 0xffffffff" for op in ("add", "min", "max") for t in ("u32", "s32")]
        + [f"redux.sync.{op}.b32 d32, a32, 0xffffffff" for op in ("and", "or", "xor")]
        + [
            in_subsets(f"redux.sync.{op} d32, a32, mask")
            for op in ("add.s32", "min.s32", "max.u32", "xor.b32", "and.b32")
        ],
        {"a32": A | np.uint32(0x100)},
        32,
    ),
    per_thread(
        "elect",
        [
            "{ .reg .pred t; .reg .b32 x; elect.sync d32|t, 0xffffffff; selp.b32 x, 0x100, 0, t; or.b32 d32, d32, x; }",
            in_subsets(
                "{ .reg .pred t; .reg .b32 x; elect.sync d32|t, mask; selp.b32 x, 0x100, 0, t; or.b32 d32, d32, x; }"
            ),
            "{ .reg .pred t; .reg .b32 x; mov.b32 d32, 0; setp.lt.u32 t, tid, 9; @t bra OUT;"
            " { .reg .pred u; elect.sync d32|u, 0xfffffe00; selp.b32 x, 0x100, 0, u; or.b32 d32, d32, x; }"
            " OUT: bar.warp.sync 0xffffffff; }",
        ],
        {},
        32,
    ),
    per_thread("activemask", ["activemask.b32 d32", "{ .reg .b32 x; activemask.b32 x; popc.b32 d32, x; }"], {}, 40),
    exchange("bar.sync 0;", 128, "bar_sync"),
    exchange("bar.sync 0;", 40, "bar_sync_partial_warp"),
    exchange("barrier.sync 3;", 96, "barrier_sync_id"),
    exchange("bar.warp.sync 0xffffffff;", 32, "bar_warp_sync"),
    per_thread(
        "bar_red",
        [
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; bar.red.popc.u32 d32, 0, t; }",
            "{ .reg .pred t; setp.lt.s32 t, a32, 0; bar.red.popc.u32 d32, 1, !t; }",
            "{ .reg .pred t, u; setp.lt.s32 t, a32, 0; bar.red.and.pred u, 0, t; selp.b32 d32, 1, 0, u; }",
            "{ .reg .pred t, u; setp.lt.s32 t, a32, 0; bar.red.or.pred u, 2, t; selp.b32 d32, 1, 0, u; }",
            "{ .reg .pred t, u; setp.ge.u32 t, tid, 0; barrier.red.and.pred u, 0, t; selp.b32 d32, 1, 0, u; }",
            "{ .reg .pred t, u; setp.gt.u32 t, tid, 500; barrier.cta.red.or.pred u, 4, t; selp.b32 d32, 1, 0, u; }",
        ],
        {"a32": noise(384, 65).view(np.uint32)},
        96,
    ),
    # warps 0, 1 produce and only arrive; warps 2, 3 consume; a second barrier hands the slots back
    per_thread(
        "bar_arrive",
        [
            """{ .reg .pred producer; .reg .b32 slot, x, k; setp.lt.u32 producer, tid, 64; mov.b32 d32, 0; mov.b32 k, 0;
      and.b32 slot, tid, 63; mad.lo.u32 slot, slot, 4, smem;
    ROUND:
      @!producer bra CONSUME;
      mad.lo.u32 x, a32, k, tid; st.shared.b32 [slot], x; membar.cta;
      bar.arrive 1, 128; bar.sync 2, 128; bra NEXT;
    CONSUME:
      bar.sync 1, 128; ld.shared.b32 x, [slot]; mad.lo.u32 d32, d32, 31, x; bar.arrive 2, 128;
    NEXT:
      add.u32 k, k, 1; .reg .pred more; setp.lt.u32 more, k, 5; @more bra ROUND; }"""
        ],
        {"a32": noise(512, 66).view(np.uint32)},
        128,
        shared=256,
    ),
    # two halves of the CTA synchronise on their own barriers a different number of times
    per_thread(
        "bar_partial",
        [
            """{ .reg .pred low, more; .reg .b32 id, n, i, at, x; setp.lt.u32 low, tid, 64; selp.b32 id, 5, 6, low;
            selp.b32 n, 3, 7, low;
      mov.b32 i, 0; mov.b32 d32, a32; mad.lo.u32 at, tid, 4, smem;
    AGAIN:
      st.shared.b32 [at], d32; bar.sync id, 64; xor.b32 x, at, 128; ld.shared.b32 x, [x]; bar.sync id, 64;
      mad.lo.u32 d32, d32, 5, x;
      add.u32 i, i, 1; setp.lt.u32 more, i, n; @more bra AGAIN; }"""
        ],
        {"a32": noise(512, 67).view(np.uint32)},
        128,
        shared=512,
    ),
    *[
        matrix_case(f"ldmatrix_x{n}{t.replace('.', '_')}", f"ldmatrix.sync.aligned.m8n8.x{n}{t}.shared.b16", n, False)
        for n in (1, 2, 4)
        for t in ("", ".trans")
    ],
    *[
        matrix_case(
            f"stmatrix_x{n}{t.replace('.', '_')}", f"stmatrix.sync.aligned.m8n8.x{n}{t}.shared::cta.b16", n, True
        )
        for n in (1, 2, 4)
        for t in ("", ".trans")
    ],
    per_thread("movmatrix", ["movmatrix.sync.aligned.m8n8.trans.b16 d32, a32"], {"a32": A}, 32),
]
