"""The table of back ends: which GPU and which config get which kernel, composed of which roles.

    kernel                        loads              scales                 mainloop        epilogue
    sm90  GEMM,  swap-AB          TMA (multicast)    multiplied by 3 warps  wgmma           bf16
    sm90  GEMM,  tokens on M      TMA (multicast)    copied by cp.async     wgmma           bf16
    sm90  GEMM,  e2m1 weights     TMA                with the weights       wgmma           times b_global, bf16
    sm90  GEMM,  e2m1 by e4m3     TMA                with the weights       wgmma           row scales, bf16
    sm90  GEMM,  bf16             TMA (multicast)    -                      wgmma           bf16
    sm90  GEMM1, bf16             TMA (multicast)    -                      wgmma           SwiGLU, bf16
    sm90  GEMM1, swap-AB          TMA, gather        gather warps           wgmma, gated    SwiGLU, e4m3
    sm90  GEMM1, tokens on M      TMA (multicast)    copied by cp.async     wgmma           SwiGLU, e4m3
    sm90  GEMM1, e2m1 weights     TMA                with the weights       wgmma           times b_global, SwiGLU, bf16
    sm90  GEMM1, e2m1 by e4m3     TMA                with the weights       wgmma           row scales, SwiGLU, bf16
    sm100 GEMM,  swap-AB          TMA                multiplied by 2 warps  tcgen05         bf16
    sm100 GEMM,  tokens on M      TMA                copied by cp.async     tcgen05         bf16
    sm100 GEMM,  2-CTA            TMA, 2 CTAs        copied by cp.async     tcgen05, 2-CTA  bf16
    sm100 GEMM1, swap-AB          TMA, gather        gather warps           tcgen05, gated  SwiGLU, e4m3
    sm100 GEMM1, tokens on M      TMA, gather        gather warps           tcgen05         SwiGLU, e4m3
    sm100 GEMM,  e2m1 weights     TMA                with the weights       registers,      times b_global, bf16
                                                                            tcgen05
    sm100 GEMM1, e2m1 weights     TMA                with the weights       the same        times b_global, SwiGLU, bf16
    sm100 GEMM,  block scales     TMA                TMA, 2 warps           tcgen05, scaled f32 scales, bf16
    sm100 GEMM1, block scales     TMA, gather        TMA, 2 gather warps    tcgen05, scaled f32 scales, SwiGLU, blocks

With a scale a weight row (channels) an epilogue of e4m3 weights multiplies by it first, and no mainloop by weights'
scales. Block scales: e2m1 weights by e2m1 tokens (W4A4), or by e4m3 ones (W4A8).
"""

from collections.abc import Callable
from typing import NamedTuple

from ragged_moe.kernels.arguments import (
    Bf16Arguments,
    BlockScaledArguments,
    Fp4Arguments,
    Gemm1Arguments,
    GroupedGemmArguments,
)
from ragged_moe.kernels.config import Config
from ragged_moe.kernels.epilogue import bf16, block_scaled, swiglu_bf16, swiglu_fp8
from ragged_moe.kernels.epilogue.channel_scales import ChannelScaled
from ragged_moe.kernels.frame import GroupedGemm
from ragged_moe.kernels.gather import GatheredTokens, GatheredTokenTiles
from ragged_moe.kernels.loads import (
    BlockScaledLoads,
    Fp4Loads,
    GatedMulticastLoads,
    MulticastLoads,
    TmaLoads,
    TwoCtaLoads,
)
from ragged_moe.kernels.scales import CopiedScales, MultipliedScales, NoScales
from ragged_moe.kernels.sm90 import bf16_operands as sm90_bf16
from ragged_moe.kernels.sm90 import fp4_by_e4m3 as sm90_fp4_e4m3
from ragged_moe.kernels.sm90 import fp4_weights as sm90_fp4
from ragged_moe.kernels.sm90 import swap_ab_to_16_tokens as sm90_swap_ab
from ragged_moe.kernels.sm90 import tail as sm90_tail
from ragged_moe.kernels.sm90 import tokens_m_from_17_tokens as sm90_tokens_m
from ragged_moe.kernels.sm100 import fp4_weights as sm100_fp4
from ragged_moe.kernels.sm100 import swap_ab_to_16_tokens as sm100_swap_ab
from ragged_moe.kernels.sm100 import tokens_m_from_17_tokens as sm100_tokens_m
from ragged_moe.kernels.sm100 import two_cta_from_129_tokens as sm100_two_cta
from ragged_moe.kernels.sm100.fp4_issue import Fp4MmaIssue
from ragged_moe.kernels.sm100.fp4_tensor_memory import Fp4TensorMemory
from ragged_moe.kernels.sm100.issue import MmaIssue
from ragged_moe.kernels.sm100.scaled_issue import ScaledMmaIssue
from ragged_moe.kernels.sm100.scaled_tensor_memory import ScaledTensorMemory
from ragged_moe.kernels.sm100.scaled_tokens_m import ScaledTokensM
from ragged_moe.kernels.sm100.tensor_memory import TensorMemory
from ragged_moe.kernels.sm100.token_scales import TokenScales
from ragged_moe.tuning import sm90, sm100


def gemm_loads(config: Config):
    """TMA loads of weights and tokens: each CTA its own, or half of what two share."""
    return (TmaLoads if config.cluster == 1 else MulticastLoads)(config)


