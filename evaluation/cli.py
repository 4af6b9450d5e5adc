"""`python eval.py COMMAND`: options, table, JSON. See `evaluation.judge` for what is checked and how."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import eval as grader
import utils
from evaluation.check import check as check_submission
from evaluation.check import review_available
from evaluation.compile_time import LIMITS
from evaluation.judge import Options, Verdict, geomean_us, judge
from reference import check_sizes
from task import TestCase, parse_case, read_task_yaml

ROOT = Path(__file__).resolve().parent.parent


class Failure(click.ClickException):
    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli():
    """Check and time an nvfp4_group_gemm submission, on a B200 or, without one, on an emulated B200."""


EXAMPLE = "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
CASE_OPTIONS = (
    click.option("--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"),
    click.option("--tests", metavar="FILE", help="Cases to run, one per line, instead of those of task.yml."),
    click.option("--spec", metavar="CASE", multiple=True, help=f'A case to run: "{EXAMPLE}".'),
    click.option("--device", type=click.Choice(["auto", "cuda", "emulated"]), default="auto", show_default=True),
    click.option("--json", "json_file", metavar="FILE", help="Write the results there, too."),
    click.option("--schedules", type=click.IntRange(1), default=1, help="Orders of warps to try per case, emulated."),
    click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes."),
    click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds per call."),
    click.option("--memory", type=click.FloatRange(1), default=12.0, show_default=True, help="GiB, emulated."),
    click.option("--secret", type=click.IntRange(0), help="Seed of the hidden inputs, to repeat a run."),
)


def case_options(command):
    """Adds the options that all commands which run cases share."""
    for option in reversed(CASE_OPTIONS):
        command = option(command)
    return command


@cli.command()
@case_options
def test(**options):
    """Check the results of the ten test cases: equal on the emulator, within the task's tolerance on a B200."""
    sys.exit(run("tests", **options))


@cli.command()
@case_options
def benchmark(**options):
    """Check the four benchmark cases and, on a B200, time them: 15 calls back to back, as the grader does."""
    sys.exit(run("benchmarks", **options))


@cli.command()
@click.argument("file", default=str(ROOT / "submission.py"), metavar="[FILE]")
@click.option("--compile/--no-compile", "compiled", default=True, help="Compile all cases and time that.")
@click.option("--json", "json_file", metavar="FILE", help="Write the findings there, too.")
def check(file, compiled, json_file):
    """Find what popcorn, the bot or the automatic review would refuse, before uploading."""
    cases = [f"{name} {case.spec}" for name in ("tests", "benchmarks") for case in read_cases(name, None, ())]
    try:
        findings, spent = check_submission(Path(file), cases if compiled else None)
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
    click.echo(f"{errors} errors, {len(findings) - errors} warnings in {file}")
    if json_file:
        rows = [{**dataclasses.asdict(f), "link": f.link} for f in findings]
        try:
            Path(json_file).write_text(json.dumps({"findings": rows, "seconds": spent}, indent=1) + "\n")
        except OSError as error:
            raise Failure(f"cannot write the findings: {error}") from None
    sys.exit(1 if errors else 0)


def read_cases(section: str, tests: str | None, spec: tuple[str, ...]) -> list[TestCase]:
    """The cases of --spec, of --tests, or of task.yml; raises Failure with one sentence."""
    if tests and spec:
        raise Failure("--tests and --spec exclude each other")
    try:
        if spec:
            cases = [parse_case(line) for line in spec]
        elif tests:
            cases = [parse_case(line) for line in Path(tests).read_text().splitlines() if line.strip()]
        else:
            cases = read_task_yaml((ROOT / "task.yml").read_text(), section)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read the cases: {error}") from None
    except ValueError as error:
        raise Failure(str(error)) from None
    if not cases:
        raise Failure(f"no cases in {tests}")
    for case in cases:
        keys = set(case.args)
        if keys != {"m", "n", "k", "g", "seed"}:
            raise Failure(f"'{case.spec}': expected m, n, k, g and seed, got {', '.join(sorted(keys)) or 'nothing'}")
        if not all(isinstance(case.args[key], int) for key in ("g", "seed")) or case.args["seed"] < 0:
            raise Failure(f"'{case.spec}': g and seed must be non-negative integers")
        try:
            check_sizes(case.args["m"], case.args["n"], case.args["k"], case.args["g"])
        except ValueError as error:
            raise Failure(f"'{case.spec}': {error}") from None
    return cases


