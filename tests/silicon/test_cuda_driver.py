"""silicon/cuda_driver.py without a GPU: what it hands to the driver, its timing protocol, its child processes."""

import ctypes
import os
import random
import struct
import time

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import B200, H200
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.formats import tensormap
from emulated_gpu.jit.llvm import compiler
from silicon import calibrate, cuda_driver
from silicon.cuda_driver import Gpu, Timer, survey
from silicon.golden import record
from silicon.golden.case import DTYPES
from silicon.golden.cases import CASES

NOT_READY, ILLEGAL_INSTRUCTION = 600, 715


class FakeCuda:
    """libcuda.so.1 whose GPU is the emulator; structures are read at the offsets that cuda.h gives them on x86-64."""

    def __init__(self):
        self.queued, self.memory, self.handles, self.attributes = [], {}, [None], []
        self.late = 0  # this many times the first event is over before the last launch is queued
        self.status = {}  # function: what it returns

    def __getattr__(self, name):
        if name not in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuFuncSetAttribute",
                        "cuStreamSynchronize", "cuModuleUnload"):  # fmt: skip
            raise AttributeError(name)
        return lambda *_: self.status.get(name, 0)

    def handle(self, pointer, thing):
        self.handles.append(thing)
        pointer._obj.value = len(self.handles) - 1
        return 0

    def cuStreamCreate(self, queue, flags):
        return self.handle(queue, "queue")

    def cuEventCreate(self, event, flags):
        return self.handle(event, "event")

    def cuGetErrorName(self, status, name):
        name._obj.value = {ILLEGAL_INSTRUCTION: b"CUDA_ERROR_ILLEGAL_INSTRUCTION"}.get(status)

    def cuDeviceGetAttribute(self, value, number, device):
        value._obj.value = {16: 3, 75: 10, 76: 0}[number]
        return 0

    def cuMemAlloc_v2(self, pointer, nbytes):
        array = allocate(min(nbytes.value, 1 << 20))
        DEVICE.adopt(array, "memory")
        self.memory[array.ctypes.data] = array
        pointer._obj.value = array.ctypes.data
        return 0

    def cuMemFree_v2(self, pointer):
        del self.memory[pointer.value]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to, host, nbytes, queue):
        ctypes.memmove(to.value, host, nbytes.value)
        return 0

    def cuMemcpyDtoHAsync_v2(self, host, address, nbytes, queue):
        ctypes.memmove(host, address.value, nbytes.value)
        return 0

    def cuMemsetD8Async(self, to, byte, nbytes, queue):
        ctypes.memset(to.value, byte.value, nbytes.value)
        return 0

    def cuMemsetD32Async(self, to, word, words, queue):
        self.queued.append("fill")
        return 0

    def cuTensorMapEncodeTiled(self, at, dtype, rank, address, dims, strides, box, steps, interleave, swizzle, l2, nan):
        assert at.value % 64 == 0 and interleave == 0 and len(dims) == len(box) == len(steps) == rank
        elem = next(name for name, (number, _) in DTYPES.items() if number == dtype)
        encoded = tensormap.encode(tensormap.TensorMap(
            address.value, elem, tuple(dims), tuple(strides)[: rank - 1], tuple(box), tuple(steps),
            (0, 32, 64, 128)[swizzle], oob_nan=bool(nan), l2_promotion=(0, 64, 128, 256)[l2],
        ))  # fmt: skip
        ctypes.memmove(at.value, encoded, len(encoded))
        return 0

    def cuModuleLoadDataEx(self, module, image, count, options, values):
        assert (count, list(options)) == (2, [5, 6])
        if b"bogus" in image:
            ctypes.memmove(values[0], b"line 1: bogus", 13)
            return ILLEGAL_INSTRUCTION
        return self.handle(module, image.decode())

    def cuModuleGetFunction(self, function, module, name):
        return self.handle(function, (self.handles[module.value], name.decode()))

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        raw = ctypes.string_at(ctypes.addressof(config._obj), 56)
        *sizes, shared, _, queue, attributes, count = struct.unpack("<7IIQQI4x", raw)
        assert self.handles[queue] == "queue"
        cluster, pdl = None, False
        for i in range(count):
            kind, *value = struct.unpack("<I4x3I52x", ctypes.string_at(attributes + 72 * i, 72))
            cluster, pdl = (tuple(value), pdl) if kind == 4 else (cluster, value[0] == 1 and kind == 6)
        ptx, name = self.handles[function.value]
        params = DEVICE.module(ptx).program(name).kernel.params
        args = [ctypes.string_at(pointer, p.size) for pointer, p in zip(arguments, params, strict=True)]
        self.queued.append((ptx, args))
        self.attributes.append((cluster, pdl))
        if ptx != cuda_driver.SPIN:
            grid, block = tuple(sizes[:3]), tuple(sizes[3:])
            emulated_gpu.launch(ptx, name, grid, block, args, cluster=cluster, shared=shared, pdl=pdl)
        return self.status.get("cuLaunchKernelEx", 0)

    def cuEventRecord(self, event, queue):
        self.queued.append(f"event {event.value}")
        return 0

    def cuEventQuery(self, event):
        self.late -= 1
        return 0 if self.late >= 0 else NOT_READY

    def cuEventElapsedTime(self, ms, start, end):
        assert start.value < end.value
        ms._obj.value = 0.006
        return 0


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    compiler()  # loads LLVM, which could not be found afterwards
    fake = FakeCuda()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"libcuda.so.1": fake}[name])
    monkeypatch.setattr(DEVICE, "chip", H200)
    return fake


