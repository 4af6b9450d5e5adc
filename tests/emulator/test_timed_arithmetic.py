"""What a timed run does not compute, and what it costs: arithmetic on results of the tensor core."""

import pytest

from emulator.model import issue
from emulator.model.profile import load
from emulator.ptx.parse import parse
from emulator.ptx.program import Program

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
    return Program(parse(KERNEL).kernels["sums"], "ptx")


def test_only_what_comes_from_the_tensor_core_is_left_out(program):
    """One fma of two has no such operand: it is computed in any run."""
    instrs = program.kernel.instrs
    held = [i for i, bits in program.results.items() if any(bits >> r & 1 for r in program.reads_writes(instrs[i])[0])]
    left_out = [instrs[i].op for i in held]
    assert left_out == ["mov.b64", "fma.rn.f32x2", "mov.b64", "fma.rn.f32", "st.global.f32"]


def test_a_packed_fma_takes_two_issue_slots(program):
    """A scheduler has 32 f32 units, an f32x2 of a warp has 64 sums."""
    figures = {name: tuple(value) for name, value in load("b200")["issue"].items()}
    ops = {instr.op: issue.kind(instr) for instr in program.kernel.instrs}
    assert ops["fma.rn.f32x2"] == "packed" and ops["fma.rn.f32"] == "alu"
    assert figures["packed"][0] == 2 * figures["alu"][0]
