"""python -m ragged_moe bench layer: the MoE layer, of FP8, NVFP4 or MXFP4 weights, and its peers, timed on
this GPU. With FP8 weights it is ragged_moe.run, with the others ragged_moe.experts."""

import random
from pathlib import Path

import click
import torch

from ragged_moe.measure import layer, layer_fp4
from ragged_moe.measure.contest import timed_rows, told
from ragged_moe.measure.experts import MODELS
from ragged_moe.measure.options import Numbers, chosen_peers, contest_options, format_options
from ragged_moe.measure.timing import record

OF = {  # what is timed, the table of a row, and of all
    "fp8": (layer.WholeLayer, layer.stage_table, layer.tables),
    "nvfp4": (layer_fp4.Nvfp4Layer, layer_fp4.nvfp4_table, layer_fp4.nvfp4_table),
    "mxfp4": (layer_fp4.Mxfp4Layer, layer_fp4.mxfp4_table, layer_fp4.mxfp4_table),
}


@click.command()
@format_options
@contest_options(repeats=9)
@click.option("--tokens", type=Numbers(1), help="Values of T: 1,64,4096.")
def main(
    kind: str, peers: bool | None, marlin: Path | None, humming: Path | None, file: Path | None, repeats: int,
    seed: int, tokens: list[int] | None,
) -> None:  # fmt: skip
    """Time the layer and its peers on this GPU."""
    make, table, tables = OF[kind]
    peers_here, rng = chosen_peers(kind, peers, marlin, humming), random.Random(seed)

    def timed():
        for of_model in zip(MODELS) if kind == "nvfp4" else [()]:
            experiment = make(peers_here, *of_model)
            yield from timed_rows(experiment, tokens or experiment.tokens, repeats, rng)

    rows = told(timed(), table, file, lambda rows: record(repeats, rows))
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{tables(rows)}")
