"""Configs for Hopper, and the choice among them: measured on an H200 (132 SMs), worklog/moe.md."""

import dataclasses
import functools
from collections.abc import Iterable

from ragged_moe.kernels.config import Config

SMS = 132
# Swap-AB. Most bytes in flight; 213.6 us for 32 x 8, N = 4096; without bursts 215.7
M16_SWAP_AB = Config(block_m=16, burst=4, prefetch=2)


def tokens_on_m(block_n: int, **fields) -> Config:
    """128 tokens, half of a warpgroup each, x block_n weight rows."""
    return Config(block_m=128, block_n=block_n, swap_ab=False, prefetch=2, **fields)


# Clusters of two CTAs that share an operand, for more tiles than SMs:
M128_N128_C2 = tokens_on_m(128, cluster=2, burst=2)  # 117.0 us for 8 x 128, N = K = 7168
M128_N256_C2 = tokens_on_m(256, cluster=2)  # 205.4 us for 8 x 512, N = 4096
# For 48 x 256, 4096, 7168, drawn uniformly: 617 us, M128_N256_C2 659; even 559, 557; K = 1536: even 87.7, 86.5
M128_N256_C2_TAIL = dataclasses.replace(M128_N256_C2, tail=16)
# 120.3 us for the problem of M128_N128_C2, 210.7 for that of M128_N256_C2; 32 x 64, N = 4096: 228.4, M128_N128_C2
# 232.1, M128_N256_C2 239.6
M128_N256_C2_BURST2 = tokens_on_m(256, cluster=2, burst=2)
# Whole tiles for nearly every SM, so that no tile's K is shared. N = 7168 is 32 tiles of 224 rows:
M128_N224 = tokens_on_m(224)  # 4 x 128, K = 2048: 20.6 us, M128_N256_C2_BURST2 22.0
M128_N224_C2 = tokens_on_m(224, cluster=2, burst=2)  # 4 x 64, K = 7168: 53.6 us, M128_N224 55.6
# In brackets what was fastest with tiles of 128 rows:
M128_N256 = tokens_on_m(256)  # 1 x 512, N = K = 7168: 44.9 us (49.6)
M128_N128 = tokens_on_m(128)  # 4 x 64, N = 4096: 31.9 us; M128_N128_C2 32.2
M128_N64 = tokens_on_m(64)  # 1 x 128, N = 7168, K = 2048: 7.9 us
M128_N64_SPLIT_K = tokens_on_m(64, split_k=2)  # 1 x 128, N = 4096, K = 7168: 12.3 us, tiles of 32 rows 13.9 (17.1)
M128_N112_SPLIT_K = tokens_on_m(112, split_k=2)  # 1 x 128, N = K = 7168: 17.7 us, M128_N64 18.1 (21.4); K = 2048: 8.3
GEMM = (
    M16_SWAP_AB, M128_N128_C2, M128_N256_C2, M128_N256_C2_BURST2, M128_N224, M128_N224_C2, M128_N256, M128_N128,
    M128_N64, M128_N64_SPLIT_K, M128_N112_SPLIT_K, M128_N256_C2_TAIL,
)  # fmt: skip


def fp4(tokens: str, block_m: int, **fields) -> Config:
    """Weights in e2m1, block_n rows x block_m tokens of this type."""
    return Config(block_m=block_m, fp4_tokens=tokens, prefetch=2, **fields)


