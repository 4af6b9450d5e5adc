"""Loads and stores of a warp: the data, and what the shadows of state/ keep of an access. Rules, see jit/rules.py.

What is plain is done here: lanes inside one range of memory, every byte of it written, nobody else's access in the way.
Anything else (a fault, a conflict, an operation in flight) changes nothing and is left to Python, which says what it
is. So this file knows of shadows (state/shadow.py) how they are kept, and no rule that they do not have.

Rules are told of n lanes whose elements lie one behind the other: 32 in most accesses of most kernels, of which one
event has written all and one has read all, else one lane after the other. n places side by side are one vector.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..jit.happens_before import COMPONENT, MARKS, MOST, NOWHERE, OWN_SPACE, SPACE, Plane, is_of, known, slot_of
from ..jit.llvm import LANES, Code, compiler
from ..jit.rules import (
    Kind,
    Rule,
    bits,
    count_ones,
    int8,
    int16,
    int32,
    int64,
    ones,
    rule,
    trailing_zeros,
    where,
)
from ..state.lanes import ADD, ALONE, ASK, BOTH, HALF, SEVERAL, among_lanes
from ..state.order import GENERIC, STRONG
from ..state.shadow import BENEATH, PARTS, PLACES, READS, SETTLED, SLOT_COUNT, SPLIT, WORD, WRITTEN
from . import context_fields as of

FULL, EACH_LANE = (1 << LANES) - 1, np.uint32(1) << np.arange(LANES, dtype=np.uint32)
PLAIN, KEPT, LEFT = 0, 1, 2  # bits: an access only moves data, is kept by shadows, is left to Python


class Form(NamedTuple):
    """An access of this many elements of `size` bytes side by side. nc: a load by the non-coherent cache. rows: of
    matrices, which lanes read for each other. copies: what a cp.async reads or writes."""

    write: bool
    space: str
    size: int
    elements: int
    nc: bool = False
    rows: bool = False
    copies: bool = False

    @property
    def shared(self) -> bool:
        return self.space == "shared"

    @property
    def bytes(self) -> int:
        return self.size * self.elements

    @property
    def parted(self) -> bool:
        """Whether it is of parts of words: those are kept byte by byte, from then on."""
        return self.size < WORD

    @property
    def grain(self) -> int:
        return 1 if self.parted else WORD

    @property
    def places(self) -> int:
        return self.bytes // self.grain

    @property
    def settles(self) -> bool:
        """Whether it looks for places where no more reads are kept (state/shadow.py, Plane.settled)."""
        return not (self.write or self.shared or self.parted)

    @property
    def keeps_lanes(self) -> bool:
        return self.shared and self.bytes >= HALF and not (self.rows or self.copies)

    @property
    def kind(self) -> Kind:
        return Kind(8 * self.size)

    @property
    def rule(self) -> Rule:
        return begin_copy if self.copies else access_local if self.space == "local" else access

    def __str__(self) -> str:
        if self.copies:
            return f"copy.{self.bytes}"
        what = f"{'store' if self.write else 'load'}.{self.space}"
        return f"{what}.{self.size}.{self.elements}{'.nc' * self.nc}{'.rows' * self.rows}"


def copy_of(size: int) -> Form:
    """What a cp.async of this many bytes a lane writes; 0: cp.async.commit_group."""
    return Form(True, "shared", WORD, size // WORD, copies=True)


def plane_of(w, parted) -> Plane:
    """A window's shadow of words, or of bytes (state/shadow.py)."""
    told = int64(w[of.SHADOW]).at(where(parted, PARTS, 0))
    return Plane(int32(told[WRITTEN]), int32(told[READS]), told[SLOT_COUNT], told[PLACES], told[BENEATH])


def split_of(w):
    """Which words a window's shadow keeps byte by byte."""
    return int8(int64(w[of.SHADOW])[SPLIT])


def settled_of(w):
    """Of each word, whether no more reads are kept (state/shadow.py, Plane.settled); at 0 if that is of none."""
    return int8(int64(w[of.SHADOW])[SETTLED])


# -- events and places -------------------------------------------------------------------------------------------------
def is_known(c, number, form):
    """Whether an event has happened before, or, where a copy writes, is of the warp's own copies, which may overlap."""
    return is_of(c, number, c[of.COPIER]) | known(c, number) if form.copies and form.write else known(c, number)


