"""ragged_moe.parallel.expert_parallel on two emulated H200s, a rank each: right for any tokens, in memory that was used
before; then one ends.

test_moe_parallel.py runs this under `python -m emulated_gpu run --devices 2`.
"""

import os

import torch.distributed as dist

from ragged_moe.checks.ranks import CALLS, Rank, prepare
from tests import quick_dsl

quick_dsl.install()
prepare(int(os.environ["RANK"]))
dist.init_process_group("nccl")
rank = Rank()
rank.run(CALLS[:2])
print("right")
try:
    rank.lose("has ended")
except RuntimeError as error:
    print(error)
