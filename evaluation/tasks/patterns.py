"""Explains numbers that are wrong: which elements, and of which mistake they are the result.

A mistake is recognised by its numbers: elements that differ are what a kernel with that mistake would have written, by
the exact result alone (rounding, transposed, another tile), or by the operands (a k-block left out, scales of another
layout). Nothing is said unless nearly all of them are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

SAMPLE = 64  # elements that are looked at
ROWS = 16  # of which it is asked whether they are scaled
MATCH = 0.9  # of them that have to be what a mistake makes
BLOCK = 16  # of K, with one scale
K_TILES = 64, 128, 256  # k-blocks that kernels have
TILES = 8, 16, 32, 64, 128  # rows or columns of what kernels transpose, or take for another


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

    def at(self, rows: torch.Tensor, columns: torch.Tensor) -> Operands:
        """Take a row of each operand for each of some elements."""
        return Operands(self.a[rows], self.b[columns], self.sfa[rows], self.sfb[columns])

    def terms(self) -> torch.Tensor:
        """Return the products of elements, row by row: [S, K]."""
        return self.a * self.b * (self.sfa * self.sfb).repeat_interleave(BLOCK, 1)

    def sums(self, **changed: torch.Tensor) -> torch.Tensor:
        """Return float16 results of elements, row by row; what is given replaces an operand."""
        return dataclasses.replace(self, **changed).terms().sum(1).half()


def explain(
    got: torch.Tensor, want: torch.Tensor, operands: Callable[[], Operands] | None = None,
    others: tuple[torch.Tensor, ...] = (),
) -> str:  # fmt: skip
    """Say what is the matter with a result [M, N], or "": where it differs, and what mistake makes these numbers.

    operands: gives what it is made of, if that is known. others: exact results of other groups.
    """
    differs = (got != want) & ~(got.isnan() & want.isnan())
    if not differs.any():
        return ""
    found = [where(differs), *filter(None, [mistake(got, want, differs, operands, others)])]
    return "; ".join(filter(None, found))


# ---- where


def where(differs: torch.Tensor) -> str:
    """Say which rows and columns have elements that differ, if these are a pattern: [M, N] bool."""
    rows, columns = differs.any(1).nonzero().flatten(), differs.any(0).nonzero().flatten()
    parts = [one for one in (along(rows, differs.shape[0], "row"), along(columns, differs.shape[1], "column")) if one]
    if not parts:
        return ""
    inside = differs[rows][:, columns]
    share = float(inside.float().mean())
    return f"only in {' and '.join(parts)}" + (f", {100 * share:.0f} % of these elements" if share < 0.995 else "")


def along(found: torch.Tensor, size: int, name: str) -> str:
    """Name numbers of rows or columns, if not nearly all of `size` are there."""
    count = len(found)
    if count > 0.9 * size or not count:
        return ""
    first, last = int(found[0]), int(found[-1])
    if count == 1:
        return f"{name} {first}"
    if last - first + 1 == count:
        rest = last == size - 1 and first % 8 == 0 and size % 128 and first == size // 128 * 128
        end = f" (the rest behind the last whole 128 {name}s)" if rest else ""
        block = " (one block)" if first % count == 0 and count & (count - 1) == 0 else end
        return f"{name}s {first} to {last}{block}"
    steps = (found[1:] - found[:-1]).unique()
    if len(steps) == 1:
        return f"{name} {first} of each {int(steps[0])}"
    for period in (16, 32, 64, 128, 256):
        inside = (found % period).unique()
        if size > period and len(inside) <= period // 2 and count > 0.8 * len(inside) * (size // period):
            low, high = int(inside[0]), int(inside[-1])
            if high - low + 1 == len(inside):
                return f"{name}s {low} to {high} of each {period}"
    return ""


# ---- what


def mistake(got, want, differs, operands, others) -> str:
    """Say of which mistake the elements that differ are the result, or ""."""
    at = differs.nonzero()
    at = at[torch.linspace(0, len(at) - 1, min(SAMPLE, len(at))).long()]
    rows, columns = at[:, 0], at[:, 1]
    numbers, right = got[rows, columns], want[rows, columns]

    def are(values: torch.Tensor) -> bool:
        same = (numbers == values) | (numbers.isnan() & values.isnan())
        return float(same.float().mean()) >= MATCH and not bool((values == right).all())

    for text, values in by_results(got, want, rows, columns, others):
        if values is not None and are(values):
            return text
    if said := by_factor(got, want, differs):
        return said
    if operands is not None:
        all_of = operands()
        for text, values in by_operands(all_of, all_of.at(rows, columns), rows, columns, numbers):
            if are(values):
                return text
    steps = ulps_apart(numbers, right)
    if steps is not None:
        return f"off by {steps} float16 steps at most: rounding, or sums of less than float32"
    return ""


def mistake_within(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, rtol: float, atol: float) -> str:
    """Say of which mistake the elements that are `wrong` are the result, or "", by a result [M, N] of any float dtype
    that may differ by a tolerance."""
    at = wrong.nonzero()
    at = at[torch.linspace(0, len(at) - 1, min(SAMPLE, len(at))).long()]
    rows, columns = at[:, 0], at[:, 1]
    got, want = got.double(), want.double()
    numbers, right = got[rows, columns], want[rows, columns]
    if bool(numbers.isnan().all()):
        return "all are NaN: inf - inf, 0 / 0, or never written"
    if bool(numbers.isinf().all()):
        return "all are infinite: an exponent or a sum is too large"
    for text, values in by_places(want, rows, columns):
        if values is None or torch.allclose(values, right, rtol, atol):
            continue
        if float(torch.isclose(numbers, values, rtol, atol).double().mean()) >= MATCH:
            return text
    return by_factor(got, want, wrong)


def by_factor(got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor) -> str:
    """Say that what differs is a number times the result, if it is: one number, or one for each row, or ""."""
    some = differs.any(1).nonzero().flatten()
    some = some[torch.linspace(0, len(some) - 1, min(ROWS, len(some))).long()]
    got, want = got[some].double(), want[some].double()
    sound = differs[some] & got.isfinite() & want.isfinite() & (want != 0) & (got.abs() > 1e-3 * want.abs())
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


def ulps_apart(got: torch.Tensor, want: torch.Tensor, most: int = 8) -> int | None:
    """Return by how many float16 steps numbers differ at most, if these are few."""
    if not bool((got.isfinite() & want.isfinite()).all()):
        return None
    bits = [each.contiguous().view(torch.int16).int() for each in (got, want)]
    a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in bits)
    apart = int((a - b).abs().max())
    return apart if apart <= most else None


def by_results(got, want, rows, columns, others) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield mistakes that the exact results alone tell, each with what the elements would be."""
    right = want[rows, columns]
    yield "rounded to bfloat16", right.bfloat16().half()
    yield "rounded to FP8 (e4m3)", right.float().clamp(-448, 448).to(torch.float8_e4m3fn).half()
    yield "65504 where the result is infinite: saturated", torch.where(right.isinf(), right.sign() * 65504, right)
    yield from by_places(want, rows, columns)
    for number, other in enumerate(others):
        if other.shape == want.shape:
            which = f"(the {number + 1}. of the others)"
            yield f"the result of another group {which}", other[rows, columns]
            both = (right.float() + other[rows, columns].float()).half()
            yield f"the result of another group {which} is added: the accumulator was not cleared", both


