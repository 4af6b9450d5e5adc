"""Replay NVIDIA's CuTe DSL examples on the emulator, unmodified, against their own reference checks.

    git clone --branch v4.5.2 --depth 1 https://github.com/NVIDIA/cutlass
    python tests/cutlass_examples.py cutlass                  # all of them; two at a time, about half an hour
    python tests/cutlass_examples.py cutlass blockscaled      # those whose line contains a word
    python tests/cutlass_examples.py cutlass --machine h200   # those for Hopper, on an emulated H200

Not part of `make test`: the examples are NVIDIA's and stay in their repository. A line is a script below
examples/python/CuTeDSL/cute/blackwell or hopper and its arguments; the sizes are small because the emulator is slow. All
that multiply matrices on one B200 or one H200 are here; sm103_* are for another GPU, distributed/ wants several. fp16_gemm_6 needs K in
multiples of 128, which it does not say: its dequantize gives each thread 128 elements of a row, and starts too few
threads for the rest. The moe scripts time themselves with --perf_e2e, and with torch's profiler, a GPU's, without.
"""
# ruff: noqa: E501

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from pathlib import Path

import click

FOLDERS = {"b200": "examples/python/CuTeDSL/cute/blackwell", "h200": "examples/python/CuTeDSL/cute/hopper"}
ROOT = Path(__file__).resolve().parent.parent

NVFP4 = "--ab_dtype Float4E2M1FN --sf_dtype Float8E4M3FN --sf_vec_size 16"
NVFP4_E8M0 = "--ab_dtype Float4E2M1FN --sf_dtype Float8E8M0FNU --sf_vec_size 16"
MXFP4 = "--ab_dtype Float4E2M1FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"
MXFP8 = "--ab_dtype Float8E4M3FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"
MXFP8_E5M2 = "--ab_dtype Float8E5M2 --sf_dtype Float8E8M0FNU --sf_vec_size 32"
PAIR = "--mma_tiler_mn 256,128 --use_2cta_instrs --cluster_shape_mn 2,1"

