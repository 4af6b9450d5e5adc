"""torch. wrong: `* decay).tril()` -> `* decay).tril(-1)`"""

CHUNK = 64


def custom_kernel(data):
    q, k, v, h, g = data
    batch, length, heads, width = q.shape

    def chunks(x):
        return x.float().reshape(batch, length // CHUNK, CHUNK, heads, -1).transpose(2, 3)

    q_c, k_c, v_c, g_c = map(chunks, (q, k, v, g[..., None]))
    decay = (g_c - g_c.mT).tril().exp()
    inside = (q_c @ k_c.mT * decay).tril() @ v_c
    out = (inside + q_c @ h.float() * g_c.exp()) * width**-0.5
    return out.transpose(2, 3).reshape(batch, length, heads, -1).to(q.dtype)
