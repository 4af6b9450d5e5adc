"""What CUDA C++ may expect of the emulated device: test_cuda_cpp.py runs this file on it and reads the output."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from check_scripts import run

import emulated_gpu
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import EmulatorError
from emulated_gpu.serve.cuda_cpp import runtime, toolkit

SOURCE = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <cassert>
#include <cstdio>
#include <cstring>
extern "C" {  // cuda_profiler_api.h, which pip's packages do not have
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
}
__constant__ float weights[2];
__global__ void through(cudaTextureObject_t t, cudaSurfaceObject_t s) {
  surf2Dwrite(tex2D<float>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f) * 2, s, threadIdx.x * 4, blockIdx.x);
}
__device__ int calls;
__global__ void scale(const float *x, float *y) {
  __shared__ float s[32];
  s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = s[31 - threadIdx.x] * weights[1];
  if (threadIdx.x == 0) atomicAdd(&calls, 1);
}
__global__ void past_the_end(float *x) { x[64 + threadIdx.x] = 1; }
__global__ void rank(int *out) {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  if (threadIdx.x == 0) out[blockIdx.x] = r;
}
__global__ void large(int *out) {
  extern __shared__ int s[];
  s[15000 + threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[15031 - threadIdx.x];
}
#define TRY(call) do { cudaError_t e = call; if (e != cudaSuccess) return e; } while (0)
extern "C" {
int run(const float *x, float *y) {  // host memory
  float w[2] = {0, 3}, *dx, *dy;
  TRY(cudaMalloc(&dx, 256));
  TRY(cudaMalloc(&dy, 256));
  TRY(cudaMemcpyToSymbol(weights, w, sizeof w));
  TRY(cudaMemcpy(dx, x, 256, cudaMemcpyHostToDevice));
  scale<<<2, 32>>>(dx, dy);
  TRY(cudaGetLastError());
  TRY(cudaDeviceSynchronize());
  TRY(cudaMemcpy(y, dy, 256, cudaMemcpyDeviceToHost));
  TRY(cudaFree(dx));
  return cudaFree(dy);
}
int counted(int *n) { return cudaMemcpyFromSymbol(n, calls, 4); }
int wrong(float *x) {
  past_the_end<<<1, 32>>>(x);
  return cudaGetLastError();
}
int in_clusters(int *out) {
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 4, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = 8, config.blockDim = 32, config.attrs = &cluster, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, rank, out);
}
int with_shared(int *out, int allowed) {
  if (allowed) TRY(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed));
  large<<<1, 32, 61440>>>(out);
  return cudaGetLastError();
}
int sms() {
  cudaDeviceProp p;
  if (cudaGetDeviceProperties(&p, 0) || !p.cooperativeLaunch || !p.canMapHostMemory || !p.managedMemory ||
      !p.memoryPoolsSupported || !p.hostRegisterSupported) return -1;
  return p.multiProcessorCount;
}
__global__ void twice(int *x) {
  assert(threadIdx.x < 3);
  x[threadIdx.x] *= 2;
}
int asserts(int *x, int threads, char *name) {
  twice<<<1, threads>>>(x);
  std::strcpy(name, cudaGetErrorName(cudaGetLastError()));
  return cudaDeviceSynchronize();
}
void CUDART_CB note(cudaStream_t, cudaError_t status, void *data) { *(int *)data += status == cudaSuccess ? 7 : 100; }
int rows(int *sum, size_t *pitch) {  // what programs do beside launches
  int *x, host[3] = {1, 2, 3};
  TRY(cudaProfilerStart());
  TRY(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
  TRY(cudaMallocPitch(&x, pitch, 600, 3));
  TRY(cudaMemset2D(x, *pitch, 1, 600, 3));
  TRY(cudaMemcpy2D(host, 4, (char *)x + 596, *pitch, 4, 3, cudaMemcpyDeviceToHost));
  *sum = host[0] & host[1] & host[2];
  TRY(cudaStreamAddCallback(0, note, sum, 0));
  return cudaProfilerStop();
}
int encode(void *at, void *map) {
  void *f = nullptr;
  cudaDriverEntryPointQueryResult found;
  TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
  cuuint64_t dims[2] = {64, 32}, strides[1] = {128};
  cuuint32_t box[2] = {64, 8}, steps[2] = {1, 1};
  return ((decltype(&cuTensorMapEncodeTiled))f)((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, at, dims,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
struct Images {  // 8 x 4 floats that a texture reads, and as many of a surface
  cudaArray_t in = nullptr, out = nullptr;
  cudaTextureObject_t texture = 0;
  cudaSurfaceObject_t surface = 0;
  int wrong = 0;
  explicit Images(const float *from) {
    auto floats = cudaCreateChannelDesc<float>();
    wrong |= cudaMallocArray(&in, &floats, 8, 4);
    wrong |= cudaMalloc3DArray(&out, &floats, {8, 4, 0}, cudaArraySurfaceLoadStore);
    wrong |= cudaMemcpy2DToArray(in, 0, 0, from, 32, 32, 4, cudaMemcpyHostToDevice);
    cudaResourceDesc resource = {};
    cudaTextureDesc how = {};
    resource.res.array.array = in;
    wrong |= cudaCreateTextureObject(&texture, &resource, &how, nullptr);
    resource.res.array.array = out;
    wrong |= cudaCreateSurfaceObject(&surface, &resource);
  }
};
int images(const float *from, float *to) {
  Images all(from);
  through<<<4, 8>>>(all.texture, all.surface);
  cudaMemcpy3DParms p = {};
  p.srcArray = all.out, p.dstPtr = {to, 32, 8, 4}, p.extent = {8, 4, 1}, p.kind = cudaMemcpyDeviceToHost;
  int wrong = all.wrong | cudaMemcpy3D(&p);
  cudaChannelFormatDesc desc;
  cudaExtent extent;
  wrong |= cudaArrayGetInfo(&desc, &extent, nullptr, all.in) | desc.x != 32 | desc.y != 0 | extent.height != 4;
  wrong |= cudaMemcpy2DToArray(all.in, 4, 0, from, 32, 32, 4, cudaMemcpyHostToDevice) != cudaErrorInvalidValue;
  wrong |= cudaDestroyTextureObject(all.texture) | cudaDestroySurfaceObject(all.surface) | cudaFreeArray(all.in);
  return wrong | cudaFreeArray(all.out);
}
int freed_image(const float *from) {
  Images all(from);
  int wrong = all.wrong | cudaFreeArray(all.in);
  through<<<4, 8>>>(all.texture, all.surface);
  return wrong | cudaDeviceSynchronize();
}
int not_served() { return cudaIpcCloseMemHandle(nullptr); }
int conditional() { return cudaGraphConditionalHandleCreate(nullptr, nullptr); }
}
"""


