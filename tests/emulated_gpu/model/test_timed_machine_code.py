"""What ptxas makes of addresses of shared memory and of wgmmas' descriptors (emulated_gpu/model/machine_code.py)."""

import pytest

from emulated_gpu.model import machine_code
from emulated_gpu.model.profile import load
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry kernel()
{
  .reg .pred p, q, last; .reg .b32 i, x, y, z, bar; .reg .b64 a, b, c, d; .reg .f32 f<4>; .shared .b32 word[32];
  mov.u32 i, 0; mov.b64 a, 0; mov.b64 b, 1; setp.ne.u32 q, i, 1;
"""
BRANCH = "@q bra BEGIN; BEGIN:"
TAKE = "mov.u32 x, word;"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 p, [bar], 0; @!p bra WAIT;"
ELECTED = "elect.sync y|p, -1; @!p bra ON; mov.u32 z, word; st.shared.b32 [z], i; ON:"


def wgmma(a: str, b: str) -> str:
    return f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{f0, f1, f2, f3}}, {a}, {b}, q, 1, 1, 0, 0;"


def found(body: str) -> list[tuple[str, str]]:
    """The text and the class of what costs something else than PTX says."""
    (kernel,) = parse(f"{HEAD} {body} ret;\n}}\n").kernels.values()
    return [(kernel.instrs[n].text, kind) for n, kind in sorted(machine_code.classes(ControlFlow(kernel)).items())]


def addresses(body: str) -> int:
    return [kind for _, kind in found(body)].count(machine_code.SHARED_ADDRESS)


def loop(body: str, multiplies: str = "") -> str:
    return f"LOOP: {body} {multiplies} add.u32 i, i, 1; setp.lt.u32 last, i, 9; @last bra LOOP;"


@pytest.mark.parametrize("body, reads", [
    (TAKE + TAKE, 1),
    (f"@q bra ON; {TAKE} ON: {TAKE}", 2),  # nobody knows whether the first has been
    (f"{TAKE} @q bra ON; {TAKE} ON: {TAKE}", 1),
    (ELECTED + TAKE, 1),  # predicated, not skipped
    (TAKE + loop(TAKE), 1),  # ahead of a loop ...
    (TAKE + loop(TAKE, wgmma("a", "b")), 2),  # ... that issues no wgmmas
    (loop(f"{TAKE} {WAIT} {TAKE}"), 1),
    (loop(f"{TAKE} {WAIT} {TAKE}", wgmma("a", "b")), 2),
])  # fmt: skip
def test_the_rank_is_read_where_nobody_before_has_it(body, reads):
    assert addresses(BRANCH + body) == reads


def test_before_the_first_branch_other_beginnings_hide_it():
    assert addresses(f"{TAKE} fence.proxy.async; {TAKE} {BRANCH} {TAKE}") == 0


def test_a_wgmma_waits_for_another_descriptor_of_b():
    """And what is computed for nothing else is hidden behind that wait."""
    body = [
        wgmma("a", "b"), "add.s64 c, a, 2;", wgmma("c", "b"), "add.s64 d, b, 2;", wgmma("c", "d"), wgmma("c", "d"),
    ]  # fmt: skip
    of = [kind for text, kind in found(" ".join(body)) if text.startswith(("wgmma", "add"))]
    same, other, nothing = machine_code.SAME_B, machine_code.OTHER_B, machine_code.NOTHING
    assert of == [nothing, same, nothing, other, same]
    kept = found(f"{' '.join(body[:3])} st.shared.b64 [bar], c;")  # c is wanted elsewhere, too
    assert [kind for text, kind in kept if text.startswith("add")] == []


@pytest.mark.parametrize("last", [
    "tcgen05.mma.cta_group::1.kind::f16 [bar], d, b, x, q;", "tcgen05.cp.cta_group::1.32x128b.warpx4 [x], d;",
])  # fmt: skip
def test_operands_of_the_tensor_core_cost_nothing_beside_its_class(last):
    """A chain of 64-bit descriptors is of uniform instructions; one that is stored, too, is not."""
    chain = f"add.s64 c, a, 2; add.s64 d, c, 2; {last}"
    assert [kind for text, kind in found(chain) if text.startswith("add")] == [machine_code.NOTHING] * 2
    assert [kind for text, kind in found(f"{chain} st.shared.b64 [bar], d;") if text.startswith("add")] == []


def test_the_first_wgmma_behind_a_fence_or_a_label_waits_for_nobody():
    for between in ("wgmma.fence.sync.aligned;", "ON:"):
        of = [kind for _, kind in found(f"{wgmma('a', 'b')} {between} {wgmma('b', 'a')} @p bra ON;")]
        assert machine_code.OTHER_B not in of


def test_only_the_h200_has_figures_of_wgmmas():
    assert machine_code.OTHER_B in load("h200")["issue"] and machine_code.OTHER_B not in load("b200")["issue"]
