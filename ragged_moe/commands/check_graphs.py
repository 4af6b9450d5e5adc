"""Checks ragged_moe.experts in CUDA graphs: python -m ragged_moe check graphs

Maps of experts, counts of replicas, tokens and weights of the router change between two replays.

Needs a GPU, or `python -m emulated_gpu run --machine h200`, with --small. The bits must be those of calls that are not
captured, for which the host has looked the experts up.
"""

import click
import torch

FULL = 1, 16, 128, 1024, 8192  # tokens
SMALL = 5, 40


@click.command()
@click.option("--replays", type=click.IntRange(1), default=20, show_default=True, help="Of each graph.")
@click.option("--small", is_flag=True, help="Few tokens and small experts, as an emulated GPU needs.")
def main(replays: int, small: bool) -> None:
    """Check graphs whose operands change between replays."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no GPU here: python -m emulated_gpu run --machine h200 emulates one")
    from ragged_moe.checks.graphs import MAPS, Case, wrong
    from ragged_moe.runtime.sizes import Sizes

    sizes = Sizes(256, 128, 12, 2, 12) if small else Sizes(7168, 2048, 32, 8, 32)
    for tokens in SMALL if small else FULL:
        for name, dims in MAPS.items():
            fault = wrong(Case(sizes, tokens, dims), replays)
            if fault:
                raise click.ClickException(f"T = {tokens}, {name}: {fault}")
            click.echo(f"ok T = {tokens}, {name}: {replays} replays, the bits of calls")
