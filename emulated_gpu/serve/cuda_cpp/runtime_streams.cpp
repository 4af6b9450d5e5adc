// Streams and events: a launch runs to its end inside the call that makes it; who has waited for it is noted.
#include "runtime.hpp"

#include <map>
#include <mutex>
#include <set>

// What has been made and destroyed. Never destroyed itself: destructors of programs call here at their end.
struct Queue { unsigned flags; int priority; };
static auto &lock = *new std::mutex;
static auto &queues = *new std::map<cudaStream_t, Queue>;
static auto &ended = *new std::set<cudaStream_t>;
static auto &ended_events = *new std::set<cudaEvent_t>;

int known(cudaStream_t queue) {
  std::lock_guard<std::mutex> held(lock);
  return ended.count(queue) ? cudaErrorInvalidResourceHandle : cudaSuccess;
}
int known(cudaEvent_t event) {
  std::lock_guard<std::mutex> held(lock);
  return event && !ended_events.count(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
static Queue made(cudaStream_t queue) {
  std::lock_guard<std::mutex> held(lock);
  auto found = queues.find(queue);
  return found == queues.end() ? Queue{} : found->second;
}
template <class One> static cudaError_t end(std::set<One> &all, One one) {
  std::lock_guard<std::mutex> held(lock);
  return kept(one && all.insert(one).second ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *queue, unsigned flags, int priority) {
  cudaError_t status = kept(cuStreamCreate(queue, flags));
  if (status) return status;
  std::lock_guard<std::mutex> held(lock);
  queues[*queue] = {flags, priority > 0 ? 0 : priority < -5 ? -5 : priority};
  return status;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *queue, unsigned flags) {
  return cudaStreamCreateWithPriority(queue, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *queue) { return cudaStreamCreateWithFlags(queue, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t queue) { return end(ended, queue); }
struct Callback {
  cudaStream_t queue;
  cudaStreamCallback_t function;
  void *data;
};
static void call_back(void *of) {
  auto one = static_cast<Callback *>(of);
  one->function(one->queue, cudaSuccess, one->data);  // kept: a graph calls again
}
cudaError_t cudaStreamAddCallback(cudaStream_t queue, cudaStreamCallback_t function, void *data, unsigned) {
  if (!function) return kept(cudaErrorInvalidValue);
  auto one = new Callback{queue, function, data};
  return in(queue, [&] { return cuLaunchHostFunc(queue, call_back, one); });
}
cudaError_t cudaStreamGetPriority(cudaStream_t queue, int *priority) {
  return in(queue, [&] { return put(priority, made(queue).priority); });
}
cudaError_t cudaStreamGetFlags(cudaStream_t queue, unsigned *flags) {
  return in(queue, [&] { return put(flags, made(queue).flags); });
}
cudaError_t cudaStreamGetId(cudaStream_t queue, unsigned long long *id) {
  return in(queue, [&] { return put(id, of(queue)); });
}
cudaError_t cudaStreamGetDevice(cudaStream_t queue, int *device) {
  return in(queue, [&] { return put(device, 0); });
}
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue *) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;  // as on every card since Ampere
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return end(ended_events, event); }

// ---- what programs call that are compiled with --default-stream per-thread, where toolkit.py does not make it

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *c, const void *host, void **args) {
  cudaLaunchConfig_t with_own = *c;
  with_own.stream = own(c->stream);
  return cudaLaunchKernelExC(&with_own, host, args);
}
}
