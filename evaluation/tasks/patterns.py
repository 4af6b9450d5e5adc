"""Explains numbers that are wrong: which elements, and of which mistake they are the result.

A mistake is a name and the numbers that a kernel with it would have written. It is said if nearly all elements that
differ are these, and nearly all that are right would have stayed so. The names stand in tables and small generators:
of a result's values (VALUES), of its places, and of what is multiplied (CHANGES). Mistakes with numbers of their own
(a factor, a row, what a code is read as) are solved for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

SAMPLE, FEW = 64, 3  # elements that are looked at, and before, whether most of a few are what a mistake makes
SOME = 4  # fewer elements agree with a mistake by chance
ROWS, LINES = 16, 256  # rows of which it is asked whether they are scaled, and whether they are others
MATCH = 0.9  # of the elements that have to be what a mistake makes
BLOCK = 16  # of K, with one scale
K_TILES = 16, 32, 64, 128, 256  # k-blocks that kernels have, and what copies of scales and of 16 bytes hold
STEPS = 2, 4, 8, 16, 32, 64, 128, 256  # rows or columns that kernels take together
FP4 = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0
EVERY = "a", "b", "sfa", "sfb"


@dataclasses.dataclass
class Operands:
    """One group's numbers. a, b: [M, K], [N, K] with FP4's values; sfa, sfb: [M, K/16], [N, K/16]; all float64.

    codes_a, codes_b: the scales' bytes in the tensor cores' layout, as they lie in memory; uint8, or None.
    """

    a: torch.Tensor
    b: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor
    codes_a: torch.Tensor | None = None
    codes_b: torch.Tensor | None = None


How = Callable[..., torch.Tensor]  # of an operand's name, its rows and their numbers
Made = Iterator[tuple[str, torch.Tensor]]  # mistakes, each with what the elements would be
Changes = Iterator[tuple[str, tuple[str, ...], How]]  # mistakes, each with what is in the place of which operands


@dataclasses.dataclass
class Sample:
    """Some elements of a result: first those that differ, then right ones among them: [S] each.

    numbers, right: what they are, and should be. same: whether values are numbers. of: a row of each operand for each.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    numbers: torch.Tensor
    right: torch.Tensor
    wrong: int
    same: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    of: Any = None

    @classmethod
    def drawn(cls, got, want, differs, same) -> Sample:
        rows, columns, _ = region(differs)
        there = torch.zeros_like(differs)
        there[rows[:, None], columns] = True
        places = [spread(mask.nonzero(), SAMPLE) for mask in (differs, there & ~differs)]
        rows, columns = torch.cat(places).T
        return cls(rows, columns, got[rows, columns], want[rows, columns], len(places[0]), same)

    def made_of(self, whole: Operands, few: bool = False) -> Sample:
        """Return it with its operands. few: of some elements that differ alone."""
        take = slice(0, self.wrong, -(-self.wrong // FEW)) if few else slice(None)
        rows, columns, numbers, right = (x[take] for x in (self.rows, self.columns, self.numbers, self.right))
        of = Operands(whole.a[rows], whole.b[columns], whole.sfa[rows], whole.sfb[columns])
        return Sample(rows, columns, numbers, right, min(self.wrong, len(rows)), self.same, of)

    def share(self, values: torch.Tensor) -> float:
        """Return which part of the numbers is these: of those that differ, or of the right ones if that is less."""
        same = self.same(self.numbers, values).double()
        return min(float(part.mean()) for part in (same[: self.wrong], same[self.wrong :]) if len(part))

    def most(self, values: torch.Tensor) -> torch.Tensor:
        """Return whether most numbers are these [.., S]."""
        return self.same(values, self.numbers).double().mean(-1) > 0.5

    def terms(self, keys: tuple[str, ...] = EVERY, changed: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the products of these operands for each element: [S, K]. changed: what replaces one of them."""
        given = {key: getattr(self.of, key) for key in keys} | (changed or {})
        wide = [x.repeat_interleave(BLOCK, 1) if key.startswith("sf") else x for key, x in given.items()]
        return functools.reduce(torch.mul, wide, torch.ones_like(self.of.a))

    def changed(self, keys: tuple[str, ...], how: How) -> torch.Tensor:
        """Return float16 results of how(key, rows of the operand, places in it) in the place of operands."""
        places = {"a": self.rows, "b": self.columns}
        changed = {key: how(key, getattr(self.of, key), places[key[-1]]) for key in keys}
        return self.terms(changed=changed).sum(1).half()


def spread(some: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most this number of rows, evenly spread."""
    return some[torch.linspace(0, len(some) - 1, min(most, len(some))).long()]


def explain(
    got: torch.Tensor, want: torch.Tensor, operands: tuple[Callable[[], Operands], ...] = (),
    others: tuple[torch.Tensor, ...] = (),
) -> str:  # fmt: skip
    """Say what is the matter with a result [M, N], or "": where it differs, and what mistake makes these numbers.

    operands: give what it is made of, if that is known, and what those of other groups are. others: their results.
    """
    differs = ~identical(got, want)
    if not differs.any():
        return ""
    return "; ".join(filter(None, [where(differs), mistake(got, want, differs, operands=operands, others=others)]))


# ---- where


def where(differs: torch.Tensor) -> str:
    """Say which rows and columns have elements that differ, if these are a pattern: [M, N] bool."""
    rows, columns, said = region(differs)
    share = float(differs[rows][:, columns].float().mean())
    return said and f"only in {said}" + (f", {100 * share:.0f} % of these elements" if share < 0.995 else "")


def region(differs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return the rows and the columns with elements that differ, if these are a pattern, else all; and their name."""
    found, names = [], []
    for axis, name in (0, "row"), (1, "column"):
        some = differs.any(1 - axis).nonzero().flatten()
        names.append(along(some, differs.shape[axis], name))
        found.append(some if names[-1] else torch.arange(differs.shape[axis]))
    return found[0], found[1], " and ".join(filter(None, names))


def along(found: torch.Tensor, size: int, name: str) -> str:
    """Name numbers of rows or columns, if not nearly all of `size` are there."""
    count = len(found)
    if count > 0.9 * size or not count:
        return ""
    first, last = int(found[0]), int(found[-1])
    if count == 1:
        return f"{name} {first}"
    for block in STEPS:
        if first // block == last // block and count > MATCH * block:
            return f"{name}s {first // block * block} to {first // block * block + block - 1} (one block)"
    if count > MATCH * (last - first + 1):
        rest = last == size - 1 and first % 8 == 0 and size % 128 and first == size // 128 * 128
        return f"{name}s {first} to {last}" + (f" (the rest behind the last whole 128 {name}s)" if rest else "")
    steps = (found[1:] - found[:-1]).unique()
    if len(steps) == 1:
        return f"{name} {first} of each {int(steps[0])}"
    for period in STEPS[3:]:
        inside = (found % period).unique()
        if size > period and len(inside) <= period // 2 and count > 0.8 * len(inside) * (size // period):
            low, high = int(inside[0]), int(inside[-1])
            if high - low + 1 == len(inside):
                return f"{name}s {low} to {high} of each {period}"
    return ""


# ---- what


Same = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # whether numbers are alike, one by one


def identical(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def mistake(got, want, differs, same: Same = identical, operands=(), others=()) -> str:
    """Say of which mistake the elements that differ are the result, or "": of a result [M, N] of any float dtype."""
    sample = Sample.drawn(got, want, differs, same)
    made = itertools.chain(by_values(sample), by_groups(sample, others), by_places(want, sample))
    said, part = likeliest(made, sample)
    if part < MATCH and (solved := by_factor(got, want, differs) or by_lines(got, want, differs, same)):
        return solved
    if operands and part < 1.0 and sample.wrong >= SOME:
        other = likeliest(by_operands(sample, operands), sample)
        said, part = max((said, part), other, key=lambda one: one[1])
    return said if part >= MATCH else by_size(sample)


def likeliest(made: Made, sample: Sample) -> tuple[str, float]:
    """Return the mistake of which most elements are the result, and the share of them that are; the first one of which
    all are."""
    best = "", 0.0
    for text, values in made:
        if (part := sample.share(values)) > best[1]:
            best = text, part
        if best[1] == 1.0:
            break
    return best


def by_size(sample: Sample) -> str:
    """Say that what differs is no number, or by how many float16 steps at most, if these are few."""
    got, want = (x[: sample.wrong] for x in (sample.numbers, sample.right))
    if bool((got.isnan() & ~want.isnan()).all()):
        return NAN
    if bool((got.isinf() & want.isfinite()).all()):
        return "all are infinite: an exponent or a sum is too large"
    if got.dtype == torch.float16:
        a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in (x.view(torch.int16).int() for x in (got, want)))
        if (apart := int((a - b).abs().max())) <= 8:
            return f"off by {apart} float16 steps at most: rounding, or sums of less than float32"
    return ""


def by_factor(got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor) -> str:
    """Say that what differs is a number times the result, if it is: one number, or one for each row, or ""."""
    _, columns, _ = region(differs)
    some = spread(differs.any(1).nonzero().flatten(), ROWS)[:, None]
    got, want, differs = got[some, columns].double(), want[some, columns].double(), differs[some, columns]
    sound = got.isfinite() & want.isfinite() & (want != 0) & (got.abs() > 1e-3 * want.abs())
    if int((sound & differs).sum()) < MATCH * int(differs.sum()):
        return ""
    ratios = [(a[at] / b[at]) for a, b, at in zip(got, want, sound, strict=True) if int(at.sum()) > 1]
    if len(ratios) < 2:
        return ""

    def alike(numbers: torch.Tensor) -> bool:
        return float(torch.isclose(numbers, numbers.median(), 4e-3).double().mean()) >= MATCH

    together = torch.cat(ratios)
    if alike(together):
        factor = float(together.median())
        return "" if abs(factor - 1) < 0.01 else f"{factor:.3g} times the result"
    if all(alike(row) for row in ratios):
        return "each row is a number of its own times the result: by what rows are divided or scaled is wrong"
    return ""


def by_lines(got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor, same: Same) -> str:
    """Say that rows or columns are others of the result, if most that differ are: which ones, or ""."""
    for name, a, b, wrong in ("row", got, want, differs), ("column", got.T, want.T, differs.T):
        at, across = wrong.any(1).nonzero().flatten()[:LINES], spread(wrong.any(0).nonzero().flatten(), SAMPLE)
        lines = b[:, across]
        told = (lines != lines[:, :1]).any(1)  # those of one number, zeros, are like many others
        if len(across) < ROWS or len(at) < 2 or not bool(told.any()):
            continue
        alike = torch.stack([same(line, lines).double().mean(1).where(told, 0) for line in a[at][:, across]])
        share, of = alike.max(1)
        if float((share >= MATCH).double().mean()) < MATCH:
            continue
        if len(of.unique()) == 1:
            return f"each {name} is {name} {int(of[0])}"
        pairs = zip(at.tolist(), of.tolist())
        runs = [[*run] for _, run in itertools.groupby(pairs, lambda pair: pair[1] - pair[0])]
        if 2 * len(runs) <= len(at):
            said = [f"{name}s {run[0][0]} to {run[-1][0]} are {run[0][1]} to {run[-1][1]}" for run in runs[:4]]
            return ", ".join(said) + ", .." * (len(runs) > 4)
    return ""


# ---- of the exact results


NAN = "all are NaN: inf - inf, 0 / 0, or never written"
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rounded to bfloat16": lambda x: x.bfloat16(),
    "rounded to FP8 (e4m3)": lambda x: x.float().clamp(-448, 448).to(torch.float8_e4m3fn),
    "all are zero": torch.zeros_like,
    NAN: lambda x: torch.full_like(x, torch.nan),
    "all are zero where the result is negative": lambda x: x.clamp(min=0),
    "the sign is lost where the result is negative": torch.abs,
    "negated": torch.neg,
    "SiLU is applied to the result": lambda x: torch.nn.functional.silu(x.double()),
    "GELU is applied to the result": lambda x: torch.nn.functional.gelu(x.double()),
    "bits of bfloat16, read as float16": lambda x: x.bfloat16().view(torch.half),
    "bits of float16, read as bfloat16": lambda x: x.half().view(torch.bfloat16),
}


def by_values(sample: Sample) -> Made:
    """Yield mistakes of value."""
    right, numbers = sample.right, sample.numbers
    for text, change in VALUES.items():
        yield text, change(right).to(right.dtype)
    if sample.wrong >= SOME and bool((right != right[0]).any()) and bool(numbers[: sample.wrong].isfinite().all()):
        limit = numbers[: sample.wrong].double().abs().max()
        yield f"saturated at {limit:g}", right.double().clamp(-limit, limit).to(right.dtype)
        more = (numbers.double() - right.double())[: sample.wrong].median()
        yield f"{more:g} is added to the result", (right.double() + more).to(right.dtype)


def by_groups(sample: Sample, others: tuple[torch.Tensor, ...]) -> Made:
    """Yield mistakes of groups. others: the results of the other groups."""
    for number, other in enumerate(others):
        if len(other) > int(sample.rows.max()) and other.shape[1] > int(sample.columns.max()):
            there = other[sample.rows, sample.columns]
            which = f"the result of another group (the {number + 1}. of the others)"
            yield which, there
            both = (sample.right.float() + there.float()).half()
            yield f"{which} is added: the accumulator was not cleared", both


def by_places(want: torch.Tensor, sample: Sample) -> Made:
    """Yield mistakes of place."""
    rows, columns, (m, n) = sample.rows, sample.columns, want.shape
    if sample.wrong < SOME:
        return
    if m == n:
        yield "transposed", want[columns, rows]
    for tile in STEPS:
        if m % tile == 0 and n % tile == 0 and max(m, n) > tile:
            there = rows // tile * tile + columns % tile, columns // tile * tile + rows % tile
            yield f"transposed within tiles of {tile} x {tile}", want[there]
    for text, order in orders(m):
        yield text.format("rows"), want[order[rows], columns]
    for text, order in orders(n):
        yield text.format("columns"), want[rows, order[columns]]
    for tile, name in itertools.product(STEPS[2:], ("rows", "columns")):
        x, at, to = (want, rows, columns) if name == "rows" else (want.T, columns, rows)
        before = [x[(at - back).clamp(min=0), to].where(at >= back, 0) for back in range(tile, len(x), tile)]
        if before:
            for what, count in (f"result {tile} {name} before is", 1), (f"tiles of {tile} {name} before are", len(x)):
                sums = sample.right + torch.stack(before[:count]).double().sum(0)
                yield f"the {what} added: the accumulator was not cleared", sums.to(want.dtype)
    flat = rows * n + columns
    for pitch in sorted({m, 2 * n, *(n + step for step in STEPS), *(n - step for step in STEPS if step < n)} - {n}):
        row, column = flat // pitch, flat % pitch
        inside = (column < n) & (row < m)
        other = want[row.clamp(max=m - 1), column.clamp(max=n - 1)]
        if bool(inside.any()):
            yield f"rows lie {pitch} elements apart, not {n}", torch.where(inside, other, sample.numbers)


def orders(count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield wrong orders of `count` {}: at each place the number of what is there."""
    at = torch.arange(count)
    for shift in (1, *STEPS[2:7]):
        if shift < count:
            yield f"{{}} are those {shift} further", at.roll(-shift)
            yield f"{{}} are those {shift} before", at.roll(shift)
    for step in (*STEPS, count):
        if step < 2 or count % step or step > count:
            continue
        half, block, place = step // 2, at // step * step, at % step
        if step % 2 == 0:
            of = "neighbouring" if half == 1 else f"blocks of {half}"
            yield f"{of} {{}} are exchanged", block + (place + half) % step
            yield f"each {step} {{}}: the first half stands for both", block + place % half
        if step > 2:
            yield f"each {step} {{}}: the first stands for all", block
            yield f"each {step} {{}} come in reverse", block + step - 1 - place
            yield f"the first {step} {{}} stand for all", place
            for turn in {1, step // 4, 3 * step // 4, step - 1} - {0}:
                yield f"each {step} {{}} are turned by {turn}", block + (place + turn) % step
        for width in STEPS:
            if step % width == 0 and width < step:
                how = f"each {step} {{}} are transposed as {step // width} x {width}"
                yield how, block + place % (step // width) * width + place // (step // width)


def pairs(count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield orders of k-blocks in which two are exchanged, or one stands for another."""
    for i, j in itertools.permutations(range(count), 2):
        one = torch.arange(count)
        one[j] = i
        yield f"k-block {i} of {{1}} stands in the place of k-block {j}, too", one
        if i < j:
            both = one.clone()
            both[i] = j
            yield f"k-blocks {i} and {j} of {{1}} are exchanged", both


def stages(count: int, rings: range) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield wrong orders of k-blocks, which go through a ring of buffers. rings: how many these may be."""
    at = torch.arange(count)
    yield "a stage of {} late, the first one used twice", (at - 1).clamp(min=0)
    yield "a stage of {} early, the last one used twice", (at + 1).clamp(max=count - 1)
    yield "{} come from last to first", at.flip(0)
    yield "the first of the {} is used each time", torch.zeros_like(at)
    for ring in rings:
        for slot in range(ring):
            text = f"buffer {slot} of a ring of {ring} {{}} still has what"
            for back, what in (ring, "was there a round before"), (1, "the one before it has"):
                stale = (at % ring == slot) & (at >= back)
                if int(stale.sum()) > 1:  # one alone is a k-block in the place of another
                    yield f"{text} {what}", torch.where(stale, at - back, at)


# ---- of what is multiplied


def early(x: torch.Tensor) -> torch.Tensor:
    """Return which of K are in its first half."""
    return torch.arange(x.shape[1]) < x.shape[1] // 2


def of_bytes(low: int, high: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what takes these two numbers of each byte in the place of 0 and 1."""
    return lambda x: x.view(len(x), -1, 2)[:, :, [low, high]].reshape(x.shape)


SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "are not applied": torch.ones_like,
    "are applied twice": torch.square,
    "are read as e5m2": lambda x: x.to(torch.float8_e4m3fn).view(torch.float8_e5m2).double(),
    "are read as e8m0": lambda x: torch.exp2(x.to(torch.float8_e4m3fn).view(torch.uint8).double() - 127),
    "count as powers of two": lambda x: torch.where(x == 0, x, 2.0 ** x.abs().log2().floor()),
    "count as zero below 1/64 (e4m3's subnormal numbers)": lambda x: x.where(x >= 2.0**-6, 0.0),
    "are not applied in the first half of K": lambda x: torch.ones_like(x).where(early(x), x),
    "are not applied in the second half of K": lambda x: x.where(early(x), torch.ones_like(x)),
}
NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "signs are lost": torch.abs,
    "the high four bits of each byte are taken first": of_bytes(1, 0),
    "the low four bits of each byte are taken twice": of_bytes(0, 0),
    "the high four bits of each byte are taken twice": of_bytes(1, 1),
}
PARTS = {  # operands that move together
    "A's scales": ("sfa",), "B's scales": ("sfb",), "both scales": ("sfa", "sfb"), "A": ("a",), "B": ("b",),
    "A and its scales": ("a", "sfa"), "B and its scales": ("b", "sfb"), "A and B": ("a", "b"),
}  # fmt: skip
# What cannot be told from another part that moves the other way
OTHER_WAY = {"A and its scales": "B and its scales", "both scales": "A and B"}


def read_by_rows(scales: torch.Tensor, codes: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return rows `at` of scales that lie in the tensor cores' layout, `codes`, and are read row by row."""
    there = (at[:, None] * scales.shape[1] + torch.arange(scales.shape[1])) % codes.numel()
    return codes.flatten()[there].view(torch.float8_e4m3fn).double()


def read_by_blocks(scales: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return rows `at` of scales that lie row by row and are read in the tensor cores' layout."""
    row, k = at[:, None], torch.arange(scales.shape[1])
    tile = row // 128 * -(-scales.shape[1] // 4) + k // 4
    return scales.flatten()[(tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + k % 4) % scales.numel()]


def other_values(whole: Operands, others, few: Sample) -> Changes:
    """Yield what is decoded or scaled otherwise."""
    for names, table in (("both scales", "A's scales", "B's scales"), SCALES), (("A", "B", "A and B"), NUMBERS):
        for name, (what, change) in itertools.product(names, table.items()):
            yield f"{name}: {what}", PARTS[name], lambda _, x, __, change=change: change(x)


def other_scales(whole: Operands, others, few: Sample) -> Changes:
    """Yield scales of the other operand, in another layout and of other rows."""
    across = {"sfa": whole.sfb, "sfb": whole.sfa}
    for name, what in (("B's scales", "A's scales stand for B's, too"), ("A's scales", "B's scales stand for A's, too"),
                       ("both scales", "A's and B's scales are exchanged")):  # fmt: skip
        yield what, PARTS[name], lambda key, _, at: across[key][at % len(across[key])]
    both = {"sfa": whole.codes_a, "sfb": whole.codes_b}
    codes = {key: one for key, one in both.items() if one is not None}
    for name in ("A's scales", "B's scales", "both scales"):
        keys = PARTS[name]
        if codes.keys() >= {*keys}:
            what = f"{name} lie in blocks of 128 x 4 and are read row by row"
            yield what, keys, lambda key, x, at: read_by_rows(x, codes[key], at)
        what = f"{name} lie row by row and are read as blocks of 128 x 4"
        yield what, keys, lambda key, _, at: read_by_blocks(getattr(whole, key), at)
    for name in ("A's scales", "B's scales"):
        scales = getattr(whole, *PARTS[name])
        for text, order in orders(len(scales)):
            what = f"{name}: {text.format('rows')}"
            yield what, PARTS[name], lambda _, __, at, scales=scales, order=order: scales[order[at]]


def other_swizzle(whole: Operands, others, few: Sample) -> Changes:
    """Yield 16 bytes that lie where another swizzle has them."""
    for (width, bits, period), part in itertools.product(((128, 8, 1), (64, 4, 2), (32, 2, 4)), "AB"):

        def swizzled(_, x, at, bits=bits, period=period):
            chunks = x.view(len(x), -1, 32)
            to = torch.arange(chunks.shape[1])[None] ^ (at[:, None] // period % bits)
            return chunks.gather(1, to.clamp(max=chunks.shape[1] - 1)[:, :, None].expand_as(chunks)).view(x.shape)

        if whole.a.shape[1] % (32 * bits) == 0:
            yield f"{part}: only written or only read with a swizzle of {width} bytes", PARTS[part], swizzled


def other_group(whole: Operands, others, few: Sample) -> Changes:
    """Yield operands of other groups."""
    for give in others:
        if (of := give()).a.shape[1] == whole.a.shape[1]:
            for name, keys in PARTS.items():
                what = f"{name}: of another group"
                yield what, keys, lambda key, _, at, of=of: getattr(of, key)[at % len(getattr(of, key))]


CHANGES = other_values, other_scales, other_swizzle, other_group


def by_operands(sample: Sample, operands: tuple[Callable[[], Operands], ...]) -> Made:
    """Yield mistakes in what is multiplied, of which most of a few elements are the result, and in how it is added."""
    whole = operands[0]()
    few, sample = sample.made_of(whole, few=True), sample.made_of(whole)
    yield from by_parts(sample)
    for text, keys, how in itertools.chain(*(changes(whole, operands[1:], few) for changes in CHANGES)):
        if bool(few.most(few.changed(keys, how))):
            yield text, sample.changed(keys, how)
    yield from by_orders(sample, few)
    yield from by_codes(sample)


def by_orders(sample: Sample, few: Sample) -> Made:
    """Yield k-blocks in another order, of one operand or of some together."""
    k = sample.of.a.shape[1]
    for tile in sorted({*K_TILES, k // 2}, reverse=True):
        if k <= tile or k % tile or tile % BLOCK:
            continue
        count, at, large = k // tile, torch.arange(k // tile), tile >= 64
        rings = range(2, min(count, 7) if large else 2)
        texts, wrong = zip(*(pairs(count) if large else ()), *stages(count, rings), *orders(count))
        every = torch.stack(wrong)
        for name, keys in {**PARTS, "": EVERY}.items():
            stay = tuple(key for key in EVERY if key not in keys)

            def split(some: Sample, keys=keys, stay=stay, shape=(-1, count, tile)) -> list[torch.Tensor]:
                return [some.terms(of).view(shape) for of in (keys, stay)]

            moves, stays = split(few)
            sums = (moves @ stays.mT)[:, every, at].sum(2).half().T  # [orders, elements]
            for number in few.most(sums).nonzero().flatten().tolist():
                order, (moves, stays) = every[number], split(sample)
                turns = len(order.unique()) == count
                if turns and name in OTHER_WAY.values():
                    continue
                way = "" if torch.equal(order[order], at) else " the other way"
                other = f" (or {OTHER_WAY[name]}{way})" if turns and name in OTHER_WAY else ""
                what = texts[number].format(f"k-blocks of {tile}", tile)
                yield f"{name}{other}: {what}".removeprefix(": "), (moves[:, order] * stays).sum((1, 2)).half()


def by_codes(sample: Sample) -> Made:
    """Yield numbers of A or B that are read as others: which ones is solved for, by least squares."""
    known = sample.numbers.isfinite()
    for name, key in ("A", "a"), ("B", "b"):
        x = getattr(sample.of, key)
        terms = sample.terms(changed={key: torch.ones_like(x).copysign(x)})
        sums = torch.stack([terms.where(x.abs() == one, 0).sum(1) for one in FP4], 1)
        there = (sums[known] != 0).any(0)
        if not bool(there.any()):
            continue
        numbers = sample.numbers[known].double()
        weights = 1 / numbers.abs().clamp(min=2.0**-14)[:, None]
        solved = torch.linalg.lstsq(sums[known] * weights, numbers[:, None] * weights, driver="gelsd").solution[:, 0]
        read = torch.where(there, (8 * solved).round() / 8, torch.tensor(FP4).double())
        said = [f"{a:g} is read as {b:g}" for a, b in zip(FP4, read.tolist()) if a != b]
        if said:
            yield f"{name}: {', '.join(said)}", (sums @ read).half()


def by_parts(sample: Sample) -> Made:
    """Yield sums that are rounded on the way, and parts of K that are left out, repeated or moved."""
    terms = sample.terms()
    exact, k = terms.sum(1), terms.shape[1]
    nearest = exact.half()
    less = (nearest.double().abs() > exact.abs()).short()
    yield "rounded towards zero, not to the nearest", (nearest.view(torch.int16) - less).view(torch.float16)
    for tile in K_TILES:
        if k < tile or k % tile:
            continue
        sums = terms.view(len(terms), -1, tile).sum(2)
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
            so_far = torch.zeros_like(exact).to(dtype)
            for one in sums.T:
                so_far = (so_far.double() + one).to(dtype)
            yield f"sums are rounded to {name} behind each {tile} of K", so_far.half()
        for last in (BLOCK, 32, 64):
            if last < tile:
                kept = terms.view(len(terms), -1, tile)[:, :, :-last].sum((1, 2))
                yield f"the last {last} of each k-block of {tile} are left out", kept.half()
    if k % 64 == 0:
        yield from by_spans(sample, terms.view(len(terms), -1, 64).sum(2))


def by_spans(sample: Sample, sums: torch.Tensor) -> Made:
    """Yield what leaves out or repeats neighbouring k-blocks of 64. sums: of each, [S, K/64]."""
    count = sums.shape[1]
    to = torch.cat([torch.zeros_like(sums[:, :1]), sums.cumsum(1)], 1)
    spans = (to[:, None, :] - to[:, :, None]).triu(1)
    for changed, what in ((to[:, -1:, None] - spans, "is left out"), (to[:, -1:, None] + spans, "counts twice")):
        each = changed.half().flatten(1)  # [S, from and to]
        most = int((each == sample.numbers[:, None]).sum(0).argmax())
        first, end = divmod(most, count + 1)
        yield f"{span(64 * first, 64 * end, 64 * count)} {what}", each[:, most]


def span(first: int, end: int, k: int) -> str:
    """Name a part of K."""
    size = end - first
    if size <= 0 or first % size or size & (size - 1) and 2 * size != k:
        return f"K from {first} to {end}"
    if 2 * size == k:
        return f"the {'second' if first else 'first'} half of K"
    number = {0: "the first k-block", k - size: "the last k-block"}.get(first, f"k-block {first // size}")
    return f"{number} of {size}"
