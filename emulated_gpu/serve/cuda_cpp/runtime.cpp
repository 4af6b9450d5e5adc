// Stands in for libcudart. What it does with the device is done by the emulator, in Python, by the calls of `Emulator`.
// What is not here is made from CUDA's own headers (toolkit.py): functions of the runtime that are refused by name, and
// the driver's, which lead to Python each by itself.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstring>

struct Emulator {  // as `SIGNATURES` in runtime.py has them, in this order; each returns a cudaError_t
  int (*refuse)(const char *name);
  int (*register_module)(const void *fatbin, uint64_t handle);
  int (*register_kernel)(uint64_t handle, const void *host, const char *name);
  int (*register_variable)(uint64_t handle, const void *host, const char *name, uint64_t size);
  int (*launch)(const void *host, const unsigned *grid, const unsigned *block, void **args, uint64_t shared,
                const void *attributes, unsigned count, uint64_t queue);
  int (*set_shared)(const void *host, int bytes);
  int (*occupancy)(int *ctas, const void *host, int threads, uint64_t shared);
  int (*clusters)(int *clusters, const void *attributes, unsigned count);
  int (*symbol)(void **address, uint64_t *size, const void *host);
  int (*allocate)(void **address, uint64_t size);
  int (*release)(void *address);
  int (*copy)(void *to, const void *from, uint64_t size, int kind, uint64_t queue, int waits);
  int (*fill)(void *to, int value, uint64_t size, uint64_t queue, int waits);
  int (*attribute)(int *value, int number);
  int (*properties)(char *name, uint64_t size, uint64_t *memory);
  int (*synchronize)();
  int (*record)(uint64_t event, uint64_t queue);
  int (*elapsed)(float *ms, uint64_t start, uint64_t end);
  int (*function)(const void *host);
  int (*driver)(const char *name, void **function);
  int (*allocate_pinned)(void **address, uint64_t size);
  int (*release_pinned)(void *address);
  int (*pointer)(int *type, int *device, const void *address);
  int (*memory_info)(size_t *free, size_t *total);
  int (*function_attribute)(int *value, const void *host, int number);
  int (*allocate_managed)(void **address, uint64_t size);
  int (*create_queue)(uint64_t *queue, unsigned flags);
  int (*wait_event)(uint64_t queue, uint64_t event);
  int (*synchronize_queue)(uint64_t queue);
  int (*synchronize_event)(uint64_t event);
  int (*call_host)(void (*function)(void *), void *data, uint64_t queue);
  int (*allocate_in)(void **address, uint64_t size, uint64_t queue);
  int (*release_in)(void *address, uint64_t queue);
  int (*blas)(const void *request);
};

static Emulator emulator;
static uint64_t handles;
static uint64_t of(cudaStream_t queue) { return reinterpret_cast<uint64_t>(queue); }
static uint64_t of(cudaEvent_t event) { return reinterpret_cast<uint64_t>(event); }
static thread_local const void *caller;  // where the program has made the call that is under way
#define CALLED caller = __builtin_return_address(0)
static thread_local cudaError_t last = cudaSuccess;

static cudaError_t kept(int status) {
  if (status) last = cudaError_t(status);
  return cudaError_t(status);
}

