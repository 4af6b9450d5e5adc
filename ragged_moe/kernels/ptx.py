"""The PTX that the kernels are written in: a function issues one instruction; numbers are sections of the PTX ISA 9.1.

Shared memory addresses are Int32; tensormaps, matrix descriptors and global addresses are Int64. A condition is an
Int32: the instruction is executed where it is not 0, and a load gives 0 where it is.
"""

import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm, math
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as nvgpu_ir
from cutlass.cute import AddressSpace

# Encoded L2 policies of a TMA copy: https://github.com/NVIDIA/cutlass/blob/7107b055/include/cute/arch/copy_sm90_desc.hpp#L186
FIRST, NORMAL, LAST = "evict_first", "evict_normal", "evict_last"
DESCRIPTOR = 1 << 62 | (1024 >> 4) << 32 | 1 << 16  # of matrices in shared memory, without their address
CACHE_POLICY = {NORMAL: 0x1000000000000000, FIRST: 0x12F0000000000000, LAST: 0x14F0000000000000}


def ptx(text: str, constraints: str, *operands, result: str | None = None):
    """Insert inline PTX. $0, $1, .. are the result, if any, then the operands, which are DSL numbers."""
    return llvm.inline_asm(
        ir.Type.parse(result) if result else None,
        [x.ir_value() for x in operands],
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def ptx_if(condition: Int32, text: str, constraints: str, *operands) -> None:
    """Insert inline PTX that is executed where condition, its last operand, is not 0."""
    guard = f"{{ .reg .pred p; setp.ne.b32 p, ${len(operands)}, 0; @p {text} }}"
    ptx(guard, f"{constraints},r".lstrip(","), *operands, condition)


def unpack(struct, count: int, dtype) -> list:
    """Return the members of the struct that inline PTX with `count` results gave."""
    mlir = dtype.mlir_type
    return [dtype(llvm.extractvalue(mlir, struct, ir.DenseI64ArrayAttr.get([i]))) for i in range(count)]


def structure(count: int, name: str) -> str:
    """Return the MLIR type of a struct of `count` members of the type `name`."""
    return f"!llvm.struct<({', '.join([name] * count)})>"


def select(condition, x, y) -> Int32:
    """Return x if condition else y, without a branch."""
    return Int32(arith.select(condition.ir_value(), Int32(x).ir_value(), Int32(y).ir_value()))


def minimum(x, y) -> Int32:
    """Return the smaller of two signed integers."""
    return select(Int32(x) < Int32(y), x, y)


def maximum(x, y) -> Int32:
    """Return the larger of two signed integers."""
    return select(Int32(x) < Int32(y), y, x)


def select_float(condition, x, y) -> Float32:
    """Return x if condition else y, without a branch."""
    return Float32(arith.select(condition.ir_value(), Float32(x).ir_value(), Float32(y).ir_value()))


def as_float(x: Int32) -> Float32:
    """Return the f32 that has these bits."""
    return Float32(arith.bitcast(Float32.mlir_type, x.ir_value()))


def as_int(x: Float32) -> Int32:
    """Return the bits of an f32."""
    return Int32(arith.bitcast(Int32.mlir_type, x.ir_value()))


def prefix_sum(x: Int32, lane: Int32) -> Int32:
    """Return the sum of x over a warp's lanes up to and including this one."""
    for step in range(5):
        other = cute.arch.shuffle_sync_up(x, 1 << step, mask_and_clamp=0)
        x = x + select(lane >= 1 << step, other, 0)
    return x


def divide(x, y) -> Int32:
    """Return the quotient of two numbers that are not negative; `//` would care for the signs."""
    return Int32(arith.divui(Int32(x).ir_value(), Int32(y).ir_value()))


def divide_small(x: Int32, y: Int32) -> Int32:
    """Return x // y for x from 0 to below 2^20 and y from 1 to 2^20, by a reciprocal, which is faster than `divide`.

    (x + 1/2) / y is 1/(2 y) or more from any whole number. Its error here is below x / y * 2^-22, a half of that.
    """
    return Int32((Float32(x) + 0.5) * cute.arch.rcp_approx(Float32(y)))


# --------------------------------------------------------------------------------------------------- barriers and order


def mbarrier_init(bar: Int32, count: int) -> None:
    """mbarrier.init (9.7.13.15.9): initialise a barrier that `count` arrivals complete."""
    ptx("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", bar, Int32(count))


def mbarrier_expect(bar: Int32, size: int, condition: Int32 | None = None) -> None:
    """mbarrier.arrive.expect_tx (9.7.13.15.13): arrive, and let the phase also await `size` bytes."""
    text, operands = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", (bar, Int32(size))
    if condition is None:
        ptx(text, "r,r", *operands)
    else:
        ptx_if(condition, text, "r,r", *operands)


def mbarrier_arrive(bar: Int32, condition) -> None:
    """mbarrier.arrive (9.7.13.15.13): arrive at a barrier of this CTA, where condition is not 0."""
    ptx_if(condition, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", bar)


def mbarrier_arrive_cluster(bar: Int32, condition) -> None:
    """mbarrier.arrive (9.7.13.15.13): arrive at a barrier of any CTA of the cluster, an address that map_shared gave.

    It is without .release.cluster, for which ptxas puts a fence of the whole GPU in front: the warp has only read.
    """
    ptx_if(condition, "mbarrier.arrive.shared::cluster.b64 _, [$0];", "r", bar)


def mbarrier_wait(bar: Int32, parity: Int32) -> None:
    """mbarrier.try_wait (9.7.13.15.16): wait until the phase of this parity is complete.

    A fresh barrier passes parity 1.
    """
    text = """{ .reg .pred p;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;
        @p bra DONE;
        bra WAIT;
        DONE: }"""
    ptx(text, "r,r", bar, parity)


def mbarrier_test(bar: Int32, parity: Int32) -> Int32:
    """mbarrier.test_wait (9.7.13.15.16): return 1 if the phase of this parity is complete, else 0, without waiting."""
    text = "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }"
    return Int32(ptx(text, "=r,r,r", bar, parity, result="i32"))


def map_shared(address: Int32, rank: Int32) -> Int32:
    """mapa (9.7.9.24): return the shared::cluster address of `address` in CTA `rank` of the cluster."""
    return Int32(ptx("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", address, rank, result="i32"))


def warpgroup_barrier(number: Int32) -> None:
    """bar.sync (9.7.13.1): let the 128 threads of a warpgroup meet at this barrier."""
    ptx("bar.sync $0, 128;", "r", number)


def consumer_barrier(number: int) -> None:
    """bar.sync (9.7.13.1): let the 256 threads of both consumer warpgroups meet at this barrier."""
    ptx("bar.sync $0, 256;", "r", Int32(number))


def pair_barrier(number: Int32) -> None:
    """bar.sync (9.7.13.1): let the 64 threads of two warps meet at this barrier."""
    ptx("bar.sync $0, 64;", "r", number)


def wait_for_previous_kernel() -> None:
    """griddepcontrol.wait (9.7.13.13): wait until the kernel before has ended and its writes are visible."""
    ptx("griddepcontrol.wait;", "")


def pause() -> None:
    """nanosleep (9.7.13.10): sleep for about 64 ns, between two looks at a flag."""
    ptx("nanosleep.u32 64;", "")


def follow_previous_kernel() -> None:
    """Wait for the kernel before, then let the dependent kernel start once all CTAs said so, or ended
    (griddepcontrol.launch_dependents, 9.7.13.13).
    """
    wait_for_previous_kernel()
    ptx("griddepcontrol.launch_dependents;", "")


# --------------------------------------------------------------------------------------------------------------- memory


def load_relaxed(address: Int64) -> Int32:
    """ld.relaxed.gpu (9.7.9.8): load 4 bytes from L2, whatever L1 has."""
    return Int32(ptx("ld.relaxed.gpu.global.b32 $0, [$1];", "=r,l", address, result="i32"))


def load_relaxed_if(address: Int64, condition: Int32) -> Int32:
    """ld.relaxed.gpu (9.7.9.8): load 4 bytes from L2; 0 where condition is 0."""
    text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.relaxed.gpu.global.b32 $0, [$1]; }"
    return Int32(ptx(text, "=&r,l,r", address, condition, result="i32"))


def load_relaxed_below(address: Int64, i: Int32, bound: Int32, otherwise: Int32) -> Int32:
    """ld.relaxed.gpu (9.7.9.8): load 4 bytes from L2 if i < bound; else return `otherwise`."""
    text = "{ .reg .pred p; setp.lt.s32 p, $2, $3; mov.b32 $0, $4; @p ld.relaxed.gpu.global.b32 $0, [$1]; }"
    return Int32(ptx(text, "=&r,l,r,r,r", address, i, bound, otherwise, result="i32"))


def atomic_inc(address: Int64, last: Int32) -> Int32:
    """atom.inc.acq_rel.gpu (9.7.13.6): count up to `last`, then from 0 again; returns the value before."""
    return Int32(ptx("atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;", "=r,l,r", address, last, result="i32"))


def load_global_float(address: Int64, condition: Int32) -> Float32:
    """ld.global (9.7.9.8): load an f32; 0 where condition is 0."""
    text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.f32 $0, [$1]; }"
    return Float32(ptx(text, "=&f,l,r", address, condition, result="f32"))


