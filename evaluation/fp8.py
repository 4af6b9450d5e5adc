"""`eval.py test|benchmark --task fp8_grouped_gemm|fp8_moe`: the checks and the timings of moe/, which is no submission.

| task | test | benchmark |
|---|---|---|
| fp8_grouped_gemm | moe.check | moe.bench |
| fp8_moe, the DeepSeek-V3 layer | moe.layer_check | moe.layer_bench |
"""

import subprocess
import sys

import torch

# Of each task: what checks it, and what times it
TASKS = {"fp8_grouped_gemm": ("moe.check", "moe.bench"), "fp8_moe": ("moe.layer_check", "moe.layer_bench")}
TAKES = {"tests": {"task", "device", "schedules"}, "benchmarks": {"task", "device", "json_file"}}  # its options


def run(task: str, section: str, device: str, schedules: int, json_file: str | None) -> int:
    """Exit code: 0 only if all passed. Raises ValueError for what it does not do.

    Tests on the GPU of this machine (device "cuda", or "auto" if there is one), else on an emulated H200 and an
    emulated B200, in a process of its own each. Benchmarks only where there is a GPU.
    """
    check, bench = TASKS[task]
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError("--device cuda: there is no CUDA GPU")
    emulated = device == "emulated" or not found
    if section == "benchmarks":
        if emulated:
            raise ValueError(f"times of {task} are measured only, on a GPU of its kind, and none is used here")
        return subprocess.call([sys.executable, "-m", bench, *(["--json", json_file] if json_file else [])])
    options = [["--emulated", "h200"], ["--emulated", "b200"]] if emulated else [[]]
    commands = [[sys.executable, "-m", check, "--schedules", str(schedules), *option] for option in options]
    return max([subprocess.call(command) != 0 for command in commands])
