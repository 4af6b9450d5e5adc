// Random numbers as CUDA's kernels draw them: the same seed gives a script the same uniform numbers, integers, masks and
// permutations as on a GPU with as many SMs, bit by bit. Normal numbers, and logarithms and tangents of uniform ones,
// differ from a GPU's in the last places, which its approximate functions leave open.
//
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) makes four words of a seed, a thread
// and a count. Which thread draws an element, and at which count: DistributionTemplates.h, Dropout.cu and Randperm.cuh of
// https://github.com/pytorch/pytorch/tree/main/aten/src/ATen/native/cuda.

namespace emulated {

struct DrawState {
  uint64_t seed = c10::default_rng_seed_val, offset = 0;  // words that each thread has drawn, 4 at once
};

bool is_captured(int64_t queue);
void refuse_in_a_capture(const char *call) {
  TORCH_CHECK(!is_captured(streams[current]), "Cannot ", call, " during CUDA graph capture.");
}

struct Generator final : c10::GeneratorImpl {
  std::shared_ptr<DrawState> state = std::make_shared<DrawState>();

  explicit Generator(DeviceIndex i) : GeneratorImpl(Device(DeviceType::CUDA, i), c10::DispatchKeySet(DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t s) override {
    const bool other = s != state->seed;
    TORCH_CHECK(!other || !is_captured(streams[current]), "CUDAGeneratorImpl::set_current_seed can be called during stream "
                "capture only if new seed is the same as the original seed.");
    state->seed = s, state->offset = 0;
  }
  void set_offset(uint64_t n) override { refuse_in_a_capture("call CUDAGeneratorImpl::set_offset"), go_to(n); }
  void go_to(uint64_t n) {
    TORCH_CHECK(n % 4 == 0, "offset must be a multiple of 4");
    state->offset = n;
  }
  uint64_t get_offset() const override { return refuse_in_a_capture("call CUDAGeneratorImpl::get_offset"), state->offset; }
  uint64_t current_seed() const override { return state->seed; }
  uint64_t seed() override { return refuse_in_a_capture("call CUDAGeneratorImpl::seed"), set_current_seed(c10::detail::getNonDeterministicRandom(true)), state->seed; }
  void set_state(const c10::TensorImpl &s) override {
    at::detail::check_rng_state(s);
    TORCH_CHECK(s.numel() == sizeof(DrawState) || s.numel() == sizeof(uint64_t), "RNG state is wrong size");
    DrawState given;
    std::memcpy(&given, s.data(), s.numel());
    set_current_seed(given.seed), go_to(given.offset);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor bytes = at::empty({sizeof(DrawState)}, at::kByte);
    std::memcpy(bytes.data_ptr(), state.get(), sizeof(DrawState));
    return bytes.getIntrusivePtr();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto other = c10::make_intrusive<Generator>(device().index());
    other->state = state;
    return other;
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl> &s) override { state = static_cast<Generator &>(*s).state; }
  Generator *clone_impl() const override {
    auto *other = new Generator(device().index());
    *other->state = *state;
    return other;
  }

  // For one draw whose CUDA kernel is not told here, and which takes so many words: a generator of the CPU, which the state
  // determines.
  at::Generator of_cpu(uint64_t words) {
    const uint64_t before = std::exchange(state->offset, state->offset + words);
    return at::detail::createCPUGenerator(state->seed ^ 0x9E3779B97F4A7C15 * (before + 1));
  }
};

Generator &generator_of(const at::Generator &given) {
  TORCH_CHECK(given.device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu'");
  return static_cast<Generator &>(*given.unsafeGetGeneratorImpl());
}

DeviceIndex known(DeviceIndex i) { return i < 0 ? current : i; }
const at::Generator &default_generator(DeviceIndex i) {
  static auto *all = [] {
    auto *v = new std::vector<at::Generator>;
    for (DeviceIndex k = 0; k < DEVICES; k++) v->push_back(at::make_generator<Generator>(k));
    return v;
  }();
  return (*all)[known(i)];
}

// -- words of many threads, and numbers of them

constexpr int THREADS = 256;  // of a block, which draws side by side
uint64_t most_blocks = 1;     // of one kernel: those that the GPU has room for
using Words = uint32_t[4][THREADS];

#define WIDE __attribute__((target_clones("avx2", "default"), optimize("O3")))

WIDE void words_of_threads(uint64_t seed, uint64_t count, uint64_t first, int threads, uint32_t (*out)[THREADS]) {
  for (int t = 0; t < threads; t++) {
    const uint64_t thread = first + t;
    uint32_t a = uint32_t(count), b = uint32_t(count >> 32), c = uint32_t(thread), d = uint32_t(thread >> 32);
    uint32_t key = uint32_t(seed), other_key = uint32_t(seed >> 32);
    for (int round = 0; round < 10; round++) {
      const uint64_t p = uint64_t(a) * 0xD2511F53, q = uint64_t(c) * 0xCD9E8D57;
      a = uint32_t(q >> 32) ^ b ^ key, b = uint32_t(q), c = uint32_t(p >> 32) ^ d ^ other_key, d = uint32_t(p);
      key += 0x9E3779B9, other_key += 0xBB67AE85;
    }
    out[0][t] = a, out[1][t] = b, out[2][t] = c, out[3][t] = d;
  }
}

WIDE void uniform_of(const uint32_t *words, int threads, float *out) {  // above 0, at most 1
  for (int t = 0; t < threads; t++) out[t] = float(words[t]) * 0x1p-32f + 0x1p-33f;
}

__attribute__((always_inline)) inline float sine_of_turns(float x) {  // |x| <= 0.25, by Taylor's series of the angle
  const float angle = x * 6.28318531f, z = angle * angle;
  return angle * (1 + z * (-1.f / 6 + z * (1.f / 120 + z * (-1.f / 5040 + z * (1.f / 362880 + z * (-1.f / 39916800))))));
}

// Box and Muller's pairs, sines first.
WIDE void normal_of(const uint32_t *radius, const uint32_t *angle, int threads, float *sines, float *cosines) {
  for (int t = 0; t < threads; t++) {
    const float u = float(radius[t]) * 0x1p-32f + 0x1p-33f;
    uint32_t bits;
    std::memcpy(&bits, &u, sizeof bits);
    const int32_t exponent = int32_t(bits - 0x3F3504F3) >> 23;  // the rest lies around 1, from sqrt(1/2)
    bits -= uint32_t(exponent) << 23;
    float rest;
    std::memcpy(&rest, &bits, sizeof rest);
    const float s = (rest - 1) / (rest + 1), z = s * s;
    const float logarithm = float(exponent) * 0.693147181f + 2 * s * (1 + z * (1.f / 3 + z * (1.f / 5 + z * (1.f / 7 + z * (1.f / 9)))));
    const float square = -2 * logarithm, r = __builtin_sqrtf(square > 0 ? square : 0);
    const float turns = (float(angle[t]) * 1.46291807e-9f + 7.31459036e-10f) * 0.159154943f;  // as radians, and back
    const float around = turns > 0.5f ? turns - 1 : turns, away = __builtin_fabsf(around);
    const float half = away > 0.25f ? 0.5f - away : away;
    sines[t] = r * sine_of_turns(around < 0 ? -half : half), cosines[t] = r * sine_of_turns(0.25f - away);
  }
}

// -- what a thread takes of its four words: `Taken::value[i]` is for its i-th element

struct AsWords {
  static constexpr int taken = 4;
  uint32_t value[4][THREADS];
  AsWords(const Words &words, int) { std::memcpy(value, words, sizeof value); }
};
struct AsLongWords {
  static constexpr int taken = 2;
  uint64_t value[2][THREADS];
  AsLongWords(const Words &words, int threads) {
    for (int i = 0; i < 2; i++)
      for (int t = 0; t < threads; t++) value[i][t] = uint64_t(words[2 * i][t]) << 32 | words[2 * i + 1][t];
  }
};
inline uint64_t mantissa(uint32_t low, uint32_t high) { return uint64_t(low) ^ uint64_t(high) << 21; }
template <typename T>
struct AsUniform {
  static constexpr int taken = std::is_same_v<T, double> ? 2 : 4;
  T value[taken][THREADS];
  AsUniform(const Words &words, int threads) {
    for (int i = 0; i < taken; i++)
      if constexpr (std::is_same_v<T, float>)
        uniform_of(words[i], threads, value[i]);
      else
        for (int t = 0; t < threads; t++) value[i][t] = double(mantissa(words[2 * i][t], words[2 * i + 1][t])) * 0x1p-53 + 0x1p-54;
  }
};
template <typename T>
struct AsNormal {
  static constexpr int taken = std::is_same_v<T, double> ? 2 : 4;
  T value[taken][THREADS];
  AsNormal(const Words &words, int threads) {
    if constexpr (std::is_same_v<T, float>) {
      for (int i = 0; i < 4; i += 2) normal_of(words[i], words[i + 1], threads, value[i], value[i + 1]);
    } else {
      for (int t = 0; t < threads; t++) {
        const double r = std::sqrt(-2 * std::log(double(mantissa(words[0][t], words[1][t])) * 0x1p-53 + 0x1p-54));
        const double angle = M_PI * (double(mantissa(words[2][t], words[3][t])) * 0x1p-52 + 0x1p-53);
        value[0][t] = r * std::sin(angle), value[1][t] = r * std::cos(angle);
      }
    }
  }
};

// How many threads draw n elements, if one takes so many at once; the generator's offset moves on.
struct Policy {
  uint64_t seed, count, threads, rounds;
  Policy(Generator &g, int64_t n, int taken) : seed(g.state->seed), count(g.state->offset / 4) {
    threads = std::clamp<uint64_t>((n + THREADS - 1) / THREADS, 1, most_blocks) * THREADS;
    rounds = (n + threads * taken - 1) / (threads * taken);
    g.state->offset += 4 * rounds;
  }
};

// Calls put(element, value) for n elements: a thread's lie `threads` apart.
template <typename Taken, typename Put>
void draw(Generator &g, int64_t n, const Put &put) {
  const Policy policy(g, n, Taken::taken);
  Words words;
  for (uint64_t round = 0; round < policy.rounds; round++)
    for (uint64_t thread = 0; thread < policy.threads; thread += THREADS) {
      const uint64_t first = round * policy.threads * Taken::taken + thread;
      if (first >= uint64_t(n)) break;
      const int some = int(std::min<uint64_t>(THREADS, n - first));
      words_of_threads(policy.seed, policy.count + round, thread, some, words);
      const Taken taken(words, some);
      for (int i = 0; i < Taken::taken; i++)
        for (int64_t t = 0, at = int64_t(first + i * policy.threads); t < some && at + t < n; t++) put(at + t, taken.value[i][t]);
    }
}

// Fills a tensor with of(value), a T, in the order in which CUDA goes through its elements.
template <typename T, typename Taken, typename Of>
void fill(at::TensorIteratorBase &iter, Generator &g, const Of &of) {
  const int64_t n = iter.numel();
  if (!iter.can_use_32bit_indexing()) {
    Policy moves_on(g, n, Taken::taken);
    for (auto &part : iter.with_32bit_indexing()) fill<T, Taken>(part, g, of);
    return;
  }
  const auto options = at::TensorOptions().dtype(iter.dtype());
  const bool there = iter.is_contiguous() && iter.dtype() == c10::CppTypeToScalarType<T>::value;
  const Tensor apart = there ? Tensor() : at::empty({n}, options.dtype(c10::CppTypeToScalarType<T>::value));
  T *to = static_cast<T *>(there ? iter.data_ptr(0) : apart.data_ptr());
  const auto page = (reinterpret_cast<uintptr_t>(to) + PAGE - 1) & ~(PAGE - 1), end = reinterpret_cast<uintptr_t>(to + n);
  if (end > page + LARGE) madvise(reinterpret_cast<void *>(page), end - page, MADV_HUGEPAGE);  // which come in a third of the time
  draw<Taken>(g, n, [&](int64_t at, auto value) { to[at] = of(value); });
  if (there) return;
  std::vector<int64_t> sizes(iter.shape().rbegin(), iter.shape().rend()), strides(iter.strides(0).rbegin(), iter.strides(0).rend());
  for (auto &stride : strides) stride /= int64_t(c10::elementSize(iter.dtype()));
  at::from_blob(iter.data_ptr(0), sizes, strides, options).copy_(apart.view(sizes));
}

template <typename T>
inline T fma_of(T a, T b, T c) {  // as nvcc contracts a * b + c
  return c == 0 ? a * b : std::fma(a, b, c);
}
template <typename T>
inline T as_half(T x, at::ScalarType dtype) {  // rounded as elements are
  return dtype == at::kHalf ? T(c10::Half(float(x))) : dtype == at::kBFloat16 ? T(c10::BFloat16(float(x))) : x;
}

// What one thread of curand's draws, number after number.
struct Thread {
  uint64_t seed, count, number;
  int taken = 4;
  std::optional<float> cosine;
  Words words;
  Thread(const DrawState &state, uint64_t number) : seed(state.seed), count(state.offset / 4), number(number) {}

  uint32_t word() {
    if (taken == 4) words_of_threads(seed, count++, number, 1, words), taken = 0;
    return words[taken++][0];
  }
  float uniform() {
    const uint32_t drawn = word();
    float x;
    return uniform_of(&drawn, 1, &x), x;
  }
  float normal() {
    if (cosine) return *std::exchange(cosine, {});
    const uint32_t radius = word(), angle = word();
    float sine;
    return normal_of(&radius, &angle, 1, &sine, &cosine.emplace()), sine;
  }
};

// Returns of(thread, element) of each, as Distributions.cu does: a block's `side` threads have `each` elements, `side` apart.
template <typename Of>
Tensor by_threads(const Tensor &like, Generator &g, uint64_t words, int64_t side, int64_t each, Of of) {
  const Tensor x = like.contiguous(), made = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "draws", [&] {
    for (int64_t first = 0, n = x.numel(); first < n; first += side * each)
      for (int64_t t = 0; t < side && first + t < n; t++) {
        Thread thread(*g.state, first / each + t);
        for (int64_t i = first + t; i < std::min(n, first + side * each); i += side)
          made.data_ptr<scalar_t>()[i] = of(thread, x.const_data_ptr<scalar_t>()[i], i);
      }
  });
  g.state->offset += words;
  return made;
}

// -- torch's operators: its own templates check their operands, and call these

template <template <typename> class As, typename Of>
void fill_floats(at::TensorIteratorBase &iter, const std::optional<at::Generator> &g, const Of &of) {
  if (iter.dtype() == at::kDouble)
    fill<double, As<double>>(iter, generator_of(*g), of);
  else
    fill<float, As<float>>(iter, generator_of(*g), of);
}

template <typename>
struct Uniform {
  void operator()(at::TensorIteratorBase &iter, double from_, double to_, std::optional<at::Generator> g) const {
    const auto dtype = iter.dtype();
    auto rounded = [=](double x) { return dtype == at::kDouble ? x : double(as_half(float(x), dtype)); };
    const double from = rounded(from_), to = rounded(to_), range = rounded(to - from);
    fill_floats<AsUniform>(iter, g, [=](auto value) {
      using T = decltype(value);
      const T x = as_half(fma_of(value, T(range), T(from)), dtype);
      return x == T(to) ? T(from) : x;
    });
  }
};
template <typename>
struct Normal {
  void operator()(const at::TensorBase &x, double mean, double std, std::optional<at::Generator> g) const {
    auto iter = at::TensorIterator::borrowing_nullary_op(x);
    fill_floats<AsNormal>(iter, g, [=](auto value) { return fma_of(value, decltype(value)(std), decltype(value)(mean)); });
  }
};
template <typename>
struct LogNormal {
  void operator()(at::TensorIteratorBase &iter, double mean, double std, std::optional<at::Generator> g) const {
    fill_floats<AsNormal>(iter, g, [=](auto value) { return std::exp(fma_of(value, decltype(value)(std), decltype(value)(mean))); });
  }
};
template <typename>
struct Exponential {
  void operator()(at::TensorIteratorBase &iter, double lambda, std::optional<at::Generator> g) const {
    fill_floats<AsUniform>(iter, g, [=](auto value) {
      using T = decltype(value);
      constexpr T least = std::numeric_limits<T>::epsilon() / 2;  // never 0
      return T(-1) / T(lambda) * (value >= 1 - least ? -least : std::log(value));
    });
  }
};
template <typename>
struct Cauchy {
  void operator()(at::TensorIteratorBase &iter, double median, double sigma, std::optional<at::Generator> g) const {
    fill_floats<AsUniform>(iter, g, [=](auto value) {
      using T = decltype(value);
      constexpr T least = std::is_same_v<T, double> ? T(0) : std::numeric_limits<T>::epsilon();
      return fma_of(T(sigma), std::tan(T(M_PI) * (std::clamp(value, least, 1 - least) - T(0.5))), T(median));
    });
  }
};
template <typename>
struct Geometric {
  void operator()(at::TensorIteratorBase &iter, double p, std::optional<at::Generator> g) const {
    fill_floats<AsUniform>(iter, g, [=](auto value) { return std::ceil(std::log(value) / std::log1p(-decltype(value)(p))); });
  }
};
template <typename>
struct Bernoulli {
  void operator()(const at::TensorBase &x, double p, std::optional<at::Generator> g) const {
    auto iter = at::TensorIterator::borrowing_nullary_op(x);
    fill_floats<AsUniform>(iter, g, [=](auto value) { return value < decltype(value)(p); });
  }
  void operator()(const at::TensorBase &x, const at::TensorBase &p, std::optional<at::Generator> given) const {
    TORCH_CHECK(at::isFloatingType(p.scalar_type()), "expected probabilities tensor to have floating type, got ", p.scalar_type());
    const Tensor to(x), wide = Tensor(p).to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).expand(x.sizes()).contiguous();
    TORCH_CHECK(wide.ge(0).logical_and_(wide.le(1)).all().item<bool>(), "bernoulli_ expects probabilities in [0, 1]");
    to.copy_(by_threads(wide, generator_of(*given), 12, 1, 4, [](Thread &thread, auto p, int64_t) { return decltype(p)(thread.uniform() <= p); }));
  }
};
// wide: of two words each.
void fill_integers(at::TensorIteratorBase &iter, const std::optional<at::Generator> &g, uint64_t range, int64_t base, bool wide) {
  auto of = [=](auto value) { return int64_t(value % range + base); };
  if (wide)
    fill<int64_t, AsLongWords>(iter, generator_of(*g), of);
  else
    fill<int64_t, AsWords>(iter, generator_of(*g), of);
}
template <typename>
struct Integers {
  void operator()(at::TensorIteratorBase &iter, uint64_t range, int64_t base, std::optional<at::Generator> g) const {
    fill_integers(iter, g, range, base, range >= uint64_t(1) << 28);
  }
  void operator()(at::TensorIteratorBase &iter, std::optional<at::Generator> g) const {  // all of 64 bits
    fill<int64_t, AsLongWords>(iter, generator_of(*g), [](uint64_t value) { return int64_t(value); });
  }
};
template <typename>
struct AnyInteger {
  void operator()(at::TensorIteratorBase &iter, std::optional<at::Generator> g) const {
    uint64_t range = 2;  // of bool
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype() == at::kBool ? at::kByte : iter.dtype(), "random_", [&] {
      using Limits = std::numeric_limits<scalar_t>;
      if (iter.dtype() != at::kBool) range = Limits::is_integer ? uint64_t(Limits::max()) + 1 : (uint64_t(1) << Limits::digits) + 1;
    });
    fill_integers(iter, g, range, 0, iter.dtype() == at::kDouble || iter.dtype() == at::kLong);
  }
};

