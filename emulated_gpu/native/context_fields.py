"""What machine code and the Python around it tell each other of memory: numbers of int64s, by name."""

from ..jit.happens_before import ASKER

# What machine code reads, int64s: what the warp knows, of ASKER fields; the order of events, the window of its shared
# memory, those of regions
CHECKS, NOW, ROOM, UID, EVENTS, EVENT_COUNT, EVENT_ROOM = range(ASKER, ASKER + 7)
STORED, REGIONS, LAST, ACTIVE, WANTED, BYTES_LOADED, BYTES_STORED = range(ASKER + 7, ASKER + 14)
LANE_NUMBERS = ASKER + 14  # int64 [n], of the lanes that are here
# The component of the warp's cp.async, the rows of those that this turn begins, how many, how many there is room for
COPIER, COPIES, COPY_COUNT, COPY_ROOM = range(ASKER + 15, ASKER + 19)
# The warp's local memory: its bytes, which are written, how many a lane has; whether a lane has stored there
LOCAL, LOCAL_WRITTEN, LOCAL_BYTES, LOCAL_STORED = range(ASKER + 19, ASKER + 23)
BYTES_COPIED, SHARED, FIELDS = ASKER + 23, ASKER + 24, 24
# Of a window: where its data lie, its first word; the shadow of its words and of bytes of parted ones; who has used it
LO, DATA, VALID, ORIGIN, WRITTEN, READS, SLOTS, PLACES, SPLIT, B_WRITTEN, B_READS, B_SLOTS, B_PLACES = range(13)
FLAGS, WROTE, WAS_READ, SETTLED, IN_FLIGHT = range(13, 18)  # state/shadow.py, Plane.settled; SharedMemory.busy
# What changes of shared memory's: its end, where something is in flight or mbarriers are, those; see state/lanes.py
HI, BUSY_LO, BUSY_HI, BARRIERS_LO, BARRIERS_HI, LANE_TABLE = range(18, 24)
# Of a copy: its event, instruction, bytes a lane (0: those before are a group), lanes, range, whether that has gaps;
# then of each lane where it writes, where it reads, and how many bytes
NUMBER, STEP, SIZE, LANE_COUNT, FIRST, END, GAPS, TO, FROM, READ, COPY = *range(7), 8, 40, 72, 104
WRITABLE, SHADOWED, CLOSED = 1, 2, 4  # closed: its shadow is still to be made, when somebody wants it
