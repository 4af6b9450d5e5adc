"""cp.async.bulk with .cp_mask (PTX ISA 9.7.9.25.4.1): which bytes of each 16 are stored, and whose those beside are."""

import numpy as np
import pytest

import emulated_gpu


def stored(masks: tuple[int, int], size: int = 48) -> np.ndarray:
    """Two CTAs copy 1, 2, ... and 101, 102, ... to one place, each the bytes of its mask. Those beside are unwritten.
    """
    text = f""".version 8.8\n.target sm_100a\n.address_size 64
    .visible .entry kernel(.param .u64 out) {{
        .shared .align 16 .b8 own[64]; .reg .b32 tid, cta, at, x, mask; .reg .b64 to, policy; .reg .b16 bytes;
        .reg .pred lead, skip;
        mov.u32 tid, %tid.x; mov.u32 cta, %ctaid.x; setp.eq.u32 lead, tid, 0; ld.param.u64 to, [out];
        setp.eq.u32 skip, cta, 0; selp.b32 mask, {masks[0]}, {masks[1]}, skip; cvt.u16.u32 bytes, mask;
        mad.lo.u32 x, cta, 100, 1; add.u32 x, x, tid; mov.b32 at, own; add.u32 at, at, tid;
        and.b32 tid, tid, 15; shr.u32 mask, mask, tid; and.b32 mask, mask, 1; setp.ne.u32 skip, mask, 0;
        @skip st.shared.b8 [at], x; fence.proxy.async.shared::cta; bar.sync 0;
        @!lead ret; mov.b64 policy, 0;
        cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask [to], [own], {size}, policy, bytes;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }}"""
    out = np.full(64, 255, np.uint8)
    with emulated_gpu.session():
        emulated_gpu.launch(text, "kernel", 2, 64, [out])
    return out


def test_each_stores_the_bytes_of_its_mask():
    """Two bytes of one word may be two CTAs', as CUB has it at the ends of a tile."""
    one, number = 0b1110000000111101, np.arange(64)
    for other in (one ^ 0xFFFF, 0):
        of = [(mask >> number % 16 & 1).astype(bool) & (number < 48) for mask in (one, other)]
        wanted = np.select(of, [number + 1, number + 101], 255)
        assert (stored((one, other)) == wanted).all()


def test_a_byte_of_two_masks_is_a_race():
    with pytest.raises(emulated_gpu.Fault, match="race"):
        stored((0x00F0, 0x0080))
