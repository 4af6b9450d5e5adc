"""Launches on several devices of one node, interleaved in one engine: each device runs its own in the order of calls.

They share an order of events (state/order.py), so that between devices only what the ISA says orders anything: release
and acquire at the scope of the system. A launch knows what its device did before, and what its host knew when it was
called; a host knows what a device did that it has waited for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..state.global_memory import GlobalMemory
from ..state.global_shadow import GlobalShadow
from ..state.order import GENERIC, KNOWN, SCOPES, Actor, Clocks, Location, Order, Space, latest
from .engine import Engine, collecting
from .launch import Environment, Launch, Owner, Shared, calm

LATENCY = 2000  # ticks from a launch that may start to its first instruction


@dataclass
class Queued:
    """A launch that waits for those before it on its device.

    start: makes it, given what it runs in. held: what must not be freed before its end.
    known: what its host knew.
    """

    start: Callable[[Environment], Launch]
    held: list = field(default_factory=list)
    known: Clocks = field(default_factory=dict)


class Running(Owner):
    """The launch that runs on a device now."""

    def __init__(self, node: Node, device: int, queued: Queued):
        self.node, self.device, self.held = node, device, queued.held
        self.spaces: list[Space] = []  # of the clusters that have ended
        known = node.clocks_of(device, queued.known)
        shared = Shared(node.order, node.shadow, node.locations, device, known)
        self.launch = queued.start(Environment(node.engine, owner=self, shared=shared))

    def cluster_done(self, launch: Launch, cluster) -> None:
        self.spaces.append(cluster.space)
        if cluster.gone.knowledge is not None:
            elsewhere = cluster.gone.knowledge.elsewhere.items()
            learn(self.node.known[self.device], {s: clock for s, clock in elsewhere if s.device != self.device})
        launch.start_clusters()
        self.landed(launch)

    def landed(self, launch: Launch) -> None:
        if launch.finished and not launch.under_way:
            self.node.engine.at(self.node.engine.now, partial(self.node.end, self))

    def waiting(self, launch: Launch) -> list[str]:
        return self.node.waiting(launch)


def latency(launch: Launch) -> float:
    """Return how many ticks pass before a launch starts that may: some microseconds, or by its seed any number."""
    seed = launch.schedule.seed
    return LATENCY if seed == 0 else random.Random(f"{seed}/{launch.number}").choice((0, 300, LATENCY, 10 * LATENCY))


def learn(known: Clocks, more: Clocks) -> None:
    """Add to what somebody knows."""
    for space, clock in more.items():
        mine = known.get(space)
        if mine is not clock:
            known[space] = clock if mine is None else latest(mine, clock)


class Node:
    """devices: how many. ended: is told of each launch at its end. watched: a context manager in which launches run,
    which is given what returns those.

    known: of each device, what a launch that starts there may rely on of the other ones. ends: the latest event of each
    device when its last launch ended. running: the launches, by device.
    """

    def __init__(self, devices: int, ended: Callable[[Launch], None], watched: Callable):
        self.devices, self.ended, self.watched = devices, ended, watched
        self.hosts_waiting: Callable[[], list[str]] = list  # what a hang says of the hosts
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing runs, and all that was done is known to all."""
        self.engine, self.order = Engine(), Order(self.devices)
        self.shadow = GlobalShadow(self.order, GlobalMemory(), lambda fault: None)
        self.locations: dict[int, Location] = {}
        self.queues: list[deque[Queued]] = [deque() for _ in range(self.devices)]
        self.running: dict[int, Running] = {}
        self.known: list[Clocks] = [{} for _ in range(self.devices)]
        self.ends = [0] * self.devices
        self.count = 0  # of launches that have ended
        self._mark = -1

    # -- who knows what ----------------------------------------------------------------------------------------
    def learn(self, device: int, clocks: Clocks) -> None:
        """Order what a device does from now on after these clocks, but for what has been forgotten since."""
        learn(self.known[device], {space: clock for space, clock in clocks.items() if space.order is self.order})

    def clocks_of(self, device: int, host: Clocks | None = None) -> Clocks:
        """Return what is known behind all that a device has done, and its host knew."""
        known = self.known[device]
        self.learn(device, host or {})
        return known | {self.order.histories[device]: self._history(device)}

    def _history(self, device: int) -> np.ndarray:
        """Return the clock that says that all has happened that the device's launches did, seen by every proxy.

        No fence has passed it yet: a relaxed store hands nothing of it on to another device.
        """
        space = self.order.histories[device]
        clock = np.full((space.rows, space.size), self.ends[device], np.int32)
        clock[list(SCOPES.values())] = 0
        return clock

    def meet(self, devices: list[int]) -> None:
        """Order what devices do from now on after all that each of them has done: they have waited for each other."""
        all_: Clocks = {}
        for device in devices:
            learn(all_, self.clocks_of(device))
        for device in devices:
            learn(self.known[device], all_)

    def follow(self, device: int, other: int) -> None:
        """Order what a device does from now on after all that another one has done."""
        learn(self.known[device], self.clocks_of(other))

    def knows_all(self, known: Clocks) -> bool:
        """Whether somebody knows all that the launches of all devices have done."""
        spaces = zip(self.order.histories, self.ends, strict=True)
        return all(not end or space in known and known[space][KNOWN, 1] >= end for space, end in spaces)

    def touch(self, shadow: GlobalShadow, device: int, host: Clocks, runs: np.ndarray, writes: bool, who: str) -> None:
        """A device that runs nothing reads or writes bytes by no kernel, behind all that it has done. shadow: of the
        node, whose faults somebody gets. host: what the host knows that asks for it. runs: int64 [n, 2] of one size."""
        space = Space(self.order, 1, 1, device)
        by = Actor(1, space, f"{who} on device {device}")
        by.knowledge.elsewhere = self.clocks_of(device, host)
        at, size = runs[:, 0], int(runs[0, 1] - runs[0, 0])
        if writes:
            shadow.write(at, size, by, by.key, by, GENERIC)
        else:
            shadow.read(at, size, by, by.key, by)
        self.ends[device] = space.last = self.order.now

    # -- launches ----------------------------------------------------------------------------------------------
    def idle(self, device: int) -> bool:
        """Return whether a device has run all its launches."""
        return device not in self.running and not self.queues[device]

    def enqueue(self, device: int, queued: Queued, hosts: list[Clocks]) -> None:
        """Let a launch run on a device, behind those before it. hosts: what each host knows."""
        if all(map(self.idle, range(self.devices))) and self.order.now:
            devices = (self.clocks_of(other) for other in range(self.devices))
            if all(map(self.knows_all, hosts)) or all(map(self.knows_all, devices)):
                self.forget()
        self.queues[device].append(queued)

    def end(self, one: Running) -> None:
        """The launch that runs on a device has ended."""
        if self.running.get(one.device) is not one:
            return
        del self.running[one.device]
        self.ends[one.device] = self.order.now
        for space in one.spaces:
            space.last = self.order.now
        mine = self.known[one.device]
        for history in self.order.histories:  # whoever knows that need not know its parts
            until = mine[history][KNOWN, 1] if history in mine else 0
            for space in [s for s in mine if s.device == history.device and s is not history and s.last <= until]:
                del mine[space]
        self.shadow.forget_own(one.launch.memory)
        for location in self.locations.values():
            location.forget(one.device)
        self.count += 1
        self.ended(one.launch)

    def _start(self) -> None:
        for device, queue in enumerate(self.queues):
            if queue and device not in self.running:
                self.running[device] = one = Running(self, device, queue.popleft())
                self.engine.at(self.engine.now + latency(one.launch), one.launch.start_clusters)

    def run(self, ready: Callable[[], bool]) -> bool:
        """Run launches until `ready()`, which is asked when one has ended. Returns False if none can go on before.

        Raises what stops one of them: Fault, Hang, Unsupported, Enough.
        """
        with calm(), collecting(), self.watched(lambda: [one.launch for one in self.running.values()]):
            while not ready():
                self._start()
                count, engine = self.count, self.engine
                while self.count == count:
                    if len(engine.heap) > engine.limits:
                        engine.step()
                    elif not self._stalled():
                        return False
        return True

    def _stalled(self) -> bool:
        """Where nothing is scheduled, let waits with a time limit time out, once; return whether there were any."""
        if self.engine.progress == self._mark:
            return False
        limited = [group for one in self.running.values() for group in one.launch.limited()]
        self._mark = self.engine.progress
        for group in limited:
            group.time_out()
        return bool(limited)

    def waiting(self, first: Launch | None = None) -> list[str]:
        """List who waits for what, on all devices and hosts; the warps of `first` first."""
        launches = [one.launch for one in self.running.values() if one.launch.running]
        launches.sort(key=lambda launch: (launch is not first, launch.device))
        lines = [line for launch in launches for line in launch.waiting()]
        idle = [f"device {d} runs nothing" for d in range(self.devices) if d not in self.running]
        return [*lines, *idle, *self.hosts_waiting()]
