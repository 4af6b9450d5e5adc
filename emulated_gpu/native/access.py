"""Loads and stores of a warp: the data, and what the shadows of state/ keep of an access. Rules, see jit/rules.py.

What is plain is done here: lanes inside one range of memory, every byte of it written, nobody else's access in the way.
Anything else (a fault, a conflict, an operation in flight) changes nothing and is left to Python, which says what it
is. So this file knows of shadows (state/shadow.py) how they are kept, and no rule that they do not have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit.happens_before import COMPONENT, MARKS, MOST, NOWHERE, OWN_SPACE, SPACE, is_of, known, slot_of
from ..jit.llvm import LANES, Code, Value, compiler
from ..jit.rules import (
    Array,
    Kind,
    Rule,
    bits,
    count_ones,
    fill,
    int8,
    int16,
    int32,
    int64,
    mask,
    ones,
    room,
    rule,
    trailing_zeros,
    where,
)
from ..state.lanes import HALF, LANE_MASK, SEVERAL
from ..state.order import GENERIC
from ..state.shadow import WORD
from . import context_fields as of

FULL = (1 << LANES) - 1
DONE, LEFT, SLOWLY = range(3)  # what has become of an access: done, left to Python, still to be done lane by lane
KEYS = 32  # of words in the table of lanes that are looked at together: of who wrote either half, of who read it


class Form(NamedTuple):
    """An access of this many elements of `size` bytes side by side. nc: a load by the non-coherent cache. rows: of
    matrices, which lanes read for each other."""

    write: bool
    space: str
    size: int
    elements: int
    nc: bool = False
    rows: bool = False

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
    def settles(self) -> bool:
        """Whether it looks for places where no more reads are kept (state/shadow.py, Plane.settled)."""
        return not (self.write or self.shared or self.parted)

    @property
    def keeps_lanes(self) -> bool:
        return self.shared and self.size >= HALF and not self.rows

    @property
    def kind(self) -> Kind:
        return Kind(8 * self.size)

    @property
    def rule(self) -> Rule:
        return access_local if self.space == "local" else access

    def __str__(self) -> str:
        what = f"{'store' if self.write else 'load'}.{self.space}"
        return f"{what}.{self.size}.{self.elements}{'.nc' * self.nc}{'.rows' * self.rows}"


class Copy(NamedTuple):
    """A cp.async of this many bytes a lane; 0: cp.async.commit_group."""

    size: int

    @property
    def shared(self) -> bool:
        return True

    @property
    def rule(self) -> Rule:
        return begin_copy

    def __str__(self) -> str:
        return f"copy.{self.size}"


class Plane(NamedTuple):
    """See state/shadow.py."""

    written: Array
    reads: Array
    slots: int
    places: int


def plane_of(w: Array, parted: bool) -> Plane:
    """A window's shadow of words, or of bytes."""
    first = of.B_WRITTEN if parted else of.WRITTEN
    return Plane(int32(w[first]), int32(w[first + 1]), w[first + 2], w[first + 3])


# -- events and places -------------------------------------------------------------------------------------------------
@rule
def is_known(c, number, copying):
    """Whether an event has happened before, or, for a copy, is of the warp's own copies, which may overlap."""
    if copying and is_of(c, number, c[of.COPIER]):
        return True
    return known(c, number)


@rule
def are_known(c, plane, place, copying):
    """Whether all reads of a place are. copying: as of is_known."""
    for k in range(plane.slots):
        read = plane.reads[k * plane.places + place]
        if read == 0:
            return True
        if not is_known(c, read, copying):
            return False
    return True


@rule
def slot_in(c, plane, place, component):
    return slot_of(c, plane.reads, plane.slots, plane.places, place, component)


@rule
def allowed(c, plane, place, write, nc):
    """Whether an access of a place comes after all that was done there."""
    if nc:
        if plane.written[place]:
            return False
    elif not known(c, plane.written[place]):
        return False
    if not write:
        return slot_in(c, plane, place, MOST) != NOWHERE
    return are_known(c, plane, place, False)


