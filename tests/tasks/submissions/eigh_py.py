"""torch. wrong: `return vectors` -> `return vectors.mT`"""

import torch


def custom_kernel(data):
    values, vectors = torch.linalg.eigh(data)
    return vectors, values
