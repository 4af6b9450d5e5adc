"""Forks the processes of a run; one of them is the submission's.

    judge (the command line)
      └ nursery        has imported torch and knows nothing of any case; forks the others
          └ examiner   one a job: makes inputs, knows results, emulates, decides; imports no submission
              └ nursery of that examiner, forked before it knows anything
                  └ worker   the submission's; see isolation.py

A worker is forked by a process that has never held a seed or a result, and ends with all that it started.
"""

import array
import atexit
import contextlib
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from evaluation import ROOT
from evaluation.judge import isolation

_LENGTH = struct.Struct("<Q")


class Beat(NamedTuple):
    """Says, before a reply, how far what was asked for is."""

    text: str


class Channel:
    """Carries pickled objects and file descriptors between processes that are the judge's own."""

    def __init__(self, end: socket.socket):
        self.socket = end

    def send(self, message, fds: tuple[int, ...] = ()) -> None:
        data = pickle.dumps(message)
        head = _LENGTH.pack(len(data))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([head], ancillary)
        self.socket.sendall(data)

    def receive(self) -> tuple[Any, list[int]]:
        """Raises EOFError when the other end is gone."""
        try:
            head, fds, _, _ = socket.recv_fds(self.socket, _LENGTH.size, 8)
            while len(head) < _LENGTH.size:
                head += self._some(_LENGTH.size - len(head))
            (size,), data = _LENGTH.unpack(head), bytearray()
            while len(data) < size:
                data += self._some(size - len(data))
        except ConnectionError:
            raise EOFError from None
        return pickle.loads(data), fds

    def _some(self, size: int) -> bytes:
        chunk = self.socket.recv(min(size, 2**20))
        if not chunk:
            raise EOFError
        return chunk

    def close(self) -> None:
        self.socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Nursery:
    """Forks processes that have imported what theirs need: started early, it has nothing else in its memory."""

    process: subprocess.Popen  # its own, if it was spawned

    def __init__(self, channel: Channel):
        self.channel, self.has_started = channel, False

    @classmethod
    def fork(cls) -> "Nursery":
        """Makes this process, which must not hold anything yet, the origin of a nursery."""
        mine, theirs = pair()
        if os.fork() == 0:
            mine.close()
            isolation.prctl(isolation.PDEATHSIG, signal.SIGKILL)
            _serve(theirs)
        theirs.close()
        return cls(Channel(mine))

    @classmethod
    def spawn(cls, *modules: str) -> "Nursery":
        """Starts a nursery in a fresh interpreter, which imports these modules."""
        mine, theirs = pair()
        code = f"from {__package__} import sandbox; sandbox.main({theirs.fileno()}, {modules!r})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        nursery = cls(Channel(mine))
        nursery.process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the judge, who ends the others
        )  # fmt: skip
        theirs.close()
        return nursery

    def start(self, function: Callable, *arguments, fds: tuple[int, ...] = (), apart: bool = False) -> int:
        """Forks a process that calls function(*arguments, *fds); returns its process id.

        function: one at the top of a module; its name is sent. apart: `end` of another process spares this one.
        """
        self.has_started = True
        self.channel.send(("start", function, arguments, apart), fds)
        return self.channel.receive()[0]

    def end(self, pid: int) -> int | None:
        """Ends what was started, with all that it started in its turn. Returns its exit code, None if it was
        running."""
        self.channel.send(("end", pid))
        return self.channel.receive()[0]

    def stop(self) -> bool:
        """Stops all that was started, and all that it has started; tells whether all of it stands still."""
        self.channel.send(("stop",))
        return self.channel.receive()[0]

    def go_on(self) -> None:
        """Lets go on what was stopped."""
        self.channel.send(("go on",))
        self.channel.receive()

    def pids(self) -> list[int]:
        self.channel.send(("pids",))
        return self.channel.receive()[0]

    def close(self) -> None:
        """Ends the nursery and everything below it."""
        self.channel.close()


_nursery: Nursery | None = None


def nursery() -> Nursery:
    """The nursery of this process, started once: importing torch takes seconds."""
    global _nursery
    if _nursery is None or _nursery.process.poll() is not None:
        isolation.shield()
        _nursery = Nursery.spawn("evaluation.judge.examiner")
    return _nursery


@atexit.register
def stop() -> None:
    """Ends all processes below this one."""
    global _nursery
    ending, _nursery = _nursery, None
    if ending is not None:
        ending.close()
        if not ending.has_started:  # it may be importing still
            ending.process.kill()
        with contextlib.suppress(Exception):
            ending.process.wait(5)


def main(fd: int, modules: tuple[str, ...]) -> None:
    """Runs a spawned nursery until `fd` is closed. modules: what the processes that it forks need."""
    for module in modules:
        importlib.import_module(module)
    _serve(socket.socket(fileno=fd))


def _serve(end: socket.socket) -> None:
    isolation.shield()
    isolation.adopt_orphans()
    channel, apart = Channel(end), set()  # `apart`: process ids
    try:
        while True:
            (what, *rest), fds = channel.receive()
            if what == "start":
                function, arguments, on_its_own = rest
                pid = os.fork()
                if pid == 0:
                    _become(channel, function, arguments, fds)
                for fd in fds:
                    os.close(fd)
                if on_its_own:
                    apart.add(pid)
                channel.send(pid)
            elif what == "end":
                code = None
                with contextlib.suppress(ChildProcessError):
                    ended, status = os.waitpid(rest[0], os.WNOHANG)
                    code = os.waitstatus_to_exitcode(status) if ended else None
                apart.discard(rest[0])
                isolation.kill_children(frozenset(apart))
                channel.send(code)
            elif what == "stop":
                channel.send(isolation.stop_children())
            elif what == "go on":
                isolation.signal_all(isolation.descendants(), signal.SIGCONT)
                channel.send(None)
            elif what == "pids":
                channel.send([os.getpid(), os.getppid()])
    except (EOFError, OSError):
        pass
    finally:
        isolation.kill_children()
        os._exit(0)


def _become(channel: Channel, function: Callable, arguments: tuple, fds: list[int]) -> None:
    """Turns a process that was just forked into the function's, and does not return."""
    code = 1
    try:
        channel.close()
        isolation.prctl(isolation.PDEATHSIG, signal.SIGKILL)
        function(*arguments, *fds)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
