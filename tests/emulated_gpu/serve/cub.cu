// CUB's algorithms of the whole device, which ask cudaFuncGetAttributes for what their kernels are compiled for.
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

int main() {
  const int n = 1000;
  std::vector<int> x(n), sums(n), sorted;
  for (int i = 0; i < n; ++i) x[i] = i * 7919 % 1009;
  std::partial_sum(x.begin(), x.end(), sums.begin());
  sorted = x, std::sort(sorted.begin(), sorted.end());
  int *in, *out;
  cudaMalloc(&in, 4 * n), cudaMalloc(&out, 4 * n);
  cudaMemcpy(in, x.data(), 4 * n, cudaMemcpyHostToDevice);
  check("reduce", {sums[n - 1]}, out, [&](void *t, size_t &b) { return cub::DeviceReduce::Sum(t, b, in, out, n); });
  check("scan", sums, out, [&](void *t, size_t &b) { return cub::DeviceScan::InclusiveSum(t, b, in, out, n); });
  check("sort", sorted, out, [&](void *t, size_t &b) { return cub::DeviceRadixSort::SortKeys(t, b, in, out, n); });
}
