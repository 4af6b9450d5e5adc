"""Humming, the peer of weights in NVFP4 that vLLM and SGLang put before Marlin on Hopper: pip's humming-kernels 0.1.19.

It makes weights bf16 in registers, too, and compiles a kernel for each range of rows by NVRTC at a layer's first call.
It gets rows in the order of the experts (its form grouped_contiguous) or lists of them (indexed, which SGLang and vLLM
run by default) and chooses its tiles by its own heuristics.

`load(folder)`: the folder that `pip install --no-deps --target FOLDER humming-kernels==0.1.19` filled; it needs jinja2,
tqdm, tabulate, safetensors, filelock and triton, too.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ragged_moe.measure.marlin import Rows
from ragged_moe.runtime.sizes import BF16

HUMMING, LISTED = "Humming", "Humming, indexed"  # as records have its forms
FORM, LISTED_FORM = [json.dumps({"gemm_type": form}) for form in ("grouped_contiguous", "indexed")]


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


def block_of(layer: Callable, rows: int) -> int:
    """Return to which multiple its form `indexed` wants each expert's list padded, of a number of rows in all."""
    from humming.tune import get_heuristics_config

    configs = get_heuristics_config(layer.humming_config, gemm_type="indexed")
    return next(config["block_shape"][0] for least, most, config in configs if least < rows <= most)


def multiply_listed(layer: Callable, a: torch.Tensor, rows: Rows, out: torch.Tensor, top_k: int = 1) -> None:
    """out[r] = a[r // top_k] times the weights of r's expert, for the rows that are listed."""
    lists = {"sorted_ids": rows.ids, "expert_ids": rows.experts, "num_tokens_padded": rows.padded}
    layer(a, outputs=out, **lists, top_k=top_k, valid_shape_m=len(out), compute_config=LISTED_FORM)
