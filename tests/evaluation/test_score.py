"""What each case of a benchmark is worth."""

import math

import pytest

from evaluation.commands.score import rows, worths


def test_shares_are_logarithms_of_the_distance_to_the_floor():
    times, floors = [40.0, 20.0, 5.0, 1.0], [20.0, 5.0, 5.0, 0.96]
    found = worths(times, floors)
    assert [one.above for one in found] == pytest.approx([2, 4, 1, 1 / 0.96])
    rest = math.log(2) + math.log(4) + math.log(1 / 0.96)
    assert [one.left for one in found] == pytest.approx([math.log(r) / rest for r in (2, 4, 1, 1 / 0.96)])
    # a tenth of either of the first brings the same; what is at its floor brings nothing, what is near it that much
    assert [one.gain for one in found] == pytest.approx([1 - 0.9**0.25, 1 - 0.9**0.25, 0, 1 - 0.96**0.25])


def test_the_gain_is_that_of_the_score():
    times = [40.0, 20.0, 5.0]
    mean = math.prod(times) ** (1 / 3)
    shorter = math.prod([36.0, 20.0, 5.0]) ** (1 / 3)
    assert worths(times, [1, 1, 1])[0].gain == pytest.approx(1 - shorter / mean)


def test_without_floors_only_the_gain_is_known():
    columns, table = rows([0, 3], [4.0, 9.0], [0, 0], 6.0)
    assert columns[0] == "case" and table == [
        ["0", "-", "-", "-", "5.1%, 0.308 us"],
        ["3", "-", "-", "-", "5.1%, 0.308 us"],
    ]


def test_all_at_their_floors():
    assert [(one.left, one.gain) for one in worths([4.0, 9.0], [4.0, 10.0])] == [(0.0, 0.0)] * 2
