"""Which config of the kernel a problem runs on.

Measured on an H200 (README.md): most bytes in flight and the narrowest token tile where memory binds; where the tensor
cores do, 256 weight rows a CTA, so that two thirds of the bytes of 128-row tiles go from L2 to the SMs.
"""

import functools

from moe.kernel import Config

SMS = 132
FEW = Config(
    tokens=16, burst=4, prefetch=2
)  # 213.6 us for 32 experts x 8 rows, N = 4096, K = 7168; without burst 215.7
SOME = Config(tokens=64, cluster=2, prefetch=2)  # 63.1 us for 8 x 64; without cluster 63.9
MORE = Config(tokens=128, cluster=2, prefetch=2, in_turn=True)  # 72.0 us for 8 x 128; without cluster 74.7
MANY = Config(tokens=128, blocks=2, in_turn=True)  # 401 us for 8 x 512, N = K = 7168; not in turn 414
SMALL = Config(tokens=128, in_turn=True)  # as MANY, where its tiles would leave SMs without work
CONFIGS = FEW, SOME, MORE, MANY, SMALL


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean."""
    mean = -(-total_m // experts)
    for most, config in ((16, FEW), (64, SOME), (128, MORE)):
        if mean <= most:
            return config
    waves = {config: -(-experts * -(-mean // 128) * -(-n // config.rows) // SMS) for config in (MANY, SMALL)}
    return MANY if waves[MANY] < 0.53 * waves[SMALL] else SMALL  # a tile of SMALL takes a little more than half as long
