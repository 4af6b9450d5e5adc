"""Calls like an earlier one: the words of every launch are those that a call on its own has."""

import ctypes
import dataclasses
import inspect
import sys
import weakref
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ragged_moe.kernels import program
from ragged_moe.layers import batched_experts as batched
from ragged_moe.layers import deepseek_layer, grouped_gemm_fp4, grouped_gemm_fp8, repeated_calls, route, signatures
from ragged_moe.layers import experts as routed_experts
from ragged_moe.reference import layer as d
from ragged_moe.runtime import device, operands, signature, workspace
from ragged_moe.runtime import sizes as p

SIZES = p.Sizes(hidden=256, intermediate=128, local=4)
MODULES = deepseek_layer, routed_experts, batched, route
STREAM, SIDE = 7, 8


@pytest.fixture
def launched(monkeypatch) -> list:
    """The words of each launch on a CUDA GPU whose tensors are on the CPU, and which computes nothing."""
    made = object.__new__(device.Gpu)
    made.index, made.sms, made.capability = 0, 132, (9, 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    for module in (*MODULES, workspace, grouped_gemm_fp8):
        monkeypatch.setattr(module, "device_of", lambda *_: made)
    monkeypatch.setattr(workspace, "arenas", {})
    monkeypatch.setattr(program, "kept", [])
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
    grouped_gemm_fp8.launcher.cache_clear()


def experts(x, tokens: int, k: int = 2, **options):
    """A call of ragged_moe.experts, to be made with the same operands each time."""
    g = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 4, (tokens, k), generator=g, dtype=torch.int32)
    given = torch.zeros(tokens, 256, dtype=p.BF16), ids, torch.rand(tokens, k), x.gemm1_weights, x.gemm1_weights_scale
    given, out = (*given, x.gemm2_weights, x.gemm2_weights_scale), torch.zeros(tokens, 256, dtype=p.BF16)
    return lambda: routed_experts.experts(*given, out=out, **options)


def run(x):
    output = torch.zeros(len(x.hidden_states), 256, dtype=p.BF16)
    return lambda: deepseek_layer.run(*x.tensors(), 0, 2.5, output)


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


@pytest.fixture(params=["", "without torch's guards"])
def guards(request, monkeypatch) -> None:
    """With what of torch's tells tensors apart, and as where torch has no such thing."""
    if request.param:
        monkeypatch.setattr(repeated_calls, "TensorGuards", None)


@pytest.mark.parametrize("name", CALLS)
def test_words_are_those_of_a_call_on_its_own(launched, monkeypatch, guards, name):
    """With other operands, which lie elsewhere; the second time nothing is checked or chosen anew."""
    one, other = (CALLS[name](d.draw(SIZES, 5, seed)) for seed in (0, 1))
    first = words_of(launched, one)
    with monkeypatch.context() as patch:
        patch.setattr(signature, "complain", lambda *_: pytest.fail("it was checked anew"))
        repeated = words_of(launched, other)
    for module in MODULES:
        module.calls.known.clear()
    assert repeated == words_of(launched, other) != first


def test_a_router_writes_what_it_returns(launched):
    logits = [torch.zeros(3, 64) for _ in range(2)]
    for x in logits:
        made = route.route(x, 4)
        ((_, *words),) = launched[-1:]
        assert words[:4] == [x.data_ptr(), 0, made[0].data_ptr(), made[1].data_ptr()]
    assert len(route.calls.known) == 1 and len(launched) == 2


def test_operands_that_learn_are_not_repeated_in_silence(launched, guards):
    """They may be where torch records no gradients, and are checked anew where it does."""
    x = d.draw(SIZES, 5, 0)
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    hidden, ids = torch.zeros(5, 256, dtype=p.BF16), torch.zeros(5, 2, dtype=p.I32)
    given = hidden, ids, torch.rand(5, 2, requires_grad=True), *weights
    with torch.no_grad():
        for _ in range(2):
            assert not routed_experts.experts(*given).requires_grad
    for _ in range(2):
        assert routed_experts.experts(*given).requires_grad
    assert len(routed_experts.calls.known) == 1


