"""Limits which files a process and all that it starts can open, by Linux's Landlock; capabilities do not lift that.

https://docs.kernel.org/userspace-api/landlock.html. It needs no rights, and a kernel from 5.13 on that has it switched
on. Sockets are not limited, nor is what was open before.
"""

import contextlib
import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # of every architecture
VERSION, PATH_BENEATH = 1, 1
# Bits of linux/landlock.h
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE
READ = EXECUTE | READ_FILE | READ_DIR
FIRST = (1 << 13) - 1  # those of the first version
SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # version -> what it has brought: refer, truncate, ioctl
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
SIGNALS, SIGNALS_SINCE = 2, 6  # a scope: none to processes that are not below


def version() -> int:
    """Returns the version of Landlock's interface that the kernel has; 0 for none."""
    return max(0, _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION))


def _call(number: int, *arguments) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def restrict(read: list[str], write: list[str]) -> None:
    """Lets this thread, and what it starts from now on, open what lies below these paths alone, to read and execute or
    for all but devices; and signal nothing above. Paths that do not exist are left out. Raises OSError. It must have
    no_new_privs."""
    has = version()
    handled = FIRST | sum(bit for since, bit in SINCE.items() if has >= since)
    whole = handled & ~IOCTL_DEV
    attributes = struct.pack("QQQ", handled, 0, SIGNALS if has >= SIGNALS_SINCE else 0)
    size = 24 if has >= SIGNALS_SINCE else 16 if has >= 4 else 8
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    try:
        for paths, rights in ((read, READ), (write, whole)):
            for path in paths:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    _allow(ruleset, path, rights)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= OF_FILES | TRUNCATE
        _call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
