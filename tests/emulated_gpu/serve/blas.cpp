// A program that multiplies by cuBLAS and by loops of its own. It prints OK, or what differs.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

template <class T> T *device(const std::vector<T> &values) {
  T *memory;
  cudaMalloc(&memory, values.size() * sizeof(T));
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}
template <class T> std::vector<T> host(const T *memory, size_t count) {
  std::vector<T> values(count);
  cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}
static unsigned state = 1;
static float draw() {  // multiples of 1/4 in [-2, 2): exact in all types and sums
  state = state * 1664525u + 1013904223u;
  return int(state >> 28) / 4.f - 2;
}
template <class T> std::vector<T> drawn(size_t count) {
  std::vector<T> values(count);
  for (auto &one : values) one = T(draw());
  return values;
}
#define WANT(what) if (!(what)) return printf("%s, line %d\n", #what, __LINE__), 1
#define DONE(call) WANT((call) == CUBLAS_STATUS_SUCCESS)

// Column-major; op: whether turned
template <class T> float sum(const std::vector<T> &a, int lda, bool op_a, const std::vector<T> &b, int ldb, bool op_b,
                             int i, int j, int k, size_t at_a = 0, size_t at_b = 0) {
  float found = 0;
  for (int l = 0; l < k; ++l)
    found += float(a[at_a + (op_a ? i * lda + l : l * lda + i)]) * float(b[at_b + (op_b ? l * ldb + j : j * ldb + l)]);
  return found;
}

