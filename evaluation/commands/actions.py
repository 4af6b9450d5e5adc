"""Does the commands of cli.py, each a function of its options that returns the exit code. Raises Failure."""

import contextlib
import dataclasses
import inspect
import os
import sys
from pathlib import Path

import click

from emulated_gpu.grid import parse_config
from emulated_gpu.page.write import views
from evaluation.commands import compare as comparison
from evaluation.commands import devices, moe_tasks
from evaluation.commands import profile as profiling
from evaluation.commands import run as running
from evaluation.commands import sweep as sweeping
from evaluation.commands import validate as validation
from evaluation.commands.cases import chosen_cases, chosen_task, read_folder, task_cases
from evaluation.commands.show import Failure, Screen, count, dump_json
from evaluation.judge.verdict import Refused
from evaluation.tasks.folder import TaskFolder
from evaluation.upload.check import check as check_submission
from evaluation.upload.check import review_available, task_of_file
from evaluation.upload.compile_time import LIMITS


def for_moe(task: str | None) -> None:
    """Does this command for a task of ragged_moe/, and ends it; does nothing for any other task.

    The arguments of the function in moe_tasks are the options that the command takes for it. Raises Failure for any
    other option, and for what the function cannot do.
    """
    if task not in (*moe_tasks.TASKS, *moe_tasks.MODELLED):
        return
    context = click.get_current_context()
    function = moe_tasks.COMMANDS[context.command.name]
    takes = inspect.signature(function).parameters
    for name in context.params:
        if context.get_parameter_source(name).name != "DEFAULT" and name not in takes:
            what = "FILE" if name == "file" else f"--{name.removesuffix('_file').replace('_', '-')}"
            raise Failure(f"--task {task} does not take {what} here")
    try:
        sys.exit(function(**{name: context.params[name] for name in takes}))
    except (ValueError, OSError) as error:
        raise Failure(str(error)) from None


def test(**options) -> int:
    for_moe(options["task"])
    return running.run_section("tests", running.RunOptions(**options))


def benchmark(**options) -> int:
    for_moe(options["task"])
    return running.run_section("benchmarks", running.RunOptions(**options))


def check(submission, compiled, task_dir, json_file) -> int:
    if task_dir:
        read_folder(task_dir, submission, None)
        compiled = False
    task = task_of_file(Path(submission))
    cases = [f"{name} {case.spec}" for name in ("tests", "benchmarks") for case in task_cases(task, name)] * compiled
    compiling = Screen().progress("compiling", [1.0] * len(cases), workers=None)
    try:
        with compiling if cases else contextlib.nullcontext(lambda index: None) as done:
            findings, spent = check_submission(Path(submission), cases or None, any_board=bool(task_dir), done=done)
    except OSError as error:
        raise Failure(f"cannot read the submission {submission}: {error.strerror or error}") from None
    for f in findings:
        click.echo(f"{submission}:{f.line}:{f.column}: {f.severity} [{f.rule}] {f.message}\n    {f.link}")
    if spent:
        times = ", ".join(f"{what} {seconds:.1f} s (limit {LIMITS[what]} s)" for what, seconds in spent.items())
        click.echo(f"Compile time, measured on this machine ({os.cpu_count()} cores), not the grader's: {times}.")
    else:
        click.echo("Nothing was compiled: compile times are not checked.")
    if not review_available():
        click.echo("KernelGuard, the bot's automatic review, is not installed (pip install kernelguard): not run.")
    errors = sum(f.severity == "error" for f in findings)
    click.echo(f"{count(errors, 'error')}, {count(len(findings) - errors, 'warning')} in {submission}")
    if json_file:
        rows = [{**dataclasses.asdict(f), "link": f.link} for f in findings]
        dump_json(json_file, {"findings": rows, "seconds": spent}, "findings")
    return 1 if errors else 0


def validate(submission, task_dir, timeout, json_file) -> int:
    folder = read_folder(task_dir, submission, None)
    if not isinstance(folder, TaskFolder):
        raise Failure(f"{task_dir} is no folder with a task.yml: only such a one names a validation")
    submission = devices.checked(submission, any_entry=True)
    return validation.validate(Screen(), folder, submission, timeout, json_file)


def profile(
    submission, task, task_dir, case, spec, profile, jobs, timeout, json_file,
    out, html, baseline, tries, calls, within, gains,
) -> int:  # fmt: skip
    for_moe(task)
    try:
        tries = tuple(parse_config(text) for text in tries)
    except ValueError as error:
        raise Failure(str(error)) from None
    if tries and task_dir:
        raise Failure("--try needs the Config of a submission to this repository's tasks, --task-dir names another")
    of, cases = chosen_task(task_dir, submission, task, case, spec)
    submission = devices.checked(submission, any_entry=bool(task_dir))
    if baseline and not html:
        raise Failure("--baseline is for --html")
    for number, _ in cases if baseline else ():
        before = profiling.page_of(baseline, number, len(cases))
        try:
            views(Path(before))
        except OSError as error:
            raise Failure(f"--baseline: cannot read {before}: {error.strerror}") from None
        except ValueError as error:
            raise Failure(f"--baseline: {error}") from None
    wanted = profiling.Wanted(profile, jobs, timeout, out, calls, html, baseline, tries, within, gains)
    replies = profiling.profile_cases(Screen(), submission, of, cases, wanted)
    if all(reply.get("unusable") for reply in replies):
        raise Failure(replies[0]["error"])
    if json_file:
        rows = [{"spec": c.spec, "us": None} | reply for (_, c), reply in zip(cases, replies)]
        dump_json(json_file, {"kind": "modelled", "command": "profile", "cases": rows})
    return 1 if all("error" in reply for reply in replies) else 0


def sweep(
    submission, task, case, spec, profile, jobs, timeout, json_file, configs, grid, results, resume, memory,
    within,
) -> int:  # fmt: skip
    for_moe(task)
    try:
        changes = sweeping.changes(configs, grid)
    except ValueError as error:
        raise Failure(str(error)) from None
    cases = chosen_cases(submission, task, case, spec)
    options = devices.authors_options(devices.checked(submission), "emulated", profile, jobs, timeout, memory)
    wanted = profiling.Wanted(profile, jobs, timeout, within=within)
    try:
        rows = sweeping.sweep(Screen(), cases, changes, options, Path(results), resume, wanted)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot keep the results: {error}") from None
    if json_file:
        dump_json(json_file, sweeping.json_of(rows, options.submission))
    return 0 if all(sweeping.mean(row) for row in rows) else 1


def compare(
    a, b, task, tests, spec, case, device, profile, jobs, timeout, memory, json_file, html, within
) -> int:  # fmt: skip
    try:
        sides = [comparison.Side.parse(text) for text in (a, b)]
    except ValueError as error:
        raise Failure(str(error)) from None
    for side in sides:
        side.submission = devices.checked(side.submission)
    numbers, cases = zip(*chosen_cases(sides[0].submission, task, case, spec, "benchmarks", tests))
    device = devices.choose_device(device)
    options = devices.authors_options(sides[0].submission, device, profile, jobs, timeout, memory, breakdown=True)
    if within and device == "cuda":
        raise Failure("--within is for modelled times: --device emulated")
    wanted = profiling.Wanted(profile, jobs, timeout, html=html, within=within)
    try:
        found = comparison.compare_sides(Screen(), sides, numbers, [*cases], options, wanted)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    if json_file:
        dump_json(json_file, comparison.json_of(sides, found, devices.describe_device(device)))
    return 0 if all(of_case.difference_us is not None for of_case in found) else 1
