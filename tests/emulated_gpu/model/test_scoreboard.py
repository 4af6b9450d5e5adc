"""A warp waits where it uses what a load, an atomic or a unit of its SM delivers, whatever blocks lie between."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.model import scoreboard
from emulated_gpu.model.profile import load
from emulated_gpu.model.trace import Trace

TURNS = 64
PTX = """.version 8.8
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 src, .param .u64 out)
{
  .reg .pred p, never, always, half; .reg .b32 i, lane, x, y, z, sum, here; .reg .b64 a, o, begun, ended;
  .shared .align 8 .b32 word[32];
  ld.param.u64 a, [src]; ld.param.u64 o, [out]; mov.u32 i, 0; mov.u32 sum, 0; mov.u32 y, 0; mov.u32 z, 0;
  mov.u32 lane, %tid.x; mov.u32 here, word; st.shared.u32 [here], here; setp.gt.u32 half, lane, 15;
  setp.eq.u32 never, lane, 99; setp.ne.u32 always, lane, 99; mov.u64 begun, %clock64;
LOOP:
  BODY
  add.u32 i, i, 1; setp.lt.u32 p, i, TURNS; @p bra LOOP;
OUT:
  mov.u64 ended, %clock64; sub.u64 ended, ended, begun; st.global.u64 [o], ended; add.u32 sum, sum, here;
  st.global.u32 [o+8], sum; ret;
}
""".replace("TURNS", str(TURNS))
LOAD = "ld.global.cg.b32 x, [a];"
NO_BRANCH = "@never bra OUT;"


def cycles(body: str, profile: str = "h200", threads: int = 1, trace=None) -> float:
    """Of a turn of a loop with this body. The words at `a` (L2) and `here` (shared memory) hold their addresses."""
    src, out = allocate(4096), allocate(16)
    src.view(np.uint64)[:] = src.ctypes.data
    for array in (src, out):
        DEVICE.adopt(array, "array")
    with emulated_gpu.timing(load(profile), *([trace] if trace else [])):
        emulated_gpu.launch(PTX.replace("BODY", body), "kernel", 1, threads, [src, out])
    return int(out.view(np.uint64)[0]) / TURNS


def latency(kind: str) -> float:
    return load("h200")["issue"][kind][1]


@pytest.mark.parametrize("profile", ["b200", "h200"])
def test_a_branch_that_is_never_taken_hides_no_load(profile):
    plain = cycles(f"{LOAD} add.u32 sum, sum, x;", profile)
    assert cycles(f"{LOAD} {NO_BRANCH} add.u32 sum, sum, x;", profile) == pytest.approx(plain, rel=0.02)
    assert plain > load(profile)["issue"]["global_load"][1]


H100 = 273  # measured: a chain of loads from L2 by a counter, cycles a load (worklog/timing_model.md, Two GPUs)


def test_a_chain_of_loads_through_a_loop_takes_their_latency():
    assert cycles("ld.relaxed.sys.global.u64 a, [a];") == pytest.approx(H100, rel=0.15)


def test_a_load_that_its_predicate_leaves_out_is_not_waited_for():
    used = f"mov.u32 x, 0; @%s {LOAD} {NO_BRANCH} add.u32 sum, sum, x;"
    assert cycles(used % "never") < 60
    assert cycles(used % "always") > latency("global_load")


def test_a_load_that_nothing_uses_is_not_waited_for():
    """For another value lies in its register, which on the other way here it would have been."""
    assert cycles(f"{LOAD} @never bra ON; mov.u32 x, 1; ON: add.u32 sum, sum, x;") < 60


def test_register_moves_hand_on_what_is_under_way():
    """Two loads are under way, of which each turn uses the older one: half of the latency a turn."""
    one, two = (cycles(f"mov.u32 y, x; {LOAD} add.u32 sum, sum, {used};") for used in "xy")
    assert two == pytest.approx(one / 2, rel=0.05)


@pytest.mark.parametrize("kind, delivers", [
    ("global_atomic", "atom.global.add.u32 x, [o+8], 1;"),
    ("shared_atomic", "atom.shared.add.u32 x, [here+4], 1;"),
    ("shared", "ld.shared.b32 x, [here];"),
    ("shuffle", "shfl.sync.bfly.b32 x, lane, 1, 31, -1;"),
    ("divide", "div.u32 x, lane, here;"),
])  # fmt: skip
def test_whatever_has_a_latency_is_waited_for_behind_a_branch(kind, delivers):
    """As much as the same without a use is shorter by, less the cycles that the branch hides."""
    threads = 32 if kind == "shuffle" else 1
    body = f"{delivers} {NO_BRANCH} add.u32 sum, sum"
    used, unused = (cycles(f"{body}, {what};", threads=threads) for what in ("x", "1"))
    issue, branch = (load("h200")["issue"][name][0] for name in (kind, "branch"))
    assert used - unused == pytest.approx(latency(kind) - issue - branch, abs=5)


@pytest.mark.parametrize("use", [
    "@half bra ON; add.u32 sum, sum, x; ON:",  # in a part of the warp
    "@half bra ON; add.u32 sum, sum, y; ON: add.u32 sum, sum, x;",  # behind the place where the parts meet
    "@!half bra ON; ld.global.cg.b32 x, [a+4]; ON: add.u32 sum, sum, x;",  # loaded by a part of it
])  # fmt: skip
def test_lanes_that_part_take_along_what_they_wait_for(use):
    assert latency("global_load") < cycles(f"{LOAD} {use}", threads=32) < 2.3 * latency("global_load")


def test_the_wait_is_told_by_nsights_name_where_the_register_is_used():
    trace = Trace()
    soon = "ld.shared.b32 y, [here];"
    cycles(f"{LOAD} {NO_BRANCH} add.u32 sum, sum, x; {soon} {NO_BRANCH} add.u32 sum, sum, y;", trace=trace)
    for why, use, least in (scoreboard.LONG, "x", 200), (scoreboard.SHORT, "y", 5):
        ((program, block, _, spent),) = {(*at, spent) for (*at, found), spent in trace.spent.items() if found == why}
        assert spent > TURNS * least
        assert program.kernel.instrs[program.start[block]].text.startswith(f"add.u32 sum, sum, {use}")