def test_structures_are_those_of_cuda_h():
    """As NVIDIA's own bindings lay them out."""
    from cuda.bindings import driver

    config, theirs = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = 11, 12, 13
    config.blockDimX, config.blockDimY, config.blockDimZ = 21, 22, 23
    config.sharedMemBytes, config.hStream, config.numAttrs = 31, driver.CUstream(41), 0
    ours = cuda_driver.LaunchConfig((11, 12, 13), (21, 22, 23), 31, 41, None, 0)
    assert ctypes.sizeof(ours) == 56 and ctypes.string_at(config.getPtr(), 52) == bytes(ours)[:52]
    ids = driver.CUlaunchAttributeID
    theirs.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    theirs.value.clusterDim.x, theirs.value.clusterDim.y, theirs.value.clusterDim.z = 2, 3, 4
    attribute = cuda_driver.Attribute(cuda_driver.CLUSTER_DIMENSION, 0, (ctypes.c_uint32 * 16)(2, 3, 4))
    assert ctypes.string_at(theirs.getPtr(), 72) == bytes(attribute)
    assert cuda_driver.PROGRAMMATIC_SERIALIZATION == ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert cuda_driver.MAX_DYNAMIC_SHARED == limit and cuda_driver.NON_BLOCKING == driver.CUstream_flags(1)
    assert cuda_driver.MULTIPROCESSORS == driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


RECORDED = {
    "cluster_registers_222",
    "pdl_wait",  # two kernels, of which the second is a dependent launch
    "tma_load_rank2_oob_low",  # negative integers
    "tma_load_nan_fill_bf16",
    "tma_load_cute_f16",  # a tensor map of given words
}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in RECORDED], ids=lambda case: case.name)
def test_golden_cases_through_the_driver(cuda, case):
    """record.run_case finds on the emulator what the H200 left; the tensor maps but for the nibble of their version."""
    from tests.emulated_gpu.test_recordings import GOLDEN

    found = {}
    record.run_case(Gpu(), case, found)
    assert found and not cuda.memory
    assert cuda.attributes == [(case.cluster, case.pdl and i > 0) for i in range(len(case.kernels))]
    for key, array in found.items():
        index = int(key.rsplit("/", 1)[1])
        ours, theirs = (int.from_bytes(x.tobytes()[:64], "little") for x in (array, GOLDEN[key]))
        if isinstance(case.args[index], record.TensorMap):
            assert ours ^ theirs in (0, 2 << 64)
        else:
            assert np.array_equal(array, GOLDEN[key])


def test_errors_have_the_driver_s_name(cuda):
    gpu = Gpu()
    with pytest.raises(RuntimeError, match="cuModuleLoadDataEx: CUDA_ERROR_ILLEGAL_INSTRUCTION\nline 1: bogus"):
        gpu.module("bogus")
    launch = gpu.launch(gpu.kernel(cuda_driver.SPIN), 1, 1, [5])
    cuda.status = {"cuStreamSynchronize": ILLEGAL_INSTRUCTION, "cuLaunchKernelEx": 999}
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx: 999"):
        launch()
    with pytest.raises(RuntimeError, match="cuStreamSynchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION"):
        gpu.read(gpu.allocate(64), 64)


