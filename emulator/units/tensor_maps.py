"""Tensor maps as objects in memory (PTX ISA 5.5.8, 9.7.9.26-28): read, edited, copied, and their changes acquired."""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..formats import tensormap
from ..state.global_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW


class TensorMaps:
    """Mixin of Group."""

    def tensor_map(self, address: int, rank: int) -> tensormap.TensorMap:
        """The tensor map at a generic address, for an instruction of so many dimensions."""
        changed_by, seen_by = self.launch.changed_maps.get(address, (None, ()))
        if self.launch.checks and changed_by and self.cta.index not in seen_by:
            message = f"the tensor map at {address:#x}, which {changed_by} has changed"
            message += ", is used with no fence.proxy.tensormap to acquire it in this CTA"
            self.launch.found(Fault("missing-proxy-fence", message))
        tm = tensormap.decode(self.descriptor_bytes(address))
        if tm.rank != rank:
            raise Fault("tensormap", f"{rank}-D instruction with a tensormap of rank {tm.rank}")
        return tm

    def descriptor_bytes(self, address: int) -> bytes:
        """The 128 bytes of a tensormap at a generic address."""
        if address % 64:
            raise Fault("misaligned", f"tensormap at {address:#x}")
        if address >= PARAM_WINDOW:
            offset = address - PARAM_WINDOW
            return bytes(self.launch.params[offset : offset + 128])
        if address >= LOCAL_WINDOW:
            raise Fault("address-space", "tensormap in local memory")
        if address >= SHARED_WINDOW:
            raise Fault("address-space", "tensormap in shared memory: TMA reads it from global, const or param space")
        return self.launch.memory.view(address, 128).tobytes()

    def tensormap_replace(self, space: str, address, field: str, order, value, mask):
        space, address = self._spaces(space, address, mask)
        for p in self.active(mask):
            a = self.pick(address, p)
            if space == "shared":
                cta, offset = self.shared_cta(a)
                target = cta.smem.bytes[offset : offset + 128]
            else:
                target = self.launch.memory.view(a, 128, True)
                self.launch.changed_maps[a] = self.origin("tensormap.replace"), set()
            raw = bytearray(target.tobytes())
            tensormap.replace(raw, field, order, self.pick(value, p))
            target[:] = np.frombuffer(raw, np.uint8)

    def tensormap_copy(self, dst, src):
        """tensormap.cp_fenceproxy: 128 bytes, shared to global."""
        for p in self.active(True)[:1]:
            to, what = self.pick(dst, p), self.pick(src, p)
            if to % 128 or what % 128:
                raise Fault("misaligned", f"tensormap.cp_fenceproxy from {what:#x} to {to:#x}")
            cta, offset = self.shared_cta(what & 0xFFFFFFFF)
            self.launch.memory.view(to, 128, True)[:] = cta.smem.bytes[offset : offset + 128]
            self.launch.changed_maps[to] = self.origin("tensormap.cp_fenceproxy"), set()

    def tensormap_acquire(self, address):
        """fence.proxy.tensormap::generic.acquire: this CTA's later copies see the descriptor as it is now."""
        self.clock.tensormap_acquire(self)
        for p in self.active(True):
            if changed := self.launch.changed_maps.get(self.pick(address, p)):
                changed[1].add(self.cta.index)
