"""What the L2 has of lines and what the HBM does for the others, line by line: rules (jit/rules.py) of memory.py, which
says what they stand for (timing only, no data).

A MemoryModel has `numbers`, float64, and a table of where they and its arrays are, an L2Region one with how many lines
it has and where its arrays are; below is what stands where. Lines are numbers within the region. A half is 0 or 1.
"""

from __future__ import annotations

from ..jit.rules import Array, float64, int8, int64, real, room, rule, where
from .halves import BLOCK, LANES

LINE = 128
HOME = 2  # instead of a half: the lines' own

# numbers: of each half first
INSERTED, INSERTED_FIRST, FLUSHED, STORED = 0, 2, 4, 6
WRITTEN, OPENED, OPEN_BLOCKS, CAPACITY, ROOM_FIRST = range(8, 13)
MISS_CYCLES, FAR_CYCLES = 13, 14
TIME, NOW, EACH, PART = range(15, 19)  # what a rule is asked with. PART: cycles that a link takes for a line
COME, BACK, LAST, OVER, WAIT, ZERO = range(19, 25)  # what it answers with
NUMBERS = 25

# the table of a model; of the links, one for each half. COUNTS: int64, what `taken_in` answers with
AT_NUMBERS, AT_MISSING, AT_FAR, AT_ROWS, AT_COUNTS, AT_FREE, AT_LINKS = range(7)

# the table of a region
COUNT, BASE, AT_CHANNEL, AT_LATE, AT_HOME, AT_READY, AT_STAMP, AT_TURN, AT_OPENED = range(9)


@rule
def kept(region: Array, numbers: Array, half, line):
    """Whether a half still has a line."""
    place = half * region[COUNT] + line
    if float64(region[AT_STAMP])[place] <= numbers[INSERTED + half] - numbers[CAPACITY]:
        return False
    if region[AT_TURN] == 0:
        return True
    return float64(region[AT_TURN])[place] > numbers[INSERTED_FIRST + half] - numbers[ROOM_FIRST]


@rule
def look(region_at, model_at, lines_at, first, step, count, half):
    """Which of some lines a half, or HOME, does not have go to `missing`; returns how many. COME: when it has the last
    of the others. The lines lie at lines_at, or, if that is 0, are first, first + step, ..."""
    region, model, found = int64(region_at), int64(model_at), 0
    numbers, missing = float64(model[AT_NUMBERS]), int64(model[AT_MISSING])
    numbers[COME] = numbers[ZERO]
    for k in range(count):
        line = nth(lines_at, first, step, k)
        there = where(half == HOME, int8(region[AT_HOME])[line], half)
        if kept(region, numbers, there, line):
            numbers[COME] = largest(numbers[COME], float64(region[AT_READY])[there * region[COUNT] + line])
        else:
            missing[found] = line
            found += 1
    return found


@rule
def nth(lines_at, first, step, k):
    if lines_at == 0:
        return first + step * k
    return int64(lines_at)[k]


@rule
def largest(a, b):
    return where(a > b, a, b)


@rule
def smallest(a, b):
    return where(a < b, a, b)


@rule
def insert(region_at, model_at, lines_at, count, half, at_home, gone_first):
    """New lines push out old ones; to BACK come the bytes of those that have been stored and must be written back.
    at_home: only those of the lines come whose home the half is."""
    region, numbers, lines, new = int64(region_at), float64(int64(model_at)[AT_NUMBERS]), int64(lines_at), 0
    for k in range(count):
        if at_home == 0 or int8(region[AT_HOME])[lines[k]] == half:
            new += 1
    if new == 0:
        return
    size = real(new * LINE)
    numbers[INSERTED + half] += size
    if gone_first and region[AT_TURN] != 0:
        numbers[INSERTED_FIRST + half] += size
    for k in range(count):
        line = lines[k]
        if at_home == 0 or int8(region[AT_HOME])[line] == half:
            place = half * region[COUNT] + line
            float64(region[AT_STAMP])[place] = numbers[INSERTED + half]
            if region[AT_TURN] != 0:
                if gone_first:
                    float64(region[AT_TURN])[place] = numbers[INSERTED_FIRST + half]
                else:
                    float64(region[AT_TURN])[place] = float("inf")
    back = numbers[ZERO]
    if numbers[FLUSHED + half] > 0.0:
        left = largest(numbers[CAPACITY] - numbers[INSERTED + half] + size, size)
        back = smallest(numbers[FLUSHED + half], numbers[FLUSHED + half] * size / left)
        numbers[FLUSHED + half] -= back
    stored = numbers[STORED + half] * smallest(size / numbers[CAPACITY], 1.0)
    numbers[STORED + half] -= stored
    numbers[WRITTEN] += back + stored
    numbers[BACK] += back + stored


