"""What torch.nn.DataParallel asks of `torch._C`: tensors of one device on several, and back."""

from __future__ import annotations

import torch


def broadcast(tensor, devices) -> list[torch.Tensor]:
    return [tensor.to(torch.device("cuda", device)) for device in devices]


def broadcast_out(tensor, out):
    for one in out:
        if one is not tensor:
            one.copy_(tensor)
    return out


def broadcast_coalesced(tensors, devices, size) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device("cuda", device)) for tensor in tensors] for device in devices]


def scatter(tensor, devices, sizes, dim, streams=None) -> list[torch.Tensor]:
    pieces = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [piece.to(torch.device("cuda", device)) for piece, device in zip(pieces, devices)]


def scatter_out(tensor, out, dim, streams=None):
    for one, piece in zip(out, tensor.split([one.shape[dim] for one in out], dim)):
        one.copy_(piece)
    return out


def gather(tensors, dim, destination=None) -> torch.Tensor:
    where = torch.device("cpu") if destination == -1 else torch.device("cuda", destination or 0)
    return torch.cat([tensor.to(where) for tensor in tensors], dim)


def gather_out(tensors, out, dim) -> torch.Tensor:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def names() -> dict:
    return {
        "_broadcast": broadcast, "_broadcast_out": broadcast_out, "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter, "_scatter_out": scatter_out, "_gather": gather, "_gather_out": gather_out,
    }  # fmt: skip
