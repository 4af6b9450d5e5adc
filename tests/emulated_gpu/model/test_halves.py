"""The halves of L2 in the timing model (emulated_gpu/model/halves.py), against what silicon/probes/halves.py
measured."""

import json

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.formats.cache_policy import EVICT_FIRST
from emulated_gpu.jit.rules import Rule
from emulated_gpu.machine.engine import Engine
from emulated_gpu.model import halves
from emulated_gpu.model.memory import MemoryModel
from emulated_gpu.model.profile import load
from silicon.entry.h200_loads import MODES, MORE, RESULTS
from silicon.timing import validate
from silicon.timing.points import POINTS, with_bytes
from tests.thorough import all_but

H200 = load("h200")
BLOCK = halves.BLOCK


@pytest.fixture
def blocks():
    """The first line of a block that is at home in half 0, and of one in half 1."""
    data = allocate(3 << 20)
    DEVICE.adopt(data, "data")
    homes = halves.homes(0, 3 << 13)  # the first region that a model meets has number 0
    first = data.ctypes.data // 128
    yield [first + int(np.flatnonzero(homes == half)[0]) for half in (0, 1)]


def lines(first: int) -> range:
    return range(first, first + BLOCK // 2)  # less than a block: an array begins anywhere in its line


def carried(memory: MemoryModel) -> list[float]:
    """Bytes to each half, since time 0."""
    return (memory.links.free.sum(axis=1) / memory.links.cycles).tolist()


@pytest.mark.parametrize("sms", [132, 148])
def test_halves_have_as_many_sms(sms):
    assert sum(halves.half_of(sm, 1, sms) for sm in range(sms)) == pytest.approx(sms / 2, abs=1)


def test_consecutive_clusters_are_spread():
    assert {halves.half_of(first, 4, 132) for first in range(0, 32, 4)} == {0, 1}
    assert {halves.half_of(sm, 1, 132) for sm in range(16)} == {0}


def test_a_line_of_the_other_half_comes_later_the_first_time(memory, blocks):
    for block in blocks:
        memory.prefetch(0.0, lines(block), 4096)
    later = 1e6
    memory.engine.now = later
    near, far = (memory.read(later, lines(block), 2048, half=0)[1] for block in blocks)
    assert far - near == pytest.approx(memory.far_cycles, abs=5)
    memory.engine.now = later = 2e6
    near, again = (memory.read(later, lines(block), 2048, half=0)[1] for block in blocks)
    assert again == pytest.approx(near, abs=20)


def test_what_both_halves_read_crosses_once(memory, blocks):
    for _ in range(3):
        for half in (0, 1):
            for block in blocks:
                memory.read(0.0, lines(block), 2048, half=half)
    nbytes = len(lines(0)) * 128
    assert carried(memory) == pytest.approx([nbytes, nbytes])
    assert memory.read_bytes == 2 * nbytes
    assert memory.inserted.tolist() == [2 * nbytes, 2 * nbytes]  # each line lies in both


def test_of_lines_beyond_an_array_its_own_are_read(memory):
    """A hint may name any address."""
    data = allocate(4 << 20)
    own = data[: 3 << 20]
    DEVICE.adopt(own, "data")
    end = (own.ctypes.data + own.nbytes - 1) // 128 + 1
    memory.read(0.0, range(end - BLOCK, end + 3000), 0)
    assert memory.read_bytes == BLOCK * 128


def test_what_is_stored_must_cross_again(memory, blocks):
    memory.read(0.0, lines(blocks[1]), 2048, half=0)
    memory.write(0.0, lines(blocks[1]), 2048, half=1)
    memory.read(0.0, lines(blocks[1]), 2048, half=0)
    assert carried(memory) == pytest.approx([2 * 2048, 0])
    memory.write(0.0, lines(blocks[1]), 2048, half=0)
    assert carried(memory) == pytest.approx([2 * 2048, 2048])


@pytest.mark.parametrize(("mb", "gone_first", "stays"), [(9, True, True), (13, True, False), (13, False, True)])
def test_what_is_loaded_as_evict_first_pushes_itself_out(memory, mb, gone_first, stays):
    """silicon/probes/policies.py: of 8.7 MB nearly all comes from L2 again, of 13 little; half of them are far."""
    data = allocate(mb * 10**6)
    DEVICE.adopt(data, "data")
    box, end = 4096 // 128, (data.ctypes.data + data.nbytes) // 128
    boxes = [range(first, first + box) for first in range(data.ctypes.data // 128, end - box, box)]
    for now in (0.0, 1e6):
        memory.engine.now, before = now, memory.read_bytes
        for i, lines in enumerate(boxes):
            memory.read(now, lines, 4096, half=i % 2, gone_first=gone_first)
    assert (memory.read_bytes == before) == stays


POLICY = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 out)
{
  .reg .b64 o, p<4>;
  ld.param.u64 o, [out];
  createpolicy.fractional.L2::evict_first.b64 p0;
  createpolicy.fractional.L2::evict_first.b64 p1, 1.0;
  createpolicy.fractional.L2::evict_first.b64 p2, 0.5;
  createpolicy.fractional.L2::evict_last.b64 p3;
  st.global.u64 [o], p0; st.global.u64 [o+8], p1; st.global.u64 [o+16], p2; st.global.u64 [o+24], p3;
  ret;
}
"""


def test_createpolicy_says_which_lines_are_evicted_first():
    policies = np.zeros(4, np.uint64)
    emulated_gpu.launch(POLICY, "kernel", (1, 1, 1), 1, [policies])
    assert (policies == EVICT_FIRST).tolist() == [True, True, False, False]


CASES = [(0, 0.15), (2, 0.1)]  # cards differ in which SMs a half has


@pytest.mark.parametrize(("case", "error"), all_but([], CASES))
def test_loads_of_lines_that_others_load(case, error):
    """A kernel that loads as many bytes into the SMs as the submission, so that many lines go to several of them.

    Without the halves the model is 23 % (case 0) and 13 % (case 2) too fast.
    """
    record = json.loads(RESULTS.read_text())
    mode = list(MODES)[1]
    measured = next(r[MORE][0] for r in record["loads only"] if (r["case"], r["mode"]) == (case, mode))
    sizes = {(r["case"], r["name"]): r.get("bytes into SMs") for r in record["submission"]}
    alone = next(p for p in POINTS if p.name == MODES[mode][1].format(case))
    assert validate.model(with_bytes(alone, case, sizes[case, mode]), H200) == pytest.approx(measured, rel=error)


def test_machine_code_does_what_the_rules_say(blocks, monkeypatch):
    """The same requests, of lines side by side, apart and far, loaded once and again, by each."""
    found = []
    for without in (False, True):
        if without:
            monkeypatch.setattr(Rule, "compiled", property(lambda rule: rule.function))
        memory = MemoryModel(load("h200").with_({"l2.bytes": 1e5}), DEVICE.memory, Engine())
        first, rng = min(blocks), np.random.default_rng(1)
        answers: list = []
        for number in range(24):
            at = first + int(rng.integers(64))
            asked = range(at, at + 24, 1 + number % 3) if number % 2 else at + np.unique(rng.integers(0, 900, 12))
            memory.engine.now = 100.0 * number
            of = 100.0 * number + 5, asked, len(asked) * 128
            answers += memory.read(*of, number % 2, gone_first=number % 5 == 0), memory.write(*of, number % 3 % 2)
            answers += memory.prefetch(*of), memory.overtaking()
        [region] = memory.regions.values()
        arrays = region.ready, region.stamp, region.turn, region.opened, memory.free, memory.links.free, memory.numbers
        found.append((answers, [each.tolist() for each in arrays]))
    assert found[0] == found[1]
