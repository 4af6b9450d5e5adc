"""Calls like an earlier one: the words of every launch are those that a call on its own has."""

import ctypes

import pytest
import torch

from ragged_moe import batched, device, grouped_gemm, layer, routed_experts, routers, scratch
from ragged_moe import problem as p
from ragged_moe.kernels import program
from ragged_moe.reference import layer as d

SIZES = p.Sizes(hidden=256, intermediate=128, local=4)
MODULES = layer, routed_experts, batched, routers
STREAM, SIDE = 7, 8


@pytest.fixture
def launched(monkeypatch) -> list:
    """The words of each launch on a CUDA GPU whose tensors are on the CPU, and which computes nothing."""
    made = object.__new__(device.Gpu)
    made.index, made.sms, made.capability = 0, 132, (9, 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    for module in (*MODULES, scratch, grouped_gemm):
        monkeypatch.setattr(module, "device_of", lambda *_: made)
    monkeypatch.setattr(scratch, "arenas", {})
    seen = []

    class Launch:
        def __init__(self, function, words: ctypes.Array):
            self.function, self.words = function, words

        def __call__(self):
            seen.append((self.function, *self.words))

    class Graph:
        """What is captured is seen when the graph is launched."""

        def __init__(self, launch, on: int):
            before = len(seen)
            launch(device.Stream(SIDE))
            self.captured, self.on = seen[before:], on
            del seen[before:]

        def __call__(self):
            seen.extend([("graph", self.on, SIDE), *self.captured])

    monkeypatch.setattr(program, "Launch", Launch)
    monkeypatch.setattr(program, "Graph", Graph)
    monkeypatch.setattr(program, "compiled", lambda host, variant, pointer: type(host).__name__)
    forget()
    yield seen
    forget()


def forget() -> None:
    """All kinds of calls, layers and programs that are known."""
    for module in MODULES:
        module.calls.known.clear()
        for x in vars(module).values():
            getattr(x, "cache_clear", lambda: None)()
    grouped_gemm.launcher.cache_clear()


def experts(x, tokens: int, k: int = 2, **options):
    """A call of ragged_moe.experts, to be made with the same operands each time."""
    g = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 4, (tokens, k), generator=g, dtype=torch.int32)
    given = torch.zeros(tokens, 256, dtype=p.BF16), ids, torch.rand(tokens, k), x.gemm1_weights, x.gemm1_weights_scale
    given, out = (*given, x.gemm2_weights, x.gemm2_weights_scale), torch.zeros(tokens, 256, dtype=p.BF16)
    return lambda: routed_experts.experts(*given, out=out, **options)


def run(x):
    output = torch.zeros(len(x.hidden_states), 256, dtype=p.BF16)
    return lambda: layer.run(*x.tensors(), 0, 2.5, output)


def batched_experts(x):
    given = torch.zeros(4, 9, 256, dtype=p.E4M3), torch.zeros(4, dtype=p.I32), x.gemm1_weights, x.gemm1_weights_scale
    scale, out = torch.ones(4, 2, 9).mT, torch.zeros(4, 9, 256, dtype=p.BF16)
    return lambda: batched.batched_experts(
        *given, x.gemm2_weights, x.gemm2_weights_scale, hidden_scale=scale, out=out
    )  # fmt: skip


CALLS = {"experts": lambda x: experts(x, 5), "run": run, "batched_experts": batched_experts}


def words_of(launched: list, call) -> list:
    """The words of the launches of a call."""
    before = len(launched)
    call()
    return launched[before:]


@pytest.mark.parametrize("name", CALLS)
def test_words_are_those_of_a_call_on_its_own(launched, monkeypatch, name):
    """With other operands, which lie elsewhere; the second time nothing is checked or chosen anew."""
    one, other = (CALLS[name](d.draw(SIZES, 5, seed)) for seed in (0, 1))
    first = words_of(launched, one)
    with monkeypatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "complain", lambda *_: pytest.fail("it was checked anew"))
        repeated = words_of(launched, other)
    for module in MODULES:
        module.calls.known.clear()
    assert repeated == words_of(launched, other) != first


def test_a_router_writes_what_it_returns(launched):
    logits = [torch.zeros(3, 64) for _ in range(2)]
    for x in logits:
        made = routers.route(x, 4)
        ((_, *words),) = launched[-1:]
        assert words[:4] == [x.data_ptr(), 0, made[0].data_ptr(), made[1].data_ptr()]
    assert len(routers.calls.known) == 1 and len(launched) == 2


def test_what_has_changed_is_checked(launched):
    """Another type, stride or alignment, and what cannot be, after a call that was right."""
    x = d.draw(SIZES, 5)
    experts(x, 5)()
    before = len(launched)
    experts(x, 5)()
    assert len(launched) == 2 * before and len(routed_experts.calls.known) == 1
    for name, change, sentence in (
        ("gemm1_weights_scale", lambda t: t.double(), "w13_scale has type torch.float64"),
        ("gemm2_weights", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "w2: dimension 1 has stride 1"),
        ("gemm1_weights", lambda t: torch.empty(t.numel() + 1, dtype=p.E4M3)[1:].view(t.shape), "w13 starts at"),
        ("gemm2_weights", lambda t: None, "w2 must be a tensor of 3 dimensions"),
    ):
        wrong = d.Inputs(**(vars(x) | {name: change(getattr(x, name))}))
        with pytest.raises(ValueError, match=f"^{sentence}"):
            experts(wrong, 5)()
    with pytest.raises(ValueError, match="^local_expert_offset is a list, but must be an int"):
        experts(x, 5, local_expert_offset=[])()
    assert len(launched) == 2 * before
    experts(x, 5, limit=7.0)()
    assert len(routed_experts.calls.known) == 2


