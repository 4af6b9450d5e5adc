"""Scratch memory: who shares it, when it goes, and that launches of threads on one stream do not come between."""

import dataclasses
import threading
import weakref

import pytest
import torch

from ragged_moe.kernels.block_scaled import W4A4, W4A8
from ragged_moe.kernels.config import Activation, Config
from ragged_moe.layers import deepseek_layer, fp4_layer, grouped_gemm_fp4, grouped_gemm_fp8
from ragged_moe.reference import layer as d
from ragged_moe.runtime import device
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime import workspace as scratch
from ragged_moe.runtime.workspace import Part, arena_of
from ragged_moe.tuning import sm100

CPU = torch.device("cpu")
SIZES = p.Sizes(hidden=256, intermediate=128, local=4)


@pytest.fixture
def gpu(monkeypatch) -> device.Gpu:
    """A CUDA GPU whose tensors are on the CPU: it launches nothing. On stream 7, in capture `gpu.capture`."""
    made = object.__new__(device.Gpu)
    made.index, made.sms, made.capability, made.capture = 0, 132, (9, 0), 0
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: made.capture > 0, raising=False)
    monkeypatch.setattr(device.runtime, "cudaStreamGetCaptureInfo", lambda stream: (0, 1, made.capture, None))
    for module in (scratch, deepseek_layer, grouped_gemm_fp8, fp4_layer):
        monkeypatch.setattr(module, "device_of", lambda *_: made)
    monkeypatch.setattr(scratch, "arenas", {})
    return made


def launcher_of(gpu: device.Gpu, program=None) -> grouped_gemm_fp8.Launcher:
    made = object.__new__(grouped_gemm_fp8.Launcher)
    made.config, made.torch_device, made.device, made.grid = Config(block_m=16), CPU, gpu, 2
    made.program = program or (lambda *words: None)
    made.words = lambda *_: (0,)
    return made


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("experts, top_k", [(8, 6), (2, 2), (16, 8), (64, 8), (256, 8)])
def test_a_room_has_what_each_number_of_tokens_needs(gpu, capability, experts, top_k):
    """Of 1 to 16 tokens, who share a room, the few with many rows each have another config than the most."""
    gpu.capability = capability
    layer = deepseek_layer.Layer(CPU, p.Sizes(256, 128, experts, top_k, experts))
    for tokens in (*range(1, 70), 127, 128, 129, 255, 257, 300, 400, 511, 513, 700, 1025, 1500, 3000, 9000):
        room, config = deepseek_layer.room_of(tokens), layer.configs(tokens)[0]
        sizes = {part.name: part.shape[0] for part in layer.kept_parts(room)}
        must = grouped_gemm_fp8.partials(config, layer.sms)
        assert sizes.get(must.name, 0) >= must.shape[0], (tokens, config)
        permuted = next(part for part in layer.shared_parts(room) if part.name == "permuted")
        assert permuted.shape[0] or not config.permuted


def test_the_scale_of_one_is_there_where_it_is_read(gpu, monkeypatch):
    """What is captured reads one that its replays fill: an eager call before the first of them has its own."""
    monkeypatch.setattr(grouped_gemm_fp4, "device_of", lambda *_: gpu)
    gpu.capture = 1
    captured = grouped_gemm_fp4.scale_of_one(CPU)
    gpu.capture = 0
    eager = grouped_gemm_fp4.scale_of_one(CPU)
    assert captured.tolist() == eager.tolist() == [1] and captured.data_ptr() != eager.data_ptr()
    assert grouped_gemm_fp4.scale_of_one(CPU).data_ptr() == eager.data_ptr()


def test_calls_of_one_stream_share_one_allocation(gpu):
    """It grows with the largest call, of any layer; smaller ones use its beginning, and find the same again."""
    one, other = deepseek_layer.Layer(CPU, SIZES), deepseek_layer.Layer(CPU, dataclasses.replace(SIZES, hidden=384))
    few = one.space(5)
    assert one.space(16) == few and few.room == 16
    many = one.space(900)
    arena = arena_of(CPU, gpu)
    assert many.room == 1024 and arena.buffer.numel() == one.workspace_bytes(1024)
    assert one.space(5).m_indptr == many.m_indptr == arena.buffer.data_ptr()
    of_other = other.space(100)
    assert of_other.m_indptr == many.m_indptr and of_other.o != many.o and of_other.barrier == many.barrier
    assert arena.buffer.numel() == one.workspace_bytes(1024)