@rule
def note_access(c, plane, place, number, write):
    """Keep an event that accesses a place. A write forgets the reads before it."""
    if not write:
        plane.reads[slot_in(c, plane, place, MOST)] = number
        return
    plane.written[place] = number
    for k in range(plane.slots):
        at = k * plane.places + place
        if plane.reads[at] == 0:
            return
        plane.reads[at] = 0


@rule
def event(c, step, marks, component):
    """Number an event of a component of the warp's cluster, by an instruction."""
    number = c[of.NOW] + 1
    c[of.NOW] = number
    int32(c[COMPONENT])[number] = component
    int32(c[SPACE])[number] = c[OWN_SPACE]
    int8(c[MARKS])[number] = marks
    int32(c[of.EVENTS])[c[of.EVENT_COUNT]] = step
    c[of.EVENT_COUNT] += 1
    return number


@rule
def part(w, word):
    """Keep a word byte by byte; False if there is no room."""
    split, whole, parts, byte = int8(w[of.SPLIT]), plane_of(w, False), plane_of(w, True), word * WORD
    if split[word]:
        return True
    if whole.slots > parts.slots:
        return False
    split[word] = 1
    parts.written[byte : byte + WORD] = whole.written[word]
    for k in range(whole.slots):
        at = k * parts.places + byte
        parts.reads[at : at + WORD] = whole.reads[k * whole.places + word]
    return True


@rule
def is_split(w, word):
    return w[of.SPLIT] != 0 and int8(w[of.SPLIT])[word] != 0


@rule
def is_settled(w, word, count):
    """Whether no more reads are kept of this many words."""
    for k in range(count):  # noqa: SIM110
        if int8(w[of.SETTLED])[word + k] == 0:
            return False
    return True


@rule
def settle(c, w, plane, word):
    """Keep no more reads of a word that two clusters have read and nobody has written."""
    if int32(c[SPACE])[plane.reads[word]] != c[OWN_SPACE] and plane.written[word] == 0:
        int8(w[of.SETTLED])[word] = 1


