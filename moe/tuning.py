"""Which config of the kernel a problem runs on: measured on an H200, README.md."""

import functools

from moe.kernel import Config

SMS = 132
FEW = Config(tokens=16, burst=4, prefetch=2)  # most bytes in flight; 213.6 us for 32 x 8, N = 4096; no bursts: 215.7
MORE = Config(tokens=128, tokens_on_m=True, cluster=2, prefetch=2)  # 272.9 us for 32 x 128, N = 4096; ALONE: 285.7
ALONE = Config(tokens=128, tokens_on_m=True, prefetch=2)  # 117.6 us for 8 x 512, N = 7168, K = 2048; MORE: 122.0
CONFIGS = FEW, MORE, ALONE


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    tiles = experts * -(-mean // 128) * (n // 128)
    return MORE if mean <= 128 and tiles >= 2 * SMS else ALONE
