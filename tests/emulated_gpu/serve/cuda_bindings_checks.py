"""Modules and launches by `cuda.bindings` and NVRTC: test_cuda_bindings.py runs this on the emulator."""

import ctypes
import sys
import types

import numpy as np
import torch
from check_scripts import raises, run
from cuda.bindings import driver, nvrtc, runtime

from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault, Unsupported, WrongCall
from emulated_gpu.formats.tensormap import decode
from emulated_gpu.serve.cuda_cpp import libcuda
from emulated_gpu.serve.driver import c_driver, cuda_bindings

SOURCE = b"""
__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void scale(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] * table[0];
}
extern "C" __global__ void turn(float *y) {
  extern __shared__ float s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""
TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
x = torch.arange(100.0, device="cuda")


def ok(result):
    """What a call gave, or what of it there is."""
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


def compiled(what: str, option: bytes) -> bytes:
    program = ok(nvrtc.nvrtcCreateProgram(SOURCE, b"source.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    data = bytearray(ok(getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    ok(getattr(nvrtc, f"nvrtcGet{what}")(program, data))
    return bytes(data)


ptx = compiled("PTX", b"-arch=compute_100a")
module = ok(driver.cuModuleLoadData(ptx))
scale, turn = (ok(driver.cuModuleGetFunction(module, name)) for name in (b"scale", b"turn"))


def launch(function, parameters, extra=0, shared=0, blocks=4):
    return driver.cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, shared, 0, parameters, extra)


def check_parameters_in_every_form():
    y = torch.zeros_like(x)
    ok(launch(scale, ((x.data_ptr(), y.data_ptr(), 2.0, 100), TYPES)))
    assert torch.equal(y, 2 * x)
    values = [np.array(v, t) for v, t in zip((x.data_ptr(), y.data_ptr(), 3.0, 100), ("u8", "u8", "f4", "i4"))]
    pointers = np.array([v.ctypes.data for v in values], "u8")
    for form in (pointers, pointers.ctypes.data):
        y.zero_()
        ok(launch(scale, form))
        assert torch.equal(y, 3 * x)
    block = b"".join(v.tobytes() for v in values)
    held, size = ctypes.create_string_buffer(block), ctypes.c_size_t(len(block))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(held), 2, ctypes.addressof(size), 0)
    y.zero_()
    ok(launch(scale, 0, ctypes.addressof(extra)))
    assert torch.equal(y, 3 * x)
    raises(Unsupported, "takes 4 parameters, 1 are given", lambda: launch(scale, ((1,), (ctypes.c_int,))))


def check_a_cubin_of_nvrtcs_runs_by_its_ptx():
    cubin = compiled("CUBIN", b"-arch=sm_100a")
    library = ok(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
    assert ok(driver.cuLibraryGetKernelCount(library)) == 2
    y = torch.zeros_like(x)
    ok(launch(ok(driver.cuLibraryGetKernel(library, b"scale")), ((x.data_ptr(), y.data_ptr(), 4.0, 100), TYPES)))
    assert torch.equal(y, 4 * x)
    unknown = bytes([*cubin[:-1], cubin[-1] ^ 1])
    kernel = ok(driver.cuLibraryGetKernel(ok(driver.cuLibraryLoadData(unknown, [], [], 0, [], [], 0)), b"scale"))
    raises(Unsupported, "machine code whose PTX is not known", lambda: launch(kernel, 0))


def check_code_of_another_machine_is_raises():
    raises(Fault, "compiled for sm_90a, not for sm_100a",
            lambda: driver.cuModuleLoadData(ptx.replace(b"sm_100a", b"sm_90a")))  # fmt: skip


def check_variables_have_addresses():
    address, size = ok(driver.cuModuleGetGlobal(module, b"table"))
    values = np.zeros(4, np.float32)
    ok(driver.cuMemcpyDtoH(values, address, size))
    assert size == 16 and values.tolist() == [1, 2, 3, 4]
    raises(WrongCall, "no variable chair in this module; it has table",
            lambda: driver.cuModuleGetGlobal(module, b"chair"))  # fmt: skip


def check_shared_memory_above_48_kib_is_asked_for():
    y = torch.zeros_like(x)
    arguments = ((y.data_ptr(),), (ctypes.c_void_p,))
    raises(Fault, "needs cuFuncSetAttribute", lambda: launch(turn, arguments, shared=60_000, blocks=1))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(turn, attribute, 60_000))
    ok(launch(turn, arguments, shared=60_000, blocks=1))
    assert y[:3].tolist() == [31, 30, 29]


def check_the_version_of_a_function_is_that_of_its_ptx():
    """CUB chooses by it among the policies that it was compiled for."""
    older = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx.replace(b"sm_100a", b"sm_90"))), b"turn"))
    of = driver.CUfunction_attribute
    versions = of.CU_FUNC_ATTRIBUTE_PTX_VERSION, of.CU_FUNC_ATTRIBUTE_BINARY_VERSION
    assert [ok(driver.cuFuncGetAttribute(number, older)) for number in versions] == [90, 100]


def check_attributes_of_a_launch_are_read():
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 3, 1, 1
    config.attrs, config.numAttrs = [cluster], 1
    y = torch.zeros_like(x)
    arguments = ((x.data_ptr(), y.data_ptr(), 5.0, 100), TYPES)
    raises(Fault, "is not a multiple of the cluster", lambda: driver.cuLaunchKernelEx(config, scale, arguments, 0))
    DEVICE.session.failure = None
    cluster.value.clusterDim.x = 2
    config.attrs = [cluster]
    ok(driver.cuLaunchKernelEx(config, scale, arguments, 0))
    assert torch.equal(y, 5 * x)


def check_a_tensor_map_is_the_drivers():
    kinds = driver.CUtensorMapDataType, driver.CUtensorMapInterleave, driver.CUtensorMapSwizzle
    tensor_map = ok(driver.cuTensorMapEncodeTiled(
        kinds[0].CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x.data_ptr(), [16, 4], [64], [16, 4], [1, 1],
        kinds[1].CU_TENSOR_MAP_INTERLEAVE_NONE, kinds[2].CU_TENSOR_MAP_SWIZZLE_64B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    ))  # fmt: skip
    assert ctypes.c_uint64.from_address(tensor_map.getPtr()).value == x.data_ptr()
    image = torch.zeros(2, 4, 4, 8, device="cuda")
    column = ok(driver.cuTensorMapEncodeIm2col(
        kinds[0].CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, image.data_ptr(), [8, 4, 4, 2], [32, 128, 512], [-1, -1], [0, 1],
        8, 16, [1, 2, 1, 1], kinds[1].CU_TENSOR_MAP_INTERLEAVE_NONE, kinds[2].CU_TENSOR_MAP_SWIZZLE_32B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    ))  # fmt: skip
    found = decode(ctypes.string_at(column.getPtr(), 128))
    assert found.lower == (-1, -1) and found.upper == (0, 1) and found.box == (8, 16) and found.steps == (1, 2, 1, 1)


def check_what_is_not_served_is_refused_by_name():
    raises(Unsupported, "cuda.bindings.driver.cuLinkCreate", lambda: driver.cuLinkCreate(0, [], []))
    raises(Unsupported, "cuda.bindings.runtime.cudaGraphClone", lambda: runtime.cudaGraphClone(0))


def check_cuda_core_compiles_and_launches():
    from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch
    from cuda.core import LegacyPinnedMemoryResource as Pinned

    device = Device(0)
    device.set_current()
    assert device.name == DEVICE.chip.name and device.arch == "100" and device.properties.multiprocessor_count == 148
    queue, options = device.create_stream(), ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    code = "template<class T> __global__ void add(const T *a, const T *b, T *c, size_t n) {" \
           "  size_t i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"  # fmt: skip
    kernel = Program(code, "c++", options).compile("cubin", name_expressions=["add<float>"]).get_kernel("add<float>")
    host = Pinned().allocate(400)
    numbers = np.from_dlpack(host).view(np.float32)
    numbers[:] = np.arange(100)
    a, b, c = (device.allocate(400, stream=queue) for _ in range(3))
    a.copy_from(host, stream=queue), b.copy_from(host, stream=queue)
    launch(queue, LaunchConfig(grid=4, block=32, cluster=2), kernel, a, b, c, np.uint64(100))
    c.copy_to(host, stream=queue)
    queue.record(device.create_event(EventOptions(timing_enabled=True))).sync()
    assert (numbers == 2 * np.arange(100)).all() and kernel.attributes.num_regs > 0
    c.close()
    assert kernel.num_arguments == 4
    config = LaunchConfig(grid=1, block=32)
    raises(Exception, "CUDA_ERROR_NOT_SUPPORTED", lambda: (
        kernel.occupancy.max_potential_cluster_size(config, stream=queue)
    ))  # fmt: skip
    assert "cuOccupancyMaxPotentialClusterSize() of compiled code" in str(DEVICE.session.failure)
    DEVICE.session.failure = None
    outside = x.new_zeros(100)
    raises(Exception, "CUDA_ERROR_ILLEGAL_ADDRESS", lambda: launch(
        queue, LaunchConfig(grid=5, block=32), kernel, a, b, outside.data_ptr(), np.uint64(160)
    ))  # fmt: skip
    assert DEVICE.session.failure.kind == "out-of-bounds"


def check_ptx_is_linked_by_the_driver():
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options, code = LinkerOptions(arch="sm_100"), ObjectCode.from_ptx(ptx)
    assert Linker(code, options=options).link("cubin").get_kernel("scale").attributes.max_threads_per_block == 1024
    raises(Exception, "CUDA_ERROR_INVALID_PTX", lambda: Linker(code, code, options=options).link("cubin"))


def check_pointers_say_whose_they_are():
    def said(address: int) -> tuple[int, int]:
        kind, device = ctypes.c_int(-1), ctypes.c_int(-1)
        places = (ctypes.c_void_p * 2)(*map(ctypes.addressof, (kind, device)))
        numbers = (ctypes.c_int * 2)(2, 9)
        c_driver.pointer_attributes(2, ctypes.addressof(numbers), ctypes.addressof(places), address)
        return kind.value, device.value

    assert said(x.data_ptr() + 4) == (2, 0) and said(cuda_bindings.allocate_pinned(8)) == (1, 0)
    assert said(ctypes.addressof(ctypes.c_int(0))) == (0, 0)


def check_libraries_of_machine_code_are_refused_by_name():
    from cuda.pathfinder import load_nvidia_dynamic_lib as load

    raises(RuntimeError, "libcublasLt is not served on the emulated device", lambda: load("cublasLt"))


def check_cupy_without_nvcc_is_refused_by_name():
    cupy = types.ModuleType("cupy")
    cupy.RawKernel, cupy.ndarray = object, list
    sys.modules["cupy"] = cupy
    libcuda.forbid_cupy("CUDA C++ needs nvcc")
    assert not isinstance(1, cupy.ndarray)  # what packages ask that use CuPy's arrays, too
    raises(Unsupported, "cupy.RawKernel on the emulated device: CUDA C++ needs nvcc", lambda: cupy.RawKernel)


run(globals())
DEVICE.session.findings.clear()  # those that the checks have made
