"""Functions with more than eight parameters: a value with a name stands for what belongs together.

The number of each product may only fall. Left are public calls, faces of others (CUDA's functions, torch's operators,
options of a command), arguments of kernels and of machine code, and instructions' operands.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EIGHT = 8
MOST = {"emulated_gpu": 21, "evaluation": 7, "ragged_moe": 25, "silicon": 5}  # functions of each product


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count them; *args and **kwargs are one each, `self` and `cls` none."""
    given = function.args
    names = [x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(given.vararg) + bool(given.kwarg)


def long_ones(text: str) -> list[str]:
    """Name the functions with more than EIGHT."""
    functions = (x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef))
    return [x.name for x in functions if parameters(x) > EIGHT]


@pytest.mark.parametrize("product, most", MOST.items())
def test_no_more_functions_with_long_parameter_lists(product, most):
    found = {str(file.relative_to(ROOT)): long_ones(file.read_text()) for file in (ROOT / product).rglob("*.py")}
    found = {file: names for file, names in found.items() if names}
    assert sum(map(len, found.values())) <= most, f"make a value with a name: {found}"


def test_one_with_nine_is_found():
    assert long_ones("def f(a, b, c, d, e, f, g, h, *i): ...") == ["f"]
    assert long_ones("class C:\n    def f(self, a, b, c, d, e, f, g, *, h): ...") == []
