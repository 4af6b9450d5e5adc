"""Tensor maps as objects in memory (PTX ISA 5.5.8, 9.7.9.26-28): read, edited, copied, and their changes acquired."""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import tensormap
from ..state.global_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from .addresses import active, pick, shared_cta, state_space
from .group import LaneGroup


def tensor_map(g: LaneGroup, address: int, rank: int, im2col: bool = False) -> tensormap.TensorMap:
    """The tensor map at a generic address, for an instruction of this many dimensions, in tiled or im2col mode."""
    changed_by, seen_by = g.launch.changed_maps.get(address, (None, ()))
    if g.launch.checks and changed_by and g.cta.index not in seen_by:
        message = f"the tensor map at {address:#x}, which {changed_by} has changed"
        message += ", is used with no fence.proxy.tensormap to acquire it in this CTA"
        g.launch.found(Fault("missing-proxy-fence", message))
    tm = tensormap.decode(descriptor_bytes(g, address))
    if tm.rank != rank:
        raise Fault("tensormap", f"{rank}-D instruction with a tensormap of rank {tm.rank}")
    if isinstance(tm, tensormap.Im2colMap) is not im2col:
        modes = ("im2col", "tiled") if im2col else ("tiled", "im2col")
        raise Fault("tensormap", "an instruction of {} mode with a tensor map of {} mode".format(*modes))
    return tm


def note_map(g: LaneGroup, address: int, key, origin):
    """A copy, the event of a component, reads its tensor map as long as it is under way."""
    if g.launch.checks and address < SHARED_WINDOW:
        if (dependencies := g.launch.dependencies).wants(g, False):
            dependencies.note(g, np.array([address]), 128, False)
        g.launch.shadow.use(address, 128, key, origin)


def _note_change(g: LaneGroup, address: int, origin):
    """A tensor map is changed: no copy may still use it."""
    if g.launch.checks:
        actor = g.warp.actor
        g.launch.dependencies.note(g, np.array([address]), 128, True)
        g.launch.shadow.write(np.array([address]), 128, actor, actor.key, origin, 0)


def descriptor_bytes(g: LaneGroup, address: int) -> bytes:
    """Load the bytes of the tensormap at a generic address."""
    if address % 64:
        raise Fault("misaligned", f"tensormap at {address:#x}")
    if address >= PARAM_WINDOW:
        return g.launch.params.take(address - PARAM_WINDOW, tensormap.USED)
    if address >= LOCAL_WINDOW:
        raise Fault("address-space", "tensormap in local memory")
    if address >= SHARED_WINDOW:
        raise Fault("address-space", "tensormap in shared memory: TMA reads it from global, const or param space")
    return g.launch.memory.view(address, tensormap.NBYTES)[: tensormap.USED].tobytes()


def replace(g: LaneGroup, space: str, address, field: str, order, value, mask):
    space, address = state_space(space, address, mask)
    for p in active(g, mask):
        a = pick(address, p)
        if space == "shared":
            cta, offset = shared_cta(g, a)
            target = cta.smem.bytes[offset : offset + 128]
        else:
            target = g.launch.memory.view(a, 128, True)
            _note_change(g, a, g.origin("tensormap.replace"))
            g.launch.changed_maps[a] = g.origin("tensormap.replace"), set()
        raw = bytearray(target.tobytes())
        tensormap.replace(raw, field, order, pick(value, p))
        target[:] = np.frombuffer(raw, np.uint8)


def copy(g: LaneGroup, dst, src):
    """tensormap.cp_fenceproxy: 128 bytes, shared to global."""
    for p in active(g, True)[:1]:
        to, what = pick(dst, p), pick(src, p)
        if to % 128 or what % 128:
            raise Fault("misaligned", f"tensormap.cp_fenceproxy from {what:#x} to {to:#x}")
        cta, offset = shared_cta(g, what & 0xFFFFFFFF)
        cta.smem.need_computed(offset, offset + 128)
        _note_change(g, to, g.origin("tensormap.cp_fenceproxy"))
        g.launch.memory.view(to, 128, True)[:] = cta.smem.bytes[offset : offset + 128]
        g.launch.changed_maps[to] = g.origin("tensormap.cp_fenceproxy"), set()


def acquire(g: LaneGroup, address):
    """fence.proxy.tensormap::generic.acquire: this CTA's later copies see the descriptor as it is now."""
    g.clock.tensormap_acquire(g)
    for p in active(g, True):
        if changed := g.launch.changed_maps.get(pick(address, p)):
            changed[1].add(g.cta.index)
