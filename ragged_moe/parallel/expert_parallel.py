"""`ExpertParallel`: the experts of an MoE layer spread over the GPUs of a group, each with tokens of its own.

    this rank's tokens ─► dispatch ─► the ranks of their experts ─► combine ─► this rank's tokens

How tokens travel: by one-sided stores (one_sided.py) where all GPUs are of one host and reach each other's memory, else
by collectives (collectives.py), with the same bits.
"""

import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ragged_moe.kernels.exchange import MAX_RANKS, Layout
from ragged_moe.layers.deepseek_layer import activation_of, layer_of
from ragged_moe.layers.experts import FUNCTION, ON_INPUT, inputs_of, sizes_of
from ragged_moe.layers.signatures import EXPERTS_CALL, MAX_TOKENS
from ragged_moe.parallel.collectives import Collectives
from ragged_moe.parallel.one_sided import OneSided
from ragged_moe.runtime.device import current_device
from ragged_moe.runtime.gradients import learns, refusing
from ragged_moe.runtime.operands import is_int, require_int
from ragged_moe.runtime.signature import flag, number
from ragged_moe.runtime.sizes import BF16, I32, MAX_EXPERTS


class ExpertParallel:
    """out[t] = sum over the experts e of token t of weight * (act(x[t] W13[e]) W2[e]), experts on all ranks of a group.

    group: of torch.distributed, a GPU a rank, at most 32. num_experts: of all ranks, a multiple of their number; rank r
    has num_experts / ranks of them, from number r * num_experts / ranks on. placement: if not so, the place of each
    expert, rank * num_experts / ranks + which of that rank's it is. max_tokens: the most of a rank in any call;
    ranks * max_tokens is at most 65536. hidden_size: H; top_k: experts of a token, at most 16.
    one_sided: True for one-sided stores, which need NVLink or PCIe peer access between all ranks' GPUs, False for
    collectives, None for what works. timeout: seconds that a kernel of one_sided waits for another rank before it
    traps; `check` then says for which. gate_first, limit, alpha, shift: as of ragged_moe.experts.

    Made, and called, on all ranks in the same order, with the same arguments but for tensors and T. Buffers are
    allocated here: of one_sided ranks * max_tokens * (3 H + H / 32 + 8 k + 4) bytes. ValueError for arguments that
    cannot be, on every rank the same.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_experts: int,
        max_tokens: int,
        hidden_size: int,
        top_k: int,
        *,
        placement: Sequence[int] | None = None,
        one_sided: bool | None = None,
        timeout: float = 30.0,
        gate_first: bool = False,
        limit: float | None = None,
        alpha: float = 1.0,
        shift: float = 0.0,
    ):
        ranks = dist.get_world_size(group)
        swiglu = {"gate_first": gate_first, "limit": limit, "alpha": alpha, "shift": shift}
        EXPERTS_CALL.check_options(**swiglu)
        if one_sided is not None:
            flag("one_sided").check(one_sided)
        number("timeout", "", "a finite number above 0", above=0).check(timeout)
        for name, value in (("num_experts", num_experts), ("max_tokens", max_tokens)):
            require_int(name, value, 1)
        if ranks > MAX_RANKS:
            raise ValueError(f"group has {ranks} ranks, but must have at most {MAX_RANKS}")
        if num_experts % ranks:
            raise ValueError(f"num_experts is {num_experts}, but must be a multiple of the group's {ranks} ranks")
        if ranks * max_tokens > MAX_TOKENS:
            most = MAX_TOKENS // ranks
            raise ValueError(f"max_tokens is {max_tokens}, but must be at most {most} for {ranks} ranks")
        local = num_experts // ranks
        if local > MAX_EXPERTS:
            most = MAX_EXPERTS * ranks
            raise ValueError(f"num_experts is {num_experts}, but must be at most {most}: {MAX_EXPERTS} a rank")
        sizes_of(max_tokens, hidden_size, 128, local, top_k, num_experts)
        self.num_experts, self.max_tokens, self.local, self.rank = num_experts, max_tokens, local, dist.get_rank(group)
        self.layout = Layout(ranks, max_tokens, hidden_size, top_k)
        self.activation = activation_of(**swiglu)
        self.options = dict.fromkeys(option.name for option in EXPERTS_CALL.options) | swiglu | {
            ON_INPUT: False, "local_expert_offset": 0, "num_experts": num_experts
        }  # fmt: skip
        self.torch_device = current_device()
        self.places = None if placement is None else self.table(placement)
        if one_sided is None:
            one_sided = reach_each_other(group, self.torch_device)
        if one_sided:
            self.path = OneSided.of_group(group, self.torch_device, self.layout, local, timeout)
        else:
            self.path = Collectives(group, self.torch_device, self.layout, local)

    def __call__(
        self,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        w13: torch.Tensor,
        w13_scale: torch.Tensor,
        w2: torch.Tensor,
        w2_scale: torch.Tensor,
        *,
        most: int | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out [T, H] bf16: what all ranks' experts give this rank's tokens; a new tensor if not given.

        hidden [T, H] bf16, T from 0 to max_tokens, of any rank another. topk_ids [T, k] int32 or int64, from 0 to
        num_experts - 1; others, such as -1, are left out. topk_weights [T, k] f32. w13 [E, 2I, H], w13_scale, w2,
        w2_scale: this rank's experts, E = num_experts / ranks, as of ragged_moe.experts. most: no rank has more tokens
        in this call; the same on all ranks, max_tokens if not given. Kernels are chosen for this many.

        Launches on torch's current stream; nothing returns to the host; can be captured in a CUDA graph, on all ranks.
        The same bits every time. One call of a layer at a time, on a stream or on streams that wait for each other. No
        gradients. ValueError if an operand is not so: then nothing is launched or written, and the other ranks wait.
        RuntimeError that names a rank that an earlier call has waited for in vain.
        """
        most = self.max_tokens if most is None else most
        require_int("most", most, 1, self.max_tokens, "max_tokens, ")
        if isinstance(w2, torch.Tensor) and w2.dtype is torch.uint8:
            raise ValueError("w2 is packed, but must be e4m3: packed weights are for ragged_moe.experts on one GPU")
        if isinstance(hidden, torch.Tensor) and hidden.dtype is not BF16:
            raise ValueError(f"hidden has type {hidden.dtype}, but must have {BF16}")
        operands = hidden, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale
        if learns(*operands, out):
            return refusing("ExpertParallel", lambda: self(*operands, most=most), (*operands, out), out)
        given = dict.fromkeys(EXPERTS_CALL.names) | dict(zip(EXPERTS_CALL.names, operands))
        checked = FUNCTION.check(given, self.options)
        x = inputs_of(checked, given)
        tokens, h = hidden.shape
        for name, found, must in (
            ("hidden: dimension 1", h, self.layout.hidden),
            ("topk_ids: dimension 1", topk_ids.shape[1], self.layout.top_k),
            ("w2: dimension 0", len(w2), self.local),
        ):
            if found != must:
                raise ValueError(f"{name} is {found}, but must be {must}, as the layer was made")
        if tokens > most:
            raise ValueError(f"hidden: dimension 0 is {tokens}, but must be at most {most}, which `most` says")
        sizes = sizes_of(self.layout.ranks * most, h, w2.shape[2], self.local, self.layout.top_k, self.num_experts)
        layer = layer_of(hidden.device, sizes, self.activation)
        if out is None:
            (out,) = layer.device.tensors(torch.empty(hidden.shape, dtype=BF16, device=hidden.device))
        else:
            checked.signature.check_out(layer.device, out, checked.letters, given)
        if hidden.device != self.torch_device or not layer.device.is_current():
            must = f"torch's current device, {self.torch_device}, where the layer was made"
            raise ValueError(f"hidden is on {hidden.device}, but must be on {must}")
        self.check()
        if self.places is not None:
            topk_ids = self.placed(topk_ids)
        self.path.dispatch(hidden, topk_ids, topk_weights, most)
        self.path.combine(layer, x, topk_ids, most, out)
        return out

    def check(self) -> None:
        """RuntimeError that names the rank that a kernel of an earlier call has waited for in vain, if one has.

        Such a kernel traps, so that torch says "unspecified launch failure" at the next synchronisation; this says why.
        """
        self.path.check()

    def table(self, placement: Sequence[int]) -> torch.Tensor:
        """The place of each expert, on the GPU; ValueError unless every place is some expert's."""
        if not all(map(is_int, placement)) or sorted(placement) != list(range(self.num_experts)):
            raise ValueError(f"placement must have each number from 0 to {self.num_experts - 1} once")
        return torch.tensor(placement, dtype=I32, device=self.torch_device)

    def placed(self, ids: torch.Tensor) -> torch.Tensor:
        """The places of these experts; -1 for numbers that no expert has."""
        valid = (ids >= 0) & (ids < self.num_experts)
        return torch.where(valid, self.places[ids.clamp(0, self.num_experts - 1)], -1)


def reach_each_other(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all ranks of the group are on one host, with GPUs that reach each other's memory."""
    mine = socket.gethostname(), device.type, device.index
    all_of_them = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_of_them, mine, group)
    if any(host != mine[0] or kind != "cuda" for host, kind, _ in all_of_them):
        return False
    others = {index for *_, index in all_of_them} - {device.index}
    reached = len(others) == len(all_of_them) - 1 and all(
        index < torch.cuda.device_count() and torch.cuda.can_device_access_peer(device.index, index) for index in others
    )
    dist.all_gather_object(all_of_them, reached, group)
    return all(all_of_them)
