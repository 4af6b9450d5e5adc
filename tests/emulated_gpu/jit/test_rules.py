"""Rules (jit/rules.py) do the same as Python and as machine code, and what they may not have is refused by name."""

from typing import NamedTuple

import numpy as np
import pytest

from emulated_gpu.jit.llvm import Untranslated
from emulated_gpu.jit.rules import (
    Array,
    Later,
    bits,
    count_ones,
    float32,
    int8,
    int32,
    int64,
    ones,
    pointer,
    room,
    rule,
    trailing_zeros,
    where,
)


class Pair(NamedTuple):
    left: Array
    right: Array


@rule
def first_of(numbers, n, wanted):
    for k in range(n):
        if numbers[k] == wanted:
            return k
    return n


@rule
def loops(at, n, wanted, unused):
    """Turns that are counted, of bits, and made for constants."""
    numbers, total = int32(at), 0
    for k in range(1, n, 2):
        total += numbers[k] * k
    for k in ones(wanted):
        for low in ones(wanted & 5):
            if low != 2:
                total += k * 3 + low
    for left in range(n):
        wanted = wanted * 3 & 255
        for step in (1, 3):
            total = total + (left ^ step)
            if step == 3:
                numbers[left] += 1
    return total << 8 | first_of(numbers, n, wanted)


@rule
def branches(at, n, wanted, unused):
    """What decides is computed where it does: else there would be no element."""
    numbers, found = int64(at), 0
    if n > 3 and numbers[2] > 100 or wanted == 5:
        found = 1
    elif not (n and numbers[0] < wanted):
        found = 2
    else:
        found = 3
    inside = 1 < wanted and wanted <= n
    none = n == 0 or numbers[0] == wanted and not unused
    return found * 16 + where(inside, 4, 0) + where(none, 1, 2) + n // 3 + n % 5


@rule
def copied(pair, n, backwards):
    for k in range(n):
        pair.right[n - 1 - k if backwards else k] = pair.left[k]


@rule
def vectors(at, n, wanted, unused):
    numbers, bytes_, kept = int32(at), int8(at), room(8)
    for k in range(8):
        kept[k] = numbers[k] & 255
    row = numbers[n : n + 16]
    low = (row ^ wanted) - 1 < 0x80000000
    numbers[n : n + 16] = where(low, row + np.arange(16, dtype=np.uint32), row[3])
    numbers[0:4] = 77
    bytes_[4 * n + 20 : 4 * n + 20 + 3] = 1
    copied(Pair(kept, int64(at).at(20)), 8, True)
    some = (row > 500).any() and not (row > 0).all()
    if (where(wanted >> np.arange(16) & 1 != 0, row, 1) == 1).all():
        return bits(low)
    return bits(low) * 4 + where(some, 1, 0) + count_ones(n) + trailing_zeros(n + 1)


@rule
def reals(at, n, wanted, odd):
    numbers, least = float32(at), 0.25
    if odd:
        least = 0.0
    total = numbers[0:16] * 0.5
    for k in range(3):
        total = total + numbers[16 : 16 + 16] / (numbers[k] * 2.0 + 1.0)
    numbers[n : n + 16] = where(total < 3.0, total, -total)
    return where(least > 0.1, 1, 0)


@pytest.mark.parametrize("text", [loops, branches, vectors, reals], ids=lambda r: r.__name__)
def test_both_ways_do_the_same(text):
    machine, rng = text.compiled, np.random.default_rng(0)
    for turn in range(40):
        memory = rng.integers(0, (8, 1000, 1 << 32)[turn % 3], 64).astype(np.uint32)
        if text is reals:
            memory = rng.standard_normal(64).astype(np.float32).view(np.uint32)
        other, n, wanted = memory.copy(), int(rng.integers(0, 33)), int(rng.integers(0, 9))
        before = memory.tolist()
        assert machine(pointer(memory), n, wanted, turn % 2) == int(text(pointer(other), n, wanted, turn % 2))
        assert memory.tolist() == other.tolist()
        assert text is branches or n < 4 or memory.tolist() != before


@rule
def chooses(at):
    return 1 if at else 2


@rule
def two_types(at):
    if at:
        return at == 3
    return at


@rule
def with_resource(at):
    with at:
        return 0


@pytest.mark.parametrize(("text", "says"), [(chooses, "where"), (two_types, "two types"), (with_resource, "with at")])
def test_what_has_no_machine_code_is_refused(text, says):
    with pytest.raises(Untranslated, match=says):
        text.compiled  # noqa: B018


def test_machine_code_comes_when_it_pays():
    later = Later(lambda: 7, 5)
    assert [later(2) for _ in range(4)] == [None, None, None, 7]
