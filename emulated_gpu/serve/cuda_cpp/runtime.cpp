// Stands in for libcudart. What it does with the device is done by the emulator, in Python, by the calls of `Emulator`.
// What is in none of the files runtime*.cpp is made from CUDA's own headers (toolkit.py): functions of the runtime that
// are refused by name, and the driver's, which lead to Python each by itself.

#include "runtime.hpp"

#include <execinfo.h>
#include <pthread.h>

#include <cstring>

Emulator emulator;
thread_local const void *frame;
thread_local int waits;
static thread_local struct { dim3 grid, block; size_t shared; cudaStream_t queue; void *stack[64]; int depth; } pushed{};
static thread_local cudaError_t last = cudaSuccess;

cudaError_t kept(int status) {
  if (status) last = cudaError_t(status);
  return cudaError_t(status);
}

// Whether this thread has called the runtime, which makes a context: g++ calls the first of these from all functions of
// the files runtime*.cpp, but for those that toolkit.py leaves out.
static thread_local bool called;
#define ALONE __attribute__((no_instrument_function))
extern "C" {
ALONE void __cyg_profile_func_enter(void *, void *) { called |= emulator.refuse != nullptr; }
ALONE void __cyg_profile_func_exit(void *, void *) {}
ALONE bool emulator_called() { return called; }

void emulator_set(const Emulator *calls) { emulator = *calls; }
// Up to `most` return addresses, the innermost first. Of a launch, which a function that nvcc makes calls: from where the
// program has configured it.
int emulator_stack(void **at, int most) {
  if (!pushed.depth) return backtrace(at, most);
  int depth = pushed.depth < most ? pushed.depth : most;
  std::memcpy(at, pushed.stack, depth * sizeof *at);
  return depth;
}
// Whether an address is of a function of this thread that has returned.
bool emulator_returned(const void *at) {
  pthread_attr_t of;
  void *begin;
  size_t size;
  if (pthread_getattr_np(pthread_self(), &of)) return false;
  pthread_attr_getstack(&of, &begin, &size), pthread_attr_destroy(&of);
  return begin <= at && at < frame;
}
bool emulator_is_set() { return emulator.refuse; }
int emulator_refuse(const char *name) {
  return kept(emulator.refuse ? emulator.refuse(name) : cudaErrorInitializationError);
}
int emulator_blas(const void *request) { return emulator.blas(request); }
const char *emulator_error_name(int status);  // made from CUDA's headers

// ---- what the host code that nvcc generates calls

void **__cudaRegisterFatBinary(void *fatbin) {
  static uint64_t handles;
  auto made = new uint64_t(__atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED));
  emulator.register_module(fatbin, *made);
  return reinterpret_cast<void **>(made);
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
void __cudaRegisterManagedVar(void **handle, void **host, char *, const char *name, int, size_t size, int, int) {
  emulator.register_managed(*reinterpret_cast<uint64_t *>(handle), host, name, size);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t queue) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.queue = queue;
  pushed.depth = backtrace(pushed.stack, 64);
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
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t queue) {
  return cudaLaunchKernel(kernel, grid, block, args, shared, queue);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                    cudaStream_t queue) {
  return cudaLaunchKernel(kernel, grid, block, args, shared, own(queue));
}

