"""Measures how much of what is loaded under an L2 policy an H200's L2 still has in the next launch.

    python3 -m silicon.probes.policies        on an H200, with NumPy and libcuda.so.1; prints JSON

After a fill of 1 GiB every SM copies its own blocks into shared memory, 128 KiB in flight, under one policy
(cp.async.bulk with .L2::cache_hint, PTX ISA 9.7.9.25.4.1); then a second launch copies the same under evict_normal.
Rates are bytes a cycle into all SMs in each launch, by the slowest. timing/README.md has what came out, "L2 policies".
"""

import json
import sys

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, Timer, nvidia_smi

from .halves import BLOCK, COPY, LONGEST, SHARED

POLICIES = {"evict_normal": 0x1000000000000000, "evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
BLOCKS_OF_AN_SM = (2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112)  # of 4 KiB: 1 to 61 MB in all


def kernel(policy: int) -> str:
    """The copying kernel of halves.py with a policy on its copies."""
    plain = "complete_tx::bytes [r6+"
    assert plain in COPY
    text = COPY.replace(plain, "complete_tx::bytes.L2::cache_hint [r6+")
    hinted = text.replace(f"[d], {BLOCK}, [r5];", f"[d], {BLOCK}, [r5], {policy:#x};")
    assert hinted != text
    return hinted


@command.on_gpu()
def measure() -> None:
    gpu = Gpu()
    timer, sms = Timer(gpu), gpu.attribute(16)
    data, out = gpu.allocate(sms * LONGEST * BLOCK), gpu.allocate(1 << 12)
    kernels = {name: gpu.kernel(kernel(policy), shared=SHARED) for name, policy in POLICIES.items()}
    found = {"machine": gpu.describe(), "nvidia-smi": nvidia_smi(), "L2 bytes": gpu.attribute(38)}
    for first in POLICIES:
        rates = {}
        for count in BLOCKS_OF_AN_SM:
            table = np.arange(sms * count, dtype=np.int32).reshape(sms, count)
            lists = gpu.allocate(table.nbytes)
            gpu.write(lists, table)
            before, after = (
                gpu.launch(kernels[name], sms, 32, [out, data, lists, count], shared=SHARED)
                for name in (first, "evict_normal")
            )
            seen = []
            for _ in range(7):
                timer.flush()
                before()
                once = gpu.read(out, 8 * sms).view(np.uint64).max()
                after()
                seen.append((once, gpu.read(out, 8 * sms).view(np.uint64).max()))
            nbytes = sms * count * BLOCK
            rates[f"{nbytes / 1e6:.1f} MB"] = [round(float(nbytes / np.median(x))) for x in zip(*seen)]
        found[first] = rates
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    command.parser(__doc__).parse_args()
    measure()
