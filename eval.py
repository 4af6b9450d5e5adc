"""Checks and times `submission.py`: for the grader when POPCORN_FD is set, else for people (`python eval.py --help`).

The grader's side is this file: `python eval.py test|benchmark|leaderboard|profile CASES` writes `key: value` lines to
the file descriptor POPCORN_FD; https://github.com/gpu-mode/kernelbot/blob/main/src/libkernelbot/run_eval.py reads them.
The command line is in the package `evaluation`.
"""

import base64
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import multiprocessing
import os
import shlex
import sys
import time
from pathlib import Path

# Read from disk, a compiled kernel would hide its compile time; set before the DSL is imported, also in the worker.
os.environ["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"
os.environ["PYTHONUNBUFFERED"] = "1"  # what a worker printed outlives it

if __name__ == "__main__" and not os.getenv("POPCORN_FD"):  # for people
    if importlib.util.find_spec("torch") is None:
        again = f"run `make setup` once, then `.venv/bin/python {shlex.join(sys.argv)}`"
        sys.exit(f"{sys.executable} has no torch: {again}")
    try:
        from evaluation.commands import cli, interrupt

        interrupt.install()
        sys.exit(cli.cli())  # which imports torch, for seconds, only when it knows what to do
    except ModuleNotFoundError as error:  # the grader has this file alone
        if error.name not in ("evaluation", "click", "rich", "yaml"):
            raise
        sys.exit(f"POPCORN_FD is not set, and the command line needs {error.name}: see `make setup`.")

import torch

import utils
from evaluation.judge.statistics import Stats, calculate_stats, precise_enough
from reference import task_of
from task import Task, TestCase, combine_seeds, parse_case

OK, CUDA_FAILED, NO_PIPE, VALIDATION_FAILED, BAD_CASES, TIMED_OUT = 0, 110, 111, 112, 113, 114
BAD_ARGUMENTS = 2
CASE_TIMEOUT_S = 180
NO_TIMES = "times need a B200: this machine has no GPU that runs sm_100a code"


class Report:
    """`key: value` lines to a file descriptor that child processes do not inherit."""

    def __init__(self, fd: int):
        self.file = os.fdopen(fd, "w")
        os.set_inheritable(fd, False)

    def log(self, key: str, value) -> None:
        print(f"{key}: {' '.join(str(value).split())}", file=self.file, flush=True)  # one line, whatever the value


class CaseTimeout(Exception):
    """The worker did not answer in time and was killed."""


class Worker:
    """One spawned process that imports the submission and runs every case; a crash or a hang is an exception here."""

    def __init__(self, emulated: bool):
        self.pool = concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_prepare_worker, initargs=(emulated,)
        )

    def run(self, function, *arguments):
        future = self.pool.submit(function, *arguments)
        try:
            return future.result(CASE_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise CaseTimeout(f"no result within {CASE_TIMEOUT_S} s: killed") from None

    def close(self):
        for process in list((self.pool._processes or {}).values()):
            process.kill()
        self.pool.shutdown(cancel_futures=True)


# ---- in the worker process


def _prepare_worker(emulated: bool) -> None:
    if emulated:
        import emulated_gpu

        emulated_gpu.install()  # before the submission imports the DSL


def _clone(data):
    if isinstance(data, (tuple, list)):
        return type(data)(_clone(item) for item in data)
    return data.clone() if isinstance(data, torch.Tensor) else data


def _call(task: Task, data):
    """custom_kernel on a copy of `data`, on the GPU or on the emulated one, finished when this returns."""
    from submission import custom_kernel

    if utils.get_device().type == "cuda":
        output = custom_kernel(_clone(data))
        torch.cuda.synchronize()
        return output
    import emulated_gpu

    data = task.upload(_clone(data), emulated_gpu.device_tensors)
    with emulated_gpu.session(schedule=0, checks=True) as session:
        output = custom_kernel(data)
    if findings := session.report():
        raise RuntimeError("; ".join(findings))
    return output


def _test(args: dict) -> tuple[bool, str]:
    task = task_of(args)
    data = task.generate_input(**args)
    return task.check_implementation(data, _call(task, data))


def _benchmark(args: dict, recheck: bool, max_repeats: int, max_time_ns: float) -> Stats | str:
    """Stats, or what is wrong with the results."""
    from submission import custom_kernel

    task = task_of(args)
    inputs = [task.generate_input(**{**args, "seed": args["seed"] + 42 * (i + 1)}) for i in range(task.calls)]
    untouched = _clone(inputs)

    def wrong(outputs) -> str:
        for data, output in zip(untouched, outputs):
            good, message = task.check_implementation(data, output)
            if not good:
                return message
        return ""

    message = wrong([_call(task, data) for data in inputs])
    if message:
        return message

    durations = []
    begin = time.perf_counter_ns()
    for _ in range(max_repeats):
        torch.cuda.synchronize()
        outputs = []
        utils.clear_l2_cache_large()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for data in inputs:
            outputs.append(custom_kernel(data))
        end.record()
        torch.cuda.synchronize()
        durations.append(start.elapsed_time(end) / task.calls * 1e6)
        message = wrong(outputs) if recheck else ""
        if message:
            return message
        if precise_enough(durations, time.perf_counter_ns() - begin, max_time_ns):
            break
    return calculate_stats(durations)


def _profile(args: dict) -> str:
    """torch.profiler's table, or nothing under Nsight Compute, which watches the range `custom_kernel` itself."""
    task = task_of(args)
    data = task.generate_input(**args)
    under_ncu = os.getenv("POPCORN_NCU", "0") == "1"
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with contextlib.nullcontext() if under_ncu else torch.profiler.profile(activities=activities) as profile:
        with torch.cuda.nvtx.range("custom_kernel"):
            _call(task, data)
    return "" if under_ncu else profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=20)