def slot(c, plane, place, n, form):
    return slot_of(c, plane, place, n, c[of.COPIER] if form.copies else MOST)


@rule
def in_order(c, plane, place, n, form):
    """Whether an access of n places comes after all that was done there, in each by the same events."""
    writer = plane.written[place : place + n]
    if (writer != writer[0]).any() or (writer[0] != 0 if form.nc else not is_known(c, writer[0], form)):
        return False
    if plane.beneath and int8(c[MARKS])[writer[0]] & STRONG:
        before = int32(plane.beneath)[place : place + n]
        if (before != before[0]).any() or not is_known(c, before[0], form):
            return False
    if not form.write:
        return slot(c, plane, place, n, form) != NOWHERE
    for k in range(plane.slots):
        at = k * plane.places + place
        read = plane.reads[at : at + n]
        if (read == 0).all():
            return True
        if (read != read[0]).any() or not is_known(c, read[0], form):
            return False
    return True


@rule
def keep(c, plane, place, n, number, form):
    """Keep an event that accesses n places. A write forgets the reads before it."""
    if not form.write:
        at = slot(c, plane, place, n, form)
        plane.reads[at : at + n] = number
        return
    plane.written[place : place + n] = number
    for k in range(plane.slots):
        at = k * plane.places + place
        if plane.reads[at] == 0:
            return
        plane.reads[at : at + n] = 0


@rule
def event(c, step, found, form):
    """The number of the event that an access by an instruction is, if shadows keep it."""
    if found != KEPT:
        return 0
    number = c[of.NOW] + 1
    c[of.NOW] = number
    int32(c[COMPONENT])[number] = c[of.COPIER if form.copies else of.UID]
    int32(c[SPACE])[number] = c[OWN_SPACE]
    int8(c[MARKS])[number] = GENERIC * (form.write and not form.copies)
    int32(c[of.STEPS])[number] = step
    return number


def has_room(c, count):
    """Whether this many events can be numbered."""
    return c[of.NOW] + count <= c[of.ROOM]


@rule
def part(w, word):
    """Keep a word byte by byte; False if there is no room."""
    split, whole, parts, byte = split_of(w), plane_of(w, False), plane_of(w, True), word * WORD
    if split[word]:
        return True
    if whole.slots > parts.slots or whole.beneath:
        return False
    split[word] = 1
    parts.written[byte : byte + WORD] = whole.written[word]
    for k in range(whole.slots):
        at = k * parts.places + byte
        parts.reads[at : at + WORD] = whole.reads[k * whole.places + word]
    return True


def places_at(w, at, split, parted: bool = False):
    """Where shadows keep a word, or a byte: the plane, the first place there, and how many it takes. split: of a word,
    whether it is kept byte by byte."""
    if parted:
        return plane_of(w, True), at, 1
    return plane_of(w, split), where(split, at * WORD, at), where(split, WORD, 1)


@rule
def window_of(c, address, size):
    """The address of the window of global memory that holds a range; 0 if none does, or its shadow is to be made."""
    windows = int64(c[of.WINDOWS])
    for turn in range(where(c[of.REGIONS] != 0, c[of.REGIONS] + 1, 0)):
        k = where(turn == 0, c[of.LAST], turn - 1)
        w = windows.at(k * of.FIELDS)
        if w[of.LO] <= address and address + size <= w[of.HI]:
            c[of.LAST] = k
            if w[of.FLAGS] & of.CLOSED:
                c[of.WANTED] = w.address
                return 0
            return w.address
    return 0


# -- lanes of one warp, as state/lanes.py keeps them -------------------------------------------------------------------
def number_of(c, lane):
    """The number of one of the lanes that are here; others do as the first one does."""
    return int64(c[of.LANE_NUMBERS])[where(c[of.ACTIVE] >> lane & 1 != 0, lane, 0)]


def lane_key(c, lane, epoch, several, form):
    """What the table of lanes keeps of one of them. several: of all that do the same."""
    return epoch | where(several, SEVERAL, number_of(c, lane)) if form.keeps_lanes else epoch


