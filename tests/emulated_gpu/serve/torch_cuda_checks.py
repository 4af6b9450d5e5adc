"""What torch code may expect of the emulated device: test_torch_cuda.py runs this file on it and reads the output."""

import copy
import functools
import importlib
import io
import json
import math
import os
import pickle
import threading
from pathlib import Path

import draws_of_cuda
import halves_of_cuda
import numpy as np
import torch
from check_scripts import raises, run
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from emulated_gpu.chip import chip_of
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Unsupported, WrongCall


def in_device_memory(tensor) -> bool:
    address = tensor.data_ptr()
    DEVICE.memory.find(address, tensor.numel() * tensor.element_size(), True)  # raises a Fault if it is not
    return tensor.is_cuda and address % 512 == 0


def check_device_is_found():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (10, 0) and "B200" in torch.cuda.get_device_name()
    assert torch.cuda.get_device_properties("cuda").multi_processor_count == 148
    of = torch.backends.cuda
    for prefer, library in (of.preferred_linalg_library, "cusolver"), (of.preferred_blas_library, "cublaslt"):
        assert library in str(prefer(library)).lower()
        prefer("default")


def check_bindings_that_libraries_call():
    assert torch._C._cuda_getDevice() == 0 and not torch._C._cuda_isCurrentStreamCapturing()
    assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert torch._C._cuda_isCurrentStreamCapturing()


def check_factories():
    for device in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), 0):
        x = torch.full((3, 5), 2.5, dtype=torch.float16, device=device)
        assert in_device_memory(x) and x.device == torch.device("cuda", 0) and x.sum().item() == 37.5
    for x in (
        torch.empty(4, device="cuda"), torch.arange(4, device="cuda"), torch.tensor([1, 2], device="cuda"),
        torch.randint(0, 9, (4,), device="cuda"), torch.eye(3, device="cuda"), torch.as_tensor([1.0], device="cuda"),
        torch.empty_strided((2, 3), (1, 2), device="cuda"), torch.zeros_like(torch.ones(3), device="cuda"),
    ):  # fmt: skip
        assert in_device_memory(x)


def check_default_device():
    with torch.device("cuda"):
        assert in_device_memory(torch.ones(2)) and not torch.ones(2, device="cpu").is_cuda
    torch.set_default_device("cuda")
    assert in_device_memory(torch.ones(2))
    torch.set_default_device(None)
    assert not torch.ones(2).is_cuda


def check_moves_copy():
    a = torch.arange(6.0)
    for b in (a.cuda(), a.to("cuda"), a.to(torch.device("cuda")), a.to("cuda", torch.float32), a.to(device="cuda")):
        b[0] = 9
        assert in_device_memory(b) and a[0] == 0
    c = b.cpu()
    c[1] = 7
    assert not c.is_cuda and b[1].item() == 1 and b.to("cpu").device.type == "cpu"
    assert b.cuda() is b and b.to("cuda") is b and c.cpu() is c and b.to(b) is b
    assert b.to(torch.int32).is_cuda and a.to(b).is_cuda and not b.to(a).is_cuda
    assert b.to("cpu", torch.float64).dtype == torch.float64


def check_strides_survive_a_move():
    x = torch.arange(24).view(2, 3, 4).permute(2, 0, 1)
    assert x.cuda().stride() == x.stride() and torch.equal(x.cuda().cpu(), x)


def check_results_are_on_the_device():
    x = torch.arange(12.0, device="cuda").view(3, 4)
    for y in (x + 1, x @ x.T, x.half(), x.clone(), torch.cat([x, x]), x.max(0).values, torch.einsum("ij,kj->ik", x, x)):
        assert in_device_memory(y)
    assert x[1:].is_cuda and x.view(4, 3).data_ptr() == x.data_ptr() and x.t().is_cuda
    assert (x + 1 > 0).all() and float(x.sum()) == 66 and x.tolist()[0] == [0, 1, 2, 3]


def check_in_place():
    x = torch.zeros(4, device="cuda")
    address = x.data_ptr()
    assert x.fill_(3) is x and x.data_ptr() == address
    x.copy_(torch.ones(4))
    x[torch.tensor([0, 1])] = 5  # host indices are allowed
    host = torch.zeros(4)
    assert host.copy_(x) is host and not host.is_cuda and host.tolist() == [5, 5, 1, 1]


def check_devices_do_not_mix():
    x, y = torch.ones(3, device="cuda"), torch.ones(3)
    raises(RuntimeError, "same device", lambda: x + y)
    raises(RuntimeError, "same device", lambda: torch.cat([x, y]))
    assert (x + torch.tensor(2.0)).sum().item() == 9  # a scalar may come from the host


def check_numpy_needs_cpu():
    x = torch.ones(3, device="cuda")
    raises(TypeError, "cuda:0", x.numpy)
    raises(TypeError, "cuda:0", lambda: np.asarray(x))
    assert x.cpu().numpy().sum() == 3


def check_numbers_are_written():
    assert f"{torch.tensor(0.25, device='cuda'):.3f} {torch.ones(1, device='cuda')[0]:g}" == "0.250 1"


def check_copies():
    x = torch.ones(3, device="cuda")
    y = copy.deepcopy([x])[0]
    y[0] = 2
    assert in_device_memory(y) and x[0].item() == 1
    z = pickle.loads(pickle.dumps(x))
    assert in_device_memory(z) and torch.equal(z, x)


def check_dlpack():
    from cutlass.cute.runtime import from_dlpack
    from cutlass.cute.typing import AddressSpace

    x = torch.ones(3, 4, dtype=torch.float16, device="cuda")
    assert x.__dlpack_device__() == (2, 0)
    assert from_dlpack(x).memspace == AddressSpace.gmem and from_dlpack(x).data_ptr == x.data_ptr()
    assert from_dlpack(torch.ones(3)).memspace == AddressSpace.generic  # as on a GPU: host memory
    for given in (x, x.__dlpack__()):
        y = torch.from_dlpack(given)
        assert y.device == x.device and y.data_ptr() == x.data_ptr()
    assert torch.from_dlpack(torch.ones(3)).device.type == "cpu"
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()


def check_memory_is_freed():
    before = len(DEVICE.memory.regions)
    x = torch.ones(1000, device="cuda")
    y = x[5:]
    del x
    assert len(DEVICE.memory.regions) == before + 1
    del y
    assert len(DEVICE.memory.regions) == before


def check_streams_and_events():
    stream = torch.cuda.current_stream()
    assert stream.cuda_stream == 0
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        start.record()
        end.record()
    torch.cuda.synchronize()
    assert np.isnan(start.elapsed_time(end))


