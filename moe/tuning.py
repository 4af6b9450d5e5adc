"""Which config of the kernel a problem runs on: measured on an H200, README.md."""

import dataclasses
import functools

from moe.kernel import Config

SMS = 132
FEW = Config(tokens=16, burst=4, prefetch=2)  # most bytes in flight; 213.6 us for 32 x 8, N = 4096; no bursts: 215.7
# Tokens on M. In pairs, for more tiles than SMs:
MORE = Config(tokens=128, tokens_on_m=True, cluster=2, prefetch=2)  # 253.0 us for 32 x 128, N = 4096; MANY: 259.9
MANY = Config(tokens=128, tokens_on_m=True, cluster=2, weights=256, prefetch=2)  # 355.7 us for 8 x 512; MORE: 388.6
SEVERAL = dataclasses.replace(MANY, burst=2)  # 35.6 us for 8 x 64, K = 2048; MANY: 36.5, MORE: 37.3
# A whole tile for nearly every SM, so that none is cut; in brackets what was fastest with tiles of 128 rows:
WIDE = Config(tokens=128, tokens_on_m=True, weights=256, prefetch=2)  # 1 x 512, N = K = 7168: 44.9 us (49.6)
ALONE = Config(tokens=128, tokens_on_m=True, prefetch=2)  # 4 x 64, N = 4096: 31.9 us; MORE: 32.2
NARROW = Config(tokens=128, tokens_on_m=True, weights=64, prefetch=2)  # 1 x 128, N = K = 7168: 17.7 us (21.4)
THIN = Config(tokens=128, tokens_on_m=True, weights=32, prefetch=2)  # 1 x 128, N = 4096, K = 7168: 14.0 us (17.1)
CONFIGS = FEW, MORE, MANY, SEVERAL, WIDE, ALONE, NARROW, THIN


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean; routed: they are uneven."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    wide = (WIDE,) * (mean > 128 or k <= 2048)  # 4 x 64, N = K = 7168: 57.4 us, with tiles that are cut 54.8
    for config in (*wide, ALONE, NARROW, THIN):
        if config.one_each(SMS, total_m, n, experts):
            return config
    if mean > 128 or routed and mean > 96:  # the layer's GEMM2 at T = 4096: 185.2 us, SEVERAL 188.5, MORE 195.4
        return MANY
    if k <= 2048:
        return SEVERAL
    return ALONE if mean <= 64 and experts * -(-n // 128) < 2 * SMS else MORE  # 4 x 64, N = K = 7168: 54.8 us, 55.1
