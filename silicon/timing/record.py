"""Times every point on a Hopper GPU and writes the recording.

    python3 -m silicon.timing.record [--only SUBSTRING] [--out silicon/timing/h200.json]

Needs python3, NumPy and a CUDA driver (libcuda.so.1) that accepts PTX 8.8 for sm_90a. Leaves the clocks as they are and
records them. A point's value is the median of the rounds, its spread their 10th and 90th percentile.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from ctypes import byref, c_int

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, Launch, Timer, nvidia_smi, survey

from . import kernels
from .expected import loads_output
from .points import INPUTS, POINTS, SMS, Map, MapList, Output, Point, Source, Zeros, loads, up

CHECKED_BYTES = 20 << 20  # loads of up to this much are compared with what NumPy makes of the input
SECONDS_PER_POINT = 30
NOISE_BYTES = 1 << 28
EVICTING = 16384  # instructions of 16 bytes: twice the largest kernel measured


def nbytes_of(point: Point, kind: type) -> int:
    """Bytes of a point's input (kind Source) or of one launch's outputs (kind Output)."""
    sizes = [
        a.nbytes for a in point.args if isinstance(a, kind) or isinstance(a, Map) and a.of == kind.__name__.lower()
    ]
    sizes = [up(n, 1024) for n in sizes]
    return sum(sizes) if kind is Output else max(sizes, default=0)


class Bench:
    """A GPU with room for the inputs and outputs of points."""

    def __init__(self, points: list[Point] = POINTS, input_bytes: int = 0):
        """Allocates what each of `points` needs, and at least `input_bytes` of noise in all."""
        self.gpu = Gpu()
        self.timer = Timer(self.gpu)
        self.points = {p.name: p for p in points}
        needed = max(input_bytes, *(p.inputs * nbytes_of(p, Source) for p in points))
        self.sources = self.gpu.allocate(up(needed, NOISE_BYTES))
        noise = np.random.default_rng(0).integers(0, 256, NOISE_BYTES, np.uint8)
        for at in range(0, needed, NOISE_BYTES):
            self.gpu.write(self.sources + at, noise)
        self.outputs = self.gpu.allocate(max(p.inputs * nbytes_of(p, Output) for p in points))
        self.maps = self.gpu.allocate(1 << 16)

    def launches(self, point: Point, count: int | None = None, source: int | None = None) -> list[Launch]:
        """Launches of a point, each on an input and outputs of its own; or `count`, all on the input at `source`."""
        kernel = self.gpu.kernel(point.ptx, shared=point.shared)
        return [
            self.gpu.launch(
                kernel, point.grid, point.block,
                self.args(
                    point,
                    self.sources + i * nbytes_of(point, Source) if source is None else source,
                    self.outputs + i * nbytes_of(point, Output),
                ),
                point.cluster if point.cluster > 1 else None, point.shared, point.pdl,
            )
            for i in range(count or point.inputs)
        ]  # fmt: skip

    def args(self, point: Point, source: int, output: int) -> list:
        """The kernel's arguments for the input and the outputs at these addresses."""
        args = []
        for a in point.args:
            if isinstance(a, Source):
                args.append(source)
            elif isinstance(a, Output):
                args.append(output)
                output += up(a.nbytes, 1024)
            elif isinstance(a, Map):
                args.append(self.map(source if a.of == "source" else output, a.pitch, a.rows, a.box_rows))
            elif isinstance(a, MapList):
                rows, box = kernels.MAP_BOX // 128, kernels.MAP_BOX
                maps = b"".join(self.map(source + n * box, 128, rows, rows) for n in range(a.count))
                if not a.by_value:
                    self.gpu.write(self.maps, maps)
                args.append(maps if a.by_value else self.maps)
            else:
                args.append(bytes(a.nbytes) if isinstance(a, Zeros) else a)
        return args

    def map(self, address: int, pitch: int, rows: int, box_rows: int) -> bytes:
        return self.gpu.tensormap(address, (pitch, rows), (pitch,), (128, box_rows), swizzle=3)

    def check(self, point: Point, launch: Launch) -> None:
        """Raises RuntimeError unless a first launch of a point writes what its input implies."""
        if point.kernel != "loads" or point.args[0].nbytes > CHECKED_BYTES or not point.args[2]:
            return
        where, out = point.args[:2]
        self.gpu.fill(self.outputs, 0xCD, out.nbytes)
        launch()
        expected = loads_output(point, self.gpu.read(self.sources, where.nbytes))
        if not np.array_equal(self.gpu.read(self.outputs, out.nbytes), expected):
            raise RuntimeError("wrong output")


