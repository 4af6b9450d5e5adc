"""Yields mistakes in scaled products: in what is multiplied, in which order, and in how it is added.

Tables have what is done to scales and to numbers (SCALES, NUMBERS); small generators have layouts, orders, sums.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import torch

from evaluation.tasks.patterns import SOME, Made, Sample, orders

FEW = 3  # elements that are looked at before all that are: most of them have to be what a mistake makes
BLOCK = 16  # of K, with one scale
K_TILES = 16, 32, 64, 128, 256  # k-blocks that kernels have, and what copies of scales and of 16 bytes hold
FP4 = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0
EVERY = "a", "b", "sfa", "sfb"

# One group's numbers, float64: a, b: [M, K], [N, K] with FP4's values; sfa, sfb: [M, K/16], [N, K/16]; and
# "memory of sfa", "memory of sfb": the scales as they lie in the tensor cores' layout, flat
Operands = dict[str, torch.Tensor]
How = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]  # of an operand's name, its rows and their numbers
Changes = Iterator[tuple[str, tuple[str, ...], How]]  # mistakes, each with what is in the place of which operands
Orders = Iterator[tuple[str, torch.Tensor]]  # at each place the number of the k-block that is there

PARTS = {  # operands that move together
    "A's scales": ("sfa",), "B's scales": ("sfb",), "both scales": ("sfa", "sfb"), "A": ("a",), "B": ("b",),
    "A and its scales": ("a", "sfa"), "B and its scales": ("b", "sfb"), "A and B": ("a", "b"),
}  # fmt: skip
# What cannot be told from another part that moves the other way
OTHER_WAY = {"A and its scales": "B and its scales", "both scales": "A and B"}
ACROSS = {
    "B's scales": "A's scales stand for B's, too",
    "A's scales": "B's scales stand for A's, too",
    "both scales": "A's and B's scales are exchanged",
}


def early(x: torch.Tensor) -> torch.Tensor:
    """Return which of K are in its first half."""
    return torch.arange(x.shape[1]) < x.shape[1] // 2


def of_bytes(low: int, high: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what takes these two numbers of each byte in the place of 0 and 1."""
    return lambda x: x.view(len(x), -1, 2)[:, :, [low, high]].reshape(x.shape)


SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "{} are not applied": torch.ones_like,
    "{} are applied twice": torch.square,
    "{} are read as e5m2": lambda x: x.to(torch.float8_e4m3fn).view(torch.float8_e5m2).double(),
    "{} are read as e8m0": lambda x: torch.exp2(x.to(torch.float8_e4m3fn).view(torch.uint8).double() - 127),
    "{} count as powers of two": lambda x: torch.where(x == 0, x, 2.0 ** x.abs().log2().floor()),
    "{} count as zero below 1/64 (e4m3's subnormal numbers)": lambda x: x.where(x >= 2.0**-6, 0.0),
    "{} are not applied in the first half of K": lambda x: x.where(~early(x), 1.0),
    "{} are not applied in the second half of K": lambda x: x.where(early(x), 1.0),
}
NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "{}: signs are lost": torch.abs,
    "{}: the high four bits of each byte are taken first": of_bytes(1, 0),
    "{}: the low four bits of each byte are taken twice": of_bytes(0, 0),
    "{}: the high four bits of each byte are taken twice": of_bytes(1, 1),
}


@dataclasses.dataclass
class Products:
    """Some elements of a result, and of each a row of each operand."""

    sample: Sample
    of: Operands

    @classmethod
    def made_of(cls, whole: Operands, sample: Sample) -> Products:
        return cls(sample, {key: whole[key][sample.along(key[-1])] for key in EVERY})

    def terms(self, keys: tuple[str, ...] = EVERY, changed: Operands | None = None) -> torch.Tensor:
        """Return the products of these operands for each element: [S, K]. changed: what replaces some of them."""
        given = {key: self.of[key] for key in keys} | (changed or {})
        wide = [x.repeat_interleave(BLOCK, 1) if key.startswith("sf") else x for key, x in given.items()]
        return functools.reduce(torch.mul, wide, torch.ones_like(self.of["a"]))

    def changed(self, keys: tuple[str, ...], how: How) -> torch.Tensor:
        """Return float16 results of how(key, rows of the operand, places in it) in the place of operands."""
        changed = {key: how(key, self.of[key], self.sample.along(key[-1])) for key in keys}
        return self.terms(changed=changed).sum(1).half()


