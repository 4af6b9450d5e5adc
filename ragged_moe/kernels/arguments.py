"""Host arguments of the GEMM kernels: an array of 64-bit words, from which the tensormaps are encoded on the host.

`WORDS`: how many there are. `unpack(words)`: what the kernel is launched with, in this order: grid, stream, tensormaps
(a TMA atom of the tokens for each of Config.boxes, then that of the weights), m_indptr, operands, k-blocks, experts,
first step of a search among them.
"""

import cutlass.cute as cute
from cutlass import Float4E2M1FN, Int32, Int64, Uint8
from cutlass.cute.nvgpu import cpasync, warpgroup

from ragged_moe.kernels.block_scaled import ATOM_SCALES
from ragged_moe.kernels.config import BLOCK_K, BLOCK_N, Config
from ragged_moe.kernels.context import BlockScaledOperands, Fp4Operands, GatedOperands, Operands, RowScaledOperands


def swizzled(rows: int):
    """Layout of a box of `rows` x 128 bytes in shared memory: K-major, 128-byte swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Uint8)
    return cute.tile_to_shape(atom, (rows, BLOCK_K), (0, 1))


def tma_atom(address: Int64, shape: tuple, stride: tuple, layout, box: tuple, dtype=Uint8):
    """TMA atom that loads boxes of a tensor of bytes, or of dtype Float4E2M1FN, in which each gets a byte's room."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16 if dtype is Uint8 else 32)
    tensor = cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))
    op = cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(op, tensor, layout, box, internal_type=Uint8)[0]


def token_tensormaps(config: Config, address: Int64, total_m: Int32, k: Int32) -> list:
    """TMA atoms of A [total_m, k], one for each width; CTAs that share tokens by multicast load half of them each."""
    atoms = []
    for width in config.boxes:
        rows = width if config.two_cta else width // config.cluster
        atoms.append(tma_atom(address, (total_m, k), (cute.assume(k, 16), 1), swizzled(rows), (rows, BLOCK_K)))
    return atoms


def weight_tensormap(address: Int64, experts: Int32, n: Int32, k: Int32, rows: int, dtype=Uint8):
    """TMA atom of B [experts, n, k], innermost first: boxes of 128 x rows x 1. Rows from n on are zeros. k: a multiple
    of 16, of FP4 numbers of 128 (cuTensorMapEncodeTiled, 16U4_ALIGN16B).
    """
    layout = cute.composition(swizzled(rows), cute.make_layout((BLOCK_K, rows, 1), stride=(rows, 1, rows * BLOCK_K)))
    step = step_of(dtype)
    stride = (1, cute.assume(Int64(k), step), cute.assume(Int64(n) * Int64(k), step))
    return tma_atom(address, (k, n, experts), stride, layout, (BLOCK_K, rows, 1), dtype)


def step_of(dtype) -> int:
    """What a weight tensor's K is a multiple of."""
    return 16 if dtype is Uint8 else 128


def gated_weight_tensormap(address: Int64, experts: Int32, n: Int32, k: Int32, dtype=Uint8):
    """TMA atom of B [experts, up | gate, n / 2, k], innermost first: boxes of 128 x 128 x 1 x 1, else as above."""
    box = (BLOCK_K, BLOCK_N, 1, 1)
    strides = BLOCK_N, 1, BLOCK_N * BLOCK_K, BLOCK_N * BLOCK_K
    layout = cute.composition(swizzled(BLOCK_N), cute.make_layout(box, stride=strides))
    half, step = Int64(n >> 1) * Int64(k), step_of(dtype)
    stride = (1, *(cute.assume(x, step) for x in (Int64(k), half, 2 * half)))
    return tma_atom(address, (k, n >> 1, 2, experts), stride, layout, box, dtype)


