// Calls of CUDA's runtime and what each has to answer: its error, or a value. A line is printed for each that answers otherwise.
#include <cstdio>
#include <cstring>
#include <cuda.h>

__global__ void k(int *a) { a[threadIdx.x] = 1; }
__global__ void with_static(int *a) { __shared__ int s[10000]; s[threadIdx.x] = 1; a[0] = s[threadIdx.x]; }
__device__ int symbol[4];
static int not_a_symbol;
static void on_host(void *data) { ++*(int *)data; }

#define SAY(wanted, call) { int got = call; if (got != wanted) printf("%d, not %d: line %d, %s\n", got, wanted, __LINE__, #call); }
#define LAUNCH(wanted, ...) { k<<<__VA_ARGS__>>>(a); SAY(wanted, cudaGetLastError()); }
#define TEXT(wanted, call) if (strcmp(call, wanted)) printf("'%s', not '%s': %s\n", call, wanted, #call);

static void copies(int *a, int *pinned, int *managed) {
  int host[64] = {}, *null = nullptr;
  SAY(0, cudaMemcpy(a, host, 256, cudaMemcpyHostToDevice));
  SAY(0, cudaMemcpy(host, a, 256, cudaMemcpyDeviceToHost));
  SAY(0, cudaMemcpy(a, pinned, 256, cudaMemcpyHostToDevice));
  SAY(0, cudaMemcpy(managed, host, 256, cudaMemcpyHostToDevice));
  SAY(0, cudaMemcpy(a, managed, 256, cudaMemcpyHostToDevice));
  SAY(0, cudaMemcpy(a, host + 64, 0, cudaMemcpyDeviceToHost));
  SAY(0, cudaMemcpy(host, a, 256, cudaMemcpyDefault));
  SAY(0, cudaMemcpy(host, pinned, 256, cudaMemcpyHostToHost));
  SAY(1, cudaMemcpy(a, host, 256, cudaMemcpyDeviceToHost));
  SAY(1, cudaMemcpy(host, a, 256, cudaMemcpyHostToDevice));
  SAY(1, cudaMemcpy(a, host, 260, cudaMemcpyHostToDevice));
  SAY(1, cudaMemcpy(a, null, 4, cudaMemcpyHostToDevice));
  SAY(1, cudaMemcpy(null, a, 4, cudaMemcpyDeviceToHost));
  SAY(21, cudaMemcpy(a, host, 256, cudaMemcpyKind(7)));
  SAY(21, cudaMemcpyAsync(a, host, 256, cudaMemcpyKind(-1)));
  SAY(1, cudaMemcpy2D(a, 128, host, 64, 64, 3, cudaMemcpyHostToDevice));
  SAY(12, cudaMemcpy2D(a, 32, host, 64, 64, 2, cudaMemcpyHostToDevice));
  SAY(12, cudaMemcpy2D(a, 64, host, 32, 64, 2, cudaMemcpyHostToDevice));
  SAY(1, cudaMemset(a, 0, 257));
  SAY(1, cudaMemset(host, 0, 4));
  SAY(0, cudaMemset(pinned, 0, 256));
  SAY(0, cudaMemcpyToSymbol(symbol, host, 16));
  SAY(0, cudaMemcpyToSymbol(symbol, host, 8, 8));
  SAY(1, cudaMemcpyToSymbol(symbol, host, 8, 12));
  SAY(1, cudaMemcpyFromSymbol(host, symbol, 20));
  SAY(21, cudaMemcpyToSymbol(symbol, host, 16, 0, cudaMemcpyDeviceToHost));
  SAY(13, cudaMemcpyToSymbol(not_a_symbol, host, 4));
  void *at;
  SAY(13, cudaGetSymbolAddress(&at, not_a_symbol));
  SAY(0, cudaMemcpyPeer(a, 0, managed, 0, 256));
  SAY(101, cudaMemcpyPeer(a, 0, managed, 1, 256));
  cudaMemcpy3DParms p = {};
  p.srcPtr = make_cudaPitchedPtr(host, 16, 4, 4), p.dstPtr = make_cudaPitchedPtr(a, 16, 4, 4);
  p.extent = make_cudaExtent(16, 2, 2), p.kind = cudaMemcpyHostToDevice;
  for (int i = 0; i < 64; i++) host[i] = i;
  SAY(0, cudaMemcpy3D(&p));
  p.extent.depth = 9;
  SAY(1, cudaMemcpy3D(&p));
  int back[64];
  SAY(0, cudaMemcpy(back, a, 256, cudaMemcpyDeviceToHost));
  SAY(5, back[5]);
  SAY(16, back[16]);
  cudaPitchedPtr cube;
  SAY(0, cudaMalloc3D(&cube, make_cudaExtent(100, 3, 2)));
  SAY(512, int(cube.pitch));
  SAY(0, cudaMemset3D(cube, 7, make_cudaExtent(100, 3, 2)));
  SAY(0, cudaMemcpy(back, (char *)cube.ptr + 5 * 512 + 96, 4, cudaMemcpyDefault));
  SAY(0x07070707, back[0]);
  SAY(0, cudaFree(cube.ptr));
  cudaGetLastError();
}

