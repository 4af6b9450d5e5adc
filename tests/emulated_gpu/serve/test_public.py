"""`python -m tests.public` and `.drawn`: what they say of a run, on scripts of our own."""

import json
import os
import signal
import subprocess
import sys

import pytest

from emulated_gpu.errors import Fault, Unsupported
from tests.public import drawn, drawn_tests
from tests.public.__main__ import ROOT, run, verdict
from tests.public.cases import CASES, Case, all_cases
from tests.public.suites import Suite

WRONG = {"class": "wrong", "kind": "race", "message": "read at (/a/b/c.py:7)\nmore"}


def report(*findings) -> dict:
    return {"runs": [{"findings": list(findings), "launches": []}]}


@pytest.mark.parametrize("status, findings, said, kind, why", [
    (0, [], "fine", "agrees", ""),
    (0, [WRONG], "", "finding", "race: read at (c.py:7)"),
    (0, [WRONG | {"class": "not promised"}], "", "agrees", ""),
    (1, [WRONG | {"kind": "unsupported", "message": "im2col mode"}], "", "refused", "unsupported: im2col mode"),
    (1, [], "errors.Unsupported: unsupported: maps\nemulated-gpu: 0 launches", "refused", "unsupported: maps"),
    (1, [], "AssertionError: off by 2\n", "fails", "AssertionError: off by 2"),
    (3, [], "", "fails", "exit status 3"),
    (-signal.SIGXCPU, [], "", "too long", ""),
    (128 + signal.SIGXCPU, [], "", "too long", ""),
])  # fmt: skip
def test_verdicts(status, findings, said, kind, why):
    assert verdict(status, report(*findings), said) == {"verdict": kind, "why": why}


def test_a_case_runs_under_its_limit_and_only_where_its_files_are(tmp_path):
    (tmp_path / "spin.py").write_text("while True:\n    pass\n")
    assert run(Case("own", "spin", "spin.py", limit=1), "h200", [tmp_path], None)["verdict"] == "too long"
    assert run(Case("own", "none", "none.py"), "h200", [tmp_path], None) is None
    (tmp_path / "two.py").write_text("two = 2\nif __name__ == '__main__':\n    exit('not to be run')\nthree(3)\n")
    case = Case("own", "two", "two.py", code="assert two == 3, f'{two} it is'", until="three")
    row = run(case, "h200", [tmp_path], None)
    assert (row["verdict"], row["why"]) == ("fails", "AssertionError: 2 it is") and row["seconds"] > 0


def test_names_are_each_one_case():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_rows_of_other_files_are_cases_of_the_table():
    row = {"group": "others", "explained": "line 3", "file": "x.cu", "args": "1"}
    made = all_cases({"theirs": {"b200": row}, CASES[0].name: {"b200": {}}, "gone": {"b200": {}}})
    assert made == [*CASES, Case("others", "theirs", "x.cu", "1", explained="line 3")]


OWN_TESTS = """
import pytest

@pytest.mark.parametrize("n", range(20))
def test_of_ten(n):
    if n % 2:
        pytest.skip("no such machine")
    assert n not in (14, 16), n
"""


def test_tests_are_drawn_until_enough_have_run_and_the_rest_is_known(tmp_path):
    """Those that an earlier process has run are not run again; what is skipped does not count."""
    file = tmp_path / "tests" / "test_of_others.py"
    file.parent.mkdir()
    (file.parent / "__init__.py").touch()  # a package of the name of ours
    file.write_text(OWN_TESTS)
    rows, known = tmp_path / "rows", [f"test_of_ten[{n}]" for n in range(0, 12, 2)]
    rows.write_text("".join(json.dumps({"test": name, "verdict": "agrees"}) + "\n" for name in known))
    line = [sys.executable, drawn.CHILD, file, tmp_path, "not 18]", "0", "8", "test_of", rows]
    subprocess.run(line, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    found = [json.loads(one) for one in rows.read_text().splitlines()][len(known) :]
    begun, done = [row["begun"] for row in found[::2]], found[1::2]
    assert begun == [row["test"] for row in done] and begun != sorted(begun)
    assert not {*begun} & {*known, "test_of_ten[18]"}
    ran = [row for row in done if row["verdict"] != "skipped"]
    assert len(ran) == 2 and ran[-1] is done[-1] and len(done) > 2
    fails = [(row["test"], row["why"]) for row in ran if row["verdict"] == "fails"]
    assert fails and all(why == f"AssertionError: {test[12:14]}" for test, why in fails)


def test_a_suite_is_recorded_with_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(drawn, "RECORD", tmp_path / "drawn.json")
    suite = Suite("own", "tests/test_of_others.py", 2, known={"test_a[": "it is wrong"})
    row = {"test": "test_a[1]", "verdict": "fails", "why": "no", "seconds": 1.25, "launches": 2}
    drawn.record(suite, "b200", 0, [row, row | {"test": "test_b", "verdict": "agrees"}])
    (kept,) = json.loads(drawn.RECORD.read_text())["own, test_of_others"].values()
    assert kept["counts"] == {"fails": 1, "agrees": 1} and kept["launches"] == 4
    assert [(one["test"], suite.explanation(one["test"])) for one in kept["others"]] == [("test_a[1]", "it is wrong")]


def test_a_finding_is_not_a_pass():
    report = pytest.TestReport("test_x", ("", 0, ""), {}, "passed", None, "call")
    assert drawn_tests.verdict([], report)["verdict"] == "agrees"
    found = drawn_tests.verdict([Fault("race", "at /a/b.py:7\nmore")], report)
    assert found == {"verdict": "finding", "why": "race: at /a/b.py:7"}
    assert drawn_tests.verdict([Unsupported("im2col")], report)["verdict"] == "refused"
    report.outcome, report.longrepr = "failed", "E   TooLong: more than 60 s"
    assert drawn_tests.verdict([], report) == {"verdict": "too long", "why": "TooLong: more than 60 s"}
