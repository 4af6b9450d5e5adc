"""What torch.nn.DataParallel asks of `torch._C`: tensors of one device on several, and back."""

from __future__ import annotations

import torch


def on(device: int) -> torch.device:
    return torch.device("cpu") if device == -1 else torch.device("cuda", device)


def broadcast(tensor, devices) -> list[torch.Tensor]:
    return [tensor.to(on(device)) for device in devices]


def copy_each(pieces, out):
    for one, piece in zip(out, pieces):
        one.copy_(piece)
    return out


def scatter(tensor, devices, sizes, dim, streams=None) -> list[torch.Tensor]:
    pieces = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [piece.to(on(device)) for piece, device in zip(pieces, devices)]


def scatter_out(tensor, out, dim, streams=None):
    return copy_each(tensor.split([one.shape[dim] for one in out], dim), out)


def gather(tensors, dim, destination=None) -> torch.Tensor:
    for index, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(f"Expected all input tensors to be CUDA tensors, but tensor at index {index} is not")
    return torch.cat([tensor.to(on(destination or 0)) for tensor in tensors], dim)


def names() -> dict:
    return {
        "_broadcast": broadcast, "_broadcast_out": lambda tensor, out: copy_each([tensor] * len(out), out),
        "_broadcast_coalesced": lambda tensors, devices, _: [[x.to(on(device)) for x in tensors] for device in devices],
        "_scatter": scatter, "_scatter_out": scatter_out,
        "_gather": gather, "_gather_out": lambda tensors, out, dim: out.copy_(gather(tensors, dim, out.get_device())),
    }  # fmt: skip
