"""Calls of several ranks, as a multi-GPU task's: each a thread, with a process group, on an emulated node."""

import os
from collections.abc import Callable


def together(count: int, program: Callable[[int], object]) -> list:
    """Runs program(rank) as this many ranks of one node, with torch.distributed's group "nccl" as the grader makes it:
    what each returns. Raises what the first that failed has raised."""
    import torch
    import torch.distributed as dist

    from emulated_gpu.machine.hosts import Stopped
    from emulated_gpu.serve.ranks import ranks

    returned: list[object] = [None] * count

    def of_rank(main) -> None:
        rank = int(os.environ["RANK"])
        device = torch.device("cuda", rank)
        dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=count, device_id=device)
        try:
            returned[rank] = program(rank)
            torch.cuda.synchronize(rank)
        finally:
            dist.destroy_process_group()

    errors = [error for error in ranks.run_ranks(count, of_rank) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):  # the others' is the first one's
        raise error
    return returned
