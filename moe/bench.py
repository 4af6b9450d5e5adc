"""python -m moe.bench: the grouped GEMM, of FP8 or of NVFP4 weights, and its peers, timed on this GPU."""

import json
import random
from pathlib import Path

import click
import torch

from moe.measure import grouped_gemm, grouped_gemm_fp4
from moe.measure.marlin import load_marlin
from moe.measure.timing import need_gpu, record


@click.command()
@click.option("--format", "kind", type=click.Choice(["fp8", "nvfp4"]), default="fp8", show_default=True,
              help="Of the weights.")  # fmt: skip
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="Timings, of 15 calls each.")
@click.option("--rows", "wanted", help="Only these rows, by number: 0,4,7.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="FP8: those that are installed.")
@click.option("--marlin", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="NVFP4: the folder of an unzipped sglang 0.5.23 wheel, whose Marlin is the peer.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants.")
def main(
    kind: str, file: Path | None, repeats: int, wanted: str | None, peers: bool, marlin: Path | None, seed: int
) -> None:
    """Time the grouped GEMM and its peers on this GPU."""
    peer = load_marlin(kind, marlin)
    need_gpu()
    name, rng = torch.cuda.get_device_name(), random.Random(seed)
    of = grouped_gemm if kind == "fp8" else grouped_gemm_fp4
    chosen = of.all_rows()
    if wanted:
        chosen = [chosen[int(i)] for i in wanted.split(",")]
    rows = []
    for row in of.measure(chosen, repeats, rng, peers if kind == "fp8" else peer):
        rows.append(row)
        click.echo(of.table(rows[-1:]).splitlines()[-1])
        if file:
            file.write_text(json.dumps(record(repeats, rows, geomeans=of.geomeans(rows)), indent=1) + "\n")
        torch.cuda.empty_cache()
    click.echo(f"\n{name}\n\n{of.table(rows)}\n\ngeometric means: {of.geomeans(rows)}")


if __name__ == "__main__":
    main()
