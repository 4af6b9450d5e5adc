"""The layer's launches with weights in bf16, which are not quantised, on Hopper. As with packed weights tokens and c
are bf16, and few tokens are brought into the order of the experts by assign.

    m_indptr, rows, hidden bf16 ─► permute ─► GEMM1, SwiGLU ─► c bf16 ─► GEMM2 ─► o ─► finalise
"""

import dataclasses
import functools

import torch

from ragged_moe.kernels.config import Activation, Config
from ragged_moe.layers.deepseek_layer import Space
from ragged_moe.layers.fp4_layer import COPIED_ENTRIES, Fp4Layer
from ragged_moe.layers.signatures import HOPPER
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import Inputs, Sizes
from ragged_moe.tuning import sm90

NO_SCALES = 0  # the address of scales that nobody reads


class Bf16Layer(Fp4Layer):
    """The layer's kernels for these sizes on one Hopper GPU."""

    def configs(self, tokens: int) -> tuple[Config, Config]:
        """The configs of GEMM1 and GEMM2, for the rows that evenly spread tokens give."""
        h, i, e = self.sizes.hidden, self.sizes.intermediate, self.sizes.local
        rows = self.rows(tokens)
        first = sm90.BF16_M16_SWAP_AB if -(-rows // e) <= sm90.BF16_MOST_M16 else sm90.BF16_M128_C2
        copied = tokens * self.sizes.top_k <= COPIED_ENTRIES
        second = sm90.choose_gemm(rows, e, h, 2 * i, routed=True)
        return (
            dataclasses.replace(first, activation=self.activation, copied=copied),
            dataclasses.replace(second, prefetch=second.stages, bf16=True),
        )

    def gemm1(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr and permuted to c."""
        operands = space.permuted, NO_SCALES, x.gemm1_weights.data_ptr(), NO_SCALES, space.c
        shape = 2 * self.sizes.intermediate, 2 * self.sizes.hidden  # K in bytes
        self.launch_gemm(config, space, operands, shape, x.hidden_states.shape[0])

    def gemm2(self, x: Inputs, space: Space, config: Config) -> None:
        """From m_indptr and c to o."""
        operands = space.c, NO_SCALES, x.gemm2_weights.data_ptr(), NO_SCALES, space.o
        shape = self.sizes.hidden, 2 * self.sizes.intermediate
        self.launch_gemm(config, space, operands, shape, x.hidden_states.shape[0])


@functools.lru_cache(maxsize=16)
def bf16_layer_of(device: torch.device, sizes: Sizes, activation: Activation) -> Bf16Layer:
    """The layer of this GPU; ValueError if there is none."""
    found = device_of(device).capability
    if found != HOPPER:
        raise ValueError(f"w13 is in bf16, but must be in e4m3 or packed: those for bf16 are for {HOPPER}, not {found}")
    return Bf16Layer(device, sizes, activation)
