"""Times every point on the GPU of this machine and writes the table.

    cd tests && python3 -m timing.run_on_gpu [--only SUBSTRING] [--out timing/h200.json]

Needs python3, numpy and a CUDA driver (libcuda.so.1) that accepts PTX 8.8 for sm_90a. Leaves the clocks as they are and
records them. Each point is repeated REPEATS times; the value is the median, the spread the 10th and 90th percentile.
A kernel that spins on one SM is queued first, so that all launches are queued before the first of them can start.
Points run in a child process, which a faulting or hanging kernel takes down without the others.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import multiprocessing
import subprocess
import sys
import time
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

import numpy as np
from golden.case import TensorMap
from golden.run_on_gpu import (
    CLUSTER_DIMENSION,
    MAX_DYNAMIC_SHARED,
    PROGRAMMATIC_SERIALIZATION,
    Attribute,
    Gpu,
    LaunchConfig,
)

from . import kernels
from .expected import loads_output
from .points import INPUTS, POINTS, SMS, Map, MapList, Output, Point, Source, Zeros, loads

REPEATS = 20
FILL_BYTES = 1 << 30
CHECKED_BYTES = 20 << 20  # loads of up to this much are compared with what NumPy makes of the input
SECONDS_PER_POINT = 30
NOISE_BYTES = 1 << 28
EVICTING = 16384  # instructions of 16 bytes: twice the largest kernel measured


def nbytes_of(point: Point, kind: type) -> int:
    """Bytes of one input (Source) or of one launch's outputs (Output)."""
    sizes = [
        a.nbytes for a in point.args if isinstance(a, kind) or isinstance(a, Map) and a.of == kind.__name__.lower()
    ]
    sizes = [-(-n // 1024) * 1024 for n in sizes]
    return sum(sizes) if kind is Output else max(sizes, default=0)


class Launch:
    """One launch of a point on input and output `i`, ready to be queued."""

    def __init__(self, gpu: TimingGpu, point: Point, function: c_void_p, i: int, source: int | None = None):
        source = gpu.sources + i * nbytes_of(point, Source) if source is None else source
        output = gpu.outputs + i * nbytes_of(point, Output)
        self.source, self.output = source, output
        storage = []
        for a in point.args:
            if isinstance(a, Source):
                storage.append(c_uint64(source))
            elif isinstance(a, Output):
                storage.append(c_uint64(output))
                output += -(-a.nbytes // 1024) * 1024
            elif isinstance(a, Map):
                storage.append(
                    gpu.by_value(gpu.map(source if a.of == "source" else output, a.pitch, a.rows, a.box_rows))
                )
            elif isinstance(a, MapList):
                maps = b"".join(
                    gpu.map(source + n * kernels.MAP_BOX, 128, kernels.MAP_BOX // 128, kernels.MAP_BOX // 128)
                    for n in range(a.count)
                )
                if a.by_value:
                    storage.append(gpu.by_value(maps))
                else:
                    gpu.call("cuMemcpyHtoD_v2", c_uint64(gpu.maps), maps, c_size_t(len(maps)))
                    storage.append(c_uint64(gpu.maps))
            elif isinstance(a, Zeros):
                storage.append(gpu.by_value(bytes(a.nbytes)))
            else:
                storage.append(c_uint64(a))
        attributes = []
        if point.cluster > 1:
            attributes.append(Attribute(CLUSTER_DIMENSION, 0, (c_uint32 * 16)(point.cluster, 1, 1)))
        if point.pdl:
            attributes.append(Attribute(PROGRAMMATIC_SERIALIZATION, 0, (c_uint32 * 16)(1)))
        array = (Attribute * max(len(attributes), 1))(*attributes)
        sizes = (c_uint * 3)(point.grid, 1, 1), (c_uint * 3)(point.block, 1, 1)
        self.config = LaunchConfig(*sizes, point.shared, gpu.queue, array, len(attributes))
        self.storage = storage
        self.arguments = (c_void_p * len(storage))(*[ctypes.addressof(s) for s in storage])
        self.prepared = byref(self.config), function, self.arguments, None
        self.enqueue = gpu.cuda.cuLaunchKernelEx

    def __call__(self):
        if status := self.enqueue(*self.prepared):
            raise RuntimeError(f"cuLaunchKernelEx: error {status}")


class TimingGpu(Gpu):
    def __init__(self):
        super().__init__()
        self.queue = c_void_p()
        self.call("cuStreamCreate", byref(self.queue), 1)
        source_bytes = max(p.inputs * nbytes_of(p, Source) for p in POINTS)
        self.sources = self.allocate(source_bytes + NOISE_BYTES)
        self.outputs = self.allocate(max(p.inputs * nbytes_of(p, Output) for p in POINTS))
        self.fill = self.allocate(FILL_BYTES)
        self.maps = self.allocate(1 << 16)
        noise = np.random.default_rng(0).integers(0, 256, NOISE_BYTES, np.uint8)
        for at in range(0, source_bytes, NOISE_BYTES):
            self.call(
                "cuMemcpyHtoD_v2", c_uint64(self.sources + at), noise.ctypes.data_as(c_void_p), c_size_t(NOISE_BYTES)
            )
        self.events = [c_void_p(), c_void_p()]
        for event in self.events:
            self.call("cuEventCreate", byref(event), 0)
        spin = Point("spin", "clock_rate", {"cycles": 60_000}, 1, 32, (Output(64),))
        self.spin = self.launches(spin, 1)[0]
        other_code = Point("other code", "straight", {"instructions": EVICTING}, SMS, 32, (Output(32 * SMS),))
        self.evict_code = self.launches(other_code, 1)[0]
        reads = loads("bulk", 1, "plain", 6, 32768, nbytes=FILL_BYTES, stored=False)
        self.read_fill = self.launches(reads, 1, self.fill)[0]

    def allocate(self, nbytes: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
        return pointer.value

    def map(self, address: int, pitch: int, rows: int, box_rows: int) -> bytes:
        return self.encode(TensorMap("u8", 0, (pitch, rows), (pitch,), (128, box_rows), swizzle=3), address)

    @staticmethod
    def by_value(data: bytes):
        return ctypes.create_string_buffer(data, len(data))

    def launches(self, point: Point, count: int, source: int | None = None) -> list[Launch]:
        module, function = self.module(point.ptx), c_void_p()
        self.call("cuModuleGetFunction", byref(function), module, b"kernel")
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, point.shared)
        return [Launch(self, point, function, i, source) for i in range(count)]

    def read(self, address: int, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        self.call("cuMemcpyDtoH_v2", data.ctypes.data_as(c_void_p), c_uint64(address), c_size_t(nbytes))
        return data

    def flush(self):
        self.call("cuMemsetD32Async", c_uint64(self.fill), c_uint(0x3C003C00), c_size_t(FILL_BYTES // 4), self.queue)

    def sync(self):
        self.call("cuStreamSynchronize", self.queue)

    def between_events(self, launches: list[Launch], state: str) -> float:
        """Microseconds per launch, after what `state` says: "cold", "clean" or "warm" (an untimed launch)."""
        self.spin()
        if state == "warm":
            launches[0]()
        else:
            self.flush()
        if state == "clean":
            self.read_fill()
        self.call("cuEventRecord", self.events[0], self.queue)
        for launch in launches:
            launch()
        self.call("cuEventRecord", self.events[1], self.queue)
        if self.cuda.cuEventQuery(self.events[0]) == 0:
            raise RuntimeError("the first launch could start before the last one was queued")
        self.sync()
        ms = c_float()
        self.call("cuEventElapsedTime", byref(ms), self.events[0], self.events[1])
        return ms.value * 1e3 / len(launches)

    def cycles(self, launch: Launch, words: int, state: str) -> np.ndarray:
        """uint32 [words] that one launch wrote, after what `state` says: "warm", "cold" or "evicted"."""
        if state == "evicted":
            self.evict_code()
        if state != "warm":
            self.flush()
        launch()
        self.sync()
        return self.read(launch.output, 4 * words).view(np.uint32)

    def check(self, point: Point, launch: Launch):
        """Raises unless a launch wrote what its input implies."""
        if point.kernel != "loads" or point.args[0].nbytes > CHECKED_BYTES or not point.args[2]:
            return
        where, out = point.args[:2]
        self.call("cuMemsetD8_v2", c_uint64(launch.output), c_uint(0xCD), c_size_t(out.nbytes))
        launch()
        self.sync()
        if not np.array_equal(
            self.read(launch.output, out.nbytes), loads_output(point, self.read(launch.source, where.nbytes))
        ):
            raise RuntimeError("wrong output")

    def measure(self, point: Point) -> dict:
        first, _, last = point.timing.partition(" ")
        if first == "clock":
            launch = self.launches(point, 1)[0]
            words = point.args[0].nbytes // 4
            for _ in range(3):
                self.cycles(launch, words, "warm")
            # [repeat, CTA, slot]: CTAs of a launch count as one, by their median
            slots = np.array([self.cycles(launch, words, last) for _ in range(REPEATS)]).reshape(
                REPEATS, point.grid, -1
            )
            slots = np.median(slots, axis=1)
            each = np.median(slots[:, slice(*point.slots)], axis=1) / point.per
            extra = {"slots": np.median(slots, axis=0).tolist()}
        else:
            launches = self.launches(point, point.inputs)
            self.check(point, launches[0])
            timed = launches * (int(last) // point.inputs)
            self.between_events(timed, first)
            each = np.array([self.between_events(timed, first) for _ in range(REPEATS)])
            extra = {}
        low, middle, high = np.percentile(each, (10, 50, 90))
        return {
            "value": round(float(middle), 3),
            "unit": point.unit,
            "spread": [round(float(low), 3), round(float(high), 3)],
        } | extra

    def clock_ghz(self) -> float:
        """Cycles of clock64 per nanosecond of %globaltimer, over 8 x 1 ms."""
        point = Point("clock", "clock_rate", {"cycles": 2_000_000}, 1, 32, (Output(32),))
        return round(float(2_000_000 / np.median(self.cycles(self.launches(point, 1)[0], 8, "warm"))), 4)

    def resident_clusters(self, size: int) -> int:
        """Clusters of `size` CTAs with 193 KiB of shared memory each that run at the same time."""
        point = next(p for p in POINTS if p.cluster == size and p.shared > 190 << 10)
        launch, number = self.launches(point, 1)[0], c_int()
        self.call("cuOccupancyMaxActiveClusters", byref(number), launch.prepared[1], byref(launch.config))
        return number.value


def nvidia_smi() -> str:
    query = "--query-gpu=driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
    out = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()[0]


def work(connection, names: list[str]) -> None:
    """Child process: the machine, then one message per point, (result, error); the machine again at the end."""
    gpu = TimingGpu()
    by_name = {p.name: p for p in POINTS}
    warm = gpu.launches(next(p for p in POINTS if p.kernel == "loads"), INPUTS)
    for _ in range(300):  # the clocks rise
        gpu.between_events(warm, "cold")
    clusters = {str(size): gpu.resident_clusters(size) for size in (2, 4)}
    connection.send(
        gpu.describe() | {"resident clusters of": clusters, "clock64 GHz": gpu.clock_ghz(), "nvidia-smi": nvidia_smi()}
    )
    for name in names:
        try:
            connection.send((gpu.measure(by_name[name]), None))
        except RuntimeError as error:
            connection.send((None, str(error)))
            return  # the context may be spoilt: the parent starts another child
    connection.send({"clock64 GHz, after": gpu.clock_ghz(), "nvidia-smi, after": nvidia_smi()})


def run_all(names: list[str]) -> tuple[dict[str, dict], dict[str, str], dict]:
    points, failures, machine = {}, {}, {}
    while names:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=work, args=(there, names))
        child.start()
        there.close()
        machine |= here.recv()
        while names:
            name, result, error = names[0], None, f"no answer within {SECONDS_PER_POINT} s"
            try:
                if here.poll(SECONDS_PER_POINT):
                    result, error = here.recv()
            except EOFError:
                error = "the process died"
            names = names[1:]
            if error:
                failures[name] = error
                print(f"FAILED {name}: {error}", flush=True)
                break
            points[name] = result
        if not names and not error:
            machine |= here.recv()
        child.kill()
        child.join()
    return points, failures, machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the points whose name contains this")
    parser.add_argument("--out", default="timing/h200.json", help="path of the results")
    options = parser.parse_args()
    chosen = [p for p in POINTS if options.only in p.name]
    start = time.time()
    results, failures, machine = run_all([p.name for p in chosen])
    described = {
        p.name: results[p.name] | {"timing": p.timing, "digest": p.digest} | ({"counts": p.counts} if p.counts else {})
        for p in chosen
        if p.name in results
    }
    record = {
        "machine": machine,
        "date": datetime.date.today().isoformat(),
        "command": "cd tests && python3 -m timing.run_on_gpu",
        "repeats": REPEATS,
        "points": described,
    }
    with open(options.out, "w") as file:
        points = record.pop("points")
        head = json.dumps(record, indent=1)[:-2]
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(result)}" for name, result in points.items())
        file.write(f'{head},\n "points": {{\n{lines}\n }}\n}}\n')
    print(f"{len(results)} points in {time.time() - start:.0f} s, {len(failures)} failed on {machine}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
