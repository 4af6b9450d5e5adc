"""Kernels with published times (silicon/whole_kernels): which are held out, and that all can be run again."""

import json
import os
import subprocess

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
    assert len(points) == len(uncertainty.POINTS["plain"]) + 6 == 73 and {point.place[0] for point in points} == {
        "reference-kernels", "nvfp4_gpumode", "NVFP4_Kernels", "gpu-mode-kernels"
    }  # fmt: skip
    assert all(set(point.sizes) in ({"m", "n", "k", "l"}, {"m", "n", "k", "g"}) for point in points)
    single = {point.name for point in points if not point.row["in a row"]}
    assert single == {f"gau.nernst, {version}" for version in ("v1", "v2", "v4", "v5")}  # before eval.py had rows
    table = tmp_path / "whole_kernels.json"
    table.write_text(published.TABLE.read_text())
    monkeypatch.setattr(published, "TABLE", table)
    published.write_time(points[5], 12.345, made_of := {"hbm": 0.5})
    changed = [new.row for old, new in zip(points, published._points(), strict=True) if old != new]
    assert changed == [points[5].row | {"modelled_us": changed[0]["modelled_us"], "made_of": made_of}]
    assert changed[0]["modelled_us"] == pytest.approx(12.345, abs=0.006)


def test_calls_between_events_are_those_of_the_evaluator_of_the_day(tmp_path):
    """By the history of the tasks, of which the sealed problems are, too: nothing of a submission is read."""

    def commit(day: str, files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / published.PROBLEMS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        when = {f"GIT_{who}_DATE": f"{day}T12:00:00Z" for who in ("AUTHOR", "COMMITTER")}
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", day], check=True, env=os.environ | when)

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    source = 'files:\n  - {"name": "eval.py", "source": "%s"}\n'
    commit(
        "2025-11-28", {"eval.py": "import", "nvfp4_gemm/task.yml": source % "../eval.py", "other/task.yml": "files: []"}
    )
    commit("2025-11-30", {"rows.py": "NUM_ITERATIONS_PER_BENCHMARK = 50", "nvfp4_gemm/task.yml": source % "../rows.py"})
    commit("2026-01-25", {"rows.py": "    num_iterations_per_benchmark = 15"})
    days = ("2025-11-29", "2025-11-30", "2026-01-24", "2026-01-25", None)
    assert [published.calls_on(tmp_path, "nvfp4_gemm", day) for day in days] == [1, 50, 50, 15, 15]
    template = next(point for point in published._points() if point.row.get("timed") == "2025-11-30")
    assert template.place[2] == "nvfp4_gemm" and template.calls(tmp_path) == 50
    for problem, day, why in (("nvfp4_gemm", "2025-11-27", "nvfp4_gemm, 2025-11-27: "), ("other", None, "no eval.py")):
        with pytest.raises(ValueError, match=why):
            published.calls_on(tmp_path, problem, day)
