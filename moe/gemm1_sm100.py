"""The layer's first GEMM for sm_100a: gemm1.py's loads, sm100.py's way to multiply. For experts of few tokens.

    MMA warp: up ─► accumulators 0, 1; gate ─► 2, 3 (of 128 columns in tensor memory), two of a stage
    a thread: one row of up, the same of gate, half of the tokens

So the 128 columns of a scale are the lanes of the four warps of a warpgroup. More tokens: gemm1_sm100_tokens.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr

from moe.definition import LARGEST
from moe.gemm1 import GatheredGemm, Operands, Tiles, inverse, product
from moe.kernel import Cta, GroupedGemm
from moe.ptx import (
    as_float,
    as_int,
    fence_proxy_async,
    fma,
    load_shared,
    load_shared_floats,
    maximum,
    mbarrier_arrive,
    mbarrier_wait,
    minimum,
    select,
    store_global_e4m3,
    store_global_word,
    store_shared,
    tcgen05_fence,
    tmem_load,
    warpgroup_barrier,
)
from moe.sm100 import COLUMNS, GroupedGemmSm100, TwoRings
from moe.sm100_tokens import TOKENS


@dataclass(frozen=True)
class Lanes(TwoRings, Tiles):
    """Of 128 tokens on the lanes."""

    tokens: int = TOKENS
    tokens_on_m: bool = True

    @property
    def in_turn(self) -> bool:
        """Equal shares also where an expert has several token tiles: few rounds leave much of the last."""
        return False

    @property
    def widths(self) -> tuple[int, ...]:
        return (TOKENS,)


@dataclass(frozen=True)
class FewTokens(TwoRings, Tiles):
    """Of weights on the lanes."""


# Modelled, worklog/moe.md: there was none to measure
FEW, SOME = [FewTokens(tokens=tokens, burst=2) for tokens in (16, 32)]
MORE = Lanes()
CONFIGS = FEW, SOME, MORE


def choose(rows: int, experts: int) -> Tiles:
    """The config for this many rows in all, as far as the host can know."""
    mean = -(-rows // experts)
    return next((c for most, c in ((4, FEW), (16, SOME)) if mean <= most), MORE)


class GatheredGemmSm100(GatheredGemm, GroupedGemmSm100):
    """The kernel for a B200; the words are those of GatheredGemm."""

    parts = 2  # up, gate
    arrivals = 2

    @classmethod
    def of(cls, config: Tiles) -> GatheredGemm:
        from moe.gemm1_sm100_tokens import GatheredTokensOnLanes

        return (GatheredTokensOnLanes if config.tokens_on_m else cls)(config)

    @staticmethod
    def tuning():
        from moe import gemm1_sm100

        return gemm1_sm100

    def __init__(self, config: Tiles):
        assert config.cluster == 1
        GroupedGemm.__init__(self, config)

    def before_mma(self) -> None:
        fence_proxy_async()  # the tokens did not come by TMA

    @cute.jit
    def multiply(
        self, cta: Cta, tokens: cutlass.Constexpr, count: Int32, done: Int32, slot: Int32, phase: Int32, acc,
        warp: Int32, lane: Int32,
    ):  # fmt: skip
        """Scale and add what the MMA warp multiplies: a row of up and of gate, and half of the tokens."""
        config, columns, stride = self.config, tokens // 2, self.config.tokens // 2
        first = (warp >> 2) * columns
        tmem = self.tensor_memory(cta) + ((warp & 3) << 21) + first
        for i in cutlass.range(count, unroll=1):
            turn = done + i
            which = turn & 1
            mbarrier_wait(cta.scales_full + 8 * slot, phase)
            mbarrier_wait(*self.results_of(cta, turn))
            tcgen05_fence("after")
            for half in range_constexpr(2):
                d = tmem_load(tmem + (2 * half + which) * COLUMNS, columns)
                at = cta.scales + slot * config.scale_bytes + half * (4 * config.scale_row) + 4 * first
                scales = []
                for j in range_constexpr(columns // 4):
                    scales += load_shared_floats(at + 16 * j)
                for j in range_constexpr(columns):
                    to = half * stride + j
                    acc[to] = fma(d[j], scales[j], acc[to])
            tcgen05_fence("before")
            cute.arch.sync_warp()
            mbarrier_arrive(self.acc_empty(cta, which), select(lane == 0, 1, 0))
            self.release(cta, slot, lane)
            slot, phase = self.after_scales(slot, phase)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of a warpgroup's tokens, its largest of 128 columns, and both to memory.

        Shared memory: the largest of each warp's 32 columns, f32 [8, tokens / 2].
        """
        stride = self.config.tokens // 2  # results of a thread for up
        group, columns = warp >> 2, piece.width >> 1
        own, of_group = cta.scratch + warp * (4 * stride), cta.scratch + group * (16 * stride)
        warpgroup_barrier(group + 1)  # the tile before this one has been read
        for j in range_constexpr(stride):
            acc[j] = product(acc[j], acc[stride + j])
            most = cute.arch.warp_redux_sync(as_int(acc[j]) & 0x7FFFFFFF, "max")  # as floats without a sign compare
            if lane == 0:
                store_shared(own + 4 * j, most)
        warpgroup_barrier(group + 1)
        n = operands.n >> 1
        first = group * columns
        valid = minimum(piece.tokens - first, columns)
        to = operands.c + Int64(piece.token + first) * Int64(n) + Int64((piece.row >> 1) + (warp & 3) * 32 + lane)
        for j in range_constexpr(0, stride, 2):
            if j < valid:
                x, y = [acc[i] * inverse(largest_of(of_group + 4 * i, stride)) for i in (j, j + 1)]
                at = to + Int64(j) * Int64(n)
                store_global_e4m3(at, at + Int64(n), x, y, select(j + 1 < valid, 1, 0))
        thread = (warp & 3) * 32 + lane
        if thread < valid:
            scale = largest_of(of_group + 4 * thread, stride) * Float32(1 / LARGEST)
            place = Int64(piece.row >> 8) * Int64(operands.total_m) + Int64(piece.token + first + thread)
            store_global_word(operands.c_scale + place * 4, as_int(scale), Int32(1))


def largest_of(at: Int32, stride: int) -> Float32:
    """Of four warps' largest; NaN above all."""
    low, high = [maximum(load_shared(x), load_shared(x + 4 * stride)) for x in (at, at + 8 * stride)]
    return as_float(maximum(low, high))
