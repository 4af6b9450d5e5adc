"""Which kernel, and how many CTAs, a problem runs on on a B200."""

import pytest
import torch

from emulated_gpu.chip import CHIPS
from ragged_moe.kernels.block_scaled import W4A4, W4A8
from ragged_moe.kernels.config import SMEM, Config
from ragged_moe.layers.deepseek_layer import limited
from ragged_moe.layers.fp4_layer import BlockScaledLayer
from ragged_moe.layers.grouped_gemm_fp4 import require_packed_for
from ragged_moe.layers.grouped_gemm_fp8 import Launcher
from ragged_moe.runtime.sizes import Sizes
from ragged_moe.tuning.back_ends import tuning
from ragged_moe.tuning.sm100 import (
    FP4,
    FP4_BF16,
    FP4_GEMM1,
    GEMM,
    M16_SWAP_AB,
    M128_N64_SPLIT_K,
    M128_N128,
    M128_N128_SPLIT_K,
    M128_N224,
    M128_N256,
    M256_N256_2CTA,
    choose_gemm,
    tokens_on_m,
)


@pytest.mark.parametrize("local", [5, 128, 512])
def test_tokens_are_quantised_however_few_sms_the_gemms_have(local):
    """`sms` leaves what assign quantises by as it is: the lists alone may be more CTAs than such GEMMs have."""
    layer = object.__new__(BlockScaledLayer)
    layer.sizes, layer.form, layer.device = Sizes(local=local), W4A4, CHIPS["b200"]
    layer.sms = layer.device.sms
    of_all = layer.quantiser(9, False)
    assert limited(layer, 2).quantiser(9, False) == of_all and of_all.most >= 1


def test_choose():
    """Every config for some sizes; of wide tiles those of which an SM has the fewest rows."""
    assert choose_gemm(64, 8, 4096, 7168) == M16_SWAP_AB and choose_gemm(4096, 8, 7168, 7168) == M256_N256_2CTA
    assert choose_gemm(64, 1, 7168, 7168) == M128_N128_SPLIT_K and choose_gemm(64, 1, 4096, 7168) == M128_N64_SPLIT_K
    assert choose_gemm(128, 2, 7168, 7168) == M128_N128 and choose_gemm(512, 8, 4096, 7168) == M128_N256
    assert choose_gemm(512, 8, 7168, 2048) == choose_gemm(512, 4, 7168, 7168) == M128_N224
    seen = {M16_SWAP_AB, M128_N128, M128_N128_SPLIT_K, M128_N64_SPLIT_K, M128_N256, M128_N224, M256_N256_2CTA}
    assert seen == set(GEMM)


@pytest.mark.parametrize("config", (*GEMM, *FP4[W4A4], *FP4[W4A8], *FP4_GEMM1.values(), *FP4_BF16))
def test_shared_memory(config):
    """As many stages as fit, each where the tensor core's descriptors can say."""
    assert config.smem <= SMEM and config.stages >= 4 and config.stage_bytes % 1024 == 0


@pytest.mark.parametrize(
    "config, experts, m, n, ctas",
    [
        (M128_N256, 8, 64, 7168, 112),  # two tiles each
        (M128_N256, 8, 128, 4096, 128),  # one
        (M128_N256, 8, 129, 4096, 128),  # two
        (M128_N256, 1, 64, 7168, 148),  # 28 tiles: all SMs share them
        (M128_N256, 32, 64, 7168, 128),
        (M128_N224, 8, 64, 7168, 128),  # two
        (M128_N224, 1, 128, 25312, 114),  # 113, and one more for a whole number of clusters
        (M128_N128_SPLIT_K, 1, 64, 7168, 112),  # half of one
    ],
)
def test_ctas_have_whole_tiles(config, experts, m, n, ctas):
    assert config.grid(148, experts * m, n, experts) == ctas
    assert Config().grid(148, experts * m, n, experts) == 148


def test_ctas_are_for_the_rows_that_are_expected():
    """Not for all that there may be: of 32 experts' 64 rows each 128 CTAs have seven whole tiles."""
    made = object.__new__(Launcher)
    made.config = FP4[W4A4][0]
    words = [made.words(148, 16384, 7168, 2048, 32, *rows) for rows in ((), (2048,))]
    assert words[0][:5] == words[1][:5] and [x[5] for x in words] == [144, 128]


def test_tensor_cores_are_not_left_idle():
    """Neither for 112 tiles nor for 896."""
    assert [M256_N256_2CTA.grid(148, m, 7168, experts) for m, experts in ((512, 1), (4096, 8))] == [148, 148]


def test_tiles_refuse_what_they_are_not():
    for wrong in ({"block_n": 112}, {"block_n": 128, "split_k": 3}, {"block_n": 512}):
        with pytest.raises(AssertionError):
            tokens_on_m(**wrong)


@pytest.mark.parametrize("machine", sorted({*CHIPS} - {"h100", "h200", "b200"}))
def test_what_has_no_kernels_here_is_refused_in_a_sentence(machine):
    capability = CHIPS[machine].capability
    said = f"a is on a GPU of compute capability {capability}, but must be on one of (9, 0) or (10, 0)"
    for refuse in tuning, lambda of: require_packed_for(torch.Size((1, 128, 32)), of):
        with pytest.raises(ValueError) as refused:
            refuse(capability)
        assert str(refused.value) == said