@rule
def allowed_word(c, w, place, write, nc, parted):
    """The same of a place of a window, whichever plane keeps it."""
    if parted:
        if w[of.SPLIT] == 0 or not part(w, place // WORD):
            return False
    elif is_split(w, place):
        if nc:
            return False
        for k in range(WORD):  # noqa: SIM110
            if not allowed(c, plane_of(w, True), place * WORD + k, write, False):
                return False
        return True
    elif not write and w[of.SETTLED] and is_settled(w, place, 1):
        return True
    return allowed(c, plane_of(w, parted), place, write, nc)


@rule
def note_word(c, w, place, number, write, parted):
    """Keep an event there, and for other launches that something was used."""
    used = w[of.WROTE if write else of.WAS_READ]
    if used:
        int8(used)[place // WORD if parted else place] = 1
    if not parted:
        if is_split(w, place):
            for k in range(WORD):
                note_access(c, plane_of(w, True), place * WORD + k, number, write)
            return
        if not write and w[of.SETTLED] and is_settled(w, place, 1):
            return
    note_access(c, plane_of(w, parted), place, number, write)
    if not write and not parted and w[of.SETTLED]:
        settle(c, w, plane_of(w, False), place)


@rule
def window_of(c, address, size):
    """The address of the window of global memory that holds a range, or 0."""
    first = c.at(of.SHARED + of.FIELDS)
    w = first.at(c[of.LAST] * of.FIELDS)
    if c[of.REGIONS] and w[of.LO] <= address and address + size <= w[of.HI]:
        return w.address
    for k in range(c[of.REGIONS]):
        v = first.at(k * of.FIELDS)
        if v[of.LO] <= address and address + size <= v[of.HI]:
            c[of.LAST] = k
            return v.address
    return 0


# -- lanes of one warp, as state/lanes.py keeps them -------------------------------------------------------------------
@rule
def lane_key(c, lane, epoch, several):
    """A key of one of the lanes that are here; others do as the first one does."""
    if several:
        return epoch | SEVERAL
    return epoch | int64(c[of.LANE_NUMBERS])[where(c[of.ACTIVE] >> lane & 1 != 0, lane, 0)]


def keys_at(offset, size: int):
    """Where the keys of the first word of an access begin, and how many halves each question is of."""
    return offset // WORD * 4 + (offset // HALF & (size == HALF)), 1 if size == HALF else 2


@rule
def clashes(c, w, lane, offset, epoch, several, size, write):
    """Whether another lane has written there, for a load, or has written or read, for a store."""
    key, table = lane_key(c, lane, epoch, several), int32(w[of.LANE_TABLE])
    first, halves = keys_at(offset, size)
    found = False
    for word in range(max(1, size // WORD)):
        at = first + 4 * word
        found = found | ((table[at : at + halves] ^ key) - 1 < where(several, LANE_MASK, SEVERAL - 1)).any()
        if write:
            at_reads = at + 2
            found = found | ((table[at_reads : at_reads + halves] ^ key) - 1 < LANE_MASK).any()
    return found


@rule
def note_lane(c, w, lane, offset, epoch, several, size, write):
    """Keep what a lane does with an element: its key, or that of several."""
    key, table = lane_key(c, lane, epoch, several), int32(w[of.LANE_TABLE])
    first, halves = keys_at(offset, size)
    for word in range(max(1, size // WORD)):
        at = first + 4 * word + (0 if write else 2)
        others = (table[at : at + halves] ^ key) - 1 < LANE_MASK
        table[at : at + halves] = where(others, epoch | SEVERAL, key)


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
    first = addresses[trailing_zeros(active)]
    at = c.at(of.SHARED).address if form.shared else window_of(c, first, form.bytes)
    w = int64(at)
    if not form.shared and at == 0:
        return True
    if w[of.FLAGS] & of.CLOSED:
        c[of.WANTED] = at
        return True
    if form.settles and w[of.SETTLED] and w[of.SPLIT] == 0:
        went = load_settled(w, addresses, active, values, first, form)
        if went != SLOWLY:
            if went == DONE:
                account(c, addresses, active, first, form)
            return went == LEFT
    if form.write and w[of.FLAGS] & of.WRITABLE == 0:
        return True
    if c[of.NOW] + 1 > c[of.ROOM] or c[of.EVENT_COUNT] + 1 > c[of.EVENT_ROOM]:
        return True
    if form.parted or form.nc or not move_row(c, w, addresses, active, values, first, step, epoch, form):
        several = one_address & (c[of.ACTIVE] > 1)
        alike = bits(addresses[0:LANES] != first) & active == 0
        few = active
        if not form.write and alike:  # two of those that load from one address do what all of them do
            others = active & (active - 1)
            few = active ^ (others & (others - 1))
        if not may_move(c, w, addresses, few, epoch, several, form):
            return True
        move(c, w, addresses, few, values, step, epoch, several, form)
        if not form.write and alike:
            spread(values, active, trailing_zeros(active), form.elements)
    account(c, addresses, active, first, form)
    return False


@rule
def account(c, addresses, active, first, form):
    """Count bytes of global memory, and who has stored: to shared memory its lanes, else all wait for a fence.

    Lanes that are not here do as the first one does, and a load of many lanes at one address is one."""
    if form.write:
        c[of.STORED] |= active if form.shared else c[of.ACTIVE]
    if not form.shared:
        moving = active & c[of.ACTIVE]
        moved = count_ones(moving)
        if not form.write:
            moved = where(bits(addresses[0:LANES] != first) & moving == 0, 1, moved)
        c[of.BYTES_STORED if form.write else of.BYTES_LOADED] += moved * form.bytes


@rule
def may_move(c, w, addresses, lanes, epoch, several, form):
    """Whether lanes' access is plain."""
    for lane in ones(lanes):
        a = addresses[lane]
        if a < w[of.LO] or a + form.bytes > w[of.HI] or a % form.bytes:
            return False
        if form.shared and form.write and a + form.bytes > w[of.BUSY_LO] and a < w[of.BUSY_HI]:
            return False
        offset = a - w[of.ORIGIN]
        if (
            form.shared
            and not form.write
            and w[of.FLAGS] & of.SHADOWED
            and (int8(w[of.VALID])[a : a + form.bytes] != 1).any()
        ):
            return False
        kept = form.keeps_lanes and w[of.LANE_TABLE]
        if kept and clashes(c, w, lane, offset, epoch, several, form.bytes, form.write):
            return False
        if w[of.FLAGS] & of.SHADOWED:
            for k in range(form.bytes // form.grain):
                place = offset // form.grain + k
                if not allowed_word(c, w, place, form.write, form.nc, form.parted):
                    return False
    return True


@rule
def move(c, w, addresses, lanes, values, step, epoch, several, form):
    """Move lanes' elements, one after the other, and keep who did."""
    shadowed, data = w[of.FLAGS] & of.SHADOWED, int8(w[of.DATA])
    if shadowed:
        event(c, step, GENERIC * form.write, c[of.UID])
    for k in range(form.elements):
        for lane in ones(lanes):
            a = addresses[lane] + k * form.size
            element = form.kind(data.at(a).address)
            if form.write:
                element[0] = values[k * LANES + lane]
                if form.shared:
                    fill(int8(w[of.VALID]), a, form.size, 1)
            else:
                values[k * LANES + lane] = element[0]
            if form.keeps_lanes and w[of.LANE_TABLE]:
                note_lane(c, w, lane, a - w[of.ORIGIN], epoch, several, form.size, form.write)
            if shadowed:
                for j in range(form.size // form.grain):
                    note_word(c, w, (a - w[of.ORIGIN]) // form.grain + j, c[of.NOW], form.write, form.parted)


@rule
def spread(values, active, lane, count):
    """What a lane has loaded is what all have."""
    for k in range(count):
        row = k * LANES
        values[row : row + LANES] = where(mask(active, LANES), values[row + lane], 0)


@rule
def load_settled(w, addresses, active, values, first, form):
    """Of places where no more reads are kept only data move. Lanes that a guard keeps out read where the first does."""
    every = where(mask(active, LANES), addresses[0:LANES], first)
    addresses[0:LANES] = every
    if ((every < w[of.LO]) | (every > w[of.HI] - form.bytes) | (every & (form.bytes - 1) != 0)).any():
        return LEFT
    lanes = where((every == first).all(), 1, LANES)
    for lane in range(lanes):
        if not is_settled(w, (addresses[lane] - w[of.ORIGIN]) // WORD, form.bytes // WORD):
            return SLOWLY
    for k in range(form.elements):
        for lane in range(lanes):
            element = form.kind(w[of.DATA] + addresses[lane] + k * form.size)
            values[k * LANES + lane] = element[0]
    if lanes == 1:
        spread(values, FULL, 0, form.elements)
    if w[of.WAS_READ]:
        for lane in range(lanes):
            fill(int8(w[of.WAS_READ]), (addresses[lane] - w[of.ORIGIN]) // WORD, form.bytes // WORD, 1)
    return DONE


# -- local memory: of each lane its own, which nobody else sees --------------------------------------------------------
@rule
def place_in_local(c, lane, address):
    """Where the address of a lane lies in its warp's local memory. Lanes that are not here are as the first one."""
    return int64(c[of.LANE_NUMBERS])[where(c[of.ACTIVE] >> lane & 1 != 0, lane, 0)] * c[of.LOCAL_BYTES] + address


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
        element = form.kind(c[of.LOCAL] + place)
        for k in range(form.elements):
            if form.write:
                element[k] = values[k * LANES + lane]
            else:
                values[k * LANES + lane] = element[k]
        if form.write:
            fill(int8(c[of.LOCAL_WRITTEN]), place, form.bytes, 1)
            c[of.LOCAL_STORED] = 1
    return False


# -- rows: the elements of a lane lie behind those of the lane before --------------------------------------------------
@rule
def row_slot(c, plane, word, write):
    """The first slot in which one event has read 32 words, one that is known; for a write, the one behind all reads."""
    for k in range(plane.slots):
        at = k * plane.places + word
        read = plane.reads[at : at + LANES]
        if (read != read[0]).any():
            return NOWHERE
        if write and read[0] != 0:
            if not known(c, read[0]):
                return NOWHERE
        elif known(c, read[0]):
            return at
    return plane.slots * plane.places if write else NOWHERE


def lanes_of_keys(words: int) -> np.ndarray:
    """To which lane keys belong, of accesses of this many words."""
    return np.arange(KEYS, dtype=np.uint32) // 4 // words


def bounds_of_keys(write: bool) -> np.ndarray:
    """Below which distance a key says of another lane that it is in the way: of who wrote, who read."""
    return np.resize(np.array([SEVERAL - 1] * 2 + [LANE_MASK * write] * 2, np.uint32), KEYS)


def noted_keys(write: bool) -> np.ndarray:
    return np.resize(np.array([write, write, not write, not write]), KEYS)


def offsets(step: int) -> np.ndarray:
    return np.arange(0, LANES * step, step, dtype=np.uint64)


@rule
def move_row(c, w, addresses, active, values, first, step, epoch, form):
    """Most accesses of most kernels: of 32 words one event has written all and one has read all. False where that is
    not so; then nothing has been changed, and lanes come one by one."""
    size, words = LANES * form.bytes, form.bytes // WORD
    if active != FULL or c[of.ACTIVE] != FULL or w[of.SPLIT] or first < w[of.LO] or first + size > w[of.HI]:
        return False
    if first % form.bytes or (addresses[0:LANES] != offsets(form.bytes) + first).any():
        return False
    if form.shared and form.write and first + size > w[of.BUSY_LO] and first < w[of.BUSY_HI]:
        return False
    plane, word, slots = plane_of(w, False), (first - w[of.ORIGIN]) // WORD, room(words)
    if w[of.FLAGS] & of.SHADOWED:
        for k in range(words):
            at = word + k * LANES
            valid = int32(w[of.VALID] + first + k * LANES * WORD)
            if form.shared and not form.write and (valid[0:LANES] != 0x01010101).any():
                return False
            if form.settles and w[of.SETTLED] and (int8(w[of.SETTLED])[at : at + LANES] != 0).any():
                return False
            writer = plane.written[at : at + LANES]
            if (writer != writer[0]).any() or not known(c, writer[0]):
                return False
            slot = row_slot(c, plane, at, form.write)
            if slot == NOWHERE:
                return False
            slots[k] = slot
    keys, each = int32(w[of.LANE_TABLE] + word * 16), KEYS // 4 // words
    if form.keeps_lanes and w[of.LANE_TABLE]:
        for k in range(LANES // each):
            at = k * KEYS
            own = lanes_of_keys(words) | (epoch + k * each)
            if ((keys[at : at + KEYS] ^ own) - 1 < bounds_of_keys(form.write)).any():
                return False
    if w[of.FLAGS] & of.SHADOWED:
        note_row(c, w, plane, word, slots, event(c, step, GENERIC * form.write, c[of.UID]), form)
    if form.keeps_lanes and w[of.LANE_TABLE]:
        for k in range(LANES // each):
            at = k * KEYS
            own, kept = lanes_of_keys(words) | (epoch + k * each), keys[at : at + KEYS]
            fresh = where((kept ^ own) - 1 < LANE_MASK, epoch | SEVERAL, own)
            keys[at : at + KEYS] = where(noted_keys(form.write), fresh, kept)
    if form.shared and form.write:
        fill(int8(w[of.VALID]), first, size, 1)
    data = form.kind(w[of.DATA] + first)
    if form.elements == 1:
        if form.write:
            data[0:LANES] = values[0:LANES]
        else:
            values[0:LANES] = data[0:LANES]
    else:
        for k in range(LANES * form.elements):
            place = k % form.elements * LANES + k // form.elements
            if form.write:
                data[k] = values[place]
            else:
                values[place] = data[k]
    return True


@rule
def note_row(c, w, plane, word, slots, number, form):
    for k in range(form.bytes // WORD):
        at = word + k * LANES
        if not form.shared:
            used = w[of.WROTE if form.write else of.WAS_READ]
            if used:
                int8(used)[at : at + LANES] = 1
        if form.write:
            plane.written[at : at + LANES] = number
            for j in range(plane.slots):
                read = j * plane.places + at
                if plane.reads[read] == 0:
                    break
                plane.reads[read : read + LANES] = 0
        else:
            slot = slots[k]
            plane.reads[slot : slot + LANES] = number
            if form.settles and w[of.SETTLED] and plane.written[at] == 0:  # as all of them are
                for j in range(LANES):
                    settle(c, w, plane, at + j)


# -- cp.async: copies that are in flight until their threads wait ------------------------------------------------------
@rule
def may_overwrite(c, w, place):
    """Whether a copy may write a word, which nothing else has under way."""
    if int16(w[of.IN_FLIGHT])[place] or is_split(w, place):
        return False
    plane = plane_of(w, False)
    return is_known(c, plane.written[place], True) and are_known(c, plane, place, True)


@rule
def may_be_copied(c, w, place):
    """Whether a copy may read a word of global memory whose reads are kept."""
    if is_split(w, place):
        return False
    plane = plane_of(w, False)
    return known(c, plane.written[place]) and slot_in(c, plane, place, c[of.COPIER]) != NOWHERE


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
    if form.size == 0:
        row[of.SIZE] = 0
        c[of.COPY_COUNT] += 1
        return False
    if active == 0:
        return False
    to, source, sizes, size, count = int64(to_at), int64(from_at), int64(sizes_at), form.size, form.size // WORD
    if c[of.NOW] + 2 > c[of.ROOM] or c[of.EVENT_COUNT] + 2 > c[of.EVENT_ROOM]:
        return True
    reading = bits(sizes[0:LANES] != 0) & active
    if bits(sizes[0:LANES] < size) & reading or bits((to[0:LANES] | source[0:LANES]) & (size - 1) != 0) & active:
        return True
    s, first, end, from_window, kept = c.at(of.SHARED), NOWHERE, 0, 0, 0
    if reading:
        from_window = window_of(c, source[trailing_zeros(reading)], size)
        if from_window == 0:
            return True
        if int64(from_window)[of.FLAGS] & of.CLOSED:
            c[of.WANTED] = from_window
            return True
    w, ordered = int64(from_window), s[of.FLAGS] & of.SHADOWED
    for lane in ones(active):
        a, b = to[lane], source[lane]
        if a < s[of.LO] or a + size > s[of.HI]:
            return True
        first, end = where(a < first, a, first), where(a + size > end, a + size, end)
        if ordered:
            for k in range(count):
                if not may_overwrite(c, s, (a - s[of.ORIGIN]) // WORD + k):
                    return True
        if reading >> lane & 1:
            if b < w[of.LO] or b + size > w[of.HI]:
                return True
            if w[of.FLAGS] & of.SHADOWED:
                for k in range(count):
                    place = (b - w[of.ORIGIN]) // WORD + k
                    if w[of.SETTLED] == 0 or not is_settled(w, place, 1):
                        kept = 1
                        if not may_be_copied(c, w, place):
                            return True
    if first < s[of.BARRIERS_HI] and s[of.BARRIERS_LO] < end:
        return True
    if reading and w[of.WAS_READ]:
        use_copied(w, source, reading, size)
    if kept:
        note_copied(c, w, source, reading, event(c, step, 0, c[of.COPIER]), count)
    row[of.NUMBER], row[of.STEP], row[of.SIZE], row[of.LANE_COUNT] = 0, step, size, count_ones(active)
    row[of.FIRST], row[of.END], row[of.GAPS] = first - s[of.ORIGIN], end - s[of.ORIGIN], 0
    if ordered:
        row[of.NUMBER] = event(c, step, 0, c[of.COPIER])
        s[of.BUSY_LO] = where(first < s[of.BUSY_LO], first, s[of.BUSY_LO])
        s[of.BUSY_HI] = where(end > s[of.BUSY_HI], end, s[of.BUSY_HI])
    words, n = 0, 0
    for lane in ones(active):
        a = to[lane]
        row[of.TO + n], row[of.FROM + n] = a - s[of.ORIGIN], source[lane]
        row[of.READ + n] = where(reading >> lane & 1 != 0, size, 0)
        n = n + 1
        if ordered:
            fill(int8(s[of.VALID]), a, size, 0)
            for k in range(count):
                place = (a - s[of.ORIGIN]) // WORD + k
                words = words + where(int16(s[of.IN_FLIGHT])[place] == 0, 1, 0)
                int16(s[of.IN_FLIGHT])[place] = 1
    row[of.GAPS] = where(words * WORD != end - first, 1, 0)
    c[of.COPY_COUNT] += 1
    return False


@rule
def end_copies(window, rows, count):
    """Copies land in shared memory in the order of their rows, of whose addresses there are `count`.

    Returns whether they are left to Python, as where somebody has used parts of their words meanwhile.
    """
    w = int64(window)
    base, ordered, plane = w[of.ORIGIN], w[of.FLAGS] & of.SHADOWED, plane_of(w, False)
    for k in range(count):
        row = int64(int64(rows)[k])
        for lane in range(row[of.LANE_COUNT]):
            for word in range(row[of.SIZE] // WORD):
                if is_split(w, row[of.TO + lane] // WORD + word):
                    return True
    for k in range(count):
        row = int64(int64(rows)[k])
        for lane in range(row[of.LANE_COUNT]):
            for word in range(row[of.SIZE] // WORD):
                to, place = base + row[of.TO + lane] + word * WORD, row[of.TO + lane] // WORD + word
                int32(w[of.DATA] + to)[0] = 0
                if row[of.READ + lane]:
                    int32(w[of.DATA] + to)[0] = int32(row[of.FROM + lane])[word]
                if ordered:
                    if plane.written[place] != row[of.NUMBER]:  # else another lane of the same copy has written it
                        int16(w[of.IN_FLIGHT])[place] -= 1
                    plane.written[place] = row[of.NUMBER]
                    fill(int8(w[of.VALID]), to, WORD, 1)
    return False


@rule
def use_copied(w, source, lanes, size):
    """Keep for other launches what a copy's lanes read."""
    for lane in ones(lanes):
        fill(int8(w[of.WAS_READ]), (source[lane] - w[of.ORIGIN]) // WORD, size // WORD, 1)


@rule
def note_copied(c, w, source, lanes, number, count):
    """Keep the read of a copy's lanes."""
    plane = plane_of(w, False)
    for lane in ones(lanes):
        for k in range(count):
            place = (source[lane] - w[of.ORIGIN]) // WORD + k
            if w[of.SETTLED] == 0 or not is_settled(w, place, 1):
                plane.reads[slot_in(c, plane, place, c[of.COPIER])] = number
                if w[of.SETTLED]:
                    settle(c, w, plane, place)


@rule
def gathered(values, out, places, count):
    """Elements of 16 bits by their places."""
    for k in range(count):
        int16(out)[k] = int16(values)[int32(places)[k]]


# Of `access` in machine code: context, addresses, active, values, step, epoch, one address. Of `begin_copy`: context,
# where to, active, where from, step, sizes. Of `textures.fetch`: context, coordinates, active, values, step, row
ARGUMENTS = (64,) * 6 + (1,)


_exported: set = set()


def export(forms: set) -> None:
    """Compile accesses of such forms, each with a `rule`, once in a process, for whoever calls them by their names."""
    code, names = Code(), []
    for form in sorted(forms - _exported, key=str):
        given = [Value(f"%p{k}", bits, 0, False, code) for k, bits in enumerate(ARGUMENTS)]
        code.emit(f"ret {form.rule(*given, form)}")
        code.close(f"define i1 @{form}({', '.join(map(str, given))})")
        names.append(str(form))
    if names:
        compiler().export(code.module(), names)
        _exported.update(forms)
