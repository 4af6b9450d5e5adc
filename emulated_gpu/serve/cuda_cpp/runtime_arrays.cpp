// CUDA arrays, textures and surfaces, which are the driver's; and copies of boxes, of which either side may be an array.
#include "runtime.hpp"

#include <cstring>

static CUarray of(cudaArray_const_t array) { return reinterpret_cast<CUarray>(const_cast<cudaArray *>(array)); }

// ---- formats

static int channels(const cudaChannelFormatDesc &d) { return (d.x > 0) + (d.y > 0) + (d.z > 0) + (d.w > 0); }

static cudaError_t format_of(const cudaChannelFormatDesc &d, CUarray_format *format) {
  int width = d.x == 8 ? 0 : d.x == 16 ? 1 : d.x == 32 ? 2 : -1, count = channels(d);
  if (d.f > cudaChannelFormatKindFloat) return cudaError_t(emulator_refuse("this cudaChannelFormatKind"));
  bool even = (count < 2 || d.y == d.x) && (count < 4 || (d.z == d.x && d.w == d.x));
  if (width < 0 || count == 3 || !even || (d.f == cudaChannelFormatKindFloat && !width))
    return kept(cudaErrorInvalidChannelDescriptor);
  int first = d.f == cudaChannelFormatKindFloat    ? (width == 1 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT) - width
              : d.f == cudaChannelFormatKindSigned ? CU_AD_FORMAT_SIGNED_INT8
                                                   : CU_AD_FORMAT_UNSIGNED_INT8;
  return *format = CUarray_format(first + width), cudaSuccess;
}

static cudaChannelFormatDesc format_from(const CUDA_ARRAY3D_DESCRIPTOR &d) {
  int format = d.Format;
  bool floats = format >= CU_AD_FORMAT_HALF, negative = format >= CU_AD_FORMAT_SIGNED_INT8 && !floats;
  int bits = floats ? format : 8 << (format - (negative ? CU_AD_FORMAT_SIGNED_INT8 : CU_AD_FORMAT_UNSIGNED_INT8));
  auto of_channel = [&](unsigned number) { return d.NumChannels > number ? bits : 0; };
  auto kind = floats     ? cudaChannelFormatKindFloat
              : negative ? cudaChannelFormatKindSigned
                         : cudaChannelFormatKindUnsigned;
  return {of_channel(0), of_channel(1), of_channel(2), of_channel(3), kind};
}

static int texel(const CUDA_ARRAY3D_DESCRIPTOR &d) { return format_from(d).x / 8 * d.NumChannels; }

static cudaError_t create(cudaArray_t *array, const cudaChannelFormatDesc *desc, cudaExtent extent, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR d{extent.width, extent.height, extent.depth, {}, unsigned(channels(*desc)), flags};
  cudaError_t status = format_of(*desc, &d.Format);
  return status ? status : kept(cuArray3DCreate(reinterpret_cast<CUarray *>(array), &d));
}

// ---- copies of boxes

struct Side {
  CUmemorytype type;
  void *memory;
  CUarray array;
  size_t x, y, z, pitch, rows;
};

static Side in_memory(const void *memory, size_t pitch, size_t rows, bool host, cudaMemcpyKind kind) {
  auto type = kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  return {type, const_cast<void *>(memory), nullptr, 0, 0, 0, pitch, rows};
}
static Side in_array(cudaArray_const_t array, size_t x, size_t y, size_t z) {
  return {CU_MEMORYTYPE_ARRAY, nullptr, of(array), x, y, z, 0, 0};
}
static bool to_host(cudaMemcpyKind kind) { return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost; }
static bool from_host(cudaMemcpyKind kind) { return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost; }

static CUDA_MEMCPY3D box_of(const Side &to, const Side &from, cudaExtent box) {
  CUDA_MEMCPY3D c{};
  c.srcXInBytes = from.x, c.srcY = from.y, c.srcZ = from.z, c.srcMemoryType = from.type, c.srcHost = from.memory;
  c.srcDevice = CUdeviceptr(from.memory), c.srcArray = from.array, c.srcPitch = from.pitch, c.srcHeight = from.rows;
  c.dstXInBytes = to.x, c.dstY = to.y, c.dstZ = to.z, c.dstMemoryType = to.type, c.dstHost = to.memory;
  c.dstDevice = CUdeviceptr(to.memory), c.dstArray = to.array, c.dstPitch = to.pitch, c.dstHeight = to.rows;
  c.WidthInBytes = box.width, c.Height = box.height, c.Depth = box.depth;
  return c;
}
static cudaError_t copy(const CUDA_MEMCPY3D &c, cudaStream_t queue) {
  auto too_narrow = [&](auto type, size_t pitch) { return type != CU_MEMORYTYPE_ARRAY && pitch < c.WidthInBytes; };
  if (!c.WidthInBytes || !c.Height || !c.Depth) return cudaSuccess;
  if (too_narrow(c.dstMemoryType, c.dstPitch) || too_narrow(c.srcMemoryType, c.srcPitch))
    return kept(cudaErrorInvalidPitchValue);
  return in(queue, [&] { return waits ? cuMemcpy3D(&c) : cuMemcpy3DAsync(&c, queue); });
}

