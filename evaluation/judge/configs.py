"""Finds a submission's Configs and changes them, for `sweep`, `compare` and whoever asks for a config by hand.

`Config` is a dataclass, `CONFIG_MAP` has the Config of a case by ((M of each group), N, K), or several in a tuple, best
guess first, among which the submission chooses by itself on a GPU. Other cases run on `DEFAULT`. The dual GEMM has
`DUAL_CONFIG_MAP`, by (M, N, K), and `DUAL_DEFAULT`. `plan` and `dual_plan`, if there are such, are caches.
"""

import ast
import dataclasses
import linecache
import traceback
from collections.abc import Iterator

import reference


class Unusable(Exception):
    """The submission or its Config lacks what was asked for; the message says what."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Holds the Config of a case after some changes. line: the entry of the submission's table that makes it the
    first."""

    config: object
    several: bool  # the table's entries are tuples
    line: str

    @property
    def text(self) -> str:
        """Writes all of it: `stages=4,pdl=True`."""
        return ",".join(f"{f.name}={getattr(self.config, f.name)}" for f in dataclasses.fields(self.config))


def names(args: dict) -> tuple[str, str, tuple]:
    """Names the table and the default for a case of this kind, and its key in the table."""
    if reference.task_of(args) is reference.DUAL_GEMM:
        return "DUAL_CONFIG_MAP", "DUAL_DEFAULT", (args["m"], args["n"], args["k"])
    return "CONFIG_MAP", "DEFAULT", (tuple(args["m"]), args["n"][0], args["k"][0])


def each_other(module, args: dict) -> Iterator[None]:
    """Makes each further Config that the submission has for a case its only one, in turn, and restores all at the
    end."""
    table_name, _, key = names(args)
    table = getattr(module, table_name, None)
    if not isinstance(table, dict) or not isinstance(configs := table.get(key), tuple):
        return
    for config in configs[1:]:
        table[key] = (config,)
        for remembered in (getattr(module, name, None) for name in ("plan", "dual_plan")):
            getattr(remembered, "cache_clear", lambda: None)()
        yield
    table[key] = configs


# ---- in the submission's process


def changed(base, changes: dict[str, str]):
    """Copies a Config with these entries, as they are written, in place of its own. Raises Unusable."""
    types = {field.name: type(getattr(base, field.name)) for field in dataclasses.fields(base)}
    if unknown := [name for name in changes if name not in types]:
        raise Unusable(f"{type(base).__name__} has no {', '.join(unknown)}; it has {', '.join(types)}")
    values = {}
    for name, text in changes.items():
        try:
            values[name] = {"true": True, "false": False}[text.lower()] if types[name] is bool else types[name](text)
        except (KeyError, ValueError):
            expected = "true or false" if types[name] is bool else f"expected {types[name].__name__}"
            raise Unusable(f"{name}={text}: {expected}") from None
    try:
        return dataclasses.replace(base, **values)
    except Exception as error:
        raise Unusable(_refusal(error, changes)) from None


def chosen(module, args: dict, changes: dict[str, str]) -> Chosen:
    """Changes the Config, the first of several, that the submission has for this case, or its default, or Config().
    Raises Unusable."""
    table_name, default, key = names(args)
    config, table = getattr(module, "Config", None), getattr(module, table_name, None)
    if not dataclasses.is_dataclass(config) or not isinstance(table, dict):
        raise Unusable(f"the submission has no dataclass `Config` and no dict `{table_name}` to choose from")
    several = any(isinstance(entry, tuple) for entry in table.values())
    entry = table.get(key, getattr(module, default, None)) or config()
    base = entry[0] if isinstance(entry, tuple) else entry
    made = changed(base, changes)
    others = [other for other in entry if other != made] if isinstance(entry, tuple) else []  # to choose among
    texts = ", ".join(map(_written, [made, *others]))
    alone = "" if others else ","
    line = f"{key}: {f'({texts}{alone})' if several else texts}," if key in table else f"{default} = {texts}"
    return Chosen(made, several, line)


def _written(config) -> str:
    """Writes what differs from the defaults: `Config(stages=4)`."""
    given = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) != f.default]
    return f"Config({', '.join(f'{name}={getattr(config, name)!r}' for name in given)})"


def choose(module, args: dict, changes: dict[str, str]) -> None:
    """Makes what `chosen` returns the Config of all cases. Raises Unusable."""
    table_name, default, key = names(args)
    of_case, table = chosen(module, args, changes), getattr(module, table_name)
    for known in [key, *table]:
        table[known] = (of_case.config,) if of_case.several else of_case.config
    if hasattr(module, default):
        setattr(module, default, of_case.config)


def described(module, asked: list[tuple[dict, dict[str, str]]]) -> list[dict]:
    """Returns {"config", "line"}, the text and the line of a Chosen, or {"error": one sentence} for each
    (args, changes)."""
    found = []
    for args, changes in asked:
        try:
            of_case = chosen(module, args, changes)
            found.append({"config": of_case.text, "line": of_case.line})
        except Unusable as error:
            found.append({"error": str(error)})
    return found


def _refusal(error: Exception, changes: dict[str, str]) -> str:
    """Says why Config refuses the changes: for an `assert` without a message by its condition, or what that asks
    for."""
    named, reason = changes, " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, AssertionError) and not str(error):
        condition, frame = _failed_condition(error)
        if condition is not None:
            attributes = {node.attr for node in ast.walk(condition) if isinstance(node, ast.Attribute)}
            named = {name: value for name, value in changes.items() if name in attributes} or changes
            reason = f"Config asks for {ast.unparse(condition)}"
            if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], (ast.In, ast.LtE)):
                allowed = _value(condition.comparators[0], frame)
                if isinstance(allowed, (set, frozenset, dict, list, tuple)):
                    listed = [*map(str, allowed)]
                    reason = f"one of {', '.join(sorted(listed) if isinstance(allowed, (set, frozenset)) else listed)}"
    return f"{','.join(f'{name}={value}' for name, value in named.items())}: {reason}"


def _failed_condition(error: AssertionError):
    """Finds (the part of the failed assert's condition that does not hold or None, the frame)."""
    frame, line = [*traceback.walk_tb(error.__traceback__)][-1]
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
        (failed,) = (
            n for n in ast.walk(tree) if isinstance(n, ast.Assert) and n.lineno <= line <= (n.end_lineno or n.lineno)
        )
        test = failed.test
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        return next(c for c in parts if not _value(c, frame)), frame
    except (SyntaxError, ValueError, StopIteration):
        return None, frame


def _value(expression: ast.expr, frame):
    code = compile(ast.Expression(expression), frame.f_code.co_filename, "eval")
    return eval(code, frame.f_globals, frame.f_locals)
