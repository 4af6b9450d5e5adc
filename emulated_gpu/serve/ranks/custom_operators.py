"""Operators that a script defines by torch.library.custom_op, when it runs as several ranks of one process.

torch has one operator of a name, and a second definition ends the first, whose rank would go on calling it. Here they
are one definition, with functions that are a rank's own: put in place when its turn begins, as all that a process has.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._library.custom_ops import OPDEFS, CustomOpDef

OF_KINDS = "_backend_fns", "_torch_dispatch_fns"  # by what they are for, which torch registers once
OWN = "_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn", *OF_KINDS


class Operators:
    """Holds what a rank has defined: of each operator its functions."""

    turn: Operators  # whose turn it is

    def __init__(self) -> None:
        self.functions: dict[CustomOpDef, dict[str, Any]] = {}

    def begin(self) -> None:
        """Let this rank define operators, and call its own."""
        Operators.turn = self
        for operator, functions in self.functions.items():
            operator.__dict__.update(functions)

    def end(self) -> None:
        """Keep what has been defined."""
        for operator, functions in self.functions.items():
            functions.update({name: x for name, x in operator.__dict__.items() if name in OWN})


@functools.cache
def install() -> None:
    """Let ranks define operators of one name, from now on."""
    init, Operators.turn = CustomOpDef.__init__, Operators()

    def place(kind: type, namespace: str, name: str, *_, **__) -> CustomOpDef:
        there = OPDEFS.get(f"{namespace}::{name}")
        return object.__new__(kind) if there is None or there in Operators.turn.functions else there

    def define(self: CustomOpDef, namespace: str, name: str, schema: str, fn, *rest, **more) -> None:
        if self in OPDEFS.values():  # another rank's
            kept = {kind: dict(getattr(self, kind)) for kind in OF_KINDS}
            self.__dict__.update(dict.fromkeys(OWN) | kept | {"_init_fn": fn})
        else:
            init(self, namespace, name, schema, fn, *rest, **more)
        Operators.turn.functions[self] = {}

    setattr(CustomOpDef, "__new__", place)  # noqa: B010
    setattr(CustomOpDef, "__init__", define)  # noqa: B010
