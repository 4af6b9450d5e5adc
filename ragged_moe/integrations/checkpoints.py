"""The experts of a checkpoint, from its safetensors files: arguments of ragged_moe.experts, packed where they are FP4.

    nvfp4_experts   ModelOpt's and compressed-tensors' NVFP4: a tensor an expert and projection
    mxfp4_experts   gpt-oss's MXFP4: a tensor of all experts, rows of gate and up interleaved, biases; and
                    compressed-tensors', Quark's and DeepSeek-V4's: a tensor an expert and projection
    fp8_experts     e4m3 with a scale for 128 x 128 (DeepSeek, Qwen, compressed-tensors), for a row (FP8 per channel),
                    or for a whole tensor
    bf16_experts    weights that are not quantised; MXFP8, whose numbers bf16 holds

Projections are called gate_proj, up_proj and down_proj, or w1, w3 and w2. Needs `pip install safetensors`.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ragged_moe.layers.pack_weights import pack_mxfp4, pack_nvfp4, require_scales
from ragged_moe.runtime.pad_weights import BLOCK, pad_intermediate
from ragged_moe.runtime.sizes import BF16, E4M3, F32

INDEX = "model.safetensors.index.json"
U8, I8, E8M0 = torch.uint8, torch.int8, torch.float8_e8m0fnu
PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


class Format(NamedTuple):
    """How a checkpoint names an expert's weights [N, K] and what belongs to them, behind PREFIX.e.PROJECTION.

    scale_types, scale_columns: of its scales [N, K / scale_columns], if there are some. of_all, of_input: the scales of
    a whole tensor and of its input, which divide in compressed-tensors' files, and are multiplied in ModelOpt's.
    """

    name: str
    weight: str
    weight_type: torch.dtype
    scale: str = ""
    scale_types: tuple[torch.dtype, ...] = ()
    scale_columns: int = 0
    of_all: str = ""
    of_input: str = ""
    divides: bool = False

    def holds(self, of: "Checkpoint", at: str) -> bool:
        """Whether the tensors behind this name are of this format."""
        weight, scale, of_all = (f"{at}.{x or self.weight}" for x in (self.weight, self.scale, self.of_all))
        if not {weight, scale, of_all} <= set(of.files) or of.dtype(weight) is not self.weight_type:
            return False
        if not self.scale:
            return True
        n, k = of.slice(weight).get_shape()[:2]
        of_32 = of.slice(scale).get_shape() == [n, k // 32]  # by which alone MXFP8 is told from other FP8
        return of.dtype(scale) in self.scale_types and (self.weight_type is not E4M3 or of_32 == (self in MXFP8))


NVFP4 = (
    Format("ModelOpt's NVFP4", "weight", U8, "weight_scale", (E4M3,), 16, "weight_scale_2", "input_scale"),
    Format("compressed-tensors' NVFP4", "weight_packed", U8, "weight_scale", (E4M3,), 16, "weight_global_scale",
           "input_global_scale", divides=True),
)  # fmt: skip
MXFP4 = (
    Format("compressed-tensors' MXFP4", "weight_packed", U8, "weight_scale", (U8, E8M0), 32),
    Format("Quark's MXFP4", "weight", U8, "weight_scale", (U8, E8M0), 32),
    Format("DeepSeek-V4's MXFP4", "weight", I8, "scale", (E8M0,), 32),
)
FP8 = (
    Format("DeepSeek's FP8", "weight", E4M3, "weight_scale_inv", (F32, BF16, E8M0), BLOCK),
    Format("FP8 with scales", "weight", E4M3, "weight_scale", (F32, BF16, E8M0), BLOCK),
    Format("DeepSeek's FP8", "weight", E4M3, "scale", (F32, BF16, E8M0), BLOCK),
)
MXFP8 = tuple(Format("MXFP8", "weight", E4M3, x, (U8, E8M0), 32) for x in ("weight_scale", "weight_scale_inv"))
PLAIN = (Format("bf16", "weight", BF16),)
# Of formats that are not read: the endings of names that tell them
UNREAD = (
    ("GPTQ without zeros", "qweight", "g_idx"),
    ("compressed-tensors' INT4 or INT8 (pack-quantized)", "weight_packed", "weight_shape"),
    ("bitsandbytes'", "weight", "weight.absmax"), ("SmoothQuant's INT8 or FP8", "weight", "smooth_quant_scale"),
    ("HQQ's", "W_q"), ("Quanto's", "weight._data"), ("torchao's", "weight_qdata"),
)  # fmt: skip


class Checkpoint:
    """Tensors by name, of a safetensors file, or of a folder of such files, with or without an index."""

    def __init__(self, path: str | Path):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError("reading a checkpoint needs safetensors: pip install safetensors") from error
        self.path, self.open = Path(path), functools.cache(functools.partial(safe_open, framework="pt"))
        index = self.path / INDEX
        if index.is_file():
            files = json.loads(index.read_text())["weight_map"]
            self.files = {name: self.path / file for name, file in files.items()}
        else:
            files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
            if not files:
                raise ValueError(f"{self.path} has no .safetensors files")
            try:
                self.files = {name: file for file in files for name in self.open(file).keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise ValueError(f"{self.path} is not of safetensors: {error}") from error

    def slice(self, name: str):
        """The tensor, of which [..] reads a part; ValueError if there is none."""
        if name not in self.files:
            raise ValueError(f"{self.path} has no tensor {name}")
        return self.open(self.files[name]).get_slice(name)

    def dtype(self, name: str) -> torch.dtype:
        """The type of a tensor."""
        found = self.slice(name)
        return (found[...] if not found.get_shape() else found[:0]).dtype

    def tensor(self, name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The tensor, on the CPU; ValueError unless it has this type, and this shape if one is given."""
        return checked(self, name, self.slice(name)[...], dtype, shape)

    def layout(self, prefix: str, expert: int, formats: Sequence[Format]) -> tuple[Format, tuple[str, str, str]]:
        """The format of an expert's weights, of these, and its projections' names; ValueError that names another."""
        for projections in PROJECTIONS:
            for x in formats:
                if x.holds(self, f"{prefix}.{expert}.{projections[0]}"):
                    return x, projections
        read = ", ".join(dict.fromkeys(x.name for x in formats))
        raise ValueError(f"{self.path}: {self.described(prefix, expert)}, but must be {read}")

    def described(self, prefix: str, expert: int) -> str:
        """Say what there is instead: the format of an expert's tensors, or where a layer's experts are."""
        own = {name.removeprefix(f"{prefix}.{expert}."): name for name in self.files
               if name.startswith(f"{prefix}.{expert}.")}  # fmt: skip
        if not own:
            rest = sorted(name for name in self.files if name.startswith(f"{prefix}."))
            if rest:
                return f"{prefix} has no expert {expert}: it has {listed(rest)}"
            others = sorted({name[: name.index(".experts") + 8] for name in self.files if ".experts" in name})
            return f"there is nothing under {prefix}: " + (f"experts are {listed(others)}" if others else "no experts")
        said = f"{prefix}.{expert} is"
        ends = {name.partition(".")[2] for name in own}
        if {"qweight", "qzeros", "scales"} <= ends:
            return f"{said} {self.of_integers(next(x for x in own.values() if x.endswith('.qweight')))}"
        for name, *wanted in UNREAD:
            if set(wanted) <= ends:
                return f"{said} {name}"
        for x in (*NVFP4, *MXFP4, *FP8, *MXFP8):
            if any(x.holds(self, f"{prefix}.{expert}.{projections[0]}") for projections in PROJECTIONS):
                return f"{said} {x.name}"
        found = sorted(own)[0]
        if {"up_proj.weight", "down_proj.weight"} <= set(own) and "gate_proj.weight" not in own:
            return f"{said} without a gate_proj"
        if ends == {"weight"}:
            return f"{said} not quantised: {found} is {self.dtype(own[found])}"
        if self.dtype(own[found]) is I8:
            return f"{said} INT8: {found} is {I8} {self.slice(own[found]).get_shape()}"
        tensors = [f"{name} {self.dtype(own[name])} {self.slice(own[name]).get_shape()}" for name in sorted(own)]
        return f"{said} of no known format: {listed(tensors)}"

    def of_integers(self, qweight: str) -> str:
        """Which of the formats with qweight, qzeros and scales it is: GPTQ's qweight alone is as wide as scales."""
        weight, zeros, scales = (
            self.slice(qweight.removesuffix("qweight") + x).get_shape() for x in ("qweight", "qzeros", "scales")
        )
        return f"{'GPTQ' if weight[-1] == scales[-1] else 'AWQ'} (INT{32 * zeros[-1] // scales[-1]})"


