"""The commonest mistakes, made on purpose: the numbers that come of each are known again."""

import functools
import sys
from collections.abc import Callable

import pytest
import torch

import reference
from evaluation.judge.own_task import reference_operands
from evaluation.tasks import patterns, products
from evaluation.tasks.others import close

M, N, K = 256, 256, 1024


@functools.cache
def drawn(generate=reference.generate_input):
    return generate([M, M], [N, N], [K, K], 2, 1111, torch.device("cpu"))


@functools.cache
def case(generate=reference.generate_input):
    """The first group's operands, and the exact results of both."""
    data = drawn(generate)
    return reference_operands(data, 0), *(c[:, :, 0] for c in reference.ref_kernel(data))


@functools.cache
def second():
    return reference_operands(drawn(), 1)


def explain(got: torch.Tensor, *operands: Callable[[], products.Operands]) -> str:
    """What is said about a result of the first group. operands: of all groups."""
    known = functools.partial(products.mistakes, operands=operands or (lambda: case()[0], second))
    return patterns.explain(got, case()[1], (case()[2],), known)


def exact(**changed) -> torch.Tensor:
    """The first group's sums with some operands changed, each by a function."""
    a, b = factors(case()[0] | {name: change(case()[0][name]) for name, change in changed.items()})
    return a @ b.T


def product(**changed) -> torch.Tensor:
    return exact(**changed).half()


def factors(of: products.Operands) -> list[torch.Tensor]:
    return [of[key] * of[f"sf{key}"].repeat_interleave(16, 1) for key in "ab"]


def part(rows=slice(None), columns=slice(None)) -> torch.Tensor:
    """The right result with zeros at some places."""
    got = case()[1].clone()
    got[rows, columns] = 0
    return got


def without(k: slice) -> torch.Tensor:
    def cut(numbers):
        numbers = numbers.clone()
        numbers.view(len(numbers), -1, k.step or K)[:, :, k.start : k.stop] = 0
        return numbers

    return product(a=cut)


