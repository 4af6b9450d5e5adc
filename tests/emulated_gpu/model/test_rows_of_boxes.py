"""What tensor copies cost by the rows of their boxes, against an H200 (silicon/probes/rows_of_boxes.py)."""

import numpy as np
import pytest

from emulated_gpu.formats.tensormap import TensorMap
from emulated_gpu.model.clock import TimingClock
from emulated_gpu.model.profile import load
from silicon.probes import cycles, rows_of_boxes

H200 = load("h200")
MEASURED = cycles.recorded(rows_of_boxes.TABLE)
POINTS = {pattern.name: pattern for pattern in rows_of_boxes.PATTERNS}
DRAWN = [  # a point of each form where rows take longer than bytes and than the thread that issues
    "load, rows of 16 B, 64 at 4096 x 4 at 512, 48 by 12, 1 CTAs",
    "load, rows of 32 B, 128 at 4096, 48 by 12, 132 CTAs",
    "multicast, rows of 16 B, 64 at 4096 x 8 at 16, 8 by 8, 2 CTAs",
    "store, rows of 16 B, 64 at 4096, 48 by 12, 1 CTAs, swizzle 32",
    "reduce, rows of 32 B, 128 at 4096, 48 by 12, 1 CTAs",
    "prefetch, rows of 32 B, 64 at 4096 x 4 at 32, 48 by 8, 1 CTAs",
]


def test_about_half_is_held_out_and_all_are_recorded():
    held = [pattern.held_out for pattern in POINTS.values()]
    assert 0.4 < sum(held) / len(held) < 0.6
    assert set(MEASURED) == set(POINTS)


@pytest.mark.parametrize("name", DRAWN)
def test_rows_have_a_price_in_every_form(name):
    assert rows_of_boxes.on_the_model(POINTS[name], H200)[1] == pytest.approx(MEASURED[name][1], rel=0.08)


@pytest.mark.parametrize(
    ("coords", "lines", "requests", "parts"),
    [
        ((0, 0), [0], 1, 0),  # 64 bytes of a row
        ((16, 5, 1, 9, 40), [1, 5, 9, 40], 4, 0),  # gather4: four rows, wherever they lie
        ((28, 3), [3], 1, 1),  # 16 bytes lie in the tensor
        ((24, 3), [3], 1, 0),
    ],
)
def test_what_a_copy_touches(coords, lines, requests, parts):
    clock = TimingClock(H200, None, None)
    tensor = TensorMap(1 << 20, "u32", (32, 64), (128,), (16, 1), (1, 1))
    touched = clock.touched(tensor, coords)
    assert sorted(np.asarray(touched.lines) - (1 << 13)) == lines
    assert (touched.requests, touched.parts) == (requests, parts)


@pytest.mark.parametrize(("row", "requests", "parts"), [(16, 8, 8), (32, 8, 0), (48, 16, 8), (128, 8, 0), (256, 16, 0)])
def test_requests_of_a_box(row, requests, parts):
    tensor = TensorMap(1 << 20, "u32", (64, 64), (256,), (row // 4, 8), (1, 1))
    touched = TimingClock(H200, None, None).touched(tensor, (0, 0))
    assert (touched.requests, touched.parts) == (requests, parts)