class TimingBench(Bench):
    """Measures points by name for cuda_driver.survey."""

    def __init__(self):
        super().__init__()
        other_code = Point("other code", "straight", {"instructions": EVICTING}, SMS, 32, (Output(32 * SMS),))
        (self.evict_code,) = self.launches(other_code, 1)
        reads = loads("bulk", 0, "plain", 6, 32768, nbytes=Timer.FILL_BYTES, stored=False)
        (self.read_fill,) = self.launches(reads, 1, self.timer.room)
        warm = self.launches(next(p for p in POINTS if p.kernel == "loads"), INPUTS)
        self.timer.rounds(warm, 300)  # the clocks rise

    def machine(self) -> dict:
        clusters = {str(size): self.resident_clusters(size) for size in (2, 4)}
        about = {"resident clusters of": clusters, "clock64 GHz": self.clock_ghz(), "nvidia-smi": nvidia_smi()}
        return self.gpu.describe() | about

    def measure(self, name: str, result: dict) -> None:
        point, extra = self.points[name], {}
        first, _, last = point.timing.partition(" ")
        launches = self.launches(point)
        if first == "clock":
            words = point.args[0].nbytes // 4
            for _ in range(3):
                self.cycles(launches[0], words, "warm")
            slots = np.array([self.cycles(launches[0], words, last) for _ in range(Timer.ROUNDS)])
            # [round, CTA, slot]: CTAs of a launch count as one, by their median
            slots = np.median(slots.reshape(Timer.ROUNDS, point.grid, -1), axis=1)
            each = np.median(slots[:, slice(*point.slots)], axis=1) / point.per
            extra = {"slots": np.median(slots, axis=0).tolist()}
        else:
            self.check(point, launches[0])
            flush = self.timer.flush
            before = {"cold": (flush,), "clean": (flush, self.read_fill), "warm": launches[:1]}[first]
            each = self.timer.rounds(launches * (int(last) // point.inputs), before=before)
        low, middle, high = (round(float(x), 3) for x in np.percentile(each, (10, 50, 90)))
        result |= {"value": middle, "unit": point.unit, "spread": [low, high]} | extra

    def cycles(self, launch: Launch, words: int, state: str) -> np.ndarray:
        """Run a point's first launch in a state, "warm", "cold" or "evicted"; return what it writes, uint32 [words]."""
        if state == "evicted":
            self.evict_code()
        if state != "warm":
            self.timer.flush()
        launch()
        return self.gpu.read(self.outputs, 4 * words).view(np.uint32)

    def clock_ghz(self) -> float:
        """Cycles of clock64 per nanosecond of %globaltimer, over 8 x 1 ms."""
        point = Point("clock", "clock_rate", {"cycles": 2_000_000}, 1, 32, (Output(32),))
        return round(float(2_000_000 / np.median(self.cycles(self.launches(point, 1)[0], 8, "warm"))), 4)

    def resident_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs with 193 KiB of shared memory each that run at the same time."""
        point = next(p for p in POINTS if p.cluster == size and p.shared > 190 << 10)
        launch, number = self.launches(point, 1)[0], c_int()
        self.gpu.call("cuOccupancyMaxActiveClusters", byref(number), launch.kernel, byref(launch.config))
        return number.value


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--only", default="", help="run the points whose name contains this")
    parser.add_argument("--out", default="silicon/timing/h200.json", help="path of the results")
    options = parser.parse_args()
    chosen = [p for p in POINTS if options.only in p.name]
    start = time.time()
    with command.on_gpu():
        results, failures, (machine, after) = survey(TimingBench, [p.name for p in chosen], SECONDS_PER_POINT)
    machine |= {f"{key}, after": after[key] for key in ("clock64 GHz", "nvidia-smi")}
    described = {
        p.name: results[p.name] | {"timing": p.timing, "digest": p.digest} | ({"counts": p.counts} if p.counts else {})
        for p in chosen
        if p.name not in failures
    }
    record = {
        "machine": machine,
        "date": datetime.date.today().isoformat(),
        "command": "python3 -m silicon.timing.record",
        "repeats": Timer.ROUNDS,
    }
    with open(options.out, "w") as file:
        head = json.dumps(record, indent=1)[:-2]
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(result)}" for name, result in described.items())
        file.write(f'{head},\n "points": {{\n{lines}\n }}\n}}\n')
    for name, error in failures.items():
        print(f"FAILED {name}: {error}")
    print(f"{len(described)} points in {time.time() - start:.0f} s, {len(failures)} failed on {machine}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
