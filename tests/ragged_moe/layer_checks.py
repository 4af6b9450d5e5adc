"""The layer on the emulated GPU that MOE_MACHINE names: right for adversarial routing, and stage by stage.

All checks of the emulator are on. test_moe_kernel.py runs this, in a process for each machine; the command
`python -m ragged_moe check layer` has more cases, every config of GEMM1 among them.
"""

import dataclasses
import importlib
import os

import pytest
import torch

import emulated_gpu
from tests import quick_dsl
from tests.ragged_moe import examples
from tests.ragged_moe.emulated import compiled_anew
from tests.thorough import all_but, unless

MACHINE = os.environ["MOE_MACHINE"]


@pytest.fixture(scope="module")
def check():
    """ragged_moe.checks.layer, its kernels compiled into the emulator."""
    emulated_gpu.install(MACHINE)
    quick_dsl.install()
    from ragged_moe.checks import layer

    return layer


@pytest.fixture(scope="module")
def sizes(check):
    return check.p.Sizes(hidden=256, intermediate=128, local=4)


NAMES = ["random", "ties", "equal groups", "infinities", "nan", "all remote", "all on one expert", "all local"]


# The routing's and finalise's kernels are one text for both machines: `make test` has these checks on one of them
@pytest.mark.parametrize("name", all_but(("ties", "nan", "all remote")[: 3 if MACHINE == "h200" else 1], NAMES))
def test_routing(check, sizes, name):
    """Index by index: tokens in three CTAs, of which each has several for a warp; and a single one.

    Also where local experts would run past the last one, which ragged_moe.run refuses: those have no rows.
    """
    for tokens, offset in ((50, 32), (1, 0), (16, 254)):
        x = check.case(name, sizes, tokens, offset)
        assert check.check_routing(x, check.emulated(x, 0, 3, last="routing")[0]) is None


@unless(MACHINE == "h200")
def test_f32_bias(check, sizes):
    """Biases that are close to each other choose experts which they would not choose as bf16."""
    x = check.case("all local", sizes, 30, 32)
    g = torch.Generator().manual_seed(0)
    x.routing_bias = 6.82 + 0.24 * torch.rand(check.p.EXPERTS, generator=g)
    rounded = dataclasses.replace(x, routing_bias=x.routing_bias.bfloat16())
    assert check.check_routing(x, check.emulated(x, last="routing")[0]) is None
    found, _ = check.emulated(rounded, last="routing")
    assert check.check_routing(rounded, found) is None and check.check_routing(x, found)


@pytest.mark.parametrize("schedule", all_but((2, 5) if MACHINE == "h200" else (), range(1, 7)))
def test_routing_orders_of_events(check, sizes, schedule):
    x = check.case("ties", sizes, 35, 30)
    assert check.check_routing(x, check.emulated(x, schedule, 3, last="routing")[0]) is None


@unless(MACHINE == "h200")
def test_routing_waits_for_no_cta_that_need_not_be_there(check, sizes, monkeypatch):
    """Its launch is cooperative: refused where its CTAs cannot run all at once. Grids of one that is not would starve
    each other."""
    from ragged_moe.kernels import routing
    from ragged_moe.layers import deepseek_layer as layer

    x = check.case("random", sizes, 80, 32)  # 5 CTAs, of which 4 fit on an SM
    one_sm = dataclasses.replace(emulated_gpu.DEVICE.chip, sms=1)
    too_large = pytest.raises(emulated_gpu.EmulatorError, match="CooperativeLaunchTooLarge")
    with emulated_gpu.DEVICE.as_chip(one_sm), too_large:
        check.emulated(x, last="routing")
    check.emulated(x, last="routing", crowded=True)
    monkeypatch.setattr(routing, "COOPERATIVE", False)
    starve = pytest.raises(emulated_gpu.EmulatorError, match="spins for ever, while 4 of 5 CTAs have not sta")
    with compiled_anew(layer.routing_program), starve:
        check.emulated(x, last="routing", crowded=True)


@pytest.mark.skipif(MACHINE != "h200", reason="GEMM1 gathers all rows itself on a B200")
@pytest.mark.parametrize("name, hidden, tokens", [("random", 256, 50), ("all on one expert", 7296, 21)])
def test_permute(check, name, hidden, tokens):
    """Bit by bit: CTAs with several times 8 rows, or fewer; rows that need a second round of loads."""
    x = check.case(name, check.p.Sizes(hidden=hidden, intermediate=128, local=4), tokens, 32)
    assert check.check_permuted(x, check.emulated(x, 0, 1, configs(-1), "permute")[0]) is None


