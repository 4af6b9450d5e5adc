"""Which of the units' functions access global memory, and what tells the clock of it: there is none that is free.

`tests/emulated_gpu/model/test_charges.py` holds the table to the units' code. What has no price yet tells the clock so
(`Clock.unpriced`), and whoever reports a time can refuse it (`model/tally.py`).
"""

from __future__ import annotations

# Function of a unit that has the launch's memory in its hands -> (function that tells the clock, what it tells)
CHARGES = {
    "access.load_one": ("access._loaded", "global_load"),
    "access.gather": ("access._loaded", "global_load"),
    "access.store": ("access.store", "global_store"),
    "access._leave_out": ("access.store", "global_store"),
    "access._changed": ("access.store", "global_store"),
    "access.store_one": ("access.store", "global_store"),
    "access.scatter": ("access.store", "global_store"),
    "async_copy.changes_nothing": ("async_copy.tma_store", "tma_store"),
    "async_copy.tma_load": ("async_copy.tma_load", "tma_load"),
    "async_copy._store_later": ("async_copy.tma_store", "tma_store"),
    "async_copy._bulk_to_shared": ("async_copy._bulk_to_shared", "bulk_load"),
    "async_copy._bulk_to_global": ("async_copy._bulk_to_global", "bulk_store"),
    "async_copy.bulk_prefetch": ("async_copy.bulk_prefetch", "bulk_prefetch"),
    # without a price
    "access.atomic": ("access.atomic", "unpriced"),
    "async_copy._land_copies": ("async_copy.cp_async", "unpriced"),
}
OTHERWISE = {
    "access.apply_priority": "a hint, which the memory checks",
    "access.discard": "moves nothing",
    "system_calls.malloc": "`call` is refused in a timed run",
    "system_calls.free": "`call` is refused in a timed run",
    "tensor_maps.descriptor_bytes": "its fetch is part of the time of the copy that uses it",
    "tensor_maps.replace": "the cost of its instruction, replace_tensormap",
    "tensor_maps.copy": "the cost of its instruction, publish_tensormap",
}
