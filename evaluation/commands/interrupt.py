"""Ends a command at once on Ctrl-C and SIGTERM: what was done is shown, then one line; exit code 130 or 143, no process
and no temporary file left."""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from evaluation.judge import isolation, jobs

PATIENCE_S = 1.0  # for threads that share jobs to see that nothing works any more


_shows: list[Callable[[], None]] = []


@contextlib.contextmanager
def showing(show: Callable[[], None]):
    """Has an end of this block by a signal call show(), in the main thread, for what has been done until then."""
    _shows.append(show)
    try:
        yield
    finally:
        _shows.remove(show)


def install() -> None:
    """Prepares a command's process for that; to be called first. All later temporary files lie in a folder that
    goes."""
    isolation.adopt_orphans()
    folder = tempfile.mkdtemp(prefix="group-gemm-")
    os.chmod(folder, 0o711)  # the submission's process, another user, has a folder inside
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def end(number, frame):
        began = time.monotonic()

        def again(number, frame):  # what is shown may take long. At once comes what some launchers pass on
            if time.monotonic() - began > PATIENCE_S:
                raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGINT, again)
            for show in _shows:
                with contextlib.suppress(Exception):
                    show()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(BaseException):
            shown = "\x1b[?25h" if sys.stdout.isatty() else ""  # a progress bar hides the cursor
            stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
            for output in (1, 2):  # what other threads say about what is gone is of no interest
                os.dup2(nowhere, output)
            gone = (
                f"{folder}-gone"  # threads start no more of what is killed now: their next jobs, without a folder, fail
            )
            with contextlib.suppress(OSError):  # someone else has removed it
                os.rename(folder, gone)
            patience = time.monotonic() + PATIENCE_S
            while True:
                isolation.kill_children()
                shutil.rmtree(gone, ignore_errors=True)
                if not jobs.shared() or time.monotonic() > patience:
                    break
                time.sleep(0.005)
            isolation.kill_children()
            os.write(stderr, f"{shown}\ninterrupted by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