def check_threads():
    found = []
    thread = threading.Thread(target=lambda: found.append(in_device_memory(torch.ones(3, device="cuda"))))
    thread.start()
    thread.join()
    assert found == [True]


def check_seed():
    def draw(seed):
        seed(7)
        return torch.rand(5, device="cuda").tolist()

    assert draw(torch.manual_seed) == draw(torch.cuda.manual_seed) == draw(torch.cuda.manual_seed_all)
    assert torch.randn(4, device="cuda", requires_grad=True).requires_grad
    generator = torch.cuda.default_generators[0]
    assert draw(torch.manual_seed) == draw(generator.manual_seed) and generator.initial_seed() == 7
    generator.set_offset(generator.get_offset() + 4)
    assert generator.get_offset() == 8 and generator.device == torch.device("cuda:0")
    raises(RuntimeError, "multiple of 4", lambda: generator.set_offset(2))
    raises(RuntimeError, "wrong size", lambda: generator.set_state(torch.zeros(5, dtype=torch.uint8)))


def check_what_belongs_to_the_host_is_not_drawn_from_the_device():
    there = torch.Generator("cuda")
    for draw in (torch.rand, torch.randn):
        raises(RuntimeError, "Expected a 'cpu' device type", lambda draw=draw: draw(3, generator=there))


def check_draws_are_a_gpus():
    """An H200's, by torch 2.11.0 for CUDA 13.0: bits, and near ones; which thread draws what depends on its SMs."""
    recorded = json.loads(Path(__file__).with_name("draws_of_cuda.json").read_text())
    try:
        with DEVICE.as_chip(chip_of("h200")):
            DEVICE.allocator.watch()
            drawn = draws_of_cuda.outcomes()
    finally:
        DEVICE.allocator.watch()
    exact = {text for text in draws_of_cuda.EXACT if drawn[text] != recorded[text]}
    assert not exact, exact
    for text in draws_of_cuda.NEAR:
        (got, state), (wanted, its_state) = drawn[text], recorded[text]
        assert state == its_state, text
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=4e-6, err_msg=text)


def check_module():
    """A module goes to the device with its parameters, which stay parameters and get gradients."""
    host = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2, bias=False))
    given = torch.randn(3, 4)
    module, want = copy.deepcopy(host).to("cuda"), host(given)
    assert all(p.is_cuda and p.requires_grad and isinstance(p, torch.nn.Parameter) for p in module.parameters())
    module[2].weight = torch.nn.Parameter(module[2].weight.detach())
    got = module(given.cuda())
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), want)
    want.sum().backward(), got.sum().backward()
    for p, q in zip(module.parameters(), host.parameters()):
        torch.testing.assert_close(p.grad.cpu(), q.grad)
    raises(RuntimeError, "same device", lambda: module(given))


def check_refused_by_name():
    raises(Unsupported, "record_memory_history", lambda: torch.cuda.memory._record_memory_history())
    raises(RuntimeError, "cuda:1", lambda: torch.ones(2, device="cuda:1"))
    by_channel = torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)
    raises(NotImplementedError, "quantized by channels", lambda: by_channel.cuda())
    from cuda.bindings import driver, runtime

    raises(Unsupported, "cuLinkComplete", lambda: driver.cuLinkComplete(0))
    raises(Unsupported, "cudaGraphCreate", lambda: runtime.cudaGraphCreate(0))


def check_driver():
    from cuda.bindings import driver

    (error,) = driver.cuInit(0)
    assert error == driver.CUresult.CUDA_SUCCESS
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    assert driver.cuDeviceGetAttribute(attribute, driver.cuDeviceGet(0)[1]) == (error, 148)
    _, address = driver.cuMemAlloc(64)
    back = np.zeros(64, np.uint8)
    driver.cuMemsetD32(address, 0x01020304, 16)
    driver.cuMemcpyDtoH(back, address, 64)
    assert back[:4].tolist() == [4, 3, 2, 1]
    driver.cuMemFree(address)
    raises(WrongCall, "not any more", lambda: driver.cuMemFree(address))


