"""The instructions, a file a family (PTX ISA 9.7): what each becomes in Python.

`lookup` finds the handler of one; registry.py says what a handler is.
"""

from . import (  # noqa: F401
    arithmetic,
    barrier,
    control,
    convert,
    copy,
    logic,
    memory,
    mma_sync,
    tcgen05,
    textures,
    warp,
    wgmma,
    wmma,
)  # fmt: skip
from .registry import HANDLERS, Mods, lookup

__all__ = ["HANDLERS", "Mods", "lookup"]
