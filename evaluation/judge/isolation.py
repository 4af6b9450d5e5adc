"""Keeps the judge's processes out of reach of the submission's by Linux's own means, none of them in Python's hands.

The judge's processes are not dumpable: without CAP_SYS_PTRACE nobody opens their /proc/<pid>/mem, fd, or environ,
traces them, or calls process_vm_writev or pidfd_getfd on them, not even their own user
(https://man7.org/linux/man-pages/man2/ptrace.2.html, "Ptrace access mode checking"). The worker has no capabilities
and can gain none; where the judge is root, the worker is another user, one for each job, who can neither signal the
judge nor write its files, pipes or terminal. Which files it can open at all is limited by Landlock (landlock.py). What
holds is tried out in the worker before the submission is imported, and is in the result.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from evaluation import ROOT
from evaluation.judge import landlock

_libc = ctypes.CDLL(None, use_errno=True)
# linux/prctl.h
PDEATHSIG, DUMPABLE, KEEPCAPS, CAPBSET_DROP, SUBREAPER, NO_NEW_PRIVS, CAP_AMBIENT = 1, 4, 8, 24, 36, 38, 47
AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 2  # linux/capability.h
CAPSET = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
PATIENCE = 10.0  # seconds in which processes that were stopped stand still
WORKER_USERS = range(60_706, 61_184)  # in no range that useradd or systemd give users from
LARGEST_FILE, OPEN_FILES, PROCESSES = 2**30, 4096, 512  # bytes; of one process; of a job, threads too
NEWIPC = 0x0800_0000  # linux/sched.h
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/proc", "/sys", "/dev/urandom",
          "/dev/random")  # fmt: skip
DEVICES = "/dev/null", "/dev/zero", "/dev/full"
OF_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "passwd", "group", "nsswitch.conf",
          "hosts", "resolv.conf", "os-release", "alternatives", "mime.types", "locale.alias", "ssl/certs")  # fmt: skip


def prctl(option: int, *arguments: int) -> int:
    """Calls prctl(2). Raises OSError."""
    result = _libc.prctl(option, *(ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
    return result


def unshare(what: int) -> None:
    """Calls unshare(2). Raises OSError."""
    if _libc.unshare(what) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


def shield() -> None:
    """Puts this process and what it forks out of reach of other processes without CAP_SYS_PTRACE."""
    prctl(DUMPABLE, 0)


def adopt_orphans() -> None:
    """Makes processes below this one whose parents end its children, whatever they do."""
    prctl(SUBREAPER, 1)


def children(of: int | str = "self") -> list[int]:
    """Lists the process ids of a process's children, this one's by default; none if it has ended."""
    pids: list[int] = []
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


def needed(files: list[str]) -> list[str]:
    """Lists what a process needs to read to run Python, compilers and the project, beside these files: paths. Of /etc
    and of the project's folder no secrets are among them."""
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    python += [path for path in map(os.path.realpath, filter(None, sys.path)) if not Path(ROOT).is_relative_to(path)]
    project = [path for path in map(str, Path(ROOT).iterdir()) if not os.path.basename(path).startswith(".")]
    return [*SYSTEM, *(f"/etc/{name}" for name in OF_ETC), *python, *project, *files]


@contextlib.contextmanager
def own_user(folder: Path):
    """Gives, in this block, a user id that no other job on this machine has, as long as each asks with this folder;
    None where this process is not root, or none is left."""
    if os.geteuid() != 0:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        for user in random.SystemRandom().sample(WORKER_USERS, len(WORKER_USERS)):
            fd = os.open(folder / str(user), flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                continue
            stack.callback(os.close, fd)
            yield user
            return
        yield None


def limit_resources(alone: bool) -> None:
    """Limits what a process can take of the machine. alone: its user has no other processes."""
    limits = {resource.RLIMIT_FSIZE: LARGEST_FILE, resource.RLIMIT_NOFILE: OPEN_FILES, resource.RLIMIT_CORE: 0}
    limits |= {resource.RLIMIT_MSGQUEUE: 0} | ({resource.RLIMIT_NPROC: PROCESSES} if alone else {})
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def missing() -> list[str]:
    """Says, before anything runs, what this machine does not have to keep a submission apart."""
    found = []
    if not landlock.version():
        found.append("this kernel has no Landlock: the submission reads and writes every file that its user may")
    if os.geteuid() != 0:
        found.append("the judge is not root: the submission has its user, whose number of processes is not limited")
    return found


def confine(files: list[str], folders: list[str], judges: list[int], user: int | None) -> str:
    """Gives up what the submission's process has no business with; says what holds. Raises OSError.

    files: what it must be able to read, beside Python. folders: where it may write; none: Landlock is not to be used.
    judges: process ids that it must not be able to reach. user: the id that it gets where it is root.
    """
    other, alone = False, user is not None
    if os.geteuid() == 0:
        user = user or WORKER_USERS[0]
        with contextlib.suppress(OSError):
            unshare(NEWIPC)  # shared memory and semaphores of System V end with it
        for capability in {*range(64)} - {CAP_DAC_READ_SEARCH}:
            with contextlib.suppress(OSError):  # beyond the last
                prctl(CAPBSET_DROP, capability)
        prctl(KEEPCAPS, 1)
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            other = True
            os.umask(0)  # another job of the same submission, which has another user, uses what it builds
        except OSError:  # a container without that user, or without the capability
            pass
    python = [os.path.realpath(sys.executable), *(module.__file__ or "" for module in (contextlib, ctypes))]
    readable = all(os.access(path, os.R_OK, effective_ids=True) for path in [*files, *python])
    keep = 1 << CAP_DAC_READ_SEARCH if other and not readable else 0  # Python in root's home, for example
    _set_capabilities(keep)
    if keep:
        prctl(CAP_AMBIENT, AMBIENT_RAISE, CAP_DAC_READ_SEARCH)
    prctl(NO_NEW_PRIVS, 1)
    prctl(PDEATHSIG, signal.SIGKILL)
    if apart := bool(folders and landlock.version()):
        landlock.restrict(needed(files), [*folders, *DEVICES])
    elif folders and keep:
        raise OSError(errno.EACCES, f"{sys.executable} lies where another user may not look, and without Landlock, "
                      "which this kernel lacks, what could look there could read all files")  # fmt: skip
    limit_resources(other and alone)
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
    who = ("a user of its own" if alone else "another user") if other else "the same user"
    capabilities = "no capabilities" + " but to read files" * bool(keep)
    can = "reads what Python needs, writes to its own folders" if apart else "reads and writes what that user may"
    return f"{who}, {capabilities}; {can}; the judge's memory and files out of reach"
