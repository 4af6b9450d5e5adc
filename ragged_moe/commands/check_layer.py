"""Checks the layer stage by stage, and as a whole, against ragged_moe.reference.layer: python -m
ragged_moe check layer

On a Hopper or Blackwell GPU if there is one, at the definition's full size. Else on an emulated one with small sizes,
where every access of memory is checked, too: in less than two minutes, or with --all.
"""

import click
import torch

from ragged_moe.checks import amount


@click.command()
@click.option("--emulated", "machine", type=click.Choice(["h200", "b200"]), help="This GPU instead of a real one.")
@click.option("--schedules", type=click.IntRange(1), default=1, show_default=True, help="Orders of events, emulated.")
@amount.ALL
def main(machine: str | None, schedules: int, everything: bool) -> None:
    """Check the layer, stage by stage."""
    on_gpu = torch.cuda.is_available() and not machine
    if not on_gpu:
        import emulated_gpu

        emulated_gpu.install(machine or "h200")  # before CuTe DSL is imported, which the module below does
    from ragged_moe.checks.layer import check_emulated, check_on_gpu

    if on_gpu:
        check_on_gpu()
    else:
        check_emulated(schedules, everything)