// Returns (x where it is kept, scaled; what is kept). A thread takes as many elements side by side as 16 bytes hold, where x
// lies so; else those that are `threads` apart.
std::tuple<Tensor, Tensor> dropout(const Tensor &x, double p, std::optional<bool> train, Generator &g) {
  if ((train && !*train) || !x.numel()) return {x, at::ones_like(x, at::kBool)};
  if (p == 1) return {at::zeros_like(x), at::zeros_like(x, at::kBool)};
  const bool dense = x.is_non_overlapping_and_dense(), wide = x.scalar_type() == at::kDouble;
  const int64_t n = x.numel(), itemsize = int64_t(x.element_size());
  int64_t side = dense ? 16 / itemsize : 1;
  while (side > 1 && (n % side || reinterpret_cast<uintptr_t>(x.data_ptr()) % (side * itemsize))) side /= 2;
  const Policy policy(g, n, 4);
  const double kept = 1 - p;
  Tensor mask = at::empty_like(x, at::kBool), of_memory = dense ? mask.as_strided({n}, {1}) : at::empty({n}, at::kBool);
  bool *out = of_memory.data_ptr<bool>();
  const int64_t parts = std::max<int64_t>(side / 4, 1), of_part = side == 1 ? 4 : std::min<int64_t>(side, 4);
  const int64_t threads = int64_t(policy.threads), of_round = threads * parts * of_part;
  Words words;
  for (int64_t round = 0; round * of_round < n; round++)
    for (int64_t thread = 0; thread < threads; thread += THREADS)
      for (int64_t part = 0; part < parts; part++) {
        words_of_threads(policy.seed, policy.count + round * parts + part, thread, THREADS, words);
        const AsUniform<float> taken(words, THREADS);
        for (int64_t i = 0; i < of_part; i++)
          for (int64_t t = 0; t < THREADS; t++) {
            const int64_t at = round * of_round + (side == 1 ? i * threads + thread + t : (thread + t) * side + 4 * part + i);
            if (at < n) out[at] = wide ? taken.value[i][t] < kept : taken.value[i][t] < float(kept);
          }
      }
  if (!dense) mask.copy_(of_memory.view(x.sizes()));
  const Tensor scaled = wide ? x * mask * (1 / kept) : x.to(at::kFloat) * mask * double(1 / float(kept));
  return {scaled.to(x.scalar_type()), mask};
}

