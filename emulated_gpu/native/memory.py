"""Where machine code finds memory, its shadows and the order of events, written before each turn of a warp.

It knows how those are laid out (state/shadow.py, state/order.py); what is done with them is in access.py.
"""

from __future__ import annotations

import operator
import struct
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..jit.happens_before import told
from ..jit.llvm import LANES
from ..jit.rules import pointer
from ..state.global_memory import Region
from ..state.order import KNOWN, Turn
from ..state.shadow import Shadow
from ..state.shared_memory import BASE, RANK_SHIFT, SharedMemory
from . import context_fields as of
from .access import access_local, begin_copy

EVENTS_OF_A_TURN = 4096
HEAD, CHANGING = struct.Struct(f"<{of.SHARED}q"), struct.Struct("<6q")  # of a context, of shared memory's window
COPIES_OF_A_TURN = 1024  # more than a region has instructions (hot_blocks.py); only rows that are used take memory
# Of each program where the last regions begin that it has looked at: the next launch has their shadows from the start
_opened: weakref.WeakKeyDictionary[Any, deque[int]] = weakref.WeakKeyDictionary()


class View:
    """A window of memory, which is written again only where the shadow behind it has moved.

    It does not keep that shadow, which leads to all of its launch: machine code outlives launches.
    """

    __slots__ = ("window", "seen")

    def __init__(self, window: np.ndarray):
        self.window = window
        self.seen: tuple[np.ndarray, np.ndarray | None] | None = None  # where the shadow has what was read

    def follow(self, shadow: Shadow) -> None:
        window, words, parts = self.window, shadow.words, shadow.bytes
        now = words.reads, None if parts is None else parts.reads
        if self.seen is not None and now[0] is self.seen[0] and now[1] is self.seen[1]:
            return
        self.seen = now
        window[of.WRITTEN], window[of.READS] = pointer(words.written), pointer(words.reads)
        window[of.SETTLED] = 0 if words.settled is None else pointer(words.settled)
        window[of.SLOTS], window[of.PLACES] = words.reads.shape
        window[of.SPLIT] = pointer(shadow.split)
        if parts is not None:
            window[of.B_WRITTEN], window[of.B_READS] = pointer(parts.written), pointer(parts.reads)
            window[of.B_SLOTS], window[of.B_PLACES] = parts.reads.shape


class SharedView(View):
    """The window of a CTA's shared memory, as all machine code sees it. It does not keep that either."""

    __slots__ = ("first", "table", "write")

    def __init__(self, smem: SharedMemory):
        super().__init__(np.zeros(of.FIELDS, np.int64))
        window, self.first = self.window, smem.rank << RANK_SHIFT
        window[of.LO], window[of.ORIGIN] = self.first + BASE, self.first
        window[of.DATA], window[of.VALID] = pointer(smem.bytes) - self.first, pointer(smem.valid) - self.first
        window[of.FLAGS], window[of.IN_FLIGHT] = of.WRITABLE | (of.SHADOWED if smem.checks else 0), pointer(smem.busy)
        self.table = 0 if smem.lanes is None else pointer(smem.lanes.table)
        self.write = partial(CHANGING.pack_into, window.data, 8 * of.HI)

    def refresh(self, smem: SharedMemory) -> np.ndarray:
        """The window as it is now."""
        if smem.shadow is not None:
            smem.shadow.words.fit()
            self.follow(smem.shadow)
        first, (lo, hi) = self.first, smem.busy_range()
        end, table = first + (0 if smem.absent else smem.size), self.table if smem.lanes is not None else 0
        self.write(end, first + lo, first + hi, first + smem.barriers_start, first + smem.barriers_end, table)
        return self.window


