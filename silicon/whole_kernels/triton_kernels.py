"""Kernels in Triton whose tiles are too small for wgmma, so that their products are mma.sync: a GEMM and attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn, "s8": torch.int8,
}  # fmt: skip


@triton.jit
def gemm(a, b, c, n, k, TILE: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr):
    """A tile of C [m, n] = A [m, k] B^T, B [n, k]. TILE: of M, N, K; SUM: the accumulator's type."""
    M: tl.constexpr = TILE[0]
    N: tl.constexpr = TILE[1]
    K: tl.constexpr = TILE[2]
    rows, inner = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, K)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    at_a, at_b = a + rows[:, None] * k + inner[None, :], b + columns[None, :] * k + inner[:, None]
    total = tl.zeros((M, N), SUM)
    for _ in tl.range(0, k, K, num_stages=STAGES):
        total = tl.dot(tl.load(at_a), tl.load(at_b), total, out_dtype=SUM)
        at_a += K
        at_b += K
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def attention(q, k, v, o, queries, keys, TILE: tl.constexpr, STAGES: tl.constexpr):
    """Queries of a head over all of its keys, [heads, queries or keys, D], with a running maximum and sum.

    TILE: queries, keys, D.
    """
    Q: tl.constexpr = TILE[0]
    K: tl.constexpr = TILE[1]
    D: tl.constexpr = TILE[2]
    head, rows, inner, d = tl.program_id(1), tl.program_id(0) * Q + tl.arange(0, Q), tl.arange(0, K), tl.arange(0, D)
    mine = tl.load(q + head * queries * D + rows[:, None] * D + d[None, :])
    at_k = k + head * keys * D + inner[None, :] * D + d[:, None]
    at_v = v + head * keys * D + inner[:, None] * D + d[None, :]
    most, all_of = tl.full((Q,), -float("inf"), tl.float32), tl.zeros((Q,), tl.float32)
    out = tl.zeros((Q, D), tl.float32)
    for _ in tl.range(0, keys, K, num_stages=STAGES):
        scores = tl.dot(mine, tl.load(at_k))
        now = tl.maximum(most, tl.max(scores, 1))
        weights, kept = tl.exp2(scores - now[:, None]), tl.exp2(most - now)
        out = tl.dot(weights.to(v.dtype.element_ty), tl.load(at_v), out * kept[:, None])
        all_of, most = all_of * kept + tl.sum(weights, 1), now
        at_k += K * D
        at_v += K * D
    tl.store(o + head * queries * D + rows[:, None] * D + d[None, :], (out / all_of[:, None]).to(o.dtype.element_ty))


def launch(options: dict[str, str]) -> list[torch.Tensor]:
    """Launches a kernel once: --of gemm|attention, --type, --tile (three sizes), --warps, --stages, --mnkl.

    Of attention M, N, K and L are queries, keys, the width of a head and heads. Returns its operands.
    """
    m, n, k, heads = map(int, options["--mnkl"].split(","))
    tile = tuple(map(int, options["--tile"].split(",")))
    kind, warps, stages = TYPES[options["--type"]], int(options["--warps"]), int(options["--stages"])
    empty = lambda *shape, dtype=kind: torch.empty(shape, dtype=dtype, device="cuda")  # noqa: E731
    if options["--of"] == "attention":
        operands = [empty(heads, m, k), empty(heads, n, k), empty(heads, n, k), empty(heads, m, k)]
        attention[m // tile[0], heads](*operands, m, n, (*tile[:2], k), stages, num_warps=warps)
        return operands
    whole = kind is torch.int8
    operands = [empty(m, k), empty(n, k), empty(m, n, dtype=torch.int32 if whole else torch.float16)]
    total = tl.int32 if whole else tl.float32
    gemm[m // tile[0], n // tile[1]](*operands, n, k, tile, stages, total, num_warps=warps)
    return operands
