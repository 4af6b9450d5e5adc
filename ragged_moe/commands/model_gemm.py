"""python -m ragged_moe model gemm --m 64,0,5 --n 4096 --k 7168: the grouped GEMM's time by the timing model.

eval.py benchmark, profile and sweep --task fp8_grouped_gemm do many problems at once.
"""

import click

from ragged_moe.commands.modelled import FORMAT, MACHINE, say


def rows(_ctx, _param, value: str) -> tuple[int, ...]:
    """Return the rows of each expert; click's error for anything else."""
    texts = value.split(",")
    if not all(text.isdecimal() for text in texts) or not any(map(int, texts)):
        raise click.BadParameter(f"{value!r} must be the rows of each expert, separated by commas, not all 0")
    return tuple(map(int, texts))


def multiple(_ctx, _param, value: int) -> int:
    """Return N or K; click's error if it is no multiple of 128."""
    if value < 128 or value % 128:
        raise click.BadParameter(f"{value} must be a multiple of 128")
    return value


@click.command()
@click.option("--m", required=True, callback=rows, help="Rows of each expert: 64,0,5.")
@click.option("--n", type=int, required=True, callback=multiple)
@click.option("--k", type=int, required=True, callback=multiple)
@FORMAT
@MACHINE
@click.option("--calls", type=click.IntRange(1), default=15, show_default=True, help="Back to back, on sets in turn.")
def main(m: tuple[int, ...], n: int, k: int, kind: str, machine: str, calls: int) -> None:
    """Model the time of the grouped GEMM."""
    say(kind, {"m": m, "n": n, "k": k}, machine, calls)