def build() -> ctypes.CDLL:
    """Compile SOURCE as nvcc is called by torch, and link it to the stand-in."""
    runtime.load()
    where = toolkit.libraries()[0].parent
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "checks.cu").write_text(SOURCE)
        command = f"{toolkit.compiler()} -gencode arch=compute_100a,code=sm_100a -shared -Xcompiler -fPIC -cudart none"
        command += f" -L{where} -lcudart -lcuda -Xlinker -rpath={where} checks.cu -o checks.so"
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(Path(folder, "checks.so")))


LIBRARY = build()


def finding(call) -> str:
    """Return what is found in a call, which must fail."""
    try:
        with emulated_gpu.session():
            assert call() != 0
    except EmulatorError as error:
        return str(error)
    raise AssertionError("a finding expected")


def check_memory_symbols_and_a_launch():
    x, y = torch.arange(64.0), torch.zeros(64)
    assert LIBRARY.run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())) == 0
    assert torch.equal(y, x.view(2, 32).flip(1).flatten() * 3)
    n = ctypes.c_int()
    assert LIBRARY.counted(ctypes.byref(n)) == 0 and n.value == 2


def check_a_fault_names_its_line():
    x = torch.zeros(64, device="cuda")
    text = finding(lambda: LIBRARY.wrong(ctypes.c_void_p(x.data_ptr())))
    line = next(i for i, text in enumerate(SOURCE.splitlines(), 1) if "past_the_end(float" in text)
    assert "out-of-bounds" in text and f"checks.cu:{line}" in text, text
    assert not x.any()


