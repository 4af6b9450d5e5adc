"""Expert parallelism by the collectives of torch.distributed: the plain path, where GPUs do not reach each other.

    hidden ─► quantise ─► all_gather of every rank's tokens ─► ragged_moe.experts ─► all_to_all of sums ─► added up ─►
    out

Every rank sends room for `most` tokens, as NCCL's sizes are the host's; slots without a token have experts -1. The bits
are those of one_sided.py: a rank's sums are rounded to bf16 and added in f32 in the order of the ranks.
"""

import torch
import torch.distributed as dist

from ragged_moe.kernels.exchange import Layout
from ragged_moe.layers.deepseek_layer import Layer
from ragged_moe.layers.experts import experts, quantise_program
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32, Inputs
from ragged_moe.runtime.workspace import Part, offsets


class Collectives:
    """One rank's side, with buffers for the most tokens."""

    def __init__(self, group: dist.ProcessGroup, torch_device: torch.device, layout: Layout, local: int):
        self.group, self.torch_device, self.device = group, torch_device, device_of(torch_device)
        self.layout, self.local, self.rank = layout, local, dist.get_rank(group)
        slots, size = layout.ranks * layout.tokens, offsets(self.parts(layout.tokens))[-1]
        self.sent, self.received = self.empty(size), self.empty(layout.ranks * size)
        self.sums, self.all_sums = (self.empty(slots, layout.hidden, dtype=BF16) for _ in range(2))

    def empty(self, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A new tensor on this GPU."""
        (made,) = self.device.tensors(torch.empty(shape, dtype=dtype, device=self.torch_device))
        return made

    def check(self) -> None:
        """Nothing: NCCL's watchdog ends a rank that waits for another in vain."""

    def parts(self, most: int) -> list[Part]:
        """Holds what a rank sends."""
        h, k = self.layout.hidden, self.layout.top_k
        return [
            Part("hidden", E4M3, (most, h)), Part("scale", F32, (h // 128, most)),
            Part("ids", I32, (most, k)), Part("weights", F32, (most, k)),
        ]  # fmt: skip

    def views(self, of_ranks: torch.Tensor, most: int) -> list[torch.Tensor]:
        """The parts in uint8 [ranks, bytes], as tensors with the ranks in front."""
        parts = self.parts(most)
        found = []
        for part, start in zip(parts, offsets(parts)):
            size = torch.Size(part.shape).numel() * part.dtype.itemsize
            found.append(of_ranks[:, start : start + size].view(part.dtype).unflatten(1, part.shape))
        return found

    def dispatch(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, most: int) -> None:
        """Send this rank's tokens to all."""
        count, h = hidden.shape
        size = offsets(self.parts(most))[-1]
        values, scale, to_ids, to_weights = (x[0] for x in self.views(self.sent[None, :size], most))
        if count:
            of_tokens = self.empty(h // 128, count, dtype=F32)
            addresses = hidden.data_ptr(), values.data_ptr(), of_tokens.data_ptr(), 0
            quantise_program(self.torch_device)(*addresses, count, h, self.device.stream())
            scale[:, :count] = of_tokens
        to_ids[:count] = torch.where((ids >= 0) & (ids < self.layout.ranks * self.local), ids, -1)
        to_ids[count:] = -1
        to_weights[:count] = weights
        dist.all_gather_into_tensor(self.received[: self.layout.ranks * size], self.sent[:size], self.group)

    def combine(self, layer: Layer, x: Inputs, ids: torch.Tensor, most: int, out: torch.Tensor) -> None:
        """Send all ranks what this rank's experts give their tokens, and add up what comes for this rank's."""
        ranks, h, k = self.layout.ranks, self.layout.hidden, self.layout.top_k
        of_ranks = self.received[: ranks * offsets(self.parts(most))[-1]].view(ranks, -1)
        hidden, scale, ids, weights = self.views(of_ranks, most)
        scale = scale.permute(1, 0, 2).reshape(h // 128, ranks * most)
        operands = hidden.view(torch.uint8).reshape(-1, h), ids.reshape(-1, k), weights.reshape(-1, k), scale
        hidden, ids, weights, scale = self.device.tensors(*(x.contiguous() for x in operands))
        activation, sums = layer.activation, self.sums[: ranks * most]
        experts(
            hidden.view(E4M3), ids, weights,
            x.gemm1_weights, x.gemm1_weights_scale, x.gemm2_weights, x.gemm2_weights_scale,
            hidden_scale=scale, hidden_scale_layout="blocks_first", gate_first=activation.gate_first,
            local_expert_offset=self.rank * self.local, num_experts=layer.sizes.experts,
            limit=activation.limit, alpha=activation.alpha, shift=activation.shift, out=sums,
        )  # fmt: skip
        dist.all_to_all_single(self.all_sums[: ranks * most], sums, group=self.group)
        sums_of = self.all_sums[: self.layout.ranks * most].view(self.layout.ranks, most, -1)[:, : len(out)]
        total = torch.zeros(out.shape, dtype=F32, device=out.device)
        for sums in sums_of:
            total += sums
        out.copy_(total)
