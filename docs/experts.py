"""Multiplies tokens of four experts by their FP8 weights, on this GPU (Hopper or Blackwell), else an emulated H200."""

import torch

import emulated_gpu

GPU = torch.cuda.is_available()
if not GPU:
    emulated_gpu.install("h200")  # before CuTe DSL is imported

from ragged_moe import grouped_gemm_fp8  # noqa: E402

TOKENS, N, K = (5, 0, 17, 3), 256, 256  # tokens of each expert: any number, also none

torch.manual_seed(0)
rows, experts = sum(TOKENS), len(TOKENS)
operands = (
    torch.randn(rows, K).to(torch.float8_e4m3fn),
    torch.rand(K // 128, rows),  # a factor for every token and 128 columns
    torch.randn(experts, N, K).to(torch.float8_e4m3fn),
    torch.rand(experts, N // 128, K // 128),  # a factor for every 128 x 128 weights
    torch.tensor([0, *TOKENS]).cumsum(0).int(),  # where the tokens of each expert begin
)
out = grouped_gemm_fp8(*([x.cuda() for x in operands] if GPU else emulated_gpu.device_tensors(operands))).cpu().float()

a, a_scale, b, b_scale, m_indptr = operands
a = a.float() * a_scale.T.repeat_interleave(128, 1)
b = b.float() * b_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
for expert in range(experts):
    tokens = slice(*m_indptr[expert : expert + 2].tolist())
    assert torch.allclose(out[tokens], a[tokens] @ b[expert].T, rtol=0.01, atol=0.1)
print(f"right: {rows} tokens of {experts} experts on", torch.cuda.get_device_name() if GPU else "an emulated H200")
