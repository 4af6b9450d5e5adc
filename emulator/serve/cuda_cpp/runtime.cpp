// Stands in for libcudart and libcuda. What they do with the device is done by the emulator, in Python, by the calls of
// `Emulator`; functions that are not here are refused by name (refused.cpp, made from CUDA's own headers).

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Emulator {  // as `SIGNATURES` in runtime.py has them, in this order; each returns a cudaError_t
  int (*refuse)(const char *name);
  int (*register_module)(const void *fatbin, uint64_t handle);
  int (*register_kernel)(uint64_t handle, const void *host, const char *name);
  int (*register_variable)(uint64_t handle, const void *host, const char *name, uint64_t size);
  int (*launch)(const void *host, const unsigned *grid, const unsigned *block, void **args, uint64_t shared,
                const void *attributes, unsigned count);
  int (*set_shared)(const void *host, int bytes);
  int (*occupancy)(int *ctas, const void *host, int threads, uint64_t shared);
  int (*clusters)(int *clusters, const void *attributes, unsigned count);
  int (*symbol)(void **address, uint64_t *size, const void *host);
  int (*allocate)(void **address, uint64_t size);
  int (*release)(void *address);
  int (*copy)(void *to, const void *from, uint64_t size);
  int (*fill)(void *to, int value, uint64_t size);
  int (*attribute)(int *value, int number);
  int (*properties)(char *name, uint64_t size, uint64_t *memory);
  int (*encode)(void *map, unsigned type, unsigned rank, void *address, const void *dims, const void *strides,
                const void *box, const void *steps, unsigned interleave, unsigned swizzle, unsigned l2, unsigned fill);
  int (*synchronize)();
  int (*record)(uint64_t event);
  int (*elapsed)(float *ms, uint64_t start, uint64_t end);
};

static Emulator emulator;
static uint64_t handles;
static thread_local cudaError_t last = cudaSuccess;

static cudaError_t kept(int status) {
  if (status) last = cudaError_t(status);
  return cudaError_t(status);
}

extern "C" {

void emulator_set(const Emulator *calls) { emulator = *calls; }
int emulator_refuse(const char *name) { return kept(emulator.refuse(name)); }

// ---- what the host code that nvcc generates calls

void **__cudaRegisterFatBinary(void *fatbin) {
  auto handle = new uint64_t(++handles);
  emulator.register_module(fatbin, *handle);
  return reinterpret_cast<void **>(handle);
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
  emulator.register_kernel(*reinterpret_cast<uint64_t *>(handle), host, name);
}
void __cudaRegisterVar(void **handle, char *host, char *, const char *name, int, size_t size, int, int) {
  emulator.register_variable(*reinterpret_cast<uint64_t *>(handle), host, name, size);
}

static thread_local struct { dim3 grid, block; size_t shared; cudaStream_t queue; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t queue) {
  pushed = {grid, block, shared, queue};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *queue) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
  *static_cast<cudaStream_t *>(queue) = pushed.queue;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void *>(host));
  return cudaSuccess;
}
static cudaError_t launch(const void *host, dim3 grid, dim3 block, void **args, size_t shared) {
  return kept(emulator.launch(host, &grid.x, &block.x, args, shared, nullptr, 0));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t) {
  return launch(kernel, grid, block, args, shared);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                    cudaStream_t) {
  return launch(kernel, grid, block, args, shared);
}

// ---- launches

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t) {
  return launch(host, grid, block, args, shared);
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t) {
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  return kept(emulator.launch(host, &grid.x, &block.x, args, shared, &cooperative, 1));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
  return kept(emulator.launch(host, &c->gridDim.x, &c->blockDim.x, args, c->dynamicSmemBytes, c->attrs, c->numAttrs));
}
cudaError_t cudaFuncSetAttribute(const void *host, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) return kept(emulator.set_shared(host, value));
  return cudaSuccess;  // carve-outs and non-portable cluster sizes change no result
}
cudaError_t cudaFuncSetCacheConfig(const void *, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *ctas, const void *host, int threads,
                                                                   size_t shared, unsigned) {
  return kept(emulator.occupancy(ctas, host, threads, shared));
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *ctas, const void *host, int threads, size_t shared) {
  return kept(emulator.occupancy(ctas, host, threads, shared));
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *, const cudaLaunchConfig_t *c) {
  return kept(emulator.clusters(clusters, c->attrs, c->numAttrs));
}

// ---- memory: all of it is the host's, too

