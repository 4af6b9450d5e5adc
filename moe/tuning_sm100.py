"""Which config of the kernel a problem runs on, on a B200: modelled, README.md. There was none to measure."""

import functools

from moe.kernel import Config
from moe.sm100 import FewTokens
from moe.sm100_pairs import Pairs
from moe.sm100_tokens import Tiles

SMS = 148
FEW = FewTokens(tokens=16, prefetch=2)  # weights on the lanes
ALONE = Tiles(weights=128, prefetch=2)  # tokens on the lanes; where SMs share tiles, the sums are half as many
MORE = Tiles(prefetch=2)  # where at least three quarters of the SMs have a tile
MANY = Pairs(prefetch=2)
CONFIGS = FEW, ALONE, MORE, MANY


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean; routed: not looked at."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    if mean > 128:
        return MANY
    return MORE if 4 * experts * -(-n // 256) >= 3 * SMS else ALONE
