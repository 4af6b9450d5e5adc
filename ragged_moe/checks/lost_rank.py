"""What `python -m ragged_moe check parallel --lose HOW` does: ranks on this host's GPUs; the last one
is lost.

Processes that nobody watches, as torchrun would end them all. A rank that waits for the lost one must end with an error
that names it: by itself, within TIMEOUT seconds where it waits in our kernels, and by NCCL's watchdog in collectives.
"""

import datetime
import os
import re
import signal
import subprocess
import sys
import time

import click
import torch
import torch.distributed as dist

from ragged_moe.checks.parallel import draw, weights_of
from ragged_moe.parallel.expert_parallel import ExpertParallel
from ragged_moe.runtime.sizes import Sizes

TIMEOUT = 5  # seconds that the others wait
LIFE = 90  # seconds until a process is killed that does not end
PORT = 29511
LOST, NAMED = 7, 3  # exit statuses


def lose(how: str, one_sided: bool) -> None:
    """Start a rank a GPU; the last is "killed" or "late". Raises ClickException unless the others name it."""
    ranks, path = torch.cuda.device_count(), "one-sided" if one_sided else "collectives"
    if ranks < 2:
        raise click.ClickException(f"a rank of two or more is lost, each on a GPU: this machine has {ranks}")
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT + one_sided)}
    world |= {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}  # it names the rank, soon
    command = [sys.executable, "-m", "ragged_moe.checks.lost_rank", how, path]
    started = [
        subprocess.Popen(
            command, env=os.environ | world | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(ranks)
    ]  # fmt: skip
    start = time.monotonic()
    for rank, process in enumerate(started[:-1]):
        try:
            text = process.communicate(timeout=LIFE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            for other in started:
                other.kill()
            raise click.ClickException(f"{path}, {how}: rank {rank} has not ended within {LIFE} s") from None
        said = re.findall(r"ragged_moe.parallel, rank.*|lagging.*(?:\n.*){3}|what\(\):.*", text)
        click.echo(f"{path}, {how}: rank {rank} ended with status {process.returncode} after "
                   f"{time.monotonic() - start:.0f} s: {' | '.join(said)}")  # fmt: skip
        if not process.returncode:
            raise click.ClickException(f"{path}, {how}: rank {rank} has waited for nobody")
        if one_sided and f"rank {ranks - 1} has not sent its tokens" not in text:
            raise click.ClickException(f"{path}, {how}: rank {rank} does not name rank {ranks - 1}")
    started[-1].kill()


def be_rank(how: str, one_sided: bool) -> None:
    """Be one of them."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    here = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=here, timeout=datetime.timedelta(seconds=TIMEOUT))
    sizes = Sizes(hidden=1024, intermediate=512, local=4)
    weights = weights_of(sizes, ranks, "cuda")[rank]
    made = dist.group.WORLD, ranks * sizes.local, 16, sizes.hidden, 4
    layer = ExpertParallel(*made, one_sided=one_sided, timeout=TIMEOUT)
    drawn = draw(ranks, sizes.local, 4, 16, sizes.hidden, torch.Generator("cuda").manual_seed(rank))
    for _ in range(3):
        layer(*drawn, *weights)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == ranks - 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LIFE)
    start = time.monotonic()
    try:
        layer(*drawn, *weights)
        torch.cuda.synchronize()
    except Exception as error:
        print(f"rank {rank}, {time.monotonic() - start:.1f} s: {type(error).__name__}: {error}".splitlines()[0])
        try:
            layer.check()
        except RuntimeError as named:
            print(named, flush=True)
            os._exit(NAMED)
        os._exit(LOST)
    os._exit(0)


if __name__ == "__main__":
    be_rank(sys.argv[1], sys.argv[2] == "one-sided")