extern "C" {

void emulator_set(const Emulator *calls) { emulator = *calls; }
const void *emulator_caller() {
  const void *was = caller;
  return caller = nullptr, was;
}
bool emulator_is_set() { return emulator.refuse; }
int emulator_refuse(const char *name) {
  return kept(emulator.refuse ? emulator.refuse(name) : cudaErrorInitializationError);
}
int emulator_blas(const void *request) { return emulator.blas(request); }
const char *emulator_error_name(int status);  // made from CUDA's headers

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
  CALLED;
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
static cudaError_t launch(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t queue) {
  return kept(emulator.launch(host, &grid.x, &block.x, args, shared, nullptr, 0, of(queue)));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t queue) {
  return launch(kernel, grid, block, args, shared, queue);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                    cudaStream_t queue) {
  return launch(kernel, grid, block, args, shared, queue ? queue : cudaStreamPerThread);
}

// ---- launches

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t queue) {
  return launch(host, grid, block, args, shared, queue);
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t queue) {
  CALLED;
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  return kept(emulator.launch(host, &grid.x, &block.x, args, shared, &cooperative, 1, of(queue)));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
  CALLED;
  return kept(emulator.launch(host, &c->gridDim.x, &c->blockDim.x, args, c->dynamicSmemBytes, c->attrs, c->numAttrs,
                              of(c->stream)));
}
cudaError_t cudaFuncSetAttribute(const void *host, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) return kept(emulator.set_shared(host, value));
  return cudaSuccess;  // carve-outs and non-portable cluster sizes change no result
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *host) {
  std::memset(a, 0, sizeof *a);
  int threads = 0, shared = 0, constant = 0, local = 0, dynamic = 0;
  int major = 0, minor = 0;  // the code runs as what the machine is: CUB asks for it
  int status = emulator.function_attribute(&threads, host, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  if (!status) status = emulator.attribute(&major, cudaDevAttrComputeCapabilityMajor);
  if (!status) status = emulator.attribute(&minor, cudaDevAttrComputeCapabilityMinor);
  a->ptxVersion = a->binaryVersion = 10 * major + minor;
  if (!status) status = emulator.function_attribute(&shared, host, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  if (!status) status = emulator.function_attribute(&constant, host, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
  if (!status) status = emulator.function_attribute(&local, host, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  if (!status) status = emulator.function_attribute(&a->numRegs, host, CU_FUNC_ATTRIBUTE_NUM_REGS);
  if (!status) status = emulator.function_attribute(&dynamic, host, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  a->maxThreadsPerBlock = threads, a->sharedSizeBytes = shared, a->constSizeBytes = constant;
  a->localSizeBytes = local, a->maxDynamicSharedSizeBytes = dynamic;
  return kept(status);
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
cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t queue) {
  CALLED;
  return kept(emulator.allocate_in(address, size, of(queue)));
}
cudaError_t cudaMallocManaged(void **address, size_t size, unsigned) {
  return kept(emulator.allocate_managed(address, size));
}
cudaError_t cudaFree(void *address) {
  CALLED;
  return address ? kept(emulator.release(address)) : cudaSuccess;
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t queue) {
  CALLED;
  return address ? kept(emulator.release_in(address, of(queue))) : cudaSuccess;
}
cudaError_t cudaMallocHost(void **address, size_t size) { return kept(emulator.allocate_pinned(address, size)); }
cudaError_t cudaHostAlloc(void **address, size_t size, unsigned) { return cudaMallocHost(address, size); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) { return *device = host, cudaSuccess; }
cudaError_t cudaFreeHost(void *address) { return kept(emulator.release_pinned(address)); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { return kept(emulator.memory_info(free, total)); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *p, const void *address) {
  int type = 0;
  int status = emulator.pointer(&type, &p->device, address);
  p->type = cudaMemoryType(type);
  p->devicePointer = type ? const_cast<void *>(address) : nullptr;
  p->hostPointer = type == cudaMemoryTypeDevice ? nullptr : p->devicePointer;
  return kept(status);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  CALLED;
  return kept(emulator.copy(to, from, size, kind, 0, 1));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t queue) {
  CALLED;
  return kept(emulator.copy(to, from, size, kind, of(queue), 0));
}
static cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, cudaMemcpyKind kind, cudaStream_t queue, int waits) {
  int status = 0;
  for (size_t row = 0; row < height && !status; ++row)
    status = emulator.copy(static_cast<char *>(to) + row * to_pitch,
                           static_cast<const char *>(from) + row * from_pitch, width, kind, of(queue), waits);
  return kept(status);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  CALLED;
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, nullptr, 1);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t queue) {
  CALLED;
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, queue, 0);
}
cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;  // as on an H100
  return cudaMalloc(address, *pitch * height);
}
static cudaError_t fill_rows(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t queue,
                             int waits) {
  int status = 0;
  for (size_t row = 0; row < height && !status; ++row)
    status = emulator.fill(static_cast<char *>(to) + row * pitch, value, width, of(queue), waits);
  return kept(status);
}
cudaError_t cudaMemset(void *to, int value, size_t size) {
  CALLED;
  return fill_rows(to, 0, value, size, 1, nullptr, 1);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t queue) {
  CALLED;
  return fill_rows(to, 0, value, size, 1, queue, 0);
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  CALLED;
  return fill_rows(to, pitch, value, width, height, nullptr, 1);
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t queue) {
  CALLED;
  return fill_rows(to, pitch, value, width, height, queue, 0);
}
#if CUDART_VERSION >= 13000  // where managed memory lies changes no result
cudaError_t cudaMemPrefetchAsync(const void *, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemAdvise(const void *, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
#endif
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  uint64_t size;
  return kept(emulator.symbol(address, &size, symbol));
}
cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
  void *address;
  return kept(emulator.symbol(&address, size, symbol));
}
static cudaError_t to_symbol(const void *symbol, const void *from, size_t count, size_t offset, cudaMemcpyKind kind,
                             cudaStream_t queue, int waits) {
  void *to;
  cudaError_t status = cudaGetSymbolAddress(&to, symbol);
  return status ? status : kept(emulator.copy(static_cast<char *>(to) + offset, from, count, kind, of(queue), waits));
}
static cudaError_t from_symbol(void *to, const void *symbol, size_t count, size_t offset, cudaMemcpyKind kind,
                               cudaStream_t queue, int waits) {
  void *from;
  cudaError_t status = cudaGetSymbolAddress(&from, symbol);
  return status ? status : kept(emulator.copy(to, static_cast<char *>(from) + offset, count, kind, of(queue), waits));
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t count, size_t offset,
                               cudaMemcpyKind kind) {
  CALLED;
  return to_symbol(symbol, from, count, offset, kind, nullptr, 1);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t queue) {
  CALLED;
  return to_symbol(symbol, from, count, offset, kind, queue, 0);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t count, size_t offset,
                                 cudaMemcpyKind kind) {
  CALLED;
  return from_symbol(to, symbol, count, offset, kind, nullptr, 1);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t count, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t queue) {
  CALLED;
  return from_symbol(to, symbol, count, offset, kind, queue, 0);
}

// ---- errors

cudaError_t cudaGetLastError() {
  cudaError_t status = last;
  last = cudaSuccess;
  return status;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char *cudaGetErrorName(cudaError_t status) { return emulator_error_name(status); }
const char *cudaGetErrorString(cudaError_t status) {
  if (status == cudaErrorLaunchFailure || status == cudaErrorNotSupported)
    return "the emulated device failed: the finding says why";
  return status ? cudaGetErrorName(status) : "no error";
}

// ---- streams and events: a launch runs to its end inside the call that makes it; who has waited for it is noted

cudaError_t cudaDeviceSynchronize() { return kept(emulator.synchronize()); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *queue, unsigned flags) {
  uint64_t made = 0;
  cudaError_t status = kept(emulator.create_queue(&made, flags));
  return *queue = reinterpret_cast<cudaStream_t>(made), status;
}
cudaError_t cudaStreamCreate(cudaStream_t *queue) { return cudaStreamCreateWithFlags(queue, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *queue, unsigned flags, int) {
  return cudaStreamCreateWithFlags(queue, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t queue) { return kept(emulator.synchronize_queue(of(queue))); }
cudaError_t cudaStreamQuery(cudaStream_t queue) { return kept(emulator.synchronize_queue(of(queue))); }
cudaError_t cudaStreamWaitEvent(cudaStream_t queue, cudaEvent_t event, unsigned) {
  return kept(emulator.wait_event(of(queue), of(event)));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t queue, cudaHostFn_t function, void *data) {
  CALLED;
  return kept(emulator.call_host(function, data, of(queue)));
}
struct Callback {
  cudaStream_t queue;
  cudaStreamCallback_t function;
  void *data;
};
static void call_back(void *of) {
  auto one = static_cast<Callback *>(of);
  one->function(one->queue, cudaSuccess, one->data);
}
cudaError_t cudaStreamAddCallback(cudaStream_t queue, cudaStreamCallback_t function, void *data, unsigned) {
  Callback one{queue, function, data};
  return cudaLaunchHostFunc(queue, call_back, &one);
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int *priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned *flags) { return *flags = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;  // as on every card since Ampere
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = cudaEvent_t(++handles), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t queue) {
  return kept(emulator.record(of(event), of(queue)));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t queue, unsigned) {
  return cudaEventRecord(event, queue);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return kept(emulator.synchronize_event(of(event))); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return kept(emulator.synchronize_event(of(event))); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return kept(emulator.elapsed(ms, uint64_t(start), uint64_t(end)));
}

// ---- what programs call that are compiled with --default-stream per-thread: no queue is the thread's own one

static cudaStream_t own(cudaStream_t queue) { return queue ? queue : cudaStreamPerThread; }
cudaError_t cudaLaunchKernel_ptsz(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                                  cudaStream_t queue) {
  return launch(host, grid, block, args, shared, own(queue));
}
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *c, const void *host, void **args) {
  cudaLaunchConfig_t with_own = *c;
  CALLED;
  with_own.stream = own(c->stream);
  return cudaLaunchKernelExC(&with_own, host, args);
}
cudaError_t cudaMallocAsync_ptsz(void **address, size_t size, cudaStream_t queue) {
  return cudaMallocAsync(address, size, own(queue));
}
cudaError_t cudaFreeAsync_ptsz(void *address, cudaStream_t queue) {
  CALLED;
  return address ? kept(emulator.release_in(address, of(own(queue)))) : cudaSuccess;
}
cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  CALLED;
  return kept(emulator.copy(to, from, size, kind, of(cudaStreamPerThread), 1));
}
cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t queue) {
  CALLED;
  return kept(emulator.copy(to, from, size, kind, of(own(queue)), 0));
}
cudaError_t cudaMemset_ptds(void *to, int value, size_t size) {
  CALLED;
  return fill_rows(to, 0, value, size, 1, cudaStreamPerThread, 1);
}
cudaError_t cudaMemsetAsync_ptsz(void *to, int value, size_t size, cudaStream_t queue) {
  CALLED;
  return fill_rows(to, 0, value, size, 1, own(queue), 0);
}
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t queue) { return cudaStreamSynchronize(own(queue)); }
cudaError_t cudaStreamQuery_ptsz(cudaStream_t queue) { return cudaStreamQuery(own(queue)); }
cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t queue, cudaEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(own(queue), event, flags);
}
cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t queue) { return cudaEventRecord(event, own(queue)); }
cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t queue, cudaHostFn_t function, void *data) {
  return cudaLaunchHostFunc(own(queue), function, data);
}

