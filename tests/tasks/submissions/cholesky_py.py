"""torch. wrong: `cholesky(data)` -> `cholesky(data).mT`"""

import torch


def custom_kernel(data):
    return torch.linalg.cholesky(data)
