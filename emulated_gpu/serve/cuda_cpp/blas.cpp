// Stands in for cuBLAS and cuBLASLt, with which programs check kernels of their own. All of it is one matrix product,
// which the emulator does in Python (blas.py); vectors are matrices of one row.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

struct Request {  // as blas.py has it
  const char *name;
  uint64_t stream;
  int32_t m, n, k, batches;
  int32_t ops[2], types[4], row_major[4];  // of A, B (ops), C, D
  int32_t epilogue, bias_type, compute;
  const void *at[4];
  int64_t lead[4], stride[4];  // in elements
  double alpha, beta;
  const void *bias, *aux, *scales[3];  // of A, B, D
  int64_t aux_lead;
};
extern "C" int emulator_blas(const void *request);  // of the stand-in for the runtime

struct cublasContext {
  cudaStream_t stream;
  cublasPointerMode_t pointers;
  cublasMath_t math;
};

static double number(const void *at, cudaDataType type) {
  if (!at) return 0;
  if (type == CUDA_R_64F) return *static_cast<const double *>(at);
  if (type == CUDA_R_16F) return __half2float(*static_cast<const __half *>(at));
  if (type == CUDA_R_32I) return *static_cast<const int32_t *>(at);
  return *static_cast<const float *>(at);
}

// Whether an operand's columns, or rows, are as far apart as they are long.
static bool apart(const Request &r, int i) {
  int64_t shapes[4][2] = {{r.m, r.k}, {r.k, r.n}, {r.m, r.n}, {r.m, r.n}};
  bool sum = std::strstr(r.name, "geam"), turned = i < 2 && r.ops[i];
  return r.lead[i] < 0 || r.lead[i] >= std::max<int64_t>(shapes[sum ? 3 : i][turned ^ bool(r.row_major[i])], 1);
}
static cublasStatus_t send(const Request &r) {
  if (!r.name) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (r.m < 0 || r.n < 0 || r.k < 0 || r.batches < 0) return CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < 4; ++i)
    if (!apart(r, i) || (i < 2 && (r.ops[i] < CUBLAS_OP_N || r.ops[i] > CUBLAS_OP_C))) return CUBLAS_STATUS_INVALID_VALUE;
  if (!r.m || !r.n || !r.batches) return CUBLAS_STATUS_SUCCESS;
  int status = emulator_blas(&r);
  if (!status) return CUBLAS_STATUS_SUCCESS;
  return status == cudaErrorInvalidValue ? CUBLAS_STATUS_INVALID_VALUE
       : status == cudaErrorNotSupported ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_EXECUTION_FAILED;
}

static cudaDataType scale_of(cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_16F: case CUBLAS_COMPUTE_16F_PEDANTIC: return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F: case CUBLAS_COMPUTE_64F_PEDANTIC: return CUDA_R_64F;
    case CUBLAS_COMPUTE_32I: case CUBLAS_COMPUTE_32I_PEDANTIC: return CUDA_R_32I;
    default: return CUDA_R_32F;
  }
}

static const double zero = 0;  // in every type
static const float one_S = 1;
static const double one_D = 1;
// Of float, double and __half
template <class T>
constexpr cudaDataType type_of = sizeof(T) == 4 ? CUDA_R_32F : sizeof(T) == 8 ? CUDA_R_64F : CUDA_R_16F;
template <class T>
constexpr cublasComputeType_t compute_of = sizeof(T) == 4   ? CUBLAS_COMPUTE_32F
                                           : sizeof(T) == 8 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_16F;

