"""`Floor` is the floor of a memory-bound call: it loads weights and activations once and writes the output's bytes.

One CTA an SM copies its equal share through a ring of 6 bulk copies of up to 32 KiB; nothing is computed. It is a
programmatic dependent launch, as the GEMM is, and waits for the kernel before first. Shares are one piece of memory
each, or interleaved, copy by copy: which of the two is faster depends on the size.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64, const_expr, range_constexpr

from ragged_moe.kernels.host import words_and_launch
from ragged_moe.kernels.program import Program
from ragged_moe.kernels.ptx import (
    follow_previous_kernel,
    maximum,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    ptx_if,
    select,
    store_global_words,
)
from ragged_moe.runtime.device import device_of

COPY, RING = 32 * 1024, 6
WRITERS = 128  # threads that write the output
WORDS = 10  # b, a, out; copies a CTA makes of b, their bytes; of a; bytes of out that it writes; CTAs, CUDA stream


class Loads:
    """The kernel, with shares that are one piece each, or interleaved."""

    def __init__(self, interleaved: bool):
        self.interleaved = interleaved

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words, launch = words_and_launch(host, WORDS)
        launch(self.kernel(*words), Int32(words[-1]), WRITERS + 32, smem=RING * COPY + 2048)

    @cute.kernel
    def kernel(
        self, b: Int64, a: Int64, out: Int64, b_copies: Int64, b_size: Int64, a_copies: Int64, a_size: Int64,
        of_out: Int64, grid: Int64,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        ring = cute.arch.get_dyn_smem(cutlass.Int8, 1024).toint()
        full = ring + RING * COPY
        if thread == WRITERS:
            for i in range_constexpr(RING):
                mbarrier_init(full + 8 * i, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        follow_previous_kernel()
        if thread < WRITERS:
            first, size = out + Int64(block) * of_out, Int32(of_out)
            for i in cutlass.range(thread * 16, size, WRITERS * 16, unroll=1):
                store_global_words(first + Int64(i), [Int32(0)] * 4, Int32(1))
        if thread == WRITERS:
            first_a, copies = Int32(b_copies), Int32(b_copies + a_copies)
            text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
            for i in cutlass.range(copies, unroll=1):
                of_weights, turn = select(i < first_a, 1, 0), i // RING
                slot = i - turn * RING
                to, bar = ring + slot * COPY, full + 8 * slot
                mbarrier_wait(bar, (turn & 1) ^ 1)  # of the copy before; a fresh barrier passes parity 1
                mbarrier_expect(bar, select(of_weights != 0, Int32(b_size), Int32(a_size)))
                from_b, from_a = b + Int64(block) * b_size * b_copies, a + Int64(block) * a_size * a_copies
                from_b, from_a = from_b + Int64(i) * b_size, from_a + Int64(i - first_a) * a_size
                if const_expr(self.interleaved):
                    from_b = b + (Int64(i) * grid + Int64(block)) * b_size
                    from_a = a + (Int64(i - first_a) * grid + Int64(block)) * a_size
                ptx_if(of_weights, text, "r,l,r,r", to, from_b, Int32(b_size), bar)
                ptx_if(1 - of_weights, text, "r,l,r,r", to, from_a, Int32(a_size), bar)
            issued = copies
            for i in cutlass.range(maximum(issued - RING, 0), issued, unroll=1):  # wait for the last copy to each slot
                turn = i // RING
                mbarrier_wait(full + 8 * (i - turn * RING), turn & 1)


@functools.cache
class Floor:
    """The compiled kernel: Floor(interleaved)(a, b, out) launches it on the current stream of their GPU."""

    def __init__(self, interleaved: bool):
        self.program = Program(Loads(interleaved), WORDS, f"interleaved={interleaved}")

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        device = device_of(b.device)
        numbers = []
        for x in b, a:
            share = x.numel() // device.sms  # rounded up, the last CTA's would end behind the operand
            copies = max(1, -(-share // COPY))
            numbers += [copies, share // copies // 16 * 16]
        share = out.numel() * out.element_size() // device.sms // 16 * 16
        addresses = b.data_ptr(), a.data_ptr(), out.data_ptr()
        self.program(*addresses, *numbers, share, device.sms, device.stream())
