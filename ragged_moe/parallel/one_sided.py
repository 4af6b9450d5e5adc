"""Expert parallelism by one-sided stores: the kernels of every rank write into the other ranks' memory.

    hidden ─► dispatch ═► windows ═► assign ─► [permute] ─► GEMM1 ─► GEMM2 ─► combine ═► windows ═► combine ─► out

═► is a store to the memory of another GPU, with a flag behind it that is released at .sys and acquired by who waits.
Between dispatch and combine is ragged_moe.experts, for the tokens of all ranks. A window has room for one call:
dispatch of the next one waits until all ranks have read it, which they have when their sums of this one arrive.
"""

import dataclasses
import functools

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from ragged_moe.kernels import assign, combine, dispatch, exchange
from ragged_moe.kernels.exchange import Layout
from ragged_moe.kernels.program import Program
from ragged_moe.layers.deepseek_layer import Layer
from ragged_moe.layers.experts import I64, At
from ragged_moe.runtime.device import device_of
from ragged_moe.runtime.sizes import I32, Inputs
from ragged_moe.runtime.workspace import arena_of

REASONS = {
    exchange.DISPATCH: "rank {rank} has not sent its tokens within {seconds:g} s",
    exchange.MOST: "rank {rank} has another `most` in this call than this rank",
    exchange.FREED: "rank {rank} has not read the tokens of the call before within {seconds:g} s",
    exchange.COMBINE: "rank {rank} has not sent the sums of its experts within {seconds:g} s",
}


@functools.cache
def dispatch_program(device: torch.device, layout: Layout, wide: bool) -> Program:
    """The dispatch kernel, compiled for this GPU."""
    return Program(dispatch.Dispatch(layout, wide), dispatch.WORDS, f"{layout} wide={wide}")


@functools.cache
def assign_program(device: torch.device, slots: int, own: int, layout: Layout) -> Program:
    """The assign kernel that awaits tokens, compiled for this GPU. own: experts of a CTA."""
    kernel = assign.Assign(slots, False, own, layout)
    return Program(kernel, kernel.words, f"slots={slots} own={own} {layout}")


@functools.cache
def combine_program(device: torch.device, layout: Layout, slots: int, wide: bool) -> Program:
    """The combine kernel, compiled for this GPU."""
    return Program(combine.Combine(layout, slots, wide), combine.WORDS, f"{layout} slots={slots} wide={wide}")


class OneSided:
    """One rank's side. windows: where the ranks' windows are, as this rank's kernels address them.

    seconds: how long a kernel waits for another rank before it traps. keep: what owns the windows.
    """

    def __init__(
        self, torch_device: torch.device, layout: Layout, local: int, rank: int, windows: list[int], seconds: float,
        keep: object = None,
    ):  # fmt: skip
        self.torch_device, self.device = torch_device, device_of(torch_device)
        self.layout, self.local, self.rank, self.seconds, self.keep = layout, local, rank, seconds, keep
        self.own, self.patience = windows[rank], round(seconds * 1e9)
        table = torch.tensor(windows, dtype=I64, device=torch_device)
        reason = torch.zeros(1, dtype=I32)
        if torch_device.type == "cuda":
            reason = reason.pin_memory()  # which the host can read when a kernel has trapped
        self.table, self.reason = self.device.tensors(table, reason)

    @classmethod
    def of_group(
        cls, group: dist.ProcessGroup, torch_device: torch.device, layout: Layout, local: int, seconds: float
    ) -> "OneSided":
        """This rank's side, with a window in symmetric memory. To be called on all ranks of the group."""
        buffer = symmetric.empty(layout.window.end, dtype=torch.uint8, device=torch_device)
        handle = symmetric.rendezvous(buffer, group)
        buffer[layout.window.arrived :].zero_()
        rank, windows = dist.get_rank(group), list(handle.buffer_ptrs)
        made = cls(torch_device, layout, local, rank, windows, seconds, (buffer, handle))
        if torch_device.type == "cuda":
            torch.cuda.synchronize(torch_device)
        dist.barrier(group)
        return made

    def check(self) -> None:
        """RuntimeError that names the rank that a kernel has waited for in vain, if one has."""
        stage, rank = divmod(int(self.reason[0]), exchange.STAGE)
        if stage:
            why = REASONS[stage].format(rank=rank, seconds=self.seconds)
            raise RuntimeError(f"ragged_moe.parallel, rank {self.rank}: {why}")

    def dispatch(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, most: int) -> None:
        """Send this rank's tokens."""
        self.check()
        grid = min(most, dispatch.CTAS_PER_SM * self.device.sms)
        program = dispatch_program(self.torch_device, self.layout, ids.dtype is I64)
        program(
            hidden.data_ptr(), ids.data_ptr(), weights.data_ptr(), self.table.data_ptr(), self.own,
            self.reason.data_ptr(), hidden.shape[0], most, self.local, self.rank, grid, self.patience,
            self.device.stream(),
        )  # fmt: skip

    def combine(self, layer: Layer, x: Inputs, ids: torch.Tensor, most: int, out: torch.Tensor) -> None:
        """Await all ranks' tokens, send what this rank's experts, x, give them, and add up what comes back."""
        tokens, window, stream = self.layout.ranks * most, self.layout.window, self.device.stream()
        hidden = At(self.own + window.hidden, (tokens, self.layout.hidden))
        x = dataclasses.replace(x, hidden_states=hidden, hidden_states_scale=At(self.own + window.scale))
        arena = arena_of(self.torch_device, self.device)
        with arena.lock:
            space = layer.space(tokens, arena)
            grid, own = assign.grid_of(self.local)
            to = space.m_indptr, space.rows, space.places, space.weights
            assign_program(self.torch_device, layer.sizes.slots, own, self.layout)(
                self.own + window.ids, self.own + window.weights, *to, tokens, self.layout.top_k, self.local, 0, grid,
                stream, self.own, self.reason.data_ptr(), most, self.patience,
            )  # fmt: skip
            layer.multiply(x, space)
            combine_program(self.torch_device, self.layout, layer.sizes.slots, ids.dtype is I64)(
                space.o, space.places, space.weights, ids.data_ptr(), out.data_ptr(), self.table.data_ptr(), self.own,
                self.reason.data_ptr(), len(out), most, self.local, self.rank, self.patience, stream,
            )  # fmt: skip
