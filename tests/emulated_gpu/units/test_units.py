"""Units use of lanes, of the machine around them and of its clock only what is declared, and these have it."""

import ast
import inspect
from pathlib import Path

import pytest

import emulated_gpu
from emulated_gpu.machine import cta, engine, launch, warp
from emulated_gpu.machine.clock import Clock
from emulated_gpu.units import protocols
from emulated_gpu.units.group import LaneGroup

UNITS = sorted((Path(emulated_gpu.__file__).parent / "units").glob("*.py"))
# By the name that units have for it: what declares its members, and the class that has them
FACES = {
    "g": (LaneGroup, warp.Group),
    "warp": (protocols.Warp, warp.Warp),
    "cta": (protocols.Cta, cta.Cta),
    "cluster": (protocols.Cluster, cta.Cluster),
    "launch": (protocols.Launch, launch.Launch),
    "engine": (protocols.Engine, engine.Engine),
    "clock": (Clock, Clock),
}
VARIABLES = {"owner": "cta", "from_cta": "cta"}  # other names of variables for one of these


def declared(face: type) -> set[str]:
    return {*face.__annotations__, *(name for name in vars(face) if not name.startswith("_"))}


def undeclared(text: str) -> set[str]:
    """`WHOM.MEMBER` that a unit uses and that no face declares; WHOM: a variable, or the last attribute before it."""
    nodes = list(ast.walk(ast.parse(text)))
    arguments = (n for n in nodes if isinstance(n, ast.arg) and n.annotation)
    variables = VARIABLES | {a.arg: "g" for a in arguments if ast.unparse(a.annotation) == "LaneGroup"}
    found = set()
    for node in (n for n in nodes if isinstance(n, ast.Attribute)):
        of = node.value
        whom = variables.get(of.id, of.id) if isinstance(of, ast.Name) else getattr(of, "attr", None)
        if whom in FACES and node.attr not in declared(FACES[whom][0]):
            found.add(f"{whom}.{node.attr}")
    return found


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_a_unit_uses_what_is_declared_only(file):
    assert not undeclared(file.read_text())


def test_what_is_not_declared_is_seen():
    text = """def f(g: LaneGroup, cta):
    g.join = g.clock.sm(g.pc)
    return lambda group: cta.cluster.order, g.cta.warps, cta.resume()
def h(lanes: LaneGroup):
    return lanes.engine.heap, lanes.merge(lanes.t), lanes.launch.grid, lanes.warp.leader"""
    assert undeclared(text) == {
        "g.join", "clock.sm", "cluster.order", "cta.resume", "engine.heap", "g.merge", "launch.grid", "warp.leader",
    }  # fmt: skip


@pytest.mark.parametrize("name", FACES)
def test_what_is_declared_exists(name):
    face, having = FACES[name]
    nodes = ast.walk(ast.parse(inspect.getsource(having)))
    attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    assert declared(face) <= attributes | set(dir(having)) | set(Clock.__annotations__)


@pytest.mark.parametrize("name", [name for name in FACES if name != "clock"])
def test_what_is_declared_is_used(name):
    """By some unit, or a face would grow for nothing."""
    text = "".join(file.read_text() for file in UNITS if file.stem not in ("group", "machine"))
    assert not [member for member in declared(FACES[name][0]) if f".{member}" not in text]