EXAMPLES = f"""
tutorial/tutorial_gemm/fp16_gemm_0.py --mnk 256,512,192
tutorial/tutorial_gemm/fp16_gemm_1.py --mnk 256,512,192
tutorial/tutorial_gemm/fp16_gemm_2.py --mnk 512,512,192
tutorial/tutorial_gemm/fp16_gemm_3.py --mnk 512,512,192
tutorial/tutorial_gemm/fp16_gemm_3_1.py --mnk 512,512,192
tutorial/tutorial_gemm/fp16_gemm_4.py --mnk 512,1024,128
tutorial/tutorial_gemm/fp16_gemm_5.py --mnk 512,512,192
tutorial/tutorial_gemm/fp16_gemm_6.py --mnk 256,512,128
tutorial/tutorial_gemm/nvfp4_gemm_0.py --mnkl 256,512,512,2
tutorial/tutorial_gemm/nvfp4_gemm_1.py --mnkl 256,256,512,2

kernel/dense_gemm/dense_gemm.py --mnkl 256,128,64,1
kernel/dense_gemm/dense_gemm.py --ab_dtype TFloat32 --c_dtype Float32 --mnkl 128,128,32,1 --a_major m --b_major n --c_major m --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float16 --c_dtype Float16 --mnkl 64,128,64,1 --mma_tiler_mn 64,128 --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float16 --c_dtype Float16 --mnkl 128,128,64,1 --mma_tiler_mn 128,128 --use_2cta_instrs --cluster_shape_mn 2,1 --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float16 --c_dtype Float32 --mnkl 200,136,72,1 --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float16 --c_dtype Float16 --acc_dtype Float16 --mnkl 128,128,64,1 --a_major m --b_major n --c_major m --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype BFloat16 --c_dtype BFloat16 --mnkl 512,256,64,1 --mma_tiler_mn 256,128 --use_2cta_instrs --cluster_shape_mn 2,2 --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float8E4M3FN --c_dtype Float16 --mnkl 256,64,64,1 --mma_tiler_mn 256,64 --use_2cta_instrs --cluster_shape_mn 2,1 --use_tma_store
kernel/dense_gemm/dense_gemm.py --ab_dtype Float8E5M2 --c_dtype Float32 --mnkl 128,96,64,1 --mma_tiler_mn 128,96
kernel/dense_gemm/dense_gemm.py --ab_dtype Int8 --c_dtype Int32 --acc_dtype Int32 --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm.py --ab_dtype Uint8 --c_dtype Int32 --acc_dtype Int32 --mnkl 64,64,64,1 --mma_tiler_mn 64,64 --use_tma_store
kernel/dense_gemm/dense_gemm_persistent.py --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm_persistent.py --ab_dtype Float16 --c_dtype Float16 --mnkl 256,128,64,1 {PAIR} --use_tma_store
kernel/dense_gemm/dense_gemm_persistent_dynamic.py --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm_persistent_dynamic.py --ab_dtype Float16 --c_dtype Float16 --mnkl 256,128,64,1 {PAIR} --use_tma_store
kernel/dense_gemm/dense_gemm_persistent_prefetch.py --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm_software_pipeline.py --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm_alpha_beta_persistent.py --alpha 2.0 --beta 0.5 --mnkl 128,128,64,1
kernel/dense_gemm/dense_gemm_alpha_beta_persistent.py --ab_dtype Float16 --c_dtype Float16 --d_dtype Float16 --alpha 0.5 --beta 1.0 --mnkl 256,128,64,1 {PAIR}

kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 128,64,256,1 --mma_tiler_mn 128,64
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 128,128,256,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 128,192,256,1 --mma_tiler_mn 128,192
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 128,256,256,1 --mma_tiler_mn 128,256
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 256,64,256,1 --mma_tiler_mn 256,64 --cluster_shape_mn 2,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype BFloat16 --mnkl 256,128,256,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 256,192,256,1 --mma_tiler_mn 256,192 --cluster_shape_mn 2,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float32 --mnkl 512,512,256,1 --mma_tiler_mn 256,256 --cluster_shape_mn 2,2
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 256,512,256,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,4
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --mnkl 512,128,256,1 --cluster_shape_mn 4,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4} --c_dtype Float16 --c_major m --mnkl 200,160,288,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {NVFP4_E8M0} --c_dtype Float16 --mnkl 128,128,256,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {MXFP4} --c_dtype Float16 --mnkl 256,128,256,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {MXFP4} --c_dtype Float32 --mnkl 128,192,256,1 --mma_tiler_mn 128,192
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {MXFP8} --c_dtype Float16 --mnkl 128,256,128,1 --cluster_shape_mn 1,2
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {MXFP8} --c_dtype BFloat16 --mnkl 256,256,128,1 --mma_tiler_mn 256,256 --cluster_shape_mn 2,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py {MXFP8_E5M2} --c_dtype Float32 --mnkl 128,64,128,1 --mma_tiler_mn 128,64 --a_major m --b_major n
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_prefetch.py {NVFP4} --c_dtype Float16 --mnkl 128,128,256,1
kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_amax.py {NVFP4} --c_dtype Float16 --mnkl 128,128,256,1

kernel/grouped_gemm/grouped_gemm.py
kernel/grouped_gemm/grouped_gemm.py --tensormap_update_mode GMEM
kernel/grouped_gemm/grouped_gemm.py --host_problem_shape_available
kernel/grouped_gemm/grouped_gemm.py --problem_sizes_mnkl (256,160,32,1),(16,384,96,1),(152,128,16,1),(40,160,16,1) --num_groups 4 --mma_tiler_mn 128,64
kernel/grouped_gemm/grouped_gemm.py {PAIR}
kernel/grouped_gemm/grouped_gemm.py --ab_dtype BFloat16 --c_dtype Float32 --mma_tiler_mn 128,128 --cluster_shape_mn 1,2 --a_major m --b_major n --c_major m
kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py
kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py {NVFP4} --problem_sizes_mnkl (128,160,32,1),(32,128,256,1),(64,160,96,1) --num_groups 3 --host_problem_shape_available
kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py {NVFP4} --problem_sizes_mnkl (256,256,256,1),(256,256,256,1) --num_groups 2 --mma_tiler_mn 256,256 --cluster_shape_mn 2,1
kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py {MXFP8} --problem_sizes_mnkl (128,256,128,1),(128,128,128,1) --num_groups 2 --cluster_shape_mn 1,2
kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py {MXFP4} --problem_sizes_mnkl (128,128,256,1),(128,128,128,1) --num_groups 2 --c_dtype Float32

kernel/blockwise_gemm/blockwise_gemm.py --mnkl 128,128,128,1
kernel/blockwise_gemm/contiguous_grouped_gemm.py --mnkl 128,128,128,2
kernel/blockwise_gemm/masked_grouped_gemm.py --mnkl 128,128,128,2
kernel/mixed_input_gemm/mixed_input_gemm.py
kernel/mixed_input_gemm/grouped_mixed_input_gemm.py --mnkl 128,256,128,2
kernel/mixed_input_gemm/grouped_mixed_input_gemm_acc_scale.py --mnkl 128,256,128,2
kernel/moe/torch_grouped_mm.py --tokens 32 --experts 4 --top_k_select 2 --hidden 128 --intermediate 256 --perf_run --perf_e2e
kernel/moe/torch_scaled_grouped_mm.py --tokens 32 --experts 2 --top_k_select 1 --hidden 256 --intermediate 128 --perf_run --perf_e2e
kernel/moe/torch_scaled_grouped_mm.py --tokens 32 --experts 2 --top_k_select 1 --hidden 256 --intermediate 128 --kind nvfp4 --mma_tiler_mnk 128,128,256 --perf_run --perf_e2e
efc/custom_epilogue_dense_gemm.py --mnkl 128,128,64,1
efc/activation_custom_epilogue_dense_gemm.py --mnkl 128,128,64,1
efc/synthetic_custom_epilogue_dense_gemm.py --mnkl 128,128,64,1
"""


