"""The frame of the GEMM kernels: shared memory, barriers, the roles of the warps, and programmatic dependent launch.

What a kernel does in each role is given to it: loads, scales, MMA and epilogue (ragged_moe/tuning/back_ends.py has the
table).

Barriers: ── who arrives ──► barrier ──► who waits. [n]: n of them, used in turn.

sm90, one ring (ragged_moe/kernels/sm90):

  TMA warp (bytes, of both CTAs of a cluster) ─┐
                                               ├─► full [stages] ──► consumers: 2 warpgroups, which issue wgmma
  scale warps ─────────────────────────────────┘                          │
        ▲                                                                 │
        └────────────────────── empty [stages] ◄──────────────────────────┘  every warp, in all CTAs of the cluster

sm100, two rings (ragged_moe/kernels/sm100):

  TMA warp (bytes), and warps that gather ──► full [stages] ──► MMA warp ── commit ──► acc_full [2] ──► consumers
        ▲                                                        │    ▲                                  │   │   ▲
        └────────── empty [stages] ◄────── commit ───────────────┘    └── acc_empty [2] ◄── every warp ──┘   │   │
                                                                                                             │   │
  scale warps ──► scales_full [scale_stages] ────────────────────────────────────────────────────────────────┼───┘
        ▲                                                                                                    │
        └────────── scales_empty [scale_stages] ◄────────────────── every warp ──────────────────────────────┘

Where weights in e2m1 become bf16 on sm100, there is one ring, too: consumers wait at `full`, put the weights into
tensor memory, where the MMA warps await them, and the commit releases the stage (sm100/fp4_tensor_memory.py).
With block scales the scale warps fill a part of each stage of `full`, and scales_full carries work tiles alone.

How often each is arrived at per phase follows from the roles: see `init_barriers`. Split-K adds two for each pair of
warps (split_k.py), a 2-CTA MMA all_read (sm100/tensor_memory.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from ragged_moe.kernels.config import (
    BARRIER_BYTES,
    CONSUMER_WARPS,
    GROUP_THREADS,
    GROUP_WARPS,
    MAX_EXPERTS,
    MAX_STAGES,
    MMA_WARP,
    SCALED_MMA_WARP,
    SPARE_SCALES,
    TAIL_WARP,
    TMA_WARP,
    WORK_TILE_BYTES,
    WORK_TILES_BYTES,
    Config,
)
from ragged_moe.kernels.context import Cta, TensorMaps, Warp
from ragged_moe.kernels.layouts import AccumulatorLayout
from ragged_moe.kernels.loads import Producer
from ragged_moe.kernels.mainloop import MainloopState
from ragged_moe.kernels.pipeline import PipelineState
from ragged_moe.kernels.ptx import (
    follow_previous_kernel,
    load_shared,
    mbarrier_init,
    mbarrier_wait,
    minimum,
    opaque,
    tensormap_address,
    tensormap_prefetch,
    uniform,
    wait_for_previous_kernel,
)
from ragged_moe.kernels.scales import first_warp
from ragged_moe.kernels.schedule import Plan, Scheduler, Shape, Tables, read_tile
from ragged_moe.kernels.split_k import SplitK
from ragged_moe.kernels.stream_k import StreamK

# Of a thread of consumers and of producers: twice the former and the latter are 3 * 168, what the launch gives. With
# e2m1 weights on a B200 a producer holds the scales of a stage and the next tile's rows, or addresses of operand A: by
# 40 ptxas would spill, and so await them. With a tail these, and its own, are 4 * 128.
REGISTERS, FP4_REGISTERS, WITH_TAIL_REGISTERS, TAIL_REGISTERS = (232, 40), (216, 72), (216, 32), 48


class GroupedGemm:
    """A kernel under one config, composed of its roles.

    arguments: unpacks the host's words. loads: issues a stage's TMA copies. scales: fills a stage's scales, and, where
    tokens are gathered, its tokens. mainloops: multiply (sm90), scale and add a work tile's k-blocks in the
    consumers' registers; epilogues: store its results; both of each of Config.loops. issue: the MMA warps, which have
    tensor memory (sm100).
    """

    def __init__(self, config: Config, arguments, loads, scales, mainloops, epilogues, issue=None):
        self.config, self.arguments, self.words = config, arguments, arguments.WORDS
        self.loads, self.scales, self.issue = loads, scales, issue
        # Of the TMA warp, which expects the bytes, and of warps that bring tokens or, into the same ring, scales
        self.full_arrivals = 1 + (scales.token_arrivals if config.scale_ring else scales.scale_arrivals)
        self.mma_warp = SCALED_MMA_WARP if config.block_scaled else MMA_WARP
        fp4 = issue and (config.block_scaled or config.fp4_tokens)
        self.registers = FP4_REGISTERS if fp4 else WITH_TAIL_REGISTERS if config.tail else REGISTERS
        self.scheduler, self.producer = Scheduler(config), Producer(config, loads, self.full_arrivals)
        self.split_k = SplitK(config, AccumulatorLayout(config)) if config.split_k == 2 else None
        self.tail = mainloops[-1] if config.tail else None
        self.loops = [TileLoop(*x, self.split_k) for x in zip(config.loops, mainloops, epilogues)]
        assert (issue is not None) == (config.arch == "sm100")

    def init_barriers(self, cta: Cta) -> None:
        """One thread initialises the barriers with how often they are arrived at per phase."""
        config = self.config
        all_consumers = (CONSUMER_WARPS + (config.tail > 0)) * config.cluster  # of all CTAs that write to a stage
        for i in range(config.stages):
            mbarrier_init(cta.full + 8 * i, self.full_arrivals)
            mbarrier_init(cta.empty + 8 * i, self.issue.warps if self.issue else all_consumers)  # commits, or warps
        if config.scale_ring:
            for i in range(config.scale_stages):
                mbarrier_init(cta.scales_full + 8 * i, self.scales.scale_arrivals)
                mbarrier_init(cta.scales_empty + 8 * i, CONSUMER_WARPS)
        if self.issue:
            self.issue.tmem.init_barriers(cta)
        for more in (self.split_k, self.tail):
            if more:
                more.init_barriers(cta)

    @cute.jit
    def __call__(self, host: cute.Pointer):
        """Encode the tensormaps and launch the kernel as a dependent launch."""
        words = cute.make_tensor(host, cute.make_layout(self.words))
        grid, stream, *arguments = self.arguments.unpack(words)
        self.kernel(*arguments).launch(
            grid=(grid, 1, 1),
            block=(GROUP_THREADS * (self.config.groups + 1), 1, 1),
            cluster=(self.config.launch_cluster, 1, 1),
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
        if const_expr(config.tail):  # as the ring's address below
            block = uniform(block)
        # The rest of a tile whose K is shared is a later share's. GPUs start CTAs in the order of their numbers: given
        # to an earlier one it is under way, and will end, also where other kernels leave no room for all CTAs at once.
        rank, cluster = block % config.schedule_ctas, (grid - 1 - block) // config.schedule_ctas
        tokens_map = tensormap_address(tensormaps[0])  # kernel parameters lie side by side: 128 bytes each
        maps = TensorMaps(tokens_map, tokens_map + 128 * len(config.boxes))

        # Shared memory: ring | scratch of the epilogue | split-K's sums | scales | tables | barriers | tiles | order
        # By a shuffle, whose value ptxas cannot tell: else it makes it anew in loops, by S2UR, which is waited for
        ring = uniform(cute.arch.get_dyn_smem(cutlass.Int8, 1024).toint())
        scratch = ring + config.stages * config.stage_bytes
        split_k = scratch + CONSUMER_WARPS * config.scratch_bytes
        scales = split_k + config.split_k_bytes
        table = scales + config.scale_stages * config.scale_bytes
        offsets = table + 4 * (MAX_EXPERTS + 1)
        data_parallel = offsets + 4 * (MAX_EXPERTS + 1)
        full = data_parallel + 8
        empty = full + BARRIER_BYTES // 2
        mma = full + BARRIER_BYTES
        tiles = mma + config.mma_barrier_bytes
        rings, order = (full, empty, tiles), tiles + WORK_TILES_BYTES
        if const_expr(config.scale_ring):
            scales_full = tiles + WORK_TILES_BYTES
            scales_empty = scales_full + 8 * (MAX_STAGES + SPARE_SCALES)
            rings = scales_full, scales_empty, scales_empty + 8 * (MAX_STAGES + SPARE_SCALES)
        cta = Cta(rank, cluster, split_k, ring, scales, scratch, full, empty, mma, tiles, *rings)

        if warp == TMA_WARP:
            with cute.arch.elect_one():
                for i in range_constexpr(len(tensormaps)):
                    tensormap_prefetch(tokens_map + 128 * i)
                self.init_barriers(cta)
                cute.arch.mbarrier_init_fence()
        if const_expr(self.issue is not None):
            if warp == self.mma_warp:
                self.issue.tmem.alloc(cta)
        if const_expr(config.schedule_ctas > 1):
            cute.arch.cluster_arrive_relaxed()

        # The schedule and the first work tile, from what m_indptr has while the previous kernel ends, so that loads
        # begin as soon as it has; if that changes until then, once more
        if const_expr(not config.early_schedule):
            wait_for_previous_kernel()
        n_tiles = (operands.n + (config.block_n - 1)) // config.block_n
        shape = Shape(operands.n, k_blocks, n_tiles, experts, search, grid // config.schedule_ctas)
        place = Tables(table, offsets, data_parallel, order), rank, cluster, warp, lane, thread
        plan, iteration, tile = self.scheduler(m_indptr, shape, operands.total_m, *place)
        if const_expr(config.prefetch > 0):
            if (warp == TMA_WARP) & (iteration < plan.end):
                with cute.arch.elect_one():
                    self.loads.weights.prefetch(tile, maps.weights)
        if const_expr(config.schedule_ctas > 1):
            cute.arch.cluster_wait()
        follow_previous_kernel()
        early = Int32(0)  # stages of the first tile that are loaded before it is known to be right
        if const_expr(config.early_loads):
            if (warp == TMA_WARP) & (iteration < plan.end):
                early = minimum(tile.k_count, config.stages // config.burst * config.burst)
                self.producer.load_early(cta, tile, early, maps)
        if const_expr(config.early_schedule):
            if self.scheduler.has_changed(m_indptr, offsets, experts, lane):  # every warp sees the same
                if const_expr(config.early_loads):
                    if warp == TMA_WARP:
                        self.producer.take_back(cta, early)
                        early = Int32(0)
                cute.arch.sync_threads()
                plan, iteration, tile = self.scheduler(m_indptr, shape, operands.total_m, *place)

        of_warp = Warp(cta, operands, warp, lane, thread)
        of_consumer, of_producer = self.registers
        if warp >= TMA_WARP:
            cute.arch.setmaxregister_decrease(of_producer)
            if warp == TMA_WARP:
                self.producer(cta, plan, iteration, tile, early, maps)
            elif const_expr(config.block_scaled is not None):
                if warp == self.mma_warp:
                    self.issue(cta, plan, iteration, warp)
                else:
                    self.scales(of_warp, plan, iteration, tile)
            elif const_expr(config.tail > 0):
                if warp >= TAIL_WARP:
                    cute.arch.setmaxregister_increase(TAIL_REGISTERS)
                    self.tail(of_warp._replace(number=warp - GROUP_WARPS), plan)
                elif warp >= first_warp(self.scales.warps):
                    self.scales(of_warp, plan, iteration, tile)
            elif warp >= first_warp(self.scales.warps):
                self.scales(of_warp, plan, iteration, tile)
            elif const_expr(self.issue is not None):
                if warp < MMA_WARP + self.issue.warps:
                    self.issue(cta, plan, iteration, warp)
        else:
            cute.arch.setmaxregister_increase(of_consumer)
            self.consume(of_warp, plan, iteration)
        if const_expr(self.issue is not None):
            self.issue.tmem.dealloc(cta, warp, self.mma_warp)

    @cute.jit
    def consume(self, warp: Warp, plan: Plan, iteration: Int32):
        """A consumer warpgroup: its part of each work tile, multiplied, scaled and added in registers, and stored."""
        state, turn = MainloopState(PipelineState(Int32(0), Int32(0)), Int32(0)), Int32(0)
        if const_expr(len(self.loops) == 2):
            end = minimum(load_shared(plan.tables.data_parallel + 4) * plan.shape.k_blocks, plan.end)
            iteration, state, turn = self.loops[0](warp, plan, iteration, end, state, turn)
        self.loops[-1](warp, plan, iteration, plan.end, state, turn)


class TileLoop:
    """A loop of the consumers over work tiles. config: what it is compiled for, of Config.loops."""

    def __init__(self, config: Config, mainloop, epilogue, split_k: SplitK | None):
        self.config, self.mainloop, self.epilogue, self.split_k = config, mainloop, epilogue, split_k
        self.stream_k = StreamK(config, AccumulatorLayout(config))

    @cute.jit
    def __call__(self, warp: Warp, plan: Plan, iteration: Int32, end: Int32, state: MainloopState, turn: Int32):
        """Do the work tiles up to the iteration `end`. turn: of split-K. Returns (iteration, state, turn) behind it."""
        config, cta = self.config, warp.cta
        acc = cute.make_rmem_tensor((config.accumulators,), Float32)
        partials = self.stream_k.partials_of(warp)
        while iteration < end:
            for i in range_constexpr(config.accumulators):
                acc[i] = Float32(0.0)
            mbarrier_wait(cta.scales_full + 8 * state.stage.index, state.stage.phase)
            tile = read_tile(cta.scale_tiles + state.stage.index * WORK_TILE_BYTES)
            begun = self.epilogue.begin(warp, tile) if const_expr(hasattr(self.epilogue, "begin")) else ()
            shared = (tile.k_first == 0) & (tile.k_count < plan.shape.k_blocks)  # its K, and this CTA writes the result
            if const_expr(self.split_k is None):
                if shared & (plan.share >= plan.shape.k_blocks):  # the rest was the next cluster's first: long done
                    self.stream_k.collect(warp, plan, tile, partials, acc)
            state = self.mainloop(warp, tile, state, acc)
            of_tile = Int32(1) if const_expr(config.block_scaled is not None) else tile.k_count
            state = state._replace(done=state.done + of_tile)
            if const_expr(self.split_k is not None):
                mine, turn = self.split_k.join(warp, plan, tile, turn, acc)
                if mine:
                    self.epilogue(warp, tile, acc)
                elif tile.next >= plan.end:
                    self.split_k.drain(warp, turn)
            elif tile.k_first > 0:  # another cluster writes the result
                self.stream_k.give(warp, tile, partials, acc)
            else:
                if shared & (plan.share < plan.shape.k_blocks):  # the rest is multiplied at the same time
                    self.stream_k.collect(warp, plan, tile, partials, acc)
                if const_expr(config.tail):  # its registers do not hold the epilogue's addresses over the loop
                    warp = warp._replace(lane=opaque(warp.lane))
                self.epilogue(warp, tile, acc, *begun)
            iteration = tile.next
        return iteration, state, turn
