"""Which config of the kernel a problem runs on, on a B200: modelled, worklog/moe.md. There was none to measure."""

import functools

from moe.kernel import Config
from moe.sm100 import FewTokens
from moe.sm100_pairs import Pairs
from moe.sm100_tokens import Tiles

SMS = 148
FEW = FewTokens(tokens=16, prefetch=2)  # weights on the lanes
# Tokens on the lanes
ALONE = Tiles(weights=128, prefetch=2)  # where SMs share tiles, the sums are half as many
HALVED = Tiles(weights=128, halves=True, prefetch=2)  # 1 x 64, N = K = 7168: 13.4 us, ALONE 15.0; K = 2048: 6.8, 9.1
THIN = Tiles(weights=64, halves=True, prefetch=2)  # 1 x 64, N = 4096, K = 7168: 11.1 us, ALONE 12.0
MORE = Tiles(prefetch=2)  # where at least three quarters of the SMs have a tile
FITTED = Tiles(weights=224, prefetch=2)  # N = 7168 is 32 of these: whole ones for 128 SMs, where MORE has them for 112
MANY = Pairs(prefetch=2)
CONFIGS = FEW, ALONE, HALVED, THIN, MORE, FITTED, MANY


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int, routed: bool = False) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean; routed: not looked at."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    if mean > 128:
        return MANY
    ctas = {config: experts * -(-n // config.rows) * (1 + config.halves) for config in (HALVED, THIN, MORE, FITTED)}
    if 4 * ctas[MORE] >= 3 * SMS:  # that of which an SM has the fewest rows
        return min(MORE, FITTED, key=lambda config: -(-ctas[config] // SMS) * config.rows)
    return next((config for config in (HALVED, THIN) if 3 * SMS <= 4 * ctas[config] <= 4 * SMS), ALONE)
