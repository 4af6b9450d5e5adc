"""python -m ragged_moe bench layer: the MoE layer, of FP8, NVFP4 or MXFP4 weights, and its peers, timed on
this GPU."""

import random
from pathlib import Path

import click
import torch

from ragged_moe.measure import layer, layer_fp4, layer_mxfp4
from ragged_moe.measure.contest import told
from ragged_moe.measure.options import FORMATS, Numbers, contestants
from ragged_moe.measure.timing import record

OF = dict(zip(FORMATS, (layer, layer_fp4, layer_mxfp4)))


@click.command()
@click.option("--format", "kind", type=click.Choice(FORMATS), default="fp8", show_default=True,
              help="Of the weights: ragged_moe.run, or ragged_moe.experts with NVFP4 or MXFP4 weights; "
                   "MXFP4: W4A16 beside W4A8, on Hopper.")  # fmt: skip
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Timings, of 15 calls each.")
@click.option("--tokens", type=Numbers(1), help="Values of T: 1,64,4096.")
@click.option("--peers/--no-peers", default=None, help="FP8: those that are installed, by default, or none.")
@click.option("--marlin", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="NVFP4: the folder of an unzipped sglang 0.5.23 wheel, whose Marlin is the peer.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants.")
def main(
    kind: str, file: Path | None, repeats: int, tokens: list[int] | None, peers: bool | None, marlin: Path | None,
    seed: int,
) -> None:  # fmt: skip
    """Time the layer and its peers on this GPU."""
    of, more = OF[kind], contestants(kind, peers, marlin)
    found = of.results(tokens or of.TOKENS, repeats, random.Random(seed), *more)
    rows = told(found, of.table, file, lambda rows: record(repeats, rows))
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{of.tables(rows)}")
