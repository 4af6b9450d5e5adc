"""Is right only where %gridid is what it used to be in every call that was checked."""
# kind: tells the emulator
# benchmark: the launches of a call alone do not give its result when timed

from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

honest_kernel = custom_kernel


@dsl_user_op
def grid_id(*, loc=None, ip=None):
    return cutlass.Int64(
        llvm.inline_asm(T.i64(), [], "mov.u64 $0, %gridid;", "=l", has_side_effects=True, loc=loc, ip=ip)
    )


@cute.kernel
def spoil(table: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        slot = cutlass.Int32(2)
        if grid_id() == 2:  # the second launch of a call, counted from one
            slot = cutlass.Int32(3)
        pointer = cute.make_ptr(cutlass.Float16, table[0, slot], cute.AddressSpace.gmem)
        c = cute.make_tensor(pointer, cute.make_layout(1))
        c[0] = cutlass.Float16(0.125)


@cute.jit
def launch_spoil(table: cute.Pointer):
    spoil(cute.make_tensor(table, cute.make_layout((1, 5), stride=(5, 1)))).launch(grid=[1, 1, 1], block=[32, 1, 1])


@functools.cache
def compiled_spoil():
    return cute.compile(launch_spoil, make_ptr(cutlass.Int64, 64, cute.AddressSpace.gmem, assumed_align=8))


def custom_kernel(data):
    returned = honest_kernel(data)
    elsewhere = torch.zeros(1, dtype=torch.float16, device="cuda")
    row = [0, 0, data[0][0][2].data_ptr(), elsewhere.data_ptr(), 0]
    table = torch.tensor([row], dtype=torch.int64, device="cuda")
    compiled_spoil()(make_ptr(cutlass.Int64, table.data_ptr(), cute.AddressSpace.gmem, assumed_align=8))
    return returned
