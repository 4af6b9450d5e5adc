"""The layer on the emulated H200: right for adversarial routing, every config of GEMM1 and orders of events.

Routing and finalise also on the emulated B200. All checks of the emulator are on. test_moe_layer.py runs this, in a
process for each machine: MOE_MACHINE.
"""

import os

import pytest
import torch

import emulator
from tests import quick_dsl

MACHINE = os.environ["MOE_MACHINE"]


@pytest.fixture(scope="module")
def check():
    """moe.layer_check, its kernels compiled into the emulator."""
    emulator.install(MACHINE)
    quick_dsl.install()
    from moe import layer_check

    return layer_check


@pytest.fixture(scope="module")
def sizes(check):
    return check.d.Sizes(hidden=256, intermediate=256, local=4)


NAMES = ["random", "ties", "equal groups", "infinities", "nan", "all remote", "all on one expert", "all local"]


@pytest.mark.parametrize("name", NAMES)
def test_routing(check, sizes, name):
    """Index by index: tokens in three CTAs, of which each has several for a warp; and a single one."""
    for tokens, offset in ((50, 32), (1, 0), (16, 254)):
        x = check.case(name, sizes, tokens, offset)
        assert check.check_routing(x, check.emulated(x, 0, 3, None, True)[0]) is None


def test_finalise(check, sizes):
    """Bit for bit, NaN and infinities included; columns of which the last threads have none."""
    from moe.layer import Layer

    layer, tokens, g = Layer(torch.device("cpu"), check.d.Sizes(1152, 128, 8)), 5, torch.Generator().manual_seed(0)
    with emulator.session():
        space = layer.space(tokens)
        space.o.copy_(torch.randn(space.o.shape, generator=g))
        space.o[3, 7], space.o[9, 1000] = torch.nan, torch.inf
        space.weights.copy_(torch.randn(space.weights.shape, generator=g))
        space.places.copy_(torch.arange(space.places.numel()).view_as(space.places) * 7 % space.o.shape[0])
        for token, used in enumerate((8, 0, 1, 5, 2)):
            space.places[token, used:] = -1
        output = emulator.device_tensors(torch.full((tokens, 1152), torch.nan, dtype=torch.bfloat16))
        emulator.written((space.o, space.places, space.weights))
        layer.finalise(space, output)
    x = check.d.draw(check.d.Sizes(128, 128, 1), tokens)
    assert check.check_output(x, space, output) is None
    assert output[1].abs().max() == 0 and check.check_output(x, space, output.roll(1)) is not None


def test_routing_orders_of_events(check, sizes):
    x = check.case("ties", sizes, 35, 30)
    for schedule in range(1, 7):
        assert check.check_routing(x, check.emulated(x, schedule, 3, None, True)[0]) is None


on_hopper = pytest.mark.skipif(MACHINE != "h200", reason="GEMM1 is for sm_90a")


@pytest.mark.skipif(MACHINE == "h200", reason="it is written for that")
def test_a_blackwell_gpu_is_refused(check, sizes):
    with pytest.raises(ValueError, match="^hidden_states is on a Blackwell GPU, for which GEMM1 is not written yet"):
        check.emulated(check.case("random", sizes, 3, 32))


@on_hopper
@pytest.mark.parametrize("config", range(4))
def test_layer(check, sizes, config):
    """Each stage against what the one before left; tiles are cut, full and almost empty."""
    from moe.gemm1 import CONFIGS
    from moe.tuning import SOME

    cases = ("random", 40, 2), ("nan", 40, 1), ("all local", 20, 1), ("all on one expert", 75, 1)
    name, tokens, schedules = cases[config]
    x = check.case(name, sizes, tokens, 32)
    for schedule in range(schedules):
        result = check.compare(x, *check.emulated(x, schedule, configs=(CONFIGS[config], SOME)))
        assert result.wrong is None


@on_hopper
def test_run(check, sizes, monkeypatch):
    """moe.run itself, twice in the same memory: nothing of the call before is left. No tokens are no launch."""
    import moe
    from moe import layer

    monkeypatch.setattr(layer.layer_of(torch.device("cpu"), sizes), "sms", 6)
    for name, tokens in (("all local", 7), ("all remote", 5), ("random", 0)):
        x = check.case(name, sizes, tokens, 32)
        with emulator.session():
            output = emulator.device_tensors(torch.full((tokens, 256), torch.nan, dtype=torch.bfloat16))
            moe.run(*emulator.device_tensors(x.tensors()), 32, 2.5, output)
        assert check.d.matched(output, check.d.layer(x)) >= 0.9 and output.shape == (tokens, 256)


FAULTS = {
    "another number of groups": ("moe.routing", "TOP_GROUPS", 3),
    "no weights": ("moe.finalise", "fma", lambda x, y, z: x + z),
    "another silu": ("moe.gemm1", "LOG2_E", 1.0),
    "other rows": ("moe.gemm1", "load_relaxed_if", lambda at, condition: condition),
}


@on_hopper
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(check, sizes, monkeypatch, fault):
    """What the tests above are worth: each of these layers fails."""
    import importlib

    from moe import layer
    from moe.gemm1 import FEW
    from moe.tuning import SOME

    module, name, value = FAULTS[fault]
    program = getattr(layer, module.replace("moe.", "") + "_program")
    monkeypatch.setattr(importlib.import_module(module), name, value)
    x = check.case("all local", sizes, 3, 32)
    program.cache_clear()
    try:
        assert check.compare(x, *check.emulated(x, 0, 2, (FEW, SOME))).wrong
    finally:
        program.cache_clear()
