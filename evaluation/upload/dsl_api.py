"""Finds names of CuTe DSL that a submission uses and the grader's version does not have.

Attribute chains that start at an import of `cutlass` are followed through the modules and classes of the installed
package, and keyword arguments are compared with the signatures of its functions. The submission is not executed.
"""

import ast
import importlib
import importlib.metadata
import inspect
import types

from evaluation.upload.findings import Finding

VERSION = "4.5.2"


class Missing(Exception):
    """The grader's CuTe DSL lacks what the message names."""


def find(path: str):
    """Finds the object behind a dotted name, importing modules on the way. Raises Missing."""
    parts = path.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        try:
            found = step(found, part)
        except AttributeError:
            raise Missing(f"CuTe DSL {VERSION} has no {'.'.join(parts[: i + 1])}") from None
    return found


def step(found, name: str):
    """Gets an attribute or submodule `name`; None of an instance, whose attributes are not known here. Raises
    AttributeError."""
    if not isinstance(found, (types.ModuleType, type)):
        return None
    try:
        return getattr(found, name)
    except AttributeError:
        if isinstance(found, type):
            raise
        try:
            return importlib.import_module(f"{found.__name__}.{name}")
        except ImportError:
            raise AttributeError(name) from None


def check_dsl(tree: ast.Module) -> list[Finding]:
    """Finds each missing name once, at its first use; a single finding if the installed DSL is not the grader's."""
    imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    modules = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names} | {
        n.module for n in imports if isinstance(n, ast.ImportFrom) and n.module
    }
    if not any(name.partition(".")[0] == "cutlass" for name in modules):
        return []
    try:
        installed = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        message = f"needs nvidia-cutlass-dsl {VERSION} to compare with, not {installed}"
        return [Finding(0, 0, "dsl-api", "error", message)]

    findings: dict[str, Finding] = {}
    paths: dict[str, str] = {}

    def look(path: str, node: ast.expr | ast.stmt):
        try:
            return find(path)
        except Missing as missing:
            message, place = str(missing), (node.lineno, node.col_offset + 1)
            findings.setdefault(message, Finding(*place, "dsl-api", "error", message))
        return None

    for statement in imports:
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                path, name = alias.name, alias.asname or alias.name.partition(".")[0]
                bound = path if alias.asname else name
            else:
                path = bound = f"{statement.module}.{alias.name}"
                name = alias.asname or alias.name
            if path.partition(".")[0] == "cutlass" and alias.name != "*":
                look(path, statement)
                paths[name] = bound
    rebound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    rebound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}

    def dotted(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return None if node.id in rebound else paths.get(node.id)
        if isinstance(node, ast.Attribute):
            base = dotted(node.value)
            return base and f"{base}.{node.attr}"
        return None

    inner: set[ast.AST] = set()  # parts of longer chains
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            inner.update(n for n in ast.walk(node.value))
            if path := dotted(node):
                look(path, node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (path := dotted(node.func)):
            function = look(path, node)
            if not isinstance(function, types.FunctionType):
                continue
            parameters = inspect.signature(function).parameters
            if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                continue
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in parameters:
                    message = f"{path} of CuTe DSL {VERSION} has no argument {keyword.arg}"
                    place = keyword.value.lineno, keyword.value.col_offset + 1
                    findings.setdefault(message, Finding(*place, "dsl-api", "error", message))
    return list(findings.values())
