"""What torch.cuda says of memory: bytes and allocations, now and at most; a snapshot; a limit; pools."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ...device import DEVICE
from ...errors import Unsupported

# https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
STATISTICS = {
    "allocation": True, "segment": True, "active": True, "inactive_split": None, "requested_bytes": False,
    "allocated_bytes": False, "reserved_bytes": False, "active_bytes": False, "inactive_split_bytes": None,
}  # fmt: skip

_fractions: dict[int, float] = {}
_raw: dict[int, torch.Tensor] = {}  # what caching_allocator_alloc has given
_pools = itertools.count(1)
_of_graphs: set[tuple[int, int]] = set()  # pools whose memory stays, since replays use it


def counts(device: int, blocks: bool) -> Any:
    """Return `Allocator.counts` of torch's memory on a device."""
    return DEVICE.tensors.counts(device, blocks)


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
    """Return what torch.cuda.memory_snapshot shows: a segment for each allocation; no traces. Refuses one pool's."""
    if pool and tuple(pool[:2]) != (0, 0):  # which is all
        raise Unsupported("a snapshot of one pool's memory, on the emulated device: all of its memory is one pool")
    DEVICE.refresh()
    segments = []
    for region in DEVICE.tensors.regions.values():
        size = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), region.size)
        block = {
            "address": region.start, "size": region.size, "requested_size": region.size, "state": "active_allocated",
            "frames": [],
        }  # fmt: skip
        if region.device in range(len(DEVICE.memories)):
            segments.append(size | {
                "device": region.device, "address": region.start, "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [block],
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
    DEVICE.tensors.limit(device, int(of * DEVICE.chip.memory))


def allocate(size: int, stream: int) -> int:
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    _raw[memory.data_ptr()] = memory
    return memory.data_ptr()


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
# given to anybody else: there is no state of it to return to, and a tensor of old results is one that must not be read.


def new_pool() -> tuple[int, int]:
    _of_graphs.add(pool := (0, next(_pools)))
    return pool


def allocate_in(device: int, pool: tuple[int, int]) -> None:
    if pool in _of_graphs:
        DEVICE.tensors.library.emulated_capture(device, True)


def allocate_as_before(device: int, pool: tuple[int, int]) -> None:
    if pool in _of_graphs:
        DEVICE.tensors.library.emulated_capture(device, False)


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
        "_cuda_cudaCachingAllocator_raw_delete": lambda at: _raw.pop(at, None),
        "_graph_pool_handle": new_pool,
        "_cuda_beginAllocateCurrentThreadToPool": allocate_in,
        "_cuda_beginAllocateToPool": allocate_in,
        "_cuda_endAllocateToPool": allocate_as_before,
        "_cuda_releasePool": lambda device, pool: None,
        "_cuda_getCheckpointState": lambda device, pool: pool,
        "_cuda_setCheckpointPoolState": lambda device, state, stale, live: None,
        "_cuda_checkPoolLiveAllocations": lambda device, pool, addresses: True,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        "_cudnn_set_conv_benchmark_empty_cache": lambda on: None,
        "_has_Standard_Deleter": lambda storage: True,
        "_free_And_Remove_DeleterFn": lambda storage: None,
        "_tensors_data_ptrs_at_indices_equal": lie_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_on,
        "_set_storage_access_error_msg": torch.ops.emulated_gpu.forbid,
        "_set_storage_data_ptr_access_error_msg": torch.ops.emulated_gpu.forbid_storage,
    }
