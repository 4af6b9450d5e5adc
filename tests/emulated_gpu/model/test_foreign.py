"""Kernels with published times (silicon/whole_kernels): which are held out, and that all can be run again."""

import json

from silicon.whole_kernels import foreign, published


def test_kernels_are_held_out_as_before_they_were_run():
    assert sorted({point.kernel for point in foreign.POINTS if point.held_out}) == ["v1b", "v7b", "v7c"]
    assert len(foreign.POINTS) == 17


def test_what_was_run_is_of_these_points():
    known = json.loads(foreign.TABLE.read_text())
    assert known.keys() <= {point.name for point in foreign.POINTS}
    assert all(point.us > 0 for point in foreign.POINTS)


def test_each_known_point_can_be_run_again_and_kept(tmp_path, monkeypatch):
    points = published._points()
    assert len(points) == 71 and {point.place[0] for point in points} == {
        "reference-kernels", "nvfp4_gpumode", "NVFP4_Kernels", "gpu-mode-kernels"
    }  # fmt: skip
    assert all(set(point.sizes) in ({"m", "n", "k", "l"}, {"m", "n", "k", "g"}) for point in points)
    table = tmp_path / "whole_kernels.json"
    table.write_text(published.TABLE.read_text())
    monkeypatch.setattr(published, "TABLE", table)
    published.write_time(points[5], 12.345)
    changed = [new.row for old, new in zip(points, published._points(), strict=True) if old != new]
    assert changed == [points[5].row | {"modelled_us": 12.35}] or changed == [points[5].row | {"modelled_us": 12.34}]
