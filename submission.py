#!POPCORN leaderboard nvfp4_group_gemm
#!POPCORN gpu B200

"""NVFP4 group GEMM for NVIDIA B200 (sm_100a) in CuTe DSL: C[g] = A[g] @ B[g].T, one launch for all groups.

The weights B [N, K] are the M side of the tensor core instruction and the tokens A [M, K] its N side, which is a register: every
weight byte is read once, and one compiled kernel serves all M, N and K. Each CTA (or pair of CTAs sharing one 256-row MMA) walks a
contiguous range of weight rows from a table that the host balances, through a ring of shared memory stages:

    weight warp, token warp --TMA--> ring [weights | tokens | their scales] --MMA warp--> tensor memory --epilogue warps--> C

The file reads top-down: config, PTX, schedule, kernel, host.
"""

import ctypes
import functools
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as nvgpu_ir
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_ptr

from task import input_t, output_t

# ---------------------------------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one kernel. Every entry gives the same results; they differ in time."""

    ctas: int = 1  # CTAs per MMA: 1 (128 weight rows) or 2 (a pair shares 256 rows and splits the tokens)
    gran: int = 128  # weight rows per CTA that a boundary of the schedule snaps to: 128, or 32 (shifted scale columns)
    token_box: int = 32  # token rows per TMA box; a tile holds a multiple of ctas * token_box tokens
    stages: int = 0  # ring depth; 0 = as many as the shared memory holds
    sms: int = 148  # SMs of a B200: CTAs of the persistent grid


DEFAULT = Config()