def test_scratch_memory_that_has_moved(launched):
    """Notes are gone when the arena has grown; the words are then those of its new places."""
    few, many = (experts(d.draw(SIZES, 5), tokens) for tokens in (5, 900))
    before = words_of(launched, few)
    (arena,) = scratch.arenas.values()
    assert len(arena.tapes) == 1
    many()
    assert len(arena.tapes) == 1
    after = [words_of(launched, few) for _ in range(2)]
    routed_experts.calls.known.clear()
    assert after[0] == after[1] == words_of(launched, few) != before


@pytest.mark.parametrize("name", CALLS)
def test_calls_at_the_same_places_become_a_graph(launched, name):
    """It has the launches of a call on its own, but for the stream; calls elsewhere are launched as before."""
    one, other = (CALLS[name](d.draw(SIZES, 5, seed)) for seed in (0, 1))
    first = words_of(launched, one)  # noted
    for _ in range(program.OFTEN):
        assert words_of(launched, one) == first
    elsewhere = words_of(launched, other)
    for _ in range(2):
        graph, *captured = words_of(launched, one)
        assert graph == ("graph", STREAM, SIDE)
        differ = [(x, y) for a, b in zip(first, captured, strict=True) for x, y in zip(a, b, strict=True) if x != y]
        assert differ == [(STREAM, SIDE)] * len(first)
        assert words_of(launched, other) == elsewhere


def test_no_graph_in_a_capture(launched, monkeypatch):
    """What is captured by somebody else is launched, however often."""
    monkeypatch.setattr(device.Gpu, "order", lambda self: (STREAM, 3))
    call = experts(d.draw(SIZES, 5), 5)
    first = words_of(launched, call)
    for _ in range(program.OFTEN + 2):
        assert words_of(launched, call) == first


def test_a_capture_leaves_notes_of_others(launched, monkeypatch):
    """Those of the stream that launches alone, and their graphs: freeing these would break the capture."""
    call = experts(d.draw(SIZES, 5), 5)
    for _ in range(program.OFTEN + 2):
        call()
    ((key, arena),) = scratch.arenas.items()
    with monkeypatch.context() as patch:
        patch.setattr(device.Gpu, "order", lambda self: (STREAM, 3))
        call()
    assert len(scratch.arenas) == 2 and scratch.arenas[key] is arena
    assert words_of(launched, call)[0][0] == "graph"


def test_graphs_are_few(launched, monkeypatch):
    """The oldest goes when there are more than MOST_GRAPHS, and counts of calls begin anew."""
    monkeypatch.setattr(program, "MOST_GRAPHS", 2)
    kinds = [experts(d.draw(SIZES, 5, seed), 5) for seed in range(3)]
    for call in kinds:
        for _ in range(program.OFTEN + 2):
            call()
    (arena,) = scratch.arenas.values()
    (tape,) = arena.tapes.values()
    assert len(tape.graphs) == 2 and len(tape.seen) <= 2
    assert words_of(launched, kinds[2])[0][0] == "graph" != words_of(launched, kinds[0])[0][0]


@pytest.mark.parametrize("name, x, must", [
    ("limit", "x", "a number above 0, or None"), ("limit", -7.0, "a number above 0, or None"),
    ("alpha", float("nan"), "a finite number"), ("shift", None, "a finite number"),
])  # fmt: skip
def test_an_activation_that_is_none(launched, name, x, must):
    with pytest.raises(ValueError, match=f"^{name} is {x!r}, but must be {must}$"):
        experts(d.draw(SIZES, 5), 5, **{name: x})()
    assert not launched


@pytest.mark.parametrize("tokens, k, on_input, expected", [
    (5, 2, False, (16, "GroupedGemm")), (900, 2, False, (12, "PermuteQuantised")), (900, 3, False, (16, "Permute")),
    (900, 1, True, (16, "Permute")),
])  # fmt: skip
def test_who_quantises(launched, tokens, k, on_input, expected):
    """assign, which then has four words more, or permute, for tokens of few rows whose scales are theirs alone."""
    x = d.draw(SIZES, 5)
    call = experts(x, tokens, k, apply_router_weight_on_input=on_input)
    for _ in range(2):  # on its own, and noted
        (assign, *words), (second, *_), *_ = words_of(launched, call)
        assert (assign, len(words), second) == ("Assign", *expected)


def test_a_call_that_leaves_an_operand_out_is_not_noted(launched):
    """Two operands at one place could not be told apart."""
    x = d.draw(SIZES, 5)
    x.gemm2_weights_scale = x.gemm1_weights_scale.flatten()[: 4 * 2].view(4, 2, 1)
    experts(x, 5)()
    (arena,) = scratch.arenas.values()
    assert not len(arena.tapes)
