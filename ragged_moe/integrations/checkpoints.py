"""The experts of a checkpoint in NVFP4 or MXFP4, from its safetensors files, packed: arguments of ragged_moe.experts.

    nvfp4_experts   ModelOpt's layout, as nvidia/DeepSeek-R1-NVFP4 has it: a tensor an expert and projection
    mxfp4_experts   gpt-oss's layout: a tensor of all experts, rows of gate and up interleaved, biases

Needs `pip install safetensors`.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from ragged_moe.layers.pack_weights import pack_mxfp4, pack_nvfp4, require_scales
from ragged_moe.runtime.sizes import E4M3, F32

INDEX = "model.safetensors.index.json"


class Checkpoint:
    """Tensors by name, of a safetensors file, or of a folder of such files, with or without an index."""

    def __init__(self, path: str | Path):
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise ImportError("reading a checkpoint needs safetensors: pip install safetensors") from error
        self.path, self.open = Path(path), functools.cache(functools.partial(safe_open, framework="pt"))
        index = self.path / INDEX
        if index.is_file():
            files = json.loads(index.read_text())["weight_map"]
            self.files = {name: self.path / file for name, file in files.items()}
        else:
            files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
            self.files = {name: file for file in files for name in self.open(file).keys()}

    def slice(self, name: str):
        """The tensor, of which [..] reads a part; ValueError if there is none."""
        if name not in self.files:
            raise ValueError(f"{self.path} has no tensor {name}")
        return self.open(self.files[name]).get_slice(name)

    def tensor(self, name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The tensor, on the CPU; ValueError unless it has this type, and this shape if one is given."""
        return checked(self, name, self.slice(name)[...], dtype, shape)


def checked(of: Checkpoint, name: str, found: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The tensor `found`; ValueError if it is not of this type and shape."""
    if found.dtype is not dtype or shape and tuple(found.shape) != tuple(shape):
        must = f"{dtype} {tuple(shape)}" if shape else f"{dtype}"
        raise ValueError(f"{of.path}: {name} is {found.dtype} {tuple(found.shape)}, but must be {must}")
    return found


def nvfp4_experts(path: str | Path, prefix: str, experts: Sequence[int], device="cuda") -> dict:
    """Arguments of ragged_moe.experts, weights, input scales and gate_first, for these experts of a layer of a ModelOpt
    checkpoint, packed for the GPU `device` or, if that is "cpu", for torch's current one.

    path: a safetensors file or a folder of some. prefix: "model.layers.3.mlp.experts". Of expert e and each of
    gate_proj, up_proj, down_proj are read PREFIX.e.PROJ.weight uint8 [N, K/2], .weight_scale e4m3 [N, K/16],
    .weight_scale_2 f32 and, if the first expert has it, .input_scale f32, of which the largest counts. ValueError if
    one is missing or otherwise.
    """
    of, arguments = Checkpoint(path), {"gate_first": True}
    for name, projections in (("w13", ("gate_proj", "up_proj")), ("w2", ("down_proj",))):
        first = of.slice(f"{prefix}.{experts[0]}.{projections[0]}.weight").get_shape()
        n, k, halves = first[0], 2 * first[1], len(projections)
        b = torch.empty(len(experts), halves * n, k // 2, dtype=torch.uint8, device=device)
        b_scale = torch.empty(len(experts), halves * n, k // 16, dtype=E4M3, device=device)
        scale_2, of_input = torch.empty(len(experts), halves, dtype=F32), []
        has_input = f"{prefix}.{experts[0]}.{projections[0]}.input_scale" in of.files
        for i, e in enumerate(experts):
            for half, projection in enumerate(projections):
                tensor, rows = f"{prefix}.{e}.{projection}.weight", slice(half * n, half * n + n)
                b[i, rows] = of.tensor(tensor, torch.uint8, n, k // 2).to(device)
                b_scale[i, rows] = of.tensor(f"{tensor}_scale", E4M3, n, k // 16).to(device)
                scale_2[i, half] = of.tensor(f"{tensor}_scale_2", F32).reshape(())
                if has_input:
                    of_input.append(of.tensor(f"{prefix}.{e}.{projection}.input_scale", F32).reshape(1))
        if has_input:
            scales, said = torch.stack(of_input), f"{path}: {prefix}: input_scale of {name}"
            require_scales(said, scales, zero=True)
            require_scales(said, scales.amax(0), zero=False)
            arguments[f"{name}_input_scale"] = scales.amax(0).to(device)
        packed = pack_nvfp4(b, b_scale, weight_scale_2=scale_2 if halves == 2 else scale_2[:, 0])
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed))
    return arguments


def mxfp4_experts(
    path: str | Path, prefix: str, experts: range, device="cuda", activation: str | None = None
) -> dict:
    """Arguments of ragged_moe.experts, weights, biases and gate_first, for these experts of a layer of gpt-oss.

    path: a safetensors file or a folder of some. prefix: "model.layers.0.mlp.experts". Are read of gate_up_proj, whose
    rows are gate and up in turn, and of down_proj: PREFIX.PROJ_blocks uint8 [E, N, K/32, 16], _scales uint8
    [E, N, K/32] and _bias bf16 [E, N]. activation: as of pack_mxfp4. ValueError if one is missing or otherwise.
    """
    of, arguments = Checkpoint(path), {"gate_first": True}
    part = slice(experts.start, experts.stop)
    for name, projection in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        blocks, scales, bias = [f"{prefix}.{projection}_{x}" for x in ("blocks", "scales", "bias")]
        n, groups = of.slice(blocks).get_shape()[1:3]
        shape = len(experts), n, groups
        b = checked(of, blocks, of.slice(blocks)[part], torch.uint8, (*shape, 16)).to(device)
        b_scale = checked(of, scales, of.slice(scales)[part], torch.uint8, shape).to(device)
        added = checked(of, bias, of.slice(bias)[part], torch.bfloat16, shape[:2]).to(device).float()
        b = b.view(*shape[:2], groups * 16)
        if name == "w13":
            b, b_scale, added = [apart(x) for x in (b, b_scale, added)]
        packed = pack_mxfp4(b, b_scale, halves=2 if name == "w13" else 1, activation=activation)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed)) | {f"{name}_bias": added}
    return arguments


def apart(x: torch.Tensor) -> torch.Tensor:
    """Rows [E, 2I, ..] of gate and up in turn: those of gate, then those of up."""
    return torch.cat((x[:, 0::2], x[:, 1::2]), 1)
