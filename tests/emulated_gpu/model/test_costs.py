"""What the timing model charges a warp for instructions, and what it refuses to time."""

import pytest

import emulated_gpu
from emulated_gpu.model.profile import load

STEPS = 64
LOADS = "ld.local.b64 at, [at];"  # from where the last one points: it points to itself


def cycles(profile: str, accesses: str) -> float:
    """Of one warp whose code is there; it then sleeps for about nothing, until all that has been issued."""
    target = "sm_100a" if "f32x2" in accesses else "sm_90"
    ptx = f""".version 8.8\n.target {target}\n.address_size 64
        .visible .entry kernel() {{ .local .align 8 .b64 own[{STEPS}]; .reg .b64 at; .reg .b32 x; .reg .pred p;
        mov.u64 at, own; st.local.b64 [at], at; {accesses}
        cvt.u32.u64 x, at; and.b32 x, x, 1; nanosleep.u32 x; ret; }}"""
    with emulated_gpu.timing(load(profile).with_({"sm.code_cycles": 0})) as timed:
        emulated_gpu.launch(ptx, "kernel", 1, 32, [])
    return timed.ends_us[0] * 1000 * load(profile)["sm"]["clock_ghz"]


@pytest.mark.parametrize("profile", ["b200", "h200"])
def test_local_memory_is_in_l1(profile):
    """A load is as late as the figure says, a store takes no longer than its issue."""
    issue, latency = load(profile)["issue"]["local"]
    stores = "".join(f"st.local.b64 [at+{8 * i}], at;" for i in range(STEPS))
    assert (cycles(profile, LOADS * STEPS) - cycles(profile, LOADS)) / (STEPS - 1) == pytest.approx(latency)
    assert (cycles(profile, stores) - cycles(profile, "")) / STEPS == pytest.approx(issue)
    assert latency < load(profile)["l2"]["hit_cycles"] / 2


@pytest.mark.parametrize("profile, untimed, why", [
    ("b200", "fns.b32 x, -1, 0, 1;", "nobody has measured or published"),
    ("h200", "fma.rn.f32x2 at, at, at, at;", "the machine profile has no figures of the class packed"),
])  # fmt: skip
def test_what_cannot_be_timed_is_refused_where_it_is_executed(profile, untimed, why):
    """Not where a branch leads round it, as round the failure of an assertion."""
    assert cycles(profile, f"setp.ne.u64 p, at, at; @!p bra on; {untimed} on:") > 0
    with pytest.raises(emulated_gpu.Unsupported, match=f"{why}.* cannot be timed: PTX line 5"):
        cycles(profile, f"setp.eq.u64 p, at, at; @!p bra on; {untimed} on:")


@pytest.mark.parametrize("profile", ["b200", "h200"])
def test_a_block_takes_its_slots_where_its_lanes_part(profile):
    """Machine code predicates what one lane does: neither the branch nor what decides it takes time, and what stands
    before them in the block no more than its issue, as it is mixed with what comes."""
    work = "add.u32 x, x, 1;" * STEPS
    parted = "mov.b32 x, %laneid; {} setp.lt.u32 p, x, {}; @p bra on; st.local.b64 [at+8], at; on:".format
    alone = cycles(profile, parted("", 31))
    assert cycles(profile, parted(work, STEPS + 31)) - alone == pytest.approx(STEPS)
    decided = parted("", 31).replace("setp", "setp.lt.u32 p, x, 9; not.pred p, p; not.pred p, p; setp", 1)
    assert cycles(profile, decided) == pytest.approx(alone)


@pytest.mark.parametrize("profile", ["b200", "h200"])
def test_products_of_floats_are_issued_as_fast_as_sums(profile):
    """The guide's table of throughput; those of integers, which were measured, take two slots."""

    def each(instr: str) -> float:
        many = "".join(instr.format(n) for n in range(STEPS))
        return (cycles(profile, f".reg .b32 f<{STEPS}>; {many}") - cycles(profile, "")) / STEPS

    for kind in ("f32", "f16x2"):
        assert each(f"mul.rn.{kind} f{{0}}, x, x;") == pytest.approx(each(f"add.rn.{kind} f{{0}}, x, x;"))
        assert each(f"mul.rn.{kind} f{{0}}, x, x;") < each("mul.lo.u32 f{0}, x, x;")