def half_token_tensormaps(config: Config, address: Int64, total_m: Int32, k: Int32) -> list:
    """TMA atoms of A [total_m, k] of 16 bits, one for each width: 64 of K, 128 bytes, x tokens x both halves of a
    k-block; the second one is zeros behind the last of K.
    """
    shape = BLOCK_K, total_m, k >> 6
    stride = 1, cute.assume(Int64(k) * 2, 16), BLOCK_K
    atoms = []
    for rows in config.boxes:
        layout = cute.make_layout((BLOCK_K, rows, 2), stride=(2 * rows, 1, rows))
        layout = cute.composition(swizzled(2 * rows), layout)
        atoms.append(tma_atom(address, shape, stride, layout, (BLOCK_K, rows, 2)))
    return atoms


def fp4_tensormap(address: Int64, experts: Int32, n: Int32, k: Int32, config: Config, size: int):
    """TMA atom of what belongs to tiles of 64 weight rows x 64 of K, `size` bytes, [experts, n/64, k/64], or if gated
    [experts, up | gate, n/128, k/64]: boxes of a stage. Tiles behind the last of n or of k are zeros.

    Those of 256 bytes or more are pieces of 256, as a box has no more side by side; two of 128 are such a piece.
    """
    halves, pieces, row = (2,) if config.gated else (), size // 256, 2 * size
    rows, box_rows = n >> 6 + len(halves), config.block_n // 64 >> len(halves)
    of_row = cute.assume(Int64(k >> 6) * size, 16)
    of_half, of_expert = Int64(rows) * of_row, Int64(n >> 6) * of_row
    inner = (256, (k >> 6) * pieces) if pieces else ((k >> 6) * size,)
    stride = *((1, 256) if pieces else (1,)), of_row, *(cute.assume(of_half, 16) for _ in halves)
    box = *((256, 2 * pieces) if pieces else (row,)), box_rows, *halves, 1
    of_box = *((1, 256) if pieces else (1,)), row, row * box_rows, 2 * row * box_rows
    layout = cute.make_layout(box, stride=of_box[: len(box)])
    shape = *inner, rows, *halves, experts
    return tma_atom(address, shape, (*stride, cute.assume(of_expert, 16)), layout, box)


def record_tensormap(config: Config, address: Int64, total_m: Int32, k: Int32):
    """TMA atom of the numbers of A's records, bytes [total_m, value_bytes], zeros behind the last of k."""
    form, rows = config.block_scaled, config.block_m
    stride = cute.assume(form.record_bytes(k), 16), 1
    return tma_atom(address, (total_m, form.value_bytes(k)), stride, swizzled(rows), (rows, BLOCK_K))


def scale_tensormap(config: Config, address: Int64, experts: Int32, n: Int32, k: Int32):
    """TMA atom of the scales of weights, 2 x 256 bytes [experts, n/128, atoms of k], or if gated [experts, n/256,
    up | gate, atoms of k] (innermost first as CuTe puts them: last what a box has one of), n's rounded up:
    boxes of a stage. Those behind the last of n or of k are zeros.
    """
    form = config.block_scaled
    atoms = k // (ATOM_SCALES * form.block) if form.atoms > 1 else form.k_blocks(k)
    of_row, in_stage = cute.assume(Int64(atoms) * 512, 16), 512 * form.atoms
    rows = (n + 255) >> 8 if config.gated else (n + 127) >> 7  # of atoms, of a half if gated
    of_half = cute.assume(Int64(rows) * of_row, 16)
    of_expert = cute.assume(2 * of_half, 16) if config.gated else of_half
    if config.gated:
        shape, stride = (256, atoms * 2, 2, rows, experts), (1, 256, of_half, of_row)
        box = 256, 2 * form.atoms, 2, 1, 1
    else:
        shape, stride = (256, atoms * 2, rows, experts), (1, 256, of_row)
        box = 256, 2 * form.atoms, config.block_n // BLOCK_N, 1
    layout = cute.make_layout(box, stride=(1, 256, in_stage, 2 * in_stage, 2 * in_stage)[: len(box)])
    return tma_atom(address, shape, (*stride, of_expert), layout, box)


