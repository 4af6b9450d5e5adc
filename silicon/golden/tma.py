"""Cases of tile-mode tensor copies.

PTX ISA 5.5 and 9.7.9.25.5 (cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, prefetch).
"""

from __future__ import annotations

import math

import numpy as np

from .bulk import FENCE, START
from .case import (
    SMALL,
    SMALL2,
    Case,
    TensorMap,
    fill_shared,
    halves,
    noise,
    of_body,
    output,
    patterns,
    read_shared,
    singles,
    source,
    updated,
    wait,
    write_shared,
)
from .cluster import MEET

BAR, TILE = 0, 1024  # shared offsets: the barrier, and a 1024-byte aligned home for tiles


def tight(
    dtype: str, dims: tuple[int, ...], box: tuple[int, ...], buffer: int = 1, row: int = 0, **fields
) -> TensorMap:
    """A map over a dense tensor whose rows are padded to `row` bytes (default: the next multiple of 16)."""
    item = TensorMap(dtype, buffer, dims, (), box).item
    pitch = row or -(-dims[0] * item // 16) * 16
    strides = tuple(pitch * math.prod(dims[1:i]) for i in range(1, len(dims)))
    return TensorMap(dtype, buffer, dims, strides, box, **fields)


def extent(tmap: TensorMap) -> int:
    """The bytes of the buffer that a map spans."""
    return tmap.offset + (tmap.strides[-1] * tmap.dims[-1] if tmap.strides else tmap.dims[0] * tmap.item)


def load_form(rank: int, space: str = "cluster") -> str:
    return f"cp.async.bulk.tensor.{rank}d.shared::{space}.global.tile.mbarrier::complete_tx::bytes"


def coordinates(rank: int) -> tuple[str, str]:
    names = [f"c{i}" for i in range(rank)]
    return ", ".join(f"s32 {n}" for n in names), "{" + ", ".join(names) + "}"


def load(
    name: str,
    tmap: TensorMap,
    at: tuple[int, ...],
    offset: int = 0,
    data: np.ndarray | None = None,
    before: str = "",
    hint: str = "",
    room: int = 0,
    space: str = "cluster",
) -> Case:
    """A case that loads one box to shared TILE + offset.

    Recorded is the tile (or `room` bytes) with 128 bytes of poison on either side.
    """
    rank = len(tmap.dims)
    params, coords = coordinates(rank)
    region = max(room, -(-tmap.box_bytes // 16) * 16) + 256
    first = TILE + offset - 128
    modifier, operand = (".L2::cache_hint", f", {hint}") if hint else ("", "")
    body = (
        fill_shared(first, region)
        + START
        + f"""
    {FENCE}
    {before}
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {tmap.box_bytes};
    @p {load_form(rank, space)}{modifier} [smem+{TILE + offset}], [tm, {coords}], [smem]{operand};
    {wait("smem", 0)}
"""
        + read_shared(first, region)
    )
    args = output(region), source(noise(extent(tmap), 180) if data is None else data), tmap, *at
    return of_body(name, f"ptr out, ptr src, map tm, {params}", body, args, shared=first + region)


def store(
    name: str,
    tmap: TensorMap,
    at: tuple[int, ...],
    offset: int = 0,
    op: str = "",
    src: np.ndarray | None = None,
    dst: np.ndarray | None = None,
    room: int = 0,
) -> Case:
    """A case that stores one box from shared TILE + offset to the tensor or, with `op`, reduces it into that.

    Recorded is the whole buffer of the tensor.
    """
    rank = len(tmap.dims)
    params, coords = coordinates(rank)
    nbytes = max(room, -(-tmap.box_bytes // 16) * 16)
    copy = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group"
        if op
        else f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    )
    body = (
        write_shared(TILE + offset, nbytes)
        + f"""
    {FENCE}
    setp.eq.u32 p, tid, 0;
    @!p bra REST;
    {copy} [tm, {coords}], [smem+{TILE + offset}];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
REST:
"""
    )
    src = noise(nbytes, 181) if src is None else src
    dst = noise(extent(tmap), 182) if dst is None else dst
    args = source(src), updated(dst), tmap, *at
    return of_body(name, f"ptr src, ptr dst, map tm, {params}", body, args, shared=TILE + offset + nbytes)


def multicast(name: str, tmap: TensorMap, size: int, senders: dict[int, int], at: tuple[int, ...]) -> Case:
    """A case in which each sender (rank: mask) loads a box into its own slot of every CTA of its mask.

    The box of rank r lies r rows behind `at`.
    """
    rank = len(tmap.dims)
    params, coords = coordinates(rank)
    nbytes = tmap.box_bytes
    region = nbytes * len(senders) + 256
    expected = " ".join(
        f"shr.u32 %r1, {mask}, rank; and.b32 %r1, %r1, 1; mad.lo.u32 total, %r1, {nbytes}, total;"
        for mask in senders.values()
    )
    sends = "\n".join(
        f"""    setp.eq.u32 q, rank, {sender}; and.pred q, q, p;
    @q {load_form(rank)}.multicast::cluster [smem+{TILE + i * nbytes}], [tm, {coords}], [smem], {mask};"""
        for i, (sender, mask) in enumerate(senders.items())
    )
    body = f"""
    .reg .b32 rank, cta, total; .reg .b16 mask;
    mov.u32 rank, %cluster_ctarank; mov.u32 cta, %ctaid.x; mad.wide.u32 out, cta, {region}, out;
    add.s32 c{rank - 1}, c{rank - 1}, rank;
    {fill_shared(TILE - 128, region)}
    {START}
    fence.proxy.async.shared::cta;
    mov.b32 total, 0; {expected}
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], total;
    {MEET}
{sends}
    {wait("smem", 0)}
    {MEET}
    {read_shared(TILE - 128, region)}
"""
    args, ctas = (output(region * size), source(noise(extent(tmap), 183)), tmap, *at), (size, 1, 1)
    params = f"ptr out, ptr src, map tm, {params}"
    return of_body(name, params, body, args, grid=ctas, cluster=ctas, shared=TILE + region)


RANKS = {
    1: ((100,), (32,)),
    2: ((40, 11), (16, 8)),
    3: ((20, 6, 5), (8, 4, 3)),
    4: ((12, 5, 4, 3), (8, 3, 2, 2)),
    5: ((12, 4, 3, 3, 3), (8, 3, 2, 2, 2)),
}
INSIDE = {1: (16,), 2: (4, 2), 3: (4, 1, 2), 4: (4, 2, 1, 1), 5: (4, 1, 1, 0, 1)}
ROW = {
    "u8": 64,
    "u16": 32,
    "u32": 16,
    "s32": 16,
    "u64": 8,
    "s64": 8,
    "f16": 32,
    "bf16": 32,
    "f32": 16,
    "f64": 8,
    "f32.ftz": 16,
    "tf32": 16,
    "tf32.ftz": 16,
}
# f32 patterns that a conversion on the way would change: subnormals, NaN payloads, all fraction bits set, ties of tf32
F32_TELLTALE = np.resize(
    patterns(
        "1 80000001 7FFFFF 7FC12345 7F800001 FFFFFFFF 3FFFFFFF 3F801000 3F803000 3F800FFF 3F801001 7F7FFFFF "
        "7F800000 80000000 BF80F000 1000 800000 40490FDB FFF 807FF000",
        np.uint32,
    ),
    16 * 12,
)
SIDES = {
    "left": (-8, 3),
    "right": (32, 3),
    "top": (8, -3),
    "bottom": (8, 9),
    "corner": (-8, -2),
    "far_corner": (32, 10),
    "outside": (64, 3),
    "outside_negative": (-40, -40),
}
WIDE = ((40, 13), (16, 8))  # f16 tensor and box for the out-of-bounds cases


def reduce_case(op: str, dtype: str, at: tuple[int, int] = ()) -> Case:
    row = ROW[dtype]
    tmap = tight(dtype, (row + 8, 10), (row // 2, 4))
    nbytes, count = tmap.box_bytes, extent(tmap)
    if dtype in ("f16", "bf16"):
        src, dst = halves(184, dtype, nbytes // 2), halves(185, dtype, count // 2)
    elif dtype == "f32":
        src, dst = singles(186, nbytes // 4), singles(187, count // 4)
    elif op in ("inc", "dec"):
        src, dst = noise(nbytes, 188).view(np.uint32) % np.uint32(40), noise(count, 189).view(np.uint32) % np.uint32(40)
    else:
        src, dst = noise(nbytes, 190), noise(count, 191)
    return store(
        f"tma_reduce_{op}_{dtype}" + ("_oob" if at else ""),
        tmap,
        at or (row // 2, 3),
        op=op,
        src=src.view(np.uint8),
        dst=dst.view(np.uint8),
    )


REDUCTIONS = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("min", "s32"),
    ("max", "u32"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "u32"),
    ("or", "u32"),
    ("xor", "u64"),
    ("min", "s64"),
    ("max", "u64"),
    ("add", "f16"),
    ("add", "bf16"),
    ("add", "f32"),
    ("min", "f16"),
    ("max", "bf16"),
]


def nan_fill(dtype: str) -> Case:
    item = TensorMap(dtype, 1, (), (), ()).item
    return load(
        f"tma_load_nan_fill_{dtype.replace('.', '_')}",
        tight(dtype, (64 // item, 6), (32 // item, 4), nan_fill=True),
        (48 // item, 4),
    )


def cute_words(tmap: TensorMap, type_code: int) -> tuple[int, ...]:
    """Words 1..15 as CuTe DSL's host code packs them: version 2, 128-byte L2 promotion, nothing in words 8..15."""
    rank = len(tmap.dims)
    low = 2 | rank - 1 << 4 | type_code << 7 | tmap.swizzle << 13 | 2 << 17 | (extent(tmap) >= 131072) << 21
    s = [x >> 4 for x in (*tmap.strides, 0, 0, 0, 0)][:4]
    d = [x - 1 for x in tmap.dims] + [0] * (5 - rank)
    b = [x - 1 for x in tmap.box] + [0] * (5 - rank)
    return (
        low | s[0] << 32,
        s[1] | s[2] << 32,
        s[3],
        d[0] | d[1] << 32,
        d[2] | d[3] << 32,
        d[4] | b[0] << 56,
        b[1] | b[2] << 8 | b[3] << 16 | b[4] << 24,
        *[0x5A5A5A5A5A5A5A5A] * 8,
    )


def as_cute(tmap: TensorMap, type_code: int) -> TensorMap:
    return TensorMap(**{**tmap.__dict__, "words": cute_words(tmap, type_code)})


CASES: list[Case] = [
    *[load(f"tma_load_rank{r}", tight("f32", *RANKS[r]), INSIDE[r]) for r in RANKS],
    *[
        load(
            f"tma_load_rank{r}_oob_high",
            tight("f16", *RANKS[r]),
            tuple((d - b) // 8 * 8 + 8 if i == 0 else d - b + 1 for i, (d, b) in enumerate(zip(*RANKS[r]))),
        )
        for r in RANKS
    ],
    *[load(f"tma_load_rank{r}_oob_low", tight("f32", *RANKS[r]), (-4, -2, -1, -1, -1)[:r]) for r in RANKS],
    *[
        load(f"tma_load_{t.replace('.', '_')}", tight(t, (ROW[t] + 16, 10), (ROW[t], 4)), (ROW[t] // 2, 2))
        for t in ROW
        if "f32" not in t
    ],
    *[
        load(f"tma_load_{t.replace('.', '_')}", tight(t, (16, 12), (16, 10)), (0, 1), data=F32_TELLTALE)
        for t in ROW
        if "f32" in t
    ],
    *[
        load(
            f"tma_load_swizzle_{32 << s - 1}_{t}",
            tight(t, (3 * (16 << s) // i, 20), ((16 << s) // i, 16), swizzle=s),
            ((16 << s) // i // 2, 3),
        )
        for s in (1, 2, 3)
        for t, i in (("u8", 1), ("f16", 2), ("f32", 4))
    ],
    *[
        load(
            f"tma_load_swizzle_{32 << s - 1}_base_{o}",
            tight("f16", (64, 24), ((8 << s), 16), swizzle=s),
            (0, 4),
            offset=o,
        )
        for s, o in ((1, 128), (1, 384), (2, 128), (2, 640), (3, 128), (3, 512), (3, 640), (3, 896))
    ],
    # a row narrower than the swizzle span still takes a whole span of shared memory
    *[
        load(
            f"tma_load_swizzle_{32 << s - 1}_narrow_{w}",
            tight("f16", (64, 24), (w // 2, 16), swizzle=s),
            (8, 4),
            room=16 * (16 << s),
        )
        for s, w in ((3, 64), (3, 32), (2, 32), (3, 16))
    ],
    load(
        "tma_load_swizzle_128_narrow_rank3", tight("f16", (64, 6, 5), (16, 3, 4), swizzle=3), (24, 2, 0), room=12 * 128
    ),
    *[
        store(
            f"tma_store_swizzle_{32 << s - 1}_narrow_{w}",
            tight("f16", (64, 24), (w // 2, 16), swizzle=s),
            (8, 4),
            room=16 * (16 << s),
        )
        for s, w in ((3, 64), (2, 32))
    ],
    load("tma_load_swizzle_128_rank4", tight("f16", (128, 4, 5, 3), (64, 2, 3, 2), swizzle=3), (32, 1, 3, 1)),
    load("tma_load_swizzle_128_oob", tight("f16", (100, 20), (64, 16), swizzle=3), (64, -3)),
    *[load(f"tma_load_oob_{side}", tight("f16", *WIDE), at) for side, at in SIDES.items()],
    load("tma_load_oob_extreme", tight("f16", *WIDE), (-0x7FFFFFF0, 0x7FFFFF00)),
    load("tma_load_box_larger_than_tensor", tight("u16", (12, 3), (32, 8)), (-8, -2)),
    load("tma_load_odd_width", tight("u8", (37, 9), (48, 6)), (16, 1)),
    *[nan_fill(t) for t in ("f16", "bf16", "f32", "f64", "f32.ftz", "tf32", "tf32.ftz")],
    load("tma_load_element_stride_row", tight("f16", (40, 24), (16, 8), element_strides=(1, 2)), (8, 3)),
    load("tma_load_element_stride_uneven", tight("f32", (20, 24), (8, 7), element_strides=(1, 3)), (4, 2)),
    load("tma_load_element_stride_rank3", tight("f32", (20, 9, 9), (8, 4, 6), element_strides=(1, 2, 4)), (4, 2, 1)),
    load("tma_load_element_stride_oob", tight("f32", (20, 9), (8, 8), element_strides=(1, 2)), (4, 5)),
    load("tma_load_element_stride_oob_low", tight("f32", (20, 9), (8, 8), element_strides=(1, 2)), (4, -3)),
    load("tma_load_element_stride_dim0", tight("f32", (40, 9), (8, 4), element_strides=(2, 1)), (4, 1)),
    load("tma_load_padded_rows", tight("f16", (24, 10), (16, 8), row=96), (8, 2)),
    load("tma_load_offset_base", tight("f16", (24, 10), (16, 8), row=96, offset=48), (8, 2)),
    load("tma_load_overlapping_rows", TensorMap("f16", 1, (16, 8), (16,), (16, 8)), (0, 0), data=noise(160, 192)),
    load("tma_load_repeated_row", TensorMap("f16", 1, (16, 8), (0,), (16, 4)), (0, 2), data=noise(160, 192)),
    load(
        "tma_load_swapped_strides",
        TensorMap("f32", 1, (8, 5, 4), (160, 32), (8, 3, 2)),
        (0, 1, 1),
        data=noise(800, 193),
    ),
    load("tma_load_box_256", tight("u8", (300, 2), (256, 2)), (32, 0)),
    load("tma_load_one_element", tight("f64", (8, 3), (2, 1)), (4, 2)),
    *[load(f"tma_load_promotion_{p}", tight("f16", *WIDE, promotion=p), (8, 2)) for p in (1, 2, 3)],
    load(
        "tma_load_after_prefetch",
        tight("f16", *WIDE),
        (8, 2),
        before="@p prefetch.tensormap [tm];\n    @p cp.async.bulk.prefetch.tensor.2d.L2.global.tile [tm, {c0, c1}];",
    ),
    load(
        "tma_load_cache_hint",
        tight("f16", *WIDE),
        (8, 2),
        before=".reg .b64 pol; createpolicy.fractional.L2::evict_last.b64 pol, 1.0;",
        hint="pol",
    ),
    load("tma_load_to_own_cta", tight("f16", *WIDE), (8, 2), space="cta"),
    # the layout of words 0..7 that CuTe DSL's host code packs, with the rest left as garbage
    load("tma_load_cute_f16", as_cute(tight("f16", (64, 24), (64, 16), swizzle=3), 6), (0, 5)),
    load("tma_load_cute_u8_rank3", as_cute(tight("u8", (96, 8, 4), (64, 4, 2), swizzle=2), 0), (16, 3, 1)),
    load("tma_load_cute_u16_rank4", as_cute(tight("u16", (32, 4, 5, 3), (16, 2, 3, 2)), 1), (8, 1, 3, 1)),
    store("tma_store_cute_f16", as_cute(tight("f16", (64, 20), (64, 16), swizzle=3), 6), (0, 8)),
    *[store(f"tma_store_rank{r}", tight("f32", *RANKS[r]), INSIDE[r]) for r in RANKS],
    *[
        store(
            f"tma_store_rank{r}_oob",
            tight("f32", *RANKS[r]),
            tuple((d - b) // 4 * 4 + 4 if i == 0 else d - b + 1 for i, (d, b) in enumerate(zip(*RANKS[r]))),
        )
        for r in RANKS
    ],
    # a store may leave the tensor only upwards: faults.py has the negative coordinates
    *[store(f"tma_store_oob_{side}", tight("f16", *WIDE), at) for side, at in SIDES.items() if min(at) >= 0],
    *[
        store(f"tma_store_{t.replace('.', '_')}", tight(t, (ROW[t] + 16, 10), (ROW[t], 4)), (ROW[t] // 2, 2))
        for t in ROW
        if "f32" not in t
    ],
    *[
        store(f"tma_store_{t.replace('.', '_')}", tight(t, (16, 12), (16, 10)), (0, 1), src=F32_TELLTALE[:160])
        for t in ROW
        if "f32" in t
    ],
    *[
        store(f"tma_store_swizzle_{32 << s - 1}", tight("f16", (64, 20), ((8 << s), 16), swizzle=s), (8, 3))
        for s in (1, 2, 3)
    ],
    *[
        store(
            f"tma_store_swizzle_{32 << s - 1}_base_{o}",
            tight("f16", (64, 20), ((8 << s), 16), swizzle=s),
            (0, 3),
            offset=o,
        )
        for s, o in ((2, 384), (3, 640))
    ],
    store("tma_store_odd_width", tight("u8", (37, 9), (48, 6)), (16, 1)),
    store("tma_store_element_stride", tight("f32", (20, 24), (8, 7), element_strides=(1, 3)), (4, 2)),
    *[reduce_case(op, t) for op, t in REDUCTIONS],
    *[
        store(
            f"tma_reduce_add_{t}_subnormal",
            tight(t, (ROW[t], 4), (ROW[t], 4)),
            (0, 0),
            op="add",
            src=SMALL.view(np.uint8),
            dst=SMALL2.view(np.uint8),
        )
        for t in ("f32", "f16", "bf16")
    ],
    store(
        "tma_reduce_min_f16_special",
        tight("f16", (32, 4), (32, 4)),
        (0, 0),
        op="min",
        src=F32_TELLTALE[:64],
        dst=F32_TELLTALE[1:65],
    ),
    reduce_case("add", "f32", (20, 8)),
    reduce_case("xor", "u32", (20, 7)),
    multicast("tma_multicast_2", tight("f16", (40, 13), (16, 4)), 2, {0: 0b11}, (8, 2)),
    multicast("tma_multicast_2_each", tight("f16", (64, 13), (64, 4), swizzle=3), 2, {0: 0b11, 1: 0b11}, (0, 2)),
    multicast("tma_multicast_4", tight("f32", (40, 13), (16, 4)), 4, {3: 0b1111}, (4, 2)),
    multicast(
        "tma_multicast_4_subsets",
        tight("f16", (40, 13), (16, 4)),
        4,
        {0: 0b0101, 1: 0b1010, 2: 0b0100, 3: 0b1011},
        (32, 8),
    ),
]
