// Operators that a CUDA graph repeats. Inside a capture an operator is carried out on memory of zeros in place of its
// operands', which tells how large its results are; a replay carries it out.

namespace emulated {

// A tensor without a hold on memory that was there before the capture, as a graph has none.
struct Kept {
  std::optional<Tensor> whole;  // of the host's pageable memory, or of parts
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;
  bool of_host = false, conj = false, neg = false, wrapped = false;
  Storage of_graph;
  c10::weak_intrusive_ptr<c10::StorageImpl> before{c10::intrusive_ptr<c10::StorageImpl>()};
};

struct Recorded {
  c10::OperatorHandle op;
  torch::jit::Stack operands, results;  // placeholders stand for tensors
  std::vector<Kept> tensors, made;
  DispatchKey key;
  int device;
};

std::mutex recorded_mutex;
std::map<int64_t, std::shared_ptr<Recorded>> recorded;
int64_t next_recorded = 0;

Kept kept(const Tensor &t) {
  Kept one;
  one.of_host = t.is_cpu() && t.dim() && is_plain(t) && pool().device_of(t.storage().data()) == PINNED;
  if (!(t.is_cuda() && is_plain(t)) && !one.of_host) {
    one.whole = t.defined() && t.is_cpu() && t.dim() == 0 ? t.clone() : t;  // a number is an argument of the kernel
    return one;
  }
  auto *impl = t.unsafeGetTensorImpl();
  one.sizes.assign(t.sizes().begin(), t.sizes().end()), one.strides.assign(t.strides().begin(), t.strides().end());
  one.offset = t.storage_offset(), one.dtype = t.dtype();
  one.conj = t.is_conj(), one.neg = t.is_neg(), one.wrapped = impl->is_wrapped_number();
  const Storage &storage = impl->unsafe_storage();
  if (!storage.data())
    one.of_graph = storage;
  else if (pool().of_graph(storage.data()))  // which stays, whoever holds the storage
    one.of_graph = Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                                 DataPtr(const_cast<void *>(storage.data()), storage.device()), nullptr, false));
  else
    one.before = storage.getWeakStorageImpl();
  return one;
}

Tensor tensor_of(const Kept &one, const std::string &name) {
  if (one.whole) return *one.whole;
  Storage storage = one.of_graph;
  if (!storage) {
    auto strong = one.before.lock();
    TORCH_CHECK(strong, "use-after-free: ", name, " of a CUDA graph uses memory of a tensor that was freed after the capture");
    storage = Storage(std::move(strong));
  }
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(one.of_host ? DispatchKey::CPU : DispatchKey::CUDA), one.dtype);
  auto *impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(one.sizes, one.strides, one.offset);
  if (one.conj) impl->_set_conj(true);
  if (one.neg) impl->_set_neg(true);
  if (one.wrapped) impl->set_wrapped_number(true);
  return made;
}

}  // namespace emulated
