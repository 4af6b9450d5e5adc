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


@torch.library.custom_op("checks::twice", mutates_args=())
def twice(x: torch.Tensor, keeps: str) -> torch.Tensor:
    scratch = torch.empty_like(x)
    if keeps == "scratch":
        kept.append(scratch)
    torch.add(x, x, out=scratch)
    return kept[0] if keeps == "result" else scratch.clone()


twice.register_fake(lambda x, keeps: torch.empty_like(x))
kept: list[torch.Tensor] = []


def in_cuda_graphs(keeps: str):
    return torch.compile(lambda x: twice(x, keeps), mode="reduce-overhead")


def check_memory_of_an_operator_in_cuda_graphs():
    """What it allocates in the graphs' pool is given back, or is a result: else torch on a card refuses the call."""
    x, clean, after = torch.ones(64, device="cuda"), in_cuda_graphs(""), in_cuda_graphs("")
    for follows in (False, False, False, True, True, True):  # a graph is recorded behind a replay, whose result lives
        torch.compiler.cudagraph_mark_step_begin()
        y = clean(x)
        assert (y == 2).all() and (not follows or (after(y) == 4).all())
    del y
    raises(RuntimeError, "Detected 1 tensor(s) in the cudagraph pool", lambda: in_cuda_graphs("scratch")(x))
    kept[:] = [torch.ones(64, device="cuda")]
    raises(RuntimeError, "not allocated in pool", lambda: in_cuda_graphs("result")(x))


def check_flex_attention():
    q = torch.randn(1, 1, 128, 16, device="cuda")
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")
    before = launches()
    got = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    assert launches() == before + 1
    torch.testing.assert_close(got, functional.scaled_dot_product_attention(q, q, q, is_causal=True))


if __name__ == "__main__":
    run(globals())
