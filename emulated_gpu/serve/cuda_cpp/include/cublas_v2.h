#pragma once  // in the place of cuBLAS's header: what the stand-in (blas.cpp) has, by https://docs.nvidia.com/cuda/cublas/

#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

typedef struct cublasContext *cublasHandle_t;
typedef enum {
  CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_ARCH_MISMATCH = 8, CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14, CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum {
  CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DFALT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef enum {
  CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_16F_PEDANTIC = 65, CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_64F_PEDANTIC = 71,
  CUBLAS_COMPUTE_32I = 72, CUBLAS_COMPUTE_32I_PEDANTIC = 73, CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75, CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;
typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;
typedef cudaDataType cublasDataType_t;

#ifdef __cplusplus
struct __half;
extern "C" {
#endif
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream);
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode);
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasSetVector(int n, int size, const void *x, int incx, void *y, int incy);
cublasStatus_t cublasGetVector(int n, int size, const void *x, int incx, void *y, int incy);
cublasStatus_t cublasSetMatrix(int rows, int cols, int size, const void *a, int lda, void *b, int ldb);
cublasStatus_t cublasGetMatrix(int rows, int cols, int size, const void *a, int lda, void *b, int ldb);

// Functions of each type; blas.cpp gives them their bodies
#define EMULATED_DECLARED(X, NAME) ;
#define EMULATED_GEMMS(X, T, BODY)                                                                                     \
  cublasStatus_t cublas##X##gemm##T(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,      \
      int n, int k, const EMULATED_##X *alpha, const EMULATED_##X *a, int lda, const EMULATED_##X *b, int ldb,         \
      const EMULATED_##X *beta, EMULATED_##X *c, int ldc) BODY(X, GEMM)                                                \
  cublasStatus_t cublas##X##gemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a,                          \
      cublasOperation_t op_b, int m, int n, int k, const EMULATED_##X *alpha, const EMULATED_##X *a, int lda,          \
      long long stride_a, const EMULATED_##X *b, int ldb, long long stride_b, const EMULATED_##X *beta,                \
      EMULATED_##X *c, int ldc, long long stride_c, int batches) BODY(X, STRIDED)                                      \
  cublasStatus_t cublas##X##gemmBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,  \
      int n, int k, const EMULATED_##X *alpha, const EMULATED_##X *const a[], int lda,                                 \
      const EMULATED_##X *const b[], int ldb, const EMULATED_##X *beta, EMULATED_##X *const c[], int ldc,              \
      int batches) BODY(X, BATCHED)
#define EMULATED_VECTORS(X, Y, BODY)                                                                                   \
  cublasStatus_t cublas##X##gemv_v2(cublasHandle_t handle, cublasOperation_t op, int m, int n,                         \
      const EMULATED_##X *alpha, const EMULATED_##X *a, int lda, const EMULATED_##X *x, int incx,                      \
      const EMULATED_##X *beta, EMULATED_##X *y, int incy) BODY(X, GEMV)                                               \
  cublasStatus_t cublas##X##ger_v2(cublasHandle_t handle, int m, int n, const EMULATED_##X *alpha,                     \
      const EMULATED_##X *x, int incx, const EMULATED_##X *y, int incy, EMULATED_##X *a, int lda) BODY(X, GER)         \
  cublasStatus_t cublas##X##axpy_v2(cublasHandle_t handle, int n, const EMULATED_##X *alpha, const EMULATED_##X *x,    \
      int incx, EMULATED_##X *y, int incy) BODY(X, AXPY)                                                               \
  cublasStatus_t cublas##X##scal_v2(cublasHandle_t handle, int n, const EMULATED_##X *alpha, EMULATED_##X *x,          \
      int incx) BODY(X, SCAL)                                                                                          \
  cublasStatus_t cublas##X##dot_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx,                      \
      const EMULATED_##X *y, int incy, EMULATED_##X *result) BODY(X, DOT)                                              \
  cublasStatus_t cublas##X##nrm2_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx,                     \
      EMULATED_##X *result) BODY(X, NRM2)                                                                              \
  cublasStatus_t cublas##X##copy_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx, EMULATED_##X *y,    \
      int incy) BODY(X, COPY)                                                                                          \
  cublasStatus_t cublas##X##swap_v2(cublasHandle_t handle, int n, EMULATED_##X *x, int incx, EMULATED_##X *y,          \
      int incy) BODY(X, SWAP)                                                                                          \
  cublasStatus_t cublas##X##asum_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx,                     \
      EMULATED_##X *result) BODY(X, ASUM)                                                                              \
  cublasStatus_t cublasI##Y##amax_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx,                    \
      int *result) BODY(X, AMAX)                                                                                       \
  cublasStatus_t cublasI##Y##amin_v2(cublasHandle_t handle, int n, const EMULATED_##X *x, int incx,                    \
      int *result) BODY(X, AMIN)                                                                                       \
  cublasStatus_t cublas##X##geam(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,  \
      const EMULATED_##X *alpha, const EMULATED_##X *a, int lda, const EMULATED_##X *beta, const EMULATED_##X *b,      \
      int ldb, EMULATED_##X *c, int ldc) BODY(X, GEAM)