// Leaves positive elements alone, and scales others by slopes, which it keeps.
Tensor randomized_relu(const Tensor &x, const Tensor &noise, double lower, double upper, const at::Generator &g) {
  auto iter = at::TensorIterator::borrowing_nullary_op(noise);
  fill_floats<AsUniform>(iter, g, [=](auto value) { return double(value) * (upper - lower) + lower; });
  noise.masked_fill_(x.gt(0), 1);
  return x * noise;
}

// Sorts 0 to n - 1 by random keys of as many bits as make equal ones rare, then shuffles those with equal keys.
Tensor permutation(int64_t n, const at::Generator &given) {
  const double threshold = std::log(0.9) * 12, size = double(n);
  const int bits = std::min(64, int(std::ceil(std::log2(size - (6 * size * size + 1) / threshold))));
  const bool narrow = bits <= 32;
  Tensor keys = at::empty({n}, narrow ? at::kInt : at::kLong);
  at::native::templates::random_from_to_impl<Integers, Generator>(
      keys, narrow ? int64_t(std::numeric_limits<int32_t>::min()) : std::numeric_limits<int64_t>::min(),
      narrow ? int64_t(std::numeric_limits<int32_t>::max()) : std::numeric_limits<int64_t>::max(), given);
  const uint64_t mask = bits == 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
  keys = keys.to(at::kLong);
  if (bits != 32 && bits != 64) keys.bitwise_and_(int64_t(mask));
  auto [sorted, order] = keys.sort(/*stable=*/true, 0, false);
  Generator &g = generator_of(given);
  const int64_t *key = sorted.data_ptr<int64_t>();
  int64_t *at = order.data_ptr<int64_t>();
  for (int64_t first = 0, end; first < n; first = end) {
    for (end = first + 1; end < n && key[end] == key[first]; end++) {}
    Thread thread(*g.state, first);
    for (int64_t i = end - first - 1; i > 0; i--) std::swap(at[first + i], at[first + thread.word() % (i + 1)]);
  }
  g.state->offset += (n + 3) / 4 * 4;
  return order;
}

