"""Address spaces, loads, stores, atomics of the lanes of a group (PTX ISA 5.1, 9.7.9.8-12, 9.7.13.13-14)."""

from __future__ import annotations

import numpy as np

from ..errors import Fault, Unsupported
from ..formats import alu, tensormap
from ..ptx.syntax import TYPE_BITS
from ..state.global_memory import SHARED_WINDOW, WINDOWS
from ..state.shared_memory import OFFSET_MASK, RANK_SHIFT

ELEMENT = {1: 16, 2: 16, 4: 32, 8: 64, 16: 128}  # bytes of an element -> bits of the register that holds it


class LaneAccess:
    """Mixin of Group. A `mask` is True or a bool array [n] that is not all False."""

    # -- lanes -------------------------------------------------------------------------------------------------
    def active(self, mask) -> list[int]:
        """Positions of the lanes that act."""
        return list(range(self.n)) if mask is True else np.flatnonzero(mask).tolist()

    @staticmethod
    def pick(value, position: int):
        """A lane's value as an int."""
        return int(value[position]) if type(value) is np.ndarray else value

    def shared_cta(self, address: int):
        """(CTA, offset) of a shared::cluster address."""
        rank = address >> RANK_SHIFT
        ctas = self.cta.cluster.ctas
        if rank >= len(ctas):
            raise Fault("out-of-bounds", f"shared address {address:#x} names CTA {rank} of a cluster of {len(ctas)}")
        self.check_running(ctas[rank])
        return ctas[rank], address & OFFSET_MASK

    def multicast_ctas(self, bits: int) -> list:
        """The CTAs that a .multicast::cluster mask names, a bit each."""
        ctas = self.cta.cluster.ctas
        if bits >> len(ctas) or not bits:
            raise Fault("out-of-bounds", f"multicast mask {bits:#x} in a cluster of {len(ctas)}")
        return [c for c in ctas if bits >> c.rank & 1]

    def check_running(self, cta):
        """Another CTA's memory may be touched once a cluster barrier has shown that it runs, and until it exits."""
        if cta is self.cta or not self.launch.checks:
            return
        if cta.exited:
            raise Fault("cluster", f"access to the shared memory of CTA {cta.ctaid}, which has exited")
        if cta.cluster.barrier.phase == 0:
            raise Fault(
                "cluster", f"access to CTA {cta.ctaid} before any barrier of the cluster: it may not have started"
            )

    def note_global(self, addresses, size: int, write: bool):
        """Lanes have accessed `size` bytes at addresses (an array or one) of global memory."""
        dependencies = self.launch.dependencies
        if dependencies.wants(self, write):
            dependencies.note(self, np.atleast_1d(addresses), size, write)

    # -- address spaces ----------------------------------------------------------------------------------------
    def map_shared(self, address, rank, shared: bool):
        """mapa (9.7.9.24)."""
        window = 0 if shared else SHARED_WINDOW
        keep = OFFSET_MASK | window
        if alu.is_array(address) or alu.is_array(rank):
            bits = 32 if shared else 64
            address, rank = self.lane_array(address, bits), alu.extend(self.lane_array(rank), 32, False, bits)
        return (address & keep) | (rank << RANK_SHIFT)

    def symbol(self, name: str) -> int:
        address = self.cta.symbols.get(name)
        if address is None:
            raise Unsupported(f"address of {name}")
        return address

    def to_generic(self, value, space: str):
        window = WINDOWS[space]
        return alu.extend(value, 64, False, 64) + window if window else value

    def from_generic(self, value, space: str):
        window = WINDOWS[space]
        if not window:
            return value
        if (np.asarray(value >> 60) != window >> 60).any():
            raise Fault("address-space", f"generic address {value} is not in the {space} window")
        return value - (np.uint64(window) if alu.is_array(value) else window)

    def is_space(self, value, space: str):
        top = value >> 60
        wanted = {"global": 0, "const": -1}.get(space, WINDOWS.get(space.split("::")[0], -1) >> 60)
        return top == wanted

    def _spaces(self, space: str, address, mask):
        """(space, address in it) of a generic address."""
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

    # -- loads -------------------------------------------------------------------------------------------------
    def load(self, space: str, address, size: int, count: int, mask, strong: bool = False):
        """count values: ints or arrays [n] (zero where masked). strong: volatile, relaxed or acquire."""
        space, address = self._spaces(space, address, mask)
        if not alu.is_array(address) and space != "local" and mask is True:
            if (address % (size * count)) and count > 1:
                raise Fault("misaligned", f"vector read of {size * count} bytes at {address:#x}")
            values = tuple(self.load_one(space, address + k * size, size, strong) for k in range(count))
            self._loaded(space, address, size * count, strong)
            return values
        addresses = self.lane_array(address, 64).astype(np.uint64)
        lanes = None if mask is True else np.flatnonzero(mask)
        if lanes is not None:
            if not len(lanes):
                return (0,) * count
            addresses = addresses[lanes]
        if count > 1 and (addresses % np.uint64(size * count)).any():
            raise Fault("misaligned", f"vector read of {size * count} bytes at {int(addresses.max()):#x}")
        out = []
        for k in range(count):
            values = self.gather(space, addresses + np.uint64(k * size), size, lanes, strong)
            if lanes is not None:
                whole = np.zeros(self.n, values.dtype)
                whole[lanes] = values
                values = whole
            out.append(values.astype(alu.U[ELEMENT[size]], copy=False))
        self._loaded(space, addresses, size * count, strong)
        if self.n == 1:
            return tuple(int(v[0]) for v in out)
        return tuple(out)

    def _loaded(self, space: str, addresses, size: int, strong: bool):
        if space == "global":
            self.note_global(addresses, size, False)
            self.clock.global_load(self, np.atleast_1d(addresses), size, strong)
        elif space == "shared":
            self.clock.shared_access(self, addresses, size)
        elif space == "param":
            self.clock.parameter_load(self, addresses)
        if strong:
            self.waited()

    def load_one(self, space: str, address: int, size: int, strong: bool = False) -> int:
        if size == 16:
            if address % 16:
                raise Fault("misaligned", f"16-byte read at {address:#x}")
            return self.load_one(space, address, 8, strong) | self.load_one(space, address + 8, 8, strong) << 64
        if space == "global":
            return self.launch.memory.load(address, size)
        if space == "shared":
            cta, offset = self.shared_cta(address)
            return cta.smem.load(offset, size, None if strong else self.warp.actor)
        if space == "const":
            return self.launch.memory.load(address, size)
        if space == "param":  # its addresses are offsets into the launch's parameters
            data = self.launch.params
            if address % size or address + size > len(data):
                raise Fault("out-of-bounds", f"ld.param of {size} bytes at {address} of {len(data)}")
            return int.from_bytes(data[address : address + size], "little")
        raise Unsupported(f"load from {space}")

    def gather(self, space: str, addresses: np.ndarray, size: int, lanes, strong: bool = False) -> np.ndarray:
        if size == 16:
            if (addresses % np.uint64(16)).any():
                raise Fault("misaligned", f"16-byte read at {int(addresses.max()):#x}")
            halves = [self.gather(space, addresses + np.uint64(k), 8, lanes, strong) for k in (0, 8)]
            return alu.pack128(*halves)
        if space in ("global", "const"):
            return self.launch.memory.gather(addresses, size)
        if space == "shared":
            ranks = addresses >> np.uint64(RANK_SHIFT)
            if (ranks == ranks[0]).all():
                cta, _ = self.shared_cta(int(addresses[0]))
                return cta.smem.gather(addresses & np.uint64(OFFSET_MASK), size, None if strong else self.warp.actor)
            return np.array([self.load_one("shared", a, size, strong) for a in addresses.tolist()], f"u{size}")
        if space == "param":
            return np.array([self.load_one("param", a, size) for a in addresses.tolist()], f"u{size}")
        return self.local_memory(size)[self.local_index(addresses, size, lanes)]

    def local_memory(self, size: int) -> np.ndarray:
        if self.warp.local is None:
            seed = self.launch.seed_of(self.cta.index)  # garbage, see SharedMemory
            self.warp.local = np.random.default_rng(seed).integers(0, 256, (32, self.launch.local_bytes), np.uint8)
        return self.warp.local.view(f"u{size}")

    def local_index(self, addresses: np.ndarray, size: int, lanes):
        if (addresses % np.uint64(size)).any():
            raise Fault("misaligned", f"{size}-byte access to local memory at {int(addresses.max()):#x}")
        if int(addresses.max()) + size > self.launch.local_bytes:
            raise Fault(
                "out-of-bounds", f"local memory at {int(addresses.max()):#x} of {self.launch.local_bytes} bytes"
            )
        which = self.lanes if lanes is None else self.lanes[lanes]
        return which, (addresses // np.uint64(size)).astype(np.int64)

    # -- stores ------------------------------------------------------------------------------------------------
    def store(self, space: str, address, size: int, values: tuple, mask, results: bool = False):
        """results: of the tensor core, which a timed run does not compute and so does not store."""
        space, address = self._spaces(space, address, mask)
        if size == 16:
            values = tuple(half for v in values for half in (v & alu.MASK[64], v >> 64))
            values = tuple(v.astype(np.uint64) if alu.is_array(v) else v for v in values)
            size = 8
        count = len(values)
        who = self.origin("store") if space == "shared" and self.launch.checks else None
        if self.n == 1 and space != "local":
            if mask is not True and not bool(np.asarray(mask).any()):
                return
            address = self.pick(address, 0)
            if count > 1 and address % (size * count):
                raise Fault("misaligned", f"vector write of {size * count} bytes at {address:#x}")
            if space == "global":
                self.clock.global_store(self, np.array([address], np.uint64), size * count)
            elif space == "shared":
                self.clock.shared_access(self, address, size * count)
            for k, v in enumerate(values):
                self.store_one(space, address + k * size, size, self.pick(v, 0) & alu.MASK[8 * size], who)
            if space == "global":
                self.note_global(address, size * count, True)
            return
        lanes = None if mask is True else np.flatnonzero(mask)
        if lanes is not None and not len(lanes):
            return
        addresses = self.lane_array(address, 64).astype(np.uint64, copy=False)
        if lanes is not None:
            addresses = addresses[lanes]
        width = size * count
        row = space == "global" and bool((addresses[1:] - addresses[:-1] == width).all())  # one lane behind the other
        if count > 1 and ((addresses[:1] if row else addresses) % np.uint64(width)).any():
            raise Fault("misaligned", f"vector write of {width} bytes at {int(addresses.max()):#x}")
        if space == "global":
            self.clock.global_store(self, addresses, width, row)
        elif space == "shared":
            self.clock.shared_access(self, addresses, width)
        if results and not self.clock.moves_data and space != "local":
            return
        if lanes is not None:
            values = tuple(v[lanes] if alu.is_array(v) else v for v in values)
        if not row or not self.launch.memory.store_row(int(addresses[0]), size, values, len(addresses)):
            for k, v in enumerate(values):
                v = v if alu.is_array(v) else np.full(len(addresses), v, alu.U[ELEMENT[size]])
                self.scatter(space, addresses + np.uint64(k * size), size, v.astype(f"u{size}"), lanes, who)
        if space == "global":
            self.note_global(addresses, width, True)

    def store_one(self, space: str, address: int, size: int, value: int, who: object = None):
        """who: names the instruction, if it stores to shared memory."""
        if size == 16:
            for k in (0, 1):
                self.store_one(space, address + 8 * k, 8, value >> 64 * k & alu.MASK[64], who)
        elif space == "global":
            self.launch.memory.store(address, size, value)
        elif space == "shared":
            cta, offset = self.shared_cta(address)
            cta.smem.store(offset, size, value, self.warp.actor, self.lane_mask, who)
        else:
            raise Unsupported(f"store to {space}")

    def scatter(self, space: str, addresses: np.ndarray, size: int, values: np.ndarray, lanes, who: object = None):
        if space == "global":
            self.launch.memory.scatter(addresses, size, values)
        elif space == "shared":
            ranks = addresses >> np.uint64(RANK_SHIFT)
            writers = self.lane_mask if lanes is None else sum(1 << lane for lane in self.lanes[lanes].tolist())
            if (ranks == ranks[0]).all():
                cta, _ = self.shared_cta(int(addresses[0]))
                cta.smem.scatter(addresses & np.uint64(OFFSET_MASK), size, values, self.warp.actor, writers, who)
                return
            for rank in np.unique(ranks).tolist():
                here = ranks == rank
                cta, _ = self.shared_cta(rank << RANK_SHIFT)
                offsets = addresses[here] & np.uint64(OFFSET_MASK)
                cta.smem.scatter(offsets, size, values[here], self.warp.actor, writers, who)
        elif space == "local":
            self.local_memory(size)[self.local_index(addresses, size, lanes)] = values
        else:
            raise Unsupported(f"store to {space}")

    def store_async(self, address, size: int, values: tuple, bar, mask):
        """st.async: the bytes land later and complete on a barrier of the same CTA as the destination."""
        if not self.launch.explicit_cluster:  # golden case fault_st_async_without_cluster
            raise Fault("cluster", "st.async in a launch without clusters is an illegal instruction")
        for k in self.active(mask):
            cta, offset = self.shared_cta(self.pick(address, k))
            barrier = self.barrier_at(self.pick(bar, k), True)
            numbers = [self.pick(v, k) & alu.MASK[8 * size] for v in values]
            origin = self.origin("st.async")
            op = cta.smem.begin(offset, offset + size * len(numbers), True, origin, self.warp.actor)

            def land(cta=cta, offset=offset, barrier=barrier, numbers=numbers, op=op, origin=origin):
                cta.smem.end(op)
                for j, v in enumerate(numbers):
                    cta.smem.views[size][offset // size + j] = v
                barrier.transaction(-size * len(numbers), origin)

            self.pass_dependency(barrier)
            self.later(self.clock.remote(self), origin, land)

    # -- atomics -----------------------------------------------------------------------------------------------
    def atomic(self, space: str, what: str, kind: str, address, values: tuple, count: int, mask, wants_old: bool):
        space, address = self._spaces(space, address, mask)
        size = TYPE_BITS[kind] // 8
        ftz = space == "global" and kind == "f32"  # 9.7.13.13: in shared memory subnormals are kept
        olds = [[0] * self.n for _ in range(count)]
        who = self.origin("atomic") if space == "shared" and self.launch.checks else None
        for p in self.active(mask):
            a = self.pick(address, p)
            for k in range(count):
                new = [self.pick(v, p) for v in values[k::count]]
                at = a + k * size
                old = self.load_one(space, at, size, True)
                olds[k][p] = old
                self.store_one(space, at, size, alu.combine(what, kind, old, *new, ftz=ftz), who)
            if space == "global":
                self.note_global(a, size * count, True)
        self.engine.progress += 1
        self.publish(mask)
        self.waited()
        if not wants_old:
            return None
        bits = ELEMENT[size]
        if self.n == 1:
            return tuple(o[0] for o in olds)
        return tuple(np.array(o, alu.U[bits]) for o in olds)

    def red_async(self, what, kind, address, value, bar, mask):
        size = TYPE_BITS[kind] // 8
        for p in self.active(mask):
            cta, offset = self.shared_cta(self.pick(address, p))
            barrier, v = self.barrier_at(self.pick(bar, p), True), self.pick(value, p)
            origin = self.origin("red.async")

            def land(cta=cta, offset=offset, barrier=barrier, v=v, origin=origin):
                old = cta.smem.load(offset, size, None)
                cta.smem.views[size][offset // size] = alu.combine(what, kind, old, v)
                barrier.transaction(-size, origin)

            self.later(self.clock.remote(self), origin, land)

    def prefetch(self, space: str, address, is_tensormap: bool, mask):
        if is_tensormap:
            for p in self.active(mask)[:1]:
                at = self.pick(address, p)
                self.clock.descriptor_prefetch(self, tensormap.decode(self.descriptor_bytes(at)), at)
        elif space in ("global", "generic") and (lanes := self.active(mask)):
            self.clock.line_prefetch(self, self.lane_array(address, 64)[lanes])

    # -- 8x8 matrices ------------------------------------------------------------------------------------------
    def ldmatrix(self, address, count: int, trans: bool):
        if self.n != 32:
            raise Fault("divergence", "ldmatrix needs the whole warp")
        rows = self.lane_array(address).astype(np.uint64)
        self.clock.shared_access(self, rows[: 8 * count], 16)
        out = []
        for k in range(count):
            base = rows[8 * k : 8 * k + 8]
            if (base % np.uint64(16)).any():
                raise Fault("misaligned", "ldmatrix row that is not 16-byte aligned")
            each = base[:, None] + 2 * np.arange(8, dtype=np.uint64)[None, :]
            matrix = self.gather("shared", each.ravel(), 2, None).reshape(8, 8)
            matrix = (matrix.T if trans else matrix).astype(np.uint32)
            out.append((matrix[:, 0::2] | matrix[:, 1::2] << 16).reshape(32))
        return tuple(out)

    def stmatrix(self, address, values: tuple, trans: bool, results: bool):
        """results: as of `store`."""
        if self.n != 32:
            raise Fault("divergence", "stmatrix needs the whole warp")
        rows = self.lane_array(address).astype(np.uint64)[: 8 * len(values)]
        self.clock.shared_access(self, rows, 16)
        if results and not self.clock.moves_data:
            return
        if (rows % np.uint64(16)).any():
            raise Fault("misaligned", "stmatrix row that is not 16-byte aligned")
        pairs = np.stack([self.lane_array(v) for v in values]).reshape(-1, 8, 4)  # [matrices, rows, pairs]
        matrices = np.empty((len(values), 8, 8), np.uint16)
        matrices[:, :, 0::2], matrices[:, :, 1::2] = pairs & 0xFFFF, pairs >> 16
        if trans:
            matrices = np.ascontiguousarray(matrices.swapaxes(1, 2))
        each = rows[:, None] + 8 * np.arange(2, dtype=np.uint64)[None, :]
        self.scatter("shared", each.ravel(), 8, matrices.view(np.uint64).ravel(), None, self.origin("stmatrix"))

    def movmatrix(self, value):
        """Transposes a matrix that lies in one register of every lane, as ldmatrix leaves it."""
        if self.n != 32:
            raise Fault("divergence", "movmatrix needs the whole warp")
        matrix = np.ascontiguousarray(self.lane_array(value)).view(np.uint16).reshape(8, 8)
        return np.ascontiguousarray(matrix.T).view(np.uint32).reshape(32)
