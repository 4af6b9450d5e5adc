"""Address spaces, loads, stores, atomics of the lanes of a group (PTX ISA 5.1, 9.7.9.8-12, 9.7.13.13-14)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..errors import Fault, ResultsDecide, Unsupported
from ..formats import alu, convert, element_types, fragments, tensormap
from ..ptx.syntax import TYPE_BITS
from ..state.lanes import SEVERAL
from ..state.order import GENERIC, STRONG, SYSTEM, Location, handed_over
from ..state.shared_memory import OFFSET_MASK, RANK_SHIFT, Places
from .addresses import active, pick, shared_cta, state_space
from .barriers import barrier_at, landed, pass_dependency
from .fences import handed_on, publish
from .group import LaneGroup, Meeting
from .tensor_maps import descriptor_bytes

NON_COHERENT = "ld.global.nc"
ELEMENT = {1: 16, 2: 16, 4: 32, 8: 64, 16: 128}  # bytes of an element -> bits of the register that holds it


def note_global(
    g: LaneGroup, addresses, size: int, write: bool, origin, key=None, marks: int = GENERIC, changed=None, idle=None
):
    """Lanes access `size` bytes at addresses (an array or one) of global memory.

    key: the component whose event it is, if not the warp's own; marks, changed: see state/order.py, state/shadow.py;
    idle: see GlobalShadow.write.
    """
    dependencies, tracked = g.launch.dependencies, g.launch.tracked
    if tracked is not None and write:
        tracked.write(np.atleast_1d(np.asarray(addresses, np.uint64)), size)
    if not (g.launch.checks or dependencies.before):
        return
    addresses = np.atleast_1d(addresses)
    if dependencies.wants(g, write):
        dependencies.note(g, addresses, size, write, bool(marks & STRONG))
    if not g.launch.checks:
        return
    shadow, actor = g.launch.shadow, g.warp.actor
    if write:
        if key is None:
            actor.unfenced |= g.lane_mask
        shadow.write(addresses, size, actor, key or actor.key, origin, marks, changed, idle)
    else:
        shadow.read(addresses, size, actor, key or actor.key, origin, marks)


def _locations(g: LaneGroup, space: str, addresses):
    """Yield what strong accesses to these addresses release to or acquire from: by address, and the address."""
    if space == "global" and g.launch.shadow.apart:
        raise Unsupported("a strong access to global memory, by an instruction that is not known to make one")
    for address in np.unique(np.atleast_1d(np.asarray(addresses, np.uint64))).tolist():
        if space == "shared":
            cta, address = shared_cta(g, address)
            yield cta.smem.locations, address
        else:
            yield g.launch.locations, address


def _acquire(g: LaneGroup, space: str, addresses, scope: str = "gpu", ordered: bool = True):
    if g.launch.checks and space in ("shared", "global"):
        for places, address in _locations(g, space, addresses):
            if address in places:
                places[address].acquire(g.warp.actor, g.cta, scope, ordered)
                g.warp.stores.kept.clear()


def _release(g: LaneGroup, space: str, addresses, sync: str, mask):
    """sync: the scope of a strong write, with + if it releases."""
    if g.launch.checks and space in ("shared", "global"):
        if "+" in sync:
            publish(g, mask)
        if sync.startswith("sys"):
            g.launch.dependencies.own.signals = True
        if handed := handed_over(g.warp.actor, sync.rstrip("+"), g.cta, "+" in sync):
            for places, address in _locations(g, space, addresses):
                (places.get(address) or places.setdefault(address, Location())).release(handed)


# -- loads -------------------------------------------------------------------------------------------------
def load(
    g: LaneGroup, space: str, address, size: int, count: int, mask, strong: bool | str = False, nc: bool = False
):
    """count values: ints or arrays [n] (zero where masked). strong: volatile, relaxed or acquire; "sys" or "sys+" where
    that is at the scope of the system, with + if it acquires. nc: by the non-coherent cache."""
    space, address = state_space(space, address, mask)
    who = g.origin("load") if g.launch.checks and space in ("shared", "global") else None
    if not alu.is_array(address) and space != "local" and mask is True:
        if (address % (size * count)) and count > 1:
            raise Fault("misaligned", f"vector read of {size * count} bytes at {address:#x}")
        if space == "shared" and (count > 1 or size == 16):  # one event, as that of lanes
            elements = side_by_side(np.array([address], np.uint64), size, count)
            loaded = tuple(gather(g, space, elements, size, None, strong, who).tolist())
        else:
            loaded = tuple(load_one(g, space, address + k * size, size, strong, who) for k in range(count))
        _loaded(g, space, address, size * count, strong, who, SEVERAL if g.n > 1 else g.lanes, NON_COHERENT * nc)
        return loaded
    addresses = g.lane_array(address, 64).astype(np.uint64)
    lanes = None if mask is True else np.flatnonzero(mask)
    if lanes is not None:
        if not len(lanes):
            return (0,) * count
        addresses = addresses[lanes]
    if count > 1 and int(np.bitwise_or.reduce(addresses)) % (size * count):
        raise Fault("misaligned", f"vector read of {size * count} bytes at {int(addresses.max()):#x}")
    out: list[np.ndarray] = []
    for values in gather(g, space, side_by_side(addresses, size, count), size, lanes, strong, who).reshape(count, -1):
        if lanes is not None:
            whole = np.zeros(g.n, values.dtype)
            whole[lanes] = values
            values = whole
        out.append(values.astype(alu.U[ELEMENT[size]], copy=False))
    who_loads = g.lanes if lanes is None else g.lanes[lanes]
    _loaded(g, space, addresses, size * count, strong, who, who_loads, NON_COHERENT * nc)
    if g.n == 1:
        return tuple(int(v[0]) for v in out)
    return tuple(out)


def _shared_access(g: LaneGroup, addresses, size: int, loads: bool) -> None:
    """Tell the clock that lanes load or store `size` bytes each, some perhaps in another CTA's shared memory."""
    if _elsewhere(g, addresses):
        return g.clock.cluster_access(g, np.atleast_1d(np.asarray(addresses, np.uint64)), size, loads)
    return g.clock.shared_access(g, addresses, size)


