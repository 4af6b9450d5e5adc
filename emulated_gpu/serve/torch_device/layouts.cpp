// Tensors that are more than a piece of memory: sparse, nested and quantized ones are made of plain ones.

namespace emulated {

bool is_plain(const Tensor &t) { return t.layout() == c10::kStrided && !t.is_nested() && !t.is_quantized(); }

bool is_compressed(const Tensor &t) { return t.layout() != c10::kStrided && t.layout() != c10::kSparse && t.layout() != c10::kJagged; }

// The same tensor on the other side, of parts that are there: `plain` moves a plain tensor, `memory` a storage.
template <class Plain, class Memory>
Tensor of_parts(const Tensor &t, bool cuda, const std::string &name, Plain plain, Memory memory) {
  auto key = [&](DispatchKey host, DispatchKey device) { return c10::DispatchKeySet(cuda ? device : host); };
  if (t.is_sparse()) {
    auto *from = at::sparse::get_sparse_impl(t);
    auto made = at::detail::make_tensor<at::SparseTensorImpl>(key(DispatchKey::SparseCPU, DispatchKey::SparseCUDA), t.dtype());
    auto *to = at::sparse::get_sparse_impl(made);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), t.sizes());
    to->set_indices_and_values_unsafe(plain(from->indices()), plain(from->values()));
    to->set_coalesced(from->coalesced());
    return made;
  }
  if (is_compressed(t)) {
    auto *from = at::sparse_csr::get_sparse_csr_impl(t);
    auto keys = key(DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrCUDA);
    auto compressed = plain(from->compressed_indices()), indices = plain(from->plain_indices()), values = plain(from->values());
    auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, values.device(), t.layout(), t.dtype());
    at::sparse_csr::get_sparse_csr_impl(made)->set_member_tensors(compressed, indices, values, t.sizes());
    return made;
  }
  if (t.is_nested()) {
    auto *from = static_cast<at::native::NestedTensorImpl *>(t.unsafeGetTensorImpl());
    auto keys = key(DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA).add(DispatchKey::AutogradNestedTensor);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(memory(t.unsafeGetTensorImpl()->unsafe_storage()), keys, t.dtype(),
                                                                 from->get_nested_sizes(), from->get_nested_strides(),
                                                                 from->get_storage_offsets());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(t.is_quantized() && at::get_qtensorimpl(t)->quantizer()->qscheme() == at::kPerTensorAffine, name, " of ",
                              t.is_quantized() ? "tensors quantized by channels" : c10::str(t.layout()),
                              " on the emulated device");
  auto made = at::detail::make_tensor<at::QTensorImpl>(memory(t.storage()), key(DispatchKey::QuantizedCPU, DispatchKey::QuantizedCUDA),
                                                       t.dtype(), at::get_qtensorimpl(t)->quantizer());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

// Lets `to`, on a device, be made of what the host's tensor is made of now.
template <class Plain>
void take_parts(const Tensor &to, const Tensor &host, Plain plain) {
  if (to.is_sparse()) {
    auto *a = at::sparse::get_sparse_impl(to), *b = at::sparse::get_sparse_impl(host);
    if (a->sizes() != b->sizes() || a->sparse_dim() != b->sparse_dim())
      a->raw_resize_(b->sparse_dim(), b->dense_dim(), b->sizes());
    a->set_indices_and_values_unsafe(plain(b->indices()), plain(b->values()));
    a->set_coalesced(b->coalesced());
  } else if (is_compressed(to)) {
    auto *a = at::sparse_csr::get_sparse_csr_impl(to), *b = at::sparse_csr::get_sparse_csr_impl(host);
    a->set_member_tensors(plain(b->compressed_indices()), plain(b->plain_indices()), plain(b->values()), b->sizes());
  }
}

}  // namespace emulated
