"""python -m ragged_moe model layer --tokens 64: the layer's time by the timing model, minutes for each call.

eval.py benchmark and profile --task fp8_moe do many problems at once.
"""

import click

from ragged_moe.commands.modelled import FORMAT, MACHINE, say


@click.command()
@click.option("--tokens", type=click.IntRange(1, 16384), required=True)
@FORMAT
@MACHINE
@click.option("--calls", type=click.IntRange(1), default=3, show_default=True, help="Back to back, on sets in turn.")
def main(tokens: int, kind: str, machine: str, calls: int) -> None:
    """Model the time of the layer."""
    say(kind, {"t": tokens}, machine, calls)
