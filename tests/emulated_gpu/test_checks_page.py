"""CHECKS.md: what each row of its tables of promises names in its last column is a test, or a case that one runs."""

import re
from pathlib import Path

from corpus.bugs import BUGS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "emulated_gpu" / "CHECKS.md"


def rows() -> list[list[str]]:
    """The cells of the rows of the tables whose last column is `shown by`."""
    _, *tables = re.split(r"^\|.*\| shown by \|\n\|[-|]+\n", PAGE.read_text(), flags=re.MULTILINE)
    lines = [line for table in tables for line in table.partition("\n\n")[0].splitlines()]
    return [line.strip("| ").split(" | ") for line in lines]


def test_what_each_row_names_is_run():
    run = {f"{bug.kernel}: {bug.name}" for bug in BUGS}
    for path, names in (
        *((path, r"^def (test_\w+)") for path in HERE.rglob("test_*.py")),
        (HERE / "serve" / "streams_of_torch.py", r"^def (\w+)\(mended\)"),
        (HERE / "serve" / "streams.cu", r'^  (?:WRONG\("[\w-]+", |RIGHT\()(\w+)\)$'),
    ):
        run |= {*re.findall(names, path.read_text(), re.MULTILINE)}
    found = rows()
    assert len(found) > 30
    for cells in found:
        named = re.findall(r"`([^`]+)`", cells[-1])
        assert named or cells[2:3] == ["trusted"], cells
        assert {*named} <= run, {*named} - run
