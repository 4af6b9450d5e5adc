"""The modules of a task of others, in the place of this repository's."""

import importlib.abc
import importlib.util
import sys
from types import ModuleType

OURS = "task", "reference", "utils"  # this repository's modules of the names that a folder's have


class FolderModules(importlib.abc.MetaPathFinder):
    """Lets a block of code import the modules of a task's folder, before any others of their names: this repository's
    `task`, `reference` and `utils` are back after it, and stay with those that have imported them. One of these that
    the folder lacks is not there.

    modules: names -> paths.
    """

    def __init__(self, modules: dict[str, str]):
        self.modules = modules
        self.imported: dict[str, ModuleType] = {}
        self.others: dict[str, ModuleType] = {}

    def find_spec(self, name, path=None, target=None):
        if name in OURS and name not in self.modules:
            raise ModuleNotFoundError(f"No module named '{name}' (the task names none)", name=name)
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
        there = {name: sys.modules.pop(name) for name in {*self.modules, *OURS} if name in sys.modules}
        sys.modules.update(wanted)
        return there
