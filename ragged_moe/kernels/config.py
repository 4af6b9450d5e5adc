"""`Config`: the tile shape and the schedule that a GEMM kernel is compiled for, and its shared memory."""

import math
from dataclasses import dataclass, replace

from ragged_moe.kernels.block_scaled import W4A8, BlockScaled
from ragged_moe.kernels.ptx import FIRST, NORMAL
from ragged_moe.runtime.sizes import MAX_EXPERTS

BLOCK_K = 128  # K of a scale, and of a stage of the ring: one 128-byte swizzle row of e4m3 (W4A4: 256 of K)
BLOCK_N = 128  # weight rows of a scale
CONSUMER_GROUPS = 2  # consumer warpgroups
GROUP_WARPS = 4
GROUP_THREADS = 128
CONSUMER_WARPS = CONSUMER_GROUPS * GROUP_WARPS
TMA_WARP = CONSUMER_WARPS
TAIL_WARP = TMA_WARP + GROUP_WARPS  # the first of a third warpgroup of consumers (Config.tail)
MMA_WARP = TMA_WARP + 1  # on a GPU whose MMAs one thread issues
# With block scales: its scheduler's other warps have the last tokens of a tile, or none, and so the least to do
SCALED_MMA_WARP = TMA_WARP + 3
SMEM = 227 * 1024
MAX_STAGES = 12
SPARE_SCALES = 4  # stages that a ring of scales has more than the operands', where they have one
WORK_TILE_BYTES = 48  # of a work tile in shared memory (schedule.WorkTile)
CUT = 16  # even tiles of an expert have multiples of this many tokens, but for the last one
TRANSPOSED_TOKENS = 32  # that a warp of a swap-AB epilogue transposes at once
SCALED_STORED_ROWS = 16  # weight rows that a warp transposes at once with block scales: a sector of each token
BARRIER_BYTES = 2 * 8 * MAX_STAGES
WORK_TILES_BYTES = WORK_TILE_BYTES * MAX_STAGES
SCALE_RING_BYTES = (MAX_STAGES + SPARE_SCALES) * (2 * 8 + WORK_TILE_BYTES)  # its barriers and work tiles
TABLE_BYTES = 2 * 4 * (MAX_EXPERTS + 1) + 8
SPLIT_K_BARRIER_BYTES = 2 * GROUP_WARPS * 8


