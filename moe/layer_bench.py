"""python -m moe.layer_bench: the MoE layer, with FP8 or NVFP4 weights, and its peers, timed on this GPU."""

import json
import random
from pathlib import Path

import click
import torch

from moe.measure import layer, layer_fp4
from moe.measure.marlin import load_marlin
from moe.measure.timing import need_gpu, record


@click.command()
@click.option("--format", "kind", type=click.Choice(["fp8", "nvfp4"]), default="fp8", show_default=True,
              help="Of the weights: moe.run, or moe.experts with NVFP4 weights.")  # fmt: skip
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Timings, of 15 calls each.")
@click.option("--tokens", help="Values of T: 1,64,4096.")
@click.option("--peers/--no-peers", "wanted", default=True, show_default=True, help="FP8: those that are installed.")
@click.option("--marlin", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="NVFP4: the folder of an unzipped sglang 0.5.23 wheel, whose Marlin is the peer.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants.")
def main(
    kind: str, file: Path | None, repeats: int, tokens: str | None, wanted: bool, marlin: Path | None, seed: int
) -> None:
    """Time the layer and its peers on this GPU."""
    peer = load_marlin(kind, marlin)
    need_gpu()
    of = layer if kind == "fp8" else layer_fp4
    counts, rows = [int(x) for x in tokens.split(",")] if tokens else of.TOKENS, []
    for row in of.results(counts, repeats, random.Random(seed), peer if kind == "nvfp4" else wanted):
        rows.append(row)
        click.echo(of.table(rows[-1:]).splitlines()[-1])
        if file:
            file.write_text(json.dumps(record(repeats, rows), indent=1) + "\n")
        torch.cuda.empty_cache()
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{of.tables(rows)}")


if __name__ == "__main__":
    main()