def load_global_word(address: Int64, condition: Int32) -> Int32:
    """ld.global (9.7.9.8): load 4 bytes; 0 where condition is 0."""
    text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }"
    return Int32(ptx(text, "=&r,l,r", address, condition, result="i32"))


def load_global_bfloat(address: Int64, condition: Int32) -> Float32:
    """ld.global (9.7.9.8): load a bf16, as f32; 0 where condition is 0."""
    text = "{ .reg .pred p; .reg .b16 h, z; setp.ne.b32 p, $2, 0; mov.b16 z, 0; mov.b16 h, 0;"
    text += " @p ld.global.b16 h, [$1]; mov.b32 $0, {z, h}; }"
    return Float32(ptx(text, "=f,l,r", address, condition, result="f32"))


def load_16_bytes(instruction: str, address: Int64, condition: Int32, dtype) -> list:
    """Load four values of a type by this instruction (9.7.9.8); 0 where condition is 0."""
    letter, kind = ("f", "f32") if dtype is Float32 else ("r", "i32")
    text = "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
    text += f" @p {instruction} {{$0, $1, $2, $3}}, [$4]; }}"
    struct = ptx(text, f"=&{letter}," * 4 + "l,r", address, condition, result=structure(4, kind))
    return unpack(struct, 4, dtype)


def load_relaxed_words_if(address: Int64, condition: Int32) -> list[Int32]:
    """ld.relaxed.gpu (9.7.9.8): load 16 bytes, each word for itself (8.2.4); 0 where condition is 0."""
    return load_16_bytes("ld.relaxed.gpu.global.v4.b32", address, condition, Int32)