// A product of matrices of one type each, in columns. Without a handle it has no name; alpha and beta must be given.
static Request product(const char *name, cublasHandle_t handle, int op_a, int op_b, int m, int n, int k,
                       const void *alpha, const void *a, cudaDataType type_a, int64_t lda, const void *b,
                       cudaDataType type_b, int64_t ldb, const void *beta, void *c, cudaDataType type_c, int64_t ldc,
                       cublasComputeType_t compute) {
  cudaDataType scale = scale_of(compute);
  Request r = {};
  if (!handle) return r;
  r.name = name, r.stream = uint64_t(handle->stream), r.compute = compute;
  r.m = alpha && beta ? m : -1, r.n = n, r.k = k, r.batches = 1;
  r.ops[0] = op_a, r.ops[1] = op_b;
  r.types[0] = type_a, r.types[1] = type_b, r.types[2] = r.types[3] = type_c;
  r.at[0] = a, r.at[1] = b, r.at[2] = r.at[3] = c;
  r.lead[0] = lda, r.lead[1] = ldb, r.lead[2] = r.lead[3] = ldc;
  r.alpha = number(alpha, scale), r.beta = number(beta, scale);
  r.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  return r;
}

// The same of matrices of one type, done
template <class T>
static cublasStatus_t same_types(const char *name, cublasHandle_t handle, int op_a, int op_b, int m, int n, int k,
                                 const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                                 const void *beta, T *c, int64_t ldc) {
  const auto type = type_of<T>;
  return send(product(name, handle, op_a, op_b, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc,
                      compute_of<T>));
}

template <class Call> static cublasStatus_t with(cublasHandle_t handle, Call call) {
  return handle ? (call(), CUBLAS_STATUS_SUCCESS) : CUBLAS_STATUS_NOT_INITIALIZED;
}

// What a function tells of vectors, in the order of the stream: to the host, or to the device.
template <class Out, class Value>
static cublasStatus_t told(cublasHandle_t handle, cublasStatus_t status, Out *result, Value value) {
  if (status || !result) return status ? status : CUBLAS_STATUS_INVALID_VALUE;
  Out found = value();
  auto failed = cudaMemcpyAsync(result, &found, sizeof found, cudaMemcpyDefault, handle->stream);
  return failed ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS;
}

// An attribute of a descriptor of cuBLASLt's, which is an array of them.
template <class Opaque> static cublasStatus_t set(Opaque *of, int attribute, const void *value, size_t size) {
  if (attribute < 0 || attribute >= 64 || size > 8) return CUBLAS_STATUS_INVALID_VALUE;
  of->data[attribute] = 0;
  std::memcpy(&of->data[attribute], value, size);
  return CUBLAS_STATUS_SUCCESS;
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  cudaFree(nullptr);  // which makes a context
  return *handle = new cublasContext(), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return with(handle, [&] { delete handle; }); }
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version) { return *version = 130000, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) { return with(h, [&] { h->stream = s; }); }
cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *s) { return with(h, [&] { *s = h->stream; }); }
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return with(handle, [&] { handle->pointers = mode; });
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
  return with(handle, [&] { *mode = handle->pointers; });
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode) { return with(h, [&] { h->math = mode; }); }
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode) { return with(h, [&] { *mode = h->math; }); }
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }
const char *cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
cublasStatus_t cublasSetMatrix(int rows, int cols, int size, const void *a, int lda, void *b, int ldb) {
  if (rows < 0 || cols < 0 || size <= 0 || lda <= 0 || ldb <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  auto status = cudaMemcpy2D(b, size_t(ldb) * size, a, size_t(lda) * size, size_t(rows) * size, cols, cudaMemcpyDefault);
  return status ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMatrix(int rows, int cols, int size, const void *a, int lda, void *b, int ldb) {
  return cublasSetMatrix(rows, cols, size, a, lda, b, ldb);
}
cublasStatus_t cublasSetVector(int n, int size, const void *x, int incx, void *y, int incy) {
  return cublasSetMatrix(1, n, size, x, incx, y, incy);
}
cublasStatus_t cublasGetVector(int n, int size, const void *x, int incx, void *y, int incy) {
  return cublasSetMatrix(1, n, size, x, incx, y, incy);
}

// ---- products

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  return send(product("cublasGemmEx", handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c,
                      type_c, ldc, compute));
}
cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                             const float *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                             cudaDataType type_b, int ldb, const float *beta, void *c, cudaDataType type_c, int ldc) {
  return cublasGemmEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void *alpha, const void *a, cudaDataType type_a, int lda,
                                          long long stride_a, const void *b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batches, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  Request r = product("cublasGemmStridedBatchedEx", handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb,
                      beta, c, type_c, ldc, compute);
  r.batches = batches;
  r.stride[0] = stride_a, r.stride[1] = stride_b, r.stride[2] = r.stride[3] = stride_c;
  return send(r);
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                   int k, const void *alpha, const void *const a[], cudaDataType type_a, int lda,
                                   const void *const b[], cudaDataType type_b, int ldb, const void *beta,
                                   void *const c[], cudaDataType type_c, int ldc, int batches,
                                   cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (int i = 0; i < batches && !status; ++i)
    status = cublasGemmEx(handle, op_a, op_b, m, n, k, alpha, a[i], type_a, lda, b[i], type_b, ldb, beta, c[i], type_c,
                          ldc, compute, algorithm);
  return status;
}

