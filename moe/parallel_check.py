"""Checks ExpertParallel on the GPUs of this host: torchrun --nproc-per-node 2 -m moe.parallel_check

Against moe.experts on a single GPU and, bit by bit, against collectives: random sizes, late ranks, CUDA graphs.
"""

import os

import click
import torch
import torch.distributed as dist

from moe.checks.parallel import check_on_gpus


@click.command()
@click.option("--calls", type=click.IntRange(1), default=1000, show_default=True, help="Calls of random sizes.")
def main(calls: int) -> None:
    """Check expert parallelism on the GPUs that torchrun gave."""
    if "LOCAL_RANK" not in os.environ:
        raise click.ClickException("start this by torchrun, with as many processes as there are GPUs")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    check_on_gpus(dist.group.WORLD, calls)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
