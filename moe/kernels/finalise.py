"""The layer's last kernel: a CTA sums a token's rows, those that its local experts gave it, by their weights.

Of tokens that other ranks sent (dispatch.py) it sends each sum back, followed by a flag of the token's own.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass._mlir.dialects import cuda as cuda_ir

from moe.kernels.exchange import Layout
from moe.kernels.ptx import (
    as_float,
    divide,
    fma,
    let_next_kernel_start,
    load_address,
    load_global_floats,
    load_global_words,
    load_relaxed,
    maximum,
    pack_bfloat,
    select,
    store_global_words,
    store_release_system,
    wait_for_previous_kernel,
)

THREADS = 224
TOGETHER = 4  # 16-byte loads of a thread that are under way at once: with these threads 7168 columns
WORDS, SENDING_WORDS = 7, 10


class Finalise:
    """The kernel computes output[t] = sum over j of weights[t, j] * o[places[t, j]]: moe.reference.layer.combined.

    Its words: addresses of o bf16 [rows, H], places int32 [T, slots], weights f32 [T, slots], output bf16 [T, H]; T, H;
    CUDA stream. Places of -1 are left out. slots: a multiple of 4.
    With a layout it sends the sums of tokens that have any to their ranks' windows, whose addresses, int64 [ranks], are
    in place of output, and tells all ranks that their tokens were read; T is ranks * most, and three more words are
    this rank's window, most, and this rank.
    """

    def __init__(self, slots: int, layout: Layout | None = None):
        self.slots, self.layout = slots, layout

    @cute.jit
    def __call__(self, host: cute.Pointer):
        words = cute.make_tensor(host, cute.make_layout(SENDING_WORDS if self.layout else WORDS))
        o, places, weights, output = [words[i] for i in range(4)]
        sending = (words[7], Int32(words[8]), Int32(words[9])) if self.layout else ()
        stream = cuda_ir.cast(cuda_ir.StreamType.get(), words[6].ir_value())
        self.kernel(o, places, weights, output, Int32(words[5]), sending).launch(
            grid=(Int32(words[4]), 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(self, o: Int64, places: Int64, weights: Int64, output: Int64, hidden: Int32, sending: tuple):
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        wait_for_previous_kernel()
        let_next_kernel_start()
        at, rows, factors = Int64(token) * (4 * self.slots), [], []
        for i in range_constexpr(self.slots // 4):
            rows += load_global_words(places + at + 16 * i, Int32(1))
            factors += load_global_floats(weights + at + 16 * i, Int32(1))
        first, used, slot, epoch, base_of = output, Int32(1), Int64(token), Int32(0), Int64(0)
        if const_expr(self.layout is not None):
            own, most, rank = sending
            epoch = load_relaxed(own + self.layout.window.epoch)
            source = divide(token, most)
            base_of = load_address(output + Int64(source) * 8)
            slot = Int64(rank * self.layout.tokens + token - source * most)
            first, used = base_of + self.layout.window.sums, self.any(rows)
            self.tell_freed(output, epoch, rank, thread, token)
        for base in cutlass.range(thread, hidden >> 3, THREADS * TOGETHER, unroll=1):
            sums = cute.make_rmem_tensor((8 * TOGETHER,), Float32)
            sums.fill(0.0)
            inside = [select(base + i * THREADS < hidden >> 3, 1, 0) for i in range(TOGETHER)]
            for j in range_constexpr(self.slots):
                if rows[j] >= 0:
                    row = o + (Int64(rows[j]) * Int64(hidden) + Int64(base) * 8) * 2
                    x = [load_global_words(row + i * (THREADS * 16), inside[i]) for i in range(TOGETHER)]
                    for i in range_constexpr(8 * TOGETHER):
                        word = x[i // 8][i // 2 % 4]
                        value = as_float(word & -65536) if i % 2 else as_float(word << 16)
                        sums[i] = fma(value, factors[j], sums[i])
            to = first + (slot * Int64(hidden) + Int64(base) * 8) * 2
            for i in range_constexpr(TOGETHER):
                x = [pack_bfloat(sums[8 * i + 2 * j], sums[8 * i + 2 * j + 1]) for j in range(4)]
                store_global_words(to + i * (THREADS * 16), x, inside[i] & used)
        if const_expr(self.layout is not None):
            cute.arch.sync_threads()
            flag = base_of + self.layout.window.arrived + slot * 4
            store_release_system(flag, epoch, select((thread == 0) & (used != 0), 1, 0))

    def any(self, rows: list[Int32]) -> Int32:
        """Return 1 if any place is one, else 0."""
        most = rows[0]
        for row in rows[1:]:
            most = maximum(most, row)
        return select(most >= 0, 1, 0)

    @cute.jit
    def tell_freed(self, windows: Int64, epoch: Int32, rank: Int32, thread: Int32, block: Int32):
        """Tell each rank that this one has read its tokens: all kernels that do have ended."""
        if (block == 0) & (thread < self.layout.ranks):
            of_rank = load_address(windows + Int64(thread) * 8)
            store_release_system(of_rank + self.layout.window.freed + Int64(rank) * 4, epoch, Int32(1))
