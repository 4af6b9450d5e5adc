// Operators that CUDA rounds after each step, or adds up in another order, than torch's CPU kernels do: its arithmetic in
// loops of the host, as operators of the CPU, which the device's go through as through all others.

namespace emulated {

// Sums up along the innermost dimension as ScanUtils.cuh does: Sklansky's tree over two elements a thread.
template <typename T, typename Combine>
void scan_rows(const T *from, T *to, int64_t rows, int64_t n, T identity, Combine combine) {
  auto log2 = [](int64_t n) -> uint32_t { return n > 1 ? 64 - __builtin_clzll(n - 1) : 0; };
  const int64_t width = int64_t(2) << std::clamp<uint32_t>((9 + log2(n) - log2(rows)) / 2, 4, 9);
  std::vector<T> part(width);
  for (int64_t row = 0; row < rows; row++) {
    T before = identity;
    for (int64_t first = 0; first < n; first += width, from += width, to += width) {
      const int64_t m = std::min(width, n - first);
      std::copy_n(from, m, part.begin());
      part[0] = combine(part[0], before);
      for (int64_t s = 1; s < m; s *= 2)
        for (int64_t a = s; a < m; a += 2 * s)
          for (int64_t i = a; i < std::min(a + s, m); i++) part[i] = combine(part[i], part[a - 1]);
      std::copy_n(part.begin(), m, to);
      before = part[m - 1];
      if (m < width) from += m - width, to += m - width;
    }
  }
}
// Along the only dimension, as CUB does: 128 threads, each of which adds up its own elements; then the lanes of a warp, then
// the warps, then the tiles before, 32 at a time, by a tree. An H200 gives these bits for 23 tiles at least; of more, it is
// chance which sums a tile meets.
template <typename T, typename Combine>
void scan_alone(const T *from, T *to, int64_t n, T identity, Combine combine) {
  constexpr int64_t THREADS = 128, LANES = 32, EACH = std::clamp<int64_t>(15 * 4 / sizeof(T), 1, 30);
  std::vector<T> done;  // sums of the tiles before
  auto after = [&](const std::optional<T> &before, T x) { return before ? combine(*before, x) : x; };
  for (int64_t first = 0; first < n; first += THREADS * EACH) {
    const int64_t m = std::min(n - first, THREADS * EACH), threads = (m + EACH - 1) / EACH;
    std::optional<T> tiles;
    for (auto last = done.rbegin(); last != done.rend();) {
      const auto newest = std::exchange(last, last + std::min(LANES, done.rend() - last));
      std::vector<T> window(newest, last);
      for (size_t s = 1; s < window.size(); s *= 2)
        for (size_t i = 0; i + s < window.size(); i++) window[i] = combine(window[i + s], window[i]);
      tiles = tiles ? combine(window[0], *tiles) : window[0];
    }
    std::vector<T> sums(THREADS, identity);
    for (int64_t t = 0; t < threads; t++) {
      sums[t] = from[first + t * EACH];
      for (int64_t i = t * EACH + 1; i < (t + 1) * EACH; i++) sums[t] = combine(sums[t], i < m ? from[first + i] : identity);
    }
    std::optional<T> warps;
    for (int64_t warp = 0; warp < threads; warp += LANES) {
      for (int64_t s = 1; s < LANES; s *= 2)
        for (int64_t lane = LANES; lane-- > s;) sums[warp + lane] = combine(sums[warp + lane - s], sums[warp + lane]);
      for (int64_t t = warp; t < std::min(warp + LANES, threads); t++) {
        std::optional<T> before = t > warp ? after(warps, sums[t - 1]) : warps;
        if (tiles) before = before ? combine(*tiles, *before) : *tiles;
        for (int64_t i = t * EACH; i < std::min((t + 1) * EACH, m); i++) {
          before = after(before, from[first + i]);
          to[first + i] = *before;
        }
      }
      warps = after(warps, sums[warp + LANES - 1]);
    }
    done.push_back(*warps);
  }
}
template <typename Run>
void of_dtype(at::ScalarType dtype, Run run) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "emulated_gpu", [&] { run(scalar_t(0)); });
}
template <typename Combine>
Tensor scan(const Tensor &given, int64_t dim, double identity, Combine combine) {
  const Tensor x = given.contiguous();
  Tensor y = at::empty_like(x);
  const int64_t n = x.size(dim), inner = x.stride(dim);
  of_dtype(x.scalar_type(), [&]<typename T>(T) {
    const T *from = x.const_data_ptr<T>();
    T *to = y.mutable_data_ptr<T>();
    if (n == x.numel()) return scan_alone(from, to, n, T(identity), combine);
    if (dim == x.dim() - 1) return scan_rows(from, to, x.numel() / n, n, T(identity), combine);
    for (int64_t i = 0; i < x.numel(); i++) to[i] = combine(i / inner % n ? to[i - inner] : T(identity), from[i]);
  });
  return y;
}
bool scans(const Tensor &x, int64_t &dim) {
  if (!x.dim() || !x.numel() || !c10::isFloatingType(x.scalar_type())) return false;
  dim = at::maybe_wrap_dim(dim, x.dim());
  return true;
}
Tensor cumsum(const Tensor &self, int64_t dim, std::optional<at::ScalarType> dtype) {
  const Tensor x = self.to(dtype.value_or(self.scalar_type()));
  return scans(x, dim) ? scan(x, dim, 0, []<typename T>(T a, T b) { return T(a + b); }) : at::cumsum(x, dim);
}
Tensor cumprod(const Tensor &self, int64_t dim, std::optional<at::ScalarType> dtype) {
  const Tensor x = self.to(dtype.value_or(self.scalar_type()));
  return scans(x, dim) ? scan(x, dim, 1, []<typename T>(T a, T b) { return T(a * b); }) : at::cumprod(x, dim);
}
Tensor logcumsumexp(const Tensor &x, int64_t dim) {
  if (!scans(x, dim)) return at::_logcumsumexp(x, dim);
  return scan(x, dim, -std::numeric_limits<double>::infinity(), []<typename T>(T a, T b) {
    const at::acc_type<T, true> x = a, y = b;
    const auto low = std::isnan(y) ? y : std::min(x, y), high = std::isnan(y) ? y : std::max(x, y);
    return low != high || std::isfinite(low) ? T(std::log1p(std::exp(low - high)) + high) : a;
  });
}