cudaError_t cudaMalloc(void **address, size_t size) { return kept(emulator.allocate(address, size)); }
cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t) { return kept(emulator.allocate(address, size)); }
cudaError_t cudaMallocManaged(void **address, size_t size, unsigned) { return kept(emulator.allocate(address, size)); }
cudaError_t cudaFree(void *address) { return address ? kept(emulator.release(address)) : cudaSuccess; }
cudaError_t cudaFreeAsync(void *address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaMallocHost(void **address, size_t size) {
  *address = std::malloc(size);
  return *address ? cudaSuccess : kept(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void **address, size_t size, unsigned) { return cudaMallocHost(address, size); }
cudaError_t cudaFreeHost(void *address) { return std::free(address), cudaSuccess; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
  return kept(emulator.copy(to, from, size));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t) {
  return kept(emulator.copy(to, from, size));
}
cudaError_t cudaMemset(void *to, int value, size_t size) { return kept(emulator.fill(to, value, size)); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t) { return cudaMemset(to, value, size); }
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  uint64_t size;
  return kept(emulator.symbol(address, &size, symbol));
}
cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
  void *address;
  return kept(emulator.symbol(&address, size, symbol));
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t count, size_t offset, cudaMemcpyKind) {
  void *to;
  cudaError_t status = cudaGetSymbolAddress(&to, symbol);
  return status ? status : kept(emulator.copy(static_cast<char *>(to) + offset, from, count));
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, count, offset, kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t count, size_t offset, cudaMemcpyKind) {
  void *from;
  cudaError_t status = cudaGetSymbolAddress(&from, symbol);
  return status ? status : kept(emulator.copy(to, static_cast<char *>(from) + offset, count));
}

// ---- errors

cudaError_t cudaGetLastError() {
  cudaError_t status = last;
  last = cudaSuccess;
  return status;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char *cudaGetErrorString(cudaError_t status) {
  return status ? "the emulated device failed: the finding says why" : "no error";
}
const char *cudaGetErrorName(cudaError_t status) {
  if (status == cudaErrorNotSupported) return "cudaErrorNotSupported";
  return status ? "cudaErrorLaunchFailure" : "cudaSuccess";
}

// ---- streams and events: a launch runs to its end inside the call that makes it

cudaError_t cudaDeviceSynchronize() { return kept(emulator.synchronize()); }
cudaError_t cudaStreamCreate(cudaStream_t *queue) { return *queue = cudaStream_t(++handles), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *queue, unsigned) { return cudaStreamCreate(queue); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *queue, unsigned, int) { return cudaStreamCreate(queue); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return kept(emulator.synchronize()); }
cudaError_t cudaStreamQuery(cudaStream_t) { return kept(emulator.synchronize()); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = cudaEvent_t(++handles), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return kept(emulator.record(uint64_t(event))); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return kept(emulator.synchronize()); }
cudaError_t cudaEventQuery(cudaEvent_t) { return kept(emulator.synchronize()); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return kept(emulator.elapsed(ms, uint64_t(start), uint64_t(end)));
}

// ---- the device

cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? kept(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  return kept(emulator.attribute(value, attribute));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
  std::memset(p, 0, sizeof *p);
  uint64_t memory = 0;
  int status = emulator.properties(p->name, sizeof p->name, &memory);
  p->totalGlobalMem = memory;
  auto get = [&](int number) {
    int value = 0;
    int found = emulator.attribute(&value, number);
    status = status ? status : found;
    return value;
  };
  p->warpSize = get(cudaDevAttrWarpSize);
  p->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = p->maxThreadsPerBlock, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = get(cudaDevAttrMaxSharedMemoryPerBlock);
  p->sharedMemPerBlockOptin = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerMultiprocessor = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->regsPerBlock = p->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->major = get(cudaDevAttrComputeCapabilityMajor), p->minor = get(cudaDevAttrComputeCapabilityMinor);
  p->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  p->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
  p->l2CacheSize = get(cudaDevAttrL2CacheSize);
  p->unifiedAddressing = p->concurrentKernels = 1;
  return kept(status);
}

// ---- the driver

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  return CUresult(emulator.encode(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, l2, fill));
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  return CUresult(emulator.attribute(value, attribute));
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = CUcontext(1), CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult status, const char **text) {
  return *text = cudaGetErrorString(cudaError_t(status)), CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult status, const char **text) {
  return *text = cudaGetErrorName(cudaError_t(status)), CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction kernel, void **args, void **) {
  return CUresult(emulator.launch(kernel, &c->gridDimX, &c->blockDimX, args, c->sharedMemBytes, c->attrs, c->numAttrs));
}
CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream, void **args, void **) {
  return CUresult(launch(kernel, {gx, gy, gz}, {bx, by, bz}, args, shared));
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
  return *function = static_cast<cudaFunction_t>(const_cast<void *>(host)), cudaSuccess;
}

static cudaError_t entry_point(const char *name, void **function, cudaDriverEntryPointQueryResult *found) {
  static const struct { const char *name; void *function; } served[] = {
#define SERVED(name) {#name, reinterpret_cast<void *>(name)}
      SERVED(cuTensorMapEncodeTiled), SERVED(cuInit), SERVED(cuDeviceGet), SERVED(cuDeviceGetAttribute),
      SERVED(cuCtxGetCurrent), SERVED(cuGetErrorString), SERVED(cuGetErrorName), SERVED(cuLaunchKernelEx),
      SERVED(cuLaunchKernel),
  };
  *function = nullptr;
  for (auto &one : served)
    if (!std::strcmp(one.name, name)) *function = one.function;
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : kept(emulator.refuse(name));
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found) {
  return entry_point(name, function, found);
}
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long,
                                    cudaDriverEntryPointQueryResult *found) {
  return entry_point(name, function, found);
}
}
