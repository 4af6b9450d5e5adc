"""The commands that the pages show exist, with the options that they show. None is run: that is for other tests."""

import argparse
import ast
import importlib
import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest

from tests.test_pages import markdown_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = [page for page in markdown_files() if page.parent != ROOT / "worklog"]
RUNNER = r"(?:python3?|torchrun(?: --[\w-]+ \d+)*)"
SHOWN = re.compile(rf"{RUNNER} (?:-m [\w.]*\w|eval\.py)(?![\w.])[^`\n]*|modal run modal_app\.py[^`\n]*")
TARGET = re.compile(r"(?:^|`)make ([a-z]+)(?=`|[ \w=]*`| +#| *$)", re.MULTILINE)
OPTION = re.compile(r"--[a-z][\w-]*")
# A table of a package's programs: `python -m PACKAGE.` at its head, and in the first column `NAME ARGUMENTS`
TABLE = re.compile(r"^\| `python3? -m (\w+\.)` \|.*\n((?:\|.*\n)+)", re.MULTILINE)
CLICK = {
    "eval.py": "evaluation.commands.cli", "emulated_gpu": "emulated_gpu.__main__", "ragged_moe": "ragged_moe.__main__",
}  # fmt: skip


def words(shown: str) -> list[str]:
    """Split a command as a shell does, without its comment and its `[optional]` brackets."""
    text = re.sub(r"[\[\]]", " ", re.sub(r"\s#\s.*| [23]>.*", "", shown))
    try:
        return shlex.split(text)
    except ValueError:  # the quotes close on another line
        return text.replace("'", "").replace('"', "").split()


def commands(text: str) -> list[list[str]]:
    """The commands of a page, each as (eval.py or a module, its arguments...)."""
    text = re.sub(r"(?:^|(?<=`))emulated-gpu (?=[a-z])", "python -m emulated_gpu ", text, flags=re.M)  # the script
    shown = [re.sub(rf"^{RUNNER} (?:-m )?|^modal run ", "", match[0]) for match in SHOWN.finditer(text)]
    tables = [line for table in TABLE.finditer(text) for line in rows(*table.groups())]
    return [words(line) for line in shown + tables]


def rows(package: str, table: str) -> list[str]:
    """The commands of a package's table. `NAME run`, `model FOLDER` in one cell are two of one program."""
    found = []
    for row in table.splitlines():
        program = ""
        for text in re.findall(r"`([^`]+)`", row.split("|")[1].partition("(")[0]):
            first, _, rest = text.partition(" ")
            program, arguments = (first, rest) if not program or "." in first else (program, text)
            found.append(f"{package}{program} {arguments}")
    return [line for line in found if not line.startswith(f"{package}modal ")]


def of_click(group: click.Group, arguments: list[str]) -> str:
    """Return what is wrong with arguments of a group of commands, or nothing. A command may be a group again."""
    if not arguments or arguments[0].startswith("-") or not re.fullmatch(r"[a-z][\w-]*", arguments[0]):
        return ""
    name, *rest = arguments
    try:
        command = group.get_command(click.Context(group), name)
    except ModuleNotFoundError as error:  # of a peer that is not installed here: its options are not looked at
        return "" if not (ROOT / error.name.partition(".")[0]).is_dir() else str(error)
    if command is None:
        return f"there is no command {name}"
    if command.context_settings.get("allow_extra_args"):  # a peer is not installed here: it only says so
        return ""
    if isinstance(command, click.Group):
        return of_click(command, rest)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    if not command.context_settings.get("allow_interspersed_args", True):  # the rest is the script's
        script = next((n for n, word in enumerate(rest) if "." in word and not word.startswith("-")), len(rest))
        rest = rest[: script + 1]
    unknown = [option for word in rest for option in OPTION.findall(word)[:1] if option not in known]
    return f"{name} has no option {', '.join(unknown)}" if unknown else ""


