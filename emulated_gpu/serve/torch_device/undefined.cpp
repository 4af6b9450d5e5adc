// What an operator makes of memory that nobody has written. It runs twice on copies of its operands, the second time with
// other garbage in them: what differs is undefined, whatever the operator does.

namespace emulated {

// Python: how many words of [at, at + bytes) nobody has written; -1: somebody has written all of that allocation. Those
// words are changed in a copy of the bytes, if there is one.
using Undefined = int64_t (*)(const void *at, int64_t bytes, void *copy);
// Python hears what an operator has made of such words in memory from `at` on: a mark for each byte.
using Spoilt = void (*)(const void *at, int64_t bytes, const uint8_t *marks, const char *name);
enum Mark : uint8_t { UNTOUCHED, DEFINED, UNDEFINED };
Undefined undefined = nullptr;
Spoilt spoilt = nullptr;
constexpr size_t MOST_COPIED = size_t(64) << 20;  // bytes of operands; what is made of more counts as written

Storage same_memory(const Storage &kept, Device where) {
  auto drop = [](void *x) { delete static_cast<Storage *>(x); };
  DataPtr data(const_cast<void *>(kept.data()), new Storage(kept), drop, where);
  auto *allocator = where.is_cuda() ? static_cast<c10::Allocator *>(&device_allocator) : &inside_allocator;
  return Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), kept.nbytes(),
                                                       std::move(data), allocator, true));
}

// A tensor of the same shape on another storage.
Tensor alias(const Tensor &t, Storage storage, DispatchKey key) {
  std::optional<c10::InferenceMode> as_it_is;  // a view of a tensor is for inference alone if that is
  if (t.is_inference() != c10::InferenceMode::is_enabled()) as_it_is.emplace(t.is_inference());
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
  auto *impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) impl->_set_conj(true);
  if (t.is_neg()) impl->_set_neg(true);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

// Applies `f` to the tensors in a value. Says whether it is of a type that has any.
template <class F>
bool each(IValue &v, F f) {
  if (v.isTensor()) {
    v = f(v.toTensor());
  } else if (v.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor &t : v.toTensorVector()) made.push_back(f(t));
    v = made;
  } else if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const std::optional<Tensor> &t : v.toOptionalTensorVector())
      made.push_back(t && t->defined() ? std::optional<Tensor>(f(*t)) : t);
    v = made;
  } else if (v.isList() && v.toListRef().size() && v.toListRef()[0].isTensorList()) {
    c10::impl::GenericList made(v.toList().elementType());
    for (IValue one : v.toListRef()) each(one, f), made.push_back(one);
    v = made;
  } else {
    return false;
  }
  return true;
}

class Twice {
 public:
  // operands: on the CPU's memory, as the kernel gets them.
  Twice(const c10::OperatorHandle &op, c10::DispatchKeySet keys, c10::ArrayRef<IValue> operands) {
    bool plain = true;
    size_t bytes = 0;
    std::vector<Storage> memories;
    for (IValue v : operands)
      each(v, [&](const Tensor &t) {
        plain &= !t.defined() || (is_plain(t) && t.has_storage());
        if (!plain || !t.defined()) return t;
        for (auto &known : memories)
          if (known.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return t;
        memories.push_back(t.storage()), bytes += t.storage().nbytes();
        return t;
      });
    if (!plain || bytes > MOST_COPIED) return;
    bool any = false;
    for (auto &s : memories)
      if (pool().unwritten(s.data())) any |= words(s, nullptr) > 0;
    if (!any) return;
    for (int i = 0; i < 2; i++) runs_[i] = run(op, keys, operands, memories, i);
    runs_twice_ = true;
  }

  // Tells of what differs in the operands and results, which are the device's now.
  void tell(const std::vector<Tensor> &made, const char *name) const {
    if (!runs_twice_) return;
    for (size_t i = 0; i < made.size(); i++) {
      const Tensor &t = made[i];
      if (!t.defined() || !t.is_cuda() || !is_plain(t) || !t.numel() || !t.storage().data()) continue;
      std::vector<uint8_t> marks(t.storage().nbytes(), UNTOUCHED);
      if (mark(t, i, marks)) spoilt(t.storage().data(), int64_t(marks.size()), marks.data(), name);
    }
  }

 private:
  static int64_t words(const Storage &s, void *copy) {
    const int64_t n = undefined(s.data(), int64_t(s.nbytes()), copy);
    if (n < 0) pool().write(s.data());
    return n;
  }

  // The tensors among operands and results, behind one another, undefined ones, too; nothing if the kernel has failed.
  static std::vector<Tensor> run(const c10::OperatorHandle &op, c10::DispatchKeySet keys, c10::ArrayRef<IValue> operands,
                                 const std::vector<Storage> &memories, bool other) {
    std::vector<Storage> copies;
    for (auto &s : memories) {
      DataPtr data = host_allocator->allocate(s.nbytes());
      if (s.nbytes()) std::memcpy(data.get(), s.data(), s.nbytes());
      if (other && pool().unwritten(s.data())) words(s, data.get());
      copies.emplace_back(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), s.nbytes(),
                                                                std::move(data), host_allocator, true));
    }
    std::vector<Tensor> all;
    torch::jit::Stack stack;
    for (IValue v : operands) {
      each(v, [&](const Tensor &t) {
        size_t i = 0;
        while (t.defined() && memories[i].unsafeGetStorageImpl() != t.storage().unsafeGetStorageImpl()) i++;
        all.push_back(t.defined() ? alias(t, copies[i], DispatchKey::CPU) : t);
        return all.back();
      });
      stack.push_back(std::move(v));
    }
    try {
      op.redispatchBoxed(keys, &stack);
    } catch (...) {  // by what it has found there, perhaps
      return {};
    }
    for (IValue &v : stack) each(v, [&](const Tensor &t) { return all.push_back(t), t; });
    return all;
  }

  // Marks the elements of a tensor. Returns whether any is undefined.
  bool mark(const Tensor &t, size_t i, std::vector<uint8_t> &marks) const {
    const bool compared = i < runs_[0].size() && i < runs_[1].size() && alike(runs_[0][i], t) && alike(runs_[1][i], t);
    Tensor values[2];
    for (int n = 0; compared && n < 2; n++) values[n] = runs_[n][i].contiguous();
    const size_t item = t.element_size();
    bool any = false;
    std::vector<int64_t> at(t.dim(), 0);
    for (int64_t element = 0; element < t.numel(); element++) {
      int64_t place = t.storage_offset();
      for (int64_t d = 0; d < t.dim(); d++) place += at[d] * t.stride(d);
      const bool same = compared && !std::memcmp(static_cast<const char *>(values[0].const_data_ptr()) + element * item,
                                                 static_cast<const char *>(values[1].const_data_ptr()) + element * item, item);
      any |= !same;
      std::memset(&marks.at(place * item), same ? DEFINED : UNDEFINED, item);
      for (int64_t d = t.dim() - 1; d >= 0 && ++at[d] == t.size(d); d--) at[d] = 0;
    }
    return any;
  }
  static bool alike(const Tensor &a, const Tensor &b) {
    return a.defined() && is_plain(a) && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && !a.is_conj() && !a.is_neg();
  }

  std::vector<Tensor> runs_[2];
  bool runs_twice_ = false;
};

}  // namespace emulated
