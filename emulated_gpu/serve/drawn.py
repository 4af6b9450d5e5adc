"""Random tensors, drawn where they are to lie: by torch's generator, large ones of `randn` by a faster one.

What bits a device draws for a seed, CUDA does not promise; here they follow from torch's generator, whose next number
is the key of a large tensor (native/normal.py).
"""

from __future__ import annotations

import numpy as np
import torch

from ..device import will_fill
from ..native import normal

LARGE = 1 << 22  # numbers: of fewer, LLVM takes longer for the faster generator than torch does to draw them
CHUNK = 1 << 14  # numbers that stay in a core's cache, of which torch makes no work for several threads


def _normal(out: torch.Tensor, generator: torch.Generator | None = None) -> None:
    if out.numel() < LARGE or out.dtype.itemsize > 4 or not normal.served():
        out.normal_(generator=generator)
        return
    key = int(torch.randint(2**63 - 1, (), generator=generator))
    flat = out.as_subclass(torch.Tensor).view(-1)  # of a factory: contiguous
    will_fill(flat.data_ptr(), flat.nbytes)
    chunk = np.empty(CHUNK, np.float32)
    for first in range(0, len(flat), CHUNK):
        there = flat[first : first + CHUNK]
        normal.draw(chunk[: len(there)], key, first)
        there.copy_(torch.from_numpy(chunk[: len(there)]))


# By the name of torch's function; in place, which saves a copy
DRAWN = {"rand": torch.Tensor.uniform_, "randn": _normal}
