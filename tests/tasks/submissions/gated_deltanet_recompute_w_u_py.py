"""torch. wrong: `g_c.exp()` -> `g_c`"""

import torch

CHUNK = 64


def custom_kernel(data):
    k, v, beta, A, g = data
    batch, length, heads, _ = k.shape

    def chunks(x):
        return x.float().reshape(batch, length // CHUNK, CHUNK, heads, -1).transpose(2, 3)

    def whole(x, like):
        return x.transpose(2, 3).reshape(batch, length, heads, -1).to(like.dtype)

    k_c, v_c, beta_c, A_c, g_c = map(chunks, (k, v, beta[..., None], A, g[..., None]))
    return whole(A_c @ (k_c * beta_c * g_c.exp()), k), whole(torch.matmul(A_c, v_c * beta_c), v)
