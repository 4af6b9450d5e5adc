"""What accesses take that are neither plain loads and stores nor the TMA unit's: cp.async, atomics, other CTAs' shared
memory, constants (timing only, no data). charges.py has the table of all.

Measured on an H200 and alike on an H100 (silicon/probes/accesses.py). A cp.async asks for memory as a load does and
comes a little sooner. An atomic is done in the half of the L2 that is the line's home, or, in shared memory, where the
word is: by integers once for all lanes that are at one word, where nothing is returned; by floats, exch and cas lane
by lane. Shared memory has no adder of floats: ptxas makes a loop of compare-and-swap. Loads and stores of other CTAs'
shared memory leave an SM at a sixth of the rate at which it reads its own.
"""

from __future__ import annotations

import numpy as np

SECTOR = 32  # bytes of a line that the L2 gives or writes at once
CONSTANT_LINE = 64  # bytes
COMBINED = {"add", "min", "max", "and", "or", "xor", "inc", "dec"}  # done once for lanes at one word, if of integers


def in_floats(kind: str) -> bool:
    """Tell whether numbers of this PTX type are floats: f32, f16x2, bf16, ..."""
    return kind.startswith(("f", "bf"))


def copy(clock, group, addresses: np.ndarray, size: int) -> float:
    """Return when lanes' cp.async of `size` bytes each, from these addresses, have landed."""
    unit, sm = clock.p["sm"], clock.sms[group.cta.sm]
    lines, sectors = clock.lines_at(addresses), len(np.unique(addresses // np.uint64(SECTOR)))
    moved = sectors * SECTOR
    wavefronts = len(lines) if moved > len(addresses) * size else 1
    sm.asked = max(sm.asked, group.t) + max(wavefronts * unit["store_instruction_cycles"], unit["copy_cycles"])
    first, done = clock.memory.read(sm.asked, lines, moved, sm.half, group.cta.sm)
    sm.copied = max(sm.copied, first) + moved / unit["copy_bytes_per_cycle"]
    landing = max(done, sm.copied) + unit["load_cycles"]
    sm.come = max(sm.come, landing)
    clock.trace.copy(group, "load", group.t, landing, len(addresses) * size)
    return landing


def atomic(clock, group, space: str, addresses: np.ndarray, size: int, what: str, kind: str, returns: bool) -> None:
    """Lanes, at an address each, execute an atomic of this many bytes, or a reduction, which returns nothing."""
    places, lanes = np.unique(addresses, return_counts=True)
    most = int(lanes.max())
    if space == "global":
        turns = 1 if what in COMBINED and not in_floats(kind) else most
        return _global_atomic(clock, group, places, size, turns, returns)
    return _shared_atomic(clock, group, places, size, most, what, kind, returns)


def _global_atomic(clock, group, places: np.ndarray, size: int, turns: int, returns: bool) -> None:
    figures, unit, sm = clock.p["atomic"], clock.p["sm"], clock.sms[group.cta.sm]
    lines = clock.lines_at(places)
    if returns:
        again = figures["turn_cycles"]
        busy = figures["instruction_cycles"] + len(lines) * figures["line_cycles"]
    else:
        again = figures["reduction_turn_cycles"]
        rate, line = figures["reduction_bytes_per_cycle"], figures["reduction_line_cycles"]
        busy = max(len(places) * size / rate, len(lines) * line)
    sm.egress = max(sm.egress, group.t) + busy + (turns - 1) * again
    taken, done = clock.memory.combine(sm.egress, lines, len(places) * size, sm.half, turns * figures["word_cycles"])
    sm.egress = max(sm.egress, taken - unit["store_queue_cycles"])
    sm.stored_since_fence, sm.drained = True, max(sm.drained, taken)
    group.t = max(group.t, sm.egress - unit["store_queue_cycles"])
    group.launch.last_store = max(group.launch.last_store, done)
    if returns:
        come = done + unit["load_cycles"] + figures["latency_cycles"]
        sm.come = max(sm.come, come)
        group.fetched[group.fetching] = come


def _shared_atomic(clock, group, places: np.ndarray, size: int, most: int, what: str, kind: str, returns: bool) -> None:
    """most: lanes at one word."""
    figures, sm = clock.p["atomic"], clock.sms[group.cta.sm]
    words = clock.wavefronts_of(places, size)[0]
    if in_floats(kind):
        busy, later = most * figures["shared_loop_busy_cycles"], 0.0
    elif what not in COMBINED:
        busy, later = most * figures["shared_swap_busy_cycles"], (most - 1) * figures["shared_swap_cycles"]
    else:
        busy, later = (most, (most - 1) * figures["shared_turn_cycles"]) if returns else (1, 0.0)
    passed = sm.shared.access(group.begun, max(busy, words))
    if in_floats(kind):  # its loop keeps the warp
        group.t += most * figures["shared_loop_cycles"]
    if returns:
        group.fetched[group.fetching] = max(passed, group.t + later)
    group.t = max(group.t, passed - clock.p["sm"]["shared_queue_cycles"])


def cluster_access(clock, group, addresses: np.ndarray, size: int, loads: bool) -> None:
    """Lanes access shared memory of other CTAs, `size` bytes each; loads: something comes back."""
    sync, sm = clock.p["sync"], clock.sms[group.cta.sm]
    rate = sync["cluster_load_bytes_per_cycle" if loads else "cluster_bytes_per_cycle"]
    sm.far = max(sm.far, group.t) + len(np.unique(addresses)) * size / rate
    if loads:
        group.fetched[group.fetching] = sm.far + sync["cluster_load_cycles"]
    group.t = max(group.t, sm.far - clock.p["sm"]["store_queue_cycles"])


def constant(clock, group, addresses: np.ndarray) -> None:
    """Lanes load constants: one word after the other, and lines that the SM has not read yet from farther away.

    Loads of one block are taken to be under way together.
    """
    unit, sm = clock.p["sm"], clock.sms[group.cta.sm]
    words = np.unique(addresses)
    busy = (len(words) - 1) * unit["constant_turn_cycles"]
    new = set(np.unique(words // np.uint64(CONSTANT_LINE)).tolist()) - sm.constant_memory
    if new:
        sm.constant_memory |= new
        under_way, sm.constant_since = sm.constant_since == (group, group.begun), (group, group.begun)
        busy = max(busy, (len(new) - (not under_way)) * unit["constant_line_cycles"])
        group.t += 0.0 if under_way else unit["constant_memory_cycles"]
    group.t += busy
