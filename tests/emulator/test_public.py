"""`python -m tests.public`: what it says of a run, on scripts of our own."""

import signal

import pytest

from tests.public.__main__ import run, verdict
from tests.public.cases import CASES, Case

WRONG = {"class": "wrong", "kind": "race", "message": "read at (/a/b/c.py:7)\nmore"}


def report(*findings) -> dict:
    return {"runs": [{"findings": list(findings), "launches": []}]}


@pytest.mark.parametrize("status, findings, said, kind, why", [
    (0, [], "fine", "agrees", ""),
    (0, [WRONG], "", "finding", "race: read at (c.py:7)"),
    (0, [WRONG | {"class": "not promised"}], "", "agrees", ""),
    (1, [WRONG | {"kind": "unsupported", "message": "im2col mode"}], "", "refused", "unsupported: im2col mode"),
    (1, [], "emulator.errors.Unsupported: unsupported: maps\nemulator: 0 launches", "refused", "unsupported: maps"),
    (1, [], "AssertionError: off by 2\n", "fails", "AssertionError: off by 2"),
    (3, [], "", "fails", "exit status 3"),
    (-signal.SIGXCPU, [], "", "too long", ""),
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
