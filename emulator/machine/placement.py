"""Which SM a CTA runs on: as many as fit by shared memory, threads and slots; clusters on neighbouring SMs."""

from __future__ import annotations

from ..state.barrier import Waitable
from ..state.tensor_memory import COLUMNS


class Resources(Waitable):
    """What CTAs use of one SM. waiters: warps that wait for tensor memory columns."""

    __slots__ = ("shared", "threads", "ctas", "columns")

    def __init__(self):
        super().__init__()
        self.shared = self.threads = self.ctas = self.columns = 0

    def __str__(self):
        return f"tensor memory columns of its SM ({self.columns} of {COLUMNS} allocated)"


class Placement:
    """sms: number of SMs; shared: bytes per SM, of which each CTA takes what it uses, rounded up."""

    def __init__(self, sms: int, shared: int, threads: int, ctas: int):
        self.sms = [Resources() for _ in range(sms)]
        self.shared, self.threads, self.ctas = shared, threads, ctas

    def place(self, size: int, shared: int, threads: int) -> list[int] | None:
        """Take SMs for a cluster of `size` CTAs of `shared` bytes and `threads` threads each; None if none is free."""
        best, best_load = None, None
        for first in range(0, len(self.sms) - size + 1, size):
            group = self.sms[first : first + size]
            load = max(r.ctas for r in group)
            if best_load is not None and load >= best_load:
                continue
            if all(
                r.shared + shared <= self.shared and r.threads + threads <= self.threads and r.ctas < self.ctas
                for r in group
            ):
                best, best_load = first, load
                if load == 0:
                    break
        if best is None:
            return None
        chosen = list(range(best, best + size))
        for i in chosen:
            self._add(i, 1, shared, threads)
        return chosen

    def release(self, sm: int, shared: int, threads: int) -> None:
        self._add(sm, -1, -shared, -threads)

    def _add(self, sm: int, ctas: int, shared: int, threads: int):
        r = self.sms[sm]
        r.ctas, r.shared, r.threads = r.ctas + ctas, r.shared + shared, r.threads + threads