def test_an_operand_by_another_name_is_another_call(launched, guards):
    """Where both have the same shape and type: a map as counts of replicas, a scale of tokens as one of weights."""
    x, table = d.draw(SIZES, 5), torch.zeros(9, dtype=torch.int32)
    ids, given = torch.zeros(5, 2, dtype=torch.int32), torch.ones(5, 2)
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    scale = torch.ones(5, 2)
    for hidden, right, wrong, sentence in (
        (torch.zeros(5, 256, dtype=p.BF16), {"expert_map": table}, {"replica_counts": table}, "replica_counts"),
        (x.hidden_states, {"hidden_scale": scale}, {"w13_global": scale}, "hidden_scale is of hidden in e4m3"),
    ):
        for _ in range(2):
            routed_experts.experts(hidden, ids, given, *weights, **right)
        before = len(launched)
        with pytest.raises(ValueError, match=sentence):
            routed_experts.experts(hidden, ids, given, *weights, **wrong)
        assert len(launched) == before


def test_what_has_changed_is_checked(launched, guards):
    """Another type, stride or alignment, and what cannot be, after a call that was right."""
    x = d.draw(SIZES, 5)
    experts(x, 5)()
    before = len(launched)
    experts(x, 5)()
    assert len(launched) == 2 * before and len(routed_experts.calls.known) == 1
    for name, change, sentence in (
        ("gemm1_weights_scale", lambda t: t.double(), "w13_scale has type torch.float64"),
        ("gemm2_weights_scale", torch.Tensor.to_sparse, "w2_scale is torch.sparse_coo, but must have its numbers in"),
        ("gemm2_weights", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "w2: dimension 1 has stride 1"),
        ("gemm1_weights", lambda t: torch.empty(t.numel() + 1, dtype=p.E4M3)[1:].view(t.shape), "w13 starts at"),
        ("gemm2_weights", lambda t: None, r"w2 must be a tensor \[E, H, I\]"),
    ):
        wrong = d.Inputs(**(vars(x) | {name: change(getattr(x, name))}))
        with pytest.raises(ValueError, match=f"^{sentence}"):
            experts(wrong, 5)()
    with pytest.raises(ValueError, match="^local_expert_offset is a list, but must be an int"):
        experts(x, 5, local_expert_offset=[])()
    assert len(launched) == 2 * before
    experts(x, 5, limit=7.0)()
    assert len(routed_experts.calls.known) == 2


class Seen(TorchDispatchMode):
    """What a tracer sees, to which Dynamo's guards are blind."""

    ignore_compile_internals = classmethod(lambda cls: True)

    _should_skip_dynamo = classmethod(lambda cls: False)  # else torch imports it, which takes 1.4 s

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen = function._schema.name
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("by_operator", [False, True])
def test_no_call_is_repeated_behind_a_tracer(launched, guards, by_operator):
    """It sees the operator in each call, of the function too, though calls like it were made before, seen or not."""

    def call():
        if by_operator:
            torch.ops.ragged_moe.experts_out(out, *given)
        else:
            routed_experts.experts(*given, out=out)

    x, ids, out = d.draw(SIZES, 5), torch.zeros(5, 2, dtype=torch.int32), torch.zeros(5, 256, dtype=p.BF16)
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    given = torch.zeros(5, 256, dtype=p.BF16), ids, torch.rand(5, 2), *weights
    plain = [words_of(launched, call) for _ in range(2)][-1]
    for _ in range(2):
        with Seen() as mode:
            assert words_of(launched, call) == plain
        assert mode.seen == "ragged_moe::experts_out"
    given = *given[:4], torch._neg_view(-given[4]), *given[5:]  # which torch writes out for kernels
    assert len(words_of(launched, call)) == len(plain) and len(routed_experts.calls.known) == 1


class Tracer(Seen):
    """As make_fx's, by the key that torch has of its own modes."""

    def __init__(self):
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.PROXY


def test_a_tracer_sees_each_call_or_is_refused(launched):
    """To it a call that is no operator is none; a workspace, which operators have not, is left out."""
    x = d.draw(SIZES, 5)
    launch, workspace = run(x), torch.empty(2**20, dtype=torch.uint8)
    launch()
    with Seen():
        assert words_of(launched, launch)
    call = experts(x, 5, workspace=workspace)
    call()
    packed = torch.zeros(1, 1, 1, 2048, dtype=torch.uint8)
    with Tracer() as mode:
        call()
        assert mode.seen == "ragged_moe::experts_out"
        with pytest.raises(ValueError, match="^ragged_moe.run is no operator of torch"):
            launch()
        with pytest.raises(ValueError, match="^ragged_moe.grouped_gemm_nvfp4 is no operator of torch"):
            grouped_gemm_fp4.grouped_gemm_nvfp4(torch.zeros(1, 64, dtype=p.BF16), packed, packed, packed, packed)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("capturing", [False, True])
