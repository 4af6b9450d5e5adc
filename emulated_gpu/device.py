"""The emulated device: global memory, loaded modules and launches one after the other."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import mmap
import os
import re
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from . import packages, target
from .arena import PAGE, Heap
from .chip import B200, Chip
from .errors import EmulatorError, Fault, Hang, LaunchRefused, Unsupported
from .interfaces import Allocator, Guard
from .machine.engine import collecting
from .machine.hosts import Capture, Host, Hosts, Stopped
from .machine.launch import Code, Enough, Environment, Geometry, Launch, LaunchOptions
from .machine.node import Node, Queued, learn
from .machine.rerun import Reruns
from .machine.schedule import Watched
from .machine.together import Given, crowd, starve, together
from .model.run import Recorded
from .ptx.control_flow import ControlFlow
from .ptx.parse import parse
from .sessions import Session
from .state.global_memory import HOST, WORD, GlobalMemory, Region
from .state.global_shadow import GlobalShadow
from .state.host_order import Access, HostOrder, Place, Work, calling_place, named, runs_of
from .state.pdl_dependency import Footprint
from .unwritten import Unwritten

ALIGNMENT = 512  # of what is allocated here
KEEP_PTX = "EMULATED_GPU_PTX"  # environment: a folder for the PTX that is loaded, as it is run here
GUARD = 512  # bytes around every allocation that no kernel may touch
CALLED_LATER = (
    "\n  launches run in the order of the calls, each to its end: what one of another stream that is called later "
    "would write is not there yet, nor need a GPU have room for both"
)


def keep_ptx(text: str) -> None:
    """Write PTX to the folder that the environment names: a file for each kernel and whatever else makes it another."""
    folder = os.environ.get(KEEP_PTX)
    if folder:
        os.makedirs(folder, exist_ok=True)
        kernel = re.search(r"\.entry\s+([\w$]+)", text)
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        Path(folder, f"{kernel[1][:120] if kernel else 'no_kernel'}-{name}.ptx").write_text(text)


class LoadedModule:
    """A parsed module with its .global and .const variables in device memory."""

    def __init__(self, text: str, name: str, machine_code: bytes | None = None):
        module = parse(text)
        self.machine_code = machine_code
        self.text, self.module = text, module
        self.programs: dict[str, ControlFlow] = {}
        self.checked: set[tuple[str, str]] = set()  # kernels, and for which chips their instructions are
        self.symbols_in: dict[int, dict[str, int]] = {}  # by device: where its variables are
        self.shared = {n: v for n, v in module.variables.items() if v.space == "shared"}
        self.name = name

    @property
    def symbols(self) -> dict[str, int]:
        """Where the variables are in the memory of the current device."""
        found = self.symbols_in.get(DEVICE.index)
        if found is None:
            found = self.symbols_in[DEVICE.index] = {}
            for v in self.module.variables.values():
                if v.space in ("global", "const") and v.size:
                    array = allocate(v.size, max(v.align, ALIGNMENT))
                    array[:] = np.frombuffer(v.init, np.uint8) if v.init else 0
                    name = DEVICE.named(f"variable {v.name}")
                    region = DEVICE.memory.register(
                        array.ctypes.data, v.size, name, owner=array, read_only=v.space == "const"
                    )
                    region.device = DEVICE.index
                    found[v.name] = array.ctypes.data
            self._initialise(found)
        return found

    def _initialise(self, places: dict[str, int]) -> None:
        """Write addresses of variables and of functions into the variables that are initialised with them."""
        known = self.module.pointers | places
        for v in self.module.variables.values():
            for at, name, behind in v.addresses if v.name in places else ():
                if name in known:
                    ctypes.c_uint64.from_address(places[v.name] + at).value = known[name] + behind

    def program(self, kernel: str) -> ControlFlow:
        if kernel not in self.module.kernels:
            raise Unsupported(f"no kernel {kernel} in this module; it has {', '.join(self.module.kernels)}")
        if (kernel, DEVICE.chip.arch) not in self.checked:
            target.check(self.module.target, self.module.kernels[kernel].instrs, DEVICE.chip)
            self.checked.add((kernel, DEVICE.chip.arch))
        if kernel not in self.programs:
            self.programs[kernel] = ControlFlow(self.module.kernels[kernel], self.name, self.machine_code)
        return self.programs[kernel]


def allocate(size: int, align: int = ALIGNMENT) -> np.ndarray:
    """uint8 [size] of zeros (pages that nobody touches cost nothing), aligned, with guard bytes on both sides."""
    if DEVICE.heap is not None and align <= PAGE:
        array = DEVICE.heap.take(size)
        weakref.finalize(array, DEVICE.heap.give, array.ctypes.data, size)
        return array
    # Not from the heap: one tensor's distance from another is a tensormap's stride, less than 2^40, on a GPU.
    raw = np.frombuffer(mmap.mmap(-1, size + align + 2 * GUARD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    start = -(raw.ctypes.data + GUARD) % align + GUARD
    return raw[start : start + size]


def accesses_of(own: Footprint, workspace: Region | None) -> list[Access]:
    """Return what a launch has done to memory that the host has given it, and to no workspace that each launch has."""
    found = []
    for region, (reads, writes, strong) in own.regions.values():
        if region.freed or region is workspace:
            continue
        shared = region.of_host and not own.signals
        any_strong = bool(strong.any())
        rows = [(writes, True, False), (reads, False, False)]
        if any_strong:
            rows = [(writes & ~strong, True, False), (reads & ~strong & ~writes, False, False)]
            rows += [(strong & writes, True, True), (strong & ~writes, False, True)]
        for words, write, is_strong in rows:
            runs = runs_of(words, region.origin, WORD, region.start, region.end)
            if runs is not None:
                several = runs if len(runs) > 1 else None
                ends = int(runs[0, 0]), int(runs[-1, 1])
                found.append(Access(*ends, write, region, several, shared, is_strong))
    return found


class Device:
    """The devices of this process: one, or several of a node, of which each host has a current one."""

    def __init__(self):
        self.chip = B200
        self.served = False  # CuTe DSL's host code launches here
        self.memories = [GlobalMemory()]
        self.node: Node | None = None  # of several devices
        self.hosts: Hosts | None = None
        self.host = Host()
        self.session = Session()
        self.compilers: dict[str, str] = {}  # name of a kernel -> whose compiler wrote its synchronisation
        self._modules: dict[str, LoadedModule] = {}
        self._peers: set[tuple[int, int]] = set()  # (a, b): kernels of device a may access memory of b
        self._made = threading.local()  # launch: what the last launch of this thread has read and written
        self._arrays: dict[int, weakref.ref] = {}  # with several devices: what lies in their memory, by address
        # Where launches run instead, with memory that this process and that one share: see arena.py. Called with the
        # arguments of `launch`; raises what stops it.
        self.elsewhere: Callable[..., None] | None = None
        self.heap: Heap | None = None
        self.allocator: Allocator | None = None
        self.order = HostOrder()
        self.order.together = lambda one, other: together(
            one.given, other.given, one.all(), other.all(), self.session.explores > 0
        )
        self.order.starve = lambda one, other: starve(one.given, other.given)
        self.order.crowd = lambda one, other, *behind: crowd(
            one.given, other.given, one.all(), other.all(), [work.given for work in behind]
        )
        self.unwritten = Unwritten(self)
        self.guard: Guard | None = None

    @contextlib.contextmanager
    def as_chip(self, chip: Chip):
        """Makes the device another chip inside the block."""
        before, self.chip = self.chip, chip
        try:
            yield
        finally:
            self.chip = before

    # -- several of them ---------------------------------------------------------------------------------------
    @property
    def tensors(self) -> Allocator:
        """The allocator of others' tensors, where there is one."""
        assert self.allocator is not None
        return self.allocator

    @property
    def index(self) -> int:
        """Number of the current host's current device; with an allocator of others, of this thread's."""
        if self.allocator is not None:
            return self.allocator.current()
        return (self.hosts.now if self.hosts else self.host).device

    @index.setter
    def index(self, device: int) -> None:
        if not 0 <= device < len(self.memories):
            raise RuntimeError(f"CUDA error: invalid device ordinal: device {device} of {len(self.memories)}")
        if self.allocator is not None:
            self.allocator.choose(device)
        else:
            (self.hosts.now if self.hosts else self.host).device = device

    @property
    def memory(self) -> GlobalMemory:
        """Memory of the current device."""
        self.refresh()
        return self.memories[self.index]

    def refresh(self) -> None:
        """Know what an allocator of others has given and taken back since."""
        if self.allocator is not None:
            self.allocator.tell(self.keeps)

    @property
    def keeps(self) -> bool:
        """Whether memory that is freed has to stay what it is, for launches that have not run yet."""
        if self.session.kept is not None or self.session.recorded is not None:
            return True
        if self.heap is not None and not self.heap.reuse:
            return True
        return self.node is not None and not all(map(self.node.idle, range(len(self.memories))))

    @property
    def capture(self) -> Capture | None:
        """What a CUDA graph of the current host collects: entries of serve/driver/graphs.py, the stream at the end."""
        return (self.hosts.now if self.hosts else self.host).capture

    @capture.setter
    def capture(self, launches: Capture | None) -> None:
        (self.hosts.now if self.hosts else self.host).capture = launches

    def together(self) -> tuple[Node, Hosts]:
        """Return the node and its hosts. Raises Unsupported where this is one device alone."""
        if self.node is None or self.hosts is None:
            raise Unsupported("ranks of one device: `run --devices N` has several")
        return self.node, self.hosts

    @contextlib.contextmanager
    def on(self, device: int | None):
        """Makes another device the current one inside the block; None changes nothing."""
        before = self.index
        if device is not None:
            self.index = device
        try:
            yield
        finally:
            self.index = before

    def become(self, devices: int) -> None:
        """Become a node of that number of devices. Raises Unsupported where memory of one is in use already."""
        if devices < 1:
            raise Unsupported(f"{devices} devices: there is at least one")
        if devices == len(self.memories):
            return
        if any(memory.regions for memory in self.memories):
            raise Unsupported(f"{devices} devices: this process has memory of {len(self.memories)} in use already")
        self._become([GlobalMemory() for _ in range(devices)])

    def _become(self, memories: list[GlobalMemory]) -> None:
        self._peers.clear()
        if self.allocator is not None:
            self.allocator.count(len(memories))
        self.memories, self.node, self.hosts, self.host = memories, None, None, Host()
        self.session.predecessors.clear()
        for memory in memories:
            memory.others = [other for other in memories if other is not memory]
        if len(memories) > 1:
            self.node = Node(len(memories), self._ended, lambda running: self.session.watched(running))
            self.hosts = Hosts(self.node, self._failed)

    @contextlib.contextmanager
    def as_node(self, devices: int):
        """Makes it a node of that number of devices inside the block, with memories of their own."""
        before = self.memories
        self._become([GlobalMemory() for _ in range(devices)])
        try:
            yield
        finally:
            self._become(before)

    def named(self, name: str, device: int | None = None) -> str:
        """A name of memory: of which device, if there are several."""
        return name if self.node is None else f"{name} of device {self.index if device is None else device}"

    def share(self, array: np.ndarray) -> None:
        """Let kernels of all devices access an array that one has adopted."""
        region = self.region_at(array.ctypes.data, 1)
        for memory in self.memories:
            memory.share(region)

    def enable_peer_access(self, peer: int) -> None:
        """Let kernels of the current device access all memory of another one, as cudaDeviceEnablePeerAccess does."""
        self.refresh()
        self._peers.add((self.index, peer))
        for region in self.memories[peer].regions:
            if region.device == peer:
                self.memory.share(region)

    def pin(self, array: np.ndarray, pages: bool = True) -> None:
        """Let kernels of all devices access an array of the host, as long as there is one. pages: nothing else lies in
        its pages."""
        region = self.given(array.ctypes.data, array.nbytes, "pinned memory of the host", HOST)
        region.pages = pages
        weakref.finalize(array, self.freed, region)

    def home(self, address: int) -> int | None:
        """Return the device in whose memory an allocation begins at an address, HOST, or None."""
        self.refresh()
        found = (m.at_or_before(address).device for m in self.memories if m.starts_at(address))
        return next(found, None)

    def reaches(self, device: int, address: int) -> bool:
        """Return whether an allocation of a device begins at an address that a device may access."""
        self.refresh()
        memory = self.memories[device]
        return memory.starts_at(address) and memory.at_or_before(address).device != HOST

    def region_at(self, address: int, size: int) -> Region | None:
        """Return the region, of any device's memory, that holds the whole range; None if none does."""
        self.refresh()
        return next((m.find(address, size, False) for m in self.memories if m.covers(address, size)), None)

    def synchronize(self, device: int | None = None, host: bool = True) -> None:
        """Wait until a device, the current one without a number, has run its launches. Raises what has failed.

        host: whether the host may rely on that, too; without it, only what is done next on that device.
        """
        device = self.index if device is None else device
        if self.node is not None and self.session.failure is None:
            node, hosts = self.together()
            hosts.wait(lambda: node.idle(device), f"device {device}, which has not run all its launches")
            if host:
                learn(hosts.now.known, node.clocks_of(device))
        self.check()

    def settle(self, device: int, stream: bool = False) -> None:
        """No launch before may still run: the host has waited for a device, or for a stream of it."""
        if not stream or not self.order.several:
            self.session.predecessors.pop(device, None)

    def check(self) -> None:
        """Raise what has failed, if anything has."""
        if self.session.failure is not None:
            raise self.session.failure

    def synchronize_all(self) -> None:
        """Wait until all devices have run their launches. Raises what has failed."""
        for device in range(len(self.memories)):
            self.synchronize(device)

    # -- what the host gives to streams ------------------------------------------------------------------------
    @property
    def orders(self) -> bool:
        """Whether what the host gives to streams is looked at: of one device, in a session that runs and checks it."""
        here = self.node is None and self.elsewhere is None and self.heap is None
        return here and self.session.checks and self.session.recorded is None

    @contextlib.contextmanager
    def working(self, stream: int, what: str, frees: bool = False):
        """In the block, do what a stream is given; what it touches is added to the Work. Raises what that contradicts.

        stream: a handle. what: names it. frees: whether the memory is gone then.
        """
        order = self.order
        work = order.begin(order.stream(self.index, stream), what, frees)
        if self.guard is not None:
            self.guard.lift()
        try:
            yield work
        finally:
            found = order.end(work) if self.orders else None
            self.cover()
            order.threads.returns(work)
        if found is not None:
            self.fail(found)
            self.check()

    def cover(self) -> None:
        """Watch over what work that the host has not waited for touches of its memory."""
        if self.guard is not None:
            self.guard.cover(self.order.exposed())

    def touched(self, work: Work, address: int, size: int, writes: bool) -> None:
        """Add to a work an access to memory, if it is a device's or shared with one."""
        region = self.region_at(address, size) if size else None
        if region is not None:
            self.peers_touch(region, self.index, [(address, address + size)], writes, work.what)
            shared = region.of_host
            work.accesses.append(Access(address, address + size, writes, region, None, shared))
            if writes and region.fresh:
                region.note_written(address, address + size)

    def peers_touch(self, region: Region, device: int, runs: ArrayLike, writes: bool, what: str) -> None:
        """What is no kernel touches bytes, int64 [n, 2], of a region: noted if kernels of several devices may, too."""
        if not region.peers or self.node is None or self.hosts is None or not self.session.checks:
            return
        runs = np.asarray(runs, np.int64)
        if runs[0, 0] == runs[0, 1]:
            return

        def report(fault: Fault) -> None:
            fault.where = named(calling_place())
            self.fail(fault)

        shadow = GlobalShadow(self.node.order, self.memories[max(region.device, 0)], report, self.node.shadow)
        self.node.touch(shadow, device, self.hosts.now.known, runs, writes, what)

    def host_touches(self, address: int, writes: bool, where: Place) -> None:
        """The host's code reads or writes a byte of memory that devices may access."""
        found = self.order.touch(address, writes, where) if self.orders else None
        if found is not None:
            self.fail(found)

    # -- memory ------------------------------------------------------------------------------------------------
    def adopt(self, array: np.ndarray, name: str) -> Region:
        """Register an array's bytes as memory of the current device; they are forgotten when the array goes."""
        if self.session.kept is not None:
            self.session.kept.append(array)
        region = self.given(array.ctypes.data, array.nbytes, name, self.index)
        if self.node is not None:
            self._arrays[array.ctypes.data] = weakref.ref(array)
        weakref.finalize(array, self.freed, region)
        return region

    def given(self, address: int, size: int, name: str, device: int) -> Region:
        """Register memory of a device, or of the HOST for all of them, until it is `freed`."""
        memory = self.memories[max(device, 0)]
        region = memory.register(address, size, self.named(name, device) if device != HOST else name)
        if self.node is not None or device == HOST:
            region.device = device
        for other, _ in (pair for pair in self._peers if pair[1] == device):
            self.memories[other].share(region)
        if device == HOST:
            self.order.shares = True
            for memory in self.memories:
                memory.share(region)
        return region

    def lend(self, owner: object, address: int, size: int, name: str) -> None:
        """Let the current device access what it is passed: memory of its own, as long as there is an owner, or of
        another device."""
        region = self.region_at(address, size)
        if region is None:
            region = self.memory.register(address, size, self.named(name))
            region.device, region.peers = self.index, True  # others may be passed it later
            weakref.finalize(owner, self.freed, region)
        self.memory.share(region)

    def freed(self, region: Region, by: str = "") -> None:
        """Forget memory: others may lie there from now on. by: who frees it, which launches are told that use it."""
        if by and not region.freed:
            region.freed_by = by
            for memory in self.memories:
                if memory.has(region):
                    memory.gone.append(region)
        region.freed = True
        self.forget(region)

    def forget(self, region: Region) -> None:
        """A region is no memory of the device any more."""
        self._arrays.pop(region.start, None)
        for memory in self.memories:
            if memory.has(region):
                memory.drop(region)

    def tensor_like(self, tensor, name: str, copy: bool = True):
        """A CPU torch tensor's like in device memory: its shape, strides, dtype and, if `copy`, data, else zeros."""
        packages.need("device_tensors", "torch")
        import torch

        storage = tensor.untyped_storage()
        if storage.nbytes() and not storage.data_ptr():
            raise ValueError(f"{name} has no memory: it is a fake tensor, or one on {tensor.device}")
        array = allocate(storage.nbytes())
        if copy and storage.nbytes():
            ctypes.memmove(array.ctypes.data, storage.data_ptr(), storage.nbytes())
        self.adopt(array, name)
        flat = torch.from_numpy(array).view(tensor.dtype)
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    # -- modules and launches ----------------------------------------------------------------------------------
    def module(self, text: str, name: str = "ptx", machine_code: bytes | None = None) -> LoadedModule:
        """Parse PTX text, once for each text. machine_code: what ptxas made of it."""
        if text not in self._modules:
            keep_ptx(text)
            self._modules[text] = LoadedModule(text, name, machine_code)
            _ = self._modules[text].symbols  # its variables are there now
        return self._modules[text]

    def launch(
        self, module: LoadedModule, kernel: str, grid, block, params: bytes, *, device: int | None = None, held=(),
        stream: int | None = None, **options,
    ) -> None:  # fmt: skip
        """Run a kernel on the current device, to its end. Raises what stops it; the session keeps the first failure.

        Of several devices, it runs when somebody waits for it: see `synchronize`. device: one that is not the current
        one; held: what is kept until then. stream: the handle of what it is given to; None: the caller waits for it.
        """
        if device is not None:
            with self.on(device):
                return self.launch(module, kernel, grid, block, params, held=held, stream=stream, **options)
        self.check()
        session = self.session
        if self.capture is not None and self.capture.takes(stream):
            given = options | ({} if self.node is None else {"device": self.index})
            self.capture.note("launch", (module, kernel, grid, block, params), given, stream)
            return
        number = session.launches = session.launches + 1
        if self.elsewhere is not None:
            options.pop("grid_id", None)
            try:
                return self.elsewhere(module, kernel, grid, block, params, **options)
            except EmulatorError as e:
                self.fail(e)
                raise
        if session.timed is not None and self.node is not None:
            raise Unsupported("times between events of several devices: emulated_gpu.timing() and profile have them")
        cluster, dynamic_shared = options.pop("cluster", None), options.pop("dynamic_shared", 0)
        code = Code(module.program(kernel), module.symbols, module.shared)
        launched = code, Geometry(grid, block, cluster, dynamic_shared), params, self.memory
        asked = LaunchOptions(**options, chip=self.chip)
        if session.recorded is not None or session.timed is not None:
            alive = () if self.node is None else tuple(held)
            if session.records(Recorded(*launched, asked, device=self.index, alive=alive)):
                return
        known = self.unwritten.known = self.unwritten.known and session.checks and self.node is None
        asked = dataclasses.replace(asked, number=number, notes_reads=self.order.watches or known)
        if self.node is not None:
            self._enqueue(launched, asked, held)
        else:
            self._run_now(launched, asked, stream)

    def _enqueue(self, launched: tuple, asked: LaunchOptions, held) -> None:
        """Let the current device of a node run a launch when somebody waits for it. held: what is kept until then."""
        node, hosts = self.together()
        alive = [array for array in (found() for found in self._arrays.values()) if array is not None]
        start = partial(self._launch, self.session, self.index, launched, asked)
        queued = Queued(start, [*alive, *held], dict(hosts.now.known))
        node.enqueue(self.index, queued, [host.known for host in hosts.all])

    def _run_now(self, launched: tuple, asked: LaunchOptions, stream: int | None) -> None:
        """Run a launch that a stream is given, and tell the session what it has found. Raises what stops it."""
        session = self.session
        what = f"launch {asked.number} ({launched[0].program.kernel.title})"
        self._made.launch = None
        with self._launching(stream, what) as work:
            if work is not None and self.order.several and Given.possible(launched, asked):
                work.given = Given(launched, self._options(session, self.index, asked))
                work.weight = work.given.size
            with collecting():
                orders = session.orders(asked.number, launched)
                if orders is not None and Reruns.possible(launched):
                    found, notes = self._explored(session, launched, asked, orders)
                else:
                    found, notes = self._run(session, partial(self._launch, session, self.index, launched, asked))
            made = self._made.launch
            if work is not None and work.given is not None:
                work.given.ended(made)
                if found or notes:  # what comes of it beside others need not be their doing
                    work.given = None
            if found:  # nobody knows what it would have written
                for region in self.memory.regions:
                    region.fresh = False
            elif self.unwritten.known and made is not None:
                found = self.unwritten.launched(made.own, what, launched, asked)
            for note in notes:
                session.note(note)
            for error in found:
                if isinstance(error, Hang) and error.polls and self.order.several:
                    error.message += CALLED_LATER
                self.fail(error)
        self.check()
        for refused in (error for error in found if isinstance(error, LaunchRefused)):
            raise refused  # also where launches go on: host code gets an error

    def host_reads(self, address: int, size: int, decides: bool, by: Work | None = None, runs=None) -> None:
        """The host gets bytes of a device. decides: one number, on which something will depend. by: what brings it.

        runs: [n, 2] which of those bytes, each from and to; None: all.
        """
        region = self.region_at(address, size) if size and self.unwritten.known else None
        if region is None or not self.orders:
            return
        runs = [(address, address + size)] if runs is None else runs
        found = self.unwritten.read_by_host(region, runs, named(calling_place() if by is None else by.where), decides)
        if found is None:
            return
        if found.note:
            self.session.note(found)
        else:
            self.fail(found)
            self.check()

    @contextlib.contextmanager
    def _launching(self, stream: int | None, what: str):
        """In the block, run a launch that a stream is given."""
        if stream is None:
            yield None
            return
        with self.working(stream, what) as work:
            yield work
            made = self._made.launch
            if made is not None:
                work.later = partial(accesses_of, made.own, self.memory.workspace)
                if self.order.watches:
                    work.all()
                else:
                    work.weight += sum(used.nbytes for _, used in made.own.regions.values())

    def _launch(
        self, session: Session, device: int, launched: tuple, asked: LaunchOptions, environment=Environment()
    ) -> Launch:
        """Make a launch that the device runs next. launched: the first arguments of Launch."""
        launch = Launch(*launched, self._options(session, device, asked), environment)
        session.predecessors[device] = self._made.launch = launch.dependencies
        return launch

    def _options(self, session: Session, device: int, asked: LaunchOptions) -> LaunchOptions:
        """Return the options of a launch that a session makes."""
        return dataclasses.replace(
            asked, schedule=session.schedule, checks=session.checks, strict=session.strict, crowded=session.crowded,
            predecessor=session.predecessors.get(device), collect=session.goes_on if session.most > 1 else None,
        )  # fmt: skip

    def _explored(self, session: Session, launched: tuple, asked: LaunchOptions, orders: int):
        """Run a launch, and then in other orders, as far as the session wants it: (findings, notes)."""
        reruns = Reruns(launched, self._options(session, self.index, asked), session.watched)
        made: list[Launch] = []
        watched = Watched()
        asked = dataclasses.replace(asked, watched=watched)

        def start() -> Launch:
            made.append(self._launch(session, self.index, launched, asked))
            return made[0]

        found, notes = self._run(session, start)
        if made and len(session.errors) + len(found) < session.most + bool(found):
            first = found[-1] if found else None
            other = reruns.explored(made[0], watched, first, orders, session.explores > 0)
            if other is not None and other is not first:
                found = [*found, other]
        return found, notes

    def _run(self, session: Session, start: Callable[[], Launch]):
        """Run a launch, of which nothing is left then but what it has found: (findings, notes)."""
        launch, found, notes = None, [], []
        try:
            launch = start()
            found, notes = launch.faults, launch.notes
            with session.watched(lambda: [launch]):
                launch.run()
        except EmulatorError as e:
            found = [*found, e]
        finally:
            if launch is not None:
                launch.dependencies.own.events = launch.order.now
                session.ended(launch)
                launch.order.part()
        return found, notes

    def _ended(self, launch: Launch) -> None:
        """A launch of several devices has ended. Raises the finding that was the last one wanted."""
        self.session.ended(launch)
        for note in launch.notes:
            self.session.note(note)
        for error in launch.faults:
            self.fail(error)
        if self.session.failure is not None:
            raise self.session.failure

    def _failed(self, error: EmulatorError | Enough) -> BaseException | None:
        """A launch of several devices cannot go on: forget all that run. Returns what the hosts are to raise."""
        launches = [one.launch for one in self.node.running.values()]
        faults = [fault for launch in launches for fault in launch.faults]
        early = [fault for fault in [*faults, error] if isinstance(fault, Fault) and fault.written_by]
        for launch in launches:
            launch.collect = None
        if early:
            launches[0].await_writer(early[-1])
        for fault in early:
            launches[0].explain(fault)
        for fault in faults:
            self.fail(fault)
        for launch in launches:
            self.session.ended(launch)
        if isinstance(error, EmulatorError) and error is not self.session.failure:
            self.fail(error)
        self.node.forget()
        return self.session.failure

    def fail(self, error: EmulatorError) -> None:
        """Keep it as a finding; CUDA, too, reports a failed launch at every later call. Or as a note, if it is one."""
        if isinstance(error, Fault) and error.note and not self.session.strict:
            return self.session.note(error)
        if isinstance(error, (Fault, Hang)):
            error.__traceback__ = None  # how the emulator got there helps nobody
        if self.session.failure is None:
            self.session.add(error)

    def caught(self, error: BaseException, where: str) -> None:
        """Keep what a callback must not raise into native code; what is no error, as Ctrl-C, fails what is called next,
        and ends the session."""
        if isinstance(error, Exception):
            if not isinstance(error, EmulatorError):
                error = EmulatorError(f"internal error in {where}: {type(error).__name__}: {error}")
            self.fail(error)
        elif not isinstance(error, Stopped):
            self.session.failure = error

    def refuse(self, error: EmulatorError) -> None:
        """Keep it as a finding, and go on: nothing has run, and CUDA tells this call alone."""
        self.fail(error)
        if self.session.failure is error:
            self.session.failure = None


DEVICE = Device()
