"""Runs the grader's side of eval.py as the bot does: task files in a folder, a pipe in POPCORN_FD, `key: value` lines.

https://github.com/gpu-mode/kernelbot/blob/4bdd839ad76eaac0cdab986d30f8d77f989a289b/src/libkernelbot/run_eval.py#L301
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from evaluation import ROOT

FILES = ("eval.py", "reference.py", "task.py", "utils.py")
TIMEOUTS = {
    "compile": 120,
    "test": 180,
    "benchmark": 180,
    "leaderboard": 300,
    "profile": 180,
}  # seconds: task.yml, consts
LONGEST = 2**20  # characters of a line of a report, which the submission may have written


@contextlib.contextmanager
def bot_folder(submission: str) -> Iterator[Path]:
    """Makes a folder with the task's files and this text as submission.py, for the block."""
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        folder = Path(name)
        for file in FILES:
            shutil.copy(ROOT / file, folder)
        (folder / "submission.py").write_text(submission)
        yield folder


def call(
    folder: Path, command: list[str], timeout: float, seed: int | None = None, show: bool = True, **environment
) -> tuple[dict, str]:
    """Runs a command as the bot does: (what it reported, "" or why it is no success).

    The process's own output goes where this one's goes. timeout: seconds. With a seed the process gets POPCORN_SEED, as
    for the bot's secret runs. show: whether what it reports is printed as it comes.
    """
    read, write = os.pipe()
    # The emulator and the DSL's settings come from the checkout, the task's files from the folder.
    environment |= {"POPCORN_FD": str(write), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    environment |= {} if seed is None else {"POPCORN_SEED": str(seed)}
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, pass_fds=(write,), start_new_session=True
    )
    os.close(write)
    late = threading.Event()

    def kill():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer, result = threading.Timer(timeout, kill), {}
    timer.start()
    try:
        with os.fdopen(read, errors="replace") as pipe:
            for line in iter(lambda: pipe.readline(LONGEST), ""):
                key, _, value = line.partition(":")
                result[key.strip()] = value.strip()
                if show and not key.endswith(".report"):
                    print(line, end="", flush=True)
        code = process.wait()
    finally:
        timer.cancel()
    if late.is_set():
        return result, f"killed after {timeout:g} s, the bot's limit"
    if code or result.get("check", "pass") != "pass":
        errors = [value for key, value in result.items() if key.endswith(".error")]
        return result, "; ".join(dict.fromkeys(errors)) or f"exit code {code}"
    return result, ""


def evaluate(
    folder: Path,
    mode: str,
    specs: list[str],
    seed: int | None = None,
    prefix=(),
    timeout: float | None = None,
    show: bool = True,
    **environment,
) -> tuple[dict, str]:
    """Runs `eval.py mode` on these cases; returns what `call` does.

    prefix: a command that runs it, e.g. a profiler. timeout: seconds, the bot's if None.
    """
    cases = folder / f"{mode}.txt"
    cases.write_text("\n".join(specs))
    command = [*prefix, sys.executable, "eval.py", mode, cases.name]
    result, problem = call(folder, command, timeout or TIMEOUTS[mode], seed, show, **environment)
    if not problem and result.get("check") != "pass":
        problem = "eval.py reported no verdict"
    return result, problem
