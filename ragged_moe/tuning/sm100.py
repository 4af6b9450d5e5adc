"""Configs for a B200 (148 SMs), and the choice among them: modelled, worklog/moe.md. There was none to measure."""

import dataclasses
import functools

from ragged_moe.kernels.block_scaled import W4A4, W4A8, BlockScaled
from ragged_moe.kernels.config import Config

SMS = 148
M16_SWAP_AB = Config(arch="sm100", block_m=16, prefetch=2)


def tokens_on_m(block_n: int, **fields) -> Config:
    """128 tokens on the lanes of tensor memory x block_n weight rows."""
    return Config(arch="sm100", block_m=128, block_n=block_n, swap_ab=False, stream_k_first=True, prefetch=2, **fields)


M128_N128 = tokens_on_m(128)  # where SMs share tiles, the sums are half as many
# 1 x 64, N = K = 7168: 13.4 us, M128_N128 15.0; K = 2048: 6.8, 9.1
M128_N128_SPLIT_K = tokens_on_m(128, split_k=2)
M128_N64_SPLIT_K = tokens_on_m(64, split_k=2)  # 1 x 64, N = 4096, K = 7168: 11.1 us, M128_N128 12.0
M128_N256 = tokens_on_m(256)  # where at least three quarters of the SMs have a tile
M128_N224 = tokens_on_m(224)  # N = 7168 is 32 of these: whole ones for 128 SMs, where M128_N256 has them for 112
M256_N256_2CTA = tokens_on_m(256, cluster=2, two_cta=True)
GEMM = M16_SWAP_AB, M128_N128, M128_N128_SPLIT_K, M128_N64_SPLIT_K, M128_N256, M128_N224, M256_N256_2CTA

# The layer's GEMM1
GATED_M16_SWAP_AB = Config(arch="sm100", block_m=16, block_n=256, gated=True, burst=2)
GATED_M32_SWAP_AB = Config(arch="sm100", block_m=32, block_n=256, gated=True, burst=2)
GATED_M128 = Config(arch="sm100", block_m=128, block_n=256, swap_ab=False, gated=True)
GEMM1 = GATED_M16_SWAP_AB, GATED_M32_SWAP_AB, GATED_M128

# Weights in e2m1, by the format of both operands: the wider tile first
FP4 = {form: tuple(tokens_on_m(block_n, block_scaled=form) for block_n in (256, 128)) for form in (W4A4, W4A8)}
FP4_GEMM1 = {form: dataclasses.replace(wide, gated=True, prefetch=0) for form, (wide, _) in FP4.items()}

# Weights in e2m1 that become bf16 (W4A16): 256 weight rows, and experts cut evenly into tiles
FP4_BF16 = tuple(
    Config(arch="sm100", block_m=most, block_n=256, widths=tuple(range(most, 0, -16)), fp4_tokens="bf16", prefetch=2)
    for most in (64, 128)
)
FP4_BF16_GEMM1 = tuple(dataclasses.replace(x, gated=True, permuted=True) for x in FP4_BF16)


@functools.lru_cache(maxsize=1024)
def choose_gemm(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return M16_SWAP_AB
    if mean > 128:
        return M256_N256_2CTA
    candidates = M128_N128_SPLIT_K, M128_N64_SPLIT_K, M128_N256, M128_N224
    ctas = {config: experts * -(-n // config.block_n) * config.split_k for config in candidates}
    if 4 * ctas[M128_N256] >= 3 * SMS:  # that of which an SM has the fewest rows
        return min(M128_N256, M128_N224, key=lambda config: -(-ctas[config] // SMS) * config.block_n)
    return next((config for config in candidates[:2] if 3 * SMS <= 4 * ctas[config] <= 4 * SMS), M128_N128)


def choose_gemm1(rows: int, experts: int) -> Config:
    """GEMM1's config for this many rows in all, as far as the host can know."""
    mean = -(-rows // experts)
    return next((c for most, c in ((4, GATED_M16_SWAP_AB), (16, GATED_M32_SWAP_AB)) if mean <= most), GATED_M128)


def choose_fp4_bf16(total_m: int, experts: int, gated: bool = False) -> Config:
    """The config for weights in e2m1 that become bf16, of GEMM1 if gated: tiles of what most of the experts have."""
    return (FP4_BF16_GEMM1 if gated else FP4_BF16)[-(-total_m // experts) > 40]


def choose_fp4(form: BlockScaled, total_m: int, experts: int, n: int, k: int) -> Config:
    """The config for weights in e2m1: half as wide a tile where whole ones are for less than three quarters of SMs."""
    wide, narrow = FP4[form]
    tiles = experts * -(-total_m // (experts * wide.block_m)) * -(-n // wide.block_n)
    return wide if 4 * tiles >= 3 * SMS else narrow
