"""Calls something when a module has been imported, and nothing before: what a script does not use costs it nothing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable


class AfterImport:
    """A finder (sys.meta_path) that runs `call` after the first execution of module `name`, then removes itself."""

    def __init__(self, name: str, call: Callable[[], None]):
        self.name, self.call, self.searching = name, call, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self.call()

        spec.loader.exec_module = execute_and_call
        return spec


def after_import(name: str, call: Callable[[], None]) -> None:
    """Run `call` once module `name` has been imported: now, if it is already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(name, call))
