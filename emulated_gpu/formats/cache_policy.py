"""L2 cache policies of all bytes, as createpolicy makes them (PTX ISA 9.7.9.18) and CUTLASS writes them down."""

EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
