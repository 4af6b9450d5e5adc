"""Cooperative launches: all CTAs run at once, with a barrier of the grid, as cooperative_groups keeps it."""

import numpy as np
import pytest

import emulated_gpu

# CTA i writes i to [p] + i, waits at the grid's barrier as cooperative_groups does, and copies its neighbour's word.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry neighbours(.param .u64 p, .param .u64 q) {
  .reg .b64 %p, %q, %w, %o;
  .reg .b32 %high, %low, %i, %n, %one, %first, %before, %now, %flip;
  .reg .pred %t;
  ld.param.u64 %p, [p];
  ld.param.u64 %q, [q];
  mov.u32 %high, %envreg1;
  mov.u32 %low, %envreg2;
  mov.b64 %w, {%low, %high};
  mov.u32 %i, %ctaid.x;
  mov.u32 %n, %nctaid.x;
  mul.wide.u32 %o, %i, 4;
  add.s64 %q, %q, %o;
  add.s64 %o, %p, %o;
  st.global.u32 [%o], %i;
  setp.eq.u32 %t, %i, 0;
  sub.u32 %first, 0x80000001, %n;
  selp.u32 %one, %first, 1, %t;
  fence.acq_rel.gpu;
  atom.global.add.u32 %before, [%w+4], %one;
WAIT:
  ld.volatile.global.u32 %now, [%w+4];
  xor.b32 %flip, %now, %before;
  setp.ge.s32 %t, %flip, 0;
  @%t bra WAIT;
  fence.acq_rel.gpu;
  add.u32 %i, %i, 1;
  rem.u32 %i, %i, %n;
  mul.wide.u32 %o, %i, 4;
  add.s64 %o, %p, %o;
  ld.global.u32 %i, [%o];
  st.global.u32 [%q], %i;
  ret;
}"""


@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_the_grid_waits_for_all_of_it(schedule):
    p, q = np.zeros((2, 12), np.uint32)
    with emulated_gpu.session(schedule=schedule):
        emulated_gpu.launch(PTX, "neighbours", 12, 1, [p, q], cooperative=True)
    assert q.tolist() == [*range(1, 12), 0]


def by_the_library(scope: int) -> str:
    """PTX in which the barrier is a call of CUDA's device library, as numba's compiler makes it."""
    declared = """.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 s);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);
.visible .entry"""
    call = f"""{{
  .param .b32 s; .param .b64 h; .param .b32 f; .param .b32 r;
  st.param.b32 [s], {scope};
  call.uni (h), cudaCGGetIntrinsicHandle, (s);
  ld.param.b64 %w, [h];
  .param .b64 given;
  st.param.b64 [given], %w;
  st.param.b32 [f], 0;
  call.uni (r), cudaCGSynchronize, (given, f);
  }}"""
    before, _, rest = PTX.partition("  mov.u32 %high")
    _, _, behind = rest.partition("  fence.acq_rel.gpu;\n  add.u32")
    start = "  mov.u32 %i, %ctaid.x;\n  mov.u32 %n, %nctaid.x;\n  mul.wide.u32 %o, %i, 4;\n  add.s64 %q, %q, %o;\n"
    start += "  add.s64 %o, %p, %o;\n  st.global.u32 [%o], %i;\n"
    return before.replace(".visible .entry", declared) + start + call + "\n  add.u32" + behind


@pytest.mark.parametrize("schedule", [0, 1])
def test_the_barrier_of_cudas_device_library(schedule):
    p, q = np.zeros((2, 12), np.uint32)
    text = by_the_library(1)
    with emulated_gpu.session(schedule=schedule):
        emulated_gpu.launch(text, "neighbours", 12, 32, [p, q], cooperative=True)
    assert q.tolist() == [*range(1, 12), 0]
    without = text.replace("call.uni (r), cudaCGSynchronize, (given, f);", "")
    with pytest.raises(emulated_gpu.EmulatorError, match="race"):
        emulated_gpu.launch(without, "neighbours", 12, 1, [p, q], cooperative=True)


def test_without_the_barrier_there_is_a_race():
    p, q = np.zeros((2, 12), np.uint32)
    with pytest.raises(emulated_gpu.EmulatorError, match="race"):
        emulated_gpu.launch(PTX.replace("@%t bra WAIT", "@!%t bra WAIT"), "neighbours", 12, 1, [p, q], cooperative=True)


@pytest.mark.parametrize("shared, most", [(200_000, 148), (100_000, 296)])
def test_more_ctas_than_run_at_once_are_refused(shared, most):
    p, q = np.zeros((2, 4), np.uint32)
    with pytest.raises(emulated_gpu.EmulatorError, match=f"of {most + 1} CTAs, of which {most} run at once.*TooLarge"):
        emulated_gpu.launch(PTX, "neighbours", most + 1, 1, [p, q], shared=shared, cooperative=True)


# The same in an ordinary launch, with a barrier of its own, and one in which a CTA waits for the one before alone
OWN = PTX.replace("(.param .u64 p", "(.param .u64 w, .param .u64 p").replace("mov.u32 %high, %envreg1;", "")
OWN = OWN.replace("mov.u32 %low, %envreg2;", "").replace("mov.b64 %w, {%low, %high};", "ld.param.u64 %w, [w];")
CHAIN = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry chain(.param .u64 w) {
  .reg .b64 %w;
  .reg .b32 %i, %now;
  .reg .pred %t;
  ld.param.u64 %w, [w];
  mov.u32 %i, %ctaid.x;
WAIT:
  ld.acquire.gpu.global.u32 %now, [%w];
  setp.ne.u32 %t, %now, %i;
  @%t bra WAIT;
  add.u32 %i, %i, 1;
  st.release.gpu.global.u32 [%w], %i;
  ret;
}"""


def test_a_grid_that_waits_for_all_of_itself_may_be_starved():
    """Beside one of another stream that does so, too: neither has room for the rest. A cooperative launch has it."""
    w, p, q = np.zeros((3, 12), np.uint32)
    emulated_gpu.launch(OWN, "neighbours", 12, 1, [w, p, q])
    w[:] = 0
    message = r"residency: spins for ever, while 11 of 12 CTAs(.|\n)*CTA \(0, 0, 0\), PTX line 2\d"
    with pytest.raises(emulated_gpu.EmulatorError, match=message), emulated_gpu.session(crowded=True):
        emulated_gpu.launch(OWN, "neighbours", 12, 1, [w, p, q])
    with emulated_gpu.session(crowded=True):
        emulated_gpu.launch(PTX, "neighbours", 12, 1, [p, q], cooperative=True)
        w[:] = 0
        emulated_gpu.launch(CHAIN, "chain", 12, 1, [w])
    assert q.tolist() == [*range(1, 12), 0] and w[0] == 12


def test_no_other_launch_has_a_barrier():
    p, q = np.zeros((2, 4), np.uint32)
    with pytest.raises(emulated_gpu.EmulatorError, match="out-of-bounds"):
        emulated_gpu.launch(PTX, "neighbours", 4, 1, [p, q])