static void launches(int *a) {
  void *nothing[1] = {&a};
  SAY(0, cudaGetLastError());
  LAUNCH(9, 1, 2048);
  LAUNCH(9, 0, 32);
  LAUNCH(9, dim3(1, 70000), 32);
  LAUNCH(9, 1, dim3(1, 1, 65));
  LAUNCH(1, 1, 32, 100000);
  LAUNCH(1, 1, 32, 1 << 20);
  SAY(1, cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
  SAY(1, cudaFuncSetAttribute(with_static, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  SAY(1, cudaFuncSetAttribute(k, cudaFuncAttribute(99), 1));
  SAY(1, cudaPeekAtLastError());
  SAY(1, cudaGetLastError());
  SAY(0, cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
  LAUNCH(0, 1, 32, 100000);
  LAUNCH(0, 1, 32);
  SAY(98, cudaLaunchKernel((void *)copies, dim3(1), dim3(32), nothing, 0, nullptr));
  SAY(98, cudaFuncSetAttribute((void *)copies, cudaFuncAttributeMaxDynamicSharedMemorySize, 64));
  cudaFuncAttributes of;
  SAY(98, cudaFuncGetAttributes(&of, (void *)copies));
  SAY(0, cudaFuncGetAttributes(&of, with_static));
  SAY(90, of.ptxVersion);
  SAY(40000, int(of.sharedSizeBytes));
  SAY(0, cudaLaunchCooperativeKernel((void *)k, dim3(1), dim3(32), nothing, 0, nullptr));
  SAY(720, cudaLaunchCooperativeKernel((void *)k, dim3(1 << 20), dim3(32), nothing, 0, nullptr));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cudaLaunchConfig_t config = {dim3(96), dim3(32), 0, nullptr, &cluster, 1};
  for (unsigned x : {5, 32}) {  // which does not divide the grid; which is more than there is
    cluster.val.clusterDim = {x, 1, 1};
    SAY(912, cudaLaunchKernelEx(&config, k, a));
  }
  int blocks, threads;
  size_t shared;
  SAY(0, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 256, 0));
  SAY(8, blocks);
  SAY(1, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 0, 0));
  SAY(0, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, with_static, 64, 0));
  SAY(5, blocks);  // 40000 bytes each, and 1024 of the system's
  SAY(0, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 2048, 0));
  SAY(0, blocks);
  SAY(0, cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, k));
  SAY(1024, threads);
  SAY(0, cudaOccupancyAvailableDynamicSMemPerBlock(&shared, k, 2, 256));
  SAY(115712, int(shared));
  SAY(0, cudaOccupancyAvailableDynamicSMemPerBlock(&shared, with_static, 5, 64));
  SAY(5568, int(shared));
  SAY(1, cudaOccupancyAvailableDynamicSMemPerBlock(&shared, with_static, 6, 64));
  SAY(0, cudaDeviceSynchronize());
  cudaGetLastError();
}

