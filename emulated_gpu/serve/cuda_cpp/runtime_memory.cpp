// Memory: all of it is the host's, too.
#include "runtime.hpp"

static cudaError_t copied(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t queue) {
  return in(queue, [&] { return emulator.copy(to, from, size, kind, of(queue), waits); });
}
static cudaError_t fill_rows(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t queue) {
  return in(queue, [&] {
    int status = 0;
    for (size_t row = 0; row < height && !status; ++row)
      status = emulator.fill(static_cast<char *>(to) + row * pitch, value, width, of(queue), waits);
    return status;
  });
}

extern "C" {

cudaError_t cudaMalloc(void **address, size_t size) {
  if (!address) return kept(cudaErrorInvalidValue);
  return size ? kept(cuMemAlloc(reinterpret_cast<CUdeviceptr *>(address), size)) : (*address = nullptr, cudaSuccess);
}
cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t queue) {
  if (!address) return kept(cudaErrorInvalidValue);
  if (!size) return *address = nullptr, cudaSuccess;
  return in(queue, [&] { return cuMemAllocAsync(reinterpret_cast<CUdeviceptr *>(address), size, queue); });
}
cudaError_t cudaMallocManaged(void **address, size_t size, unsigned flags) {
  if (!address || !size || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
    return kept(cudaErrorInvalidValue);
  return kept(cuMemAllocManaged(reinterpret_cast<CUdeviceptr *>(address), size, flags));
}
cudaError_t cudaFree(void *address) { return address ? kept(cuMemFree(at(address))) : cudaSuccess; }
cudaError_t cudaFreeAsync(void *address, cudaStream_t queue) {
  return address ? in(queue, [&] { return cuMemFreeAsync(at(address), queue); }) : kept(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void **address, size_t size) {
  if (!address) return kept(cudaErrorInvalidValue);
  return size ? kept(cuMemAllocHost(address, size)) : (*address = nullptr, cudaSuccess);
}
cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
  return flags & ~(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)
             ? kept(cudaErrorInvalidValue) : cudaMallocHost(address, size);
}
cudaError_t cudaHostRegister(void *address, size_t size, unsigned) {
  return kept(address && size ? int(cuMemHostRegister(address, size, 0)) : int(cudaErrorInvalidValue));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *p, const void *address) {
  if (!p) return kept(cudaErrorInvalidValue);
  int type = 0, managed = 0;
  CUpointer_attribute asked[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&type, &managed, &p->device};
  int status = cuPointerGetAttributes(3, asked, values, at(const_cast<void *>(address)));
  p->type = managed ? cudaMemoryTypeManaged : cudaMemoryType(type);
  p->devicePointer = type ? const_cast<void *>(address) : nullptr;
  p->hostPointer = type == cudaMemoryTypeDevice ? nullptr : p->devicePointer;
  return kept(status);
}
static cudaError_t managed(const void *memory, size_t size, bool right) {
  cudaPointerAttributes first{}, last{};
  auto end = static_cast<const char *>(memory) + (size ? size - 1 : 0);
  if (cudaPointerGetAttributes(&first, memory) || cudaPointerGetAttributes(&last, end)) return cudaErrorInvalidValue;
  right = right && first.type == cudaMemoryTypeManaged && last.type == cudaMemoryTypeManaged;
  return kept(right ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t queue) {
  return copied(to, from, size, kind, queue);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t queue) {
  if (height && width && (to_pitch < width || from_pitch < width)) return kept(cudaErrorInvalidPitchValue);
  cudaError_t status = cudaSuccess;
  for (size_t row = 0; row < height && !status; ++row)
    status = copied(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch,
                    width, kind, queue);
  return status;
}
cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  if (!address || !pitch) return kept(cudaErrorInvalidValue);
  if (!width || !height) return *address = nullptr, *pitch = 0, cudaSuccess;
  return kept(cuMemAllocPitch(reinterpret_cast<CUdeviceptr *>(address), pitch, width, height, 4));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t queue) {
  return fill_rows(to, 0, value, size, 1, queue);
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t queue) {
  return fill_rows(to, pitch, value, width, height, queue);
}
#if CUDART_VERSION >= 13000  // where managed memory lies changes no result
cudaError_t cudaMemPrefetchAsync(const void *memory, size_t size, cudaMemLocation, unsigned flags, cudaStream_t) {
  return managed(memory, size, !flags);
}
cudaError_t cudaMemAdvise(const void *memory, size_t size, cudaMemoryAdvise advice, cudaMemLocation) {
  return managed(memory, size, advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy);
}
#endif
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *memory, size_t size, unsigned flags) {
  return managed(memory, size, flags == cudaMemAttachGlobal || flags == cudaMemAttachHost || flags == cudaMemAttachSingle);
}
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  uint64_t size;
  return kept(emulator.symbol(address, &size, symbol));
}
cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
  void *address;
  return kept(emulator.symbol(&address, size, symbol));
}
static cudaError_t bytes_of(void **address, const void *symbol, size_t count, size_t offset) {
  uint64_t size = 0;
  cudaError_t status = kept(emulator.symbol(address, &size, symbol));
  return status || offset + count <= size ? status : kept(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t queue) {
  void *to;
  cudaError_t status = bytes_of(&to, symbol, count, offset);
  if (status) return status;
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost) return kept(cudaErrorInvalidMemcpyDirection);
  return copied(static_cast<char *>(to) + offset, from, count, kind, queue);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t count, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t queue) {
  void *from;
  cudaError_t status = bytes_of(&from, symbol, count, offset);
  if (status) return status;
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) return kept(cudaErrorInvalidMemcpyDirection);
  return copied(to, static_cast<char *>(from) + offset, count, kind, queue);
}

// ---- peers, of which there are none

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t queue) {
  return to_device || from_device ? on(1) : copied(to, from, size, cudaMemcpyDeviceToDevice, queue);
}

// ---- boxes

cudaError_t cudaMalloc3D(cudaPitchedPtr *p, cudaExtent extent) {
  if (!p) return kept(cudaErrorInvalidValue);
  p->xsize = extent.width, p->ysize = extent.height;
  return cudaMallocPitch(&p->ptr, &p->pitch, extent.width, extent.height * extent.depth);
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr p, int value, cudaExtent extent, cudaStream_t queue) {
  cudaError_t status = cudaSuccess;
  for (size_t z = 0; z < extent.depth && !status; ++z)
    status = fill_rows(static_cast<char *>(p.ptr) + z * p.ysize * p.pitch, p.pitch, value, extent.width, extent.height,
                       queue);
  return status;
}

// ---- pools: toolkit.py makes the others, which are the driver's

}