def bf16_of_blocks(config: Config):
    """The epilogue of results in bf16 of operands with block scales: of a grouped GEMM, or of the layer's GEMM2."""
    return (block_scaled.Bf16TmemOfLayer if config.slots else block_scaled.Bf16TmemBlockScaled)(config)


class Roles(NamedTuple):
    """A row of the table: the constructors of a kernel's roles."""

    loads: Callable
    scales: Callable
    mainloop: Callable
    epilogue: Callable


# By (arch, gated, swap_ab, two_cta) of the config
KERNELS = {
    ("sm90", False, True, False):
        Roles(gemm_loads, MultipliedScales, sm90_swap_ab.SwapAB, bf16.Bf16WgmmaSwapAB),
    ("sm90", False, False, False):
        Roles(gemm_loads, CopiedScales, sm90_tokens_m.TokensM, bf16.Bf16WgmmaTokensM),
    ("sm90", True, True, False):
        Roles(TmaLoads, GatheredTokens, sm90_swap_ab.SwapAB, swiglu_fp8.SwigluWgmmaSwapAB),
    ("sm90", True, False, False):
        Roles(GatedMulticastLoads, CopiedScales, sm90_tokens_m.TokensM, swiglu_fp8.SwigluWgmmaTokensM),
    ("sm100", False, True, False):
        Roles(TmaLoads, MultipliedScales, sm100_swap_ab.SwapAB, bf16.Bf16TmemSwapAB),
    ("sm100", False, False, False):
        Roles(TmaLoads, CopiedScales, sm100_tokens_m.TokensM, bf16.Bf16TmemTokensM),
    ("sm100", False, False, True):
        Roles(TwoCtaLoads, CopiedScales, sm100_two_cta.TwoCta, bf16.Bf16TmemTokensM),
    ("sm100", True, True, False):
        Roles(TmaLoads, GatheredTokens, sm100_swap_ab.SwapAB, swiglu_fp8.SwigluTmemSwapAB),
    ("sm100", True, False, False):
        Roles(TmaLoads, GatheredTokenTiles, sm100_tokens_m.TokensM, swiglu_fp8.SwigluTmemTokensM),
}  # fmt: skip


# Mainloops of weights in e2m1, by arch, and whether tokens are in e4m3
FP4 = {
    ("sm90", False): sm90_fp4.Fp4Weights,
    ("sm90", True): sm90_fp4_e4m3.Fp4ByE4m3,
    ("sm100", False): sm100_fp4.Fp4Weights,
}


# Of weights in bf16, by gated and swap_ab
BF16 = {
    (False, True): Roles(gemm_loads, NoScales, sm90_bf16.Bf16SwapAB, bf16.Bf16WgmmaSwapAB),
    (False, False): Roles(gemm_loads, NoScales, sm90_bf16.Bf16TokensM, bf16.Bf16WgmmaTokensM),
    (True, True): Roles(TmaLoads, NoScales, sm90_bf16.Bf16SwapAB, swiglu_bf16.SwigluWgmmaBf16),
    (True, False): Roles(GatedMulticastLoads, NoScales, sm90_bf16.Bf16TokensM, swiglu_bf16.SwigluWgmmaBf16),
}


def roles_of(config: Config) -> Roles:
    """The row of the table for a config."""
    if config.block_scaled:
        epilogue = block_scaled.SwigluTmemBlockScaled if config.gated else bf16_of_blocks
        return Roles(BlockScaledLoads, TokenScales, ScaledTokensM, epilogue)
    if config.fp4_tokens:
        epilogue = swiglu_bf16.swiglu if config.gated else bf16.Bf16WgmmaFp4
        return Roles(Fp4Loads, NoScales, FP4[config.arch, config.fp4_tokens == "e4m3"], epilogue)
    if config.bf16:
        return BF16[config.gated, config.swap_ab]
    return KERNELS[config.arch, config.gated, config.swap_ab, config.two_cta]


def kernel(config: Config) -> GroupedGemm:
    """The kernel for a config, composed of its roles."""
    roles, arguments = roles_of(config), Gemm1Arguments if config.gated else GroupedGemmArguments
    memory, issue_of = TensorMemory, MmaIssue
    if config.block_scaled:
        arguments, memory, issue_of = BlockScaledArguments, ScaledTensorMemory, ScaledMmaIssue
    elif config.fp4_tokens:
        arguments, memory, issue_of = Fp4Arguments, Fp4TensorMemory, Fp4MmaIssue
    elif config.bf16:
        arguments = Bf16Arguments
    epilogues = [*map(roles.epilogue, config.loops)]
    if config.channels:
        epilogues = [ChannelScaled(config, epilogues[0])]
    tmem, issue = (), None
    if config.arch == "sm100":
        tmem = (memory(config),)
        issue = issue_of(config, *tmem)
    mainloops = [roles.mainloop(x, *tmem) for x in config.loops]
    if config.tail:
        mainloops.append(sm90_tail.Tail(config))
    of_config = arguments(config), roles.loads(config), roles.scales(config)
    return GroupedGemm(config, *of_config, mainloops, epilogues, issue)


TUNING = {(9, 0): sm90, (10, 0): sm100}


def tuning(capability: tuple[int, int]):
    """The module with the configs of GPUs of this compute capability: GEMM, GEMM1, choose_gemm, choose_gemm1.

    ValueError if there are none.
    """
    if capability not in TUNING:
        known = " or ".join(map(str, TUNING))
        raise ValueError(f"a is on a GPU of compute capability {capability}, but must be on one of {known}")
    return TUNING[capability]
