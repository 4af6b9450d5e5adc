"""Options that commands share. Nothing here imports torch, which takes seconds: `--help` and mistakes are answered at
once."""

import os

import click

TASKS = "nvfp4_group_gemm", "nvfp4_dual_gemm"  # reference.TASKS
# moe_tasks.TASKS, .MODELLED
MOE_TASKS = tuple(f"{of}_{what}" for of in ("fp8", "nvfp4", "mxfp4", "w4a16") for what in ("grouped_gemm", "moe"))


def writable(context, option, path):
    """Callback of an option that names a file or folder: what cannot be written is said before the work is done."""
    if path is None:
        return None
    from emulated_gpu.outputs import to_be_written

    return to_be_written(context, option, path)


def within(context, option, text):
    """Callback of --within: a time in seconds."""
    from emulated_gpu.outputs import duration

    return duration(context, option, text)


def known(context, option, name):
    """Callback of --profile and --machine: a machine that has none, or is not emulated, is said before the work is
    done."""
    from emulated_gpu import chip
    from emulated_gpu.errors import Unsupported

    try:
        if option.name == "profile":
            from emulated_gpu.model import profile

            profile.load(name)
        else:
            chip.chip_of(name)
    except Unsupported as error:
        raise click.UsageError(f"--{option.name}: {error.message}") from None
    return name


EXAMPLE = "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
SUBMISSION = (
    click.argument("file", required=False, metavar="[FILE]"),
    click.option("--submission", metavar="FILE", help="The same as [FILE].  [default: submission.py]"),
)
TASK = click.option(
    "--task", type=click.Choice([*TASKS]), help="Instead of the task that the cases or the submission's header name."
)
ANY_TASK = click.option(
    "--task",
    type=click.Choice([*TASKS, *MOE_TASKS]),
    help="The cases' or the header's is another; fp8_.., nvfp4_.., mxfp4_.., w4a16_..: ragged_moe/.",
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
MACHINE = click.option(
    "--machine", metavar="NAME", default="b200", show_default=True, callback=known,
    help="Which GPU is emulated, of those in emulated_gpu/machines/.",
)  # fmt: skip
PROFILE = click.option(
    "--profile", default="b200", show_default=True, callback=known,
    help="Machine: emulated_gpu/model/profiles/NAME.toml.",
)  # fmt: skip
JOBS = click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes."
)
WITHIN = click.option(
    "--within", callback=within, metavar="60s", help="Answer by then, with what there is, extrapolated."
)
JSON = click.option("--json", "json_file", metavar="FILE", callback=writable, help="Write the results there, too.")


def timeout(seconds: float, per: str):
    """Makes --timeout: this many seconds by default, for each `per`."""
    return click.option(
        "--timeout", type=click.FloatRange(1), default=seconds, show_default=True, help=f"Seconds per {per}."
    )


def memory(what: str):
    """Makes --memory, in GiB; `what` ends its help."""
    return click.option("--memory", type=click.FloatRange(1), default=12.0, show_default=True, help=f"GiB{what}.")


JUDGING = (
    *SUBMISSION,
    ANY_TASK,
    TASK_DIR,
    TESTS,
    CASE,
    SPEC,
    DEVICE,
    MACHINE,
    JSON,
    click.option("--schedules", type=click.IntRange(1), default=1, help="Orders of warps to try per case, emulated."),
    JOBS,
    timeout(300.0, "call"),
    memory(", emulated"),
    click.option("--html", metavar="FILE", callback=writable, help="Write a page of what was found there."),
    click.option("--junit", metavar="FILE", callback=writable, help="Write the verdicts there as JUnit XML."),
    click.option("--sarif", metavar="FILE", callback=writable, help="Write what was found there as SARIF."),
    click.option("--github", is_flag=True, help="Print what was found as annotations of a GitHub workflow."),
    click.option("--strict", is_flag=True, help="Fail what the PTX ISA does not promise, though it is seen to work."),
    click.option("--secret", type=click.IntRange(0), help="Seed of the hidden inputs, to repeat a run."),
)
TUNING = (*SUBMISSION, ANY_TASK, CASE, SPEC, PROFILE, JOBS, timeout(600.0, "run"), JSON)


def with_options(options: tuple):
    """Makes a decorator that adds these options to a command."""

    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add
