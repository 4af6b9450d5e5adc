"""Times kernels of CUTLASS that hopper.py's table has none like, on an H200 and on the timing model.

    python -m silicon.whole_kernels.exam COMMAND FOLDER [CUTLASS]     as those of hopper.py

The held-out half is an exam: 16 launches, chosen before any of them was measured or modelled, in tiles, types, layouts
and clusters that hopper.py does not have; no figure of the model is chosen by their times. The fitted half, of narrow
tiles and of batches, is what the model was mended by: four of its kernels are in the exam, too, in other sizes.
"""

from __future__ import annotations

from pathlib import Path

from silicon.whole_kernels import hopper
from silicon.whole_kernels.hopper import DENSE, FP8, GROUPED, PERSISTENT, TWO_ACC, Kernel, sizes

TABLE = Path(__file__).with_suffix(".json")
UINT8 = "--a_dtype Uint8 --b_dtype Uint8 --c_dtype Int32 --acc_dtype Int32"
KERNELS = (
    Kernel("dense 128x64 alone f16", DENSE, "--tile_shape_mn 128,64", False,
           sizes("128,64,4096", "1024,1024,1024")),
    Kernel("dense 128x64 alone e4m3", DENSE, f"{FP8} --tile_shape_mn 128,64", False, sizes("128,64,8192")),
    Kernel("dense 64x64 B n-major alone f16", DENSE, "--tile_shape_mn 64,64 --b_major n", False, sizes("64,64,4096")),
    Kernel("dense 128x64 pair f16", DENSE, "--tile_shape_mn 128,64 --cluster_shape_mn 1,2", False,
           sizes("128,128,4096")),
    Kernel("dense 128x128 batches f16", DENSE, "--tile_shape_mn 128,128", False,
           ("--mnkl 2048,1024,1024,1", "--mnkl 1024,1024,1024,2", "--mnkl 256,1024,1024,8", "--mnkl 512,1024,1024,2")),
    Kernel("dense 128x64 f16", DENSE, "--tile_shape_mn 128,64", True, sizes("512,512,2048")),
    Kernel("dense 128x64 1x2 f16", DENSE, "--tile_shape_mn 128,64 --cluster_shape_mn 1,2", True,
           sizes("256,512,4096")),
    Kernel("dense 128x64 e4m3", DENSE, f"{FP8} --tile_shape_mn 128,64", True,
           (*sizes("512,512,4096"), "--mnkl 512,512,1024,4")),
    Kernel("dense 64x64 B n-major f16", DENSE, "--tile_shape_mn 64,64 --b_major n", True, sizes("256,512,2048")),
    Kernel("dense 64x64 A m-major f16", DENSE, "--tile_shape_mn 64,64 --a_major m", True, sizes("512,512,1024")),
    Kernel("dense 64x64 e4m3", DENSE, f"{FP8} --tile_shape_mn 64,64", True, sizes("256,256,4096")),
    Kernel("dense 128x256 e4m3", DENSE, f"{FP8} --tile_shape_mn 128,256", True, sizes("1024,1024,2048")),
    Kernel("dense 128x128 2x2 f16", DENSE, "--tile_shape_mn 128,128 --cluster_shape_mn 2,2", True,
           sizes("1024,1024,1024")),
    Kernel("dense 128x128 C f32 m-major f16", DENSE, "--tile_shape_mn 128,128 --c_dtype Float32 --c_major m", True,
           sizes("1024,1024,512")),
    Kernel("persistent 128x64 f16", PERSISTENT, "--tile_shape_mn 128,64", True, sizes("1024,1024,1024")),
    Kernel("persistent 64x64 u8", PERSISTENT, f"{UINT8} --tile_shape_mn 64,64", True, sizes("1024,1024,1024")),
    Kernel("persistent 128x256 2x1 e4m3", PERSISTENT,
           f"{FP8} --tile_shape_mn 128,256 --cluster_shape_mn 2,1 --swizzle_size 2", True, sizes("1024,2048,2048")),
    Kernel("2xacc 64x64 e4m3", TWO_ACC, "--tile_shape_mn 64,64 --cluster_shape_mn 1,1", True, sizes("512,512,2048")),
    Kernel("grouped 64x64 f16", GROUPED, "--tile_shape_mn 64,64 --num_groups 4", True,
           ("--problem_sizes_mnkl (256,512,1024,1),(128,256,2048,1),(64,512,512,1),(320,256,1024,1)",)),
    Kernel("grouped 128x256 2x1 f16", GROUPED, "--tile_shape_mn 128,256 --cluster_shape_mn 2,1 --num_groups 2", True,
           ("--problem_sizes_mnkl (512,1024,1024,1),(256,2048,512,1)",)),
)  # fmt: skip

if __name__ == "__main__":
    hopper.main(__doc__, KERNELS, TABLE, "exam h200")