def load_global_floats(address: Int64, condition: Int32) -> list[Float32]:
    """ld.global (9.7.9.8): load 4 f32; 0 where condition is 0."""
    return load_16_bytes("ld.global.v4.f32", address, condition, Float32)


def load_global_words(address: Int64, condition: Int32) -> list[Int32]:
    """ld.global (9.7.9.8): load 16 bytes; 0 where condition is 0."""
    return load_16_bytes("ld.global.v4.b32", address, condition, Int32)


def store_relaxed_floats(address: Int64, x: list[Float32], condition: Int32) -> None:
    """st.relaxed.gpu (9.7.9.11): store 4 f32, each for itself (8.2.4), where condition is not 0."""
    ptx_if(condition, "st.relaxed.gpu.global.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f", address, *x)


def store_global_words(address: Int64, x: list[Int32], condition: Int32) -> None:
    """st.global (9.7.9.11): store 16 bytes where condition is not 0."""
    ptx_if(condition, "st.global.v4.b32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r", address, *x)


def store_global_word(address: Int64, x: Int32, condition: Int32) -> None:
    """st.global (9.7.9.11): store 4 bytes where condition is not 0."""
    ptx_if(condition, "st.global.b32 [$0], $1;", "l,r", address, x)


def load_acquire(address: Int64) -> Int32:
    """ld.acquire.gpu (9.7.9.8): load 4 bytes; what the storing thread had written before is visible behind it."""
    return Int32(ptx("ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", address, result="i32"))


def store_global_byte(address: Int64, x: Int32, condition: Int32) -> None:
    """st.global (9.7.9.11): store the lowest byte of x where condition is not 0."""
    ptx_if(condition, "st.global.b8 [$0], $1;", "l,r", address, x)


def store_release(address: Int64, value: int) -> None:
    """st.release.gpu (9.7.9.11): store 4 bytes, behind all that this thread has written or seen."""
    ptx("st.release.gpu.global.b32 [$0], $1;", "l,r", address, Int32(value))


def store_global_bfloat(address: Int64, x: Float32, condition: Int32) -> None:
    """cvt.rn.bf16 (9.7.9.21) and st.global (9.7.9.11): store x as bf16 where condition is not 0."""
    text = "{ .reg .pred p; .reg .b16 h; setp.ne.b32 p, $2, 0; cvt.rn.bf16.f32 h, $1; @p st.global.b16 [$0], h; }"
    ptx(text, "l,f,r", address, x, condition)


def store_global_e4m3(address: Int64, other: Int64, x: Float32, y: Float32, condition: Int32) -> None:
    """cvt.rn.satfinite.e4m3x2 (9.7.9.21) and st.global (9.7.9.11): store x at `address` as e4m3, and y at `other` where
    condition is not 0.
    """
    text = "{ .reg .b16 h, l; .reg .pred p; setp.ne.b32 p, $4, 0; cvt.rn.satfinite.e4m3x2.f32 h, $3, $2;"
    text += " st.global.b8 [$0], h; shr.u16 l, h, 8; @p st.global.b8 [$1], l; }"
    ptx(text, "l,l,f,f,r", address, other, x, y, condition)


def load_shared(address: Int32) -> Int32:
    """ld.shared (9.7.9.8): load 4 bytes."""
    return Int32(ptx("ld.shared.b32 $0, [$1];", "=r,r", address, result="i32"))


def load_shared_float(address: Int32) -> Float32:
    """ld.shared (9.7.9.8): load an f32."""
    return Float32(ptx("ld.shared.f32 $0, [$1];", "=f,r", address, result="f32"))


def load_shared_pair(address: Int32) -> list[Int32]:
    """ld.shared (9.7.9.8): load 8 bytes."""
    struct = ptx("ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", address, result=structure(2, "i32"))
    return unpack(struct, 2, Int32)


def load_shared_words(address: Int32) -> list[Int32]:
    """ld.shared (9.7.9.8): load 16 bytes."""
    struct = ptx("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", address, result=structure(4, "i32"))
    return unpack(struct, 4, Int32)


def load_shared_floats(address: Int32) -> list[Float32]:
    """ld.shared (9.7.9.8): load 4 f32."""
    struct = ptx("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,r", address, result=structure(4, "f32"))
    return unpack(struct, 4, Float32)


def load_matrix(address: Int32) -> list[Int32]:
    """ldmatrix (9.7.14.5.15): load four 16-bit matrices [8, 8], row i of matrix j from lane 8 * j + i's address.

    A lane gets of each the row lane / 4, columns lane % 4 * 2 and the next.
    """
    text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
    return unpack(ptx(text, "=r,=r,=r,=r,r", address, result=structure(4, "i32")), 4, Int32)


def store_shared_e4m3(address: Int32, other: Int32, x: Float32, y: Float32) -> None:
    """cvt.rn.satfinite.e4m3x2 (9.7.9.21) and st.shared (9.7.9.11): store x at `address` and y at `other` as e4m3."""
    text = "{ .reg .b16 h, l; cvt.rn.satfinite.e4m3x2.f32 h, $3, $2; st.shared.b8 [$0], h;"
    text += " shr.u16 l, h, 8; st.shared.b8 [$1], l; }"
    ptx(text, "r,r,f,f", address, other, x, y)


def store_shared_e4m3_pair(address: Int32, x: Float32, y: Float32) -> None:
    """cvt.rn.satfinite.e4m3x2 (9.7.9.21) and st.shared (9.7.9.11): store x and y as e4m3, x first."""
    ptx("{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, $2, $1; st.shared.b16 [$0], h; }", "r,f,f", address, x, y)


