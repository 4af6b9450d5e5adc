"""The queue of a tensor core: what it executes, it executes in the order of issue (PTX ISA 9.7.16.6.2)."""

from __future__ import annotations


class Pipe:
    """The tensor core's queue of one CTA: operations execute in the order of issue."""

    def __init__(self, engine):
        self.engine = engine
        self.last = 0.0

    def push(self, when: float, call):
        self.occupy(when)
        self.engine.at(self.last, call)

    def occupy(self, when: float):
        """Note an operation that only delays those that are pushed later."""
        self.last = max(self.last, when)
