"""`python -m ragged_moe check gemm` runs these cases, and BOUND says how far a result may be from the exact
reference.

Import this after emulated_gpu.install, if a GPU is emulated.
"""

import dataclasses

import torch

import emulated_gpu
from ragged_moe.kernels.config import Config
from ragged_moe.layers.grouped_gemm_fp8 import grouped_gemm_fp8, launcher
from ragged_moe.reference.grouped_gemm import magnitudes, reference

CTAS = 12  # of an emulated launch: cases are small, and the K of some tiles must be shared
# |out - reference| <= this x magnitude, where magnitude is the reference of absolute values: 2^-9, half a unit of bf16,
# and as much as 2^-10 for the tensor core's sums of 32 products, which keep 13 bits of the largest.
# Largest seen: 1.67e-3 = 0.86 x 2^-9, on an H200 and emulated.
BOUND = 2**-9 + 2**-10


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem: the rows of each expert, N, K, and what is special about it."""

    ms: tuple[int, ...]
    n: int
    k: int
    special: str = ""  # "nan": some operands and scales are NaN; "indptr": m_indptr is not monotone
    seed: int = 0

    def m_indptr(self) -> torch.Tensor:
        """Return m_indptr on the CPU."""
        made = torch.tensor([sum(self.ms[:e]) for e in range(len(self.ms) + 1)], dtype=torch.int32)
        if self.special == "indptr":  # backwards, and beyond the rows that there are
            made[1], made[-1] = made[2] + 3, sum(self.ms) + 1000
        return made

    def draw(self) -> tuple[torch.Tensor, ...]:
        """Return a, a_scale, b, b_scale, m_indptr on the CPU. Scales have any sign."""
        g, experts, rows = torch.Generator().manual_seed(self.seed), len(self.ms), sum(self.ms)
        a = torch.randn(rows, self.k, generator=g).clamp(-2, 2).to(torch.float8_e4m3fn)
        b = torch.randn(experts, self.n, self.k, generator=g).clamp(-2, 2).to(torch.float8_e4m3fn)
        a_scale = torch.randn(self.k // 128, rows, generator=g)
        b_scale = torch.randn(experts, self.n // 128, self.k // 128, generator=g)
        if self.special == "nan":
            a.view(torch.uint8)[rows // 2, 3] = 0x7F
            b.view(torch.uint8)[-1, self.n // 3, self.k - 1] = 0xFF
            a_scale[0, -1] = torch.nan
            b_scale.view(torch.int32)[-1, -1, 0] = -1  # a NaN, too, of the bits that say that a partial sum is missing
        return a, a_scale, b, b_scale, self.m_indptr()


CASES = {
    "even": Case((64, 64), 256, 256),
    "ragged": Case((5, 0, 64, 1, 0, 17, 33), 256, 384),
    "one expert has all": Case((0, 0, 150, 0), 384, 256),
    "several token tiles": Case((130, 1, 257), 128, 256),
    "a single row": Case((0, 1), 128, 128),
    "cut into many parts": Case((9,), 128, 128 * 13),
    "half of the columns, cut": Case((6,), 128, 128 * 13),
    "whole tiles, then shares": Case((130,), 128 * 7, 128 * 5),
    "shares, then whole tiles": Case((300, 0, 280), 1024, 256),
    "the ring goes round": Case((130,), 384, 128 * 14),
    "nan": Case((7, 20, 6), 256, 256, "nan"),
    "tails of pairs": Case((257, 2, 272, 528, 273), 384, 512),
    "nan, cut into many parts": Case((9,), 256, 128 * 13, "nan"),
    "no rows": Case((0, 0), 128, 128),
    "m_indptr not monotone": Case((16, 16, 16), 128, 128, "indptr"),
}


def clipped(m_indptr: torch.Tensor, rows: int) -> torch.Tensor:
    """Return m_indptr as the kernel reads it: never below what came before, never beyond the rows."""
    return m_indptr.clamp(0, rows).cummax(0).values


def error(out: torch.Tensor, operands: tuple) -> float:
    """Return the largest distance from the reference, in magnitudes; infinite if a NaN is not where it must be."""
    a, a_scale, b, b_scale, m_indptr = (x.cpu() for x in operands)
    m_indptr = clipped(m_indptr, a.shape[0])
    rows = slice(int(m_indptr[0]), int(m_indptr[-1]))
    expected = reference(a, a_scale, b, b_scale, m_indptr)[rows].double()
    found, size = out.cpu()[rows].double(), magnitudes(a, a_scale, b, b_scale, m_indptr)[rows].double()
    if not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    distance = ((found - expected).abs() / size).nan_to_num(0)
    return distance.max().item() if distance.numel() else 0.0


def error_of(case: Case, config: Config, schedule: int = 0, device: str = "cpu", written: bool = False) -> float:
    """Launch a case under a config and return its error.

    schedule: the seed of the order of events, where device is "cpu", the emulated GPU. written: emulate that the launch
    before has written the operands, which may not be there until it was waited for.
    """
    operands = case.draw()
    (rows, k), (experts, n, _) = operands[0].shape, operands[2].shape
    out = torch.full((rows, n), torch.nan, dtype=torch.bfloat16)
    if not rows:
        return error(grouped_gemm_fp8(*(x.to(device) for x in (*operands, out))), operands)
    launch = launcher(torch.device(device), config)
    return error(launched(launch, (*operands, out), (rows, n, k, experts), schedule, device, written), operands)


def launched(
    launch, operands: tuple, sizes: tuple[int, ...], schedule: int, device: str, written: bool
) -> torch.Tensor:
    """Launch with these operands; return the last, the output.

    sizes: rows, N, K, experts. schedule, device, written: see `error_of`.
    """
    if device == "cpu":
        launch.grid = CTAS
        with emulated_gpu.session(schedule=schedule, strict=True):
            on_device = emulated_gpu.device_tensors(operands)
            emulated_gpu.protect(on_device[:5])
            if written:
                emulated_gpu.written(on_device[:4])
            launch(on_device, *sizes)
    else:
        on_device = tuple(x.to(device) for x in operands)
        launch(on_device, *sizes)
        torch.cuda.synchronize()
    return on_device[5]
