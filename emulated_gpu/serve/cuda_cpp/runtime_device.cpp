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
  auto get = [&](int number) {
    int value = 0;
    int found = cuDeviceGetAttribute(&value, CUdevice_attribute(number), 0);
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
  p->texturePitchAlignment = get(cudaDevAttrTexturePitchAlignment);
  p->surfaceAlignment = get(cudaDevAttrSurfaceAlignment);
  p->maxTexture1D = get(cudaDevAttrMaxTexture1DWidth);
  p->maxTexture2D[0] = get(cudaDevAttrMaxTexture2DWidth);
  p->maxTexture2D[1] = get(cudaDevAttrMaxTexture2DHeight);
  p->maxTexture3D[0] = get(cudaDevAttrMaxTexture3DWidth);
  p->maxTexture3D[1] = get(cudaDevAttrMaxTexture3DHeight);
  p->maxTexture3D[2] = get(cudaDevAttrMaxTexture3DDepth);
  p->maxTexture1DLayered[0] = get(cudaDevAttrMaxTexture1DLayeredWidth);
  p->maxTexture1DLayered[1] = get(cudaDevAttrMaxTexture1DLayeredLayers);
  p->maxTexture2DLayered[0] = get(cudaDevAttrMaxTexture2DLayeredWidth);
  p->maxTexture2DLayered[1] = get(cudaDevAttrMaxTexture2DLayeredHeight);
  p->maxTexture2DLayered[2] = get(cudaDevAttrMaxTexture2DLayeredLayers);
  p->ECCEnabled = get(cudaDevAttrEccEnabled);
  p->globalL1CacheSupported = get(cudaDevAttrGlobalL1CacheSupported);
  p->localL1CacheSupported = get(cudaDevAttrLocalL1CacheSupported);
  p->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
  p->computePreemptionSupported = get(cudaDevAttrComputePreemptionSupported);
  p->clusterLaunch = get(cudaDevAttrClusterLaunch);
  p->integrated = get(cudaDevAttrIntegrated);
  return kept(status);
}
}
