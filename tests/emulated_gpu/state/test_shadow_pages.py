"""Shadows of large memory: their pages come when they are touched."""

import resource

import numpy as np

from emulated_gpu.state.shadow import BIG, zeros


def test_more_than_there_is_memory_costs_what_is_touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = zeros((4, 2**31 + 2), np.int32)
    assert made.nbytes > 32 * BIG - 1 and made.shape == (4, 2**31 + 2)
    made[3, -1] = 7
    assert made[0, 0] == 0 and made[3, -1] == 7
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
