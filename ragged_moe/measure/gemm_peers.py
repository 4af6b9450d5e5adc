"""The peers of grouped_gemm_fp8, each a contestant on a row's operands; ImportError from those not installed.

What a peer needs padded or laid out otherwise is made beforehand; what it computes on padding is its own.
"""

import functools
from collections.abc import Callable

import torch

from ragged_moe.measure.contest import OURS, Contestant
from ragged_moe.measure.operands import Inputs
from ragged_moe.measure.rows import Row
from ragged_moe.runtime.sizes import BF16, E4M3, I32


def deep_gemm(masked: bool, row: Row, x: Inputs) -> Contestant:
    """Call DeepGEMM, whose experts' rows begin at multiples of 128.

    masked: the form in which each expert has room for as many rows as the largest has, not the contiguous one.
    """
    import deep_gemm

    experts, rooms = len(row.ms), [-(-m // 128) * 128 for m in row.ms]
    if masked:
        rooms = [max(rooms)] * experts
    places = torch.cat([sum(rooms[:e]) + torch.arange(m) for e, m in enumerate(row.ms)]).cuda()
    a = torch.zeros(sum(rooms), row.k, dtype=torch.uint8, device="cuda")
    scale = torch.zeros(sum(rooms), row.k // 128, device="cuda")
    a[places], scale[places] = x.a.view(torch.uint8), x.a_scale.T
    out, a = torch.empty(sum(rooms), row.n, dtype=BF16, device="cuda"), a.view(E4M3)
    if masked:
        a, scale, of_experts = [t.view(experts, rooms[0], -1) for t in (a, scale, out)]
        counts, mean = torch.tensor(row.ms, dtype=I32, device="cuda"), -(-row.total // experts)
        multiply, rest = deep_gemm.fp8_m_grouped_gemm_nt_masked, (of_experts, counts, mean)
    else:
        index = torch.arange(experts, dtype=I32).repeat_interleave(torch.tensor(rooms)).cuda()
        multiply, rest = deep_gemm.m_grouped_fp8_gemm_nt_contiguous, (out, index)
    operands = (a, deep_gemm.get_mn_major_tma_aligned_tensor(scale)), (x.b, x.b_scale)
    return Contestant(lambda: multiply(*operands, *rest), lambda: out[places], OURS)


def scaled_mm(row: Row, x: Inputs) -> Contestant:
    """Call torch._scaled_mm once for each expert that has rows."""
    operands = [
        (x.a[i:j], x.b[e].T, x.a_scale[:, i:j].contiguous().T, x.b_scale[e].T)
        for e, (i, j) in enumerate(zip(row.offsets, row.offsets[1:])) if j > i
    ]  # fmt: skip
    results = [None] * len(operands)

    def call():
        for i, (a, b, scale_a, scale_b) in enumerate(operands):
            results[i] = torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=BF16)

    return Contestant(call, lambda: torch.cat(results), OURS)


DEEP_GEMM = {f"DeepGEMM {form}": functools.partial(deep_gemm, form == "masked") for form in ("masked", "contiguous")}
PEERS: dict[str, Callable[[Row, Inputs], Contestant]] = {**DEEP_GEMM, "torch._scaled_mm": scaled_mm}
