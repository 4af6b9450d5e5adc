"""Does `python eval.py validate`: runs a submission inside the mini-training that a task's folder names.

The program is the author's, and is run as the grader runs it: with the submission in its own process, its configuration
in KERNELBOT_VALIDATION_CONFIG, and a line of JSON as its last output. Nothing is kept from it, and nothing is judged.
https://github.com/gpu-mode/kernelbot/pull/518
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from evaluation import ROOT
from evaluation.commands.devices import choose_device, describe_device
from evaluation.commands.show import Failure, Screen, dump_json
from evaluation.judge.verdict import legible
from evaluation.tasks.folder import TaskFolder

OF_TIME = "speedup", "wall", "_us"  # parts of the names of what this machine's clock has measured
CONFIG = "KERNELBOT_VALIDATION_CONFIG"


def validate(screen: Screen, folder: TaskFolder, submission: str, timeout: float, json_file: str | None) -> int:
    """Runs the program of a folder and shows what it says: the exit code, 0 if all of its shapes have passed. Raises
    Failure."""
    if folder.validation is None:
        raise Failure(f"{folder.path}/task.yml names no validation with a version and a script")
    device = choose_device("auto", any_gpu=True)
    screen.line(f"validation {folder.validation['version']} of {folder.name} on {describe_device(device)}")
    said, code = of_program(folder, submission, device, timeout)
    emulated = device != "cuda"
    for number, row in enumerate(said.get("results") or []):
        shown = {key: value for key, value in row.items() if not (emulated and any(part in key for part in OF_TIME))}
        screen.line(f"{number}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))
    if why := said.get("failure_reason"):
        screen.line(("failed", "red"), f": {legible(str(why))}")
    if emulated:
        screen.line("its times are those of this CPU: what it says of speed, and of passing by speed, is void")
    passed, total = said.get("passed_shapes"), said.get("total_shapes")
    if None in (passed, total):
        raise Failure(f"{folder.validation['script']} counts nothing: its JSON has no passed_shapes and total_shapes")
    screen.line(f"{passed} of {total} shapes validated, by its own count")
    if json_file:
        dump_json(json_file, {"command": "validate", "device": describe_device(device), "validation": said})
    return 0 if code == 0 and passed == total and total else 1


def of_program(folder: TaskFolder, submission: str, device: str, timeout: float) -> tuple[dict, int]:
    """Runs the program: what its last line says, and its exit code. Raises Failure."""
    with tempfile.TemporaryDirectory(prefix="validation-") as name:
        script = Path((folder.validation or {})["script"])
        for module, path in (folder.modules | {"submission": submission, script.stem: str(script)}).items():
            shutil.copy(path, Path(name, f"{module}.py"))
        how = [] if device == "cuda" else ["-m", "emulated_gpu", "run"]
        around = {CONFIG: json.dumps(folder.validation), "PYTHONPATH": os.pathsep.join([name, str(ROOT)])}
        try:
            done = subprocess.run(
                [sys.executable, *how, script.name], cwd=name, env=os.environ | around, capture_output=True, text=True,
                timeout=timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"{script.name} was not done within {timeout:g} s (--timeout)") from None
    for line in reversed(done.stdout.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            return said, done.returncode
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
    raise Failure(f"{script.name} has written no line of JSON; its last was: {legible(last[0])[:300]}")
