"""Cases of tensor maps that are changed on the device.

PTX ISA 9.7.9.28 (tensormap.replace), 9.7.13.16 (cp_fenceproxy), 8.6 (proxies).
"""

from __future__ import annotations

import numpy as np

from .bulk import FENCE, START
from .case import Case, TensorMap, fill_shared, noise, of_body, output, read_shared, source, wait
from .tma import F32_TELLTALE, TILE, extent, tight

COPY = 128  # shared offset of the map while it is edited
BASE = tight("f16", (40, 13), (16, 8))
OTHER = 4096  # bytes of the second tensor that a replaced address can point to


def replaced(
    name: str,
    fields: list[str],
    moved: int,
    base: TensorMap = BASE,
    at: tuple[int, ...] = (8, 2),
    data: np.ndarray | None = None,
    room: int = 0,
) -> Case:
    """A case that replaces fields of a map in shared memory, publishes it to global memory and loads through it there.

    `moved` bytes must arrive with the coordinates `at` (their number is the new rank). Recorded are the tile and the
    changed map with its address cleared.
    """
    rank = len(at)
    params = ", ".join(f"s32 c{i}" for i in range(rank))
    coords = "{" + ", ".join(f"c{i}" for i in range(rank)) + "}"
    region = max(room, moved) + 128
    edits = "\n".join(f"    tensormap.replace.tile.{f};" for f in fields)
    body = f"""
    .reg .b64 word, generic;
    {fill_shared(TILE, region)}
    {START}
    mov.b64 %rd1, arg_tm; mad.wide.u32 %rd1, tid, 8, %rd1; mad.lo.u32 %r1, tid, 8, smem;
    setp.lt.u32 q, tid, 16;
    @q ld.param.b64 word, [%rd1];
    @q st.shared.b64 [%r1+{COPY}], word;
    bar.sync 0;
    @!p bra EDITED;
{edits}
EDITED:
    {FENCE}
    setp.lt.u32 q, tid, 32;
    @!q bra FENCED;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [desc], [smem+{COPY}], 128;
FENCED:
    bar.sync 0;
    cvta.global.u64 generic, desc;
    fence.proxy.tensormap::generic.acquire.gpu [generic], 128;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {moved};
    @p cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [smem+{TILE}], [generic,
      {coords}], [smem];
    {wait("smem", 0)}
    {read_shared(TILE, region)}
    @p st.global.b64 [desc], 0;
"""
    params = f"ptr out, ptr src, map tm, {params}, ptr desc, ptr other"
    data = noise(extent(base) + 1024, 200) if data is None else data
    args = (output(region), source(data), base, *at, output(128), source(noise(OTHER, 201)))
    return of_body(name, params, body, args, shared=TILE + region)


def field(name: str, value: int | str, index: int | None = None, bits: int = 32) -> str:
    where = "" if index is None else f" {index},"
    return f"{name}.shared::cta.b1024.b{bits} [smem+{COPY}],{where} {value}"


def strides(*values: int) -> list[str]:
    return [field("global_stride", v, i, 64) for i, v in enumerate(values)]


def dims(*values: int) -> list[str]:
    return [field("global_dim", v, i) for i, v in enumerate(values)]


def boxes(*values: int) -> list[str]:
    return [field("box_dim", v, i) for i, v in enumerate(values)]


# (a 16-bit map's box of 16 columns becomes 32 bytes of 8-bit, 64 of 32-bit elements)
ELEMENT = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    3: ("s32", 4),
    4: ("u64", 8),
    5: ("s64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    8: ("f32_ftz", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
    11: ("tf32", 4),
    12: ("tf32_ftz", 4),
}
SWIZZLED = tight("f16", (64, 20), (32, 16), swizzle=2)

CASES: list[Case] = [
    replaced("tensormap_unchanged", [], 256),
    replaced("tensormap_address", [field("global_address", "other", bits=64)], 256),
    replaced("tensormap_global_dim", dims(10, 9), 256, at=(8, 5)),
    replaced("tensormap_global_stride", strides(144), 256),
    replaced("tensormap_box_dim", boxes(24, 5), 240),
    replaced(
        "tensormap_rank_up",
        [field("rank", 2), *dims(20, 6, 4), *strides(80, 160), *boxes(16, 2, 3), field("element_stride", 1, 2)],
        192,
        at=(8, 1, 1),
    ),
    replaced("tensormap_rank_down", [field("rank", 0)], 32, at=(32,)),
    replaced(
        "tensormap_rank_5",
        [
            field("rank", 4),
            *dims(16, 3, 3, 2, 2),
            *strides(80, 240, 320, 640),
            *boxes(8, 2, 2, 2, 2),
            *[field("element_stride", 1, i) for i in range(5)],
        ],
        256,
        at=(8, 1, 0, 0, 1),
    ),
    replaced("tensormap_element_stride", [field("element_stride", 3, 1)], 96),
    *[
        replaced(
            f"tensormap_elemtype_{n}",
            [field("elemtype", code), *dims(80 // b, 13), *boxes(32 // b, 8)],
            256,
            at=(16 // b, 2),
            data=np.resize(F32_TELLTALE, 13 * 20),
        )
        for code, (n, b) in ELEMENT.items()
    ],
    *[
        replaced(f"tensormap_swizzle_{s}", [field("swizzle_mode", s)], 1024, base=SWIZZLED, at=(8, 3), room=2048)
        for s in (0, 2, 3)
    ],
    replaced("tensormap_swizzle_1", [field("swizzle_mode", 1), *boxes(16, 16)], 512, base=SWIZZLED, at=(8, 3)),
    replaced("tensormap_fill_nan", [field("fill_mode", 1)], 256, at=(32, 9)),
    replaced(
        "tensormap_fill_zero",
        [field("fill_mode", 0)],
        256,
        at=(32, 9),
        base=tight("f16", (40, 13), (16, 8), nan_fill=True),
    ),
    replaced("tensormap_interleave_none", [field("interleave_layout", 0)], 256),
    # what a grouped GEMM does: address, sizes and strides of another problem in one go, above the rank too
    replaced(
        "tensormap_next_group",
        [field("global_address", "other", bits=64), *dims(24, 7, 3, 1, 1), *strides(48, 336, 0, 0)],
        192,
        base=tight("f16", (40, 13, 2), (16, 3, 2)),
        at=(16, 5, 1),
    ),
]
