"""Temporary folders go with the processes that use them."""

import os
import signal
import subprocess
import sys

from emulated_gpu import scratch

MAKES_ONE = "from emulated_gpu import scratch; print(scratch.folder(), flush=True); "


def started(folder, rest):
    command = [sys.executable, "-c", MAKES_ONE + rest]
    env = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_s_folder_goes_when_nothing_that_it_forked_lives(tmp_path, monkeypatch):
    exits = started(tmp_path, "")
    exits.communicate()
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(scratch, "YOUNG_S", -1.0)
    killed = started(tmp_path, "import os; os.fork() and os.kill(os.getpid(), 9); input(); os._exit(0)")
    folder = killed.stdout.readline().strip()
    assert killed.wait() == -signal.SIGKILL
    scratch.sweep(tmp_path)
    assert os.path.isdir(folder)  # its child may still use it
    killed.communicate("\n")  # the child ends
    scratch.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_just_made_stays(tmp_path):
    made = tmp_path / f"{scratch.PREFIX}x"
    made.mkdir()
    scratch.sweep(tmp_path)
    assert made.is_dir()


def test_what_long_runs_keep_without_holding_it_stays(tmp_path, monkeypatch):
    """A run of more than a minute has lost its findings to another one that began."""
    monkeypatch.setattr(scratch, "YOUNG_S", -1.0)
    kept = [tmp_path / f"emulated-gpu-{what}-x" for what in ("run", "profile", "pytest")]
    for folder in kept:
        folder.mkdir()
    scratch.sweep(tmp_path)
    assert all(folder.is_dir() for folder in kept)
