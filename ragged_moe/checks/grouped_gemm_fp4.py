"""Cases of grouped_gemm_nvfp4, and how far its results are from the float64 reference.

Import this after emulated_gpu.install, if a GPU is emulated.
"""

import dataclasses

import torch

from ragged_moe.checks import grouped_gemm
from ragged_moe.checks.grouped_gemm import clipped, launched
from ragged_moe.kernels.block_scaled import W4A4, W4A8
from ragged_moe.kernels.config import BLOCK_N, Config
from ragged_moe.layers.grouped_gemm_fp4 import launch_block_scaled, launch_by_e4m3
from ragged_moe.layers.grouped_gemm_fp8 import launcher
from ragged_moe.layers.pack_weights import pack_mxfp4, pack_nvfp4
from ragged_moe.layers.signatures import BLACKWELL, HOPPER
from ragged_moe.reference import quantise_fp4, quantise_mxfp8, quantise_tokens
from ragged_moe.reference.grouped_gemm_fp4 import dequantised, e8m0, reference, reference_by_e4m3

# |out - reference| <= 2^-8 |reference|, half a unit of bf16, and this x the reference of absolute values: the
# rounding of f32 sums, in the tensor core too. Largest seen on an H100: 2^-20.8, at K = 7168. Where tokens are rounded
# to e2m1 or e4m3 the reference has them rounded, too, and where Hopper's sums of e4m3 keep fewer bits these sums.
BOUND = 2**-16


