"""Which SM a CTA runs on: as many as fit by shared memory, threads, registers and slots.

CTAs of a cluster are on neighbouring SMs of a GPC.
"""

from __future__ import annotations

from typing import NamedTuple

from ..chip import Chip
from ..state.barrier import Waitable
from ..state.tensor_memory import COLUMNS


class Resources(Waitable):
    """The tensor memory that CTAs hold of one SM. waiters: warps that wait for columns."""

    __slots__ = ("columns",)

    def __init__(self):
        super().__init__()
        self.columns = 0

    def __str__(self):
        return f"tensor memory columns of its SM ({self.columns} of {COLUMNS} allocated)"


class Needs(NamedTuple):
    """What a CTA takes of an SM: bytes of shared memory; registers: 0 where nobody says how many, so that these have
    room anywhere."""

    shared: int
    threads: int
    registers: int = 0


class Placement:
    """The SMs of a chip, numbered in the order of their use, and what CTAs have taken of each.

    The numbers say nothing of GPCs: clusters of a size get the first SMs, as many as all GPCs have room for.
    """

    def __init__(self, chip: Chip):
        self.chip = chip
        self.sms = [Resources() for _ in range(chip.sms)]
        self.used = [[0, 0, 0, 0] for _ in range(chip.sms)]  # CTAs, bytes, threads, registers
        self.load = [0] * chip.sms  # CTAs
        self.least = 0  # no SM has fewer
        self.limits: tuple[int, ...] = (
            chip.ctas_per_sm, chip.shared_per_sm, chip.threads_per_sm, chip.registers_per_sm,
        )  # fmt: skip

    def any_shared(self) -> None:
        """Have room for CTAs whatever shared memory they take."""
        ctas, shared, *rest = self.limits
        self.limits = ctas, ctas * shared, *rest

    def place(self, size: int, needs: Needs) -> list[int] | None:
        """Take SMs for a cluster of `size` CTAs with these needs each; None if none is free.

        Of those with room the least loaded ones, the first of these: a cluster's load is that of its fullest SM.
        """
        ctas, shared, threads, registers = self.limits
        ctas, shared = ctas - 1, shared - needs.shared
        threads, registers = threads - needs.threads, registers - needs.registers

        def fits(sm: int) -> bool:
            c, s, t, r = self.used[sm]
            return c <= ctas and s <= shared and t <= threads and r <= registers

        if size == 1:
            while self.least not in self.load:
                self.least += 1
            first = self.load.index(self.least)
            if not fits(first):  # it is full, or of others that need less another has room
                free = [sm for sm in range(len(self.sms)) if fits(sm)]
                first = min(free, key=self.load.__getitem__, default=None)
        else:
            groups = range(0, self.chip.active_clusters(size) * size, size)
            free = [g for g in groups if all(map(fits, range(g, g + size)))]
            first = min(free, key=lambda g: max(self.load[g : g + size]), default=None)
        if first is None:
            return None
        chosen = list(range(first, first + size))
        for sm in chosen:
            self._add(sm, 1, needs)
        return chosen

    def release(self, sm: int, needs: Needs) -> None:
        self._add(sm, -1, needs)

    def _add(self, sm: int, ctas: int, needs: Needs) -> None:
        used = self.used[sm]
        self.load[sm] += ctas
        self.least = min(self.least, self.load[sm])
        used[0] += ctas
        used[1] += ctas * needs.shared
        used[2] += ctas * needs.threads
        used[3] += ctas * needs.registers
