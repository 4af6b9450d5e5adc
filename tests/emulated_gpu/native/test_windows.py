"""The windows by which machine code reaches memory are made anew whenever what they say has changed."""

from types import SimpleNamespace

import numpy as np
import pytest

from emulated_gpu.device import allocate
from emulated_gpu.native import context_fields as of
from emulated_gpu.native import memory
from emulated_gpu.state.global_memory import GlobalMemory
from emulated_gpu.state.order import Actor, Order, Space
from emulated_gpu.state.shared_memory import BASE, RANK_SHIFT, SharedMemory

COPY, NEXT = (BASE + 64, BASE + 128), (BASE + 256, BASE + 320)


def begin(smem: SharedMemory, place: tuple[int, int]):
    by = smem.space.actors[0]
    return smem.begin(*place, True, "a copy", by, by.key)


def part_lanes(smem: SharedMemory):
    """Let a lane read what another one has written, without a meeting."""
    for lanes, write in ((0, True), (1, False)):
        smem.lanes_access(np.array([BASE]), 4, np.array([lanes]), smem.space.actors[0], write)


CHANGES = {
    "a barrier": [lambda smem: smem.add_barrier(BASE + 512, "a barrier")],
    "copies": [
        lambda smem: begin(smem, COPY),
        lambda smem: begin(smem, NEXT),
        lambda smem: smem.end(next(iter(smem.in_flight))),
        lambda smem: smem.end(next(iter(smem.in_flight))),
    ],
    "what is left out": [
        lambda smem: smem.leave_out(*COPY, lambda: None),
        lambda smem: smem.gather(np.array([COPY[0]], np.uint32), 4, None),
    ],
    "lanes": [part_lanes],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_the_window_of_shared_memory_follows(changes):
    space = Space(Order(), warps=2)
    smem = SharedMemory(BASE + 1024, True, space=space, report=lambda fault: None, rank=1)
    Actor(1, space, rank=1)
    smem.valid[:] = True
    window = memory.window_of(smem)
    window.refresh(smem)
    seen = window.window.tolist()
    for change in changes:
        change(smem)
        window.refresh(smem)
        now, first, end = window.window.tolist(), smem.barriers_start, smem.barriers_end
        busy = min([first, *(op.lo for op in smem.in_flight)]), max([end, *(op.hi for op in smem.in_flight)])
        extents = 0 if smem.absent else smem.size, *busy, first, end
        assert now[of.HI : of.LANE_TABLE] == [(smem.rank << RANK_SHIFT) + at for at in extents]
        assert (now[of.LANE_TABLE] == 0) == (smem.lanes is None)
        assert now != seen
        seen = now


def test_the_windows_of_global_memory_follow():
    whole, arrays = GlobalMemory(), [allocate(64) for _ in range(2)]
    launch = SimpleNamespace(windows=None, memory=whole, order=Order(), program=Order(), checks=False)

    def found() -> list[int]:
        at, count = memory.windows_of(launch)
        assert memory.windows_of(launch) == (at, count)
        return launch.windows.table[:, of.LO].tolist()

    regions = []
    for array in arrays:
        regions.append(whole.register(array.ctypes.data, 64, "some"))
        assert found() == sorted(region.start for region in regions)
    whole.drop(regions[0])
    assert found() == [regions[1].start]
    whole.share(regions[0])
    assert found() == sorted(region.start for region in regions)
    before, launch.order.forgotten = launch.windows, 1
    assert found() and launch.windows is not before
