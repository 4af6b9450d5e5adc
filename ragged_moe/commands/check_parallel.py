"""Checks ExpertParallel.

    torchrun --nproc-per-node 2 -m ragged_moe check parallel                # on these GPUs
    python -m ragged_moe check parallel --lose killed      # there, too: a rank that dies, or is late
    python -m ragged_moe check parallel --emulated         # on two emulated H200s, in less than two minutes
    python -m ragged_moe check parallel --emulated --ranks 8 --schedules 20 --all

On GPUs against ragged_moe.experts on a single one and, bit by bit, against collectives: random sizes, late ranks, CUDA
graphs. Emulated against the reference, under many orders of events, with planted faults, each of which must be found.
"""

import os

import click
import torch.distributed as dist

from ragged_moe.checks import amount
from ragged_moe.checks.emulated_ranks import check_emulated
from ragged_moe.checks.lost_rank import lose
from ragged_moe.checks.parallel import check_on_gpus, join


@click.command()
@click.option("--calls", type=click.IntRange(1), default=1000, show_default=True, help="Calls of random sizes.")
@click.option("--lose", "how", type=click.Choice(["killed", "late"]), help="What becomes of the last rank.")
@click.option("--emulated", is_flag=True, help="On emulated H200s.")
@click.option("--ranks", type=click.IntRange(2, 16), default=2, show_default=True, help="Emulated GPUs.")
@click.option("--schedules", type=click.IntRange(1), default=1, show_default=True, help="Orders of events, emulated.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), help="At a time, emulated.  [default: cores]")
@click.option("--json", "file", type=click.Path(), help="Write there what was checked, emulated.")
@amount.ALL
def main(
    calls: int, how: str | None, emulated: bool, ranks: int, schedules: int, jobs: int, file: str | None,
    everything: bool,
) -> None:  # fmt: skip
    """Check expert parallelism on the GPUs that torchrun gave, or on emulated ones."""
    if emulated:
        check_emulated(ranks, schedules, jobs, file, everything)
    elif how:
        for one_sided in (True, False):
            lose(how, one_sided)
    else:
        join()
        check_on_gpus(dist.group.WORLD, calls)
        dist.destroy_process_group()
