// Memory of the emulated devices, which is memory of this process: a range of addresses from which allocations are cut,
// 512 bytes apart. Python hears of them by events that it fetches, since a free may come while Python raises.

#include <ATen/AccumulateType.h>
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/Distributions.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ApproximateClock.h>
#include <sys/mman.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/library.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

using at::Tensor;
using c10::DataPtr, c10::Device, c10::DeviceIndex, c10::DeviceType, c10::DispatchKey, c10::IValue, c10::Storage;

namespace emulated {

constexpr int PINNED = -1;              // memory of the host that devices may access
constexpr int TEMPORARY = -2;           // of a CPU kernel that runs for a device: its result becomes the device's
constexpr size_t PAGE = 4096, ROOM = size_t(1) << 39, STEP = size_t(64) << 20;
constexpr size_t LARGE = size_t(8) << 20;  // bytes of which the system gets the pages back at once
constexpr size_t CLEARED = size_t(1) << 20;  // bytes that become zeros by new pages instead of by stores
constexpr int DIMENSIONS = 8, DEVICES = 64, OPERANDS = 6, NAME = 48, GONE = -1, GRAPH_KEEPS = -2;
constexpr size_t WORKS = 1024;  // of operators that are kept for who looks later
constexpr size_t QUARANTINE = size_t(16) << 20, MOST_IN_QUARANTINE = 4096;  // bytes, allocations

// What became memory of a device, or ceased to be (bytes: GONE), or is for the next tensor of its capture
// (GRAPH_KEEPS). dtype: of the first tensor in it, or -1. recorded: whether record_stream was called. queue: for which it
// was allocated; born: how many operators had run then.
struct Event {
  void *at;
  int64_t bytes;
  int32_t device, dtype, dimensions, recorded;
  int64_t sizes[DIMENSIONS];
  int64_t queue, born;
};

// An operator that has run, and which elements it has read or written. waits: whether the host has waited for it.
struct Operand {
  const void *at;
  int32_t writes, dimensions;
  int64_t item, sizes[DIMENSIONS], strides[DIMENSIONS];
};
struct Work {
  char name[NAME];
  int64_t queue, number, thread;
  int32_t device, waits, count, partly;
  Operand operands[OPERANDS];
};

struct Count {  // of bytes or of allocations
  int64_t now, most, ever, freed;
  void add(int64_t n) {
    now += n, ever += n;
    most = std::max(most, now);
  }
  void remove(int64_t n) { now -= n, freed += n; }
};

int devices = 1;
std::atomic<int> capturing[DEVICES] = {};  // the number of a CUDA graph, to which belongs what is allocated on the device; or 0
std::atomic<bool> anywhere_captured{false};
thread_local DeviceIndex current = 0;
thread_local c10::StreamId streams[DEVICES] = {};  // the current one, by device
std::atomic<int64_t> works_done{0};
bool forked = false;  // from a process that has used a device, as no process of CUDA's may be
thread_local bool inside = false;  // a CPU kernel runs for a device

// The smallest free piece that is large enough; neighbours that are free are one piece.
class Pool {
 public:
  // [begin, end): of an arena that other processes map, or nothing, for a range of this process's own.
  void open(uintptr_t begin, uintptr_t end) {
    std::lock_guard lock(mutex_);
    shared_ = begin != 0;
    unit_ = shared_ ? PAGE : 512;
    if (!shared_) {
      void *p = mmap(nullptr, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(p != MAP_FAILED, "emulated device: no addresses for its memory: ", std::strerror(errno));
      begin = reinterpret_cast<uintptr_t>(p), end = begin + ROOM;
    }
    ranges_[1] = ranges_[0];  // what was allocated before the arena is given back there
    ranges_[0] = {begin, end};
    begin_ = grown_ = begin, next_ = begin + unit_, end_ = end;
    free_.clear(), by_size_.clear();
  }

  bool has(const void *p) const {
    auto at = reinterpret_cast<uintptr_t>(p);
    return (ranges_[0].first <= at && at < ranges_[0].second) || (ranges_[1].first <= at && at < ranges_[1].second);
  }

  void *take(size_t bytes, int device) {
    std::unique_lock lock(mutex_);
    size_t size = (std::max<size_t>(bytes, 1) + unit_ - 1) / unit_ * unit_ + unit_;  // the last unit is a guard
    const bool pages = device == PINNED && unit_ < PAGE;  // which nobody else has: they may be protected
    if (pages) size = (std::max<size_t>(bytes, 1) + PAGE - 1) / PAGE * PAGE + PAGE;
    uintptr_t at;
    if (auto found = by_size_.lower_bound({size, 0}); found != by_size_.end()) {
      auto [whole, start] = *found;
      at = start;
      forget(start, whole);
      if (whole > size) keep_free(start + size, whole - size);
    } else {
      if (next_ + size > end_ && !quarantine_.empty()) {
        while (!quarantine_.empty()) release_oldest();
        lock.unlock();
        return take(bytes, device);
      }
      if (next_ + size > end_) return nullptr;
      if (!shared_ && next_ + size > grown_) {
        size_t more = (next_ + size - grown_ + STEP - 1) / STEP * STEP;
        more = std::min<size_t>(more, end_ - grown_);
        if (mprotect(reinterpret_cast<void *>(grown_), more, PROT_READ | PROT_WRITE)) return nullptr;
        grown_ += more;
      }
      at = next_;
      next_ += size;
    }
    if (pages) {
      uintptr_t first = (at + PAGE - 1) / PAGE * PAGE;
      if (first > at) keep_free(at, first - at);
      size -= first - at, at = first;
    }
    taken_[at] = {size, bytes, device, streams[device < 0 ? 0 : device], works_done, false, capturing[device < 0 ? current : device], false};
    if (device >= PINNED) announce(at, taken_[at], nullptr);
    return reinterpret_cast<void *>(at);
  }

  // Memory of a CPU kernel's result becomes a device's, of which `like` is the first tensor.
  void become(void *p, size_t bytes, int device, const Tensor *like) {
    std::lock_guard lock(mutex_);
    auto &block = taken_.at(reinterpret_cast<uintptr_t>(p));
    block.bytes = bytes, block.device = device, block.queue = streams[device], block.of_graph = capturing[device];
    announce(reinterpret_cast<uintptr_t>(p), block, like);
  }

  void give(void *p) {
    std::lock_guard lock(mutex_);
    auto at = reinterpret_cast<uintptr_t>(p);
    auto found = taken_.find(at);
    if (found == taken_.end() || found->second.given) return;
    count(found->second, false);
    if (auto &[_, block] = *found; block.of_graph && block.device >= PINNED) {  // replays use it
      block.given = true;
      if (block.device >= 0 && block.of_graph == capturing[block.device] && !block.recorded)
        events_.push_back({p, GRAPH_KEEPS, block.device, -1, 0, 0, {}, block.queue, 0});
    } else if (keeps_ && block.device >= PINNED)
      kept_.push_back(at);
    else
      drop(found);
  }

  // While frees are kept, memory stays what it is: launches that have not run may read it.
  void keep(bool on) {
    std::lock_guard lock(mutex_);
    keeps_ = on;
    if (on) return;
    for (auto at : kept_) drop(taken_.find(at));
    kept_.clear();
  }

  int64_t fetch(Event *to, int64_t most) {
    std::lock_guard lock(mutex_);
    int64_t n = std::min<int64_t>(most, events_.size());
    std::copy_n(events_.begin(), n, to);
    events_.erase(events_.begin(), events_.begin() + n);
    return n;
  }
  // An operator has written there; or from now on is asked whether one has.
  void write(const void *p, bool written = true) {
    std::lock_guard lock(mutex_);
    if (auto *found = below(p)) found->second.written = written;
  }
  // An operator has written an operand. Returns whether its allocation is written as a whole now, or was before.
  bool write_all(const Operand &one) {
    std::lock_guard lock(mutex_);
    auto *found = below(one.at);
    if (!found) return true;
    auto &[start, block] = *found;
    int64_t last = 0, count = 1;
    for (int d = 0; d < one.dimensions; d++) last += (one.sizes[d] - 1) * one.strides[d], count *= one.sizes[d];
    const bool dense = start == reinterpret_cast<uintptr_t>(one.at) && last + 1 == count;
    block.written |= dense && size_t(count * one.item) >= block.bytes;
    return block.written;
  }
  bool unwritten(const void *p) {  // whether some of a device's allocation, outside of CUDA graphs, may be
    std::lock_guard lock(mutex_);
    auto *found = below(p);
    return found && found->second.device >= 0 && !found->second.of_graph && !found->second.written;
  }
  bool written(const void *p) {
    std::lock_guard lock(mutex_);
    auto *found = below(p);
    return !found || found->second.written;
  }
  int of_graph(const void *p) {  // the capture that has allocated it, or 0
    std::lock_guard lock(mutex_);
    auto *found = below(p);
    return found ? found->second.of_graph : 0;
  }
  // Counts a device's allocations of a capture, all or those that nobody has given back, and says where they lie.
  int64_t of_capture(int capture, bool live, uint64_t *to, int64_t most) {
    std::lock_guard lock(mutex_);
    int64_t n = 0;
    for (const auto &[at, block] : taken_)
      if (block.of_graph == capture && block.device >= 0 && !(live && block.given) && n++ < most) to[n - 1] = at;
    return n;
  }
  // Somebody has an allocation of a capture again, or has it no more. Returns whether that was otherwise.
  bool have(uintptr_t at, bool on) {
    std::lock_guard lock(mutex_);
    auto found = taken_.find(at);
    if (found == taken_.end() || !found->second.of_graph || found->second.given != on) return false;
    count(found->second, on);
    return found->second.given = !on, true;
  }
  // Memory that the host has allocated and registered, which is pinned until it is registered no more.
  void enlist(uintptr_t at, int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes)
      registered_[at] = bytes;
    else
      registered_.erase(at);
  }
  bool pinned(const void *p) {
    if (has(p)) return device_of(p) == PINNED;
    std::lock_guard lock(mutex_);
    auto at = reinterpret_cast<uintptr_t>(p);
    auto found = registered_.upper_bound(at);
    return found != registered_.begin() && at < (--found)->first + found->second;
  }
  // Somebody has said that a queue uses the memory, too, in which an address lies.
  void record(const void *p) {
    std::lock_guard lock(mutex_);
    if (auto *found = below(p)) found->second.recorded = true;
  }
  int64_t waiting() {
    std::lock_guard lock(mutex_);
    return events_.size();
  }

