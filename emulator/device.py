"""The emulated device: global memory, loaded modules and launches one after the other."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .arena import PAGE, Heap
from .chip import B200, Chip
from .errors import EmulatorError, Fault, Hang, Unsupported
from .machine.engine import collecting
from .machine.launch import Launch
from .machine.schedule import Schedule
from .model.profile import Profile, load
from .model.run import Recorded, TimedRun
from .model.tally import tallied
from .model.trace import Trace
from .ptx.parse import parse
from .ptx.program import Program
from .state.dependency import Dependencies
from .state.global_memory import GlobalMemory, Region

ALIGNMENT = 512  # what cudaMalloc gives
GUARD = 512  # bytes around every allocation that no kernel may touch


class LoadedModule:
    """A parsed module with its .global and .const variables in device memory."""

    def __init__(self, text: str, memory: GlobalMemory, name: str, machine_code: bytes | None = None):
        module = parse(text)
        self.machine_code = machine_code
        self.text, self.module = text, module
        self.programs: dict[str, Program] = {}
        self.symbols: dict[str, int] = {}
        self.shared = {n: v for n, v in module.variables.items() if v.space == "shared"}
        self.name = name
        for v in module.variables.values():
            if v.space in ("global", "const") and v.size:
                array = allocate(v.size, max(v.align, ALIGNMENT))
                array[:] = np.frombuffer(v.init, np.uint8) if v.init else 0
                memory.register(
                    array.ctypes.data, v.size, f"variable {v.name}", owner=array, read_only=v.space == "const"
                )
                self.symbols[v.name] = array.ctypes.data

    def program(self, kernel: str) -> Program:
        if kernel not in self.programs:
            if kernel not in self.module.kernels:
                raise Unsupported(f"no kernel {kernel} in this module; it has {', '.join(self.module.kernels)}")
            self.programs[kernel] = Program(self.module.kernels[kernel], self.name, self.machine_code)
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


@dataclass
class Session:
    """What holds for the launches inside a `with session(...)`: the schedule, the checks, and what they found."""

    schedule: Schedule = field(default_factory=Schedule)
    checks: bool = True
    most: int = 1  # findings, before launches fail
    strict: bool = False  # what has a note is a finding, too
    notes: list[Fault] = field(default_factory=list)  # see errors.NOTES
    launches: int = 0
    findings: list[str] = field(default_factory=list)
    errors: list[EmulatorError] = field(default_factory=list)  # the findings
    failure: EmulatorError | None = None
    predecessor: Dependencies | None = None  # of the last launch
    recorded: list | None = None  # launches to be timed instead of run
    most_recorded: float = math.inf  # later launches are left out
    timed: list[Recorded] | None = None  # launches that have run, to be timed if somebody asks
    kept: list | None = None  # memory that launches to be timed may need when the script has freed it

    def report(self) -> list[str]:
        """One text for each fault, hang or refusal."""
        return list(self.findings)

    def new(self, faults: list[EmulatorError]) -> list[EmulatorError]:
        """Return the errors that are not yet among the findings."""
        known = {error.lines for error in self.errors}
        return [fault for fault in faults if fault.lines not in known]

    def goes_on(self, faults: list[EmulatorError]) -> bool:
        """Return whether launches may go on after these faults: fewer findings than wanted."""
        return len(self.errors) + len(self.new(faults)) < self.most

    def note(self, note: Fault) -> None:
        """Keep a note, once."""
        if all(note.lines != other.lines for other in self.notes):
            self.notes.append(note)

    def watched(self, launch: Launch):
        """Return a context manager in which the launch runs: whoever wants to look at it meanwhile, or afterwards."""
        return contextlib.nullcontext()

    def add(self, error: EmulatorError) -> None:
        """Record a finding. With the last one that is wanted, launches fail from here on."""
        if self.new([error]):
            self.errors.append(error)
            self.findings.append(str(error))
        if self.failure is None and len(self.errors) >= self.most:
            self.failure = error


@dataclass
class Timed:
    """Result of a timed block."""

    ends_us: list[float] = field(default_factory=list)
    run: TimedRun | None = None
    counted: list[dict[str, int]] = field(default_factory=list)  # what launches moved and multiplied, if it is traced


class Device:
    """The one device of this process."""

    def __init__(self):
        self.chip = B200
        self.served = False  # CuTe DSL's host code launches here
        self.memory = GlobalMemory()
        self.session = Session()
        self._modules: dict[str, LoadedModule] = {}
        self.capture: list[tuple[tuple, dict]] | None = None  # launches that a CUDA graph collects instead
        # Where launches run instead, with memory that this process and that one share: see arena.py. Called with the
        # arguments of `launch`; raises what stops it.
        self.elsewhere: Callable[..., None] | None = None
        self.heap: Heap | None = None

    @contextlib.contextmanager
    def as_chip(self, chip: Chip):
        """Makes the device another chip inside the block."""
        before, self.chip = self.chip, chip
        try:
            yield
        finally:
            self.chip = before

    # -- memory ------------------------------------------------------------------------------------------------
    def adopt(self, array: np.ndarray, name: str) -> None:
        """Register an array's bytes; they are forgotten when the array goes."""
        if self.session.kept is not None:
            self.session.kept.append(array)
        region = self.memory.register(array.ctypes.data, array.nbytes, name)
        weakref.finalize(array, self._forget, region)

    def _forget(self, region):
        if region in self.memory.regions:
            self.memory.drop(region)

    def tensor_like(self, tensor, name: str, copy: bool = True):
        """A CPU torch tensor's like in device memory: its shape, strides, dtype and, if `copy`, data, else zeros."""
        import torch

        storage = tensor.untyped_storage()
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
            self._modules[text] = LoadedModule(text, self.memory, name, machine_code)
        return self._modules[text]

    def launch(self, module: LoadedModule, kernel: str, grid, block, params: bytes, **options) -> None:
        """Run a kernel to its end. Raises what stops it; the session keeps the first failure."""
        session = self.session
        if session.failure is not None:
            raise session.failure
        if self.capture is not None:
            self.capture.append(((module, kernel, grid, block, params), options))
            return
        session.launches += 1
        if self.elsewhere is not None:
            try:
                return self.elsewhere(module, kernel, grid, block, params, **options)
            except EmulatorError as e:
                self.fail(e)
                raise
        if session.recorded is not None or session.timed is not None:
            arguments = (module.program(kernel), module.symbols, module.shared, grid, block, params, self.memory)
            recorded = Recorded(arguments, options | {"chip": self.chip})
            if session.timed is not None:
                session.timed.append(recorded)
            else:
                if session.launches <= session.most_recorded:
                    session.recorded.append(recorded)
                return
        with collecting():
            found, notes = self._run(session, module.program(kernel), module, grid, block, params, options)
        for note in notes:
            session.note(note)
        for error in found:
            self.fail(error)
        if session.failure is not None:
            raise session.failure

    def _run(self, session: Session, program: Program, module: LoadedModule, grid, block, params, options: dict):
        """Run a launch, of which nothing is left then but what it has found: (findings, notes)."""
        found: list[EmulatorError] = []
        notes: list[Fault] = []
        try:
            launch = Launch(
                program, module.symbols, module.shared, grid, block, params, self.memory,
                schedule=session.schedule, checks=session.checks, number=session.launches,
                predecessor=session.predecessor, chip=self.chip,
                collect=session.goes_on if session.most > 1 else None, strict=session.strict, **options,
            )  # fmt: skip
            session.predecessor, found, notes = launch.dependencies, launch.faults, launch.notes
            with session.watched(launch):
                launch.run()
        except EmulatorError as e:
            found = [*found, e]
        return found, notes

    def fail(self, error: EmulatorError) -> None:
        """Keep it as a finding; CUDA, too, reports a failed launch at every later call."""
        if isinstance(error, (Fault, Hang)):
            error.__traceback__ = None  # how the emulator got there helps nobody
        if self.session.failure is None:
            self.session.add(error)


