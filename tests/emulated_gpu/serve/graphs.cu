// CUDA graphs by captures and by hand, and memory apart from its addresses. A line is printed for what is not as it should be.
// With an argument, a graph whose two kernels write the same memory with nothing between: a stream-race.
#include <cstdio>
#include <cstring>
#include <cuda.h>

__global__ void add(int *a, int n) { a[threadIdx.x] += n; }
__global__ void twice(int *a) { a[threadIdx.x] *= 2; }
static void on_host(void *data) { ++*(int *)data; }

#define SAY(wanted, call) { int got = call; if (got != wanted) printf("%d, not %d: line %d, %s\n", got, wanted, __LINE__, #call); }
#define OK(call) SAY(0, call)

static int first(int *a) {
  int value;
  OK(cudaMemcpy(&value, a, 4, cudaMemcpyDeviceToHost));
  return value;
}

static void captures(int *a, int *b) {
  cudaStream_t s, t;
  cudaEvent_t fork, join;
  cudaGraph_t graph, none = nullptr;
  cudaGraphExec_t ready;
  cudaStreamCaptureStatus status;
  size_t count = 0;
  int calls = 0;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
  OK(cudaEventCreate(&fork));
  OK(cudaEventCreate(&join));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaMemsetAsync(a, 0, 128, s));
  OK(cudaMemsetAsync(b, 0, 128, s));
  OK(cudaEventRecord(fork, s));
  OK(cudaStreamWaitEvent(t, fork, 0));
  add<<<1, 32, 0, s>>>(a, 3);
  add<<<1, 32, 0, t>>>(b, 4);
  OK(cudaLaunchHostFunc(t, on_host, &calls));
  OK(cudaStreamIsCapturing(t, &status));
  SAY(cudaStreamCaptureStatusActive, status);
  OK(cudaEventRecord(join, t));
  OK(cudaStreamWaitEvent(s, join, 0));
  OK(cudaMemcpyAsync(a + 16, b, 64, cudaMemcpyDeviceToDevice, s));
  OK(cudaStreamEndCapture(s, &graph));
  OK(cudaStreamIsCapturing(s, &status));
  SAY(cudaStreamCaptureStatusNone, status);
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  SAY(6, int(count));
  OK(cudaGraphInstantiate(&ready, graph, 0));
  SAY(0, calls);
  for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(ready, s));
  OK(cudaStreamSynchronize(s));
  SAY(3, calls);
  SAY(3, first(a));
  SAY(4, first(a + 16));
  // What may not be in a capture
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  SAY(900, cudaStreamSynchronize(s));
  SAY(901, cudaStreamEndCapture(s, &none));
  SAY(1, none == nullptr);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  SAY(900, cudaDeviceSynchronize());
  SAY(901, cudaStreamEndCapture(s, &none));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, s));
  OK(cudaStreamWaitEvent(t, fork, 0));
  add<<<1, 32, 0, t>>>(b, 4);
  SAY(904, cudaStreamEndCapture(s, &none));
  SAY(900, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  unsigned long long number = 0, another = 0;
  cudaGetLastError();
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaStreamGetCaptureInfo(s, &status, &number));
  SAY(cudaStreamCaptureStatusActive, status);
  OK(cudaEventRecord(fork, s));
  add<<<1, 32>>>(a, 3);  // s does not block
  OK(cudaGetLastError());
  SAY(907, cudaEventSynchronize(fork));
  OK(cudaStreamGetCaptureInfo(s, &status));
  SAY(cudaStreamCaptureStatusInvalidated, status);
  SAY(901, cudaStreamEndCapture(s, &none));
  // The default stream would wait for one that blocks
  cudaStream_t blocking;
  OK(cudaStreamCreate(&blocking));
  OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
  OK(cudaStreamGetCaptureInfo(blocking, &status, &another));
  SAY(1, number && another > number);
  SAY(906, cudaStreamIsCapturing(nullptr, &status));
  SAY(906, cudaStreamGetCaptureInfo(cudaStreamLegacy, &status));
  OK(cudaStreamIsCapturing(blocking, &status));
  SAY(cudaStreamCaptureStatusActive, status);
  cudaGetLastError();
  add<<<1, 32>>>(b, 4);
  SAY(906, cudaGetLastError());
  SAY(901, cudaStreamEndCapture(blocking, &none));
  OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
  SAY(906, cudaMemsetAsync(a, 0, 128, nullptr));
  SAY(901, cudaStreamEndCapture(blocking, &none));
  OK(cudaStreamDestroy(blocking));
  OK(cudaStreamDestroy(s));
  OK(cudaStreamDestroy(t));
  cudaGetLastError();
}