def of_modal(arguments: list[str]) -> str:
    """Return what is wrong with arguments of modal_app.py's entrance, whose parameters are the options, or nothing."""
    (main,) = [
        one for one in ast.parse((ROOT / "modal_app.py").read_text()).body
        if isinstance(one, ast.FunctionDef) and any("local_entrypoint" in ast.unparse(d) for d in one.decorator_list)
    ]  # fmt: skip
    known = {f"--{argument.arg.replace('_', '-')}" for argument in main.args.args}
    unknown = [option for word in arguments for option in OPTION.findall(word)[:1] if option not in known]
    return f"modal_app.py has no option {', '.join(unknown)}" if unknown else ""


class Parsed(Exception):
    """A program's arguments were right. Nothing behind that is run."""


def of_argparse(module: str, arguments: list[str]) -> str:
    """Return what the parser of a program says of arguments, or nothing. Files that it wants are not looked for."""

    def parse_args(self, *given):
        _, unknown = self.parse_known_args(*given)
        raise Parsed(f"no option {' '.join(unknown)}" if unknown else "")

    def error(self, message):
        raise Parsed(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr(argparse.ArgumentParser, "error", error)
        patch.setattr(sys, "argv", [module, *arguments])
        patch.delitem(sys.modules, module, raising=False)  # runpy warns of a module that has been imported
        with pytest.raises(Parsed) as parsed:
            runpy.run_module(module, run_name="__main__")
    said = str(parsed.value)
    return f"{module}: {said}" if said and "there is no" not in said else ""


def of_module(module: str, arguments: list[str]) -> str:
    """Return what is wrong with a command of a module of ours that has no group of commands, or nothing."""
    package = module.partition(".")[0]
    if not (ROOT / package).is_dir():
        return "" if importlib.util.find_spec(package) else f"there is no module {package}"
    place = ROOT / module.replace(".", "/")
    files = [file for file in (place.with_suffix(".py"), place / "__main__.py") if file.exists()]
    if not files:
        return f"there is no program {module}"
    if package == "silicon":
        return of_argparse(module, arguments)
    text = "".join(file.read_text() for file in (ROOT / package).rglob("*.py"))
    options = {option for word in arguments for option in OPTION.findall(word)[:1]} - {"--help"}
    unknown = [option for option in sorted(options) if f'"{option}' not in text]
    return f"{module} has no option {', '.join(unknown)}" if unknown else ""


def wrong(text: str) -> list[str]:
    """Commands of a page that name what does not exist, each with what that is."""
    found = []
    for program, *arguments in commands(text):
        if program == "modal_app.py":
            problem = of_modal(arguments)
        elif program in CLICK and (ROOT / CLICK[program].replace(".", "/")).with_suffix(".py").exists():
            problem = of_click(importlib.import_module(CLICK[program]).cli, arguments)
        else:
            problem = of_module(program, arguments)
        if problem:
            found.append(f"{program} {' '.join(arguments)}: {problem}")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return found + [f"there is no target {name}" for name in TARGET.findall(text) if name not in targets]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page):
    assert wrong(page.read_text()) == []


@pytest.mark.parametrize(
    "shown, problem",
    [
        ("python -m emulated_gpu rum x.py", "there is no command rum"),
        ("python -m emulated_gpu run --schedule 3 x.py --own", None),
        ("`python eval.py test FILE --shedules 8`", "test has no option --shedules"),
        ("python eval.py test --case 0  # with --nothing else", None),
        ("python -m silicon.golden.coverage --rite X", "silicon.golden.coverage: no option --rite X"),
        ("python -m silicon.entry.h200_loads", "the following arguments are required: what"),
        ("| `python3 -m silicon.` |\n|---|\n| `probes.gpc_clock run`, `kernels` |\n", "arguments are required: folder"),
        ("python -m silicon.golden.covrage", "there is no program silicon.golden.covrage"),
        ("python -m pytest tests -q", None),
        ("`emulated-gpu rum x.py`", "there is no command rum"),
        ("torchrun --nproc-per-node 2 -m ragged_moe bench paralel", "there is no command paralel"),
        ("modal run modal_app.py --mod benchmark", "modal_app.py has no option --mod"),
        ("`make tests` and `make test`", "there is no target tests"),
    ],
)
def test_what_does_not_exist_is_found(shown, problem):
    found = wrong(shown)
    assert (found == []) if problem is None else found[0].endswith(problem)


def test_commands_are_seen():
    assert sum(len(commands(page.read_text())) for page in PAGES) > 100
