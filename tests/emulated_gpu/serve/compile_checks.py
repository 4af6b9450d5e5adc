"""torch.compile on the emulated device: Inductor's Triton is launched here. test_compile.py runs this file."""

import torch
from check_scripts import raises, run
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


def check_forward_and_backward_in_cuda_graphs():
    """The first step runs as it is, the second one is captured, the third is a replay."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
    compiled, before, old = torch.compile(model, mode="reduce-overhead"), launches(), None
    for _ in range(3):
        x = torch.randn(8, 16, device="cuda")
        wanted = torch.autograd.grad(model(x).square().sum(), model.parameters())
        y = compiled(x)
        got = torch.autograd.grad(y.square().sum(), model.parameters())
        for gradient, other in zip(wanted, got):
            torch.testing.assert_close(gradient, other)
        if old is not None:
            raises(RuntimeError, "overwritten by a subsequent run", old.sum)
        old = y if old is None else None
    assert launches() > before and torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
    assert torch._inductor.cudagraph_trees.get_manager(0, create_if_none_exists=False).ids_to_funcs


def check_flex_attention():
    q = torch.randn(1, 1, 128, 16, device="cuda")
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")
    before = launches()
    got = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    assert launches() == before + 1
    torch.testing.assert_close(got, functional.scaled_dot_product_attention(q, q, q, is_causal=True))


if __name__ == "__main__":
    run(globals())
