// Graphs and captures, which are the driver's: what takes something else there. toolkit.py makes the others.
#include "runtime.hpp"

static cudaMemcpy3DParms line(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  cudaMemcpy3DParms p{};
  p.srcPtr = {const_cast<void *>(from), size, size, 1}, p.dstPtr = {to, size, size, 1};
  p.extent = {size, 1, 1}, p.kind = kind;
  return p;
}
// What a call of the driver says of a copy
template <class Call> static cudaError_t of_box(const cudaMemcpy3DParms *p, Call call) {
  if (!p) return kept(cudaErrorInvalidValue);
  CUDA_MEMCPY3D c;
  cudaError_t status = box_of(*p, &c);
  return status ? status : kept(call(&c));
}
static const CUDA_MEMSET_NODE_PARAMS *fill(const cudaMemsetParams *p) {
  return reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS *>(p);
}

#define NODE cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count

extern "C" {

// ---- captures

cudaError_t cudaStreamEndCapture(cudaStream_t queue, cudaGraph_t *graph) {
  return in(queue, [&] { return put(graph, nullptr) ? cudaErrorInvalidValue : cudaError_t(cuStreamEndCapture(queue, graph)); });
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t queue, cudaStreamCaptureStatus *status, unsigned long long *number,
                                     cudaGraph_t *graph, const cudaGraphNode_t **before, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  auto how = reinterpret_cast<const CUgraphEdgeData **>(edges);
  auto now = reinterpret_cast<CUstreamCaptureStatus *>(status);
  return kept(cuStreamGetCaptureInfo(queue, now, reinterpret_cast<cuuint64_t *>(number), graph, before, how, count));
}
#endif

// ---- nodes

cudaError_t cudaGraphAddMemcpyNode(NODE, const cudaMemcpy3DParms *p) {
  return of_box(p, [&](auto c) { return cuGraphAddMemcpyNode(node, graph, before, count, c, nullptr); });
}
cudaError_t cudaGraphAddMemcpyNode1D(NODE, void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  auto p = line(to, from, size, kind);
  return cudaGraphAddMemcpyNode(node, graph, before, count, &p);
}
cudaError_t cudaGraphAddMemcpyNodeToSymbol(NODE, const void *symbol, const void *from, size_t size, size_t offset,
                                           cudaMemcpyKind kind) {
  void *to;
  if (cudaError_t status = cudaGetSymbolAddress(&to, symbol)) return status;
  return cudaGraphAddMemcpyNode1D(node, graph, before, count, static_cast<char *>(to) + offset, from, size, kind);
}
cudaError_t cudaGraphAddMemcpyNodeFromSymbol(NODE, void *to, const void *symbol, size_t size, size_t offset,
                                             cudaMemcpyKind kind) {
  void *from;
  if (cudaError_t status = cudaGetSymbolAddress(&from, symbol)) return status;
  return cudaGraphAddMemcpyNode1D(node, graph, before, count, to, static_cast<char *>(from) + offset, size, kind);
}
cudaError_t cudaGraphAddMemsetNode(NODE, const cudaMemsetParams *p) {
  return kept(cuGraphAddMemsetNode(node, graph, before, count, fill(p), nullptr));
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms *p) {
  return of_box(p, [&](auto c) { return cuGraphMemcpyNodeSetParams(node, c); });
}
cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void *to, const void *from, size_t size,
                                           cudaMemcpyKind kind) {
  auto p = line(to, from, size, kind);
  return cudaGraphMemcpyNodeSetParams(node, &p);
}
cudaError_t cudaGraphKernelNodeSetAttribute(cudaGraphNode_t, cudaKernelNodeAttrID attribute, const cudaKernelNodeAttrValue *) {
  if (attribute == cudaLaunchAttributePriority || attribute == cudaLaunchAttributeAccessPolicyWindow)
    return cudaSuccess;  // changes no result
  return cudaError_t(emulator_refuse("cudaGraphKernelNodeSetAttribute"));
}

// ---- what runs

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *ready, cudaGraph_t graph, cudaGraphInstantiateParams *p) {
  if (!p) return kept(cudaErrorInvalidValue);
  p->result_out = cudaGraphInstantiateSuccess;
  return cudaGraphInstantiateWithFlags(ready, graph, p->flags);
}
cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t, unsigned long long *flags) { return put(flags, 0); }
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t ready, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info) {
  if (!info) return kept(cudaErrorInvalidValue);
  info->errorNode = info->errorFromNode = nullptr;
  return kept(cuGraphExecUpdate(ready, graph, reinterpret_cast<CUgraphExecUpdateResultInfo *>(info)));
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t ready, cudaGraphNode_t node, const cudaMemcpy3DParms *p) {
  return of_box(p, [&](auto c) { return cuGraphExecMemcpyNodeSetParams(ready, node, c, nullptr); });
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t ready, cudaGraphNode_t node, void *to, const void *from,
                                               size_t size, cudaMemcpyKind kind) {
  auto p = line(to, from, size, kind);
  return cudaGraphExecMemcpyNodeSetParams(ready, node, &p);
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t ready, cudaGraphNode_t node, const cudaMemsetParams *p) {
  return kept(cuGraphExecMemsetNodeSetParams(ready, node, fill(p), nullptr));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t queue) {
  frame = __builtin_frame_address(0);
  return in(queue, [&] { return cuGraphLaunch(ready, queue); });
}
}
