"""What the stand-ins call in processes that are not the emulator's: a program's, and those that a script starts."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

from ..device import DEVICE
from ..errors import EmulatorError
from ..formats import elf
from . import run
from .cuda_cpp import executables, static_runtime
from .cute import cute_dsl

at_end: list[Callable[[], None]] = []  # what is to be done when the program has ended


def lead_runtime() -> None:
    """Before the program's own code: lead its runtime here. What it starts finds the environment as it was."""
    for name in executables.CHANGED:
        os.environ[name] = os.environ.pop(executables.BEFORE + name)
        if not os.environ[name]:
            del os.environ[name]
    options = run.Options.of_environment()
    cute_dsl.choose(options.machine)
    run.start(options)
    if asked := os.environ.pop(executables.PROFILE, ""):
        from .profile import in_program

        at_end.append(in_program(asked))
    static_runtime.load_driver()
    parts = static_runtime.parts_of(os.environ.pop(executables.PROGRAM))
    static_runtime.lead(elf.functions(parts), static_runtime.base_of(ctypes.CDLL(None)))


def join() -> None:
    """In a process that a script has started, when it loads libcuda: be its device."""
    run.start(run.Options.of_environment())
    static_runtime.load_driver()
    atexit.register(end)


def end() -> None:
    """When the program has ended: what it has launched runs to its end."""
    with contextlib.suppress(EmulatorError):  # which has been shown, and is in the report
        DEVICE.synchronize_all()
    for call in at_end:
        call()
    sys.stdout.flush()
