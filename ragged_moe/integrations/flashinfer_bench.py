"""Packs the layer as one file for FlashInfer-Bench: python -m ragged_moe.integrations.flashinfer_bench -o solution.json
--author NAME

The file is a `Solution` of https://github.com/flashinfer-ai/flashinfer-bench (flashinfer_bench/data/solution.py of
0.1.2): Python sources with their paths, and the function to call, which writes to its last argument.

With --folder it writes what FlashInfer-Bench's own evaluator runs, a trace set: that file, the definition (its
reference in words of this repo), and a workload for each T, all of whose tensors the evaluator draws:

    python -m ragged_moe.integrations.flashinfer_bench --folder DIR --author NAME
    flashinfer-bench run --local DIR --atol 1 --rtol 0.3 --required-matched-ratio 0.9    # the contest's tolerance
"""

import ast
import json
from pathlib import Path

import click

from ragged_moe.runtime.sizes import EXPERTS, Sizes

HERE = Path(__file__).parents[1]  # ragged_moe/
TOKENS = (1, 7, 16, 64, 901, 2048)
DEFINITION = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
ENTRY = '''"""The evaluator imports this file as part of a package of its own name; ragged_moe/ lies beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ragged_moe.layers.deepseek_layer import run as layer  # noqa: E402


def run(
    routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
    gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output,
):
    """Compute the layer with scratch memory of its own: the evaluator knows the definition's arguments only."""
    layer(
        routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output,
    )


__all__ = ["run"]
'''


