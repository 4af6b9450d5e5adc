"""mypy's findings may only become less (findings_of_types.py): each case on output of our own."""

from collections import Counter

import pytest

from tests.findings_of_types import ALLOWED, ROOT, allowed_in, counts_of, lowered, problems

OUTPUT = """emulated_gpu/a.py:3: error: Item "None" has no attribute "x"  [union-attr]
emulated_gpu/a.py:3: note: because
emulated_gpu/b.py:7: error: Need type annotation for "y"  [var-annotated]
Found 2 errors in 2 files (checked 3 source files)
"""


def test_findings_are_counted_by_file():
    assert counts_of(OUTPUT) == {"emulated_gpu/a.py": 1, "emulated_gpu/b.py": 1}


def test_a_python_without_mypy_has_not_found_nothing():
    with pytest.raises(ValueError, match="did not look"):
        counts_of("/usr/bin/python: No module named mypy\n")


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        ("emulated_gpu/a.py 1\nemulated_gpu/b.py 1\n", ""),
        ("emulated_gpu/a.py 1\n", "emulated_gpu/b.py: 1 findings of mypy, 0 are allowed"),
        ("emulated_gpu/a.py 2\nemulated_gpu/b.py 1\n", "finds less than it may"),
        ("emulated_gpu/a.py 1\nemulated_gpu/b.py 1\nemulated_gpu/c.py 4\n", "finds less than it may"),
        ("emulated_gpu/a.py 9\nemulated_gpu/b.py 0\n", "emulated_gpu/b.py: 1 findings of mypy, 0 are allowed"),
    ],
)
def test_more_is_refused_and_less_is_written_down(allowed, says):
    said = problems(allowed_in(allowed), counts_of(OUTPUT), OUTPUT)
    assert says in "\n".join(said) and bool(said) == bool(says)


def test_numbers_only_fall():
    allowed = Counter({"emulated_gpu/a.py": 3, "emulated_gpu/c.py": 2})
    assert lowered(allowed, counts_of(OUTPUT)) == "emulated_gpu/a.py 1\n"


def test_files_that_may_have_findings_exist():
    assert [file for file in allowed_in(ALLOWED.read_text()) if not (ROOT / file).exists()] == []
