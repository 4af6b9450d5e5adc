"""The tensor core's part for sm_100a: tcgen05.mma into two accumulators in tensor memory, in turn.

    TMA warp ──► ring ──► MMA warp: tcgen05.mma of 128 of K ──► accumulator 0 or 1 (tensor memory)
                                                                        │
    scale warps ──► their ring ──► 2 warpgroups: tcgen05.ld, sum = fma(d, scale, sum) in registers ──► bf16 ──► out

Two rings: a stage's operands are done with when its MMAs are, its scales one or two stages later. A tile has 128 weight
rows, the lanes of tensor memory; each warpgroup has half of the tokens, its columns. Schedule, loads, scales and cut
tiles are those of kernel.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

from moe.kernel import BLOCK_K, MMA_WARP, Config, Cta, GroupedGemm, Operands
from moe.ptx import (
    fma,
    load_shared,
    load_shared_floats,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    mma_commit,
    mma_fp8,
    select,
    store_global_bfloat,
    tcgen05_fence,
    tmem_alloc,
    tmem_dealloc,
    tmem_load,
)
from moe.schedule import PIECE_BYTES, read_piece

COLUMNS = 128  # of an accumulator: the widest tile's tokens
CONSUMER_WARPS = 8


class TwoRings:
    """Part of a config: the operands' ring goes from the TMA warp to the MMA warp, the scales' to the consumers."""

    rings = 2


@dataclass(frozen=True)
class FewTokens(TwoRings, Config):
    """Of 128 weight rows, the lanes of tensor memory, x tokens."""


class GroupedGemmSm100(GroupedGemm):
    """The kernel for a B200."""

    scale_warps = 2
    scale_arrivals = 1  # how many of these have a part of each stage's scales
    parts = 1  # of 128 weight rows each, that a stage multiplies with the same tokens; each has two accumulators
    columns = COLUMNS  # of an accumulator
    arrivals = 1  # at a stage's barrier: the TMA warp, and warps that load its tokens
    group = 1  # CTAs of a tcgen05.mma

    @staticmethod
    def tuning():
        from moe import tuning_sm100

        return tuning_sm100

    @classmethod
    def of(cls, config: Config) -> GroupedGemm:
        from moe.sm100_pairs import TokensOfPairs
        from moe.sm100_tokens import TokensOnLanes

        if not config.tokens_on_m:
            return cls(config)
        return (TokensOfPairs if config.together else TokensOnLanes)(config)

    # The back end's own shared memory: acc_full [2], acc_empty [2], the address of tensor memory

    def acc_full(self, cta: Cta, which: Int32) -> Int32:
        """Barrier: there are results in accumulator `which`."""
        return cta.own + 8 * which

    def acc_empty(self, cta: Cta, which: Int32) -> Int32:
        """Barrier: they have been read."""
        return cta.own + 16 + 8 * which

    def results_of(self, cta: Cta, turn: Int32) -> tuple[Int32, Int32]:
        """acc_full and its parity of stage `turn`, counted from the CTA's first."""
        return self.acc_full(cta, turn & 1), (turn >> 1) & 1

    def tensor_memory(self, cta: Cta) -> Int32:
        """Its address."""
        return load_shared(cta.own + 32)

    def init_barriers(self, cta: Cta) -> None:
        config = self.config
        for i in range(config.depth):
            mbarrier_init(cta.full + 8 * i, self.arrivals)
            mbarrier_init(cta.empty + 8 * i, config.cluster)  # commits
        for i in range(config.scale_depth):
            mbarrier_init(cta.scales_full + 8 * i, self.scale_arrivals)
            mbarrier_init(cta.scales_empty + 8 * i, CONSUMER_WARPS)
        self.init_accumulators(cta)

    def init_accumulators(self, cta: Cta) -> None:
        """One thread: their barriers."""
        for i in range(2):
            mbarrier_init(self.acc_full(cta, i), 1)  # the commit
            mbarrier_init(self.acc_empty(cta, i), CONSUMER_WARPS)

    @cute.jit
    def begin(self, cta: Cta, warp: Int32):
        """All threads, before they first meet: tensor memory."""
        if warp == MMA_WARP:
            tmem_alloc(cta.own + 32, 2 * self.parts * self.columns, self.group)
            tcgen05_fence("before")

    @cute.jit
    def finish(self, cta: Cta, warp: Int32):
        tcgen05_fence("before")
        cute.arch.sync_threads()
        if warp == MMA_WARP:
            tcgen05_fence("after")
            tmem_dealloc(self.tensor_memory(cta), 2 * self.parts * self.columns, self.group)

    def before_mma(self) -> None:
        """The MMA warp, when a stage has come: what its operands need beside that."""

    def scale_place(self, column: Int32) -> Int32:
        """All lanes need the same scale at once: in the order of the columns."""
        return column * 4

    def operands_of(self, stage: Int32) -> tuple[Int32, Int32]:
        """Where A, the operand on the lanes, and B of a stage lie in shared memory."""
        return stage, stage + self.config.rows * BLOCK_K

    def width_of(self, piece) -> Int32:
        """N of the MMA."""
        return piece.width

    def part_of(self, cta: Cta, which: Int32) -> tuple[Cta, Int32, Int32]:
        """An MMA warp's own: (the CTA with its barriers of accumulators, their first column, its first byte of B)."""
        return cta, 0, 0

    def end_issue(self, cta: Cta, acc: Int32, phase: Int32) -> None:
        """An MMA warp, when it has issued all; acc_empty of `acc` has this parity when that is free again."""

    @cute.jit
    def issue(self, cta: Cta, plan, unit: Int32, which: Int32):
        """An MMA warp: D [128 of A, B] of every part of every stage."""
        config = self.config
        own, column, begin = self.part_of(cta, which)
        tcgen05_fence("after")
        tmem = self.tensor_memory(cta)
        with cute.arch.elect_one():
            slot, phase, acc, acc_phase = Int32(0), Int32(0), Int32(0), Int32(1)
            while unit < plan.end:
                mbarrier_wait(cta.full + 8 * slot, phase)
                piece = read_piece(cta.pieces + slot * PIECE_BYTES)
                # Instruction descriptor (9.7.16.4.2): e4m3 x e4m3, f32 out, M = 128 a CTA, N = width
                idesc = Int32(128 * self.group >> 4 << 24 | 1 << 4) | (self.width_of(piece) >> 3 << 17)
                for _ in cutlass.range(piece.count, unroll=1):
                    mbarrier_wait(cta.full + 8 * slot, phase)
                    mbarrier_wait(self.acc_empty(own, acc), acc_phase)
                    tcgen05_fence("after")
                    self.before_mma()
                    # Matrix descriptors (9.7.16.4.1): version 1, 128-byte swizzle, groups of 8 rows 1024 bytes apart
                    of_a, of_b = self.operands_of(cta.ring + slot * config.stage_bytes)
                    a, b = [Int64(x >> 4) | Int64(2 << 61 | 1 << 46 | 64 << 32) for x in (of_a, of_b + begin)]
                    for part in range_constexpr(self.parts):
                        of_part = a + Int64(part * (128 * BLOCK_K >> 4))
                        d = tmem + (2 * part + acc) * self.columns + column
                        for j in range_constexpr(BLOCK_K // 32):
                            mma_fp8(d, of_part + 2 * j, b + 2 * j, idesc, int(j > 0), self.group)
                    mma_commit(cta.empty + 8 * slot, config.cluster, self.group)
                    mma_commit(self.acc_full(own, acc), self.group, self.group)
                    acc_phase = acc_phase ^ acc
                    acc = 1 - acc
                    slot, phase = self.after(slot, phase)
                unit = piece.next
            self.end_issue(own, acc, acc_phase)

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        """1 if results 4 * i and on of a thread are of tokens that the tile has: it has half of the loaded ones."""
        columns = piece.width >> 1
        of_group = minimum(piece.tokens - group * columns, columns)
        return select(4 * i % (self.config.tokens // 2) < of_group, 1, 0)

    @cute.jit
    def release(self, cta: Cta, slot: Int32, lane: Int32):
        """This warp has read a slot of the ring of scales."""
        cute.arch.sync_warp()
        mbarrier_arrive(cta.scales_empty + 8 * slot, select(lane == 0, 1, 0))

    @cute.jit
    def multiply(
        self, cta: Cta, tokens: cutlass.Constexpr, count: Int32, done: Int32, slot: Int32, phase: Int32, acc,
        warp: Int32, lane: Int32,
    ):  # fmt: skip
        """Scale and add what the MMA warp multiplies. A thread has one weight row and half of the tokens."""
        config, columns = self.config, tokens // 2
        first = (warp >> 2) * columns
        tmem = self.tensor_memory(cta) + ((warp & 3) << 21) + first
        for i in cutlass.range(count, unroll=1):
            turn = done + i
            which = turn & 1
            mbarrier_wait(cta.scales_full + 8 * slot, phase)
            mbarrier_wait(*self.results_of(cta, turn))
            tcgen05_fence("after")
            d = tmem_load(tmem + which * COLUMNS, columns)
            scales = []
            for j in range_constexpr(columns // 4):
                scales += load_shared_floats(cta.scales + slot * config.scale_bytes + 4 * first + 16 * j)
            tcgen05_fence("before")
            cute.arch.sync_warp()
            mbarrier_arrive(self.acc_empty(cta, which), select(lane == 0, 1, 0))
            self.release(cta, slot, lane)
            for j in range_constexpr(columns):
                acc[j] = fma(d[j], scales[j], acc[j])
            slot, phase = self.after_scales(slot, phase)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """A thread's weight row to out [tokens, weight rows]: a warp writes 64 bytes of a token at once."""
        config = self.config
        row, columns = piece.row + (warp & 3) * 32 + lane, piece.width >> 1
        first = (warp >> 2) * columns
        n, left = operands.n, minimum(piece.tokens - first, columns)
        left = select(row < n, left, 0)
        to = operands.out + (Int64(piece.token + first) * Int64(n) + Int64(row)) * 2
        for j in range_constexpr(config.tokens // 2):
            store_global_bfloat(to + Int64(j) * Int64(n) * 2, acc[j], select(j < left, 1, 0))
