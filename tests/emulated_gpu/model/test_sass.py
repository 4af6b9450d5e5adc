"""Issue from machine code: control words against what an H200 took, and which of it belongs to which block of PTX."""

import pytest

import emulated_gpu
from emulated_gpu.model import sass, scoreboard
from emulated_gpu.model.profile import load
from emulated_gpu.model.sass import disassembly, segments, walk
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse
from silicon.timing import validate
from silicon.timing.points import POINTS

H200 = load("h200").with_({"machine_code.issue": 1})
FIXED = [p for p in POINTS if p.name.startswith(("chain/", "issue/fma", "issue/add", "issue/mad", "issue/cvt"))]
# Of one warp exactly; of several the first and last cycles of each count, too
SEVERAL = {"issue/add.s32/4 warps": 0.035, "issue/add.s32/8 warps": 0.05, "issue/add.s32/16 warps": 0.28}


@pytest.mark.parametrize("point", FIXED, ids=lambda p: p.name)
def test_chains_and_issue_as_an_h200_took_them(point):
    """By control words, and two latencies: of MUFU and SHFL."""
    measured = validate.measured()[point.name]
    assert validate.model(point, H200) == pytest.approx(measured, rel=SEVERAL.get(point.name, 0.02))


WAITS = {
    "latency/ld.shared": 0.02,
    "latency/ld.global/L2": 0.02,
    "latency/mbarrier/arrive and wait, one warp": 0.06,
    "latency/mbarrier/try_wait of a complete phase": 0.07,
    "latency/mbarrier/hand-over": 0.08,
    "latency/mbarrier/hand-over in a cluster": 0.08,
    "issue/st.global 2 B/1 warps": 0.03,
}


@pytest.mark.parametrize("name", WAITS)
def test_what_control_words_leave_open(name):
    """Latencies by opcode, carried from block to block by the six barriers."""
    point = next(p for p in POINTS if p.name == name)
    assert validate.model(point, H200) == pytest.approx(validate.measured()[name], rel=WAITS[name])


HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 src, .param .u64 out)
{
  .reg .pred p, q; .reg .b32 i, x, y, sum, lane; .reg .b64 a, o;
  ld.param.u64 a, [src]; ld.param.u64 o, [out]; mov.u32 lane, %tid.x; mov.u32 sum, 0; mov.u32 i, 0;
"""
TAIL = " st.global.u32 [o], sum; ret; }"


def placed(body: str):
    """The program of a body, and for each of its blocks what it has become."""
    text = HEAD + body + TAIL
    (kernel,) = parse(text).kernels.values()
    program = scoreboard.waiting(ControlFlow(kernel))
    made = sass.machine_code(text, "sm_90a")
    assert not isinstance(made, str), made
    return program, segments.placed(program, made.kernels["kernel"], made.lines["kernel"])


def texts(program, block: int) -> str:
    return " ".join(i.text for i in program.kernel.instrs[program.start[block] : program.end[block]])


def test_each_block_gets_its_own_instructions_though_all_stand_on_one_line():
    loads = "ld.volatile.global.u32 x, [a]; bar.sync 0; ld.volatile.global.u32 y, [a+4];"
    program, found = placed(f"{loads} add.u32 sum, x, y;")
    opcodes = [[i.opcode for run in each.runs for i in run] for each in found]
    for b, each in enumerate(opcodes):
        assert ("BAR" in each) == ("bar.sync" in texts(program, b))
        assert each.count("LDG") == texts(program, b).count("ld.volatile")


def test_a_loop_that_ptxas_has_unrolled_costs_a_turn_what_a_copy_does():
    program, found = placed(
        "LOOP: ld.volatile.global.u32 x, [a]; add.u32 sum, sum, x; add.u32 i, i, 1; setp.lt.u32 p, i, 64; @p bra LOOP;"
    )
    loop = next(b for b in range(len(program.start)) if "ld.volatile" in texts(program, b))
    loads = sum(i.opcode == "LDG" for run in found[loop].runs for i in run)
    assert loads > 1 and loads / found[loop].copies == pytest.approx(1, rel=0.3)


def test_a_wait_counts_its_first_try_only():
    wait = "WAIT: mbarrier.try_wait.parity.shared.b64 p, [lane], 0; @!p bra WAIT;"
    program, found = placed(wait)
    block = next(b for b in range(len(program.start)) if "try_wait" in texts(program, b))
    assert sum(i.op.startswith(segments.TRY) for run in found[block].runs for i in run) == 1


def test_a_run_is_cut_in_the_order_of_its_blocks():
    assert segments._in_order([0, 0, 1, 0, 1, 1], [1] * 6) in ([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1])
    assert segments._in_order([0, 1, 0, 0, 0, 1], [1, 8, 1, 1, 1, 1]) == [0, 1, 1, 1, 1, 1], "who does not move decides"
    assert segments._in_order([3, 0, 3], [1, 0, 1]) == [3, 3, 3], "who comes from elsewhere stays where it stands"


def test_a_barrier_holds_back_who_waits_for_it_and_a_busy_pipe_who_needs_it():
    figures = walk.Figures({"LDS": 23, "other": 20}, {"other": 10}, {"lsu": 4})
    load = disassembly.Sass("LDS.32", False, 1, 1, 0, 7, 0, False)
    use = load._replace(op="IADD3", sets=7, waits=1)
    alone = walk.walk([load], figures, set())
    assert alone.cycles == 1 and alone.sets[0][0] == 23 and not alone.needs
    assert walk.walk([load, use], figures, set()).cycles == 24
    assert walk.walk([load] * 3, figures, set()).cycles == 9 and walk.walk([load] * 3, figures, set()).slots == 12
    assert walk.walk([use], figures, set()).needs == {0: 0.0}


@pytest.mark.parametrize("missing", [0, 1])
def test_without_a_tool_classes_of_ptx_are_charged_and_the_report_says_so(missing, monkeypatch):
    disassembly.machine_code.cache_clear()
    tools = list(disassembly.tools())
    tools[missing] = None
    monkeypatch.setattr(disassembly, "tools", lambda: tuple(tools))
    with emulated_gpu.timing(H200) as timed:
        emulated_gpu.launch(HEAD.replace("sm_90a", "sm_90") + " ret; }", "kernel", 1, 32, [0, 0])
    disassembly.machine_code.cache_clear()
    (said,) = timed.run.clock.charged.values()
    assert said.startswith("classes of PTX: ") and ("nvdisasm" if missing else "ptxas") in said