def test_a_machine_without_a_driver_says_so(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: cannot open")))
    with pytest.raises(RuntimeError, match="no NVIDIA driver: libcuda.so.1: cannot open"):
        Gpu()


EMPTY = ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u32 number) { ret; }"


@pytest.fixture
def launches(cuda):
    """(timer, two launches told apart by their argument)."""
    gpu = Gpu()
    kernel = gpu.kernel(EMPTY)
    return Timer(gpu), [gpu.launch(kernel, 1, 32, [number]) for number in (7, 8)]


def steps(cuda) -> list:
    """What was queued, a launch of EMPTY by its argument, the spinning kernel by its nanoseconds."""
    return [x if isinstance(x, str) else int.from_bytes(x[1][0], "little") for x in cuda.queued]


def test_one_timing(cuda, launches):
    timer, (a, b) = launches
    first, second = (f"event {event.value}" for event in timer.events)
    assert timer.once([a, b, a]) == pytest.approx(2.0)  # the fake's 6 us by 3
    assert steps(cuda) == [30_000, "fill", first, 7, 8, 7, second]
    cuda.queued.clear()
    timer.once([b], before=[timer.flush, a])
    assert steps(cuda) == [10_000, "fill", 7, first, 8, second]
    cuda.queued.clear()
    timer.once([b], before=())
    assert steps(cuda) == [10_000, first, 8, second]


def test_a_late_host_is_told_by_a_longer_spin(cuda, launches):
    timer, (a, _) = launches
    cuda.late = 2
    timer.once([a])
    assert [x for x in steps(cuda) if isinstance(x, int) and x > 100] == [10_000, 20_000, 40_000]
    cuda.late = 100
    with pytest.raises(RuntimeError, match="could start before the last one was queued"):
        timer.once([a])


def test_contestants_take_turns_in_random_order(cuda, launches, monkeypatch):
    timer, (a, b) = launches
    times = {7: iter(range(100)), 8: iter(range(100, 200))}
    order = []
    random.seed(0)

    def once(launches, before):
        number = launches[0].storage[0].raw[0]
        order.append(number)
        return float(next(times[number]))

    monkeypatch.setattr(timer, "once", once)
    found = timer.medians({"a": [a], "b": [b]}, repeats=8, count=3)
    # the first of four does not count
    assert found == {"a": [4 * i + 2.0 for i in range(8)], "b": [100 + 4 * i + 2.0 for i in range(8)]}
    turns = [tuple(order[i : i + 8]) for i in range(0, 64, 8)]
    assert set(turns) == {(7,) * 4 + (8,) * 4, (8,) * 4 + (7,) * 4}


@pytest.mark.thorough
def test_calibration_s_card(cuda):
    """calibrate.Gpu on the emulator: eight words, and microseconds of all launches."""
    card = calibrate.Gpu()
    with DEVICE.as_chip(B200):
        first, second, *rest = card.run(calibrate.first_use_probe())
        assert first > 0 and second > 0 and rest == [0] * 6
        cuda.queued.clear()
        assert card.series_us(calibrate.EMPTY, 5, pdl=True) == pytest.approx(6.0)
    assert len(cuda.queued) == (1 + calibrate.REPEATS) * (1 + 5 + 2) and "fill" not in cuda.queued


class Bench:
    """Names say what happens."""

    def __init__(self):
        self.seen = 0

    def machine(self):
        return {"process": os.getpid(), "seen": self.seen}

    def measure(self, name, result):
        self.seen += 1
        result["half"] = name
        if name.startswith("raises"):
            raise RuntimeError("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")
        if name.startswith("dies"):
            os._exit(1)
        if name.startswith("hangs"):
            time.sleep(600)
        result["whole"] = name


def test_survey_goes_on_after_what_takes_a_process_down():
    names = ["a", "raises", "b", "dies", "hangs", "c"]
    results, errors, (first, last) = survey(Bench, names, seconds=2)
    assert errors == {
        "raises": "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS",
        "dies": "the process died",
        "hangs": "no answer within 2 s",
    }
    whole = {name: {"half": name, "whole": name} for name in "abc"}
    assert results == whole | {"raises": {"half": "raises"}, "dies": {}, "hangs": {}} and list(results) == names
    assert first["seen"] == 0 and last["seen"] == 1 and first["process"] != last["process"] != os.getpid()
