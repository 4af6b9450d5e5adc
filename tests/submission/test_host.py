"""The submission's host side: schedule, configs, words of a launch, what is refused. No kernel is compiled."""

import ast
import copy
import itertools
import pathlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import submission
from submission import Config, DualGemm, GroupGemm, Launch, Plan, Position, deal, partition, token_tile
from task import read_task_yaml
from tests.submission.fake_executor import FakeExecutor

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = (ROOT / "submission.py").read_text()
SCHEDULE = {"tokens": 256, "token_cost": 100, "stages": 0}  # for every value of these the kernel is the same
BENCHMARKS = [case.args for case in read_task_yaml((ROOT / "task.yml").read_text(), "benchmarks")]


def config_of(sharers, **entries) -> Config:
    if sharers == 2:
        entries |= {"sharers": 2, "gran": 128, "sms": 2 * entries["sms"]}
    if sharers == "of tokens":
        entries |= {"token_sharers": 2, "gran": 128, "sms": 2 * entries["sms"], "token_box": 16}
        entries["tokens"] = submission.round_up(entries["tokens"], 64)
    return Config(**entries)


configs = st.builds(
    config_of,
    tokens=st.sampled_from(submission.TOKEN_TILES),
    sharers=st.sampled_from((1, 2, "of tokens")),
    gran=st.sampled_from((32, 64, 128)),
    token_box=st.sampled_from((16, 32, 64, 128)),
    token_cost=st.sampled_from((0, 30, 100)),
    store_boxes=st.sampled_from((1, 2)),
    epilogue_warps=st.sampled_from((4, 8)),
    sms=st.sampled_from((2, 10, 148)),
    waves=st.sampled_from((1, 2, 6)),
)
multiples = {x: st.integers(1, 60).map(x.__mul__) for x in (16, 32, 64)}
sizes = st.tuples(st.integers(1, 700), multiples[16], multiples[64])


# -- the file ---------------------------------------------------------------------------------------------------------


def test_file_is_a_valid_upload():
    assert SOURCE.splitlines()[:2] == ["#!POPCORN leaderboard nvfp4_group_gemm", "#!POPCORN gpu B200"]
    assert "stream" not in SOURCE.lower()  # the grader refuses the word


def test_imports_are_there_on_the_grader():
    allowed = {"ctypes", "dataclasses", "functools", "itertools", "math", "operator", "typing"}
    allowed |= {"bisect", "os", "random", "statistics", "sys", "time"}
    allowed |= {"torch", "cutlass", "cuda", "task"}
    for node in ast.walk(ast.parse(SOURCE)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= allowed


def test_every_benchmark_has_a_config():
    cases = {(b["m"], b["n"][0], b["k"][0]) for b in BENCHMARKS}
    assert cases == set(submission.CONFIG_MAP)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sharers": 4},
        {"sharers": 2, "gran": 64},
        {"sharers": 2, "sms": 146},
        {"sharers": 2, "token_sharers": 2, "sms": 8},
        {"token_sharers": 2, "gran": 64, "sms": 4},
        {"token_sharers": 2, "tokens": 96, "sms": 4},
        {"token_sharers": 2, "token_box": 32, "sms": 4},  # a sharer would overwrite what the other has loaded
        {"wide_token_box": 48, "token_box": 32},
        {"gran": 16},
        {"tokens": 224},  # tiles would touch three scale atoms
        {"token_box": 24},
        {"epilogue_warps": 6},
        {"sms": 147},
        {"stages": 17},
        {"waves": 0},
        {"waves": 7},  # more than the kernel's parameters hold
        {"weight_policy": "sometimes"},
        {"store_policy": "never"},
    ],
)
def test_config_refuses(wrong):
    with pytest.raises(AssertionError):
        Config(**wrong)


# -- schedule ---------------------------------------------------------------------------------------------------------