def file_of(module: str) -> Path | None:
    """The file of a module of moe, by its dotted name below moe; None if there is none."""
    path = HERE.joinpath(*module.split(".")) if module else HERE
    files = path.with_suffix(".py"), path / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def needed(module: str = "layers.deepseek_layer") -> list[Path]:
    """Files of the modules of moe that this one imports, directly or not, of their packages, and its own; sorted."""
    found, waiting = {}, ["", module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = file_of(name)
        waiting.append(name.rpartition(".")[0])  # a package is imported before its modules
        for node in ast.walk(ast.parse(found[name].read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ragged_moe" and name:
                base = node.module.partition(".")[2]
                names = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
                waiting += [base, *(name for name in names if file_of(name))]
    return sorted(found.values())


def solution(name: str, author: str) -> dict:
    """The Solution as JSON has it."""
    sources = [{"path": str(Path("ragged_moe") / x.relative_to(HERE)), "content": x.read_text()} for x in needed()]
    return {
        "name": name,
        "definition": DEFINITION,
        "author": author,
        "description": "CuTe DSL, sm_90a: routing, (permute,) GEMM1 with SwiGLU and e4m3, GEMM2, finalise.",
        "spec": {
            "language": "python",
            "target_hardware": ["NVIDIA H200"],
            "entry_point": "main.py::run",
            "dependencies": ["nvidia-cutlass-dsl"],
            "destination_passing_style": True,
        },
        "sources": [{"path": "main.py", "content": ENTRY}, *sources],
    }


REFERENCE = """import torch


def dequantised(x, scale):
    return x.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)


def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor):
    tokens = routing_logits.shape[0]
    scores = torch.sigmoid(routing_logits.float())
    biased = scores + routing_bias.float()
    groups = biased.view(tokens, 8, 32).topk(2).values.sum(2).topk(4).indices
    kept = torch.zeros(tokens, 8, dtype=torch.bool, device=scores.device).scatter(1, groups, True)
    pruned = biased.masked_fill(~kept.repeat_interleave(32, 1), torch.finfo(torch.float32).min)
    chosen = pruned.topk(8).indices
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(1, keepdim=True) + 1e-20) * routed_scaling_factor
    x = hidden_states.float() * hidden_states_scale.T.repeat_interleave(128, 1)
    output = torch.zeros_like(x)
    for expert in range(gemm1_weights.shape[0]):
        token, place = (chosen == local_expert_offset + expert).nonzero(as_tuple=True)
        if token.numel():
            up, gate = (x[token] @ dequantised(gemm1_weights[expert], gemm1_weights_scale[expert]).T).chunk(2, 1)
            product = torch.nn.functional.silu(gate) * up
            o = product @ dequantised(gemm2_weights[expert], gemm2_weights_scale[expert]).T
            output.index_add_(0, token, o * weights[token, place, None])
    return output.to(torch.bfloat16)
"""


def definition() -> dict:
    """The Definition as JSON has it."""
    sizes = Sizes()
    h, i, e = sizes.hidden, sizes.intermediate, sizes.local
    fixed = {
        "num_experts": EXPERTS, "num_local_experts": e, "hidden_size": h, "intermediate_size": i,
        "gemm1_out_size": 2 * i, "num_hidden_blocks": h // 128, "num_intermediate_blocks": i // 128,
        "num_gemm1_out_blocks": 2 * i // 128,
    }  # fmt: skip
    inputs = {
        "routing_logits": ("float32", "seq_len num_experts"),
        "routing_bias": ("bfloat16", "num_experts"),
        "hidden_states": ("float8_e4m3fn", "seq_len hidden_size"),
        "hidden_states_scale": ("float32", "num_hidden_blocks seq_len"),
        "gemm1_weights": ("float8_e4m3fn", "num_local_experts gemm1_out_size hidden_size"),
        "gemm1_weights_scale": ("float32", "num_local_experts num_gemm1_out_blocks num_hidden_blocks"),
        "gemm2_weights": ("float8_e4m3fn", "num_local_experts hidden_size intermediate_size"),
        "gemm2_weights_scale": ("float32", "num_local_experts num_hidden_blocks num_intermediate_blocks"),
        "local_expert_offset": ("int32", None),
        "routed_scaling_factor": ("float32", None),
    }

    def spec(dtype: str, axes: str | None) -> dict:
        return {"dtype": dtype, "shape": axes and axes.split()}

    return {
        "name": DEFINITION,
        "op_type": "moe",
        "axes": {"seq_len": {"type": "var"}, **{x: {"type": "const", "value": n} for x, n in fixed.items()}},
        "inputs": {name: spec(*x) for name, x in inputs.items()},
        "outputs": {"output": spec("bfloat16", "seq_len hidden_size")},
        "reference": REFERENCE,
    }


def workload(tokens: int) -> dict:
    """A Trace with a workload, as JSON has it."""
    inputs = {name: {"type": "random"} for name in definition()["inputs"]}
    inputs["local_expert_offset"] = {"type": "scalar", "value": 0}
    inputs["routed_scaling_factor"] = {"type": "scalar", "value": 2.5}
    axes = {"seq_len": tokens}
    return {"definition": DEFINITION, "workload": {"axes": axes, "inputs": inputs, "uuid": f"{tokens} tokens"}}


def write_json(file: Path, x: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(x, indent=1) + "\n")
    click.echo(f"{file}: {max(file.stat().st_size >> 10, 1)} KiB")


@click.command()
@click.option("-o", "file", type=click.Path(path_type=Path), help="The JSON file to write.")
@click.option("--folder", type=click.Path(path_type=Path), help="The trace set to write.")
@click.option("--tokens", default=",".join(map(str, TOKENS)), show_default=True, help="Its values of T.")
@click.option("--name", default="cute_dsl_moe", show_default=True)
@click.option("--author", required=True, help="As the evaluator shows it.")
def main(file: Path | None, folder: Path | None, tokens: str, name: str, author: str) -> None:
    """Write the layer as a FlashInfer-Bench solution, or with all that its evaluator needs."""
    if not (file or folder):
        raise click.UsageError("nothing to write: give -o or --folder")
    packed = solution(name, author)
    if file:
        write_json(file, packed)
    if folder:
        write_json(folder / "solutions" / "moe" / f"{name}.json", packed)
        write_json(folder / "definitions" / "moe" / f"{DEFINITION}.json", definition())
        lines = folder / "workloads" / "moe" / f"{DEFINITION}.jsonl"
        lines.parent.mkdir(parents=True, exist_ok=True)
        lines.write_text("".join(json.dumps(workload(int(x))) + "\n" for x in tokens.split(",")))
        click.echo(f"{lines}: T = {tokens}")


if __name__ == "__main__":
    main()