def store_shared(address: Int32, value: Int32) -> None:
    """st.shared (9.7.9.11): store 4 bytes."""
    ptx("st.shared.b32 [$0], $1;", "r,r", address, value)


def store_shared_words(address: Int32, x: list[Int32]) -> None:
    """st.shared (9.7.9.11): store 16 bytes."""
    ptx("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "r,r,r,r,r", address, *x)


def store_shared_float(address: Int32, value: Float32) -> None:
    """st.shared (9.7.9.11): store an f32."""
    ptx("st.shared.f32 [$0], $1;", "r,f", address, value)


def store_async_floats(address: Int32, x: list[Float32], bar: Int32) -> None:
    """st.async (9.7.9.12): store 4 f32 in a CTA of the cluster, whose barrier counts the bytes.

    address, bar: what `map_shared` gave.
    """
    text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3, $4}, [$5];"
    ptx(text, "r,f,f,f,f,r", address, *x, bar)


def store_matrix(address: Int32, matrices: list[Int32], columns: bool = True) -> None:
    """stmatrix (9.7.14.5.16): store column or row i of 16-bit matrix j [8, 8] at lane 8 * j + i's address."""
    form = "stmatrix.sync.aligned.m8n8.x4" + ".trans" * columns
    ptx(f"{form}.shared::cta.b16 [$0], {{$1, $2, $3, $4}};", "r,r,r,r,r", address, *matrices)


def copy_async(to: Int32, source: Int64, size: Int32, condition: Int32) -> None:
    """cp.async (9.7.9.25.3.1): copy `size` bytes, then zeros up to 16, where condition is not 0."""
    ptx_if(condition, "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r", to, source, size)


def copy_async_word(to: Int32, source: Int64) -> None:
    """cp.async (9.7.9.25.3.1): copy 4 bytes."""
    ptx("cp.async.ca.shared.global [$0], [$1], 4;", "r,l", to, source)


def copy_async_arrive(bar: Int32) -> None:
    """cp.async.mbarrier.arrive (9.7.13.15.17): announce an arrival, made when this thread's copies are done."""
    ptx("cp.async.mbarrier.arrive.shared::cta.b64 [$0];", "r", bar)


def fence_proxy_async() -> None:
    """fence.proxy.async (9.7.13.4): let tensor cores see what barriers gave this thread in shared memory."""
    ptx("fence.proxy.async.shared::cta;", "")


def tensormap_prefetch(tensormap: Int64) -> None:
    """prefetch.tensormap (9.7.9.15): bring a tensormap to the cache that TMA reads it from."""
    ptx("prefetch.tensormap [$0];", "l", tensormap)


def tma_prefetch(tensormap: Int64, at: tuple) -> None:
    """cp.async.bulk.prefetch.tensor (9.7.9.25.5.4): bring the box at these coordinates to L2, as a hint."""
    places = ", ".join(f"${i + 1}" for i in range(len(at)))
    text = f"cp.async.bulk.prefetch.tensor.{len(at)}d.L2.global.tile [$0, {{{places}}}];"
    ptx(text, "l" + ",r" * len(at), tensormap, *map(Int32, at))


def bulk_prefetch(address: Int64, size: Int32, condition: Int32) -> None:
    """cp.async.bulk.prefetch.L2 (9.7.9.25.4.3): bring 16 * x bytes to L2 where condition is not 0, as a hint."""
    ptx_if(condition, "cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", address, size)


def tma_load(
    to: Int32, tensormap: Int64, at: tuple, bar: Int32, policy: str, condition, mask: Int32 | None, pair: bool = False
) -> None:  # fmt: skip
    """cp.async.bulk.tensor (9.7.9.25.5.2): load the box at these coordinates, innermost first.

    mask: multicast to the same place in each of these CTAs of the cluster, which signals each one's own barrier.
    pair: the barrier may be the other CTA's.
    """
    n, multicast = len(at), mask is not None
    text = f"cp.async.bulk.tensor.{n}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    text += ".multicast::cluster" * multicast + ".cta_group::2" * pair + ".L2::cache_hint"
    text += f" [$0], [$1, {{{', '.join(f'${i + 4}' for i in range(n))}}}], [$2], "
    text += f"${n + 4}, " * multicast + "$3;"
    operands = to, tensormap, bar, Int64(CACHE_POLICY[policy]), *map(Int32, at), *([Int16(mask)] if multicast else [])
    ptx_if(condition, text, "r,l,r,l" + ",r" * n + ",h" * multicast, *operands)


def tensormap_address(atom) -> Int64:
    """Return the generic address of the tensormap of a TMA atom that is a kernel parameter."""
    pointer = cute_ir.PtrType.get(nvgpu_ir.TmaDescriptorTiledType.get(), AddressSpace.generic, 64)
    return Int64(nvgpu_ir.get_tma_desc_addr(pointer, nvgpu_ir.atom_make_exec_tma(atom._trait.value)).toint())


# ----------------------------------------------------------------------------------------- memory that other GPUs reach


def load_address(address: Int64) -> Int64:
    """ld.global (9.7.9.8): load 8 bytes."""
    return Int64(ptx("ld.global.b64 $0, [$1];", "=l,l", address, result="i64"))


