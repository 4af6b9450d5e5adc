"""`pad_intermediate`: weights of an intermediate size that is no multiple of 128, made ready for ragged_moe.experts."""

import torch

from ragged_moe.runtime.operands import require_int
from ragged_moe.runtime.sizes import E4M3, F32

BLOCK = 128


def pad_intermediate(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, before: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same experts with an intermediate size that is a multiple of 128: (w13, w13_scale, w2, w2_scale), new.

    For I as tensor parallelism leaves it, 192 or 704; done once, when weights are loaded. w13 [E, 2I, H] and w2 [E, H,
    I] e4m3 get `before` rows (columns) of zeros in front of each half, 0 to 127, and as many behind as are missing:
    before = 64 for a slice that begins in the middle of a block. Their scales are those of the blocks that the slice
    touches, n = ceil((before + I) / 128) of them: w13_scale [E, 2n, H/128] and w2_scale [E, H/128, n] f32, of which
    copies come back; or those of weight rows, w13_scale [E, 2I], which gets zeros, too, and w2_scale [E, H]. Zeros cost
    what weights do: of 704 columns 9 % more bytes and MMAs, of 192 33 %. ValueError if an operand is not so.
    """
    of_rows = isinstance(w2_scale, torch.Tensor) and w2_scale.dim() == 2
    for name, tensor, dtype in (("w13", w13, E4M3), ("w13_scale", w13_scale, F32), ("w2", w2, E4M3),
                                ("w2_scale", w2_scale, F32)):  # fmt: skip
        dims = 2 if of_rows and dtype is F32 else 3
        if not isinstance(tensor, torch.Tensor) or tensor.dtype is not dtype or tensor.dim() != dims:
            raise ValueError(f"{name} must be a tensor of {dims} dimensions and {dtype}")
    require_int("before", before, 0, BLOCK - 1)
    experts, h, i = w2.shape
    blocks = -(-(before + i) // BLOCK)
    of_scales = (experts, 2 * blocks, h // BLOCK), (experts, h // BLOCK, blocks)
    shapes = (experts, 2 * i, h), *(((experts, 2 * i), (experts, h)) if of_rows else of_scales)
    for name, tensor, shape in zip(("w13", "w13_scale", "w2_scale"), (w13, w13_scale, w2_scale), shapes):
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but must have {shape}, as w2 is {(*w2.shape,)}")
    padded13 = w13.new_zeros((experts, 2, blocks * BLOCK, h))
    padded13[:, :, before : before + i] = w13.reshape(experts, 2, i, h)
    padded2 = w2.new_zeros((experts, h, blocks * BLOCK))
    padded2[:, :, before : before + i] = w2
    scale = w13_scale.clone()
    if of_rows:
        scale = w13_scale.new_zeros((experts, 2, blocks * BLOCK))
        scale[:, :, before : before + i] = w13_scale.view(experts, 2, i)
        scale = scale.view(experts, -1)
    return padded13.view(experts, -1, h), scale, padded2, w2_scale.clone()
