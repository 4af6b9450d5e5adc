"""Random numbers as a GPU draws them: recorded in draws_of_cuda.json, and compared with by torch_cuda_checks.py.

    python tests/emulated_gpu/serve/draws_of_cuda.py > tests/emulated_gpu/serve/draws_of_cuda.json    # on an H200

Those of EXACT are the same bits; those of NEAR contain a sine or a logarithm of the GPU's own.
"""

import hashlib
import json

import torch
from torch.nn import functional as f

EXACT = """
torch.rand(1000)
torch.rand(270337)
torch.rand(999, dtype=torch.complex64)
torch.rand(5001, dtype=torch.double)
torch.empty(5001).uniform_(-2.5, 3.1)
torch.empty(5001, dtype=torch.half).uniform_(-2, 3)
torch.empty(5001, dtype=torch.bfloat16).uniform_(-2, 3)
torch.empty(33, 65).t().uniform_()
torch.empty(33, 64)[:, ::2].uniform_().contiguous()
torch.empty(5, 7, 9).permute(2, 0, 1).uniform_()
torch.randint(0, 10, (1000,))
torch.randint(-(2**60), 2**60, (300003,))
torch.randint(2**31 - 1, (3001,), dtype=torch.int32)
torch.empty(3001, dtype=torch.int64).random_(-(2**63), None)
torch.empty(3001, dtype=torch.int64).random_()
torch.empty(3001, dtype=torch.uint8).random_()
torch.empty(3001, dtype=torch.bool).random_()
torch.empty(3001, dtype=torch.half).random_()
torch.empty(3001).random_(100)
torch.empty(5001).bernoulli_(0.3)
torch.empty(5001, dtype=torch.double).bernoulli_(0.3)
torch.empty(5001, dtype=torch.bool).bernoulli_(0.3)
torch.bernoulli(torch.full((5003,), 0.4))
torch.bernoulli(torch.linspace(0, 1, 5003, dtype=torch.double))
f.dropout(torch.ones(1000), 0.3)
f.dropout(torch.ones(1001), 0.3)
f.dropout(torch.ones(2000002), 0.3)
f.dropout(torch.ones(1000, dtype=torch.half), 0.3)
f.dropout(torch.ones(2200000, dtype=torch.bfloat16), 0.3)
f.dropout(torch.ones(1228800, dtype=torch.double), 0.3)
f.dropout(torch.ones(1001)[1:], 0.3)
f.dropout(torch.arange(2112.0).view(33, 64).t(), 0.3)
f.dropout(torch.arange(2112.0).view(33, 64)[:, ::2], 0.3)
f.dropout2d(torch.ones(3, 50, 4, 4), 0.4)
f.rrelu(torch.tensor([-1.0, 1.0]).repeat(2000), training=True)
torch.randperm(1)
torch.randperm(1000)
torch.randperm(100000)
torch.randperm(1000, dtype=torch.int32)
torch.multinomial(torch.rand(50, 1000), 1)
torch.multinomial(torch.rand(50, 1000), 5)
torch.multinomial(torch.rand(50, 100), 300, True)
torch.multinomial(torch.rand(70000, 3), 2, True)
torch.multinomial(torch.rand(4, 500, dtype=torch.double), 300, True)
torch.multinomial(torch.rand(4, 500, dtype=torch.half), 300, True)
torch.poisson(torch.full((600,), 3.0))
torch.poisson(torch.linspace(64, 6000, 600))
torch.binomial(torch.full((1100,), 20.0), torch.full((1100,), 0.3))
torch.binomial(torch.arange(1100.0), torch.linspace(0, 1, 1100))
torch.rand(20000).cumsum(0)
torch.rand(6000, dtype=torch.double).cumsum(0)
torch.rand(150000, dtype=torch.half).cumsum(0)
torch.rand(6000).mul(0.02).add(0.99).cumprod(0)
torch.rand(6000, dtype=torch.double).mul(0.02).add(0.99).cumprod(0)
torch.rand(20000, dtype=torch.bfloat16).mul(0.02).add(0.99).cumprod(0)
torch.rand(20000, dtype=torch.half).logcumsumexp(0)
several()
graphed()
""".strip().splitlines()
NEAR = """
torch.randn(8)
torch.randn(300000)[::37500]
torch.randn(8, dtype=torch.double)
torch.randn(8, dtype=torch.complex64)
torch.randn(8, dtype=torch.half)
torch.empty(8).normal_(-2.5, 3.1)
torch.normal(torch.arange(8.0), torch.ones(8) / 2)
torch.empty(8).exponential_(2.0)
torch.empty(8).log_normal_(0.5, 0.7)
torch.empty(8).cauchy_(0.5, 0.7)
torch._standard_gamma(torch.full((600,), 2.5))[::75]
torch.empty(8).geometric_(0.3)
""".strip().splitlines()


def several():
    """Return draws that follow others, each moves the generator on."""
    torch.poisson(torch.ones(5)), torch._standard_gamma(torch.ones(5))
    drawn = [torch.randperm(10).float(), torch.rand(3), torch.bernoulli(torch.full((53,), 0.4)), torch.rand(3)]
    own = torch.Generator("cuda").manual_seed(3)
    own.set_offset(8)
    return torch.cat([*drawn, torch.rand(3, generator=own), torch.rand(3)])


def graphed():
    """Return draws of a CUDA graph's two replays, and between them."""
    inside, graph = torch.zeros(9), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside.uniform_()
        more = torch.rand(5)
    drawn = []
    for _ in range(2):
        drawn.append(torch.rand(4))
        graph.replay()
        drawn += inside.clone(), more.clone()
    return torch.cat(drawn)


def outcomes() -> dict[str, list]:
    """Return of each expression a digest of its bits, or of near ones the numbers; then how far the generator is."""
    made = {}
    names = {"torch": torch, "f": f, "several": several, "graphed": graphed}
    with torch.device("cuda"):
        for text in EXACT + NEAR:
            torch.manual_seed(7)
            result = eval(text, names).cpu().contiguous()
            if text in EXACT:
                value = hashlib.sha1(result.view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
            else:
                value = (torch.view_as_real(result) if result.is_complex() else result).flatten().tolist()
            made[text] = [value, torch.cuda.get_rng_state().view(torch.int64).tolist()]
    return made


if __name__ == "__main__":
    rows = outcomes().items()
    print("{", ",\n".join(f"{json.dumps(text)}: {json.dumps(value)}" for text, value in rows), "}", sep="\n")
