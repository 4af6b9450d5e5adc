"""Where machine code finds memory, its shadows and the order of events, written before each turn of a warp.

It knows how those are laid out (state/shadow.py, state/order.py); what is done with them is in access.py.
"""

from __future__ import annotations

import struct
import weakref

import numpy as np

from ..state.global_memory import Region
from ..state.shadow import WORD, Shadow
from ..state.shared_memory import BASE, RANK_SHIFT, SharedMemory
from .layout import (  # noqa: I001
    B_PLACES,
    B_READS,
    B_SLOTS,
    B_WRITTEN,
    BUSY_HI,
    BUSY_LO,
    BYTES_LOADED,
    CLOSED,
    DATA,
    EVENT_COUNT,
    FIELDS,
    FLAGS,
    HI,
    LANE_TABLE,
    LO,
    NOW,
    ORIGIN,
    PLACES,
    READS,
    SETTLED,
    SHADOWED,
    SHARED,
    SLOTS,
    SPLIT,
    STORED,
    VALID,
    WANTED,
    WAS_READ,
    WRITABLE,
    WRITTEN,
    WROTE,
)  # fmt: skip
from .loops import pointer

EVENTS_OF_A_TURN = 4096
HEAD = struct.Struct("<23q")
MOVED = struct.Struct("<2q")


def _planes(window: np.ndarray, shadow: Shadow) -> None:
    words, parts = shadow.words, shadow.bytes
    window[WRITTEN], window[READS] = pointer(words.written), pointer(words.reads)
    window[SETTLED] = 0 if words.settled is None else pointer(words.settled)
    window[SLOTS], window[PLACES] = words.reads.shape
    if parts is None:
        window[SPLIT] = 0
    else:
        window[SPLIT] = pointer(shadow.split)
        window[B_WRITTEN], window[B_READS] = pointer(parts.written), pointer(parts.reads)
        window[B_SLOTS], window[B_PLACES] = parts.reads.shape


NOWHERE = np.zeros((0, FIELDS), np.int64)


class View:
    """A window that is written again only where the shadow behind it has moved.

    It does not keep that shadow, which leads to all of its launch: machine code outlives launches.
    """

    __slots__ = ("window", "seen")

    def __init__(self, window: np.ndarray):
        self.window, self.seen = window, None

    def refresh(self, shadow: Shadow | None) -> None:
        if shadow is not None:
            parts = shadow.bytes
            now = shadow.words.reads, None if parts is None else parts.reads
            if self.seen is None or now[0] is not self.seen[0] or now[1] is not self.seen[1]:
                _planes(self.window, shadow)
                self.seen = now


def shared_view(smem: SharedMemory, rank: int) -> View:
    window = np.zeros(FIELDS, np.int64)
    first = rank << RANK_SHIFT
    window[LO], window[HI], window[ORIGIN] = first + BASE, first + smem.size, first
    window[DATA], window[VALID] = pointer(smem.bytes) - first, pointer(smem.valid) - first
    window[FLAGS] = WRITABLE | (SHADOWED if smem.checks else 0)
    return View(window)


class Regions:
    """The windows of a launch's global memory."""

    def __init__(self, launch):
        self.launch = weakref.ref(launch)
        self.known: list[Region] = []
        self.table = np.zeros((0, FIELDS), np.int64)
        self.views: list[tuple[View, Region]] = []

    def refresh(self) -> np.ndarray:
        launch = self.launch()
        regions = launch.memory.regions
        if len(regions) != len(self.known) or any(a is not b for a, b in zip(regions, self.known, strict=True)):
            self._build(launch, list(regions))
        for view, region in self.views:
            view.refresh(launch.shadow.shadow_of(region))
        return self.table

    def _build(self, launch, regions: list[Region]) -> None:
        self.known, self.views = regions, []
        self.table = np.zeros((len(regions), FIELDS), np.int64)
        for window, region in zip(self.table, regions, strict=True):
            first = region.start - region.start % WORD
            window[LO], window[HI], window[ORIGIN] = region.start, region.end, first
            window[FLAGS] = 0 if region.read_only else WRITABLE
            if region.read_only and launch.checks and launch.dependencies.keeps_reads:
                window[HI] = window[LO]  # what is read of it is noted in Python
            elif not region.read_only and launch.checks:
                window[FLAGS] |= CLOSED

    def open(self, number: int) -> None:
        """Make the shadow of a region: what only copies read has none."""
        launch, region, window = self.launch(), self.known[number], self.table[number]
        dependencies = launch.dependencies
        used = dependencies.own.used(region)
        window[WROTE] = pointer(used[1])
        window[WAS_READ] = pointer(used[0]) if dependencies.keeps_reads else 0
        window[FLAGS] += SHADOWED - CLOSED
        self.views.append((View(window), region))