# (M of each group, N, K) of a benchmark case -> its Config; every other problem runs on DEFAULT.
CONFIG_MAP: dict[tuple[tuple[int, ...], int, int], Config] = {
    ((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168): Config(),
    ((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048): Config(),
    ((192, 320), 3072, 4096): Config(),
    ((128, 384), 4096, 1536): Config(),
}

TILE_M = 128  # weight rows per CTA and tile: lanes of tensor memory
TILE_K = 256  # K per ring stage: one 128-byte swizzle row of FP4, 4 MMAs
MMA_K = 64  # K per MMA and per scale factor atom
SF_ATOM = 512  # bytes of scale factors for 128 rows x 64 K: [32 rows, 4 row blocks, 4 K blocks]
SF_BYTES = SF_ATOM * TILE_K // MMA_K  # scale factors of 128 rows per stage, contiguous in global memory
SMEM_BYTES = 227 * 1024  # dynamic shared memory of one CTA
SMEM_HEADER = 1024  # barriers and the tensor memory address
MAX_STAGES = 16
TMEM_COLS = 512
TMEM_SFW = 448  # first column of the weights' scales: 4 K steps x 8 columns (two 128-row atoms)
TMEM_SFT = 480  # the same for the tokens' scales; accumulators live below TMEM_SFW
MAX_GROUPS = 16  # groups per launch: 16 x 4 tensormaps and the table stay far below the 32764 bytes of parameters

# Warp roles: warps 0-3 are the epilogue (one quarter of the tensor memory lanes each).
MMA_WARP, WEIGHT_WARP, TOKEN_WARP = 4, 5, 6
THREADS = 32 * 7

# ------------------------------------------------------------------------------------------------------------------- PTX
# One function an instruction; sections are those of the PTX ISA 9.1. Shared addresses are 32-bit, descriptors 64-bit.


def ptx(text: str, constraints: str, *operands, result=None):
    """Inline PTX with `operands` (DSL integers) in $0.. order after the result of MLIR type `result`, if any."""
    values = [x.ir_value() for x in operands]
    return llvm.inline_asm(
        result, values, text, constraints, has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT
    )


def select(condition, x, y) -> Int32:
    """x if condition else y, as an instruction: helpers of a kernel cannot branch."""
    return Int32(arith.select(condition.ir_value(), Int32(x).ir_value(), Int32(y).ir_value()))


def minimum(x, y) -> Int32:
    return select(Int32(x) < Int32(y), x, y)


def load_param(address: Int64) -> Int32:
    """ld.param (9.7.9.8) from a generic address inside the kernel parameters."""
    text = "{ .reg .b64 p; cvta.to.param.u64 p, $1; ld.param.b32 $0, [p]; }"
    return Int32(ptx(text, "=r,l", address, result=ir.IntegerType.get_signless(32)))


def load_param64(address: Int64) -> Int64:
    """ld.param (9.7.9.8), 64-bit."""
    text = "{ .reg .b64 p; cvta.to.param.u64 p, $1; ld.param.b64 $0, [p]; }"
    return Int64(ptx(text, "=l,l", address, result=ir.IntegerType.get_signless(64)))


def load_shared(address: Int32) -> Int32:
    """ld.shared (9.7.9.8)."""
    return Int32(ptx("ld.shared.b32 $0, [$1];", "=r,r", address, result=ir.IntegerType.get_signless(32)))


def map_shared(address: Int32, rank: int) -> Int32:
    """mapa (9.7.9.24): the shared::cluster address of `address` in CTA `rank`."""
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return Int32(ptx(text, "=r,r,r", address, Int32(rank), result=ir.IntegerType.get_signless(32)))


def mbarrier_init(bar: Int32, count: int) -> None:
    """mbarrier.init (9.7.13.15.9)."""
    ptx("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", bar, Int32(count))


def mbarrier_fence_init() -> None:
    """fence.mbarrier_init (9.7.13.4): makes the inits visible to the cluster and the async proxy."""
    ptx("fence.mbarrier_init.release.cluster;", "")


def mbarrier_expect(bar: Int32, size: Int32) -> None:
    """mbarrier.arrive.expect_tx (9.7.13.15.13): one arrival that awaits `size` more bytes."""
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r", bar, size)


def mbarrier_arrive(bar: Int32) -> None:
    """mbarrier.arrive (9.7.13.15.13) at a shared::cluster address."""
    ptx("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", "r", bar)


def mbarrier_wait(bar: Int32, parity: Int32) -> None:
    """mbarrier.try_wait (9.7.13.15.16) until the phase of this parity has completed; a fresh barrier passes parity 1."""
    text = """{ .reg .pred p;
        WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$0], $1;
        @p bra DONE;
        bra WAIT;
        DONE: }"""
    ptx(text, "r,r", bar, parity)


def tensormap_prefetch(desc: Int64) -> None:
    """prefetch.tensormap (9.7.9.15)."""
    ptx("prefetch.tensormap [$0];", "l", desc)


def tma_load(ctas: int, dst: Int32, desc: Int64, x, y, bar: Int32) -> None:
    """cp.async.bulk.tensor (9.7.9.25.5.2): box at element x of row y; `bar` may be in the leader of the pair."""
    text = (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f".cta_group::{ctas} [$0], [$1, {{$2, $3}}], [$4];"
    )
    ptx(text, "r,l,r,r,r", dst, desc, Int32(x), Int32(y), bar)


def tmem_alloc(ctas: int, dst: Int32) -> None:
    """tcgen05.alloc (9.7.16.7.1) of all columns; the address goes to shared memory at dst."""
    ptx(f"tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32 [$0], $1;", "r,r", dst, Int32(TMEM_COLS))
    ptx(f"tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned;", "")


def tmem_dealloc(ctas: int, tmem: Int32) -> None:
    """tcgen05.dealloc (9.7.16.7.1)."""
    ptx(f"tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32 $0, $1;", "r,r", tmem, Int32(TMEM_COLS))


def tmem_copy_scales(ctas: int, dst: Int32, desc: Int64) -> None:
    """tcgen05.cp (9.7.16.9): one 512-byte scale factor atom to 4 columns, in all four lane quarters."""
    ptx(f"tcgen05.cp.cta_group::{ctas}.32x128b.warpx4 [$0], $1;", "r,l", dst, desc)


def mma(ctas: int, d: Int32, a: Int64, b: Int64, idesc: Int32, sfa: Int32, sfb: Int32, accumulate: Int32) -> None:
    """tcgen05.mma.block_scale (9.7.16.10.9): D (+)= (A * SFA) @ (B * SFB).T for 64 of K, one scale per 16."""
    text = f"""{{ .reg .pred p; setp.ne.b32 p, $6, 0;
        tcgen05.mma.cta_group::{ctas}.kind::mxf4nvf4.block_scale.block16 [$0], $1, $2, $3, [$4], [$5], p; }}"""
    ptx(text, "r,l,l,r,r,r,r", d, a, b, idesc, sfa, sfb, accumulate)


def mma_commit(ctas: int, bar: Int32) -> None:
    """tcgen05.commit (9.7.16.11.1): arrive, in every CTA of the pair, when all tcgen05 work issued so far is done."""
    if ctas == 1:
        ptx("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$0];", "r", bar)
    else:
        text = "{ .reg .b16 m; mov.b16 m, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
        ptx(text + ".multicast::cluster.b64 [$0], m; }", "r", bar)


def tmem_load(tmem: Int32) -> list[Int32]:
    """tcgen05.ld.32x32b.x32 (9.7.16.8.1) and its wait: 32 columns of this thread's lane."""
    i32 = ir.IntegerType.get_signless(32)
    registers = ", ".join(f"${i}" for i in range(32))
    text = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{registers}}}, [$32]; tcgen05.wait::ld.sync.aligned;"
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * 32)})>")
    out = ptx(text, ",".join(["=r"] * 32) + ",r", tmem, result=struct)
    return [Int32(llvm.extractvalue(i32, out, ir.DenseI64ArrayAttr.get([i]))) for i in range(32)]


