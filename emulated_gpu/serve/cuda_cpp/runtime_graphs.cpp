// CUDA graphs, made of nodes or captured: see serve/driver/graphs.py.
#include "runtime.hpp"

template <class Handle, class... Given> static cudaError_t make(Handle *out, const char *name, Given... given) {
  uint64_t made = 0;
  cudaError_t status = named(name, &made, given...);
  return *out = reinterpret_cast<Handle>(made), status;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t queue, cudaStreamCaptureMode) {
  return named("begin", nullptr, of(queue));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t queue, cudaGraph_t *graph) { return make(graph, "end", of(queue)); }
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned) { return make(graph, "create"); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return named("forget", nullptr, graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return named("forget", nullptr, graph); }
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                   size_t count, const cudaKernelNodeParams *p) {
  CALLED;
  if (p->extra) return kept(emulator.refuse("cudaGraphAddKernelNode with `extra`"));
  return make(node, "kernel", graph, after, count, p->func, &p->gridDim.x, &p->blockDim.x, p->kernelParams,
              uint64_t(p->sharedMemBytes));
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                     size_t count, void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  CALLED;
  return make(node, "copy", graph, after, count, to, from, size, uint64_t(kind));
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                   size_t count, const cudaMemcpy3DParms *p) {
  CALLED;
  bool plain = !p->srcArray && !p->dstArray && p->extent.height <= 1 && p->extent.depth <= 1;
  if (!plain) return kept(emulator.refuse("cudaGraphAddMemcpyNode of several rows, or of an array"));
  return make(node, "copy", graph, after, count, static_cast<char *>(p->dstPtr.ptr) + p->dstPos.x,
              static_cast<char *>(p->srcPtr.ptr) + p->srcPos.x, p->extent.width, uint64_t(p->kind));
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                   size_t count, const cudaMemsetParams *p) {
  CALLED;
  if (p->height > 1) return kept(emulator.refuse("cudaGraphAddMemsetNode of several rows"));
  return make(node, "fill", graph, after, count, p->dst, uint64_t(p->value), uint64_t(p->elementSize), p->width);
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                 size_t count, const cudaHostNodeParams *p) {
  CALLED;
  return make(node, "host", graph, after, count, reinterpret_cast<const void *>(p->fn), p->userData);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                  size_t count) {
  return make(node, "empty", graph, after, count);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *, size_t count) {
  return named("depend", nullptr, from, to, count);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  return make(made, "instantiate", graph);
}
#else
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     size_t count) {
  return named("depend", nullptr, from, to, count);
}
#if CUDART_VERSION >= 12000
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  return make(made, "instantiate", graph);
}
#endif
#endif
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  return make(made, "instantiate", graph);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return named("nodes", nullptr, graph, nodes, count);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t queue) {
  CALLED;
  return named("launch", nullptr, graph, of(queue));
}

cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t queue, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(own(queue), mode);
}
cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t queue, cudaGraph_t *graph) {
  return cudaStreamEndCapture(own(queue), graph);
}
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t graph, cudaStream_t queue) {
  CALLED;
  return named("launch", nullptr, graph, of(own(queue)));
}
}