#define GEMM(X) {                                                                                                      \
  return same_types("cublasGemmEx", handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                 \
}
#define STRIDED(X) {                                                                                                   \
  const auto type = type_of<EMULATED_##X>;                                                                             \
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type, lda, stride_a, b, type, ldb, stride_b,\
                                    beta, c, type, ldc, stride_c, batches, compute_of<EMULATED_##X>,                   \
                                    CUBLAS_GEMM_DEFAULT);                                                              \
}
#define BATCHED(X) {                                                                                                   \
  const auto type = type_of<EMULATED_##X>;                                                                             \
  return cublasGemmBatchedEx(handle, op_a, op_b, m, n, k, alpha, (const void *const *)a, type, lda,                    \
                             (const void *const *)b, type, ldb, beta, (void *const *)c, type, ldc, batches,            \
                             compute_of<EMULATED_##X>, CUBLAS_GEMM_DEFAULT);                                           \
}

// ---- sums; vectors: x of n elements, incx apart, is a row whose elements are the columns of a matrix with incx rows

#define GEAM(X) {                                                                                                      \
  return same_types("cublas" #X "geam", handle, op_a, op_b, m, n, 1, alpha, a, lda, b, ldb, beta, c, ldc);             \
}
#define GEMV(X) {                                                                                                      \
  bool as_is = op == CUBLAS_OP_N;                                                                                      \
  return same_types("cublas" #X "gemv", handle, CUBLAS_OP_N, as_is ? CUBLAS_OP_T : CUBLAS_OP_N, 1, as_is ? m : n,      \
                    as_is ? n : m, alpha, x, incx, a, lda, beta, y, incy);                                             \
}
#define GER(X) {                                                                                                       \
  return same_types("cublas" #X "ger", handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, 1, alpha, x, incx, y, incy, &one_##X, a,\
                    lda);                                                                                              \
}
#define AXPY(X) {                                                                                                      \
  return same_types("cublas" #X "axpy", handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, n, 1, alpha, &one_##X, 1, x, incx, &one_##X,\
                    y, incy);                                                                                          \
}
#define SCAL(X) {                                                                                                      \
  return same_types("cublas" #X "scal", handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, n, 0, &zero, x, 1, x, 1, alpha, x, incx); \
}
#define DOT(X) {                                                                                                       \
  return same_types("cublas" #X "dot", handle, CUBLAS_OP_N, CUBLAS_OP_T, 1, 1, n, &one_##X, x, incx, y, incy, &zero,   \
                    result, 1);                                                                                        \
}
#define NRM2(X) {                                                                                                      \
  EMULATED_##X sum = 0;                                                                                                \
  return told(handle, cublas##X##dot_v2(handle, n, x, incx, x, incx, &sum), result, [&] { return std::sqrt(sum); });   \
}
#define COPY(X) {                                                                                                      \
  return same_types("cublas" #X "copy", handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, n, 1, &one_##X, &one_##X, 1, x, incx, &zero,\
                    y, incy);                                                                                          \
}
#define SWAP(X) {                                                                                                      \
  std::vector<EMULATED_##X> kept(std::max(n, 1));                                                                      \
  auto status = cublas##X##copy_v2(handle, n, x, incx, kept.data(), 1);                                                \
  if (!status) status = cublas##X##copy_v2(handle, n, y, incy, x, incx);                                               \
  return status ? status : cublas##X##copy_v2(handle, n, kept.data(), 1, y, incy);                                     \
}
#define ASUM(X) {                                                                                                      \
  std::vector<EMULATED_##X> kept(std::max(n, 1));                                                                      \
  return told(handle, cublas##X##copy_v2(handle, n, x, incx, kept.data(), 1), result, [&] {                            \
    double sum = 0;                                                                                                    \
    for (auto one : kept) sum += std::fabs(one);                                                                       \
    return EMULATED_##X(sum);                                                                                          \
  });                                                                                                                  \
}