Tensor cumsum(const Tensor &self, int64_t dim, std::optional<at::ScalarType> dtype);  // of rounded.cpp, as CUDA rounds

// Adds a row's numbers as a block of CUDA's threads does; each sum is rounded to T.
template <typename T>
T sum_of_block(const T *x, int64_t n) {
  std::vector<T> sums(1024, T(0));  // of a thread each, then of a warp
  const int64_t threads = std::min<int64_t>(1024, (n + 31) / 32 * 32);
  for (int64_t i = 0; i < n; i++) sums[i % threads] += x[i];
  for (int warps : {32, 1})
    for (int warp = 0; warp < warps; warp++) {
      T *of = &sums[warp * 32];
      for (int lanes = 16; lanes; lanes /= 2)
        for (int lane = 0; lane < lanes; lane++) of[lane] += of[lane + lanes];
      sums[warp] = of[0];
    }
  return sums[0];
}

// One number a sample, looked for among sums of a row's shares: MultinomialKernel.cu.
Tensor with_replacement(const Tensor &p, int64_t n, Generator &g) {
  const Tensor rows = (p.dim() == 1 ? p.unsqueeze(0) : p).contiguous(), whole = at::empty({rows.size(0), 1}, rows.options());
  const int64_t classes = rows.size(1), some = rows.size(0), grid = std::clamp<int64_t>(some, 1, 65535);
  const int64_t threads = (n + 127) / 128 * 128;  // of a row of blocks
  Tensor made = at::empty({some, n}, at::kLong);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, p.scalar_type(), "multinomial", [&] {
    for (int64_t row = 0; row < some; row++) whole.data_ptr<scalar_t>()[row] = sum_of_block(rows.const_data_ptr<scalar_t>() + row * classes, classes);
    const Tensor shares = rows / whole, sums = emulated::cumsum(shares, 1, {});
    for (int64_t row = 0; row < some; row++) {
      const scalar_t *share = shares.const_data_ptr<scalar_t>() + row * classes, *sum = sums.const_data_ptr<scalar_t>() + row * classes;
      for (int64_t i = 0; i < n; i++) {
        const float drawn = Thread({g.state->seed, g.state->offset + row / grid * 4}, row % grid * threads + i).uniform();
        int64_t found = std::min<int64_t>(std::lower_bound(sum, sum + classes, scalar_t(drawn)) - sum, classes - 1);
        while (found && share[found] == 0) found--;
        made.data_ptr<int64_t>()[row * n + i] = found;
      }
    }
  });
  g.state->offset += (some + grid - 1) / grid * 4;
  return p.dim() == 1 ? made.squeeze(0) : made;
}

