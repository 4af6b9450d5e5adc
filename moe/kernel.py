"""The grouped GEMM's kernel: the frame, and the tensor core's part for sm_90a where experts have few tokens.

    TMA warp     weights, tokens ──► ring ┐
    scale warps  a_scale * b_scale ─► ring ┴─► two warpgroups: wgmma of 128 of K, scaled and added in registers ──► out

Weights are the M side of wgmma here, tokens its N side, so that few tokens cost little: each warpgroup has 64 of the
tile's 128 weight rows, and all of its tokens. For many tokens it is the other way round: sm90_tokens.py.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir
from cutlass.cute.nvgpu import cpasync, warpgroup

from moe.ptx import (
    FIRST,
    LAST,
    NORMAL,
    as_float,
    copy_async_arrive,
    divide,
    fma,
    let_next_kernel_start,
    load_acquire,
    load_global_float,
    load_relaxed,
    load_relaxed_words_if,
    load_shared,
    load_shared_floats,
    load_shared_words,
    map_shared,
    matrix_descriptor,
    maximum,
    mbarrier_arrive,
    mbarrier_arrive_cluster,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    pack_bfloat,
    pause,
    prefix_sum,
    select,
    store_global_words,
    store_matrix,
    store_relaxed_floats,
    store_release,
    store_shared,
    store_shared_float,
    tensormap_address,
    tensormap_prefetch,
    tma_load,
    tma_prefetch,
    uniform,
    wait_for_previous_kernel,
    warpgroup_barrier,
    wgmma_fp8,
)
from moe.schedule import MAX_EXPERTS, PIECE_BYTES, Shape, make_plan, piece_at, read_piece, start_of, write_piece

BLOCK_K = 128  # K per scale, and per stage of the ring: one 128-byte swizzle row of e4m3
BLOCK_N = 128  # weight rows per scale
GROUPS = 2  # consumer warpgroups
GROUP_WARPS = 4
GROUP_THREADS = 128
THREADS = GROUP_THREADS * (GROUPS + 1)
TMA_WARP = GROUPS * GROUP_WARPS
MMA_WARP = TMA_WARP + 1  # where the tensor core has one
SCALE_BATCH = 3  # stages whose scales a scale warp loads at once
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 232, 40  # of a thread: 2 * 232 + 40 is 3 * 168, what the launch gives
SMEM = 227 * 1024
CHUNK = 32  # tokens that a warp transposes at once
MAX_STAGES = 12
SPARE_SCALES = 4  # stages that a ring of scales has more than the operands', where they have one
BANKS = 1, 0, 3, 2  # of 4 sums, in the aligned registers of a vector: not in the banks of the results added to them
# SCALE_ORDER: scales of a stage in shared memory [lane % 4, 8 tokens, 2]: what a thread needs lies
# side by side, those of a pair of tokens the wrong way round. So they come to registers of the other parity than the
# results, which all three operands of an FFMA would share otherwise, and with it the register bank.
BARRIERS = 2 * 8 * MAX_STAGES
PIECES = PIECE_BYTES * MAX_STAGES
SCALE_RING = (MAX_STAGES + SPARE_SCALES) * (2 * 8 + PIECE_BYTES)  # bytes of its barriers and pieces
TABLES = 2 * 4 * (MAX_EXPERTS + 1) + 8
WORDS = 15  # of the host's array
EMPTY = -1  # bits of a NaN that no arithmetic gives, whatever NaNs it is given: those are 0x7fffffff


@dataclass(frozen=True)
class Config:
    """Hyperparameters of a kernel. They change its time; its result only through the order of f32 additions."""

    tokens: int = 64  # of a tile: N of wgmma
    cluster: int = 1  # CTAs that share operands
    burst: int = 1  # stages that are loaded together
    prefetch: int = 0  # stages of weights that are prefetched to L2 while the previous kernel ends
    tokens_on_m: bool = False  # tokens are the M side of wgmma, 64 of each warpgroup (sm90_tokens.py); else weights are
    weights: int = 128  # rows of a tile; others with tokens on M only
    shares_first: bool = False  # where clusters take whole tiles in turn, the first ones are cut, not the last ones
    halves: bool = False  # the CTAs of a cluster have each a half of a tile's K, and add their sums

    rings = 1  # 2: scales have their own, as operands are done with before them
    own_bytes = 64  # of barriers that the back end may use
    together = False  # the CTAs of a cluster multiply their tokens, with the same weights, by the same instructions

    def __post_init__(self):
        assert self.tokens in (16, 32, 64, 128) and self.cluster in (1, 2)
        rows = (64, 112, 128, 224, 256) if self.tokens_on_m else (128,)
        assert self.weights in rows and (self.tokens == 128 or not self.tokens_on_m)
        assert not self.halves or self.tokens_on_m and self.cluster == 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Token counts that are loaded, the widest first: a tile takes the least that holds its tokens."""
        return tuple(x for x in (128, 64, 32, 16) if x <= self.tokens and (x >= 64 or not self.tokens_on_m))

    def one_each(self, most: int, total_m: int, n: int, experts: int) -> int:
        """CTAs that have a whole tile each, if that is nearly all of so many that fit the GPU; else 0.

        Experts are taken to be even. With weights on M tiles are small, and equal shares of them cost little.
        """
        tiles = experts * -(-total_m // (experts * self.tokens)) * -(-n // self.rows)
        ctas = -(-tiles * (1 + self.halves) // self.launched) * self.launched
        return ctas if self.tokens_on_m and ctas <= most <= 1.25 * ctas else 0

    def grid(self, most: int, total_m: int, n: int, experts: int) -> int:
        """CTAs for these sizes, of so many that fit the GPU."""
        return self.one_each(most, total_m, n, experts) or most

    @property
    def ctas(self) -> int:
        """CTAs that the schedule gives tiles together."""
        return 2 if self.halves else self.cluster

    @property
    def launched(self) -> int:
        """CTAs that are launched as a cluster, on neighbouring SMs. Where these read the same lines at about the same
        time, they share what comes from L2: 1 x 512 takes 2 % less. With weights on M shares begin at other K blocks.
        And fewer CTAs than SMs lie evenly beside both halves of L2, as each GPC gets a cluster in turn: alone they
        fill one GPC after the other (so on an H200: emulator/model/halves.py).
        """
        return 2 if self.tokens_on_m else self.ctas

    @property
    def in_turn(self) -> bool | None:
        """Whether clusters take whole tiles in turn, not equal shares; None: if an expert has several token tiles."""
        return True if self.tokens_on_m else None

    @property
    def rows(self) -> int:
        """Weight rows of a tile."""
        return self.weights

    @property
    def weights_policy(self) -> str:
        """L2 policy of the weights, by which is faster on an H200: worklog/moe.md, G64."""
        return FIRST if self.cluster == 1 else NORMAL

    @property
    def sums(self) -> int:
        """Results of a consumer thread."""
        return self.rows * self.tokens // (GROUP_THREADS * GROUPS)

    @property
    def polled(self) -> bool:
        """Whether the sums of a cut tile's parts say themselves that they have come: by one way through L2, where a
        flag behind them takes two and a fence. They must be EMPTY before, which costs more than that if they are many.
        """
        return self.sums <= 16

    @property
    def overlap(self) -> bool:
        """Whether both CTAs of a pair multiply the middle tokens of an expert that has more than one and up to one and
        a half tiles' of them, with a half of the weights each. So neither has a full tile's work.
        """
        return self.tokens_on_m and self.cluster == 2 and self.rows == 2 * BLOCK_N

    @property
    def scale_rows(self) -> int:
        """Weight rows of a tile that have one scale, with tokens on M, at whatever multiple of `rows` it begins."""
        return math.gcd(self.rows, BLOCK_N)

    @property
    def scale_row(self) -> int:
        """Bytes of the scales of a quarter of a tile's tokens in shared memory, 16 more for the banks."""
        return self.tokens + 16

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales per stage: a_scale * b_scale of every token; with tokens on M those of tokens, of weights."""
        weights = 4 * (self.rows // self.scale_rows)
        return -(-(self.weight_scales + weights) // 16) * 16 if self.tokens_on_m else 4 * self.scale_row

    @property
    def weight_scales(self) -> int:
        """Byte at which those of weights begin, with tokens on M: there may be 3 others before the tokens'."""
        return 4 * (self.tokens + 3)

    @property
    def scratch(self) -> int:
        """Bytes in which a warp transposes results: [16 tokens, 64 weight rows] or [CHUNK tokens, 16] in bf16."""
        return 2048 if self.tokens_on_m else CHUNK * 16 * 2

    @property
    def fixed_smem(self) -> int:
        """Bytes of shared memory beside the ring's; 1024 to align that."""
        own_ring = (self.rings - 1) * (SCALE_RING + SPARE_SCALES * self.scale_bytes)
        barriers = BARRIERS + self.own_bytes
        scratch = GROUPS * GROUP_WARPS * self.scratch
        return 1024 + barriers + PIECES + TABLES + scratch + own_ring + self.joined_bytes

    @property
    def joined_bytes(self) -> int:
        """Bytes of the sums that come from the other CTA, of half of the warps."""
        return self.partial_bytes // 2 if self.halves else 0

    @property
    def weights_box(self) -> int:
        """Weight rows that TMA loads at once."""
        return self.rows // self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes that TMA loads per stage: weights, then tokens."""
        return (self.rows + self.tokens) * BLOCK_K

    @property
    def depth(self) -> int:
        """Stages of the ring."""
        room = SMEM - self.fixed_smem
        return min(MAX_STAGES, room // (self.stage_bytes + self.scale_bytes))

    @property
    def scale_depth(self) -> int:
        """Stages of the ring of scales."""
        return self.depth + (self.rings - 1) * SPARE_SCALES

    @property
    def smem(self) -> int:
        """Bytes of shared memory."""
        return self.fixed_smem + self.depth * (self.stage_bytes + self.scale_bytes)

    @property
    def least(self) -> int:
        """K blocks of a share: as many as take the time in which sums of a part are written and added."""
        return max(4, self.sums // 16)

    @property
    def partial_bytes(self) -> int:
        """Bytes of a CTA's sums of a tile that it does not finish."""
        return self.rows * self.tokens * 4


class Cta(NamedTuple):
    """Addresses in shared memory, and the CTA's place in its cluster."""

    rank: Int32
    cluster: Int32
    joined: Int32  # f32 [warp / 2, 4 sums, lane, 4], of the other CTA
    ring: Int32  # [stages, weights | tokens]
    scales: Int32  # [scale_depth, scale_bytes]
    scratch: Int32  # [warp, CHUNK, 16] bf16
    full: Int32  # barriers [stages]
    empty: Int32
    own: Int32  # own_bytes of the back end
    pieces: Int32  # [stages, PIECE_BYTES], where a stage is the first of one
    # The same of the ring of scales: another one or, if they come and go with the operands, this one
    scales_full: Int32
    scales_empty: Int32
    scale_pieces: Int32


class Operands(NamedTuple):
    """Addresses and sizes of the problem."""

    a_scale: Int64
    b_scale: Int64
    out: Int64
    partials: Int64  # f32 [CTA, partial_bytes / 4], of tiles that were cut; if polled, EMPTY where there is none
    flags: Int64  # int32 [CTA, GROUPS]: 1 while there is one, if not polled
    total_m: Int32
    n: Int32


def swizzled(rows: int):
    """Layout of a box of `rows` x 128 bytes in shared memory: K-major, 128-byte swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Uint8)
    return cute.tile_to_shape(atom, (rows, BLOCK_K), (0, 1))


def tma_atom(address: Int64, shape: tuple, stride: tuple, layout, box: tuple):
    pointer = cute.make_ptr(Uint8, address, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, layout, box)[0]


def token_tensormap(address: Int64, total_m: Int32, k: Int32, rows: int):
    """TMA atom of A [total_m, k]: boxes of rows x 128."""
    return tma_atom(address, (total_m, k), (cute.assume(k, 16), 1), swizzled(rows), (rows, BLOCK_K))


def weight_tensormap(address: Int64, experts: Int32, n: Int32, k: Int32, rows: int):
    """TMA atom of B [experts, n, k], innermost first: boxes of 128 x rows x 1. Rows from n on are zeros."""
    layout = cute.composition(swizzled(rows), cute.make_layout((BLOCK_K, rows, 1), stride=(rows, 1, rows * BLOCK_K)))
    stride = (1, cute.assume(Int64(k), 16), cute.assume(Int64(n) * Int64(k), 16))
    return tma_atom(address, (k, n, experts), stride, layout, (BLOCK_K, rows, 1))


def next_of(depth: int, slot: Int32, phase: Int32) -> tuple[Int32, Int32]:
    """The next slot of a ring of so many, and its phase."""
    slot = slot + 1
    phase = select(slot == depth, phase ^ 1, phase)
    return select(slot == depth, 0, slot), phase


class GroupedGemm:
    """The kernel under one config. Sizes and addresses are an array of 64-bit words in host memory:

    addresses of a, a_scale, b, b_scale, m_indptr, out, partials, flags; total_m, n, k, experts, first step of a search
    among them, CTAs in the grid; CUDA stream
    """

    scale_warps = 3  # each loads every third stage's scales, so that three loads are under way
    arrivals = 2  # at a stage's barrier: the TMA warp, which awaits bytes, and a scale warp
    mma_warps = 1
    early_table = True  # the schedule is made before the previous kernel has ended; else that writes m_indptr

    @property
    def loads_ahead(self) -> bool:
        """Whether loads begin before m_indptr is looked at again. Pairs may have begun with different schedules."""
        return self.early_table and self.config.cluster == 1

    def __init__(self, config: Config):
        self.config = config

    @classmethod
    def of(cls, config: Config) -> "GroupedGemm":
        """The kernel under this config."""
        from moe.sm90_tokens import GroupedGemmTokensOnM

        return (GroupedGemmTokensOnM if config.tokens_on_m else cls)(config)

    @staticmethod
    def tuning():
        """The module that chooses a config: `choose`, and `CONFIGS`, all that it may choose."""
        from moe import tuning

        return tuning

    # What a back end without wgmma does otherwise, beside `multiply` and `store`

    def init_barriers(self, cta: Cta) -> None:
        """One thread: those of the ring, and of its own."""
        for i in range(self.config.depth):
            mbarrier_init(cta.full + 8 * i, self.arrivals)
            mbarrier_init(cta.empty + 8 * i, GROUPS * GROUP_WARPS * self.config.cluster)  # all consumer warps

    def begin(self, cta: Cta, warp: Int32) -> None:
        """All threads, before they first meet."""

    def issue(self, cta: Cta, plan, unit: Int32, which: Int32) -> None:
        """An MMA warp."""

    def finish(self, cta: Cta, warp: Int32) -> None:
        """All threads, at the end."""

    @cute.jit
    def __call__(self, host: cute.Pointer):
        """Encode the tensormaps and launch."""
        words, config = cute.make_tensor(host, cute.make_layout(WORDS)), self.config
        a, a_scale, b, b_scale, m_indptr, out, partials, flags = [words[i] for i in range(8)]
        total_m, n, k, experts, search, grid = [Int32(words[i]) for i in range(8, 14)]
        weights = weight_tensormap(b, experts, n, k, config.weights_box)
        tensormaps = *self.token_maps(a, total_m, k), weights
        operands = Operands(a_scale, b_scale, out, partials, flags, total_m, n)
        self.launch(grid, words[14], tensormaps, m_indptr, operands, k >> 7, experts, search)

    def token_maps(self, a: Int64, total_m: Int32, k: Int32) -> list:
        """TMA atoms of the tokens, one for each width."""
        return [token_tensormap(a, total_m, k, width // self.config.cluster) for width in self.config.widths]

    def launch(self, grid: Int32, stream: Int64, *arguments) -> None:
        """The kernel with these arguments, as a dependent launch."""
        self.kernel(*arguments).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.config.launched, 1, 1),
            smem=self.config.smem,
            stream=cuda_ir.cast(cuda_ir.StreamType.get(), stream.ir_value()),
            use_pdl=True,
            min_blocks_per_mp=1,  # setmaxnreg needs a register cap at entry
        )

    @cute.kernel
    def kernel(
        self, tensormaps: tuple, m_indptr: Int64, operands: tuple, k_blocks: Int32, experts: Int32, search: Int32
    ):  # fmt: skip
        config = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        # The rest of a tile that is cut is a later share's. GPUs start CTAs in the order of their numbers: given to an
        # earlier one it is under way, and will end, also where other kernels leave no room for all CTAs at once.
        rank, cluster = block % config.ctas, (grid - 1 - block) // config.ctas
        tokens_map = tensormap_address(tensormaps[0])  # kernel parameters lie side by side: 128 bytes each
        weights_map = tokens_map + 128 * len(config.widths)

        # Shared memory: ring | scratch of the stores | sums of the other CTA | scales | tables | barriers | pieces
        ring = cute.arch.get_dyn_smem(cutlass.Int8, 1024).toint()
        scratch = ring + config.depth * config.stage_bytes
        joined = scratch + GROUPS * GROUP_WARPS * config.scratch
        scales = joined + config.joined_bytes
        table = scales + config.scale_depth * config.scale_bytes
        offsets = table + 4 * (MAX_EXPERTS + 1)
        in_turn = offsets + 4 * (MAX_EXPERTS + 1)
        full = in_turn + 8
        empty = full + 8 * MAX_STAGES
        own = empty + 8 * MAX_STAGES
        pieces = own + config.own_bytes
        rings = full, empty, pieces
        if const_expr(config.rings == 2):
            scales_full = pieces + PIECES
            scales_empty = scales_full + 8 * (MAX_STAGES + SPARE_SCALES)
            rings = scales_full, scales_empty, scales_empty + 8 * (MAX_STAGES + SPARE_SCALES)
        cta = Cta(rank, cluster, joined, ring, scales, scratch, full, empty, own, pieces, *rings)

        if warp == TMA_WARP:
            with cute.arch.elect_one():
                for i in range_constexpr(len(config.widths) + 1):
                    tensormap_prefetch(tokens_map + 128 * i)
                self.init_barriers(cta)
                cute.arch.mbarrier_init_fence()
        self.begin(cta, warp)
        if const_expr(config.ctas > 1):
            cute.arch.cluster_arrive_relaxed()

        # The schedule and the first piece, from what m_indptr has while the previous kernel ends, so that loads begin
        # as soon as it has; if that changes until then, once more
        if const_expr(not self.early_table):
            wait_for_previous_kernel()
        weight_blocks = (operands.n + (config.rows - 1)) // config.rows
        shape = Shape(operands.n, k_blocks, weight_blocks, experts, search, grid // config.ctas)
        places = table, offsets, in_turn
        plan, unit, piece = self.schedule(m_indptr, shape, operands, *places, rank, cluster, warp, lane, thread)
        if const_expr(config.prefetch > 0):
            if (warp == TMA_WARP) & (unit < plan.end):
                with cute.arch.elect_one():
                    self.prefetch(piece, weights_map)
        if const_expr(config.ctas > 1):
            cute.arch.cluster_wait()
        wait_for_previous_kernel()
        let_next_kernel_start()
        ahead = Int32(0)  # stages of the first piece that are loaded before it is known to be right
        if const_expr(self.loads_ahead):
            if (warp == TMA_WARP) & (unit < plan.end):
                ahead = minimum(piece.count, config.depth // config.burst * config.burst)
                self.load_ahead(cta, piece, ahead, tokens_map, weights_map)
        if const_expr(self.early_table):
            if self.has_changed(m_indptr, offsets, experts, lane):  # every warp sees the same
                if const_expr(self.loads_ahead):
                    if warp == TMA_WARP:
                        self.take_back(cta, ahead)
                        ahead = Int32(0)
                cute.arch.sync_threads()
                plan, unit, piece = self.schedule(m_indptr, shape, operands, *places, rank, cluster, warp, lane, thread)

        if warp >= TMA_WARP:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            first_scale_warp = TMA_WARP + 4 - self.scale_warps
            if warp == TMA_WARP:
                self.load(cta, plan, unit, piece, ahead, tokens_map, weights_map)
            elif warp >= first_scale_warp:
                self.scale(cta, plan, unit, piece, operands, warp - first_scale_warp, lane)
            elif warp < MMA_WARP + self.mma_warps:
                self.issue(cta, plan, unit, warp - MMA_WARP)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.consume(cta, plan, unit, operands, warp, lane, thread)
        self.finish(cta, warp)

    @cute.jit
    def schedule(
        self, m_indptr: Int64, shape: Shape, operands: Operands, table, offsets, in_turn, rank, cluster, warp, lane,
        thread,
    ):  # fmt: skip
        """All threads: the schedule's tables in shared memory. Returns the plan, its first unit and the piece there."""
        for i in cutlass.range(thread, shape.experts + 1, THREADS, unroll=1):
            store_shared(offsets + 4 * i, load_relaxed(m_indptr + Int64(i) * 4))
        cute.arch.sync_threads()
        if warp == 0:
            self.count_tiles(offsets, table, in_turn, operands.total_m, shape.weight_blocks, shape.experts, lane)
        cute.arch.sync_threads()
        plan, unit = make_plan(self.config, shape, table, offsets, load_shared(in_turn), cluster)
        return plan, unit, piece_at(plan, self.config, rank, unit)

    @cute.jit
    def has_changed(self, m_indptr: Int64, offsets: Int32, experts: Int32, lane: Int32):
        """A warp: whether m_indptr is not what the schedule was made from."""
        changed = Int32(0)
        for base in cutlass.range(0, experts + 1, 64, unroll=1):
            for half in range_constexpr(2):  # two loads under way
                i = minimum(base + 32 * half + lane, experts)
                changed = changed | (load_relaxed(m_indptr + Int64(i) * 4) ^ load_shared(offsets + 4 * i))
        return cute.arch.vote_any_sync(changed != 0)

    @cute.jit
    def prefetch(self, piece, weights_map: Int64):
        """The first stages of a piece's weights to L2."""
        for i in cutlass.range(minimum(piece.count, self.config.prefetch), unroll=1):
            tma_prefetch(weights_map, ((piece.first + i) * BLOCK_K, piece.row, piece.expert))

    @cute.jit
    def count_tiles(self, offsets: Int32, table: Int32, in_turn: Int32, total_m, weight_blocks, experts, lane):
        """One warp: m_indptr clipped and made monotone, and how many cluster tiles there are before each expert."""
        config = self.config
        before, most, wrong = Int32(0), Int32(0), Int32(0)
        for base in cutlass.range(0, experts, 32, unroll=1):
            i = minimum(base + lane, experts - 1)
            start, end = load_shared(offsets + 4 * i), load_shared(offsets + 4 * i + 4)
            wrong = select((start >= 0) & (start <= end) & (end <= total_m), wrong, 1)
        if cute.arch.vote_any_sync(wrong != 0):
            self.mend(offsets, total_m, experts, lane)
        for base in cutlass.range(0, experts, 32, unroll=1):
            i = base + lane
            tiles, depth = Int32(0), Int32(0)
            if i < experts:
                m = load_shared(offsets + 4 * i + 4) - load_shared(offsets + 4 * i)
                token_tiles = (m + (config.tokens - 1)) // config.tokens
                tiles, depth = token_tiles * weight_blocks, token_tiles
                if const_expr(config.together):
                    tiles = ((token_tiles + 1) >> 1) * weight_blocks
                elif const_expr(config.cluster == 2):
                    tiles = (token_tiles >> 1) * weight_blocks + (token_tiles & 1) * ((weight_blocks + 1) >> 1)
                if const_expr(config.cluster == 2):
                    depth = (token_tiles + 1) >> 1
            total = prefix_sum(tiles, lane)
            if i < experts:
                store_shared(table + 4 * i, before + total - tiles)
            before = before + cute.arch.shuffle_sync(total, 31)
            most = maximum(most, select(cute.arch.vote_any_sync(depth > 1), 1, 0))
        if lane == 0:
            store_shared(table + 4 * experts, before)
            store_shared(in_turn, most if config.in_turn is None else Int32(config.in_turn))

    @cute.jit
    def mend(self, offsets: Int32, total_m: Int32, experts: Int32, lane: Int32):
        """One warp: m_indptr clipped and made monotone."""
        reach = Int32(0)
        for base in cutlass.range(0, experts + 1, 32, unroll=1):
            i = base + lane
            offset = Int32(0)
            if i <= experts:
                offset = load_shared(offsets + 4 * i)
            offset = maximum(minimum(offset, total_m), 0)
            for step in range_constexpr(5):  # the largest so far: never below what came before
                other = cute.arch.shuffle_sync_up(offset, 1 << step, mask_and_clamp=0)
                offset = select(lane >= 1 << step, maximum(offset, other), offset)
            offset = maximum(offset, reach)
            if i <= experts:
                store_shared(offsets + 4 * i, offset)
            reach = cute.arch.shuffle_sync(offset, 31)
        cute.arch.sync_warp()

    @cute.jit
    def load_ahead(self, cta: Cta, piece, ahead: Int32, tokens_map: Int64, weights_map: Int64):
        """TMA warp: so many stages of the first piece to the ring, which is empty."""
        with cute.arch.elect_one():
            write_piece(cta.pieces, piece)
            tokens_of = tokens_map + Int64(piece.narrow) * 128
            for i in cutlass.range(ahead, unroll=1):
                self.load_stage(cta, piece, weights_map, tokens_of, i, (piece.first + i) * BLOCK_K)

    @cute.jit
    def take_back(self, cta: Cta, ahead: Int32):
        """TMA warp: await these stages, and leave their barriers as if nothing had come."""
        with cute.arch.elect_one():
            for i in cutlass.range(ahead, unroll=1):
                bar = cta.full + 8 * i
                for _ in range_constexpr(self.arrivals - 1):  # for others
                    mbarrier_arrive(bar, Int32(1))
                mbarrier_wait(bar, Int32(0))
                for _ in range_constexpr(self.arrivals):  # a phase more, and its parity is that of a fresh one
                    mbarrier_arrive(bar, Int32(1))

    @cute.jit
    def load(self, cta: Cta, plan, unit: Int32, piece, ahead: Int32, tokens_map: Int64, weights_map: Int64):
        """TMA warp: weights and tokens to the ring, and with the first stage of a piece what it is.

        ahead: stages of the first piece that load_ahead has loaded.
        """
        config = self.config
        with cute.arch.elect_one():
            slot, phase = select(ahead == config.depth, 0, ahead), select(ahead == config.depth, 0, 1)
            while unit < plan.end:
                if ahead == 0:
                    mbarrier_wait(cta.empty + 8 * slot, phase)  # a fresh barrier passes parity 1
                    write_piece(cta.pieces + slot * PIECE_BYTES, piece)
                tokens_of = tokens_map + Int64(piece.narrow) * 128
                end = piece.first + piece.count
                for k in cutlass.range(piece.first + ahead, end, unroll=1):
                    if const_expr(config.burst == 1):
                        mbarrier_wait(cta.empty + 8 * slot, phase)
                    elif (k - piece.first) % config.burst == 0:  # slots become free in their order: the last one's
                        last = slot + minimum(config.burst, end - k) - 1
                        wraps = last >= config.depth
                        last, last_phase = select(wraps, last - config.depth, last), select(wraps, phase ^ 1, phase)
                        mbarrier_wait(cta.empty + 8 * last, last_phase)
                    self.load_stage(cta, piece, weights_map, tokens_of, slot, k * BLOCK_K)
                    slot, phase = self.after(slot, phase)
                ahead = Int32(0)
                unit = piece.next
                piece = piece_at(plan, config, cta.rank, unit)  # of no meaning behind the last
            self.end_loads(cta, slot, phase)

    @cute.jit
    def end_loads(self, cta: Cta, slot: Int32, phase: Int32):
        """The TMA warp: until every slot has been emptied, arrivals come at this CTA's barriers, also of the other CTA.

        A barrier of the cluster at the end would await results that are on their way to memory, too: 0.5 us.
        """
        for _ in range_constexpr(self.config.depth):
            mbarrier_wait(cta.empty + 8 * slot, phase)
            slot, phase = self.after(slot, phase)

    def load_stage(self, cta: Cta, piece, weights_map, tokens_map, slot: Int32, x: Int32) -> None:
        """TMA copies of a stage at x of K. Of the operand that a cluster shares, each CTA loads half for both."""
        config, bar = self.config, cta.full + 8 * slot
        mbarrier_expect(bar, (piece.width + config.rows) * BLOCK_K)
        weights, policy = cta.ring + slot * config.stage_bytes, config.weights_policy
        tokens = weights + config.rows * BLOCK_K
        if config.cluster == 1:
            tma_load(weights, weights_map, (x, piece.row, piece.expert), bar, policy, Int32(1), None)
            tma_load(tokens, tokens_map, (x, piece.token), bar, LAST, Int32(1), None)
            return
        own = piece.shares_weights
        self.load_halves(cta, bar, weights, weights_map, x, (piece.row, piece.expert), policy, own, config.rows // 2)
        self.load_halves(cta, bar, tokens, tokens_map, x, (piece.token,), LAST, 1 - own, piece.width >> 1)

    def load_halves(
        self, cta: Cta, bar: Int32, to: Int32, tensormap, x: Int32, at: tuple, policy: str, shared: Int32, rows
    ) -> None:
        """TMA copies of an operand, so many rows each; only one, for both CTAs of the cluster, if these share it."""
        only = Int32(1) << cta.rank
        first, mask = cta.rank * shared, select(shared != 0, 3, only)  # half, for both; or the first half
        place = (x, at[0] + first * rows, *at[1:])
        tma_load(to + first * (rows * BLOCK_K), tensormap, place, bar, policy, Int32(1), mask)
        place = (x, at[0] + rows, *at[1:])  # and the second
        tma_load(to + rows * BLOCK_K, tensormap, place, bar, policy, 1 - shared, only)

    def scale_place(self, column: Int32) -> Int32:
        """Byte of a token's scale in its stage: SCALE_ORDER."""
        return ((column >> 1) & 3) * self.config.scale_row + (column >> 3) * 8 + ((column & 1) ^ 1) * 4

    @cute.jit
    def scale(self, cta: Cta, plan, unit: Int32, piece, operands: Operands, which: Int32, lane: Int32):
        """A scale warp: a_scale * b_scale of its stages. Loaded first, stored when the stage is free."""
        config = self.config
        per_lane = (config.tokens + 31) // 32
        places = []  # of token `lane` + 32 * i
        for i in range_constexpr(per_lane):
            column = lane + 32 * i
            places.append(self.scale_place(column))
        count = Int32(0)  # stages before this piece
        while unit < plan.end:
            k_blocks, scale_blocks = plan.shape.k_blocks, plan.shape.n >> 7
            conditions, addresses = [], []
            for i in range_constexpr(per_lane):
                token = piece.token + lane + 32 * i
                conditions.append(select(lane + 32 * i < piece.tokens, 1, 0))
                addresses.append(operands.a_scale + Int64(token) * 4)
            row = minimum(piece.row >> 7, scale_blocks - 1)
            weights = operands.b_scale + Int64(piece.expert * scale_blocks + row) * Int64(k_blocks) * 4
            stride = Int64(operands.total_m) * 4
            skip = which - count % self.scale_warps
            skip = skip + select(skip < 0, self.scale_warps, 0)
            for base in cutlass.range(skip, piece.count, self.scale_warps * SCALE_BATCH, unroll=1):
                of_tokens, of_weights = [], []
                for j in range_constexpr(SCALE_BATCH):
                    k = piece.first + base + self.scale_warps * j
                    wanted = select(k < piece.first + piece.count, 1, 0)
                    at = [x + Int64(k) * stride for x in addresses]
                    of_tokens.append([load_global_float(x, c & wanted) for x, c in zip(at, conditions)])
                    of_weights.append(load_global_float(weights + Int64(k) * 4, wanted))
                for j in range_constexpr(SCALE_BATCH):
                    i = base + self.scale_warps * j
                    if i < piece.count:
                        stage = divide(count + i, config.scale_depth)
                        slot = count + i - stage * config.scale_depth
                        mbarrier_wait(cta.scales_empty + 8 * slot, (stage & 1) ^ 1)
                        self.announce(cta, slot, piece, i, lane)
                        to = cta.scales + slot * config.scale_bytes
                        for place, of_token in zip(places, of_tokens[j]):
                            if lane < config.tokens:
                                store_shared_float(to + place, of_token * of_weights[j])
                        cute.arch.sync_warp()
                        mbarrier_arrive(cta.scales_full + 8 * slot, select(lane == 0, 1, 0))
            count = count + piece.count
            unit = piece.next
            piece = piece_at(plan, config, cta.rank, unit)

    def arrive_behind_copies(self, bar: Int32, lane: Int32) -> None:
        """A warp: when the asynchronous copies that its lanes have issued are done."""
        copy_async_arrive(bar)
        cute.arch.sync_warp()
        mbarrier_arrive(bar, select(lane == 0, 1, 0))

    @cute.jit
    def announce(self, cta: Cta, slot: Int32, piece, i: Int32, lane: Int32):
        """A scale warp, with the first stage of a piece: what it is, for consumers with a ring of their own."""
        if const_expr(self.config.rings == 2):
            if (i == 0) & (lane == 0):
                write_piece(cta.scale_pieces + slot * PIECE_BYTES, piece)

    @cute.jit
    def consume(self, cta: Cta, plan, unit: Int32, operands: Operands, warp: Int32, lane: Int32, thread: Int32):
        """A consumer warpgroup: its rows of each tile, multiplied, scaled and added in registers, and stored."""
        config = self.config
        group = warp >> 2
        acc = cute.make_rmem_tensor((config.sums,), Float32)
        block_of_grid = cta.cluster * config.cluster + cta.rank
        group_thread = thread & (GROUP_THREADS - 1)
        partial = operands.partials + Int64(group * (config.partial_bytes // GROUPS) + group_thread * 16)
        slot, phase, done, turn = Int32(0), Int32(0), Int32(0), Int32(0)
        while unit < plan.end:
            for i in range_constexpr(config.sums):
                acc[i] = Float32(0.0)
            mbarrier_wait(cta.scales_full + 8 * slot, phase)
            piece = read_piece(cta.scale_pieces + slot * PIECE_BYTES)
            cut = (piece.first == 0) & (piece.count < plan.shape.k_blocks)
            if const_expr(not config.halves):
                if cut & (plan.share >= plan.shape.k_blocks):  # the rest was the next cluster's first piece: long done
                    self.collect(plan, piece, cta, operands.flags, partial, acc, group, group_thread)
            slot, phase = self.multiply_piece(cta, piece, operands, done, slot, phase, acc, warp, lane)
            done = done + piece.count
            if const_expr(config.halves):
                mine, turn = self.join(cta, piece, plan, turn, acc, warp, lane)
                if mine:
                    self.store(cta, piece, operands, acc, warp, lane)
                elif piece.next >= plan.end:
                    self.end_join(cta, turn, warp)
            elif piece.first > 0:  # another cluster writes the result
                to = partial + Int64(block_of_grid) * config.partial_bytes
                for i in range_constexpr(config.sums // 4):
                    used = self.is_used(piece, group, i)
                    store_relaxed_floats(to + i * (GROUP_THREADS * 16), [acc[4 * i + j] for j in BANKS], used)
                if const_expr(not config.polled):
                    warpgroup_barrier(group + 1)
                    if group_thread == 0:
                        store_release(operands.flags + Int64(block_of_grid * GROUPS + group) * 4, 1)
            else:
                if cut & (plan.share < plan.shape.k_blocks):  # the rest is multiplied at the same time
                    self.collect(plan, piece, cta, operands.flags, partial, acc, group, group_thread)
                self.store(cta, piece, operands, acc, warp, lane)
            unit = piece.next

    def is_used(self, piece, group: Int32, i: int) -> Int32:
        """1 if results 4 * i and on of a thread are of tokens that the tile has."""
        return select(i * 8 % self.config.tokens < piece.tokens, 1, 0)

    @cute.jit
    def multiply_piece(
        self, cta: Cta, piece, operands: Operands, done: Int32, slot: Int32, phase: Int32, acc, warp: Int32, lane: Int32
    ):  # fmt: skip
        """Multiply, scale and add a piece, after `done` stages of others. Returns the next slot, and its phase."""
        count, width = piece.count, piece.width
        for tokens in self.config.widths:
            if width == tokens:
                slot, phase = self.multiply(cta, tokens, count, done, slot, phase, acc, warp, lane)
        return slot, phase

    @cute.jit
    def multiply(
        self, cta: Cta, tokens: cutlass.Constexpr, count: Int32, done: Int32, slot: Int32, phase: Int32, acc,
        warp: Int32, lane: Int32,
    ):  # fmt: skip
        """Multiply, scale and add `count` stages of a tile with this many tokens, after `done` of others.

        Returns the next slot, and its phase.
        """
        config, group = self.config, warp >> 2
        weights = matrix_descriptor(cta.ring + group * (64 * BLOCK_K))
        first_tokens = matrix_descriptor(cta.ring + config.rows * BLOCK_K)
        of_scales = cta.scales + (lane & 3) * config.scale_row
        for _ in cutlass.range(count, unroll=1):
            mbarrier_wait(cta.full + 8 * slot, phase)
            stage = slot * (config.stage_bytes >> 4)
            scales = []
            for i in range_constexpr(tokens // 16):
                scales += load_shared_floats(of_scales + slot * config.scale_bytes + 16 * i)
            d = wgmma_fp8(tokens, uniform(weights + stage), uniform(first_tokens + stage))
            self.release(cta, slot, lane)
            for i in range_constexpr(tokens // 2):
                acc[i] = fma(d[i], scales[(i // 4 * 2 + i % 2) ^ 1], acc[i])  # SCALE_ORDER
            slot, phase = self.after(slot, phase)
        return slot, phase

    @cute.jit
    def collect(self, plan, piece, cta: Cta, flags: Int64, partial: Int64, acc, group: Int32, thread: Int32):
        """Add the sums of the clusters that have the rest of this tile, in their order."""
        config, size = self.config, cute.size(acc)
        first, clusters = cta.cluster + 1, plan.shape.clusters
        if const_expr(not config.polled):
            for other in cutlass.range(first + thread, clusters, GROUP_THREADS, unroll=1):
                if start_of(plan, other) < piece.end:
                    flag = flags + Int64((other * config.cluster + cta.rank) * GROUPS + group) * 4
                    while load_acquire(flag) == 0:
                        pause()
                    store_release(flag, 0)
            warpgroup_barrier(group + 1)
        together = 8 if size <= 16 else 4 if size <= 32 else 2 if size <= 64 else 1  # parts that are loaded at once,
        chunk = size if size <= 64 else size // 2  # so many sums of each
        found = cute.make_rmem_tensor((together * chunk,), Float32)
        other = first
        while start_of(plan, other) < piece.end:
            for base in range_constexpr(0, size, chunk):
                places = []
                for i in range_constexpr(together):
                    at = partial + Int64((other + i) * config.cluster + cta.rank) * config.partial_bytes
                    exists = select(start_of(plan, other + i) < piece.end, 1, 0)
                    for j in range_constexpr(base // 4, (base + chunk) // 4):
                        places.append((at + j * (GROUP_THREADS * 16), exists & self.is_used(piece, group, j)))
                missing = self.load_parts(places, found)
                if const_expr(config.polled):
                    while cute.arch.vote_any_sync(missing != 0):
                        pause()
                        missing = self.load_parts(places, found)
                    for i in range_constexpr(len(places)):
                        store_global_words(places[i][0], [Int32(EMPTY)] * 4, places[i][1])  # for the next launch
                for i in range_constexpr(together):
                    for j in range_constexpr(chunk):
                        acc[base + j] = acc[base + j] + found[i * chunk + j]
            other = other + together

    def load_parts(self, places: list[tuple[Int64, Int32]], found) -> Int32:
        """Four sums from each place, 0 where its condition is 0. Returns 1 if one of them is EMPTY, else 0."""
        missing = Int32(0)
        for i, place in enumerate(places):
            words = load_relaxed_words_if(*place)
            for j in range(4):
                found[4 * i + j] = as_float(words[BANKS[j]])
                missing = select(words[j] == EMPTY, 1, missing)
        return missing

    def after(self, slot: Int32, phase: Int32) -> tuple[Int32, Int32]:
        """The next slot of the ring, and its phase."""
        return next_of(self.config.depth, slot, phase)

    def after_scales(self, slot: Int32, phase: Int32) -> tuple[Int32, Int32]:
        """The same of the ring of scales."""
        return next_of(self.config.scale_depth, slot, phase)

    @cute.jit
    def release(self, cta: Cta, slot: Int32, lane: Int32):
        """This warp has read the slot: tell all that write to it."""
        cute.arch.sync_warp()
        bar = cta.empty + 8 * slot
        if const_expr(self.config.cluster == 1):
            mbarrier_arrive(bar, select(lane == 0, 1, 0))
        else:
            to = map_shared(bar, minimum(lane, self.config.cluster - 1))
            mbarrier_arrive_cluster(to, select(lane < self.config.cluster, 1, 0))

    @cute.jit
    def store(self, cta: Cta, piece, operands: Operands, acc, warp: Int32, lane: Int32):
        """Results [16 weight rows, tokens] of a warp, to out [tokens, weight rows] in bf16."""
        config = self.config
        chunk = min(CHUNK, config.tokens)
        scratch = cta.scratch + warp * config.scratch
        # A lane's row of an 8x8 matrix: a token's 8 weight rows; halves change places every 4 tokens, for the banks
        token = (lane & 7) + ((lane >> 4) << 3)
        write = scratch + token * 32 + ((((lane >> 3) ^ (token >> 2)) & 1) << 4)
        token = lane >> 1
        read = scratch + token * 32 + (((lane ^ (token >> 2)) & 1) << 4)
        first = piece.row + (warp >> 2) * 64 + (warp & 3) * 16 + (lane & 1) * 8
        to = operands.out + (Int64(piece.token + token) * Int64(operands.n) + Int64(first)) * 2
        n, tokens = operands.n, piece.tokens
        left = select(first < n, tokens - token, 0)
        for c in range_constexpr(config.tokens // chunk):
            if c * chunk < tokens:
                for j in range_constexpr(chunk // 16):
                    base = (c * chunk + j * 16) // 2
                    matrices = [pack_bfloat(acc[base + 2 * i], acc[base + 2 * i + 1]) for i in range(4)]
                    store_matrix(write + j * 512, matrices)
                cute.arch.sync_warp()
                for j in range_constexpr(chunk // 16):
                    x = load_shared_words(read + j * 512)
                    at = c * chunk + j * 16
                    store_global_words(to + Int64(at) * Int64(n) * 2, x, select(at < left, 1, 0))
                cute.arch.sync_warp()
