"""moe.parallel on two emulated H200s, a rank each: right for any tokens, in memory that was used before.

test_moe_parallel.py runs this under `python -m emulator run --devices 2`. With an argument, flags behind sums release
nothing.
"""

import os
import sys

import torch
import torch.distributed as dist

from moe.checks.parallel import draw, weights_of
from moe.device import EmulatedGpu
from moe.kernels import combine
from moe.kernels.ptx import ptx_if
from moe.parallel import ExpertParallel
from moe.problem import Sizes
from moe.reference.experts import experts
from moe.reference.layer import distance, quantised
from tests import quick_dsl

LOCAL, TOP_K, MOST = 2, 2, 4  # experts of a rank and of a token, tokens of a rank
CALLS = [(3, 2, "any"), (0, 4, "some")]  # tokens of either rank, and where their experts are

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
quick_dsl.install()
EmulatedGpu.sms = 4  # CTAs for all SMs would take long
if sys.argv[1:]:
    combine.store_release_system = lambda address, x, condition: ptx_if(
        condition, "st.relaxed.sys.global.b32 [$0], $1;", "l,r", address, x
    )
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
sizes = Sizes(128, 128, LOCAL)
weights = weights_of(sizes, ranks, "cpu")
own = [x.cuda() for x in weights[rank]]
layer = ExpertParallel(dist.group.WORLD, ranks * LOCAL, MOST, sizes.hidden, TOP_K, one_sided=True, timeout=1e-3)
for number, (*tokens, where) in enumerate(CALLS):
    generator = torch.Generator().manual_seed(9 * number + rank)
    drawn = draw(ranks, LOCAL, TOP_K, tokens[rank], sizes.hidden, generator, where)
    found = layer(*(x.cuda() for x in drawn), *own).cpu()
    x, ids, given = drawn
    parts = [experts(*quantised(x.float()), ids, given, *of, r * LOCAL) for r, of in enumerate(weights)]
    expected = sum(part.bfloat16().float() for part in parts).bfloat16()
    assert found.shape == expected.shape and (not len(x) or distance(found, expected) <= 0.005), number
print("right")
