"""A GPU through its driver, and how long launches take on it. Needs NumPy and libcuda.so.1: no CuTe DSL, no torch.

    gpu = Gpu()
    out = gpu.allocate(64)
    launch = gpu.launch(gpu.kernel(ptx), grid=132, block=128, args=[out, 7], pdl=True)
    launch()
    gpu.sync()
    words = gpu.read(out, 64).view(np.uint32)
    us = Timer(gpu).medians({"one": [launch] * 15})

Every program of silicon/ that measures goes through this, on an H200; calibrate.py is meant for a B200. Where there is
no GPU, Gpu() raises NoGpu; what the driver refuses is a RuntimeError "function: CUDA_ERROR_..". Numbers of attributes
and fields are those of cuda.h, CUDA 13.0.
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
# How PTX begins that any Hopper GPU takes, and that which uses what sm_90a alone has
SM_90 = ".version 8.0\n.target sm_90\n.address_size 64\n"
SM_90A = ".version 8.8\n.target sm_90a\n.address_size 64\n"
MULTIPROCESSORS, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 75, 76  # CUdevice_attribute
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID


class NoGpu(RuntimeError):
    """Says why this machine has no GPU to measure on: no driver, or none that the driver lets us have."""


class Attribute(ctypes.Structure):
    """Lays out CUlaunchAttribute: an id and a 64-byte union."""

    _fields_ = [("id", c_int), ("pad", c_uint32), ("value", c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    """Lays out CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("queue", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


def triple(x: int | tuple[int, int, int]) -> tuple[int, int, int]:
    """An int as (x, 1, 1)."""
    return (x, 1, 1) if isinstance(x, int) else x


class Launch:
    """A kernel with its arguments, which a call queues: everything else is done when it is made."""

    def __init__(self, gpu: Gpu, kernel: c_void_p, grid, block, args=(), cluster=None, shared: int = 0, pdl=False):
        """Prepares the launch; nothing is queued yet.

        grid, block, cluster: CTAs, threads, CTAs per cluster, as an int or (x, y, z); a cluster of 1 sets the launch
        attribute, None does not. args, in the order of the kernel's parameters: an int, of which a narrower parameter
        takes the low bits, or bytes by value. shared: bytes of dynamic shared memory. pdl: the launch may start while
        the one before it ends (programmatic stream serialization).
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
    """A GPU of this machine: its memory, kernels, tensor maps and one queue, in which everything happens."""

    def __init__(self, number: int = 0):
        """Opens the GPU of this number and makes it the thread's current one. Raises NoGpu if there is none."""
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoGpu(f"no NVIDIA driver: {error}") from None
        self.device, self.queue, self.context = c_int(), c_void_p(), c_void_p()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGet", byref(self.device), number)
        except RuntimeError as error:
            raise NoGpu(str(error)) from None
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self.use()
        self.call("cuStreamCreate", byref(self.queue), NON_BLOCKING)

    def use(self) -> None:
        """Makes this GPU the thread's current one, which all its calls and launches suppose where there are several."""
        self.call("cuCtxSetCurrent", self.context)

    def reach(self, other: Gpu) -> None:
        """Lets this GPU's kernels access memory of another one (peer access); it is the current one then."""
        self.use()
        self.call("cuCtxEnablePeerAccess", other.context, 0)

    def call(self, function: str, *args) -> None:
        """Calls a function of libcuda by its exported name. 64-bit arguments must be ctypes objects."""
        if status := getattr(self.cuda, function)(*args):
            raise self.failed(function, status)

    def failed(self, function: str, status: int) -> RuntimeError:
        """The error to raise for a CUresult that is not 0."""
        name = ctypes.c_char_p()
        self.cuda.cuGetErrorName(status, byref(name))
        return RuntimeError(f"{function}: {name.value.decode() if name.value else status}")

    def attribute(self, number: int) -> int:
        """The value of a CUdevice_attribute."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def describe(self) -> dict[str, str]:
        """The card, its compute capability and the driver's CUDA version, as recordings keep them."""
        name, version = ctypes.create_string_buffer(100), c_int()
        self.call("cuDeviceGetName", name, 100, self.device)
        self.call("cuDriverGetVersion", byref(version))
        return {
            "card": name.value.decode(),
            "compute capability": f"{self.attribute(CAPABILITY_MAJOR)}.{self.attribute(CAPABILITY_MINOR)}",
            "CUDA driver API": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` of device memory with unspecified contents."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
        return pointer.value

    def free(self, address: int) -> None:
        """Gives memory of `allocate` back."""
        self.call("cuMemFree_v2", c_uint64(address))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Queues a fill of `nbytes` with one byte value."""
        self.call("cuMemsetD8Async", c_uint64(address), c_uint(byte), c_size_t(nbytes), self.queue)

    def write(self, address: int, data: bytes | np.ndarray) -> None:
        """Copies contiguous data to the GPU and returns when it is there."""
        array = np.frombuffer(data, np.uint8)
        host, size = array.ctypes.data_as(c_void_p), c_size_t(array.nbytes)
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(address), host, size, self.queue)
        self.sync()

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """Copies from the GPU once everything queued has run: uint8 [nbytes]."""
        array = np.empty(nbytes, np.uint8)
        host = array.ctypes.data_as(c_void_p)
        self.call("cuMemcpyDtoHAsync_v2", host, c_uint64(address), c_size_t(nbytes), self.queue)
        self.sync()
        return array

    def sync(self) -> None:
        """Waits for everything queued. A kernel's fault is raised here, and the process cannot use the GPU again."""
        self.call("cuStreamSynchronize", self.queue)

    def module(self, image: str | bytes) -> c_void_p:
        """Loads PTX or a cubin. The error has the log of the driver's assembler."""
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
        """Unloads a module of `module`."""
        self.call("cuModuleUnload", module)

    def kernel(self, image: str | bytes | c_void_p, name: str = "kernel", shared: int = 0) -> c_void_p:
        """The kernel `name` of PTX, a cubin or a module; its launches may have `shared` bytes of dynamic memory."""
        function, module = c_void_p(), image if isinstance(image, c_void_p) else self.module(image)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        return function

    def launch(self, kernel: c_void_p, grid, block, args=(), cluster=None, shared: int = 0, pdl=False) -> Launch:
        """Prepares a launch; takes the arguments of Launch."""
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
        """Encodes a tiled tensor map of 128 bytes. dims, box: elements, innermost first; strides: bytes of dims[1:].

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
    """Return nvidia-smi's answer to a --query-gpu about the first GPU, as comma-separated values."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


# --------------------------------------------------------------------------------------------------------------- timing

SPIN = SM_90 + """.visible .entry kernel(.param .u64 ns)
{
  .reg .pred p; .reg .b64 limit, start, now;
  ld.param.u64 limit, [ns];
  mov.u64 start, %globaltimer;
AGAIN: mov.u64 now, %globaltimer; sub.u64 now, now, start; setp.lt.u64 p, now, limit; @p bra AGAIN;
  ret;
}
"""


class Timer:
    """Times launches as the grader does: a fill that replaces what the L2 holds, then all of them between two events.

    Launches that should not find their inputs in the L2 need inputs of their own. A spinning kernel is queued first, so
    that every launch is queued before the first can start; otherwise the host would be timed.
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
        """Queues the fill, which leaves the L2 full of lines that must be written back."""
        words = c_size_t(self.FILL_BYTES // 4)
        self.gpu.call("cuMemsetD32Async", c_uint64(self.room), c_uint(0x3C003C00), words, self.gpu.queue)

    def once(self, launches: Sequence[Launch], before: Iterable[Callable] | None = None) -> float:
        """Microseconds per launch. before: what is queued, untimed, in front of them; None means the fill."""
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
        """Microseconds per launch of `count` rounds, [count], after one that is discarded."""
        return np.array([self.once(launches, before) for _ in range(1 + count)][1:])

    def medians(
        self, contestants: dict[Hashable, Sequence[Launch]], repeats: int = 1, count: int = ROUNDS
    ) -> dict[Hashable, list[float]]:
        """Microseconds per launch by name: `repeats` medians of `count` rounds, each repeat in another random order."""
        found: dict[Hashable, list[float]] = {name: [] for name in contestants}
        for _ in range(repeats):
            for name in random.sample(list(contestants), len(contestants)):
                found[name].append(round(float(np.median(self.rounds(contestants[name], count))), 3))
        return found


# ------------------------------------------------------------------------------------------------------ child processes


def _work(connection, make: Callable, names: list[str]) -> None:
    """Runs a child process of `survey`: sends (machine, None), a (result, error) a name, and (machine, None) again.

    Without a GPU it sends (None, the NoGpu) only.
    """
    try:
        bench = make()
    except NoGpu as error:
        return connection.send((None, error))
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
    """Measures names one after the other in a child process, so that a kernel's fault or hang costs its name only.

    Returns results by name, errors by name, and what the first and the last child said of the machine. A kernel that
    faults, or is not done after `seconds`, takes its child down, and another child goes on with the other names.
    make(), in the child, returns an object with machine() -> dict and measure(name, result), which puts what it finds
    into the dict; what is there before an error is kept. Raises NoGpu if make() does.
    """
    results, errors, machine, names = {}, {}, [], list(names)
    while names:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=_work, args=(there, make, names))
        child.start()
        there.close()
        about, missing = here.recv()
        if missing:
            child.join()
            raise missing
        machine.append(about)
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
