"""`python eval.py COMMAND`: every command with its options. What is checked and how is in ../README.md."""

import dataclasses
import inspect
import os
import sys
from pathlib import Path

import click

from evaluation import ROOT
from evaluation.commands import compare as comparison
from evaluation.commands import moe_tasks
from evaluation.commands import options as option
from evaluation.commands import profile as profiling
from evaluation.commands import sweep as sweeping
from evaluation.commands.cases import chosen_cases, folder_cases, read_folder, task_cases
from evaluation.commands.run import run
from evaluation.commands.show import Failure, Screen, count, dump_json
from evaluation.judge.verdict import Refused
from evaluation.upload.check import check as check_submission
from evaluation.upload.check import review_available, task_of_file
from evaluation.upload.compile_time import LIMITS

RUNS = ROOT / "worklog" / "runs" / "profile"
SWEPT = ROOT / "worklog" / "runs" / "sweep.jsonl"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli():
    """Check and time a submission to nvfp4_group_gemm or nvfp4_dual_gemm, on a B200 or else on an emulated one."""


def for_moe(task: str | None) -> None:
    """Does this command for a task of moe/, and ends it; does nothing for any other task.

    The arguments of the function in moe_tasks are the options that the command takes for it. Raises Failure for any
    other option, and for what the function cannot do.
    """
    if task not in moe_tasks.TASKS:
        return
    context = click.get_current_context()
    function = moe_tasks.COMMANDS[context.command.name]
    takes = inspect.signature(function).parameters
    for name in context.params:
        if context.get_parameter_source(name).name != "DEFAULT" and name not in takes:
            raise Failure(f"--task {task} does not take --{name.removesuffix('_file').replace('_', '-')} here")
    try:
        sys.exit(function(**{name: context.params[name] for name in takes}))
    except (ValueError, OSError) as error:
        raise Failure(str(error)) from None


@cli.command()
@option.with_options(option.JUDGING)
def test(**options):
    """Check the results of the ten test cases: on the emulator those of the group GEMM have to be equal to the exact
    ones, all others within the task's tolerance.

    mismatches: elements, over all calls, that are not the exact result, rounded once. ulps: by how many float16 numbers
    the worst of them is off. `pass` beside both is within the tolerance.
    """
    for_moe(options["task"])
    sys.exit(run("tests", **options))


@cli.command()
@option.with_options(option.JUDGING)
def benchmark(**options):
    """Check the four benchmark cases and time them: 15 calls back to back, as the grader does.

    Without a B200 the times are modelled, not measured. Minutes for a case.
    """
    for_moe(options["task"])
    sys.exit(run("benchmarks", **options))


@cli.command()
@click.argument("file", default=str(ROOT / "submission.py"), metavar="[FILE]")
@click.option("--compile/--no-compile", "compiled", default=True, help="Compile all cases and time that.")
@click.option("--submission", metavar="FILE", help="The same as [FILE].")
@option.TASK_DIR
@click.option("--json", "json_file", metavar="FILE", help="Write the findings there, too.")
def check(file, compiled, submission, task_dir, json_file):
    """Find what popcorn, the bot or the automatic review would refuse, before uploading.

    With --task-dir nothing is compiled, and the header may name any leaderboard.
    """
    file = submission or file
    if task_dir:
        read_folder(task_dir, file, None)
        compiled = False
    task = task_of_file(Path(file))
    cases = [f"{name} {case.spec}" for name in ("tests", "benchmarks") for case in task_cases(task, name)]
    try:
        findings, spent = check_submission(Path(file), cases if compiled else None, any_board=bool(task_dir))
    except OSError as error:
        raise Failure(f"cannot read the submission: {error}") from None
    for f in findings:
        click.echo(f"{file}:{f.line}:{f.column}: {f.severity} [{f.rule}] {f.message}\n    {f.link}")
    if spent:
        times = ", ".join(f"{what} {seconds:.1f} s (limit {LIMITS[what]} s)" for what, seconds in spent.items())
        click.echo(f"Compile time, measured on this machine ({os.cpu_count()} cores), not the grader's: {times}.")
    else:
        click.echo("Nothing was compiled: compile times are not checked.")
    if not review_available():
        click.echo("KernelGuard, the bot's automatic review, is not installed (pip install kernelguard): not run.")
    errors = sum(f.severity == "error" for f in findings)
    click.echo(f"{count(errors, 'error')}, {count(len(findings) - errors, 'warning')} in {file}")
    if json_file:
        rows = [{**dataclasses.asdict(f), "link": f.link} for f in findings]
        dump_json(json_file, {"findings": rows, "seconds": spent}, "findings")
    sys.exit(1 if errors else 0)