DEVICE = Device()


@contextlib.contextmanager
def session(schedule: int = 0, checks: bool = True, most: int = 1, strict: bool = False):
    """Launches in this block run under a schedule (a seed, see machine/schedule.py) and with or without checks.

    What the PTX ISA does not promise and silicon does (errors.NOTES) is among the session's `notes`; with `strict`, it
    is a failure like any other.

    A failure of a launch that host code swallowed is raised on leaving. With `most` above 1, launches go on, where they
    can, until there are so many findings; a launch that cannot go on ends without a word to the host.
    """
    outer, DEVICE.session = DEVICE.session, Session(Schedule(schedule), checks, most, strict)
    here = DEVICE.session
    try:
        yield here
    except Exception as e:
        if here.failure is not None and e is not here.failure:
            raise here.failure from e  # the host code only saw an error number
        if type(e).__name__ == "DSLCudaRuntimeError" and not DEVICE.served:
            raise Unsupported("CuTe DSL asked a GPU: emulator.install() must run before the first cute.compile") from e
        raise
    finally:
        DEVICE.session = outer
    if here.failure is not None:
        raise here.failure


@contextlib.contextmanager
def timing(profile: str | Profile = "b200", trace: Trace | None = None, enough=None):
    """Launches in this block are recorded; on leaving they run back to back on the modelled machine.

    Yields a Timed whose `ends_us` then holds the end of each launch in microseconds after the first one's start, and
    whose `run` is the TimedRun with all its units. The tensor core computes nothing, and what threads make of its
    results they do not store. All else is as in any run; a tensor copy's bytes move when somebody else looks at them.
    `enough`: see TimedRun.
    """
    timed = Timed()
    with session() as here:
        here.recorded = []
        yield timed
        machine = load(profile) if isinstance(profile, str) else profile
        try:
            timed.run = TimedRun(machine, DEVICE.memory, here.recorded, trace, enough)
            if trace is not None:
                timed.counted = [tallied(one.launch) for one in timed.run.launches]
            timed.run.run()
        finally:
            for recorded in here.recorded:
                for region in recorded.held:
                    DEVICE._forget(region)
        timed.ends_us = timed.run.ends_us()