// ---- launches

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t queue) {
  auto status = in(queue, [&] { return emulator.launch(host, &grid.x, &block.x, args, shared, nullptr, 0, of(queue)); });
  pushed.depth = 0;
  return status;
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t queue) {
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  return in(queue, [&] { return emulator.launch(host, &grid.x, &block.x, args, shared, &cooperative, 1, of(queue)); });
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
  return in(c->stream, [&] {
    return emulator.launch(host, &c->gridDim.x, &c->blockDim.x, args, c->dynamicSmemBytes, c->attrs, c->numAttrs,
                           of(c->stream));
  });
}
cudaError_t cudaFuncSetAttribute(const void *host, cudaFuncAttribute attribute, int value) {
  if (attribute < cudaFuncAttributeMaxDynamicSharedMemorySize || attribute >= cudaFuncAttributeMax)
    return kept(cudaErrorInvalidValue);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) return kept(emulator.set_shared(host, value));
  return kept(emulator.function(host));  // carve-outs and non-portable cluster sizes change no result
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *host) {
  if (!a) return kept(cudaErrorInvalidValue);
  std::memset(a, 0, sizeof *a);
  int threads = 0, shared = 0, constant = 0, local = 0, dynamic = 0, status = emulator.function(host);
  auto get = [&](int *value, CUfunction_attribute number) {
    if (!status) status = cuFuncGetAttribute(value, number, CUfunction(host));
  };
  get(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), get(&a->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION);
  get(&a->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION), get(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  get(&constant, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES), get(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  get(&a->numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS), get(&dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  a->maxThreadsPerBlock = threads, a->sharedSizeBytes = shared, a->constSizeBytes = constant;
  a->localSizeBytes = local, a->maxDynamicSharedSizeBytes = dynamic;
  return kept(status);
}
cudaError_t cudaFuncSetCacheConfig(const void *host, cudaFuncCache config) {
  return cudaDeviceSetCacheConfig(config) ? cudaErrorInvalidValue : kept(emulator.function(host));
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *, const cudaLaunchConfig_t *) {
  return put(size, 8);  // the portable size
}
cudaError_t cudaFuncSetSharedMemConfig(const void *, cudaSharedMemConfig) { return cudaSuccess; }

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int device) {
  return kept(cuKernelSetAttribute(CUfunction_attribute(attribute), value, CUkernel(kernel), device));
}
cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void *>(host));
  return kept(emulator.function(host));
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
  switch (int(status)) {  // what CUDA says, of those errors that are met here
    case 0: return "no error";
    case 1: return "invalid argument";
    case 2: return "out of memory";
    case 3: return "initialization error";
    case 9: return "invalid configuration argument";
    case 12: return "invalid pitch argument";
    case 13: return "invalid device symbol";
    case 17: return "invalid device pointer";
    case 21: return "invalid copy direction for memcpy";
    case 98: return "invalid device function";
    case 100: return "no CUDA-capable device is detected";
    case 101: return "invalid device ordinal";
    case 200: return "device kernel image is invalid";
    case 209: return "no kernel image is available for execution on the device";
    case 215: return "limit is not supported on this architecture";
    case 217: return "peer access is not supported between these two devices";
    case 218: return "a PTX JIT compilation failed";
    case 400: return "invalid resource handle";
    case 500: return "named symbol not found";
    case 600: return "device not ready";
    case 700: return "an illegal memory access was encountered";
    case 701: return "too many resources requested for launch";
    case 702: return "the launch timed out and was terminated";
    case 710: return "device-side assert triggered";
    case 712: return "part or all of the requested memory range is already mapped";
    case 713: return "pointer does not correspond to a registered memory region";
    case 715: return "an illegal instruction was encountered";
    case 716: return "misaligned address";
    case 717: return "operation not supported on global/shared address space";
    case 719: return "unspecified launch failure";
    case 720: return "too many blocks in cooperative launch";
    case 801: return "operation not supported";
    case 900: return "operation not permitted when stream is capturing";
    case 901: return "operation failed due to a previous error during capture";
    case 903: return "capture was not ended in the same stream as it began";
    case 904: return "capturing stream has unjoined work";
    case 906: return "operation would make the legacy stream depend on a capturing blocking stream";
    case 907: return "operation not permitted on an event last recorded in a capturing stream";
    default: return cudaGetErrorName(status);
  }
}

// ---- to the driver

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
  *function = static_cast<cudaFunction_t>(const_cast<void *>(host));
  return kept(emulator.function(host));
}

#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long,
                                    cudaDriverEntryPointQueryResult *found) {
  *function = nullptr;
  int status = emulator.driver(name, function);
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return kept(status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found) {
  return cudaGetDriverEntryPoint(name, function, flags, found);
}
}