// The gradient of adaptive average pooling : AdaptiveAveragePooling.cu and ..3d.cu.
template <int dims>
Tensor adaptive_gradient(const Tensor &gradient, const Tensor &self) {
  const Tensor g = gradient.contiguous();
  Tensor x = at::zeros(self.sizes(), g.options());
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1};  // depth, height, width
  std::copy_n(x.sizes().end() - dims, dims, in + 3 - dims), std::copy_n(g.sizes().end() - dims, dims, out + 3 - dims);
  const bool apart = !(in[0] % out[0] || in[1] % out[1] || in[2] % out[2]);  // whose windows share no element
  auto begin = [&](int d, int64_t i) { return i * in[d] / out[d]; };
  auto end = [&](int d, int64_t i) { return ((i + 1) * in[d] + out[d] - 1) / out[d]; };
  of_dtype(g.scalar_type(), [&]<typename T>(T) {
    const T *from = g.const_data_ptr<T>();
    T *to = x.mutable_data_ptr<T>();
    for (int64_t plane = 0; plane < x.numel() / (in[0] * in[1] * in[2]); plane++, to += in[0] * in[1] * in[2])
      for (int64_t d = out[0]; d--;)  // an H200's atomics come in this order
        for (int64_t h = out[1]; h--;)
          for (int64_t w = out[2]; w--;) {
            const T deep(end(0, d) - begin(0, d)), high(end(1, h) - begin(1, h)), wide(end(2, w) - begin(2, w)), g = from[((plane * out[0] + d) * out[1] + h) * out[2] + w];
            const T share = dims == 2 && !apart ? T(T(g / wide) / high) : T(T(T(g / deep) / high) / wide);
            for (int64_t i = begin(0, d); i < end(0, d); i++)
              for (int64_t j = begin(1, h); j < end(1, h); j++)
                for (int64_t k = begin(2, w); k < end(2, w); k++) to[(i * in[1] + j) * in[2] + k] += share;
          }
  });
  return x;
}