def store_relaxed_system(address: Int64, x: Int32) -> None:
    """st.relaxed.sys (9.7.9.11): store 4 bytes that a thread of another GPU may poll."""
    ptx("st.relaxed.sys.global.b32 [$0], $1;", "l,r", address, x)


def store_release_system(address: Int64, x: Int32, condition) -> None:
    """st.release.sys (9.7.9.11): store 4 bytes, behind all that this thread has written or seen, if condition."""
    ptx_if(condition, "st.release.sys.global.b32 [$0], $1;", "l,r", address, x)


def fence_system() -> None:
    """fence.acq_rel.sys (9.7.13.4): what this thread has written or seen comes before what it stores, for all GPUs."""
    ptx("fence.acq_rel.sys;", "")


def store_global_pair(address: Int64, x: list[Int32], condition) -> None:
    """st.global (9.7.9.11): store 8 bytes where condition is not 0."""
    ptx_if(condition, "st.global.v2.b32 [$0], {$1, $2};", "l,r,r", address, *x)


def await_word(address: Int64, value: Int32, nanoseconds: Int64, reason: Int64, code: Int32, condition) -> None:
    """Poll a word by ld.acquire.sys (9.7.9.8) until it is `value`, where condition is not 0.

    What the thread of another GPU that released it had written before is visible behind this. After this many
    nanoseconds it writes `code` to the address `reason`, which the host can read, and traps.
    """
    text = """{ .reg .pred p; .reg .b32 found; .reg .b64 begin, now;
        setp.eq.b32 p, $5, 0;
        @p bra DONE;
        ld.acquire.sys.global.b32 found, [$0];
        setp.eq.b32 p, found, $1;
        @p bra DONE;
        mov.u64 begin, %globaltimer;
        WAIT: ld.acquire.sys.global.b32 found, [$0];
        setp.eq.b32 p, found, $1;
        @p bra DONE;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, begin;
        setp.lt.u64 p, now, $2;
        @p bra WAIT;
        st.release.sys.global.b32 [$3], $4;
        fence.acq_rel.sys;
        trap;
        DONE: }"""
    ptx(text, "l,r,l,l,r,r", address, value, nanoseconds, reason, code, condition)


# ----------------------------------------------------------------------------------------------------------- arithmetic


def pack_bfloat(low: Float32, high: Float32) -> Int32:
    """cvt.rn.bf16x2 (9.7.9.21): return two values as bf16 in one word."""
    return Int32(ptx("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", low, high, result="i32"))


def pack_e4m3(x: list[Float32]) -> Int32:
    """cvt.rn.satfinite.e4m3x2 (9.7.9.21): return four values as e4m3 in one word, the first one lowest."""
    text = "{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, $2, $1; cvt.rn.satfinite.e4m3x2.f32 h, $4, $3;"
    return Int32(ptx(text + " mov.b32 $0, {l, h}; }", "=r,f,f,f,f", *x, result="i32"))


def pack_e2m1(x: list[Float32]) -> Int32:
    """cvt.rn.satfinite.e2m1x2 (9.7.9.21), of sm_100a: return eight values as e2m1 in one word, the first one lowest."""
    text = "{ .reg .b8 b0, b1, b2, b3;"
    for i in range(4):
        text += f" cvt.rn.satfinite.e2m1x2.f32 b{i}, ${2 * i + 2}, ${2 * i + 1};"
    return Int32(ptx(text + " mov.b32 $0, {b0, b1, b2, b3}; }", "=r" + ",f" * 8, *x, result="i32"))


def round_to_e4m3(x: Float32) -> tuple[Int32, Float32]:
    """cvt.rn.satfinite.e4m3x2 (9.7.9.21) and back: return x as e4m3, in the lowest byte of a word, and its value."""
    text = "{ .reg .b16 h, l, u; .reg .b32 w; .reg .f32 z; mov.f32 z, 0f00000000;"
    text += " cvt.rn.satfinite.e4m3x2.f32 h, z, $2; cvt.rn.f16x2.e4m3x2 w, h; mov.b32 {l, u}, w;"
    text += " cvt.f32.f16 $1, l; cvt.u32.u16 $0, h; }"
    struct = ptx(text, "=&r,=&f,f", x, result="!llvm.struct<(i32, f32)>")
    byte = llvm.extractvalue(Int32.mlir_type, struct, ir.DenseI64ArrayAttr.get([0]))
    return Int32(byte), Float32(llvm.extractvalue(Float32.mlir_type, struct, ir.DenseI64ArrayAttr.get([1])))


def fma(x: Float32, y: Float32, z: Float32) -> Float32:
    """Return x * y + z, rounded once."""
    return Float32(math.fma(x.ir_value(), y.ir_value(), z.ir_value()))


