"""The programs that launch: one, or as many ranks as there are devices, each a thread; they take turns.

One rank runs at a time, until it waits for a device or for another rank. So a run is the same each time, and what a
process has of its own (its environment, its `__main__`, torch's default group) can be put in place when a rank's turn
begins. Devices run while all ranks wait: a host is fast beside a kernel that looks for a flag.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from ..errors import EmulatorError, Hang, WrongCall
from ..state import host_order
from ..state.host_order import Place, calling_place
from ..state.order import Clocks
from .launch import Enough
from .node import Node

LEGACY = host_order.LEGACY, host_order.LEGACY_HANDLE  # handles of the default stream
IMPLICIT = 906  # cudaErrorStreamCaptureImplicit


class Stopped(BaseException):
    """Ends a rank, as another one has failed."""


class Capture(list[tuple]):
    """What is noted for a CUDA graph. streams: whose works, by their handles, and of those that wait for them; None:
    everybody's. blocks: whether a stream and the legacy default stream wait for each other. number: no other capture
    has it. relaxed: whether the host may wait for what is not captured. events: those that have been recorded there.
    places: where each entry was noted. failed: whether something was asked for that no capture bears."""

    failed = False
    _numbers = itertools.count(1)

    def __init__(self, streams: set[int] | None, blocks: Callable[[int], bool] = bool, relaxed: bool = False):
        super().__init__()
        self.streams, self.blocks, self.relaxed, self.number = streams, blocks, relaxed, next(self._numbers)
        self.events: set[object] = set()
        self.places: list[Place] = []

    def note(self, *entry) -> None:
        """Add an entry of serve/driver/graphs.py: its stream comes last."""
        self.append(entry)
        self.places.append(calling_place())

    def has(self, stream: int | None) -> bool:
        """Return whether a stream is captured. Raises WrongCall for the legacy default stream if one is that it and
        the legacy stream would wait for."""
        if self.streams is not None and stream in LEGACY and any(map(self.blocks, self.streams)):
            raise WrongCall("a call of the default stream, for which a stream that is captured would wait", IMPLICIT)
        return self.streams is None or stream in self.streams

    def takes(self, stream: int | None) -> bool:
        """Return whether what a stream is given belongs here. The capture fails if `has` raises WrongCall."""
        try:
            return self.has(stream)
        except WrongCall:
            self.failed = True
            raise

    def records(self, event: object, stream: int) -> bool:
        """Note that an event is recorded, if that is to be captured; returns whether."""
        if not self.takes(stream):
            self.events.discard(event)
            return False
        self.events.add(event)
        self.note("record", event, stream)
        return True

    def waits(self, event: object, stream: int) -> bool:
        """Note that a stream waits for an event, which makes it one of those that are captured; returns whether."""
        if not self.takes(stream) and event not in self.events:
            return False
        if self.streams is not None:
            self.streams.add(stream)
        self.note("wait", event, stream)
        return True


class Host:
    """A program that launches. device: its current one. capture: what a CUDA graph collects instead of doing it.

    known: what it has waited for. ready, what: while it waits, whether it may go on, and for what.
    """

    def __init__(self, rank: int = 0):
        self.rank, self.device = rank, 0
        self.capture: Capture | None = None
        self.known: Clocks = {}
        self.ready: Callable[[], bool] | None = None
        self.what = ""
        self.exchanges: dict[tuple[int, ...], int] = {}  # by group, how many it has come to
        self.turn = threading.Semaphore(0)
        self.ended = self.stopped = False
        self.error: BaseException | None = None

    def __str__(self):
        return f"rank {self.rank}"


class Hosts:
    """now: whose turn it is. switched: is told of who had the turn and who has it next. failed: gets what stops
    launches; returns what hosts are to raise then, or None if they may go on."""

    def __init__(self, node: Node, failed: Callable[[EmulatorError | Enough], BaseException | None]):
        self.node, self.failed = node, failed
        self.all = [Host()]
        self.now = self.all[0]
        self.exchanges: dict[tuple, dict[int, tuple[str, object]]] = {}  # by group and number: what ranks bring
        self.switched: Callable[[Host, Host], None] = lambda before, after: None
        node.hosts_waiting = self.waiting

    def waiting(self) -> list[str]:
        """List what each rank waits for."""
        if len(self.all) == 1:
            return []
        return [f"{host} {'has ended' if host.ended else f'waits for {host.what}'}" for host in self.all]

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Let devices and the other ranks go on until `ready()`. Raises what stops them, Hang if nobody can go on."""
        me = self.now
        if ready():
            return
        me.ready, me.what = ready, what
        self._go_on(me)

    def exchange(self, group: tuple[int, ...], what: str, value) -> list:
        """Return what each rank of a group brings, when all have come to the same. what: names it.

        Raises ValueError where another rank is at something else.
        """
        me = self.now
        number = me.exchanges[group] = me.exchanges.get(group, 0) + 1
        there = self.exchanges.setdefault((group, number), {})
        for rank, (other, _) in there.items():
            if other != what:
                raise ValueError(f"{me} calls {what} where rank {rank} calls {other}: ranks of a group call the same")
        there[me.rank] = what, value
        self.wait(lambda: len(there) == len(group), f"the others of ranks {list(group)} at {what}")
        self.exchanges.pop((group, number), None)  # whoever waits has it in hand
        return [there[rank][1] for rank in group]

    def _go_on(self, me: Host) -> None:
        """Give the turn to whoever can go on, and come back with it."""
        error: BaseException | None = None
        try:
            following = self._following(me)
        except EmulatorError as e:
            error, following = e, me
        if me.ended and error is not None:  # somebody else is to say it
            following = next((host for host in self.all if not host.ended), None)
            if following is not None:
                following.error = error
        if following is not None and following is not me:
            self._hand(me, following)
            if me.ended:
                return
            me.turn.acquire()
        if me.ended:
            return
        me.ready = None
        if me.stopped:
            raise Stopped
        error, me.error = error or me.error, None
        if error is not None:
            raise error

    def _hand(self, before: Host, after: Host) -> None:
        self.now = after
        self.switched(before, after)
        after.turn.release()

    def _following(self, me: Host) -> Host | None:
        """Return who has the next turn, when devices have run until somebody can go on; None if all have ended."""
        k = self.all.index(me)
        order = [host for host in (*self.all[k + 1 :], *self.all[: k + 1]) if not host.ended]
        while order:
            for host in order:
                if host.ready is None or host.stopped or host.error is not None or host.ready():
                    return host
            try:
                if self.node.run(lambda: any(host.ready() for host in order)):
                    continue
                error: EmulatorError | Enough = Hang("\n".join(["nobody can go on:", *self.node.waiting()]))
            except (EmulatorError, Enough) as e:
                error = e
            raised = self.failed(error)
            if raised is not None:
                raise raised
            if not any(host.ready() for host in order):
                raise error
        return None

    @staticmethod
    def ranks(count: int) -> list[Host]:
        """This many new ranks."""
        return [Host(rank) for rank in range(count)]

    def run(self, ranks: list[Host], program: Callable[[Host], None]) -> list[BaseException | None]:
        """Run a program as ranks, each on a thread of its own. Returns what each has raised, or None.

        When one fails, the others are stopped where they wait.
        """
        before, outer = self.all, self.now
        self.exchanges.clear()
        self.all = ranks
        raised: list[BaseException | None] = [None] * len(ranks)

        def body(host: Host) -> None:
            host.turn.acquire()
            try:
                if not host.stopped:
                    program(host)
            except BaseException as e:  # as a process's exit status
                raised[host.rank] = e
                failed = not (isinstance(e, SystemExit) and not e.code)
                for other in self.all if failed and not host.stopped else ():
                    other.stopped = other is not host and not other.ended
            finally:
                host.ended = True
                self._go_on(host)

        threads = [threading.Thread(target=body, args=(host,), name=f"rank {host.rank}") for host in self.all]
        for thread in threads:
            thread.start()
        self._hand(outer, self.all[0])
        for thread in threads:
            thread.join()
        self.switched(self.now, outer)
        self.all, self.now = before, outer
        return raised
