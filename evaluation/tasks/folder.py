"""Reads a folder of the form of https://github.com/gpu-mode/reference-kernels: its task.yml, and the modules it
names."""

import ast
import contextlib
import dataclasses
import importlib.abc
import importlib.util
import sys
from pathlib import Path

import yaml

from task import TestCase

SUBMISSION = "@SUBMISSION@"  # the source of the file that is the submission's
NEEDED = "generate_input", "check_implementation"  # of reference.py


@dataclasses.dataclass(frozen=True)
class TaskFolder:
    """Holds what a folder's task.yml says. modules: their names -> absolute paths; a submission may import them.

    evaluator: path of the grader's program, which says how often it calls; None if there is none.
    """

    path: str
    name: str
    modules: dict[str, str]
    tests: list[TestCase]
    benchmarks: list[TestCase]
    evaluator: str | None

    @classmethod
    def read(cls, path: str) -> "TaskFolder":
        """Reads a folder. Raises ValueError, with one sentence, for what is not of that form."""
        folder = Path(path).absolute()
        try:
            content = yaml.safe_load((folder / "task.yml").read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read the task of {path}: {error}") from None
        except yaml.YAMLError as error:
            raise ValueError(f"{path}/task.yml is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict) or not isinstance(content.get("files"), list):
            raise ValueError(f"{path}/task.yml has no list of files")
        if content.get("multi_gpu"):
            raise ValueError(f"{path}/task.yml is of several GPUs (multi_gpu), which --task-dir does not do")
        sources = {}
        for entry in content["files"]:
            if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "source")):
                raise ValueError(f"{path}/task.yml: a file has a name and a source, got {entry}")
            if entry["source"] != SUBMISSION:
                sources[entry["name"]] = (folder / entry["source"]).resolve()
        for name, source in sources.items():
            if not source.is_file():
                raise ValueError(f"{path}/task.yml names {name}, and there is no file {source}")
        if "reference.py" not in sources:
            raise ValueError(f"{path}/task.yml names no reference.py")
        evaluator = sources.pop("eval.py", None)
        return cls(
            str(folder),
            folder.name,
            {name.removesuffix(".py"): str(source) for name, source in sources.items() if name.endswith(".py")},
            *(read_section(path, content, section) for section in ("tests", "benchmarks")),
            str(evaluator) if evaluator else None,
        )

    def cases(self, section: str) -> list[TestCase]:
        """Lists the cases of a section, "tests" or "benchmarks"."""
        return self.tests if section == "tests" else self.benchmarks

    def calls(self, input_bytes: int) -> int:
        """Says how many calls, each on inputs of its own, the grader times together: as its program's constants tell.

        input_bytes: of one call's inputs. One where the program has no such constant.
        """
        found = {}
        try:
            tree = ast.parse(Path(self.evaluator).read_text()) if self.evaluator else ast.Module([], [])
        except (OSError, ValueError, SyntaxError):
            return 1
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                with contextlib.suppress(ValueError, TypeError):
                    found[node.targets[0].id] = product(node.value)
        if most := found.get("MAX_ITERATIONS_PER_BENCHMARK"):
            return max(1, min(most, found.get("BENCHMARK_INPUT_BYTES_TARGET", 0) // max(1, input_bytes)))
        return max(1, found.get("NUM_ITERATIONS_PER_BENCHMARK", 1))

    def tolerance(self) -> str:
        """Says by what results are compared, as far as the text of reference.py shows it."""
        path = self.modules["reference"]
        try:
            tree = ast.parse(Path(path).read_text())
        except (OSError, ValueError, SyntaxError) as error:
            return f"nothing: {path} cannot be read: {error}"
        found = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (said := [k for k in node.keywords if k.arg in ("rtol", "atol")]):
                text = ", ".join(f"{k.arg} {ast.unparse(k.value)}" for k in said)
                found.append(f"{text} (line {node.lineno})")
        return f"its check_implementation: {'; '.join(found) or 'no rtol or atol in a call of reference.py'}"


def product(node: ast.expr) -> int:
    """Evaluates an integer, or a product of some. Raises ValueError."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return product(node.left) * product(node.right)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("no integer")


def read_section(path: str, content: dict, section: str) -> list[TestCase]:
    """Reads the cases of a section. Raises ValueError."""
    listed = content.get(section) or []
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError(f"{path}/task.yml: {section} is not a list of cases")
    return [as_case(entry) for entry in listed]


def as_case(entry: dict) -> TestCase:
    """Makes the case that the grader makes: it writes an entry as text, and what is no number stays text, True and
    False included (https://github.com/gpu-mode/reference-kernels, `get_test_cases` of each eval.py)."""

    def value(given):
        if isinstance(given, list):
            return tuple(map(value, given))
        return given if isinstance(given, (int, float)) and not isinstance(given, bool) else str(given)

    args = {str(key): value(given) for key, given in entry.items()}
    return TestCase("; ".join(f"{key}: {list(v) if isinstance(v, tuple) else v}" for key, v in args.items()), args)


def parse_spec(text: str) -> TestCase:
    """Reads `key: value; key: value`. Raises ValueError."""
    try:
        entry = yaml.safe_load("{" + text.replace(";", ",") + "}")
    except yaml.YAMLError:
        entry = None
    if not isinstance(entry, dict) or not entry or None in entry.values():
        raise ValueError(f"invalid test case: '{text}': expected key: value; key: value")
    return as_case(entry)


class FolderModules(importlib.abc.MetaPathFinder):
    """Lets a block of code import the modules of a task's folder, before any others of their names: this repository's
    `task`, `reference` and `utils` are back after it, and stay with those that have imported them.

    modules: names -> paths.
    """

    def __init__(self, modules: dict[str, str]):
        self.modules, self.imported, self.others = modules, {}, {}

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.modules[name]) if name in self.modules else None

    def __enter__(self):
        sys.dont_write_bytecode = True  # the folder is its owner's
        self.others = self._exchanged(self.imported)
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_):
        sys.meta_path.remove(self)
        self.imported = self._exchanged(self.others)

    def _exchanged(self, wanted: dict) -> dict:
        """Puts modules into sys.modules; returns those of their names that were there."""
        there = {name: sys.modules.pop(name) for name in self.modules if name in sys.modules}
        sys.modules.update(wanted)
        return there

    def reference(self):
        """Imports reference.py, which is trusted as the task's author is. Raises ValueError, and what it raises."""
        reference = importlib.import_module("reference")
        if missing := [name for name in NEEDED if not callable(getattr(reference, name, None))]:
            raise ValueError(f"{self.modules['reference']} has no {' and no '.join(missing)}")
        return reference