def _elsewhere(g: LaneGroup, addresses) -> bool:
    """Tell whether some of these shared addresses lie in another CTA of the cluster."""
    if len(g.cta.cluster.ctas) == 1:
        return False
    return bool((np.asarray(addresses, np.uint64) >> np.uint64(RANK_SHIFT) != g.cta.rank).any())


def _own_offsets(g: LaneGroup, addresses: np.ndarray) -> np.ndarray | None:
    """Where shared addresses lie in the CTA's own memory, for its check of lanes; None where none is made."""
    if g.launch.checks and 0 not in (addresses >> np.uint64(RANK_SHIFT) == g.cta.rank).tobytes():
        return addresses & np.uint64(OFFSET_MASK)
    return None


def _lanes_store(g: LaneGroup, addresses: np.ndarray, size: int, values: tuple, lanes: np.ndarray) -> None:
    """Lanes are about to store values of `size` bytes, one behind the other, to shared memory."""
    smem, offsets = g.cta.smem, _own_offsets(g, addresses)
    if offsets is not None:

        def changed() -> np.ndarray:
            places = (offsets // np.uint64(size)).astype(np.int64)
            old = (smem.views[size][places + k] for k in range(len(values)))
            return np.logical_or.reduce([a != (v & alu.MASK[8 * size]) for a, v in zip(old, values, strict=True)])

        smem.lanes_access(offsets, size * len(values), lanes, g.warp.actor, True, changed)


def side_by_side(addresses: np.ndarray, size: int, count: int) -> np.ndarray:
    """Return the addresses of all first elements, of all second ones, ...: [count * lanes]."""
    if count == 1:
        return addresses
    return (addresses + np.arange(0, count * size, size, dtype=np.uint64)[:, None]).ravel()


def _loaded(
    g: LaneGroup, space: str, addresses, size: int, strong: bool | str, who: object, lanes: np.ndarray | int, nc: str
):
    """Note what lanes have loaded; SEVERAL lanes from one address. nc: by what, if by the non-coherent cache."""
    if space == "global":
        if g.launch.tracked is not None:
            g.follow_load(np.atleast_1d(np.asarray(addresses, np.uint64)), size, lanes)
        if nc and g.launch.checks:
            g.launch.shadow.read_non_coherent(np.atleast_1d(addresses), size, nc)
        if g.warp.stores.kept and g.launch.checks:
            g.warp.stores.look(g, np.atleast_1d(np.asarray(addresses, np.uint64)), size, lanes)
        if not strong:
            note_global(g, addresses, size, False, who)
        elif g.launch.checks:
            if (dependencies := g.launch.dependencies).wants(g, False):
                dependencies.note(g, np.atleast_1d(addresses), size, False, True)
            g.launch.shadow.observe(np.atleast_1d(addresses), size, g.warp.actor, who, strong is not True)
        g.clock.global_load(g, np.atleast_1d(addresses), size, bool(strong))
    elif space == "const":
        if (dependencies := g.launch.dependencies).wants(g, False):
            dependencies.note(g, np.atleast_1d(addresses), size, False)
        g.clock.constant_load(g, np.atleast_1d(addresses))
    elif space == "shared":
        _shared_access(g, addresses, size, True)
        if not strong and (offsets := _own_offsets(g, np.atleast_1d(np.asarray(addresses, np.uint64)))) is not None:
            g.cta.smem.lanes_access(offsets, size, lanes, g.warp.actor, False)
    elif space == "param":
        g.clock.parameter_load(g, addresses)
    if strong is True:
        _acquire(g, space, addresses)
    elif strong:
        _acquire(g, space, addresses, "sys", strong == "sys+")
    if strong:
        g.linger(Meeting((space, addresses), size))


def texels(g: LaneGroup, addresses: np.ndarray, size: int, count: int, lanes: np.ndarray, who: object) -> np.ndarray:
    """What lanes load by the texture cache: `count` values of `size` bytes at each address of global memory, [count,
    addresses]. lanes: who asks for each; one may ask for several."""
    values = gather(g, "global", side_by_side(addresses, size, count), size, None, False, who)
    _loaded(g, "global", addresses, size * count, False, who, lanes, "a texture")
    return values.reshape(count, -1)


def load_one(g: LaneGroup, space: str, address: int, size: int, strong: bool | str = False, who: object = None) -> int:
    if size == 16:
        if address % 16:
            raise Fault("misaligned", f"16-byte read at {address:#x}")
        low, high = (load_one(g, space, address + k, 8, strong, who) for k in (0, 8))
        return low | high << 64
    if space == "global":
        return g.launch.memory.load(address, size)
    if space == "shared":
        cta, offset = shared_cta(g, address)
        return cta.smem.load(offset, size, None if strong else g.warp.actor, who)
    if space == "const":
        return g.launch.memory.load(address, size)
    if space == "param":  # its addresses are offsets into the launch's parameters
        return g.launch.params.load(address, size)
    raise Unsupported(f"load from {space}")


def gather(
    g: LaneGroup, space: str, addresses: np.ndarray, size: int, lanes, strong: bool | str = False, who: object = None
) -> np.ndarray:
    if size == 16:
        if (addresses % np.uint64(16)).any():
            raise Fault("misaligned", f"16-byte read at {int(addresses.max()):#x}")
        return alu.join(64, *gather(g, space, side_by_side(addresses, 8, 2), 8, lanes, strong, who).reshape(2, -1))
    if space in ("global", "const"):
        return g.launch.memory.gather(addresses, size)
    if space == "shared":
        ranks = addresses >> np.uint64(RANK_SHIFT)
        if 0 not in (ranks == ranks[0]).tobytes():
            cta, _ = shared_cta(g, int(addresses[0]))
            by = None if strong else g.warp.actor
            return cta.smem.gather(addresses & np.uint64(OFFSET_MASK), size, by, who)
        return np.array([load_one(g, "shared", a, size, strong, who) for a in addresses.tolist()], f"u{size}")
    if space == "param":
        return np.array([load_one(g, "param", a, size) for a in addresses.tolist()], f"u{size}")
    index = local_index(g, addresses, size, lanes)
    values = local_memory(g, size)[index]
    if g.launch.checks:
        unwritten = ~g.warp.local_written.reshape(32, -1, size)[index].any(axis=1)
        if unwritten.any():
            k = int(unwritten.argmax())
            message = f"read of {size} bytes of local memory at {int(addresses[k]):#x}"
            message += f", of which lane {index[0][k]} has written none"
            fault = Fault("uninitialized-read", message)
            fault.elements = unwritten
            g.launch.found(fault)
    return values


def local_memory(g: LaneGroup, size: int) -> np.ndarray:
    if g.warp.local is None:
        seed = g.launch.seed_of(g.cta.index)  # garbage, see SharedMemory
        g.warp.local = np.random.default_rng(seed).integers(0, 256, (32, g.launch.local_bytes), np.uint8)
        g.warp.local_written = np.zeros((32, g.launch.local_bytes), bool)
    return g.warp.local.view(f"u{size}")


def local_index(g: LaneGroup, addresses: np.ndarray, size: int, lanes):
    if (addresses % np.uint64(size)).any():
        raise Fault("misaligned", f"{size}-byte access to local memory at {int(addresses.max()):#x}")
    if int(addresses.max()) + size > g.launch.local_bytes:
        raise Fault("out-of-bounds", f"local memory at {int(addresses.max()):#x} of {g.launch.local_bytes} bytes")
    which = g.lanes if lanes is None else g.lanes[lanes]
    return np.resize(which, len(addresses)), (addresses // np.uint64(size)).astype(np.int64)


# -- stores ------------------------------------------------------------------------------------------------
def store(g: LaneGroup, space: str, address, size: int, values: tuple, mask, results: bool = False, sync: str = ""):
    """results: of the tensor core, which a timed run does not compute and so does not store. sync: see `_release`."""
    space, address = state_space(space, address, mask)
    if size == 16:
        values = tuple(half for v in values for half in (v & alu.MASK[64], v >> 64))
        values = tuple(v.astype(np.uint64) if alu.is_array(v) else v for v in values)
        size = 8
    width = size * len(values)
    g.engine.changes += 1
    lanes = None if mask is True else np.flatnonzero(mask)
    if lanes is not None and not len(lanes):
        return
    writers = g.lanes if lanes is None else g.lanes[lanes]
    one = g.n == 1 and space != "local"
    if one:
        addresses = np.array([pick(address, 0)], np.uint64)
        values = tuple(pick(v, 0) & alu.MASK[8 * size] for v in values)
    else:
        addresses = g.lane_array(address, 64).astype(np.uint64, copy=False)
        if lanes is not None:
            addresses = addresses[lanes]
            values = tuple(v[lanes] if alu.is_array(v) else v for v in values)
    in_a_row = space == "global" and 0 not in (addresses[1:] - addresses[:-1] == width).tobytes()
    if len(values) > 1 and ((addresses[:1] if in_a_row else addresses) % np.uint64(width)).any():
        raise Fault("misaligned", f"vector write of {width} bytes at {int(addresses.max()):#x}")
    if space == "global":
        g.clock.global_store(g, addresses, width, in_a_row)
    elif space == "shared":
        _shared_access(g, addresses, width, False)
    who = g.origin("store") if g.launch.checks and space in ("shared", "global") else None
    marks = GENERIC | STRONG * bool(sync) | SYSTEM * sync.startswith("sys")
    if results and not g.cta.computes_mma:
        if g.launch.sampled_clusters:
            if space == "global":
                note_global(g, addresses, width, True, who, marks=marks)
            return _leave_out(g, space, addresses, width, sync)
        if space != "local":
            return
    if space == "global":
        differ = partial(_changed, g, addresses, size, values)
        note_global(g, addresses, width, True, who, marks=marks, changed=differ)
        if not sync and g.launch.checks:
            g.warp.stores.note(g, addresses, width, writers, who, differ)
    elif space == "shared" and not sync:
        _lanes_store(g, addresses, size, values, writers)
    if one:
        for k, v in enumerate(values):
            store_one(g, space, int(addresses[0]) + k * size, size, v, who, bool(sync))
    elif not in_a_row or not g.launch.memory.store_row(int(addresses[0]), size, values, len(addresses)):
        columns = [v if alu.is_array(v) else np.full(len(addresses), v, alu.U[ELEMENT[size]]) for v in values]
        columns = [v.astype(f"u{size}") for v in columns]
        if space == "local":
            for k, v in enumerate(columns):
                scatter(g, space, addresses + np.uint64(k * size), size, v, lanes)
        else:
            whole = np.concatenate(columns) if len(columns) > 1 else columns[0]
            scatter(g, space, side_by_side(addresses, size, len(columns)), size, whole, lanes, who, bool(sync))
    if g.garbage is not None:
        g.follow_store(space, addresses, size, len(values), writers)
    if sync:
        _release(g, space, addresses, sync, mask)
        g.linger(Meeting((space, addresses), width, True))


def _leave_out(g: LaneGroup, space: str, addresses: np.ndarray, size: int, sync: str) -> None:
    """Notes where lanes would store results, of `size` bytes each. Raises ResultsDecide where nobody keeps track."""
    if space == "global" and not sync:
        g.launch.memory.mark_not_computed(addresses, size)
    elif space == "shared" and not sync:
        ranks = addresses >> np.uint64(RANK_SHIFT)
        for rank in np.unique(ranks).tolist():
            cta, lo = shared_cta(g, int(addresses[ranks == rank].min()))
            cta.smem.mark_not_computed(lo, lo + int(np.ptp(addresses[ranks == rank])) + size)
    else:
        raise ResultsDecide(f"a store to {space} memory")


def _changed(g: LaneGroup, addresses: np.ndarray, size: int, values: tuple) -> np.ndarray:
    """Return which lanes store another value to global memory than is there."""
    memory, mask = g.launch.memory, alu.MASK[8 * size]
    there = (memory.gather(addresses + np.uint64(k * size), size) for k in range(len(values)))
    return np.logical_or.reduce([old != (v & mask) for old, v in zip(there, values, strict=True)])


def store_one(
    g: LaneGroup, space: str, address: int, size: int, value: int, who: object = None, strong: bool = False
):
    """who: names the instruction, if it stores to shared memory. strong: it does not race with its like."""
    if size == 16:
        for k in (0, 1):
            store_one(g, space, address + 8 * k, 8, value >> 64 * k & alu.MASK[64], who, strong)
    elif space == "global":
        g.launch.memory.store(address, size, value)
    elif space == "shared":
        cta, offset = shared_cta(g, address)
        cta.smem.store(offset, size, value, g.warp.actor, g.lane_mask, who, strong)
    else:
        raise Unsupported(f"store to {space}")


def scatter(
    g: LaneGroup, space: str, addresses: np.ndarray, size: int, values: np.ndarray, lanes, who: object = None,
    strong: bool = False,
):  # fmt: skip
    if space == "global":
        g.launch.memory.scatter(addresses, size, values)
    elif space == "shared":
        ranks = addresses >> np.uint64(RANK_SHIFT)
        writers = g.lane_mask if lanes is None else sum(1 << lane for lane in g.lanes[lanes].tolist())
        if 0 not in (ranks == ranks[0]).tobytes():
            cta, _ = shared_cta(g, int(addresses[0]))
            cta.smem.scatter(addresses & np.uint64(OFFSET_MASK), size, values, g.warp.actor, writers, who, strong)
            return
        for rank in np.unique(ranks).tolist():
            here = ranks == rank
            cta, _ = shared_cta(g, rank << RANK_SHIFT)
            offsets = addresses[here] & np.uint64(OFFSET_MASK)
            cta.smem.scatter(offsets, size, values[here], g.warp.actor, writers, who, strong)
    elif space == "local":
        index = local_index(g, addresses, size, lanes)
        local_memory(g, size)[index] = values
        g.warp.local_written.reshape(32, -1, size)[index] = True
    else:
        raise Unsupported(f"store to {space}")


BULK = 8  # bytes: what st.bulk writes is a multiple of them


def store_bulk(g: LaneGroup, space: str, address, size, mask):
    """st.bulk: zeros, to shared memory of the CTA (9.7.9.13)."""
    space, address = state_space(space, address, mask)
    if space != "shared":
        raise Fault("address-space", f"st.bulk to {space} memory: it writes shared memory of the CTA")
    for k in active(g, mask):
        at, count = pick(address, k), pick(size, k)
        if count % BULK or at % BULK:
            raise Fault("misaligned", f"st.bulk of {count} bytes at {at:#x}: both must be multiples of {BULK}")
        cta, _ = shared_cta(g, at)
        if cta is not g.cta:
            raise Fault("address-space", "st.bulk to shared memory of another CTA")
        if count:
            places = np.arange(at, at + count, BULK, dtype=np.uint64)
            g.engine.changes += 1
            for first in range(0, len(places), 32):
                _shared_access(g, places[first : first + 32], BULK, False)
            zeros, by, who = np.zeros(len(places), np.uint64), 1 << int(g.lanes[k]), g.origin("st.bulk")
            cta.smem.scatter(places & np.uint64(OFFSET_MASK), BULK, zeros, g.warp.actor, by, who, False)


def store_async(g: LaneGroup, address, size: int, values: tuple, bar, mask):
    """st.async: the bytes land later and complete on a barrier of the same CTA as the destination."""
    if not g.launch.explicit_cluster:  # golden case fault_st_async_without_cluster
        raise Fault("cluster", "st.async in a launch without clusters is an illegal instruction")
    for k in active(g, mask):
        cta, offset = shared_cta(g, pick(address, k))
        barrier = barrier_at(g, pick(bar, k), True)
        numbers = [pick(v, k) & alu.MASK[8 * size] for v in values]
        origin = g.origin("st.async")
        op = cta.smem.begin(offset, offset + size * len(numbers), True, origin, g.warp.actor, barrier.key, proxy=False)
        hands_on = handed_on(g)

        def land(cta=cta, offset=offset, barrier=barrier, numbers=numbers, op=op, origin=origin, hands_on=hands_on):
            cta.smem.end(op, True)
            for j, v in enumerate(numbers):
                cta.smem.views[size][offset // size + j] = v
            barrier.transaction(-size * len(numbers), origin, landed(op, hands_on))

        pass_dependency(g, barrier)
        g.later(g.clock.remote(g, size * len(numbers)), origin, land)


# -- atomics -----------------------------------------------------------------------------------------------
def atomic(
    g: LaneGroup, space: str, what: str, kind: str, address, values: tuple, count: int, mask, wants_old: bool,
    sync: str, acquires: bool = False,
):  # fmt: skip
    """sync: see `_release`. acquires: at the scope of the system."""
    space, address = state_space(space, address, mask)
    size = TYPE_BITS[kind] // 8
    combine = partial(alu.combine, what, kind, ftz=space == "global" and kind == "f32")  # 9.7.13.13: else kept
    who = g.origin("atomic") if g.launch.checks and space in ("shared", "global") else None
    olds: list[Any] = [[0] * g.n if size == 16 else np.zeros(g.n, alu.U[ELEMENT[size]]) for _ in range(count)]
    if lanes := active(g, mask):
        at = [pick(address, p) for p in lanes]
        places = list(dict.fromkeys(at))  # each once, as lanes come to them
        for k in range(count):
            there = [a + k * size for a in places]
            cells, operands = _cells(g, space, there, size), values[k::count]
            if len(places) == len(at) > 1 and size < 16:
                old, new = cells, combine(cells, *(g.lane_array(v, ELEMENT[size])[lanes] for v in operands))
            else:
                old, new = _in_turn(combine, dict(zip(places, cells, strict=True)), at, lanes, operands)
            for p, v in zip(lanes, old, strict=True):
                olds[k][p] = v
            g.engine.changes += sum(a != b for a, b in zip(cells, new, strict=True))
            if len(there) == 1 or size == 16:
                for a, v in zip(there, new, strict=True):
                    store_one(g, space, a, size, int(v), who, True)
            else:
                scatter(g, space, np.array(there, np.uint64), size, np.array(new, f"u{size}"), None, who, True)
        unique = np.array(places, np.uint64)
        if space == "shared" and _elsewhere(g, at):
            g.clock.cluster_access(g, np.array(at, np.uint64), size * count, wants_old)
        else:
            g.clock.atomic(g, space, np.array(at, np.uint64), size * count, what, kind, wants_old)
        if space == "global":
            for place in places if g.launch.checks else ():
                g.launch.dependencies.note_atomic(place, size * count, who if wants_old and what != "exch" else None)
            marks = GENERIC | STRONG | SYSTEM * sync.startswith("sys")
            note_global(g, unique, size * count, True, who, marks=marks)
        elif g.garbage is not None:
            g.follow_store(space, np.array(at, np.uint64), size, count, g.lanes[lanes])
        _acquire(g, space, unique, sync.rstrip("+"), acquires)
        _release(g, space, unique, sync, mask)
        g.hesitate(Meeting((space, unique), size * count, True, not wants_old and what not in ("exch", "cas")))
    if not wants_old:
        return None
    if g.n == 1:
        return tuple(int(o[0]) for o in olds)
    return tuple(np.asarray(o, alu.U[ELEMENT[size]]) for o in olds)


def _cells(g: LaneGroup, space: str, addresses: list[int], size: int):
    """What an atomic finds in memory: ints, or an array as of registers."""
    if len(addresses) == 1 or size == 16 or space not in ("global", "shared"):
        return [load_one(g, space, a, size, True) for a in addresses]
    return gather(g, space, np.array(addresses, np.uint64), size, None, True).astype(alu.U[ELEMENT[size]])


def _in_turn(combine, cells: dict, at: list[int], lanes: list[int], operands) -> tuple[list, list]:
    """Lanes go to their cells one after the other: what each has found there, and what is there in the end."""
    cells, found = {a: int(v) for a, v in cells.items()}, []
    for p, a in zip(lanes, at, strict=True):
        found.append(cells[a])
        cells[a] = combine(cells[a], *(pick(v, p) for v in operands))
    return found, list(cells.values())


def red_async(g: LaneGroup, what, kind, address, value, bar, mask):
    size = TYPE_BITS[kind] // 8
    for p in active(g, mask):
        cta, offset = shared_cta(g, pick(address, p))
        barrier, v = barrier_at(g, pick(bar, p), True), pick(value, p)
        origin, hands_on = g.origin("red.async"), handed_on(g)

        def land(cta=cta, offset=offset, barrier=barrier, v=v, origin=origin, hands_on=hands_on):
            old = cta.smem.load(offset, size, None)
            cta.smem.views[size][offset // size] = alu.combine(what, kind, old, v)
            barrier.transaction(-size, origin, hands_on)

        g.later(g.clock.remote(g, size), origin, land)


def prefetch(g: LaneGroup, space: str, address, is_tensormap: bool, mask):
    if is_tensormap:
        for p in active(g, mask)[:1]:
            at = pick(address, p)
            g.clock.descriptor_prefetch(g, tensormap.decode(descriptor_bytes(g, at)), at)
    elif space in ("global", "generic") and (lanes := active(g, mask)):
        g.clock.line_prefetch(g, g.lane_array(address, 64)[lanes])


def apply_priority(g: LaneGroup, address, size: int, mask):
    if lanes := active(g, mask):
        g.launch.memory.hint(g.lane_array(address, 64)[lanes])


def discard(g: LaneGroup, address, size: int, mask):
    """Writes garbage, the same in any run, to `size` bytes: what is there is lost, wherever it lay."""
    for p in active(g, mask):
        at = pick(address, p)
        if at % size:
            raise Fault("misaligned", f"discard of {size} bytes at {at:#x}")
        note_global(g, at, size, True, g.origin("discard") if g.launch.checks else None)
        g.launch.memory.view(at, size, True)[:] = np.random.default_rng(at // size).integers(0, 256, size, np.uint8)
        g.engine.changes += 1


# -- matrices of rows of 16 bytes ---------------------------------------------------------------------------
HALVES_OF_ROW = np.array([0, 8], np.uint64)


# Of a row of ldmatrix, where the parts begin that are read, and their bytes: the rest of 6 and 4 bits is padding.
PARTS_OF_ROW = {16: ((0, 8), 8), 8: ((0, 8), 8), 6: ((0, 4, 8), 4), 4: ((0,), 8)}


def ldmatrix(g: LaneGroup, address, count: int, bits: int, trans: bool):
    """Registers of this many matrices: 8 x 8 elements of 16 bits, or 16 x 16 of 8 bits, which are transposed. Elements
    of 6 and 4 bits become bytes: 8 x 16 of them, or 16 x 16 transposed."""
    if g.n != 32:
        raise Fault("divergence", "ldmatrix needs the whole warp")
    rows = g.lane_array(address).astype(np.uint64)
    rows = rows[: (16 if bits < 16 and trans else 8) * count]
    g.clock.matrix_load(g, rows, 16)
    if (rows % np.uint64(16)).any():
        raise Fault("misaligned", "ldmatrix row that is not 16-byte aligned")
    places, size = PARTS_OF_ROW[bits]
    each = (rows[:, None] + np.array(places, np.uint64)).ravel()
    parts = gather(g, "shared", each, size, None, False, g.origin("ldmatrix") if g.launch.checks else None)
    if bits == 16:
        matrices = parts.view(np.uint16).reshape(count, 8, 8)
        matrices = (matrices.transpose(0, 2, 1) if trans else matrices).astype(np.uint32)
        return tuple((matrices[:, :, 0::2] | matrices[:, :, 1::2] << 16).reshape(count, 32))
    matrices = element_types.unpack(parts.view(np.uint8).reshape(count, len(rows) // count, -1), bits)
    if trans:
        return tuple(register for matrix in matrices for register in fragments.store_transposed_bytes(matrix))
    return tuple(matrices.view(np.uint32).reshape(count, 32))


def stmatrix(g: LaneGroup, address, values: tuple, bits: int, trans: bool, results: bool):
    """Matrices of 8 x 8 elements of 16 bits, or of 16 x 8 of 8 bits, which are transposed. results: as of `store`."""
    if g.n != 32:
        raise Fault("divergence", "stmatrix needs the whole warp")
    rows = g.lane_array(address).astype(np.uint64)[: 8 * len(values)]
    g.clock.shared_access(g, rows, 16)
    if results and not g.cta.computes_mma:
        if g.launch.sampled_clusters:
            _, places = _halves_of(rows.tobytes())
            if places is None:
                return _leave_out(g, "shared", rows, 16, "")
            shared_cta(g, int(rows[0]))[0].smem.mark_not_computed(places.lo, places.hi)
        return None
    if bits == 8:
        registers = np.concatenate([g.lane_array(v) for v in values])
        matrices = fragments.load_transposed_bytes(registers.reshape(len(values), -1))
        halves = np.ascontiguousarray(matrices).view(np.uint64).ravel()
    else:
        halves = convert.matrices(values, trans)
    addresses, places = _halves_of(rows.tobytes())
    origin = g.origin("stmatrix") if g.launch.checks else None
    if places is None:
        scatter(g, "shared", addresses, 8, halves, None, origin)
    else:
        cta, _ = shared_cta(g, int(rows[0]))
        cta.smem.scatter_at(places, halves, g.warp.actor, g.lane_mask, origin)


@lru_cache(maxsize=1024)  # warps store to the same few places again and again
def _halves_of(rows: bytes) -> tuple[np.ndarray, Places | None]:
    """The addresses of the halves of stmatrix's rows, of which `rows` has the addresses, uint64 each; and where they
    lie in shared memory, if in that of one CTA."""
    addresses = np.frombuffer(rows, np.uint64)
    if int(np.bitwise_or.reduce(addresses)) % 16:
        raise Fault("misaligned", "stmatrix row that is not 16-byte aligned")
    addresses = (addresses[:, None] + HALVES_OF_ROW).ravel()
    alone = len(np.unique(addresses >> np.uint64(RANK_SHIFT))) == 1
    return addresses, Places.of(addresses & np.uint64(OFFSET_MASK), 8) if alone else None


def movmatrix(g: LaneGroup, value):
    """Transposes a matrix that lies in one register of every lane, as ldmatrix leaves it."""
    if g.n != 32:
        raise Fault("divergence", "movmatrix needs the whole warp")
    matrix = np.ascontiguousarray(g.lane_array(value)).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(matrix.T).view(np.uint32).reshape(32)
