"""CUTLASS's kernels on an H200 (silicon/whole_kernels/hopper.py): what was held out, and whose table it is."""

import json
from pathlib import Path

from emulated_gpu.model import uncertainty
from silicon.whole_kernels import exam, hopper

PAGE = Path(hopper.__file__).with_name("README.md")
MEASURED = json.loads(hopper.TABLE.read_text())
MODELLED = json.loads(hopper.MODELLED.read_text())


def test_half_of_the_kernels_is_held_out():
    held_out = [k for k in hopper.KERNELS if k.held_out]
    assert len(hopper.KERNELS) >= 8 and 2 * len(held_out) == len(hopper.KERNELS)


def test_every_point_was_timed_and_modelled():
    names = [name for name, _, _ in hopper.points() if not name.endswith("compare")]
    assert len(names) * len(hopper.TIMINGS) >= 30
    assert set(names) == set(MEASURED["points"]) == set(MODELLED)
    assert {name for name, _, _ in hopper.points()} - set(names) == set(MEASURED["outputs"])


def test_the_table_is_of_these_files():
    text = PAGE.read_text()
    assert hopper.table(MEASURED["points"], MODELLED) in text


def test_the_intervals_are_of_these_files():
    assert uncertainty.POINTS_H200 == hopper.errors(MEASURED["points"], MODELLED)
    assert sum(name.startswith(uncertainty.SPILLING) for name in uncertainty.POINTS_H200) == 6


def test_the_exam_is_whole_and_of_kernels_that_the_table_has_not():
    """Each of its points was timed and modelled, none is a kernel of hopper.py, and the page has what came out."""
    asked = {name: kernel for name, kernel, _ in hopper.points(exam.KERNELS)}
    measured = json.loads(exam.TABLE.read_text())["points"]
    modelled = json.loads(exam.TABLE.with_name("modelled_exam.json").read_text())
    assert set(asked) == set(measured) == set(modelled)
    assert 24 <= len(hopper.TIMINGS) * sum(kernel.held_out for kernel in asked.values()) <= 32
    assert not {(k.script, k.arguments) for k in hopper.KERNELS} & {
        (k.script, k.arguments) for k in exam.KERNELS if k.held_out
    }
    text = PAGE.read_text()
    assert hopper.table(measured, modelled, exam.KERNELS) in text


def test_errors_and_order():
    names = [name for name in MEASURED["points"] if name.startswith("dense 128x128 f16/1024")]
    exact = {name: {t: MEASURED["points"][name][t][0] for t in hopper.TIMINGS} for name in names}
    assert "Fitted: 4 points, median error 0." in hopper.table(MEASURED["points"], exact)
    right, pairs = hopper.order(MEASURED["points"], exact)
    assert right == pairs > 0
    turned = dict(zip(exact, reversed(exact.values()), strict=True))
    assert hopper.order(MEASURED["points"], turned) == (0, pairs)