# At 4096, 7168, us; in brackets tiles with the other number of weight rows, 128 or 256: 1 x 16: 11.2 (13.8), 8 x 16:
# 40.1 (42.9), 32 x 16: 145.3 (157.2); 1 x 64: 14.8 (19.1), 8 x 64: 53.3 (60.0), 32 x 64: 223.0 (238.6); 1 x 128: 18.9
# (27.8), 8 x 128: 78.0 (86.0), 32 x 128: 363.3 (453.6); 8 x 512: 331.5 (330.4), 32 x 512: 1388 (1408)
# Widths of tiles, and up to which of them a loop of its own multiplies, for uneven experts: worklog/moe.md, F129, F130
WIDTHS = (
    ((64, 48, 32, 16), 0), ((112, 96, 80, 64, 48, 32, 16), 64), ((144, 128, 112, 96, 80, 64, 48, 32), 80),
)  # fmt: skip
FP4 = {
    tokens: (
        dataclasses.replace(fp4(tokens, 16, burst=4), prefetch=8),
        *(fp4(tokens, widths[0], block_n=256, widths=widths, narrow=narrow) for widths, narrow in WIDTHS),
        fp4(tokens, 64), fp4(tokens, 128),
        dataclasses.replace(fp4(tokens, 16, block_n=256, burst=2), prefetch=4),
    )
    for tokens in ("bf16", "f16")
}  # fmt: skip
# Tokens in e4m3, of MXFP4 weights that are packed for them. Tiles of half as many weight rows have room for 192 tokens,
# for which weights are made e4m3 once, but read tokens from L2 twice as often: worklog/moe.md, F114, F121
FP4_BY_E4M3 = (
    fp4("e4m3", 128, block_n=256), fp4("e4m3", 128, block_n=256, widths=(128, 112, 96, 80, 64, 48, 32)),
    fp4("e4m3", 192, widths=(192, 160, 144, 128, 96, 64, 32)),
    fp4("e4m3", 192, widths=(192, 176, 160, 144, 128, 112, 96, 64, 32)),
)  # fmt: skip
FP4_BY_E4M3_GEMM1 = tuple(dataclasses.replace(x, gated=True, permuted=True) for x in FP4_BY_E4M3[:2])
FP4_GEMM1 = tuple(
    dataclasses.replace(fp4("bf16", block_m, **fields), gated=True, permuted=True)
    for block_m, fields in (
        (16, {"block_n": 256, "burst": 2}), *((x[0], {"block_n": 256, "widths": x, "narrow": y}) for x, y in WIDTHS),
        (16, {"burst": 4}),  # T = 1 of a layer on an H100: 31.1 us, the first 31.9
    )
)  # fmt: skip

# The layer's GEMM1. Tiles of more tokens load weights less often, of fewer keep more stages under way
GATED_M16_SWAP_AB = Config(block_m=16, block_n=256, gated=True, burst=2)
GATED_M128_C2 = Config(block_m=128, block_n=256, swap_ab=False, cluster=2, gated=True, permuted=True)
GATED_M128_C2_BURST2 = dataclasses.replace(GATED_M128_C2, burst=2, prefetch=2)
GEMM1 = GATED_M16_SWAP_AB, GATED_M128_C2_BURST2, GATED_M128_C2


# Of weights in bf16, GEMM1: tokens lie in the order of the experts
BF16_M16_SWAP_AB = dataclasses.replace(GATED_M16_SWAP_AB, permuted=True, bf16=True)
BF16_M128_C2 = dataclasses.replace(GATED_M128_C2, bf16=True)
BF16_GEMM1 = BF16_M16_SWAP_AB, BF16_M128_C2
BF16_MOST_M16 = 8  # rows of an expert in the mean, for the first of them


