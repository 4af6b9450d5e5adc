"""The judge's emulated device: what the submission's process launches comes here as data, and is run and timed here.

A launch is a kernel's PTX, a geometry, the bytes of its parameters, and the memory of the submission's that it may
touch; all else (inputs, results, checks, findings, times) this process never lets go of.
"""

import dataclasses
import math
import re
from collections.abc import Callable

import numpy as np

from emulated_gpu import target
from emulated_gpu.arena import PAGE, Arena
from emulated_gpu.chip import B200, Chip
from emulated_gpu.errors import EmulatorError, Fault, ResultsDecide
from emulated_gpu.finding_rows import NOT_PROMISED, WRONG
from emulated_gpu.machine.launch import Code, Geometry, Launch, LaunchOptions
from emulated_gpu.machine.schedule import Schedule
from emulated_gpu.machine.special import Origins
from emulated_gpu.model.profile import Profile
from emulated_gpu.model.run import Recorded, TimedRun
from emulated_gpu.model.tally import tallied
from emulated_gpu.ptx.control_flow import ControlFlow
from emulated_gpu.ptx.parse import parse
from emulated_gpu.serve.host.watch import watched
from emulated_gpu.state.global_memory import GlobalMemory, Part, Region
from emulated_gpu.state.pdl_dependency import Dependencies, Footprint
from evaluation.judge.same_calls import pieces
from evaluation.judge.shared_tensors import Placed, torchs

LATER = 10**6  # ticks and nanoseconds from one launch to the next
LARGE = 2**20  # bytes of an allocation whose memory is not touched before a kernel does
REGIONS = 65_536  # of the submission's that a launch may bring along
FUNCTION, LONGEST_NAME = re.compile(r"[\w.]"), 60  # characters of a name in reports, which anybody may have made up
_modules: dict[tuple[str, str], tuple] = {}  # (PTX, for which architecture) -> (module, {kernel: ControlFlow})


class Garbled(Exception):
    """Raised for a message that no host code can have sent as a launch."""


@dataclasses.dataclass
class Queued:
    """Holds a launch as it came, checked to be one."""

    text: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: bytes
    symbols: dict[str, int]
    regions: list[tuple[int, int, str, bool]]  # start, bytes, name, read only
    options: dict  # cluster, dynamic_shared, pdl, cooperative
    function: str = ""  # the kernel's name in reports, if that is not its own
    read: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # offset, bytes of what kernels read of params

    @property
    def shape(self) -> tuple:
        """Gives all of the launch that does not depend on where tensors are."""
        return self.text, self.kernel, self.grid, self.block, *self.options.values()

    @property
    def asked(self) -> LaunchOptions:
        """Gives what host code asks for with the launch, but its geometry."""
        return LaunchOptions(pdl=self.options["pdl"], cooperative=self.options["cooperative"])


SPINNING = 0.1  # share of its accesses to global memory by which one run of a launch may differ from another: polling


def alike(counts: list[dict[str, int]], others: list[dict[str, int]]) -> bool:
    """Tells whether launches have moved and multiplied the same; each is given by its counts."""
    for one, other in zip(counts, others, strict=True):
        for name, count in one.items():
            allowed = SPINNING * max(count, other[name]) if name.startswith("global") else 0
            if abs(count - other[name]) > allowed:
                return False
    return True


def internal(error: Exception) -> EmulatorError:
    """Makes a finding of an error inside the emulator."""
    return EmulatorError(f"internal error: {type(error).__name__}: {error}")