class Context:
    """The numbers of context_fields.py, in a launch: of a warp, and the windows of its shared and of global memory."""

    def __init__(self, launch):
        self.launch: Callable[[], Any] = weakref.ref(launch)  # alive as long as its machine code runs
        self._build(launch, [])

    def refresh(self) -> None:
        """Have the windows of global memory as they are now."""
        launch = self.launch()
        regions = launch.memory.regions
        if len(regions) != len(self.known) or not all(map(operator.is_, regions, self.known)):
            self._build(launch, list(regions))
        for view, region in self.views:
            view.follow(launch.shadow.shadow_of(region))

    def _build(self, launch, regions: list[Region]) -> None:
        self.known = regions
        self.views: list[tuple[View, Region]] = []
        self.numbers = np.zeros(of.SHARED + of.FIELDS * (1 + len(regions)), np.int64)
        self.at, self.head = pointer(self.numbers), self.numbers.data
        self.shared = self.numbers[of.SHARED : of.SHARED + of.FIELDS]
        self.table = self.numbers[of.SHARED + of.FIELDS :].reshape(-1, of.FIELDS)
        for window, region in zip(self.table, regions, strict=True):
            window[of.LO], window[of.HI], window[of.ORIGIN] = region.start, region.end, region.origin
            window[of.FLAGS] = 0 if region.read_only else of.WRITABLE
            if region.read_only and launch.checks and launch.dependencies.keeps_reads:
                window[of.HI] = window[of.LO]  # what is read of it is noted in Python
            elif not region.read_only and launch.checks:
                window[of.FLAGS] |= of.CLOSED
        known = _opened.setdefault(launch.program, deque(maxlen=8))
        for number, region in enumerate(regions):
            if region.start in known and self.table[number, of.FLAGS] & of.CLOSED:
                self.open(number)

    def open(self, number: int) -> None:
        """Make the shadow of a region: what only copies read has none."""
        launch, region, window = self.launch(), self.known[number], self.table[number]
        dependencies = launch.dependencies
        used = dependencies.own.used(region)
        window[of.WROTE] = pointer(used[1])
        window[of.WAS_READ] = pointer(used[0]) if dependencies.notes_reads else 0
        window[of.FLAGS] += of.SHADOWED - of.CLOSED
        self.views.append((View(window), region))
        if region.start not in _opened[launch.program]:
            _opened[launch.program].append(region.start)


EVERY_LANE = np.arange(LANES)


class Memory:
    """Holds the addresses by which a region's machine code reaches memory; written before each turn of a warp. forms:
    of accesses, which say what these look at; local_memory: gives a warp's."""

    def __init__(self, forms, local_memory: Callable):
        self.local_memory, rules = local_memory, {form.rule for form in forms}
        self.uses_shared = any(form.shared for form in forms)
        self.uses_copies, self.uses_local = begin_copy in rules, access_local in rules
        self.events = np.zeros(EVENTS_OF_A_TURN, np.int32)
        self.copies = np.zeros((COPIES_OF_A_TURN, of.COPY), np.int64)
        self.events_at, self.copies_at = pointer(self.events), pointer(self.copies)
        self.every_lane = pointer(EVERY_LANE)
        self.past: tuple[np.ndarray, np.ndarray] | None = None  # which the context points to
        self.context: Context | None = None

    def begin(self, g) -> int:
        """Fill the context for a group; returns its address."""
        launch, actor, context = g.launch, g.warp.actor, self.context
        if context is None or context.launch() is not launch:
            context = self.context = Context(launch)
        dependencies = launch.dependencies
        if dependencies.before if g.warp.depends else dependencies.after:
            regions = 0  # launches before are still in the way: Python asks them
        else:
            context.refresh()
            regions = len(context.table)
        if self.uses_shared:
            smem = g.cta.smem
            if smem.window is None:
                smem.window = SharedView(smem)
            context.shared[:] = smem.window.refresh(smem)
        copier = actor.copier()[1] if self.uses_copies else 0
        local = self.local_memory(g, 1) if self.uses_local else None
        order = actor.order
        numbers, self.past = told(order, actor.space, actor, KNOWN)
        lanes = self.every_lane if g.n == LANES else pointer(g.lanes)
        HEAD.pack_into(
            context.head, 0, *numbers, launch.checks, order.now, len(order.component) - 1, actor.uid,
            self.events_at, 0, EVENTS_OF_A_TURN,
            0, regions, 0, (1 << g.n) - 1, 0, 0, 0, lanes, copier, self.copies_at, 0, COPIES_OF_A_TURN,
            *(0, 0, 0, 0) if local is None else (pointer(local), pointer(g.warp.local_written), local.shape[1], 0), 0,
        )  # fmt: skip
        return context.at

    def finish(self, g, origin) -> np.ndarray | None:
        """Take over what has happened. origin: see state/order.py, Turn.

        Returns the rows of copies that have begun, which the caller is to take over, too.
        """
        context = self.context
        assert context is not None  # of `begin`
        numbers = HEAD.unpack_from(context.head)
        if numbers[of.WANTED]:
            place = (numbers[of.WANTED] - context.at) // context.numbers.itemsize
            context.open((place - of.SHARED - of.FIELDS) // of.FIELDS)
        if numbers[of.LOCAL_STORED]:
            g.engine.changes += 1
        g.clock.global_bytes(numbers[of.BYTES_LOADED], numbers[of.BYTES_STORED], numbers[of.BYTES_COPIED])
        if count := numbers[of.EVENT_COUNT]:
            actor, now = g.warp.actor, numbers[of.NOW]
            actor.order.now = now
            actor.order.log += [Turn(actor, now - count + 1, self.events[:count].copy(), origin)] * count
            if stored := numbers[of.STORED]:
                actor.unfenced |= g.lanes_at(stored)
                g.engine.changes += 1
        if not numbers[of.COPY_COUNT]:
            return None
        return self.copies[: numbers[of.COPY_COUNT]].copy()
