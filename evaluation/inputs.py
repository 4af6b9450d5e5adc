"""Fresh inputs at little cost: a secret flips the signs of rows of a and b, and the known result follows exactly."""

import numpy as np
import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width: copies and comparisons keep every bit, NaN and -0 included."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)


def draw_signs(seed: int, sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each group which rows of a [M] and of b [N] to negate, bool."""
    rng = np.random.default_rng(seed)
    return [tuple(torch.from_numpy(rng.integers(0, 2, rows).astype(bool)) for rows in (m, n)) for m, n, _, _ in sizes]


def flip_inputs(abc_tensors, signs) -> None:
    """Negates the drawn rows of a and b in place."""
    for (a, b, _), flips in zip(abc_tensors, signs):
        for packed, rows in zip((a, b), flips):
            mask = rows.to(packed.device).to(torch.uint8) * 0x88  # the sign bits of both FP4 numbers of a byte
            packed.view(torch.uint8).bitwise_xor_(mask[:, None, None])


def flip_result(c: torch.Tensor, flips: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The result [M, N, 1] for inputs with those rows negated."""
    rows, columns = (flip.to(c.device) for flip in flips)
    return torch.where((rows[:, None] ^ columns[None, :])[:, :, None], -c, c)
