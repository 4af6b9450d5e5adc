"""What the sm_90a mainloops for weights in e2m1 have in common: a thread's weights, from a stage to operand A.

Each of two warpgroups has 64 of every 128 weight rows of the tile: if gated 64 of up's and the same of gate's. Packed
weights lie in a stage as ragged_moe.layers.pack_weights orders them, so that a thread loads its own 16 bytes for 64 of
K.
"""

from cutlass import Int32

from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, Config
from ragged_moe.kernels.context import Warp
from ragged_moe.kernels.dequantise import scales_of, weights_of
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import load_shared_pair, load_shared_words, select


class Fp4Registers:
    """The weights that a thread multiplies: of `parts` times 64 rows of its warpgroup."""

    def __init__(self, config: Config):
        self.config, self.parts = config, config.block_n // BLOCK_N

    def load(self, places: tuple[Int32, Int32], offset: Int32, half: int) -> list[list[Int32]]:
        """Load 64 of K of the stage at this offset: of each part four words of weights, and of two rows' scales one."""
        weights, scales = places
        return [
            load_shared_words(weights + offset + part * 8192 + half * 2048)
            + load_shared_pair(scales + offset + part * 1024 + half * 256)
            for part in range(self.parts)
        ]

    def scaled(self, words: list[list[Int32]]) -> list[list]:
        """Return the scales of each step of 16 of K, for the thread's two rows of each part."""
        return [[*zip(*(scales_of(x, self.config.fp4_tokens) for x in of_part[4:]))] for of_part in words]

    def decoded(self, words: list[list[Int32]], steps: list[int], scaled: list[list]) -> list[list[Int32]]:
        """Return operand A's registers of these steps of 16 of K, of each part."""
        how = self.config.fp4_tokens, self.config.arch == "sm100"
        return [
            sum((weights_of(of_part[i], *scales[i], *how) for i in steps), []) for of_part, scales in zip(words, scaled)
        ]


def weight_places(config: Config, warp: Warp, of_row: int) -> tuple[Int32, Int32]:
    """Return the addresses of a thread's weights and of their scales in stage 0. of_row: bytes of two rows' scales for
    64 of K.
    """
    row, of_warp = warp.number >> 2, warp.number & 3  # row: of 64
    weights = warp.cta.ring + config.token_bytes
    scales = weights + config.block_n * (BLOCK_K // 2)
    weights = weights + row * 4096 + of_warp * 512 + warp.lane * 16
    return weights, scales + row * (64 * of_row) + of_warp * (8 * of_row) + (warp.lane >> 2) * of_row


def loaded_stage(stage: PipelineState, following: PipelineState, k: Int32, count: Int32) -> tuple[Int32, Int32]:
    """Return index and parity of the stage whose words are loaded in k-block k of `count`: the following one's, behind
    the last k-block its own again.
    """
    more = k + 1 < count
    return select(more, following.index, stage.index), select(more, following.phase, stage.phase)


def keep(packed, words: list[list[Int32]]) -> None:
    """Store these words in `packed`, which the next round of a loop reads."""
    for part, of_part in enumerate(words):
        for i, word in enumerate(of_part):
            packed[part, i] = word
