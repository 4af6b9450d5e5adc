"""What the files of checks begin with: an emulated GPU into which ragged_moe's kernels are compiled."""

import contextlib
import functools
import sys
from collections.abc import Iterator

import pytest
import torch

import emulated_gpu
from tests import quick_dsl

SMS = 6  # of the GPU that ragged_moe sees: CTAs for all SMs would take long


def without_cuda(machine: str, sms: int | None = None) -> None:
    """Install the emulated machine where torch finds no GPU. sms: as many as ragged_moe is to see, if not all."""
    emulated_gpu.install(machine)
    quick_dsl.install()
    torch.cuda.is_available = lambda: False
    if sms is not None:
        from ragged_moe.runtime.device import device_of

        type(device_of(torch.device("cpu"))).sms = sms


@contextlib.contextmanager
def compiled_anew(*caches: functools._lru_cache_wrapper) -> Iterator[None]:
    """Compile in this block what these functions of ragged_moe have compiled, and use the earlier again behind it."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ragged_moe")]
    with pytest.MonkeyPatch.context() as patch:
        for cache in caches:
            empty = functools.cache(cache.__wrapped__)
            for module in modules:
                for name in [name for name, value in vars(module).items() if value is cache]:
                    patch.setattr(module, name, empty)
        yield


def fp8_experts(hidden: int, intermediate: int, local: int, scaled: float) -> tuple[torch.Tensor, ...]:
    """Draw (w13, w13_scale, w2, w2_scale). scaled: what the drawn scales of w13 are multiplied by."""
    from ragged_moe.reference import layer as d
    from ragged_moe.runtime.sizes import Sizes

    x = d.draw(Sizes(hidden, intermediate, local), 1)
    return x.gemm1_weights, x.gemm1_weights_scale * scaled, x.gemm2_weights, x.gemm2_weights_scale
