"""ragged_moe.experts on the emulated GPU that MOE_MACHINE names, all checks of the emulator on.

test_moe_kernel.py runs this, in a process for each machine.
"""

import dataclasses
import os

import pytest
import torch

import emulated_gpu
from tests.ragged_moe import examples
from tests.ragged_moe.emulated import SMS, compiled_anew, fp8_experts, without_cuda
from tests.thorough import all_but

MACHINE = os.environ["MOE_MACHINE"]
GPT_OSS = {"limit": 7.0, "alpha": 1.702, "shift": 1.0}
HIDDEN, INTERMEDIATE = 256, 128
LOCAL, EVERYWHERE, OFFSET = 5, 9, 3
SCALED = 0.25  # of the drawn scales: products that the limit cuts, and others


@pytest.fixture(scope="module")
def ragged_moe():
    """The module ragged_moe.layers.experts, its kernels compiled into the emulator."""
    without_cuda(MACHINE, SMS)
    from ragged_moe.layers import experts

    return experts


@pytest.fixture(scope="module")
def weights(ragged_moe):
    """(w13, w13_scale, w2, w2_scale)."""
    return fp8_experts(HIDDEN, INTERMEDIATE, LOCAL, SCALED)


def draw(tokens: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden, topk_ids, topk_weights: different experts for a token, of which some are not here."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EVERYWHERE, generator=g)[:k] for _ in range(tokens)]).int()
    return torch.randn(tokens, HIDDEN, generator=g).bfloat16(), ids, torch.rand(tokens, k, generator=g)


def called(ragged_moe, hidden, ids, given, weights, schedule: int = 0, crowded: bool = False, **options):
    """Call experts in device memory, as if the launch before had written all operands."""
    with emulated_gpu.session(schedule=schedule, strict=True, crowded=crowded):
        there = emulated_gpu.device_tensors(tuple(x for x in (hidden, ids, given, *weights) if x is not None))
        if "hidden_scale" in options:
            options["hidden_scale"] = emulated_gpu.device_tensors(options["hidden_scale"])
        emulated_gpu.protect(there)
        emulated_gpu.written(there)
        tensors = there if len(there) == 7 else (*there[:4], None, there[4], None)
        return ragged_moe.experts(*tensors, local_expert_offset=OFFSET, num_experts=EVERYWHERE, **options)


def check(found, values, scales, ids, given, weights, **activation):
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference import experts as d
    from ragged_moe.reference.layer import distance

    expected = d.experts(values, scales, ids, given, *weights, OFFSET, Activation(**activation))
    assert distance(found, expected) <= 0.005 and found.isfinite().all()
    return expected


def test_bf16(ragged_moe, weights, schedule=3):
    """Quantised here, to the bit: only the tensor core's own rounding of sums is left."""
    from ragged_moe.reference.layer import quantised

    hidden, ids, given = draw(20, 6)
    ids[3, 2] = -1
    found = called(ragged_moe, hidden, ids, given, weights, schedule)
    expected = check(found, *quantised(hidden.float()), ids, given, weights)
    if MACHINE == "b200":  # whose sums are exact here
        assert (found != expected).float().mean() < 0.01


@pytest.mark.parametrize("layout", all_but(["row"] * (MACHINE == "h200"), ["row", "column", "padded"]))
def test_e4m3_of_any_layout(ragged_moe, weights, layout):
    """Also: gate first, gpt-oss's activation, int64 numbers, of which some are no int32's."""
    from ragged_moe.reference.layer import quantised

    hidden, ids, given = draw(6, 3, seed=1)
    values, scales = quantised(hidden.float())
    ids = ids.long()
    ids[0] = torch.tensor([2**32 + OFFSET, -(2**40), 2**31 + OFFSET])
    padded = torch.zeros(2, 16)[:, :6].copy_(scales).t()
    forms = {"row": scales.t().contiguous(), "column": scales.t(), "padded": padded}
    named = None if layout == "column" else "tokens_first"  # the shape says it, too
    options = {"hidden_scale": forms[layout], "hidden_scale_layout": named, "gate_first": True}
    found = called(ragged_moe, values, ids, given, weights, **options, **GPT_OSS)
    check(found, values, scales, ids, given, weights, gate_first=True, **GPT_OSS)
    assert not found[0].any()


@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
@pytest.mark.parametrize("tokens, layout", [(2, None), (2, "row"), (5, "row"), (5, True)])
def test_a_layout_that_nobody_can_tell_is_refused(ragged_moe, weights, layout, tokens):
    """T = 2 is H/128, so that the shape has two readings; at other T it has one."""
    hidden, ids, given = draw(tokens, 3)
    options = {"hidden_scale": torch.ones(tokens, 2), "hidden_scale_layout": layout}
    sentence = rf'^hidden_scale_layout is {layout!r}, but must be "tokens_first" for hidden_scale \[T, H/128\] or "b'
    with pytest.raises(ValueError, match=sentence):
        called(ragged_moe, hidden.to(torch.float8_e4m3fn), ids, given, weights, **options)


def by_channel(hidden, ids, given, weights) -> torch.Tensor:
    """The definition in float64, of tokens as they are; what is activated is rounded to e4m3 in blocks of 128."""
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference.experts import activated
    from ragged_moe.reference.layer import quantised

    def rounded(x):
        values, scales = quantised(x.float())
        return values.double() * scales.t().double().repeat_interleave(128, 1)

    w13, s13, w2, s2 = (x.double() for x in weights)
    out, x = torch.zeros(hidden.shape, dtype=torch.float64), hidden.double()
    for t, k in ((ids >= OFFSET) & (ids < OFFSET + LOCAL)).nonzero().tolist():
        e = int(ids[t, k]) - OFFSET
        c = activated(*(w13[e] @ x[t] * s13[e]).chunk(2), Activation(gate_first=True))
        out[t] += given[t, k].double() * (w2[e] @ rounded(c[None])[0] * s2[e])
    return out


@pytest.mark.parametrize("config", all_but([0] * (MACHINE == "h200"), range(3)))
def test_scales_of_each_weight_row(ragged_moe, weights, monkeypatch, config):
    """FP8 per channel, by every GEMM1 and as many GEMM2; tokens in e4m3 with a scale each."""
    from ragged_moe.layers.deepseek_layer import Layer
    from ragged_moe.reference.layer import distance
    from ragged_moe.tuning import sm90, sm100

    of = sm100 if MACHINE == "b200" else sm90
    first, second = of.GEMM1[config], (of.GEMM[0], of.GEMM[2], of.GEMM[-1])[config]

    def configs(self, tokens):
        assert self.channels
        return (dataclasses.replace(first, activation=self.activation, channels=True),
                dataclasses.replace(second, channels=True))  # fmt: skip

    monkeypatch.setattr(Layer, "configs", configs)
    ragged_moe.layer_of.cache_clear()
    g = torch.Generator().manual_seed(7)
    hidden, ids, given = draw(9, 2, seed=5)
    scale = hidden.float().abs().amax(1, keepdim=True) / 448
    values = (hidden.float() / scale).to(torch.float8_e4m3fn)
    rows = [torch.rand(LOCAL, w.shape[1], generator=g) * 0.02 + 0.001 for w in weights[::2]]
    by_row = weights[0], rows[0], weights[2], rows[1]
    options = {"hidden_scale": scale.expand(9, HIDDEN // 128), "hidden_scale_layout": "tokens_first"}
    found = called(ragged_moe, values, ids, given, by_row, gate_first=True, **options)
    expected = by_channel(values.double() * scale, ids, given, by_row)
    assert distance(found, expected) <= 0.012
    sentence = r"^w13_scale has 3 dimensions, but must be \[E, 2I\], as w2_scale is \[E, H\]$"
    with pytest.raises(ValueError, match=sentence):
        called(ragged_moe, values, ids, given, (*weights[:3], rows[1]), **options)
    ragged_moe.layer_of.cache_clear()


@pytest.mark.skipif(MACHINE != "h200", reason="kernels for weights in bf16 are Hopper's")
@pytest.mark.parametrize("first, second, tokens", all_but([(0, 0, 9)], [(0, 0, 9), (1, 2, 90), (1, 9, 40), (1, 4, 40)]))
def test_weights_in_bf16(ragged_moe, weights, monkeypatch, first, second, tokens):
    """Nothing is quantised: within bf16's rounding of what is activated, and of each row, of float64."""
    from ragged_moe.kernels.config import Activation
    from ragged_moe.layers.bf16_layer import Bf16Layer
    from ragged_moe.reference.experts import activated
    from ragged_moe.reference.layer import distance
    from ragged_moe.tuning import sm90

    def configs(self, tokens):
        return (dataclasses.replace(sm90.BF16_GEMM1[first], activation=self.activation, copied=first == 0),
                dataclasses.replace(sm90.GEMM[second], bf16=True))  # fmt: skip

    monkeypatch.setattr(Bf16Layer, "configs", configs)
    ragged_moe.bf16_layer_of.cache_clear()
    g = torch.Generator().manual_seed(8)
    w13 = (torch.randn(LOCAL, 2 * INTERMEDIATE, HIDDEN, generator=g) / 4).bfloat16()
    w2 = (torch.randn(LOCAL, HIDDEN, INTERMEDIATE, generator=g) / 4).bfloat16()
    hidden, ids, given = draw(tokens, 2, seed=6)
    if second == 2:  # an expert with 129 to 192 tokens, whose tiles overlap
        ids[:, 0], ids[:, 1] = OFFSET + 3, torch.where(torch.arange(tokens) % 2 > 0, OFFSET + 3, 0)
    found = called(ragged_moe, hidden, ids, given, (w13, None, w2, None), **GPT_OSS)
    expected = torch.zeros(hidden.shape, dtype=torch.float64)
    for t, k in ((ids >= OFFSET) & (ids < OFFSET + LOCAL)).nonzero().tolist():
        e = int(ids[t, k]) - OFFSET
        c = activated(*(w13[e].double() @ hidden[t].double()).chunk(2), Activation(**GPT_OSS)).bfloat16()
        expected[t] += given[t, k].double() * (w2[e].double() @ c.double())
    assert distance(found, expected) <= 0.004
    ragged_moe.bf16_layer_of.cache_clear()


@pytest.mark.skipif(MACHINE != "h200", reason="the FP8 layer of a B200 does not permute")
@pytest.mark.parametrize("hidden", all_but([1920], [128, 1920]))
def test_rows_are_quantised_where_they_are_permuted(ragged_moe, hidden):
    """To the bit as tokens are, also of zeros; what is behind the last row stays."""
    from ragged_moe.layers.deepseek_layer import permute_quantised_program
    from ragged_moe.reference.layer import quantised

    rows, room = torch.tensor([2, 0, 0, 3, 1, 2, 3, 0, 3], dtype=torch.int32), 12
    x = torch.randn(4, hidden, generator=torch.Generator().manual_seed(3)).bfloat16()
    x[1, :128] = 0
    to, scales = torch.full((room, hidden), 7, dtype=torch.uint8), torch.full((hidden // 128, room), torch.nan)
    with emulated_gpu.session(strict=True):
        given = emulated_gpu.device_tensors((x, torch.tensor([0, len(rows)], dtype=torch.int32), rows))
        emulated_gpu.written(given)
        to, scales = emulated_gpu.device_tensors((to, scales))
        hidden_at, m_indptr, rows_at = [t.data_ptr() for t in given]
        words = hidden_at, 0, m_indptr, rows_at, to.data_ptr(), scales.data_ptr(), 4, hidden, room, 1, 1, 0
        permute_quantised_program(x.device)(*words)
        to, scales = to.clone(), scales.clone()
    values, of_values = quantised(x.float())
    used, order = len(rows), rows.long()
    assert torch.equal(to[:used], values.view(torch.uint8)[order]) and (to[used:] == 7).all()
    assert torch.equal(scales[:, :used], of_values[:, order]) and scales[:, used:].isnan().all()


@pytest.mark.thorough
def test_many_tokens_an_expert(ragged_moe, weights, monkeypatch):
    """The kernels for them: tokens on M, permuted, and their epilogue's activation."""
    from ragged_moe.layers.deepseek_layer import Layer
    from ragged_moe.reference.layer import quantised
    from ragged_moe.tuning import sm90, sm100

    config = (sm100 if MACHINE == "b200" else sm90).GEMM1[-1]
    second = (sm100 if MACHINE == "b200" else sm90).M16_SWAP_AB
    configs = lambda self, tokens: (dataclasses.replace(config, activation=self.activation), second)  # noqa: E731
    monkeypatch.setattr(Layer, "configs", configs)
    ragged_moe.layer_of.cache_clear()
    hidden, ids, given = draw(40, 2, seed=2)
    ids = torch.where(ids < 10, OFFSET + 1, ids)
    found = called(ragged_moe, hidden, ids, given, weights, gate_first=True, **GPT_OSS)
    check(found, *quantised(hidden.float()), ids, given, weights, gate_first=True, **GPT_OSS)
    ragged_moe.layer_of.cache_clear()


LISTS = [(22, 4, 16, 30, 0, 2), (12, 1, 1, 1, 0, 0), (5, 1, 2, 7, 4100, 1), (5, 1, 2, 7, 4100, 2)]


@pytest.mark.parametrize("local, own, k, tokens, columns, maps", all_but(LISTS[0:3:2] * (MACHINE == "h200"), LISTS))
def test_lists(ragged_moe, local, own, k, tokens, columns, maps):
    """Index by index: repeated experts, CTAs with several, slots behind the last, under several orders of events.

    columns: of tokens, in int32, which are copied to their rows: those have more words than a CTA loads at once.
    maps: with a map, of 3 replicas at most, some of which are not here, and numbers beyond it.
    """
    from ragged_moe.kernels import assign
    from ragged_moe.reference import experts as d

    assert assign.grid_of(512) == (128, 4) and assign.grid_of(200) == (100, 2) and assign.grid_of(5) == (5, 1)
    g = torch.Generator().manual_seed(local)
    ids = torch.randint(-3, local + 9, (tokens, k), generator=g, dtype=torch.int32)
    given, slots = torch.rand(tokens, k, generator=g), -(-k // 4) * 4
    table = torch.randint(-1, local + 4, (local, 3)[:maps], generator=g, dtype=torch.int32)
    counts = torch.randint(0, 5, (local,), generator=g, dtype=torch.int32) if maps == 2 else None
    m_indptr, rows, places = d.lists(d.mapped(ids, table, counts) if maps else ids, 2, local)
    program = ragged_moe.assign_program(torch.device("cpu"), slots, False, own, copies=columns > 0, maps=maps)
    hidden = torch.randint(0, 1 << 20, (tokens, columns), generator=g, dtype=torch.int32)
    for schedule in (0, 9)[: 1 + (local != 22)]:
        with emulated_gpu.session(schedule=schedule, strict=True):
            sizes = (local + 1,), (tokens * k,), (tokens, slots)
            made = [torch.full(size, 77, dtype=torch.int32) for size in (*sizes, (len(rows), columns))]
            made = ids, given, *made[:3], torch.full((tokens, slots), 7.0), hidden, made[3]
            made = emulated_gpu.device_tensors((*made, *(x for x in (table, counts) if maps and x is not None)))
            *lists, x, to = [t.data_ptr() for t in made[:8]]
            of_hidden = (x, to, 0, 4 * columns) if columns else ()
            of_map = [t.data_ptr() for t in made[8:]] + [0] * (maps == 1)
            of_map += [len(table), 3 if maps == 2 else 1] if maps else []
            program(*lists, tokens, k, local, 2, -(-local // own), 0, *of_hidden, *of_map)
        assert torch.equal(made[7], hidden[rows.long()])
        assert torch.equal(made[2], m_indptr) and torch.equal(made[3][: len(rows)], rows)
        assert torch.equal(made[4][:, :k], places) and (made[4][:, k:] == -1).all() and not made[5][:, k:].any()
        assert torch.equal(made[5][:, :k], torch.where(places >= 0, given, 0))


@pytest.mark.parametrize("type", all_but(["bf16"] * (MACHINE == "h200"), ["bf16", "e4m3"]))
def test_weights_on_the_input(ragged_moe, weights, type):
    """As Llama 4 has them. Weights of 10 make what is activated another number than weights behind the experts.

    In a crowded session: no CTA waits for one of a higher number.
    """
    from ragged_moe.reference.layer import distance, quantised

    hidden, ids, given = draw(9, 1, seed=3)
    values, scales = quantised(hidden.float())
    given[4] = 10.0
    options = {"apply_router_weight_on_input": True}
    if type == "e4m3":
        options |= {"hidden_scale": scales, "hidden_scale_layout": "blocks_first"}
    ids[4] = OFFSET
    found = called(ragged_moe, values if type == "e4m3" else hidden, ids, given, weights, crowded=True, **options)
    expected = check(found, values, scales * given.t(), ids, torch.ones_like(given), weights)
    with pytest.raises(AssertionError):
        check(found, values, scales, ids, given, weights)
    assert distance(found[4], expected[4]) <= 0.005


@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
def test_on_some_of_the_sms(ragged_moe, weights, monkeypatch):
    """Both GEMMs have as many CTAs, and give what they give on all."""
    from ragged_moe.kernels.program import Program
    from ragged_moe.reference.layer import quantised

    grids, launch = [], Program.__call__

    def recorded(self, *words):
        if len(words) in (15, 18):  # GEMM2's, and GEMM1's, with tokens behind the grid
            grids.append(words[13 if len(words) == 15 else 15])
        launch(self, *words)

    monkeypatch.setattr(Program, "__call__", recorded)
    hidden, ids, given = draw(9, 2)
    for sms, ctas in ((None, SMS), (3, 3)):
        found = called(ragged_moe, hidden, ids, given, weights, sms=sms)
        check(found, *quantised(hidden.float()), ids, given, weights)
        assert grids[-2:] == [ctas] * 2
    with pytest.raises(ValueError, match="^sms is 1, but must be an int from 2 on, or None$"):
        called(ragged_moe, hidden, ids, given, weights, sms=1)


@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
@pytest.mark.parametrize("replicas", all_but([True], [False, True]))
def test_what_changes_between_two_calls(ragged_moe, weights, replicas):
    """Map, counts and weights that are written where they are: the second call, which is the first one's launches
    again, has the new ones."""
    from ragged_moe.reference import experts as d
    from ragged_moe.reference.layer import distance, quantised

    hidden, ids, given = draw(5, 2)
    g, few = torch.Generator().manual_seed(6), EVERYWHERE - 4  # of 20 places 4 are for replicas
    ids[0], ids[1:] = few, ids[1:] % few
    with emulated_gpu.session(strict=True):
        there = emulated_gpu.device_tensors((hidden, ids, given, *(x.clone() for x in weights)))
        counts = torch.ones(few, dtype=torch.int32)
        table = emulated_gpu.device_tensors(torch.zeros((few, 3) if replicas else (few,), dtype=torch.int32))
        maps = {"expert_map": table} | ({"replica_counts": emulated_gpu.device_tensors(counts)} if replicas else {})
        made = []
        for turn in range(2):
            places, owners = torch.randperm(EVERYWHERE, generator=g).int(), torch.randperm(few, generator=g)[:4]
            rows = places[:few, None].repeat(1, 3)
            rows[owners, 1] = places[few:]
            table.copy_(rows if replicas else rows[:, 0])
            if replicas:
                maps["replica_counts"].copy_(counts.index_fill(0, owners, 2))
            for weight in there[3:] if turn else ():
                weight.copy_(weight.flip(0))
            emulated_gpu.written((*there, *maps.values()))
            made.append(ragged_moe.experts(*there, local_expert_offset=OFFSET, num_experts=EVERYWHERE, **maps))
            physical = d.mapped(ids, *(x.clone() for x in maps.values()))
            of = [x.flip(0) if turn else x for x in weights]
            expected = d.experts(*quantised(hidden.float()), physical, given, *of, OFFSET)
            assert distance(made[-1], expected) <= 0.02  # test_lists has each index
            assert (physical[0] == -1).all() and (physical[1:] >= 0).all()
        assert not torch.equal(*made)


def test_nothing_to_do(ragged_moe, weights):
    hidden, ids, given = draw(20, 6)  # whose kernels test_bf16 has compiled
    assert not called(ragged_moe, hidden, torch.full_like(ids, -1), given, weights).any()
    assert called(ragged_moe, hidden[:0], ids[:0], given[:0], weights).shape == (0, HIDDEN)


WRONG = {
    "hidden has type torch.float16": lambda a: a | {"hidden": a["hidden"].half()},
    "topk_ids has type torch.int16": lambda a: a | {"topk_ids": a["topk_ids"].short()},
    "topk_weights: dimension 1 is 1, but must be 2": lambda a: a | {"topk_weights": torch.rand(5, 1)},
    "w13 has type": lambda a: a | {"w13": a["w13"].float()},
    "hidden_scale is of hidden in e4m3": lambda a: a | {"hidden_scale": torch.ones(2, 5)},
    "hidden_scale is of hidden in e4m3, and must be given": lambda a: a | {
        "hidden": a["hidden"].to(torch.float8_e4m3fn), "hidden_scale_layout": "tokens_first"
    },
    r"hidden_scale is \(5, 2\), but must have shape \(2, 5\)": lambda a: a | {
        "hidden": a["hidden"].to(torch.float8_e4m3fn), "hidden_scale_layout": "blocks_first",
        "hidden_scale": torch.ones(5, 2)
    },
    "local_expert_offset is 9, but must be from 0 to 4": lambda a: a | {"local_expert_offset": 9},
    "topk_ids: dimension k is 2, but must be 1 for weights on the input": lambda a: a | {
        "apply_router_weight_on_input": True
    },
    "num_experts is 3, but must be an int that is at least E, 5": lambda a: a | {"num_experts": 3},
    r"replica_counts \[L\] is of expert_map \[L, R\], and must be given with it alone": lambda a: a | {
        "expert_map": torch.zeros(20, 2, dtype=torch.int32)
    },
    r"replica_counts \[L\] is of expert_map \[L, R\]": lambda a: a | {
        "expert_map": torch.zeros(20, dtype=torch.int32), "replica_counts": torch.ones(20, dtype=torch.int32)
    },
    "replica_counts: dimension 0 is 19, but must be 20": lambda a: a | {
        "expert_map": torch.zeros(20, 2, dtype=torch.int32), "replica_counts": torch.ones(19, dtype=torch.int32)
    },
    "expert_map has type torch.int64, but must have torch.int32": lambda a: a | {"expert_map": torch.zeros(20).long()},
    "topk_ids: dimension k is 17, but must be from 1 to 16": lambda a: a | {
        "topk_ids": torch.zeros(5, 17, dtype=torch.int32), "topk_weights": torch.zeros(5, 17)
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_refused(ragged_moe, weights, sentence):
    hidden, ids, given = draw(5, 2)
    names = "hidden", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale"
    out = torch.full((5, HIDDEN), 7, dtype=torch.bfloat16)
    with emulated_gpu.session():
        tensors = dict(zip(names, (hidden, ids, given, *weights)))
        wrong = WRONG[sentence](tensors | {"local_expert_offset": OFFSET, "num_experts": EVERYWHERE})
        wrong, out = emulated_gpu.device_tensors((wrong, out))
        with pytest.raises(ValueError, match=sentence):
            ragged_moe.experts(**wrong, out=out)
    assert (out == 7).all()


@pytest.mark.thorough  # operator_checks.py has another operator traced
@pytest.mark.skipif(MACHINE != "h200", reason="the host's part, the same on a B200")
def test_compiled_by_torch(ragged_moe, weights):
    """One graph, whose operator is a fake one while it is traced."""
    from ragged_moe.reference.layer import quantised

    def model(hidden, ids, given, *weights):
        where = {"local_expert_offset": OFFSET, "num_experts": EVERYWHERE}
        return ragged_moe.experts(hidden * 1, ids, given, *weights, **where) + 0

    hidden, ids, given = draw(4, 3)
    graph = torch.export.export(Model(model), (hidden, ids, given, *weights)).graph
    assert [n.target for n in graph.nodes if "ragged_moe" in str(n.target)] == [torch.ops.ragged_moe.experts.default]
    with emulated_gpu.session():
        tensors = emulated_gpu.device_tensors((hidden, ids, given, *weights))
        options = {"local_expert_offset": OFFSET, "num_experts": EVERYWHERE}
        found = torch.ops.ragged_moe.experts(*tensors, **options)
        check(found, *quantised(hidden.float()), ids, given, weights)
        learning = torch.ops.ragged_moe.experts(tensors[0].requires_grad_(), *tensors[1:], **options)
        with pytest.raises(RuntimeError, match="^ragged_moe.experts has no gradients$"):
            learning.sum().backward()


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_planted_fault_is_seen(ragged_moe, weights, monkeypatch):
    """What the tests above are worth: rows of one token too far."""
    from ragged_moe.kernels import assign
    from ragged_moe.reference.layer import quantised

    monkeypatch.setattr(assign, "divide", lambda x, y: moe_divide(x, y) + (0 if y is assign.THREADS else 1))
    moe_divide = __import__("ragged_moe.kernels.ptx", fromlist=["divide"]).divide
    ragged_moe.calls.known.clear()
    hidden, ids, given = draw(20, 6)
    try:
        with compiled_anew(ragged_moe.assign_program), pytest.raises((AssertionError, emulated_gpu.EmulatorError)):
            check(called(ragged_moe, hidden, ids, given, weights), *quantised(hidden.float()), ids, given, weights)
    finally:
        ragged_moe.calls.known.clear()


@pytest.mark.skipif(MACHINE != "b200", reason="the pages' examples are run on one machine each")
def test_example_of_the_page(ragged_moe, monkeypatch):
    from ragged_moe.reference.layer import distance, quantised

    names = examples.run("EXPERTS.md", MACHINE, monkeypatch)
    expected = names["expected"](*quantised(names["operands"][0].float()), *names["of"])
    assert distance(names["out"], expected) <= 0.02
