"""Tasks that are folders of the form of https://github.com/gpu-mode/reference-kernels: task.yml, and the modules it
names."""

import ast
import dataclasses
import functools
import importlib
import inspect
from pathlib import Path

import yaml

from evaluation.tasks.entry import KERNEL
from evaluation.tasks.others import Author, OthersTask, close, verdict_of
from evaluation.tasks.text import arguments, constants, defined, functions_of, tree_of
from task import TestCase

SUBMISSION = "@SUBMISSION@"  # the source of the file that is the submission's
NEEDED = "generate_input", "check_implementation"  # of reference.py
PHASES = "forward", "backward"  # of a reference.py that has no check: its own eval.py compares each
IN_PHASES = "generate_inputs", *(f"reference_{phase}" for phase in PHASES)


@dataclasses.dataclass(frozen=True)
class TaskFolder(OthersTask):
    """Holds what a folder's task.yml says. in_phases: reference.py has a function for each of PHASES, and no check.
    validation: of its mini-training, {"version": .., "script": path, and what else it has}; None if it has none."""

    in_phases: bool = False
    validation: dict | None = dataclasses.field(default=None, hash=False)

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
        cases = [read_section(path, content, section) for section in ("tests", "benchmarks")]
        reference = tree_of(str(sources["reference.py"]))
        if in_phases := {*IN_PHASES} <= defined(reference):
            entry = "in turn", functions_of(PHASES, reference, tree_of(evaluator))
        else:
            entry = ("ranks", *KERNEL[1:]) if content.get("multi_gpu") else KERNEL
        worlds = {case.args.get("world_size") for case in cases[0] + cases[1]} if content.get("multi_gpu") else {1}
        if len(worlds) != 1 or not all(isinstance(world, int) and world > 0 for world in worlds):
            raise ValueError(f"{path}/task.yml is of several GPUs (multi_gpu), but its cases have no one world_size")
        return cls(
            str(folder),
            folder.name,
            {name.removesuffix(".py"): str(source) for name, source in sources.items() if name.endswith(".py")},
            cases[0],
            cases[1],
            str(evaluator) if evaluator else None,
            entry,
            *worlds,
            in_phases,
            validation_of(path, content.get("validation")),
        )

    def calls(self, input_bytes: int) -> int:
        """Says how many calls, each on inputs of its own, the grader times together: as its program's constants tell.

        input_bytes: of one call's inputs. One where the program has no such constant.
        """
        found = constants(tree_of(self.evaluator))
        if most := found.get("MAX_ITERATIONS_PER_BENCHMARK"):
            return max(1, min(most, found.get("BENCHMARK_INPUT_BYTES_TARGET", 0) // max(1, input_bytes)))
        return max(1, found.get("NUM_ITERATIONS_PER_BENCHMARK", 1))

    def tolerance(self) -> str:
        """Says by what results are compared, as far as the text of reference.py shows it."""
        if self.in_phases:
            return "allclose with RTOL and ATOL of its reference.py, forward and backward, as its eval.py does"
        found = []
        for node in ast.walk(tree_of(self.modules["reference"])):
            if isinstance(node, ast.Call) and (said := [k for k in node.keywords if k.arg in ("rtol", "atol")]):
                text = ", ".join(f"{k.arg} {ast.unparse(k.value)}" for k in said)
                found.append(f"{text} (line {node.lineno})")
        return f"its check_implementation: {'; '.join(found) or 'no rtol or atol in a call of reference.py'}"

    def author(self) -> Author:
        """Imports reference.py."""
        reference = importlib.import_module("reference")
        needed = IN_PHASES if self.in_phases else NEEDED
        if missing := [name for name in needed if not callable(getattr(reference, name, None))]:
            raise ValueError(f"{self.modules['reference']} has no {' and no '.join(missing)}")
        if not self.in_phases:
            return Author(
                reference.generate_input,
                lambda data, returned: verdict_of(reference.check_implementation(data, returned)),
                takes_seed(reference.generate_input),
            )
        fixed = arguments(tree_of(self.evaluator), reference.generate_inputs)

        def check(data, returned) -> tuple[bool, str]:
            found = []
            for phase, (_, count), got in zip(PHASES, self.entry[1], returned, strict=True):
                want = getattr(reference, f"reference_{phase}")(*data[:count])
                found.append(close(got, want, reference.RTOL, reference.ATOL, f"the {phase} result"))
            return not any(found), "; ".join(filter(None, found))

        generate = functools.partial(reference.generate_inputs, **fixed)
        return Author(generate, check, takes_seed(reference.generate_inputs))


def takes_seed(function) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def validation_of(path: str, said) -> dict | None:
    """Reads what task.yml says of a mini-training: `script`, once called `main`, and `version`. Raises ValueError."""
    if said is None:
        return None
    script = said.get("script", said.get("main")) if isinstance(said, dict) else None
    if not isinstance(script, str) or "version" not in said:
        raise ValueError(f"{path}/task.yml: validation has a version and a script, got {str(said)[:80]}")
    if not (there := (Path(path) / script).absolute()).is_file():
        raise ValueError(f"{path}/task.yml: validation names {script}, and there is no such file")
    return said | {"script": str(there)}


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