int main() {
  cublasHandle_t blas;
  DONE(cublasCreate(&blas));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  DONE(cublasSetStream(blas, stream));
  const int m = 5, n = 7, k = 9, lda = 11, ldb = 13, ldc = 6;
  const float alpha = 2, beta = 0.5f, one = 1, zero = 0;

  for (int ops = 0; ops < 4; ++ops) {  // sums, of which the second leaves B out
    bool ta = ops & 1, tb = ops & 2;
    auto a = drawn<double>(lda * 16), b = drawn<double>(ldb * 16), c = drawn<double>(ldc * n);
    double *da = device(a), *db = device(b), *dc = device(c), two = 2, half = 0.5, none = 0;
    cublasOperation_t op_a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    for (int kept = 1; kept >= 0; --kept) {
      DONE(cublasDgeam(blas, op_a, op_b, m, n, &two, da, lda, kept ? &half : &none, kept ? db : nullptr, ldb, dc, ldc));
      cudaStreamSynchronize(stream);
      auto got = host(dc, c.size());
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i)
          WANT(got[j * ldc + i] == 2 * a[ta ? i * lda + j : j * lda + i] + kept * b[tb ? i * ldb + j : j * ldb + i] / 2);
    }
  }
  for (int ops = 0; ops < 4; ++ops) {
    bool ta = ops & 1, tb = ops & 2;
    auto a = drawn<float>(lda * 16), b = drawn<float>(ldb * 16), c = drawn<float>(ldc * n);
    float *da = device(a), *db = device(b), *dc = device(c);
    DONE(cublasSgemm(blas, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha, da, lda, db,
                     ldb, &beta, dc, ldc));
    cudaStreamSynchronize(stream);
    auto got = host(dc, c.size());
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < ldc; ++i) {
        float want = i < m ? 2 * sum(a, lda, ta, b, ldb, tb, i, j, k) + 0.5f * c[j * ldc + i] : c[j * ldc + i];
        WANT(got[j * ldc + i] == want);  // what lies between columns stays
      }
  }
  {  // halves, batched, into NaN that beta = 0 does not read
    auto a = drawn<__half>(2 * lda * k), b = drawn<__half>(2 * ldb * n);
    std::vector<float> c(2 * ldc * n, NAN);
    __half *da = device(a), *db = device(b);
    float *dc = device(c);
    DONE(cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da, CUDA_R_16F, lda, lda * k, db,
                                    CUDA_R_16F, ldb, ldb * n, &zero, dc, CUDA_R_32F, ldc, ldc * n, 2,
                                    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    cudaStreamSynchronize(stream);
    auto got = host(dc, c.size());
    for (int batch = 0; batch < 2; ++batch)
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i)
          WANT(got[batch * ldc * n + j * ldc + i] ==
               sum(a, lda, false, b, ldb, false, i, j, k, batch * lda * k, batch * ldb * n));
  }
  {  // vectors of halves
    auto x = drawn<__half>(2 * n);
    __half *dx = device(x), *dy = device(x), dot = 0;
    DONE(cublasDotEx(blas, n, dx, CUDA_R_16F, 2, dy, CUDA_R_16F, 1, &dot, CUDA_R_16F, CUDA_R_32F));
    DONE(cublasScalEx(blas, n, &beta, CUDA_R_32F, dy, CUDA_R_16F, 1, CUDA_R_32F));
    DONE(cublasAxpyEx(blas, n, &alpha, CUDA_R_32F, dx, CUDA_R_16F, 2, dy, CUDA_R_16F, 1, CUDA_R_32F));
    cudaStreamSynchronize(stream);
    auto got = host(dy, 2 * n);
    float wanted = 0;
    for (int i = 0; i < n; ++i) {
      wanted += float(x[2 * i]) * float(x[i]);
      WANT(float(got[i]) == float(__half(alpha * float(x[2 * i]) + beta * float(x[i]))));
    }
    WANT(float(dot) == float(__half(wanted)) && float(got[n]) == float(x[n]));
  }
  {  // vectors
    auto a = drawn<float>(lda * n), x = drawn<float>(3 * 16), y = drawn<float>(2 * 16);
    float *da = device(a), *dx = device(x), *dy = device(y);
    DONE(cublasSgemv(blas, CUBLAS_OP_N, m, n, &alpha, da, lda, dx, 3, &beta, dy, 2));
    DONE(cublasSaxpy(blas, 4, &alpha, dx, 3, dy + 20, 1));
    DONE(cublasSscal(blas, 2, &beta, dy + 26, 1));
    float dot, norm, turned[9];
    DONE(cublasSdot(blas, n, dx, 3, dx, 3, &dot));
    DONE(cublasSnrm2(blas, n, dx, 3, &norm));
    float *dt = device(std::vector<float>(9));
    DONE(cublasSgemv(blas, CUBLAS_OP_T, m, n, &one, da, lda, dx, 3, &zero, dt, 1));
    cudaStreamSynchronize(stream);
    auto got = host(dy, y.size());
    cudaMemcpy(turned, dt, sizeof turned, cudaMemcpyDeviceToHost);
    float squares = 0;
    for (int j = 0; j < n; ++j) squares += x[3 * j] * x[3 * j];
    WANT(dot == squares && std::fabs(norm - std::sqrt(squares)) < 1e-6);
    for (int i = 0; i < m; ++i) {
      float want = 0.5f * y[2 * i];
      for (int j = 0; j < n; ++j) want += 2 * a[j * lda + i] * x[3 * j];
      WANT(got[2 * i] == want && got[2 * i + 1] == y[2 * i + 1]);
    }
    for (int j = 0; j < n; ++j) {
      float want = 0;
      for (int i = 0; i < m; ++i) want += a[j * lda + i] * x[3 * i];
      WANT(turned[j] == want);
    }
    for (int i = 0; i < 4; ++i) WANT(got[20 + i] == y[20 + i] + 2 * x[3 * i]);
    WANT(got[26] == y[26] / 2 && got[27] == y[27] / 2 && got[28] == y[28]);
  }
  {  // what vectors tell, and calls that are wrong
    auto x = drawn<float>(32);
    x[6] = -9, x[12] = 9, x[9] = 0;
    float *dx = device(x), *dy = device(std::vector<float>(32)), sum, want = 0;
    int largest, smallest;
    DONE(cublasSasum(blas, 8, dx, 3, &sum));
    DONE(cublasIsamax(blas, 8, dx, 3, &largest));
    DONE(cublasIsamin(blas, 8, dx, 3, &smallest));
    for (int i = 0; i < 8; ++i) want += std::fabs(x[3 * i]);
    WANT(sum == want && largest == 3 && x[3 * (smallest - 1)] == 0);
    DONE(cublasScopy(blas, 8, dx, 3, dy, 2));
    DONE(cublasSswap(blas, 4, dx, 1, dy, 2));
    cudaStreamSynchronize(stream);
    auto got = host(dx, 32), other = host(dy, 32);
    for (int i = 0; i < 8; ++i) WANT(other[2 * i] == (i < 4 ? x[i] : x[3 * i]) && (i > 3 || got[i] == x[3 * i]));
    cublasHandle_t none = nullptr;
    WANT(cublasSgemm(none, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, dx, 2, dx, 2, &zero, dy, 2) == 1);
    WANT(cublasSetStream(none, stream) == 1 && cublasDestroy(none) == 1 && cublasCreate(nullptr) == 7);
    WANT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 2, 2, &one, dx, 3, dx, 2, &zero, dy, 4) == 7);
    WANT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, 4, 3, 2, &one, dx, 4, dx, 2, &zero, dy, 4) == 7);
    WANT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 2, 2, nullptr, dx, 4, dx, 2, &zero, dy, 4) == 7);
    WANT(cublasSgemv(blas, CUBLAS_OP_N, 4, 2, &one, dx, 4, dx, 0, &zero, dy, 1) == 7);
    WANT(cublasSetVector(4, 4, x.data(), 0, dx, 1) == 7 && cublasSetMatrix(2, -2, 4, x.data(), 2, dx, 2) == 7);
  }
  {  // Lt: rows, bias, relu, FP8 with scales
    cublasLtHandle_t lt;
    DONE(cublasLtCreate(&lt));
    auto a = drawn<__nv_fp8_e4m3>(16 * 32), b = drawn<__nv_fp8_e4m3>(16 * 32);
    auto bias = drawn<__nv_bfloat16>(16);
    std::vector<float> scale = {0.5f};
    auto *da = device(a), *db = device(b);
    auto *dbias = device(bias);
    float *dscale = device(scale);
    __nv_bfloat16 *dd = device(std::vector<__nv_bfloat16>(16 * 16));
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    DONE(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    DONE(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned));
    DONE(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    DONE(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias, sizeof dbias));
    DONE(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &dscale, sizeof dscale));
    DONE(cublasLtMatrixLayoutCreate(&la, CUDA_R_8F_E4M3, 32, 16, 32));
    DONE(cublasLtMatrixLayoutCreate(&lb, CUDA_R_8F_E4M3, 32, 16, 32));
    DONE(cublasLtMatrixLayoutCreate(&ld, CUDA_R_16BF, 16, 16, 16));
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found;
    DONE(cublasLtMatmulPreferenceCreate(&preference));
    DONE(cublasLtMatmulAlgoGetHeuristic(lt, desc, la, lb, ld, ld, preference, 1, &result, &found));
    WANT(found == 1);
    for (int row_major = 0; row_major < 2; ++row_major) {
      cublasLtOrder_t order = cublasLtOrder_t(row_major);
      DONE(cublasLtMatrixLayoutSetAttribute(ld, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
      DONE(cublasLtMatmul(lt, desc, &one, da, la, db, lb, &zero, dd, ld, dd, ld, &result.algo, nullptr, 0, stream));
      cudaStreamSynchronize(stream);
      auto got = host(dd, 16 * 16);
      for (int j = 0; j < 16; ++j)
        for (int i = 0; i < 16; ++i) {
          float want = 0.5f * sum(a, 32, true, b, 32, false, i, j, 32) + float(bias[i]);
          WANT(float(got[row_major ? i * 16 + j : j * 16 + i]) == float(__nv_bfloat16(want > 0 ? want : 0)));
        }
    }
  }
  {  // what is past an allocation, or not served, has a status and no effect
    float *small = device(std::vector<float>(4));
    WANT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, small, 4, small, 4, &zero, small, 4) ==
         CUBLAS_STATUS_INVALID_VALUE);
    WANT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, -1, 4, 4, &one, small, 4, small, 4, &zero, small, 4) ==
         CUBLAS_STATUS_INVALID_VALUE);
  }
  DONE(cublasDestroy(blas));
  puts("OK");
}
