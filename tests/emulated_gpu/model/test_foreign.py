"""Kernels with published times (silicon/whole_kernels): which are held out, and that all can be run again."""

import json

import pytest

from emulated_gpu.model import uncertainty
from silicon.whole_kernels import foreign, published


def test_kernels_are_held_out_as_before_they_were_run():
    assert sorted({point.kernel for point in foreign.POINTS if point.held_out}) == ["v1b", "v7b", "v7c"]
    assert len(foreign.POINTS) == 17


def test_what_was_run_is_of_these_points():
    rows = [row for row in uncertainty.POINTS["strangers"] if row["author"] == foreign.AUTHOR]
    assert len(foreign.kept()) == len(rows) > 8 and all(point.us > 0 for point in foreign.POINTS)


def test_what_is_run_again_takes_the_place_of_what_was_kept(tmp_path, monkeypatch):
    table = tmp_path / "whole_kernels.json"
    table.write_text(foreign.TABLE.read_text())
    monkeypatch.setattr(foreign, "TABLE", table)
    point = next(p for p in foreign.POINTS if p.name in foreign.kept())
    made_of = dict.fromkeys(("hbm", "tensor", "issue", "warp"), 0.5)
    foreign.keep(point, {"us": 12.345, "made_of": made_of})
    old, new = uncertainty.POINTS, json.loads(table.read_text())
    changed = [row for row in new.pop("strangers") if row not in old["strangers"]]
    assert changed == [point.row | {"modelled_us": changed[0]["modelled_us"], "long row": True, "made_of": made_of}]
    assert changed[0]["modelled_us"] == pytest.approx(12.345, abs=0.006)
    assert new == {name: value for name, value in old.items() if name != "strangers"}


def test_each_known_point_can_be_run_again_and_kept(tmp_path, monkeypatch):
    points = published._points()
    assert len(points) == len(uncertainty.POINTS["plain"]) + 6 == 77 and {point.place[0] for point in points} == {
        "reference-kernels", "nvfp4_gpumode", "NVFP4_Kernels", "gpu-mode-kernels"
    }  # fmt: skip
    assert all(set(point.sizes) in ({"m", "n", "k", "l"}, {"m", "n", "k", "g"}) for point in points)
    single = {point.name for point in points if point.calls == 1 and "template" not in point.name}
    assert single == {f"gau.nernst, {version}" for version in ("v1", "v2", "v4", "v5")}  # before eval.py had rows
    assert {point.place[2]: point.calls for point in points if point.calls > 1} == published.CALLS
    table = tmp_path / "whole_kernels.json"
    table.write_text(published.TABLE.read_text())
    monkeypatch.setattr(published, "TABLE", table)
    published.write_time(points[5], 12.345, made_of := {"hbm": 0.5})
    changed = [new.row for old, new in zip(points, published._points(), strict=True) if old != new]
    assert changed == [points[5].row | {"modelled_us": changed[0]["modelled_us"], "made_of": made_of}]
    assert changed[0]["modelled_us"] == pytest.approx(12.345, abs=0.006)