@given(m=st.integers(1, 3000), config=configs)
def test_token_tiles_fit_the_hardware(m, config):
    width = token_tile(m, config)
    for token in range(0, m, width):
        tokens = submission.round_up(min(width, m - token), config.token_unit)
        assert tokens % 32 == 0 and tokens <= 256  # N of the MMA
        assert tokens <= submission.ACC_COLS  # does not reach the scale factors
        assert token % 32 == 0 and token % 128 + tokens <= 256  # two scale factor atoms, shifted by whole columns


@given(n=st.integers(1, 200).map(lambda x: 16 * x))
def test_a_cluster_covers_each_weight_row_once(n):
    """Pairs that share weights have the same rows, those that share tokens different ones."""
    for config in (Config(), Config(sharers=2, sms=4), Config(token_sharers=2, sms=4)):
        gemm = GroupGemm(1, config)
        ctas = [SimpleNamespace(rank=rank, sharer=i) for rank in (0, 1) for i in range(config.token_sharers)]
        rows = [gemm.weight_row(row, cta) for cta in ctas for row in range(gemm.rows_per_cta(n))]
        assert sorted(row for row in rows if row < n) == list(range(n))


@given(n=st.integers(1, 100).map(lambda x: 32 * x))
def test_a_cluster_covers_each_row_of_both_b_once(n):
    """A CTA has 16 of the next 32 rows of either."""
    for config in (Config(), Config(token_sharers=2, sms=4)):
        gemm = DualGemm(1, config)
        ctas = [SimpleNamespace(rank=rank, sharer=i) for rank in (0, 1) for i in range(config.token_sharers)]
        firsts = [gemm.weight_row(row, cta) for cta in ctas for row in range(0, gemm.rows_per_cta(n), 32)]
        assert sorted(first for first in firsts if first < n) == list(range(0, n, 16))


def tiles_of(segments, ranges):
    """What the kernel makes of the ranges: for each its tiles (segment, row, rows)."""
    index = {position: s for s, (position, *_) in enumerate(segments)}

    def place(position):
        return index.get(position._replace(row=0), len(segments)), position.row

    for start, end in ranges:
        (s, row), end, tiles = place(start), place(end), []
        while (s, row) < end:
            limit = end[1] if s == end[0] else segments[s][1]
            rows = min(128 - row % 128, limit - row)
            tiles.append((s, row, rows))
            s, row = (s, row + rows) if row + rows < limit or s == end[0] else (s + 1, 0)
        yield tiles


segment_lists = st.lists(
    st.tuples(multiples[16], st.sampled_from((32, 96, 256)), st.sampled_from((64, 256, 448))),  # rows, tokens, k
    min_size=1,
    max_size=3,
).map(lambda xs: [(Position(g, 0, 0), *x) for g, x in enumerate(xs)])


@given(segments=segment_lists, parts=st.integers(1, 12), gran=st.sampled_from((32, 64, 128)))
def test_partition_covers_every_row_once(segments, parts, gran):
    ranges = partition(segments, parts, gran)
    assert 0 < len(ranges) <= parts and all(start < end for start, end in ranges)
    done = [(s, row + i) for tiles in tiles_of(segments, ranges) for s, row, rows in tiles for i in range(rows)]
    assert sorted(done) == [(s, row) for s, (_, rows, _, _) in enumerate(segments) for row in range(rows)]
    assert all(start.row % gran == 0 for start, _ in ranges)


def test_neighbours_share_weights():
    """Two token tiles of two row blocks, a range each: by row, then by token."""
    ranges = partition([(Position(0, token, 0), 256, 128, 64) for token in (0, 128)], 4, 128)
    assert [start[1:] for start, _ in ranges] == [(0, 0), (128, 0), (0, 128), (128, 128)]


def test_the_example_of_partition():
    """As its docstring has it."""
    ranges = partition([(Position(0, 0, 0), 256, 128, 64), (Position(1, 0, 0), 256, 128, 128)], 3, 128)
    assert ranges == [((0, 0, 0), (1, 0, 0)), ((1, 0, 0), (1, 0, 128)), ((1, 0, 128), (2, 0, 0))]