def by_places(want, rows, columns) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield mistakes of sign and of place, each with what the elements would be."""
    right = want[rows, columns]
    negative = bool((right < 0).all()) and bool((want > 0).any())
    if negative:
        yield "all are zero where the result is negative", torch.zeros_like(right)
        yield "the sign is lost where the result is negative", -right
    yield "all are zero", torch.zeros_like(right)
    yield "negated", -right
    m, n = want.shape
    if m == n:
        yield "transposed", want[columns, rows]
    for tile in TILES:
        if m % tile == 0 and n % tile == 0 and max(m, n) > tile:
            there = rows // tile * tile + columns % tile, columns // tile * tile + rows % tile
            yield f"transposed within tiles of {tile} x {tile}", want[there]
    for shift in (1, -1, 8, -8, 16, -16, 32, -32, 64, -64, 128, -128):
        away = f"{abs(shift)} {'further' if shift > 0 else 'before'}"
        yield f"rows are those {away}", moved(want, rows, columns, shift, 0)
        yield f"columns are those {away}", moved(want, rows, columns, 0, shift)
    for pair in (1, 2, 4, 8, 16, 32, 64, 128):
        of = f"blocks of {pair}" if pair > 1 else "neighbouring"
        if m % (2 * pair) == 0:
            yield f"{of} rows are exchanged", want[rows ^ pair, columns]
        if n % (2 * pair) == 0:
            yield f"{of} columns are exchanged", want[rows, columns ^ pair]


def moved(want, rows, columns, down: int, right: int) -> torch.Tensor | None:
    """Return what stands `down` rows and `right` columns further, around the edge."""
    m, n = want.shape
    if abs(down) >= m or abs(right) >= n:
        return None
    return want[(rows + down) % m, (columns + right) % n]


def by_operands(whole: Operands, of: Operands, rows, columns, numbers) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield mistakes in what is multiplied, each with what the elements would be. of: their rows of the operands;
    numbers: what they are."""
    ones = torch.ones_like(of.sfa)
    yield "no scales are applied", of.sums(sfa=ones, sfb=ones)
    yield "A's scales are not applied", of.sums(sfa=ones)
    yield "B's scales are not applied", of.sums(sfb=ones)
    yield "A's scales are applied twice", of.sums(sfa=of.sfa**2)
    yield "B's scales are applied twice", of.sums(sfb=of.sfb**2)
    yield "A's scales stand for B's, too", of.sums(sfb=whole.sfa[columns % len(whole.sfa)])
    yield "B's scales stand for A's, too", of.sums(sfa=whole.sfb[rows % len(whole.sfb)])
    for name, key in (("A", "sfa"), ("B", "sfb")):
        scales = getattr(of, key)
        if scales.shape[1] % 4 == 0:
            firsts = scales[:, ::4].repeat_interleave(4, 1)
            yield f"the first of each four of {name}'s scales stands for all", of.sums(**{key: firsts})
        twice = f"{name}'s scales are one block of {BLOCK} late, the first one used twice"
        yield twice, of.sums(**{key: torch.cat([scales[:, :1], scales[:, :-1]], 1)})
        for some in (2, 4):
            if scales.shape[1] % some == 0:
                turned = scales.view(len(scales), -1, some).flip(2).reshape(scales.shape)
                yield f"{name}'s scales: each {some} are in reverse", of.sums(**{key: turned})
    yield "FP4 numbers of A or of B: the high four bits of each byte are taken first", of.sums(a=swapped(of.a))
    yield "signs of A are lost", of.sums(a=of.a.abs())
    yield "signs of B are lost", of.sums(b=of.b.abs())
    for name, other in layouts(whole, rows, columns):
        yield name, of.sums(**other)
    for shift, how in ((1, "early"), (-1, "late")):
        yield f"A's scales are one block of {BLOCK} {how}", of.sums(sfa=of.sfa.roll(-shift, 1))
        yield f"B's scales are one block of {BLOCK} {how}", of.sums(sfb=of.sfb.roll(-shift, 1))
    terms = of.terms()
    k = terms.shape[1]
    for half, cut in (("first", slice(k // 2, k)), ("second", slice(k // 2))):
        yield f"the {half} half of K is left out", terms[:, cut].sum(1).half()
    for tile in K_TILES:
        if k < tile or k % tile:
            continue
        if k > tile:
            yield from by_k_blocks(of, tile, numbers)
        for last in (BLOCK, 32, 64):
            if last < tile:
                kept = terms.view(len(terms), -1, tile)[:, :, :-last].sum((1, 2))
                yield f"the last {last} of each k-block of {tile} are left out", kept.half()


def by_k_blocks(of: Operands, tile: int, numbers: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield mistakes that leave out, repeat or move k-blocks of `tile`, each with what the elements would be."""
    scales_a, scales_b = (scales.repeat_interleave(BLOCK, 1) for scales in (of.sfa, of.sfb))
    a, b = of.a * scales_a, of.b * scales_b
    sums = (a * b).view(len(a), -1, tile).sum(2)
    count, total = sums.shape[1], sums.sum(1, keepdim=True)
    names = {0: "the first k-block", count - 1: "the last k-block"}

    def likeliest(values: torch.Tensor) -> tuple[torch.Tensor, int, int]:
        """Return that one of [S, count] or [S, count, count] mistakes which explains most, and its two numbers."""
        each = values.half().flatten(1)
        most = int((each == numbers[:, None]).sum(0).argmax())
        return each[:, most], *divmod(most, count)

    for changed, what in ((total - sums, "is left out"), (total + sums, "counts twice")):
        values, _, i = likeliest(changed)
        yield f"{names.get(i, f'k-block {i}')} of {tile} {what}", values
    values, i, j = likeliest(total[:, :, None] + sums[:, :, None] - sums[:, None, :])
    yield f"k-block {i} of {tile} stands in the place of k-block {j}, too", values
    for name, moves, stays in (
        ("A and its scales", a, b), ("B and its scales", b, a), ("A", of.a, scales_a * b), ("B", of.b, scales_b * a),
        ("A's scales", scales_a, of.a * b), ("B's scales", scales_b, of.b * a),
    ):  # fmt: skip
        # [S, i, j]: block i of what moves, multiplied by block j of what stays
        products = moves.view(len(a), -1, tile) @ stays.reshape(len(b), -1, tile).mT
        for text, order in orders(count):
            yield f"{name}: {text.format(tile)}", products[:, order, torch.arange(count)].sum(1).half()
        instead = products - sums[:, None, :]
        values, i, j = likeliest(total[:, :, None] + instead)
        yield f"{name}: k-block {i} of {tile} stands in the place of k-block {j}, too", values
        values, i, j = likeliest(total[:, :, None] + instead + instead.mT)
        yield f"{name}: k-blocks {min(i, j)} and {max(i, j)} of {tile} are exchanged", values


def orders(count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield wrong orders of k-blocks of {}: at each place the number of the block that is there."""
    at = torch.arange(count)
    yield "a stage of {} late, the first one used twice", (at - 1).clamp(min=0)
    yield "a stage of {} early, the last one used twice", (at + 1).clamp(max=count - 1)
    yield "a stage of {} late, the last one used first", at.roll(1)
    yield "a stage of {} early, the first one used last", at.roll(-1)
    yield "k-blocks of {} come from last to first", at.flip(0)
    for stages in (2, 4):
        if count % stages == 0 and count > stages:
            yield f"each {stages} k-blocks of {{}} come in reverse", at.view(-1, stages).flip(1).flatten()
    yield "the first k-block of {} is used each time", torch.zeros_like(at)


def swapped(numbers: torch.Tensor) -> torch.Tensor:
    """Exchange neighbours along K: the two numbers of a byte."""
    return numbers.view(len(numbers), -1, 2).flip(2).reshape(numbers.shape)


def layouts(whole: Operands, rows, columns) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield scales that are read as if they lay otherwise: those of the tensor cores' layout row by row, and those that
    lie row by row as if in blocks of 128 x 4."""
    each = (("A", "sfa", whole.sfa, whole.codes_a, rows), ("B", "sfb", whole.sfb, whole.codes_b, columns))
    by_rows: dict[str, torch.Tensor] = {}
    by_blocks: dict[str, torch.Tensor] = {}
    for name, key, scales, codes, at in each:
        count, width = scales.shape
        k = torch.arange(width)[None, :]
        if codes is not None:
            there = (at[:, None] * width + k) % codes.numel()
            by_rows[key] = codes.flatten()[there].view(torch.float8_e4m3fn).double()
            yield f"{name}'s scales lie in blocks of 128 x 4 and are read row by row", {key: by_rows[key]}
        row = at[:, None]
        tile = row // 128 * -(-width // 4) + k // 4
        there = (tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + k % 4) % scales.numel()
        by_blocks[key] = scales.flatten()[there]
        yield f"{name}'s scales lie row by row and are read as blocks of 128 x 4", {key: by_blocks[key]}
    if len(by_rows) == 2:
        yield "both scales lie in blocks of 128 x 4 and are read row by row", by_rows
    yield "both scales lie row by row and are read as blocks of 128 x 4", by_blocks
