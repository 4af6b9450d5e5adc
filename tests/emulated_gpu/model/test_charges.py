"""No access to global memory is free in a timed run: each of the units' functions that makes one is in the table."""

import ast
import functools
import inspect
import re
import sys

import pytest

import emulated_gpu
from emulated_gpu.chip import B200, H200
from emulated_gpu.formats.tensormap import TensorMap, encode
from emulated_gpu.machine.warp import UNITS
from emulated_gpu.model.charges import ACCESSES, CHARGES, OTHERWISE
from emulated_gpu.model.clock import TimingClock
from emulated_gpu.model.made_of import made_of
from emulated_gpu.model.trace import Trace
from emulated_gpu.ptx.isa import lookup
from emulated_gpu.ptx.isa.registry import HANDLERS, UNTIMED
from emulated_gpu.ptx.syntax import Instr


def functions() -> dict[str, str]:
    """Gives the source of each function of the units, by its name."""
    found = {}
    for name, unit in UNITS.items():
        for node in ast.parse(inspect.getsource(unit)).body:
            if isinstance(node, ast.FunctionDef):
                found[f"{name}.{node.name}"] = ast.unparse(node)
    return found


def test_every_function_with_global_memory_is_in_the_table():
    access = {name for name, source in functions().items() if "launch.memory" in source}
    by_others = {"access.atomic"}  # by `_cells`, `store_one` and `scatter`
    assert access | by_others == CHARGES.keys() | OTHERWISE.keys()
    assert not CHARGES.keys() & OTHERWISE.keys()


def test_each_tells_the_clock_what_the_table_says():
    source = functions()
    for name, (where, hook) in CHARGES.items():
        assert re.search(rf"\bg\.clock\.{hook}\(", source[where]), (name, where, hook)


# -- instructions ----------------------------------------------------------------------------------------------------
@functools.cache
def writers(module: str) -> dict[str, tuple[bool, list[str]]]:
    """For each function of a module: whether it hands an address over, and which functions it calls by their names."""
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        node.name: (
            "w.address(" in ast.unparse(node),
            [call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)],
        )
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }


def is_handed_an_address(handler) -> bool:
    """Tell whether what writes an instruction's Python, or a function of its module that it calls, hands one over."""
    known = writers(handler.emit.__module__)
    seen, work = set(), [handler.emit.__name__]
    while work:
        name = work.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        hands_over, calls = known[name]
        if hands_over:
            return True
        work += calls
    return False


KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.const .align 16 .b32 c[64];
.visible .entry kernel(.param .u64 p, .param .align 64 .b8 described[128])
{
  .local .align 16 .b8 l[16]; .shared .align 1024 .b8 room[4096]; .shared .align 8 .b64 waits; .shared .b32 column;
  .reg .b32 x, s, far, bar, farbar, t, r; .reg .f32 f0, f1, f2, f3; .reg .b64 d, g, map, desc; .reg .pred q, first;
  mov.u32 x, %%tid.x; setp.eq.u32 first, x, 0; ld.param.u64 g, [p]; mov.b64 map, described; cvta.param.u64 map, map;
  mov.u32 s, room; mov.u32 bar, waits; mov.u32 r, %%cluster_ctarank; xor.b32 r, r, 1; mov.b64 desc, 0x4000000000010000;
  mapa.shared::cluster.u32 far, s, r; mapa.shared::cluster.u32 farbar, bar, r; mov.u32 x, 0; setp.ne.u32 q, x, 0;
  st.shared.v4.b32 [s], {x, x, x, x}; st.local.b32 [l], x;
  @first mbarrier.init.shared.b64 [bar], 1000;
  %s
  barrier.cluster.arrive; barrier.cluster.wait;
  %s
  cp.async.wait_all; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
  %s
  barrier.cluster.arrive; barrier.cluster.wait;
  ret;
}
"""
BEGINS = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [column], 32; ld.shared.b32 t, [column];"
ENDS = "tcgen05.wait::ld.sync.aligned; tcgen05.wait::st.sync.aligned;"
ONE_LANE = (
    "mbarrier.", "tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "tcgen05.commit", "clusterlaunch", "prefetch.tensormap",
    "cp.async.bulk", "cp.reduce",
)  # fmt: skip


def timed(form: str, times: int) -> tuple[float, dict[str, int]]:
    """Return when a kernel ends that executes a form this many times, in microseconds, and what it has moved."""
    if form.startswith(ONE_LANE):
        form = f"@first {form}".replace("; ", "; @first ")
    many, chip, threads = " ".join([form] * times), B200, 32
    text = KERNEL % (BEGINS, many, ENDS)
    if form.startswith("wgmma"):
        text, chip, threads = KERNEL % ("wgmma.fence.sync.aligned;", many, ""), H200, 128
    data = emulated_gpu.device.allocate(4096)
    data[:] = 0
    described = TensorMap(data.ctypes.data, "u32", (32, 4), (128,), (32, 4), (1, 1))
    with emulated_gpu.DEVICE.as_chip(chip), emulated_gpu.timing(chip.machine, trace=Trace()) as found:
        text = text.replace("sm_100a", chip.arch)
        emulated_gpu.launch(text, "kernel", 2, threads, [data, encode(described)], cluster=2)
    return found.ends_us[0], found.counted[0]


def opcode(form: str) -> str:
    """The name that the handler of a form's instruction is registered by."""
    return lookup(Instr(form.split(" ")[0].rstrip(";"), (), None, False, 0, form)).name