@dataclass(frozen=True)
class Activation:
    """SwiGLU and its variants: gate * sigmoid(alpha * gate) * (up + shift), after clamping.

    gate_first: the weights' first rows are gate, not up. limit: gate is at most that, up is between -limit and limit.
    """

    gate_first: bool = False
    limit: float | None = None
    alpha: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Config:
    """Hyperparameters of a GEMM kernel: out [M tokens, N weight rows], summed over K in blocks of 128.

    They change a call's time; its result only through the order of f32 additions. `str` gives the shape as
    M x N x K of a CTA's tile (of both CTAs' with a 2-CTA MMA), and what differs from the default.
    """

    block_m: int = 64  # tokens of a tile
    block_n: int = 128  # weight rows of a tile
    swap_ab: bool = True  # weights are the M side of the MMA, tokens its N side; else tokens are the M side
    arch: str = "sm90"  # or "sm100"
    cluster: int = 1  # CTAs whose tiles share an operand: by multicast, or by a 2-CTA MMA
    two_cta: bool = False  # sm100: tcgen05.mma of cta_group::2
    split_k: int = 1  # CTAs of a cluster that have a part of a tile's K each
    tail: int = 0  # tokens behind the last pair of tiles that a third warpgroup of consumers multiplies beside it
    burst: int = 1  # stages whose loads are issued together
    prefetch: int = 0  # stages of weights that are prefetched to L2 while the previous kernel ends
    stream_k_first: bool = False  # where clusters take whole tiles, the first tiles are shared stream-K, not the last
    gated: bool = False  # the layer's GEMM1: half of block_n are rows of up, half of gate; out is silu(gate) * up
    permuted: bool = False  # gated: the tokens lie in the order of the experts (permute.py); else they are gathered
    copied: bool = False  # permuted: by assign, which writes m_indptr in the same launch
    # Weights in e2m1, tokens in this type, "bf16", on sm90 also "f16" or "e4m3"; else both are in e4m3
    fp4_tokens: str = ""
    block_scaled: BlockScaled | None = None  # sm100: the operands' format where the MMA multiplies by their scales
    # Weights in e2m1: how many tokens a tile is multiplied as, the most first, where experts are cut into even tiles;
    # if none, tiles have block_m tokens, and the rest of an expert as many as TMA has boxes for
    widths: tuple[int, ...] = ()
    # Consumers multiply experts whose tiles have up to this many tokens in a loop of its own, behind the others', to
    # which ptxas gives as many registers as if it were alone
    narrow: int = 0
    room: int = 0  # of the config of such a loop: tokens that a stage has room for
    bf16: bool = False  # sm90: both operands are in bf16, and K is counted in bytes: a k-block is 64 of it
    channels: bool = False  # operands in e4m3: weights have a scale a row instead of one for 128 x 128
    bias: bool = False  # weights in e2m1, not of W4A4: results get an addend for each weight row of the expert
    activation: Activation = Activation()  # gated: what the epilogue makes of up and gate
    slots: int = 0  # block scales, the layer's GEMM2: places of a token, whose output it writes if that has one row

    def __post_init__(self):
        assert self.arch in ("sm90", "sm100") and (self.widths or self.block_m in (16, 32, 64, 128, 256))
        assert self.cluster in (1, 2) and self.split_k in (1, 2)
        assert self.swap_ab or self.block_m == 128
        if self.fp4_tokens:
            assert self.fp4_tokens == "bf16" or self.fp4_tokens in ("f16", "e4m3") and self.arch == "sm90"
            assert self.swap_ab
            assert self.split_k == 1
            assert self.block_n == 2 * BLOCK_N or self.block_n == BLOCK_N and (not self.gated or self.block_m == 16)
            assert self.gated == self.permuted and (self.permuted or not self.copied)
            assert not self.widths or self.widths[0] == self.block_m and all(x % CUT == 0 for x in self.widths)
            assert not self.narrow or self.widths[-1] <= self.narrow < self.block_m
        elif self.block_scaled:
            assert self.arch == "sm100" and not self.swap_ab and self.cluster == self.split_k == 1
            assert self.block_n == 2 * BLOCK_N or self.block_n == BLOCK_N and not self.gated
            assert not self.permuted
        elif self.bf16 and self.gated:
            assert self.block_n == 2 * BLOCK_N and self.split_k == 1 and self.permuted
            assert self.cluster == (1 if self.swap_ab else 2)
        elif self.gated:
            assert self.block_n == 2 * BLOCK_N and self.split_k == 1 and self.cluster == (2 if self.permuted else 1)
            assert not self.swap_ab or self.block_m <= 32 and not self.permuted  # who gathers has a lane for each token
        elif self.swap_ab:
            assert self.block_n == BLOCK_N and self.split_k == 1
        elif self.arch == "sm100":
            assert self.block_n % 32 == 0 and self.block_n <= 256
        else:
            assert self.block_n in (64, 112, 128, 224, 256)
        assert self.fp4_tokens or not self.widths
        assert not (self.channels or self.bf16) or not self.fp4_tokens and not self.block_scaled
        assert not self.bf16 or self.arch == "sm90" and not self.channels
        assert not self.slots or self.block_scaled and not self.gated and self.slots % 4 == 0
        assert not self.bias or self.fp4_tokens or self.block_scaled and self.block_scaled.biased
        assert not self.two_cta or self.arch == "sm100" and self.cluster == 2
        assert self.split_k == 1 or self.cluster == 1
        assert not self.tail or self.overlaps_tokens and not (self.bf16 or self.channels)

    def __str__(self) -> str:
        ctas, scaled = 2 if self.two_cta else 1, self.block_scaled
        words = [
            f"{self.block_m * ctas}x{self.block_n}x{scaled.stage_k if scaled else BLOCK_K}", "swap-ab" * self.swap_ab,
            "2cta" * self.two_cta,
            f"w4{self.fp4_tokens}" * bool(self.fp4_tokens), scaled and scaled.name, "bias" * self.bias,
            f"cluster{self.cluster}" * (self.cluster > 1 and not self.two_cta),
            f"splitk{self.split_k}" * (self.split_k > 1), f"tail{self.tail}" * (self.tail > 0),
            "bf16" * self.bf16, "channels" * self.channels,
            "gated" * self.gated, "permuted" * self.permuted, "copied" * self.copied,
            f"burst{self.burst}" * (self.burst > 1), f"prefetch{self.prefetch}" * (self.prefetch > 0),
            f"slots{self.slots}" * (self.slots > 0),
        ]  # fmt: skip
        return " ".join(filter(None, words))

    # Which CTAs have which tiles

    @property
    def boxes(self) -> tuple[int, ...]:
        """Token counts of the TMA boxes, the widest first: a tile takes the least that holds its tokens."""
        if not self.swap_ab:
            return (128, 64) if self.arch == "sm90" else (128,)
        if self.widths:
            return self.widths
        least = 8 if self.fp4_tokens in ("bf16", "f16") and self.block_m == 16 else 16
        return tuple(x for x in (256, 128, 64, 32, 16, 8) if least <= x <= self.block_m)

    @property
    def loops(self) -> tuple["Config", ...]:
        """What each of the consumers' loops over work tiles is compiled for."""
        if not self.narrow:
            return (self,)
        wide, lean = (tuple(x for x in self.widths if (x > self.narrow) == wider) for wider in (True, False))
        return tuple(replace(self, block_m=x[0], widths=x, narrow=0, room=self.block_m) for x in (wide, lean))

    @property
    def groups(self) -> int:
        """Warpgroups of consumers; one more are producers."""
        return CONSUMER_GROUPS + (self.tail > 0)

    @property
    def schedule_ctas(self) -> int:
        """CTAs that the schedule gives work tiles together."""
        return max(self.cluster, self.split_k)

    @property
    def launch_cluster(self) -> int:
        """CTAs that are launched as a cluster, on neighbouring SMs.

        Two also where CTAs do not work together: those that read the same lines at about the same time share what
        comes from L2 (1 x 512 takes 2 % less), and fewer CTAs than SMs lie evenly beside both halves of L2, as each
        GPC gets a cluster in turn, where single CTAs fill one GPC after the other (emulated_gpu/model/halves.py). Not
        with swap-AB, whose stream-K shares begin at other k-blocks.
        """
        return self.schedule_ctas if self.swap_ab else 2

    @property
    def data_parallel(self) -> bool | None:
        """Whether clusters take whole tiles, not stream-K shares; None: if an expert has more tokens than a tile.

        Weights in e2m1: in shares all experts would be under way at once, and these tokens come from HBM again (32 x
        64, N = 4096, K = 7168 on an H100: 243 us, in whole tiles 224; 32 x 8, N = 7168, K = 2048: 94.7, 92.0).
        """
        if self.gated and not self.swap_ab:  # on a B200 few rounds would leave much of the last one idle
            return self.arch == "sm90"
        return True if self.fp4_tokens or self.arch == "sm90" and not self.swap_ab else None

    def whole_tile_grid(self, most: int, total_m: int, n: int, experts: int) -> int:
        """CTAs that have a whole tile each, if that is nearly all of the `most` that fit the GPU; else 0.

        Experts are taken to be even. With swap-AB tiles are small, and stream-K shares of them cost little.
        """
        tiles = experts * -(-total_m // (experts * self.block_m)) * -(-n // self.block_n)
        ctas = -(-tiles * self.split_k // self.launch_cluster) * self.launch_cluster
        return ctas if not self.swap_ab and ctas <= most <= 1.25 * ctas else 0

    def grid(self, most: int, total_m: int, n: int, experts: int) -> int:
        """CTAs of the launch for these sizes, of the `most` that fit the GPU.

        On a B200 with tokens on M: as many as have equally many whole tiles of even experts, if a quarter or less is
        idle. Three quarters of the SMs load as fast as the HBM can, and no partial sums go through memory. A 2-CTA MMA
        is for many tokens, where the tensor cores bind: all SMs pay there, even at 1 x 512 (modelled: 29.8 us, not
        32.1).
        """
        if self.arch == "sm90" or self.swap_ab:
            return self.whole_tile_grid(most, total_m, n, experts) or most
        tiles = experts * -(-total_m // (experts * self.block_m)) * -(-n // self.block_n) * self.split_k
        fewer = -(-tiles // -(-tiles // most))
        fewer = -(-fewer // self.launch_cluster) * self.launch_cluster
        return fewer if self.cluster == 1 and 4 * fewer >= 3 * most else most

    @property
    def min_share(self) -> int:
        """K-blocks of a stream-K share: as many as take the time in which partial sums are written and added. Those of
        W4A8 are half as many bytes as W4A4's: modelled, GEMM1 at T = 1 takes 15.1 us by twice as many, 16.6 by these.
        Hopper decodes weights in e2m1: 20 x 8, 5120, 1536 take 29.3 us by two, 30.1 by four.
        """
        least = max(2 if self.fp4_tokens and self.arch == "sm90" else 4, self.accumulators // 16)
        return least * (2 if self.block_scaled is W4A8 else 1)

    @property
    def overlaps_tokens(self) -> bool:
        """Whether an expert of 129 to 192 tokens has two tiles that overlap by 64 tokens, of which each CTA of the
        cluster computes half of the weight rows: so neither has a full tile's work.
        """
        return self.arch == "sm90" and not self.swap_ab and not self.gated and self.cluster == 2 and self.block_n == 256

    @property
    def early_schedule(self) -> bool:
        """Whether the schedule is made before the previous kernel has ended, and checked afterwards.

        Not where that kernel is routing or assign, which writes m_indptr.
        """
        return not self.gated or self.permuted and not self.copied

    @property
    def early_loads(self) -> bool:
        """Whether loads begin before m_indptr is looked at again. CTAs of a cluster may have begun with different
        schedules.
        """
        return self.early_schedule and self.cluster == 1

    # Accumulators

    @property
    def accumulators(self) -> int:
        """f32 sums of a consumer thread; with tokens on a B200's lanes those of the first warpgroup's columns."""
        if self.arch == "sm100" and not self.swap_ab:
            return -(-self.block_n // 64) * 32
        return self.block_n * self.block_m // (GROUP_THREADS * CONSUMER_GROUPS)

    @property
    def partial_bytes(self) -> int:
        """Bytes of a CTA's partial sums of a tile that it does not finish."""
        of_room = self.accumulators * (self.room or self.block_m) // self.block_m
        return of_room * GROUP_THREADS * self.groups * 4

    @property
    def ends_inside(self) -> bool:
        """Whether N may end inside a thread's columns, with tokens on a B200's lanes."""
        return self.block_n % 64 != 0 or self.block_scaled is W4A8

    @property
    def polled_partials(self) -> bool:
        """Whether readers poll the partial sums themselves, in a buffer that is filled with a NaN that no FMA gives.

        That is one way through L2, where an acquire/release flag takes two and a fence. The buffer must be filled again
        after reading, which costs more than that if the sums are many.
        """
        return self.accumulators <= 16

    @property
    def weights_policy(self) -> str:
        """L2 policy of the weights, by which is faster on an H200: worklog/moe.md, G64."""
        return FIRST if self.cluster == 1 else NORMAL

    # Shared memory

    @property
    def scale_ring(self) -> bool:
        """Whether scales have a ring of their own: on a B200 a stage's operands are done with before its scales."""
        return self.arch == "sm100" and not self.fp4_tokens

    @property
    def as_wgmma(self) -> bool:
        """Whether a thread's results are those that wgmma leaves it."""
        return self.arch == "sm90" or bool(self.fp4_tokens)

    @property
    def weight_rows_per_scale(self) -> int:
        """Weight rows of a tile that share one scale, with tokens on M, at whatever multiple of block_n it begins."""
        return math.gcd(self.block_n, BLOCK_N)

    @property
    def scale_row_bytes(self) -> int:
        """Bytes from one quarter of a tile's token scales to the next, with swap-AB: 16 more than they are, which
        spreads them over the banks.
        """
        return self.block_m + 16

    @property
    def weight_scales_offset(self) -> int:
        """Byte of a stage's scales where those of the weights begin, with tokens on M: up to 3 scales of other tokens
        may lie before the tile's.
        """
        return 4 * (self.block_m + 3)

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales in a stage: a_scale * b_scale of each token, for up and for gate if gated; with tokens on M
        the tokens', then the weights'. Those of e2m1, and of its tokens, are operands.
        """
        if self.fp4_tokens or self.block_scaled or self.bf16:
            return 0
        if self.swap_ab:
            return 4 * self.scale_row_bytes * (1 + self.gated)
        weights = 4 * (self.block_n // self.weight_rows_per_scale)
        return -(-(self.weight_scales_offset + weights) // 16) * 16

    @property
    def scratch_bytes(self) -> int:
        """Bytes in which a warp transposes results: [TRANSPOSED_TOKENS, 16] or [16 tokens, 64 weight rows] in bf16.

        With block scales [16, 16], or none for records: so the ring has a stage more.
        """
        if self.block_scaled:
            return 0 if self.gated else 16 * SCALED_STORED_ROWS * 2
        return TRANSPOSED_TOKENS * 16 * 2 if self.swap_ab else 2048

    @property
    def split_k_bytes(self) -> int:
        """Bytes of the sums that come from the other CTA, those of half of the warps."""
        return self.partial_bytes // 2 if self.split_k == 2 else 0

    @property
    def mma_barrier_bytes(self) -> int:
        """Bytes for barriers of accumulators in tensor memory, and for split-K's."""
        if self.two_cta:
            return 80
        return 64 + SPLIT_K_BARRIER_BYTES * (self.arch == "sm100" and self.split_k == 2)

    @property
    def fixed_smem(self) -> int:
        """Bytes of shared memory beside the rings'; 1024 to align these."""
        scale_ring = SCALE_RING_BYTES + SPARE_SCALES * self.scale_bytes if self.scale_ring else 0
        barriers = BARRIER_BYTES + self.mma_barrier_bytes
        scratch = CONSUMER_WARPS * self.scratch_bytes
        tables = TABLE_BYTES + 4 * MAX_EXPERTS * bool(self.widths)
        return 1024 + barriers + WORK_TILES_BYTES + tables + scratch + scale_ring + self.split_k_bytes

    @property
    def weights_box(self) -> int:
        """Weight rows of a TMA box."""
        return 64 if self.two_cta else self.block_n // self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of operands in a stage: weights, then tokens. A 2-CTA MMA takes half of the weights from each CTA.

        On a Hopper GPU with weights in e2m1 the tokens are first, then the weights and their scales; with block scales
        behind the tokens are the weights' scales, then the tokens'.
        """
        if self.fp4_tokens:  # the next stage's tokens begin with a whole pattern of the swizzle
            return -(-(self.token_bytes + self.block_n * self.fp4_row) // 1024) * 1024
        if self.block_scaled:
            used = self.token_scales_offset + self.block_m * self.block_scaled.row_scales
            return -(-used // 1024) * 1024  # the next stage's operands begin with a whole pattern of the swizzle
        weights = self.block_n // 2 if self.two_cta else self.block_n
        return (weights + self.block_m + self.tail) * BLOCK_K

    @property
    def token_row(self) -> int:
        """Bytes of a token in a stage, with weights in e2m1 on a Hopper GPU."""
        return BLOCK_K if self.fp4_tokens == "e4m3" else 2 * BLOCK_K

    @property
    def token_bytes(self) -> int:
        """Bytes of the tokens in a stage there."""
        return (self.room or self.block_m) * self.token_row

    @property
    def fp4_scale(self) -> int:
        """K of a byte of scale there."""
        return 32 if self.fp4_tokens == "e4m3" else 16

    @property
    def fp4_row(self) -> int:
        """Bytes of a weight row and of its scales in a stage there."""
        return BLOCK_K // 2 + BLOCK_K // self.fp4_scale

    @property
    def token_scales_offset(self) -> int:
        """Byte of a stage where the tokens' block scales begin, behind the operands and the weights'."""
        return (self.block_n + self.block_m) * BLOCK_K + self.block_n * self.block_scaled.row_scales

    @property
    def stages(self) -> int:
        """Stages of the ring of operands."""
        room = SMEM - self.fixed_smem
        return min(MAX_STAGES, room // (self.stage_bytes + self.scale_bytes))

    @property
    def scale_stages(self) -> int:
        """Stages of the ring of scales."""
        return self.stages + SPARE_SCALES * self.scale_ring

    @property
    def smem(self) -> int:
        """Bytes of shared memory."""
        return self.fixed_smem + self.stages * (self.stage_bytes + self.scale_bytes)
