"""`warmup`: compile, or load from the disk, what calls will need, before there are any."""

import numbers
from collections.abc import Iterable

import torch

from moe import grouped_gemm
from moe.device import current_device, device_of
from moe.layer import expectations, layer_of
from moe.problem import BF16, Sizes
from moe.tuning.back_ends import tuning

Count = int | Iterable[int]


def warmup(
    grouped_gemms: Iterable[tuple[Count, int, int, int]] = (),
    layers: Iterable[tuple[Count, int, int, int]] = (),
    routing_bias: torch.dtype = BF16,
) -> None:
    """Compile the kernels that calls with these sizes launch on the current GPU; nothing is launched.

    grouped_gemms: (total_M, E, N, K) of calls of grouped_gemm_fp8. layers: (T, H, I, E) of calls of run. total_M and T
    are one number or several, as range(1, 513): for some of them kernels differ. routing_bias: run's, bf16 or f32.
    A kernel takes 3 to 5 seconds, or some milliseconds if this user has compiled it here before: it is then on the disk
    (moe/kernels/disk_cache.py). ValueError for sizes that the calls refuse.
    """
    device = current_device()
    choose = tuning(device_of(device).capability).choose_gemm
    for total_m, experts, n, k in grouped_gemms:
        for m in counts(total_m):
            grouped_gemm.expectations(m, n, k, experts)
            if m:
                grouped_gemm.launcher(device, choose(m, experts, n, k))
    for tokens, hidden, intermediate, local in layers:
        for t in counts(tokens):
            expectations(torch.Size((t, hidden)), torch.Size((local, hidden, intermediate)), routing_bias)
            if t:
                layer_of(device, Sizes(hidden, intermediate, local)).compile(t, routing_bias)


def counts(x: Count) -> Iterable[int]:
    """The numbers of a Count."""
    return (x,) if isinstance(x, numbers.Integral) else x
