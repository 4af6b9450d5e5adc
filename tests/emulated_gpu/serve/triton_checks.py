"""What Triton kernels may expect of the emulated device: test_triton.py runs this file on it and reads the output."""

import functools

import torch
import triton
import triton.language as tl
from check_scripts import run
from triton.runtime import cache
from triton.tools.tensor_descriptor import TensorDescriptor

import emulated_gpu
from emulated_gpu.errors import EmulatorError
from emulated_gpu.model.timeline import Timeline
from emulated_gpu.model.trace import Trace


@triton.jit
def softmax(x, y, columns, stride, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * stride + i, e / tl.sum(e, 0), mask=i < columns)


@triton.jit
def matmul(a, b, c, K, BK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, APART: tl.constexpr):
    """Descriptors of a [M, K], b [N, K], c [M, N]: a tile of c. APART: loads and products have warps of their own."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=APART):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(tl.float16))


@triton.jit
def out_of_bounds(x, n: tl.constexpr):
    tl.store(x + tl.arange(0, n), 1.0)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scaled(x, y, n, factor, half: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n) * factor
    tl.store(y + i, v.to(tl.bfloat16) if half else v, i < n)


def check_softmax():
    x = torch.randn(3, 100, device="cuda")
    y = torch.empty_like(x)
    softmax[(3,)](x, y, 100, x.stride(0), BLOCK=128)
    assert torch.allclose(y, torch.softmax(x, 1), atol=1e-6)


def check_a_tensor_of_the_host():
    """Triton refuses it, which a script may catch; it takes one that is pinned, or has no elements."""
    x, y = torch.ones(1, 8), torch.empty(1, 8, device="cuda")
    softmax[(1,)](x.pin_memory(), y, 8, 8, BLOCK=8)
    softmax[(1,)](x[:, :0], y, 0, 8, BLOCK=8)
    try:
        softmax[(1,)](y, x, 8, 8, BLOCK=8)
    except ValueError as error:
        assert "(at 1) cannot be accessed from Triton (cpu tensor?)" in str(error)
    else:
        raise AssertionError("a tensor of the host passed")


def check_a_matmul_with_descriptors():
    """The tensor core's: wgmma on an H200, tcgen05 on a B200. A profile has the roles of its warps."""
    a, b = (torch.randint(-3, 4, (128, 128), device="cuda").half() for _ in range(2))
    c = torch.empty(128, 128, device="cuda", dtype=torch.half)
    maps = [TensorDescriptor.from_tensor(t, shape) for t, shape in ((a, [128, 64]), (b, [128, 64]), (c, [128, 128]))]
    machine = "b200" if "B200" in torch.cuda.get_device_name() else "h200"
    launch = functools.partial(matmul[(1, 1)], *maps, 128, BK=64, BM=128, BN=128, APART=machine == "b200")
    assert ("tcgen05.mma" if machine == "b200" else "wgmma") in launch().asm["ptx"]
    assert torch.equal(c.cpu().float(), a.cpu().float() @ b.cpu().float().T)
    with emulated_gpu.timing(machine, trace := Trace()) as timed:
        launch()
    timeline = Timeline(timed.run, trace)
    (program,) = timeline.warps
    roles = [timeline.role(program, warp) for warp in range(timeline.warps[program])]
    apart = ["epilogue"] * 4 + ["MMA", "TMA loads", "other", "other"]
    assert sorted(roles) == sorted(apart if machine == "b200" else ["MMA"] * 3 + ["loads, MMA"]), roles


def check_autotuning_takes_what_runs():
    x, y = torch.arange(200.0, device="cuda"), torch.empty(200, dtype=torch.bfloat16, device="cuda")
    scaled[lambda meta: (triton.cdiv(200, meta["BLOCK"]),)](x, y, 200, 0.5, True)
    assert torch.equal(y, (x * 0.5).bfloat16()) and scaled.best_config.kwargs == {"BLOCK": 64}


def check_a_compiled_kernel_says_what_it_uses():
    """Triton's tutorial of softmax works its occupancy out of them."""
    x = torch.zeros(1, 64, device="cuda")
    compiled = softmax[(1,)](x, x.clone(), 64, 64, BLOCK=64)
    assert 8 <= compiled.n_regs <= 64 and compiled.n_spills == 0


def check_a_benchmark_has_no_time():
    assert round(triton.testing.get_dram_gbps(0)) in (7672, 4917)  # of a B200, an H200
    ran = []
    assert triton.testing.do_bench(lambda: ran.append(1)) != 0 and not ran
    assert len(triton.testing.do_bench(lambda: ran.append(1), quantiles=[0.5, 0.2, 0.8])) == 3


def check_a_fault_names_its_line():
    x = torch.empty(64, device="cuda")
    try:
        with emulated_gpu.session():
            out_of_bounds[(1,)](x, 128)
    except EmulatorError as error:
        assert "out-of-bounds" in str(error) and "triton_checks.py:" in str(error), error
        return
    raise AssertionError("a finding expected")


def check_the_key_is_tritons_own():
    """Kept: its library is read once."""
    assert cache.triton_key() == cache.triton_key.__wrapped__()


def check_a_graph():
    x, y = torch.arange(64.0, device="cuda"), torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax[(1,)](x, y, 64, 64, BLOCK=64)
    assert not y.any()
    graph.replay()
    assert torch.allclose(y, torch.softmax(x, 0), atol=1e-6)


if __name__ == "__main__":
    run(globals())