// The extent of a copy counts an array's texels, if there is one, as do places in it; otherwise bytes
cudaError_t box_of(const cudaMemcpy3DParms &p, CUDA_MEMCPY3D *c) {
  cudaExtent box = p.extent;
  size_t sizes[2] = {1, 1};
  cudaArray_t arrays[2] = {p.dstArray, p.srcArray};
  for (int side = 0; side < 2; ++side) {
    if (!arrays[side]) continue;
    CUDA_ARRAY3D_DESCRIPTOR d{};
    if (cudaError_t status = kept(cuArray3DGetDescriptor(&d, of(arrays[side])))) return status;
    sizes[side] = texel(d);
  }
  box.width *= arrays[0] ? sizes[0] : sizes[1];
  auto side = [&](cudaArray_t array, const cudaPitchedPtr &ptr, const cudaPos &at, size_t size, bool host) {
    Side found = array ? in_array(array, at.x * size, at.y, at.z) : in_memory(ptr.ptr, ptr.pitch, ptr.ysize, host, p.kind);
    return found.x = at.x * size, found.y = at.y, found.z = at.z, found;
  };
  *c = box_of(side(p.dstArray, p.dstPtr, p.dstPos, sizes[0], to_host(p.kind)),
              side(p.srcArray, p.srcPtr, p.srcPos, sizes[1], from_host(p.kind)), box);
  return cudaSuccess;
}

// Rows of an array one behind the other, as the copies without a height have it
static cudaError_t place_in(cudaArray_const_t array, size_t x, size_t y, size_t *byte) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  cudaError_t status = kept(cuArray3DGetDescriptor(&d, of(array)));
  return *byte = y * d.Width * texel(d) + x, status;
}
static bool of_host(const void *memory, cudaMemcpyKind kind, bool named) {
  cudaPointerAttributes p{};
  return kind == cudaMemcpyDefault ? cudaPointerGetAttributes(&p, memory) || p.type < cudaMemoryTypeDevice : named;
}

extern "C" {

// ---- arrays

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind f) {
  return {x, y, z, w, f};
}
cudaError_t cudaMallocArray(cudaArray_t *array, const cudaChannelFormatDesc *desc, size_t width, size_t height,
                            unsigned flags) {
  return array && desc ? create(array, desc, {width, height, 0}, flags) : kept(cudaErrorInvalidValue);
}
cudaError_t cudaMalloc3DArray(cudaArray_t *array, const cudaChannelFormatDesc *desc, cudaExtent extent,
                              unsigned flags) {
  return array && desc ? create(array, desc, extent, flags) : kept(cudaErrorInvalidValue);
}
cudaError_t cudaFreeArray(cudaArray_t array) { return array ? kept(cuArrayDestroy(of(array))) : cudaSuccess; }
cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc *desc, cudaArray_const_t array) {
  return cudaArrayGetInfo(desc, nullptr, nullptr, const_cast<cudaArray_t>(array));
}
cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc *desc, cudaExtent *extent, unsigned *flags, cudaArray_t array) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  if (cudaError_t status = kept(cuArray3DGetDescriptor(&d, of(array)))) return status;
  if (desc) *desc = format_from(d);
  if (extent) *extent = {d.Width, d.Height, d.Depth};
  if (flags) *flags = d.Flags;
  return cudaSuccess;
}