#define EMULATED_S float
#define EMULATED_D double
EMULATED_GEMMS(S, _v2, EMULATED_DECLARED)
EMULATED_GEMMS(D, _v2, EMULATED_DECLARED)
EMULATED_VECTORS(S, s, EMULATED_DECLARED)
EMULATED_VECTORS(D, d, EMULATED_DECLARED)
#ifdef __cplusplus
#define EMULATED_H __half
EMULATED_GEMMS(H, , EMULATED_DECLARED)
#endif

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b, cudaDataType type_b, int ldb,
    const void *beta, void *c, cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
    int n, int k, const void *alpha, const void *a, cudaDataType type_a, int lda, long long stride_a, const void *b,
    cudaDataType type_b, int ldb, long long stride_b, const void *beta, void *c, cudaDataType type_c, int ldc,
    long long stride_c, int batches, cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
    int k, const void *alpha, const void *const a[], cudaDataType type_a, int lda, const void *const b[],
    cudaDataType type_b, int ldb, const void *beta, void *const c[], cudaDataType type_c, int ldc, int batches,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasAxpyEx(cublasHandle_t handle, int n, const void *alpha, cudaDataType type_alpha, const void *x,
    cudaDataType type_x, int incx, void *y, cudaDataType type_y, int incy, cudaDataType execution);
cublasStatus_t cublasScalEx(cublasHandle_t handle, int n, const void *alpha, cudaDataType type_alpha, void *x,
    cudaDataType type_x, int incx, cudaDataType execution);
cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x, cudaDataType type_x, int incx, const void *y,
    cudaDataType type_y, int incy, void *result, cudaDataType type_result, cudaDataType execution);
cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
    const float *alpha, const void *a, cudaDataType type_a, int lda, const void *b, cudaDataType type_b, int ldb,
    const float *beta, void *c, cudaDataType type_c, int ldc);
#ifdef __cplusplus
}
#endif

#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasGetVersion cublasGetVersion_v2
#define cublasSetStream cublasSetStream_v2
#define cublasGetStream cublasGetStream_v2
#define cublasSetPointerMode cublasSetPointerMode_v2
#define cublasGetPointerMode cublasGetPointerMode_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSgemm cublasSgemm_v2
#define cublasDgemm cublasDgemm_v2
#define cublasSgemv cublasSgemv_v2
#define cublasDgemv cublasDgemv_v2
#define cublasSger cublasSger_v2
#define cublasDger cublasDger_v2
#define cublasSaxpy cublasSaxpy_v2
#define cublasDaxpy cublasDaxpy_v2
#define cublasSscal cublasSscal_v2
#define cublasDscal cublasDscal_v2
#define cublasSdot cublasSdot_v2
#define cublasDdot cublasDdot_v2
#define cublasSnrm2 cublasSnrm2_v2
#define cublasDnrm2 cublasDnrm2_v2
#define cublasScopy cublasScopy_v2
#define cublasDcopy cublasDcopy_v2
#define cublasSswap cublasSswap_v2
#define cublasDswap cublasDswap_v2
#define cublasSasum cublasSasum_v2
#define cublasDasum cublasDasum_v2
#define cublasIsamax cublasIsamax_v2
#define cublasIdamax cublasIdamax_v2
#define cublasIsamin cublasIsamin_v2
#define cublasIdamin cublasIdamin_v2