@rule
def taken_in(region_at, model_at, missed, half, gone_first):
    """Lines that a half misses: those of the other half go to `far`, and those that it still has are no longer missing.
    Makes room for all of them, and opens their rows of the DRAM.

    counts: how many are missing still, far, in the other half; how many rows. rows: of each how many blocks, negative
    and as a share of OPEN_BLOCKS, have opened theirs since its own did. COME: when the other half has the last of those
    that it has, or 0; BACK: bytes to be written back.
    """
    region, model = int64(region_at), int64(model_at)
    numbers, missing, far = float64(model[AT_NUMBERS]), int64(model[AT_MISSING]), int64(model[AT_FAR])
    counts, home = int64(model[AT_COUNTS]), int8(region[AT_HOME])
    left, away, elsewhere = missed, 0, 0
    numbers[COME] = numbers[ZERO]
    if half != HOME:
        for k in range(missed):
            line = missing[k]
            if home[line] != half:
                far[away] = line
                away += 1
                if kept(region, numbers, 1 - half, line):
                    elsewhere += 1
                    ready = float64(region[AT_READY])[(1 - half) * region[COUNT] + line]
                    numbers[COME] = largest(numbers[COME], ready)
    if elsewhere != 0:
        left = 0
        for k in range(missed):
            line = missing[k]
            if home[line] == half:
                missing[left] = line
                left += 1
        for k in range(away):
            line = far[k]
            if not kept(region, numbers, 1 - half, line):
                missing[left] = line
                left += 1
    numbers[BACK] = numbers[ZERO]
    insert(region_at, model_at, model[AT_MISSING], left, 0, 1, gone_first)
    insert(region_at, model_at, model[AT_MISSING], left, 1, 1, gone_first)
    if away != 0:
        insert(region_at, model_at, model[AT_FAR], away, half, 0, gone_first)
    counts[0] = left
    counts[1] = away
    counts[2] = elsewhere
    counts[3] = opened(region, numbers, missing, left, float64(model[AT_ROWS]))


@rule
def opened(region: Array, numbers: Array, lines: Array, count, rows: Array):
    """How many rows of the DRAM lines open, as of `taken_in`, which knows what `rows` is."""
    blocks, begun, shift = float64(region[AT_OPENED]), 0, region[BASE] % BLOCK
    if count == 0:
        return begun
    before = numbers[OPENED]
    for k in range(count):
        block = (lines[k] + shift) // BLOCK
        if begins(lines, k, shift):
            rows[begun] = (blocks[block] - before) / numbers[OPEN_BLOCKS]
            begun += 1
            if k == 0 or block != (lines[k - 1] + shift) // BLOCK:
                numbers[OPENED] += 1.0
    for k in range(count):
        if begins(lines, k, shift):
            blocks[(lines[k] + shift) // BLOCK] = numbers[OPENED]
    return begun


@rule
def begins(lines: Array, k, shift):
    """Whether a piece without a gap in a block of lines begins with the line of number k."""
    if k == 0:
        return True
    return lines[k] - lines[k - 1] != 1 or (lines[k] + shift) // BLOCK != (lines[k - 1] + shift) // BLOCK


@rule
def fetched(region_at, model_at, missing_count, far_count, half):
    """Each channel serves its missing lines one after the other, EACH cycles a line, and the link carries those of the
    other half; LAST: when the HBM has served the last of them; COME: when all are there.

    Requests are known some time before they leave their SM, at TIME: they must not keep a channel from others until
    then. COME says at first when those are there that the other half has.
    """
    region, model = int64(region_at), int64(model_at)
    numbers, missing, far = float64(model[AT_NUMBERS]), int64(model[AT_MISSING]), int64(model[AT_FAR])
    free, channel, late = float64(model[AT_FREE]), int64(region[AT_CHANNEL]), float64(region[AT_LATE])
    home, ready = int8(region[AT_HOME]), float64(region[AT_READY])
    if missing_count != 0:
        last = numbers[TIME]
        for k in range(missing_count):
            line = missing[k]
            end = largest(free[channel[line]], numbers[NOW]) + numbers[EACH]
            free[channel[line]] = end
            last = largest(last, largest(end, numbers[TIME]) + late[line])
        numbers[LAST] = last
        come = last + numbers[MISS_CYCLES]
        for k in range(missing_count):
            line = missing[k]
            ready[home[line] * region[COUNT] + line] = come
        numbers[COME] = largest(numbers[COME], come)
    if far_count != 0:
        carry(region_at, model_at, model[AT_FAR], far_count, half)
        numbers[COME] = largest(numbers[COME], numbers[OVER] + numbers[FAR_CYCLES])
        for k in range(far_count):
            ready[half * region[COUNT] + far[k]] = numbers[COME]


@rule
def carry(region_at, model_at, lines_at, count, half):
    """OVER: when a half's link, PART cycles a line, has carried lines, each on the lane of its HBM channel."""
    model, lines = int64(model_at), int64(lines_at)
    numbers, link = float64(model[AT_NUMBERS]), float64(model[AT_LINKS + half])
    shares, channel = room(LANES, float64), int64(int64(region_at)[AT_CHANNEL])
    for k in range(LANES):
        shares[k] = numbers[ZERO]
    for k in range(count):
        shares[channel[lines[k]] % LANES] += 1.0
    numbers[OVER] = numbers[ZERO]
    for k in range(LANES):
        link[k] = largest(link[k], numbers[NOW]) + shares[k] * numbers[PART]
        if shares[k] > 0.0:
            numbers[OVER] = largest(numbers[OVER], link[k])


@rule
def waiting(model_at, channels):
    """WAIT: for how many cycles from TIME on the channels are busy, all together."""
    numbers, free = float64(int64(model_at)[AT_NUMBERS]), float64(int64(model_at)[AT_FREE])
    total = numbers[ZERO]
    for k in range(channels):
        if free[k] > numbers[TIME]:
            total = total + (free[k] - numbers[TIME])
    numbers[WAIT] = total
