"""Finds the cases that a command runs, and names them for tables."""

from pathlib import Path

from evaluation import ROOT
from evaluation.commands.show import Failure
from evaluation.upload.check import task_of_file
from reference import DUAL_GEMM, TASKS, task_of
from task import Task, TestCase, parse_case, read_task_yaml


def chosen_cases(
    submission: str, task: str | None, case: int | None, spec, section: str = "benchmarks", tests: str | None = None
) -> list[tuple[int, TestCase]]:
    """Lists (number, case): those of --tests, of --spec or of the task, one or all. Raises Failure."""
    cases = list(enumerate(read_cases(section, tests, spec, task, submission)))
    if case is not None and case >= len(cases):
        raise Failure(f"there is no case {case}: the last is {len(cases) - 1}")
    return cases if case is None else [cases[case]]


def task_cases(task: Task, section: str) -> list[TestCase]:
    """Reads the task's own cases. section: "tests" or "benchmarks"."""
    return read_task_yaml((ROOT / task.file).read_text(), section)


def read_cases(
    section: str, tests: str | None, spec: tuple[str, ...], task: str | None, submission: str
) -> list[TestCase]:
    """Reads the cases of --spec, of --tests, or of a task, which --task or the submission's header names, and checks
    their sizes. Raises Failure."""
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


def mnk(args: dict) -> tuple:
    return args["m"], args["n"], args["k"]


def shapes(args: dict) -> str:
    """Writes sizes, equal ones of groups once: `g 2, m 96+128, n 128+256, k 512`, or `m 256, n 512, k 256, l 1`."""
    if task_of(args) is DUAL_GEMM:
        return ", ".join(f"{key} {args[key]}" for key in "mnkl")
    sizes = {key: args[key][:1] if len(set(args[key])) == 1 else args[key] for key in "mnk"}
    return f"g {args['g']}, " + ", ".join(f"{key} {'+'.join(map(str, values))}" for key, values in sizes.items())