def choose_device(device: str) -> str:
    if device == "auto":
        return "cuda" if utils.get_device().type == "cuda" else "emulated"
    if device == "cuda" and utils.get_device().type != "cuda":
        found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA GPU"
        raise Failure(f"--device cuda needs a GPU of compute capability 10.0 (B200); found: {found}")
    return device


def describe_device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"emulated B200 on {platform.machine()}"


def run(section, submission, tests, spec, device, json_file, schedules, jobs, timeout, memory, secret) -> int:
    """Exit code: 0 only if every case ran and passed."""
    cases = read_cases(section, tests, spec)
    device = choose_device(device)
    if not os.path.isfile(submission):
        raise Failure(f"there is no submission {submission}")
    timed = section == "benchmarks" and device == "cuda"
    options = Options(
        submission=os.path.abspath(submission),
        device=device,
        timed=timed,
        calls=max(schedules, 2 if section == "tests" else 1),
        jobs=1 if device == "cuda" else jobs,
        timeout=timeout,
        memory=memory,
        **({} if secret is None else {"secret": secret}),
    )
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"{section} on {describe_device(device)}", total=len(cases))
        verdicts = judge(cases, options, on_verdict=lambda index, verdict: progress.advance(bar))
    print_table(console, cases, verdicts)
    passed = all(verdict.status == "pass" for verdict in verdicts)
    if section == "benchmarks" and not timed:
        console.print(f"Results checked, nothing timed: {grader.NO_TIMES}.")
    if passed:
        console.print(f"[green]all {len(cases)} cases passed[/]")
    else:
        failed = sum(verdict.status != "pass" for verdict in verdicts)
        console.print(f"[red]{failed} of {len(cases)} cases failed[/] (repeat with --secret {options.secret})")
    if json_file:
        write_json(json_file, verdicts, options)
    return 0 if passed else 1


def shapes(args: dict) -> str:
    """Sizes of all groups, equal ones written once: `g 2, m 96+128, n 128+256, k 512`."""
    sizes = {key: args[key][:1] if len(set(args[key])) == 1 else args[key] for key in "mnk"}
    return f"g {args['g']}, " + ", ".join(f"{key} {'+'.join(map(str, values))}" for key, values in sizes.items())


def print_table(console: Console, cases: list[TestCase], verdicts: list[Verdict]) -> None:
    table = Table()
    for name, justify in (("case", "right"), ("shapes", "left"), ("result", "left")):
        table.add_column(name, justify=justify)
    for name in ("mismatches", "seconds", "us"):
        table.add_column(name, justify="right")
    for i, (case, verdict) in enumerate(zip(cases, verdicts)):
        colour = "green" if verdict.status == "pass" else "red"
        mismatches = "-" if verdict.mismatches is None else str(verdict.mismatches)
        us = f"{verdict.us:.2f} ± {verdict.times.err / 1e3:.2f}" if verdict.times else "-"
        result, seconds = f"[{colour}]{verdict.status}[/]", f"{verdict.seconds:.1f}"
        table.add_row(str(i), shapes(case.args), result, mismatches, seconds, us)
    console.print(table)
    for i, verdict in enumerate(verdicts):
        if verdict.reason:
            console.print(f"[red]case {i}[/]: {escape(verdict.reason)}", highlight=False, soft_wrap=True)
    if mean := geomean_us(verdicts):
        console.print(f"geometric mean: {mean:.3f} us")


def write_json(path: str, verdicts: list[Verdict], options: Options) -> None:
    mean = geomean_us(verdicts)
    rows = []
    for verdict in verdicts:
        row = {"spec": verdict.spec, "status": verdict.status, "reason": verdict.reason}
        row |= {"mismatches": verdict.mismatches, "seconds": round(verdict.seconds, 3), "us": verdict.us}
        rows.append(row)
    result = {
        "cases": rows,
        "geomean_us": mean,
        "kind": "measured" if mean else "none",
        "device": describe_device(options.device),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torch", "nvidia-cutlass-dsl")},
        "submission": options.submission,
        "secret": options.secret,
    }
    try:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise Failure(f"cannot write the results: {error}") from None
