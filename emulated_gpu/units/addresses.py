"""Lanes that act, and the address spaces that they name (PTX ISA 5.1, 5.2, 9.7.9.20-24).

A `mask` is True or a bool array [n]; a value is an int, or an array with one for each lane.
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu
from ..state.global_memory import SHARED_WINDOW, WINDOWS
from ..state.shared_memory import OFFSET_MASK, RANK_SHIFT
from .group import LaneGroup


# -- lanes -------------------------------------------------------------------------------------------------
def active(g: LaneGroup, mask) -> list[int]:
    """Return the positions in the group of the lanes that act."""
    if mask is True:
        return list(range(g.n))
    return mask.nonzero()[0].tolist() if alu.is_array(mask) else np.flatnonzero(mask).tolist()


def pick(value, position: int):
    """Return the value of the lane at a position as an int."""
    return int(value[position]) if type(value) is np.ndarray else value


def shared_cta(g: LaneGroup, address: int, note: str = ""):
    """Return the CTA and the offset of a shared::cluster address. note: of errors.NOTES, if it is done nevertheless
    with a CTA that has exited."""
    rank = address >> RANK_SHIFT
    ctas = g.cta.cluster.ctas
    if rank >= len(ctas):
        raise Fault("out-of-bounds", f"shared address {address:#x} names CTA {rank} of a cluster of {len(ctas)}")
    cta = ctas[rank]
    if cta is not g.cta:
        check_running(g, cta, note)
    return cta, address & OFFSET_MASK


def multicast_ctas(g: LaneGroup, bits: int) -> list:
    """Return the CTAs that a .multicast::cluster mask names, a bit each."""
    ctas = g.cta.cluster.ctas
    if bits >> len(ctas) or not bits:
        raise Fault("out-of-bounds", f"multicast mask {bits:#x} in a cluster of {len(ctas)}")
    return [cta for cta in ctas if bits >> cta.rank & 1]


def check_running(g: LaneGroup, cta, note: str = ""):
    """Another CTA's memory may be touched once a cluster barrier has shown that it runs, and until it exits. Here a
    cluster's CTAs start together, as they mostly do on silicon: a kernel can go on after an access that is too early.
    """
    if cta is g.cta or not g.launch.checks:
        return
    if cta.exited:
        fault = Fault("cluster", f"access to the shared memory of CTA {cta.ctaid}, which has exited", note=note)
        if not note:
            raise fault
        g.launch.found(fault)
    if cta.cluster.barrier.phase == 0:
        message = f"access to CTA {cta.ctaid} before any barrier of the cluster: it may not have started"
        g.launch.found(Fault("cluster", message))


# -- address spaces ----------------------------------------------------------------------------------------
def map_shared(g: LaneGroup, address, rank, shared: bool):
    """Return the address in the shared memory of CTA `rank` that corresponds to one here: mapa (9.7.9.24)."""
    window = 0 if shared else SHARED_WINDOW
    keep = OFFSET_MASK | window
    if alu.is_array(address) or alu.is_array(rank):
        bits = 32 if shared else 64
        address, rank = g.lane_array(address, bits), alu.extend(g.lane_array(rank), 32, False, bits)
    return (address & keep) | (rank << RANK_SHIFT)


def symbol(g: LaneGroup, name: str) -> int:
    address = g.cta.symbols.get(name)
    if address is None:
        raise Unsupported(f"address of {name}")
    return address


def to_generic(value, space: str):
    window = WINDOWS[space]
    return alu.extend(value, 64, False, 64) + window if window else value


def from_generic(value, space: str):
    window = WINDOWS[space]
    if not window:
        return value
    if not np.all(value >> 60 == window >> 60) if alu.is_array(value) else value >> 60 != window >> 60:
        raise Fault("address-space", f"generic address {value} is not in the {space} window")
    return value - (np.uint64(window) if alu.is_array(value) else window)


def is_space(value, space: str):
    top = value >> 60
    wanted = {"global": 0, "const": -1}.get(space, WINDOWS.get(space.split("::")[0], -1) >> 60)
    return top == wanted


def state_space(space: str, address, mask):
    """Return the state space of an address and the address in it, of a generic one by its window."""
    if space != "generic":
        if space == "shared" and not alu.is_array(address) and address >> 32:
            address &= 0xFFFFFFFF
        return space, address
    windows = (
        np.unique((address if mask is True else address[mask]) >> 60) if alu.is_array(address) else [address >> 60]
    )
    if len(windows) > 1:
        raise Unsupported("generic access of lanes to different state spaces")
    window = int(windows[0]) if len(windows) else 0
    strip = (1 << 60) - 1
    return {0: "global", 1: "shared", 2: "local", 3: "param"}[window], address & strip if window else address
