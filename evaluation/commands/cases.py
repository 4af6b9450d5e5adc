"""Finds the cases that a command runs, and names them for tables."""

import os
from collections.abc import Callable
from pathlib import Path

from evaluation import ROOT
from evaluation.commands.show import Failure
from evaluation.judge.given_task import GivenTask
from evaluation.judge.own_task import OwnTask
from evaluation.judge.task import Task
from evaluation.tasks.folder import parse_spec
from evaluation.tasks.others import OthersTask
from evaluation.tasks.read import read
from evaluation.upload.check import TASK_OF, leaderboard_of, task_of_file
from reference import TASKS, task_of
from task import TestCase, parse_case, read_task_yaml


def chosen_task(
    task_dir: str | None, submission: str, task: str | None, case: int | None, spec, section: str = "benchmarks",
    tests: str | None = None,
) -> tuple[Task, list[tuple[int, TestCase]]]:  # fmt: skip
    """Finds the task, a folder's where `task_dir` names one, and lists (number, case). Raises Failure."""
    if not task_dir:
        return OwnTask(), chosen_cases(submission, task, case, spec, section, tests)
    folder = read_folder(task_dir, submission, task)
    return GivenTask(folder), folder_cases(folder, section, case, spec, tests)


def chosen_cases(
    submission: str, task: str | None, case: int | None, spec, section: str = "benchmarks", tests: str | None = None
) -> list[tuple[int, TestCase]]:
    """Lists (number, case): those of --tests, of --spec or of the task, one or all. Raises Failure."""
    return numbered(read_cases(section, tests, spec, task, submission), case)


def numbered(cases: list[TestCase], case: int | None) -> list[tuple[int, TestCase]]:
    """Numbers cases, and picks one if `case` is its number. Raises Failure."""
    if case is not None and case >= len(cases):
        raise Failure(f"there is no case {case}: the last is {len(cases) - 1}")
    return list(enumerate(cases)) if case is None else [(case, cases[case])]


def read_folder(path: str, submission: str, task: str | None) -> OthersTask:
    """Reads the task of --task-dir, which goes with a submission that is named. Raises Failure."""
    if task:
        raise Failure("--task and --task-dir exclude each other")
    try:
        folder = read(path)
    except ValueError as error:
        raise Failure(str(error)) from None
    if os.path.abspath(submission) == str(ROOT / "submission.py"):
        raise Failure("--task-dir needs --submission FILE: this repository's is of another task")
    return folder


def folder_cases(
    folder: OthersTask, section: str, case: int | None, spec, tests: str | None = None
) -> list[tuple[int, TestCase]]:
    """Lists (number, case) of a task's folder: those of --tests, of --spec or of its task.yml, one or all. Raises
    Failure."""
    cases = given_cases(tests, spec, parse_spec) or folder.cases(section)
    if not cases:
        raise Failure(f"{folder.path} has no {section}: give --spec or --tests")
    return numbered(cases, case)


def given_cases(tests: str | None, spec, parse: Callable[[str], TestCase]) -> list[TestCase]:
    """Reads the cases of --spec or --tests, none where neither is given. Raises Failure."""
    if tests and spec:
        raise Failure("--tests and --spec exclude each other")
    try:
        lines = [line.partition("#")[0].strip() for line in Path(tests).read_text().splitlines()] if tests else []
        cases = [parse(line) for line in spec or filter(None, lines)]
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read the cases: {error}") from None
    except ValueError as error:
        raise Failure(str(error)) from None
    if tests and not cases:
        raise Failure(f"no cases in {tests}")
    return cases


def task_cases(task, section: str) -> list[TestCase]:
    """Reads the cases of a task of reference.TASKS. section: "tests" or "benchmarks"."""
    return read_task_yaml((ROOT / task.file).read_text(), section)


def read_cases(
    section: str, tests: str | None, spec: tuple[str, ...], task: str | None, submission: str
) -> list[TestCase]:
    """Reads the cases of --spec, of --tests, or of a task, which --task or the submission's header names, and checks
    their sizes. Raises Failure."""
    named = leaderboard_of(Path(submission))
    if not task and named and named not in TASK_OF:  # nvfp4_gemm's sizes would pass for the dual GEMM's
        raise Failure(f"the submission's header names {named}, no task here: see --task-dir, or give --task")
    cases = given_cases(tests, spec, parse_case)
    cases = cases or task_cases(TASKS[task] if task else task_of_file(Path(submission)), section)
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