@pytest.mark.parametrize("which", all_but([0] * (MACHINE == "h200"), [0, 1] if MACHINE == "h200" else [0]))
def test_early_weights(check, monkeypatch, which):
    """What routing prefetches are the weights that GEMM1 begins with, where each expert has one tile of rows.

    In equal shares, and in whole tiles in turn.
    """
    from emulated_gpu.machine.schedule import FunctionalClock as Clock
    from ragged_moe.layers import deepseek_layer as layer

    sizes = check.p.Sizes(hidden=512, intermediate=256, local=4)
    early, first, stages = set(), set(), {}  # rows of 128 bytes of the weights; a warp's first tile, two stages of it
    load = Clock.tma_load

    def of_routing(clock, group, address, nbytes):
        early.update(range(address - start, address - start + nbytes, 128))

    def of_gemm1(clock, group, tm, map_at, at, *rest):
        if len(at) == 4:  # weights
            k, row, half, expert = at
            tile, begun = stages.setdefault(group, ((row, expert), {k: None}))
            if tile == (row, expert) and len(begun | {k: None}) <= 2:
                begun[k] = None
                of_half = (expert * 2 + half) * sizes.intermediate + row
                first.update((of_half + i) * sizes.hidden + k for i in range(128))
        return load(clock, group, tm, map_at, at, *rest)

    monkeypatch.setattr(Clock, "bulk_prefetch", of_routing)
    monkeypatch.setattr(Clock, "tma_load", of_gemm1)
    monkeypatch.setattr(layer, "LEAST_ROWS", 0)
    x, one = check.case("all local", sizes, 5, 32), layer.Layer(torch.device("cpu"), sizes)
    one.sms, one.configs = 5, lambda tokens: configs(which)
    with emulated_gpu.session(strict=True):
        x = x.replaced(emulated_gpu.device_tensors(x.tensors()))
        space, start = one.space(5), x.gemm1_weights.data_ptr()
        one.route(x, space)
        if "permute" in one.stages(5):
            one.permute(x, space)
        one.gemm1(x, space, one.configs(5)[0])
    assert all(0 < m <= configs(which)[0].block_m for m in one.tensors(5).m_indptr.diff()) and first and first <= early


def finalised(check) -> str | None:
    """What is wrong with finalise's sums, NaN and infinities included; the last threads have no columns."""
    from ragged_moe.layers.deepseek_layer import Layer

    layer, tokens, g = Layer(torch.device("cpu"), check.p.Sizes(1152, 128, 8)), 5, torch.Generator().manual_seed(0)
    with emulated_gpu.session(strict=True):
        space = layer.tensors(tokens)
        space.o.copy_(torch.randn(space.o.shape, generator=g))
        space.o[3, 7], space.o[9, 1000] = torch.nan, torch.inf
        space.weights.copy_(torch.randn(space.weights.shape, generator=g))
        space.places.copy_(torch.arange(space.places.numel()).view_as(space.places) * 7 % space.o.shape[0])
        for token, used in enumerate((8, 0, 1, 5, 2)):
            space.places[token, used:] = -1
        output = emulated_gpu.device_tensors(torch.full((tokens, 1152), torch.nan, dtype=torch.bfloat16))
        emulated_gpu.written((space.o, space.places, space.weights))
        layer.finalise(layer.space(tokens), output)
    return check.check_output(check.d.draw(check.p.Sizes(128, 128, 1), tokens), space, output)


@unless(MACHINE == "h200")
def test_finalise(check):
    assert finalised(check) is None


def configs(which: int) -> tuple:
    """Of this machine's configs of GEMM1 that one, and the GEMM2's for the fewest rows."""
    from ragged_moe.tuning import sm90, sm100

    tuning = sm100 if MACHINE == "b200" else sm90
    return tuning.GEMM1[which], tuning.M16_SWAP_AB


ROUTED = [(0, "random", 40, 3), (-1, "all on one expert", 140, 0)]


@pytest.mark.parametrize("which, name, tokens, schedule", all_but([ROUTED[MACHINE == "h200"]], ROUTED))
def test_layer(check, sizes, which, name, tokens, schedule):
    """Each stage against what the one before left: tiles cut, full, almost empty; clusters that share weights."""
    x = check.case(name, sizes, tokens, 32)
    assert check.compare(x, *check.emulated(x, schedule, configs=configs(which))).wrong is None