  // Of the allocation that holds an address; TEMPORARY for none.
  int device_of(const void *p) {
    std::lock_guard lock(mutex_);
    auto *found = below(p);
    return found && reinterpret_cast<uintptr_t>(p) < found->first + found->second.size ? found->second.device : TEMPORARY;
  }

  // Makes whole pages zeros which cost no memory, and the rest by stores.
  void clear(void *p, size_t n) {
    auto first = (reinterpret_cast<uintptr_t>(p) + PAGE - 1) / PAGE * PAGE;
    auto last = (reinterpret_cast<uintptr_t>(p) + n) / PAGE * PAGE;
    auto *begin = static_cast<char *>(p);
    if (n < CLEARED || !has(p) || !empty_pages(first, last)) {
      std::memset(p, 0, n);
      return;
    }
    std::memset(begin, 0, first - reinterpret_cast<uintptr_t>(p));
    std::memset(reinterpret_cast<void *>(last), 0, reinterpret_cast<uintptr_t>(p) + n - last);
  }

  Count bytes[DEVICES] = {}, blocks[DEVICES] = {};
  int64_t limit[DEVICES] = {};  // of bytes; 0: none

 private:
  struct Block {
    size_t size, bytes;
    int device;
    int64_t queue, born;
    bool recorded;
    int of_graph;
    bool written, given = false;  // given back, of a capture's
  };
  std::pair<const uintptr_t, Block> *below(const void *p) {  // the allocation that begins there, or last before
    auto found = taken_.upper_bound(reinterpret_cast<uintptr_t>(p));
    return found == taken_.begin() ? nullptr : &*--found;
  }
  void count(const Block &block, bool more) {
    if (block.device < 0) return;
    auto &size = bytes[block.device], &number = blocks[block.device];
    more ? (size.add(block.bytes), number.add(1)) : (size.remove(block.bytes), number.remove(1));
  }

