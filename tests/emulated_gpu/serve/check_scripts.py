"""Scripts of checks, `check_NAME()` each, which share a process that nothing else may share: emulated-gpu run SCRIPT.

A script ends in `run(globals())`; a test module asks for `names` and `results`.
"""

import hashlib
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from emulated_gpu.device import DEVICE

ROOT = Path(__file__).resolve().parents[3]


def raises(kind: type[Exception], text: str, call: Callable) -> None:
    """The call must raise this, with the text in its message."""
    try:
        call()
    except kind as e:
        assert text in str(e), e
        return
    raise AssertionError(f"{kind.__name__} expected")


def run(names: dict) -> None:
    """Make all checks among these names, and print JSON: the name of each and its traceback, or nothing."""
    made = {}
    for name, check in [(name, x) for name, x in names.items() if name.startswith("check_")]:
        try:
            check()
            made[name] = ""
        except BaseException:
            made[name] = traceback.format_exc()
        DEVICE.session.failure = None  # the next one's launches are its own
    print(json.dumps(made), file=sys.__stdout__)


def names(script: Path) -> list[str]:
    """The checks of a script."""
    return re.findall(r"^def (check_\w+)", script.read_text(), re.MULTILINE)


def results(
    factory, script: Path, *options: str, python: str | Path = sys.executable
) -> tuple[dict[str, str], subprocess.CompletedProcess]:
    """Run a script, once for all workers of pytest: the name of each check -> its traceback, or nothing; and how the
    process ended. factory: tmp_path_factory.
    """
    from tests import forked  # which a script of checks has not in its path
    from tests.once import once

    def done() -> subprocess.CompletedProcess:
        if python == sys.executable:
            return forked.emulated_gpu("run", *options, script)
        command = [str(python), "-m", "emulated_gpu", "run", *options, str(script)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    of = [script.stem, *options, hashlib.sha256(str(python).encode()).hexdigest()[:8]]
    ended = once(factory, "-".join(of), done)
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout), ended
