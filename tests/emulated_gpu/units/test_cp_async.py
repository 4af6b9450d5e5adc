"""cp.async: what lands where, and when; lanes that write side by side are one operation."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.errors import Fault
from emulated_gpu.state.shared_memory import SharedMemory

# `to`: the thread's 16 bytes of `tile`, swizzled within eight lanes; `at`, `mine`: its 16 bytes of `in`, of `out`
KERNEL = """.version 8.8\n.target sm_90\n.address_size 64
    .visible .entry kernel(.param .u64 p_out, .param .u64 p_in) {{
    .shared .align 1024 .b8 tile[1024];
    .reg .b32 tid, to, part, a, b, c, d, n; .reg .b64 out, in, at, mine, more; .reg .pred p;
    mov.u32 tid, %tid.x; ld.param.u64 out, [p_out]; ld.param.u64 in, [p_in];
    shr.u32 part, tid, 3; and.b32 part, part, 7; xor.b32 part, part, tid; shl.b32 part, part, 4;
    mov.b32 to, tile; add.u32 to, to, part;
    shl.b32 a, tid, 4; cvt.u64.u32 more, a; add.u64 at, in, more; add.u64 mine, out, more;
    {} ret; }}"""
WAIT = "cp.async.commit_group; cp.async.wait_group 0;"
SEND = "ld.shared.v4.b32 {a, b, c, d}, [to]; st.global.v4.b32 [mine], {a, b, c, d};"


def run(body: str, schedule: int = 0) -> tuple[np.ndarray, np.ndarray]:
    out, source = np.zeros((32, 4), np.int32), np.arange(1, 129, dtype=np.int32).reshape(32, 4)
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session(schedule):
        emulated_gpu.launch(KERNEL.format(body), "kernel", 1, 32, [out, source])
    return out, source


def test_lanes_that_write_side_by_side_are_one_operation(monkeypatch):
    begun = []
    begin = SharedMemory.begin

    def noted(self, lo, hi, *args, **options):
        begun.append(hi - lo)
        return begin(self, lo, hi, *args, **options)

    monkeypatch.setattr(SharedMemory, "begin", noted)
    out, source = run(f"cp.async.cg.shared.global [to], [at], 16; {WAIT} {SEND}")
    assert (out == source).all() and begun == [512]


@pytest.mark.parametrize("clash", [False, True])
def test_scattered_lanes_are_one_operation_on_their_words(monkeypatch, clash):
    """Two warps copy words in turn: into one range, and apart, unless the last lane of one takes the other's word."""
    begun = []
    begin = SharedMemory.begin

    def noted(self, lo, hi, writes, what, by, key, words=None, **options):
        begun.append((lo, hi, len(words)))
        return begin(self, lo, hi, writes, what, by, key, words, **options)

    monkeypatch.setattr(SharedMemory, "begin", noted)
    body = """shr.u32 a, tid, 5; and.b32 n, tid, 31; shl.b32 to, n, 3; shl.b32 a, a, 2; add.u32 to, to, a;
        setp.eq.u32 p, tid, 63; @p sub.u32 to, to, CLASH; mov.b32 a, tile; add.u32 to, to, a;
        cp.async.ca.shared.global [to], [at], 4; bar.sync 0; cp.async.wait_all; bar.sync 0;
        ld.shared.b32 a, [to]; st.global.b32 [mine], a;""".replace("CLASH", str(4 * clash))
    out, source = np.zeros((64, 4), np.int32), np.arange(1, 257, dtype=np.int32).reshape(64, 4)
    with emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session(0):
        if clash:
            with pytest.raises(Fault, match="is still writing"):
                emulated_gpu.launch(KERNEL.format(body), "kernel", 1, 64, [out, source])
            return
        emulated_gpu.launch(KERNEL.format(body), "kernel", 1, 64, [out, source])
    assert (out[:, 0] == source[:, 0]).all()
    assert [(hi - lo, words) for lo, hi, words in begun] == [(252, 32)] * 2


def test_bytes_behind_src_size_are_zeros():
    out, source = run(f"and.b32 n, tid, 3; shl.b32 n, n, 2; cp.async.cg.shared.global [to], [at], 16, n; {WAIT} {SEND}")
    read = np.arange(4) < (np.arange(32) & 3)[:, None]
    assert (out == np.where(read, source, 0)).all()


def test_lanes_apart_and_guarded_ones():
    """Every other lane copies; then none, by a guard that differs between lanes to the compiler alone."""
    body = f"""and.b32 n, tid, 1; setp.eq.u32 p, n, 0; @p cp.async.cg.shared.global [to], [at], 16; {WAIT}
        @p ld.shared.v4.b32 {{a, b, c, d}}, [to]; @p st.global.v4.b32 [mine], {{a, b, c, d}};
        setp.gt.u32 p, tid, 99; @p cp.async.cg.shared.global [to], [at], 16; {WAIT}"""
    out, source = run(body)
    assert (out[::2] == source[::2]).all() and not out[1::2].any()


def test_lanes_may_make_the_same_copy():
    body = f"""and.b32 n, tid, 30; shl.b32 n, n, 4; cvt.u64.u32 more, n; add.u64 at, in, more; mov.b32 to, tile;
        add.u32 to, to, n; cp.async.cg.shared.global [to], [at], 16; {WAIT} {SEND}"""
    out, source = run(body)
    assert (out == source[np.arange(32) & ~1]).all()


def test_what_was_copied_may_be_overwritten_once_it_was_awaited():
    copy = "st.global.v4.b32 [mine], {tid, tid, tid, tid}; cp.async.cg.shared.global [to], [mine], 16;"
    store = "st.global.v4.b32 [mine], {to, to, to, to};"
    run(f"{copy} {WAIT} {store}")
    with pytest.raises(Fault, match="may still read"):
        run(f"{copy} {store} {WAIT}")


def test_a_read_before_the_wait_is_found():
    with pytest.raises(Fault, match="has not finished writing"):
        run(f"cp.async.cg.shared.global [to], [at], 16; {SEND} {WAIT}")


@pytest.mark.parametrize("values, options, result", [
    ([1.0, -2.0, 0.5], "max", 1.0), ([1.0, -2.0, 0.5], "min", -2.0), ([1.0, -2.0, 0.5], "max.abs", 2.0),
    ([0.0, -0.0], "min", -0.0), ([0.0, -0.0], "max", 0.0), ([np.nan, 1.0], "max", 1.0),
    ([np.nan, 1.0], "max.NaN", np.nan),
    ([np.nan], "min", np.nan), ([-np.inf, -1e-45], "max", -1e-45),
])  # fmt: skip
def test_redux_of_floats(values, options, result):
    """By bits, with the canonical NaN (9.7.13.12)."""
    source = np.broadcast_to(np.resize(np.array(values, np.float32), 32)[:, None], (32, 4)).copy()
    out = np.zeros((32, 4), np.float32)
    body = f"ld.global.b32 a, [at]; redux.sync.{options}.f32 a, a, -1; st.global.b32 [mine], a;"
    with emulated_gpu.session():
        emulated_gpu.launch(KERNEL.format(body).replace("sm_90", "sm_100a"), "kernel", 1, 32, [out, source])
    wanted = 0x7FFFFFFF if np.isnan(result) else int(np.float32(result).view(np.uint32))
    assert (out[:, 0].view(np.uint32) == wanted).all()
