"""Which config of the kernel a problem runs on: measured on an H200, worklog/moe.md."""

import dataclasses
import functools

from moe.kernel import Config

SMS = 132
FEW = Config(tokens=16, burst=4, prefetch=2)  # most bytes in flight; 213.6 us for 32 x 8, N = 4096; no bursts: 215.7
# Tokens on M. In pairs, for more tiles than SMs:
MORE = Config(tokens=128, tokens_on_m=True, cluster=2, burst=2, prefetch=2)  # 117.0 us for 8 x 128, N = K = 7168
MANY = Config(tokens=128, tokens_on_m=True, cluster=2, weights=256, prefetch=2)  # 205.4 us for 8 x 512, N = 4096
SEVERAL = dataclasses.replace(MANY, burst=2)  # 120.3 us for that of MORE, 210.7 for that of MANY; 32 x 64, N = 4096:
#                                               228.4, MORE 232.1, MANY 239.6
# Whole tiles for nearly every SM, so that none is cut. N = 7168 is 32 tiles of 224 rows:
FITTED = Config(tokens=128, tokens_on_m=True, weights=224, prefetch=2)  # 4 x 128, K = 2048: 20.6 us, SEVERAL 22.0
PAIRED = dataclasses.replace(SEVERAL, weights=224)  # 4 x 64, K = 7168: 53.6 us, SEVERAL 56.1, FITTED 55.6
# In brackets what was fastest with tiles of 128 rows:
WIDE = Config(tokens=128, tokens_on_m=True, weights=256, prefetch=2)  # 1 x 512, N = K = 7168: 44.9 us (49.6)
ALONE = Config(tokens=128, tokens_on_m=True, prefetch=2)  # 4 x 64, N = 4096: 31.9 us; MORE: 32.2
NARROW = Config(tokens=128, tokens_on_m=True, weights=64, prefetch=2)  # 1 x 128, N = 7168, K = 2048: 7.9 us
HALVED = dataclasses.replace(NARROW, halves=True)  # 1 x 128, N = 4096, K = 7168: 12.3 us, tiles of 32 rows 13.9 (17.1)
SPLIT = dataclasses.replace(HALVED, weights=112)  # 1 x 128, N = K = 7168: 17.7 us, NARROW 18.1 (21.4); K = 2048: 8.3
CONFIGS = FEW, MORE, MANY, SEVERAL, FITTED, PAIRED, WIDE, ALONE, NARROW, HALVED, SPLIT


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean; routed: they are uneven."""
    mean = -(-total_m // experts)
    if mean <= (8 if routed else 16):  # the layer's GEMM2 at T = 256: 108.1 us, SEVERAL 112.6; at 512: 126.8, 115.4
        return FEW
    tiles = experts * -(-mean // FITTED.tokens) * -(-n // FITTED.rows)
    rounds = -(-tiles // SMS)
    if rounds <= 4 and tiles > 0.95 * rounds * SMS:  # 8 x 512, N = K = 7168, 8 rounds: 366 us, MANY 361
        return FITTED if mean > 128 or k <= 2048 else PAIRED
    wide = (WIDE,) * (mean > 128 or k <= 2048)  # 4 x 64, N = K = 7168: 57.4 us, ALONE 57.0
    for config in (*wide, ALONE, *(SPLIT,) * (k > 4096), NARROW, HALVED):
        if config.one_each(SMS, total_m, n, experts):
            return config
    if mean > 128 or routed and mean > 96:  # the layer's GEMM2 at T = 4096: 166.3 us, SEVERAL 172.3, MORE 176.2
        return MANY
    if k <= 2048:
        return SEVERAL
    if mean <= 64 and experts * -(-n // ALONE.rows) < 2 * SMS:  # 512 tokens, N = 4096: all of one expert 26.0 us,
        return ALONE  # SEVERAL 31.3; evenly of 8 within 1 % of it
    # Tiles of 256 rows that are too few leave SMs idle; between one and two for each are cut
    tiles = experts * -(-n // SEVERAL.rows)
    return MORE if tiles < 0.8 * SMS or SMS < tiles < 2 * SMS else SEVERAL
