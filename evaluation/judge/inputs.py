"""What the evaluator does with data of either task, 4 lists over groups or 10 tensors, without knowing which.

Fresh inputs come at little cost: a secret seed permutes the rows of the operands, negates some and doubles the scales
of some. Permuting, negating and doubling the known result gives the new one exactly; no second reference is computed.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

import reference
from evaluation.judge.verdict import Refused
from evaluation.tasks.data import kind_of


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width: copies and comparisons keep every bit, NaN and -0 included."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)


def mapped(function, data):
    """Copies the data's lists and tuples, with function(tensor) in place of each tensor."""
    if isinstance(data, (tuple, list)):
        return type(data)(mapped(function, item) for item in data)
    return function(data) if isinstance(data, torch.Tensor) else data


def operands(data) -> list[torch.Tensor]:
    """Lists the operands, FP4 [rows, K/2, L] each: a, b of every group, or a, b1, b2."""
    return [t for group in data[0] for t in group[:2]] if len(data) == 4 else list(data[:3])


def scales(data) -> list[torch.Tensor]:
    """Lists all scales, FP8: first one in the plain order for each operand, then one reordered for each."""
    return [t for part in data[1:3] for group in part for t in group] if len(data) == 4 else list(data[3:9])


def outputs(data) -> list[torch.Tensor]:
    """Lists the float16 c [M, N, L] of every group, or the only one."""
    return [group[2] for group in data[0]] if len(data) == 4 else [data[9]]


class Taken:
    """Remembers memory that a result may not lie in: that of inputs, and of other results."""

    def __init__(self):
        self.ranges: list[tuple[int, int, str]] = []  # first address, the one after the last, what is there

    def add(self, address: int, size: int, what: str) -> str | None:
        """Takes `size` bytes for `what` and returns None; or returns what has taken one of them already."""
        end = address + size
        if size:
            for first, last, there in self.ranges:
                if first < end and address < last:
                    return there
            self.ranges.append((address, end, what))
        return None


def named(item, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor of data with its name in reports: `tensor[0][1][2]`."""
    if isinstance(item, torch.Tensor):
        yield name, item
    elif isinstance(item, (tuple, list)):
        for i, part in enumerate(item):
            yield from named(part, f"{name}[{i}]")


def result_specs(returned: dict, single: bool) -> list[dict]:
    """Lists what describes the tensors of a result (tasks/data.py). Raises Refused for one of another form.

    single: it should be one tensor, not a list.
    """
    kind, name, content = kind_of(returned)
    if single:
        if kind != "tensor":
            raise Refused(f"custom_kernel returned {name}, not the tensor c")
        return [content]
    if kind not in ("list", "tuple"):
        raise Refused(f"custom_kernel returned {name}, not the list of the c tensors")
    specs = []
    for group, item in enumerate(content):
        kind, name, spec = kind_of(item)
        if kind != "tensor":
            raise Refused(f"group {group}: custom_kernel returned {name}, not a tensor")
        specs.append(spec)
    return specs


def read_bytes(data) -> int:
    """Counts the bytes that a call has to read: the operands and one copy of their scales."""
    numbers = 2 * sum(t.numel() for t in operands(data))
    return numbers // 2 + numbers // reference.BLOCK


@dataclasses.dataclass
class Disguise:
    """Says what is done to an operand's rows: their order, int64 [rows], then which are negated and which doubled,
    bool [rows]."""

    order: torch.Tensor
    negated: torch.Tensor
    doubled: torch.Tensor


def draw(seed: int, data) -> list[Disguise]:
    """Draws a disguise for each operand. It leaves neither the signs, the scales, nor the order of rows as they
    were."""
    rng = np.random.default_rng(seed)
    drawn = []
    for operand in operands(data):
        rows = operand.shape[0]
        flags = torch.from_numpy(rng.integers(0, 2, (2, rows)).astype(bool))
        drawn.append(Disguise(torch.from_numpy(rng.permutation(rows)), *flags))
    return drawn


def disguise(data, drawn: list[Disguise]) -> None:
    """Puts the operands and their scales into another order, negates rows and doubles the scales of rows, in place."""
    given = operands(data)
    plain, reordered = scales(data)[: len(given)], scales(data)[len(given) :]
    for packed, scale, tiled, how in zip(given, plain, reordered, drawn):
        bits, order = packed.view(torch.uint8), how.order.to(packed.device)
        sign = how.negated.to(packed.device).to(torch.uint8) * 0x88  # of both FP4 numbers of a byte
        bits.copy_(bits.index_select(0, order).bitwise_xor_(sign[:, None, None]))
        codes = scale.view(torch.uint8)
        moved = codes.index_select(0, how.order.to(scale.device))
        twice = torch.where(moved < 8, 2 * moved, moved + 8)  # subnormal numbers; one more in the exponent of others
        codes.copy_(torch.where(how.doubled.to(scale.device)[:, None, None], twice, moved))
        rows, columns, batches = scale.shape
        fill = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, batches, dtype=torch.uint8, device=tiled.device)
        again = reference.reorder_scales(scale.to(tiled.device), fill.view(scale.dtype))
        tiled.view(torch.uint8).copy_(again.view(torch.uint8))


def disguised(c: torch.Tensor, rows: Disguise, columns: Disguise) -> torch.Tensor:
    """Turns c [M, N, L], the product of operands, into that of the disguised ones: exactly, as long as it is finite."""
    c = c[rows.order.to(c.device)][:, columns.order.to(c.device)]
    one = torch.ones((), dtype=c.dtype)
    factors = [torch.where(d.doubled, 2 * one, one) * torch.where(d.negated, -one, one) for d in (rows, columns)]
    return c * factors[0].to(c.device)[:, None, None] * factors[1].to(c.device)[None, :, None]


class Known:
    """Knows the exact results for some data, in whatever disguise."""

    def __init__(self, data):
        """`data`: its operands may be on a GPU, which then computes; overwrites its c."""
        if len(data) == 4:
            self.products = [c.cpu().clone() for c in reference.ref_kernel(data)]  # the data may change
        else:
            self.products = [x.cpu() for x in reference.dual_sums(data)]
        self.dual = len(data) != 4

    def outputs(self, drawn: list[Disguise] | None) -> Iterator[torch.Tensor]:
        """Yields the exact float16 c [M, N, L] of every group, or the only one. drawn: the data's disguise, if any."""
        products = self.products
        if drawn and self.dual:
            products = [disguised(x, drawn[0], columns) for x, columns in zip(products, drawn[1:])]
        elif drawn:
            products = [disguised(c, *drawn[2 * g : 2 * g + 2]) for g, c in enumerate(products)]
        yield from [reference.silu_product(*products)] if self.dual else products