// What curand_poisson.h puts in place of the regularized gamma function of a mean, and of its inverse.
struct Gamma {
  float mean, slope, shift;
  explicit Gamma(float mean) : mean(mean) {
    slope = std::fma(1.43248035f, 1 / std::sqrt(mean - 0.124009793f), 0.000253610749f);
    shift = std::fma(0.210967349f, 1 / std::sqrt(mean - 1.97381164f), 0.942017341f);
  }
  float of(float x) const {
    const float t = 1 + std::exp(std::fma(slope, mean - x, -shift));
    return 1 / (t * t);
  }
  float inverse(float y) const { return std::fma(-(shift + std::log(1 / std::sqrt(y) - 1)), 1 / slope, mean); }
};

float poisson(Thread &thread, double mean) {
  if (mean > 4000) {
    Words words;
    for (auto &word : words) word[0] = thread.word();
    return float(uint32_t(std::sqrt(mean) * AsNormal<double>(words, 1).value[0][0] + mean + 0.5));
  }
  if (mean < 64) {  // Knuth's
    int k = -1;
    float p = std::exp(float(mean));
    do k++, p *= thread.uniform();
    while (p > 1);
    return float(k);
  }
  const Gamma gamma{float(mean)};
  while (true) {  // by rejection
    const float x = std::floor(gamma.inverse(thread.uniform())), bound = (gamma.of(x + 1) - gamma.of(x)) * 1.3f;
    const float drawn = thread.uniform() * bound, logarithm = std::fma(x, std::log(gamma.mean), -gamma.mean) - float(std::lgamma(1 + double(x)));
    if (drawn < std::exp(logarithm) && bound >= 1e-20f) return x;
  }
}
Tensor poisson(const Tensor &mean, Generator &g) {
  return by_threads(mean, g, 20, 1, 1, [](Thread &thread, auto mean, int64_t) { return decltype(mean)(poisson(thread, double(mean))); });
}
Tensor gamma(const Tensor &shape, Generator &g) {
  return by_threads(shape, g, 12, 1, 1, []<typename T>(Thread &thread, T shape, int64_t) {
    using Wide = at::acc_type<T, true>;
    auto uniform = [&] { return thread.uniform(); };
    auto normal = [&] { return thread.normal(); };
    BaseSampler<Wide, decltype(uniform)> uniforms(uniform);
    BaseSampler<Wide, decltype(normal)> normals(normal);
    return std::max(std::numeric_limits<T>::min(), sample_gamma<T, Wide, decltype(uniform), decltype(normal)>(shape, uniforms, normals));
  });
}
Tensor dirichlet(const Tensor &shape, Generator &g) {
  const Tensor x = gamma(shape, g), shares = x / x.sum(-1, true);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dirichlet", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    shares.clamp_(double(Limits::min()), 1 - double(Limits::epsilon()));
  });
  return shares;
}
Tensor binomial(const Tensor &count, const Tensor &given, Generator &g) {
  const Tensor p = given.contiguous();
  return by_threads(count, g, 44, 128, 8, [&]<typename T>(Thread &thread, T count, int64_t i) {
    auto uniform = [&] { return float(thread.word() & 0xFFFFFF) * 0x1p-24f; };
    BaseSampler<at::acc_type<T, true>, decltype(uniform)> uniforms(uniform);
    return sample_binomial<T, at::acc_type<T, true>, decltype(uniform)>(count, p.const_data_ptr<T>()[i], uniforms);
  });
}

