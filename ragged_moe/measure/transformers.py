"""`python -m ragged_moe bench transformers --json FILE` times a random Qwen3-MoE model in FP8 under
transformers, on this GPU.

Its experts have the weights of transformers' FP8 quantiser, blocks of 128 x 128; attention is bf16. Implementations of
experts, in one process: transformers' eager, batched_mm and grouped_mm, whose Triton kernels are kernels-community's
finegrained-fp8, and ragged_moe.integrations.transformers.

    layer       one layer's experts as called, between two events; the median of CALLS calls
    generation  greedy tokens a second of each of some prompts of PROMPT tokens, with a cache, the first tokens left out

Those kernels come from the Hub, or from a checkout of github.com/huggingface/kernels-community (--kernels).
"""

import datetime
import importlib
import json
import random
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import click
import torch
import transformers
from torch import nn
from transformers.integrations import finegrained_fp8

from ragged_moe.integrations.transformers import NAME, enable
from ragged_moe.measure.timing import need_gpu
from ragged_moe.reference.layer import distance
from ragged_moe.runtime.sizes import E4M3, F32

QWEN3_30B = {
    "hidden_size": 2048, "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 1024,
    "intermediate_size": 6144,
}  # fmt: skip
IMPLEMENTATIONS = "eager", "batched_mm", "grouped_mm", NAME
TOKENS = 1, 16, 128, 2048
PROMPTS = 1, 16
PROMPT = STEPS = 64
WARM = 4  # tokens that are not counted, and the prompts
CALLS = 20
MOST_ROWS = 2048  # of batched_mm, which reads an expert's weights anew for each row


def enter_kernels(checkout: Path) -> None:
    """Let transformers have finegrained-fp8's Triton kernels of this checkout. ValueError if they are not there."""
    folder = checkout / "finegrained-fp8" / "torch-ext"
    if not (folder / "finegrained_fp8" / "grouped.py").is_file():
        raise ValueError(f"{checkout} has no finegrained-fp8/torch-ext, as kernels-community has")
    sys.path.insert(0, str(folder))
    made = types.ModuleType("finegrained_fp8._ops")  # the file that a build of the kernels adds
    made.add_op_namespace_prefix, made.ops = "finegrained_fp8::{}".format, torch.ops.finegrained_fp8
    sys.modules[made.__name__] = made
    kernels = importlib.import_module("finegrained_fp8")
    finegrained_fp8._FINEGRAINED_FP8 = finegrained_fp8.FineGrainedFP8(
        kernels.matmul_2d, kernels.matmul_batched, kernels.matmul_grouped
    )