// The first element, counted from 1, that no other one exceeds, in size or in smallness
#define EXTREME(X, EXCEEDS) {                                                                                          \
  std::vector<EMULATED_##X> kept(std::max(n, 0) + 1);                                                                  \
  return told(handle, cublas##X##copy_v2(handle, n, x, incx, kept.data(), 1), result, [&] {                            \
    auto less = [](EMULATED_##X left, EMULATED_##X right) {                                                            \
      auto a = std::fabs(left), b = std::fabs(right);                                                                  \
      return EXCEEDS;                                                                                                  \
    };                                                                                                                 \
    return n > 0 ? int(std::max_element(kept.begin(), kept.end() - 1, less) - kept.begin()) + 1 : 0;                   \
  });                                                                                                                  \
}
#define AMAX(X) EXTREME(X, a < b)
#define AMIN(X) EXTREME(X, b < a)

#define BODY(X, NAME) NAME(X)
EMULATED_GEMMS(S, _v2, BODY)
EMULATED_GEMMS(D, _v2, BODY)
EMULATED_GEMMS(H, , BODY)
EMULATED_VECTORS(S, s, BODY)
EMULATED_VECTORS(D, d, BODY)

// The same of vectors of any types, in float or double
static cublasComputeType_t compute_in(cudaDataType execution) {
  return execution == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
}

cublasStatus_t cublasAxpyEx(cublasHandle_t handle, int n, const void *alpha, cudaDataType type_alpha, const void *x,
                            cudaDataType type_x, int incx, void *y, cudaDataType type_y, int incy,
                            cudaDataType execution) {
  Request r = product("cublasAxpyEx", handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, n, 1, &zero, &one_S, CUDA_R_32F, 1, x,
                      type_x, incx, &zero, y, type_y, incy, compute_in(execution));
  return r.alpha = number(alpha, type_alpha), r.beta = 1, send(r);
}
cublasStatus_t cublasScalEx(cublasHandle_t handle, int n, const void *alpha, cudaDataType type_alpha, void *x,
                            cudaDataType type_x, int incx, cudaDataType execution) {
  Request r = product("cublasScalEx", handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, n, 0, &zero, x, type_x, 1, x, type_x, 1,
                      &zero, x, type_x, incx, compute_in(execution));
  return r.beta = number(alpha, type_alpha), send(r);
}
cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x, cudaDataType type_x, int incx, const void *y,
                           cudaDataType type_y, int incy, void *result, cudaDataType type_result,
                           cudaDataType execution) {
  Request r = product("cublasDotEx", handle, CUBLAS_OP_N, CUBLAS_OP_T, 1, 1, n, &zero, x, type_x, incx, y, type_y,
                      incy, &zero, result, type_result, 1, compute_in(execution));
  return r.alpha = 1, send(r);
}