@dataclasses.dataclass(frozen=True)
class Case(grouped_gemm.Case):
    """As of FP8; special may be "mxfp4", too, or "extremes"."""

    def draw(self, config: Config) -> tuple[tuple, torch.Tensor]:
        """Return the kernel's operands a, b_global, b, b_scale, m_indptr, and the weights in float64, on the CPU.

        Weights and scales have all of their codes, as far as there is room. For W4A4 N is rounded up to 128, and tokens
        are of many sizes, zeros among them.
        """
        g, experts, rows = torch.Generator().manual_seed(self.seed), len(self.ms), sum(self.ms)
        w4a4, by_e4m3 = config.block_scaled is W4A4, config.fp4_tokens == "e4m3"
        activation = "fp8" if by_e4m3 else "bf16" if config.fp4_tokens else None
        packed_for = {"capability": BLACKWELL if config.arch == "sm100" else HOPPER, "activation": activation}
        n = -(-self.n // BLOCK_N) * BLOCK_N if w4a4 else self.n
        a = torch.randn(rows, self.k, generator=g)
        if config.block_scaled:
            sizes = torch.randint(-10, 11, (rows, self.k // 16), generator=g)
            a *= torch.where(sizes == 0, 0.0, torch.exp2(sizes.float())).repeat_interleave(16, 1)
        a = a.to(torch.float16 if config.fp4_tokens == "f16" else torch.bfloat16)
        b = torch.randint(0, 256, (experts, n, self.k // 2), generator=g, dtype=torch.uint8)
        m_indptr = self.m_indptr()
        if self.special == "mxfp4" or config.block_scaled is W4A8 or by_e4m3:
            low, high = (0, 255) if self.special == "extremes" else (112, 124) if by_e4m3 else (100, 131)
            if config.fp4_tokens == "f16":
                low = 107  # below 2^-24 of the largest scale a weight has bits that f16 has not
            b_scale = torch.randint(low, high, (experts, n, self.k // 32), generator=g, dtype=torch.uint8)
            if self.special == "extremes":  # in a column alike, and of tokens the inverse: products are of one size
                b_scale = b_scale[:1, :1].repeat(experts, n, 1)
                b_scale[..., :2] = torch.tensor([0, 254], dtype=torch.uint8)
                a = torch.randn(rows, self.k, generator=g).double()
                a = (a * torch.exp2(125 - b_scale[0, 0].double()).repeat_interleave(32)).bfloat16()
            if self.special in ("mxfp4", "nan"):
                b_scale[-1, n // 2, 0] = 255
            if self.special == "nan":
                a[1, 17], a[2, 5], a[3, 9] = torch.nan, torch.inf, -torch.inf
            weights = dequantised(b, e8m0(b_scale))
            b, b_scale, b_global = pack_mxfp4(b.clone(), b_scale, **packed_for)
            return (a, b_global, b, b_scale, m_indptr), weights
        b_scale = torch.randint(0, 256, (experts, n, self.k // 16), generator=g, dtype=torch.uint8)
        b_scale = torch.where(b_scale & 0x7F == 0x7F, 0x38, b_scale)
        if self.special == "nan":
            b_scale[-1, n // 3, -1], b_scale[0, -1, 0] = 0x7F, 0xFF
            if w4a4:  # of which e2m1 has none
                a[1, 17], a[2, 5] = torch.nan, torch.inf
        b_scale, divisor = b_scale.view(torch.float8_e4m3fn), torch.rand(experts, generator=g) + 0.5
        weights = dequantised(b, b_scale.double()) / divisor[:, None, None].double()
        b, b_scale, b_global = pack_nvfp4(b.clone(), b_scale.clone(), weight_global_scale=divisor, **packed_for)
        return (a, b_global, b, b_scale, m_indptr), weights


CASES = {
    "ragged": Case((5, 0, 64, 1, 0, 17, 33), 192, 320),  # neither N nor K is a multiple of 128
    "small": Case((5, 0, 2), 128, 192),
    "one expert has all": Case((0, 0, 150, 0), 256, 128),
    "a single row, a single tile": Case((0, 1), 64, 64),
    "cut into many parts": Case((9,), 128, 128 * 13),
    "the ring goes round": Case((20, 3), 128, 128 * 8),  # of the widest tiles, whose shares are 8 k-blocks at least
    "nan": Case((7, 6), 128, 192, "nan"),
    "mxfp4": Case((3, 18), 128, 192, "mxfp4"),
    "m_indptr not monotone": Case((16, 16, 16), 128, 128, "indptr"),
    "many tiles of a CTA": Case((1, 0, 130, *range(29)), 384, 64),
    "an expert's rest is narrow": Case((130,), 256, 192),
    "every width, the widest last": Case((1, 0, 17, 50, 70, 90, 100, 130, 120), 320, 192),
}


# The cases that Blackwell's kernels do
W4A4_CASES = {name: case for name, case in CASES.items() if case.special != "mxfp4"}
W4A8_CASES = CASES | {
    "cut into many parts": Case((9,), 128, 128 * 40),  # shares are 8 k-blocks at least, of wide tiles 16
    "extremes": Case((5, 0, 2), 128, 320, "extremes"),  # every scale of weights but NaN, small ones of large tokens
    "sizes of gpt-oss": Case((3, 0, 9), 2880, 2880),
}
INPUT_SCALE = torch.tensor([1 / 40])  # of W4A4: some of the blocks of 16 saturate, some become zeros


def of_machine(tuning, kind: str = "nvfp4") -> tuple[dict[str, Case], tuple[Config, ...]]:
    """The cases and configs of the GPU that has this module of ragged_moe.tuning. kind: "nvfp4", or "mxfp4": of
    W4A8."""
    if W4A4 not in tuning.FP4:
        return CASES, tuning.FP4_BY_E4M3 if kind == "mxfp4" else (*tuning.FP4["bf16"], *tuning.FP4["f16"])
    if kind == "mxfp4":
        return W4A8_CASES, tuning.FP4[W4A8]
    return W4A4_CASES, (*tuning.FP4[W4A4], *tuning.FP4_BF16)


class QuantisingLaunch:
    """Quantises and launches, as ragged_moe.checks.grouped_gemm.launched wants it. grid: CTAs that fit the GPU."""

    def __init__(self, device: torch.device, config: Config):
        self.gemm = launcher(device, config)

    @property
    def grid(self) -> int:
        """The kernel's, which has partial sums for as many CTAs."""
        return self.gemm.grid

    @grid.setter
    def grid(self, ctas: int) -> None:
        self.gemm.grid = ctas

    def __call__(self, tensors: tuple, *sizes: int) -> None:
        launch = launch_block_scaled if self.gemm.config.block_scaled else launch_by_e4m3
        launch(self.gemm, [x.data_ptr() for x in tensors], self.gemm.words(self.grid, *sizes))


def error(out: torch.Tensor, operands: tuple, weights: torch.Tensor, expected: torch.Tensor | None = None) -> float:
    """Return by how much the largest distance from the reference exceeds bf16's rounding, in sums of absolute values;
    infinite if a NaN is not where it must be. expected: if not the reference.
    """
    a, m_indptr = operands[0].cpu().double(), clipped(operands[4].cpu(), len(operands[0]))
    rows, ones = slice(int(m_indptr[0]), int(m_indptr[-1])), torch.ones(len(weights))
    expected = (reference(a, weights, ones, m_indptr) if expected is None else expected.double())[rows]
    found = out.cpu()[rows].double()
    beyond = expected.abs() > torch.finfo(torch.float32).max  # where tokens were infinite
    expected = torch.where(beyond, expected.sign() * torch.inf, expected)
    size = reference(a.abs(), weights.abs(), ones, m_indptr)[rows]
    if not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    over = (((found - expected).abs() - 2**-8 * expected.abs()) / size).nan_to_num(0)
    return over.max().item() if over.numel() else 0.0


def error_of(case: Case, config: Config, schedule: int = 0, device: str = "cpu", written: bool = False) -> float:
    """Launch a case under a config and return its error.

    schedule: the seed of the order of events, where device is "cpu", the emulated GPU. written: emulate that the launch
    before has written the operands, which may not be there until it was waited for.
    """
    operands, weights = case.draw(config)
    (rows, k), n, experts = operands[0].shape, weights.shape[1], weights.shape[0]
    out = torch.full((rows, n), torch.nan, dtype=torch.bfloat16)
    if config.block_scaled:
        tensors = *operands, out, INPUT_SCALE
        launch, sizes = QuantisingLaunch(torch.device(device), config), (rows, n, k, experts)
        found = launched(launch, tensors, sizes, schedule, device, written)
        if config.block_scaled is W4A8:
            rounded = quantise_mxfp8.fake_quantised(operands[0])
        else:
            rounded = quantise_fp4.fake_quantised(operands[0], INPUT_SCALE) * INPUT_SCALE.double()
        return error(found, (rounded, *operands[1:]), weights)
    by_e4m3 = config.fp4_tokens == "e4m3"
    launch = (QuantisingLaunch if by_e4m3 else launcher)(torch.device(device), config)
    found = launched(launch, (*operands, out), (rows, n, k, experts), schedule, device, written)
    if by_e4m3:
        a, row_scale, *_, m_indptr = operands
        values, scale = quantise_tokens.quantised(a)
        expected = reference_by_e4m3(values, scale, weights, row_scale, clipped(m_indptr, rows))
        return error(found, (quantise_tokens.fake_quantised(a), *operands[1:]), weights, expected)
    return error(found, operands, weights)
