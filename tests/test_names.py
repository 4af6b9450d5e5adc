"""No function of a module bears a name that a hundred others could: a reader, and a search, find its callers by it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAY_NOTHING = {"run", "write", "place", "begin", "note", "of", "one"}
GIVEN = {  # a command, and a public call
    "emulated_gpu": {"emulated_gpu/__main__.py": ["run"]},
    "ragged_moe": {"ragged_moe/layers/deepseek_layer.py": ["run"]},
}


def names_that_say_nothing(text: str) -> list[str]:
    """Name the functions of a module that are called by such a word alone."""
    return [x.name for x in ast.parse(text).body if isinstance(x, ast.FunctionDef) and x.name in SAY_NOTHING]


@pytest.mark.parametrize("product", ["emulated_gpu", "evaluation", "ragged_moe", "silicon"])
def test_functions_have_names_that_a_search_finds(product):
    files = (ROOT / product).rglob("*.py")
    found = {str(file.relative_to(ROOT)): names_that_say_nothing(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == GIVEN.get(product, {})


def test_such_a_name_is_found():
    assert names_that_say_nothing("def note(x): ...\ndef note_write(x): ...") == ["note"]
