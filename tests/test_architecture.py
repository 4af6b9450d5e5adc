"""ARCHITECTURE.md: every path on it exists, every step of a walk is defined there, and leads to the next one."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_imports import FLOORS, PRODUCTS, graph

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
STEP = re.compile(r"^(\d+)\. `([^`]+)`, `([^`]+)`( \([^)]+\))?: ", re.MULTILINE)
DEFINED = re.compile(r"`([\w/.]+\.py)`, `(\w[\w.]*)`(?: and `(\w+)`)?")


def paths(text: str) -> set[str]:
    """What looks like a file or a folder among the words in backquotes."""
    words = {word for word in re.findall(r"`([^`\s]+)`", text) if re.fullmatch(r"[\w.*/-]+", word)}
    return {x for x in words if not x.startswith("/") and ("/" in x or x.endswith((".py", ".md", ".toml")))}


def missing(text: str, folder: Path = ROOT) -> list[str]:
    """Paths of a page that the repository has neither whole nor, on a page further down, below the page's folder."""
    below = {p for p in paths(text) if folder != ROOT and [*folder.glob(f"**/{p}")]}
    return sorted(p for p in paths(text) - below if not [*ROOT.glob(p)])


def names(file: str) -> set[str]:
    """Functions, classes, methods (`Class.method`) and constants that a file defines."""
    tree, found = ast.parse((ROOT / file).read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def used(file: str) -> set[str]:
    """Names that a file loads, as such or as attributes, or imports."""
    tree, found = ast.parse((ROOT / file).read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
    return found


def walks(text: str) -> list[list[tuple[str, str, str]]]:
    """The walks of a page: of each its steps, as (file, name, how it is reached if not by a call in the one before)."""
    found: list[list[tuple[str, str, str]]] = []
    for number, file, name, how in STEP.findall(text):
        if number == "1":
            found.append([])
        found[-1].append((file, name, how))
    return found


def torn(walk: list[tuple[str, str, str]]) -> list[str]:
    """Steps that the files of the steps before do not call: neither the function nor, of a class, what makes one."""
    found, before = [], []
    for file, name, how in walk:
        wanted = [part for part in name.split(".") if part != "__call__"]
        if before and not how and not any(wanted[-1] in used(earlier) for earlier in before):
            found.append(f"{file}, {name}")
        before.append(file)
    return found


def test_the_products_import_what_the_drawing_says():
    found = {product: set() for product in PRODUCTS}
    for module, imported in graph(ROOT, PRODUCTS).items():
        product = module.partition(".")[0]
        found[product] |= {name.partition(".")[0] for name in imported} - {product}
    said = re.findall(r"`(\w+)` imports ((?:`\w+`(?:, )?)+|nothing)\.", PAGE)
    assert {product: set(re.findall(r"\w+", what)) - {"nothing"} for product, what in said} == found


@pytest.mark.parametrize("product", ["emulated_gpu", "ragged_moe"])
def test_the_rooms_are_listed_from_the_ground(product):
    """All folders of a product that are packages, in the order of the floors of tests/test_imports.py."""
    table = PAGE.partition(f"| `{product}/`, from the ground")[2].partition("\n\n")[0]
    listed = re.findall(rf"`{product}/(\w+)/`", table)
    rooms = [entry.split(".")[1] for entry in FLOORS if entry.startswith(f"{product}.")]
    folders = [room for room in dict.fromkeys(rooms) if (ROOT / product / room / "__init__.py").exists()]
    assert listed == folders


def test_there_are_three_walks():
    assert [len(walk) for walk in walks(PAGE)] == [11, 9, 9] and len(PAGE.splitlines()) <= 150


@pytest.mark.parametrize(
    "page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md", "evaluation/README.md", "evaluation/THREATS.md"]
)
def test_every_path_exists(page):
    assert missing((ROOT / page).read_text(), (ROOT / page).parent) == []


def test_a_path_that_does_not_exist_is_found():
    text = "`evaluation/judge/no.py`, `serve/`, `submission.py`, `judge/worker.py`"
    assert missing(text) == ["evaluation/judge/no.py", "judge/worker.py", "serve/"]
    assert missing(text, ROOT / "evaluation") == ["evaluation/judge/no.py", "serve/"]


@pytest.mark.parametrize("file, name", sorted({m[:2] for m in DEFINED.findall(PAGE)}))
def test_every_name_is_defined_where_the_page_says(file, name):
    assert name in names(file)


@pytest.mark.parametrize("walk", walks(PAGE), ids=lambda walk: walk[0][1])
def test_each_step_leads_to_the_next(walk):
    assert torn(walk) == []


def test_a_step_that_is_not_called_is_found():
    steps = [("evaluation/judge/judge.py", "judge", ""), ("emulated_gpu/units/mma.py", "execute", "")]
    assert torn(steps) == ["emulated_gpu/units/mma.py, execute"]
    assert torn([steps[0], ("emulated_gpu/units/mma.py", "execute", " (by hand)")]) == []


def test_thirty_words():
    table = PAGE.partition("## Words")[2].partition("## Where to put what")[0]
    assert len(re.findall(r"^\| [\w`-]", table, re.MULTILINE)) == 30
