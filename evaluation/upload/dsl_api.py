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
    modules = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module for n in imports if isinstance(n, ast.ImportFrom) and n.module}
    if not any(name.partition(".")[0] == "cutlass" for name in modules):
        return []
    try:
        installed = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        message = f"needs nvidia-cutlass-dsl {VERSION} to compare with, not {installed}"
        return [Finding(0, 0, "dsl-api", "error", message)]
    names = Names(tree)
    for statement in imports:
        names.bind(statement)
    names.follow_chains()
    names.compare_arguments()
    return list(names.findings.values())


class Names:
    """What the names of a file stand for in CuTe DSL, and what is missing there: findings by their messages."""

    def __init__(self, tree: ast.Module):
        self.nodes = [*ast.walk(tree)]
        self.findings: dict[str, Finding] = {}
        self.paths: dict[str, str] = {}  # what an import binds a name to
        self.rebound = {n.id for n in self.nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self.rebound |= {n.arg for n in self.nodes if isinstance(n, ast.arg)}

    def missing(self, message: str, node: ast.expr | ast.stmt) -> None:
        self.findings.setdefault(message, Finding(node.lineno, node.col_offset + 1, "dsl-api", "error", message))

    def look(self, path: str, node: ast.expr | ast.stmt):
        """Finds what the path stands for, or None."""
        try:
            return find(path)
        except Missing as missing:
            self.missing(str(missing), node)
        return None

    def bind(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Looks up what is imported from `cutlass`."""
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                path, name = alias.name, alias.asname or alias.name.partition(".")[0]
                bound = path if alias.asname else name
            else:
                path = bound = f"{statement.module}.{alias.name}"
                name = alias.asname or alias.name
            if path.partition(".")[0] == "cutlass" and alias.name != "*":
                self.look(path, statement)
                self.paths[name] = bound

    def dotted(self, node: ast.AST) -> str | None:
        """Names the path of a chain of attributes that begins at an import."""
        if isinstance(node, ast.Name):
            return None if node.id in self.rebound else self.paths.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return base and f"{base}.{node.attr}"
        return None

    def follow_chains(self) -> None:
        """Looks up the longest chains of attributes."""
        inner: set[ast.AST] = set()  # parts of longer chains
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and node not in inner:
                inner.update(ast.walk(node.value))
                if path := self.dotted(node):
                    self.look(path, node)

    def compare_arguments(self) -> None:
        """Compares keyword arguments with the signatures of functions."""
        for node in self.nodes:
            if not isinstance(node, ast.Call) or not (path := self.dotted(node.func)):
                continue
            function = self.look(path, node)
            if not isinstance(function, types.FunctionType):
                continue
            parameters = inspect.signature(function).parameters
            if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                continue
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in parameters:
                    self.missing(f"{path} of CuTe DSL {VERSION} has no argument {keyword.arg}", keyword.value)
