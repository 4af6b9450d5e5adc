// Stands in for libc10_cuda and libtorch_cuda in extensions: the functions that they call. Tensors and operators are
// those of torch's device as torch_device serves it.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

static const Device cuda_0(DeviceType::CUDA, 0);

namespace c10::cuda {

DeviceIndex device_count() noexcept { return 1; }
DeviceIndex device_count_ensure_non_zero() { return 1; }
DeviceIndex current_device() { return 0; }
void set_device(DeviceIndex, const bool) {}
void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
void warn_or_error_on_sync() {}
cudaError_t GetDeviceCount(int *count) { return cudaGetDeviceCount(count); }
cudaError_t GetDevice(DeviceIndex *index) { return *index = 0, cudaSuccess; }
cudaError_t SetDevice(DeviceIndex, const bool) { return cudaSuccess; }
cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }
void SetTargetDevice() {}
std::string get_cuda_error_help(cudaError_t) noexcept { return ""; }
const char *get_cuda_check_suffix() noexcept { return ""; }

cudaStream_t CUDAStream::stream() const { return reinterpret_cast<cudaStream_t>(id()); }
bool CUDAStream::query() const { return cudaStreamQuery(stream()) == cudaSuccess; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }
std::ostream &operator<<(std::ostream &out, const CUDAStream &one) { return out << one.unwrap(); }
bool hasPrimaryContext(DeviceIndex) { return true; }
std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() { return 0; }
static CUDAStream of(Stream stream) { return CUDAStream(CUDAStream::UNCHECKED, stream); }
static const impl::DeviceGuardImplInterface *guard() { return impl::getDeviceGuardImpl(DeviceType::CUDA); }
CUDAStream getCurrentCUDAStream(DeviceIndex) { return of(guard()->getStream(cuda_0)); }
CUDAStream getDefaultCUDAStream(DeviceIndex) { return of(Stream(Stream::DEFAULT, cuda_0)); }
CUDAStream getStreamFromPool(const bool, DeviceIndex) { return of(guard()->getStreamFromGlobalPool(cuda_0, false)); }
CUDAStream getStreamFromPool(const int, DeviceIndex) { return of(guard()->getStreamFromGlobalPool(cuda_0, false)); }
CUDAStream getStreamFromExternal(cudaStream_t handle, DeviceIndex) {
  return of(Stream(Stream::UNSAFE, cuda_0, reinterpret_cast<StreamId>(handle)));
}
void setCurrentCUDAStream(CUDAStream stream) { guard()->exchangeStream(stream.unwrap()); }

void c10_cuda_check_implementation(const int32_t status, const char *file, const char *, const uint32_t line,
                                   const bool) {
  if (status)
    TORCH_CHECK(false, "CUDA error at ", file, ":", line, ": ", cudaGetErrorString(static_cast<cudaError_t>(status)));
}

std::atomic<CUDACachingAllocator::CUDAAllocator *> CUDACachingAllocator::allocator;  // for record_stream: nobody has one

}  // namespace c10::cuda

namespace at::cuda {  // ATen/cuda/CUDAContextLight.h, which cannot be included without cuBLAS's headers

C10_EXPORT cudaDeviceProp *getDeviceProperties(c10::DeviceIndex) {
  static cudaDeviceProp *properties = [] {
    auto p = new cudaDeviceProp;
    cudaGetDeviceProperties(p, 0);
    return p;
  }();
  return properties;
}
C10_EXPORT cudaDeviceProp *getCurrentDeviceProperties() { return getDeviceProperties(0); }
C10_EXPORT int warp_size() { return 32; }
C10_EXPORT bool canDeviceAccessPeer(c10::DeviceIndex, c10::DeviceIndex) { return false; }

}  // namespace at::cuda

// torch/csrc/inductor/aoti_torch/c/shim.h: for extensions by torch's stable interface
extern "C" C10_EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
  *stream = c10::cuda::getCurrentCUDAStream(index).stream();
  return 0;
}