FP8 = "--a_dtype Float8E4M3FN --b_dtype Float8E4M3FN"
HOPPER = f"""
kernel/dense_gemm/dense_gemm.py --mnkl 256,256,256,1
kernel/dense_gemm/dense_gemm.py --mnkl 256,512,128,1 --tile_shape_mn 128,256 --cluster_shape_mn 2,1
kernel/dense_gemm/dense_gemm.py --mnkl 128,128,192,2 --tile_shape_mn 64,64 --cluster_shape_mn 2,2
kernel/dense_gemm/dense_gemm.py --mnkl 128,128,128,1 --a_major m --b_major n --c_major m --acc_dtype Float16
kernel/dense_gemm/dense_gemm.py --mnkl 200,136,72,1 --a_major m --c_dtype Float32
kernel/dense_gemm/dense_gemm.py --mnkl 256,128,256,1 {FP8} --c_dtype Float16
kernel/dense_gemm/dense_gemm.py --mnkl 128,128,128,1 --a_dtype Float8E4M3FN --b_dtype Float8E5M2 --c_dtype Float16
kernel/dense_gemm/dense_gemm.py --mnkl 128,128,256,1 --a_dtype Int8 --b_dtype Int8 --c_dtype Int32 --acc_dtype Int32 --tile_shape_mn 128,64
kernel/dense_gemm/dense_gemm.py --mnkl 128,128,256,1 --a_dtype Uint8 --b_dtype Int8 --c_dtype Int32 --acc_dtype Int32 --tile_shape_mn 64,64
kernel/dense_gemm/dense_gemm_persistent.py --mnkl 256,256,256,1
kernel/dense_gemm/dense_gemm_persistent.py --mnkl 512,512,128,1 --tile_shape_mn 128,256 --cluster_shape_mn 2,1
kernel/dense_gemm/dense_gemm_persistent.py --mnkl 256,256,256,1 {FP8}
kernel/dense_gemm/dense_gemm_fp8_2xacc.py --mnkl 256,256,256,1
kernel/dense_gemm/dense_gemm_fp8_2xacc.py --mnkl 256,256,256,1 --tile_shape_mn 128,64 --cluster_shape_mn 1,1
kernel/grouped_gemm/grouped_gemm.py --iterations 0 --num_groups 2 --problem_sizes_mnkl (128,128,128,1),(200,136,64,1)
kernel/grouped_gemm/grouped_gemm.py --iterations 0 --num_groups 2 --problem_sizes_mnkl (128,128,128,1),(64,256,64,1) --tensormap_update_mode GMEM --tile_shape_mn 128,64
"""


def examples(machine: str = "b200") -> list[str]:
    """Every line for a machine: a script and its arguments."""
    return [line for line in {"b200": EXAMPLES, "h200": HOPPER}[machine].splitlines() if line]


def run(folder: Path, line: str, options: list[str], logs: Path | None) -> tuple[str, bool, float, str]:
    """(line, passed, seconds, the last line or the emulator's finding). `logs` gets the output, and a folder of PTX."""
    script, *args = line.split()
    name = "".join(c if c.isalnum() else "_" for c in line)[:150]
    command = [sys.executable, "-m", "emulated_gpu", "run", *options, str(folder / script), *args]
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    environment = os.environ | {"PYTHONPATH": path} | ({"EMULATED_GPU_PTX": str(logs / name)} if logs else {})
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    seconds = time.time() - start
    output = done.stdout + done.stderr
    if logs:
        (logs / f"{name}.log").write_text(output)
    said = [x for x in output.splitlines() if x.strip()]
    reason = next((x for x in said if x.startswith("emulated-gpu: ") and "nan" not in x), said[-1] if said else "")
    return line, done.returncode == 0, seconds, "" if done.returncode == 0 else reason


@click.command()
@click.argument("cutlass", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("words", nargs=-1)
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1))
@click.option("--machine", type=click.Choice(list(FOLDERS)), default="b200", show_default=True)
@click.option("--schedule", default=0, show_default=True, help="Seed of the order of events.")
@click.option("--logs", type=click.Path(file_okay=False, path_type=Path), help="Keep outputs and PTX there.")
def main(cutlass, words, jobs, machine, schedule, logs):
    """Run the examples of a CUTLASS checkout; exit status 1 if one does not pass its own check."""
    lines = [line for line in examples(machine) if all(w in line for w in words)]
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        options, folder = ["--machine", machine, "--schedule", str(schedule)], cutlass / FOLDERS[machine]
        for line, passed, seconds, reason in pool.map(lambda x: run(folder, x, options, logs), lines):
            failed += not passed
            click.echo(
                f"{'pass' if passed else 'FAIL'} {seconds:5.0f} s  {line}" + (f"\n    {reason}" if reason else "")
            )
    click.echo(f"{len(lines) - failed} of {len(lines)} pass")
    sys.exit(int(failed > 0))


if __name__ == "__main__":
    main()
