"""What units may ask of the lanes that execute an instruction: their face towards machine/warp.py.

Units are functions of a group of lanes, `g`, which generated code calls: `barriers.bar_sync(g, ...)`. The groups that
run are machine/warp.Group; a unit uses nothing of them but what `LaneGroup` declares
(tests/emulated_gpu/units/test_units.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from ..ptx.control_flow import ControlFlow
from .protocols import Cta, Engine, Launch, Warp


class Meeting(NamedTuple):
    """An access by which warps may learn of each other: a strong load or store, an atomic, an arrival, a wait.

    at: a barrier, or the state space and the addresses, of which `size` bytes each are accessed. writes: whether it
    changes what is there; commutes: in any order with its like.
    """

    at: Any
    size: int = 0
    writes: bool = False
    commutes: bool = False


class LaneGroup(ABC):
    """Lanes of one warp that are at the same place and execute an instruction together."""

    __slots__ = ()

    warp: Warp
    """The warp that the lanes belong to."""
    cta: Cta
    """The CTA of that warp."""
    launch: Launch
    """The launch of that CTA."""
    engine: Engine
    """The events to come."""
    clock: Any
    """The machine/clock.Clock that says how long things take."""
    program: ControlFlow
    """The program that is executed."""

    lanes: np.ndarray
    """The numbers of the lanes in their warp, int64 [n], ascending."""
    n: int
    """How many lanes there are."""
    lane_mask: int
    """The lanes, a bit each."""
    R: list
    """The registers by number: an int for all lanes, or an array [n]; see formats/alu.py."""
    pc: int
    """The block that is executed."""
    t: float
    """The group's time, in ticks of the engine."""

    token: Any
    """What a blocking instruction has already done that is executed again after a wait; None the first time."""
    timed_out: bool
    """Whether the limit given to `wait_on_phase` has struck. Who acts on it resets it."""
    last_barrier: Any
    """The named barrier (state/barrier.CountedBarrier) that the group passed last."""
    loads: list
    """The tcgen05.ld (units/tcgen05.Loading) that no tcgen05.wait::ld has waited for."""
    stores: list
    """The tcgen05.st that no tcgen05.wait::st has waited for: what writes them, or None if that is done."""
    loads_ready: float
    """When the tensor core has delivered all of `loads`, in a timed run."""
    stores_ready: float
    """When it has taken all of `stores`, in a timed run."""
    garbage: Any
    """Which registers hold what nothing has written (machine/garbage.Garbage); None if none do."""

    @abstractmethod
    def wait_on(self, what) -> bool:
        """Sleep until `what` (a state/barrier.Waitable) changes. Returns False, so that callers can return it."""

    @abstractmethod
    def wait_until(self, time: float, what) -> bool:
        """Sleep until a time; `what` is waited for, as reports say it. Returns False."""

    @abstractmethod
    def wait_on_phase(self, barrier, phase: int, limit: float) -> bool:
        """Sleep until an mbarrier changes or the time `limit` comes, 0.0 for none. Returns False.

        phase: the parity or the state that is waited for, for reports.
        """

    @abstractmethod
    def hesitate(self, access: Meeting) -> None:
        """Let other warps go on that may have waited for what this one has just done, if the schedule says so."""

    @abstractmethod
    def linger(self, access: Meeting) -> None:
        """Let others go far behind a strong load, if the schedule says so: what has been read may be old then. Or go on
        behind a strong store."""

    @abstractmethod
    def pass_by(self, access: Meeting) -> None:
        """Stop behind a wait that is over, if the schedule says so."""

    @abstractmethod
    def origin(self, label: str) -> Any:
        """A name for the instruction that is executed, for reports."""

    @abstractmethod
    def later(self, when: float, origin, call) -> None:
        """Call something at a later time, on the account of the instruction `origin`."""

    @abstractmethod
    def follow_load(self, addresses: np.ndarray, size: int, lanes) -> None:
        """Lanes have loaded `size` bytes each of global memory, which is followed: Launch.tracked."""

    @abstractmethod
    def follow_store(self, space: str, addresses: np.ndarray, size: int, count: int, lanes: np.ndarray) -> None:
        """Lanes store `count` elements of `size` bytes each to such memory, or have to shared memory."""

    @abstractmethod
    def hold_garbage(self, fault, registers: list[int]) -> None:
        """The instruction loads into these registers what nothing has written: `fault`, once that decides something."""

    @abstractmethod
    def need_whole_warp(self, what: str) -> None:
        """Raise Fault("divergence") unless all lanes of the warp that have not exited are here. what: for messages."""

    @abstractmethod
    def need_all_lanes(self, what: str) -> None:
        """As need_whole_warp, also if a lane has exited, or never was: each has its part of a matrix."""

    @abstractmethod
    def lanes_of(self, mask) -> int:
        """The lanes of a mask, a bit each. mask: True or bool [n]."""

    @abstractmethod
    def lane_array(self, value, bits: int = 32) -> np.ndarray:
        """A register's value, an int or an array, as an unsigned array [n] of this many bits."""
