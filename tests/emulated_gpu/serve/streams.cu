// Mistakes with streams, events, copies and frees, one a case, and what is right anyway. `streams mended` has them mended.
// WRONG(kind, name) begins a case. It says on stderr that it begins, behind which its findings come.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#define _CG_LIMIT_INCLUDED_DEPENDENCIES  // on libcu++, which takes nvcc 3 CPU seconds
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>
#define MEND(...) if (mended) { __VA_ARGS__ }
#define ONLY_WRONG(...) if (!mended) { __VA_ARGS__ }
#define WRONG(kind, name) begin("wrong " kind " " #name);
#define RIGHT(name) begin("right - " #name);

__global__ void set(int *x, int n, int v) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = v; }
__global__ void copy(const int *a, int *b, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) b[i] = a[i]; }
__global__ void count(int *x) { atomicAdd(x, 1); }
__global__ void last(int *tickets, int *x) { if (!threadIdx.x && atomicAdd(tickets, 1) == gridDim.x - 1) *x = 1; }
// Who comes last adds what all have left.
__global__ void split(unsigned *tickets, int *parts, int *x) {
  parts[blockIdx.x] = blockIdx.x + *x;
  __threadfence();
  if (atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1) for (int i = 0; i < gridDim.x; ++i) *x += parts[i];
}
__global__ void under_a_lock(int *lock, int *x) { while (atomicCAS(lock, 0, 1)); __threadfence(); *x += 1; __threadfence(); atomicExch(lock, 0); }
// Each waits for the one before, and the last one lets the next launch begin.
__global__ void serial(volatile int *turn, int *x) {
  while (*turn != blockIdx.x) {}
  __threadfence(), *x += 1, __threadfence();
  *turn = (blockIdx.x + 1) % gridDim.x;
}
__global__ void whole(int *arrived, int wanted) { atomicAdd(arrived, 1); while (*(volatile int *)arrived < wanted) {} }
__global__ void announce(int *x, volatile int *flag) { x[threadIdx.x] = 7; __threadfence_system(); __syncthreads(); if (!threadIdx.x) *flag = 1; }
__global__ void await(const volatile int *flag, const int *x, int *y) { while (!*flag) {} __threadfence(); *y = *x; }

__global__ void primary(const volatile int *flag, int *x, bool late) {
  if (!late) cudaTriggerProgrammaticLaunchCompletion();
  while (!*flag) {}
  cudaTriggerProgrammaticLaunchCompletion();
  *x = 1;
}
__global__ void secondary(const int *x, int *y) { cudaGridDependencySynchronize(); if (!threadIdx.x) y[blockIdx.x] = *x; }

__global__ void meet(int *x) { cooperative_groups::this_grid().sync(); x[blockIdx.x * 32 + threadIdx.x] = 1; }

const int N = 1024;
bool mended;
int *d, *e, *pinned, *managed, *plain;
const int *from;
cudaStream_t a, b, blocking;
cudaEvent_t event;
int sum;

int *unwritten() {
  int *made;
  cudaMalloc(&made, 4 * N);
  MEND(cudaMemset(made, 0, 4 * N); cudaDeviceSynchronize();)
  return made;
}
int number(const int *at) {
  int value;
  cudaMemcpy(&value, at, 4, cudaMemcpyDeviceToHost);
  return value;
}

__global__ void twice(const int *a, int *b) { int i = threadIdx.x; b[i] = 2 * a[i] + 1; }
__global__ void some(const int *a, int *b, int n) { int i = threadIdx.x, v = a[i]; b[i] = i < n ? v : 0; }
__global__ void choose(const int *a, int *b) { if (a[threadIdx.x] > 5) __nanosleep(1), b[0] = 1; }
__constant__ int scale[32];
__global__ void scaled(int *x) { x[threadIdx.x] = scale[threadIdx.x % 32]; }
__global__ void gather(const int *at, const int *a, int *b) { b[threadIdx.x] = a[at[threadIdx.x] & 31]; }

