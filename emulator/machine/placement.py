"""Which SM a CTA runs on: as many as fit by shared memory, threads and slots; clusters on neighbouring SMs."""

from __future__ import annotations

import numpy as np

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


class Placement:
    """sms: number of SMs; shared: bytes per SM, of which each CTA takes what it uses, rounded up."""

    def __init__(self, sms: int, shared: int, threads: int, ctas: int):
        self.sms = [Resources() for _ in range(sms)]
        self.used = np.zeros((3, sms), np.int64)  # CTAs, bytes, threads of each SM
        self.limits = np.array([ctas, shared, threads])

    def place(self, size: int, shared: int, threads: int) -> list[int] | None:
        """Take SMs for a cluster of `size` CTAs of `shared` bytes and `threads` threads each; None if none is free."""
        groups = len(self.sms) // size
        used = self.used[:, : groups * size].reshape(3, groups, size).max(2)
        room = self.limits - (1, shared, threads)
        fits = np.flatnonzero((used <= room[:, None]).all(0))
        if not len(fits):
            return None
        first = int(fits[used[0, fits].argmin()]) * size  # the least loaded one, of those the first
        self.used[:, first : first + size] += np.array([[1], [shared], [threads]])
        return list(range(first, first + size))

    def release(self, sm: int, shared: int, threads: int) -> None:
        self.used[:, sm] -= (1, shared, threads)
