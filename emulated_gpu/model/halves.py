"""The two halves of the L2: where lines and SMs are at home, and the links between them (timing only, no data).

Each 4 KiB of memory belongs to one half, that of its HBM channels. An SM asks its own half, which keeps a copy of what
it has got from the other one: so a line that SMs of both halves read crosses once, lies in both, and the L2 holds half
as much of such lines. Measured on an H200 with silicon/probes/halves.py, like the homes: block by block they are the
parity of the bits of a number, and SMs get CTAs GPC by GPC, clusters from each GPC in turn. That an L2 has two parts
of which each serves the GPCs next to it: https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
"""

from __future__ import annotations

import numpy as np

BLOCK = 32  # lines
LANES = 16  # of a link; one alone, without uneven luck, is 2 % faster where several SMs load the same lines
HALVES = (0, 1, 1, 1, 0, 0, 0, 1)  # of the GPCs, in the order in which they get CTAs


def homes(first: int, lines: int) -> np.ndarray:
    """int8 [lines], the first of which has number `first`: the half of each, by the parity of its block's bits."""
    bits = np.arange(first, first + lines) // BLOCK
    for shift in (16, 8, 4, 2, 1):
        bits ^= bits >> shift
    return (bits & 1).astype(np.int8)


def half_of(first: int, size: int, sms: int) -> int:
    """The half of a cluster of `size` CTAs (1: none) that begins at SM `first` of `sms`, in the order of their use."""
    return HALVES[first * len(HALVES) // sms if size == 1 else first // size % len(HALVES)]


class Links:
    """The two links between the halves, one for what each gets: lines read, and data to be stored there."""

    def __init__(self, rate: float):
        """rate: bytes per cycle of both together."""
        self.cycles = 2 * LANES / rate  # of a byte
        self.free = np.zeros((2, LANES))  # when each has carried what it was given