class Memory:
    """Holds the addresses by which a region's machine code reaches memory; written before each turn of a warp."""

    def __init__(self):
        self.events = np.zeros(EVENTS_OF_A_TURN, np.int32)
        self.events_at = pointer(self.events)
        self.context = np.zeros(0, np.int64)
        self.context_at = 0
        self.component: np.ndarray | None = None  # of the order of events that `of_order` is about
        self.of_order: tuple[int, ...] = ()
        self.history: tuple[np.ndarray, np.ndarray] | None = None  # with several devices: see Order and Actor
        self.regions: Regions | None = None
        self.shared = weakref.WeakKeyDictionary()

    def begin(self, g, shared: bool) -> int:
        """Fill the context for a group; returns its address. shared: whether it will look at shared memory."""
        launch, actor = g.launch, g.warp.actor
        if self.regions is None or self.regions.launch() is not launch:
            self.regions = Regions(launch)
        dependencies = launch.dependencies
        if dependencies.before if g.warp.depends else dependencies.after:
            table = NOWHERE  # launches before are still in the way: Python asks them
        else:
            table = self.regions.refresh()
        size = SHARED + FIELDS * (1 + len(table))
        context = self.context
        if len(context) != size:
            context = self.context = np.zeros(size, np.int64)
            self.context_at = pointer(context)
        context[SHARED + FIELDS :] = table.ravel()
        if shared:
            context[SHARED : SHARED + FIELDS] = self._shared(g.cta)
        order, clock = actor.order, actor.knowledge.clock
        if self.component is not order.component:
            self.component = order.component
            self.of_order = len(order.component) - 1, *map(pointer, (order.component, order.space, order.marks))
        head = launch.checks, order.now, *self.of_order, pointer(clock), clock.shape[1], actor.uid, actor.space.index
        self.history = (order.devices_by_space(), actor.history()) if order.histories else None
        devices, until = map(pointer, self.history) if self.history else (0, 0)
        mask = (1 << g.n) - 1
        tail = self.events_at, 0, EVENTS_OF_A_TURN, 0, len(table), 0, mask, 0, devices, until, 0, 0, pointer(g.lanes)
        HEAD.pack_into(context, 0, *head, *tail)
        return self.context_at

    def _shared(self, cta) -> np.ndarray:
        """The window of a CTA's shared memory as it is now."""
        smem = cta.smem
        view = self.shared.get(smem)
        if view is None:
            view = self.shared[smem] = shared_view(smem, cta.rank)
        view.refresh(smem.shadow)
        window = view.window
        lo, hi = smem.busy_range()
        first = cta.rank << RANK_SHIFT
        window[BUSY_LO], window[BUSY_HI] = first + lo, first + hi
        window[HI] = first + (0 if smem.absent else smem.size)
        window[LANE_TABLE] = pointer(smem.lanes.table) if smem.lanes else 0
        return window

    def finish(self, g, origin) -> None:
        """Take over what has happened. origin: names the instruction of an entry of the events."""
        context = self.context
        if context[WANTED]:
            place = (int(context[WANTED]) - self.context_at) // context.itemsize
            self.regions.open((place - SHARED - FIELDS) // FIELDS)
        loaded, stored = MOVED.unpack_from(context, BYTES_LOADED * context.itemsize)
        if loaded or stored:
            g.clock.global_bytes(loaded, stored)
        count = int(context[EVENT_COUNT])
        if count:
            order = g.warp.actor.order
            order.now = int(context[NOW])
            entries = self.events[:count].tolist()
            named = {e: origin(g, e) for e in set(entries)}
            order.log.extend([named[e] for e in entries])
            g.warp.actor.unfenced |= g.lanes_at(int(context[STORED]))
            g.engine.changes += context[STORED] != 0