def tcgen05_fence_before() -> None:
    """tcgen05.fence::before_thread_sync (9.7.16.11.2)."""
    ptx("tcgen05.fence::before_thread_sync;", "")


def tcgen05_fence_after() -> None:
    """tcgen05.fence::after_thread_sync (9.7.16.11.2)."""
    ptx("tcgen05.fence::after_thread_sync;", "")


def store_half(address: Int64, x: Int32, valid) -> None:
    """st.global (9.7.9.11) of the f32 bits x as fp16, if valid."""
    text = """{ .reg .pred p; .reg .b16 h; setp.ne.b32 p, $2, 0;
        cvt.rn.f16.f32 h, $1; @p st.global.L1::no_allocate.b16 [$0], h; }"""
    ptx(text, "l,r,r", address, x, select(valid, 1, 0))


def smem_descriptor(swizzle: int, row_group: int) -> int:
    """Shared memory matrix descriptor (9.7.16.4.1) without its address: version 1, bytes between 8-row groups."""
    return swizzle << 61 | 1 << 46 | (row_group >> 4) << 32


K_MAJOR_SW128 = smem_descriptor(swizzle=2, row_group=1024)
SCALE_ATOM = smem_descriptor(swizzle=0, row_group=128)


def instruction_descriptor(ctas: int, n: Int32) -> Int32:
    """Instruction descriptor of kind::mxf4nvf4 (9.7.16.4.2): E2M1 x E2M1, UE4M3 scales, M = 128 * ctas, N = n."""
    return Int32((TILE_M * ctas >> 4) << 24 | 1 << 7 | 1 << 10) | (n >> 3) << 17


# -------------------------------------------------------------------------------------------------------------- schedule


def round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def token_tile(m: int, config: Config) -> int:
    """Tokens per tile of a group of m: all of them up to 256, else tiles that reach into at most two 128-row scale atoms."""
    width = m if m <= 256 else 160 if m <= 320 else 192 if m <= 384 else 256
    return round_up(width, config.ctas * config.token_box)


def rows_per_cta(n: int, ctas: int) -> int:
    """Weight rows of each CTA: a pair alternates 128-row blocks, so that both CTAs see the same scale columns."""
    return n if ctas == 1 else n // 256 * 128 + min(n % 256, 128)


def pack_position(group: int, token: int, row: int) -> int:
    """A place in the schedule's order (group, token tile, weight row) as one integer of the same order."""
    return group << 48 | token << 24 | row