# ---- in the evaluator's process


def _verdict(report: Report, passed: bool) -> int:
    report.log("check", "pass" if passed else "fail")
    return OK if passed else VALIDATION_FAILED


def run_tests(report: Report, worker: Worker, cases: list[TestCase]) -> int:
    passed = True
    report.log("test-count", len(cases))
    for i, case in enumerate(cases):
        report.log(f"test.{i}.spec", case.spec)
        try:
            good, message = worker.run(_test, case.args)
        except Exception as error:
            _failed(report, f"test.{i}", error)
            raise
        report.log(f"test.{i}.status", "pass" if good else "fail")
        if message:
            report.log(f"test.{i}.{'message' if good else 'error'}", message)
        passed &= good
    return _verdict(report, passed)


def run_benchmarks(report: Report, worker: Worker, cases: list[TestCase], ranked: bool) -> int:
    """Benchmark mode warms up on the first case; ranked mode on all, rechecks every result and stops at a failure."""
    recheck, max_time_ns = ranked, 30e9 if ranked else 10e9
    for case in cases if ranked else cases[:1]:
        unranked, warm_up, _ = task_of(case.args).repeats
        worker.run(_benchmark, case.args, False, *((warm_up, 5e8) if ranked else (unranked, 10e7)))
    passed = True
    report.log("benchmark-count", len(cases))
    for i, case in enumerate(cases):
        report.log(f"benchmark.{i}.spec", case.spec)
        try:
            repeats = task_of(case.args).repeats[2 if ranked else 0]
            result = worker.run(_benchmark, case.args, recheck, repeats, max_time_ns)
        except Exception as error:
            _failed(report, f"benchmark.{i}", error)
            raise
        if isinstance(result, Stats):
            for key, value in dataclasses.asdict(result).items():
                report.log(f"benchmark.{i}.{key}", value)
            continue
        _failed(report, f"benchmark.{i}", result)
        passed = False
        if ranked:
            break
    return _verdict(report, passed)


def run_profiles(report: Report, worker: Worker, cases: list[TestCase]) -> int:
    report.log("benchmark-count", len(cases))
    for i, case in enumerate(cases):
        report.log(f"benchmark.{i}.spec", case.spec)
        table = worker.run(_profile, case.args)
        report.log(f"benchmark.{i}.report", base64.b64encode(table.encode(), b"+*").decode())
    return _verdict(report, True)


def refuse_times(report: Report, cases: list[TestCase]) -> int:
    """Report a failure, and never a number, for every mode that would time on the emulated device."""
    report.log("benchmark-count", len(cases))
    for i, case in enumerate(cases):
        report.log(f"benchmark.{i}.spec", case.spec)
        _failed(report, f"benchmark.{i}", NO_TIMES)
    return _verdict(report, False)


def _failed(report: Report, key: str, error) -> None:
    report.log(f"{key}.status", "fail")
    report.log(f"{key}.error", f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error)


def read_cases(path: str, secret: int | None) -> list[TestCase]:
    """Raises ValueError or OSError."""
    cases = [parse_case(line) for line in Path(path).read_text().splitlines()]
    for case in cases:
        if secret is not None and "seed" in case.args:
            case.args["seed"] = combine_seeds(case.args["seed"], secret)
    return cases


def grade() -> int:
    """The grader's protocol; returns the exit code."""
    if len(sys.argv) < 3 or sys.argv[1] not in ("test", "benchmark", "leaderboard", "profile"):
        return BAD_ARGUMENTS
    mode = sys.argv[1]
    secret = os.environ.pop("POPCORN_SEED", None)  # the submission's process must not see it
    secret = int(secret) if secret else None
    utils.set_seed(secret or 42)
    try:
        cases = read_cases(sys.argv[2], secret)
    except (OSError, ValueError) as error:
        print(f"Could not read the test file {sys.argv[2]}: {error}", file=sys.stderr)
        return BAD_CASES
    try:
        report = Report(int(os.environ["POPCORN_FD"]))
    except (OSError, ValueError) as error:
        print(f"POPCORN_FD is not a file descriptor that can be written: {error}", file=sys.stderr)
        return NO_PIPE

    emulated = utils.get_device().type == "cpu"
    with report.file:
        if emulated and mode != "test":
            return refuse_times(report, cases)
        worker = Worker(emulated)
        try:
            if mode == "test":
                return run_tests(report, worker, cases)
            if mode == "profile":
                return run_profiles(report, worker, cases)
            return run_benchmarks(report, worker, cases, ranked=mode == "leaderboard")
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            report.log("check", "fail")
            if isinstance(error, CaseTimeout):
                return TIMED_OUT
            return CUDA_FAILED if "CUDA error" in str(error) else VALIDATION_FAILED
        finally:
            worker.close()


if __name__ == "__main__":
    sys.exit(grade())
