"""Mistakes with torch's streams: `kind_name(mended)` each, of which test_streams.py wants the kind, or silence."""

import contextlib
import sys
import threading

import torch
import triton
import triton.language as tl

from emulated_gpu.device import DEVICE

N = 1024


@triton.jit
def fill(x, v, B: tl.constexpr):
    tl.store(x + tl.program_id(0) * B + tl.arange(0, B), v)


@triton.jit
def add(x, y, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at) + 1)


@triton.jit
def name_grid(x, at):
    i = tl.load(at)
    grid = tl.inline_asm_elementwise(
        "mov.u64 $0, %gridid;", "=l,r", [tl.full((1,), 0, tl.int32)], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(x + i + tl.arange(0, 1), grid)
    tl.store(at, i + 1)


def cuda(value: float = 0.0) -> torch.Tensor:
    return torch.full((N,), value, device="cuda")


def stream_race_kernels(mended):
    x, y, a, b = cuda(), cuda(), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        fill[(4,)](x, 3.0, 256)
    if mended:
        b.wait_stream(a)
    with torch.cuda.stream(b):
        add[(4,)](x, y, 256)


def stream_race_default_stream(mended):
    x, a = cuda(), torch.cuda.Stream()
    if mended:
        a.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(a):
        fill[(4,)](x, 3.0, 256)


def stream_race_operators(mended):
    x, a, main = cuda(), torch.cuda.Stream(), torch.cuda.current_stream()
    a.wait_stream(main)
    with torch.cuda.stream(a):
        y = x * 2
    if mended:
        main.wait_stream(a)
    return y + 1


def stream_race_index(mended):
    """Only masks wait for the device."""
    x, at, a = cuda(), torch.arange(N, device="cuda"), torch.cuda.Stream()
    a.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(a):
        y = x[x > 5 if mended else at], x.index_select(0, at)
    if mended:
        torch.cuda.current_stream().wait_stream(a)
    at.zero_()
    return y


def stream_race_deterministic_fill(mended):
    """torch fills what it gives out under deterministic algorithms, on the current stream."""
    a = torch.cuda.Stream()
    torch.use_deterministic_algorithms(True)
    a.wait_stream(torch.cuda.current_stream())
    x = torch.empty(N, device="cuda")
    torch.use_deterministic_algorithms(False)
    if mended:
        a.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(a):
        fill[(4,)](x, 3.0, 256)


def stream_race_event(mended):
    x, y, a, b, event = cuda(), cuda(), torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        if not mended:
            event.record()
        fill[(4,)](x, 3.0, 256)
        if mended:
            event.record()
    with torch.cuda.stream(b):
        event.wait()
        add[(4,)](x, y, 256)


def stream_race_columns(mended):
    x, a, b = torch.zeros(64, 64, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        x[:, :32].add_(1)
    with torch.cuda.stream(b):
        x[:, 32 if mended else 31 :].add_(1)


@triton.jit
def copy_by_maps(x, y, B: tl.constexpr):
    i, source = tl.program_id(0), tl.make_tensor_descriptor(x, [4, B], [B, 1], [1, B])
    tl.make_tensor_descriptor(y, [4, B], [B, 1], [1, B]).store([i, 0], source.load([i, 0]))


def stream_race_tensor_maps_of_two_launches(mended):
    x, y, z, a, b = cuda(), cuda(), cuda(), torch.cuda.Stream(), torch.cuda.Stream()
    one = torch.empty(1 << 10, dtype=torch.int8, device="cuda")
    torch.cuda.synchronize()
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda") if mended else one)
    for stream, to in ((a, y), (b, z)):
        with torch.cuda.stream(stream):
            copy_by_maps[(4,)](x, to, 256)


def stream_race_branch_of_a_graph(mended):
    x, y, branch = cuda(), cuda(), torch.cuda.Stream()
    add[(4,)](x, y, 256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        branch.wait_stream(main)
        with torch.cuda.stream(branch):
            fill[(4,)](x, 2.0, 256)
        if mended:
            main.wait_stream(branch)
        add[(4,)](x, y, 256)
        main.wait_stream(branch)
    graph.replay()


def stream_race_graphs_of_one_pool(mended):
    """The second graph's numbers may lie where the first one's did; not so in a pool of its own."""
    x, streams, pool = cuda(1.0), [torch.cuda.Stream() for _ in range(2)], torch.cuda.graph_pool_handle()
    all_ = [torch.cuda.CUDAGraph() for _ in range(3)]
    sums = [cuda() for _ in all_]
    for graph, y, own in zip(all_, sums, (False, False, True), strict=True):
        with torch.cuda.graph(graph, pool=None if own else pool):
            y.copy_(x * 2 + 1)
    torch.cuda.synchronize()
    for stream, graph in zip(streams, all_[::2] if mended else all_[:2], strict=True):
        with torch.cuda.stream(stream):
            graph.replay()
    streams[1].wait_stream(streams[0])
    with torch.cuda.stream(streams[1]):
        all_[1].replay()


def stream_race_threads(mended):
    """Two threads give one stream work on one tensor, in the order of luck."""
    x, lock, together = cuda(), threading.Lock(), threading.Barrier(2)

    def work(value):
        together.wait()  # else one may be done before the other begins, on a busy machine
        with lock if mended else contextlib.nullcontext():
            fill[(4,)](x, value, 256)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_before_sync_copy(mended):
    x, there = cuda(3.0), torch.empty(N, pin_memory=True)
    there.copy_(x, non_blocking=True)
    if mended:
        torch.cuda.current_stream().synchronize()
    return there[0].item()


def read_before_sync_to_cpu(mended):
    return cuda(3.0).to("cpu", non_blocking=not mended)[5].item()


def read_before_sync_reused(mended):
    here, event = torch.ones(N).pin_memory(), torch.cuda.Event()
    x = here.to("cuda", non_blocking=True)
    event.record()
    if mended:
        event.synchronize()
    here.fill_(2)
    return x


def read_before_sync_registered(mended):
    here, runtime = torch.ones(16 * N), torch.cuda.cudart()  # some pages of which are nobody else's
    assert not runtime.cudaHostRegister(here.data_ptr(), 64 * N, 0) and here.is_pinned()
    x = here.to("cuda", non_blocking=True)
    if mended:
        torch.cuda.synchronize()
    here.fill_(2)
    torch.cuda.synchronize()
    assert not runtime.cudaHostUnregister(here.data_ptr()) and not here.is_pinned()
    return x


def use_after_free_without_record_stream(mended):
    x, y, a = cuda(), cuda(), torch.cuda.Stream()
    a.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(a):
        add[(4,)](x, y, 256)
    if mended:
        x.record_stream(a)
    del x
    return cuda()


def use_after_free_within_a_graph(mended):
    """A capture's memory goes on to a side branch that main still reads (local-inference-lab's vLLM, PR 93)."""
    x, y, side, graph = cuda(), cuda(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = x * 2
        main.wait_stream(side)
        if mended:
            z.record_stream(main)
        add[(4,)](z, y, 256)
        del z
        with torch.cuda.stream(side):
            z = x * 3
        main.wait_stream(side)
    graph.replay()
    torch.cuda.synchronize()
    return x, z


def use_after_free_input_of_a_graph(mended):
    x, y = cuda(), cuda()
    add[(4,)](x, y, 256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = torch.empty(N, device="cuda")
        add[(4,)](x, z, 256)
        add[(4,)](z, y, 256)
    del z  # the graph's pool keeps its memory
    if not mended:
        del x
    other = cuda(-5.0)
    graph.replay()
    return other


def use_after_free_operator_of_a_graph(mended):
    x, graph = cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    if not mended:
        del x
    graph.replay()
    return y


def use_after_free_staging_of_a_graph(mended):
    """A graph's copy reads pinned memory by its address, which holds nothing back."""
    x, here, graph = cuda(), torch.ones(N, pin_memory=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(here, non_blocking=True)
    if not mended:
        del here
    graph.replay()
    return x


def uninitialized_read_rows(mended):
    x = torch.empty(N, device="cuda")
    fill[(4 if mended else 3,)](x, 1.0, 256)
    return x[-1].item()


def uninitialized_read_rows_in_a_sum(mended):
    """An expert without tokens: its rows are not written."""
    x = torch.empty(4, 64, device="cuda")
    for row in range(4):
        if mended or row != 2:
            x[row] = row
    return x.sum().item()


def uninitialized_read_behind_a_mask(mended):
    """NaN and minus infinity are NaN: what lies behind a mask that is added counts."""
    x, mask = torch.empty(N, device="cuda"), cuda()
    fill[(3,)](x, 1.0, 256)
    mask[768:] = -torch.inf
    masked = torch.where(mask == 0, x, mask) if mended else x + mask
    return torch.softmax(masked, 0)[0].item()


def never_written_rows(mended):
    """A note: who reads a row need not use it."""
    x, y = torch.empty(N, device="cuda"), cuda()
    fill[(4 if mended else 3,)](x, 1.0, 256)
    add[(4,)](x, y, 256)
    return y


def never_written_resized(mended):
    x, y = torch.empty(0, device="cuda").resize_(2 * N), cuda()  # another name: a note is said once
    if mended:
        x.fill_(1.0)
    add[(4,)](x, y, 256)
    return y


def never_written_between(mended):
    """Only elements count, and not what lies between them."""
    x = torch.empty(N, 2, device="cuda")
    x[:, 0] = 1
    return x[:, 0 if mended else 1].cpu().cuda()


def right_results_that_grow(mended):
    """torch gives `out=` of no elements to the operator, which makes room and writes: arange and eye do it so."""
    x, y, ones = torch.arange(float(N), device="cuda"), cuda(), torch.eye(32, device="cuda")
    into = torch.empty(0, device="cuda")
    torch.add(x, y, out=into)
    for one in x, ones.view(N), into:
        add[(4,)](one, y, 256)
    return y


def right_result_that_is_not_asked_for(mended):
    """An operator on the written part of memory returns an undefined tensor before others, which are all written."""
    kept, ones = torch.empty(8, N, device="cuda"), torch.ones(N, device="cuda")
    x = kept[:4].fill_(2.0)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [N], ones, ones, 1e-5)
    given = x, x, [N], mean, rstd, ones, ones, [False, True, True]
    _, _, of_bias = torch.ops.aten.native_layer_norm_backward(*given)
    assert of_bias[0].item() == 8.0
    return of_bias


def right_grids(mended):
    """%gridid is the same in all replays of a graph, as a stale flag that carries it may show."""
    x, at = torch.zeros(4, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    name_grid[(1,)](x, at, num_warps=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        name_grid[(1,)](x, at, num_warps=1)
    graph.replay()
    graph.replay()
    first, *replays = x.tolist()[:3]
    assert first != replays[0] == replays[1]


def right(mended):
    """A pipeline of copies and kernels; the backward pass of an operator that ran on another stream."""
    copies, main = torch.cuda.Stream(), torch.cuda.current_stream()
    here = [torch.full((N,), float(n)).pin_memory() for n in range(4)]
    total = cuda()
    for n in range(4):
        with torch.cuda.stream(copies):
            x = here[n].to("cuda", non_blocking=True)
        main.wait_stream(copies)
        x.record_stream(main)
        total += x
    assert total[0].item() == 6
    weight = cuda().requires_grad_()
    copies.wait_stream(main)
    with torch.cuda.stream(copies):
        y = weight * 2
    main.wait_stream(copies)
    (y + 1).sum().backward()
    assert weight.grad[0].item() == 2
    x = torch.empty(N, device="cuda")
    fill[(3,)](x, 1.0, 256)
    assert x[:768].sum().item() == 768 and x[767].item() == 1
    written = torch.arange(N, device="cuda") < 768
    assert x[written].sum().item() == x.masked_fill(~written, 0).sum().item() == 768
    x = torch.empty(4, 4, dtype=torch.float16, device="cuda")
    x[:3], x.t()[:, 3] = 1, 2
    torch.cuda.synchronize()
    several = [torch.empty(2, device="cuda") for _ in range(9)]
    torch._foreach_zero_(several)
    assert x.sum().item() == 20 and torch.cat(several).sum().item() == 0


if __name__ == "__main__":
    for name, check in [*globals().items()]:
        if name.startswith(("stream_race_", "read_before_", "use_after_", "uninitialized_", "never_", "right")):
            for mended in (0, 1):
                torch.cuda.synchronize()
                before, notes = len(DEVICE.session.errors), len(DEVICE.session.notes)
                check(mended)
                kinds = [error.kind for error in DEVICE.session.errors[before:]]
                found = ",".join([*kinds, *(note.note for note in DEVICE.session.notes[notes:])])
                print(name, mended, found or "-", file=sys.__stdout__)