// Interpolation with antialiasing: UpSampleBilinear2d.cu keeps weights, and rows between its two passes, as elements are.
template <typename T, typename Filter>
Tensor resized_with_filter(const Tensor &x, const int64_t (&out)[2], const float (&scale)[2], float size, Filter filter) {
  Tensor from = x.contiguous();
  for (int d : {1, 0}) {  // along rows, then along columns
    const int64_t n = from.size(2 + d), inner = d ? 1 : from.size(3);
    auto shape = from.sizes().vec();
    shape[2 + d] = out[d];
    Tensor y = at::empty(shape, from.options());
    const float support = size / 2 * std::max(scale[d], 1.0f), inverse = 1 / std::max(scale[d], 1.0f);
    for (int64_t i = 0; i < out[d]; i++) {
      const float centre = scale[d] * (i + 0.5f);
      const int64_t begin = std::max(int64_t(centre - support + 0.5f), int64_t(0));
      const int64_t count = std::min(int64_t(centre + support + 0.5f), n) - begin;
      std::vector<T> weights(count);
      float total = 0;
      for (int64_t j = 0; j < count; j++) {
        const float w = filter(std::abs((j + (begin - centre) + 0.5f) * inverse));
        weights[j] = T(w), total += w;
      }
      for (T &w : weights)
        if (total != 0) w = T(w / T(total));
      const T *row = from.const_data_ptr<T>() + begin * inner;
      T *to = y.mutable_data_ptr<T>() + i * inner;
      for (int64_t plane = 0; plane < from.numel() / (n * inner); plane++, row += n * inner, to += out[d] * inner)
        for (int64_t k = 0; k < inner; k++) {
          float sum = 0;
          for (int64_t j = 0; j < count; j++) sum += float(row[j * inner + k]) * float(weights[j]);
          to[k] = T(sum);
        }
    }
    from = y;
  }
  return from;
}
template <bool cubic>
Tensor interpolated(const Tensor &x, at::IntArrayRef size, bool corners, std::optional<double> h, std::optional<double> w) {
  const int64_t out[2] = {size[0], size[1]};
  float scale[2];
  for (int d : {0, 1}) {
    const auto &given = d ? w : h;
    const int64_t n = x.size(2 + d);
    scale[d] = corners ? (out[d] > 1 ? float(n - 1) / (out[d] - 1) : 0.0f) : given && *given > 0 ? float(1 / *given) : float(n) / out[d];
  }
  Tensor y;
  of_dtype(x.scalar_type(), [&]<typename T>(T) {
    y = resized_with_filter<T>(x, out, scale, cubic ? 4 : 2, [](float x) {
      if (!cubic) return std::max(1 - x, 0.0f);
      return x < 1 ? (1.5f * x - 2.5f) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5f : 0.0f;
    });
  });
  return y;
}

bool is_half(const Tensor &t) {
  return t.defined() && (c10::isReducedFloatingType(t.scalar_type()) || t.scalar_type() == at::kComplexHalf);
}
Tensor widened(const Tensor &t) { return is_half(t) ? t.to(t.is_complex() ? at::kComplexFloat : at::kFloat) : t; }
Tensor narrowed(const Tensor &t, const Tensor &like) {
  return t.defined() ? t.to(t.is_complex() ? c10::toComplexType(like.scalar_type()) : c10::toRealValueType(like.scalar_type())) : t;
}
double narrowed(double x, const Tensor &like) { return narrowed(at::scalar_tensor(x), like).item<double>(); }

Tensor round_decimals(const Tensor &x, int64_t decimals) {
  const double ten = narrowed(std::pow(10, std::abs(decimals)), x);
  const Tensor wide = widened(x), whole = widened(narrowed(decimals < 0 ? wide / ten : wide * ten, x)).round();
  return narrowed(decimals < 0 ? whole * ten : whole / ten, x);
}
Tensor reduced(const Tensor &loss, int64_t reduction) {
  return reduction == at::Reduction::None ? loss : reduction == at::Reduction::Mean ? loss.mean() : loss.sum();
}
Tensor huber_loss(const Tensor &x, const Tensor &target, int64_t reduction, double given) {
  const double delta = narrowed(given, x);
  const Tensor z = widened(x - target).abs();
  return reduced(narrowed(at::where(z < delta, z * 0.5 * z, (z - 0.5 * delta) * delta), x), reduction);
}
Tensor smooth_l1_loss(const Tensor &x, const Tensor &target, int64_t reduction, double given) {
  const double beta = narrowed(given, x);
  const Tensor z = widened(x - target).abs();
  return reduced(narrowed(at::where(z < beta, z * 0.5 * z / beta, z - 0.5 * beta), x), reduction);
}
// The gradient, of which every step is rounded. given: where the parabola becomes a line.
template <bool huber>
Tensor of_loss(const Tensor &g, const Tensor &x, const Tensor &target, int64_t reduction, double given) {
  const double limit = narrowed(given, x), norm = narrowed(reduction == at::Reduction::Mean ? 1.0 / x.numel() : 1.0, x);
  const Tensor z = x - target, line = huber ? g * norm * limit : g * norm, inside = z * norm * g;
  return at::where(z < -limit, -line, at::where(z > limit, line, huber ? inside : inside / limit));
}
Tensor tanh_backward(const Tensor &gradient, const Tensor &output) { return gradient * at::rsub(output * output, 1); }

