"""Which kernel, and how many CTAs, a problem runs on on a B200."""

import pytest

from moe.kernel import SMEM, Config
from moe.sm100_tokens import Tiles
from moe.tuning_sm100 import ALONE, CONFIGS, FEW, FITTED, HALVED, MANY, MORE, THIN, choose


def test_choose():
    """Every config for some sizes; of wide tiles those of which an SM has the fewest rows."""
    assert choose(64, 8, 4096, 7168) == FEW and choose(4096, 8, 7168, 7168) == MANY
    assert choose(64, 1, 7168, 7168) == HALVED and choose(64, 1, 4096, 7168) == THIN
    assert choose(128, 2, 7168, 7168) == ALONE
    assert choose(512, 8, 4096, 7168) == MORE and choose(512, 8, 7168, 2048) == choose(512, 4, 7168, 7168) == FITTED
    assert {FEW, ALONE, HALVED, THIN, MORE, FITTED, MANY} == set(CONFIGS)


@pytest.mark.parametrize("config", CONFIGS)
def test_shared_memory(config):
    """As many stages as fit, each where the tensor core's descriptors can say."""
    assert config.smem <= SMEM and config.depth >= 4 and config.stage_bytes % 1024 == 0


@pytest.mark.parametrize(
    "config, experts, m, n, ctas",
    [
        (MORE, 8, 64, 7168, 112),  # two tiles each
        (MORE, 8, 128, 4096, 128),  # one
        (MORE, 8, 129, 4096, 128),  # two
        (MORE, 1, 64, 7168, 148),  # 28 tiles: all SMs share them
        (MORE, 32, 64, 7168, 128),
        (FITTED, 8, 64, 7168, 128),  # two
        (FITTED, 1, 128, 25312, 114),  # 113, and one more for a whole number of clusters
        (HALVED, 1, 64, 7168, 112),  # half of one
    ],
)
def test_ctas_have_whole_tiles(config, experts, m, n, ctas):
    assert config.grid(148, experts * m, n, experts) == ctas
    assert Config().grid(148, experts * m, n, experts) == 148


def test_tensor_cores_are_not_left_idle():
    """Neither for 112 tiles nor for 896."""
    assert MANY.grid(148, 512, 7168, 1) == MANY.grid(148, 4096, 7168, 8) == 148


def test_tiles_refuse_what_they_are_not():
    for wrong in ({"weights": 112}, {"tokens": 64}, {"tokens_on_m": False}):
        with pytest.raises(AssertionError):
            Tiles(**wrong)