def test_each_opcode_that_is_handed_an_address_is_in_the_table_or_refused():
    touching = {name for name, handler in HANDLERS.items() if is_handed_an_address(handler)}
    refused = {name for name in touching if HANDLERS[name].cost == UNTIMED}
    forms = {opcode(each.form) for each in ACCESSES}
    # mov takes the address of an element, and vanishes; wgmma has descriptors
    assert touching - refused - {"mov"} | {"wgmma.mma_async"} == forms
    assert len(touching) >= 49 and refused  # the search has found them


@pytest.mark.parametrize("access", ACCESSES, ids=lambda access: access.form.split(" ")[0])
def test_each_form_moves_and_takes_what_the_table_says(access, monkeypatch):
    told = []
    if access.tells:
        method = getattr(TimingClock, access.tells)
        monkeypatch.setattr(TimingClock, access.tells, lambda *a, **k: (told.append(1), method(*a, **k))[1])
    (without, nothing), (once, moved) = (timed(access.form, times) for times in (0, 1))
    many, more = timed(access.form, 9)
    assert once > without or many > once
    assert not access.tells or told
    if access.counted:
        each = moved[access.moves] - nothing[access.moves]
        assert each > 0 and more[access.moves] - nothing[access.moves] == 9 * each


@pytest.mark.parametrize("form, other", [
    ("st.release.gpu.global.u32 [g], x;", "st.global.release.gpu.u32 [g], x;"),
    ("atom.acq_rel.gpu.global.add.u32 x, [g], 1;", "atom.global.gpu.acq_rel.add.u32 x, [g], 1;"),
    ("red.release.gpu.global.add.u32 [g], 1;", "red.global.gpu.release.add.u32 [g], 1;"),
])  # fmt: skip
def test_what_stands_before_a_release_is_done_once(form, other):
    """A release waits, and its block is run again: so it begins one, in whichever order its modifiers stand."""
    assert timed(f"st.global.u32 [g], x; {form}", 2) == timed(f"st.global.u32 [g], x; {other}", 2)


MOVES = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 p)
{
  .shared .align 16 .b8 room[2048]; .reg .b32 x, r, s, i; .reg .b64 g, d; .reg .pred q;
  mov.u32 x, %%tid.x; mov.u32 r, %%ctaid.x; ld.param.u64 g, [p]; mul.wide.u32 d, r, 16384; add.u64 g, g, d;
  mul.wide.u32 d, x, 4; add.u64 g, g, d; mov.u32 s, room; mad.lo.u32 s, x, 4, s; mov.u32 i, 0; mov.u32 r, 0;
AGAIN: %s
  add.u64 g, g, 512; add.u32 i, i, 1; setp.lt.u32 q, i, 32; @q bra AGAIN;
  st.shared.u32 [s], r;
  ret;
}
"""
LOAD, STORE = "ld.global.u32 x, [g]; xor.b32 r, r, x;", "st.global.u32 [g], x;"


@functools.cache
def us(body: str) -> float:
    """Return what a kernel takes that moves 256 KiB, 16 KiB in each of 16 CTAs of four warps."""
    data = emulated_gpu.device.allocate(16 << 14)
    data[:] = 0
    with emulated_gpu.timing("b200") as found:
        emulated_gpu.launch(MOVES % body, "kernel", 16, 128, [data])
    return found.ends_us[0]


def test_what_a_time_is_made_of_is_known_without_a_trace():
    data = emulated_gpu.device.allocate(1 << 14)
    data[:] = 0
    with emulated_gpu.timing("b200") as found:
        emulated_gpu.launch(MOVES % LOAD, "kernel", 1, 128, [data])
    assert min(made_of(found.run, 0)[2:]) > 0


@pytest.mark.parametrize("plain, other", [
    (LOAD, "cp.async.ca.shared.global [s], [g], 4; cp.async.wait_all; ld.shared.u32 x, [s]; xor.b32 r, r, x;"),
    (LOAD, "atom.global.or.b32 x, [g], 0; xor.b32 r, r, x;"),
    (STORE, "red.global.or.b32 [g], x;"),
    (STORE, "red.global.and.b32 [g], 0; red.global.or.b32 [g], x;"),
])  # fmt: skip
def test_no_way_to_move_the_same_is_faster_than_plain_accesses(plain, other):
    assert us(other) > 0.95 * us(plain)