@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
@pytest.mark.parametrize("which, tokens", all_but([], [(0, 7), (-1, 20)]))
def test_workspace(check, sizes, which, tokens):
    """The caller's memory, just as large as it must be and of any contents, gives the same bits."""
    from ragged_moe.layers.deepseek_layer import Layer

    x, outputs = check.case("all local", sizes, tokens, 32), []
    made = Layer(torch.device("cpu"), sizes)
    made.sms, made.configs = 6, lambda tokens: configs(which)
    for value in (None, 255):
        with emulated_gpu.session(strict=True):
            tensors = emulated_gpu.device_tensors(x.tensors())
            output = emulated_gpu.device_tensors(torch.full((tokens, 256), torch.nan, dtype=torch.bfloat16))
            workspace = None
            if value is not None:
                workspace = emulated_gpu.device_tensors(torch.full((made.workspace_bytes(tokens),), value).byte())
            made(x.replaced(tensors), output, workspace)
        outputs.append(output.view(torch.int16))
    assert torch.equal(*outputs)
    assert made.tensors(tokens).m_indptr[-1] > 0


@unless(MACHINE == "b200")
def test_cut_tiles_of_few_tokens(check):
    """Partial sums of GEMM1's tiles that have fewer tokens than a warpgroup's half of the columns."""
    x = check.case("all on one expert", check.p.Sizes(hidden=1024, intermediate=256, local=4), 6, 32)
    assert check.compare(x, *check.emulated(x, configs=configs(0))).wrong is None


@pytest.mark.thorough
@pytest.mark.skipif(MACHINE != "h200", reason="the pages' examples are run on one machine each")
def test_example_of_the_page(check, monkeypatch):
    names = examples.run("LAYER.md", MACHINE, monkeypatch)
    expected = check.d.quantised_layer(names["x"])
    assert check.d.distance(names["output"].cpu(), expected) <= check.close(len(expected) * 8 * 128)


@unless(MACHINE == "h200")
def test_run(check, sizes, monkeypatch):
    """ragged_moe.run itself, twice in the same memory: nothing of the call before is left. No tokens are no launch."""
    import ragged_moe
    from ragged_moe.layers import deepseek_layer as layer

    monkeypatch.setattr(layer.layer_of(torch.device("cpu"), sizes), "sms", 6)
    for name, tokens in (("all local", 7), ("all remote", 5), ("random", 0)):
        x = check.case(name, sizes, tokens, 32)
        with emulated_gpu.session(strict=True):
            output = emulated_gpu.device_tensors(torch.full((tokens, 256), torch.nan, dtype=torch.bfloat16))
            ragged_moe.run(*emulated_gpu.device_tensors(x.tensors()), 32, 2.5, output)
        assert check.d.matched(output, check.d.layer(x)) >= 0.9 and output.shape == (tokens, 256)


FAULTS = {
    "routing": ("ragged_moe.kernels.routing", "TOP_GROUPS", 3),
    "finalise": ("ragged_moe.kernels.finalise", "fma", lambda x, y, z: x + z),
    "permute": ("ragged_moe.kernels.permute", "minimum", lambda x, y: y),  # the last row's token
    "gemm1": ("ragged_moe.kernels.gather", "load_relaxed_if", lambda at, condition: condition),  # other rows
}


STAGES = [stage for stage in FAULTS if stage != "permute" or MACHINE == "h200"]


@pytest.mark.parametrize("stage", all_but(("routing", "finalise", "permute") if MACHINE == "h200" else (), STAGES))
def test_planted_faults_are_seen(check, sizes, monkeypatch, stage):
    """What the tests above are worth: each of these kernels fails."""
    from ragged_moe.layers import deepseek_layer as layer

    module, name, value = FAULTS[stage]
    program = getattr(layer, f"{stage}_program")
    monkeypatch.setattr(importlib.import_module(module), name, value)
    x = check.case("all local", sizes, 3, 32)
    with compiled_anew(program):
        if stage == "routing":
            assert check.check_routing(x, check.emulated(x, last="routing")[0])
        elif stage == "permute":
            assert check.check_permuted(x, check.emulated(x, 0, 2, configs(-1), "permute")[0])
        elif stage == "finalise":
            assert finalised(check)
        else:
            assert check.compare(x, *check.emulated(x, 0, 2, configs(0))).wrong.startswith("GEMM1")