def lanes_apart(w, a, n, key, keeps, form):
    """See state/lanes.py."""
    table = int32(w[of.LANE_TABLE]).at((a - w[of.ORIGIN]) // WORD * 4)
    half = a // HALF & 1 if form.bytes == HALF else BOTH
    return among_lanes(table, n, max(1, form.bytes // WORD), key, keeps, form.write, half)


# -- an access ---------------------------------------------------------------------------------------------------------
@rule
def access(context, addresses_at, active, values_at, step, epoch, one_address, form):
    """Lanes `active` (a bit each) access memory at addresses [32]; values: of each element [32]. step: the number of
    the instruction; epoch: of the warp, in the place it has in keys; one_address: whether it is that of all lanes.

    Returns whether it is left to Python. First all is looked at, then all is done.
    """
    if active == 0:
        return False
    c, addresses, values = int64(context), int64(addresses_at), form.kind(values_at)
    lead = trailing_zeros(active)
    first = addresses[lead]
    at = c[of.SHARED] if form.shared else window_of(c, first, form.bytes)
    w = int64(at)
    if at == 0 or form.write and w[of.FLAGS] & of.WRITABLE == 0 or not has_room(c, 1):
        return True
    found, alike, side_by_side = LEFT, False, np.arange(0, LANES * form.bytes, form.bytes) + first
    if not form.parted and active & c[of.ACTIVE] == FULL and (addresses[0:LANES] == side_by_side).all():
        found = look(c, w, first, LANES, epoch, form)
    if found != LEFT:
        move(w[of.DATA] + first, LANES, values, form)
        note_access(c, w, first, LANES, epoch, event(c, step, found, form), form)
    else:
        alike = (bits(addresses[0:LANES] != first) & active == 0) & (not form.write)  # one loads for all
        several = one_address & (c[of.ACTIVE] > 1) | alike & (active & (active - 1) != 0)
        few = where(alike, active & -active, active)
        found = PLAIN
        for lane in ones(few):
            found = found | look(c, w, addresses[lane], 1, lane_key(c, lane, epoch, several, form), form)
        if found & LEFT:
            return True
        number = event(c, step, found, form)
        if form.write and form.keeps_lanes and w[of.LANE_TABLE]:
            for lane in ones(few):
                lanes_apart(w, addresses[lane], 1, lane_key(c, lane, epoch, several, form), ALONE, form)
        for lane in ones(few):
            move(w[of.DATA] + addresses[lane], 1, values.at(lane), form)
            if form.write or number or w[of.WAS_READ]:
                note_access(c, w, addresses[lane], 1, lane_key(c, lane, epoch, several, form), number, form)
        if alike:
            for k in range(form.elements):
                row = k * LANES
                values[row : row + LANES] = where(active & EACH_LANE != 0, values[row + lead], 0)
    if form.write:  # to shared memory its lanes, else all, which wait for a fence then
        c[of.STORED] |= active if form.shared else c[of.ACTIVE]
    if not form.shared:
        moved = where(alike, 1, count_ones(active & c[of.ACTIVE]))
        c[of.BYTES_STORED if form.write else of.BYTES_LOADED] += moved * form.bytes
    return False


@rule
def look(c, w, a, n, key, form):
    """What becomes of an access of n lanes from an address on. key: see lane_key, of the first."""
    size = n * form.bytes
    if a < w[of.LO] or a + size > w[of.HI] or a % form.bytes:
        return LEFT
    if form.shared and form.write and not form.copies and a + size > w[of.BUSY_LO] and a < w[of.BUSY_HI]:
        return LEFT
    if w[of.FLAGS] & of.SHADOWED == 0:
        return PLAIN
    if form.keeps_lanes and w[of.LANE_TABLE] and lanes_apart(w, a, n, key, ASK, form):
        return LEFT
    place = (a - w[of.ORIGIN]) // form.grain
    if form.settles and settled_of(w).address:
        settled = settled_of(w)[place : place + n * form.places] != 0
        if settled.any() and not (split_of(w)[place : place + n * form.places] != 0).any():
            return where(settled.all(), PLAIN, LEFT)
    for k in range(form.places):
        at = place + k * n
        if form.shared and not form.write:
            valid = Kind(8 * form.grain)(w[of.VALID] + w[of.ORIGIN])
            if (valid[at : at + n] != (1 if form.parted else 0x01010101)).any():
                return LEFT
        if form.copies and form.write and int16(w[of.IN_FLIGHT])[at] or form.parted and not part(w, at // WORD):
            return LEFT
        split = form.parted or (split_of(w)[at : at + n] != 0).any()
        if n > 1 and split:
            return LEFT
        plane, first, each = places_at(w, at, split and n == 1, form.parted)
        for byte in range(each):
            if not in_order(c, plane, first + byte, n, form):
                return LEFT
    return KEPT


@rule
def move(a, n, values, form):
    """Move what n lanes access. values: from the first lane on."""
    data = form.kind(a)
    if n == LANES and form.elements == 1:
        if form.write:
            data[0:LANES] = values[0:LANES]
        else:
            values[0:LANES] = data[0:LANES]
        return
    for lane in range(n):
        for k in range(form.elements):
            if form.write:
                data[lane * form.elements + k] = values[k * LANES + lane]
            else:
                values[k * LANES + lane] = data[lane * form.elements + k]


@rule
def note_access(c, w, a, n, key, number, form):
    """Keep that n lanes access what begins at an address, by an event if it has a number; and for other launches that
    it was used."""
    word, used = (a - w[of.ORIGIN]) // WORD, w[of.WROTE if form.write else of.WAS_READ]
    if form.shared and form.write:
        int8(w[of.VALID])[a : a + n * form.bytes] = 1
    if not form.shared and used:
        int8(used)[word : word + max(1, n * form.bytes // WORD)] = 1
    if form.keeps_lanes and w[of.LANE_TABLE]:
        lanes_apart(w, a, n, key, ALONE if n > 1 and form.write else ADD, form)
    for k in range(where(number != 0, form.places, 0)):
        at = (a - w[of.ORIGIN]) // form.grain + k * n
        split = form.parted or n == 1 and split_of(w)[at] != 0
        plane, first, each = places_at(w, at, split, form.parted)
        if not (form.settles and settled_of(w).address and each == 1 and settled_of(w)[at]):
            for byte in range(each):
                keep(c, plane, first + byte, n, number, form)
            # No more reads are kept of what two clusters have read and nobody has written
            fresh = (each == 1) & (plane.written[first] == 0)
            if form.settles and settled_of(w).address and fresh and int32(c[SPACE])[plane.reads[first]] != c[OWN_SPACE]:
                settled_of(w)[at : at + n] = 1


# -- local memory: of each lane its own, which nobody else sees --------------------------------------------------------
def place_in_local(c, lane, address):
    """Where the address of a lane lies in its warp's local memory."""
    return number_of(c, lane) * c[of.LOCAL_BYTES] + address


@rule
def access_local(context, addresses_at, active, values_at, _step, _epoch, _one_address, form):
    """Like `access`, of the local memory of each lane."""
    c, addresses, values = int64(context), int64(addresses_at), form.kind(values_at)
    for lane in ones(active):
        a = addresses[lane]
        if a >= c[of.LOCAL_BYTES] or a + form.bytes > c[of.LOCAL_BYTES] or a % form.bytes:
            return True
        at = c[of.LOCAL_WRITTEN] + place_in_local(c, lane, a)
        if not form.write and c[of.CHECKS] and (int8(at)[0 : form.bytes] != 1).any():
            return True
    for lane in ones(active):
        place = place_in_local(c, lane, addresses[lane])
        move(c[of.LOCAL] + place, 1, values.at(lane), form)
        if form.write:
            int8(c[of.LOCAL_WRITTEN])[place : place + form.bytes] = 1
            c[of.LOCAL_STORED] = 1
    return False


# -- cp.async: copies that are in flight until their threads wait ------------------------------------------------------
@rule
def begin_copy(context, to_at, active, from_at, step, sizes_at, _, form):
    """Lanes `active` begin to copy as many bytes each from global to shared memory as `sizes` say, all or none; zeros
    fill the rest. What they will do when they land is a row of the table of copies, of one operation.

    Returns whether it is left to Python. First all is looked at, then all is done.
    """
    c = int64(context)
    row = int64(c[of.COPIES]).at(c[of.COPY_COUNT] * of.COPY)
    if c[of.COPY_COUNT] == c[of.COPY_ROOM]:
        return True
    if form.bytes == 0:
        row[of.SIZE] = 0
        c[of.COPY_COUNT] += 1
        return False
    if active == 0:
        return False
    to, source, sizes, size = int64(to_at), int64(from_at), int64(sizes_at), form.bytes
    load = form._replace(write=False, space="global")
    reading = bits(sizes[0:LANES] != 0) & active
    if not has_room(c, 2) or bits(sizes[0:LANES] < size) & reading:
        return True
    s, first, end, window, found, begun = int64(c[of.SHARED]), NOWHERE, 0, 0, PLAIN, PLAIN
    if reading:
        window = window_of(c, source[trailing_zeros(reading)], size)
        if window == 0:
            return True
    w = int64(window)
    for lane in ones(active):
        begun = begun | look(c, s, to[lane], 1, 0, form) | where(source[lane] & (size - 1) != 0, LEFT, PLAIN)
        first, end = where(to[lane] < first, to[lane], first), where(to[lane] + size > end, to[lane] + size, end)
        if reading >> lane & 1:
            found = found | look(c, w, source[lane], 1, 0, load)
    if (begun | found) & LEFT or first < s[of.BARRIERS_HI] and s[of.BARRIERS_LO] < end:
        return True
    number = event(c, step, found, load)
    row[of.NUMBER], row[of.STEP] = event(c, step, begun, form), step
    row[of.SIZE], row[of.LANE_COUNT] = size, count_ones(active)
    row[of.FIRST], row[of.END] = first - s[of.ORIGIN], end - s[of.ORIGIN]
    words, n = 0, 0
    for lane in ones(active):
        a = to[lane] - s[of.ORIGIN]
        row[of.TO + n], row[of.FROM + n], row[of.READ + n] = a, source[lane], where(sizes[lane] != 0, size, 0)
        n = n + 1
        if reading >> lane & 1 and w[of.FLAGS] & of.SHADOWED:
            note_access(c, w, source[lane], 1, 0, number, load)
        if begun == KEPT:
            int8(s[of.VALID])[to[lane] : to[lane] + size] = 0
            for k in range(size // WORD):
                place = a // WORD + k
                words = words + where(int16(s[of.IN_FLIGHT])[place] == 0, 1, 0)
                int16(s[of.IN_FLIGHT])[place] = 1
    row[of.GAPS] = where(words * WORD != end - first, 1, 0)
    if begun == KEPT:
        s[of.BUSY_LO] = where(first < s[of.BUSY_LO], first, s[of.BUSY_LO])
        s[of.BUSY_HI] = where(end > s[of.BUSY_HI], end, s[of.BUSY_HI])
    c[of.BYTES_COPIED] += count_ones(reading) * size
    c[of.COPY_COUNT] += 1
    return False


@rule
def end_copies(window, rows, count):
    """Copies land in shared memory in the order of their rows, of which there are `count`."""
    w = int64(window)
    for k in range(count):
        row = int64(rows).at(k * of.COPY)
        for lane in range(row[of.LANE_COUNT]):
            for word in range(row[of.SIZE] // WORD):
                to, place = w[of.ORIGIN] + row[of.TO + lane] + word * WORD, row[of.TO + lane] // WORD + word
                int32(w[of.DATA] + to)[0] = 0
                if word * WORD + WORD <= row[of.READ + lane]:
                    int32(w[of.DATA] + to)[0] = int32(row[of.FROM + lane])[word]
                else:  # zeros fill the rest
                    for byte in range(word * WORD, row[of.READ + lane]):
                        int8(w[of.DATA] + to - word * WORD)[byte] = int8(row[of.FROM + lane])[byte]
                if w[of.FLAGS] & of.SHADOWED:
                    plane, first, each = places_at(w, place, split_of(w)[place] != 0)
                    number = row[of.NUMBER]
                    if plane.written[first] != number:  # else another lane of the same copy has written it
                        int16(w[of.IN_FLIGHT])[place] -= 1
                    for byte in range(each):
                        plane.written[first + byte] = number
                    int8(w[of.VALID])[to : to + WORD] = 1


# Of `access` in machine code: context, addresses, active, values, step, epoch, one address. Of `begin_copy`: context,
# where to, active, where from, step, sizes. Of `textures.fetch`: context, coordinates, active, values, step, row
ARGUMENTS = (64,) * 6 + (1,)


@functools.cache
def export(form) -> None:
    """Compile an access of a form, which has a `rule`, once in a process, for whoever calls it by its name."""

    def text() -> str:
        code = Code()
        code.define(str(form), ARGUMENTS, lambda *given: form.rule(*given, form))
        return code.module()

    compiler().export(str(form), text)