def test_what_launches_leave_is_apart_and_filled(gpu):
    """Flags, the barrier and polled sums are as at first after the buffer was written, and after it has grown."""
    one = deepseek_layer.Layer(CPU, SIZES)
    first = one.tensors(5)
    arena_of(CPU, gpu).buffer.fill_(0x55)
    for space in (first, one.tensors(900)):
        assert (space.barrier == 0).all() and (space.flags == 0).all() and (space.polled == -1).all()
    assert first.polled.numel() and one.tensors(5).barrier.data_ptr() == first.barrier.data_ptr()


def test_parts_do_not_overlap(gpu):
    """Of a room: each begins at a multiple of 256 bytes, behind the one before."""
    for tokens in (1, 200, 4096):
        space = deepseek_layer.Layer(CPU, SIZES).tensors(tokens)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in space[2:] if t.numel())
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
        assert all(t.data_ptr() % 256 == arena_of(CPU, gpu).buffer.data_ptr() % 256 for t in space[2:12] if t.numel())


def test_captures_have_their_own(gpu):
    """Launches that are captured together share scratch memory, and with nothing else: replays fill it."""
    made, seen = launcher_of(gpu), []
    for gpu.capture in (0, 1, 1, 2, 0):
        seen.append(arena_of(CPU, gpu).take(made, made.parts).addresses)
    eager, first, again, second, later = seen
    assert first == again and eager == later and eager != second


def test_a_capture_gives_back_what_the_one_before_had(gpu):
    """To the memory pool of its graph. What eager calls have stays."""
    arena_of(CPU, gpu)
    gpu.capture = 1
    first = weakref.ref(arena_of(CPU, gpu))
    gpu.capture = 2
    second = arena_of(CPU, gpu)
    assert first() is None and len(scratch.arenas) == 2
    assert arena_of(CPU, gpu) is second


@pytest.mark.parametrize("form", [W4A4, W4A8])
def test_captures_of_records_have_their_own(gpu, monkeypatch, form):
    """The records of tokens, and what the layer's kernels leave each other, as of every captured launch."""
    quantised, gpu.capability = [], (10, 0)
    monkeypatch.setattr(grouped_gemm_fp4, "quantise_program", lambda *_: lambda *words: quantised.append(words[1]))
    of_layer, spaces = fp4_layer.BlockScaledLayer(CPU, SIZES, Activation(), form, False), []
    made = launcher_of(gpu)
    made.config = sm100.FP4[form][0]
    for gpu.capture in (0, 1, 1, 2, 0):
        spaces.append(of_layer.space(5))  # the larger one
        grouped_gemm_fp4.launch_block_scaled(made, range(7), (5, 128, 256, 4))
    for first, captured, again, second, later in (quantised, spaces):
        assert captured == again and first == later and first not in (captured, second)


def test_parts_that_are_kept_grow(gpu):
    arena = arena_of(CPU, gpu)
    few, many = (Part("flags", p.I32, (n,), 3, kept=True) for n in (4, 9))
    assert arena.take("few", lambda: [few]).tensors[0].tolist() == [3] * 4
    assert arena.take("many", lambda: [many]).tensors[0].tolist() == [3] * 9
    assert arena.take("few", lambda: [few]).addresses == arena.take("many", lambda: [many]).addresses


class Stage:
    """A program that records who launched it, and waits a little for another thread to launch something."""

    def __init__(self, name: str, seen: list, others: dict[str, threading.Event]):
        self.name, self.seen, self.others = name, seen, others

    def __call__(self, *words: int) -> None:
        thread = threading.current_thread().name
        self.seen.append((thread, self.name))
        self.others[thread].set()
        next(event for name, event in self.others.items() if name != thread).wait(0.3)


