"""Reads that need not be kept: where two clusters have read that never know of each other, whoever writes is found."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import allocate
from emulated_gpu.errors import EmulatorError, Unsupported
from emulated_gpu.machine import launch
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.effects import hands_on
from emulated_gpu.ptx.parse import parse
from emulated_gpu.speed import entry, loop
from emulated_gpu.state.shadow import SLOTS

CTAS = 12
READ = "ld.global.b32 %r4, [%d0+256]; st.global.b32 [%d1+512], %r4;"  # all read one word; each thread writes its own
LATE = loop(200, "add.u32 %r6, %r6, 1;") + "setp.eq.u32 %p0, %r3, {thread}; @%p0 st.global.b32 [%d0+256], 1;"
NOTHING = "atom.global.add.u32 %r5, [%d0], 0;"  # by which CTAs may know of each other


def launched(body: str, monkeypatch) -> tuple[launch.Launch, str]:
    """The launch of a body by CTAS of a warp, and what was found."""
    launches = []

    class Watched(launch.Launch):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            launches.append(self)

    monkeypatch.setattr(emulated_gpu.device, "Launch", Watched)
    found = ""
    try:
        emulated_gpu.launch(entry(body), "k", CTAS, 32, [allocate(4096).view(np.uint32)])
    except EmulatorError as e:
        found = f"{e} {e.where}"
    return launches[0], found


def slots(launch) -> int:
    return max(len(shadow.words.reads) for _, shadow in launch.shadow.regions.values())


def test_reads_of_many_ctas_take_no_room(monkeypatch):
    one, found = launched(READ, monkeypatch)
    assert not found and one.shadow.apart and slots(one) == SLOTS
    one, found = launched(NOTHING + READ, monkeypatch)
    assert not found and not one.shadow.apart and slots(one) >= CTAS


@pytest.mark.parametrize("thread", [0, 32, 70, 32 * CTAS - 1])  # of the first CTA that reads, the second, others
def test_a_write_is_found_as_if_all_were_kept(thread, monkeypatch):
    body = READ + LATE.format(thread=thread)
    _, found = launched(body, monkeypatch)
    monkeypatch.setattr(ControlFlow, "hands_on", property(lambda program: True))
    one, wanted = launched(body, monkeypatch)
    assert not one.shadow.apart and "may still read" in wanted and found == wanted


def test_a_write_ends_it(monkeypatch):
    """Who reads behind a write races with that: the first finding leaves the place as any other."""
    one, _ = launched(READ + LATE.format(thread=0), monkeypatch)
    words = next(shadow.words for region, shadow in one.shadow.regions.values() if shadow.words.written[64])
    assert not words.settled[64]


def test_a_strong_access_that_was_not_foreseen_is_refused(monkeypatch):
    monkeypatch.setattr(ControlFlow, "hands_on", property(lambda program: False))
    with pytest.raises(Unsupported, match="strong access"):
        emulated_gpu.launch(entry(NOTHING + READ), "k", 2, 32, [allocate(4096).view(np.uint32)])


STRONG = """atom.global.add.u32 %r5, [%d0], 0; red.global.add.u32 [%d0], 1; ld.volatile.global.u32 %r5, [%d0];
ld.acquire.gpu.u32 %r5, [%d0]; st.relaxed.sys.global.u32 [%d0], %r5; st.volatile.u32 [%d0], %r5;
atom.cas.b32 %r5, [%d0], 0, 1;"""
WEAK = """ld.global.u32 %r5, [%d0]; ld.global.nc.u32 %r5, [%d0]; st.weak.global.u32 [%d0], %r5; bar.sync 0;
atom.shared.add.u32 %r5, [%r4], 0; ld.volatile.shared.u32 %r5, [%r4]; fence.acq_rel.gpu;"""


def test_which_instructions_hand_on():
    instrs = {text: parse(entry(text)).kernels["k"].instrs for text in (STRONG, WEAK, "")}
    prologue = len(instrs[""]) - 1
    assert all(map(hands_on, instrs[STRONG][prologue:-1])) and not any(map(hands_on, instrs[WEAK]))
