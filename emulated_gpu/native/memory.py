"""Where machine code finds memory, its shadows and the order of events, written before each turn of a warp.

It knows how those are laid out (state/shadow.py, state/order.py); what is done with them is in access.py.
"""

from __future__ import annotations

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
from ..state.order import KNOWN, Turn
from ..state.shared_memory import BASE, RANK_SHIFT, SharedMemory
from . import context_fields as of
from .access import access_local, begin_copy

# A context: all of it, what machine code writes; what changes of the window of shared memory
CONTEXT, WRITES = struct.Struct(f"<{of.COPY_COUNT}q{8 * of.WRITTEN}s"), struct.Struct(f"<{1 + of.WRITTEN}q")
CHANGING = struct.Struct(f"<{of.FIELDS - of.HI}q")
COPIES_OF_A_TURN = 1024  # more than a region has instructions (hot_blocks.py); only rows that are used take memory
EVERY_LANE = np.arange(LANES)
# Of each program where the last regions begin that it has looked at: the next launch has their shadows from the start
_opened: weakref.WeakKeyDictionary[Any, deque[int]] = weakref.WeakKeyDictionary()


class SharedWindow:
    """The window of a CTA's shared memory. It does not keep that, which keeps it."""

    def __init__(self, smem: SharedMemory):
        self.window = window = np.zeros(of.FIELDS, np.int64)
        self.first = smem.rank << RANK_SHIFT
        window[of.LO], window[of.ORIGIN] = self.first + BASE, self.first
        window[of.DATA], window[of.VALID] = pointer(smem.bytes) - self.first, pointer(smem.valid) - self.first
        window[of.FLAGS], window[of.IN_FLIGHT] = of.WRITABLE | (of.SHADOWED if smem.checks else 0), pointer(smem.busy)
        window[of.SHADOW] = 0 if smem.shadow is None else pointer(smem.shadow.told)
        self.at, self.table = pointer(window), 0 if smem.lanes is None else pointer(smem.lanes.table)
        self.write = partial(CHANGING.pack_into, window.data, 8 * of.HI)
        self.extents: tuple | None = None  # which are in the window

    def refresh(self, smem: SharedMemory) -> int:
        """Have the window as it is now; returns its address."""
        if smem.shadow is not None and (words := smem.shadow.words).room.slots > len(words.reads):
            words.fit()
        if (extents := smem.extents()) is not self.extents:
            self.extents, first = extents, self.first
            self.write(*[first + at for at in extents], self.table if smem.lanes is not None else 0)
        return self.at


def window_of(smem: SharedMemory) -> SharedWindow:
    if smem.window is None:
        smem.window = SharedWindow(smem)
    return smem.window


class Windows:
    """The windows of the regions of global memory in a launch, as long as its shadows are the same."""

    def __init__(self, launch):
        self.regions, self.forgotten = launch.memory.regions, launch.order.forgotten
        self.table = np.zeros((len(self.regions), of.FIELDS), np.int64)
        self.at = pointer(self.table)
        known = _opened.setdefault(launch.program, deque(maxlen=8))
        for number, (window, region) in enumerate(zip(self.table, self.regions, strict=True)):
            window[of.LO], window[of.HI], window[of.ORIGIN] = region.start, region.end, region.origin
            window[of.FLAGS] = 0 if region.read_only else of.WRITABLE
            if region.read_only and launch.checks and launch.dependencies.keeps_reads:
                window[of.HI] = window[of.LO]  # what is read of it is noted in Python
            elif not region.read_only and launch.checks:
                window[of.FLAGS] |= of.CLOSED
                if region.start in known:
                    self.open(launch, number)

    def open(self, launch, number: int) -> None:
        """Make the shadow of a region: what only copies read has none."""
        region, window, dependencies = self.regions[number], self.table[number], launch.dependencies
        used = dependencies.own.used(region)
        window[of.SHADOW], window[of.WROTE] = pointer(launch.shadow.shadow_of(region).told), pointer(used[1])
        window[of.WAS_READ] = pointer(used[0]) if dependencies.notes_reads else 0
        window[of.FLAGS] += of.SHADOWED - of.CLOSED
        if region.start not in _opened[launch.program]:
            _opened[launch.program].append(region.start)


def windows_of(launch) -> tuple[int, int]:
    """Where the windows of global memory are as they are now, and how many."""
    windows, regions = launch.windows, launch.memory.regions
    if windows is None or windows.regions is not regions or windows.forgotten != launch.order.forgotten:
        windows = launch.windows = Windows(launch)
    return windows.at, len(regions)


class Memory:
    """Holds the addresses by which a region's machine code reaches memory; written before each turn of a warp. forms:
    of accesses, which say what these look at; local_memory: gives a warp's."""

    def __init__(self, forms, local_memory: Callable):
        self.local_memory, rules = local_memory, {form.rule for form in forms}
        self.uses_shared = any(form.shared for form in forms)
        self.uses_copies, self.uses_local = begin_copy in rules, access_local in rules
        self.copies = np.zeros((COPIES_OF_A_TURN, of.COPY), np.int64)
        self.every_lane = pointer(EVERY_LANE)
        self.past: tuple[np.ndarray, np.ndarray] | None = None  # which the context points to
        context = np.zeros(of.COPY_ROOM + 1, np.int64)
        context[of.COPIES :] = pointer(self.copies), COPIES_OF_A_TURN
        self.at, self.write = pointer(context), partial(CONTEXT.pack_into, context.data, 0)
        self.written = partial(WRITES.unpack_from, context.data, 8 * of.NOW)

    def begin(self, g) -> int:
        """Fill the context for a group; returns its address."""
        launch, warp = g.launch, g.warp
        actor, dependencies = warp.actor, launch.dependencies
        order, windows, shared, local = actor.order, (0, 0), 0, (0, 0, 0)
        if not (dependencies.before if warp.depends else dependencies.after):  # else Python asks the launches before
            windows = windows_of(launch)
        if self.uses_shared:
            shared = window_of(g.cta.smem).refresh(g.cta.smem)
        if self.uses_local:
            memory = self.local_memory(g, 1)
            local = pointer(memory), pointer(warp.local_written), memory.shape[1]
        numbers, self.past = told(order, actor.space, actor, KNOWN)
        self.write(
            *numbers, launch.checks, order.steps_at, len(order.steps) - 1, actor.uid,
            self.every_lane if g.n == LANES else pointer(g.lanes), (1 << g.n) - 1,
            actor.copier()[1] if self.uses_copies else 0, *local, shared, *windows, order.now, b"",
        )  # fmt: skip
        return self.at

    def finish(self, g, origin) -> np.ndarray | None:
        """Take over what has happened. origin: see state/order.py, Turn.

        Returns the rows of copies that have begun, which the caller is to take over, too.
        """
        now, copies, stored, _, wanted, *moved, local_stored = self.written()
        if wanted:
            windows = g.launch.windows
            windows.open(g.launch, (wanted - windows.at) // windows.table.strides[0])
        g.clock.global_bytes(*moved)
        actor = g.warp.actor
        if events := now - actor.order.now:
            actor.order.now = now
            actor.order.log += [Turn(actor, origin)] * events
            if stored:
                actor.unfenced |= g.lanes_at(stored)
        if local_stored or events and stored:
            g.engine.changes += 1
        return self.copies[:copies].copy() if copies else None
