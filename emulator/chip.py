"""The limits of a chip that launches, allocations and answers to host code go by.

From the CUDA programming guide's table of compute capabilities (10.0, 9.0) and what the chips' drivers report.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Unsupported

SYSTEM_SHARED = 1024  # bytes of shared memory that the system takes from each CTA


@dataclass(frozen=True)
class Chip:
    """Sizes in bytes. arch: what is compiled for it; shared_per_cta: the most that a kernel can opt in to.

    clusters: (size, how many run at once where an SM has room for one CTA), where fewer do than have SMs of their own.
    """

    name: str
    arch: str
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
    clusters: tuple[tuple[int, int], ...] = ()

    def active_clusters(self, size: int) -> int:
        """Clusters of CTAs that take an SM each which run at once."""
        return dict(self.clusters).get(size, self.sms // size)

    def resident_ctas(self, shared: int, threads: int) -> int:
        """CTAs of so much shared memory and so many threads that an SM runs at once, by these two alone; at least 1."""
        return max(1, min(self.shared_per_sm // (shared + SYSTEM_SHARED), self.threads_per_sm // threads))


B200 = Chip(
    name="NVIDIA B200 (emulated)", arch="sm_100a", capability=(10, 0), sms=148,
    shared_per_sm=233_472, shared_per_cta=232_448, shared_by_default=49_152, registers_per_sm=65_536,
    threads_per_sm=2048, threads_per_cta=1024, ctas_per_sm=32, l2=132_644_864, memory=192_265_846_784,
)  # fmt: skip
H200 = Chip(
    name="NVIDIA H200 (emulated)", arch="sm_90a", capability=(9, 0), sms=132,
    shared_per_sm=233_472, shared_per_cta=232_448, shared_by_default=49_152, registers_per_sm=65_536,
    threads_per_sm=2048, threads_per_cta=1024, ctas_per_sm=32, l2=62_914_560, memory=150_109_880_320,
    clusters=((4, 30), (8, 15)),
)  # fmt: skip
CHIPS = {"b200": B200, "h200": H200}


def chip_of(machine: str) -> Chip:
    """The chip of this name, a key of CHIPS. Raises Unsupported for any other."""
    if machine not in CHIPS:
        raise Unsupported(f"no machine {machine!r}; there are {', '.join(CHIPS)}")
    return CHIPS[machine]
