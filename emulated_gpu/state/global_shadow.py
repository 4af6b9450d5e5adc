"""Global memory as the happened-before of a launch sees it: who wrote a word last, and who has read it since.

An asynchronous operation is noted when it is issued. That it is complete shows its thread, or who waits for its
mbarrier. What launches of one device do to each other is the business of dependency.py; those of several devices share
what is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import Fault
from .global_memory import GlobalMemory, Region
from .order import ASYNC_GLOBAL, GENERIC, HEARD, STRONG, SYSTEM, Actor, Order
from .shadow import WORD, Shadow, loads_of, reads, store, unfenced


class Look(NamedTuple):
    """A strong read: its first place, a number of bytes of a region from a byte on."""

    shadow: GlobalShadow
    region: Region
    at: int
    size: int

    def __str__(self):
        where = f"at byte {self.at} of {self.region.name}"
        value = int.from_bytes(self.region.data[self.at : self.at + self.size].tobytes(), "little")
        found = self.shadow.regions.get(id(self.region))
        places = self.shadow._places(found[1], self.region, np.array([self.at]), self.size) if found else ()
        number = max((int(plane.written[index].max()) for plane, index in places), default=0)
        writer = f"written last by {self.shadow.order.who(number)}" if number else "which no kernel has written"
        return f"{where}, {writer}: it is {value}"


def _some(index: slice | np.ndarray) -> bool:
    return index.stop > index.start if type(index) is slice else len(index) > 0


class GlobalShadow:
    """report: gets the faults; it may raise them. like: another one that keeps the same, of a launch that shares the
    order. apart: whether nothing in this memory ever tells a cluster what another one has done; see Plane.settled."""

    def __init__(
        self, order: Order, memory: GlobalMemory, report: Callable[[Fault], None], like: GlobalShadow | None = None,
        apart: bool = False,
    ):  # fmt: skip
        self.order, self.memory, self.report, self.apart = order, memory, report, apart
        # The region is kept, so that its id stays its own
        self.regions: dict[int, tuple[Region, Shadow]] = like.regions if like else {}
        # What was read of others, by whom
        self.unwritten: dict[int, tuple[Region, list[tuple]]] = like.unwritten if like else {}

    def read(
        self, addresses: np.ndarray, size: int, by: Actor, key, who: object, marks: int = GENERIC
    ) -> None:
        """`size` bytes are read at each address, on behalf of a warp. key: the component that reads; marks: GENERIC if
        not the async proxy does."""
        for region, at in self._located(addresses, size):
            found = self.regions.get(id(region))
            if found is None and (region.read_only or not self.apart):
                if not region.read_only:
                    log = self.unwritten.setdefault(id(region), (region, []))[1]
                    log.append((at, size, key, self.order.next(key, who)))
                continue
            places = self._places(found[1] if found else self.shadow_of(region), region, at, size)
            if self.apart:
                places = [(plane, kept) for plane, index in places if _some(kept := plane.unsettled(index))]
                if not places:
                    continue
            if marks & GENERIC == 0:
                for conflict in unfenced(places, by, ASYNC_GLOBAL):
                    message = f"{who} reads {region.name}, written by {self.order.who(conflict.number)}"
                    message += " with no fence.proxy.async since"
                    self.report(Fault("missing-proxy-fence", message, other=conflict.number))
                    break
            number = self.order.next(key, who)
            loads = (number,) if key is by.key else ()
            self._conflict(list(reads(places, by, key, number)), "read", region, by, loads=loads)

    def read_non_coherent(self, addresses: np.ndarray, size: int, what: str) -> None:
        """`size` bytes are read at each address by `what`, which need not see what this launch has written.

        With several devices, whose launches share the order, nobody is asked.
        """
        if self.order.devices > 1:
            return
        for region, at in self._located(addresses, size):
            if (found := self.regions.get(id(region))) is None:
                continue
            for plane, index in self._places(found[1], region, at, size):
                numbers = plane.written[index]
                if numbers.any():
                    number, which = int(numbers.max()), int(np.argmax(numbers))
                    byte = plane.place(index, which) - region.start % WORD
                    message = f"{what} reads {region.name} at byte {byte}, which this launch has written "
                    message += f"({self.order.who(number)}): the non-coherent cache need not have it"
                    self.report(Fault("race", message, note="non-coherent-load", other=number))
                    return

    def observe(self, addresses: np.ndarray, size: int, by: Actor, who: object, system: bool = False) -> None:
        """A strong read of `size` bytes at each address, by a warp. system: at that scope.

        It races with weak writes behind it: of what several devices use, where data are read so, it is kept for them.
        """
        for region, at in self._located(addresses, size):
            if self.order.devices > 1:
                by.looks = Look(self, region, int(at[0]), size)
            if region.peers:
                self.shadow_of(region)
            if (found := self.regions.get(id(region))) is not None:
                places = self._places(found[1], region, at, size)
                self._reach(places, region, by, f"{who} reads", system)
                number = self.order.next(by.key, who, STRONG)
                if self.order.listens:
                    self._unfenced(places, region, by)
                for plane, index in places:
                    plane.observe(index, by, number)
                    if region.peers:
                        plane.note_read(index, by.key, number, by)

    def _unfenced(self, places, region: Region, by: Actor) -> None:
        """A strong read by a warp, which has been told of the last write, a weak one, without a fence behind that."""
        for plane, index in places:
            numbers = plane.written[index]
            late = (self.order.marks[numbers] & STRONG == 0) & by.unknown(numbers)
            late[late] = ~by.unknown(numbers[late], HEARD)
            for which in np.flatnonzero(late)[:1].tolist():
                number, at = int(numbers[which]), plane.place(index, which) - region.start % WORD
                message = f"read of {region.name} at byte {at}, which {self.order.who(number)} may still write: {by} "
                message += "has been told of it by an atomic or a strong store behind it, which orders nothing without "
                message += "a fence before that (__threadfence)"
                self.report(Fault("race", message, other=number))
                return

    def _reach(self, places, region: Region, by: Actor, does: str, system: bool) -> None:
        """A strong access by a warp, and the last write by another device: both are to be strong in the system."""
        if self.order.devices == 1:
            return
        order = self.order
        for plane, index in places:
            numbers = plane.written[index]
            numbers = numbers[(numbers > 0) & (order.marks[numbers] & SYSTEM == 0 if system else True)]
            for number in np.unique(numbers[by.unknown(numbers)]).tolist() if len(numbers) else ():
                marks = order.marks[number]
                if order.spaces[order.space[number]].device == by.space.device:
                    continue
                message = f"{does} {region.name}, written by {order.who(number)}"
                if marks & STRONG:
                    why = "and this access's scope is its device" if marks & SYSTEM else "whose scope is its device"
                    self.report(Fault("scope", f"{message}, {why}: between devices both are to be of scope .sys"))
                else:
                    message += ", a weak store that nothing orders before it"
                    self.report(Fault("race", message, other=number))
                return

    def use(self, address: int, size: int, key, who: object) -> None:
        """A component reads what other rules order with the writes before: a tensor map."""
        ((region, at),) = self._located(np.array([address]), size)
        found = self.regions.get(id(region))
        if found is None:
            if not region.read_only:
                log = self.unwritten.setdefault(id(region), (region, []))[1]
                log.append((at, size, key, self.order.next(key, who)))
        else:
            for plane, index in self._places(found[1], region, at, size):
                plane.note_read(index, key, self.order.next(key, who))

    def write(
        self, addresses: np.ndarray, size: int, by: Actor, key, who: object, marks: int, changed=None, idle=None
    ) -> None:
        """`size` bytes are written at each address. marks: see order.py; changed: see shadow.py, of all addresses.
        idle(conflicts): whether an asynchronous store changes nothing, whichever of those it conflicts with is last."""
        for region, at in self._located(addresses, size, True):
            places = partial(self._places, self.shadow_of(region), region)
            if marks & STRONG:
                self._reach(places(at, size), region, by, f"{who} changes", bool(marks & SYSTEM))
            conflicts = store(places, at, size, by, marks, key, who, changed if len(at) == len(addresses) else None)
            note = "identical-stores" if conflicts and idle is not None and idle(conflicts) else ""
            loads = loads_of(conflicts)
            if self.apart and any(self.order.space[[*loads]] != by.space.index):
                loads = ()  # of more clusters than one not all loads are kept: see Plane.settled
            self._conflict(conflicts, "write", region, by, note, loads)

    def shadow_of(self, region: Region) -> Shadow:
        """The shadow of a region, made when something is written to it, or may be."""
        found = self.regions.get(id(region))
        if found is None:
            found = self.regions[id(region)] = region, Shadow(self.order, region.size + 2 * WORD, self.apart)
            for earlier, width, reader, number in self.unwritten.pop(id(region), (region, []))[1]:
                for plane, index in self._places(found[1], region, earlier, width):
                    plane.note_read(index, reader, number)
        return found[1]

    def forget_own(self, memory: GlobalMemory) -> None:
        """A launch has ended: what its device alone may access is in order for all launches that follow there."""
        self.order.forgotten += 1
        for table in self.regions, self.unwritten:
            for key in [key for key, (region, _) in table.items() if not region.peers and memory.has(region)]:
                del table[key]

    def _located(self, addresses: np.ndarray, size: int, write: bool = False):
        """The regions of addresses, each with the offsets there, int64."""
        addresses = addresses.astype(np.int64)
        while len(addresses):
            region = self.memory.find(int(addresses[0]), size, write)
            here = (addresses >= region.start) & (addresses + size <= region.end)
            if here.all():
                yield region, addresses - region.start
                return
            yield region, addresses[here] - region.start
            addresses = addresses[~here]

    def _places(self, shadow: Shadow, region: Region, at: np.ndarray, size: int):
        """Where bytes of a region lie in its shadow, whose first word holds the region's first byte."""
        at = at + region.start % WORD
        if len(at) == 1 and size > 16:
            return shadow.range(int(at[0]), int(at[0]) + size)
        if (size % WORD == 0 or size < WORD) and not (at % min(size, WORD)).any():
            return shadow.elements(at, size)
        return shadow.elements((at[:, None] + np.arange(size)).ravel(), 1)

    def _conflict(
        self, conflicts, access: str, region: Region, by: Actor, note: str = "", loads: tuple[int, ...] = ()
    ) -> None:
        """Report the first of these conflicts. loads: see Fault."""
        if conflicts:
            first = conflicts[0]
            at = first.at - region.start % WORD
            message = f"{access} of {region.name} at byte {at}, which {self.order.who(first.number)} may still "
            message += f"{first.use}: nothing that {by} has waited for comes after that"
            message += "; the bytes are equal" * bool(note)
            fault = Fault("race", message, note=note, other=first.number)
            fault.loads = loads
            self.report(fault)
