"""python -m ragged_moe bench gemm: the grouped GEMM, of FP8, NVFP4 or MXFP4 weights, and its peers, timed on
this GPU."""

import random
from pathlib import Path

import click
import torch

from ragged_moe.measure.contest import timed_rows, told
from ragged_moe.measure.grouped_gemm import FORMATS, GroupedGemm, geomeans
from ragged_moe.measure.markdown import table
from ragged_moe.measure.options import Numbers, chosen_peers, contest_options, format_options
from ragged_moe.measure.timing import record


@click.command()
@format_options
@contest_options(repeats=20)
@click.option("--rows", "wanted", type=Numbers(0), help="Only these rows, by number: 0,4,7.")
def main(
    kind: str, peers: bool | None, marlin: Path | None, humming: Path | None, file: Path | None, repeats: int,
    seed: int, wanted: list[int] | None,
) -> None:  # fmt: skip
    """Time the grouped GEMM and its peers on this GPU."""
    of = FORMATS[kind]
    rows = of.rows()
    if wanted and max(wanted) >= len(rows):
        raise click.UsageError(f"--rows has {max(wanted)}, but --format {kind} has rows 0 to {len(rows) - 1}")
    experiment = GroupedGemm(kind, chosen_peers(kind, peers, marlin, humming))
    timed = timed_rows(experiment, [rows[i] for i in wanted] if wanted else rows, repeats, random.Random(seed))
    found = told(
        timed, lambda rows: table(of.columns, rows), file,
        lambda rows: record(repeats, rows, geomeans=geomeans(kind, rows)),
    )  # fmt: skip
    means = geomeans(kind, found)
    click.echo(f"\n{torch.cuda.get_device_name()}\n\n{table(of.columns, found)}\n\ngeometric means: {means}")