def wgmma_fp8(n: int, a: Int32, b: Int32, wait: bool = True, into: list[Float32] | None = None) -> list[Float32]:
    """wgmma.mma_async (9.7.15.5.2): compute D [64, n] = A [64, 128] @ B [n, 128].T, e4m3 in, f32 out, a k-block.

    a, b: low words of the matrix descriptors (9.7.15.5.1.2) of K-major operands with 128-byte swizzle, of which 32 of K
    are 32 bytes. If they come from `uniform`, each step's are made in uniform registers, where wgmma wants them.
    A thread has of D (9.7.15.5.1.1), as its result i, row 16 * warp + lane / 4 + 8 * (i / 2 % 2) and column
    8 * (i / 4) + lane % 4 * 2 + i % 2. wait: until D is there; else only `fma_in_order` behind a `wgmma_wait` may read
    it. into: values that are needed no more, whose registers D takes; else the compiler may want twice as many.
    """
    count = n // 2
    tied = count if into else 0
    d = ", ".join(f"${i}" for i in range(count))
    text = "{ .reg .pred none, some; .reg .b32 x, y; .reg .b64 a, b; setp.ne.b32 none, 0, 0; setp.eq.b32 some, 0, 0;\n"
    text += "wgmma.fence.sync.aligned;\n"
    for step in range(4):
        text += f"add.s32 x, ${count + tied}, {2 * step}; add.s32 y, ${count + tied + 1}, {2 * step};\n"
        text += f"mov.b64 a, {{x, {DESCRIPTOR >> 32}}}; mov.b64 b, {{y, {DESCRIPTOR >> 32}}};\n"
        text += f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 "
        text += f"{{{d}}}, a, b, {'some' if step else 'none'}, 1, 1;\n"
    text += "wgmma.commit_group.sync.aligned;\n" + "wgmma.wait_group.sync.aligned 0;" * wait + " }"
    constraints = ("=f," if into else "=&f,") * count + "".join(f"{i}," for i in range(tied)) + "r,r"
    return unpack(ptx(text, constraints, *(into or ()), a, b, result=structure(count, "f32")), count, Float32)


def wgmma_of_registers(
    n: int, kind: str, a: list[list[Int32]], b: Int32, into: list[list[Float32]], fresh: bool = False
) -> list:
    """wgmma.mma_async (9.7.15.5.2): compute D [64, n] += A [64, 16 * steps] @ B [n, 16 * steps].T, `kind` in, f32 out,
    for each of these A and D, as one group.

    kind: "bf16", "f16", or "e4m3", of which a step is 32 of K. a: four registers of each step, of two numbers each, the
    first one lower (9.7.15.5.1.1): those of row 16 * warp + lane / 4 and columns lane % 4 * 2 and the next, of the row
    8 below, then of both rows and the columns 8 after; of e4m3 of twice as many. b, D: as of `wgmma_fp8`; a step is 32
    bytes. fresh: D is what it would be of zeros. It is there behind `wgmma_results`, or as of `wgmma_fp8`.
    """
    k, transpose = (32, "") if kind == "e4m3" else (16, ", 0")
    count, of_a = n // 2, len(a[0])
    all_sums, registers = count * len(a), 2 * count * len(a)
    text = "{ .reg .pred some; .reg .b32 y; .reg .b64 b; setp.eq.b32 some, 0, 0;\nwgmma.fence.sync.aligned;\n"
    if fresh:
        text = "{ .reg .pred none; setp.ne.b32 none, 0, 0;" + text.removeprefix("{")
    for i in range(len(a)):
        d = ", ".join(f"${count * i + j}" for j in range(count))
        for step in range(of_a // 4):
            of_step = ", ".join(f"${registers + of_a * i + 4 * step + j}" for j in range(4))
            text += f"add.s32 y, ${registers + of_a * len(a)}, {2 * step}; mov.b64 b, {{y, {DESCRIPTOR >> 32}}};\n"
            text += f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} "
            text += f"{{{d}}}, {{{of_step}}}, b, {'none' if fresh and not step else 'some'}, 1, 1{transpose};\n"
    text += "wgmma.commit_group.sync.aligned; }"
    constraints = "=f," * all_sums + "".join(f"{i}," for i in range(all_sums)) + "r," * (of_a * len(a)) + "r"
    operands = *sum(into, []), *sum(a, []), b
    d = unpack(ptx(text, constraints, *operands, result=structure(all_sums, "f32")), all_sums, Float32)
    return [d[count * i : count * (i + 1)] for i in range(len(a))]


def wgmma_of_bf16(n: int, a: list[Int32], b: Int32, into: list[Float32]) -> list[Float32]:
    """wgmma.mma_async (9.7.15.5.2): compute D [64, n] += A [64, 64] @ B [n, 64].T, bf16 in, f32 out, for each of these
    A, as one group; D is side by side.

    a, b, D: as of `wgmma_fp8`; D is there behind `wgmma_results`.
    """
    count = n // 2
    sums = count * len(a)
    text = "{ .reg .pred some; .reg .b32 x, y; .reg .b64 a, b; setp.eq.b32 some, 0, 0;\nwgmma.fence.sync.aligned;\n"
    for step in range(4):
        text += f"add.s32 y, ${2 * sums + len(a)}, {2 * step}; mov.b64 b, {{y, {DESCRIPTOR >> 32}}};\n"
        for i in range(len(a)):
            d = ", ".join(f"${count * i + j}" for j in range(count))
            text += f"add.s32 x, ${2 * sums + i}, {2 * step}; mov.b64 a, {{x, {DESCRIPTOR >> 32}}};\n"
            text += f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, a, b, some, 1, 1, 0, 0;\n"
    text += "wgmma.commit_group.sync.aligned; }"
    constraints = "=f," * sums + "".join(f"{i}," for i in range(sums)) + "r," * len(a) + "r"
    return unpack(ptx(text, constraints, *into, *a, b, result=structure(sums, "f32")), sums, Float32)


