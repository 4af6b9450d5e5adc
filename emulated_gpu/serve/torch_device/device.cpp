// What torch asks a device type for: the current device and its queues (a guard), hooks.

namespace emulated {

// Told before work on devices, a bit each, where somebody may have to wait for it. Returns why it cannot be, or null.
// gets: the elements that the host gets, if they are known.
using Before = const char *(*)(uint64_t devices, int reads, const char *name, const Operand *gets);
Before before = nullptr;
std::atomic<bool> attentive{false};  // else it is asked for nothing but data that the host reads

void ask(uint64_t on, bool reads, const char *name, const std::optional<Operand> &gets = std::nullopt) {
  if (!before || !(reads || attentive)) return;
  const char *why = before(on, reads, name, gets ? &*gets : nullptr);
  TORCH_CHECK(!why, why);
}

// The last operators that have run. Python is told at once where several queues, or memory that the host shares with
// devices, may be in play; else it looks when somebody asks.
using Told = int (*)(int what, int64_t a, int64_t b);
enum { BEGINS = 0, DONE = 1, RECORDS = 2, AWAITS = 3, HOST_AWAITS = 4, CAPTURED = 5, IS_CAPTURED = 6, ELAPSED = 7 };
Told told = nullptr;
std::atomic<bool> watching{false};
bool is_captured(int64_t queue) { return anywhere_captured && told && told(IS_CAPTURED, 0, queue); }
std::mutex works_mutex;
std::deque<Work> works;

constexpr c10::StreamId FIRST_STREAM = c10::StreamId(1) << 40;  // handles of others are smaller
std::atomic<c10::StreamId> made_streams{FIRST_STREAM};
std::atomic<int64_t> made_events{FIRST_STREAM};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static DeviceIndex index(Device d) { return d.has_index() ? d.index() : current; }
  static c10::Stream of(Device d, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, Device(DeviceType::CUDA, index(d)), id);
  }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override {
    Device was(DeviceType::CUDA, current);
    setDevice(d);
    return was;
  }
  Device getDevice() const override { return {DeviceType::CUDA, current}; }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.index() < devices, "CUDA error: invalid device ordinal: device ", int(d.index()), " of ", devices);
    uncheckedSetDevice(d);
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.has_index()) current = d.index();
  }
  c10::Stream getStream(Device d) const override { return of(d, streams[index(d)]); }
  c10::Stream getDefaultStream(Device d) const override { return of(d, 0); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream getNewStream(Device d, int) const override {
    watching = true;
    return of(d, ++made_streams);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return of(s.device(), std::exchange(streams[s.device_index()], s.id()));
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(devices); }
  // Events of C++, such as of autograd's engine
  void record(void **event, const c10::Stream &s, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = reinterpret_cast<void *>(++made_events);
    if (told) told(RECORDS, reinterpret_cast<int64_t>(*event), s.id());
  }
  void block(void *event, const c10::Stream &s) const override {
    if ((watching || anywhere_captured) && told && event) told(AWAITS, reinterpret_cast<int64_t>(event), s.id());
  }
  double elapsedTime(void *start, void *end, DeviceIndex) const override {
    const int bits = told ? told(ELAPSED, reinterpret_cast<int64_t>(start), reinterpret_cast<int64_t>(end)) : 0;
    return std::bit_cast<float>(bits);
  }
  bool queryEvent(void *event) const override { return synchronizeEvent(event), true; }
  bool queryStream(const c10::Stream &s) const override { return synchronizeStream(s), true; }
  void synchronizeStream(const c10::Stream &s) const override { synchronizeDevice(s.device_index()); }
  void synchronizeEvent(void *event) const override {
    if (!(watching || anywhere_captured) || !told || !event) return;
    TORCH_CHECK(!told(HOST_AWAITS, reinterpret_cast<int64_t>(event), 0), "CUDA error: operation not permitted when stream is capturing");
  }
  // Of newer torch, where they are virtual
  void *getStreamNativeHandle(const c10::Stream) const { return nullptr; }
  bool isStreamCapturing(const c10::Stream &s) const { return is_captured(s.id()); }
  void synchronizeDevice(DeviceIndex d) const override { ask(uint64_t(1) << d, true, "synchronize"); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Hooks : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuSOLVER() const override { return true; }  // which a script may prefer, as all libraries
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(devices); }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex i) const override { Guard().setDevice({DeviceType::CUDA, i}); }
  DeviceIndex exchangeDevice(DeviceIndex i) const override {
    return Guard().exchangeDevice({DeviceType::CUDA, i}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override { return i < 0 ? current : exchangeDevice(i); }
  void deviceSynchronize(DeviceIndex i) const override { Guard().synchronizeDevice(known(i)); }
  int64_t cuFFTGetPlanCacheMaxSize(DeviceIndex) const override { return 4096; }  // of plans that nobody makes
  void cuFFTSetPlanCacheMaxSize(DeviceIndex, int64_t) const override {}
  int64_t cuFFTGetPlanCacheSize(DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(DeviceIndex) const override {}
  std::string showConfig() const override { return "  - CUDA on an emulated device\n"; }
  long versionCuDNN() const override { return 0; }  // there is none, and to ask is no error
  long versionRuntimeCuDNN() const { return 0; }    // of newer torch, where they are virtual
  long versionCuDNNFrontend() const { return 0; }
  c10::Allocator *getCUDADeviceAllocator() const override { return &device_allocator; }
  c10::Allocator *getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void *p) const override { return pool().pinned(p); }
  Device getDeviceFromPtr(void *p) const override {
    int device = pool().has(p) ? pool().device_of(p) : TEMPORARY;
    return {DeviceType::CUDA, device < 0 ? current : DeviceIndex(device)};
  }
  const at::Generator &getDefaultGenerator(DeviceIndex i) const override { return default_generator(i); }
  at::Generator getNewGenerator(DeviceIndex i) const override {
    refuse_in_a_capture("construct a new CUDAGeneratorImpl");
    return at::make_generator<Generator>(known(i));
  }
};

// What torch's profiler asks of a device: marks between operators, which take no time of a GPU's.
struct Marks : torch::profiler::impl::ProfilerStubs {
  void record(DeviceIndex *device, torch::profiler::impl::ProfilerVoidEventStub *event, int64_t *nanoseconds) const override {
    if (device) *device = current;
    if (event) *event = std::make_shared<int>(0);
    if (nanoseconds) *nanoseconds = c10::getTime();
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub *,
                const torch::profiler::impl::ProfilerVoidEventStub *) const override {
    return 0;
  }
  void mark(const char *) const override {}
  void rangePush(const char *) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> f) const override {
    for (int i = 0; i < devices; i++) f(i);
  }
  void synchronize() const override {}
};

void replace_marks() {
  static Marks marks;
  torch::profiler::impl::registerCUDAMethods(&marks);
}

// `import torch` has asked for the hooks and keeps the object that it got. Neither class has members, so that a table of
// virtual functions is all that tells them apart.
void replace_hooks() {
  static Hooks hooks;
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  std::memcpy(const_cast<void *>(static_cast<const void *>(&at::detail::getCUDAHooks())),
              static_cast<const void *>(&hooks), sizeof(void *));
}

}  // namespace emulated
