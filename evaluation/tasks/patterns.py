"""Explains numbers that are wrong: which elements, and of which mistake they are the result.

A mistake is a name and the numbers that a kernel with it would have written. It is said if nearly all elements that
differ are these, and nearly all that are right would have stayed so. Here are mistakes of a result's values (VALUES),
of its places, and with a number of their own (a factor, a row), which is solved for; products.py has more of products.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch

SAMPLE = 64  # elements that are looked at
SOME = 4  # fewer elements agree with a mistake by chance
ROWS, LINES = 16, 256  # rows of which it is asked whether they are scaled, and whether they are others
MATCH = 0.9  # of the elements that have to be what a mistake makes
STEPS = 2, 4, 8, 16, 32, 64, 128, 256  # rows or columns that kernels take together

Made = Iterator[tuple[str, torch.Tensor]]  # mistakes, each with what the elements would be
Same = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # whether numbers are alike, one by one


def identical(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


@dataclasses.dataclass
class Sample:
    """Some elements of a result: first those that differ, then right ones among them: [S] each.

    numbers, right: what they are, and should be. wrong: how many differ. same: whether values are numbers.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    numbers: torch.Tensor
    right: torch.Tensor
    wrong: int
    same: Same

    @classmethod
    def drawn(cls, got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor, same: Same) -> Sample:
        rows, columns, _ = region(differs)
        there = torch.zeros_like(differs)
        there[rows[:, None], columns] = True
        places = [spread(mask.nonzero(), SAMPLE) for mask in (differs, there & ~differs)]
        rows, columns = torch.cat(places).T
        return cls(rows, columns, got[rows, columns], want[rows, columns], len(places[0]), same)

    def few(self, most: int) -> Sample:
        """Return some of those that differ."""
        take = slice(0, self.wrong, -(-self.wrong // most))
        rows, columns, numbers, right = (x[take] for x in (self.rows, self.columns, self.numbers, self.right))
        return Sample(rows, columns, numbers, right, len(rows), self.same)

    def along(self, operand: str) -> torch.Tensor:
        """Return the elements' rows of an operand: those of A are the result's, those of B its columns."""
        return self.rows if operand == "a" else self.columns

    def share(self, values: torch.Tensor) -> float:
        """Return which part of the numbers is these: of those that differ, or of the right ones if that is less."""
        same = self.same(self.numbers, values).double()
        return min(float(part.mean()) for part in (same[: self.wrong], same[self.wrong :]) if len(part))

    def most(self, values: torch.Tensor) -> torch.Tensor:
        """Return whether most numbers are these [.., S]."""
        return self.same(values, self.numbers).double().mean(-1) > 0.5


def spread(some: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most this number of rows, evenly spread."""
    return some[torch.linspace(0, len(some) - 1, min(most, len(some))).long()]


def explain(
    got: torch.Tensor, want: torch.Tensor, others: tuple[torch.Tensor, ...] = (),
    further: Callable[[Sample], Made] | None = None, same: Same = identical,
) -> str:  # fmt: skip
    """Say what is the matter with a result [M, N], or "": where it differs, and what mistake makes these numbers.

    others: the results of other groups. further: what knows more mistakes than those of results.
    """
    differs = ~same(got, want)
    if not differs.any():
        return ""
    sample = Sample.drawn(got, want, differs, same)
    made = itertools.chain(by_values(sample), by_groups(sample, others), by_places(want, sample))
    what, part = likeliest(made, sample)
    if part < MATCH and (solved := by_factor(got, want, differs) or by_lines(got, want, differs, same)):
        what, part = solved, 1.0
    if further and part < 1.0:
        what, part = max((what, part), likeliest(further(sample), sample), key=lambda one: one[1])
    return "; ".join(filter(None, [where(differs), what if part >= MATCH else by_size(sample)]))


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
    """Name numbers of rows or columns, if not nearly all of `size` are there: by the first set that they fill."""
    if not 0 < len(found) <= 0.9 * size:
        return ""
    at, first, last = torch.arange(size), int(found[0]), int(found[-1])
    sets = [(f"{name} {first}", at == first)]
    for start, block in ((first // block * block, block) for block in STEPS):
        if start + block <= size:
            sets.append((f"{name}s {start} to {start + block - 1} (one block)", at // block == first // block))
    rest = f" (the rest behind the last whole 128 {name}s)" if last == size - 1 and first == size // 128 * 128 else ""
    sets.append((f"{name}s {first} to {last}{rest}", (at >= first) & (at <= last)))
    for period in sorted({*STEPS, int(found[1:2].sum()) - first} - {0}) if len(found) > 1 else ():
        low, high = int((found % period).min()), int((found % period).max())
        some = f"{name} {low}" if low == high else f"{name}s {low} to {high}"
        if 2 * (high - low + 1) <= period < size:
            sets.append((f"{some} of each {period}", (at % period >= low) & (at % period <= high)))
    return next((said for said, mask in sets if mask[found].all() and len(found) > MATCH * int(mask.sum())), "")


# ---- what


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
        return "all are infinite: never written, or an exponent or a sum is too large"
    if got.dtype == torch.float16:
        a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in (x.view(torch.int16).int() for x in (got, want)))
        if (apart := int((a - b).abs().max())) <= 8:
            return f"off by {apart} float16 steps at most: rounding, or sums of less than float32"
    return ""


def by_factor(got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor) -> str:
    """Say that what differs is a number times the result, if it is: one number, or one for each row, or ""."""
    _, columns, _ = region(differs)
    some = spread(differs.any(1).nonzero().flatten(), ROWS)[:, None]
    ratios, differs = got[some, columns].double() / want[some, columns].double(), differs[some, columns]
    sound = ratios.isfinite() & (ratios.abs() > 1e-3)
    if int((sound & differs).sum()) < MATCH * int(differs.sum()) or int((sound.sum(1) > 1).sum()) < 2:
        return ""
    ratios = ratios.where(sound, torch.nan)
    one, of_rows = ratios.nanmedian(), ratios.nanmedian(1, keepdim=True).values
    if int(torch.isclose(ratios, one, 4e-3).sum()) >= MATCH * int(sound.sum()):
        return "" if abs(one - 1) < 0.01 else f"{one:.3g} times the result"
    if bool((torch.isclose(ratios, of_rows, 4e-3).sum(1) >= MATCH * sound.sum(1)).all()):
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
NOT_CLEARED = "the accumulator was not cleared"
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
            yield (which := f"the result of another group (the {number + 1}. of the others)"), there
            yield f"{which} is added: {NOT_CLEARED}", (sample.right.float() + there.float()).half()


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
    for name, x, at, to in ("rows", want, rows, columns), ("columns", want.T, columns, rows):
        for text, order in orders(len(x)):
            yield text.format(name), x[order[at], to]
        for tile in (tile for tile in STEPS[2:] if tile < len(x)):
            before = [x[(at - back).clamp(min=0), to].where(at >= back, 0) for back in range(tile, len(x), tile)]
            for what, count in (f"result {tile} {name} before is", 1), (f"tiles of {tile} {name} before are", len(x)):
                sums = sample.right + torch.stack(before[:count]).double().sum(0)
                yield f"the {what} added: {NOT_CLEARED}", sums.to(want.dtype)
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
