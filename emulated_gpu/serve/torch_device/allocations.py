"""What torch.cuda says of memory: bytes and allocations, now and at most; a snapshot; a limit; pools."""

from __future__ import annotations

import ctypes
import functools
import itertools

import torch

from ...device import DEVICE
from ...errors import Unsupported
from .library import Count
from .memory import index_of

# https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
STATISTICS = {
    "allocation": True, "segment": True, "active": True, "inactive_split": None, "requested_bytes": False,
    "allocated_bytes": False, "reserved_bytes": False, "active_bytes": False, "inactive_split_bytes": None,
}  # fmt: skip

_fractions: dict[int, float] = {}
_raw: dict[int, torch.Tensor] = {}  # what caching_allocator_alloc has given
_pools = itertools.count(1)
_captures: dict[tuple[int, int], list[int]] = {}  # by pools whose memory stays, since replays use it


def counts(device, blocks: bool) -> Count:
    """Return how many bytes, or allocations, torch has on a device, has had at most and in all, and has given back."""
    return DEVICE.tensors.library.emulated_counts(index_of(device), blocks).contents


def memory_stats(device: int) -> dict:
    """Return what torch.cuda.memory_stats is made of: bytes and allocations."""

    nothing = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)

    def of(blocks: bool | None) -> dict:
        if blocks is None:
            return dict.fromkeys(("all", "large_pool", "small_pool"), nothing)
        count = counts(device, blocks)
        counted = {"current": count.now, "peak": count.most, "allocated": count.ever, "freed": count.freed}
        return {"all": counted, "large_pool": counted, "small_pool": nothing}  # there is one pool

    return {name: of(blocks) for name, blocks in STATISTICS.items()} | {
        "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0, "num_device_alloc": 0, "num_device_free": 0,
        "max_split_size": -1, "oversize_allocations": nothing, "oversize_segments": nothing,
    }  # fmt: skip


def reset_peak(device: int) -> None:
    for blocks in (False, True):
        count = counts(device, blocks)
        count.most = count.now


def reset_accumulated(device: int) -> None:
    for blocks in (False, True):
        count = counts(device, blocks)
        count.ever = count.freed = 0


def snapshot(pool=None) -> dict:
    """Return what torch.cuda.memory_snapshot shows: a segment for each allocation; no traces. Refuses a MemPool's."""
    asked = tuple(pool[:2]) if pool else (0, 0)  # which is all
    if asked not in (*_captures, (0, 0)):
        raise Unsupported("a snapshot of a MemPool, on the emulated device: all memory but graphs' is one pool")
    DEVICE.refresh()
    segments = []
    pools = {at: (name, live) for live in (False, True) for name in _captures for at in allocated(name, live)}
    for region in DEVICE.tensors.regions.values():
        of, live = pools.get(region.start, ((0, 0), True))
        used = dict.fromkeys(("allocated_size", "active_size", "requested_size"), region.size * live)
        block = {
            "address": region.start, "size": region.size, "requested_size": region.size, "frames": [],
            "state": "active_allocated" if live else "inactive",
        }  # fmt: skip
        if region.device in range(len(DEVICE.memories)) and asked in ((0, 0), of):
            segments.append(used | {
                "device": region.device, "address": region.start, "total_size": region.size, "stream": 0, "frames": [],
                "segment_type": "large", "segment_pool_id": of, "is_expandable": False, "blocks": [block],
            })  # fmt: skip
    return {
        "segments": segments, "device_traces": [[] for _ in DEVICE.memories], "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False, "last_allocator_settings": "", "roundup_power2_divisions": {},
        },
    }  # fmt: skip


def set_fraction(of: float, device: int) -> None:
    """Let torch have so much of a device's memory."""
    _fractions[device] = of
    DEVICE.tensors.library.emulated_limit(device, int(of * DEVICE.chip.memory))


def allocate(size: int, stream: int) -> int:
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    _raw[memory.data_ptr()] = memory
    return memory.data_ptr()


def give_back(at: int) -> None:
    if _raw.pop(at, None) is None and not DEVICE.tensors.library.emulated_have(at, False):
        raise RuntimeError(f"invalid device pointer: {at:#x}")


