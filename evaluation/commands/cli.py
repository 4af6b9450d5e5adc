"""`python eval.py COMMAND`: every command with its options. What is checked and how is in ../README.md.

What a command does is in actions.py, which imports torch: only when the options are understood.
"""

import os
import sys

import click

from evaluation import ROOT
from evaluation.commands import options as option
from evaluation.judge import sandbox

OWN = str(ROOT / "submission.py")
RUNS = ROOT / "worklog" / "runs" / "profile"
SWEPT = ROOT / "worklog" / "runs" / "sweep.jsonl"


class Commands(click.Group):
    """Commands of which one that lacks an option names those that have it."""

    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from emulated_gpu.outputs import of_other_commands

            raise of_other_commands(error, self) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli():
    """Check and time a submission to nvfp4_group_gemm or nvfp4_dual_gemm, on a B200 or else on an emulated one."""


def act(command: str, **options) -> None:
    """Does a command, and ends with its exit code. A submission is [FILE] or --submission: both may name one."""
    if "file" in options:
        file, named = options.pop("file"), options["submission"]
        if file and named and os.path.abspath(file) != os.path.abspath(named):
            raise click.UsageError(f"FILE is {file} and --submission {named}: give one")
        options["submission"] = file or named or OWN
    if command in ("test", "benchmark") and not options["task"]:
        sandbox.nursery()  # which imports torch while this process does
    from evaluation.commands import actions

    sys.exit(getattr(actions, command)(**options))


@cli.command()
@option.with_options(option.JUDGING)
def test(**options):
    """Check the results of the ten test cases: on the emulator those of the group GEMM have to be equal to the exact
    ones, all others within the task's tolerance.

    mismatches: elements, over all calls, that are not the exact result, rounded once. ulps: by how many float16 numbers
    the worst of them is off. `pass` beside both is within the tolerance.
    """
    act("test", **options)


@cli.command()
@option.with_options(option.JUDGING)
def benchmark(**options):
    """Check the four benchmark cases and time them: 15 calls back to back, as the grader does.

    Without a B200 the times are modelled, not measured. Minutes for a case.
    """
    act("benchmark", **options)


@cli.command()
@option.with_options(option.SUBMISSION)
@click.option("--compile/--no-compile", "compiled", default=True, help="Compile all cases and time that.")
@option.TASK_DIR
@click.option("--json", "json_file", metavar="FILE", callback=option.writable, help="Write the findings there, too.")
def check(**options):
    """Find what popcorn, the bot or the automatic review would refuse, before uploading.

    With --task-dir nothing is compiled, and the header may name any leaderboard.
    """
    act("check", **options)


@cli.command()
@option.with_options(option.SUBMISSION)
@click.option("--task-dir", metavar="FOLDER", required=True, help="The folder that names it: docs/any_task.md.")
@option.timeout(3600.0, "run")
@option.JSON
def validate(**options):
    """Run a submission inside the mini-training that a task's folder names (`validation` in its task.yml).

    It is the author's program, and nothing is kept from it: what it says is shown. On the emulator what it measures is
    the time of this CPU.
    """
    act("validate", **options)


@cli.command()
@option.with_options(option.TUNING)
@option.TASK_DIR
@click.option(
    "--out", default=str(RUNS), show_default="worklog/runs/profile", metavar="DIR", callback=option.writable,
    help="For the timelines.",
)  # fmt: skip
@click.option(
    "--html", metavar="FILE", callback=option.writable,
    help="A page that opens from disk; of several cases FILE-case0 and so on.",
)  # fmt: skip
@click.option("--baseline", metavar="FILE", help="An earlier --html FILE: this one is held against it.")
@click.option("--try", "tries", multiple=True, metavar="A=1,B=2", help="Model this change of Config, too; repeatable.")
@click.option("--calls", type=click.IntRange(3), default=4, show_default=True, help="Calls back to back.")
@option.WITHIN
@click.option(
    "--gains/--no-gains", default=True, show_default=True,
    help="Model all again with one thing undone at a time: what mending it would bring.",
)  # fmt: skip
def profile(**options):
    """Model where the time goes: a breakdown, a picture, and a timeline for https://ui.perfetto.dev.

    On Ctrl-C, and at --within, what is done is told, and what is not is extrapolated.
    """
    act("profile", **options)


@cli.command()
@option.with_options(option.TUNING)
@click.option("--config", "configs", multiple=True, metavar="A=1,B=2", help="Entries of Config to change; repeatable.")
@click.option("--grid", metavar="'A=1,2 B=3..5'", help="All combinations of these entries; 3..5 is 3, 4 and 5.")
@click.option(
    "--results", default=str(SWEPT), show_default="worklog/runs/sweep.jsonl", metavar="FILE", callback=option.writable,
    help="Where to keep them.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Take from --results what an earlier run has timed.")
@option.memory(" per process")
@option.WITHIN
def sweep(**options):
    """Judge and time the submission under many configs, as `benchmark` does, and rank them by modelled time.

    Needs `Config` and `CONFIG_MAP` in the submission. Entries that Config refuses, wrong results and races are not
    ranked; then the exit code is 1. Minutes for a config and a case; results are kept as they come. What takes minutes
    is modelled first, unjudged, which is all with --within, and on Ctrl-C.
    """
    act("sweep", **options)


@cli.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@option.TASK
@option.TESTS
@option.CASE
@option.SPEC
@option.DEVICE
@option.PROFILE
@option.JOBS
@option.timeout(600.0, "run")
@option.memory(" per process, emulated")
@option.WITHIN
@option.JSON
@click.option(
    "--html", metavar="FILE", callback=option.writable,
    help="A page of both, side by side, modelled once more; of several cases FILE-case0 and so on.",
)  # fmt: skip
def compare(**options):
    """Time two submissions on the benchmark cases: which is faster, by what, and whether that can be told.

    A and B: FILE, or FILE:NAME=VALUE,NAME=VALUE with these entries of its Config changed. On a B200 both are measured
    in one run, in turns; elsewhere both are modelled, minutes for a case, and the difference is also given by where
    the time goes. What takes minutes is modelled first, unjudged, which is all with --within, and on Ctrl-C.
    """
    act("compare", **options)