class GroupedGemmArguments:
    """Words: addresses of a e4m3 [total_m, k], a_scale f32 [k/128, total_m], b e4m3 [experts, n, k], b_scale f32
    [experts, n/128, k/128], with channels [experts, n], m_indptr int32 [experts + 1], out bf16 [total_m, n], partials,
    flags (context.Operands); total_m, n, k, experts, first step of a search among them, CTAs in the grid; CUDA stream.
    """

    WORDS = 15

    def __init__(self, config: Config):
        self.config = config

    def unpack(self, words: cute.Tensor) -> tuple:
        """Holds what the kernel is launched with."""
        a, a_scale, b, b_scale, m_indptr, out, partials, flags = [words[i] for i in range(8)]
        total_m, n, k, experts, search, grid = [Int32(words[i]) for i in range(8, 14)]
        weights = weight_tensormap(b, experts, n, k, self.config.weights_box)
        tensormaps = *token_tensormaps(self.config, a, total_m, k), weights
        if self.config.tail:
            tail = tma_atom(a, (total_m, k), (cute.assume(k, 16), 1), swizzled(16), (16, BLOCK_K))
            tensormaps = *tensormaps, tail
        operands = Operands(a_scale, b_scale, out, partials, flags, total_m, n)
        return grid, words[14], tensormaps, m_indptr, operands, k >> 7, experts, search


class Bf16Arguments(GroupedGemmArguments):
    """Words: as of GroupedGemmArguments, but that a [total_m, k / 2] and b [experts, n, k / 2] are bf16: k is in bytes.
    Those of scales mean nothing. If gated out is [total_m, n/2].
    """

    def unpack(self, words: cute.Tensor) -> tuple:
        """Holds what the kernel is launched with."""
        grid, stream, tensormaps, m_indptr, operands, *sizes = super().unpack(words)
        if self.config.gated:
            n, k, experts = [Int32(words[i]) for i in (9, 10, 11)]
            tensormaps = *tensormaps[:-1], gated_weight_tensormap(words[2], experts, n, k)
        return grid, stream, tensormaps, m_indptr, operands, *sizes


