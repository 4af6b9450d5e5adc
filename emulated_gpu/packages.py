"""Packages that the emulator's core does without. Who uses what needs one of them is told so in a sentence."""

from __future__ import annotations

import importlib.util

KNOWN = {  # a module: what it is called, and what installs it
    "torch": ("torch", "emulated-gpu[torch]"),
    "cutlass": ("CuTe DSL", "emulated-gpu[cute]"),
    "cuda.bindings": ("cuda-bindings", "emulated-gpu[cuda]"),
}


def has(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is there the package that it is in
        return False


def need(what: str, module: str) -> None:
    """Raise ImportError, which says how to install it, unless the module is there."""
    if not has(module):
        name, extra = KNOWN[module]
        raise ImportError(f"{what} needs {name}, which is not installed: pip install '{extra}'", name=module)
