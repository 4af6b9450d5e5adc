"""python -m ragged_moe bench gemm: the grouped GEMM, of FP8, NVFP4 or MXFP4 weights, and its peers, timed on
this GPU."""

import random
from pathlib import Path

import click
import torch

from ragged_moe.measure import grouped_gemm, grouped_gemm_fp4, grouped_gemm_mxfp4
from ragged_moe.measure.contest import told
from ragged_moe.measure.options import FORMATS, Numbers, contestants
from ragged_moe.measure.timing import record

OF = dict(zip(FORMATS, (grouped_gemm, grouped_gemm_fp4, grouped_gemm_mxfp4)))


@click.command()
@click.option("--format", "kind", type=click.Choice(FORMATS), default="fp8", show_default=True,
              help="Of the weights; MXFP4: W4A16 beside W4A8, on Hopper.")  # fmt: skip
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="Timings, of 15 calls each.")
@click.option("--rows", "wanted", type=Numbers(0), help="Only these rows, by number: 0,4,7.")
@click.option("--peers/--no-peers", default=None, help="FP8: those that are installed, by default, or none.")
@click.option("--marlin", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="NVFP4: the folder of an unzipped sglang 0.5.23 wheel, whose Marlin is the peer.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants.")
def main(
    kind: str, file: Path | None, repeats: int, wanted: list[int] | None, peers: bool | None, marlin: Path | None,
    seed: int,
) -> None:  # fmt: skip
    """Time the grouped GEMM and its peers on this GPU."""
    of = OF[kind]
    chosen = of.all_rows()
    if wanted and max(wanted) >= len(chosen):
        raise click.UsageError(f"--rows has {max(wanted)}, but --format {kind} has rows 0 to {len(chosen) - 1}")
    more = contestants(kind, peers, marlin)
    name, rng = torch.cuda.get_device_name(), random.Random(seed)
    rows = told(
        of.measure([chosen[i] for i in wanted] if wanted else chosen, repeats, rng, *more), of.table, file,
        lambda rows: record(repeats, rows, geomeans=of.geomeans(rows)),
    )  # fmt: skip
    click.echo(f"\n{name}\n\n{of.table(rows)}\n\ngeometric means: {of.geomeans(rows)}")
