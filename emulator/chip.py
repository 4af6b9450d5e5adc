"""The limits of a chip that launches, allocations and answers to host code go by.

A B200's, from the CUDA programming guide's table of compute capabilities (10.0) and what its driver reports.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM_SHARED = 1024  # bytes of shared memory that the system takes from each CTA


@dataclass(frozen=True)
class Chip:
    """Sizes in bytes. shared_per_cta is the most that a kernel can opt in to."""

    name: str
    capability: tuple[int, int]
    sms: int
    shared_per_sm: int
    shared_per_cta: int
    shared_by_default: int
    registers_per_sm: int
    threads_per_sm: int
    threads_per_cta: int
    ctas_per_sm: int
    l2: int
    memory: int

    def resident_ctas(self, shared: int, threads: int) -> int:
        """CTAs of so much shared memory and so many threads that an SM runs at once, by these two alone; at least 1."""
        return max(1, min(self.shared_per_sm // (shared + SYSTEM_SHARED), self.threads_per_sm // threads))


B200 = Chip(
    name="NVIDIA B200 (emulated)", capability=(10, 0), sms=148,
    shared_per_sm=233_472, shared_per_cta=232_448, shared_by_default=49_152, registers_per_sm=65_536,
    threads_per_sm=2048, threads_per_cta=1024, ctas_per_sm=32, l2=132_644_864, memory=192_265_846_784,
)  # fmt: skip