@given(st.tuples(*[st.integers(0, top) for top in (submission.MAX_GROUPS, submission.MAX_SIZE, submission.MAX_SIZE)]))
def test_positions_are_packed_in_their_order(numbers):
    position = Position(*numbers)
    assert Position.unpack(position.pack()) == position and 0 <= position.pack() < 2**63
    for later in (position._replace(row=position.row + 1), position._replace(token=position.token + 1, row=0)):
        if max(later[1:]) <= submission.MAX_SIZE:
            assert position.pack() < later.pack()


@pytest.mark.parametrize(
    "sizes, loaded", [((128, 64, 32, 16), [(0, 64), (64, 80)]), ((48, 32, 16), [(0, 48), (48, 80)])], ids=str
)
def test_the_example_of_boxes(monkeypatch, sizes, loaded):
    """80 rows, as its docstring has it."""
    monkeypatch.setattr(submission, "select", lambda condition, x, y: x if condition else y)
    gemm = GroupGemm(1, Config())
    gemm.tensormap = lambda *_: None
    tile = SimpleNamespace(group=0)
    boxes = gemm.boxes(SimpleNamespace(params=0), tile, 0, list(sizes), 0, 0, 80, at=lambda y: y)
    assert [(box.at, box.at + box.size // 128) for box in boxes if box.condition] == loaded


@given(segments=segment_lists, parts=st.integers(1, 12), gran=st.sampled_from((32, 64, 128)))
def test_ranges_cost_the_same(segments, parts, gran):
    """Up to one unit of `gran` rows, also where a segment ends in part of one."""
    unit = max((128 + tokens) * k for _, _, tokens, k in segments)
    total = sum(-(-rows // gran) * (128 + tokens) * k for _, rows, tokens, k in segments)
    for tiles in tiles_of(segments, partition(segments, parts, gran)):
        cost = {s: sum(rows for t, _, rows in tiles if t == s) for s, _, _ in tiles}
        cost = sum(-(-rows // gran) * (128 + segments[s][2]) * segments[s][3] for s, rows in cost.items())
        assert cost <= total / parts + unit


@given(count=st.integers(1, 60), clusters=st.integers(1, 12))
def test_each_range_is_dealt_once_and_evenly(count, clusters):
    dealt = deal([*range(count)], clusters)
    assert sorted(itertools.chain(*dealt)) == [*range(count)]
    assert len(dealt) == min(count, clusters) and {len(x) for x in dealt} <= {count // clusters, -(-count // clusters)}


def test_the_costliest_ranges_are_dealt_with_the_cheapest():
    """And who gets one more gets the cheapest of all."""
    assert deal([4, 3, 2, 1], 2) == [(4, 1), (3, 2)]
    assert deal([9, 8, 7, 6, 5, 4, 3], 3) == [(5, 4, 3), (9, 6), (8, 7)]


# -- launches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def executors(monkeypatch):
    """{(groups, config): FakeExecutor} of what was compiled."""
    made = {}

    def compiled(kernel, groups, config):
        return made.setdefault((groups, config), FakeExecutor(kernel(groups, config)))

    monkeypatch.setattr(submission, "compiled", compiled)
    monkeypatch.setattr(submission, "clusters_at_once", lambda size: 148 // size)
    submission.plan.cache_clear()
    yield made
    submission.plan.cache_clear()


def group(m, n, k):
    """(a, b, c), (sfa, sfb), (M, N, K, 1) as the task makes them."""
    fp4 = [torch.zeros((1, r, k // 2), dtype=torch.uint8).permute(1, 2, 0).view(torch.float4_e2m1fn_x2) for r in (m, n)]
    c = torch.zeros((1, m, n), dtype=torch.float16).permute(1, 2, 0)
    atoms = [(1, -(-r // 128), k // 64, 32, 4, 4) for r in (m, n)]
    scales = [torch.zeros(shape, dtype=torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0) for shape in atoms]
    return (*fp4, c), tuple(scales), (m, n, k, 1)


def problem(*shapes):
    abc, scales, dims = zip(*(group(*shape) for shape in shapes))
    return list(abc), [], list(scales), list(dims)


def launched(executors):
    return [words for executor in executors.values() for words in executor.launched]


@settings(max_examples=40, deadline=None)
@given(shapes=st.lists(sizes, min_size=1, max_size=16), config=configs)
def test_a_launch_fits_the_machine(shapes, config):
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "compiled", lambda kernel, *key: made.append(FakeExecutor(kernel(*key))) or made[-1])
        launch = Launch(GroupGemm, shapes, config)
        launch(range(5 * len(shapes)))
    (words,) = made[0].launched
    gemm = made[0].gemm
    grid, smem, groups = words[gemm.scalars : gemm.clusters]
    assert 0 < grid <= config.sms and grid % config.cluster == 0 and groups == len(shapes)
    assert smem + 1024 <= 228 * 1024
    stores = config.epilogue_warps * config.store_boxes * 2048
    assert gemm.groups * gemm.operands * 128 + 8 * len(words) <= 32764
    found = []
    for cluster in range(grid // config.cluster):
        ring, *table = words[gemm.clusters + cluster * gemm.of_cluster :][: gemm.of_cluster]
        stages, token_bytes = ring & 0xFFFFFFFF, ring >> 32
        assert 1 <= stages <= submission.MAX_STAGES
        assert smem >= 1024 + stages * gemm.stage_layout(token_bytes)[-1] + stores
        ranges = [x for x in zip(table[::2], table[1::2]) if x != (0, 0)]
        assert table[2 * len(ranges) :] == [0] * (len(table) - 2 * len(ranges))
        assert config.waves == 1 or len(table) > 2 * len(ranges)  # where the kernel sees that there are no more
        groups = {g for start, end in ranges for g in range(start >> 48, (end - 1 >> 48) + 1)}
        share = max(token_tile(shapes[g][0], config) for g in groups) // 2
        assert share * 128 <= token_bytes < (share + config.token_box) * 128
        assert token_bytes % (config.token_box * 128) == 0
        found += ranges
    found.sort()
    assert found[0][0] == 0 and found[-1][1] == len(shapes) << 48
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(found))
    for g, (m, n, k) in enumerate(shapes):
        assert words[5 * g : 5 * g + 5] == list(range(5 * g, 5 * g + 5))
        assert words[gemm.sizes + 2 * g] == m + (n << 32) and words[gemm.sizes + 2 * g + 1] & 0xFFFFFFFF == k


@pytest.mark.parametrize("fit", [35, 36])
def test_sharers_only_if_all_their_clusters_run_at_once(executors, monkeypatch, fit):
    config = Config(sharers=2, sms=144)
    monkeypatch.setattr(submission, "DEFAULT", config)
    monkeypatch.setattr(submission, "clusters_at_once", {4: fit}.__getitem__)
    submission.plan(((40, 64, 128, 1),))
    ((_, used),) = executors
    assert used == replace(config if fit == 36 else Config(), **SCHEDULE)


def test_a_thread_without_a_cuda_context_can_ask_for_clusters(monkeypatch):
    """A thread has one once it has called CUDA's runtime. On an H200: silicon/entry/h200_real.py."""
    here, asked = threading.local(), []

    class HardwareInfo:
        def get_max_active_clusters(self, size):
            asked.append((getattr(here, "context", "CUDA_ERROR_INVALID_CONTEXT"), size))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: setattr(here, "context", "current"))
    monkeypatch.setattr(submission, "HardwareInfo", HardwareInfo)
    thread = threading.Thread(target=submission.clusters_at_once.__wrapped__, args=(4,))
    thread.start()
    thread.join()
    assert asked == [("current", 4)]


def test_addresses_and_outputs_are_those_given(executors):
    data = problem((40, 64, 128), (0, 32, 64), (1, 16, 64))
    out = submission.custom_kernel(data)
    assert all(o is c for o, (_, _, c) in zip(out, data[0], strict=True))
    (words,) = launched(executors)
    for i, g in enumerate((0, 2)):  # the empty group takes no part
        assert words[5 * i : 5 * i + 5] == [t.data_ptr() for t in (*data[0][g], *data[2][g])]


def test_all_groups_empty_launches_nothing(executors):
    submission.custom_kernel(problem((0, 128, 64), (0, 16, 256)))
    assert not executors


@pytest.mark.parametrize("groups, launches", [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_many_groups_take_several_launches(executors, groups, launches):
    submission.custom_kernel(problem(*[(1, 16, 64)] * groups))
    assert len(launched(executors)) == launches


def test_one_kernel_serves_other_sizes(executors):
    for m, n, k in ((1, 16, 64), (300, 400, 1024), (77, 4096, 64)):
        submission.custom_kernel(problem((m, n, k), (2 * m, n, k), (3 * m, n, 2 * k)))
    assert len(executors) == 1


def test_benchmarks_use_their_configs(executors):
    for b in BENCHMARKS[2:]:  # the smaller ones
        submission.custom_kernel(problem(*zip(b["m"], b["n"], b["k"])))
    expected = {submission.CONFIG_MAP[b["m"], b["n"][0], b["k"][0]][0] for b in BENCHMARKS[2:]}
    assert {config for _, config in executors} == {replace(config, **SCHEDULE) for config in expected}


def test_few_kernels_serve_every_number_of_groups(executors):
    for groups in range(1, 34):
        submission.custom_kernel(problem(*[(1, 16, 64)] * groups))
    assert {groups for groups, _ in executors} == {1, 2, 4, 8, 16}


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size, says",
    [
        ((96, 100, 256, 1), "group 1: N is 100"),
        ((96, 0, 256, 1), "group 1: N is 0"),
        ((96, 128, 96, 1), "group 1: K is 96"),
        ((96, 128, 0, 1), "group 1: K is 0"),
        ((-1, 128, 64, 1), "group 1: M is -1"),
        ((1 << 24, 128, 64, 1), "group 1: M is 16777216"),
        ((96, 128, 256, 2), "group 1: L is 2"),
        ((96, 128, 256), "group 1: the sizes"),
        ((96.0, 128, 256, 1), "group 1: the sizes"),
    ],
)
def test_refuses_sizes(executors, size, says):
    abc, _, scales, dims = problem((32, 64, 128), (96, 128, 256))
    with pytest.raises(ValueError, match=says):
        submission.custom_kernel((abc, [], scales, [dims[0], size]))
    assert not executors


NAMES = ("a", "b", "c", "reordered sfa", "reordered sfb")


def change(t, how):
    if how == "type":
        return t.view(torch.int16 if t.dtype == torch.float16 else torch.uint8)
    if how == "shape":
        return t[:-1] if t.dim() == 3 else t[:, :, :-1]
    if how == "strides":
        bits = torch.int16 if t.element_size() == 2 else torch.uint8
        return torch.empty_strided(t.shape, [2 * s for s in t.stride()], dtype=bits).view(t.dtype)
    if how == "device":
        return t.to("meta")
    raise AssertionError(how)


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("how", ["type", "shape", "strides", "device"])
@pytest.mark.parametrize("operand", range(5), ids=NAMES)
def test_refuses_tensors(executors, operand, how, first):
    data = problem((200, 64, 128), (140, 256, 256))
    if not first:
        submission.custom_kernel(data)
    before = len(launched(executors))
    abc, scales = data[0], data[2]
    where = abc if operand < 3 else scales
    tensors = list(where[1])
    tensors[operand % 3 if operand < 3 else operand - 3] = change((*abc[1], *scales[1])[operand], how)
    where[1] = tuple(tensors)
    with pytest.raises(ValueError, match=f"group 1: {NAMES[operand]} has {how}"):
        submission.custom_kernel(data)
    assert len(launched(executors)) == before


def test_refuses_missing_tensors(executors):
    abc, _, scales, dims = problem((32, 64, 128), (96, 128, 256))
    for wrong in ((abc[:1], scales, dims), (abc, scales[:1], dims), (abc, scales, dims[:1]), ([], [], [])):
        with pytest.raises(ValueError):
            submission.custom_kernel((wrong[0], [], *wrong[1:]))
    with pytest.raises(ValueError, match="each group"):
        submission.custom_kernel(([(1, 2, 3)], [], [(4, 5)], [(32, 64, 128, 1)]))
    assert not launched(executors)


def shift(c):
    """c at an address that is 2 bytes above a multiple of 16."""
    return torch.zeros(c.numel() + 8, dtype=torch.float16)[1 : c.numel() + 1].view(c.shape)


CALLS = {  # what is wrong with the last of 17 groups, which takes two launches: (a, b, c), (sfa, sfb) -> what is given
    "misaligned": (lambda x, y: ((*x[:2], shift(x[2])), y), "every tensor must be aligned to 16 bytes"),
    "no tensor": (lambda x, y: ((*x[:2], "c"), y), "each group must have the tensors"),
    "none": (lambda x, y: (x, (None, y[1])), "each group must have the tensors"),
    "too few": (lambda x, y: (x, y[:1]), "each group must have the tensors"),
    "too many": (lambda x, y: (x, (*y, y[1])), "each group must have the tensors"),
    "another order": (lambda x, y: ((x[1], x[0], x[2]), y), "group 16: a has shape"),
    "sparse": (lambda x, y: ((*x[:2], x[2].to_sparse()), y), "group 16: c has strides"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_later_call_is_refused_as_the_first_is(executors, what):
    """Before anything is launched, and the calls after it are none the worse."""
    abc, _, scales, dims = problem(*[(4, 32, 64)] * 16, (8, 48, 128))
    spoil, says = CALLS[what]
    last = spoil(abc[-1], scales[-1])
    for before in (0, 2):
        with pytest.raises(ValueError, match=says):
            submission.custom_kernel(([*abc[:-1], last[0]], [], [*scales[:-1], last[1]], dims))
        assert len(launched(executors)) == before
        submission.custom_kernel((abc, [], scales, dims))
        assert len(launched(executors)) == before + 2


@pytest.fixture
def looked_at(monkeypatch):
    """The lists of tensors that Python looks at, in turn."""
    seen, check = [], Plan.check
    monkeypatch.setattr(Plan, "check", lambda self, tensors: seen.append(tensors) or check(self, tensors))
    return seen


DTYPES = [x for x in vars(torch).values() if isinstance(x, torch.dtype) and x.itemsize <= 2]


def variants(t):
    """Tensors that differ from t in one thing, which may or may not matter."""
    yield t.clone()
    for dtype in DTYPES:
        if dtype.itemsize == t.element_size():
            yield t.view(dtype)
    memory = torch.zeros(1 << 20, dtype=torch.int16 if t.element_size() == 2 else torch.uint8)
    for d in range(t.dim()):
        for size, stride in ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 16), (0, -t.stride(d))):
            shape, strides = [*t.shape], [*t.stride()]
            shape[d], strides[d] = max(shape[d] + size, 0), max(strides[d] + stride, 0)
            yield memory.as_strided(shape, strides).view(t.dtype)
    for offset in (1, 8, 16):
        yield memory[offset:].as_strided(t.shape, t.stride()).view(t.dtype)
    yield from (t.unsqueeze(0), t.unsqueeze(-1), t[..., 0], t.flatten(), t.to("meta"), t[:0])


def accepts(plan, tensors) -> bool:
    try:
        return plan.addresses(tensors) == [t.data_ptr() for t in tensors]
    except ValueError:
        return False


@pytest.mark.parametrize("operand", range(5), ids=NAMES)
@pytest.mark.parametrize("shape", [(200, 64, 128), (1, 16, 64), (0, 144, 192)], ids=str)
def test_a_later_call_accepts_what_a_first_one_does(executors, looked_at, shape, operand):
    """Every variant of an operand. Python looks only at tensors that do not look like those accepted last."""
    data, verdicts = problem((8, 16, 64), shape), set()
    submission.custom_kernel(data)
    good = [t for group in zip(data[0], data[2]) for part in group for t in part]
    later = submission.plan(tuple(data[3]))
    where = 5 + operand
    for variant in variants(good[where]):
        tensors = [*good[:where], variant, *good[where + 1 :]]
        fresh = copy.copy(later)
        fresh.guards = None
        first = accepts(fresh, tensors)
        assert accepts(later, good)
        looked_at.clear()
        assert accepts(later, tensors) == first
        looks = [(t.dtype, t.device, t.layout, t.shape, t.stride()) for t in (variant, good[where])]
        assert len(looked_at) == (looks[0] != looks[1])
        verdicts.add(first)
    assert verdicts == {True, False}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_mode_of_autograd_does_not_matter(executors, mode):
    data = problem((40, 64, 128))
    for _ in range(2):
        with mode():
            submission.custom_kernel(data)
        submission.custom_kernel(data)
    assert len(launched(executors)) == 4


def test_memory_that_a_tensor_has_changed_for_other(executors, looked_at):
    """The same tensor object: its address is read in each call, and so is what it looks like."""
    data = problem((40, 64, 128))
    submission.custom_kernel(data)
    c = data[0][0][2]
    c.set_(torch.zeros(1, 40, 64, dtype=torch.float16).permute(1, 2, 0))
    submission.custom_kernel(data)
    first, second = launched(executors)
    assert first[2] != second[2] == c.data_ptr() and len(looked_at) == 1
    c.set_(torch.zeros(64, 40, 1, dtype=torch.float16))
    with pytest.raises(ValueError, match="group 0: c has shape"):
        submission.custom_kernel(data)


def test_without_the_guards_of_torch(executors, looked_at, monkeypatch):
    """Python looks at the tensors of every call."""
    monkeypatch.setattr(submission, "TensorGuards", None)
    data = problem((40, 64, 128), (1, 16, 64))
    for _ in range(3):
        submission.custom_kernel(data)
    assert len(launched(executors)) == len(looked_at) == 3


def test_sets_of_tensors_in_turn(executors, looked_at):
    """Only their addresses differ from call to call; the same tensors may serve several groups."""
    shapes = [(64, 128, 256), (0, 16, 64), (64, 128, 256)] * 6  # 12 groups that are not empty
    sets = [problem(*shapes) for _ in range(15)]
    sets[3][0][2], sets[3][2][2] = sets[3][0][0], sets[3][2][0]
    for data in sets * 2:
        submission.custom_kernel(data)
    for words, (abc, _, scales, _) in zip(launched(executors), sets * 2, strict=True):
        taken = [t.data_ptr() for g in range(18) if shapes[g][0] for t in (*abc[g], *scales[g])]
        assert words[:60] == taken
    assert len(looked_at) == 3  # the first call's, and twice the set that has a tensor in two places


def test_a_group_of_the_second_launch(executors):
    sets = [problem(*[(4, 32, 64)] * 17) for _ in range(2)]
    for abc, *others in sets:
        submission.custom_kernel((abc, *others))
    words = launched(executors)
    assert [w[:5] for w in words if len(w) == len(words[-1])] == [
        [t.data_ptr() for t in (*abc[16], *scales[16])] for abc, _, scales, _ in sets
    ]


def test_a_launch_that_fails_is_an_error(executors):
    data = problem((40, 64, 128))
    submission.custom_kernel(data)
    (executor,) = executors.values()
    executor.cuda_result.value = 719
    with pytest.raises(RuntimeError, match="launch failed with CUDA error 719"):
        submission.custom_kernel(data)


def test_a_view_of_one_row_has_any_stride(executors):
    data = problem((1, 64, 128))
    a, b, c = data[0][0]
    data[0][0] = (a, b, torch.zeros(4, 64, dtype=torch.float16)[::4].unsqueeze(-1))
    submission.custom_kernel(data)
    assert len(launched(executors)) == 1
