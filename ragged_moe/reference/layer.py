"""These functions compute what the DeepSeek-V3 MoE layer in FP8 (ragged_moe.runtime.sizes) and each of its stages must
give."""

import torch

from ragged_moe.reference.grouped_gemm import BLOCK_K, reference
from ragged_moe.runtime.sizes import (
    BF16,
    E4M3,
    EXPERTS,
    F32,
    GROUP,
    GROUPS,
    LARGEST,
    PRUNED,
    TOP_GROUPS,
    TOP_K,
    Inputs,
    Sizes,
)


def draw(sizes: Sizes, tokens: int, seed: int = 0, offset: int = 0, device: str = "cpu") -> Inputs:
    """Draw inputs as the definition's workloads have them: randn clamped to +-2 in e4m3, scales randn, of any sign.

    The workloads' real logits are not public; these are randn, with a bias of randn / 32.
    """
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, device=device, generator=g)

    def fp8(*shape):
        x = torch.empty(shape, dtype=E4M3, device=device)
        for part in x if len(shape) == 3 else [x]:  # an expert at a time: the f32 numbers of all would be large
            part.copy_(normal(*part.shape).clamp_(-2, 2))
        return x

    h, i, e = sizes.hidden, sizes.intermediate, sizes.local
    return Inputs(
        normal(tokens, EXPERTS), (normal(EXPERTS) / 32).to(BF16), fp8(tokens, h), normal(h // 128, tokens),
        fp8(e, 2 * i, h), normal(e, 2 * i // 128, h // 128), fp8(e, h, i), normal(e, h // 128, i // 128), offset,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- routing


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices [.., count] of the largest along the last dimension: NaN above all, of equals the first.

    So does torch.topk on a GPU (ATen/native/cuda/TensorTopK.cu: what is above the k-th value, then of what equals it
    the first ones); on a CPU it promises nothing.
    """
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :count]


def route(logits: torch.Tensor, bias: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (chosen, weights): the experts of each token, int64 [T, 8] ascending, and their weights, f32 [T, 8].

    logits f32 [T, 256], bias bf16 [256]. A token's weights sum to `factor` over all eight, local or not.
    """
    tokens = logits.shape[0]
    s = 1 / (1 + torch.exp(-logits.float()))
    b = s + bias.float()
    grouped = b.view(tokens, GROUPS, GROUP)
    best = grouped.gather(2, largest(grouped, 2)).sum(2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, largest(best, TOP_GROUPS), True)
    pruned = b.masked_fill(~kept.repeat_interleave(GROUP, 1), PRUNED)
    chosen = largest(pruned, TOP_K).sort(1).values
    of_chosen = s.gather(1, chosen)
    return chosen, of_chosen / (of_chosen.sum(1, keepdim=True) + 1e-20) * factor


def lists(chosen: torch.Tensor, offset: int, local: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (m_indptr, rows, places): the local experts' rows, by expert, then by token.

    m_indptr int32 [local + 1]; rows int32 [m_indptr[-1]]: the token of each row; places int32 [T, 8]: the rows of each
    token by ascending expert, then -1.
    """
    tokens = chosen.shape[0]
    here = torch.zeros(tokens, EXPERTS + local, dtype=torch.bool, device=chosen.device).scatter_(1, chosen, True)
    here = here[:, offset : offset + local]
    row = here.T.flatten().cumsum(0).view(local, tokens).T - 1  # rows are numbered by expert, then by token
    ends = here.sum(0).cumsum(0)
    order = torch.where(here, torch.arange(local, device=chosen.device), local).sort(1).indices[:, :TOP_K]
    places = torch.full((tokens, TOP_K), -1, dtype=torch.int64, device=chosen.device)
    width = min(local, TOP_K)
    places[:, :width] = torch.where(here, row, -1).gather(1, order[:, :width])
    rows = here.T.nonzero()[:, 1]
    m_indptr = torch.cat([ends.new_zeros(1), ends])
    return m_indptr.int(), rows.int(), places.int()


# --------------------------------------------------------------------------------------------------------------- layer


def dequantised(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return values [.., n, k] times scales [.., n or n/128, k/128] in float64, rounded to f32 as in the definition."""
    scale = scale.repeat_interleave(BLOCK_K, -1)
    if scale.shape[-2] != x.shape[-2]:
        scale = scale.repeat_interleave(128, -2)
    return (x.float() * scale).double()


def layer(x: Inputs) -> torch.Tensor:
    """Return the definition's result, float64 [T, H], without the roundings of its f32 arithmetic and the one to bf16.

    The product silu(gate) * up is not quantised.
    """
    sizes, offset = x.sizes, x.local_expert_offset
    chosen, weights = route(x.routing_logits, x.routing_bias, x.routed_scaling_factor)
    a = dequantised(x.hidden_states, x.hidden_states_scale.T)
    out = torch.zeros(a.shape, dtype=torch.float64, device=a.device)
    for e in range(sizes.local):
        token, slot = (chosen == offset + e).nonzero(as_tuple=True)
        if len(token):
            up, gate = (a[token] @ dequantised(x.gemm1_weights[e], x.gemm1_weights_scale[e]).T).chunk(2, 1)
            o = (torch.nn.functional.silu(gate) * up) @ dequantised(x.gemm2_weights[e], x.gemm2_weights_scale[e]).T
            out.index_add_(0, token, o * weights[token, slot, None].double())
    return out


def product(x: Inputs, rows: torch.Tensor, m_indptr: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of each row, f32 [rows, I]: gate and up by `reference`, their product in float64."""
    a, scale = x.hidden_states.view(torch.uint8)[rows.long()].view(E4M3), x.hidden_states_scale[:, rows.long()]
    g = reference(a, scale, x.gemm1_weights, x.gemm1_weights_scale, m_indptr).double()
    up, gate = g.chunk(2, 1)
    return (torch.nn.functional.silu(gate) * up).float()


def quantised(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return c f32 [rows, I] as (values e4m3 [rows, I], scales f32 [I/128, rows]).

    The largest magnitude of 128 columns becomes 448: scale = largest * (1/448), value = c * (448 / largest), each
    rounded to f32, in that order; blocks of zeros have scale 0.
    """
    blocks = c.view(c.shape[0], c.shape[1] // BLOCK_K, BLOCK_K)
    most = blocks.abs().amax(2)
    inverse = torch.where(most > 0, torch.full_like(most, LARGEST) / most, 0)  # a number / most is 1 / most, times it
    values = (blocks * inverse[..., None]).clamp(-LARGEST, LARGEST).to(E4M3)
    return values.view(c.shape), (most * torch.tensor(1 / LARGEST, dtype=F32)).T.contiguous()


def combined(o: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of each token's rows of o [rows, H] times its weights [T, 8], by fma, in order: bf16 [T, H]."""
    out = torch.zeros(places.shape[0], o.shape[1], dtype=F32, device=o.device)
    for j in range(TOP_K):
        used = places[:, j] >= 0
        row, weight = o[places[used, j].long()].double(), weights[used, j, None].double()
        out[used] = (row * weight + out[used].double()).float()
    return out.to(BF16)


def local_weights(chosen: torch.Tensor, weights: torch.Tensor, offset: int, local: int) -> torch.Tensor:
    """Return the weights that belong to `places`, f32 [T, 8]: those of local experts first, then 0."""
    here = (chosen >= offset) & (chosen < offset + local)
    order = (~here).to(torch.int8).sort(dim=1, stable=True).indices
    return torch.where(here, weights, 0).gather(1, order)


def quantised_layer(x: Inputs) -> torch.Tensor:
    """Return what the kernels compute, stage by stage, bf16 [T, H], without the tensor cores' own rounding."""
    sizes, offset = x.sizes, x.local_expert_offset
    chosen, weights = route(x.routing_logits, x.routing_bias, x.routed_scaling_factor)
    m_indptr, rows, places = lists(chosen, offset, sizes.local)
    values, scales = quantised(product(x, rows, m_indptr))
    o = reference(values, scales, x.gemm2_weights, x.gemm2_weights_scale, m_indptr).to(BF16)
    return combined(o, places, local_weights(chosen, weights, offset, sizes.local))


# ---------------------------------------------------------------------------------------------------------- tolerances


def matched(out: torch.Tensor, expected: torch.Tensor, atol: float = 1.0, rtol: float = 0.3) -> float:
    """Return the share of elements within the contest's tolerance, which must be 0.9; 0 if any is infinite or NaN.

    An element fails if it is off by more than atol and by more than rtol times the expected one:
    flashinfer_bench/bench/utils.py.
    """
    if not out.isfinite().all():
        return 0.0
    off = (out.double() - expected.double()).abs()
    bad = (off > atol) & (off > rtol * (expected.double().abs() + 1e-8))
    return 1 - bad.double().mean().item() if out.numel() else 1.0


def distance(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of what is expected."""
    if not out.numel():
        return 0.0
    return ((out.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-300)).item()
