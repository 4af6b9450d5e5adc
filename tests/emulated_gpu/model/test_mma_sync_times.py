"""mma.sync by the model of an H200, against what one took (silicon/probes/mma_sync.json)."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.device import DEVICE
from emulated_gpu.model import undone
from emulated_gpu.model.made_of import beyond, made_of
from emulated_gpu.model.profile import load
from emulated_gpu.model.run import TimedRun
from silicon.probes import mma_sync
from silicon.probes.cycles import recorded

KNOWN = recorded(mma_sync.TABLE)
F16 = "m16n8k16 f32.f16"


@pytest.mark.parametrize("name, within", [
    (f"{F16} 1 warps", 0.03),  # in a chain
    (f"{F16} 1 warps 8 accumulators", 0.05),
    (f"{F16} 8 warps 8 accumulators", 0.12),  # two warps a scheduler, which the branch keeps busy in the model
    ("m16n8k32 f32.e4m3 8 warps 8 accumulators fresh", 0.08),
    ("m16n8k8 f64.f64 1 warps", 0.03),
    (f"{F16} 1 warps 8 accumulators ldmatrix.x4", 0.05),  # both go on beside each other
    (f"{F16} 8 warps 8 accumulators ldmatrix.x4", 0.05),  # shared memory's way out binds
    (f"{F16} 8 warps 8 accumulators cp.async", 0.06),
])  # fmt: skip
def test_a_loop_takes_what_it_took(name, within, monkeypatch):
    monkeypatch.setattr(mma_sync, "ROUNDS", 16)
    (cycles,) = mma_sync.on_the_model(mma_sync.loops()[name], load("h200"))
    assert cycles == pytest.approx(KNOWN[name][0], rel=within)


def run_of(loop: mma_sync.Loop, what=()) -> TimedRun:
    """A run of a loop in a CTA, by the model, with this undone."""
    out = np.zeros(loop.warps, np.uint64)
    with DEVICE.as_chip(H200), emulated_gpu.session() as here:
        here.recorded = []
        emulated_gpu.launch(loop.ptx, "kernel", 1, 32 * loop.warps, [out])
        return TimedRun(load("h200"), DEVICE.memory, here.recorded, undone=undone.Undone.of(what)).run()


def test_products_are_work_of_tensor_cores_and_can_be_undone(monkeypatch):
    monkeypatch.setattr(mma_sync, "ROUNDS", 4)
    loop = mma_sync.loops()[f"{F16} 4 warps 8 accumulators"]
    run = run_of(loop)
    (launch,) = run.launches
    busy = 4 * 16 * load("h200")["issue"]["mma_m16n8k16_16"][2]  # each warp has a scheduler's tensor core
    assert launch.tensor_busy == pytest.approx(1.12 * busy, rel=0.06)  # the clock has sunk
    assert made_of(run, 0).tensor > 0 and "mma.sync" in beyond(run.launches)
    (free,) = run_of(loop, [undone.MMAS]).launches
    assert free.interval[1] < launch.interval[1] - 0.5 * busy and free.tensor_busy == 0  # the clock stays as it is
