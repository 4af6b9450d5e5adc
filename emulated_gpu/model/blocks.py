"""Tells a trace what each block of a timed run took, and what accesses to memory added to that, by instruction."""

from __future__ import annotations

import sys

import numpy as np

SECTOR = 32  # bytes that the L2 gives at once: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"


def tell(clock, trace) -> None:
    """Have the methods of a model.clock.Clock tell a Trace what they add to the time of a group of lanes."""
    added: dict[object, float] = {}  # group -> what accesses have added to the block that it executes

    def told(name: str, reason: str, took=None):
        """took(addresses, size): what an access takes and what it would take at least, if it has lanes."""
        method = getattr(clock, name)

        def access(group, *args, **options):
            before = group.t
            result = method(group, *args, **options)
            cycles = group.t - before
            units = took(*args[:2]) if took and isinstance(args[0], np.ndarray) and len(args[0]) > 1 else None
            scattered = units and units[0] > units[1]
            if cycles > 0 or scattered:
                line = line_of(group)
                if cycles > 0:
                    trace.spend(group, reason, cycles, line)
                    added[group] = added.get(group, 0.0) + cycles
                if scattered:
                    trace.scattered(group, line, reason, *units)
            return result

        setattr(clock, name, access)

    told("global_load", "global loads", sectors)
    told("global_store", "global stores", sectors)
    told("shared_access", "shared memory", clock.wavefronts_of)
    told("matrix_load", "shared memory", clock.wavefronts_of)
    told("parameter_load", "parameters")
    told("constant_load", "constants")
    told("atomic", "atomics")
    told("cluster_access", "shared memory of other CTAs")
    told("landed", "cp.async, tcgen05.st")
    execute = clock.executed

    def executed(group, cost):
        code, fetched = clock.sms[group.cta.sm].code, 0.0
        if (group.program, group.pc) not in code:
            fetched = clock.code_cycles * cost.size
        end = execute(group, cost)
        fetched = min(fetched, end - group.t)
        if fetched > 0:
            trace.spend(group, "instruction fetch", fetched)
        trace.spend(group, "issue", end - group.t - fetched)
        rest = group.t - group.begun - added.pop(group, 0.0)
        if rest > 0:
            trace.spend(group, "fences and the like", rest)
        return end

    clock.executed = executed


def line_of(group) -> int:
    """The line of a block's Python at which a group of lanes is; 0 where machine code executes it."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(group.program.source_name):
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def sectors(addresses: np.ndarray, size: int) -> tuple[int, int]:
    """How many sectors lanes touch that access `size` bytes each, and how many would hold as much."""
    if int(addresses[-1] - addresses[0]) == (len(addresses) - 1) * size and (addresses[1:] > addresses[:-1]).all():
        return 1, 1  # side by side
    asked = np.unique(addresses)
    return len(np.unique(asked // np.uint64(SECTOR))), -(-len(asked) * size // SECTOR)
