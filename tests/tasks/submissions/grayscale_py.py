"""CUDA C++. wrong: `0.5870f` -> `0.5970f`"""

from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void gray(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.2989f * x[3 * i] + 0.5870f * x[3 * i + 1] + 0.1140f * x[3 * i + 2];
}
void run(torch::Tensor x, torch::Tensor y) {
    int n = y.numel();
    gray<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
}
"""
built = load_inline("gray", "void run(torch::Tensor x, torch::Tensor y);", CUDA, functions=["run"])


def custom_kernel(data):
    x, y = data
    built.run(x, y)
    return y
