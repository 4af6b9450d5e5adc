// Stands in for libc10_cuda and libtorch_cuda: tensors whose memory the emulated device has are CUDA tensors to C++.
// An operator on them is carried out by torch's CPU kernel on the same memory, results go to the device's memory.

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <unordered_map>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

namespace {

const Device cuda_0(DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {  // there is one device, and one stream
  Device getDevice() const override { return cuda_0; }
  Device exchangeDevice(Device) const override { return cuda_0; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, cuda_0); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, cuda_0); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// The same elements in the same memory, which `storage` keeps, as a tensor of the other device.
at::Tensor alias(const at::Tensor &t, c10::Storage storage, c10::DispatchKey key) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) impl->_set_conj(true);
  if (t.is_neg()) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

c10::Storage same_memory(const c10::Storage &kept, Device where) {
  auto owner = new c10::Storage(kept);
  auto drop = [](void *x) { delete static_cast<c10::Storage *>(x); };
  return c10::Storage(c10::Storage::use_byte_size_t(), kept.nbytes(),
                      c10::DataPtr(const_cast<void *>(kept.data()), owner, drop, where), nullptr, false);
}

at::Tensor to_cuda(const at::Tensor &t) { return alias(t, same_memory(t.storage(), cuda_0), c10::DispatchKey::CUDA); }
at::Tensor to_cpu(const at::Tensor &t) {
  return alias(t, same_memory(t.storage(), Device(DeviceType::CPU)), c10::DispatchKey::CPU);
}

at::Tensor in_new_memory(const at::Tensor &t) {
  void *address = nullptr;
  size_t size = t.storage().nbytes();
  if (size) TORCH_CHECK(cudaMalloc(&address, size) == cudaSuccess, "out of the emulated device's memory");
  if (size) std::memcpy(address, t.storage().data(), size);
  auto release = [](void *x) { cudaFree(x); };
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, c10::DataPtr(address, address, release, cuda_0), nullptr,
                       false);
  return alias(t, std::move(storage), c10::DispatchKey::CUDA);
}

void on_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto &schema = op.schema();
  std::unordered_map<const void *, at::Tensor> originals;  // by the impl of what stands for them, and by their memory
  auto down = [&](const at::Tensor &t) {
    if (!t.defined() || !t.is_cuda()) return t;
    at::Tensor x = to_cpu(t);
    originals[x.unsafeGetTensorImpl()] = t;
    originals[x.storage().unsafeGetStorageImpl()] = t;
    return x;
  };
  auto up = [&](const at::Tensor &t) {
    if (!t.defined() || t.is_cuda()) return t;
    if (auto found = originals.find(t.unsafeGetTensorImpl()); found != originals.end()) {  // in place, or out=
      TORCH_CHECK(t.storage().data() == found->second.storage().data(), schema.name(),
                  " gives a tensor of the emulated device other memory: not served");
      found->second.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
      return found->second;
    }
    if (auto found = originals.find(t.storage().unsafeGetStorageImpl()); found != originals.end())  // a view
      return alias(t, found->second.storage(), c10::DispatchKey::CUDA);
    return in_new_memory(t);
  };
  auto each = [](c10::IValue &value, auto &&move) {
    if (value.isTensor()) {
      value = move(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> moved;
      for (const at::Tensor &t : value.toTensorVector()) moved.push_back(move(t));
      value = moved;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> moved;
      for (std::optional<at::Tensor> t : value.toOptionalTensorVector()) moved.push_back(t ? move(*t) : t);
      value = moved;
    }
  };
  bool to_host = false;
  for (auto &value : torch::jit::last(*stack, schema.arguments().size())) {
    auto &slot = const_cast<c10::IValue &>(value);
    if (slot.isDevice()) {
      to_host = !slot.toDevice().is_cuda();
      slot = Device(DeviceType::CPU);
    } else {
      each(slot, down);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (to_host) return;
  for (auto &value : torch::jit::last(*stack, schema.returns().size())) each(const_cast<c10::IValue &>(value), up);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

// Kernels for all devices would look for code of CUDA below them.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    auto op = dispatcher.findOp(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA))
      m.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
  }
}

TORCH_LIBRARY(emulated_gpu, m) {
  m.def("to_cuda(Tensor(a) x) -> Tensor(a)");
  m.def("to_cpu(Tensor(a) x) -> Tensor(a)");
}
TORCH_LIBRARY_IMPL(emulated_gpu, CompositeExplicitAutograd, m) {
  m.impl("to_cuda", to_cuda);
  m.impl("to_cpu", to_cpu);
}

}  // namespace

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

cudaStream_t CUDAStream::stream() const { return nullptr; }
bool CUDAStream::query() const { return cudaStreamQuery(nullptr) == cudaSuccess; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(nullptr)); }
std::ostream &operator<<(std::ostream &out, const CUDAStream &one) { return out << one.unwrap(); }
bool hasPrimaryContext(DeviceIndex) { return true; }
std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() { return 0; }
static CUDAStream only() { return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::DEFAULT, cuda_0)); }
CUDAStream getCurrentCUDAStream(DeviceIndex) { return only(); }
CUDAStream getDefaultCUDAStream(DeviceIndex) { return only(); }
CUDAStream getStreamFromPool(const bool, DeviceIndex) { return only(); }
CUDAStream getStreamFromPool(const int, DeviceIndex) { return only(); }
CUDAStream getStreamFromExternal(cudaStream_t, DeviceIndex) { return only(); }
void setCurrentCUDAStream(CUDAStream) {}

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
