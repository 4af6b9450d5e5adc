// What the files of the stand-in for libcudart share: the calls of the emulated device, and how errors are kept.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#define HERE __attribute__((visibility("hidden")))

struct Emulator {  // as `SIGNATURES` in runtime.py has them, in this order; each returns a cudaError_t
  int (*refuse)(const char *name);
  int (*register_module)(const void *fatbin, uint64_t handle);
  int (*register_kernel)(uint64_t handle, const void *host, const char *name);
  int (*register_variable)(uint64_t handle, const void *host, const char *name, uint64_t size);
  int (*register_managed)(uint64_t handle, void **host, const char *name, uint64_t size);
  int (*launch)(const void *host, const unsigned *grid, const unsigned *block, void **args, uint64_t shared,
                const void *attributes, unsigned count, uint64_t queue);
  int (*set_shared)(const void *host, int bytes);
  int (*symbol)(void **address, uint64_t *size, const void *host);
  int (*copy)(void *to, const void *from, uint64_t size, int kind, uint64_t queue, int waits);
  int (*fill)(void *to, int value, uint64_t size, uint64_t queue, int waits);
  int (*function)(const void *host);
  int (*driver)(const char *name, void **function);
  int (*blas)(const void *request);
};

extern Emulator emulator HERE;
extern thread_local const void *frame HERE;  // of cudaGraphLaunch: above it functions that run have their variables

extern thread_local int waits HERE;  // whether the host waits for copies and fills: their forms without Async
struct Waiting {
  Waiting() { waits = 1; }
  ~Waiting() { waits = 0; }
};

inline uint64_t of(cudaStream_t queue) { return reinterpret_cast<uint64_t>(queue); }
inline CUdeviceptr at(void *address) { return reinterpret_cast<CUdeviceptr>(address); }
inline cudaStream_t own(cudaStream_t queue) { return queue ? queue : cudaStreamPerThread; }

extern "C" int emulator_refuse(const char *name);
HERE cudaError_t kept(int status);      // an error is what cudaGetLastError says next
// Whether there is what a call is given: 0, or the error
HERE int known(cudaStream_t);
HERE int known(cudaEvent_t);
inline int known(const void *host) { return emulator.function(host); }
inline int known(const cudaKernelNodeParams *p) { return p ? known(p->func) : cudaErrorInvalidValue; }
HERE void named_attributes(cudaDeviceProp *p);  // sets what is called as an attribute is; toolkit.py makes it
HERE cudaError_t box_of(const cudaMemcpy3DParms &p, CUDA_MEMCPY3D *c);  // as the driver has a copy

template <class Out, class Value> cudaError_t put(Out *out, Value value) {
  return out ? (*out = Out(value), cudaSuccess) : kept(cudaErrorInvalidValue);
}
template <class Call> cudaError_t in(cudaStream_t queue, Call call) {
  int status = known(queue);
  return kept(status ? status : int(call()));
}
inline int attribute(cudaDeviceAttr number) {
  int value = 0;
  return cuDeviceGetAttribute(&value, CUdevice_attribute(number), 0), value;
}
inline cudaError_t on(int device) { return device ? kept(cudaErrorInvalidDevice) : cudaSuccess; }
