"""`python eval.py COMMAND`: options, table, JSON. See `evaluation.judge` for what is checked and how."""

import dataclasses
import importlib.metadata
import itertools
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

import utils
from evaluation import fp8, modelled, uncertainty
from evaluation.check import check as check_submission
from evaluation.check import review_available, task_of_file
from evaluation.compile_time import LIMITS
from evaluation.judge import Options, Verdict, geomean_us, judge
from reference import DUAL_GEMM, TASKS, task_of
from task import Task, TestCase, parse_case, read_task_yaml

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "worklog" / "runs" / "profile"


class Failure(click.ClickException):
    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli():
    """Check and time a submission to nvfp4_group_gemm or nvfp4_dual_gemm, on a B200 or else on an emulated one."""


TASK_OPTION = click.option(
    "--task", type=click.Choice([*TASKS]), help="Instead of the task that the cases or the submission's header name."
)
ANY_TASK_OPTION = click.option(
    "--task", type=click.Choice([*TASKS, *fp8.TASKS]), help="The cases' or the header's is another; fp8_..: moe/."
)
EXAMPLE = "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
CASE_OPTIONS = (
    click.option("--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"),
    ANY_TASK_OPTION,
    click.option("--tests", metavar="FILE", help="Cases to run, one per line, instead of the task's."),
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
    """Check the results of the ten test cases, within the task's tolerance; the emulator's of the group GEMM: equal."""
    sys.exit(run("tests", **options))


@cli.command()
@case_options
def benchmark(**options):
    """Check the four benchmark cases and time them: 15 calls back to back, as the grader does.

    Without a B200 the times are modelled, not measured.
    """
    sys.exit(run("benchmarks", **options))


@cli.command()
@click.argument("file", default=str(ROOT / "submission.py"), metavar="[FILE]")
@click.option("--compile/--no-compile", "compiled", default=True, help="Compile all cases and time that.")
@click.option("--json", "json_file", metavar="FILE", help="Write the findings there, too.")
def check(file, compiled, json_file):
    """Find what popcorn, the bot or the automatic review would refuse, before uploading."""
    task = task_of_file(Path(file))
    cases = [f"{name} {case.spec}" for name in ("tests", "benchmarks") for case in task_cases(task, name)]
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


TUNING_OPTIONS = (
    click.option("--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"),
    TASK_OPTION,
    click.option("--case", type=click.IntRange(0), help="Number of the benchmark case; all by default."),
    click.option("--spec", metavar="CASE", multiple=True, help=f'A case instead of the task\'s: "{EXAMPLE}".'),
    click.option("--profile", default="b200", show_default=True, help="Machine: emulator/model/profiles/NAME.toml."),
    click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes."),
    click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds per run."),
    click.option("--json", "json_file", metavar="FILE", help="Write the results there, too."),
)


def tuning_options(command):
    """Adds the options that the commands which only model share."""
    for option in reversed(TUNING_OPTIONS):
        command = option(command)
    return command


@cli.command()
@tuning_options
@click.option("--out", default=str(RUNS), show_default="worklog/runs/profile", metavar="DIR", help="For the timelines.")
@click.option("--calls", type=click.IntRange(3), default=4, show_default=True, help="Calls back to back.")
def profile(submission, task, case, spec, profile, jobs, timeout, json_file, out, calls):
    """Model where the time goes: a breakdown, a picture, and a timeline for https://ui.perfetto.dev."""
    cases = chosen_cases(submission, task, case, spec)
    folders = [os.path.abspath(os.path.join(out, f"case{number}")) for number, _ in cases]
    requests = [
        modelled.Request(checked(submission), c.args, profile, calls, extrapolate=False, timeline=folder)
        for (_, c), folder in zip(cases, folders)
    ]
    console = Console()
    replies = simulate(console, "profiles", requests, jobs, timeout)
    for (number, case), reply, folder in zip(cases, replies, folders):
        if "error" in reply:
            console.print(f"[red]case {number}[/]: {escape(reply['error'])}", highlight=False, soft_wrap=True)
            continue
        table = Table("share of the steady interval", title=f"case {number}: {shapes(case.args)}", title_justify="left")
        table.add_column("%", justify="right")
        for name, share in reply["breakdown"]["shares"].items():
            table.add_row(name, f"{100 * share:.1f}")
        console.print(table)
        for line in reply["breakdown"]["facts"]:
            console.print(f"  {line}", highlight=False, soft_wrap=True)
        console.print(f"  {folder}: timeline.json.gz, overview.png", highlight=False, soft_wrap=True)
    finish_modelled(console, json_file, [c for _, c in cases], replies, "profile")


@cli.command()
@tuning_options
@click.option("--config", "configs", multiple=True, metavar="A=1,B=2", help="Entries of Config to change; repeatable.")
@click.option("--grid", metavar="'A=1,2 B=3,4'", help="All combinations of these entries.")
@click.option("--calls", type=click.IntRange(2), default=3, show_default=True, help="Calls; the last interval counts.")
def sweep(submission, task, case, spec, profile, jobs, timeout, json_file, configs, grid, calls):
    """Model the submission under many configs and rank them. Needs `Config` and `CONFIG_MAP` in the submission."""
    changes = [{}, *map(parse_config, configs), *parse_grid(grid)]
    cases = chosen_cases(submission, task, case, spec)
    asked = [(number, c, change) for number, c in cases for change in changes]
    requests = [
        modelled.Request(checked(submission), c.args, profile, calls, extrapolate=False, config=change)
        for _, c, change in asked
    ]
    console = Console()
    if len(changes) == 1:
        raise Failure("nothing to try: give --config or --grid")
    replies = simulate(console, "configs", requests, jobs, timeout)
    for reply in replies:
        if "error" not in reply:
            reply["us"] = reply["ends_us"][-1] - reply["ends_us"][-2]
    for number, case in cases:
        table = Table(title=f"case {number}: {shapes(case.args)}", title_justify="left")
        for name in ("rank", "us"):
            table.add_column(name, justify="right")
        table.add_column("config")
        rows = [(change, reply) for (n, _, change), reply in zip(asked, replies) if n == number]
        rows.sort(key=lambda row: row[1].get("us", float("inf")))
        for rank, (change, reply) in enumerate(rows, 1):
            text = escape(",".join(f"{k}={v}" for k, v in change.items()) or "as submitted")
            good = "error" not in reply
            reason = "" if good else f" [red]{escape(reply['error'])}[/]"
            table.add_row(str(rank) if good else "-", f"{reply['us']:.2f}" if good else "invalid", text + reason)
        console.print(table)
    finish_modelled(console, json_file, [c for _, c, _ in asked], replies, "sweep", [change for _, _, change in asked])


def parse_config(text: str) -> dict[str, str]:
    """`stages=4,gran=32` -> {"stages": "4", "gran": "32"}; raises Failure."""
    pairs = [part.split("=") for part in text.split(",") if part.strip()]
    if not pairs or any(len(pair) != 2 or not all(map(str.strip, pair)) for pair in pairs):
        raise Failure(f"'{text}' is no config: expected name=value,name=value")
    return {name.strip(): value.strip() for name, value in pairs}


def parse_grid(text: str | None) -> list[dict[str, str]]:
    """`stages=3,4 gran=32,64` -> the four combinations; raises Failure."""
    axes = []
    for part in (text or "").split():
        name, equals, values = part.partition("=")
        if not name or not equals or not all(values.split(",")):
            raise Failure(f"'{part}' is no axis of a grid: expected name=value,value")
        axes.append([(name, value) for value in values.split(",")])
    return [dict(point) for point in itertools.product(*axes)] if axes else []


def checked(submission: str) -> str:
    if not os.path.isfile(submission):
        raise Failure(f"there is no submission {submission}")
    return os.path.abspath(submission)


def chosen_cases(submission: str, task: str | None, case: int | None, spec) -> list[tuple[int, TestCase]]:
    """(number, case): benchmark cases, one or all, or those of --spec."""
    cases = list(enumerate(read_cases("benchmarks", None, spec, task, submission)))
    if case is not None and case >= len(cases):
        raise Failure(f"there is no case {case}: the last is {len(cases) - 1}")
    return cases if case is None else [cases[case]]


def simulate(console: Console, what: str, requests: list[modelled.Request], jobs: int, timeout: float) -> list[dict]:
    """Replies in the order of the requests, behind a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"modelling {what}", total=len(requests))
        return modelled.ask_all(requests, jobs, timeout, lambda index, reply: progress.advance(bar))


def finish_modelled(console: Console, json_file, cases, replies, what: str, configs=None) -> None:
    """Label, JSON and exit code of the commands that only model: 0 if anything could be modelled."""
    good = [reply for reply in replies if "error" not in reply]
    if not good and all(reply.get("unusable") for reply in replies):
        raise Failure(replies[0]["error"])
    if good:
        console.print(f"Times are {modelled.label(good)}.", highlight=False, soft_wrap=True)
    if json_file:
        rows = [{"spec": case.spec, "us": None} | reply for case, reply in zip(cases, replies)]
        for row, config in zip(rows, configs or ()):
            row["change"] = config
        dump_json(json_file, {"kind": "modelled", "command": what, "cases": rows})
    sys.exit(0 if good else 1)


def task_cases(task: Task, section: str) -> list[TestCase]:
    """The task's own cases."""
    return read_task_yaml((ROOT / task.file).read_text(), section)


def read_cases(
    section: str, tests: str | None, spec: tuple[str, ...], task: str | None, submission: str
) -> list[TestCase]:
    """The cases of --spec, of --tests, or of a task: of --task, or of the submission's header. Raises Failure."""
    if tests and spec:
        raise Failure("--tests and --spec exclude each other")
    try:
        if spec:
            cases = [parse_case(line) for line in spec]
        elif tests:
            cases = [parse_case(line) for line in Path(tests).read_text().splitlines() if line.strip()]
        else:
            cases = task_cases(TASKS[task] if task else task_of_file(Path(submission)), section)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read the cases: {error}") from None
    except ValueError as error:
        raise Failure(str(error)) from None
    if not cases:
        raise Failure(f"no cases in {tests}")
    for case in cases:
        of = TASKS[task] if task else task_of(case.args)
        *sizes, last = of.spec.__annotations__
        keys, count = set(case.args), sizes[-1]
        if keys != {*sizes, last}:
            expected = f"expected {', '.join(sizes)} and {last}"
            raise Failure(f"'{case.spec}': {expected}, got {', '.join(sorted(keys)) or 'nothing'}")
        if not all(isinstance(case.args[key], int) for key in (count, last)) or case.args[last] < 0:
            raise Failure(f"'{case.spec}': {count} and {last} must be non-negative integers")
        try:
            of.check_sizes(**{key: case.args[key] for key in sizes})
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


def run(section, submission, task, tests, spec, device, json_file, schedules, jobs, timeout, memory, secret) -> int:
    """Exit code: 0 only if every case ran and passed."""
    if task in fp8.TASKS:
        given = click.get_current_context()
        for name in given.params:
            if given.get_parameter_source(name).name != "DEFAULT" and name not in fp8.TAKES[section]:
                raise Failure(f"--task {task} does not take --{name.removesuffix('_file').replace('_', '-')} here")
        try:
            return fp8.run(task, section, device, schedules, json_file)
        except ValueError as error:
            raise Failure(str(error)) from None
    cases = read_cases(section, tests, spec, task, submission)
    device = choose_device(device)
    submission = checked(submission)
    timed = section == "benchmarks"
    options = Options(
        submission=submission,
        device=device,
        timed=timed,
        calls=max(schedules, 1 if timed else 2),
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
    replies = None
    if timed and device != "cuda":
        replies = [verdict.modelled or {"error": verdict.reason} for verdict in verdicts]
        show_modelled(console, cases, replies)
    if held := {verdict.isolation for verdict in verdicts} - {None}:
        console.print(f"the submission's process: {'; '.join(sorted(held))}", highlight=False, soft_wrap=True)
    if passed:
        console.print(f"[green]all {len(cases)} cases passed[/]")
    else:
        failed = sum(verdict.status != "pass" for verdict in verdicts)
        console.print(f"[red]{failed} of {len(cases)} cases failed[/] (repeat with --secret {options.secret})")
    if json_file:
        write_json(json_file, verdicts, options, replies)
    return 0 if passed and not (replies and any("error" in reply for reply in replies)) else 1


def show_modelled(console: Console, cases: list[TestCase], replies: list[dict]) -> None:
    """Prints the modelled times of the cases, or why there is none; a reply of `modelled` for each case."""
    good = [reply for reply in replies if "error" not in reply]
    if good:
        limits = {}  # (M, N, K) -> speed of light
        for task in TASKS.values():
            limits |= zip(
                [mnk(case.args) for case in task_cases(task, "benchmarks")], modelled.SPEED_OF_LIGHT[task.name]
            )
        table = Table(title=f"us per call, {modelled.label(good)}", title_justify="left")
        columns = (
            "case",
            "us",
            "it may be",
            "calls simulated",
            "speed of light",
            "% of it",
            "best public kernel, modelled",
        )
        for name in columns:
            table.add_column(name, justify="right")
        for i, (case, reply) in enumerate(zip(cases, replies)):
            limit, public = limits.get(mnk(case.args)), uncertainty.best_public(case.args)
            if "error" not in reply:
                share = f"{100 * limit / reply['us']:.0f}" if limit else "-"
                simulated = f"{reply['simulated']} of {reply['calls']}"
                low, high = reply["us_interval"]
                other = f"{public['modelled_us']:.2f}, {public['kernel']}" if public else "-"
                between = f"{low:.2f} to {high:.2f}"
                table.add_row(str(i), f"{reply['us']:.2f}", between, simulated, str(limit or "-"), share, other)
        console.print(table)
    for i, reply in enumerate(replies):
        if "error" in reply:
            console.print(f"[red]case {i} not timed[/]: {escape(reply['error'])}", highlight=False, soft_wrap=True)
    if mean := modelled.geomean_us(replies):
        low, high = modelled.geomean_interval(replies)
        console.print(f"geometric mean: {mean:.3f} us (modelled; it may be {low:.2f} to {high:.2f})")
        console.print(uncertainty.BASIS, highlight=False, soft_wrap=True)


def mnk(args: dict) -> tuple:
    return args["m"], args["n"], args["k"]


def shapes(args: dict) -> str:
    """Sizes, equal ones of groups written once: `g 2, m 96+128, n 128+256, k 512`, or `m 256, n 512, k 256, l 1`."""
    if task_of(args) is DUAL_GEMM:
        return ", ".join(f"{key} {args[key]}" for key in "mnkl")
    sizes = {key: args[key][:1] if len(set(args[key])) == 1 else args[key] for key in "mnk"}
    return f"g {args['g']}, " + ", ".join(f"{key} {'+'.join(map(str, values))}" for key, values in sizes.items())


def print_table(console: Console, cases: list[TestCase], verdicts: list[Verdict]) -> None:
    table = Table()
    for name, justify in (("case", "right"), ("shapes", "left"), ("result", "left")):
        table.add_column(name, justify=justify)
    for name in ("mismatches", "ulps", "seconds", "us"):
        table.add_column(name, justify="right")
    for i, (case, verdict) in enumerate(zip(cases, verdicts)):
        colour = "green" if verdict.status == "pass" else "red"
        mismatches, ulps = ("-" if x is None else str(x) for x in (verdict.mismatches, verdict.ulps))
        us = f"{verdict.us:.2f} ± {verdict.times.err / 1e3:.2f}" if verdict.times else "-"
        result, seconds = f"[{colour}]{verdict.status}[/]", f"{verdict.seconds:.1f}"
        table.add_row(str(i), shapes(case.args), result, mismatches, ulps, seconds, us)
    console.print(table)
    for i, verdict in enumerate(verdicts):
        if verdict.reason:
            console.print(f"[red]case {i}[/]: {escape(verdict.reason)}", highlight=False, soft_wrap=True)
    if mean := geomean_us(verdicts):
        console.print(f"geometric mean: {mean:.3f} us")


def write_json(path: str, verdicts: list[Verdict], options: Options, replies: list[dict] | None = None) -> None:
    """replies: what was modelled, if times are not measured."""
    mean = modelled.geomean_us(replies) if replies else geomean_us(verdicts)
    rows = []
    for i, verdict in enumerate(verdicts):
        row = {"spec": verdict.spec, "status": verdict.status, "reason": verdict.reason}
        row |= {
            "mismatches": verdict.mismatches,
            "ulps": verdict.ulps,
            "seconds": round(verdict.seconds, 3),
            "us": verdict.us,
        }
        if replies:
            row |= {key: replies[i].get(key) for key in ("us", "us_interval")} | {"modelled": replies[i]}
        rows.append(row)
    modelled_any = replies and any("us" in reply for reply in replies)
    result = {
        "cases": rows,
        "geomean_us": mean,
        "kind": "modelled" if modelled_any else "measured" if mean else "none",
        "device": describe_device(options.device),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torch", "nvidia-cutlass-dsl")},
        "submission": options.submission,
        "secret": options.secret,
        "isolation": sorted({verdict.isolation for verdict in verdicts} - {None}),
    }
    if modelled_any:
        result["profile"] = modelled.Request.profile
        result["label"] = modelled.label(replies)
        result["geomean_us_interval"] = modelled.geomean_interval(replies) if mean else None
    dump_json(path, result)


def dump_json(path: str, result: dict) -> None:
    try:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise Failure(f"cannot write the results: {error}") from None