// -- the operators whose draws are told here, by name: each gets its operands and a generator

using Drawn = void (*)(torch::jit::Stack &given, const at::Generator &g);

const std::unordered_map<c10::OperatorName, Drawn> DRAWN = [] {
  namespace of = at::native::templates;
  using Given = torch::jit::Stack &;
  using By = const at::Generator &;
  return std::unordered_map<c10::OperatorName, Drawn>{
      {{"aten::uniform_", ""}, [](Given v, By g) { of::uniform_impl_<Uniform, Generator>(v[0].toTensor(), v[1].toDouble(), v[2].toDouble(), g); }},
      {{"aten::normal_", ""}, [](Given v, By g) { of::normal_impl_<Normal, Generator>(v[0].toTensor(), v[1].toDouble(), v[2].toDouble(), g); }},
      {{"aten::log_normal_", ""}, [](Given v, By g) { of::log_normal_impl_<LogNormal, Generator>(v[0].toTensor(), v[1].toDouble(), v[2].toDouble(), g); }},
      {{"aten::exponential_", ""}, [](Given v, By g) { of::exponential_impl_<Exponential, Generator>(v[0].toTensor(), v[1].toDouble(), g); }},
      {{"aten::cauchy_", ""}, [](Given v, By g) { of::cauchy_impl_<Cauchy, Generator>(v[0].toTensor(), v[1].toDouble(), v[2].toDouble(), g); }},
      {{"aten::geometric_", ""}, [](Given v, By g) { of::geometric_impl_<Geometric, Generator>(v[0].toTensor(), v[1].toDouble(), g); }},
      {{"aten::random_", ""}, [](Given v, By g) { of::random_impl<AnyInteger, Generator>(v[0].toTensor(), g); }},
      {{"aten::random_", "to"}, [](Given v, By g) { of::random_from_to_impl<Integers, Generator>(v[0].toTensor(), 0, v[1].toInt(), g); }},
      {{"aten::random_", "from"}, [](Given v, By g) { of::random_from_to_impl<Integers, Generator>(v[0].toTensor(), v[1].toInt(), v[2].toOptional<int64_t>(), g); }},
      {{"aten::bernoulli_", "float"}, [](Given v, By g) { of::bernoulli_impl_<Bernoulli, Generator>(v[0].toTensor(), v[1].toDouble(), g); }},
      {{"aten::bernoulli_", "Tensor"}, [](Given v, By g) { of::bernoulli_impl_<Bernoulli, Generator>(v[0].toTensor(), v[1].toTensor(), g); }},
      {{"aten::bernoulli", "out"}, [](Given v, By g) {
         of::bernoulli_out_impl<Bernoulli, Generator>(v[2].toTensor(), v[0].toTensor(), g);
         v[0] = v[2];
       }},
      {{"aten::normal", "Tensor_float"}, [](Given v, By g) { v[0] = of::normal_impl<Normal, Generator>(v[0].toTensor(), v[1].toDouble(), g); }},
      {{"aten::normal", "float_Tensor"}, [](Given v, By g) { v[0] = of::normal_impl<Normal, Generator>(v[0].toDouble(), v[1].toTensor(), g); }},
      {{"aten::normal", "Tensor_Tensor"}, [](Given v, By g) { v[0] = of::normal_impl<Normal, Generator>(v[0].toTensor(), v[1].toTensor(), g); }},
      {{"aten::normal", "Tensor_float_out"}, [](Given v, By g) { v[0] = of::normal_out_impl<Normal, Generator>(v[3].toTensor(), v[0].toTensor(), v[1].toDouble(), g); }},
      {{"aten::normal", "float_Tensor_out"}, [](Given v, By g) { v[0] = of::normal_out_impl<Normal, Generator>(v[3].toTensor(), v[0].toDouble(), v[1].toTensor(), g); }},
      {{"aten::normal", "Tensor_Tensor_out"}, [](Given v, By g) { v[0] = of::normal_out_impl<Normal, Generator>(v[3].toTensor(), v[0].toTensor(), v[1].toTensor(), g); }},
      {{"aten::randperm", "generator_out"}, [](Given v, By g) {
         const int64_t n = v[0].toInt();
         TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
         at::native::check_supported_max_int_with_precision(n, v[2].toTensor());
         v[2].toTensor().resize_({n});
         if (n) v[2].toTensor().copy_(permutation(n, g));
         v[0] = v[2];
       }},
      {{"aten::rrelu_with_noise", ""}, [](Given v, By g) {
         if (!v[4].toBool()) return void(v[0] = at::leaky_relu(v[0].toTensor(), (v[2].toScalar().toDouble() + v[3].toScalar().toDouble()) / 2));
         v[0] = randomized_relu(v[0].toTensor(), v[1].toTensor(), v[2].toScalar().toDouble(), v[3].toScalar().toDouble(), g);
       }},
      {{"aten::multinomial", "out"}, [](Given v, By g) {  // several, with replacement; torch's checks the operands
         at::native::multinomial_out(v[0].toTensor(), v[1].toInt(), true, generator_of(g).of_cpu(0), v[4].toTensor());
         v[0] = v[4].toTensor().copy_(with_replacement(v[0].toTensor(), v[1].toInt(), generator_of(g)));
       }},
      {{"aten::poisson", ""}, [](Given v, By g) { v[0] = poisson(v[0].toTensor(), generator_of(g)); }},
      {{"aten::binomial", ""}, [](Given v, By g) { v[0] = binomial(v[0].toTensor(), v[1].toTensor(), generator_of(g)); }},
      {{"aten::_standard_gamma", ""}, [](Given v, By g) { v[0] = gamma(v[0].toTensor(), generator_of(g)); }},
      {{"aten::_sample_dirichlet", ""}, [](Given v, By g) { v[0] = dirichlet(v[0].toTensor(), generator_of(g)); }},
      {{"aten::native_dropout", ""}, [](Given v, By g) {
         auto [out, mask] = dropout(v[0].toTensor(), v[1].toDouble(), v[2].toOptional<bool>(), generator_of(g));
         v[0] = out, v[1] = mask;
       }},
  };
}();

// Draws as CUDA does, if that is known; leaves results on the stack in place of operands.
bool drawn(const c10::OperatorHandle &op, torch::jit::Stack *stack, const at::Generator &g) {
  const auto found = DRAWN.find(op.operator_name());
  if (found == DRAWN.end()) return false;
  const size_t operands = op.schema().arguments().size(), results = op.schema().returns().size();
  torch::jit::Stack given(stack->end() - operands, stack->end());
  found->second(given, g);
  torch::jit::drop(*stack, operands);
  stack->insert(stack->end(), given.begin(), given.begin() + results);
  return true;
}

}  // namespace emulated