class MemPool:
    """torch.cuda.MemPool: a name, since there is one pool."""

    def __init__(self, allocator=None, *_, **__):
        self.allocator = allocator
        self.id = 0, next(_pools)

    def snapshot(self, *_, **__) -> dict:
        return snapshot(self.id)

    def use_count(self) -> int:
        return 1


# -- what Inductor's trees of CUDA graphs ask of a pool (torch/_inductor/cudagraph_trees.py). Here its memory is never
# given to anybody else: its state is which allocations somebody has.


def new_pool() -> tuple[int, int]:
    _captures[pool := (0, next(_pools))] = []
    return pool


def enter(pool: tuple[int, int], capture: int) -> None:
    """What a capture, or one's warm-up, allocates is of a pool."""
    _captures.setdefault(pool, []).append(capture)


def allocate_in(device: int, pool: tuple[int, int]) -> None:
    if pool in _captures:
        enter(pool, DEVICE.tensors.library.emulated_capture(device, True))


def allocate_as_before(device: int, pool: tuple[int, int]) -> None:
    if pool in _captures:
        DEVICE.tensors.library.emulated_capture(device, False)


def of_capture(capture: int, live: bool) -> list[int]:
    """Return where a capture's allocations lie, all or those that nobody has given back."""
    find = functools.partial(DEVICE.tensors.library.emulated_of_capture, capture, live)
    addresses = (ctypes.c_uint64 * find(None, 0))()
    return addresses[: find(addresses, len(addresses))]


def allocated(pool: tuple[int, int], live: bool = True) -> set[int]:
    """Return where a pool's allocations lie, all or those that nobody has given back."""
    if pool not in _captures:
        raise RuntimeError(f"Could not find pool of id {pool}")
    return {at for capture in _captures[pool] for at in of_capture(capture, live)}


def set_state(device: int, state: tuple, stale: list[int], kept: list[int]) -> None:
    """Let the pool's allocations be those of a state again, which `kept`, storages, own; `stale` own theirs no more."""
    pool, had = state
    for storage in stale:
        torch.ops.emulated_gpu.own(storage, False)
    now = allocated(pool)
    if now - had:
        raise RuntimeError("Any stale tensors which are being manually freed must be passed to set checkpoint")
    for at in had - now:
        DEVICE.tensors.library.emulated_have(at, True)
    for storage in kept:
        torch.ops.emulated_gpu.own(storage, True)


def lie_at(tensors: list, addresses: list, which: list[int]) -> bool:
    return all(tensors[i].data_ptr() == addresses[i] for i in which)


def tensor_on(metadata: dict, storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=metadata["dtype"], device=metadata["device"])
    return empty.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])


def names() -> dict:
    return {
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_getMemoryFraction": lambda device: _fractions.get(device, 1.0),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_cudaCachingAllocator_raw_alloc": allocate,
        "_cuda_cudaCachingAllocator_raw_delete": give_back,
        "_graph_pool_handle": new_pool,
        "_cuda_beginAllocateCurrentThreadToPool": allocate_in,
        "_cuda_beginAllocateToPool": allocate_in,
        "_cuda_endAllocateToPool": allocate_as_before,
        "_cuda_releasePool": lambda device, pool: None,
        "_cuda_getCheckpointState": lambda device, pool: (pool, allocated(pool)),
        "_cuda_setCheckpointPoolState": set_state,
        "_cuda_checkPoolLiveAllocations": lambda device, pool, addresses: allocated(pool) == addresses,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        "_cudnn_set_conv_benchmark_empty_cache": lambda on: None,
        "_has_Standard_Deleter": torch.ops.emulated_gpu.owns,
        "_free_And_Remove_DeleterFn": lambda storage: torch.ops.emulated_gpu.own(storage, False),
        "_tensors_data_ptrs_at_indices_equal": lie_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_on,
        "_set_storage_access_error_msg": torch.ops.emulated_gpu.forbid,
        "_set_storage_data_ptr_access_error_msg": torch.ops.emulated_gpu.forbid_storage,
    }
