"""Which config of the kernel a problem runs on: measured on an H200, README.md."""

import functools

from moe.kernel import Config

SMS = 132
FEW = Config(tokens=16, burst=4, prefetch=2)  # most bytes in flight; 213.6 us for 32 x 8, N = 4096; no bursts: 215.7
MORE = Config(tokens=128, tokens_on_m=True, cluster=2, prefetch=2)  # 283.7 us for 32 x 128, N = 4096; ALONE: 302.9
ALONE = Config(tokens=128, tokens_on_m=True, prefetch=2)  # 17.3 us for 1 x 128, N = 4096; MORE: 17.8, MANY: 24.2
MANY = Config(tokens=128, tokens_on_m=True, cluster=2, weights=256, prefetch=2)  # 380.8 us for 8 x 512; ALONE: 401.7
SHORT = Config(tokens=64, burst=2, prefetch=2)  # 9.3 us for 1 x 128, N = 7168, K = 2048; ALONE, cut tiles: 12.0
CONFIGS = FEW, MORE, ALONE, MANY, SHORT


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    blocks = experts * (n // 128)
    if 64 < mean <= 128 and k <= 2048 and 0.8 * SMS < 2 * blocks <= SMS:  # a whole tile of 64 tokens for each SM
        return SHORT
    if blocks * -(-mean // 128) < 2 * SMS:
        return ALONE
    return MORE if mean <= 128 else MANY
