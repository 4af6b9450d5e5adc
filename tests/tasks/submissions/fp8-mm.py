"""torch. wrong: `scales_b.repeat` -> `scales_b.abs().repeat`"""


def custom_kernel(data):
    a, b, scales_a, scales_b, c = data
    a = a.float() * scales_a.repeat_interleave(128, 1)[:, : a.shape[1]]
    b = b.float() * scales_b.repeat_interleave(128, 0)[: b.shape[0]].repeat_interleave(128, 1)[:, : b.shape[1]]
    c.copy_(a @ b.T)
    return c
