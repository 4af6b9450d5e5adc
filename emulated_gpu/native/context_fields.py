"""What machine code and the Python around it tell each other of memory: numbers of int64s, by name."""

from ..jit.happens_before import ASKER

# What machine code reads, int64s: what the warp knows, of ASKER fields; Order.steps and the last event for which there
# is room; its lanes, the numbers int64 [n] of those that are here, a bit each
CHECKS, STEPS, ROOM, UID, LANE_NUMBERS, ACTIVE = range(ASKER, ASKER + 6)
# The component of the warp's cp.async; its local memory: the bytes, which are written, how many a lane has; windows of
# its shared memory and of regions
COPIER, LOCAL, LOCAL_WRITTEN, LOCAL_BYTES, SHARED, WINDOWS, REGIONS = range(ASKER + 6, ASKER + 13)
# What it writes: the last event, how many copies there are; lanes that have stored; the region last used, the window
# without a shadow that it wants; bytes moved; whether a lane has stored in local memory
NOW, COPY_COUNT, STORED, LAST, WANTED, BYTES_LOADED, BYTES_STORED, BYTES_COPIED, LOCAL_STORED = range(
    ASKER + 13, ASKER + 22
)
WRITTEN = LOCAL_STORED - NOW  # of these, which are 0 at first
# Where copies go that a turn makes, and for how many there is room: the same in all turns
COPIES, COPY_ROOM = LOCAL_STORED + 1, LOCAL_STORED + 2
# Of a window: where its data lie, its first word, its shadow (Shadow.told), who has used it; SharedMemory.busy
LO, DATA, VALID, ORIGIN, SHADOW, FLAGS, WROTE, WAS_READ, IN_FLIGHT = range(9)
# What changes of shared memory's: its end, where something is in flight or mbarriers are, those; see state/lanes.py
HI, BUSY_LO, BUSY_HI, BARRIERS_LO, BARRIERS_HI, LANE_TABLE, FIELDS = range(9, 16)
# Of a copy: its event, instruction, bytes a lane (0: those before are a group), lanes, range, whether that has gaps;
# then of each lane where it writes, where it reads, and how many bytes
NUMBER, STEP, SIZE, LANE_COUNT, FIRST, END, GAPS, TO, FROM, READ, COPY = *range(7), 8, 40, 72, 104
WRITABLE, SHADOWED, CLOSED = 1, 2, 4  # closed: its shadow is still to be made, when somebody wants it