class Fp4Arguments:
    """Words: addresses of a bf16 or f16 [total_m, k], b_global f32 [experts], b and b_scale as
    ragged_moe.layers.pack_weights packs them; the others as of GroupedGemmArguments. If gated b_global is [experts, 1
    or 2], out [total_m, n/2], and a word before the stream says which. With a bias its address is the last word before
    the stream. Of tokens in e4m3 a is that, in b_global's place is row_scale f32 [experts, n], and the word before the
    bias and the stream is the address of a_scale f32 [total_m].
    """

    def __init__(self, config: Config):
        self.config, self.by_e4m3 = config, config.fp4_tokens == "e4m3"
        self.WORDS = 15 + (config.gated or self.by_e4m3) + config.bias

    def unpack(self, words: cute.Tensor) -> tuple:
        """Holds what the kernel is launched with; behind the weights' tensormap comes that of their scales."""
        config, tokens_of = self.config, token_tensormaps if self.by_e4m3 else half_token_tensormaps
        a, scale, b, b_scale, m_indptr, out, partials, flags = [words[i] for i in range(8)]
        total_m, n, k, experts, search, grid = [Int32(words[i]) for i in range(8, 14)]
        sizes = (b, 2048), (b_scale, 4096 // config.fp4_scale)
        weights, scales = [fp4_tensormap(x, experts, n, k, config, size) for x, size in sizes]
        tensormaps = *tokens_of(config, a, total_m, k), weights, scales
        bias = words[self.WORDS - 2] if config.bias else Int64(0)
        if self.by_e4m3:
            operands = RowScaledOperands(scale, words[14], out, partials, flags, total_m, n, bias)
        else:
            of_expert = Int32(words[14]) if config.gated else Int32(1)
            operands = Fp4Operands(scale, out, partials, flags, total_m, n, of_expert, bias)
        return grid, words[self.WORDS - 1], tensormaps, m_indptr, operands, (k + (BLOCK_K - 1)) >> 7, experts, search


class BlockScaledArguments:
    """Words: addresses of a, records [total_m] (block_scaled.py), b_global f32 [experts], b and b_scale as
    ragged_moe.layers.pack_weights packs them, m_indptr int32 [experts + 1], out bf16 [total_m, n], partials, flags
    (context.Operands); total_m, n, k, experts, first step of a search among them, CTAs in the grid; `more`; CUDA
    stream.

    more: if the format has scales of all the address of a's; if gated, where a is records of tokens and out of n/2
    columns, that of out's, whether b_global is [experts, 1 or 2], and the address of rows, int32 [total_m], the token
    of each row; with slots those of rows, places, weights and output (context.BlockScaledOperands); with a bias its
    address, f32 [experts, n].
    """

    def __init__(self, config: Config):
        of_all, gated = config.block_scaled.of_all, config.gated
        of_layer = {"out_global": of_all and gated, "globals": gated, "rows": gated or config.slots}
        of_output = dict.fromkeys(("places", "weights", "output"), config.slots)
        wanted = {"a_global": of_all} | of_layer | of_output | {"bias": config.bias}
        self.config, self.more = config, [name for name, yes in wanted.items() if yes]
        self.WORDS = 15 + len(self.more)

    def unpack(self, words: cute.Tensor) -> tuple:
        """Holds what the kernel is launched with; behind the weights' tensormap comes that of their scales."""
        config, form = self.config, self.config.block_scaled
        a, b_global, b, b_scale, m_indptr, out, partials, flags = [words[i] for i in range(8)]
        total_m, n, k, experts, search, grid = [Int32(words[i]) for i in range(8, 14)]
        more = {name: words[14 + i] for i, name in enumerate(self.more)}
        dtype = Float4E2M1FN if form.token_bits == 8 else Uint8
        row = k >> 1 if dtype is Uint8 else form.k_blocks(k) * form.stage_k
        if config.gated:
            weights = gated_weight_tensormap(b, experts, n, row, dtype)
        else:
            weights = weight_tensormap(b, experts, n, row, config.weights_box, dtype)
        tokens = weights if config.gated else record_tensormap(config, a, total_m, k)  # gathered ones come without
        tensormaps = tokens, weights, scale_tensormap(config, b_scale, experts, n, k)
        names = "rows", "a_global", "out_global", "bias", "places", "weights", "output"
        rows, a_global, out_global, bias, *of_output = [more.get(name, Int64(0)) for name in names]
        of_expert = Int32(more.get("globals", 1))
        operands = BlockScaledOperands(
            a, rows, a_global, b_global, out, out_global, partials, flags, total_m, n, k, of_expert, bias, *of_output
        )  # fmt: skip
        return grid, words[self.WORDS - 1], tensormaps, m_indptr, operands, form.k_blocks(k), experts, search


class Gemm1Arguments:
    """Words: addresses of hidden_states e4m3 [T, k], their scales f32 [k/128, T] (or of both permuted, [total_m, k] and
    [k/128, total_m]), weights e4m3 [experts, n, k] and scales f32 [experts, n/128, k/128], with channels [experts, n],
    m_indptr int32 [experts + 1], rows int32 [total_m] (the token of each row), c e4m3 [total_m, n/2], its scales f32
    [n/256, total_m], partials, flags (context.Operands); total_m, n, k, experts, first step of a search among them,
    CTAs; T; CUDA stream.
    """

    WORDS = 18

    def __init__(self, config: Config):
        self.config = config

    def unpack(self, words: cute.Tensor) -> tuple:
        """Holds what the kernel is launched with."""
        a, a_scale, b, b_scale, m_indptr, rows, c, c_scale, partials, flags = [words[i] for i in range(10)]
        total_m, n, k, experts, search, grid, tokens = [Int32(words[i]) for i in range(10, 17)]
        weights, config = gated_weight_tensormap(b, experts, n, k), self.config
        # The kernel takes the last one for the weights; tokens that are gathered come without
        tokens_maps = token_tensormaps(config, a, total_m, k) if config.permuted else [weights] * len(config.boxes)
        operands = GatedOperands(a, a_scale, b_scale, rows, c, c_scale, partials, flags, total_m, n, tokens)
        return grid, words[17], (*tokens_maps, weights), m_indptr, operands, k >> 7, experts, search
