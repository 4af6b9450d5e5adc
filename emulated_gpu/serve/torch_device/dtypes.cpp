// Operators that torch's CPU kernels have for more dtypes than CUDA's do, and so would pass here and fail on a GPU: by
// `dtypes` and `dtypesIfCUDA` of torch's own samples (torch.testing, op_db).

namespace emulated {

void refuse_dtype(const c10::FunctionSchema &schema, c10::ArrayRef<IValue> given) {
  using at::ScalarType;
  using Refused = bool (*)(ScalarType);
  static const Refused integers = [](ScalarType t) { return c10::isIntegralType(t, false); };
  static const Refused int64 = [](ScalarType t) { return t == ScalarType::Long; };
  static const Refused bytes = [](ScalarType t) { return t == ScalarType::Byte; };
  static const Refused halves = [](ScalarType t) { return c10::isReducedFloatingType(t); };
  static const Refused bfloat16 = [](ScalarType t) { return t == ScalarType::BFloat16; };
  static const Refused all = [](ScalarType) { return true; };
  static const std::unordered_map<std::string, Refused> refused{
      {"mm", integers}, {"addmm", integers}, {"bmm", integers}, {"baddbmm", integers}, {"addbmm", integers}, {"mv", integers},
      {"addmv", integers}, {"dot", integers}, {"vdot", integers}, {"max_pool2d_with_indices", integers},
      {"max_pool3d_with_indices", integers}, {"avg_pool2d", int64}, {"avg_pool3d", int64}, {"convolution", int64},
      {"upsample_bilinear2d", bytes}, {"upsample_bicubic2d", bytes}, {"_upsample_bilinear2d_aa", bytes}, {"igamma", halves},
      {"igammac", halves}, {"angle", halves}, {"histc", halves}, {"histogram", all}, {"_histogramdd_bin_edges", all},
      {"_histogramdd_from_bin_cts", all}, {"_histogramdd_from_bin_tensors", all}, {"_sparse_mm_reduce_impl", all},
      {"_embedding_bag_per_sample_weights_backward", bfloat16}, {"_upsample_lanczos2d_aa", all}, {"_nested_sum_backward", all}};
  if (schema.name().rfind("aten::", 0) || given.empty() || !given[0].isTensor()) return;
  std::string name = schema.name().substr(6);
  if (name.back() == '_') name.pop_back();
  const ScalarType dtype = given[0].toTensor().scalar_type();
  if (name == "scatter_reduce" && dtype == ScalarType::Bool && given[4].toStringRef() != "sum" && given[4].toStringRef() != "mean")
    TORCH_CHECK_NOT_IMPLEMENTED(false, "\"scatter_reduce\" of '", given[4].toStringRef(), "' not implemented for 'Bool' on CUDA");
  if (is_of_largest(schema, given)) name = "_embedding_bag_per_sample_weights_backward";  // which is refused alike
  const auto found = refused.find(name);
  if (found == refused.end()) return;
  for (const c10::IValue &v : given)  // of which CUDA looks at no element: of indices may be none
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().scalar_type() == dtype && !v.toTensor().is_sparse_csr() && !v.toTensor().numel()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!found->second(dtype), "\"", name, "\" not implemented for '", toString(dtype),
                              "' on CUDA, though torch's CPU kernel has it");
}

}  // namespace emulated
