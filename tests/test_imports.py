"""Imports, wherever they stand in a file, go down the floors of FLOORS, and never in a circle."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From the ground up. An entry is a module, or a package with all that is in it; of several the longest one counts. That
# of a whole product (no dot) is its own `__init__.py` alone: every room of a product has a floor here.
FLOORS = (
    *(f"emulated_gpu.{room}" for room in ("errors", "packages", "scratch", "build_cache", "finding_rows", "chip")),
    *(f"emulated_gpu.{room}" for room in ("arena", "grid")),
    *(f"emulated_gpu.{room}" for room in ("jit", "formats", "ptx", "target", "state", "native", "units")),
    *(f"emulated_gpu.{room}" for room in ("machine", "model")),
    *(f"emulated_gpu.{room}" for room in ("page", "sessions", "interfaces", "unwritten", "device")),
    *(f"emulated_gpu.{room}" for room in ("calls", "launch_ptx")),
    *(f"emulated_gpu.serve.{room}" for room in ("host", "driver", "cute", "cuda_cpp", "triton")),
    *(f"emulated_gpu.serve.{room}" for room in ("doors", "torch_device", "ranks")),
    *("emulated_gpu.serve", "emulated_gpu"),
    *(f"emulated_gpu.{name}" for name in ("outputs", "__main__", "pytest_plugin", "speed")),
    *(f"ragged_moe.{room}" for room in ("runtime", "kernels", "tuning", "layers", "parallel", "torch_ops", "warm_up")),
    "ragged_moe",
    *(f"ragged_moe.{room}" for room in ("integrations", "reference", "checks", "measure", "commands", "__main__")),
    *("silicon", "silicon.cuda_driver", "silicon.command", "silicon.golden", "silicon.timing", "silicon.entry"),
    *("silicon.whole_kernels", "silicon.probes", "silicon.ncu", "silicon.calibrate", "silicon.zoo"),
    *("evaluation", "evaluation.protocol", "evaluation.tasks", "evaluation.judge", "evaluation.upload"),
    *("evaluation.commands", "evaluation.commands.moe_tasks"),
    *(f"evaluation.commands.{name}" for name in ("options", "run", "actions", "cli")),
    "evaluation.gpu",
)
PRODUCTS = tuple(sorted({entry.partition(".")[0] for entry in FLOORS}))
NOT_IMPORTED = "emulated_gpu/serve/startup"  # what a fresh Python runs, by its own path


def name_of(path: Path, root: Path) -> str:
    """Dotted name of a file below `root`; a package's own file has that of the package."""
    return ".".join(p for p in path.relative_to(root).with_suffix("").parts if p != "__init__")


def imports(path: Path, root: Path, known: set[str]) -> set[str]:
    """Modules among `known` that a file imports, at its top or anywhere else."""
    package, found = list(path.relative_to(root).parts[:-1]), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            wanted = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        else:
            continue
        for name in wanted:
            while name and name not in known:  # what a module has in it is that module
                name = name.rpartition(".")[0]
            found |= {name} - {""}
    return found


@functools.cache
def graph(root: Path, products: tuple[str, ...]) -> dict[str, set[str]]:
    """What each module of the products imports of them."""
    files = [path for product in products for path in (root / product).rglob("*.py")]
    files = [path for path in files if not path.is_relative_to(root / NOT_IMPORTED)]
    known = {name_of(path, root) for path in files}
    return {name_of(path, root): imports(path, root, known) for path in files}


def floor(name: str) -> int:
    """Number of a module's floor in FLOORS. Raises LookupError where it has none."""
    entry = name
    while entry not in FLOORS:
        entry = entry.rpartition(".")[0]
        if "." not in entry:
            raise LookupError(f"{name} has no floor in FLOORS")
    return FLOORS.index(entry)


def violations(found: dict[str, set[str]]) -> list[str]:
    """Imports that go up. Raises LookupError for a module without a floor."""
    floors = {name: floor(name) for name in found}
    return [f"{a} imports {b}" for a, others in found.items() for b in others if floors[b] > floors[a]]


def test_imports_go_down():
    assert not violations(graph(ROOT, PRODUCTS))


def test_imports_make_no_circle():
    graphlib.TopologicalSorter(graph(ROOT, PRODUCTS)).prepare()


def test_modules_that_tests_import_are_there():
    """Also those inside a test that only `make thorough` runs."""
    of_products = re.compile(rf"^ *from ((?:{'|'.join(PRODUCTS)})\.[\w.]+) import", re.M)
    paths = [(path.name, path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    found = {(file, name, ROOT / name.replace(".", "/")) for file, text in paths for name in of_products.findall(text)}
    assert [x[:2] for x in found if not x[2].is_dir() and not x[2].with_suffix(".py").exists()] == []


@pytest.mark.parametrize("line", ["from ..machine import clock", "def f():\n    from ..machine.clock import Clock"])
def test_an_import_that_goes_up_is_seen(tmp_path, line):
    for folder in ("units", "machine"):
        (tmp_path / "emulated_gpu" / folder).mkdir(parents=True)
    (tmp_path / "emulated_gpu" / "machine" / "clock.py").write_text("from ..units import tma\n")
    (tmp_path / "emulated_gpu" / "units" / "tma.py").write_text(line)
    found = graph(tmp_path, ("emulated_gpu",))
    assert violations(found) == ["emulated_gpu.units.tma imports emulated_gpu.machine.clock"]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(found).prepare()


def test_a_room_without_a_floor_is_seen(tmp_path):
    (tmp_path / "emulated_gpu").mkdir()
    (tmp_path / "emulated_gpu" / "attic.py").touch()
    with pytest.raises(LookupError, match="emulated_gpu.attic has no floor"):
        violations(graph(tmp_path, ("emulated_gpu",)))


@pytest.mark.parametrize("entry", FLOORS)
def test_every_floor_is_there(entry):
    path = ROOT.joinpath(*entry.split("."))
    assert path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_package_says_what_it_is_for():
    """In two lines, between which is a blank one."""
    for room in FLOORS:
        package = ROOT.joinpath(*room.split("."), "__init__.py")
        if "." in room and package.exists():
            assert len(ast.get_docstring(ast.parse(package.read_text())).splitlines()) == 3, room
