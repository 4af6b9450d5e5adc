"""Options that commands share, and what their values mean: devices, submissions, how to judge."""

import os
import platform

import click
import torch

import utils
from emulator.model.profile import load
from evaluation import ROOT
from evaluation.commands import moe_tasks
from evaluation.commands.show import Failure
from evaluation.judge.verdict import Options
from reference import TASKS

EXAMPLE = "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
SUBMISSION = click.option(
    "--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"
)
TASK = click.option(
    "--task", type=click.Choice([*TASKS]), help="Instead of the task that the cases or the submission's header name."
)
ANY_TASK = click.option(
    "--task",
    type=click.Choice([*TASKS, *moe_tasks.TASKS]),
    help="The cases' or the header's is another; fp8_..: moe/.",
)
TASK_DIR = click.option(
    "--task-dir", metavar="FOLDER", help="A task of others: a folder of reference-kernels, docs/any_task.md."
)
TESTS = click.option("--tests", metavar="FILE", help="Cases, one per line, # begins a comment, instead of the task's.")
CASE = click.option("--case", type=click.IntRange(0), help="Number of the one case to run; all by default.")
SPEC = click.option("--spec", metavar="CASE", multiple=True, help=f'A case to run: "{EXAMPLE}".')
DEVICE = click.option(
    "--device", type=click.Choice(["auto", "cuda", "emulated"]), default="auto", show_default=True
)
PROFILE = click.option(
    "--profile", default="b200", show_default=True, help="Machine: emulator/model/profiles/NAME.toml."
)
JOBS = click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes."
)
JSON = click.option("--json", "json_file", metavar="FILE", help="Write the results there, too.")


def timeout(seconds: float, per: str):
    """Makes --timeout: this many seconds by default, for each `per`."""
    return click.option(
        "--timeout", type=click.FloatRange(1), default=seconds, show_default=True, help=f"Seconds per {per}."
    )


def memory(what: str):
    """Makes --memory, in GiB; `what` ends its help."""
    return click.option("--memory", type=click.FloatRange(1), default=12.0, show_default=True, help=f"GiB{what}.")


JUDGING = (
    SUBMISSION,
    ANY_TASK,
    TASK_DIR,
    TESTS,
    CASE,
    SPEC,
    DEVICE,
    JSON,
    click.option("--schedules", type=click.IntRange(1), default=1, help="Orders of warps to try per case, emulated."),
    JOBS,
    timeout(300.0, "call"),
    memory(", emulated"),
    click.option("--junit", metavar="FILE", help="Write the verdicts there as JUnit XML."),
    click.option("--strict", is_flag=True, help="Fail what the PTX ISA does not promise, though it is seen to work."),
    click.option("--secret", type=click.IntRange(0), help="Seed of the hidden inputs, to repeat a run."),
)
TUNING = (SUBMISSION, ANY_TASK, CASE, SPEC, PROFILE, JOBS, timeout(600.0, "run"), JSON)


def with_options(options: tuple):
    """Makes a decorator that adds these options to a command."""

    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add


def checked(submission: str) -> str:
    """Returns the absolute path of a submission that is there. Raises Failure."""
    if not os.path.isfile(submission):
        raise Failure(f"there is no submission {submission}")
    return os.path.abspath(submission)


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


def describe_device(device: str) -> str:
    """Names the GPU, or the emulated one and the processor under it."""
    return torch.cuda.get_device_name() if device == "cuda" else f"emulated B200 on {platform.machine()}"


def authors_options(submission, device: str, profile, jobs: int, timeout: float, memory: float, **more) -> Options:
    """Makes the options of `sweep` and `compare`: those of `benchmark`, without calls at other sizes. Raises
    Failure."""
    calls = {"timed": True, "calls": 1, "extra": False, "jobs": 1 if device == "cuda" else jobs}
    try:
        load(profile)
    except (OSError, ValueError) as error:
        raise Failure(str(error)) from None
    return Options(submission, device, profile=profile, timeout=timeout, memory=memory, **calls, **more)
