// The device: which one, its attributes and limits.
#include "runtime.hpp"

#include <cstring>

extern "C" {

cudaError_t cudaGetDevice(int *device) { return put(device, 0); }
cudaError_t cudaSetDevice(int device) { return on(device); }
cudaError_t cudaSetValidDevices(int *devices, int count) { return count ? on(devices[0]) : cudaSuccess; }
cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *) { return put(device, 0); }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return on(device); }
cudaError_t cudaSetDeviceFlags(unsigned flags) { return kept(flags & ~cudaDeviceMask ? cudaErrorInvalidValue : cudaSuccess); }
cudaError_t cudaGetDeviceFlags(unsigned *flags) { return put(flags, 0); }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config) {
  return kept(unsigned(config) > cudaFuncCachePreferEqual ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache *config) { return put(config, cudaFuncCachePreferNone); }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig *config) {
  return put(config, cudaSharedMemBankSizeFourByte);
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return device || peer ? on(1) : put(can, 0); }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return kept(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return kept(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int *count) { return put(count, 1); }
cudaError_t cudaRuntimeGetVersion(int *version) { return put(version, CUDART_VERSION); }
cudaError_t cudaDriverGetVersion(int *version) { return put(version, CUDART_VERSION); }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  if (device) return on(device);
  if (attribute < 1 || attribute >= cudaDevAttrMax) return kept(cudaErrorInvalidValue);
  return kept(cuDeviceGetAttribute(value, CUdevice_attribute(attribute), 0));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  if (device) return on(device);
  if (!p) return kept(cudaErrorInvalidValue);
  std::memset(p, 0, sizeof *p);
  int status = cuDeviceGetName(p->name, sizeof p->name, 0);
  if (!status) status = cuDeviceTotalMem(&p->totalGlobalMem, 0);
  named_attributes(p);
  p->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
  p->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
  p->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
  p->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
  p->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
  p->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
  p->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  p->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  p->totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
  p->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
  p->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->major = attribute(cudaDevAttrComputeCapabilityMajor);
  p->minor = attribute(cudaDevAttrComputeCapabilityMinor);
  p->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
  p->memPitch = attribute(cudaDevAttrMaxPitch);
  p->maxTexture1D = attribute(cudaDevAttrMaxTexture1DWidth);
  p->maxTexture2D[0] = attribute(cudaDevAttrMaxTexture2DWidth);
  p->maxTexture2D[1] = attribute(cudaDevAttrMaxTexture2DHeight);
  p->maxTexture3D[0] = attribute(cudaDevAttrMaxTexture3DWidth);
  p->maxTexture3D[1] = attribute(cudaDevAttrMaxTexture3DHeight);
  p->maxTexture3D[2] = attribute(cudaDevAttrMaxTexture3DDepth);
  p->maxTexture1DLayered[0] = attribute(cudaDevAttrMaxTexture1DLayeredWidth);
  p->maxTexture1DLayered[1] = attribute(cudaDevAttrMaxTexture1DLayeredLayers);
  p->maxTexture2DLayered[0] = attribute(cudaDevAttrMaxTexture2DLayeredWidth);
  p->maxTexture2DLayered[1] = attribute(cudaDevAttrMaxTexture2DLayeredHeight);
  p->maxTexture2DLayered[2] = attribute(cudaDevAttrMaxTexture2DLayeredLayers);
  return kept(status);
}
}
