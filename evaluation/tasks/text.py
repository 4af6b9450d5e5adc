"""What the text of a task's modules says, of which none is imported: names, constants, calls."""

import ast
import contextlib
import inspect
from pathlib import Path


def tree_of(path: str | Path | None) -> ast.Module:
    """Parses a module; one that is not there, or is no Python, has nothing in it."""
    try:
        return ast.parse(Path(path).read_text()) if path else ast.Module([], [])
    except (OSError, ValueError, SyntaxError):
        return ast.Module([], [])


def defined(tree: ast.Module) -> set[str]:
    """Lists the names of a module's own functions and classes."""
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def constants(tree: ast.Module) -> dict[str, int]:
    """Lists a module's constants that are integers, or products of some."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError, TypeError):
                found[node.targets[0].id] = product(node.value)
    return found


def functions_of(phases, reference: ast.Module, evaluator: ast.Module) -> list:
    """Lists the submission's functions that an evaluator calls, one a phase, and how many of the data each gets, which
    is what the reference's own takes. Raises ValueError."""
    taken = {node.name: len(node.args.args) for node in reference.body if isinstance(node, ast.FunctionDef)}
    called = {node.attr for node in ast.walk(evaluator) if isinstance(node, ast.Attribute)}
    found = []
    for phase in phases:
        names = [name for name in called if name.endswith(f"_{phase}")]
        if len(names) != 1:
            raise ValueError(f"its eval.py calls {len(names)} functions of a submission whose names end in _{phase}")
        found.append([names[0], taken[f"reference_{phase}"]])
    return found


def arguments(evaluator: ast.Module, function) -> dict[str, int]:
    """Finds what an evaluator passes to a function that no case has: constants of its own, by position."""
    known, names = constants(evaluator), [*inspect.signature(function).parameters]
    for node in ast.walk(evaluator):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.__name__:
            given = [(name, arg.id) for name, arg in zip(names, node.args) if isinstance(arg, ast.Name)]
            return {name: known[constant] for name, constant in given if constant in known}
    return {}


def product(node: ast.expr) -> int:
    """Evaluates an integer, or a product of some. Raises ValueError."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return product(node.left) * product(node.right)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("no integer")
