"""A GPU through its driver, and how long launches take on it. Needs NumPy and libcuda.so.1: no CuTe DSL, no torch.

    gpu = Gpu()
    out = gpu.allocate(64)
    launch = gpu.launch(gpu.kernel(ptx), grid=132, block=128, args=[out, 7], pdl=True)
    launch()
    gpu.sync()
    words = gpu.read(out, 64).view(np.uint32)
    us = Timer(gpu).medians({"one": [launch] * 15})

Used by tests/golden, tests/timing, worklog/h200_loads.py (all on an H200) and evaluation/calibrate.py (on a B200).
What the driver refuses is a RuntimeError "function: CUDA_ERROR_..". Numbers are those of cuda.h, CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import subprocess
from collections.abc import Callable, Hashable, Iterable, Sequence
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

import numpy as np

TENSORMAP_BYTES = 128
JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE = 5, 6
MAX_DYNAMIC_SHARED = 8  # CUfunction_attribute
NON_BLOCKING = 1  # a stream that does not wait for the default one
MULTIPROCESSORS, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 75, 76  # CUdevice_attribute
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union."""

    _fields_ = [("id", c_int), ("pad", c_uint32), ("value", c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("queue", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


def triple(x: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (x, 1, 1) if isinstance(x, int) else x


class Launch:
    """A kernel with its arguments, ready to be queued by a call: all that can be done before is done."""

    def __init__(self, gpu: Gpu, kernel: c_void_p, grid, block, args=(), cluster=None, shared: int = 0, pdl=False):
        """grid, block, cluster: CTAs, threads, CTAs per cluster, as an int or (x, y, z). A cluster of 1
        is not the same as None, which is no attribute.

        args, in the order of the kernel's parameters: int, of which a narrower parameter takes the low bits, or bytes
        by value. shared: bytes. pdl: may start while the launch before it ends (programmatic serialization).
        """
        attributes = {CLUSTER_DIMENSION: triple(cluster)} if cluster else {}
        attributes |= {PROGRAMMATIC_SERIALIZATION: (1,)} if pdl else {}
        attributes = [Attribute(id, 0, (c_uint32 * 16)(*value)) for id, value in attributes.items()]
        array = (Attribute * len(attributes))(*attributes)
        values = [a if isinstance(a, bytes) else (a & (1 << 64) - 1).to_bytes(8, "little") for a in args]
        self.storage = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self.arguments = (c_void_p * len(values))(*map(ctypes.addressof, self.storage))
        self.kernel = kernel
        self.config = LaunchConfig(triple(grid), triple(block), shared, gpu.queue, array, len(array))
        self.prepared = byref(self.config), kernel, self.arguments, None
        self.enqueue = gpu.cuda.cuLaunchKernelEx
        self.failed = gpu.failed

    def __call__(self) -> None:
        if status := self.enqueue(*self.prepared):
            raise self.failed("cuLaunchKernelEx", status)


class Gpu:
    """The first GPU of this machine: its memory, kernels, tensor maps and one queue, in which everything happens."""

    def __init__(self):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"no NVIDIA driver: {error}") from None
        self.device, self.queue, context = c_int(), c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.queue), NON_BLOCKING)

    def call(self, function: str, *args) -> None:
        """A function of libcuda, by the name under which it is exported. 64-bit arguments must be ctypes objects."""
        if status := getattr(self.cuda, function)(*args):
            raise self.failed(function, status)

    def failed(self, function: str, status: int) -> RuntimeError:
        name = ctypes.c_char_p()
        self.cuda.cuGetErrorName(status, byref(name))
        return RuntimeError(f"{function}: {name.value.decode() if name.value else status}")

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def describe(self) -> dict[str, str]:
        name, version = ctypes.create_string_buffer(100), c_int()
        self.call("cuDeviceGetName", name, 100, self.device)
        self.call("cuDriverGetVersion", byref(version))
        return {
            "card": name.value.decode(),
            "compute capability": f"{self.attribute(CAPABILITY_MAJOR)}.{self.attribute(CAPABILITY_MINOR)}",
            "CUDA driver API": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    def allocate(self, nbytes: int) -> int:
        """Address of `nbytes` of device memory, which hold anything."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
        return pointer.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", c_uint64(address))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self.call("cuMemsetD8Async", c_uint64(address), c_uint(byte), c_size_t(nbytes), self.queue)

    def write(self, address: int, data: bytes | np.ndarray) -> None:
        """Copy contiguous data to the GPU; returns when it is there."""
        array = np.frombuffer(data, np.uint8)
        host, size = array.ctypes.data_as(c_void_p), c_size_t(array.nbytes)
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(address), host, size, self.queue)
        self.sync()

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """uint8 [nbytes], once all that was queued has run."""
        array = np.empty(nbytes, np.uint8)
        host = array.ctypes.data_as(c_void_p)
        self.call("cuMemcpyDtoHAsync_v2", host, c_uint64(address), c_size_t(nbytes), self.queue)
        self.sync()
        return array

    def sync(self) -> None:
        """Wait for all that was queued. A fault of a kernel comes out here, and spoils the process for good."""
        self.call("cuStreamSynchronize", self.queue)

    def module(self, image: str | bytes) -> c_void_p:
        """PTX or a cubin, loaded. The driver's assembler says what it does not like in the error."""
        log, loaded = ctypes.create_string_buffer(8192), c_void_p()
        options = (c_int * 2)(JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), 8192)
        image = image.encode() if isinstance(image, str) else image
        try:
            self.call("cuModuleLoadDataEx", byref(loaded), image, 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{log.value.decode()}") from None
        return loaded

    def unload(self, module: c_void_p) -> None:
        self.call("cuModuleUnload", module)

    def kernel(self, image: str | bytes | c_void_p, name: str = "kernel", shared: int = 0) -> c_void_p:
        """A kernel of PTX, of a cubin or of a module, whose launches may have `shared` bytes of dynamic memory."""
        function, module = c_void_p(), image if isinstance(image, c_void_p) else self.module(image)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        return function

    def launch(self, kernel: c_void_p, grid, block, args=(), cluster=None, shared: int = 0, pdl=False) -> Launch:
        """As Launch says. Not yet queued."""
        return Launch(self, kernel, grid, block, args, cluster, shared, pdl)

    def tensormap(
        self,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        dtype: int = 0,
        element_strides: Sequence[int] = (),
        swizzle: int = 0,
        promotion: int = 0,
        nan_fill: bool = False,
    ) -> bytes:
        """A tiled tensor map, by the driver. dims, box: elements, innermost first; strides: bytes of dims[1:].

        dtype, promotion: CUtensorMapDataType (0: u8), CUtensorMapL2promotion. swizzle: 0 none, 1 32B, 2 64B, 3 128B.
        """
        rank = len(dims)
        room = (c_char * (TENSORMAP_BYTES + 64))()
        at = -(-ctypes.addressof(room) // 64) * 64
        self.call(
            "cuTensorMapEncodeTiled", c_void_p(at), dtype, rank, c_void_p(address), (c_uint64 * rank)(*dims),
            (c_uint64 * max(rank - 1, 1))(*strides), (c_uint32 * rank)(*box),
            (c_uint32 * rank)(*(element_strides or (1,) * rank)), 0, swizzle, promotion, int(nan_fill),
        )  # fmt: skip
        return ctypes.string_at(at, TENSORMAP_BYTES)


def nvidia_smi(query: str = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu") -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


# --------------------------------------------------------------------------------------------------------------- timing

SPIN = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 ns)
{
  .reg .pred p; .reg .b64 limit, start, now;
  ld.param.u64 limit, [ns];
  mov.u64 start, %globaltimer;
AGAIN: mov.u64 now, %globaltimer; sub.u64 now, now, start; setp.lt.u64 p, now, limit; @p bra AGAIN;
  ret;
}
"""


class Timer:
    """Times launches as the grader does: a fill that replaces what L2 holds, then all of them between two events.

    Launches that should not find their inputs in L2 need inputs of their own. A kernel that spins is queued first, so
    that all launches are queued before the first of them can start: else the time would be the host's.
    """

    FILL_BYTES = 1 << 30
    ROUNDS = 20
    SPIN_NS = 10_000  # for each launch: what a slow host takes to queue it
    TRIES = 5

    def __init__(self, gpu: Gpu):
        self.gpu, self.spin = gpu, gpu.kernel(SPIN)
        self.room = gpu.allocate(self.FILL_BYTES)
        self.events = c_void_p(), c_void_p()
        for event in self.events:
            gpu.call("cuEventCreate", byref(event), 0)

    def flush(self) -> None:
        """Queue the fill. It leaves L2 full of lines that must be written back."""
        words = c_size_t(self.FILL_BYTES // 4)
        self.gpu.call("cuMemsetD32Async", c_uint64(self.room), c_uint(0x3C003C00), words, self.gpu.queue)

    def once(self, launches: Sequence[Launch], before: Iterable[Callable] | None = None) -> float:
        """Microseconds per launch. before: what is queued untimed in front of them; None: the fill."""
        before = (self.flush,) if before is None else before
        for attempt in range(self.TRIES):
            self.gpu.launch(self.spin, 1, 1, [self.SPIN_NS * len(launches) << attempt])()
            for each in before:
                each()
            self.gpu.call("cuEventRecord", self.events[0], self.gpu.queue)
            for launch in launches:
                launch()
            self.gpu.call("cuEventRecord", self.events[1], self.gpu.queue)
            started = self.gpu.cuda.cuEventQuery(self.events[0]) == 0
            self.gpu.sync()
            if not started:
                ms = c_float()
                self.gpu.call("cuEventElapsedTime", byref(ms), *self.events)
                return ms.value * 1e3 / len(launches)
        raise RuntimeError("the first launch could start before the last one was queued")

    def rounds(self, launches: Sequence[Launch], count: int = ROUNDS, before=None) -> np.ndarray:
        """[count] times as of `once`, after one that does not count."""
        return np.array([self.once(launches, before) for _ in range(1 + count)][1:])

    def medians(
        self, contestants: dict[Hashable, Sequence[Launch]], repeats: int = 1, count: int = ROUNDS
    ) -> dict[Hashable, list[float]]:
        """{name: median of `count` rounds, `repeats` times}, each time with all contestants in another random order."""
        found: dict[Hashable, list[float]] = {name: [] for name in contestants}
        for _ in range(repeats):
            for name in random.sample(list(contestants), len(contestants)):
                found[name].append(round(float(np.median(self.rounds(contestants[name], count))), 3))
        return found


# ------------------------------------------------------------------------------------------------------ child processes


def _work(connection, make: Callable, names: list[str]) -> None:
    """Child process of `survey`: sends (machine, None), a (result, error) for each name, and (machine, None) again."""
    bench = make()
    connection.send((bench.machine(), None))
    for name in names:
        result = {}
        try:
            bench.measure(name, result)
        except RuntimeError as error:
            connection.send((result, str(error)))
            return  # a kernel that failed has spoilt the process
        connection.send((result, None))
    connection.send((bench.machine(), None))


def survey(make: Callable, names: Iterable[str], seconds: float) -> tuple[dict, dict[str, str], list[dict]]:
    """Results by name, errors by name, and what the first and the last child said of the machine.

    Measures in a child process, which a kernel that faults, or that is not done after `seconds`, takes down without the
    other names: another child goes on with those. make(), in the child, gives an object with machine() -> dict and
    measure(name, result), which puts into the dict what it finds; what it put there before an error is kept.
    """
    results, errors, machine, names = {}, {}, [], list(names)
    while names:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=_work, args=(there, make, names))
        child.start()
        there.close()
        machine.append(here.recv()[0])
        error = None
        while names and not error:
            name, result, error = names.pop(0), {}, f"no answer within {seconds} s"
            try:
                if here.poll(seconds):
                    result, error = here.recv()
            except EOFError:
                error = "the process died"
            results[name] = result
            if error:
                errors[name] = error
        if not error:
            machine.append(here.recv()[0])
        child.kill()
        child.join()
    return results, errors, [machine[0], machine[-1]]
