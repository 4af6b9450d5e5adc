"""What options mean: submissions, devices, how to judge."""

import ast
import importlib.machinery
import os
import platform
import warnings
from pathlib import Path

import torch

import utils
from emulated_gpu.chip import chip_of
from emulated_gpu.errors import Unsupported
from emulated_gpu.model.profile import load
from evaluation import ROOT
from evaluation.commands.show import Failure
from evaluation.judge.options import Options

OWN = str(ROOT / "submission.py")  # the submission whose seconds `judge.work` knows


# A module without any of these words has no custom_kernel; one with them may get it when it is imported.
WAYS = "custom_kernel", "import *", "exec", "globals", "vars", "setattr", "__dict__", "__getattr__", "sys.modules"
LEAST = """def custom_kernel(data):
    ...  # launches kernels that write the results
    return result"""


def checked(submission: str, any_entry: bool = False) -> str:
    """Returns the absolute path of a submission that is there and can be called. Raises Failure.

    any_entry: a task's folder names the function that it calls, which need not be custom_kernel.
    """
    if os.path.isdir(submission):
        raise Failure(f"{submission} is a folder; a submission is a Python file")
    if not os.path.isfile(submission):
        raise Failure(f"there is no submission {submission}")
    if not submission.endswith(tuple(importlib.machinery.all_suffixes())):
        raise Failure(f"{submission} is no submission: that is a Python file, and its name ends in .py")
    if not any_entry and submission.endswith(".py"):
        if said := mistake(Path(submission).read_bytes()):
            raise Failure(f"{submission}, {said}")
        text = Path(submission).read_text(errors="replace")
        if not any(way in text for way in WAYS):
            raise Failure(f"{submission} has no custom_kernel; the judge calls\n{LEAST}")
    return os.path.abspath(submission)


def mistake(source: bytes) -> str:
    """Says why Python would not read a file: the line, what is wrong, and the line's text; "" if it would."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        line = f"line {error.lineno}" if error.lineno else ""
        return ": ".join(filter(None, [line, error.msg, (error.text or "").strip()]))
    except (ValueError, RecursionError, MemoryError):  # whoever imports it says so
        pass
    return ""


def choose_device(device: str, any_gpu: bool = False) -> str:
    """Chooses "cuda" or "emulated" for what --device says. any_gpu: even one that is no B200. Raises Failure."""
    there = torch.cuda.is_available() if any_gpu else utils.get_device().type == "cuda"
    if device == "auto":
        return "cuda" if there else "emulated"
    if device == "cuda" and not there:
        found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA GPU"
        needed = "CUDA GPU" if any_gpu else "GPU of compute capability 10.0 (B200)"
        raise Failure(f"--device cuda needs a {needed}; found: {found}")
    return device


def describe_device(device: str, machine: str = "b200") -> str:
    """Names the GPU, or the emulated one and the processor under it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    name = chip_of(machine).name.removeprefix("NVIDIA ").removesuffix(" (emulated)")
    return f"emulated {name} on {platform.machine()}"


def authors_options(submission, device: str, profile, jobs: int, timeout: float, memory: float, **more) -> Options:
    """Makes the options of `sweep` and `compare`: those of `benchmark`, without calls at other sizes. Raises
    Failure."""
    try:
        load(profile)
    except (OSError, Unsupported, ValueError) as error:
        raise Failure(str(error)) from None
    return Options(
        submission, device, timed=True, calls=1, extra=False, profile=profile, timeout=timeout, memory=memory,
        jobs=1 if device == "cuda" else jobs, **more,
    )  # fmt: skip
