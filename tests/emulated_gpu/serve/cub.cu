// CUB's algorithms of the whole device, which ask cudaFuncGetAttributes for what their kernels are compiled for; and its
// merge sort of a block, which reads one word behind what it has written, and does not use it.
#include <algorithm>
#include <cstdio>
#include <cub/cub.cuh>
#include <numeric>
#include <vector>

template <class F> void check(const char *name, const std::vector<int> &wanted, const int *out, F algorithm) {
  size_t bytes = 0;
  void *scratch = nullptr;
  cudaError_t status = algorithm(nullptr, bytes);
  cudaMalloc(&scratch, bytes);
  status = status ? status : algorithm(scratch, bytes);
  std::vector<int> got(wanted.size());
  cudaMemcpy(got.data(), out, 4 * got.size(), cudaMemcpyDeviceToHost);
  printf("%s %s\n", name, status ? cudaGetErrorName(status) : got == wanted ? "right" : "WRONG");
}

struct Less {
  __device__ bool operator()(int a, int b) const { return a < b; }
};
__global__ void merge(const int *in, int *out) {
  using Sort = cub::BlockMergeSort<int, 128, 8>;
  __shared__ typename Sort::TempStorage storage;
  int x[8];
  for (int i = 0; i < 8; ++i) x[i] = in[threadIdx.x * 8 + i];
  Sort(storage).Sort(x, Less());
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = x[i];
}

int main() {
  const int n = 1024;
  std::vector<int> x(n), sums(n), sorted;
  for (int i = 0; i < n; ++i) x[i] = i * 7919 % 2003;
  std::partial_sum(x.begin(), x.end(), sums.begin());
  sorted = x, std::sort(sorted.begin(), sorted.end());
  int *in, *out;
  cudaMalloc(&in, 4 * n), cudaMalloc(&out, 4 * n);
  cudaMemcpy(in, x.data(), 4 * n, cudaMemcpyHostToDevice);
  check("reduce", {sums[n - 1]}, out, [&](void *t, size_t &b) { return cub::DeviceReduce::Sum(t, b, in, out, n); });
  check("scan", sums, out, [&](void *t, size_t &b) { return cub::DeviceScan::InclusiveSum(t, b, in, out, n); });
  check("sort", sorted, out, [&](void *t, size_t &b) { return cub::DeviceRadixSort::SortKeys(t, b, in, out, n); });
  check("merge", sorted, out, [&](void *t, size_t &b) {
    if (t) merge<<<1, 128>>>(in, out);
    return b = 1, cudaGetLastError();
  });
}
