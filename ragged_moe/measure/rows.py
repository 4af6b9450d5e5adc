"""The problems of `python -m ragged_moe bench gemm`: the rows of each expert, N, K."""

import dataclasses
from collections.abc import Iterable

import torch

DEEPSEEK = ((4096, 7168), (7168, 2048))  # N, K of DeepSeek-V3's GEMM1 and GEMM2
QWEN3 = ((3072, 4096), (4096, 1536))  # of Qwen3-235B
GPT_OSS = ((5760, 2880),)  # GEMM1 of gpt-oss


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem: the rows of each expert, N, K. name: how they are spread, empty for even ones."""

    name: str
    ms: tuple[int, ...]
    n: int
    k: int

    @property
    def total(self) -> int:
        """Rows of all experts."""
        return sum(self.ms)

    @property
    def used(self) -> int:
        """Experts that have rows."""
        return sum(m > 0 for m in self.ms)

    @property
    def offsets(self) -> list[int]:
        """Where each expert's rows begin, and the end."""
        return [sum(self.ms[:e]) for e in range(len(self.ms) + 1)]

    @property
    def facts(self) -> dict:
        """What a record has of the problem."""
        return {"experts": len(self.ms), "m": list(self.ms), "n": self.n, "k": self.k, "name": self.name}

    def tflops(self, us: float) -> float:
        """Return the rate of multiplications that take this long."""
        return 2 * self.total * self.n * self.k / us / 1e6


def label(x: dict) -> str:
    """Return what a table calls a record: experts x rows of each, or how rows are spread."""
    even = len(set(x["m"])) == 1
    return f"{x['experts']} x {x['m'][0]}" if even else f"{x['name']}: {x['experts']}, {sum(x['m'])} rows"


def routed(tokens: int, experts: int, seed: int) -> tuple[int, ...]:
    """Draw the rows of the first `experts` of 256 experts if `tokens` tokens choose 8 by DeepSeek-V3's groups.

    Experts differ in popularity, log-normally: routing is never even.
    """
    generator = torch.Generator().manual_seed(seed)
    popularity = torch.randn(256, generator=generator) / 2
    scores = torch.sigmoid(torch.randn(tokens, 256, generator=generator) + popularity)
    groups = scores.view(tokens, 8, 32).topk(2, dim=2).values.sum(2).topk(4, dim=1).indices
    allowed = torch.zeros(tokens, 8, dtype=torch.bool).scatter_(1, groups, True).repeat_interleave(32, 1)
    chosen = scores.masked_fill(~allowed, -1).topk(8, dim=1).indices
    return tuple(torch.bincount(chosen.flatten(), minlength=256)[:experts].tolist())


def drawn(experts: int, mean: int, exponent: float, seed: int) -> tuple[int, ...]:
    """Draw the rows of each expert: each of experts * mean rows goes to one of them by Zipf's law with this exponent,
    0: to each as likely. The popular ones are anywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    likely = torch.arange(1, experts + 1).double() ** -exponent
    likely = likely[torch.randperm(experts, generator=generator)]
    chosen = torch.multinomial(likely, experts * mean, replacement=True, generator=generator)
    return tuple(torch.bincount(chosen, minlength=experts).tolist())


def uneven(experts: int, n: int, k: int, means: Iterable[int]) -> list[Row]:
    """Return the problems with these means whose rows are drawn uniformly and by Zipf's law."""
    return [
        Row(f"{law}, mean {m}", drawn(experts, m, exponent, m), n, k)
        for m in means for law, exponent in (("uniform", 0.0), ("Zipf 0.6", 0.6))
    ]  # fmt: skip


def fp8_rows() -> list[Row]:
    """Return the problems with FP8 weights: even experts, rows drawn, routed tokens, and one expert that has all."""
    sizes = *DEEPSEEK, (7168, 7168)
    rows = [Row("", (m,) * e, n, k) for e in (1, 4, 8, 32) for n, k in sizes for m in (8, 64, 128, 512)]
    for tokens in (64, 512, 2048, 8192):
        rows += [Row(f"routed {tokens}", routed(tokens, 32, tokens), n, k) for n, k in DEEPSEEK]
    rows += [x for n, k in DEEPSEEK for e in (8, 32) for x in uneven(e, n, k, (64, 128, 512))]
    return rows + [Row("one has all", (0, 0, 0, 512, 0, 0, 0, 0), n, k) for n, k in DEEPSEEK]


def nvfp4_rows() -> list[Row]:
    """Return the problems with NVFP4 weights: even experts, rows drawn, and tokens routed to 32 of 256 experts; those
    of the same weights follow one another.
    """
    rows = []
    for n, k in (*DEEPSEEK, *QWEN3):
        for e in (1, 8, 32):
            rows += [Row("", (m,) * e, n, k) for m in (1, 8, 16, 64, 128, 512)]
            if e > 1:
                rows += uneven(e, n, k, (8, 16, 64, 128, 512))
        if (n, k) in DEEPSEEK:
            rows += [Row(f"routed {t}", routed(t, 32, t), n, k) for t in (16, 64, 512, 2048)]
    return rows


def mxfp4_rows() -> list[Row]:
    """Return the problems with MXFP4 weights: even experts, from few tokens each to where the tensor core binds, and
    rows drawn.
    """
    rows = []
    for n, k in (*GPT_OSS, DEEPSEEK[0]):
        for e in (8, 32):
            rows += [Row("", (m,) * e, n, k) for m in (16, 64, 128, 512, 2048)]
            rows += uneven(e, n, k, (64, 128, 512))
    return rows
