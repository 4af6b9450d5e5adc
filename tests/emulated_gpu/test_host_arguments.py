"""NumPy arrays and CPU tensors as arguments of `emulated_gpu.launch`: with a GPU's alignment, in place or as if."""

import numpy as np
import pytest

import emulated_gpu

# Reads 32 bytes at once, for which sm_100 wants an aligned address, and writes them to `to` turned around.
TURN = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry turn(.param .u64 from, .param .u64 to) {
  .reg .b64 %a, %b;
  .reg .b32 %r<8>;
  ld.param.u64 %a, [from];
  ld.param.u64 %b, [to];
  ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%a];
  st.global.v8.b32 [%b], {%r7, %r6, %r5, %r4, %r3, %r2, %r1, %r0};
  ret;
}"""


def at(offset: int, count: int = 8) -> np.ndarray:
    """int32 [count], this many bytes above an address that CUDA might give; a memory block of its own."""
    raw = bytearray(4 * count + 512)
    start = -np.frombuffer(raw, np.uint8).ctypes.data % 256 + offset
    return np.frombuffer(raw, np.int32, count, start)


@pytest.mark.parametrize("offset", [0, 16, 32, 4])
def test_memory_of_the_host_has_the_alignment_of_cudas(offset):
    x = at(offset)
    x[:] = range(8)
    emulated_gpu.launch(TURN, "turn", 1, 1, [x, x])  # twice the same memory
    assert x.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("offset", [0, 16])
def test_views_keep_their_distances(offset):
    x = at(offset, 16)
    x[:] = range(16)
    emulated_gpu.launch(TURN, "turn", 1, 1, [x[:8], x[8:]])
    assert x.tolist() == [*range(8), *range(8)[::-1]]
    with pytest.raises(emulated_gpu.EmulatorError, match="misaligned: vector read of 32 bytes"):
        emulated_gpu.launch(TURN, "turn", 1, 1, [x[1:9], x[8:]])


def test_what_is_past_the_end_of_a_view_is_out_of_bounds():
    x = at(16, 16)
    with pytest.raises(emulated_gpu.EmulatorError, match="out-of-bounds"):
        emulated_gpu.launch(TURN, "turn", 1, 1, [x[:7], x[8:]])


def test_the_environment_keeps_ptx_of_every_door(tmp_path, monkeypatch):
    monkeypatch.setenv("EMULATED_GPU_PTX", str(tmp_path / "ptx"))
    text = TURN + "// of this test"
    emulated_gpu.launch(text, "turn", 1, 1, [at(0), at(32)])
    (file,) = (tmp_path / "ptx").glob("turn-????????.ptx")
    assert file.read_text() == text