def test_nothing_stays_allocated_in_the_pool_of_graph_trees(launched, monkeypatch, name, capturing):
    """Of torch.compile(mode="reduce-overhead"), which refuses it in its first run, and in its capture."""
    manager = SimpleNamespace(tree_manager=SimpleNamespace(stream=SimpleNamespace(cuda_stream=STREAM)))
    trees = SimpleNamespace(local=SimpleNamespace(tree_manager_containers={0: manager}))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: capturing)
    monkeypatch.setattr(device.runtime, "cudaStreamGetCaptureInfo", lambda stream: (0, 0, 1))
    made, call = [], CALLS[name](d.draw(SIZES, 5))
    monkeypatch.setattr(workspace, "Arena", lambda *of, make=workspace.Arena: made.append(make(*of)) or made[-1])
    first, second = words_of(launched, call), words_of(launched, call)
    arenas = [weakref.ref(x) for x in made]
    made.clear()
    assert arenas and not workspace.arenas and len(first) == len(second) and not any(x() for x in arenas)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: SIDE)
    call()
    assert len(workspace.arenas) == 1  # of another stream


def test_tensors_that_lie_apart_are_not_traced():
    """Torch asks the fake for a call with meta tensors, if only one is: what came back was computed by nobody."""
    given = [torch.empty(3, 64, device="meta"), 8]
    assert torch.ops.ragged_moe.route(*given)[0].shape == (3, 8)
    with pytest.raises(ValueError, match="^bias is on cpu, but must be on meta, as logits is$"):
        torch.ops.ragged_moe.route(*given, bias=torch.empty(64))
    x = d.draw(SIZES, 5)
    given = torch.zeros(5, 256, dtype=p.BF16), torch.zeros(5, 2, dtype=torch.int32), torch.rand(5, 2), x.gemm1_weights
    given = *given, x.gemm1_weights_scale, x.gemm2_weights.to("meta"), x.gemm2_weights_scale
    with pytest.raises(ValueError, match="^w2 is on meta, but must be on cpu, as hidden is$"):
        torch.ops.ragged_moe.experts_out(torch.zeros(5, 256, dtype=p.BF16), *given)


def test_scratch_memory_that_has_moved(launched):
    """Notes are gone when the arena has grown; the words are then those of its new places."""
    few, many = (experts(d.draw(SIZES, 5), tokens) for tokens in (5, 900))
    before = words_of(launched, few)
    (arena,) = workspace.arenas.values()
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
    ((key, arena),) = workspace.arenas.items()
    with monkeypatch.context() as patch:
        patch.setattr(device.Gpu, "order", lambda self: (STREAM, 3))
        call()
    assert len(workspace.arenas) == 2 and workspace.arenas[key] is arena
    assert words_of(launched, call)[0][0] == "graph"


def test_graphs_are_few(launched, monkeypatch):
    """The oldest goes when there are more than MOST_GRAPHS, and counts of calls begin anew."""
    monkeypatch.setattr(program, "MOST_GRAPHS", 2)
    kinds = [experts(d.draw(SIZES, 5, seed), 5) for seed in range(3)]
    for call in kinds:
        for _ in range(program.OFTEN + 2):
            call()
    (arena,) = workspace.arenas.values()
    (tape,) = arena.tapes.values()
    assert len(tape.graphs) == 2 and len(tape.seen) <= 2
    assert words_of(launched, kinds[2])[0][0] == "graph" != words_of(launched, kinds[0])[0][0]


def test_graphs_of_all_kinds_are_few(launched, monkeypatch):
    """However many numbers of tokens there are; a kind whose graph has gone gets a new one if it is called often."""
    monkeypatch.setattr(program, "MOST_GRAPHS_OF_ALL", 3)
    kinds = [experts(d.draw(SIZES, 5), tokens) for tokens in (4, 5, 6, 7, 8)]
    first = words_of(launched, kinds[0])
    for call in kinds:
        for _ in range(program.OFTEN + 2):
            call()
    (arena,) = workspace.arenas.values()
    assert sum(len(tape.graphs) for tape in arena.tapes.values()) == len(program.kept) == 3
    assert [words_of(launched, call)[0][0] == "graph" for call in kinds] == [False, False, True, True, True]
    for _ in range(program.OFTEN - 1):
        again = words_of(launched, kinds[0])
    assert again == first and words_of(launched, kinds[0])[0][0] == "graph"
    assert sum(len(tape.graphs) for tape in arena.tapes.values()) == 3


