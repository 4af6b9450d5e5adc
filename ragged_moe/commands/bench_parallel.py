"""torchrun --nproc-per-node 2 -m ragged_moe bench parallel: expert parallelism and its peers, timed on these
GPUs."""

from ragged_moe.measure.parallel import main

__all__ = ["main"]
