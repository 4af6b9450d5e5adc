"""torch.compile on the emulated device: Inductor's Triton is launched here. test_compile.py runs this file."""

import torch
from check_scripts import run
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from emulated_gpu.device import DEVICE

functional = torch.nn.functional


def launches() -> int:
    return DEVICE.session.launches


def check_one_kernel_of_several_operators():
    """For shapes that change, it is compiled once more at most."""
    w, b = torch.randn(256, device="cuda"), torch.randn(256, device="cuda")

    def plain(x):
        return functional.gelu(functional.layer_norm(x, (256,), w, b))

    compiled = torch.compile(plain, dynamic=True)
    for rows in (8, 5):
        x, before = torch.randn(rows, 256, device="cuda"), launches()
        torch.testing.assert_close(compiled(x), plain(x))
        assert launches() == before + 1


def check_forward_and_backward():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
    x = torch.randn(8, 16, device="cuda")
    model(x).square().sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    before = launches()
    torch.compile(model)(x).square().sum().backward()
    assert launches() > before
    for p, gradient in zip(model.parameters(), wanted):
        torch.testing.assert_close(p.grad, gradient)


def check_flex_attention():
    q = torch.randn(1, 1, 128, 16, device="cuda")
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")
    before = launches()
    got = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    assert launches() == before + 1
    torch.testing.assert_close(got, functional.scaled_dot_product_attention(q, q, q, is_causal=True))


if __name__ == "__main__":
    run(globals())
