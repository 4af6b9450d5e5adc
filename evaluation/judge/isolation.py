"""Keeps the judge's processes out of reach of the submission's by Linux's own means, none of them in Python's hands.

The judge's processes are not dumpable: without CAP_SYS_PTRACE nobody opens their /proc/<pid>/mem, fd, or environ,
traces them, or calls process_vm_writev or pidfd_getfd on them, not even their own user
(https://man7.org/linux/man-pages/man2/ptrace.2.html, "Ptrace access mode checking"). The worker has no capabilities
and can gain none; where the judge is root, the worker is another user, too, who can neither signal the judge nor write
its files, pipes or terminal. What holds is tried out in the worker before the submission is imported, and is in the
result.
"""

import contextlib
import ctypes
import errno
import os
import signal
import time

_libc = ctypes.CDLL(None, use_errno=True)
# linux/prctl.h
PDEATHSIG, DUMPABLE, KEEPCAPS, CAPBSET_DROP, SUBREAPER, NO_NEW_PRIVS, CAP_AMBIENT = 1, 4, 8, 24, 36, 38, 47
AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 2  # linux/capability.h
CAPSET = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
PATIENCE = 10.0  # seconds in which processes that were stopped stand still
WORKER_USER = 64_979  # in no range that useradd or systemd give users from


def prctl(option: int, *arguments: int) -> int:
    """Calls prctl(2). Raises OSError."""
    result = _libc.prctl(option, *(ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
    return result


def shield() -> None:
    """Puts this process and what it forks out of reach of other processes without CAP_SYS_PTRACE."""
    prctl(DUMPABLE, 0)


def adopt_orphans() -> None:
    """Makes processes below this one whose parents end its children, whatever they do."""
    prctl(SUBREAPER, 1)


def children(of: int | str = "self") -> list[int]:
    """Lists the process ids of a process's children, this one's by default; none if it has ended."""
    pids = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{of}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{of}/task/{task}/children") as file:
                pids += map(int, file.read().split())
    return pids


def descendants() -> list[int]:
    """Lists the process ids of this process's children, of theirs, and so on."""
    found = children()
    for pid in found:
        found += children(pid)
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _stopped(pid: int) -> bool:
    """Tells whether no thread of a process runs, or can before it is told to go on."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "TtZXx":
                    return False
    return True


def stop_children() -> bool:
    """Stops all processes below this one, those too that they start meanwhile; tells whether all stand still."""
    deadline, known = time.monotonic() + PATIENCE, None
    while time.monotonic() < deadline:
        found = descendants()
        signal_all(found, signal.SIGSTOP)
        if found == known and all(map(_stopped, found)):
            return True
        known = found
        time.sleep(0.0002)
    return False


def kill_children(spare: frozenset[int] = frozenset()) -> None:
    """Ends all children but those to be spared, and theirs, which become ours; see adopt_orphans.

    All are killed before one is waited for, and none is waited for alone: another thread may be about to do that.
    """
    while found := [pid for pid in children() if pid not in spare]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def _set_capabilities(mask: int) -> None:
    """Sets the permitted, effective and inheritable capabilities."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    if _libc.syscall(CAPSET, header, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def confine(files: list[str], judges: list[int]) -> str:
    """Gives up what the submission's process has no business with; says what holds. Raises OSError.

    files: what it must be able to read. judges: process ids that it must not be able to reach.
    """
    other = False
    if os.geteuid() == 0:
        for capability in {*range(64)} - {CAP_DAC_READ_SEARCH}:
            with contextlib.suppress(OSError):  # beyond the last
                prctl(CAPBSET_DROP, capability)
        prctl(KEEPCAPS, 1)
        try:
            os.setgroups([])
            os.setresgid(WORKER_USER, WORKER_USER, WORKER_USER)
            os.setresuid(WORKER_USER, WORKER_USER, WORKER_USER)
            other = True
        except OSError:  # a container without that user, or without the capability
            pass
    readable = all(os.access(path, os.R_OK, effective_ids=True) for path in files)
    keep = 1 << CAP_DAC_READ_SEARCH if other and not readable else 0  # Python in root's home, for example
    _set_capabilities(keep)
    if keep:
        prctl(CAP_AMBIENT, AMBIENT_RAISE, CAP_DAC_READ_SEARCH)
    prctl(NO_NEW_PRIVS, 1)
    prctl(PDEATHSIG, signal.SIGKILL)
    for pid in judges:
        for name, flags in (("mem", os.O_RDWR), ("environ", os.O_RDONLY), ("fd/1", os.O_WRONLY)):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", flags))
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    continue
                if error.errno == errno.ENOENT:
                    continue
            return f"NOT ISOLATED from the judge: it can open /proc/{pid}/{name}"
    user = "another user" if other else "the same user"
    return f"{user}, no capabilities{' but to read files' if keep else ''}; the judge's memory and files out of reach"