// ---- copies

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms *p, cudaStream_t queue) {
  if (!p) return kept(cudaErrorInvalidValue);
  CUDA_MEMCPY3D c;
  cudaError_t status = box_of(*p, &c);
  return status ? status : copy(c, queue);
}
cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                     size_t height, cudaMemcpyKind kind, cudaStream_t queue) {
  return copy(box_of(in_array(to, x, y, 0), in_memory(from, pitch, height, from_host(kind), kind), {width, height, 1}),
              queue);
}
cudaError_t cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width,
                                       size_t height, cudaMemcpyKind kind, cudaStream_t queue) {
  return copy(box_of(in_memory(to, pitch, height, to_host(kind), kind), in_array(from, x, y, 0), {width, height, 1}),
              queue);
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t x,
                                     size_t y, size_t width, size_t height, cudaMemcpyKind) {
  Waiting now;
  return copy(box_of(in_array(to, to_x, to_y, 0), in_array(from, x, y, 0), {width, height, 1}), nullptr);
}
cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void *from, size_t count, cudaMemcpyKind kind) {
  size_t byte;
  if (cudaError_t status = place_in(to, x, y, &byte)) return status;
  return kept(of_host(from, kind, from_host(kind)) ? cuMemcpyHtoA(of(to), byte, from, count)
                                                   : cuMemcpyDtoA(of(to), byte, CUdeviceptr(from), count));
}
cudaError_t cudaMemcpyFromArray(void *to, cudaArray_const_t from, size_t x, size_t y, size_t count,
                                cudaMemcpyKind kind) {
  size_t byte;
  if (cudaError_t status = place_in(from, x, y, &byte)) return status;
  return kept(of_host(to, kind, to_host(kind)) ? cuMemcpyAtoH(to, of(from), byte, count)
                                               : cuMemcpyAtoD(CUdeviceptr(to), of(from), byte, count));
}

// ---- objects

static cudaError_t resource_of(const cudaResourceDesc &r, CUDA_RESOURCE_DESC *to) {
  std::memset(to, 0, sizeof *to);
  to->resType = CUresourcetype(r.resType);
  const cudaChannelFormatDesc *desc = nullptr;
  if (r.resType == cudaResourceTypeArray) {
    to->res.array.hArray = of(r.res.array.array);
  } else if (r.resType == cudaResourceTypeLinear) {
    desc = &r.res.linear.desc;
    to->res.linear = {CUdeviceptr(r.res.linear.devPtr), {}, unsigned(channels(*desc)), r.res.linear.sizeInBytes};
  } else if (r.resType == cudaResourceTypePitch2D) {
    const auto &rows = r.res.pitch2D;
    desc = &rows.desc;
    to->res.pitch2D = {CUdeviceptr(rows.devPtr), {}, unsigned(channels(*desc)), rows.width, rows.height, rows.pitchInBytes};
  }
  return desc ? format_of(*desc, &to->res.linear.format) : cudaSuccess;  // which is where that of rows is
}
cudaError_t cudaCreateTextureObject(cudaTextureObject_t *object, const cudaResourceDesc *resource,
                                    const cudaTextureDesc *t, const cudaResourceViewDesc *view) {
  if (!object || !resource || !t) return kept(cudaErrorInvalidValue);
  CUDA_RESOURCE_DESC r;
  if (cudaError_t status = resource_of(*resource, &r)) return status;
  CUDA_TEXTURE_DESC d{};
  for (int axis = 0; axis < 3; ++axis) d.addressMode[axis] = CUaddress_mode(t->addressMode[axis]);
  d.filterMode = CUfilter_mode(t->filterMode), d.maxAnisotropy = t->maxAnisotropy;
  d.flags = (t->readMode == cudaReadModeElementType ? CU_TRSF_READ_AS_INTEGER : 0) |
            (t->normalizedCoords ? CU_TRSF_NORMALIZED_COORDINATES : 0) | (t->sRGB ? CU_TRSF_SRGB : 0) |
            (t->seamlessCubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0);
  std::memcpy(d.borderColor, t->borderColor, sizeof d.borderColor);
  auto of_view = reinterpret_cast<const CUDA_RESOURCE_VIEW_DESC *>(view);
  return kept(cuTexObjectCreate(reinterpret_cast<CUtexObject *>(object), &r, &d, of_view));
}
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t object) {
  return object ? kept(cuTexObjectDestroy(object)) : cudaSuccess;
}
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *object, const cudaResourceDesc *resource) {
  if (!object || !resource) return kept(cudaErrorInvalidValue);
  CUDA_RESOURCE_DESC r;
  if (cudaError_t status = resource_of(*resource, &r)) return status;
  return kept(cuSurfObjectCreate(reinterpret_cast<CUsurfObject *>(object), &r));
}
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t object) {
  return object ? kept(cuSurfObjectDestroy(object)) : cudaSuccess;
}
cudaError_t cudaDeviceGetTexture1DLinearMaxWidth(size_t *texels, const cudaChannelFormatDesc *, int device) {
  int value = 0;
  cudaError_t status = cudaDeviceGetAttribute(&value, cudaDevAttrMaxTexture1DLinearWidth, device);
  return *texels = value, status;
}
}
