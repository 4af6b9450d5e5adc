"""CUDA C++. wrong: `i < n` -> `i < n - 1`"""

from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void histogram(const unsigned char* x, unsigned long long* bins, int n) {
    __shared__ unsigned int own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], (unsigned long long)own[threadIdx.x]);
}
void run(torch::Tensor x, torch::Tensor bins) {
    bins.zero_();
    histogram<<<4, 256>>>(x.data_ptr<unsigned char>(), (unsigned long long*)bins.data_ptr<int64_t>(), x.numel());
}
"""
built = load_inline("bins", "void run(torch::Tensor x, torch::Tensor bins);", CUDA, functions=["run"])


def custom_kernel(data):
    x, bins = data
    built.run(x, bins)
    return bins