def listed(found: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more} more" if more > 0 else "")


def checked(of: Checkpoint, name: str, found: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The tensor `found`; ValueError if it is not of this type and shape."""
    if found.dtype is not dtype or shape and tuple(found.shape) != tuple(shape):
        must = f"{dtype} {tuple(shape)}" if shape else f"{dtype}"
        raise ValueError(f"{of.path}: {name} is {found.dtype} {tuple(found.shape)}, but must be {must}")
    return found


class Weights(NamedTuple):
    """The weights of some experts, W13's gate above its up, or W2's, as the checkpoint has them."""

    values: torch.Tensor  # [E, halves * n, ..]
    scales: torch.Tensor | None  # [E, halves * n, K / scale_columns], of blocks or of tensors else
    of_all: torch.Tensor | None  # f32 [E, halves]
    of_input: torch.Tensor | None  # f32 [E, halves]


def weights(of: Checkpoint, x: Format, prefix: str, experts: Sequence[int], names: Sequence[str], device) -> Weights:
    """The weights of these experts' projections `names`, which lie above each other; ValueError if one is otherwise."""
    first = read(of, x, f"{prefix}.{experts[0]}.{names[0]}")
    count, halves = len(experts), len(names)
    values, scales = (
        None if y is None else torch.empty(count, halves * len(y), y.shape[1], dtype=y.dtype, device=device)
        for y in first[:2]
    )
    of_all, of_input = (None if y is None else torch.empty(count, halves, dtype=F32) for y in first[2:])
    for i, e in enumerate(experts):
        for half, name in enumerate(names):
            found = read(of, x, f"{prefix}.{e}.{name}", shape=first[0].shape)
            if x.scale and found[1].shape != first[1].shape:  # as of rows beside one of all
                shapes = [(*y.shape,) for y in (found[1], first[1])]
                other = f"but {prefix}.{experts[0]}.{names[0]} has {shapes[1]}"
                raise ValueError(f"{of.path}: {prefix}.{e}.{name} has scales {shapes[0]}, {other}")
            for to, y in zip((values, scales)[: 1 + bool(x.scale)], found):
                to[i, half * len(y) : half * len(y) + len(y)] = y
            for to, y in zip((of_all, of_input), found[2:]):
                if (to is None) != (y is None):
                    raise ValueError(f"{of.path}: not all of {prefix} have {x.of_input}")
                if to is not None:
                    to[i, half] = y
    return Weights(values, scales, of_all, of_input)


def read(of: Checkpoint, x: Format, at: str, shape: Sequence[int] = ()) -> tuple[torch.Tensor | None, ...]:
    """An expert's projection: its weights, their scales, and those of all and of the input, as f32 that multiply."""
    values = of.tensor(f"{at}.{x.weight}", x.weight_type, *shape)
    if not x.scale:
        return values, None, None, None
    n, k = values.shape[0], values.shape[1] * (2 if x.weight_type in (U8, I8) else 1)
    name, scale = f"{at}.{x.scale}", of.slice(f"{at}.{x.scale}")[...]
    if x.scale_columns == BLOCK:
        scale = of_blocks(of, name, scale, n, k)
    else:
        scale = checked(of, name, scale, scale.dtype, (n, k // x.scale_columns))
    found = [values, scale]
    for ending, required in ((x.of_all, True), (x.of_input, False)):
        name = f"{at}.{ending}"
        if not ending or not required and name not in of.files:
            found.append(None)
            continue
        scale = of.tensor(name, F32)
        if scale.numel() != 1:
            raise ValueError(f"{of.path}: {name} is {tuple(scale.shape)}, but must be of one element")
        require_scales(f"{of.path}: {name}", scale, zero=not x.divides)
        found.append(1 / scale.reshape(()) if x.divides else scale.reshape(()))
    return tuple(found)


def of_blocks(of: Checkpoint, name: str, scale: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """f32 [N/128, K/128], rounded up: of blocks of 128 x 128, or one scale of all; [N, 1] of rows; ValueError for
    another shape.
    """
    shape, found = (-(-n // BLOCK), -(-k // BLOCK)), tuple(scale.shape)
    if scale.dtype not in (F32, BF16, E8M0) or found not in (shape, (n, 1), (n,)) and scale.numel() != 1:
        what = "MXFP8's scales of 32 columns" if found == (n, k // 32) else f"scales {found}"
        must = f"one for 128 x 128, {shape}, one a row, {(n, 1)}, or one of all"
        raise ValueError(f"{of.path}: {name} is {scale.dtype}, {what} of weights {(n, k)}, but must be {must}")
    scale = scale.float()
    require_scales(f"{of.path}: {name}", scale, zero=True)
    if found == (n,) and n > 1:
        return scale[:, None]
    return scale.expand(shape) if scale.numel() == 1 else scale


def nvfp4_experts(
    path: str | Path, prefix: str, experts: Sequence[int], device="cuda", activation: str | None = None
) -> dict:
    """Arguments of ragged_moe.experts, weights, input scales and gate_first, for these experts of a layer in NVFP4,
    packed for the GPU `device` or, if that is "cpu", for torch's current one.

    path: a safetensors file or a folder of some. prefix: "model.layers.3.mlp.experts". Of expert e and each projection
    are read, from ModelOpt's files, PREFIX.e.PROJ.weight uint8 [N, K/2], .weight_scale e4m3 [N, K/16], .weight_scale_2
    f32 and, if there, .input_scale f32; from compressed-tensors' .weight_packed, .weight_scale, .weight_global_scale
    and .input_global_scale, of which the last two divide. Of input scales the largest counts. activation: as of
    pack_nvfp4. ValueError if a tensor is missing or otherwise, or of another format, which it names.
    """
    of, arguments = Checkpoint(path), {"gate_first": True}
    x, (*gate_up, down) = of.layout(prefix, experts[0], NVFP4)
    for name, projections in (("w13", gate_up), ("w2", [down])):
        found = weights(of, x, prefix, experts, projections, device)
        if found.of_input is not None:
            largest = found.of_input.amax().reshape(1)
            require_scales(f"{path}: {prefix}: the largest input scale of {name}", largest, zero=False)
            arguments[f"{name}_input_scale"] = largest.to(device)
        of_all = found.of_all if name == "w13" else found.of_all[:, 0].contiguous()
        packed = pack_nvfp4(found.values, found.scales, weight_scale_2=of_all, activation=activation)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed))
    return arguments


def mxfp4_experts(
    path: str | Path, prefix: str, experts: range, device="cuda", activation: str | None = None
) -> dict:
    """Arguments of ragged_moe.experts, weights, biases if there are some, and gate_first, for these experts of a layer
    in MXFP4.

    path: a safetensors file or a folder of some. prefix: "model.layers.0.mlp.experts". Are read of gpt-oss's
    gate_up_proj, whose rows are gate and up in turn, and of down_proj: PREFIX.PROJ_blocks uint8 [E, N, K/32, 16],
    _scales uint8 [E, N, K/32] and _bias bf16 [E, N]; else of expert e and each projection PREFIX.e.PROJ.weight_packed,
    or .weight, uint8 [N, K/2], and .weight_scale e8m0 [N, K/32], or DeepSeek-V4's .weight int8 and .scale. activation:
    as of pack_mxfp4. ValueError if a tensor is missing or otherwise, or of another format, which it names.
    """
    of, arguments = Checkpoint(path), {"gate_first": True}
    if f"{prefix}.gate_up_proj_blocks" in of.files:
        return arguments | gpt_oss(of, prefix, experts, device, activation)
    x, (*gate_up, down) = of.layout(prefix, experts[0], MXFP4)
    for name, projections in (("w13", gate_up), ("w2", [down])):
        found = weights(of, x, prefix, experts, projections, device)
        b, b_scale = found.values.view(U8), found.scales.view(U8)
        packed = pack_mxfp4(b, b_scale, halves=len(projections), activation=activation)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed))
    return arguments


def gpt_oss(of: Checkpoint, prefix: str, experts: range, device, activation: str | None) -> dict:
    """`mxfp4_experts` of gpt-oss's layout."""
    arguments, part = {}, slice(experts.start, experts.stop)
    for name, projection in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        blocks, scales, bias = [f"{prefix}.{projection}_{x}" for x in ("blocks", "scales", "bias")]
        n, groups = of.slice(blocks).get_shape()[1:3]
        shape = len(experts), n, groups
        b = checked(of, blocks, of.slice(blocks)[part], U8, (*shape, 16)).to(device)
        b_scale = checked(of, scales, of.slice(scales)[part], U8, shape).to(device)
        added = checked(of, bias, of.slice(bias)[part], BF16, shape[:2]).to(device).float()
        b = b.view(*shape[:2], groups * 16)
        if name == "w13":
            b, b_scale, added = [apart(x) for x in (b, b_scale, added)]
        packed = pack_mxfp4(b, b_scale, halves=2 if name == "w13" else 1, activation=activation)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed)) | {f"{name}_bias": added}
    return arguments


def fp8_experts(path: str | Path, prefix: str, experts: Sequence[int], device="cuda") -> dict:
    """Arguments of ragged_moe.experts, weights and gate_first, for these experts of a layer in FP8.

    path: a safetensors file or a folder of some. prefix: "model.layers.3.mlp.experts". Of expert e and each projection
    are read PREFIX.e.PROJ.weight e4m3 [N, K] and .weight_scale_inv, .weight_scale or .scale, in f32, bf16 or e8m0:
    [N/128, K/128], rounded up, [N, 1] or [N] of rows, or one of all. Values and scales stay as they are: e8m0 becomes
    f32, one scale of all the scale of every block. Static scales of activations are not read: tokens get a scale for
    128 columns here. An intermediate size that is no multiple of 128 is padded, by pad_intermediate. ValueError if a
    tensor is missing or otherwise, or of another format, which it names.
    """
    of = Checkpoint(path)
    x, (*gate_up, down) = of.layout(prefix, experts[0], FP8)
    w13, w2 = (weights(of, x, prefix, experts, names, device) for names in (gate_up, [down]))
    of_rows = w13.scales.shape[1] == w13.values.shape[1]
    scales = [(s.scales[..., 0] if of_rows else s.scales).contiguous() for s in (w13, w2)]
    found = w13.values, scales[0], w2.values, scales[1]
    if w2.values.shape[2] % BLOCK:
        found = pad_intermediate(*found)
    return dict(zip(("w13", "w13_scale", "w2", "w2_scale"), found)) | {"gate_first": True}


def bf16_experts(path: str | Path, prefix: str, experts: Sequence[int], device="cuda") -> dict:
    """Arguments of ragged_moe.experts, weights in bf16, None for their scales, and gate_first, for these experts of a
    layer that is not quantised, or in MXFP8.

    path: a safetensors file or a folder of some. prefix: "model.layers.3.mlp.experts". Of expert e and each projection
    are read PREFIX.e.PROJ.weight bf16 [N, K], or e4m3 with .weight_scale, or .weight_scale_inv, e8m0 [N, K/32]: then
    bf16 has their products, without rounding, in twice the bytes. An intermediate size that is no multiple of 128 is
    padded with zeros. ValueError if a tensor is missing or otherwise, or of another format, which it names.
    """
    of = Checkpoint(path)
    x, (*gate_up, down) = of.layout(prefix, experts[0], (*PLAIN, *MXFP8))
    w13, w2 = (weights(of, x, prefix, experts, names, device) for names in (gate_up, [down]))
    (w13, w2), count = (exact_bf16(f"{of.path}: {prefix}", y) for y in (w13, w2)), len(experts)
    hidden, missing = w2.shape[1], -w2.shape[2] % BLOCK
    if missing:
        halves = w13.view(count, 2, -1, hidden)
        w13 = torch.nn.functional.pad(halves, (0, 0, 0, missing)).view(count, -1, hidden)
        w2 = torch.nn.functional.pad(w2, (0, missing))
    return {"w13": w13, "w13_scale": None, "w2": w2, "w2_scale": None, "gate_first": True}


def exact_bf16(name: str, of: Weights) -> torch.Tensor:
    """The weights as bf16; ValueError if a product of MXFP8 is not one of its numbers."""
    if of.scales is None:
        return of.values
    made = torch.empty(of.values.shape, dtype=BF16, device=of.values.device)
    for values, scales, to in zip(of.values, of.scales, made):  # an expert at a time, for memory
        exact = values.float() * scales.view(E8M0).float().repeat_interleave(32, 1)
        to.copy_(exact)
        if not torch.equal(to.float(), exact):  # NaN, and what is too small
            raise ValueError(f"{name}: MXFP8's scales times its numbers are not all numbers of bf16")
    return made


def apart(x: torch.Tensor) -> torch.Tensor:
    """Return rows [E, 2I, ..] of gate and up in turn as all rows of gate, then all of up."""
    return torch.cat((x[:, 0::2], x[:, 1::2]), 1)