def together(call) -> None:
    """Call in two threads at once."""
    threads = [threading.Thread(target=call, name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_launches_of_a_layer_are_not_interleaved(gpu, monkeypatch):
    """Two threads on one stream, each held after every launch until the other has launched, if it can."""
    seen, others = [], {name: threading.Event() for name in "ab"}
    stages = {name: Stage(name, seen, others) for name in ("routing", "permute", "gemm1", "gemm2", "finalise")}
    for name in ("routing", "permute", "gemm1", "finalise"):
        monkeypatch.setattr(deepseek_layer, f"{name}_program", lambda *_, stage=stages[name]: stage)
    monkeypatch.setattr(deepseek_layer, "launcher", lambda *_: launcher_of(gpu, stages["gemm2"]))
    one, x = deepseek_layer.Layer(CPU, SIZES), d.draw(SIZES, 400)
    output = torch.empty(400, 256, dtype=p.BF16)
    together(lambda: one(x, output))
    threads, names = zip(*seen)
    assert names == ("routing", "permute", "gemm1", "gemm2", "finalise") * 2
    assert len(set(threads[:5])) == len(set(threads[5:])) == 1 and len(set(threads)) == 2


def test_scratch_of_the_grouped_gemm_is_made_once(gpu, monkeypatch):
    """Two threads that call first on one stream launch with the same scratch memory, which stays allocated."""
    addresses, allocate = [], scratch.Arena.allocate
    both = threading.Barrier(2)

    def slowly(self, part):
        try:
            both.wait(0.3)  # both threads are here, if they can be
        except threading.BrokenBarrierError:
            pass
        return allocate(self, part)

    monkeypatch.setattr(scratch.Arena, "allocate", slowly)
    made = launcher_of(gpu, lambda *words: addresses.append(words[:2]))
    together(lambda: made.launch((), ()))
    assert addresses == [arena_of(CPU, gpu).take(made, made.parts).addresses] * 2


def test_workspace_bytes(gpu, monkeypatch):
    """More tokens never need less; every smaller number of them fits."""
    monkeypatch.setattr(deepseek_layer, "current_device", lambda: CPU)
    monkeypatch.setattr(deepseek_layer, "layer_of", deepseek_layer.Layer)
    sizes = [deepseek_layer.workspace_bytes(t, 7168, 2048, 32) for t in (0, 1, 16, 17, 160, 161, 512, 4096, 16384)]
    assert sizes == sorted(sizes) and sizes[0] == sizes[2] < sizes[3] and 2**31 < sizes[-1] < 2**32
    with pytest.raises(ValueError, match="^hidden_states: dimension H is 100, but must be a multiple of 128"):
        deepseek_layer.workspace_bytes(1, 100, 128, 4)


@pytest.mark.parametrize("change, sentence", [
    (lambda w: w.tolist(), "workspace is a list, but must be a tensor"),
    (lambda w: w.float(), "workspace has type torch.float32, but must have torch.uint8"),
    (lambda w: w[:-1], r"workspace has \d+ bytes, but must have \d+ for this call"),
    (lambda w: torch.empty(2 * len(w), dtype=torch.uint8)[::2], "workspace: dimension 0 has stride 2, but must have 1"),
    (lambda w: torch.empty(len(w) + 1, dtype=torch.uint8)[1:], "workspace starts at an address that is not a multiple"),
    (lambda w: w.to("meta"), "workspace is on meta, but must be on cpu, as hidden_states is"),
])  # fmt: skip
def test_workspaces_that_are_refused(gpu, monkeypatch, change, sentence):
    monkeypatch.setattr(deepseek_layer, "layer_of", deepseek_layer.Layer)
    monkeypatch.setattr(deepseek_layer.Layer, "launch", lambda *_: pytest.fail("it was not refused"))
    x, output = d.draw(SIZES, 3), torch.empty(3, 256, dtype=p.BF16)
    workspace = torch.empty(deepseek_layer.Layer(CPU, SIZES).workspace_bytes(3), dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"^{sentence}"):
        deepseek_layer.run(*vars(x).values(), output, change(workspace))
    with pytest.raises(pytest.fail.Exception, match="it was not refused"):
        deepseek_layer.run(*vars(x).values(), output, workspace=workspace)


def test_a_workspace_is_used_instead_of_the_arena(gpu):
    """But for what launches leave to the next ones, which a workspace of any contents could not have."""
    one = deepseek_layer.Layer(CPU, SIZES)
    workspace = torch.empty(one.workspace_bytes(500), dtype=torch.uint8)
    space, begin = one.space(500, workspace=workspace), workspace.data_ptr()
    ends = [at + part.nbytes for at, part in zip(space[2:], one.shared_parts(512))]
    assert begin == min(space[2:12]) and max(ends) == begin + workspace.numel()
    assert arena_of(CPU, gpu).buffer is None and one.space(500).barrier == space.barrier
