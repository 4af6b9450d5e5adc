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
# Of a window: its addresses, where its data lie, its first word; the shadow of its words and of bytes of parted ones
LO, HI, DATA, VALID, ORIGIN, WRITTEN, READS, SLOTS, PLACES, SPLIT = range(10)
B_WRITTEN, B_READS, B_SLOTS, B_PLACES, BUSY_LO, BUSY_HI, FLAGS, WROTE, WAS_READ = range(10, 19)
LANE_TABLE, SETTLED = 19, 20  # see state/lanes.py; state/shadow.py, Plane.settled, or 0
IN_FLIGHT, BARRIERS_LO, BARRIERS_HI = 21, 22, 23  # SharedMemory.busy; the range of its mbarriers
# Of a copy: its event, instruction, bytes a lane (0: those before are a group), lanes, range, whether that has gaps;
# then of each lane where it writes, where it reads, and how many bytes
NUMBER, STEP, SIZE, LANE_COUNT, FIRST, END, GAPS, TO, FROM, READ, COPY = *range(7), 8, 40, 72, 104
WRITABLE, SHADOWED, CLOSED = 1, 2, 4  # closed: its shadow is still to be made, when somebody wants it
