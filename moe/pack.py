"""Packs the layer as one file for FlashInfer-Bench: python -m moe.pack -o solution.json

The file is a `Solution` of https://github.com/flashinfer-ai/flashinfer-bench (flashinfer_bench/data/solution.py of
0.1.2): Python sources with their paths, and the function to call, which writes to its last argument.
"""

import ast
import json
from pathlib import Path

import click

HERE = Path(__file__).parent
DEFINITION = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
ENTRY = '''"""The evaluator imports this file as part of a package of its own name; moe/ lies beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from moe.layer import run  # noqa: E402

__all__ = ["run"]
'''


def needed(module: str = "layer") -> list[str]:
    """Names of the modules of moe/ that this one imports, directly or not, and its own; sorted."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((HERE / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "moe":
                waiting += [alias.name for alias in node.names if (HERE / f"{alias.name}.py").exists()]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("moe."):
                waiting.append(node.module.removeprefix("moe."))
    return sorted(found)


def solution(name: str, author: str) -> dict:
    """The Solution as JSON has it."""
    files = ["__init__", *needed()]
    sources = [{"path": f"moe/{x}.py", "content": (HERE / f"{x}.py").read_text()} for x in files]
    return {
        "name": name,
        "definition": DEFINITION,
        "author": author,
        "description": "CuTe DSL: routing, GEMM1 with gather, SwiGLU and e4m3, GEMM2, finalise; four launches, sm_90a.",
        "spec": {
            "language": "python",
            "target_hardware": ["NVIDIA H200"],
            "entry_point": "main.py::run",
            "dependencies": ["nvidia-cutlass-dsl"],
            "destination_passing_style": True,
        },
        "sources": [{"path": "main.py", "content": ENTRY}, *sources],
    }


@click.command()
@click.option("-o", "file", type=click.Path(path_type=Path), required=True, help="The JSON file to write.")
@click.option("--name", default="cute_dsl_four_launches", show_default=True)
@click.option("--author", required=True, help="As the evaluator shows it.")
def main(file: Path, name: str, author: str) -> None:
    """Write the layer as a FlashInfer-Bench solution."""
    packed = solution(name, author)
    file.write_text(json.dumps(packed, indent=1) + "\n")
    click.echo(f"{file}: {len(packed['sources'])} files, {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
