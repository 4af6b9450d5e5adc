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

bool has_ended(cudaStream_t queue) {
  std::lock_guard<std::mutex> held(lock);
  return ended.count(queue);
}
static bool usable(cudaEvent_t event) {
  std::lock_guard<std::mutex> held(lock);
  return event && !ended_events.count(event);
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
template <class Call> static cudaError_t of_event(cudaEvent_t event, Call call) {
  return kept(usable(event) ? int(call()) : int(cudaErrorInvalidResourceHandle));
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
cudaError_t cudaStreamSynchronize(cudaStream_t queue) {
  return in(queue, [&] { return cuStreamSynchronize(queue); });
}
cudaError_t cudaStreamQuery(cudaStream_t queue) { return cudaStreamSynchronize(queue); }
cudaError_t cudaStreamWaitEvent(cudaStream_t queue, cudaEvent_t event, unsigned flags) {
  return of_event(event, [&] { return in(queue, [&] { return cuStreamWaitEvent(queue, event, flags); }); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t queue, cudaHostFn_t function, void *data) {
  return in(queue, [&] { return cuLaunchHostFunc(queue, function, data); });
}
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
cudaError_t cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;  // as on every card since Ampere
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return end(ended_events, event); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t queue, unsigned flags) {
  return of_event(event, [&] { return in(queue, [&] { return cuEventRecordWithFlags(event, queue, flags); }); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t queue) { return cudaEventRecordWithFlags(event, queue, 0); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return of_event(event, [&] { return cuEventSynchronize(event); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return of_event(start, [&] { return of_event(end, [&] { return cuEventElapsedTime(ms, start, end); }); });
}

// ---- what programs call that are compiled with --default-stream per-thread, where toolkit.py does not make it

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *c, const void *host, void **args) {
  cudaLaunchConfig_t with_own = *c;
  with_own.stream = own(c->stream);
  return cudaLaunchKernelExC(&with_own, host, args);
}
cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  return kept(emulator.copy(to, from, size, kind, of(cudaStreamPerThread), 1));
}
cudaError_t cudaMemset_ptds(void *to, int value, size_t size) {
  return fill_rows(to, 0, value, size, 1, cudaStreamPerThread, 1);
}
}