// ---- the device

cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? kept(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaDeviceReset() { return kept(emulator.synchronize()); }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned *flags) { return *flags = 0, cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
// Of an H100: stack, printf, heap
static std::array<size_t, cudaLimitPersistingL2CacheSize + 1> limits = {1024, 8650752, 8388608};
cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
  return limit < limits.size() ? (*value = limits[limit], cudaSuccess) : kept(cudaErrorUnsupportedLimit);
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {  // there is as much as a kernel needs
  return limit < limits.size() ? (limits[limit] = value, cudaSuccess) : kept(cudaErrorUnsupportedLimit);
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, cudaSuccess; }
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
  p->maxThreadsDim[0] = get(cudaDevAttrMaxBlockDimX);
  p->maxThreadsDim[1] = get(cudaDevAttrMaxBlockDimY);
  p->maxThreadsDim[2] = get(cudaDevAttrMaxBlockDimZ);
  p->maxGridSize[0] = get(cudaDevAttrMaxGridDimX);
  p->maxGridSize[1] = get(cudaDevAttrMaxGridDimY);
  p->maxGridSize[2] = get(cudaDevAttrMaxGridDimZ);
  p->sharedMemPerBlock = get(cudaDevAttrMaxSharedMemoryPerBlock);
  p->sharedMemPerBlockOptin = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerMultiprocessor = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->reservedSharedMemPerBlock = get(cudaDevAttrReservedSharedMemoryPerBlock);
  p->totalConstMem = get(cudaDevAttrTotalConstantMemory);
  p->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
  p->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->major = get(cudaDevAttrComputeCapabilityMajor);
  p->minor = get(cudaDevAttrComputeCapabilityMinor);
  p->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  p->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
  p->l2CacheSize = get(cudaDevAttrL2CacheSize);
  p->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
  p->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
  p->concurrentKernels = get(cudaDevAttrConcurrentKernels);
  p->canMapHostMemory = get(cudaDevAttrCanMapHostMemory);
  p->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
  p->managedMemory = get(cudaDevAttrManagedMemory);
  p->streamPrioritiesSupported = get(cudaDevAttrStreamPrioritiesSupported);
  p->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
  p->memPitch = get(cudaDevAttrMaxPitch);
  p->textureAlignment = get(cudaDevAttrTextureAlignment);
  p->ECCEnabled = get(cudaDevAttrEccEnabled);
  p->globalL1CacheSupported = get(cudaDevAttrGlobalL1CacheSupported);
  p->localL1CacheSupported = get(cudaDevAttrLocalL1CacheSupported);
  p->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
  p->computePreemptionSupported = get(cudaDevAttrComputePreemptionSupported);
  p->clusterLaunch = get(cudaDevAttrClusterLaunch);
  return kept(status);
}

// ---- to the driver

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
  *function = static_cast<cudaFunction_t>(const_cast<void *>(host));
  return kept(emulator.function(host));
}

static cudaError_t entry_point(const char *name, void **function, cudaDriverEntryPointQueryResult *found) {
  *function = nullptr;
  int status = emulator.driver(name, function);
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return kept(status);
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
