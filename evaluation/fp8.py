"""`eval.py test|benchmark --task fp8_grouped_gemm`: moe.check and moe.bench. moe/ is no submission to judge."""

import subprocess
import sys

import torch

TASK = "fp8_grouped_gemm"
TAKES = {"tests": {"task", "device", "schedules"}, "benchmarks": {"task", "device", "json_file"}}  # its options


def run(section: str, device: str, schedules: int, json_file: str | None) -> int:
    """Exit code: 0 only if all passed. Raises ValueError for what it does not do.

    Tests on the GPU of this machine (device "cuda", or "auto" if there is one), else on an emulated H200 and an
    emulated B200, in a process of its own each. Benchmarks only where there is a GPU.
    """
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError("--device cuda: there is no CUDA GPU")
    emulated = device == "emulated" or not found
    if section == "benchmarks":
        if emulated:
            raise ValueError(f"times of {TASK} are measured only, on a Hopper or Blackwell GPU, and none is used here")
        return subprocess.call([sys.executable, "-m", "moe.bench", *(["--json", json_file] if json_file else [])])
    machines = [["--emulated", "h200"], ["--emulated", "b200"]] if emulated else [[]]
    commands = [[sys.executable, "-m", "moe.check", "--schedules", str(schedules), *machine] for machine in machines]
    return max([subprocess.call(command) != 0 for command in commands])