def mistakes(sample: Sample, operands: tuple[Callable[[], Operands], ...]) -> Made:
    """Yield mistakes in what is multiplied, of which most of a few elements are the result, and in how it is added.

    operands: give what the result is made of, and what those of other groups are.
    """
    if sample.wrong < SOME:
        return
    whole = operands[0]()
    every, few = (Products.made_of(whole, some) for some in (sample, sample.few(FEW)))
    yield from in_sums(every)
    for text, keys, how in changes(whole, operands[1:]):
        if bool(few.sample.most(few.changed(keys, how))):
            yield text, every.changed(keys, how)
    yield from in_order(every, few)
    yield from in_codes(every)


# ---- what is multiplied


def pick(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return rows of x; behind its last one it begins again."""
    return x[at % len(x)]


def swizzled(bits: int, _: str, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    chunks = x.view(len(x), -1, 32)
    to = torch.arange(chunks.shape[1]) ^ (at[:, None] * bits // 8 % bits)
    return chunks.gather(1, to[:, :, None].expand_as(chunks)).view(x.shape)


def of_numbers(table: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> dict[str, How]:
    def changed(how: Callable[[torch.Tensor], torch.Tensor]) -> How:
        return lambda _, x, __: how(x)

    return {what: changed(how) for what, how in table.items()}


def ordered(whole: Operands, order: torch.Tensor) -> How:
    return lambda key, _, at: whole[key][order[at]]


def instead(whole: Operands, keys: dict[str, str]) -> How:
    """Return what takes rows of this operand, or of the one that stands for it, from others."""
    return lambda key, _, at: pick(whole[keys.get(key, key)], at)


def changes(whole: Operands, others: tuple[Callable[[], Operands], ...]) -> Changes:
    """Yield operands that are decoded, scaled, laid out otherwise, or others."""
    k, tiles = torch.arange(whole["sfa"].shape[1]), -(-whole["sfa"].shape[1] // 4)
    scales = of_numbers(SCALES) | {
        "{} lie in blocks of 128 x 4 and are read row by row": lambda key, _, at: pick(
            whole[f"memory of {key}"], at[:, None] * len(k) + k
        ),
        "{} lie row by row and are read as blocks of 128 x 4": lambda key, _, at: pick(
            whole[key].flatten(),
            (at[:, None] // 128 * tiles + k // 4) * 512 + (at % 32 * 16 + at % 128 // 32 * 4)[:, None] + k % 4,
        ),
    }
    numbers = of_numbers(NUMBERS) | {
        f"{{}}: only written or only read with a swizzle of {16 * bits} bytes": functools.partial(swizzled, bits)
        for bits in (8, 4, 2) if whole["a"].shape[1] % (32 * bits) == 0
    }  # fmt: skip
    for names, table in (ACROSS, scales), (("A", "B", "A and B"), numbers):
        for name, (what, how) in itertools.product(names, table.items()):
            yield what.format(name), PARTS[name], how
    for name, what in ACROSS.items():
        yield what, PARTS[name], instead(whole, {"sfa": "sfb", "sfb": "sfa"})
    for name, key in ("A's scales", "sfa"), ("B's scales", "sfb"):
        for text, order in orders(len(whole[key])):
            yield f"{name}: {text.format('rows')}", (key,), ordered(whole, order)
    for of in (give() for give in others):
        if of["a"].shape[1] == whole["a"].shape[1]:
            for name, keys in PARTS.items():
                yield f"{name}: of another group", keys, instead(of, {})


def in_codes(every: Products) -> Made:
    """Yield numbers of A or B that are read as others: which ones is solved for, by least squares."""
    known = every.sample.numbers.isfinite()
    numbers = every.sample.numbers[known, None].double()
    weights = 1 / numbers.abs().clamp(min=2.0**-14)
    for key in "a", "b":
        x = every.of[key]
        terms = every.terms(changed={key: torch.ones_like(x).copysign(x)})
        sums = torch.stack([terms.where(x.abs() == one, 0).sum(1) for one in FP4], 1)
        solved = torch.linalg.lstsq(sums[known] * weights, numbers * weights, driver="gelsd").solution[:, 0]
        read = torch.where((sums[known] != 0).any(0), (8 * solved).round() / 8, torch.tensor(FP4).double())
        if said := [f"{a:g} is read as {b:g}" for a, b in zip(FP4, read.tolist()) if a != b]:
            yield f"{key.upper()}: {', '.join(said)}", (sums @ read).half()


# ---- in which order


def pairs(count: int) -> Orders:
    """Yield orders of k-blocks in which two are exchanged, or one stands for another."""
    at = torch.arange(count)
    for i, j in itertools.permutations(range(count), 2):
        one = at.where(at != j, i)
        yield f"k-block {i} of {{1}} stands in the place of k-block {j}, too", one
        if i < j:
            yield f"k-blocks {i} and {j} of {{1}} are exchanged", one.where(at != i, j)


def stages(count: int, rings: range) -> Orders:
    """Yield wrong orders of k-blocks, which go through a ring of buffers. rings: how many these may be."""
    at = torch.arange(count)
    yield "a stage of {} late, the first one used twice", (at - 1).clamp(min=0)
    yield "a stage of {} early, the last one used twice", (at + 1).clamp(max=count - 1)
    yield "{} come from last to first", at.flip(0)
    yield "the first of the {} is used each time", torch.zeros_like(at)
    for ring, (back, what) in itertools.product(rings, ((0, "was there a round before"), (1, "the one before it has"))):
        for slot in range(ring):
            stale = (at % ring == slot) & (at >= (back or ring))
            if int(stale.sum()) > 1:  # one alone is a k-block in the place of another
                text = f"buffer {slot} of a ring of {ring} {{}} still has what {what}"
                yield text, torch.where(stale, at - (back or ring), at)


def in_order(every: Products, few: Products) -> Made:
    """Yield k-blocks in another order, of one operand or of some together."""
    k = every.of["a"].shape[1]
    for tile in sorted({*K_TILES, k // 2}, reverse=True):
        if k <= tile or k % tile or tile % BLOCK:
            continue
        count, at, large = k // tile, torch.arange(k // tile), tile >= 64
        rings = range(2, min(count, 7) if large else 2)
        texts, wrong = zip(*(pairs(count) if large else ()), *stages(count, rings), *orders(count))
        all_orders = torch.stack(wrong)
        for name, keys in {**PARTS, "": EVERY}.items():
            parts = keys, tuple(key for key in EVERY if key not in keys)  # what moves, what stays
            moves, stays = (few.terms(part).view(-1, count, tile) for part in parts)
            sums = (moves @ stays.mT)[:, all_orders, at].sum(2).half().T  # [orders, elements]
            for number in few.sample.most(sums).nonzero().flatten().tolist():
                order = all_orders[number]
                moves, stays = (every.terms(part).view(-1, count, tile) for part in parts)
                turns = len(order.unique()) == count
                if turns and name in OTHER_WAY.values():
                    continue
                way = "" if torch.equal(order[order], at) else " the other way"
                other = f" (or {OTHER_WAY[name]}{way})" if turns and name in OTHER_WAY else ""
                what = texts[number].format(f"k-blocks of {tile}", tile)
                yield f"{name}{other}: {what}".removeprefix(": "), (moves[:, order] * stays).sum((1, 2)).half()


# ---- how it is added


def in_sums(every: Products) -> Made:
    """Yield sums that are rounded on the way, and parts of K that are left out, repeated or moved."""
    terms = every.terms()
    exact, k = terms.sum(1), terms.shape[1]
    nearest = exact.half()
    less = (nearest.double().abs() > exact.abs()).short()
    yield "rounded towards zero, not to the nearest", (nearest.view(torch.int16) - less).view(torch.half)
    yield "bits of bfloat16, read as float16", exact.bfloat16().view(torch.half)  # of sums beyond float16, too
    for tile in (tile for tile in K_TILES if k % tile == 0):
        blocks = terms.view(len(terms), -1, tile)
        for dtype, name in (torch.bfloat16, "bfloat16"), (torch.float16, "float16"):
            so_far = torch.zeros_like(exact).to(dtype)
            for one in blocks.sum(2).T:
                so_far = (so_far.double() + one).to(dtype)
            yield f"sums are rounded to {name} behind each {tile} of K", so_far.half()
        for last in (last for last in (BLOCK, 32, 64) if last < tile):
            kept = blocks[:, :, :-last].sum((1, 2)).half()
            yield f"the last {last} of each k-block of {tile} are left out", kept
    if k % 64 == 0:
        sums = torch.nn.functional.pad(terms.view(len(terms), -1, 64).sum(2).cumsum(1), (1, 0))
        parts = (sums[:, None, :] - sums[:, :, None]).triu(1)  # of each element, of K from and to
        for sign, what in (-1, "is left out"), (1, "counts twice"):
            each = (sums[:, -1:, None] + sign * parts).half().flatten(1)
            most = int((each == every.sample.numbers[:, None]).sum(0).argmax())
            first, end = divmod(most, sums.shape[1])
            yield f"K from {64 * first} to {64 * end} {what}", each[:, most]
