"""The limits of a chip that launches, allocations and answers to host code go by.

From the CUDA programming guide's table of compute capabilities (10.0, 9.0) and what the chips' drivers report. Memory
clocks and buses: of a B200, what its driver said in https://github.com/pytorch/ao/pull/4002; of an H200, nvidia-smi's
clocks in https://github.com/awslabs/amazon-eks-ami/pull/1985, and 1024 bits for each of its six HBM3e stacks, which no
driver's answer confirms: both together are 4.92 TB/s, where NVIDIA publishes 4.8.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Unsupported

SYSTEM_SHARED = 1024  # bytes of shared memory that the system takes from each CTA


@dataclass(frozen=True)
class Chip:
    """Sizes in bytes. arch: what is compiled for it; shared_per_cta: the most that a kernel can opt in to. Clocks are
    the highest ones, as nvidia-smi says them: how fast the model is, its profiles say (model/profiles/).

    gpcs: SMs that one cluster can lie in, group by group; empty where nobody has measured it, so that any can be. An
    H200's eighth GPC is in five parts (silicon/probes/gpcs.py).
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
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    gpcs: tuple[int, ...] = ()

    def active_clusters(self, size: int) -> int:
        """Return how many clusters of `size` CTAs that take an SM each run at once: none lies in two GPCs.

        A chip with fewer SMs than its table has the first ones of it.
        """
        clusters, left = 0, self.sms
        for sms in self.gpcs or (self.sms,):
            clusters += min(sms, left) // size
            left = max(left - sms, 0)
        return clusters

    def resident_ctas(self, shared: int, threads: int) -> int:
        """CTAs of so much shared memory and so many threads that an SM runs at once, by these two alone; at least 1."""
        return max(1, min(self.shared_per_sm // (shared + SYSTEM_SHARED), self.threads_per_sm // threads))


B200 = Chip(
    name="NVIDIA B200 (emulated)", arch="sm_100a", capability=(10, 0), sms=148,
    shared_per_sm=233_472, shared_per_cta=232_448, shared_by_default=49_152, registers_per_sm=65_536,
    threads_per_sm=2048, threads_per_cta=1024, ctas_per_sm=32, l2=132_644_864, memory=192_265_846_784,
    clock_khz=1_965_000, memory_clock_khz=3_996_000, memory_bus_bits=7680,
)  # fmt: skip
H200 = Chip(
    name="NVIDIA H200 (emulated)", arch="sm_90a", capability=(9, 0), sms=132,
    shared_per_sm=233_472, shared_per_cta=232_448, shared_by_default=49_152, registers_per_sm=65_536,
    threads_per_sm=2048, threads_per_cta=1024, ctas_per_sm=32, l2=62_914_560, memory=150_109_880_320,
    clock_khz=1_980_000, memory_clock_khz=3_201_000, memory_bus_bits=6144,
    gpcs=(16, 16, 16, 16, 16, 18, 18, 8, 2, 2, 2, 2),
)  # fmt: skip
CHIPS = {"b200": B200, "h200": H200}


def chip_of(machine: str) -> Chip:
    """The chip of this name, a key of CHIPS. Raises Unsupported for any other."""
    if machine not in CHIPS:
        raise Unsupported(f"no machine {machine!r}; there are {', '.join(CHIPS)}")
    return CHIPS[machine]