def check_an_assertion_has_an_error_of_its_own():
    x, name = torch.ones(4, dtype=torch.int32, device="cuda"), ctypes.create_string_buffer(40)
    assert LIBRARY.asserts(ctypes.c_void_p(x.data_ptr()), 3, name) == 0 and name.value == b"cudaSuccess"
    assert x.tolist() == [2, 2, 2, 1]
    assert "threadIdx.x < 3" in finding(lambda: LIBRARY.asserts(ctypes.c_void_p(x.data_ptr()), 4, name))
    assert name.value == b"cudaErrorAssert"


def check_rows_callbacks_and_limits():
    total, pitch = ctypes.c_int(), ctypes.c_size_t()
    assert LIBRARY.rows(ctypes.byref(total), ctypes.byref(pitch)) == 0
    assert (total.value, pitch.value) == (0x01010101 + 7, 1024)


def check_clusters():
    out = torch.zeros(8, dtype=torch.int32, device="cuda")
    assert LIBRARY.in_clusters(ctypes.c_void_p(out.data_ptr())) == 0
    assert out.tolist() == [0, 1, 2, 3] * 2


def check_large_shared_memory_must_be_allowed():
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    at = ctypes.c_void_p(out.data_ptr())
    assert "cudaFuncAttributeMaxDynamicSharedMemorySize" in finding(lambda: LIBRARY.with_shared(at, 0))
    assert "which has allowed 60000" in finding(lambda: LIBRARY.with_shared(at, 60000))
    assert LIBRARY.with_shared(at, 61440) == 0 and out.tolist() == list(range(31, -1, -1))


def check_the_device():
    assert LIBRARY.sms() == 148


def check_a_tensor_map_by_the_driver_entry_point():
    from emulated_gpu.formats.tensormap import decode

    x, words = torch.zeros(32, 64, dtype=torch.half, device="cuda"), (ctypes.c_uint8 * 128)()
    assert LIBRARY.encode(ctypes.c_void_p(x.data_ptr()), words) == 0
    assert decode(bytes(words)).box == (64, 8)


def check_images():
    x, y = torch.arange(32.0), torch.zeros(32)
    assert LIBRARY.images(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())) == 0
    assert torch.equal(y, 2 * x)
    found = finding(lambda: LIBRARY.freed_image(ctypes.c_void_p(x.data_ptr())))
    assert "read of 4 bytes at byte 0 of a CUDA array of 8 x 4 texels" in found and "cudaFreeArray" in found, found


def check_what_is_not_served_is_named():
    assert "cudaIpcCloseMemHandle on the emulated device" in finding(LIBRARY.not_served)
    assert "HandleCreate on the emulated device, which has no conditional nodes" in finding(LIBRARY.conditional)