  std::map<uintptr_t, int64_t> registered_;  // by address, bytes

  void announce(uintptr_t at, const Block &block, const Tensor *like) {
    Event event{reinterpret_cast<void *>(at), int64_t(block.bytes), block.device, -1, 0, 0, {}, block.queue, block.born};
    if (like && like->dim() <= DIMENSIONS) {
      event.dtype = int(like->scalar_type());
      event.dimensions = int(like->dim());
      std::copy_n(like->sizes().begin(), like->dim(), event.sizes);
    }
    events_.push_back(event);
    count(block, true);
  }

  void drop(std::map<uintptr_t, Block>::iterator found) {
    auto [at, block] = *found;
    if (block.device >= PINNED)
      events_.push_back({reinterpret_cast<void *>(at), GONE, block.device, -1, 0, block.recorded, {}, block.queue, 0});
    taken_.erase(found);
    if (at < ranges_[0].first || at >= ranges_[0].second) return;
    if (shared_ || block.size >= LARGE) empty_pages((at + PAGE - 1) / PAGE * PAGE, (at + block.size) / PAGE * PAGE);
    if (shared_ || block.device < PINNED) return keep_free(at, block.size);
    quarantine_.push_back({at, block.size});
    quarantined_ += block.size < LARGE ? block.size : 0;
    while (quarantined_ > QUARANTINE || quarantine_.size() > MOST_IN_QUARANTINE) release_oldest();
  }
  void release_oldest() {
    auto [at, size] = quarantine_.front();
    quarantine_.pop_front();
    quarantined_ -= size < LARGE ? size : 0;
    keep_free(at, size);
  }

