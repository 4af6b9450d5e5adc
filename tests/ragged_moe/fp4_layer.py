"""Layers of packed weights in e2m1 for ragged_moe.experts: how the checks of both machines draw, call and compare
them."""

import contextlib
from collections.abc import Iterator

import torch

import emulated_gpu
from tests.ragged_moe.emulated import compiled_anew

GPT_OSS = {"limit": 7.0, "alpha": 1.702, "shift": 1.0}
ORDERED = "the ring goes round", "cut into many parts", "many tiles of a CTA", "one expert has all"


def check_order(fp4, cases: dict, configs: tuple, schedule: int, written: bool) -> None:
    """An order of events, of one of the ORDERED under one of two configs. fp4, written: as of its `error_of`."""
    config = configs[schedule // 4 % 2]
    assert fp4.error_of(cases[ORDERED[schedule % 4]], config, schedule, written=written) <= fp4.BOUND


def drawn(
    hidden: int, intermediate: int, local: int, tokens: int, activation: str | None = None
) -> tuple[dict, dict[str, torch.Tensor]]:
    """The arguments of ragged_moe.experts on the CPU, weights packed for this machine among them, and these in float64.

    A token has three of six experts, of which `local` are here. activation: as of pack_nvfp4.
    """
    from ragged_moe.layers.pack_weights import pack_nvfp4
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised

    g, arguments, exact = torch.Generator().manual_seed(2), {}, {}
    for name, (n, k) in {"w13": (2 * intermediate, hidden), "w2": (hidden, intermediate)}.items():
        b = torch.randint(0, 256, (local, n, k // 2), generator=g, dtype=torch.uint8)
        scale = torch.randn(local, n, k // 16, generator=g).to(torch.float8_e4m3fn)
        of_rows = torch.rand(local, 2, generator=g) if name == "w13" else torch.rand(local, generator=g)
        exact[name] = dequantised(b, scale.double()) * of_rows.double().view(local, -1).repeat_interleave(
            n // (of_rows.numel() // local), 1
        )[:, :, None]  # fmt: skip
        packed = pack_nvfp4(b, scale, weight_scale_2=of_rows, activation=activation)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed))
    arguments["hidden"] = torch.randn(tokens, hidden, generator=g).bfloat16() / 16
    arguments |= chosen(tokens, g)
    return arguments, exact


def chosen(tokens: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    """The experts of tokens, three of six. If there are several, the first one's are elsewhere, the second one's but
    one.
    """
    ids = torch.stack([torch.randperm(6, generator=g)[:3] for _ in range(tokens)]).int()
    if tokens > 1:
        ids[0], ids[1] = torch.tensor([0, 5, 5]), torch.tensor([5, 2, 0])
    return {"topk_ids": ids, "topk_weights": torch.rand(tokens, 3, generator=g)}


def gpt_oss_file(path, hidden: int, intermediate: int) -> dict[str, torch.Tensor]:
    """Write a layer of 6 experts as gpt-oss names and shapes it; return its tensors by the last part of their names."""
    from safetensors.torch import save_file

    g, made = torch.Generator().manual_seed(5), {}
    for name, n, k in (("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)):
        made[f"{name}_blocks"] = torch.randint(0, 256, (6, n, k // 32, 16), generator=g, dtype=torch.uint8)
        made[f"{name}_scales"] = torch.randint(119, 124, (6, n, k // 32), generator=g, dtype=torch.uint8)
        made[f"{name}_bias"] = torch.randn(6, n, generator=g).bfloat16()
    save_file({f"model.layers.0.mlp.experts.{name}": x for name, x in made.items()}, path)
    return made


def gpt_oss_layer(
    folder, hidden: int, intermediate: int, tokens: int, activation: str | None = None
) -> tuple[dict, dict[str, torch.Tensor]]:
    """The arguments of ragged_moe.experts from a checkpoint of gpt-oss's layout, but for gate_first: experts 1 to 4 of
    6. And their weights in float64 and biases in float32, gate's rows before up's. activation: as of mxfp4_experts.
    """
    from ragged_moe.integrations.checkpoints import mxfp4_experts
    from ragged_moe.reference.grouped_gemm_fp4 import dequantised, e8m0

    made = gpt_oss_file(folder / "model.safetensors", hidden, intermediate)
    g, exact = torch.Generator().manual_seed(6), {}
    for name, key in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        weights = dequantised(made[f"{key}_blocks"].flatten(2), e8m0(made[f"{key}_scales"]))
        for of, x in (("", weights), ("_bias", made[f"{key}_bias"].float())):
            exact[name + of] = (torch.cat((x[:, ::2], x[:, 1::2]), 1) if name == "w13" else x)[1:5]
    arguments = mxfp4_experts(folder, "model.layers.0.mlp.experts", range(1, 5), "cpu", activation)
    assert arguments.pop("gate_first")
    arguments["hidden"] = torch.randn(tokens, hidden, generator=g).bfloat16()
    arguments |= chosen(tokens, g)
    return arguments, exact


def called(arguments, schedule=0, **options) -> torch.Tensor:
    """Call ragged_moe.experts as torch's operator, as if the launch before had written all operands; experts 0 and 5
    are elsewhere.
    """

    with emulated_gpu.session(schedule=schedule, strict=True):
        tensors = emulated_gpu.device_tensors(tuple(arguments.values()))
        emulated_gpu.protect(tensors)
        emulated_gpu.written(tensors)
        given = dict(zip(arguments, tensors)) | {"local_expert_offset": 1, "num_experts": 6}
        return torch.ops.ragged_moe.experts(**given, **options).cpu()


def distance(found, arguments, exact, activation: dict, **rounding) -> float:
    """Of the norm, from what the kernels should give. rounding: how tokens are, as options of the reference."""
    from ragged_moe.kernels.config import Activation
    from ragged_moe.reference import experts, layer

    given = [arguments[name] for name in ("hidden", "topk_ids", "topk_weights")]
    biases = [arguments.get(f"{name}_bias") for name in ("w13", "w2")]
    expected = experts.experts_fp4(*given, exact["w13"], exact["w2"], 1, Activation(**activation), *biases, **rounding)
    assert expected.isfinite().all() and expected.float().norm() > 1
    return layer.distance(found, expected)


@contextlib.contextmanager
def planted(fault: str, found: tuple[str, ...]) -> Iterator[None]:
    """Compile kernels anew in this block, for a fault in them. found: those that the emulator finds."""
    from ragged_moe.layers.grouped_gemm_fp8 import launcher

    with compiled_anew(launcher):
        try:
            yield
        except emulated_gpu.EmulatorError:
            assert fault in found
