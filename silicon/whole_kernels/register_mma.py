"""Times kernels whose products are mma.sync, compiled by Triton, on an H200 and on the timing model.

    python -m silicon.whole_kernels.register_mma COMMAND FOLDER     as those of hopper.py

All were chosen before any of them was measured or modelled, and no figure of the model is chosen by their times: what
mma.sync takes was measured by itself (silicon/probes/mma_sync.py).
"""

from __future__ import annotations

from pathlib import Path

from silicon.whole_kernels import hopper
from silicon.whole_kernels.hopper import TRITON, Kernel

TABLE = Path(__file__).with_suffix(".json")


def _of(what: str, kind: str, tile: str, warps: int, stages: int, *runs: str) -> Kernel:
    arguments = f"--of {what} --type {kind} --tile {tile} --warps {warps} --stages {stages}"
    name = f"{what} {tile.replace(',', 'x')} {warps} warps {kind}"
    return Kernel(name, TRITON, arguments, True, tuple(f"--mnkl {run}" for run in runs))


KERNELS = (
    _of("gemm", "f16", "16,128,64", 4, 3, "16,4096,4096,1", "64,2048,2048,1"),
    _of("gemm", "f16", "32,64,64", 4, 3, "32,8192,1024,1", "512,512,1024,1"),
    _of("gemm", "f16", "64,64,32", 2, 4, "512,1024,1024,1", "64,64,4096,1"),
    _of("gemm", "bf16", "32,128,64", 8, 3, "256,2048,1024,1"),
    _of("gemm", "e4m3", "16,64,128", 4, 3, "16,4096,4096,1", "128,1024,2048,1"),
    _of("gemm", "s8", "32,64,128", 4, 3, "256,1024,2048,1"),
    _of("gemm", "tf32", "32,64,32", 4, 3, "256,1024,1024,1"),
    _of("attention", "f16", "16,64,0", 4, 2, "16,2048,64,32", "16,1024,128,16"),
    _of("attention", "f16", "32,64,0", 2, 2, "512,512,64,8"),
    _of("attention", "bf16", "16,32,0", 1, 3, "128,1024,64,16"),
)

if __name__ == "__main__":
    hopper.main(__doc__, KERNELS, TABLE, "register mma")
