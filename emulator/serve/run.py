"""Run a Python script, unchanged, as on a B200 or an H200: `python -m emulator run SCRIPT.py [ARGS...]`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from ..device import DEVICE, Session
from ..machine.schedule import Schedule
from . import cute_dsl
from . import installs as installing

# For the processes that the script starts
SCHEDULE, CHECKS, MACHINE = "EMULATOR_SCHEDULE", "EMULATOR_CHECKS", "EMULATOR_MACHINE"


class _Loud(list):
    """Findings, shown when they are made: the script, or the process it started, may swallow the error."""

    def append(self, text: str) -> None:
        super().append(text)
        print(f"emulator: {text}", file=sys.stderr, flush=True)


def configure() -> None:
    """Set what CuTe DSL reads when it is imported, for the machine that the environment asks for."""
    cute_dsl.choose(os.environ.get(MACHINE, "b200"))
    cute_dsl.configure()


def install() -> None:
    """Serve the cuda device in this process: machine, schedule and checks are those that the environment asks for."""
    configure()
    from . import torch_cuda

    installing.forbid()
    torch_cuda.install()
    DEVICE.session = Session(
        Schedule(int(os.environ.get(SCHEDULE, "0"))), os.environ.get(CHECKS, "1") == "1", findings=_Loud()
    )


def run(
    script: str,
    args: list[str],
    schedule: int = 0,
    checks: bool = True,
    installs: bool = False,
    machine: str = "b200",
) -> int:
    """Run the script as `python script args` would; returns its exit status, or 1 if a launch failed here.

    installs: whether it may install packages; what else it may do, it may do with the user's rights. machine: a key of
    chip.CHIPS.
    """
    here = Path(__file__).resolve().parent
    root = str(here.parents[1])  # where emulator/ is
    path = [str(here / "startup"), root, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
    os.environ[SCHEDULE], os.environ[CHECKS], os.environ[MACHINE] = str(schedule), str(int(checks)), machine
    os.environ[installing.ALLOWED] = str(int(installs))
    install()
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.path.append(root)  # which was there as the current folder, or not at all
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        if e.code is not None and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
    return status or int(bool(DEVICE.session.findings))