STATIC = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
__device__ float factor = 3;
__global__ void scale(float *x) { x[threadIdx.x] *= factor; }
#define TRY(call) do { int e = call; if (e) return e; } while (0)
extern "C" {
int run(float *host) {
  float *x;
  cudaPointerAttributes p;
  cudaFuncAttributes f;
  TRY(cudaMalloc(&x, 128));
  TRY(cudaMemcpy(x, host, 128, cudaMemcpyHostToDevice));
  scale<<<1, 32>>>(x);
  TRY(cudaMemcpy(host, x, 128, cudaMemcpyDeviceToHost));
  TRY(cudaPointerGetAttributes(&p, x));
  if (p.type != cudaMemoryTypeDevice || p.devicePointer != x) return -1;
  TRY(cudaFuncGetAttributes(&f, scale));
  return f.maxThreadsPerBlock == 1024 ? cudaFree(x) : -2;
}
int by_the_driver(const char *ptx, void *x) {  // as programs that link nothing of CUDA find it
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  auto find = (decltype(&cuGetProcAddress))dlsym(library, "cuGetProcAddress_v2");
#define DRIVER(name) \
  decltype(&name) name##_; \
  TRY(find(#name, (void **)&name##_, CUDA_VERSION, 0, nullptr))
  DRIVER(cuModuleLoadData);
  DRIVER(cuModuleGetFunction);
  DRIVER(cuLaunchKernel);
  CUmodule module;
  CUfunction function;
  CUdeviceptr given = (CUdeviceptr)x;
  void *arguments[] = {&given};
  TRY(cuModuleLoadData_(&module, ptx));
  TRY(cuModuleGetFunction_(&function, module, "one"));
  return cuLaunchKernel_(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
}
int not_served() { return cudaFreeMipmappedArray(nullptr); }
int not_served_by_the_driver() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return ((decltype(&cuMipmappedArrayDestroy))dlsym(library, "cuMipmappedArrayDestroy"))(nullptr);
}
}
"""
ONE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry one(.param .u64 x) {
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [x];
  st.global.f32 [%rd1], 0f3F800000;
  ret;
}
"""


def check_a_library_with_the_runtime_inside():
    """nvcc's default: cudart static, PTX compressed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "static.cu").write_text(STATIC)
        home = toolkit.find().home
        command = [home / "bin" / "nvcc", *"-shared -Xcompiler -fPIC -gencode arch=compute_90,code=compute_90".split()]
        command += [f"-L{home / 'lib'}", "static.cu", "-o", "static.so"]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(Path(folder, "static.so")))
    x = torch.arange(32.0)
    assert library.run(ctypes.c_void_p(x.data_ptr())) == 0 and torch.equal(x, torch.arange(32.0) * 3)
    x = torch.zeros(1, device="cuda")
    assert library.by_the_driver(ONE.encode(), ctypes.c_void_p(x.data_ptr())) == 0 and x.item() == 1
    assert "cudaFreeMipmappedArray on the emulated device, which has no mipmapped arrays" in finding(library.not_served)
    assert "cuMipmappedArrayDestroy on the emulated device" in finding(library.not_served_by_the_driver)


def check_operators_of_tensors_in_cpp():
    """As the C++ API calls them: no Python of the emulator between."""
    torch.ops.load_library(str(toolkit.libraries()[1]))
    x = torch.arange(6.0).cuda()
    with torch._C.DisableTorchFunction():
        y = torch.ops.aten.mul.Tensor(x, x)
        assert y.device.type == "cuda" and y.is_cuda and y.data_ptr() != x.data_ptr()
        view = torch.ops.aten.view(y, [2, 3])
        assert view.data_ptr() == y.data_ptr() and view.is_cuda
        assert torch.ops.aten.add_.Tensor(view, 1) is view and torch.ops.aten.sum(y).item() == 61
        both = torch.ops.aten.cat([y, x])
        new = torch.ops.aten.empty.memory_format([4], dtype=torch.half, device=torch.device("cuda"))
        like = torch.ops.aten.zeros_like(both)
        for t in (both, new, like):
            assert t.is_cuda and DEVICE.memory.covers(t.data_ptr(), t.nbytes), t.data_ptr()
        indexed = torch.ops.aten.index.Tensor(x, [torch.ops.aten._to_copy(x, dtype=torch.long)])
        assert indexed.is_cuda and torch.ops.aten.equal(indexed, x)
        host = torch.ops.aten._to_copy(both, device=torch.device("cpu"))
        assert not host.is_cuda and host.tolist() == [1, 2, 5, 10, 17, 26, 0, 1, 2, 3, 4, 5]
        assert torch.ops.aten._to_copy(both, dtype=torch.half).is_cuda


if __name__ == "__main__":
    run(globals())