def partition(segments: list[tuple[int, int, int, int]], parts: int, gran: int) -> list[tuple[int, int]]:
    """Cut the rows of all segments into at most `parts` contiguous ranges, the costliest as cheap as possible.

    A segment (position, rows, tokens, k) is one token tile against all weight rows of its group. A range covers it in tiles of
    up to 128 rows, each of which loads its rows and the tokens again: (rows + tokens) * k. Returns the start of each range.
    """

    def ranges(limit: int) -> list[int]:
        starts, s, row = [], 0, 0
        while s < len(segments):
            position, rows, tokens, k = segments[s]
            starts.append(position + row)
            budget = limit
            while s < len(segments):
                position, rows, tokens, k = segments[s]
                full = min(budget // ((TILE_M + tokens) * k), (rows - row) // TILE_M)
                budget -= full * (TILE_M + tokens) * k
                row += full * TILE_M
                part = min(rows - row, TILE_M, max(0, budget // k - tokens))
                if part < rows - row:
                    row += part // gran * gran
                    break
                budget -= (part + tokens) * k if part else 0
                s, row = s + 1, 0
        return starts

    low = max((min(gran, rows) + tokens) * k for _, rows, tokens, k in segments)
    high = sum(-(-rows // TILE_M) * (TILE_M + tokens) * k for _, rows, tokens, k in segments)
    while low < high:
        middle = (low + high) // 2
        if len(ranges(middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    return ranges(low)


# ------------------------------------------------------------------------------------------------------------ tensormaps


def fp4_tensormap(address: Int64, rows: Int32, k: Int32, box_rows: int):
    """Tensormap of a row-major [rows, k] FP4 matrix: boxes of box_rows x 256, 128-byte swizzled, zero out of bounds."""
    pointer = cute.make_ptr(cutlass.Float4E2M1FN, address, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(pointer, cute.make_layout((rows, k), stride=(cute.assume(k, 32), 1)))
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, cutlass.Float4E2M1FN)
    return tensormap(tensor, cute.tile_to_shape(atom, (box_rows, TILE_K), (0, 1)), (box_rows, TILE_K))


def scale_tensormap(address: Int64, rows: Int32, k: Int32):
    """Tensormap of scale factors [ceil(rows / 128), ceil(k / 64)] atoms as 64-bit words: boxes of 4 atoms of one row block."""
    blocks, words = (rows + 127) // 128, (k + MMA_K - 1) // MMA_K * (SF_ATOM // 8)
    pointer = cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(pointer, cute.make_layout((blocks, words), stride=(cute.assume(words, 2), 1)))
    return tensormap(tensor, cute.make_layout((1, SF_BYTES // 8), stride=(SF_BYTES // 8, 1)), (1, SF_BYTES // 8))


def tensormap(tensor: cute.Tensor, smem_layout, box: tuple[int, int]):
    op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    return cpasync.make_tiled_tma_atom(op, tensor, smem_layout, box)[0]


def tensormap_address(atom) -> Int64:
    """Generic address of a tensormap that is a kernel parameter."""
    desc_type = nvgpu_ir.TmaDescriptorTiledType.get()
    pointer = cute_ir.PtrType.get(desc_type, cute.AddressSpace.generic, 64)
    return Int64(nvgpu_ir.get_tma_desc_addr(pointer, nvgpu_ir.atom_make_exec_tma(atom._trait.value)).toint())


# ---------------------------------------------------------------------------------------------------------------- kernel


class Words:
    """Array of 64-bit words as one by-value kernel parameter: an MLIR value of type !llvm.array<n x i64>."""

    def __init__(self, value):
        self.value = value

    def __extract_mlir_values__(self):
        return [self.value]

    def __new_from_mlir_values__(self, values):
        return Words(values[0])

    @staticmethod
    def load(pointer: cute.Pointer, count: int) -> "Words":
        address = llvm.inttoptr(ir.Type.parse("!llvm.ptr"), pointer.toint().ir_value())
        return Words(llvm.load(ir.Type.parse(f"!llvm.array<{count} x i64>"), address))


class GroupGemm:
    """The kernel for up to `groups` groups under one config. M, N, K, addresses and the schedule are run-time data.

    Host array, one 64-bit word each, which is also the kernel's last parameter:
      POINTERS  5 a group: A, B, C, SFA, SFB
      SIZES     2 a group: M | N << 32, K | token tile << 32
      SCALARS   CTAs in the grid, shared memory bytes, stages, bytes of tokens per stage
      STARTS    first position of each CTA (or pair), and the end
    """

    def __init__(self, groups: int, config: Config):
        self.groups, self.config, self.ctas = groups, config, config.ctas
        self.sizes = 5 * groups
        self.scalars = self.sizes + 2 * groups
        self.starts = self.scalars + 4
        self.words = self.starts + config.sms // config.ctas + 1

    # host: tensormaps of every group, passed by value

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(self.words))
        weights, tokens, weight_scales, token_scales = [], [], [], []
        for g in range_constexpr(self.groups):
            mn, kt = words[self.sizes + 2 * g], words[self.sizes + 2 * g + 1]
            m, n, k = Int32(mn), Int32(mn >> 32), Int32(kt)
            tokens.append(fp4_tensormap(words[5 * g], m, k, self.config.token_box))
            weights.append(fp4_tensormap(words[5 * g + 1], n, k, self.config.gran))
            token_scales.append(scale_tensormap(words[5 * g + 3], m, k))
            weight_scales.append(scale_tensormap(words[5 * g + 4], n, k))
        self.kernel(tuple(weights + tokens + weight_scales + token_scales), Words.load(host, self.words)).launch(
            grid=(Int32(words[self.scalars]), 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.ctas, 1, 1),
            smem=Int32(words[self.scalars + 1]),
        )

    # device: addresses of parameters, and the tile at a position

    def descriptor(self, params: Int64, operand: int, g: Int32) -> Int64:
        """Tensormap of group g; the parameters are contiguous: [operand, group] tensormaps of 128 bytes, then the words."""
        return params + Int64((operand * self.groups + g) * 128)

    def word(self, params: Int64, index) -> Int64:
        return params + Int64(4 * self.groups * 128 + Int32(index) * 8)

    def tile(self, params: Int64, position: Int64, end: Int64):
        """(group, token, tokens, row, rows, k, next position) of the tile at `position` of a range that stops at `end`."""
        g = Int32(position >> 48)
        token = Int32(position >> 24) & 0xFFFFFF
        row = Int32(position) & 0xFFFFFF
        size = self.word(params, self.sizes + 2 * g)
        m, n = load_param(size), load_param(size + 4)
        k, width = load_param(size + 8), load_param(size + 12)
        limit = n if self.ctas == 1 else (n >> 8 << 7) + minimum(n & 255, 128)
        limit = select((position >> 24) == (end >> 24), Int32(end) & 0xFFFFFF, limit)
        rows = minimum(limit - row, TILE_M)
        box = self.ctas * self.config.token_box
        tokens = (minimum(width, m - token) + box - 1) // box * box
        more_rows = row + rows < limit
        next_token = select(token + width < m, token + width, 0)
        next_group = g + select(token + width < m, 0, 1)
        following = Int64(select(more_rows, g, next_group)) << 48
        following = following | Int64(select(more_rows, token, next_token)) << 24
        following = following | Int64(select(more_rows, row + rows, 0))
        return g, token, tokens, row, rows, k, following

    def weight_row(self, row: Int32, rank: Int32) -> Int32:
        """Row of B for row `row` of CTA `rank`."""
        return row if self.ctas == 1 else 2 * row - (row & 127) + 128 * rank

    @cute.kernel
    def kernel(self, tensormaps: tuple, words: Words):
        ctas, gran, box = self.ctas, self.config.gran, self.config.token_box
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        block, _, _ = cute.arch.block_idx()
        rank = block % ctas if const_expr(ctas > 1) else Int32(0)
        params = tensormap_address(tensormaps[0])

        stages = load_param(self.word(params, self.scalars + 2))
        token_bytes = load_param(self.word(params, self.scalars + 3))
        start = self.word(params, Int32(self.starts) + block // ctas)
        position, end = load_param64(start), load_param64(start + 8)

        # Shared memory: header | stages x [weights | tokens | weight scales | token scales]
        sfw_bytes = SF_BYTES if gran == TILE_M else 2 * SF_BYTES
        sft_bytes = 2 * SF_BYTES
        tokens_at = TILE_M * TILE_K // 2
        sfw_at = tokens_at + token_bytes
        sft_at = sfw_at + sfw_bytes
        stage_bytes = sft_at + sft_bytes
        smem = cute.arch.get_dyn_smem(cutlass.Int8, SMEM_HEADER).toint()
        ring = smem + SMEM_HEADER
        full, empty = smem, smem + 8 * MAX_STAGES
        acc_full, acc_empty, tmem_slot = smem + 16 * MAX_STAGES, smem + 16 * MAX_STAGES + 16, smem + 16 * MAX_STAGES + 32
        leader = map_shared(smem, 0) if const_expr(ctas > 1) else smem

        # Prologue: barriers, tensor memory
        if warp == 0:
            with cute.arch.elect_one():
                for i in range(stages):
                    mbarrier_init(full + 8 * i, 2)  # the weight and the token warp
                    mbarrier_init(empty + 8 * i, 1)  # the MMA's commit
                for i in range_constexpr(2):
                    mbarrier_init(acc_full + 8 * i, 1)
                    mbarrier_init(acc_empty + 8 * i, 4 * ctas)  # epilogue warps
                mbarrier_fence_init()
        if warp == MMA_WARP:
            tmem_alloc(ctas, tmem_slot)
            tcgen05_fence_before()
        if const_expr(ctas > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        tcgen05_fence_after()
        tmem = load_shared(tmem_slot)

        # Weight warp: B and its scales into the ring
        if warp == WEIGHT_WARP:
            with cute.arch.elect_one():
                at, slot, phase = position, Int32(0), Int32(1)
                while at < end:
                    g, token, tokens, row, rows, k, at = self.tile(params, at, end)
                    data, scales = self.descriptor(params, 0, g), self.descriptor(params, 2, g)
                    atoms = ((row & 127) + rows + 127) >> 7
                    boxes = (rows + gran - 1) // gran
                    size = ctas * (boxes * (gran * TILE_K // 2) + atoms * SF_BYTES)
                    for step in range((k + TILE_K - 1) // TILE_K):
                        stage = ring + slot * stage_bytes
                        bar = leader + 8 * slot
                        mbarrier_wait(empty + 8 * slot, phase)
                        if rank == 0:
                            mbarrier_expect(full + 8 * slot, size)
                        for i in range(boxes):
                            y = self.weight_row(row + i * gran, rank)
                            tma_load(ctas, stage + i * (gran * TILE_K // 2), data, step * TILE_K, y, bar)
                        for i in range(atoms):
                            y = self.weight_row((row & -128) + i * 128, rank) >> 7
                            tma_load(ctas, stage + sfw_at + i * SF_BYTES, scales, step * (SF_BYTES // 8), y, bar)
                        slot = slot + 1
                        phase = select(slot == stages, phase ^ 1, phase)
                        slot = select(slot == stages, 0, slot)

        # Token warp: A and its scales into the ring
        if warp == TOKEN_WARP:
            with cute.arch.elect_one():
                at, slot, phase = position, Int32(0), Int32(1)
                while at < end:
                    g, token, tokens, row, rows, k, at = self.tile(params, at, end)
                    data, scales = self.descriptor(params, 1, g), self.descriptor(params, 3, g)
                    atoms = ((token & 127) + tokens + 127) >> 7
                    boxes = tokens // (ctas * box)
                    size = ctas * (boxes * (box * TILE_K // 2) + atoms * SF_BYTES)
                    first = token + rank * (tokens // ctas)
                    for step in range((k + TILE_K - 1) // TILE_K):
                        stage = ring + slot * stage_bytes
                        bar = leader + 8 * slot
                        mbarrier_wait(empty + 8 * slot, phase)
                        if rank == 0:
                            mbarrier_expect(full + 8 * slot, size)
                        for i in range(boxes):
                            to = stage + tokens_at + i * (box * TILE_K // 2)
                            tma_load(ctas, to, data, step * TILE_K, first + i * box, bar)
                        for i in range(atoms):
                            to = stage + sft_at + i * SF_BYTES
                            tma_load(ctas, to, scales, step * (SF_BYTES // 8), (token >> 7) + i, bar)
                        slot = slot + 1
                        phase = select(slot == stages, phase ^ 1, phase)
                        slot = select(slot == stages, 0, slot)

        # MMA warp (of the leader): scales to tensor memory, weights x tokens into alternating accumulators
        if warp == MMA_WARP and rank == 0:
            with cute.arch.elect_one():
                at, slot, phase = position, Int32(0), Int32(0)
                buffer, acc_phase, previous = Int32(0), Int32(1), Int32(0)
                while at < end:
                    g, token, tokens, row, rows, k, at = self.tile(params, at, end)
                    idesc = instruction_descriptor(ctas, tokens)
                    acc = tmem + buffer * (TMEM_SFW - tokens)  # even tiles from column 0 up, odd ones up to the scales
                    sfw = tmem + TMEM_SFW + ((row & 127) >> 5)
                    sft = tmem + TMEM_SFT + ((token & 127) >> 5)
                    sfw_atoms = ((row & 127) + rows + 127) >> 7
                    sft_atoms = ((token & 127) + tokens + 127) >> 7
                    mbarrier_wait(acc_empty + 8 * buffer, acc_phase)
                    if previous + tokens > TMEM_SFW:  # overlaps the other accumulator, still being read
                        mbarrier_wait(acc_empty + 8 * (1 - buffer), acc_phase ^ buffer)
                    tcgen05_fence_after()
                    for step in range((k + TILE_K - 1) // TILE_K):
                        stage = ring + slot * stage_bytes
                        weights = Int64(stage >> 4) | Int64(K_MAJOR_SW128)
                        tokens_desc = Int64((stage + tokens_at) >> 4) | Int64(K_MAJOR_SW128)
                        weight_scales = Int64((stage + sfw_at) >> 4) | Int64(SCALE_ATOM)
                        token_scales = Int64((stage + sft_at) >> 4) | Int64(SCALE_ATOM)
                        mbarrier_wait(full + 8 * slot, phase)
                        tcgen05_fence_after()
                        for j in range_constexpr(TILE_K // MMA_K):
                            atom = j * SF_ATOM >> 4
                            for i in range(sfw_atoms):
                                to = tmem + TMEM_SFW + 8 * j + 4 * i
                                tmem_copy_scales(ctas, to, weight_scales + Int64(atom + i * (SF_BYTES >> 4)))
                            for i in range(sft_atoms):
                                to = tmem + TMEM_SFT + 8 * j + 4 * i
                                tmem_copy_scales(ctas, to, token_scales + Int64(atom + i * (SF_BYTES >> 4)))
                            along_k = Int64(j * (MMA_K // 2) >> 4)
                            mma(
                                ctas, acc, weights + along_k, tokens_desc + along_k, idesc, sfw + 8 * j, sft + 8 * j,
                                Int32(1) if const_expr(j > 0) else step,
                            )
                        mma_commit(ctas, empty + 8 * slot)
                        slot = slot + 1
                        phase = select(slot == stages, phase ^ 1, phase)
                        slot = select(slot == stages, 0, slot)
                    mma_commit(ctas, acc_full + 8 * buffer)
                    previous = tokens
                    acc_phase = acc_phase ^ buffer
                    buffer = 1 - buffer

        # Epilogue warps: accumulator [128 weight rows, tokens] -> fp16 -> C [tokens, weight rows]
        if warp < 4:
            at, buffer, acc_phase = position, Int32(0), Int32(0)
            while at < end:
                g, token, tokens, row, rows, k, at = self.tile(params, at, end)
                size = self.word(params, self.sizes + 2 * g)
                m, n = load_param(size), load_param(size + 4)
                n0 = self.weight_row(row + warp * 32, rank) + lane
                row_valid = select(warp * 32 + lane < rows, n0, n) < n
                c = load_param64(self.word(params, 5 * g + 2)) + (Int64(token) * Int64(n) + Int64(n0)) * 2
                acc = tmem + (warp << 21) + buffer * (TMEM_SFW - tokens)
                mbarrier_wait(acc_full + 8 * buffer, acc_phase)
                tcgen05_fence_after()
                for column in range(0, tokens, 32):
                    values = tmem_load(acc + column)
                    if column + 32 >= tokens:
                        tcgen05_fence_before()
                        cute.arch.sync_warp()
                        with cute.arch.elect_one():
                            mbarrier_arrive(leader + (acc_empty - smem) + 8 * buffer)
                    left = select(row_valid, m - token - column, 0)
                    for j in range_constexpr(32):
                        store_half(c + Int64((column + j) * n) * 2, values[j], left > j)
                acc_phase = acc_phase ^ buffer
                buffer = 1 - buffer

        # All accumulators read, by both CTAs of a pair: free the tensor memory
        tcgen05_fence_before()
        if const_expr(ctas > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        if warp == MMA_WARP:
            tmem_dealloc(ctas, tmem)


# ------------------------------------------------------------------------------------------------------------------ host


@functools.cache
def compiled(groups: int, config: Config):
    """The executor of GroupGemm for this many groups; 2 to 5 seconds the first time."""
    gemm = GroupGemm(groups, config)
    return cute.compile(gemm, make_ptr(Int64, 16, cute.AddressSpace.generic))


class Plan:
    """One launch: the host array of GroupGemm for the sizes (m, n, k) of up to MAX_GROUPS groups, and its executor."""

    def __init__(self, sizes: list[tuple[int, int, int]], config: Config):
        groups = 1 << (len(sizes) - 1).bit_length()  # round up: few kernels serve every number of groups
        gemm = GroupGemm(groups, config)
        segments, tiles = [], []
        for g, (m, n, k) in enumerate(sizes):
            width = token_tile(m, config)
            tiles.append(width)
            for token in range(0, m, width):
                tokens = round_up(min(width, m - token), config.ctas * config.token_box) // config.ctas
                segments.append((pack_position(g, token, 0), rows_per_cta(n, config.ctas), tokens, k))
        clusters = config.sms // config.ctas
        starts = partition(segments, clusters, config.gran)

        token_bytes = max(tiles) // config.ctas * TILE_K // 2
        sfw_bytes = SF_BYTES if config.gran == TILE_M else 2 * SF_BYTES
        stage_bytes = TILE_M * TILE_K // 2 + token_bytes + sfw_bytes + 2 * SF_BYTES
        stages = config.stages or min(MAX_STAGES, (SMEM_BYTES - SMEM_HEADER) // stage_bytes)

        words = [0] * gemm.words
        for g in range(groups):
            m, n, k = sizes[g] if g < len(sizes) else sizes[0]
            words[gemm.sizes + 2 * g] = m | n << 32
            words[gemm.sizes + 2 * g + 1] = k | (tiles[g] if g < len(sizes) else tiles[0]) << 32
        words[gemm.scalars : gemm.starts] = [
            len(starts) * config.ctas, SMEM_HEADER + stages * stage_bytes, stages, token_bytes,
        ]
        end = pack_position(len(sizes), 0, 0)
        words[gemm.starts :] = starts + [end] * (gemm.words - gemm.starts - len(starts))
        self.array = (ctypes.c_int64 * gemm.words)(*words)
        self.pointers = 5 * len(sizes)

        self.executor = compiled(groups, config).to()
        self.pointer = make_ptr(Int64, ctypes.addressof(self.array), cute.AddressSpace.generic)  # the packed
        self.arguments, _ = self.executor.generate_execution_args(self.pointer)  # arguments refer to both
        self.packed = self.executor._get_invoke_packed_args(self.arguments)

    def launch(self, pointers: list[int]) -> None:
        self.array[: self.pointers] = pointers
        error = self.executor.capi_func(self.packed)
        if error:
            raise RuntimeError(f"kernel launch failed with CUDA error {error}")


@functools.lru_cache(maxsize=64)
def plan(sizes: tuple[tuple[int, int, int], ...]) -> Plan:
    ms, ns, ks = zip(*sizes)
    uniform = len(set(ns)) == len(set(ks)) == 1
    config = CONFIG_MAP.get((ms, ns[0], ks[0]), DEFAULT) if uniform else DEFAULT
    return Plan(list(sizes), config)


def custom_kernel(data: input_t) -> output_t:
    """C[g] = (A[g] * SFA[g]) @ (B[g] * SFB[g]).T for every group, into the given C tensors, which it returns."""
    abc, _, scales, sizes = data
    plan(tuple((m, n, k) for m, n, k, _ in sizes)).launch(
        [t.data_ptr() for (a, b, c), (sfa, sfb) in zip(abc, scales) for t in (a, b, c, sfa, sfb)]
    )
    return [c for _, _, c in abc]