def tiles(x: torch.Tensor, tile: int) -> torch.Tensor:
    return x.view(M // tile, tile, N // tile, tile).transpose(1, 3).reshape(M, N)


def late(by: int):
    return lambda x: torch.cat([x[:, :by], x[:, :-by]], 1)


def ordered(order: Callable[[torch.Tensor], torch.Tensor], by: int):
    """Put blocks of K, `by` long, into another order."""
    return lambda x: x.view(len(x), -1, by)[:, order(torch.arange(x.shape[1] // by))].reshape(x.shape)


def exchanged(i: int, j: int, by: int = 128):
    return ordered(lambda at: torch.where(at == i, j, torch.where(at == j, i, at)), by)


def instead(place: int, of: int, by: int):
    return ordered(lambda at: torch.where(at == place, of, at), by)


def turned(by: int, some: int):
    return ordered(lambda at: at.view(-1, some).flip(1).flatten(), by)


def flat(key: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Scales in blocks, read row by row."""
    return lambda _: case()[0][f"memory of {key}"].view(M, K // 16)


def blocks(scales: torch.Tensor) -> torch.Tensor:
    """Scales row by row, read as blocks: what reorder_scales undoes."""
    return scales.reshape(M // 128, K // 64, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(M, K // 16)


def e5m2(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).view(torch.float8_e5m2).double()


def pairs(x: torch.Tensor) -> torch.Tensor:
    return x[:, ::2].repeat_interleave(2, 1)


def swizzled(x: torch.Tensor) -> torch.Tensor:
    """Move 16 bytes of each row as a swizzle of 128 bytes does."""
    to = torch.arange(K // 32)[None] ^ (torch.arange(len(x))[:, None] % 8)
    return x.view(len(x), -1, 32).gather(1, to[:, :, None].expand(-1, -1, 32)).reshape(x.shape)


def rounded(dtype: torch.dtype, tile: int) -> torch.Tensor:
    (a, b), sums = factors(case()[0]), torch.zeros(M, N).to(dtype)
    for k in range(0, K, tile):
        sums = (sums.double() + a[:, k : k + tile] @ b[:, k : k + tile].T).to(dtype)
    return sums.half()


def pitched(pitch: int) -> torch.Tensor:
    """The right result, its rows written `pitch` elements apart, as far as there is room."""
    there = torch.cat([case()[1], torch.zeros(M, pitch - N).half()], 1)
    return there.flatten()[: M * N].view(M, N)


def full(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x)


MISTAKES = {
    # -- what came of the right numbers
    "all are zero": lambda: torch.zeros(M, N).half(),
    "rounded to bfloat16": lambda: case()[1].bfloat16().half(),
    "rounded to FP8 (e4m3)": lambda: case()[1].float().clamp(-448, 448).to(torch.float8_e4m3fn).half(),
    "negated": lambda: -case()[1],
    "2 times the result": lambda: case()[1] * 2,
    "0.3 times the result": lambda: (case()[1].float() * 0.3).half(),
    "all are zero where the result is negative": lambda: case()[1].relu(),
    "the sign is lost where the result is negative": lambda: case()[1].abs(),
    "neighbouring columns are exchanged": lambda: case()[1].view(M, N // 2, 2).flip(2).reshape(M, N),
    "is added: the accumulator was not cleared": lambda: (case()[1].float() + case()[2].float()).half(),
    "0.5 times the result": lambda: case()[1] * 0.5,
    "transposed": lambda: case()[1].T.contiguous(),
    "transposed within tiles of 32 x 32": lambda: tiles(case()[1], 32),
    "rows are those 1 further": lambda: case()[1].roll(-1, 0),
    "columns are those 8 before": lambda: case()[1].roll(8, 1),
    "blocks of 64 rows are exchanged": lambda: case()[1].view(2, 2, 64, N).flip(1).reshape(M, N),
    "blocks of 16 columns are exchanged": lambda: case()[1].view(M, 8, 2, 16).flip(2).reshape(M, N),
    "the result of another group": lambda: case()[2],
    # -- where
    "only in rows 128 to 255 (one block); all are zero": lambda: part(slice(128, 256)),
    "only in columns 64 to 127 (one block); all": lambda: part(columns=slice(64, 128)),
    "only in rows 0 to 127 (one block) and columns 128 to 255 (one block); all": lambda: part(
        slice(0, 128), slice(128, 256)
    ),
    "only in row 7 of each 8": lambda: part(slice(7, None, 8)),
    "only in row 255": lambda: part(255),
    # -- what is multiplied
    "both scales are not applied": lambda: product(sfa=full, sfb=full),
    "A's scales are not applied": lambda: product(sfa=full),
    "B's scales are applied twice": lambda: product(sfb=lambda x: x**2),
    "A's scales stand for B's, too": lambda: product(sfb=lambda _: case()[0]["sfa"]),
    "A's scales: each 4 k-blocks of 16: the first stands for all": lambda: product(
        sfa=lambda x: x[:, ::4].repeat_interleave(4, 1)
    ),
    "B's scales: a stage of k-blocks of 16 late, the first one used twice": lambda: product(sfb=late(1)),
    "K from 512 to 1024 is left out": lambda: without(slice(K // 2, K)),
    "A: the high four bits of each byte are taken first": lambda: product(b=turned(1, 2)),
    "A: signs are lost": lambda: product(a=torch.abs),
    "A's scales lie in blocks of 128 x 4 and are read row by row": lambda: product(sfa=flat("sfa")),
    "both scales lie in blocks of 128 x 4 and are read": lambda: product(sfa=flat("sfa"), sfb=flat("sfb")),
    "B's scales lie row by row and are read as blocks": lambda: product(sfb=blocks),
    "A's scales: k-blocks of 16 are those 1 before": lambda: product(sfa=lambda x: x.roll(1, 1)),
    "K from 768 to 1024 is left out": lambda: without(slice(K - 256, K)),
    "K from 0 to 128 is left out": lambda: without(slice(0, 128)),
    "the last 16 of each k-block of 256 are left out": lambda: without(slice(240, 256, 256)),
    "the last 64 of each k-block of 128 are left out": lambda: without(slice(64, 128, 128)),
    "A: a stage of k-blocks of 128 late": lambda: product(a=late(128)),
    "B and its scales: a stage of k-blocks of 256 late": lambda: product(b=late(256), sfb=late(16)),
    "B's scales: a stage of k-blocks of 128 late": lambda: product(sfb=late(8)),
    "A: k-blocks 1 and 6 of 128 are exchanged": lambda: product(a=exchanged(1, 6)),
    "A and its scales (or B and its scales): k-blocks 0 and 1 of 128 are exchanged": lambda: product(
        b=exchanged(0, 1), sfb=exchanged(0, 1, 8)
    ),
    "B's scales: k-blocks 2 and 3 of 256 are exchanged": lambda: product(sfb=exchanged(2, 3, 16)),
    "B: neighbouring k-blocks of 64 are exchanged": lambda: product(b=turned(64, 2)),
    "k-block 2 of 128 stands in the place of k-block 5, too": lambda: product(
        **{x: instead(5, 2, 128 if x in "ab" else 8) for x in ("a", "b", "sfa", "sfb")}
    ),
    "A: k-block 3 of 128 stands in the place of k-block 7, too": lambda: product(a=instead(7, 3, 128)),
    "K from 384 to 512 is left out": lambda: without(slice(3 * 128, 4 * 128)),
    "A's scales: each 4 k-blocks of 16 come in reverse": lambda: product(sfa=turned(1, 4)),
    # -- fresh ones, made after the explainer had been written
    "A's scales: rows are those 1 further": lambda: product(sfa=lambda x: x.roll(-1, 0)),
    "B's scales: each 128 rows are transposed as 4 x 32": lambda: product(
        sfb=lambda x: x.view(2, 4, 32, -1).transpose(1, 2).reshape(x.shape)
    ),
    "A's scales are not applied in the second half of K": lambda: product(
        sfa=lambda x: torch.cat([x[:, : K // 32], full(x)[:, K // 32 :]], 1)
    ),
    "both scales are read as e5m2": lambda: product(sfa=e5m2, sfb=e5m2),
    "A's and B's scales are exchanged": lambda: product(sfa=lambda _: case()[0]["sfb"], sfb=lambda _: case()[0]["sfa"]),
    "both scales: each 2 k-blocks of 16: the first half stands for both": lambda: product(sfa=pairs, sfb=pairs),
    "A: only written or only read with a swizzle of 128 bytes": lambda: product(a=swizzled),
    "A: neighbouring k-blocks of 32 are exchanged": lambda: product(a=turned(32, 2)),
    "A: buffer 3 of a ring of 4 k-blocks of 128 still has what the one before it has": lambda: product(
        a=ordered(lambda at: torch.where(at % 4 == 3, at - 1, at), 128)
    ),
    "A and its scales: of another group": lambda: product(a=lambda _: second()["a"], sfa=lambda _: second()["sfa"]),
    "A and B: signs are lost": lambda: product(a=torch.abs, b=torch.abs),
    "K from 256 to 1024 is left out": lambda: without(slice(K // 4, K)),
    "sums are rounded to bfloat16 behind each 64 of K": lambda: rounded(torch.bfloat16, 64),
    "saturated at 6": lambda: case()[1].clamp(-6, 6),
    "1 is added to the result": lambda: (case()[1].float() + 1).half(),
    "GELU is applied to the result": lambda: torch.nn.functional.gelu(case()[1].float()).half(),
    "SiLU is applied to the result": lambda: torch.nn.functional.silu(case()[1].float()).half(),
    "all are NaN: inf - inf, 0 / 0, or never written": lambda: case()[1] * torch.nan,
    "rows lie 264 elements apart, not 256": lambda: pitched(N + 8),
    "the result 128 columns before is added: the accumulator was not cleared": lambda: (
        case()[1] + torch.cat([torch.zeros(M, 128).half(), case()[1][:, :128]], 1)
    ),
    "each 128 rows: the first stands for all": lambda: case()[1][torch.arange(M) // 128 * 128],
    "each 128 rows are turned by 32": lambda: case()[1].view(2, 128, N).roll(-32, 1).reshape(M, N),
    "each 128 rows are transposed as 64 x 2": lambda: case()[1].view(2, 64, 2, N).transpose(1, 2).reshape(M, N),
    "each 256 columns are transposed as 2 x 128": lambda: case()[1].view(M, 2, 128).transpose(1, 2).reshape(M, N),
    # -- more of them
    "B: the low four bits of each byte are taken twice": lambda: product(b=lambda x: x[:, ::2].repeat_interleave(2, 1)),
    "bits of bfloat16, read as float16": lambda: exact().bfloat16().view(torch.half),
    "the tiles of 64 columns before are added": lambda: (
        case()[1].view(M, 4, 64).double().cumsum(1).reshape(M, N).half()
    ),
    "only in rows 192 to 255 (one block); each row is row 190": lambda: case()[1][
        torch.where(torch.arange(M) < 192, torch.arange(M), 190)
    ],
    "rows 32 to 63 are 64 to 95, rows 64 to 95 are 32 to 63": lambda: case()[1][
        torch.tensor([0, 2, 1, 3, 4, 5, 6, 7])[:, None].mul(32).add(torch.arange(32)).flatten()
    ],
    "A: 1.5 is read as 2": lambda: product(a=lambda x: torch.where(x.abs() == 1.5, 2 * x.sign(), x)),
    "k-block 1 of 512 stands in the place of k-block 0, too": lambda: product(
        **{x: instead(0, 1, 512 if x in "ab" else 32) for x in ("a", "b", "sfa", "sfb")}
    ),
    "K from 960 to 1024 counts twice": lambda: product(a=lambda x: torch.cat([x[:, :-64], 2 * x[:, -64:]], 1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_known_by_its_numbers(mistake):
    assert mistake in explain(MISTAKES[mistake]())


FULL_RANGE = (
    "A: k-blocks 1 and 6 of 128 are exchanged",
    "A: k-block 3 of 128 stands in the place of k-block 7, too",
    "A's scales are not applied in the second half of K",
    "K from 256 to 1024 is left out",
    "both scales are read as e5m2",
    "K from 960 to 1024 counts twice",
    "bits of bfloat16, read as float16",
)


@pytest.mark.parametrize("mistake", FULL_RANGE)
def test_a_mistake_is_known_by_all_numbers_of_the_formats(mistake, monkeypatch):
    """There many elements are right in spite of it: they tell it from what would have changed them."""
    wide = case(reference.generate_full_range_input)
    monkeypatch.setattr(sys.modules[__name__], "case", lambda: wide)
    assert mistake in explain(MISTAKES[mistake](), lambda: wide[0])


def test_what_is_right_or_of_no_known_mistake_has_no_explanation():
    assert explain(case()[1].clone()) == ""
    noise = torch.from_numpy(reference.np.random.default_rng(1).normal(size=(M, N))).half() * 50
    assert explain(noise) == ""


def test_few_elements_or_two_mistakes_have_no_explanation():
    """Some of the many mistakes agree with a single number by chance."""
    one, mixed = case()[1].clone(), case()[1].clone()
    one[3, 9] += 3
    assert explain(one, lambda: case()[0]) == "only in row 3 and column 9"
    mixed[::2, ::3] *= -1
    mixed[1::2, 1::3] = 0
    assert "; " not in explain(mixed, lambda: case()[0])


def test_sums_of_less_precision_are_said_by_their_size():
    _, want, _ = case()
    got = (want.view(torch.int16) + (want.abs() > 8).short() * 2).view(torch.float16)
    assert "off by 2 float16 steps at most" in patterns.explain(got, want)


def test_the_rest_behind_whole_tiles():
    wrong = torch.zeros(200, 64, dtype=torch.bool)
    wrong[128:] = True
    assert patterns.where(wrong) == "only in rows 128 to 199 (the rest behind the last whole 128 rows)"
    wrong[:] = False
    wrong[torch.arange(200) % 64 >= 48] = True
    assert patterns.where(wrong) == "only in rows 48 to 63 of each 64"
    wrong[:, ::2] = False
    assert patterns.where(wrong).startswith("only in rows 48 to 63 of each 64 and column 1 of each 2")


SOFTMAX = {
    "each row is a number of its own times the result": lambda x: x.exp(),
    "0.0156 times the result": lambda x: x.softmax(1) / 64,
    "columns are those 1 further": lambda x: x.softmax(1).roll(-1, 1),
    "all are NaN: inf - inf": lambda x: (x * 1e4).exp() / (x * 1e4).exp().sum(1, keepdim=True) * torch.nan,
    "all are infinite": lambda x: (x.abs() + 1e4).exp(),
    "only in rows 16 to 31 (one block); all are zero": lambda x: x.softmax(1).where(
        torch.arange(64)[:, None] // 16 != 1, 0.0
    ),
}


@pytest.mark.parametrize("mistake", SOFTMAX)
def test_mistakes_in_results_that_may_differ_a_little(mistake):
    """Those of a softmax, which is right within a tolerance."""
    x = torch.from_numpy(reference.np.random.default_rng(1).normal(size=(64, 128))).float()
    assert mistake in close(SOFTMAX[mistake](x) * (1 + 1e-6), x.softmax(1), 1e-4, 1e-9)
    drawn = torch.from_numpy(reference.np.random.default_rng(2).normal(size=(64, 128))).float().softmax(1)
    assert close(drawn, x.softmax(1), 1e-4, 1e-9).count(";") == 0


def test_tasks_of_others_say_where():
    got = torch.zeros(4, 64, 128)
    got[2, 32:] = 1
    assert close(got, torch.zeros(4, 64, 128), 1e-3, 1e-3).endswith("; only in rows 160 to 191 (one block)")