def device_tensors(obj, name: str = "tensor", copy: bool = True):
    """Deep copy of nested lists, tuples and dicts with their CPU torch tensors in device memory.

    Layout is kept; a tensor is named by its place, e.g. `tensor[0][2][1]`, in what the checks report. Without `copy`
    all contents are zero: for timing, where a kernel's course does not depend on them.
    """
    import torch

    if isinstance(obj, torch.Tensor):
        return DEVICE.tensor_like(obj, name, copy)
    if isinstance(obj, (list, tuple)):
        return type(obj)(device_tensors(o, f"{name}[{i}]", copy) for i, o in enumerate(obj))
    if isinstance(obj, dict):
        return {k: device_tensors(v, f"{name}[{k!r}]", copy) for k, v in obj.items()}
    return obj


def protect(obj) -> None:
    """Kernels may from now on only read the device tensors in nested lists, tuples and dicts."""
    for region in _regions(obj):
        region.read_only = True


def written(obj) -> None:
    """As if the launch before the next one had written the device tensors in nested lists, tuples and dicts.

    What a GPU's kernels put into a tensor, the host puts there here. To be called inside of a `session`; with it, a
    dependent launch that touches the tensors before griddepcontrol.wait is a fault, as it is a race on a GPU.
    """
    DEVICE.session.predecessor = Dependencies.of_writes("the launch that wrote it", DEVICE.memory, _regions(obj))


def _regions(obj) -> list[Region]:
    """Where the device tensors in nested lists, tuples and dicts lie; tensors of the host are left out."""
    if isinstance(obj, dict):
        obj = list(obj.values())
    if isinstance(obj, (list, tuple)):
        return [region for o in obj for region in _regions(o)]
    if hasattr(obj, "data_ptr") and obj.numel() and DEVICE.memory.covers(obj.data_ptr(), 1):
        return [DEVICE.memory.find(obj.data_ptr(), 1, False)]
    return []


def _triple(x) -> tuple[int, int, int]:
    x = (x,) if isinstance(x, int) else tuple(x)
    return tuple(int(v) for v in (*x, 1, 1)[:3])


def launch(ptx: str, kernel: str, grid, block, args, *, cluster=None, shared: int = 0, pdl: bool = False) -> None:
    """Run a kernel of a PTX text.

    grid, block, cluster: ints or up to three of them. args: one for each parameter, in order: an int (of its
    size), a float (f32 or f64 by size), bytes (by value: structs, tensormaps), a NumPy array or a CPU torch tensor
    (passed as a pointer; its memory is registered and the kernel works on it in place). shared: dynamic bytes.
    Raises EmulatorError: Unsupported, Fault or Hang.
    """
    module = DEVICE.module(ptx)
    parameters = module.program(kernel).kernel.params
    if len(args) != len(parameters):
        raise Unsupported(f"{kernel} takes {len(parameters)} arguments, {len(args)} given")
    block_bytes = bytearray(module.program(kernel).kernel.param_bytes)
    held, staged = [], []
    for n, (p, a) in enumerate(zip(parameters, args, strict=True)):
        if isinstance(a, float):
            a = np.array(a, f"f{p.size}").tobytes()
        elif isinstance(a, (int, np.integer)):
            a = (int(a) & ((1 << 8 * p.size) - 1)).to_bytes(p.size, "little")
        elif not isinstance(a, (bytes, bytearray)):
            array = a if isinstance(a, np.ndarray) else None
            address, size = (
                (array.ctypes.data, array.nbytes) if array is not None else (a.data_ptr(), a.untyped_storage().nbytes())
            )
            if DEVICE.heap is not None and size and not DEVICE.memory.covers(address, size):
                staged.append((address, size, allocate(size)))  # what runs the launch sees no other memory of ours
                ctypes.memmove(staged[-1][2].ctypes.data, address, size)
                address = staged[-1][2].ctypes.data
                DEVICE.adopt(staged[-1][2], f"argument {n}")
            if not DEVICE.memory.covers(address, size):
                held.append(DEVICE.memory.register(address, size, f"argument {n}", owner=a))
            a = address.to_bytes(p.size, "little")
        if len(a) > p.size:
            raise Unsupported(f"argument {n} has {len(a)} bytes, parameter {p.name} {p.size}")
        block_bytes[p.offset : p.offset + len(a)] = a
    try:
        DEVICE.launch(
            module, kernel, _triple(grid), _triple(block), bytes(block_bytes),
            cluster=None if cluster is None else _triple(cluster), dynamic_shared=shared, pdl=pdl,
        )  # fmt: skip
        for address, size, array in staged:
            ctypes.memmove(address, array.ctypes.data, size)
    finally:
        if DEVICE.session.recorded is not None:
            DEVICE.session.recorded[-1].held = held  # until it has run
        elif DEVICE.session.timed:
            DEVICE.session.timed[-1].held += held  # somebody may ask how long it takes
        else:
            for region in held:
                DEVICE._forget(region)
        DEVICE.session.failure = None
