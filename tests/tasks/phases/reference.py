import torch

RTOL, ATOL = 1e-3, 1e-3


def generate_inputs(rows, width, seed=1):
    torch.manual_seed(seed)
    return torch.randn(rows, width, device="cuda"), torch.randn(rows, device="cuda")


def reference_forward(x):
    return x.square().sum(1)


def reference_backward(x, gradient):
    return 2 * x * gradient[:, None]