def test_what_stays_of_many_kinds(launched, monkeypatch):
    """Of 325 numbers of tokens, up to 1297, at most MOST kinds stay, and scratch memory for the largest."""
    monkeypatch.setattr(repeated_calls, "MOST", 256)
    x = d.draw(SIZES, 5)
    given = torch.zeros(1300, 256, dtype=p.BF16), torch.zeros(1300, 2, dtype=torch.int32), torch.rand(1300, 2)
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    out = torch.zeros(1300, 256, dtype=p.BF16)
    for tokens in range(1, 1300, 4):
        routed_experts.experts(*(t[:tokens] for t in given), *weights, out=out[:tokens])
    (arena,) = workspace.arenas.values()
    known = routed_experts.calls.known
    assert len(arena.tapes) == len(known) == 325 - repeated_calls.MOST and not program.kept
    held = sum(t.nbytes for t in (arena.buffer, *arena.kept.values()))
    of_largest = deepseek_layer.Layer(torch.device("cpu"), dataclasses.replace(SIZES, top_k=2)).workspace_bytes(1297)
    assert held <= 2 * of_largest + 2**25  # and a GPU's partial sums, whatever T is


@pytest.mark.parametrize("function, names", [
    ("experts", "hidden topk_ids topk_weights w13 w13_scale w2 w2_scale"),
    ("run", "routing_logits routing_bias hidden_states hidden_states_scale gemm1_weights gemm1_weights_scale "
            "gemm2_weights gemm2_weights_scale"),
    ("batched_experts", "hidden counts w13 w13_scale w2 w2_scale hidden_scale"),
    ("grouped_gemm_fp8", "a a_scale b b_scale m_indptr"),
])  # fmt: skip
@pytest.mark.parametrize("repeated", [False, True])
def test_out_that_lies_in_an_operand(launched, function, names, repeated):
    """Is refused, if only the last byte is shared, before it is written; but hidden has been read by then."""
    x, names = d.draw(SIZES, 5), names.split()
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    if function == "experts":
        given = torch.zeros(5, 256, dtype=p.BF16), torch.zeros(5, 2, dtype=torch.int32), torch.rand(5, 2), *weights
        call, shape = routed_experts.experts, (5, 256)
    elif function == "run":
        given, shape = x.tensors(), (5, 256)
        call = lambda *t, out: deepseek_layer.run(*t, 0, 2.5, out)  # noqa: E731
    elif function == "batched_experts":
        given = torch.zeros(4, 9, 256, dtype=p.E4M3), torch.zeros(4, dtype=p.I32), *weights, torch.ones(4, 2, 9).mT
        call, shape = lambda *t, out: batched.batched_experts(*t[:6], hidden_scale=t[6], out=out), (4, 9, 256)
    else:
        given = torch.zeros(9, 256, dtype=p.E4M3), torch.ones(2, 9), *weights[:2], torch.zeros(5, dtype=p.I32)
        call, shape = grouped_gemm_fp8.grouped_gemm_fp8, (9, weights[0].shape[1])
    out = torch.zeros(shape, dtype=p.BF16)
    for i, name in enumerate(names):
        operand = given[i]
        span = operands.extent(operand)[1]
        room = torch.zeros(-(-span // 16) * 16 + out.nbytes, dtype=torch.uint8)
        inside = torch.empty(0, dtype=operand.dtype).set_(room.untyped_storage(), 0, operand.shape, operand.stride())
        inside.copy_(operand)
        moved = (*given[:i], inside, *given[i + 1 :])
        places = {at: room[at:][: out.nbytes].view(p.BF16).view(shape) for at in (0, -(-span // 16) * 16 - 16)}
        behind = room[-(-span // 16) * 16 :].view(p.BF16).view(shape)
        if repeated:
            call(*moved, out=behind)  # right behind the operand: not shared
        for place in places.values():
            before = len(launched)
            if name in ("hidden", "hidden_states"):
                call(*moved, out=place)
                assert len(launched) > before
                continue
            with pytest.raises(ValueError, match=f"^out(put)? shares memory with {name}, but must not$"):
                call(*moved, out=place)
            assert len(launched) == before


def test_a_workspace_that_lies_in_an_operand(launched):
    x, need = d.draw(SIZES, 5), deepseek_layer.Layer(torch.device("cpu"), SIZES).workspace_bytes(5)
    room = torch.zeros(need + 4096, dtype=torch.uint8)
    output = room[16 : 16 + 5 * 512].view(p.BF16).view(5, 256)
    with pytest.raises(ValueError, match="^workspace shares memory with output, but must not$"):
        deepseek_layer.run(*x.tensors(), 0, 2.5, output, room[2048 + 16 :])
    hidden = room[: 5 * 256].view(p.E4M3).view(5, 256)
    with pytest.raises(ValueError, match="^workspace shares memory with hidden_states, but must not$"):
        deepseek_layer.run(*x.tensors()[:2], hidden, *x.tensors()[3:], 0, 2.5, torch.zeros(5, 256, dtype=p.BF16), room)
    given = torch.zeros(5, 2, dtype=torch.int32), torch.rand(5, 2), *x.tensors()[4:]
    hidden = room[: 5 * 512].view(p.BF16).view(5, 256)
    with pytest.raises(ValueError, match="^workspace shares memory with hidden, but must not$"):
        routed_experts.experts(hidden, *given, workspace=room.new_zeros(2**20).set_(room.untyped_storage()))
    assert not launched


def called_with(function: str, **options) -> None:
    """Call a function of the layers with these options."""
    x = d.draw(SIZES, 5)
    if function == "experts":
        experts(x, 5, 1, **options)()
    elif function == "batched_experts":
        batched.batched_experts(torch.zeros(4, 9, 256, dtype=p.BF16), torch.zeros(4, dtype=p.I32), *x.tensors()[4:],
                                **options)  # fmt: skip
    elif function == "route":
        route.route(torch.zeros(3, 64), **({"top_k": 1} | options))
    else:
        of = {"local_expert_offset": 1, "routed_scaling_factor": 1.0} | options
        deepseek_layer.run(*x.tensors(), *of.values(), torch.zeros(5, 256, dtype=p.BF16))


CALLED = {"experts": routed_experts.experts, "batched_experts": batched.batched_experts, "route": route.route,
          "run": deepseek_layer.run}  # fmt: skip


@pytest.mark.parametrize("function", CALLED)
def test_a_number_is_no_bool_and_a_bool_no_number(launched, function):
    """Of every option, also behind a call that was right, and though True equals 1, and 1.0 does."""
    declared = next(x for x in vars(signatures).values() if getattr(x, "name", "") == function)
    assert {x.name for x in declared.options} <= set(inspect.signature(CALLED[function]).parameters)
    for option in declared.options:
        flag, whole = option.torch_type == "bool", option.torch_type.startswith("SymInt")
        if option.torch_type.startswith("str"):
            continue
        right = {"num_experts": 5, "sms": 2}.get(option.name, True if flag else 1)
        of = {"num_experts": 5} if (function, option.name) == ("experts", "local_expert_offset") else {}
        for x in (right,) if flag or whole else (right, Fraction(right)):
            called_with(function, **{option.name: x}, **of)
        before = len(launched)
        for wrong in ("no", None, 1, 1.0, 0) if flag else (True, 1.0) if whole else (True, False):
            with pytest.raises(ValueError, match=f"^{option.name} is {wrong!r}, but must be {option.must[:6]}"):
                called_with(function, **{option.name: wrong}, **of)
        assert len(launched) == before


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


def test_operands_at_one_place(launched):
    """Are told apart all the same by a call like that one, as of a checkpoint that has a tensor for both."""
    x, other = d.draw(SIZES, 5), d.draw(SIZES, 5, seed=1)
    x.gemm2_weights_scale = x.gemm1_weights_scale.flatten()[: 4 * 2].view(4, 2, 1)
    experts(x, 5)()
    (arena,) = workspace.arenas.values()
    assert len(arena.tapes) == 1
    call = experts(other, 5)
    repeated = words_of(launched, call)
    routed_experts.calls.known.clear()
    assert repeated == words_of(launched, call)


@pytest.mark.parametrize("layout", ["tokens_first", "blocks_first", None])
def test_scales_are_noted_however_they_lie(launched, layout, monkeypatch):
    """Torch copies those that kernels do not read as they lie, before the call is looked for."""
    given = torch.zeros(5, 256, dtype=p.E4M3), torch.zeros(5, 2, dtype=torch.int32), torch.rand(5, 2)
    x, scale = d.draw(SIZES, 5), torch.ones(2, 10)[:, ::2] if layout == "blocks_first" else torch.ones(5, 2)
    weights = x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale
    for first in (routed_experts.FUNCTION.first, None):
        monkeypatch.setattr(routed_experts.FUNCTION, "first", first)
        routed_experts.experts(*given, *weights, hidden_scale=scale, hidden_scale_layout=layout)