def mma_of_registers(kind: str, a: list[Int32], b: list[Int32], c: list[Float32]) -> list[Float32]:
    """mma.sync (9.7.14.5.8): return C [16, 8] + A [16, 16] @ B [8, 16].T of a warp, `kind` in, f32 out.

    kind, a: as of `wgmma_of_registers`. b: of column lane / 4, K lane % 4 * 2 and the next, then the K 8 after. c, the
    result: of row lane / 4, columns lane % 4 * 2 and the next, then of the row 8 below.
    """
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    text += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    return unpack(ptx(text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", *a, *b, *c, result=structure(4, "f32")), 4, Float32)


def wgmma_results(d: list[Float32]) -> list[Float32]:
    """wgmma.wait_group (9.7.15.7.3): wait for all of this warp's groups; return what they left in d."""
    count = len(d)
    constraints = "=f," * count + ",".join(map(str, range(count)))
    struct = ptx("wgmma.wait_group.sync.aligned 0;", constraints, *d, result=structure(count, "f32"))
    return unpack(struct, count, Float32)


def wgmma_wait(pending: int) -> None:
    """wgmma.wait_group (9.7.15.7.3): wait until at most this many of this warp's groups are under way."""
    ptx(f"wgmma.wait_group.sync.aligned {pending};", "")


def wgmma_wait_keeping(pending: int, a: list[Int32]) -> list[Int32]:
    """wgmma.wait_group (9.7.15.7.3): wait until at most this many of this warp's groups are under way; return a.

    a: registers of operand A that one of them read until then: so the compiler keeps them.
    """
    constraints = "=r," * len(a) + ",".join(map(str, range(len(a))))
    struct = ptx(f"wgmma.wait_group.sync.aligned {pending};", constraints, *a, result=structure(len(a), "i32"))
    return unpack(struct, len(a), Int32)


def fma_in_order(x: Float32, y: Float32, z: Float32) -> Float32:
    """Return x * y + z, rounded once; the compiler does not move it before a wgmma_wait, as both have side effects."""
    return Float32(ptx("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", x, y, z, result="f32"))


def twice(x: Float32) -> Int64:
    """Return a pair of the same f32, for `fma_pair`."""
    return Int64(ptx("mov.b64 $0, {$1, $1};", "=l,f", x, result="i64"))


def fma_pair(x: Float32, y: Float32, scales: Int64, u: Float32, v: Float32) -> list[Float32]:
    """fma.rn.f32x2 (9.7.3.6), of sm_100: return x * scale + u and y * scale + v, each rounded once, not moved before a
    wait, as `fma_in_order`.
    """
    text = "{ .reg .b64 a, c; mov.b64 a, {$2, $3}; mov.b64 c, {$5, $6};"
    text += " fma.rn.f32x2 c, a, $4, c; mov.b64 {$0, $1}, c; }"
    return unpack(ptx(text, "=f,=f,f,f,l,f,f", x, y, scales, u, v, result=structure(2, "f32")), 2, Float32)


def multiply_pairs(x: list[Float32], y: list[Float32]) -> list[Float32]:
    """mul.rn.f32x2 (9.7.3.5), of sm_100: return the product of each x and y, two at once. They are evenly many."""
    text = "{ .reg .b64 a, b; mov.b64 a, {$2, $3}; mov.b64 b, {$4, $5};"
    text += " mul.rn.f32x2 a, a, b; mov.b64 {$0, $1}, a; }"
    found = []
    for i in range(0, len(x), 2):
        pairs = *x[i : i + 2], *y[i : i + 2]
        found += unpack(ptx(text, "=f,=f,f,f,f,f", *pairs, result=structure(2, "f32")), 2, Float32)
    return found


def largest_magnitude(x: list[Float32]) -> Float32:
    """max.NaN.abs.f32 of three (9.7.3.12), of sm_100: return the largest absolute value of some; NaN if one is."""
    text, most = "max.NaN.abs.f32 $0, $1, $2, $3;", x[0]
    for i in range(1, len(x), 2):
        most = Float32(ptx(text, "=f,f,f,f", most, x[i], x[min(i + 1, len(x) - 1)], result="f32"))
    return most


def mma_fp8(d: Int32, a: Int64, b: Int64, idesc: Int32, accumulate: int, ctas: int = 1) -> None:
    """tcgen05.mma.kind::f8f6f4 (9.7.16.10.9): compute D [128, n] (+)= A [128, 32] @ B [n, 32].T, D in tensor memory.

    idesc: the instruction descriptor. ctas: two CTAs have 128 rows of A and D each, and half of B.
    """
    text = "{ .reg .pred p; setp.ne.b32 p, $4, 0;"
    text += f" tcgen05.mma.cta_group::{ctas}.kind::f8f6f4 [$0], $1, $2, $3, p; }}"
    ptx(text, "r,l,l,r,r", d, a, b, idesc, Int32(accumulate))


def mma_bf16(d: Int32, a: Int32, b: Int64, idesc: Int32, accumulate: Int32, condition: Int32) -> None:
    """tcgen05.mma.kind::f16 (9.7.16.10.9): compute D [128, n] (+)= A [128, 16] @ B [n, 16].T, D and A in tensor memory,
    where condition is not 0.

    A has two numbers a column. idesc: the instruction descriptor.
    """
    text = "{ .reg .pred p, q; setp.ne.b32 p, $4, 0; setp.ne.b32 q, $5, 0;"
    text += " @q tcgen05.mma.cta_group::1.kind::f16 [$0], [$1], $2, $3, p; }"
    ptx(text, "r,r,l,r,r,r", d, a, b, idesc, accumulate, condition)


def mma_block_scaled(
    kind: str, d: Int32, a: Int64, b: Int64, idesc: Int32, a_scales: Int32, b_scales: Int32, accumulate: Int32,
    condition: Int32,
) -> None:  # fmt: skip
    """tcgen05.mma.block_scale (9.7.16.10.9): compute D [128, n] (+)= (A * SFA) [128, k] @ (B * SFB) [n, k].T, where
    condition is not 0.

    kind: with .block_scale and the K of a scale; with idesc, as of `mma_fp8`, it says what A, B and scales are. The
    scales are in tensor memory.
    """
    text = "{ .reg .pred p, q; setp.ne.b32 p, $6, 0; setp.ne.b32 q, $7, 0;"
    text += f" @q tcgen05.mma.cta_group::1.kind::{kind} [$0], $1, $2, $3, [$4], [$5], p; }}"
    ptx(text, "r,l,l,r,r,r,r,r", d, a, b, idesc, a_scales, b_scales, accumulate, condition)


def tmem_copy_scales(to: Int32, source: Int64) -> None:
    """tcgen05.cp (9.7.16.9): copy an atom, the scales of 128 rows x 4 blocks of K, 512 bytes, to 4 columns of all
    quarters of lanes.
    """
    ptx("tcgen05.cp.cta_group::1.32x128b.warpx4 [$0], $1;", "r,l", to, source)


def mma_commit(bar: Int32, ctas: int = 1, group: int = 1) -> None:
    """tcgen05.commit (9.7.16.11.1): arrive when all tcgen05.mma that this thread has issued are done.

    ctas: CTAs of the cluster at whose own barriers, in the same place, it arrives. group: CTAs of a tcgen05.mma.
    """
    form = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if ctas == 1:
        ptx(f"{form}.b64 [$0];", "r", bar)
    else:
        text = f"{{ .reg .b16 m; cvt.u16.u32 m, $1; {form}.multicast::cluster.b64 [$0], m; }}"
        ptx(text, "r,r", bar, Int32((1 << ctas) - 1))


def tmem_alloc(to: Int32, columns: int, ctas: int = 1) -> None:
    """tcgen05.alloc (9.7.16.7.1): allocate columns, write their address to shared memory, and ask for no more."""
    ptx(f"tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32 [$0], {columns};", "r", to)
    ptx(f"tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned;", "")


def tmem_dealloc(tmem: Int32, columns: int, ctas: int = 1) -> None:
    """tcgen05.dealloc (9.7.16.7.1): give columns back."""
    ptx(f"tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32 $0, {columns};", "r", tmem)


def tmem_load(tmem: Int32, columns: int, wait: bool = True) -> list[Float32]:
    """tcgen05.ld (9.7.16.8): load this warp's 32 lanes x columns, a lane and all columns to a thread.

    wait: until they are there; else only what has side effects for the compiler, behind a `tmem_load_wait`, may read
    them.
    """
    registers = ", ".join(f"${i}" for i in range(columns))
    text = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{registers}}}, [${columns}];"
    text += " tcgen05.wait::ld.sync.aligned;" * wait
    return unpack(ptx(text, "=f," * columns + "r", tmem, result=structure(columns, "f32")), columns, Float32)


