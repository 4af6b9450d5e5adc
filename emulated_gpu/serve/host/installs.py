"""Scripts may not install packages: two public submissions ran `pip install` when imported and changed the environment.

An audit hook (PEP 578) sees every import and every start of a process, in whatever way the script gets to it. It keeps
an environment from being changed by accident; it is no sandbox.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys

from ...errors import Unsupported

ALLOWED = "EMULATED_GPU_INSTALLS"  # environment: 1 lets installs through
_MODULES = {"pip", "ensurepip", "easy_install"}
_TOOLS = re.compile(r"(pip[\d.]*|uv|uvx|easy_install[\d.-]*|conda|mamba|micromamba|apt|apt-get|dnf|yum|apk)$")
_SHELLS = {"sh", "bash", "dash", "zsh", "ash"}
_WRITES = {"install", "uninstall", "add", "sync", "remove", "update", "upgrade", "download", "wheel", "create"}


def installs(command: list[str]) -> bool:
    """Whether a command, or what it has a shell or another program run, installs packages."""
    words = [os.path.basename(word) for word in command]
    for i, word in enumerate(words):
        if word in _MODULES and words[i - 1 : i] == ["-m"] and (word == "ensurepip" or _WRITES & {*words[i:]}):
            return True
        if _TOOLS.match(word) and _WRITES & {*words[i + 1 :]}:
            return True
    if words and words[0] in _SHELLS and "-c" in words:
        try:
            return any(installs(shlex.split(part)) for part in re.split(r"[;&|\n]+", command[words.index("-c") + 1]))
        except (ValueError, IndexError):
            return False
    return False


def _words(value) -> list[str]:
    value = [value] if isinstance(value, (str, bytes, os.PathLike)) else value or ()
    return [os.fsdecode(word) for word in value]


def _hook(event: str, args: tuple) -> None:
    if event == "import":
        name = args[0]
        if name in _MODULES:
            refuse(f"import {name}")
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        command = _words(args[1]) or _words(args[0])
        if isinstance(args[1], (str, bytes)):
            command = ["sh", "-c", command[0]]
        if installs(command):
            refuse(" ".join(command))
    elif event == "os.system" and installs(["sh", "-c", os.fsdecode(args[0])]):
        refuse(os.fsdecode(args[0]))


def refuse(what: str) -> None:
    raise Unsupported(f"'{what[:120]}': a script may not install packages (`run --installs` lets it)")


@functools.cache
def forbid() -> None:
    """Forbid installs in this process and, by the environment, in those that it starts. Nothing undoes it."""
    if os.environ.get(ALLOWED) != "1":
        sys.addaudithook(_hook)
