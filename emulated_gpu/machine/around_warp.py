"""What a warp asks of its CTA and its launch, beyond what units may ask (units/protocols.py).

cta.Cta and launch.Launch, which have these members and more, make warps, and so are above them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..errors import EmulatorError
from ..ptx.control_flow import ControlFlow
from ..state.order import Space
from ..units import protocols
from .clock import Clock
from .engine import Engine


class Owner(Protocol):
    """Who is told how a launch goes on: launch.Owner."""

    def landed(self, launch) -> None:
        """Learn that all asynchronous work of the launch has completed."""


class Launch(protocols.Launch, Protocol):
    """A grid that runs."""

    engine: Engine
    clock: Clock
    program: ControlFlow
    owner: Owner
    costs: list
    """What each block of the program costs, in the clock's terms."""
    known: dict[Space, np.ndarray]
    """What its threads know when they start, clocks by space."""
    place: str
    """What stands behind the names of its CTAs."""
    registers: int | None
    """How many registers a thread starts with; None if nobody says."""
    under_way: int
    """A count of asynchronous operations."""

    def livelock(self) -> EmulatorError:
        """Return the error of a launch in which everybody polls in vain."""


class RegisterPool(Protocol):
    """Registers of a CTA that setmaxnreg.dec has given back: cta.RegisterPool."""

    free: int
    wanted: int

    def take(self, registers: int) -> None:
        """Take some; with a negative number, give some back."""


class Cta(protocols.Cta, Protocol):
    """A CTA that runs."""

    launch: Launch
    sm: int
    """On which SM it runs."""
    register_pool: RegisterPool

    def lanes_exited(self, warp, lanes: np.ndarray) -> None:
        """Note that lanes of a warp have exited."""
