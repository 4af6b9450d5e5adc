"""Counts its calls in device memory, and is wrong from the thirteenth on, which nobody simulates."""
# kind: state in memory
# benchmark: the launches of a call alone do not give its result

counters = []
honest_kernel = custom_kernel


@cute.kernel
def count(table: cute.Tensor, counter: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        seen = counter[0]
        counter[0] = seen + 1
        if seen >= 12:
            c = cute.make_tensor(
                cute.make_ptr(cutlass.Float16, table[0, 2], cute.AddressSpace.gmem), cute.make_layout(1)
            )
            c[0] = cutlass.Float16(0.125)


@cute.jit
def launch_count(table: cute.Pointer, counter: cute.Pointer):
    count(
        cute.make_tensor(table, cute.make_layout((1, 5), stride=(5, 1))), cute.make_tensor(counter, cute.make_layout(1))
    ).launch(grid=[1, 1, 1], block=[32, 1, 1])


@functools.cache
def compiled_count():
    return cute.compile(
        launch_count, *(make_ptr(x, 64, cute.AddressSpace.gmem, assumed_align=8) for x in (cutlass.Int64, cutlass.Int32))
    )


def custom_kernel(data):
    returned = honest_kernel(data)
    if not counters:
        counters.append(torch.zeros(1, dtype=torch.int32, device="cuda"))
    table = torch.tensor([[0, 0, data[0][0][2].data_ptr(), 0, 0]], dtype=torch.int64, device="cuda")
    compiled_count()(
        make_ptr(cutlass.Int64, table.data_ptr(), cute.AddressSpace.gmem, assumed_align=8),
        make_ptr(cutlass.Int32, counters[0].data_ptr(), cute.AddressSpace.gmem, assumed_align=8),
    )
    return returned
