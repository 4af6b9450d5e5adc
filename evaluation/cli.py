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

import utils
from emulator.model import report, uncertainty
from emulator.model.profile import load
from evaluation import compare as comparison
from evaluation import fp8, modelled, ranking
from evaluation import sweep as sweeping
from evaluation.check import check as check_submission
from evaluation.check import review_available, task_of_file
from evaluation.compile_time import LIMITS
from evaluation.configs import parse_config, parse_grid
from evaluation.judge import Options, Refused, Verdict, geomean_us, judge, work
from evaluation.show import Screen, count
from reference import DUAL_GEMM, TASKS, task_of
from task import Task, TestCase, parse_case, read_task_yaml

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "worklog" / "runs" / "profile"
SWEPT = ROOT / "worklog" / "runs" / "sweep.jsonl"


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
TESTS_OPTION = click.option(
    "--tests", metavar="FILE", help="Cases, one per line, # begins a comment, instead of the task's."
)
CASE_OPTION = click.option("--case", type=click.IntRange(0), help="Number of the one case to run; all by default.")
SPEC_OPTION = click.option("--spec", metavar="CASE", multiple=True, help=f'A case to run: "{EXAMPLE}".')
CASE_OPTIONS = (
    click.option("--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"),
    ANY_TASK_OPTION,
    TESTS_OPTION,
    CASE_OPTION,
    SPEC_OPTION,
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
    """Check the results of the ten test cases: on the emulator those of the group GEMM have to be equal to the exact
    ones, all others within the task's tolerance.

    mismatches: elements, over all calls, that are not the exact result, rounded once. ulps: by how many float16 numbers
    the worst of them is off. `pass` beside both is within the tolerance.
    """
    sys.exit(run("tests", **options))


@cli.command()
@case_options
def benchmark(**options):
    """Check the four benchmark cases and time them: 15 calls back to back, as the grader does.

    Without a B200 the times are modelled, not measured. Minutes for a case.
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
    click.echo(f"{count(errors, 'error')}, {count(len(findings) - errors, 'warning')} in {file}")
    if json_file:
        rows = [{**dataclasses.asdict(f), "link": f.link} for f in findings]
        try:
            Path(json_file).write_text(json.dumps({"findings": rows, "seconds": spent}, indent=1) + "\n")
        except OSError as error:
            raise Failure(f"cannot write the findings: {error}") from None
    sys.exit(1 if errors else 0)


TUNING_OPTIONS = (
    click.option("--submission", default=str(ROOT / "submission.py"), show_default="submission.py", metavar="FILE"),
    ANY_TASK_OPTION,
    CASE_OPTION,
    SPEC_OPTION,
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
    if task in fp8.TASKS:
        refuse_others("profile", task)
        try:
            cases = fp8.cases(task, case, spec)
            sys.exit(fp8.profile(task, cases, out, profile, calls, jobs, timeout, json_file))
        except (ValueError, OSError) as error:
            raise Failure(str(error)) from None
    cases = chosen_cases(submission, task, case, spec)
    folders = [os.path.abspath(os.path.join(out, f"case{number}")) for number, _ in cases]
    requests = [
        modelled.Request(checked(submission), c.args, profile, calls, extrapolate=False, timeline=folder)
        for (_, c), folder in zip(cases, folders)
    ]
    screen = Screen()
    with screen.progress("modelling profiles", [1.0] * len(requests), workers=None) as advance:
        replies = modelled.ask_all(requests, jobs, timeout, lambda index, reply: advance(index))
    for (number, case), reply, folder in zip(cases, replies, folders):
        if "error" in reply:
            screen.line((f"case {number}", "red"), f": {reply['error']}")
            continue
        rows = [[name, f"{100 * share:.1f}"] for name, share in reply["breakdown"]["shares"].items()]
        screen.table(["<share of the steady interval", "%"], rows, f"case {number}: {shapes(case.args)}")
        uses = [line for kernel in reply["kernels"] for line in report.kernel_lines(kernel)]
        for line in (*reply["breakdown"]["facts"], *uses, f"{folder}: timeline.json.gz, overview.png"):
            screen.line(f"  {line}")
    good = [reply for reply in replies if "error" not in reply]
    if not good and all(reply.get("unusable") for reply in replies):
        raise Failure(replies[0]["error"])
    if good:
        screen.line(f"Times are {modelled.label(good)}.")
    if json_file:
        rows = [{"spec": c.spec, "us": None} | reply for (_, c), reply in zip(cases, replies)]
        dump_json(json_file, {"kind": "modelled", "command": "profile", "cases": rows})
    sys.exit(0 if good else 1)


@cli.command()
@tuning_options
@click.option("--config", "configs", multiple=True, metavar="A=1,B=2", help="Entries of Config to change; repeatable.")
@click.option("--grid", metavar="'A=1,2 B=3..5'", help="All combinations of these entries; 3..5 is 3, 4 and 5.")
@click.option(
    "--results", default=str(SWEPT), show_default="worklog/runs/sweep.jsonl", metavar="FILE", help="Where to keep them."
)
@click.option("--resume", is_flag=True, help="Take from --results what an earlier run has timed.")
@click.option("--memory", type=click.FloatRange(1), default=12.0, show_default=True, help="GiB per process.")
def sweep(submission, task, case, spec, profile, jobs, timeout, json_file, configs, grid, results, resume, memory):
    """Judge and time the submission under many configs, as `benchmark` does, and rank them by modelled time.

    Needs `Config` and `CONFIG_MAP` in the submission. Entries that Config refuses, wrong results and races are not
    ranked; then the exit code is 1. Minutes for a config and a case; results are kept as they come.
    """
    try:
        changes = [{}, *map(parse_config, configs), *parse_grid(grid)]
    except ValueError as error:
        raise Failure(str(error)) from None
    if len(changes) == 1:
        raise Failure("nothing to try: give --config or --grid")
    if task in fp8.TASKS:
        refuse_others("sweep", task)
        try:
            cases = fp8.cases(task, case, spec)
            sys.exit(fp8.swept(task, cases, changes, Path(results), resume, profile, jobs, timeout, memory, json_file))
        except (ValueError, OSError) as error:
            raise Failure(str(error)) from None
    numbers, cases = zip(*chosen_cases(submission, task, case, spec))
    options = authors_options(checked(submission), "emulated", profile, jobs, timeout, memory)
    screen = Screen()
    try:
        rows = sweeping.run(screen, [*cases], changes, options, Path(results), resume)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot keep the results: {error}") from None
    sweeping.show(screen, rows, numbers)
    if json_file:
        replies = [outcome.modelled for row in rows for outcome in row if outcome.modelled]
        ranking = [{"change": row[0].change, "geomean_us": sweeping.mean(row)} for row in rows]
        ranking.sort(key=lambda row: row["geomean_us"] or float("inf"))
        result = {"command": "sweep", "kind": "modelled" if replies else "none", "submission": options.submission}
        result |= {"cases": [dataclasses.asdict(outcome) for row in rows for outcome in row], "ranking": ranking}
        dump_json(json_file, result | labelled(replies))
    sys.exit(0 if all(sweeping.mean(row) for row in rows) else 1)


@cli.command()
@click.argument("sides", nargs=2, metavar="A B")
@TASK_OPTION
@TESTS_OPTION
@CASE_OPTION
@SPEC_OPTION
@click.option("--device", type=click.Choice(["auto", "cuda", "emulated"]), default="auto", show_default=True)
@click.option("--profile", default="b200", show_default=True, help="Machine: emulator/model/profiles/NAME.toml.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds per run.")
@click.option("--memory", type=click.FloatRange(1), default=12.0, show_default=True, help="GiB per process, emulated.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results there, too.")
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
        side.submission = checked(side.submission)
    numbers, cases = zip(*chosen_cases(sides[0].submission, task, case, spec, "benchmarks", tests))
    device = choose_device(device)
    options = authors_options(sides[0].submission, device, profile, jobs, timeout, memory, breakdown=True)
    screen = Screen()
    try:
        found = comparison.run(screen, sides, [*cases], options)
    except (ValueError, Refused) as error:
        raise Failure(str(error)) from None
    comparison.show(screen, sides, found, numbers)
    if json_file:
        dump_json(json_file, compared_json(sides, found, options))
    sys.exit(0 if all(of_case.difference_us is not None for of_case in found) else 1)


def compared_json(sides, found: list[comparison.Compared], options: Options) -> dict:
    replies = comparison.replies(found)
    measured = any(verdict.times for of_case in found for verdict in of_case.verdicts)
    result = {"command": "compare", "kind": "modelled" if replies else "measured" if measured else "none"}
    result |= {name: dataclasses.asdict(side) for name, side in zip("ab", sides)}
    rows = []
    for of_case in found:
        row = {"spec": of_case.case.spec}
        for name, verdict in zip("ab", of_case.verdicts):
            row[name] = {"status": verdict.status, "reason": verdict.reason, "us": comparison.time_of(verdict)}
            row[name] |= {"us_interval": comparison.interval_of(verdict), "modelled": verdict.modelled}
        row |= {"difference_us": of_case.difference_us, "error_us": of_case.error_us, "tells": of_case.tells}
        rows.append(row)
    result |= {"cases": rows, "device": describe_device(options.device)}
    return result | labelled(replies) | ({"ranking_error": ranking.error()} if replies else {})


def authors_options(submission, device: str, profile, jobs: int, timeout: float, memory: float, **more) -> Options:
    """Of the commands for whoever writes a submission: `benchmark` without calls at other sizes."""
    calls = {"timed": True, "calls": 1, "extra": False, "jobs": 1 if device == "cuda" else jobs}
    try:
        load(profile)
    except (OSError, ValueError) as error:
        raise Failure(str(error)) from None
    return Options(submission, device, profile=profile, timeout=timeout, memory=memory, **calls, **more)


def labelled(replies: list[dict]) -> dict:
    """What modelled times have to be read with."""
    return {"profile": replies[0]["profile"], "label": modelled.label(replies)} if replies else {}


def checked(submission: str) -> str:
    if not os.path.isfile(submission):
        raise Failure(f"there is no submission {submission}")
    return os.path.abspath(submission)


def chosen_cases(
    submission: str, task: str | None, case: int | None, spec, section: str = "benchmarks", tests: str | None = None
) -> list[tuple[int, TestCase]]:
    """(number, case): those of --tests, of --spec or of the task, one or all."""
    cases = list(enumerate(read_cases(section, tests, spec, task, submission)))
    if case is not None and case >= len(cases):
        raise Failure(f"there is no case {case}: the last is {len(cases) - 1}")
    return cases if case is None else [cases[case]]


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
            lines = [line.partition("#")[0].strip() for line in Path(tests).read_text().splitlines()]
            cases = [parse_case(line) for line in lines if line]
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


def run(
    section, submission, task, tests, case, spec, device, json_file, schedules, jobs, timeout, memory, secret
) -> int:
    """Exit code: 0 only if every case ran and passed."""
    if task in fp8.TASKS:
        refuse_others(section, task)
        try:
            options = {"jobs": jobs, "timeout": timeout, "memory": memory}
            return fp8.run(task, section, device, schedules, json_file, case, spec, **options)
        except (ValueError, OSError) as error:
            raise Failure(str(error)) from None
    numbers, cases = zip(*chosen_cases(submission, task, case, spec, section, tests))
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
    screen = Screen()
    weights, workers = [work(case, timed) for case in cases], None if device == "cuda" else options.jobs
    with screen.progress(f"{section} on {describe_device(device)}", weights, workers=workers) as advance:
        verdicts = judge([*cases], options, on_verdict=lambda index, verdict: advance(index))
    print_table(screen, numbers, cases, verdicts, timed)
    passed = all(verdict.status == "pass" for verdict in verdicts)
    replies = None
    if timed and device != "cuda":
        replies = [verdict.modelled or {"error": verdict.reason} for verdict in verdicts]
        show_modelled(screen, numbers, cases, replies)
    if held := {verdict.isolation for verdict in verdicts} - {None}:
        screen.line(f"the submission's process: {'; '.join(sorted(held))}")
    if passed:
        screen.line((f"{'all ' if len(cases) > 1 else ''}{count(len(cases), 'case')} passed", "green"))
    else:
        failed = sum(verdict.status != "pass" for verdict in verdicts)
        again = f" (repeat with --secret {options.secret})"
        screen.line((f"{failed} of {count(len(cases), 'case')} failed", "red"), again)
    if json_file:
        write_json(json_file, section, verdicts, options, replies)
    return 0 if passed and not (replies and any("error" in reply for reply in replies)) else 1


def refuse_others(section: str, task: str) -> None:
    """Failure if options were given that the command does not take for this one of fp8.TASKS."""
    given = click.get_current_context()
    for name in given.params:
        if given.get_parameter_source(name).name != "DEFAULT" and name not in fp8.TAKES[section]:
            raise Failure(f"--task {task} does not take --{name.removesuffix('_file').replace('_', '-')} here")


def show_modelled(screen: Screen, numbers, cases, replies: list[dict]) -> None:
    """Shows the modelled times of the cases, or why there is none; a reply of `modelled` for each case."""
    good = [reply for reply in replies if "error" not in reply]
    if good:
        limits = {}  # (M, N, K) -> speed of light
        for task in TASKS.values():
            limits |= zip(
                [mnk(case.args) for case in task_cases(task, "benchmarks")], modelled.SPEED_OF_LIGHT[task.name]
            )
        columns = ("case", "us", "it may be", "calls simulated", "speed of light", "% of it")
        rows = []
        for number, case, reply in zip(numbers, cases, replies):
            limit, public = limits.get(mnk(case.args)), uncertainty.best_public(case.args)
            if "error" not in reply:
                share = f"{100 * limit / reply['us']:.0f}" if limit else "-"
                simulated = f"{reply['simulated']} of {reply['calls']}"
                low, high = reply["us_interval"]
                other = f"{public['modelled_us']:.2f}, {public['kernel']}" if public else "-"
                between = f"{low:.2f} to {high:.2f}"
                rows.append([str(number), f"{reply['us']:.2f}", between, simulated, str(limit or "-"), share, other])
        screen.table([*columns, "<best public kernel, modelled"], rows, f"us per call, {modelled.label(good)}")
    for number, reply in zip(numbers, replies):
        if "error" in reply:
            screen.line((f"case {number} not timed", "red"), f": {reply['error']}")
    if mean := modelled.geomean_us(replies):
        low, high = modelled.geomean_interval(replies)
        screen.line(f"geometric mean: {mean:.3f} us (modelled; it may be {low:.2f} to {high:.2f})")
        screen.line(uncertainty.BASIS)


def mnk(args: dict) -> tuple:
    return args["m"], args["n"], args["k"]


def shapes(args: dict) -> str:
    """Sizes, equal ones of groups written once: `g 2, m 96+128, n 128+256, k 512`, or `m 256, n 512, k 256, l 1`."""
    if task_of(args) is DUAL_GEMM:
        return ", ".join(f"{key} {args[key]}" for key in "mnkl")
    sizes = {key: args[key][:1] if len(set(args[key])) == 1 else args[key] for key in "mnk"}
    return f"g {args['g']}, " + ", ".join(f"{key} {'+'.join(map(str, values))}" for key, values in sizes.items())


def print_table(screen: Screen, numbers, cases, verdicts: list[Verdict], timed: bool) -> None:
    """timed: with the times that were measured."""
    timed = timed and any(verdict.times for verdict in verdicts)
    rows = []
    for number, case, verdict in zip(numbers, cases, verdicts):
        colour = "green" if verdict.status == "pass" else "red"
        mismatches, ulps = ("-" if x is None else str(x) for x in (verdict.mismatches, verdict.ulps))
        row = [str(number), shapes(case.args), (verdict.status, colour), mismatches, ulps, f"{verdict.seconds:.1f}"]
        if timed:
            row.append(f"{verdict.us:.2f} ± {verdict.times.err / 1e3:.2f}" if verdict.times else "-")
        rows.append(row)
    columns = ["case", "<shapes", "<result", "mismatches", "ulps", "seconds", *(["us"] if timed else [])]
    screen.table(columns, rows)
    for number, verdict in zip(numbers, verdicts):
        if verdict.reason:
            screen.line((f"case {number}", "red"), f": {verdict.reason}")
    if any(verdict.ulps for verdict in verdicts):
        screen.line(
            "mismatches: not the exact result, rounded once; ulps: the worst of them; pass: within the tolerance"
        )
    if mean := geomean_us(verdicts):
        screen.line(f"geometric mean: {mean:.3f} us")


def write_json(
    path: str, section: str, verdicts: list[Verdict], options: Options, replies: list[dict] | None = None
) -> None:
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
        "command": section.removesuffix("s"),
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
        result |= labelled([reply for reply in replies if "error" not in reply])
        result["geomean_us_interval"] = modelled.geomean_interval(replies) if mean else None
    dump_json(path, result)


def dump_json(path: str, result: dict) -> None:
    try:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise Failure(f"cannot write the results: {error}") from None