// ---- cuBLASLt

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  return *handle = reinterpret_cast<cublasLtHandle_t>(new cublasContext()), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return delete reinterpret_cast<cublasContext *>(handle), CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130000; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{};
  (*desc)->data[CUBLASLT_MATMUL_DESC_COMPUTE_TYPE] = compute;
  (*desc)->data[CUBLASLT_MATMUL_DESC_SCALE_TYPE] = scale;
  (*desc)->data[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
  (*desc)->data[CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE] = uint32_t(-1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete desc, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
  return set(desc, attribute, value, size);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  (*layout)->data[CUBLASLT_MATRIX_LAYOUT_TYPE] = type;
  (*layout)->data[CUBLASLT_MATRIX_LAYOUT_ROWS] = rows;
  (*layout)->data[CUBLASLT_MATRIX_LAYOUT_COLS] = cols;
  (*layout)->data[CUBLASLT_MATRIX_LAYOUT_LD] = ld;
  (*layout)->data[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT] = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete layout, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t size) {
  return set(layout, attribute, value, size);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  return *preference = new cublasLtMatmulPreferenceOpaque_t{}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t size) {
  return set(preference, attribute, value, size);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
  *found = wanted > 0;  // there is one way
  if (*found) results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                              const void *beta, const void *c, cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !beta || !a || !layout_a || !b || !layout_b || !d || !layout_d) return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t *of = desc->data;
  auto scale = cudaDataType(of[CUBLASLT_MATMUL_DESC_SCALE_TYPE]);
  cublasLtMatrixLayout_t layouts[] = {layout_a, layout_b, layout_c ? layout_c : layout_d, layout_d};
  const void *at[] = {a, b, c ? c : d, d};
  if (of[CUBLASLT_MATMUL_DESC_TRANSC]) return CUBLAS_STATUS_NOT_SUPPORTED;
  Request r = {};
  r.name = "cublasLtMatmul", r.stream = uint64_t(stream), r.compute = int(of[CUBLASLT_MATMUL_DESC_COMPUTE_TYPE]);
  for (int i = 0; i < 4; ++i) {
    const uint64_t *layout = layouts[i]->data;
    r.at[i] = at[i], r.types[i] = int(layout[CUBLASLT_MATRIX_LAYOUT_TYPE]);
    r.row_major[i] = int(layout[CUBLASLT_MATRIX_LAYOUT_ORDER]), r.lead[i] = layout[CUBLASLT_MATRIX_LAYOUT_LD];
    r.stride[i] = layout[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET];
    if (r.row_major[i] > 1) return CUBLAS_STATUS_NOT_SUPPORTED;  // tiled orders
  }
  r.ops[0] = int(of[CUBLASLT_MATMUL_DESC_TRANSA]), r.ops[1] = int(of[CUBLASLT_MATMUL_DESC_TRANSB]);
  r.m = int(layout_d->data[CUBLASLT_MATRIX_LAYOUT_ROWS]), r.n = int(layout_d->data[CUBLASLT_MATRIX_LAYOUT_COLS]);
  r.k = int(layout_a->data[r.ops[0] ? CUBLASLT_MATRIX_LAYOUT_ROWS : CUBLASLT_MATRIX_LAYOUT_COLS]);
  const int rows = CUBLASLT_MATRIX_LAYOUT_ROWS, cols = CUBLASLT_MATRIX_LAYOUT_COLS;
  const uint64_t *of_a = layout_a->data, *of_b = layout_b->data;
  if (of_a[r.ops[0] ? cols : rows] != uint64_t(r.m) || of_b[r.ops[1] ? cols : rows] != uint64_t(r.k) ||
      of_b[r.ops[1] ? rows : cols] != uint64_t(r.n))
    return CUBLAS_STATUS_INVALID_VALUE;
  r.batches = int(layout_d->data[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT]);
  r.alpha = number(alpha, scale), r.beta = number(beta, scale);
  r.epilogue = int(of[CUBLASLT_MATMUL_DESC_EPILOGUE]);
  r.bias = reinterpret_cast<const void *>(of[CUBLASLT_MATMUL_DESC_BIAS_POINTER]);
  r.bias_type = int(of[CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE]);
  if (r.bias_type == -1) r.bias_type = r.types[3] >= CUDA_R_8F_E4M3 ? int(CUDA_R_16BF) : r.types[3];
  r.aux = reinterpret_cast<const void *>(of[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER]);
  r.aux_lead = of[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD];
  const int scales[] = {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                        CUBLASLT_MATMUL_DESC_D_SCALE_POINTER};
  for (int i = 0; i < 3; ++i) r.scales[i] = reinterpret_cast<const void *>(of[scales[i]]);
  return send(r);
}
}