def tmem_load_rows(tmem: Int32, columns: int) -> list[Float32]:
    """tcgen05.ld (9.7.16.8): load 16 lanes x columns, as `wgmma_fp8` leaves a warp's results, and wait for them."""
    count = columns // 2
    registers = ", ".join(f"${i}" for i in range(count))
    text = f"tcgen05.ld.sync.aligned.16x256b.x{columns // 8}.b32 {{{registers}}}, [${count}];"
    text += " tcgen05.wait::ld.sync.aligned;"
    return unpack(ptx(text, "=f," * count + "r", tmem, result=structure(count, "f32")), count, Float32)


def tmem_store_rows(tmem: Int32, a: list[Int32]) -> None:
    """tcgen05.st (9.7.16.8): store a step's four registers of `wgmma_of_registers` to 16 lanes x 8 columns, for each
    step.
    """
    registers = ", ".join(f"${i + 1}" for i in range(len(a)))
    text = f"tcgen05.st.sync.aligned.16x128b.x{len(a) // 2}.b32 [$0], {{{registers}}};"
    ptx(text, "r" + ",r" * len(a), tmem, *a)


def tmem_store_wait() -> None:
    """tcgen05.wait::st (9.7.16.8.5): wait until all of this thread's stores to tensor memory are done."""
    ptx("tcgen05.wait::st.sync.aligned;", "")


def tmem_load_wait() -> None:
    """tcgen05.wait::ld (9.7.16.8.3): wait until all of this thread's loads of tensor memory are done."""
    ptx("tcgen05.wait::ld.sync.aligned;", "")


def tcgen05_fence(side: str) -> None:
    """tcgen05.fence (9.7.16.11.2): order tcgen05 operations "before" or "after" a meeting of threads."""
    ptx(f"tcgen05.fence::{side}_thread_sync;", "")


def matrix_descriptor(address: Int32) -> Int32:
    """Return the low word of a matrix descriptor: K-major, 128-byte swizzle, groups of 8 rows 1024 bytes apart."""
    return (address >> 4) | (DESCRIPTOR & 0xFFFFFFFF)


def opaque(x: Int32) -> Int32:
    """Return x, of which the compiler knows nothing: it makes it nowhere else, nor what is made of it before."""
    return Int32(ptx("mov.b32 $0, $1;", "=r,r", x, result="i32"))


def uniform(x: Int32) -> Int32:
    """Return lane 0's x, which all lanes have: it, and what is computed of it, stays in uniform registers."""
    return cute.arch.make_warp_uniform(x)
