"""Ctrl-C and SIGTERM end a command at once: one line, exit code 130 or 143, no process and no temporary file left."""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile

from evaluation import isolation


def install() -> None:
    """For a command's whole process; to be called first. All temporary files from now on lie in a folder that goes."""
    isolation.adopt_orphans()
    folder = tempfile.mkdtemp(prefix="group-gemm-")
    os.chmod(folder, 0o711)  # the submission's process, another user, has a folder inside
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def end(number, frame):
        for ignored in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        with contextlib.suppress(BaseException):
            isolation.kill_children()
            shutil.rmtree(folder, ignore_errors=True)
            shown = "\x1b[?25h" if sys.stdout.isatty() else ""  # a progress bar hides the cursor
            os.write(2, f"{shown}\ninterrupted by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
