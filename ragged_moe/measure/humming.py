"""Humming, the peer of weights in NVFP4 that vLLM and SGLang put before Marlin on Hopper: pip's humming-kernels 0.1.19.

It makes weights bf16 in registers, too, and compiles a kernel for each range of rows by NVRTC at a layer's first call.
Here it gets rows in the order of the experts (its form grouped_contiguous) and chooses its tiles by its own heuristics.

`load(folder)`: the folder that `pip install --no-deps --target FOLDER humming-kernels==0.1.19` filled; it needs jinja2,
tqdm, tabulate, safetensors, filelock and triton, too.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ragged_moe.runtime.sizes import BF16

HUMMING = "Humming"  # as records have it
FORM = json.dumps({"gemm_type": "grouped_contiguous"})


def load(folder: Path) -> Callable:
    """Return HummingLayer. ValueError if the folder has no Humming; ImportError for what it needs."""
    if not (folder / "humming/layer.py").is_file():
        raise ValueError(f"{folder} has no humming/layer.py, as humming-kernels' 0.1.19 wheel has")
    sys.path.append(str(folder))
    from humming.layer import HummingLayer

    return HummingLayer


def layer_of(make: Callable, b: torch.Tensor, b_scale: torch.Tensor, b_global: torch.Tensor) -> Callable:
    """Humming's form of uint8 [E, N, K/2], e4m3 [E, N, K/16] and f32 [E] that is multiplied. make: from `load`."""
    (experts, n, half), of = b.shape, {"weight": b, "weight_scale": b_scale, "weight_scale_2": b_global}
    modelopt = {"quant_method": "modelopt", "quant_algo": "nvfp4"}
    layer = make(shape_n=n, shape_k=2 * half, weight_config=modelopt, num_experts=experts, torch_dtype=BF16).cuda()
    layer.load_state_dict({name: x.view(layer.state_dict()[name].shape) for name, x in of.items()}, strict=False)
    layer.transform()
    return layer


def multiply(layer: Callable, a: torch.Tensor, bounds: torch.Tensor, out: torch.Tensor) -> None:
    """out[r] = a[r] times the weights of r's expert. bounds: int64 [E+1], where each expert's rows begin and end."""
    layer(a, outputs=out, expert_layout=bounds, compute_config=FORM)