@cli.command()
@option.with_options(option.TUNING)
@option.TASK_DIR
@click.option("--out", default=str(RUNS), show_default="worklog/runs/profile", metavar="DIR", help="For the timelines.")
@click.option("--calls", type=click.IntRange(3), default=4, show_default=True, help="Calls back to back.")
def profile(submission, task, task_dir, case, spec, profile, jobs, timeout, json_file, out, calls):
    """Model where the time goes: a breakdown, a picture, and a timeline for https://ui.perfetto.dev."""
    for_moe(task)
    folder = read_folder(task_dir, submission, task) if task_dir else None
    if folder:
        cases = folder_cases(folder, "benchmarks", case, spec)
    else:
        cases = chosen_cases(submission, task, case, spec)
    replies = profiling.run(Screen(), option.checked(submission), cases, profile, calls, out, jobs, timeout, folder)
    if all(reply.get("unusable") for reply in replies):
        raise Failure(replies[0]["error"])
    if json_file:
        rows = [{"spec": c.spec, "us": None} | reply for (_, c), reply in zip(cases, replies)]
        dump_json(json_file, {"kind": "modelled", "command": "profile", "cases": rows})
    sys.exit(1 if all("error" in reply for reply in replies) else 0)


@cli.command()
@option.with_options(option.TUNING)
@click.option("--config", "configs", multiple=True, metavar="A=1,B=2", help="Entries of Config to change; repeatable.")
@click.option("--grid", metavar="'A=1,2 B=3..5'", help="All combinations of these entries; 3..5 is 3, 4 and 5.")
@click.option(
    "--results", default=str(SWEPT), show_default="worklog/runs/sweep.jsonl", metavar="FILE", help="Where to keep them."
)
@click.option("--resume", is_flag=True, help="Take from --results what an earlier run has timed.")
@option.memory(" per process")
def sweep(submission, task, case, spec, profile, jobs, timeout, json_file, configs, grid, results, resume, memory):
    """Judge and time the submission under many configs, as `benchmark` does, and rank them by modelled time.

    Needs `Config` and `CONFIG_MAP` in the submission. Entries that Config refuses, wrong results and races are not
    ranked; then the exit code is 1. Minutes for a config and a case; results are kept as they come.
    """
    for_moe(task)
    try:
        changes = sweeping.changes(configs, grid)
    except ValueError as error:
        raise Failure(str(error)) from None
    numbers, cases = zip(*chosen_cases(submission, task, case, spec))
    options = option.authors_options(option.checked(submission), "emulated", profile, jobs, timeout, memory)
    screen = Screen()
    try:
        rows = sweeping.run(screen, [*cases], changes, options, Path(results), resume)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot keep the results: {error}") from None
    sweeping.show(screen, rows, numbers)
    if json_file:
        dump_json(json_file, sweeping.json_of(rows, options.submission))
    sys.exit(0 if all(sweeping.mean(row) for row in rows) else 1)


@cli.command()
@click.argument("sides", nargs=2, metavar="A B")
@option.TASK
@option.TESTS
@option.CASE
@option.SPEC
@option.DEVICE
@option.PROFILE
@option.JOBS
@option.timeout(600.0, "run")
@option.memory(" per process, emulated")
@option.JSON
def compare(sides, task, tests, spec, case, device, profile, jobs, timeout, memory, json_file):
    """Time two submissions on the benchmark cases: which is faster, by what, and whether that can be told.

    A and B: FILE, or FILE:NAME=VALUE,NAME=VALUE with these entries of its Config changed. On a B200 both are measured
    in one run, in turns; elsewhere both are modelled, minutes for a case, and the difference is also given by where
    the time goes.
    """
    try:
        sides = [comparison.Side.parse(text) for text in sides]
    except ValueError as error:
        raise Failure(str(error)) from None
    for side in sides:
        side.submission = option.checked(side.submission)
    numbers, cases = zip(*chosen_cases(sides[0].submission, task, case, spec, "benchmarks", tests))
    device = option.choose_device(device)
    options = option.authors_options(sides[0].submission, device, profile, jobs, timeout, memory, breakdown=True)
    screen = Screen()
    try:
        found = comparison.run(screen, sides, [*cases], options)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    comparison.show(screen, sides, found, numbers)
    if json_file:
        dump_json(json_file, comparison.json_of(sides, found, option.describe_device(device)))
    sys.exit(0 if all(of_case.difference_us is not None for of_case in found) else 1)
