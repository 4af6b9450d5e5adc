"""Units use nothing of the lanes that execute an instruction but what LaneGroup declares, and Group has that."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import emulator
from emulator.machine.clock import Clock
from emulator.machine.warp import Group
from emulator.units.group import LaneGroup

UNITS = sorted((Path(emulator.__file__).parent / "units").glob("*.py"))
CLOCK = {*dir(Clock), *Clock.__annotations__}
FACE = set(LaneGroup.__annotations__) | {name for name in vars(LaneGroup) if not name.startswith("_")}


def beyond_the_face(text: str) -> set[str]:
    """Members that a unit uses of a group of lanes, or of its clock, and that LaneGroup, or Clock, does not declare."""
    tree = ast.parse(text)
    arguments = (a for a in ast.walk(tree) if isinstance(a, ast.arg) and a.annotation)
    groups = {"g", *(a.arg for a in arguments if ast.unparse(a.annotation) == "LaneGroup")}
    members = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    return {n.attr for n in members if n.value.id in groups} - FACE | set(re.findall(r"\.clock\.(\w+)", text)) - CLOCK


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_a_unit_uses_the_face_of_a_group_only(file):
    assert not beyond_the_face(file.read_text())


def test_a_member_beyond_the_face_is_seen():
    text = (
        "def f(g: LaneGroup):\n    g.join = g.clock.sm(g.pc)\ndef h(group: LaneGroup):\n    return group.merge(group.t)"
    )
    assert beyond_the_face(text) == {"join", "merge", "sm"}


def test_a_group_has_its_face():
    """The methods are abstract: a Group without one of them could not be made."""
    tree = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Group.__init__))))
    attributes = {n.attr for n in tree if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    assert set(LaneGroup.__annotations__) <= attributes and not Group.__abstractmethods__


def test_the_face_is_used():
    """Each member by some unit, or the face would grow for nothing."""
    text = "".join(file.read_text() for file in UNITS if file.stem != "group")
    assert not [name for name in FACE if f"g.{name}" not in text and f"other.{name}" not in text]
