"""Marlin, the peer of weights in NVFP4: `moe_wna16_marlin_gemm` as SGLang 0.5.23 ships it, compiled by its own JIT.

It makes weights bf16 in registers and multiplies by mma.sync, tokens bf16. It is run as SGLang's fused_marlin_moe runs
it: tokens sorted by expert and padded to blocks, f32 reduction, atomic adds, expert ids sorted. The layout of its
weights is that of https://github.com/IST-DASLab/marlin, of its scales SGLang's marlin_utils_fp4.

`load(folder)`: the folder that `unzip sglang-0.5.23-*.whl` filled. The rest of SGLang is not imported; needed are
apache-tvm-ffi, msgspec, nvcc and ninja, and two minutes.
"""

import functools
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ragged_moe.measure.sglang_files import enter
from ragged_moe.runtime.sizes import BF16, F32, I32

MARLIN, BEST = "Marlin", "Marlin, best block"  # with SGLang's block, and with the fastest, as records have them
BLOCKS = 8, 16, 32, 48, 64  # tokens of a block
E2M1_ID = 2 | 1 << 8 | 1 << 16 | 1 << 49  # SGLang's number of the type: 2 exponent bits, 1 mantissa bit, signed
PACKAGES = ("", ".kernels", ".kernels.ops", ".kernels.ops.moe", ".srt", ".srt.utils")


def load(folder: Path) -> Callable:
    """Return moe_wna16_marlin_gemm. ValueError if the folder has no SGLang; ImportError for what it needs."""
    common = {
        "is_cuda": lambda: True, "get_cuda_version": lambda: tuple(map(int, torch.version.cuda.split("."))),
    }  # fmt: skip
    enter(folder, ["sglang/kernels/ops/moe/moe_wna16_marlin.py"], PACKAGES, {"srt.utils.common": common})
    from sglang.kernels.ops.moe.moe_wna16_marlin import moe_wna16_marlin_gemm

    return moe_wna16_marlin_gemm


def weights(b: torch.Tensor, b_scale: torch.Tensor, b_global: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Marlin's form of uint8 [E, N, K/2], e4m3 [E, N, K/16] that are not negative, and f32 [E] that is multiplied:
    int32 [E, K/16, 2N], bytes [E, K/16, N] typed e4m3, bf16 [E].
    """
    packed = torch.stack([of_expert(x) for x in b])
    scales = torch.stack([scales_of(x) for x in b_scale])
    return packed, scales, (b_global * 2.0**119).to(BF16)


def of_expert(b: torch.Tensor) -> torch.Tensor:
    """Weights [N, K/2] as int32 [K/16, 2N]: tiles of 16 of K x 64 of N, in the order of mma.sync's operand."""
    n, half = b.shape
    codes = torch.stack((b & 15, b >> 4), -1).view(n // 64, 4, 2, 8, half // 8, 2, 4, 2)
    # n: tile, 16, 8, column; k: tile, 8, pair, number -> tiles, column, pair, 16 of n | of a word: number, 8 of n, of k
    codes = codes.permute(4, 0, 3, 6, 1, 7, 2, 5).reshape(half // 8, 2 * n, 8)
    word = torch.zeros(codes.shape[:2], dtype=torch.int64, device=b.device)
    for i in range(8):
        word |= codes[..., i].long() << 4 * i
    return word.to(I32)


def scales_of(scale: torch.Tensor) -> torch.Tensor:
    """Scales [N, K/16] as bytes [K/16, N] with 5 bits of exponent and no sign: the upper half of 2^8 times an f16."""
    half = scale.T.half().reshape(-1, 8, 8).transpose(1, 2).reshape(-1, 4)[:, [0, 2, 1, 3]]
    bits = (half * 2**7).view(torch.int16) << 1
    return bits.view(scale.dtype).view(*half.shape, 2)[..., 1].reshape(scale.T.shape).contiguous()


def own_block(rows: int, experts: int) -> int:
    """The block that SGLang's fused_marlin_moe chooses for this many rows in all."""
    return next((block for block in BLOCKS if rows / experts / block < 0.9), BLOCKS[-1])


def chosen(us: dict[str, float], rows: int, experts: int, mode: str = "") -> dict[str, float]:
    """Return the times by the block that SGLang chooses and by the fastest, of those by each. mode: behind its name."""
    of_blocks = {block: us[f"{MARLIN} {block}{mode}"] for block in BLOCKS}
    return {MARLIN: of_blocks[own_block(rows, experts)], BEST: min(of_blocks.values())}


class Rows:
    """The rows of each expert, padded to blocks, for a launch of Marlin. of_experts: their numbers, below `total`."""

    def __init__(self, of_experts: Sequence[Sequence[int]], block: int, total: int):
        self.block, ids, experts = block, [], []
        for e, rows in enumerate(of_experts):
            blocks = -(-len(rows) // block)
            ids += [*rows, *[total] * (blocks * block - len(rows))]
            experts += [e] * blocks
        self.ids = torch.tensor(ids, dtype=I32, device="cuda")
        self.experts = torch.tensor(experts, dtype=I32, device="cuda")
        self.padded = torch.tensor([len(ids)], dtype=I32, device="cuda")
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.workspace = torch.zeros(4 * sms, dtype=I32, device="cuda")


def multiply(
    gemm: Callable, a: torch.Tensor, of: tuple, rows: Rows, out: torch.Tensor, top_k: int = 1, weights=None
) -> None:
    """out[r] = a[r // top_k] times the weights of r's expert, and times weights[r] if they are given.

    of: what `marlin.weights` returned.
    """
    packed, scales, of_experts = of
    gemm(
        a, out, packed, None, scales, of_experts, None, None, None, rows.workspace, rows.ids, rows.experts, rows.padded,
        ones(len(out)) if weights is None else weights, moe_block_size=rows.block, top_k=top_k,
        mul_topk_weights=weights is not None, is_ep=False, expert_ids_are_sorted=True,
        b_q_type=types.SimpleNamespace(id=E2M1_ID), size_m=len(a), size_n=out.shape[1], size_k=a.shape[1],
        use_atomic_add=True, use_fp32_reduce=True,
    )  # fmt: skip


@functools.cache
def ones(count: int) -> torch.Tensor:
    """Weights that are asked for where none are used."""
    return torch.ones(count, dtype=F32, device="cuda")
