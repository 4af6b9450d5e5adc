"""The emulator's packages are floors: imports, wherever they stand in a file, go down, and never in a circle."""

import ast
import graphlib
from pathlib import Path

import pytest

import emulator

ROOT = Path(emulator.__file__).parent
LOWER = "errors", "chip", "arena", "formats", "ptx", "state", "units"
FLOORS = *LOWER, "machine", "model", "device", "serve", "", "__main__"


def name_of(path: Path, root: Path) -> str:
    """Dotted name below emulator; a package's own file has that of the package."""
    return ".".join(p for p in path.relative_to(root).with_suffix("").parts if p != "__init__")


def imports(path: Path, root: Path, known: set[str]) -> set[str]:
    """Modules and packages of the emulator that a file imports, at its top or anywhere else."""
    package, found = list(path.relative_to(root).parts[:-1]), set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) + 1 - node.level]
            names = [".".join([*above, *filter(None, [node.module])])]
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "emulator":
            names = [node.module.partition(".")[2]]
        elif isinstance(node, ast.Import):
            names = [a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == "emulator"]
        for name in names:
            leaves = [f"{name}.{a.name}".lstrip(".") for a in getattr(node, "names", [])]
            found |= {leaf if leaf in known else name for leaf in leaves}
    return found


def graph(root: Path) -> dict[str, set[str]]:
    files = [p for p in root.rglob("*.py") if "startup" not in p.parts]
    known = {name_of(p, root) for p in files}
    return {name_of(p, root): imports(p, root, known) for p in files}


def violations(found: dict[str, set[str]]) -> list[str]:
    """Imports that go up. The last two floors are the face of the package and its command line."""
    floor = {name: FLOORS.index(name.split(".")[0]) for name in found}
    return [f"{a} imports {b}" for a, others in found.items() for b in others if floor[b] > floor[a]]


def test_imports_go_down():
    assert not violations(graph(ROOT))


def test_imports_make_no_circle():
    graphlib.TopologicalSorter(graph(ROOT)).prepare()


@pytest.mark.parametrize("line", ["from ..machine import clock", "def f():\n    from ..machine.clock import Clock"])
def test_an_import_that_goes_up_is_seen(tmp_path, line):
    for folder in ("units", "machine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "machine" / "clock.py").write_text("from ..units import tma\n")
    (tmp_path / "units" / "tma.py").write_text(line)
    found = graph(tmp_path)
    assert violations(found) == ["units.tma imports machine.clock"]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(found).prepare()


def test_every_package_says_what_it_is_for():
    """In two lines, between which is a blank one."""
    for floor in FLOORS[2:-2]:
        if (package := ROOT / floor / "__init__.py").exists():
            assert len(ast.get_docstring(ast.parse(package.read_text())).splitlines()) == 3
