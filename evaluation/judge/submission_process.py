"""Starts, asks and ends the submission's process (worker.py) from the judge's, which trusts nothing that it says."""

import contextlib
import hashlib
import itertools
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from emulated_gpu.arena import PAGE, Arena
from emulated_gpu.chip import chip_of
from emulated_gpu.serve.torch_device import library
from evaluation.judge import emulated, isolation, worker
from evaluation.judge.options import Options
from evaluation.judge.sandbox import Nursery
from evaluation.judge.shared_tensors import THEIRS
from evaluation.judge.time_limit import Late, limit
from evaluation.judge.verdict import Refused
from task import combine_seeds

LONGEST = 2**26  # bytes of a line from the submission's process
STARVED = 10  # limits of time until the judge gives up to emulate a launch, however little of a core it gets
BUSY = 0.25  # share of the time for which it computes: less is waiting, even on a busy machine
QUOTA, LOOK = 2**32, 1.0  # bytes on disk, and the seconds between looks while nothing comes
LOG = 2**16  # bytes of its output that are looked at
USERS_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emulated-gpu"


def builds(submission: str) -> str:
    """Return the folder for what a submission builds: of its own bytes, so that it can spoil nobody else's.

    Whichever user the worker will be may write there. A lock that a killed build has left is removed.
    """
    folder = USERS_CACHE / "submissions" / hashlib.sha256(Path(submission).read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with opened(folder) as of:
        os.fchmod(of, 0o777)
        for name in os.listdir(of):  # all of it may be the submission's: no link is followed
            with contextlib.suppress(OSError), opened(name, of) as build:
                os.unlink("lock", dir_fd=build)
    return str(folder)


@contextlib.contextmanager
def opened(path: str | Path, inside: int | None = None):
    """Opens a folder, by its name inside another one, for this block. Raises OSError for a file, or a link."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    try:
        yield fd
    finally:
        os.close(fd)


def size_on_disk(*folders: str) -> int:
    """Adds up the bytes that all below some folders takes, at least a page for each file; no link is followed."""
    found = 0
    for folder in folders:
        for _, _, names, fd in os.fwalk(folder, onerror=None):
            for name in names:
                with contextlib.suppress(OSError):
                    found += max(PAGE, 512 * os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks)
    return found


def last_line(path: Path) -> str:
    """Finds the last line, of a file of any number of bytes, that is not blank."""
    with open(path, "rb") as log:
        log.seek(max(0, os.path.getsize(path) - LOG))
        lines = log.read(LOG).decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class SubmissionProcess:
    """Holds the submission's process, which is started when it is first needed and again after it was killed or died.

    `config`: (sizes, changes) for configs.choose, or None. `device`: the emulated device that the running process
    launches on; it is the judge's. `isolation`: what keeps the process from the judge's, as of isolation.confine.
    `user`: the id of its user where the judge is root, as of isolation.own_user.
    `say`: is told how far a long launch is. `keep`: is given what the device finds; both as of emulated.Device.
    """

    def __init__(
        self, options: Options, nursery: Nursery, arena: Arena, directory: str, judges: list[int],
        say: Callable[[str], None], keep: Callable, user: int | None = None,
    ):  # fmt: skip
        self.say, self.keep, self.user = say, keep, user
        self.options, self.nursery, self.arena, self.directory, self.judges = options, nursery, arena, directory, judges
        self.config = None
        self.device: emulated.Device | None = None
        self.numbers = itertools.count(1)  # of objects
        self.still, self.emulating = False, False  # emulating: the judge executes a launch of its
        self.pid: int | None = None
        self.isolation, self.log = None, Path(directory, "log")
        self.started = 0

    def start(self) -> None:
        """Starts it; raises Refused unless the submission could be imported."""
        options = self.options
        self.started += 1
        scratch = os.path.join(self.directory, f"scratch{self.started}")
        os.mkdir(scratch)
        os.chmod(scratch, 0o777)  # whichever user the worker will be
        emulating = options.device != "cuda"
        if emulating:
            library.path()  # built here, where there is a compiler and no limit of time
        told = {
            "submission": os.path.abspath(options.submission), "config": self.config, "device": options.device,
            "machine": options.machine,
            "scratch": scratch, "builds": builds(options.submission), "cache": str(USERS_CACHE),
            "memory": int(options.memory * 2**30), "threads": max(1, (os.cpu_count() or 1) // options.jobs),
            "judges": [os.getpid(), *self.judges], "size": self.arena.size, "heap": THEIRS,
            "modules": options.task.modules, "entry": options.task.entry, "devices": options.task.devices,
            "user": self.user,
        }  # fmt: skip
        self.folders = told["scratch"], told["builds"]
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.rest = b""
        with open(self.log, "wb") as log:
            self.pid = self.nursery.start(worker.main, told, fds=(theirs.fileno(), self.arena.fd, log.fileno()))
        theirs.close()
        self.device = self.new_device(combine_seeds(options.secret, self.started)) if emulating else None
        with self.answering("import"):
            self.isolation = self.receive().get("isolation", self.isolation)
            self.receive()

    def new_device(self, seed: int) -> emulated.Device:
        """Returns a device of the machine that is asked for, in the memory shared with the process."""
        chip = chip_of(self.options.machine)
        return emulated.Device(self.arena, THEIRS, self.options.strict, self.say, self.keep, seed, chip)

    def ask(self, what: str, take=None, **request) -> dict:
        """Sends a request and returns the reply; raises Refused with the reason if there is none, or if it is an error.

        take(message): the answer to a launch that the submission makes meanwhile.
        """
        if self.pid is None:
            self.start()
        with self.answering(what):
            self.send(request)
            while "launch" in (reply := self.receive()):
                if take is None:
                    raise Refused("the submission's process launched something out of turn")
                self.emulating = True
                answer = take(reply["launch"])
                self.emulating = False
                self.send(answer)
        return reply

    def place(self, spec) -> int:
        """Tells the process of an object that the kernel may be called with; its number in later requests."""
        number = next(self.numbers)
        self.ask("set-up", op="object", number=number, spec=spec)
        return number

    @contextlib.contextmanager
    def answering(self, what: str):
        """Ends the process, and raises Refused, whatever goes wrong in this block.

        What the judge emulates may take as many seconds of its own as there are: other work on the machine does not
        make an honest submission fail.
        """
        before, began = (time.process_time(), self.computed()), time.monotonic()
        timeout, self.emulating = self.options.timeout, False

        def left() -> float:
            starved = self.emulating and time.monotonic() - began < STARVED * timeout
            return timeout - (time.process_time() - before[0]) if starved else 0.0

        try:
            with limit(timeout, left=left):
                yield
        except Late:
            why = self.late(time.process_time() - before[0], self.computed() - before[1])
            self.kill()
            raise Refused(f"{why}: no {what} within {timeout:g} s, process killed") from None
        except (EOFError, ConnectionError):
            raise Refused(f"crash during {what}: {self.died()}") from None
        except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError, emulated.Garbled):
            self.kill()
            raise Refused("the submission's process sent something that is not a reply") from None
        except MemoryError as error:
            self.kill()
            raise Refused(f"out of memory: {error}") from None
        except Refused:
            self.kill()  # whatever went wrong stays out of the next case
            raise

    def computed(self) -> float:
        """Returns the seconds of CPU time that the process has had; 0.0 where there is none."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, LookupError, ValueError):
            return 0.0

    def runnable(self) -> bool:
        """Tells whether a thread of the process computes or waits for a core."""
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def late(self, judge: float, submission: float) -> str:
        """Says why nothing came in time. judge, submission: the seconds for which they have computed meanwhile: what
        computes, or would if it had a core, may be slow; what does not will never answer."""
        busy = BUSY * self.options.timeout
        if self.emulating or judge > busy and judge > submission:
            return f"slow (its kernels were still being emulated, {judge:.0f} s of CPU time; --timeout)"
        if submission > busy or self.runnable():
            return f"slow or endless (its host code was still computing, {submission:.0f} s of CPU time; --timeout)"
        return "hang"

    def stand_still(self) -> None:
        """Stops the process and all that it has started, until it is asked again. Raises Refused if they go on."""
        self.still = True
        if not self.nursery.stop():
            raise Refused(f"its processes do not stand still, {isolation.PATIENCE:g} s after they were told to")

    def send(self, message) -> None:
        if self.still:
            self.still = False
            self.nursery.go_on()
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict:
        """Reads one line of JSON. Nothing that the submission may send in its place can block the judge or run code
        here."""
        line = bytearray(self.rest)
        while (end := line.find(b"\n")) < 0 and len(line) < LONGEST:
            while not select.select([self.socket], [], [], LOOK)[0]:
                self.check_quota()
            chunk = self.socket.recv(2**20)
            if not chunk:
                raise EOFError
            line += chunk
        self.rest = bytes(line[end + 1 :])
        reply = json.loads(line[:end])
        if "launch" not in reply and reply["error"]:
            raise Refused(str(reply["error"])[:10_000])
        return reply

    def check_quota(self) -> None:
        """Raises Refused if what the process has written takes more than QUOTA."""
        if size_on_disk(*self.folders) > QUOTA:
            raise Refused(f"it has written more than {QUOTA >> 30} GiB")

    def died(self) -> str:
        """Waits for the process to end, and says in a sentence how it has."""
        for _ in range(100):  # the connection goes before the process does, seconds before on a busy machine
            if self.dead():
                break
            time.sleep(0.1)
        code = self.kill()
        if code is None:
            return "the submission closed the judge's connection"
        last = last_line(self.log)
        last = f", last output '{last[:200]}'" if last else ""
        if code < 0:
            return f"the submission's process was ended by {signal.Signals(-code).name}{last}"
        return f"the submission's process exited with code {code}{last}"

    def dead(self) -> bool:
        """Tells whether all of its threads have ended: only then is there an exit code."""
        try:
            process = Path(f"/proc/{self.pid}")
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return ended and len(list((process / "task").iterdir())) == 1
        except OSError:
            return True

    def kill(self) -> int | None:
        """Ends the process and everything it started; returns its exit code if it had ended by itself."""
        if self.pid is None:
            return None
        self.socket.close()
        pid, self.pid, self.still = self.pid, None, False
        return self.nursery.end(pid)
