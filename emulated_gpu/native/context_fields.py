"""What machine code and the Python around it tell each other of memory: numbers of int64s, by name."""

# What machine code reads, int64s: the warp and the order of events, the window of its shared memory, those of regions
CHECKS, NOW, ROOM, COMPONENT, SPACE, MARKS, CLOCK, KNOWN_COUNT, UID, OWN_SPACE = range(10)
EVENTS, EVENT_COUNT, EVENT_ROOM, STORED, REGIONS, LAST, ACTIVE, WANTED, DEVICES, UNTIL = range(10, 20)
BYTES_LOADED, BYTES_STORED = range(20, 22)  # of global memory, in this turn
LANE_NUMBERS = 22  # int64 [n], of the lanes that are here
# The component of the warp's cp.async, the rows of those that this turn begins, how many, how many there is room for
COPIER, COPIES, COPY_COUNT, COPY_ROOM = range(23, 27)
SHARED, FIELDS = 27, 24
# Of a window: its addresses, where its data lie, its first word; the shadow of its words and of bytes of parted ones
LO, HI, DATA, VALID, ORIGIN, WRITTEN, READS, SLOTS, PLACES, SPLIT = range(10)
B_WRITTEN, B_READS, B_SLOTS, B_PLACES, BUSY_LO, BUSY_HI, FLAGS, WROTE, WAS_READ = range(10, 19)
LANE_TABLE, SETTLED = 19, 20  # see state/lanes.py; state/shadow.py, Plane.settled, or 0
IN_FLIGHT, BARRIERS_LO, BARRIERS_HI = 21, 22, 23  # SharedMemory.busy; the range of its mbarriers
# Of a copy: its event, instruction, bytes a lane (0: those before are a group), lanes, range, whether that has gaps;
# then of each lane where it writes, where it reads, and how many bytes
NUMBER, STEP, SIZE, LANE_COUNT, FIRST, END, GAPS, TO, FROM, READ, COPY = *range(7), 8, 40, 72, 104
WRITABLE, SHADOWED, CLOSED = 1, 2, 4  # closed: its shadow is still to be made, when somebody wants it
