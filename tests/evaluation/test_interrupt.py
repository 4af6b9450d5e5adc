"""Ctrl-C and SIGTERM: one line, exit code 130 or 143, nothing left, within a second, whenever they come."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from evaluation import ROOT
from evaluation.commands import interrupt
from tests.thorough import all_but

SUBMISSION = """
import os, time, tempfile
tempfile.mkdtemp(prefix="left-behind-")
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
def custom_kernel(data):
    open(os.path.join(tempfile.gettempdir(), "MARK"), "w")  # its own folder: others are denied
    time.sleep(60)
"""


def processes() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace")
            except OSError:
                pass
    return found


@pytest.mark.parametrize("number, code", all_but([(signal.SIGINT, 130)], [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
@pytest.mark.parametrize("when", all_but(("called",), [0.6, 2.0, "called"]))
def test_nothing_is_left(number, code, when, tmp_path):
    mark = f"called-{os.getpid()}"
    submission = tmp_path / "submission.py"
    submission.write_text(SUBMISSION.replace("MARK", mark))
    temporary = tempfile.mkdtemp()
    os.chmod(temporary, 0o755)
    command = [sys.executable, "eval.py", "test", "--submission", str(submission), "--jobs", "1"]
    environment = os.environ | {"TMPDIR": temporary, "THIS_TEST": mark}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + (60 if when == "called" else when)
    while time.monotonic() < deadline and not (when == "called" and any(Path(temporary).rglob(mark))):
        time.sleep(0.05)
    begin = time.monotonic()
    process.send_signal(number)
    errors = process.communicate(timeout=20)[1].decode()
    spent = time.monotonic() - begin
    assert process.returncode == code, errors
    assert errors.strip().splitlines()[-1] == f"interrupted by {number.name}" and "Traceback" not in errors
    assert spent < 1.5  # a second on a machine that does nothing else
    assert os.listdir(temporary) == []
    os.rmdir(temporary)
    assert not [pid for pid, environ in processes().items() if f"THIS_TEST={mark}" in environ]


SHARING = """
import subprocess, sys, tempfile
from evaluation.commands import interrupt
from evaluation.judge import jobs
interrupt.install()

def work(worker, job):
    with tempfile.TemporaryDirectory() as folder:
        print("started", flush=True)
        subprocess.run([sys.executable, "-c", "while True: pass"])

with interrupt.showing(lambda: print("what was done", flush=True)):
    jobs.share(range(1_000_000), range(4), work, lambda job, result: None)
"""


def test_threads_that_start_processes_leave_none_and_no_traceback(tmp_path):
    """Each that is killed would be followed by that of the thread's next job; and the folder of its files is gone."""
    mark = f"sharing-{os.getpid()}-{tmp_path.name}"
    command, environment = [sys.executable, "-c", SHARING], os.environ | {"PYTHONPATH": str(ROOT), "THIS_TEST": mark}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    try:
        output, errors = (text.decode() for text in process.communicate(timeout=10))
    finally:
        left = [pid for pid, environ in processes().items() if f"THIS_TEST={mark}" in environ]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert (process.returncode, errors.strip(), left) == (130, "interrupted by SIGINT", [])
    assert output.endswith("what was done\n")  # how commands show and write their cases: test_command_line.py


SLOW = """
import os, signal, time
from evaluation.commands import interrupt
interrupt.install()

def show():
    print("showing", flush=True)
    time.sleep(100)

with interrupt.showing(show):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_another_ctrl_c_ends_what_is_shown_slowly():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"showing\n"
    process.send_signal(signal.SIGINT)  # as a launcher passes on what the terminal has sent to both: it counts once
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(interrupt.PATIENCE_S + 0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (130, b"\ninterrupted by SIGINT\n")