def _blocked(plain):
    """[R, C] -> blocked order, element by element, as cuBLAS documents it."""
    rows, columns = plain.shape
    tiles = -(-columns // 4)
    out = torch.zeros(-(-rows // 128) * tiles * 512, dtype=torch.uint8)
    for r in range(rows):
        for c in range(columns):
            at = (r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            out[at] = plain.view(torch.uint8)[r, c]
    return out.view(plain.dtype)


def _expected(a, b, scale_a, scale_b, block):
    scale_a, scale_b = (s.double().repeat_interleave(block, 1) for s in (scale_a, scale_b))
    return (a.double() * scale_a) @ (b.double() * scale_b).T


def check_scaled_mm_nvfp4():
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    rng = np.random.default_rng(1)
    m, n, k = 136, 40, 80  # a second row block, a second column block, both ragged
    codes = [torch.from_numpy(rng.integers(0, 16, (r, k))).to(torch.uint8) for r in (m, n)]
    packed = [(c[:, ::2] | c[:, 1::2] << 4).contiguous().view(torch.float4_e2m1fn_x2).cuda() for c in codes]
    scales = [torch.from_numpy(rng.integers(1, 9, (r, k // 16))).float().to(torch.float8_e4m3fn) for r in (m, n)]
    blocked = [_blocked(s).cuda() for s in scales]
    got = torch._scaled_mm(packed[0], packed[1].t(), *blocked, out_dtype=torch.float32)
    want = _expected(values[codes[0].long()], values[codes[1].long()], *scales, 16)
    assert got.is_cuda and torch.equal(got.cpu().double(), want)


def check_scaled_mm_mxfp8():
    torch.manual_seed(2)
    a, b = (torch.randint(-8, 9, (r, 64)).float().to(torch.float8_e4m3fn) for r in (32, 48))
    scales = [torch.pow(2.0, torch.randint(-3, 4, (r, 2))).to(torch.float8_e8m0fnu) for r in (32, 48)]
    got = torch._scaled_mm(a.cuda(), b.cuda().t(), *(_blocked(s).cuda() for s in scales), out_dtype=torch.float32)
    assert torch.equal(got.cpu().double(), _expected(a, b, *scales, 32))


def check_scaled_mm_fp8():
    torch.manual_seed(3)
    a, b = (torch.randint(-8, 9, (r, 64)).float().to(torch.float8_e4m3fn) for r in (32, 48))
    plain = a.double() @ b.double().T
    half = torch.tensor(0.5)
    got = torch._scaled_mm(a.cuda(), b.cuda().t(), half.cuda(), half.cuda(), out_dtype=torch.float32)
    assert torch.equal(got.cpu().double(), plain / 4)
    rows, columns = torch.arange(1.0, 33).view(32, 1), torch.arange(1.0, 49).view(1, 48)
    got = torch._scaled_mm(a.cuda(), b.cuda().t(), rows.cuda(), columns.cuda(), out_dtype=torch.float32)
    assert torch.equal(got.cpu().double(), plain * rows.double() * columns.double())
    out = torch.zeros(48, 32, dtype=torch.half, device="cuda").t()
    assert torch._scaled_mm(a.cuda(), b.cuda().t(), half.cuda(), half.cuda(), out=out) is out
    assert out.stride() == (1, 32) and torch.equal(out.cpu(), (plain / 4).half())


def check_gradients_are_where_their_tensors_are():
    w = torch.randn(4, 3, device="cuda", requires_grad=True)
    x = torch.randn(5, 4, device="cuda")
    (x @ w).relu().sum().backward()
    expected = x.cpu().t() @ ((x @ w).detach().cpu() > 0).float()
    assert w.is_leaf and w.grad.is_cuda and torch.allclose(w.grad.cpu(), expected, atol=1e-6)
    w.grad.zero_()  # in place, so that it lasts
    assert not w.grad.any()
    scores = w * 2
    scores[:, 0] = 1.0  # in place, of what an operation gave
    scores.sum().backward()
    assert (w.grad.cpu() == torch.tensor([0.0, 2.0, 2.0])).all()
    host = torch.ones(3, requires_grad=True)
    (host.cuda() * 2).sum().backward()
    assert not host.grad.is_cuda and (host.grad == 2).all()
    parameter = torch.nn.Parameter(torch.ones(3, device="cuda"))
    (gradient,) = torch.autograd.grad((parameter * 3).sum(), parameter)
    assert gradient.is_cuda and (gradient == 3).all()


def check_a_function_of_the_scripts_own():
    """Its backward gets and makes tensors of the device, where kernels of it run."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            result = torch.empty_like(a).copy_(a * 2)
            ctx.save_for_backward(a, result)
            return result

        @staticmethod
        def backward(ctx, gradient):
            a, result = ctx.saved_tensors  # of a result torch keeps its data alone
            assert gradient.is_cuda and a.is_cuda and result.is_cuda and torch.empty_like(a).is_cuda
            assert torch.utils.dlpack.to_dlpack(result) is not None  # which asks for no gradients, as torch's own
            return gradient * 2

    w = torch.ones(4, device="cuda", requires_grad=True)
    y = Twice.apply(w * 3)
    y.backward(torch.ones_like(y), retain_graph=True)
    assert y.is_cuda and (y == 6).all() and (w.grad == 6).all()
    y.sum().backward()
    assert (w.grad == 12).all()


def check_what_lies_below_python():
    """autocast, vmap, functional gradients and fake tensors ask torch's dispatcher, not a class of tensors."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        linear = torch.nn.Linear(4, 4, device="cuda")(torch.ones(2, 4, device="cuda"))
        softmax = torch.softmax(torch.ones(2, 4, device="cuda", dtype=torch.float16), -1)
    assert (linear.dtype, softmax.dtype) == (torch.bfloat16, torch.float32)
    limits, row = torch.tensor([2, 3], device="cuda"), torch.arange(4, device="cuda")
    assert torch.vmap(lambda x: row < x)(limits).sum().item() == 5
    x = torch.ones(3, device="cuda")
    gradient = torch.func.grad(lambda x: (x * x).sum())(x)
    assert gradient.is_cuda and (gradient == 2).all() and type(gradient) is torch.Tensor
    with FakeTensorMode():
        assert str(torch.empty(4, device="cuda").device) == "cuda:0"
    assert x.to("meta").device.type == "meta"


OWN = torch.library.Library("checks", "DEF")  # kept: torch 2.10 imports no Inductor once an operator is gone


def check_operators_of_others():
    """Kernels under the dispatch key CUDA, as compiled extensions register them, and custom operators."""
    OWN.define("f(Tensor x) -> Tensor")
    OWN.impl("f", lambda x: x + 1, "CUDA")

    @torch.library.custom_op("checks::g", mutates_args=(), device_types="cuda")
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(x * 3)

    assert torch.ops.checks.f(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert in_device_memory(g(torch.ones(2, device="cuda"))) and g(torch.ones(2, device="cuda")).tolist() == [3, 3]
    OWN.define("of_the_host(Tensor x) -> Tensor")
    OWN.impl("of_the_host", lambda x: x + 1, "CPU")
    ours = torch.ones(2, device="cuda")
    raises(NotImplementedError, "no kernel for CUDA", lambda: torch.ops.checks.of_the_host(ours))


def check_checkpoints_and_files():
    x = torch.ones(3, device="cuda", requires_grad=True)
    checkpoint(lambda x: (torch.nn.functional.dropout(x) * x).sum(), x, use_reentrant=False).backward()
    assert x.grad.is_cuda
    file = io.BytesIO()
    torch.save({"x": x.detach()}, file)
    file.seek(0)
    there, here = torch.load(file), torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert in_device_memory(there["x"]) and not here["x"].is_cuda and (here["x"] == 1).all()


def check_recurrent_cells():
    """CUDA has kernels of its own for them, forward and backward."""
    torch.manual_seed(1)
    for kind in (torch.nn.GRU, torch.nn.LSTM):
        host = kind(4, 5, bias=kind is torch.nn.GRU)
        there = copy.deepcopy(host).cuda()
        x = torch.randn(3, 2, 4)
        got, want = there(x.cuda())[0], host(x)[0]
        torch.testing.assert_close(got.cpu(), want)
        (got * got).sum().backward(), (want * want).sum().backward()
        for a, b in zip(there.parameters(), host.parameters()):
            torch.testing.assert_close(a.grad.cpu(), b.grad)


def check_sums_of_halves_are_made_in_float():
    """As CUDA makes them: torch's CPU kernels of these round each addition."""
    f = torch.nn.functional
    torch.manual_seed(1)
    x, w, b, image = torch.randn(512, 32), torch.randn(32), torch.randn(32), torch.randn(2, 4, 8, 8)
    indices = torch.randint(4, (512,), device="cuda")
    many = (
        (lambda x, w, b: f.layer_norm(x, (32,), w, b), x, w, b),
        (lambda x, w, b: f.batch_norm(x, None, None, w, b, True), x, w, b),
        (lambda x, w: f.conv_transpose2d(x, w), image, torch.randn(4, 4, 3, 3)),
        (lambda w: f.embedding(indices.to(w.device), w), torch.randn(4, 32)),
        (lambda x: f.avg_pool2d(x, 4, 1), image),
        (lambda x: torch.prod(x, 0), 1 + x / 100),
        (lambda x: f.interpolate(x, scale_factor=4, mode="bicubic"), image),
        (lambda x: f.log_softmax(x, 0), x),
        (lambda x: f.max_pool2d(x, 3, 1), image),
        (lambda x: f.fold(x, (4, 4), 2), torch.randn(1, 8, 9)),
        (lambda w: f.embedding_bag(indices.view(8, 64).to(w.device), w), torch.randn(4, 32)),
    )
    for dtype in (torch.half, torch.bfloat16):
        given = image.to(dtype), (torch.rand(2, 8, 8, 2) - 0.5).to(dtype)  # whose gradient CUDA sums in halves
        got = f.grid_sample(*(t.cuda() for t in given), align_corners=True).cpu()
        torch.testing.assert_close(got, f.grid_sample(*(t.float() for t in given), align_corners=True).to(dtype))
        for function, *operands in many:
            results = []
            for device, kind in (("cuda", dtype), ("cpu", torch.float32)):
                given = [t.to(dtype).to(device, kind).requires_grad_() for t in operands]
                y = function(*given)
                along = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(dtype).to(device, kind)
                results.append([y, *torch.autograd.grad(y, given, along)])
            for got, wanted in zip(*results, strict=True):
                off = (got.cpu().float() - wanted).abs().max() / wanted.abs().max() / torch.finfo(dtype).eps
                assert got.dtype == dtype and off < 1.5, (wanted.grad_fn, off)
    y, mean, _ = torch.native_layer_norm(x.half().cuda(), (32,), None, None, 1e-5)
    assert (y.dtype, mean.dtype) == (torch.half, torch.float32)
    running = [torch.zeros(32, dtype=torch.half, device="cuda"), torch.ones(32, dtype=torch.half, device="cuda")]
    f.batch_norm(x.half().cuda() + 1, *running, training=True)
    assert running[0].mean() > 0.05 and running[0].dtype == torch.half
    kernel = torch.ones(4, 4, 3, 3, device="cuda")
    raises(RuntimeError, "should be the same", lambda: f.conv2d(image.half().cuda(), kernel))


def check_halves_are_rounded_where_a_gpu_rounds_them():
    """An H200's bits, by torch 2.11.0 for CUDA 13.0."""
    recorded = json.loads(Path(__file__).with_name("halves_of_cuda.json").read_text())
    unequal = {text for text, bits in halves_of_cuda.outcomes().items() if bits != recorded[text]}
    by_atomics = "bfloat16: grad(lambda y: f.adaptive_avg_pool3d(y, 3), image)"  # an order that is chance
    assert not (others := unequal - {"float16: grad(f.mish, x)", by_atomics}), others


def check_what_cuda_refuses_of_attention_and_of_dtypes():
    """As an H200 does: no kernel of those that are allowed takes it, or CUDA has none for the dtype or the driver."""
    q, backend = torch.randn(1, 2, 8, 8, device="cuda"), torch.nn.attention.SDPBackend
    attention, x = torch.nn.functional.scaled_dot_product_attention, torch.eye(3, device="cuda")
    for chosen, one in ((backend.FLASH_ATTENTION, q), (backend.EFFICIENT_ATTENTION, q.double())):
        with torch.nn.attention.sdpa_kernel(chosen):
            raises(RuntimeError, "No available kernel", lambda one=one: attention(one, one, one))
    with torch.nn.attention.sdpa_kernel(backend.FLASH_ATTENTION):
        assert attention(q.half(), q.half(), q.half()).dtype == torch.half
    with torch.nn.attention.sdpa_kernel(backend.EFFICIENT_ATTENTION):
        assert attention(q, q, q, enable_gqa=True).is_cuda
    raises(RuntimeError, "other than `gels`", lambda: torch.linalg.lstsq(x, x, driver="gelsd"))
    assert torch.linalg.lstsq(x, x).rank.numel() == 0
    raises(NotImplementedError, "CUDA", lambda: torch.sparse.mm(x.to_sparse_csr(), x, "amax"))
    where, whether = torch.zeros(3, dtype=torch.long, device="cuda"), torch.tensor([True, False, True], device="cuda")
    raises(NotImplementedError, "Bool", lambda: whether.scatter_reduce(0, where, whether, "amax"))
    assert torch.equal(whether.abs(), whether) and torch.trace(whether.diag()) == 2
    assert torch.mm(where.view(3, 1)[:, :0], where.view(1, 3)[:0]).tolist() == [[0] * 3] * 3
    table = torch.ones(2, 1, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    for options in {"per_sample_weights": table[:1].expand(1, 3), "mode": "sum"}, {"mode": "max"}:
        bag = torch.nn.functional.embedding_bag(where.view(1, 3), table, **options)
        raises(NotImplementedError, "BFloat16", bag.backward)


def check_old_names_as_defaults():
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    assert torch.ones(2).type() == "torch.cuda.HalfTensor"
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert torch.nn.Linear(2, 2).weight.type() == "torch.cuda.FloatTensor"
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(2).type() == "torch.FloatTensor"
    assert torch.ones(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
    assert "CUDA" in torch.__config__.show()


def check_what_a_batch_norm_returns_of_running_statistics():
    """As an H200 does."""
    for dtype in torch.float32, torch.half:
        x, three = torch.ones(2, 3, 4, dtype=dtype, device="cuda"), torch.full((3,), 3.0, device="cuda")
        _, mean, scale = torch.native_batch_norm(x, None, None, three, three, False, 0.1, 1e-5)
        assert mean.tolist() == [3] * 3 and torch.allclose(scale, three**-0.5) and mean.dtype == scale.dtype


def check_attention_of_jagged_tensors():
    parts = [torch.randn(n, 2, 8) for n in (3, 5)]
    leaf = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", requires_grad=True)
    x = (leaf * 2).view(2, -1, 2, 8).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2)
    gradient = torch.autograd.grad(y.values().square().sum(), leaf)[0]
    for part, got, slope in zip(parts, y.unbind(), gradient.unbind(), strict=True):
        q = part.transpose(0, 1).requires_grad_()
        wanted = torch.softmax(4 * q @ q.mT / 8**0.5, -1) @ (2 * q)
        torch.testing.assert_close(got.cpu().transpose(0, 1), wanted)
        torch.testing.assert_close(slope.cpu().transpose(0, 1), torch.autograd.grad(wanted.square().sum(), q)[0])


def check_alpha_is_no_half():
    """1 - 0.3 * 3.3125, where 0.3 is rounded to bfloat16, is 0.0039; SGD's learning rate is such a factor."""
    x, y = (torch.full((4,), value, dtype=torch.bfloat16, device="cuda") for value in (1.0, -3.3125))
    out, lists = torch.empty(0, dtype=torch.bfloat16, device="cuda"), ([x.clone()], [y])
    torch._foreach_add_(*lists, alpha=0.3)
    made = torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=-0.3), torch._foreach_add(*([x], [y]), alpha=0.3)[0]
    assert torch.add(x, y, alpha=0.3, out=out) is out and x.add_(y, alpha=0.3) is x
    for z in (*made, out, x, lists[0][0]):
        assert z.dtype == torch.bfloat16 and abs(z[0].item() - 0.00625) < 3e-5, z
    mixed = torch.add(torch.ones(2, dtype=torch.int32, device="cuda"), torch.ones(2, device="cuda").half(), alpha=2)
    assert mixed.dtype == torch.half and mixed.tolist() == [3, 3]


def check_fourier_transforms_of_halves():
    x = torch.arange(8.0, device="cuda").half()
    there = torch.fft.rfft(x)
    assert there.dtype is torch.complex32 and there[0].item() == 28 and torch.equal(torch.fft.irfft(there), x)
    raises(RuntimeError, "powers of two", lambda: torch.fft.fft(x[:6]))


def check_numbers_beside_halves():
    """Are floats, as a tensor's that is a number; a double that has its part in the result's dtype stays one."""
    x = torch.randn(64)
    for half in (torch.float16, torch.bfloat16):
        x = x.to(half)
        for function in (
            lambda x: x + 0.3, lambda x: 0.3 - x, lambda x: x + torch.tensor(0.3), lambda x: x.clone().sub_(0.3),
            lambda x: torch.rsub(x, x, alpha=0.3), lambda x: torch._foreach_add([x], 0.3)[0],
        ):  # fmt: skip
            assert torch.equal(function(x.cuda()).cpu(), function(x.float()).to(half))
        assert (x.cuda()[0] + torch.tensor(0.3)).dtype is torch.float32


def check_dtypes_that_cuda_alone_has_and_has_not():
    f, ones = torch.nn.functional, torch.ones(2, 2, dtype=torch.int64, device="cuda")
    x = torch.ones(1, 1, 4, 4, 4, device="cuda").half()
    assert torch.histc(ones, bins=2, min=0, max=1).tolist() == [0, 4]
    assert f.avg_pool3d(x, 2).dtype is f.interpolate(x[0], (2, 2), None, "bilinear", antialias=True).dtype is torch.half
    for call in (lambda: ones @ ones, lambda: torch.histogram(x.float(), 3), lambda: f.max_pool2d(ones[None], 2)):
        raises(NotImplementedError, "on CUDA", call)


def check_softmax_of_halves():
    """To float on the way, and its gradient back to half."""
    x = torch.randn(5, 7)
    for function in (torch.softmax, torch.log_softmax):
        a, b = x.half().cuda().requires_grad_(), x.half().float().requires_grad_()
        y, z = function(a, -1, dtype=torch.float32), function(b, -1)
        assert y.dtype == torch.float32
        (y * y).sum().backward(), (z * z).sum().backward()
        assert a.grad.dtype == torch.float16
        torch.testing.assert_close(a.grad.cpu(), b.grad.half())


def check_memory_statistics():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before + (1 << 20) == torch.cuda.max_memory_allocated()
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() == before + (1 << 20)
    assert "GPU" in torch.cuda.memory_summary()


def check_zeros_take_no_memory():
    """What is large and zero is made of pages that nobody has touched."""
    rows = int(open("/proc/self/statm").read().split()[1])
    x = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    x[5] = 1
    x.zero_()
    assert not x[:100].any() and not x[-100:].any()
    assert int(open("/proc/self/statm").read().split()[1]) - rows < 1000


def check_pinned_memory():
    x = torch.ones(3).pin_memory()
    assert x.is_pinned() and not x.is_cuda and not torch.ones(3).is_pinned()
    assert DEVICE.home(x.data_ptr()) == -1
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert x.cuda(non_blocking=True).tolist() == [1, 1, 1]


def check_marks_of_streams():
    side, x = torch.cuda.Stream(), torch.ones(3, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
    with torch.cuda.stream(torch.cuda.Stream(priority=-9)):
        assert torch.cuda.current_stream().priority == torch.cuda.Stream.priority_range()[1] < side.priority == 0
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        x.record_stream(side)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    first, last = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    first.record(torch.Stream("cuda"))
    last.record()
    assert math.isnan(first.elapsed_time(last))
    with torch.cuda.nvtx.range("a range"):
        assert torch.cuda.nvtx.range_push("another") == 1
        torch.cuda.nvtx.range_pop()


def check_a_kernel_that_torch_compiles():
    """By NVRTC, whose machine code runs as the PTX that it was made of."""
    text = 'extern "C" __global__ void twice(float *x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; }'
    x, side = torch.arange(40.0, device="cuda"), torch.cuda.Stream()
    assert side._as_parameter_.value == side.cuda_stream
    torch.cuda._compile_kernel(text, "twice")((1, 1, 1), (64, 1, 1), (x, 33))
    assert x[31:35].tolist() == [62, 64, 33, 34]


def check_sizes_that_change():
    """out=, resize_ and set_ give an operand other memory."""
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 1, out=out)
    grown = torch.empty(2, device="cuda").resize_(50, 50)
    shared = torch.empty(0, device="cuda").set_(out.untyped_storage(), 1, (2,))
    out[1] = 7
    assert in_device_memory(out) and in_device_memory(grown) and shared.tolist() == [7, 2]


def check_storages_that_change():
    """FSDP gives the memory of a storage back, and takes other."""
    x = torch.arange(4, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    for size, kept in ((6, 4), (2, 2), (0, 0)):
        x.untyped_storage().resize_(size)
        assert x.untyped_storage().nbytes() == size
        whole = torch.empty(0, dtype=torch.uint8, device="cuda").set_(x.untyped_storage())
        assert whole[:kept].tolist() == [0, 1, 2, 3][:kept]
    assert torch.cuda.memory_allocated() < before


def check_zeros_that_are_no_memory():
    """The gradient of sign is a tensor of zeros for which torch has no elements."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert gradient.is_cuda and gradient.tolist() == [0, 0, 0]


def check_views_in_inference_mode():
    """A view is for inference alone if its tensor is, as on the CPU, in the mode and behind it."""
    found = []
    for device in ("cpu", "cuda"):
        plain = torch.ones(2, 3, device=device)
        with torch.inference_mode():
            own = torch.ones(3, device=device).add_(1)
            own.view(3, 1).mul_(2)
            plain[0].zero_()
            made = [plain.view(3, 2), plain[0], plain.repeat(1, 2), plain + 1, (plain + 1)[0], own.view(3, 1)]
        made += [own.view(1, 3), plain.view(6)]
        found.append([(x.is_inference(), x.cpu().tolist()) for x in made] + [plain._version])
    assert found[0] == found[1]


def check_a_result_that_is_to_be_conjugated():
    """A kernel leaves a mark at what it was given to write to."""
    torch.manual_seed(0)
    factors, x = torch.randn(3, 3, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    pivots = torch.tensor([1, 2, 3], dtype=torch.int32)
    got = torch.linalg.lu_solve(factors.cuda(), pivots.cuda(), x.cuda(), left=False)
    torch.testing.assert_close(got.cpu(), torch.linalg.lu_solve(factors, pivots, x, left=False))


def check_operators_that_cuda_alone_has():
    """Each is served by a kernel of ours, or there is none to be reached, and it is refused by its name."""
    built_with_cuda = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", "CUDA")
    rows = Path(__file__).with_name("cuda_only_operators.txt").read_text().splitlines()
    for name, *served in (row.split() for row in rows if not row.startswith("#")):
        known = [op for op in torch._C._dispatch_get_all_op_names() if op == f"aten::{name}"]
        ours = any(torch._C._dispatch_has_kernel_for_dispatch_key(op, "CUDA") for op in known)
        assert ours == bool(served and known) or built_with_cuda, name
    x = torch.ones(8, 4, dtype=torch.half, device="cuda")
    assert torch.mm(x, x.T, out_dtype=torch.float32).dtype == torch.float32
    q = torch.ones(1, 1, 8, 8, dtype=torch.half, device="cuda")
    refused = torch.ops.aten._scaled_dot_product_efficient_attention
    raises(NotImplementedError, "_scaled_dot_product_efficient_attention", lambda: refused(q, q, q, None, False))


def check_names_that_are_not_served():
    assert not hasattr(torch._C, "_cuda_nothing_of_the_kind")
    raises(Unsupported, "_cuda_cudaHostAllocator", lambda: torch._C._cuda_cudaHostAllocator())
    raises(AttributeError, "no attribute", lambda: torch._C._nothing_of_the_kind)
    raises(Unsupported, "one pool", lambda: torch.cuda.MemPool().snapshot())
    importlib.import_module("torch._inductor.cudagraph_trees")  # torch.compile of an optimizer's step does
    raises(NotImplementedError, "_cslt_compress", lambda: torch._cslt_compress(torch.eye(8, device="cuda")))


def check_torch_in_a_capture_of_the_driver():
    driver = importlib.import_module("cuda.bindings.driver")
    stream, x = torch.cuda.Stream(), torch.zeros(4, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        driver.cuStreamBeginCapture(stream.cuda_stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        x.add_(1)
        _, graph = driver.cuStreamEndCapture(stream.cuda_stream)
    torch.cuda.synchronize()
    assert x.tolist() == [0] * 4
    _, whole = driver.cuGraphInstantiate(graph, 0)
    for _ in range(3):
        driver.cuGraphLaunch(whole, stream.cuda_stream)
    torch.cuda.synchronize()
    assert x.tolist() == [3] * 4


def check_nccl_of_one_process():
    dist = torch.distributed
    many = functools.partial(dist.init_process_group, "nccl", store=dist.HashStore(), rank=0, world_size=2)
    raises(Unsupported, "--devices 2", many)
    for backend in "nccl", "cpu:gloo,cuda:nccl", None:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        x, outs = torch.arange(3.0, device="cuda"), [torch.empty(3, device="cuda") for _ in range(3)]
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        dist.reduce_scatter_tensor(outs[0], x)
        dist.all_gather(outs[1:2], x)
        dist.all_to_all_single(outs[2], x)
        dist.barrier()
        assert [one.tolist() for one in outs] == [[0, 1, 2]] * 3
        reduce = functools.partial(dist.all_reduce, x)
        raises(Unsupported, "capture of a CUDA graph", functools.partial(captured, reduce))
        torch.cuda.set_stream(torch.cuda.default_stream())
        dist.destroy_process_group()


def check_what_multiprocessing_hands_over():
    """A reader, here the same process, has the memory at other addresses: of small ones on one page, of a large one."""
    queue = torch.multiprocessing.Queue()
    given = [torch.arange(n, device="cuda") for n in (3, 5, 1 << 18)]
    queue.put([x[1:] for x in given])
    got = queue.get(timeout=20)
    for x, there in zip(given, got, strict=True):
        assert there.is_cuda and there.data_ptr() != x[1:].data_ptr() and there.tolist() == x[1:].tolist()
        there[0] = 7
        assert x[1] == 7
        x.zero_()
        assert not there.any()
    raises(Unsupported, "multiprocessing", lambda: queue.put(torch.cuda.Event(interprocess=True)))


def check_gloo_in_one_process():
    """Its threads get tensors of a stream that torch makes, and of one that waits for it."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x, outs = torch.arange(3.0, device="cuda"), [torch.empty(3, device="cuda") for _ in range(3)]
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather(outs[:1], x)
    dist.all_to_all_single(outs[1], x)
    dist.scatter(outs[2], [x])
    assert [one.tolist() for one in outs] == [[0, 1, 2]] * 3
    raises(RuntimeError, "capture that has failed", functools.partial(captured, functools.partial(dist.all_reduce, x)))
    torch.cuda.set_stream(torch.cuda.default_stream())
    dist.destroy_process_group()


def check_scaled_mm_refuses():
    x = torch.zeros(32, 64, dtype=torch.float8_e4m3fn, device="cuda")
    few = torch.ones(512, device="cuda").to(torch.float8_e4m3fn)
    raises(Unsupported, "scaled by", lambda: torch._scaled_mm(x, x.t(), few, few))
    raises(Unsupported, "column-major", lambda: torch._scaled_mm(x, x.t().contiguous(), few, few))
    few = torch.ones(100, device="cuda").to(torch.float8_e8m0fnu)
    raises(Unsupported, "100 scales", lambda: torch._scaled_mm(x, x.t(), few, few))
    one, out = torch.ones(1, device="cuda"), torch.zeros(32, 16, dtype=torch.half, device="cuda")
    raises(Unsupported, "another shape", lambda: torch._scaled_mm(x, x.t(), one, one, out=out))


def check_sparse_tensors():
    at = torch.tensor([[0, 1, 1], [2, 0, 2]], device="cuda")
    x = torch.sparse_coo_tensor(at, torch.tensor([3.0, 4.0, 5.0], device="cuda"), (2, 3), requires_grad=True)
    dense, y = x.to_dense(), torch.randint(-4, 5, (3, 4), device="cuda").float()  # exact in any order
    assert x.is_cuda and in_device_memory(x._indices()) and dense.tolist() == [[0, 0, 3], [4, 0, 5]]
    torch.sparse.mm(x, y).sum().backward()
    assert torch.equal(torch.sparse.mm(x, y), dense @ y) and x.grad.is_sparse and x.grad.is_cuda
    twice = (x.detach() + x.detach()).coalesce()
    assert twice.values().tolist() == [6, 8, 10] and torch.equal(dense.to_sparse().to_dense(), dense)
    assert torch.equal(x.detach().cpu().cuda().to_dense(), dense) and twice.zero_()._nnz() == 0
    rows = dense.detach().to_sparse_csr()
    assert in_device_memory(rows.values()) and torch.equal(rows @ y, dense @ y)
    table = torch.nn.Embedding(10, 4, sparse=True, device="cuda")
    table(torch.tensor([1, 2], device="cuda")).sum().backward()
    before = table.weight.detach().clone()
    torch.optim.SparseAdam(table.parameters(), lr=1.0).step()
    assert (table.weight != before).any(1).tolist() == [False, True, True] + [False] * 7


def check_nested_and_quantized_tensors():
    pieces = [torch.ones(2, 3), torch.ones(4, 3)]
    for layout in (torch.strided, torch.jagged):
        x = torch.nested.nested_tensor(pieces, layout=layout, device="cuda")
        assert x.is_cuda and torch.nested.to_padded_tensor(x * 2, 0.0).sum().item() == 36
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True, device="cuda")
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    mask = torch.tensor([[0, 0, 1], [0, 0, 0]], dtype=torch.bool, device="cuda")
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 16, device="cuda"), src_key_padding_mask=mask).isfinite().all()
    q = torch.quantize_per_tensor(torch.tensor([0.11, -0.2], device="cuda"), 0.1, 0, torch.qint8)
    assert q.is_cuda and q.int_repr().tolist() == [1, -2] and in_device_memory(q.dequantize())


def captured(function):
    """Return a CUDA graph of a call, and what the call has returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def check_graphs_of_operators():
    x, at = torch.zeros(4, device="cuda"), torch.tensor([1, 0], device="cuda")

    def some():
        x.add_(1)
        return (
            x * 2,
            x[at],
            torch.sort(x, descending=True).values,
            torch.zeros(3, device="cuda"),
            torch.topk(x, 2).values,
        )

    graph, results = captured(some)
    assert x.tolist() == [0] * 4  # nothing has run
    assert all(result.isnan().all() for result in results)
    for _ in range(2):
        graph.replay()
    assert x.tolist() == [2] * 4 and results[0].tolist() == [4] * 4
    x.copy_(torch.arange(4.0))
    graph.replay()
    assert [one.tolist() for one in results] == [[2, 4, 6, 8], [2, 1], [4, 3, 2, 1], [0] * 3, [4, 3]]

    graph, drawn = captured(lambda: torch.nn.functional.dropout(torch.rand(8, device="cuda")))
    torch.manual_seed(3)
    graph.replay()
    first = drawn.clone()
    graph.replay()
    assert not torch.equal(first, drawn)
    torch.manual_seed(3)
    assert torch.equal(first, torch.nn.functional.dropout(torch.rand(8, device="cuda")))

    pinned, there = torch.arange(4.0).pin_memory(), torch.empty(4, device="cuda")
    graph, _ = captured(lambda: there.copy_(pinned, non_blocking=True))
    pinned += 5
    graph.replay()
    torch.cuda.synchronize()
    assert there.tolist() == [5, 6, 7, 8]

    a = torch.eye(32, device="cuda").to(torch.float8_e4m3fn)
    graph, product = captured(lambda: torch._scaled_mm(a, a.t(), x[1:2], x[1:2], out_dtype=torch.float32))
    graph.replay()
    assert torch.equal(product, torch.eye(32, device="cuda") * 4)


def check_a_graph_of_a_training_step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
    x = torch.randn(16, 4, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    twin = copy.deepcopy(model)
    first = step().item()
    graph, loss = captured(step)
    for _ in range(4):
        graph.replay()
    assert loss.item() < 0.5 * first
    layer = torch.cuda.make_graphed_callables(twin[0], (x,))
    layer(x).sum().backward()
    assert torch.allclose(twin[0].weight.grad, x.sum(0).expand(8, 4))


def check_only_what_waits_for_it_is_captured():
    """Of another stream's works, those that do not wait for the captured one are done at once."""
    x, y, own = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), torch.Generator("cuda").manual_seed(5)

    def on_others(beside=torch.cuda.Stream(), joined=torch.cuda.Stream()):
        with torch.cuda.stream(beside):
            x.add_(1)
        joined.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(joined):
            y.add_(1)
        torch.cuda.current_stream().wait_stream(joined)
        return torch.rand(4, device="cuda", generator=own)

    graph, drawn = captured(on_others)
    torch.cuda.synchronize()
    assert x.tolist() == [1] * 4 and y.tolist() == [0] * 4
    graph.replay()
    assert x.tolist() == y.tolist() == [1] * 4
    own.manual_seed(5)  # from which the capture has drawn nothing
    assert torch.equal(drawn, torch.rand(4, device="cuda", generator=own))


def check_what_a_capture_refuses():
    x, side, event, own = torch.ones(4, device="cuda"), torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    event.record(side)
    here = torch.cuda.current_stream
    others = side.synchronize, side.query, event.synchronize, event.query  # which an H200 bears of a relaxed one
    waits = (lambda: x[0].item(), lambda: torch.nonzero(x), lambda: x[x > 0], torch.cuda.synchronize, *others,
             lambda: here().query(), lambda: here().record_event(own).query(), torch.Stream("cuda").query)  # fmt: skip
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
        assert x.add_(1).is_cuda and torch.cuda.Event().query()
        for call in others:
            call()
    copies = (x.cpu, lambda: x.copy_(torch.ones(4)), lambda: torch.tensor([1.0], device="cuda"))
    for call in waits:
        raises(RuntimeError, "capture that has failed", functools.partial(captured, call))
        torch.cuda.set_stream(torch.cuda.default_stream())  # which torch leaves what it was in such a capture
    for call in copies:
        raises(RuntimeError, "unless the CPU tensor is pinned", functools.partial(captured, call))
    raises(RuntimeError, "non-default stream", torch.cuda.CUDAGraph().capture_begin)
    graph = torch.cuda.CUDAGraph()
    for call in graph.replay, graph.pool, graph.instantiate:
        raises(RuntimeError, "without a preceding successful capture", call)
    raises(RuntimeError, "keep_graph", captured(lambda: x + 1)[0].instantiate)


def check_what_a_generator_refuses_in_a_capture():
    """Its state is the host's: as torch's CUDAGeneratorImpl, which lets it be read, and set to the seed it has."""
    own, default = torch.Generator("cuda").manual_seed(5), torch.cuda.default_generators[0]
    state = own.get_state()
    for call, text in (
        (lambda: own.manual_seed(6), "only if new seed is the same"), (default.seed, "CUDAGeneratorImpl::seed"),
        (lambda: torch.cuda.manual_seed_all(default.initial_seed() + 1), "only if new seed is the same"),
        (own.get_offset, "CUDAGeneratorImpl::get_offset"), (lambda: own.set_offset(4), "CUDAGeneratorImpl::set_offset"),
        (lambda: torch.Generator("cuda"), "construct a new CUDAGeneratorImpl"),
    ):  # fmt: skip
        raises(RuntimeError, text, functools.partial(captured, call))
    assert captured(lambda: own.set_state(state).initial_seed())[1] == 5 and own.manual_seed(6).get_offset() == 0


def check_a_device_that_is_not_there():
    for call in torch.cuda.default_stream, torch.cuda.current_stream, torch.cuda.mem_get_info, torch.cuda.memory_stats:
        raises(RuntimeError, "invalid device ordinal", functools.partial(call, 7))
    raises(RuntimeError, "invalid device ordinal", lambda: torch.cuda.ExternalStream(1 << 41, 7))
    raises(RuntimeError, "invalid device pointer", lambda: torch.cuda.caching_allocator_delete(12345))
    raises(RuntimeError, "to be CUDA tensors", lambda: torch.nn.parallel.comm.gather([torch.ones(2)]))


def check_draws_leave_the_hosts_generator_alone():
    for draw in (lambda: torch.rand(4, device="cuda"), lambda: torch.dropout(torch.ones(9, device="cuda"), 0.5, True)):
        torch.manual_seed(0)
        wanted = torch.rand(4)
        torch.manual_seed(0)
        first = draw()
        assert torch.equal(torch.rand(4), wanted)
        state = torch.cuda.get_rng_state()
        second = draw()
        torch.cuda.set_rng_state(state)
        assert torch.equal(draw(), second) and not torch.equal(first, second)


def check_a_fork_of_who_has_used_the_device():
    x = torch.ones(2, device="cuda")
    if not (child := os.fork()):
        try:
            raises(RuntimeError, "forked subprocess", lambda: x + 1)
            os._exit(int(torch.ones(2).sum()))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def check_draws_of_nothing():
    """They leave the generator as it was."""
    empty, before = torch.empty(1, 0, 3, device="cuda"), torch.cuda.get_rng_state()
    draws = (torch.bernoulli, torch.normal, torch.rand_like, lambda x: x.exponential_(),
             lambda x: torch.nn.functional.rrelu(x, training=True), lambda x: torch.nn.functional.dropout(x, 0.5),
             lambda x: torch.multinomial(x[0], 2, True), lambda x: torch.randint_like(x, 5))  # fmt: skip
    for draw in draws:
        assert draw(empty).numel() == 0 and torch.equal(torch.cuda.get_rng_state(), before)


def check_the_devices_memory_ends():
    total = torch.cuda.get_device_properties(0).total_memory
    raises(
        torch.cuda.OutOfMemoryError, "total capacity", lambda: torch.empty(total + 1, dtype=torch.int8, device="cuda")
    )
    torch.cuda.set_per_process_memory_fraction(2**20 / total)
    raises(torch.cuda.OutOfMemoryError, "capacity of 1.00 MiB", lambda: torch.ones(1 << 20, device="cuda"))
    torch.cuda.set_per_process_memory_fraction(1.0)
    x = torch.ones(1000, device="cuda")
    assert x.data_ptr() in [segment["address"] for segment in torch.cuda.memory_snapshot()]


def check_what_torch_says_of_waiting_and_time():
    x, events = torch.ones(1, device="cuda"), [torch.cuda.Event() for _ in range(2)]
    torch.cuda.set_sync_debug_mode("error")
    raises(RuntimeError, "synchronizing CUDA operation", x.item)
    torch.cuda.set_sync_debug_mode("default")
    torch.use_deterministic_algorithms(True)
    table = torch.ones(2, 1, device="cuda", requires_grad=True)
    largest = torch.nn.functional.embedding_bag(x.long(), table, x.long() - 1, mode="max")
    image = torch.ones(1, 4, 4, dtype=torch.half, device="cuda", requires_grad=True)
    calls = lambda: x.histc(), lambda: x.median(0), lambda: x.long().bincount(x), largest.backward
    pooled = torch.nn.functional.adaptive_avg_pool2d(image, 3).sum()
    calls += lambda: x.index_reduce_(0, x.long() - 1, x, "mean"), pooled.backward
    for call in calls:
        raises(RuntimeError, "does not have a deterministic implementation", call)
    assert x.cumsum(0).item() == x.long().bincount()[1].item() == x.median().item() == 1
    torch.use_deterministic_algorithms(False)
    for event in events:
        event.record()
    raises(ValueError, "enable_timing", lambda: events[0].elapsed_time(events[1]))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        x + 1
    assert "aten::add" in profile.key_averages().table()
    with torch.autograd.profiler.emit_nvtx():
        x + 1


def check_old_ways():
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda and isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.HalfTensor)
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    layer = torch.nn.Linear(2, 2, device="cuda")
    assert torch.equal(torch.nn.DataParallel(layer)(x[None]), layer(x[None]))
    raises(RuntimeError, "same device", lambda: torch.nn.Embedding(3, 3, device="cuda")(torch.tensor([1])))


def check_depthwise_convolutions():
    """For which torch has kernels of CUDA's alone."""
    f = torch.nn.functional
    for n, convolve in enumerate((f.conv1d, f.conv2d, f.conv3d), 1):
        x, w = torch.randn(1, 4, *(6,) * n), torch.randn(4, 1, *(3,) * n)
        there = [y.cuda().requires_grad_() for y in (x, w)]
        here = [y.requires_grad_() for y in (x, w)]
        for of in (here, there):
            convolve(*of, padding=1, groups=4).square().sum().backward()
        for a, b in zip(here, there):
            torch.testing.assert_close(b.grad.cpu(), a.grad)


if __name__ == "__main__":
    run(globals())
