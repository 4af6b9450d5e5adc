"""The layer's first GEMM for sm_90a: gathers its token rows, and leaves silu(gate) * up in e4m3 with its scales.

The grouped GEMM of kernel.py with tiles of 128 weight rows of up and the same 128 of gate. Each warpgroup has 64 of
both, so a thread has up and gate of the same column and token in two registers. 128 columns of the product are one
block of the next GEMM's K: the tile's CTA knows its scale.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr

from moe.definition import LARGEST
from moe.kernel import (
    BLOCK_K,
    Config,
    Cta,
    GroupedGemm,
    swizzled,
    tma_atom,
)
from moe.ptx import as_int as bits_of
from moe.ptx import (
    consumer_barrier,
    copy_async,
    copy_async_arrive,
    divide,
    fence_proxy_async,
    fma_in_order,
    load_global_float,
    load_relaxed_if,
    load_shared_float,
    load_shared_floats,
    load_shared_words,
    matrix_descriptor,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_wait,
    minimum,
    select,
    select_float,
    store_global_word,
    store_global_words,
    store_shared_e4m3,
    store_shared_float,
    tma_load,
    tma_prefetch,
    uniform,
    wgmma_fp8,
    wgmma_wait,
)
from moe.schedule import piece_at

WARP_SCRATCH = 1024  # bytes that each of the 8 consumer warps has
BARRIER = 3  # named barrier of both warpgroups; 1 and 2 are their own
HALF = 128  # columns of the product that a tile has: weight rows of up, and as many of gate
WORDS = 18
LOG2_E = 1.4426950408889634


class Operands(NamedTuple):
    """Addresses and sizes of the problem."""

    a: Int64
    a_scale: Int64
    b_scale: Int64
    rows: Int64
    c: Int64
    c_scale: Int64
    partials: Int64
    flags: Int64
    total_m: Int32  # rows that there is room for
    n: Int32  # of up and gate together
    tokens: Int32


def halves_tensormap(address: Int64, experts: Int32, n: Int32, k: Int32):
    """TMA atom of B [experts, up | gate, n / 2, k], innermost first: boxes of 128 x 128 x 1 x 1."""
    box = (BLOCK_K, HALF, 1, 1)
    layout = cute.composition(swizzled(HALF), cute.make_layout(box, stride=(HALF, 1, HALF * BLOCK_K, HALF * BLOCK_K)))
    half = Int64(n >> 1) * Int64(k)
    stride = (1, cute.assume(Int64(k), 16), cute.assume(half, 16), cute.assume(2 * half, 16))
    return tma_atom(address, (k, n >> 1, 2, experts), stride, layout, box)


@dataclass(frozen=True)
class Tiles(Config):
    """Of 128 weight rows of up and the same of gate, each half with its own scales."""

    permuted: bool = False  # the tokens' rows lie in the order of the experts: permute.py has copied them

    def __post_init__(self):
        super().__post_init__()
        assert self.cluster == (2 if self.permuted else 1)
        assert self.tokens_on_m or (self.tokens <= 32 and not self.permuted)  # who gathers has a lane for each

    overlap = False  # up and gate of a token and column belong together

    @property
    def rows(self) -> int:
        return 2 * HALF

    @property
    def sums(self) -> int:
        return self.tokens

    @property
    def scale_bytes(self) -> int:
        return super().scale_bytes if self.tokens_on_m else 2 * 4 * self.scale_row


# Measured on an H200: tiles of more tokens load weights less often, of fewer keep more stages under way
FEW = Tiles(tokens=16, burst=2)
MANY = Tiles(tokens=128, cluster=2, tokens_on_m=True, permuted=True)
SEVERAL = dataclasses.replace(MANY, burst=2, prefetch=2)
CONFIGS = FEW, SEVERAL, MANY


def choose(rows: int, experts: int) -> Tiles:
    """The config for this many rows in all, as far as the host can know."""
    mean = -(-rows // experts)
    return FEW if mean <= 5 else SEVERAL if mean <= 64 else MANY


class GatheredGemm(GroupedGemm):
    """The kernel under one of CONFIGS. Words: addresses of hidden_states e4m3 [T, K], their scales f32 [K/128, T] (or
    of both permuted, [total_m, K] and [K/128, total_m]), weights e4m3 [E, n, K] and scales f32 [E, n/128, K/128],
    m_indptr int32 [E + 1], rows int32 [total_m] (the token of each row), c e4m3 [total_m, n/2], its scales f32
    [n/256, total_m], partials, flags; total_m, n, K, E, first step of a search among them, CTAs; T; CUDA stream.
    """

    early_table = False  # the kernel before this one is routing

    @classmethod
    def of(cls, config: Tiles) -> "GatheredGemm":
        from moe.gemm1_tokens import PermutedGemm

        return (PermutedGemm if config.permuted else cls)(config)

    @staticmethod
    def tuning():
        from moe import gemm1

        return gemm1

    @cute.jit
    def __call__(self, host: cute.Pointer):
        """Encode the tensormaps and launch."""
        words = cute.make_tensor(host, cute.make_layout(WORDS))
        a, a_scale, b, b_scale, m_indptr, rows, c, c_scale, partials, flags = [words[i] for i in range(10)]
        total_m, n, k, experts, search, grid, tokens = [Int32(words[i]) for i in range(10, 17)]
        weights = halves_tensormap(b, experts, n, k)
        # The kernel takes the last one for the weights; tokens that it gathers come without
        tokens_maps = self.token_maps(a, total_m, k) if self.config.permuted else [weights] * len(self.config.widths)
        operands = Operands(a, a_scale, b_scale, rows, c, c_scale, partials, flags, total_m, n, tokens)
        self.launch(grid, words[17], (*tokens_maps, weights), m_indptr, operands, k >> 7, experts, search)

    @cute.jit
    def prefetch(self, piece, weights_map: Int64):
        """The first stages of a piece's weights to L2."""
        for i in cutlass.range(minimum(piece.count, self.config.prefetch), unroll=1):
            for half in range_constexpr(2):
                tma_prefetch(weights_map, ((piece.first + i) * BLOCK_K, piece.row >> 1, half, piece.expert))

    def load_stage(self, cta: Cta, piece, weights_map, tokens_map, slot: Int32, x: Int32) -> None:
        """TMA copies of a stage's weights, 128 rows of up, then of gate. Tokens are the scale warps' part."""
        config, bar = self.config, cta.full + 8 * slot
        weights = cta.ring + slot * config.stage_bytes
        mbarrier_expect(bar, config.rows * BLOCK_K)
        for half in range(2):
            at = (x, piece.row >> 1, half, piece.expert)
            tma_load(weights + half * (HALF * BLOCK_K), weights_map, at, bar, config.weights_policy, Int32(1), None)

    @cute.jit
    def gather(self, to: Int32, source: Int64, k: Int32, token: Int32, piece, lane: Int32):
        """A warp: the rows of a stage, 8 lanes a row, swizzled by 128 bytes. token: of row `lane`."""
        first, row_bytes = lane >> 3, Int64(k)
        for i in range_constexpr(self.config.tokens // 4):
            row = 4 * i + first
            of_row = cute.arch.shuffle_sync(token, row)
            place = to + i * (4 * BLOCK_K) + first * BLOCK_K + (((lane & 7) ^ (4 * i & 4) ^ first) << 4)
            size, wanted = select(row < piece.tokens, 16, 0), select(4 * i < piece.width, 1, 0)
            copy_async(place, source + Int64(of_row) * row_bytes, size, wanted)

    @cute.jit
    def scale(self, cta: Cta, plan, unit: Int32, piece, operands: Operands, which: Int32, lane: Int32):
        """A scale warp: token rows of every third stage, and a_scale * b_scale of them for up and for gate.

        A lane has one of the tile's tokens.
        """
        config, place = self.config, self.scale_place(lane)
        count = Int32(0)  # stages before this piece
        while unit < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, operands.n >> 7
            there = select(lane < piece.tokens, 1, 0)
            token = load_relaxed_if(operands.rows + Int64(piece.token + lane) * 4, there)
            address = operands.a_scale + Int64(token) * 4
            b_rows = []
            for half in range_constexpr(2):
                row = piece.expert * scale_blocks + (piece.row >> 8) + half * (scale_blocks >> 1)
                b_rows.append(operands.b_scale + Int64(row) * Int64(k_blocks) * 4)
            stride = Int64(operands.tokens) * 4
            skip = which - count % self.scale_warps
            skip = skip + select(skip < 0, self.scale_warps, 0)
            for i in cutlass.range(skip, piece.count, self.scale_warps, unroll=1):
                k = piece.first + i
                of_token = load_global_float(address + Int64(k) * stride, there)
                of_weights = [load_global_float(x + Int64(k) * 4, Int32(1)) for x in b_rows]
                stage = divide(count + i, config.depth)
                slot = count + i - stage * config.depth
                bar = cta.full + 8 * slot
                mbarrier_wait(cta.empty + 8 * slot, (stage & 1) ^ 1)
                to = cta.ring + slot * config.stage_bytes + config.rows * BLOCK_K
                source = operands.a + Int64(k * BLOCK_K + (lane & 7) * 16)
                self.gather(to, source, k_blocks * BLOCK_K, token, piece, lane)
                if const_expr(config.rings == 2):
                    self.arrive_behind_copies(bar, lane)
                    stage = divide(count + i, config.scale_depth)
                    slot = count + i - stage * config.scale_depth
                    bar = cta.scales_full + 8 * slot
                    mbarrier_wait(cta.scales_empty + 8 * slot, (stage & 1) ^ 1)
                    self.announce(cta, slot, piece, i, lane)
                else:
                    copy_async_arrive(bar)
                to = cta.scales + slot * config.scale_bytes + place
                if lane < config.tokens:
                    for half in range_constexpr(2):
                        store_shared_float(to + half * 4 * config.scale_row, of_token * of_weights[half])
                cute.arch.sync_warp()
                mbarrier_arrive(bar, select(lane == 0, 1, 0))
            count = count + piece.count
            unit = piece.next
            piece = piece_at(plan, config, cta.rank, unit)

    @cute.jit
    def multiply(
        self, cta: Cta, tokens: cutlass.Constexpr, count: Int32, done: Int32, slot: Int32, phase: Int32, acc,
        warp: Int32, lane: Int32,
    ):  # fmt: skip
        """As kernel.py's, but that each half, up and gate, has its own scales. Returns the next slot, and its phase."""
        config, group = self.config, warp >> 2
        per_half, stride = tokens // 2, config.tokens // 2
        first_weights = matrix_descriptor(cta.ring + group * (64 * BLOCK_K))
        first_tokens = matrix_descriptor(cta.ring + config.rows * BLOCK_K)
        of_scales = cta.scales + (lane & 3) * config.scale_row
        for _ in cutlass.range(count, unroll=1):
            mbarrier_wait(cta.full + 8 * slot, phase)
            fence_proxy_async()  # the tokens did not come by TMA
            stage = slot * (config.stage_bytes >> 4)
            for half in range_constexpr(2):
                scales = []
                for i in range_constexpr(tokens // 16):
                    at = of_scales + slot * config.scale_bytes + half * (4 * config.scale_row) + 16 * i
                    scales += load_shared_floats(at)
                weights = first_weights + stage + half * (HALF * BLOCK_K >> 4)
                d = wgmma_fp8(tokens, uniform(weights), uniform(first_tokens + stage), wait=False)
                wgmma_wait(0)
                if const_expr(half == 1):
                    self.release(cta, slot, lane)
                for i in range_constexpr(per_half):
                    scale = scales[(i // 4 * 2 + i % 2) ^ 1]  # SCALE_ORDER
                    acc[half * stride + i] = fma_in_order(d[i], scale, acc[half * stride + i])
            slot, phase = self.after(slot, phase)
        return slot, phase

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """silu(gate) * up of both warpgroups, its largest of 128 columns, and both to memory.

        Shared memory: the largest of each warp's 16 columns, f32 [8, tokens]; then e4m3 of a warp [32 tokens, 16].
        """
        config = self.config
        half = config.tokens // 2  # results of a thread for 64 weight rows: 4 for 8 tokens, 2 of these in 2 columns
        pair = lane & 3
        largest, bytes_of = cta.scratch, cta.scratch + WARP_SCRATCH * 4 + warp * (WARP_SCRATCH // 2)
        for i in range_constexpr(half):
            acc[i] = product(acc[i], acc[half + i])
        consumer_barrier(BARRIER)  # the tile before this one has been read
        for j in range_constexpr(config.tokens // 8):
            for x in range_constexpr(2):
                most = magnitude(acc[4 * j + x], acc[4 * j + 2 + x])
                for step in (4, 8, 16):
                    most = cute.arch.fmax(most, cute.arch.shuffle_sync_bfly(most, step))
                acc[half + 2 * j + x] = most  # of gate's registers, which are free
        if lane < 4:
            for j in range_constexpr(config.tokens // 8):
                for x in range_constexpr(2):
                    token = 8 * j + 2 * pair + x
                    store_shared_float(largest + (warp * config.tokens + token) * 4, acc[half + 2 * j + x])
        consumer_barrier(BARRIER)
        for j in range_constexpr(config.tokens // 8):
            for x in range_constexpr(2):
                most = Float32(0.0)
                for other in range_constexpr(8):
                    at = largest + (other * config.tokens + 8 * j + 2 * pair + x) * 4
                    most = cute.arch.fmax(most, load_shared_float(at))
                acc[half + 2 * j + x] = most
        n, total_m = operands.n >> 1, operands.total_m
        tokens = select(piece.row < operands.n, piece.tokens, 0)  # that are stored
        column = (piece.row >> 1) + warp * 16
        to = operands.c + Int64(piece.token + lane) * Int64(n) + Int64(column)
        for first in range_constexpr(0, config.tokens, 32):
            if first < tokens:
                for j in range_constexpr(first // 8, min(first + 32, config.tokens) // 8):
                    for x in range_constexpr(2):
                        factor = inverse(acc[half + 2 * j + x])
                        at = bytes_of + (8 * j - first + 2 * pair + x) * 16 + (lane >> 2)
                        store_shared_e4m3(at, at + 8, acc[4 * j + x] * factor, acc[4 * j + 2 + x] * factor)
                cute.arch.sync_warp()
                x = load_shared_words(bytes_of + minimum(lane, min(32, config.tokens) - 1) * 16)
                store_global_words(to + Int64(first) * Int64(n), x, select(first + lane < tokens, 1, 0))
                cute.arch.sync_warp()
        if warp < 4:
            thread = warp * 32 + lane
            if thread < tokens:
                most = Float32(0.0)
                for other in range_constexpr(8):
                    most = cute.arch.fmax(most, load_shared_float(largest + (other * config.tokens + thread) * 4))
                to = operands.c_scale + (Int64(piece.row >> 8) * Int64(total_m) + Int64(piece.token + thread)) * 4
                store_global_word(to, bits_of(most * Float32(1 / LARGEST)), Int32(1))


def product(up: Float32, gate: Float32) -> Float32:
    """silu(gate) * up."""
    return products([up], [gate])[0]


def products(up: list[Float32], gate: list[Float32]) -> list[Float32]:
    """silu(gate) * up of each pair, step by step: none waits for another."""
    x = [g * -LOG2_E for g in gate]
    x = [cute.math.exp2(e, fastmath=True) for e in x]
    x = [Float32(1.0) + e for e in x]
    x = [cute.arch.rcp_approx(e) for e in x]
    x = [g * e for g, e in zip(gate, x)]
    return [u * e for u, e in zip(up, x)]


def inverse(most: Float32) -> Float32:
    """What makes the largest value that of e4m3; 0 if all are."""
    return select_float(most > 0.0, Float32(LARGEST) / most, Float32(0.0))


def magnitude(x: Float32, y: Float32) -> Float32:
    """The larger absolute value."""
    return cute.arch.fmax(cute.math.absf(x), cute.math.absf(y))
