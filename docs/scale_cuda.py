"""Doubles a vector by a CUDA C++ kernel: on a GPU as it is, anywhere by `python -m emulated_gpu run
docs/scale_cuda.py`.

The first run builds, since torch's headers are large half a minute. On the emulator that takes `pip install '.[cuda]'`.
"""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
__global__ void twice(const int *x, int *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] * 2;
}
torch::Tensor run(torch::Tensor x, int64_t blocks) {
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  auto y = torch::empty_like(x);
  twice<<<blocks, 64>>>(x.data_ptr<int>(), y.data_ptr<int>());
  return y;
}
"""
module = load_inline("scale_cuda", "torch::Tensor run(torch::Tensor x, int64_t blocks);", SOURCE, functions=["run"])

x = torch.arange(256, dtype=torch.int32, device="cuda")
y = module.run(x, 4)  # 5 blocks would read and write past the end: try it on the emulated GPU
assert torch.equal(y, 2 * x)
print("right, on", torch.cuda.get_device_name())
