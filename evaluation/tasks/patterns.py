"""Explains numbers that are wrong: which elements, and of which mistake they are the result.

A mistake is recognised by its numbers: elements that differ are what a kernel with that mistake would have written, by
the exact result alone (rounding, transposed, another tile), or by the operands (a k-block left out, scales of another
layout). Nothing is said unless nearly all of them are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch

SAMPLE, FEW = 64, 3  # elements that are looked at, and before, whether most of a few are what a mistake makes
SOME = 4  # fewer elements agree with a mistake by chance
ROWS = 16  # of which it is asked whether they are scaled
MATCH = 0.9  # of them that have to be what a mistake makes
BLOCK = 16  # of K, with one scale
K_TILES = 16, 32, 64, 128, 256  # k-blocks that kernels have, and what copies of scales and of 16 bytes hold
STEPS = 2, 4, 8, 16, 32, 64, 128, 256  # rows or columns that kernels take together


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


@dataclasses.dataclass
class Sample:
    """Some elements of a result: their rows, columns, and what they are; of: a row of each operand for each."""

    rows: torch.Tensor
    columns: torch.Tensor
    numbers: torch.Tensor
    of: Operands

    @classmethod
    def taken(cls, whole: Operands, rows: torch.Tensor, columns: torch.Tensor, numbers: torch.Tensor) -> Sample:
        of = Operands(whole.a[rows], whole.b[columns], whole.sfa[rows], whole.sfb[columns])
        return cls(rows, columns, numbers, of)

    def most(self, values: torch.Tensor) -> torch.Tensor:
        """Return whether most numbers are these [.., S]."""
        return (values == self.numbers).double().mean(-1) > 0.5

    def terms(self, **changed: torch.Tensor) -> torch.Tensor:
        """Return the products of elements, row by row: [S, K]. What is given replaces an operand, and may have all rows
        several times."""
        every = [changed.get(key, getattr(self.of, key)) for key in ("a", "b", "sfa", "sfb")]
        most = max(map(len, every))
        a, b, sfa, sfb = (rows.repeat(most // len(rows), 1) for rows in every)
        return a * b * (sfa * sfb).repeat_interleave(BLOCK, 1)

    def sums(self, **changed: torch.Tensor) -> torch.Tensor:
        """Return float16 results of elements."""
        return self.terms(**changed).sum(1).half()


Made = Iterator[tuple[str, torch.Tensor | None]]  # mistakes, each with what the elements would be
Makes = Iterator[tuple[str, Callable[[Sample], torch.Tensor]]]  # likewise, to be asked for


def explain(
    got: torch.Tensor, want: torch.Tensor, operands: tuple[Callable[[], Operands], ...] = (),
    others: tuple[torch.Tensor, ...] = (),
) -> str:  # fmt: skip
    """Say what is the matter with a result [M, N], or "": where it differs, and what mistake makes these numbers.

    operands: give what it is made of, if that is known, and what those of other groups are. others: their results.
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

    def share(values: torch.Tensor) -> float:
        same = (numbers == values) | (numbers.isnan() & values.isnan())
        return 0.0 if bool((values == right).all()) else float(same.double().mean())

    from_results = itertools.chain(by_results(right, others, rows, columns), by_places(want, at, numbers))
    said, part = likeliest(from_results, share)
    if part < MATCH and (factor := by_factor(got, want, differs)):
        return factor
    if operands and part < 1.0 and len(at) >= SOME:
        whole = operands[0]()
        sample = Sample.taken(whole, rows, columns, numbers)
        few = Sample.taken(whole, *(each[:: -(-len(each) // FEW)] for each in (rows, columns, numbers)))
        asked = by_operands(whole, operands[1:], few)
        made = ((text, make(sample)) for text, make in asked if bool(few.most(make(few))))
        other = likeliest(itertools.chain(made, by_parts(sample)), share)
        said, part = max((said, part), other, key=lambda one: one[1])
    if part >= MATCH:
        return said
    steps = ulps_apart(numbers, right)
    if steps is not None:
        return f"off by {steps} float16 steps at most: rounding, or sums of less than float32"
    return ""


def likeliest(made: Made, share: Callable[[torch.Tensor], float]) -> tuple[str, float]:
    """Return the mistake of which most elements are the result, and the share of them that are; the first one of which
    all are."""
    best = "", 0.0
    for text, values in made:
        if values is not None and (part := share(values)) > best[1]:
            best = text, part
        if best[1] == 1.0:
            break
    return best


def mistake_within(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, rtol: float, atol: float) -> str:
    """Say of which mistake the elements that are `wrong` are the result, or "", by a result [M, N] of any float dtype
    that may differ by a tolerance."""
    at = wrong.nonzero()
    at = at[torch.linspace(0, len(at) - 1, min(SAMPLE, len(at))).long()]
    rows, columns = at[:, 0], at[:, 1]
    got, want = got.double(), want.double()
    numbers, right = got[rows, columns], want[rows, columns]

    def share(values: torch.Tensor) -> float:
        alike = torch.isclose(numbers, values.double(), rtol, atol, equal_nan=True)
        return 0.0 if torch.allclose(values.double(), right, rtol, atol) else float(alike.double().mean())

    said, part = likeliest(by_places(want, at, numbers), share)
    return said if part >= MATCH else by_factor(got, want, wrong)


def by_factor(got: torch.Tensor, want: torch.Tensor, differs: torch.Tensor) -> str:
    """Say that what differs is a number times the result, if it is: one number, or one for each row, or ""."""
    some = differs.any(1).nonzero().flatten()
    some = some[torch.linspace(0, len(some) - 1, min(ROWS, len(some))).long()]
    got, want = got[some].double(), want[some].double()
    sound = differs[some] & got.isfinite() & want.isfinite() & (want != 0) & (got.abs() > 1e-3 * want.abs())
    if int(sound.sum()) < MATCH * int(differs[some].sum()):
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


def ulps_apart(got: torch.Tensor, want: torch.Tensor, most: int = 8) -> int | None:
    """Return by how many float16 steps numbers differ at most, if these are few."""
    if not bool((got.isfinite() & want.isfinite()).all()):
        return None
    bits = [each.contiguous().view(torch.int16).int() for each in (got, want)]
    a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in bits)
    apart = int((a - b).abs().max())
    return apart if apart <= most else None


def by_results(right, others, rows, columns) -> Made:
    """Yield mistakes of rounding and of groups, by the exact results of float16. others: of the other groups."""
    yield "rounded to bfloat16", right.bfloat16().half()
    yield "rounded to FP8 (e4m3)", right.float().clamp(-448, 448).to(torch.float8_e4m3fn).half()
    for number, other in enumerate(others):
        if len(other) > int(rows.max()) and other.shape[1] > int(columns.max()):
            which = f"the result of another group (the {number + 1}. of the others)"
            yield which, other[rows, columns]
            both = (right.float() + other[rows, columns].float()).half()
            yield f"{which} is added: the accumulator was not cleared", both


def by_places(want, at, numbers) -> Made:
    """Yield mistakes of value and of place."""
    rows, columns = at.T
    right = want[rows, columns]
    exact = right.double()
    if float((right < 0).double().mean()) >= MATCH and bool((want > 0).any()):
        yield "all are zero where the result is negative", torch.zeros_like(right)
        yield "the sign is lost where the result is negative", -right
    yield "all are zero", torch.zeros_like(right)
    yield "all are NaN: inf - inf, 0 / 0, or never written", torch.full_like(right, torch.nan)
    yield "all are infinite: an exponent or a sum is too large", numbers.abs().where(numbers.isinf(), torch.nan)
    yield "negated", -right
    yield "SiLU is applied to the result", (exact * exact.sigmoid()).to(right.dtype)
    yield "GELU is applied to the result", torch.nn.functional.gelu(exact).to(right.dtype)
    if len(numbers) >= SOME and bool((right != right[0]).any()):
        limit = numbers.double().abs().max()
        yield f"saturated at {limit:g}", exact.clamp(-limit, limit).to(right.dtype)
        more = (numbers.double() - exact).median()
        yield f"{more:g} is added to the result", (exact + more).to(right.dtype)
    if len(numbers) < SOME:
        return
    m, n = want.shape
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
    for tile in STEPS[2:]:
        for name, there in (("rows", (rows - tile, columns)), ("columns", (rows, columns - tile))):
            if bool((there[0] >= 0).all() and (there[1] >= 0).all()):
                more = exact + want[there].double()
                yield f"the result {tile} {name} before is added: the accumulator was not cleared", more.to(right.dtype)
    flat = rows * n + columns
    for pitch in sorted({m, 2 * n, *(n + step for step in STEPS), *(n - step for step in STEPS if step < n)} - {n}):
        row, column = flat // pitch, flat % pitch
        there = (column < n) & (row < m)
        if bool(there.any()):
            other = want[row.clamp(max=m - 1), column.clamp(max=n - 1)]
            yield f"rows lie {pitch} elements apart, not {n}", torch.where(there, other, numbers)


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


def early(x: torch.Tensor) -> torch.Tensor:
    """Return which of K are in its first half."""
    return torch.arange(x.shape[1]) < x.shape[1] // 2


SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "are not applied": torch.ones_like,
    "are applied twice": torch.square,
    "are read as e5m2": lambda x: x.to(torch.float8_e4m3fn).view(torch.float8_e5m2).double(),
    "count as powers of two": lambda x: torch.where(x == 0, x, 2.0 ** x.abs().log2().floor()),
    "are not applied in the first half of K": lambda x: torch.ones_like(x).where(early(x), x),
    "are not applied in the second half of K": lambda x: x.where(early(x), torch.ones_like(x)),
}
NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "signs are lost": torch.abs,
    "the high four bits of each byte are taken first": lambda x: x.view(len(x), -1, 2).flip(2).reshape(x.shape),
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


def by_operands(whole: Operands, others: tuple[Callable[[], Operands], ...], few: Sample) -> Makes:
    """Yield mistakes in what is multiplied. others: give the operands of other groups; few: some elements, none of
    which most of these mistakes make."""

    def made(keys: tuple[str, ...], how: Callable) -> Callable[[Sample], torch.Tensor]:
        """Make results of how(key, rows of the operand, places in it) in the place of operands."""

        def make(sample: Sample) -> torch.Tensor:
            places = {"a": sample.rows, "b": sample.columns}
            return sample.sums(**{key: how(key, getattr(sample.of, key), places[key[-1]]) for key in keys})

        return make

    for names, table in (("both scales", "A's scales", "B's scales"), SCALES), (("A", "B", "A and B"), NUMBERS):
        for name in names:
            for what, change in table.items():
                yield f"{name}: {what}", made(PARTS[name], lambda key, x, at, change=change: change(x))
    across = {"sfa": whole.sfb, "sfb": whole.sfa}
    for name, what in (("B's scales", "A's scales stand for B's, too"), ("A's scales", "B's scales stand for A's, too"),
                       ("both scales", "A's and B's scales are exchanged")):  # fmt: skip
        yield what, made(PARTS[name], lambda key, x, at: across[key][at % len(across[key])])
    both = {"sfa": whole.codes_a, "sfb": whole.codes_b}
    codes = {key: one for key, one in both.items() if one is not None}
    for name in ("A's scales", "B's scales", "both scales"):
        if codes.keys() >= {*PARTS[name]}:
            yield f"{name} lie in blocks of 128 x 4 and are read row by row", made(
                PARTS[name], lambda key, x, at: read_by_rows(x, codes[key], at)
            )
        yield f"{name} lie row by row and are read as blocks of 128 x 4", made(
            PARTS[name], lambda key, x, at: read_by_blocks(getattr(whole, key), at)
        )
    for name in ("A's scales", "B's scales"):
        (key,) = PARTS[name]
        for text, order in orders(len(getattr(whole, key))):
            yield f"{name}: {text.format('rows')}", made(
                (key,), lambda key, x, at, order=order: getattr(whole, key)[order[at]]
            )
    for width, bits, period in ((128, 8, 1), (64, 4, 2), (32, 2, 4)):
        for part in ("A", "B"):

            def swizzled(_, x, at, bits=bits, period=period):
                chunks = x.view(len(x), -1, 32)  # of 16 bytes
                to = torch.arange(chunks.shape[1])[None] ^ (at[:, None] // period % bits)
                return chunks.gather(1, to.clamp(max=chunks.shape[1] - 1)[:, :, None].expand_as(chunks)).view(x.shape)

            if whole.a.shape[1] % (32 * bits) == 0:
                yield f"{part}: only written or only read with a swizzle of {width} bytes", made(PARTS[part], swizzled)
    k = whole.a.shape[1]
    for tile in reversed(K_TILES):
        if k <= tile or k % tile:
            continue
        rings = range(2, min(k // tile, 7) if tile >= 64 else 2)
        texts, wrong = zip(*stages(k // tile, rings), *orders(k // tile))
        every = torch.stack(wrong)
        for name, keys in PARTS.items():

            def moved(_, x, __, every=every):
                """Put k-blocks of each row of x into each order: all rows in the first one, then in the next."""
                return x.view(len(x), every.shape[1], -1)[:, every].transpose(0, 1).reshape(-1, x.shape[1])

            made_of_few = made(keys, moved)(few).view(len(every), -1)
            for at in few.most(made_of_few).nonzero().flatten().tolist():
                turns = len(every[at].unique()) == every.shape[1]
                if turns and name in OTHER_WAY.values():
                    continue
                other = f" (or {OTHER_WAY[name]} the other way)" if turns and name in OTHER_WAY else ""
                yield f"{name}{other}: {texts[at].format(f'k-blocks of {tile}')}", made(
                    keys, lambda _, x, __, order=every[at : at + 1]: moved(_, x, __, order)
                )
    for give in others:
        if (of := give()).a.shape[1] == k:
            for name, keys in PARTS.items():
                yield f"{name}: of another group", made(
                    keys, lambda key, x, at, of=of: getattr(of, key)[at % len(getattr(of, key))]
                )


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
    for tile in (64, 128, 256):
        if k > tile and k % tile == 0:
            yield from by_k_blocks(sample, tile)


def by_spans(sample: Sample, sums: torch.Tensor) -> Made:
    """Yield what leaves out or repeats neighbouring k-blocks of 64. sums: of each, [S, K/64]."""
    count = sums.shape[1]
    to = torch.cat([torch.zeros_like(sums[:, :1]), sums.cumsum(1)], 1)
    spans = (to[:, None, :] - to[:, :, None]).where(torch.ones(count + 1, count + 1).triu(1) > 0, torch.nan)
    for changed, what in ((to[:, -1:, None] - spans, "is left out"), (to[:, -1:, None] + spans, "counts twice")):
        values, first, end = matching(changed, sample.numbers)
        yield f"{span(64 * first, 64 * end, 64 * count)} {what}", values


def span(first: int, end: int, k: int) -> str:
    """Name a part of K."""
    size = end - first
    if size <= 0 or first % size or size & (size - 1) and 2 * size != k:
        return f"K from {first} to {end}"
    if 2 * size == k:
        return f"the {'second' if first else 'first'} half of K"
    number = {0: "the first k-block", k - size: "the last k-block"}.get(first, f"k-block {first // size}")
    return f"{number} of {size}"


def matching(values: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """Return that one of [S, i, j] mistakes which explains most numbers, and i and j."""
    each = values.half().flatten(1)
    most = int((each == numbers[:, None]).sum(0).argmax())
    return each[:, most], *divmod(most, values.shape[2])


def by_k_blocks(sample: Sample, tile: int) -> Made:
    """Yield mistakes that repeat or exchange two k-blocks of `tile`."""
    of, numbers = sample.of, sample.numbers
    scales_a, scales_b = (scales.repeat_interleave(BLOCK, 1) for scales in (of.sfa, of.sfb))
    a, b = of.a * scales_a, of.b * scales_b
    sums = (a * b).view(len(a), -1, tile).sum(2)
    total = sums.sum(1)[:, None, None]
    values, i, j = matching(total + sums[:, :, None] - sums[:, None, :], numbers)
    yield f"k-block {i} of {tile} stands in the place of k-block {j}, too", values
    for name, moves, stays in (
        ("A and its scales", a, b), ("B and its scales", b, a), ("A", of.a, scales_a * b), ("B", of.b, scales_b * a),
        ("A's scales", scales_a, of.a * b), ("B's scales", scales_b, of.b * a),
    ):  # fmt: skip
        # [S, i, j]: block i of what moves, multiplied by block j of what stays, instead of its own
        instead = moves.view(len(a), -1, tile) @ stays.reshape(len(b), -1, tile).mT - sums[:, None, :]
        values, i, j = matching(total + instead, numbers)
        yield f"{name}: k-block {i} of {tile} stands in the place of k-block {j}, too", values
        values, i, j = matching(total + instead + instead.mT, numbers)
        either = f"{name} (or {OTHER_WAY[name]})" if name in OTHER_WAY else name
        yield f"{either}: k-blocks {min(i, j)} and {max(i, j)} of {tile} are exchanged", values