static void streams_and_events(int *a) {
  float ms;
  int count = 0, host[1];
  cudaEvent_t e, f, untimed;
  cudaStream_t s;
  unsigned long long id;
  unsigned flags;
  SAY(0, cudaEventCreate(&e));
  SAY(0, cudaEventCreate(&f));
  SAY(0, cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  SAY(0, cudaEventRecord(e));
  SAY(400, cudaEventElapsedTime(&ms, e, f));
  SAY(0, cudaEventQuery(f));
  SAY(0, cudaEventSynchronize(f));
  SAY(0, cudaEventRecord(untimed));
  SAY(400, cudaEventElapsedTime(&ms, e, untimed));
  SAY(400, cudaEventRecord(nullptr));
  SAY(0, cudaEventDestroy(f));
  SAY(400, cudaEventDestroy(f));
  SAY(400, cudaEventRecord(f));
  SAY(0, cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  SAY(0, cudaStreamGetFlags(s, &flags));
  SAY(1, int(flags));
  SAY(0, cudaStreamGetId(s, &id));
  SAY(0, cudaLaunchHostFunc(s, on_host, &count));
  SAY(0, cudaStreamSynchronize(s));
  SAY(1, count);
  SAY(0, cudaStreamQuery(s));
  SAY(1, cudaLaunchHostFunc(s, nullptr, nullptr));
  SAY(1, cudaStreamAddCallback(s, nullptr, nullptr, 0));
  cudaGraph_t graph;
  SAY(401, cudaStreamEndCapture(s, &graph));
  SAY(0, cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  SAY(401, cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  SAY(0, cudaStreamEndCapture(s, &graph));
  SAY(1, cudaGraphLaunch(nullptr, s));
  SAY(0, cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
  SAY(0, cudaStreamDestroy(s));
  SAY(400, cudaStreamDestroy(s));
  SAY(400, cudaStreamSynchronize(s));
  SAY(400, cudaMemcpyAsync(host, a, 4, cudaMemcpyDeviceToHost, s));
  LAUNCH(400, 1, 32, 0, s);
  SAY(400, cudaStreamDestroy(nullptr));
  SAY(1, cudaStreamCreateWithFlags(&s, 77));
  SAY(1, cudaEventCreateWithFlags(&e, 77));
  cudaGetLastError();
}

static void memory(int *pinned, int *managed) {
  int host[64], *a, *none = (int *)8;
  cudaPointerAttributes of;
  unsigned flags;
  SAY(0, cudaMalloc(&a, 256));
  SAY(0, cudaPointerGetAttributes(&of, a + 1));
  SAY(2, of.type);
  SAY(0, cudaPointerGetAttributes(&of, pinned));
  SAY(1, of.type);
  SAY(0, cudaPointerGetAttributes(&of, managed));
  SAY(3, of.type);
  SAY(0, cudaPointerGetAttributes(&of, host));
  SAY(0, of.type);
  SAY(1, cudaFree(host));
  SAY(1, cudaFree(a + 1));
  SAY(0, cudaFree(a));
  SAY(1, cudaFree(a));
  SAY(1, cudaGetLastError());
  SAY(0, cudaGetLastError());
  SAY(0, cudaFree(nullptr));
  SAY(0, cudaMalloc(&none, 0));
  SAY(1, none == nullptr);
  SAY(1, cudaMalloc((void **)nullptr, 4));
  SAY(2, cudaMalloc(&a, size_t(1) << 42));
  SAY(1, cudaMallocManaged(&a, 0));
  SAY(1, cudaMallocManaged(&a, 4, 8));
  SAY(0, cudaFreeHost(nullptr));
  SAY(1, cudaFreeHost(host));
  SAY(0, cudaHostRegister(host, sizeof host, cudaHostRegisterDefault));
  SAY(1, cudaHostAlloc((void **)&a, 64, 0x1000));
  SAY(712, cudaHostRegister(host, sizeof host, cudaHostRegisterDefault));
  SAY(0, cudaHostGetDevicePointer((void **)&a, host, 0));
  SAY(0, cudaHostGetFlags(&flags, host));
  SAY(0, cudaHostUnregister(host));
  SAY(713, cudaHostUnregister(host));
  SAY(1, cudaHostGetDevicePointer((void **)&a, host, 0));
  SAY(1, cudaPointerGetAttributes((cudaPointerAttributes *)nullptr, host));
  cudaMemPool_t pool;
  unsigned long long most = ~0ull;
  SAY(0, cudaDeviceGetDefaultMemPool(&pool, 0));
  SAY(0, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
  unsigned long long kept = 0;
  SAY(0, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
  SAY(1, (kept == most));
  int reuse = 0;
  SAY(0, cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &reuse));
  reuse = 7;
  SAY(0, cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &reuse));
  SAY(0, reuse);
  SAY(0, cudaMallocFromPoolAsync((void **)&a, 64, pool, nullptr));
  SAY(0, cudaFreeAsync(a, nullptr));
  SAY(1, cudaFreeAsync(a, nullptr));
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned, props.location.type = cudaMemLocationTypeDevice;
  SAY(0, cudaMemPoolCreate(&pool, &props));
  SAY(0, cudaMallocAsync((void **)&a, 64, pool, nullptr));
  SAY(0, cudaFreeAsync(a, nullptr));
  SAY(0, cudaMemPoolTrimTo(pool, 0));
  SAY(0, cudaMemPoolDestroy(pool));
  cudaGetLastError();
}

static void devices() {
  int value, can;
  cudaDeviceProp p;
  size_t limit;
  char bus[32];
  SAY(0, cudaSetDevice(0));
  SAY(101, cudaSetDevice(1));
  SAY(101, cudaSetDevice(-1));
  SAY(101, cudaGetDeviceProperties(&p, 1));
  SAY(101, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 3));
  SAY(1, cudaDeviceGetAttribute(&value, cudaDeviceAttr(9999), 0));
  SAY(1, cudaGetDevice(nullptr));
  SAY(1, cudaGetDeviceCount(nullptr));
  SAY(1, cudaGetDeviceProperties((cudaDeviceProp *)nullptr, 0));
  SAY(0, cudaDeviceCanAccessPeer(&can, 0, 0));
  SAY(101, cudaDeviceCanAccessPeer(&can, 0, 1));
  SAY(101, cudaDeviceEnablePeerAccess(0, 0));
  SAY(0, cudaDeviceGetLimit(&limit, cudaLimitStackSize));
  SAY(215, cudaDeviceGetLimit(&limit, cudaLimit(99)));
  SAY(0, cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
  SAY(132 << 16, int(limit));  // 64 KiB an SM
  SAY(0, cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20));
  SAY(0, cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
  SAY(1 << 20, int(limit));
  SAY(215, cudaDeviceSetLimit(cudaLimit(99), 1));
  SAY(0, cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
  SAY(0, cudaDeviceGetByPCIBusId(&value, bus));
  SAY(0, value);
  SAY(0, cudaChooseDevice(&value, &p));
  SAY(215, cudaGetLastError());
  TEXT("cudaErrorInvalidValue", cudaGetErrorName(cudaErrorInvalidValue));
  TEXT("invalid argument", cudaGetErrorString(cudaErrorInvalidValue));
  TEXT("no error", cudaGetErrorString(cudaSuccess));
  TEXT("invalid configuration argument", cudaGetErrorString(cudaErrorInvalidConfiguration));
  TEXT("out of memory", cudaGetErrorString(cudaErrorMemoryAllocation));
  TEXT("an illegal memory access was encountered", cudaGetErrorString(cudaErrorIllegalAddress));
  TEXT("unrecognized error code", cudaGetErrorString(cudaError_t(12345)));
}

// What has an effect that nobody sees here, or none: wrong all the same
static void unseen(int *a, int *managed) {
  cudaStream_t s;
  cudaEvent_t e;
  cudaStreamCreate(&s), cudaEventCreate(&e);
  SAY(1, cudaStreamWaitEvent(s, e, 77));
  SAY(1, cudaEventRecordWithFlags(e, s, 99));
  SAY(1, cudaStreamBeginCapture(s, cudaStreamCaptureMode(9)));
  SAY(1, cudaStreamAttachMemAsync(s, managed, 0, 99));
  SAY(0, cudaStreamAttachMemAsync(s, managed, 0, cudaMemAttachSingle));
  cudaMemLocation here = {cudaMemLocationTypeDevice, 0};
  SAY(0, cudaMemPrefetchAsync(managed, 256, here, 0, s));
  SAY(1, cudaMemPrefetchAsync(a, 256, here, 0, s));
  SAY(1, cudaMemPrefetchAsync(managed, 1 << 30, here, 0, s));
  SAY(1, cudaMemAdvise(managed, 256, cudaMemoryAdvise(77), here));
  SAY(98, cudaFuncSetCacheConfig((void *)on_host, cudaFuncCachePreferL1));
  SAY(1, cudaFuncSetCacheConfig(k, cudaFuncCache(9)));
  SAY(1, cudaDeviceSetCacheConfig(cudaFuncCache(9)));
  SAY(1, cudaSetDeviceFlags(0x4000));

  cudaArray_t array;
  cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
  SAY(1, cudaMallocArray(&array, &f, 1 << 20, 16));
  cudaResourceDesc r = {};
  cudaTextureDesc t = {};
  cudaTextureObject_t texture;
  r.resType = cudaResourceType(77);
  SAY(1, cudaCreateTextureObject(&texture, &r, &t, nullptr));
  SAY(1, cudaMemcpy3D(nullptr));

  cudaGraph_t g, other;
  cudaGraphNode_t node, of_other;
  SAY(1, cudaGraphCreate(&g, 5));
  cudaGraphCreate(&g, 0), cudaGraphCreate(&other, 0);
  SAY(0, cudaGraphAddEmptyNode(&of_other, other, nullptr, 0));
  SAY(1, cudaGraphAddEmptyNode(&node, g, &of_other, 1));
  SAY(1, cudaGraphAddKernelNode(&node, g, nullptr, 0, nullptr));
  SAY(1, cudaGraphAddMemcpyNode(&node, g, nullptr, 0, nullptr));
  SAY(1, cudaGraphAddMemsetNode(&node, g, nullptr, 0, nullptr));

  cudaMemPool_t pool;
  cudaMemPoolProps wanted = {};
  uint64_t value = 0;
  void *memory;
  wanted.allocType = cudaMemAllocationTypePinned, wanted.location = {cudaMemLocationTypeDevice, 9};
  SAY(1, cudaMemPoolCreate(&pool, nullptr));
  SAY(101, cudaMemPoolCreate(&pool, &wanted));
  wanted.location.id = 0;
  SAY(0, cudaMemPoolCreate(&pool, &wanted));
  SAY(1, cudaMemPoolGetAttribute(pool, cudaMemPoolAttr(99), &value));
  SAY(1, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, nullptr));
  SAY(1, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  SAY(0, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
  SAY(0, cudaMallocFromPoolAsync(&memory, 64, pool, s));
  SAY(0, cudaMemPoolDestroy(pool));
  SAY(1, cudaMemPoolDestroy(pool));
  SAY(1, cudaMallocFromPoolAsync(&memory, 64, pool, s));
  cudaGetLastError();
}

int main() {
  int *a, *pinned, *managed;
  cudaMalloc(&a, 256), cudaMallocHost(&pinned, 256), cudaMallocManaged(&managed, 256);
  copies(a, pinned, managed);
  unseen(a, managed);
  launches(a);
  streams_and_events(a);
  memory(pinned, managed);
  devices();
  SAY(0, cudaFreeHost(pinned));
  SAY(0, cudaFree(managed));
}