@functools.lru_cache(maxsize=1024)
def choose_gemm(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean; routed: they are uneven."""
    mean = -(-total_m // experts)
    if mean <= (8 if routed else 16):  # the layer's GEMM2 at T = 256: 108.1 us, tokens on M 112.6; at 512: 126.8, 115.4
        return M16_SWAP_AB
    tiles = experts * -(-mean // M128_N224.block_m) * -(-n // M128_N224.block_n)
    waves = -(-tiles // SMS)
    if waves <= 4 and tiles > 0.95 * waves * SMS:  # 8 x 512, N = K = 7168, 8 waves: 366 us, M128_N256_C2 361
        return M128_N224 if mean > 128 or k <= 2048 else M128_N224_C2
    wide = (M128_N256,) * (mean > 128 or k <= 2048)  # 4 x 64, N = K = 7168: 57.4 us, M128_N128 57.0
    for config in (*wide, M128_N128, *(M128_N112_SPLIT_K,) * (k > 4096), M128_N64, M128_N64_SPLIT_K):
        if config.whole_tile_grid(SMS, total_m, n, experts):
            return config
    if 248 <= mean <= 272 and k >= 7168 and not routed:  # uneven ones have a few tokens more than a pair of tiles
        return M128_N256_C2_TAIL
    if mean > 128 or routed and mean > 96:  # the layer's GEMM2 at T = 4096: 166.3 us, with bursts 172.3
        return M128_N256_C2
    if k <= 2048:
        return M128_N256_C2_BURST2
    if mean <= 64 and experts * -(-n // M128_N128.block_n) < 2 * SMS:
        return M128_N128  # 512 tokens, N = 4096, all of one expert: 26.0 us, M128_N256_C2_BURST2 31.3; evenly: level
    # Tiles of 256 rows that are too few leave SMs idle; between one and two for each SM, the K of some is shared
    tiles = experts * -(-n // M128_N256_C2_BURST2.block_n)
    return M128_N128_C2 if tiles < 0.8 * SMS or SMS < tiles < 2 * SMS else M128_N256_C2_BURST2


def choose_gemm1(rows: int, experts: int) -> Config:
    """GEMM1's config for this many rows in all, as far as the host can know."""
    mean = -(-rows // experts)
    return GATED_M16_SWAP_AB if mean <= 5 else GATED_M128_C2_BURST2 if mean <= 64 else GATED_M128_C2


def choose_fp4(total_m: int, experts: int, n: int, k: int, tokens: str, routed: bool = False) -> Config:
    """The config for weights in e2m1 and tokens of this type, "bf16" or "f16"; routed: as of `choose_gemm`."""
    mean = -(-total_m // experts)
    block_m = 16 if mean <= (8 if routed else 16) else 64 if mean <= 64 else 128
    tiles = min(experts, total_m) * -(-total_m // (experts * block_m)) * -(-n // 256)  # of experts that have rows
    few = 2 * tiles <= SMS  # more CTAs each, whose sums go through memory
    few |= block_m == 16 and k <= 2048 and tiles <= SMS  # begin and end sooner: H100, 8 x 8, 4096, 1536: 13.4 us, 14.6
    return fp4_tile(FP4[tokens], block_m, 128) if few else fp4_tile(FP4[tokens], uneven_tokens(mean), 256)


def choose_fp4_by_e4m3(total_m: int, experts: int, n: int) -> Config:
    """The config for weights in e2m1 and tokens in e4m3."""
    mean = -(-total_m // experts)
    if 24 < mean <= 88:
        tiles = experts * -(-n // 256)  # whose last wave may leave many SMs idle: 8 x 64, 5760, 2880: 0.93 by 128 rows
        return FP4_BY_E4M3[1 if tiles > 0.8 * SMS * -(-tiles // SMS) else 2]
    return FP4_BY_E4M3[0 if mean <= 24 else 2 if 224 < mean <= 288 else 3]


def choose_fp4_by_e4m3_gemm1(rows: int, experts: int) -> Config:
    """The config of GEMM1 with weights in e2m1 and tokens in e4m3: evenly cut tiles where that was measured faster."""
    return FP4_BY_E4M3_GEMM1[32 < -(-rows // experts) <= 192]


def choose_fp4_gemm1(rows: int, experts: int, n: int) -> Config:
    """The config of GEMM1 with weights in e2m1. n: up and gate."""
    block_m = uneven_tokens(-(-rows // experts))
    few = block_m == 16 and 2 * min(experts, rows) * -(-n // 256) <= SMS
    return fp4_tile(FP4_GEMM1, block_m, 128 if few else 256)


def fp4_tile(configs: Iterable[Config], block_m: int, block_n: int) -> Config:
    """Of these configs that of tiles of this many tokens and weight rows."""
    return next(config for config in configs if (config.block_m, config.block_n) == (block_m, block_n))


def uneven_tokens(mean: int) -> int:
    """Tokens of the widest tile for experts of this many rows in the mean: what most of them have, however they are
    drawn, as each tile makes its weights 16 bits.
    """
    return next((tile for tile, most in ((16, 8), (64, 40), (112, 80)) if mean <= most), 144)
