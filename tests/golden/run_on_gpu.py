"""Runs every golden case on the GPU of this machine and writes what its memory held afterwards.

    cd tests && python3 -m golden.run_on_gpu [--only SUBSTRING] [--out golden/h200]

Needs python3, numpy and a CUDA driver (libcuda.so.1) that accepts PTX 8.8 for sm_90a; the driver assembles the PTX and
encodes the tensor maps. Each case runs twice, each time in a fresh module with fresh buffers,
  and must give the same bytes.
Cases run in a child process, which a faulting or hanging kernel takes down without the others. Writes OUT.npz (one
uint8 array "case/argument" per output and per tensor map, addresses cleared) and OUT.json (card, driver, date, command,
the driver's error for each case that must fault, digest of each case).
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import multiprocessing
import subprocess
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

import numpy as np

from .case import DTYPES, TENSORMAP_BYTES, Buffer, Case, TensorMap
from .cases import CASES

RUNS = 2
SECONDS_PER_CASE = 20
JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE = 5, 6
MAX_DYNAMIC_SHARED = 8
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union."""

    _fields_ = [("id", c_int), ("pad", c_uint32), ("value", c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


class Gpu:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = c_int()
        self.call("cuDeviceGet", byref(self.device), 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, function: str, *args) -> None:
        status = getattr(self.cuda, function)(*args)
        if status:
            name = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, byref(name))
            raise RuntimeError(f"{function}: {name.value.decode() if name.value else status}")

    def describe(self) -> dict[str, str]:
        name, version = ctypes.create_string_buffer(100), c_int()
        self.call("cuDeviceGetName", name, 100, self.device)
        self.call("cuDriverGetVersion", byref(version))
        capability = []
        for attribute in (75, 76):
            value = c_int()
            self.call("cuDeviceGetAttribute", byref(value), attribute, self.device)
            capability.append(str(value.value))
        return {
            "card": name.value.decode(),
            "compute capability": ".".join(capability),
            "CUDA driver API": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    def module(self, ptx: str) -> c_void_p:
        log = ctypes.create_string_buffer(8192)
        options = (c_int * 2)(JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), 8192)
        loaded = c_void_p()
        try:
            self.call("cuModuleLoadDataEx", byref(loaded), ptx.encode(), 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{log.value.decode()}") from None
        return loaded

    def encode(self, tmap: TensorMap, address: int) -> bytes:
        """The 128 bytes of a tensor map, from the driver or from explicit words."""
        if tmap.words:
            return np.array([address + tmap.offset, *tmap.words], np.uint64).tobytes()
        rank = len(tmap.dims)
        room = (c_char * (TENSORMAP_BYTES + 64))()
        at = -(-ctypes.addressof(room) // 64) * 64
        self.call(
            "cuTensorMapEncodeTiled",
            c_void_p(at),
            c_int(DTYPES[tmap.dtype][0]),
            c_uint32(rank),
            c_void_p(address + tmap.offset),
            (c_uint64 * rank)(*tmap.dims),
            (c_uint64 * max(rank - 1, 1))(*tmap.strides),
            (c_uint32 * rank)(*tmap.box),
            (c_uint32 * rank)(*(tmap.element_strides or (1,) * rank)),
            c_int(0),
            c_int(tmap.swizzle),
            c_int(tmap.promotion),
            c_int(tmap.nan_fill),
        )
        return ctypes.string_at(at, TENSORMAP_BYTES)

    def run(self, case: Case, result: dict[str, np.ndarray]) -> None:
        """Adds to `result`: the encoded tensor maps before the launch, the written buffers after it."""
        module = self.module(case.ptx)
        buffers = {}
        for i, arg in enumerate(case.args):
            if isinstance(arg, Buffer):
                buffers[i] = c_uint64()
                self.call("cuMemAlloc_v2", byref(buffers[i]), c_size_t(arg.data.nbytes))
                self.call("cuMemcpyHtoD_v2", buffers[i], arg.data.ctypes.data_as(c_void_p), c_size_t(arg.data.nbytes))
        storage = []
        for i, arg in enumerate(case.args):
            if isinstance(arg, TensorMap):
                encoded = self.encode(arg, buffers[arg.buffer].value)
                result[f"{case.name}/{i}"] = np.frombuffer(bytes(8) + encoded[8:], np.uint8)
                storage.append(ctypes.create_string_buffer(encoded, TENSORMAP_BYTES))
            else:
                storage.append(buffers[i] if i in buffers else c_uint64(arg & (1 << 64) - 1))
        pointers = (c_void_p * len(storage))(*[ctypes.addressof(s) for s in storage])
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)
        for position, name in enumerate(case.kernels):
            kernel = c_void_p()
            self.call("cuModuleGetFunction", byref(kernel), module, name.encode())
            self.call("cuFuncSetAttribute", kernel, MAX_DYNAMIC_SHARED, case.shared)
            attributes = []
            if case.cluster:
                attributes.append(Attribute(CLUSTER_DIMENSION, 0, (c_uint32 * 16)(*case.cluster)))
            if case.pdl and position:
                attributes.append(Attribute(PROGRAMMATIC_SERIALIZATION, 0, (c_uint32 * 16)(1)))
            array = (Attribute * max(len(attributes), 1))(*attributes)
            config = LaunchConfig(case.grid, case.block, case.shared, stream, array, len(attributes))
            self.call("cuLaunchKernelEx", byref(config), kernel, pointers, None)
        self.call("cuStreamSynchronize", stream)
        for i, arg in enumerate(case.args):
            if isinstance(arg, Buffer):
                after = np.empty_like(arg.data)
                self.call("cuMemcpyDtoH_v2", after.ctypes.data_as(c_void_p), buffers[i], c_size_t(after.nbytes))
                self.call("cuMemFree_v2", buffers[i])
                if arg.written:
                    result[f"{case.name}/{i}"] = after
                elif not np.array_equal(after, arg.data):
                    raise RuntimeError(f"argument {i} is an input and was written")
        self.call("cuStreamDestroy_v2", stream)
        self.call("cuModuleUnload", module)


def work(connection, names: list[str]) -> None:
    """Child process: one message per case, (result, error)."""
    gpu = Gpu()
    connection.send((gpu.describe(), None))
    by_name = {case.name: case for case in CASES}
    for name in names:
        result, again = {}, {}
        try:
            gpu.run(by_name[name], result)
            for _ in range(RUNS - 1):
                gpu.run(by_name[name], again)
                differing = [k for k in result if not np.array_equal(result[k], again[k])]
                if differing:
                    raise RuntimeError(f"two runs differ in {differing}")
            connection.send((result, None))
        except RuntimeError as error:
            connection.send((result, str(error)))
            return  # a failed launch may have spoilt the context: the parent starts another child


def run_all(names: list[str]) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, str]]:
    golden, failures, machine = {}, {}, {}
    while names:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=work, args=(there, names))
        child.start()
        there.close()
        machine, _ = here.recv()
        while names:
            name, result, error = names[0], {}, f"no answer within {SECONDS_PER_CASE} s"
            try:
                if here.poll(SECONDS_PER_CASE):
                    result, error = here.recv()
            except EOFError:
                error = "the process died"
            names = names[1:]
            golden.update(result)
            if error:
                failures[name] = error
                break
        child.kill()
        child.join()
    return golden, failures, machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--out", default="golden/h200", help="path of the results, without suffix")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in case.name]
    golden, failures, machine = run_all([case.name for case in chosen])
    refused = {case.name: failures.pop(case.name, None) for case in chosen if case.faults}
    failures |= {name: "ran to its end" for name, error in refused.items() if not error}
    passed = {case.name: case.digest for case in chosen if case.name not in failures}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    machine["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    record = {
        **machine,
        "date": datetime.date.today().isoformat(),
        "command": "cd tests && python3 -m golden.run_on_gpu",
        "runs per case": RUNS,
        "faults": refused,
        "cases": passed,
    }
    np.savez_compressed(options.out + ".npz", **golden)
    with open(options.out + ".json", "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    for name, error in failures.items():
        print(f"FAILED {name}: {error}")
    print(f"{len(passed)} cases recorded, {len(failures)} failed on {machine}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