  bool empty_pages(uintptr_t first, uintptr_t last) {  // of a file's, which other processes map, only REMOVE makes zeros
    auto become_zeros = [&](int how) { return madvise(reinterpret_cast<void *>(first), last - first, how) == 0; };
    return first < last && (become_zeros(MADV_REMOVE) || become_zeros(MADV_DONTNEED));
  }

  void keep_free(uintptr_t at, size_t size) {
    if (auto after = free_.find(at + size); after != free_.end()) {
      size_t more = after->second;
      forget(at + size, more);
      size += more;
    }
    if (auto before = free_.lower_bound(at); before != free_.begin() && (--before)->first + before->second == at) {
      auto [start, less] = *before;
      forget(start, less);
      at = start, size += less;
    }
    free_[at] = size;
    by_size_.insert({size, at});
  }
  void forget(uintptr_t at, size_t size) {
    free_.erase(at);
    by_size_.erase({size, at});
  }

  std::mutex mutex_;
  bool shared_ = false, keeps_ = false;
  size_t unit_ = 512;
  std::pair<uintptr_t, uintptr_t> ranges_[2] = {};
  uintptr_t begin_ = 0, next_ = 0, grown_ = 0, end_ = 0;
  std::map<uintptr_t, size_t> free_;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
  std::map<uintptr_t, Block> taken_;
  std::vector<uintptr_t> kept_;
  std::deque<std::pair<uintptr_t, size_t>> quarantine_;  // what nobody gets yet, so that who uses it is found
  size_t quarantined_ = 0;
  std::vector<Event> events_;
};

Pool &pool() {
  static auto *one = new Pool;  // never destroyed: tensors outlive static objects
  return *one;
}

c10::Allocator *host_allocator = nullptr;  // torch's own
void release(void *p) {
  if (pool().has(p))
    pool().give(p);
  else if (p)
    host_allocator->raw_deleter()(p);
}

std::string in_words(double n) {
  const char *units[] = {"bytes", "KiB", "MiB", "GiB"};
  int i = 0;
  while (i < 3 && n >= 1024) n /= 1024, i++;
  char text[32];
  std::snprintf(text, sizeof(text), i ? "%.2f %s" : "%.0f %s", n, units[i]);
  return text;
}

void room_for(size_t n, int device) {
  TORCH_CHECK(device < 0 || !forked, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
              "'spawn' start method");
  const int64_t limit = device < 0 ? 0 : pool().limit[device], used = device < 0 ? 0 : pool().bytes[device].now;
  TORCH_CHECK_WITH(OutOfMemoryError, !limit || int64_t(n) <= limit - used, "CUDA out of memory. Tried to allocate ", in_words(n),
                   ". GPU ", device, " has a total capacity of ", in_words(limit), " of which ", in_words(limit - used),
                   " is free. Of the allocated memory ", in_words(used), " is allocated by PyTorch (emulated device)");
}

DataPtr take(size_t n, int device, Device named) {
  room_for(n, device);
  void *p = pool().take(n, device);
  TORCH_CHECK_WITH(OutOfMemoryError, p, "CUDA out of memory. Tried to allocate ", in_words(n),
                   ": this machine has no addresses left for the emulated device");
  return {p, p, &release, named};
}

// In place of torch's CPU allocator: what a CPU kernel makes for a device lies where the device's memory is.
struct HostAllocator final : c10::Allocator {
  DataPtr allocate(size_t n) override {
    return inside && n ? take(n, TEMPORARY, Device(DeviceType::CPU)) : host_allocator->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
} inside_allocator;

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t n) override { return on(n, current); }
  static DataPtr on(size_t n, DeviceIndex device) {
    Device named(DeviceType::CUDA, device);
    return n ? take(n, device, named) : DataPtr(nullptr, named);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
} device_allocator;

struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t n) override { return take(n, PINNED, Device(DeviceType::CPU)); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
} pinned_allocator;

}  // namespace emulated
