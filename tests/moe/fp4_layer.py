"""A layer of packed NVFP4 weights for moe.experts, which the checks of both machines draw."""

import torch

GPT_OSS = {"limit": 7.0, "alpha": 1.702, "shift": 1.0}


def drawn(hidden: int, intermediate: int, local: int, tokens: int) -> tuple[dict, dict[str, torch.Tensor]]:
    """The arguments of moe.experts on the CPU, weights packed for this machine among them, and these in float64.

    A token has three of six experts, of which `local` are here.
    """
    from moe.fp4_weights import pack_nvfp4
    from moe.reference.grouped_gemm_fp4 import dequantised

    g, arguments, exact = torch.Generator().manual_seed(2), {}, {}
    for name, (n, k) in {"w13": (2 * intermediate, hidden), "w2": (hidden, intermediate)}.items():
        b = torch.randint(0, 256, (local, n, k // 2), generator=g, dtype=torch.uint8)
        scale = torch.randn(local, n, k // 16, generator=g).to(torch.float8_e4m3fn)
        of_rows = torch.rand(local, 2, generator=g) if name == "w13" else torch.rand(local, generator=g)
        exact[name] = dequantised(b, scale.double()) * of_rows.double().view(local, -1).repeat_interleave(
            n // (of_rows.numel() // local), 1
        )[:, :, None]  # fmt: skip
        packed = pack_nvfp4(b, scale, weight_scale_2=of_rows)
        arguments |= dict(zip((name, f"{name}_scale", f"{name}_global"), packed))
    arguments["hidden"] = torch.randn(tokens, hidden, generator=g).bfloat16() / 16
    arguments["topk_ids"] = torch.stack([torch.randperm(6, generator=g)[:3] for _ in range(tokens)]).int()
    arguments["topk_weights"] = torch.rand(tokens, 3, generator=g)
    return arguments, exact


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