// Each window's share is rounded, the sum of shares is not.
Tensor avg_pool2d_backward(const Tensor &g, const Tensor &x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                           bool ceil, bool counts_padding, std::optional<int64_t> divisor) {
  Tensor window = at::scalar_tensor(divisor.value_or(1), at::kFloat);
  for (int d = 0; d < 2 && !divisor; d++) {
    auto of = [&](at::IntArrayRef given) { return given[given.size() > 1 ? d : 0]; };
    const int64_t step = of(stride.empty() ? kernel : stride), pad = of(padding), n = x.size(d - 2);
    const Tensor begin = at::arange(g.size(d - 2), at::kFloat) * step - pad, end = (begin + of(kernel)).clamp_max(n + pad);
    const Tensor length = counts_padding ? end - begin : end.clamp_max(n) - begin.clamp_min(0);
    window = window * (d ? length : length.unsqueeze(1));
  }
  const Tensor share = widened(narrowed(widened(g) / window, g));
  return narrowed(at::avg_pool2d_backward(share, widened(x), kernel, stride, padding, ceil, true, 1), g);
}

// As torch's, of halves, and cumsum and cumprod of all floating-point numbers: ScanKernels.cu, UnaryFractionKernels.cu,
// BinaryMiscOpsKernels.cu, BinaryMiscBackwardOpsKernels.cu, AveragePool2d.cu.
TORCH_LIBRARY_FRAGMENT(emulated_gpu, m) {
  auto define = [&](const char *schema, auto function) { m.def(schema, torch::dispatch(DispatchKey::CPU, function)); };
  define("cumsum(Tensor self, int dim, ScalarType? dtype) -> Tensor", cumsum);
  define("cumprod(Tensor self, int dim, ScalarType? dtype) -> Tensor", cumprod);
  define("_logcumsumexp(Tensor self, int dim) -> Tensor", logcumsumexp);
  define("round.decimals(Tensor self, int decimals) -> Tensor", round_decimals);
  define("huber_loss(Tensor self, Tensor target, int reduction, float delta) -> Tensor", huber_loss);
  define("smooth_l1_loss(Tensor self, Tensor target, int reduction, float beta) -> Tensor", smooth_l1_loss);
  define("huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> Tensor", of_loss<true>);
  define("smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor", of_loss<false>);
  define("tanh_backward(Tensor grad_output, Tensor output) -> Tensor", tanh_backward);
  define("avg_pool2d_backward(Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, "
         "bool count_include_pad, int? divisor_override) -> Tensor", avg_pool2d_backward);
  define("_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor", adaptive_gradient<2>);
  define("_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor", adaptive_gradient<3>);
  define("_upsample_bilinear2d_aa(Tensor self, int[] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor", interpolated<false>);
  define("_upsample_bicubic2d_aa(Tensor self, int[] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor", interpolated<true>);
}

void by_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// A form of such an operator of torch's: that which returns its result, writes it to out=, or in place.
class RoundedForm : public c10::OperatorKernel {
 public:
  RoundedForm(const c10::FunctionSchema &schema, c10::OperatorHandle ours) : ours_(ours) {
    of_floats_ = schema.name().find("cumsum") != std::string::npos || schema.name().find("cumprod") != std::string::npos;
    for (size_t i = 0; i < schema.arguments().size(); i++)
      if (const auto *info = schema.arguments()[i].alias_info(); info && info->isWrite()) into_ = int(i);
  }
  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
    const size_t arguments = op.schema().arguments().size();
    const Tensor x = (*stack)[stack->size() - arguments].toTensor();
    if (!c10::isReducedFloatingType(x.scalar_type()) && !(of_floats_ && x.is_floating_point())) return by_the_cpu(op, stack);
    torch::jit::Stack given(stack->end() - arguments, stack->end());
    if (at::globalContext().deterministicAlgorithms()) alert_not_deterministic(op.schema(), given);
    const Tensor into = into_ < 0 ? Tensor() : given[into_].toTensor();
    given.resize(ours_.schema().arguments().size());
    ours_.callBoxed(&given);
    Tensor y = given[0].toTensor();
    torch::jit::drop(*stack, arguments);
    if (into.defined()) {
      if (into.sizes() != y.sizes()) into.resize_(y.sizes());
      y = into.copy_(y);
    }
    stack->push_back(y);
  }

 private:
  c10::OperatorHandle ours_;
  int into_ = -1;
  bool of_floats_ = false;
};

// Our operator of the same name: round.decimals of round_.decimals and round.decimals_out, too.
std::optional<c10::OperatorHandle> rounded(const c10::OperatorName &name) {
  if (name.getNamespace() != "aten") return std::nullopt;
  auto cut = [](std::string text, const char *end) { return text.ends_with(end) ? text.substr(0, text.size() - std::strlen(end)) : text; };
  std::string form = name.overload_name == "out" || name.overload_name == "grad_input" ? "" : cut(name.overload_name, "_out");
  return c10::Dispatcher::singleton().findSchema({"emulated_gpu::" + cut(name.name.substr(6), "_"), form});
}

}  // namespace emulated
