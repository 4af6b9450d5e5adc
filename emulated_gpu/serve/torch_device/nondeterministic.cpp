// Operators that CUDA carries out in an order of its own, and so refuses under torch.use_deterministic_algorithms(True):
// the second list of https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html, as far as
// torch's CPU kernels do not refuse them themselves. cumsum and reflection_pad2d_backward are in it, and an H200 carries them out.

namespace emulated {

// Whether it is the gradient of bags of which the largest elements were taken.
bool is_of_largest(const c10::FunctionSchema &schema, c10::ArrayRef<IValue> given) {
  const std::string &name = schema.name();
  return (name == "aten::_embedding_bag_backward" || name == "aten::_embedding_bag_dense_backward") &&
         given[*schema.argumentIndexWithName("mode")].toInt() == 2;
}

void alert_not_deterministic(const c10::FunctionSchema &schema, c10::ArrayRef<IValue> given) {
  static const std::set<std::string> always{
      "avg_pool3d_backward", "max_pool3d_with_indices_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
      "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward", "upsample_linear1d_backward",
      "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward",
      "_upsample_bicubic2d_aa_backward", "reflection_pad1d_backward", "reflection_pad3d_backward", "nll_loss2d_forward",
      "_ctc_loss_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "index_reduce"};
  if (schema.name().rfind("aten::", 0)) return;
  std::string name = schema.name().substr(6);
  if (name.back() == '_') name.pop_back();
  auto argument = [&](const char *of) -> const IValue & { return given[*schema.argumentIndexWithName(of)]; };
  const bool alert = always.count(name) || (name == "histc" && given[0].toTensor().is_floating_point()) ||
                     (name == "bincount" && !argument("weights").isNone()) || (name == "put" && argument("accumulate").toBool()) ||
                     (name == "scatter_reduce" && argument("reduce").toStringRef() == "prod") ||
                     ((name == "median" || name == "nanmedian") && schema.argumentIndexWithName("dim")) || is_of_largest(schema, given);
  if (alert) at::Context::alertNotDeterministic(name + " on a CUDA tensor");
}

}  // namespace emulated