class Device:
    """Runs and times the launches of one submission's process. heap: where the submission's part of the memory
    begins. strict: whether what emulated_gpu.errors.NOTES has fails; else `notes` has it, once. say: is told, in a
    sentence now and then, how far a launch is that takes long. seed: of what no kernel can rely on, origins of timers
    and numbers of SMs. keep: is given the class (emulated_gpu/finding_rows.py)
    of what is found, that, and its launch, None if it could not be made."""

    def __init__(
        self, arena: Arena, heap: int, strict: bool = False, say: Callable[[str], None] = lambda text: None,
        keep: Callable[[str, EmulatorError, Launch | None], None] = lambda of_class, found, launch: None,
        seed: int = 0, chip: Chip = B200,
    ):  # fmt: skip
        self.chip = chip
        self.arena, self.heap, self.strict, self.say, self.keep = arena, heap, strict, say, keep
        self.seed, self.poison = seed, 1 + seed % 255
        self.notes: list[Fault] = []
        self.memory = GlobalMemory()
        self.texts: list[str] = []
        self.theirs: dict[tuple, Region] = {}  # (start, bytes, read only) -> region of the submission's
        self.not_computed: list[tuple[int, np.ndarray]] = []  # address, bool [bytes]: of the last timed run
        self.footprints: list[Footprint] | None = None  # of launches that run with all checks, where they are wanted
        self.number = 0  # of the next launch, which a kernel can read: it counts on, as on a GPU
        self.begin()

    def begin(self, written: tuple[Placed, ...] = (), schedule: int = 0) -> None:
        """Begins a call, with no findings yet, and as if the launch before had written the placed data."""
        self.schedule = Schedule(schedule)
        self.findings: list[str] = []
        self.failure: EmulatorError | None = None
        numbers = Origins.drawn(self.seed + 1 + schedule, self.chip.sms).sms
        self.origins = dataclasses.replace(Origins.drawn(self.seed, self.chip.sms), sms=numbers)
        regions = [self.memory.find(one.address, 1, False) for p in written for one in p.device if one.size]
        self.predecessor = Dependencies.of_writes("the launch that wrote it", self.memory, regions)

    def follow(self, predecessor: Dependencies | None) -> None:
        """Lets the next launch, the first of a call, follow that one, too: the last of the call before."""
        if predecessor is not None:
            self.predecessor.before = self.predecessor.after = [predecessor.own]

    def register(self, placed: Placed) -> None:
        """Lets kernels read the placed data, and write what they may."""
        for one in placed.device:
            if one.size:
                region = self.memory.register(one.address, one.size, one.role.name)
                region.read_only = not one.role.written

    def drop(self, placed: Placed) -> None:
        for one in placed.device:
            if one.size:
                self.memory.drop(self.memory.find(one.address, 1, False))

    def understand(self, message) -> Queued:
        """Reads a launch that the submission's process has sent. Raises Garbled."""
        try:
            if "text" in message:
                self.texts.append(str(message["text"]))
            cluster = message["cluster"]
            queued = Queued(
                self.texts[int(message["module"])],
                str(message["kernel"]),
                _three(message["grid"]),
                _three(message["block"]),
                bytes.fromhex(message["params"]),
                {str(name): _address(address) for name, address in message["symbols"].items()},
                [(int(a), int(n), f"the submission's {name}"[:100], bool(r)) for a, n, name, r in message["regions"]],
                {
                    "cluster": _three(cluster) if cluster else None,
                    "dynamic_shared": int(message["dynamic_shared"]),
                    "pdl": bool(message["pdl"]),
                    "cooperative": bool(message["cooperative"]),
                },
                "".join(FUNCTION.findall(str(message["function"])[:LONGEST_NAME])),
            )
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            raise Garbled(f"{type(error).__name__}: {error}") from None
        ends = [(start, start + size) for start, size, *_ in queued.regions]
        inside = all(self.heap <= start < end <= self.arena.end for start, end in ends)
        if not inside or len(queued.regions) > REGIONS or queued.options["dynamic_shared"] < 0:
            raise Garbled("memory that is not the submission's")
        return queued

    def expose(self, regions: list[tuple[int, int, str, bool]]) -> None:
        """Makes these the submission's regions, no more and no less."""
        wanted = {(start, size, read_only): name for start, size, name, read_only in regions}
        for key in self.theirs.keys() - wanted.keys():
            region = self.theirs.pop(key)
            if region in self.memory.regions:
                self.memory.drop(region)
        for key in wanted.keys() - self.theirs.keys():
            start, size, read_only = key
            self.theirs[key] = self.memory.register(start, size, wanted[key], read_only=read_only)
            self.spoil([key[:2]])

    def spoil(self, ranges) -> None:
        """Fills what nobody has written of memory that torch has allocated, (address, bytes), unless that is large:
        nobody promises zeros there."""
        for start, size in ranges:
            if start >= torchs(self.arena, self.heap) and size <= LARGE:
                at, written = start, self.arena.data(start, size)
                for first, end in [*written, (start + size, start + size)]:
                    self.arena.view(at, first - at)[:] = self.poison
                    at = end

    def arguments(self, queued: Queued, memory: GlobalMemory) -> tuple[Code, Geometry, bytes, GlobalMemory]:
        """Makes the first arguments of a machine.launch.Launch in this memory. Raises EmulatorError."""
        text = queued.text, self.chip.arch
        if text not in _modules:
            _modules[text] = parse(queued.text), {}
        module, programs = _modules[text]
        if queued.kernel not in programs:
            if queued.kernel not in module.kernels:
                raise Fault("launch", f"the module has no kernel {queued.kernel}")
            target.check(module.target, module.kernels[queued.kernel].instrs, self.chip)
            module.kernels[queued.kernel].function = queued.function
            programs[queued.kernel] = ControlFlow(module.kernels[queued.kernel], "ptx")
        shared = {name: v for name, v in module.variables.items() if v.space == "shared"}
        code = Code(programs[queued.kernel], queued.symbols, shared)
        geometry = Geometry(queued.grid, queued.block, queued.options["cluster"], queued.options["dynamic_shared"])
        return code, geometry, queued.params, memory

    def run(self, queued: Queued, checks: bool = True, computes=None) -> dict[str, int]:
        """Runs a launch to its end; returns what it moved and multiplied. Raises EmulatorError, whose text is kept in
        `findings`. checks: all of them, or only what keeps it from touching what the launch before may still use.
        computes: which clusters do, if not all; ResultsDecide where what these leave out decides anything."""
        if self.failure is not None:
            raise self.failure
        launch = None
        try:
            self.expose(queued.regions)
            footprints = self.footprints if checks else None
            options = dataclasses.replace(
                queued.asked, schedule=self.schedule, checks=checks, number=self.number, predecessor=self.predecessor,
                strict=self.strict, computes_mma=computes, chip=self.chip, notes_reads=footprints is not None,
            )  # fmt: skip
            launch = Launch(*self.arguments(queued, self.memory), options)
            if footprints is not None:
                footprints.append(launch.dependencies.own)
            later, at = LATER * self.number, self.origins
            launch.origins = dataclasses.replace(at, clock=at.clock + later, globaltimer=at.globaltimer + later)
            self.number += 1
            counted = tallied(launch)
            self.predecessor = launch.dependencies
            with watched(lambda: [launch], say=self.say):
                launch.run()
            self.memory.take_not_computed()
            queued.read |= launch.params.read
            known = {note.lines for note in self.notes}
            for note in launch.notes:
                if note.lines not in known:
                    self.notes.append(note)
                    self.keep(NOT_PROMISED, note, launch)
            return counted
        except (MemoryError, ResultsDecide):
            raise
        except Exception as error:
            found = error if isinstance(error, EmulatorError) else internal(error)
            self.failure = found
            self.findings.append(str(found))
            self.keep(WRONG, found, launch)
            raise found from None

    def part(self, queue: list[Queued], placed: Placed, hidden: list[tuple[int, int, str, bool]]) -> Part:
        """Makes the memory that the launches of one of several calls may access: its placed data, and what of the
        submission's they have brought along, but for `hidden` regions. All of it must be there."""
        theirs = {region for queued in queue for region in queued.regions} - {*hidden}
        found = [self.theirs[start, size, read_only] for start, size, _, read_only in theirs]
        found += [self.memory.find(one.address, 1, False) for one in placed.device if one.size]
        return Part(self.memory, [*{id(region): region for region in found}.values()])

    def time(
        self, queue: list[Queued], before: list, profile: Profile, trace=None, enough=None, computes=None, parts=None
    ):
        """Runs the launches back to back on the modelled machine, which computes, too; returns the TimedRun, and what
        each moved and multiplied. before: for each what is called when it starts, or None. computes: for each which
        clusters do, if not all of all; `not_computed` then has where the results of others would be. parts:
        for each the memory that it may access, if not all. Raises ResultsDecide where these decide anything else."""
        self.expose([*{region for queued in queue for region in queued.regions}])
        computes = computes or [None] * len(queue)
        parts = parts() if parts else [self.memory] * len(queue)
        recorded = []
        for queued, call, clusters, part in zip(queue, before, computes, parts, strict=True):
            options = dataclasses.replace(queued.asked, computes_mma=clusters)
            recorded.append(Recorded(*self.arguments(queued, part), options, before=call))
        run = TimedRun(profile, self.memory, recorded, trace, enough, computes_mma=True)
        counted = [tallied(timed.launch) for timed in run.launches]
        for timed in run.launches:
            timed.launch.origins = self.origins
        try:
            with watched(lambda: [timed.launch for timed in run.active], say=self.say):
                run.run()
        finally:
            self.not_computed = self.memory.take_not_computed()
        for queued, timed in zip(queue, run.launches, strict=True):
            queued.read |= timed.launch.params.read
        return run, counted

    def touched(self, placed: Placed) -> tuple[int, int]:
        """Counts the bytes of placed data that the launches of `footprints` have read, and those that they have read or
        written, atomics among these."""
        found: dict[tuple[int, int], np.ndarray] = {}
        for footprint in self.footprints or ():
            for key, (_, used) in footprint.regions.items():
                found[key] = used | found.get(key, False)
        words = [found[one.address, one.size] for one in placed.device if (one.address, one.size) in found]
        return 4 * sum(int(each[0].sum()) for each in words), 4 * sum(int(each.any(0).sum()) for each in words)

    def computes(self, queued: Queued) -> bool:
        """Tells whether a kernel's registers get what a tensor core has computed."""
        return self.arguments(queued, self.memory)[0].program.results.come

    def snapshot(self, regions) -> dict[tuple[int, int], list]:
        """Copies the contents of regions of the submission's; those that nobody has written cost nothing."""
        return {(start, size): [*pieces(self.arena, start, size)] for start, size, *_ in regions}

    def left_behind(self, regions, results: list[tuple[int, int]]) -> dict[object, bytes]:
        """Copies what one launch may have left for a later one, by its place: contents of regions of the submission's
        but where results lie, (address, bytes); what a run has left out there; the grid's barrier; the heap of
        kernels. Zeros cost nothing."""
        found: dict[object, bytes] = {}
        for start, size, *_ in regions:
            for offset, data in pieces(self.arena, start, size):
                data = _without(data, start + offset, results)
                for at in range(0, len(data), PAGE):
                    if (page := data[at : at + PAGE]).any():
                        found[start + offset + at] = page.tobytes().rstrip(b"\0")
        for region in self.theirs.values():
            if region.not_computed is not None and _without(region.not_computed.copy(), region.start, results).any():
                found["left out", region.start] = b""
        if self.memory.workspace is not None:
            found["barrier"] = self.memory.workspace.data.tobytes().rstrip(b"\0")
        return found | {("heap", start): region.data.tobytes() for start, region in self.memory.heap.items()}

    def restore(self, snapshot: dict[tuple[int, int], list]) -> None:
        """Makes regions what they were; kernels have allocated nothing."""
        self.memory.free_all()
        for (start, size), parts in snapshot.items():
            self.arena.clear(start, size)
            for offset, data in parts:
                self.arena.view(start + offset, len(data))[:] = data


def _without(data: np.ndarray, start: int, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Write zeros where ranges, (address, bytes), lie in data from an address on."""
    for first, size in ranges:
        if first < start + len(data) and start < first + size:
            data[max(0, first - start) : max(0, first + size - start)] = 0
    return data


def _address(number) -> int:
    if not 0 <= int(number) < 2**64:
        raise ValueError(f"{number} is no address")
    return int(number)


def _three(numbers) -> tuple[int, int, int]:
    x, y, z = numbers
    numbers = int(x), int(y), int(z)
    if not all(0 <= number < 2**31 for number in numbers) or math.prod(numbers) >= 2**31:
        raise ValueError(f"{numbers} is no geometry")
    return numbers
