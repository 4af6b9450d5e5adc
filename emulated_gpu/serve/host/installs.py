"""Scripts may not install packages: two public submissions ran `pip install` when imported and changed the environment.

A finder sees imports, and what starts processes is asked before: the environment is not changed by accident. It is no
sandbox. (An audit hook would be called at each `id` and `sys._getframe` too: 5 % of the time of a launch.)
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

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


class _Finder:
    """Refuses imports of installers."""

    @staticmethod
    def find_spec(name: str, _path=None, _target=None) -> None:
        if name in _MODULES:
            refuse(f"import {name}")


def _asked(start: Callable, at: int, name: str) -> Callable:
    """What starts a process, for which argument `at`, or of this name, is the command: a list, or a shell's text."""

    @functools.wraps(start)
    def ask(*args, **options):
        given = [*args]
        held: Any = options if name in options else given
        key: Any = name if held is options else at
        alone = isinstance(held[key], (str, bytes, os.PathLike))
        words = [held[key]] if alone else [*held[key]]
        held[key] = words[0] if alone else words  # of what can be gone through but once, too
        if alone or options.get("shell"):
            words = ["sh", "-c", *words[:1]]
        if installs(texts := [os.fsdecode(word) for word in words]):
            refuse(" ".join(texts))
        return start(*given, **options)

    return ask


def refuse(what: str) -> None:
    raise Unsupported(f"'{what[:120]}': a script may not install packages (`run --installs` lets it)")


@functools.cache
def forbid() -> None:
    """Forbid installs in this process and, by the environment, in those that it starts. Nothing undoes it."""
    if os.environ.get(ALLOWED) != "1":
        sys.meta_path.insert(0, _Finder)
        for name in ("execv", "execve", "posix_spawn", "posix_spawnp"):
            setattr(os, name, _asked(getattr(os, name), 1, "argv"))
        os.system = _asked(os.system, 0, "command")
        subprocess.Popen.__init__ = _asked(subprocess.Popen.__init__, 1, "args")  # type: ignore[method-assign]