static void by_hand(int *a) {
  cudaGraph_t graph, copy, inner;
  cudaGraphNode_t zero, kernel, back, host, empty, other;
  cudaGraphExec_t ready;
  cudaGraphExecUpdateResultInfo info;
  int n = 5, result[32] = {}, calls = 0;
  void *args[] = {&a, &n};
  cudaMemsetParams fill = {a, 0, 0, 4, 32, 1};
  cudaKernelNodeParams launch = {(void *)add, dim3(1), dim3(32), 0, args, nullptr};
  cudaHostNodeParams call = {on_host, &calls};
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddMemsetNode(&zero, graph, nullptr, 0, &fill));
  OK(cudaGraphAddKernelNode(&kernel, graph, &zero, 1, &launch));
  OK(cudaGraphAddMemcpyNode1D(&back, graph, &kernel, 1, result, a, sizeof result, cudaMemcpyDeviceToHost));
  OK(cudaGraphAddHostNode(&host, graph, &back, 1, &call));
  OK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
  OK(cudaGraphAddDependencies(graph, &host, &empty, nullptr, 1));
  cudaGraphNodeType type;
  OK(cudaGraphNodeGetType(back, &type));
  SAY(cudaGraphNodeTypeMemcpy, type);
  OK(cudaGraphInstantiate(&ready, graph, 0));
  n = 50;  // parameters were copied
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaStreamSynchronize(nullptr));
  SAY(5, result[31]);
  SAY(1, calls);
  OK(cudaGraphExecKernelNodeSetParams(ready, kernel, &launch));
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaDeviceSynchronize());
  SAY(50, result[0]);
  OK(cudaGraphNodeSetEnabled(ready, kernel, 0));
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaDeviceSynchronize());
  SAY(0, result[0]);
  OK(cudaGraphNodeSetEnabled(ready, kernel, 1));
  OK(cudaGraphClone(&copy, graph));
  OK(cudaGraphNodeFindInClone(&other, kernel, copy));
  n = 7;
  OK(cudaGraphKernelNodeSetParams(other, &launch));
  OK(cudaGraphExecUpdate(ready, copy, &info));
  SAY(cudaGraphExecUpdateSuccess, info.result);
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaDeviceSynchronize());
  SAY(7, result[0]);
  OK(cudaGraphCreate(&inner, 0));
  launch.func = (void *)twice;
  OK(cudaGraphAddKernelNode(&kernel, inner, nullptr, 0, &launch));
  SAY(910, cudaGraphExecUpdate(ready, inner, &info));
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddChildGraphNode(&other, graph, nullptr, 0, inner));
  OK(cudaGraphInstantiate(&ready, graph, 0));
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaDeviceSynchronize());
  SAY(14, first(a));
  cudaMemAllocNodeParams memory = {};
  memory.poolProps.allocType = cudaMemAllocationTypePinned;
  memory.poolProps.location.type = cudaMemLocationTypeDevice;
  memory.bytesize = 128;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddMemAllocNode(&zero, graph, nullptr, 0, &memory));
  fill.dst = memory.dptr, fill.value = 9;
  OK(cudaGraphAddMemsetNode(&kernel, graph, &zero, 1, &fill));
  OK(cudaGraphAddMemcpyNode1D(&back, graph, &kernel, 1, a, memory.dptr, 128, cudaMemcpyDeviceToDevice));
  OK(cudaGraphAddMemFreeNode(&other, graph, &back, 1, memory.dptr));
  OK(cudaGraphInstantiate(&ready, graph, 0));
  OK(cudaGraphLaunch(ready, nullptr));
  OK(cudaDeviceSynchronize());
  SAY(9, first(a));
  cudaGetLastError();
}

static void addresses() {
  CUdeviceptr at, other;
  CUmemGenericAllocationHandle memory;
  CUmemAllocationProp p = {};
  CUmemAccessDesc access = {};
  size_t size = 0;
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemGetAllocationGranularity(&size, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  OK(cuMemAddressReserve(&at, 2 * size, 0, 0, 0));
  OK(cuMemAddressReserve(&other, size, 0, 0, 0));
  OK(cuMemCreate(&memory, size, &p, 0));
  SAY(1, cuMemCreate(&memory, size + 1, &p, 0));
  SAY(1, cuMemMap(at + 2 * size, size, 0, memory, 0));
  OK(cuMemMap(at, size, 0, memory, 0));
  SAY(1, cuMemMap(at, size, 0, memory, 0));
  OK(cuMemMap(other, size, 0, memory, 0));
  SAY(1, cudaMemset((void *)at, 0, 128));
  OK(cuMemSetAccess(at, size, &access, 1));
  OK(cuMemSetAccess(other, size, &access, 1));
  OK(cudaMemset((void *)at, 0, 128));
  add<<<1, 32>>>((int *)at, 6);
  OK(cudaDeviceSynchronize());
  SAY(6, first((int *)other));
  OK(cuMemUnmap(at, size));
  SAY(1, cuMemUnmap(at, size));
  SAY(1, cuMemAddressFree(other, size));
  OK(cuMemUnmap(other, size));
  OK(cuMemAddressFree(other, size));
  OK(cuMemAddressFree(at, 2 * size));
  OK(cuMemRelease(memory));
  SAY(1, cuMemRelease(memory));
  cudaGetLastError();
}

int main(int count, char **) {
  int *a, *b;
  OK(cudaMalloc(&a, 128));
  OK(cudaMalloc(&b, 128));
  if (count > 1) {
    int n = 1;
    void *args[] = {&a, &n};
    cudaGraph_t graph;
    cudaGraphNode_t node;
    cudaGraphExec_t ready;
    cudaKernelNodeParams launch = {(void *)add, dim3(1), dim3(32), 0, args, nullptr};
    OK(cudaMemset(a, 0, 128));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch));
    OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch));
    OK(cudaGraphInstantiate(&ready, graph, 0));
    cudaGraphLaunch(ready, nullptr);
    return 0;
  }
  captures(a, b);
  by_hand(a);
  addresses();
}
