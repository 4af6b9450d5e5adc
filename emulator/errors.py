"""What the emulator says when a kernel cannot go on: every refusal and every finding is one of these."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base class. `where` is filled in by the executing warp: kernel, CTA, warp, PTX line, Python line."""

    kind = "error"

    def __init__(self, message: str, where: str = ""):
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" + (f"\n  at {self.where}" if self.where else "")


class Unsupported(EmulatorError):
    """A PTX instruction, modifier, encoding or host call that this emulator does not implement."""

    kind = "unsupported"


class Fault(EmulatorError):
    """The kernel did something that a GPU forbids; `kind` names the class of the fault (see emulator/README.md)."""

    def __init__(self, kind: str, message: str, where: str = ""):
        super().__init__(message, where)
        self.kind = kind


class Hang(EmulatorError):
    """No warp can run and no asynchronous operation is in flight; the message lists who waits where for what."""

    kind = "hang"