void begin(const char *what) {
  cudaDeviceSynchronize();
  cudaGetLastError();
  fprintf(stderr, "\n== %s\n", what);
}
void add(void *to) { *static_cast<int *>(to) += 1; }
void run(cudaGraph_t graph) {
  cudaGraphExec_t made;
  cudaGraphInstantiate(&made, graph, 0);
  cudaGraphLaunch(made, a);
  cudaStreamSynchronize(a);
}

__attribute__((noinline)) void copy_a_few(const int *from) {
  int few[16] = {};
  cudaMemcpyAsync(d, mended ? from : few, sizeof few, cudaMemcpyHostToDevice, a);
}

int main(int words, char **) {
  mended = words > 1;
  plain = static_cast<int *>(malloc(4 * N));
  for (int i = 0; i < N; ++i) plain[i] = i;
  cudaMalloc(&d, 4 * N), cudaMalloc(&e, 4 * N), cudaMallocHost(&pinned, 4 * N), cudaMallocManaged(&managed, 4 * N);
  cudaMemset(d, 0, 4 * N), cudaMemset(e, 0, 4 * N);
  cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  cudaStreamCreate(&blocking);
  cudaEventCreate(&event);

  RIGHT(a_copy_before_any_launch_is_no_result)
  sum += number(unwritten());

  WRONG("stream-race", read_before_write)
  set<<<4, 256, 0, a>>>(d, N, 3);
  MEND(cudaEventRecord(event, a); cudaStreamWaitEvent(b, event);)
  copy<<<4, 256, 0, b>>>(d, e, N);

  WRONG("stream-race", two_threads_and_one_stream)
  {
    std::mutex turn;
    auto work = [&](int v) { std::unique_lock lock(turn, std::defer_lock); MEND(lock.lock();) set<<<4, 256, 0, a>>>(d, N, v); };
    std::thread one(work, 1), two(work, 2);
    one.join(), two.join();
  }

  WRONG("stream-race", write_after_read)
  copy<<<4, 256, 0, a>>>(d, e, N);
  MEND(cudaStreamSynchronize(a);)
  set<<<4, 256, 0, b>>>(d, N, 4);

  WRONG("stream-race", event_too_early)
  MEND(set<<<4, 256, 0, a>>>(d, N, 5);)
  cudaEventRecord(event, a);
  ONLY_WRONG(set<<<4, 256, 0, a>>>(d, N, 5);)
  cudaStreamWaitEvent(b, event);
  copy<<<4, 256, 0, b>>>(d, e, N);

  WRONG("stream-race", event_recorded_anew)
  set<<<4, 256, 0, a>>>(d, N, 6);
  cudaEventRecord(event, a);
  ONLY_WRONG(cudaEventRecord(event, blocking);)
  cudaStreamWaitEvent(b, event);
  copy<<<4, 256, 0, b>>>(d, e, N);

  RIGHT(an_allocation_between)
  set<<<4, 256, 0, a>>>(d, N, 3);
  int *other;
  cudaMalloc(&other, 4 * N);
  MEND(cudaStreamSynchronize(a);)  // else it is noted
  copy<<<4, 256, 0, b>>>(d, other, N);

  WRONG("stream-race", constant_memory)
  scaled<<<1, 256, 0, a>>>(d);
  MEND(cudaStreamSynchronize(a);)
  cudaMemcpyToSymbolAsync(scale, pinned, 128, 0, cudaMemcpyHostToDevice, b);

  WRONG("stream-race", fill_beside_a_kernel)
  cudaMemsetAsync(d, 0, 4 * N, a);
  MEND(cudaEventRecord(event, a); cudaEventSynchronize(event);)
  copy<<<4, 256, 0, b>>>(d, e, N);

  WRONG("stream-race", fill_on_the_default_stream)
  cudaMemset(d, 0, 4 * N);
  MEND(cudaStreamSynchronize(0);)
  set<<<4, 256, 0, a>>>(d, N, 7);

  WRONG("stream-race", pageable_memory_and_another_stream)
  cudaMemcpy(d, plain, 4 * N, cudaMemcpyHostToDevice);
  MEND(cudaDeviceSynchronize();)
  copy<<<4, 256, 0, a>>>(d, e, N);

  WRONG("stream-race", copies_that_overlap)
  cudaMemcpyAsync(d, e, 4 * N, cudaMemcpyDeviceToDevice, a);
  MEND(while (cudaStreamQuery(a) != cudaSuccess);)
  cudaMemcpyAsync(e, d + N / 2, 2 * N, cudaMemcpyDeviceToDevice, b);

  WRONG("stream-race", memory_of_another_streams_pool)
  int *fresh;
  cudaMallocAsync(reinterpret_cast<void **>(&fresh), 4 * N, a);
  MEND(cudaEventRecord(event, a); cudaStreamWaitEvent(b, event);)
  set<<<4, 256, 0, b>>>(fresh, N, 1);
  cudaDeviceSynchronize();
  cudaFree(fresh);

  WRONG("stream-race", turns_of_two_streams)
  cudaMemset(d, 0, 4 * N), cudaMemset(e, 0, 4 * N), cudaDeviceSynchronize();
  serial<<<4, 1, 0, a>>>(d, d + 1);
  MEND(cudaEventRecord(event, a); cudaStreamWaitEvent(b, event);)
  serial<<<4, 1, 0, b>>>(d, e + 1);

  WRONG("residency", two_grids_that_fill_the_gpu)
  int most, all_shared = 200000;  // one CTA an SM
  cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, 0);
  cudaFuncSetAttribute(whole, cudaFuncAttributeMaxDynamicSharedMemorySize, all_shared);
  whole<<<most - 1, 1, all_shared, a>>>(d + 32, most - 1);
  MEND(most = 1;)
  whole<<<most, 1, all_shared, b>>>(e + 32, most);

  WRONG("residency", dependents_that_fill_the_gpu)
  cudaMemset(e, 0, 4 * N), cudaDeviceSynchronize();
  announce<<<1, 32, 0, b>>>(d, e);
  primary<<<1, 32, 0, a>>>(e, e + 32, mended);
  cudaLaunchAttribute early{cudaLaunchAttributeProgrammaticStreamSerialization, {}, {}};
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t dependent{300, 1024, 0, a, &early, 1};
  cudaLaunchKernelEx(&dependent, secondary, (const int *)e + 32, e + 64);

  WRONG("stream-race", a_flag_of_the_step_before)
  cudaMemset(e, 0, 4 * N), cudaDeviceSynchronize();
  for (int i = 0; i < 2; ++i) {
    int *flag = e + (mended ? i : 0);
    announce<<<1, 32, 0, a>>>(d + 32 * i, flag);
    await<<<1, 1, 0, b>>>(flag, d + 32 * i, e + 32);
  }

  WRONG("stream-race", tickets_of_two_launches)
  cudaMemset(d, 0, 4 * N), cudaMemset(e, 0, 4 * N), cudaDeviceSynchronize();
  split<<<4, 1, 0, a>>>((unsigned *)d, d + 32, d + 64);
  MEND(cudaEventRecord(event, a); cudaStreamWaitEvent(b, event);)
  split<<<4, 1, 0, b>>>((unsigned *)d, e + 32, e + 64);

  WRONG("stream-race", parts_of_two_launches)
  split<<<2, 1, 0, a>>>((unsigned *)d, d + 32, d + 64);
  MEND(cudaStreamSynchronize(a);)
  split<<<2, 1, 0, b>>>((unsigned *)d, d + 32, e + 64);

  RIGHT(a_lock)
  under_a_lock<<<2, 1, 0, a>>>(d, d + 1);
  under_a_lock<<<2, 1, 0, b>>>(d, d + 1);

  WRONG("use-after-free", freed_by_the_host_in_flight)
  cudaMallocAsync(reinterpret_cast<void **>(&fresh), 4 * N, a);
  set<<<4, 256, 0, a>>>(fresh, N, 1);
  MEND(cudaStreamSynchronize(a);)
  cudaFree(fresh);

  WRONG("use-after-free", unmapped_in_flight)
  CUmemGenericAllocationHandle memory;
  CUmemAllocationProp kind{CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemAccessDesc whose{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr mapped;
  size_t large = 2 << 20;
  cuMemCreate(&memory, large, &kind, 0), cuMemAddressReserve(&mapped, large, 0, 0, 0);
  cuMemMap(mapped, large, 0, memory, 0), cuMemSetAccess(mapped, large, &whose, 1);
  set<<<4, 256, 0, a>>>((int *)mapped, N, 1);
  MEND(cudaStreamSynchronize(a);)
  cuMemUnmap(mapped, large);

  WRONG("use-after-free", freed_in_flight)
  cudaMalloc(&fresh, 4 * N);
  set<<<4, 256, 0, a>>>(fresh, N, 1);
  MEND(cudaStreamSynchronize(a);)
  cudaFreeAsync(fresh, b);

  WRONG("use-after-free", freed_before)
  cudaMalloc(&fresh, 4 * N);
  ONLY_WRONG(cudaFree(fresh);)
  set<<<4, 256, 0, a>>>(fresh, N, 1);
  MEND(cudaFree(fresh);)

  WRONG("read-before-sync", pinned_memory_is_read)
  cudaMemcpyAsync(pinned, d, 4 * N, cudaMemcpyDeviceToHost, a);
  MEND(cudaStreamSynchronize(a);)
  sum += pinned[N - 1];

  WRONG("read-before-sync", wrong_stream_is_waited_for)
  cudaMemcpyAsync(pinned, d, 4 * N, cudaMemcpyDeviceToHost, a);
  ONLY_WRONG(cudaStreamSynchronize(b);)
  MEND(cudaStreamSynchronize(a);)
  sum += pinned[1];

  WRONG("read-before-sync", pinned_memory_is_reused)
  cudaMemcpyAsync(d, pinned, 4 * N, cudaMemcpyHostToDevice, a);
  MEND(cudaEventRecord(event, a); cudaEventSynchronize(event);)
  pinned[3] = -1;

  WRONG("read-before-sync", kernel_writes_pinned_memory)
  set<<<4, 256, 0, a>>>(pinned, N, 8);
  MEND(cudaDeviceSynchronize();)
  sum += pinned[5];

  WRONG("read-before-sync", managed_memory_is_read)
  set<<<4, 256>>>(managed, N, 8);
  MEND(cudaDeviceSynchronize();)
  sum += managed[7];

  WRONG("read-before-sync", managed_memory_is_written)
  copy<<<4, 256>>>(managed, d, N);
  MEND(cudaDeviceSynchronize();)
  managed[9] = 1;

  WRONG("read-before-sync", registered_memory)
  int *registered = static_cast<int *>(aligned_alloc(4096, 4 * N));
  cudaHostRegister(registered, 4 * N, 0);
  cudaMemcpyAsync(registered, d, 4 * N, cudaMemcpyDeviceToHost, a);
  MEND(cudaStreamSynchronize(a);)
  sum += registered[6];

  WRONG("stream-race", nodes_without_an_edge)
  int n = N, three = 3;
  from = d;
  void *of_set[] = {&d, &n, &three}, *of_copy[] = {&from, &e, &n};
  cudaKernelNodeParams one{}, two{};
  one.func = (void *)set, two.func = (void *)copy;
  one.gridDim = two.gridDim = 4, one.blockDim = two.blockDim = 256;
  one.kernelParams = of_set, two.kernelParams = of_copy;
  cudaGraph_t graph;
  cudaGraphNode_t first_node, second_node;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddKernelNode(&first_node, graph, nullptr, 0, &one);
  cudaGraphAddKernelNode(&second_node, graph, &first_node, mended, &two);
  run(graph);

  WRONG("stream-race", branches_of_a_captured_graph)
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(event, a), cudaStreamWaitEvent(b, event, 0);
  cudaMemsetAsync(d, 1, 4 * N, b);
  MEND(cudaEventRecord(event, b); cudaStreamWaitEvent(a, event, 0);)
  copy<<<4, 256, 0, a>>>(d, e, N);
  ONLY_WRONG(cudaEventRecord(event, b); cudaStreamWaitEvent(a, event, 0);)
  cudaStreamEndCapture(a, &graph);
  run(graph);

  WRONG("use-after-free", a_graph_copies_from_what_is_gone)
  int *gone;
  cudaMallocHost(&gone, 4 * N);
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  cudaMemcpyAsync(d, gone, 4 * N, cudaMemcpyHostToDevice, a);
  cudaStreamEndCapture(a, &graph);
  ONLY_WRONG(cudaFreeHost(gone);)
  run(graph);

  WRONG("use-after-free", a_graph_copies_from_the_heap)
  int *heap = static_cast<int *>(malloc(4 * N));
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  cudaMemcpyAsync(d, heap, 4 * N, cudaMemcpyHostToDevice, a);
  cudaStreamEndCapture(a, &graph);
  ONLY_WRONG(free(heap);)
  run(graph);

  WRONG("use-after-free", a_graph_copies_from_the_stack)
  int kept[16] = {};
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  copy_a_few(kept);
  cudaStreamEndCapture(a, &graph);
  run(graph);

  RIGHT(a_graph_on_two_streams)
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  set<<<4, 256, 0, a>>>(d, N, 5);
  cudaStreamEndCapture(a, &graph);
  cudaGraphExec_t ready;
  cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphLaunch(ready, a);
  size_t first_only = 1;
  cudaGraphGetNodes(graph, &first_node, &first_only);
  cudaGraphExecKernelNodeSetParams(ready, first_node, &one);
  cudaGraphLaunch(ready, b);
  cudaDeviceSynchronize();
  if (number(d + 9) != 3) fprintf(stderr, "emulated-gpu: wrong: %d\n", number(d + 9));

  RIGHT(a_graph_of_all_kinds)
  cudaGraphNode_t made[4];
  cudaHostNodeParams host{add, pinned};
  cudaMemsetParams fill{};
  fill.dst = d, fill.elementSize = 4, fill.width = N, fill.height = 1, fill.value = 5;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddMemsetNode(&made[0], graph, nullptr, 0, &fill);
  cudaGraphAddMemcpyNode1D(&made[1], graph, made, 1, pinned, d, 4 * N, cudaMemcpyDeviceToHost);
  cudaGraphAddHostNode(&made[2], graph, made + 1, 1, &host);
  cudaGraphAddEmptyNode(&made[3], graph, made + 2, 1);
  size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  run(graph);
  if (nodes != 4 || pinned[0] != 6 || pinned[1] != 5) fprintf(stderr, "emulated-gpu: wrong: %zu %d\n", nodes, pinned[0]);

  WRONG("uninitialized-read", a_number_of_what_nobody_wrote)
  twice<<<1, 64>>>(unwritten(), d);
  twice<<<1, 64>>>(d, e);
  sum += number(e + 3);

  WRONG("uninitialized-read", a_counter_that_does_not_begin)
  int *counter = unwritten();
  count<<<1, 32>>>(counter);
  sum += number(counter);

  WRONG("uninitialized-read", tickets_that_do_not_begin)
  last<<<4, 32>>>(unwritten(), d);

  WRONG("uninitialized-read", a_branch_by_what_nobody_wrote)
  choose<<<1, 32>>>(unwritten(), d);

  WRONG("uninitialized-read", an_address_of_what_nobody_wrote)
  gather<<<1, 32>>>(unwritten(), d, e);

  RIGHT(what_nobody_wrote_is_not_used)
  int *part = unwritten();
  set<<<1, 64>>>(part, 20, 1), set<<<1, 64>>>(d, 64, 1);
  some<<<1, 64>>>(part, d, 20);
  sum += number(d + 50);

  RIGHT(a_struct_with_padding_that_nobody_wrote)
  int padded[4];
  cudaMemcpy(padded, part + 18, sizeof padded, cudaMemcpyDeviceToHost);
  sum += padded[0];
  twice<<<1, 64>>>(part, d);
  sum += number(d + 3);

  RIGHT(halves)
  set<<<2, 256, 0, a>>>(d, N / 2, 1);
  set<<<2, 256, 0, b>>>(d + N / 2, N / 2, 1);

  RIGHT(halves_of_pinned_memory)
  pinned[N - 1] = 4;
  cudaMemcpyAsync(pinned, d, 2 * N, cudaMemcpyDeviceToHost, a);
  sum += pinned[N - 1];
  pinned[N - 1] = 3;

  WRONG("hang", a_flag_of_a_later_launch)
  cudaMemset(e, 0, 4 * N), cudaDeviceSynchronize();
  MEND(announce<<<1, 32, 0, a>>>(d, e);)
  await<<<1, 1, 0, b>>>(e, d, e + 32);
  ONLY_WRONG(announce<<<1, 32, 0, a>>>(d, e);)

  RIGHT(the_default_stream_waits)
  set<<<4, 256, 0, blocking>>>(d, N, 1);
  copy<<<4, 256>>>(d, e, N);
  set<<<4, 256, 0, blocking>>>(e, N, 2);

  RIGHT(counters)
  count<<<1, 32, 0, a>>>(d);
  count<<<1, 32, 0, b>>>(d);

  RIGHT(barriers_of_two_grids)
  void *first[] = {&d}, *second[] = {&e};
  cudaLaunchCooperativeKernel((void *)meet, 2, 32, first, 0, a);
  cudaLaunchCooperativeKernel((void *)meet, 2, 32, second, 0, b);

  RIGHT(both_read)
  copy<<<4, 256, 0, a>>>(d, e, N);
  copy<<<4, 256, 0, b>>>(d, managed, N);

  RIGHT(a_flag_for_the_host)
  pinned[N - 1] = 0;
  announce<<<1, 32, 0, a>>>(pinned, pinned + N - 1);
  while (!*const_cast<volatile int *>(pinned + N - 1));
  sum += pinned[2];

  RIGHT(a_function_of_the_host)
  cudaMemcpyAsync(pinned, d, 4 * N, cudaMemcpyDeviceToHost, a);
  cudaLaunchHostFunc(a, add, pinned);
  cudaMemcpyAsync(d, pinned, 4 * N, cudaMemcpyHostToDevice, a);

  RIGHT(a_function_of_the_host_tells)
  std::atomic<int> told{0};
  pinned[0] = 7;
  cudaMemcpyAsync(pinned, d, 4 * N, cudaMemcpyDeviceToHost, a);
  cudaLaunchHostFunc(a, [](void *to) { std::thread([to] { ++*static_cast<std::atomic<int> *>(to); }).detach(); }, &told);
  while (!told) {}
  sum += pinned[0];
  cudaMemcpyAsync(pinned, e, 4 * N, cudaMemcpyDeviceToHost, b);
  cudaStreamSynchronize(b);

  RIGHT(copies_by_way_of_pageable_memory)
  set<<<4, 256, 0, a>>>(d, N, 9);
  cudaMemcpyAsync(plain, d, 4 * N, cudaMemcpyDeviceToHost, a);
  sum += plain[4];

  RIGHT(the_end)
  return sum == 0;
}
