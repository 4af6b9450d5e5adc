"""No access to global memory is free in a timed run: each of the units' functions that makes one is in the table."""

import ast
import inspect
import re

from emulated_gpu.machine.warp import UNITS
from emulated_gpu.model.charges import CHARGES, OTHERWISE


def functions() -> dict[str, str]:
    """Gives the source of each function of the units, by its name."""
    found = {}
    for name, unit in UNITS.items():
        for node in ast.parse(inspect.getsource(unit)).body:
            if isinstance(node, ast.FunctionDef):
                found[f"{name}.{node.name}"] = ast.unparse(node)
    return found


def test_every_function_with_global_memory_is_in_the_table():
    access = {name for name, source in functions().items() if "launch.memory" in source}
    by_others = {"access.atomic"}  # by `_cells`, `store_one` and `scatter`
    assert access | by_others == CHARGES.keys() | OTHERWISE.keys()
    assert not CHARGES.keys() & OTHERWISE.keys()


def test_each_tells_the_clock_what_the_table_says():
    source = functions()
    for name, (where, hook) in CHARGES.items():
        assert re.search(rf"\bg\.clock\.{hook}\(", source[where]), (name, where, hook)
