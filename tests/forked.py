"""`python -m MODULE ..` or `python -c CODE ..` in a process that has imported torch and the emulator already, which
takes two seconds.

One process for each worker of pytest imports them, and forks for each command. What a process finds at its start is
the business of tests that start one.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def server() -> subprocess.Popen:
    """The process that forks."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def emulated_gpu(*arguments: object, cwd: str | Path = ROOT) -> subprocess.CompletedProcess:
    """Run `python -m emulated_gpu` with these arguments, as `module` does."""
    return module("emulated_gpu", *arguments, cwd=cwd)


def module(name: str, *arguments: object, cwd: str | Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    """Run `python -m NAME` with these arguments, or `python -c` with code and arguments, and return what came out.

    variables: what its environment has beside this process's.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/out", f"{folder}/err"]
        request = [[name, *map(str, arguments)], str(cwd), os.environ | variables, files]
        print(json.dumps(request), file=server().stdin, flush=True)
        status = int(server().stdout.readline())
        return subprocess.CompletedProcess(arguments, status, *(Path(file).read_text() for file in files))


def become(arguments: list[str], cwd: str, environment: dict[str, str], files: list[str]) -> None:
    """In a child: be `python` with these arguments, a module's name or `-c` first, its output in these files."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1], sys.argv = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))], arguments
    if arguments[0] == "-c":
        exec(arguments.pop(1), vars(sys.modules["__main__"]))
    else:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # this file's folder has another emulated_gpu
    import torch  # noqa: F401, I001

    import emulated_gpu.serve.run  # noqa: F401

    gc.freeze()  # children look through none of it for garbage, and so copy none of it
    request = sys.stdin.readline()
    while request and (child := os.fork()):
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        request = sys.stdin.readline()
    if request:
        become(*json.loads(request))
