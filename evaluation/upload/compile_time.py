"""Measures how long a submission takes before its first launch.

`python -m evaluation.upload.compile_time FILE RESULTS CASES...` imports the file, then calls custom_kernel once per
case, in a process of its own. Launches are skipped unless there is a B200, so what is left is compiling and preparing:
for all Configs among which the submission would choose there. RESULTS gets a line of JSON [what, seconds] or [what,
error] each.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from emulated_gpu.serve.host.beside import beside
from evaluation import ROOT
from evaluation.upload.findings import Finding

LIMITS = {"import": 120, "tests": 180, "benchmarks": 180}  # seconds, for all cases of a section together


def clock() -> float:
    """Return seconds that pass, but for those in which this thread waits for a core that others use."""
    with contextlib.suppress(OSError):  # of a kernel that does not count them
        return time.perf_counter() - int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.perf_counter()


def measure(submission: str, results: str, cases: list[str]) -> None:
    """Runs as the measuring process's main function. cases: "tests CASE" or "benchmarks CASE" each."""
    begin = clock()
    import emulated_gpu
    import utils
    from emulated_gpu.serve.torch_device.install import install
    from evaluation.judge.configs import each_other
    from evaluation.judge.loading import explain, load_submission
    from reference import task_of
    from task import parse_case

    emulated = utils.get_device().type == "cpu"
    if emulated:
        install()  # before the submission imports the DSL
    with open(results, "w", buffering=1) as file:

        def timed(what, begin, function, *arguments):
            try:
                value = function(*arguments)
            except BaseException as error:
                print(json.dumps([what, explain(error)]), file=file)
                raise SystemExit(1) from error
            print(json.dumps([what, clock() - begin]), file=file)
            return value

        kernel = timed("import", begin, load_submission, submission)  # with torch and the DSL
        for case in cases:
            section, _, spec = case.partition(" ")
            args = parse_case(spec).args
            data = task_of(args).generate_input(**args)  # on `cuda`, emulated or not
            with emulated_gpu.session(checks=False) as session:
                session.recorded = []  # launches are noted there instead of run

                def prepare(data=data, args=args):
                    kernel(data)
                    for _ in each_other(sys.modules["submission"], args) if emulated else ():
                        kernel(data)

                timed(section, clock(), prepare)


def check_compile_time(
    submission: Path, cases: list[str], limits: dict = LIMITS, done: Callable[[int], None] = lambda index: None
) -> tuple[list[Finding], dict]:
    """Measures on this machine, in a process of its own: findings, and seconds by section. cases: as of measure.

    done: is told the index of each case that is compiled, while others are being compiled.
    """
    spent = dict.fromkeys(limits, 0.0)
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        command = [sys.executable, "-u", "-m", "evaluation.upload.compile_time", str(submission.resolve())]
        command += [str(results), *cases]

        def tell(over: threading.Event) -> None:
            told = 0
            while not over.wait(0.2):
                come = results.read_text().count("\n") - 1 if results.exists() else 0  # the first is the import
                for index in range(told, come):
                    done(index)
                told = max(told, come)

        try:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            with beside(tell):
                output = subprocess.run(command, cwd=ROOT, timeout=sum(limits.values()), **pipes).stdout
        except subprocess.TimeoutExpired:
            message = f"not done after {sum(limits.values()):g} s on this machine, killed"
            return [Finding(0, 0, "compile-time", "error", message)], spent
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    findings = []
    for what, value in lines:
        if isinstance(value, str):
            line = value.rpartition("(line ")[2].partition(" ")[0]
            findings.append(Finding(int(line) if line.isdigit() else 0, 0, "compile", "error", f"{what}: {value}"))
        else:
            spent[what] += value
    if not findings and len(lines) != len(cases) + 1:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
        findings.append(Finding(0, 0, "compile", "error", f"the process ended early: {last[:200]}"))
    for section, limit in limits.items():
        if spent[section] > limit / 2:
            severity = "error" if spent[section] > limit else "warning"
            message = f"{section}: {spent[section]:.1f} s on this machine, the grader allows {limit:g} s in all"
            findings.append(Finding(0, 0, "compile-time", severity, message))
    return findings, spent


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2], sys.argv[3:])