def build(layers: int, sizes: dict, device: str) -> tuple[nn.Module, list[nn.Module]]:
    """A model with random weights, its experts as behind transformers' FP8 quantiser, and its experts modules."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(num_hidden_layers=layers, **sizes)
    with torch.device(device):
        model = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()
    kept = [name for name, m in model.named_modules() if type(m) is nn.Linear]
    quantiser = transformers.FineGrainedFP8Config(modules_to_not_convert=kept)
    finegrained_fp8.replace_with_fp8_linear(model, kept, quantiser)
    modules = [m for m in model.modules() if isinstance(m, finegrained_fp8.FP8Experts)]
    g = torch.Generator(device).manual_seed(0)
    for module in modules:
        for name in ("gate_up_proj", "down_proj"):
            shape, scale = getattr(module, name).shape, getattr(module, f"{name}_scale_inv")
            values = torch.empty(shape, dtype=E4M3, device=device)
            for e in values:  # one at a time: the f32 numbers of all would be large
                e.copy_(torch.randn(shape[1:], device=device, generator=g).mul_(100).clamp_(-448, 448))
            scales = torch.rand(scale.shape, device=device, generator=g, dtype=F32) * 2e-4 + 2e-4
            setattr(module, name, nn.Parameter(values, requires_grad=False))
            setattr(module, f"{name}_scale_inv", nn.Parameter(scales, requires_grad=False))
    return model.to(device), modules


def called(call: Callable) -> float:
    """Microseconds of a call between two events, the median of CALLS, behind three that warm up."""
    times = []
    for _ in range(CALLS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times[3:])


def of_layer(model: nn.Module, module: nn.Module, tokens: int) -> dict:
    """The row of a layer's experts: times, and how far each result is from ragged_moe.experts', of its norm."""
    g, device = torch.Generator(model.device).manual_seed(tokens), model.device
    hidden = torch.randn(tokens, module.hidden_dim, device=device, generator=g).bfloat16()
    logits = torch.randn(tokens, module.num_experts, device=device, generator=g)
    weights, ids = logits.softmax(-1).topk(QWEN3_30B["num_experts_per_tok"])
    weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
    us, found, refused = {}, {}, {}
    for name in IMPLEMENTATIONS:
        if name == "batched_mm" and ids.numel() > MOST_ROWS:
            refused[name] = f"not run with more than {MOST_ROWS} rows"
            continue
        model.set_experts_implementation(name)
        try:
            found[name] = module(hidden, ids, weights)
            us[name] = called(lambda: module(hidden, ids, weights))
        except Exception as error:  # kernels that are not there, or do not do this
            refused[name] = f"{type(error).__name__}: {error}"[:300]
    ours = found[NAME]
    off = {name: distance(x, ours) for name, x in found.items() if name != NAME}
    return {"T": tokens, "us": us, "difference": off, "refused": refused}


def of_generation(model: nn.Module, prompts: int) -> dict:
    """The row of generation: tokens a second of each prompt, and how many of them are ragged_moe.experts' tokens."""
    g = torch.Generator(model.device).manual_seed(prompts)
    ids = torch.randint(0, model.config.vocab_size, (prompts, PROMPT), device=model.device, generator=g)
    rates, found, refused = {}, {}, {}
    for name in random.Random(prompts).sample(IMPLEMENTATIONS, len(IMPLEMENTATIONS)):
        model.set_experts_implementation(name)
        options = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
        try:
            model.generate(ids, max_new_tokens=STEPS, min_new_tokens=STEPS, **options)  # a first one takes seconds
            took = []
            for steps in (WARM, STEPS):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                made = model.generate(ids, max_new_tokens=steps, min_new_tokens=steps, **options)
                torch.cuda.synchronize()
                took.append(time.perf_counter() - begin)
            rates[name], found[name] = (STEPS - WARM) / (took[1] - took[0]), made[:, PROMPT:]
        except Exception as error:  # as of a layer
            refused[name] = f"{type(error).__name__}: {error}"[:300]
    same = {name: (x == found[NAME]).float().mean().item() for name, x in found.items() if name != NAME}
    return {"prompts": prompts, "rate": rates, "same": same, "refused": refused}


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--kernels", type=click.Path(path_type=Path), help="A checkout of kernels-community.")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Of the model.")
def main(file: Path | None, kernels: Path | None, layers: int) -> None:
    """Time a layer's experts and generation, under each implementation of a random model's FP8 experts."""
    need_gpu()
    if kernels:
        try:
            enter_kernels(kernels)
        except ValueError as error:
            raise click.UsageError(f"--kernels: {error}") from error
    model, modules = build(layers, QWEN3_30B, "cuda")
    enable(model)
    rows, generation = [], []

    def note(what: list[dict], row: dict) -> None:
        what.append(row)
        click.echo(json.dumps(row))
        if file:
            result = {
                "gpu": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
                "torch": torch.__version__, "transformers": transformers.__version__,
                "kernels": str(kernels or "of the Hub"), "layers": layers, "calls": CALLS, "generation": generation,
                "rows": rows,
            }  # fmt: skip
            file.write_text(json.dumps(result, indent=1) + "\n")

    with torch.inference_mode():
        for prompts in PROMPTS:
            note(generation, of_generation(model, prompts))
        for tokens in TOKENS:
            note(rows, of_layer(model, modules[0], tokens))
