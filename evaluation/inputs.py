"""What the evaluator does with data of either task, 4 lists over groups or 10 tensors, without knowing which.

Fresh inputs come at little cost: a secret flips the signs of the operands' rows, and the known result follows exactly.
"""

from collections.abc import Iterator

import numpy as np
import torch

import reference


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width: copies and comparisons keep every bit, NaN and -0 included."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)


def mapped(function, data):
    """The data with function(tensor) for each tensor in its lists and tuples."""
    if isinstance(data, (tuple, list)):
        return type(data)(mapped(function, item) for item in data)
    return function(data) if isinstance(data, torch.Tensor) else data


def operands(data) -> list[torch.Tensor]:
    """FP4 [rows, K/2, L]: a, b of every group, or a, b1, b2."""
    return [t for group in data[0] for t in group[:2]] if len(data) == 4 else list(data[:3])


def scales(data) -> list[torch.Tensor]:
    """All scales, first those in the plain order."""
    return [t for part in data[1:3] for group in part for t in group] if len(data) == 4 else list(data[3:9])


def outputs(data) -> list[torch.Tensor]:
    """c [M, N, L] of every group, or the only one."""
    return [group[2] for group in data[0]] if len(data) == 4 else [data[9]]


def read_bytes(data) -> int:
    """Bytes of the operands and of one copy of their scales."""
    numbers = 2 * sum(t.numel() for t in operands(data))
    return numbers // 2 + numbers // reference.BLOCK


def draw_signs(seed: int, data) -> list[torch.Tensor]:
    """For each operand which of its rows to negate, bool [rows]."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(0, 2, t.shape[0]).astype(bool)) for t in operands(data)]


def flip_inputs(data, signs: list[torch.Tensor]) -> None:
    """Negates the drawn rows of the operands in place."""
    for packed, rows in zip(operands(data), signs):
        mask = rows.to(packed.device).to(torch.uint8) * 0x88  # the sign bits of both FP4 numbers of a byte
        packed.view(torch.uint8).bitwise_xor_(mask[:, None, None])


def flipped(c: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[M, N, L] of a product with those rows of its operands negated."""
    return torch.where((rows[:, None] ^ columns[None, :]).to(c.device)[:, :, None], -c, c)


class Known:
    """The exact results for some data, whatever the signs of the operands' rows."""

    def __init__(self, data):
        """`data`: its operands may be on a GPU, which then computes; overwrites its c."""
        if len(data) == 4:
            self.products = [c.cpu().clone() for c in reference.ref_kernel(data)]  # the data may change
        else:
            self.products = [x.cpu() for x in reference.dual_sums(data)]
        self.dual = len(data) != 4

    def outputs(self, signs: list[torch.Tensor] | None) -> Iterator[torch.Tensor]:
        """float16 c [M, N, L] of every group, or the only one."""
        products = self.products
        if signs and self.dual:
            products = [flipped(x, signs[0], columns) for x, columns in zip(products, signs[1:])]
        elif signs:
            products = (flipped(c, *signs[2 * g : 2 * g + 2]) for g, c in enumerate(products))
        yield from [reference.silu_product(*products)] if self.dual else products
