"""What a timed run does not compute, and what it costs: arithmetic on results of the tensor core."""

import pytest

import emulated_gpu
from emulated_gpu.model import issue
from emulated_gpu.model.profile import load
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse

KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry sums(.param .u64 to)
{
    .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<8>;
    mov.b32 %f3, 0f3F800000;
    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%f0, %f1}, [%r0];
    tcgen05.wait::ld.sync.aligned;
    mov.b64 %rd0, {%f0, %f1};
    mov.b64 %rd1, {%f3, %f3};
    fma.rn.f32x2 %rd2, %rd0, %rd1, %rd1;
    mov.b64 {%f4, %f5}, %rd2;
    fma.rn.f32 %f6, %f4, %f5, %f3;
    fma.rn.f32 %f7, %f3, %f3, %f3;
    st.global.f32 [%rd3], %f6;
    ret;
}
"""


@pytest.fixture
def program():
    return ControlFlow(parse(KERNEL).kernels["sums"], "ptx")


def test_only_what_comes_from_the_tensor_core_is_left_out(program):
    """One fma of two has no such operand: it is computed in any run."""
    instrs = program.kernel.instrs
    held = [
        i for i, bits in program.results.held.items() if any(bits >> r & 1 for r in program.reads_writes(instrs[i])[0])
    ]
    left_out = [instrs[i].op for i in held]
    assert left_out == ["mov.b64", "fma.rn.f32x2", "mov.b64", "fma.rn.f32", "st.global.f32"]


def test_a_packed_fma_takes_two_issue_slots(program):
    """A scheduler has 32 f32 units, an f32x2 of a warp has 64 sums."""
    figures = {name: tuple(value) for name, value in load("b200")["issue"].items()}
    ops = {instr.op: issue.kind(instr) for instr in program.kernel.instrs}
    assert ops["fma.rn.f32x2"] == "packed" and ops["fma.rn.f32"] == "alu"
    assert figures["packed"][0] == 2 * figures["alu"][0]


def test_a_load_of_tensor_memory_is_under_way_while_its_warp_goes_on():
    """tcgen05.ld is asynchronous (9.7.16.8): what stands before it delays it, what stands before its wait does not."""
    profile = load("b200").with_({"sm.code_cycles": 0, "tensor.load_latency": 180})
    steps, per_step = 40, profile["issue"]["alu"][1]

    def cycles(*places: int) -> float:
        """Of one warp that has a chain of this many steps before the load, before its wait, and behind that."""
        chains = [" ".join(["add.u32 y, y, y;"] * (steps if place in places else 0)) for place in range(3)]
        ptx = f""".version 8.8\n.target sm_100a\n.address_size 64
            .visible .entry kernel() {{ .shared .b32 slot; .reg .b32 x, y, r;
            tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; ld.shared.b32 x, [slot]; mov.u32 y, 1;
            add.u32 x, x, 0;
            {chains[0]} tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r}}, [x]; {chains[1]} tcgen05.wait::ld.sync.aligned;
            {chains[2]} tcgen05.dealloc.cta_group::1.sync.aligned.b32 x, 32; nanosleep.u32 y; ret; }}"""
        with emulated_gpu.timing(profile) as timed:
            emulated_gpu.launch(ptx, "kernel", 1, 32, [])
        return timed.ends_us[0] * 1000 * profile["sm"]["clock_ghz"]

    none, chain = cycles(), steps * per_step
    assert chain < profile["tensor"]["load_latency"]
    slept = cycles(0) - none - chain  # y is 2 ** 40 % 2 ** 32 = 0 then, and was 1
    assert abs(slept) < 2 * per_step
    assert cycles(2) - none == pytest.approx(chain, abs=2 * per_step)
    assert cycles(1) - none == pytest.approx(0, abs=2 * per_step)
    assert cycles(0, 1) - none == pytest.approx(chain, abs=2 * per_step)
