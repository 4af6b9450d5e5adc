"""TMA copies in im2col mode, against a count of pixels that follows PTX ISA 5.5.4, and what is refused of it."""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
import torch

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats import tensormap
from emulated_gpu.formats.tensormap import Im2colMap, TensorMap, decode, encode

KERNEL = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {{
.reg .b32 tile, bar, x; .reg .b64 m, o, at, state; .reg .b16 s; .reg .pred p;
.shared .align 128 .b8 column[1024]; .shared .align 8 .b64 full;
mov.b64 m, map; cvta.param.u64 m, m; ld.param.u64 o, [out]; mov.u32 tile, column; mov.u32 bar, full;
mbarrier.init.shared.b64 [bar], 1; fence.proxy.async;
mbarrier.arrive.expect_tx.shared.b64 state, [bar], {nbytes};
{copy};
WAIT: mbarrier.try_wait.parity.shared.b64 p, [bar], 0; @!p bra WAIT;
mov.u32 x, 0;
AGAIN: cvt.u64.u32 at, x; add.u64 at, at, o; add.u32 bar, tile, x; ld.shared.b16 s, [bar]; st.global.b16 [at], s;
add.u32 x, x, 2; setp.lt.u32 p, x, {nbytes}; @p bra AGAIN;
ret; }}"""
LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.{}.mbarrier::complete_tx::bytes [tile], [m, {{{}}}], [bar]"


def filled(*shape: int) -> torch.Tensor:
    """A device tensor of int16 of which every element is another number, none of them 0."""
    size = int(np.prod(shape))
    return emulated_gpu.device_tensors(torch.arange(1, size + 1, dtype=torch.int16).reshape(shape))


def a_map(x: torch.Tensor, **more) -> Im2colMap:
    """A map of x [N, D, H, W, C], or of lower rank: 8 channels of 12 pixels, if nothing else is said."""
    rank = x.ndim
    strides = tuple(2 * s for s in x.stride()[-2::-1])
    given = {"box": (8, 12), "element_strides": (1,) * rank, "lower": (0,) * (rank - 2), "upper": (0,) * (rank - 2)}
    return Im2colMap(x.data_ptr(), "u16", tuple(x.shape)[::-1], strides, **given | more)


def column(x: torch.Tensor, tm: Im2colMap, coords, offsets) -> list[list[int]]:
    """The pixels' channels: those that are counted from the coordinates on, which lie on a pixel of the box."""
    sides = [range(lo, n + hi, step) for lo, n, hi, step in zip(tm.lower, tm.dims[1:], tm.upper, tm.steps[1:])]
    counted = product(range(9), *sides[::-1])  # N slowest, W fastest
    begun = (at[::-1] for at in counted if at >= tuple(coords[:0:-1]))
    rows = []
    for at in islice(begun, tm.box[1]):
        place = [p + o for p, o in zip(at, (*offsets, 0))]
        pixels = [[coords[0] + c, *place] for c in range(tm.box[0])]
        rows.append([
            int(x[tuple(p[::-1])]) if all(0 <= i < n for i, n in zip(p, tm.dims)) else 0 for p in pixels
        ])  # fmt: skip
    return rows


def copied(tm: TensorMap, coords, offsets, mode: str = "im2col") -> list[list[int]]:
    """What a copy brings to shared memory, pixel by pixel."""
    copy = LOAD.format(tm.rank, mode, ", ".join(map(str, coords)))
    if offsets:
        copy += f", {{{', '.join(map(str, offsets))}}}"
    out = np.zeros(tm.box_bytes // 2, np.int16)
    emulated_gpu.launch(KERNEL.format(copy=copy, nbytes=tm.box_bytes), "k", 1, 1, [encode(tm), out])
    return out.reshape(-1, tm.box[0]).tolist()


@pytest.mark.parametrize("shape, coords, offsets, more", [
    ((3, 5, 8), (0, 0, 0), (0,), {}),  # N, W, C
    ((2, 4, 4, 8), (0, 0, 0, 0), (0, 0), {}),
    ((2, 4, 4, 16), (8, 1, 3, 0), (0, 0), {}),  # goes on in the next image
    ((2, 4, 4, 8), (0, -1, -1, 0), (2, 0), {"lower": (-1, -1), "upper": (-1, -1)}),  # a filter of 3 x 3, padded
    ((2, 5, 7, 8), (0, -1, 1, 0), (1, 2), {"lower": (-1, -1), "upper": (-1, -1), "element_strides": (1, 2, 2, 1)}),
    ((1, 4, 4, 8), (0, 2, 3, 0), (0, 0), {}),  # ends behind the last image
    ((1, 2, 5, 24), (16, 0, 0, 0), (0, 0), {"box": (16, 12)}),  # and behind the last channel
    ((2, 3, 4, 4, 24), (8, 0, 1, 1, 0), (1, 1, 0), {"lower": (0, 0, -1), "upper": (-2, -1, 0), "box": (16, 30)}),
])  # fmt: skip
def test_a_copy_brings_a_column_of_pixels(shape, coords, offsets, more):
    x = filled(*shape)
    tm = a_map(x, **more)
    assert decode(encode(tm)) == tm
    assert copied(tm, coords, offsets) == column(x, tm, coords, offsets)


def test_a_copy_that_reads_beyond_an_allocation_is_out_of_bounds():
    x = filled(1, 4, 4, 8)
    with pytest.raises(Fault, match="out-of-bounds"):
        copied(replace(a_map(x), dims=(8, 4, 400, 1)), (0, 0, 90, 0), (0, 0))


def test_instruction_and_map_are_of_one_mode():
    x = filled(2, 4, 4, 8)
    with pytest.raises(Fault, match="of tiled mode with a tensor map of im2col mode"):
        copied(a_map(x), (0, 0, 0, 0), (), "tile")
    tiled = TensorMap(x.data_ptr(), "u16", (8, 4, 4, 2), (16, 64, 256), (8, 4, 1, 1), (1,) * 4)
    with pytest.raises(Fault, match="of im2col mode with a tensor map of tiled mode"):
        copied(tiled, (0, 0, 0, 0), (0, 0))


@pytest.mark.parametrize("mode", ["im2col::w", "im2col::w::128", "im2col_no_offs"])
def test_other_modes_are_refused_by_name(mode):
    with pytest.raises(Unsupported, match=mode):
        copied(a_map(filled(2, 4, 4, 8)), (0, 0, 0, 0), (0, 0), mode)
    with pytest.raises(Unsupported, match="offsets"):
        copied(a_map(filled(2, 4, 4, 8)), (0, 0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("more, rule", [
    ({"box": (8, 1025)}, "pixels"), ({"box": (264, 4)}, "channels"), ({"lower": (0, 200)}, "-128..127"),
    ({"lower": (0,)}, "W, H, D"),
])  # fmt: skip
def test_what_the_driver_calls_an_invalid_value_is_a_fault(more, rule):
    with pytest.raises(Fault, match=rule):
        a_map(filled(2, 4, 4, 8), **more)
    with pytest.raises(Fault, match="3..5"):
        a_map(filled(4, 8))


def test_a_map_of_this_mode_is_not_edited_nor_its_copies_timed():
    tm = a_map(filled(2, 4, 4, 8))
    with pytest.raises(Unsupported, match="global_address on a tensor map of im2col mode"):
        tensormap.replace(bytearray(encode(tm)), "global_address", None, 0)
    with pytest.raises(Unsupported, match="time of a copy in im2col mode"), emulated_gpu.timing("b200"):
        copied(tm, (0, 0, 0, 0), (0, 0))
