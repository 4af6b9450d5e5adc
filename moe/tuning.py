"""Which config of the kernel a problem runs on: measured on an H200, README.md.

FEW has most bytes in flight and the narrowest tiles, SOME half of a tile's tokens for half of the sums. ALONE and MORE
have tokens on the M side; MORE's clusters save a quarter of the traffic from L2, ALONE's CTAs share work more evenly.
"""

import functools

from moe.kernel import Config

SMS = 132
FEW = Config(tokens=16, burst=4, prefetch=2)
SOME = Config(tokens=64, cluster=2, prefetch=2)
MORE = Config(tokens=128, tokens_on_m=True, cluster=2, prefetch=2)
ALONE = Config(tokens=128, tokens_on_m=True, prefetch=2)
CONFIGS = FEW, SOME, MORE, ALONE
# By rows an expert has in the mean, at most; few: less than two tiles an SM
BEST = {
    "64 many": MORE,
    "64 few": ALONE,
    "128 many": MORE,
    "128 few": ALONE,
    "more many": MORE,
    "more few": ALONE,
}


@functools.lru_cache(maxsize=1024)
def choose(total_m: int, experts: int, n: int, k: int) -> Config:
    """The config for these sizes. Of the experts' sizes the host knows only the mean."""
    mean = -(-total_m // experts)
    if mean <= 16:
        return FEW
    size = "64" if mean <= 64 else "128" if mean <= 128 else "more"
    few = experts * -(-mean // 128) * (n // 128) < 2 * SMS
    return BEST[f"{size} {'few' if few else 'many'}"]
