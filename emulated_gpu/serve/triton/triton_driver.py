"""Triton and Gluon on the emulated device: a driver for Triton's runtime that launches here.

Triton compiles without a GPU once something says for which. Of what it compiles, the PTX runs here; Triton's own
launcher, C code that calls libcuda, is replaced by `Launcher`, which lays arguments out as the PTX's parameters are.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ... import build_cache
from ...device import DEVICE, LoadedModule
from ...errors import Unsupported
from ...formats import cubin
from ...formats.tensormap import DRIVER_SWIZZLES, DRIVER_TYPES, Im2colMap, TensorMap, encode
from ..driver import timed

# Types of elements as tensormap.replace (PTX ISA 9.7.9.27) numbers them -> as cuTensorMapEncodeTiled does, if otherwise
HOST_TYPES = {8: 10, 9: 8, 10: 9}
TF32 = DRIVER_TYPES.index("tf32")
FLOATS = {"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d"}
L2_PROMOTION = 128  # bytes, of Triton's tensor maps

_functions: dict[int, tuple[LoadedModule, str]] = {}  # handle -> (module, kernel)
_handles = itertools.count(1)
_said: set[str] = set()


def say(text: str) -> None:
    """Say something on stderr, once."""
    if text not in _said:
        _said.add(text)
        print(f"emulated-gpu: {text}", file=sys.stderr)


# -- arguments ---------------------------------------------------------------------------------------------------------


def tensor_map(descriptor, meta: dict) -> bytes:
    """Return the tensor map of a host-side TensorDescriptor, or Gluon's TensorDescriptorIm2Col; meta: what the
    compiler noted of it."""
    kind = HOST_TYPES.get(meta["elem_type"], meta["elem_type"])
    if getattr(descriptor, "round_f32_to_tf32", False):
        kind = TF32
    if kind >= len(DRIVER_TYPES):
        raise Unsupported(f"cuTensorMapEncodeTiled with data type {kind}")
    dims = [int(n) for n in descriptor.shape]
    if meta["fp4_padded"]:
        dims[-1] *= 2
    box = [int(n) for n in meta["block_size"]]
    span, atom = DRIVER_SWIZZLES[meta["swizzle"]]
    strides = [int(s) * meta["elem_size"] for s in list(descriptor.strides)[:-1]]
    im2col = meta.get("is_im2col", False)
    steps = (im2col and descriptor.element_strides) or (1,) * len(dims)
    common = (
        descriptor.base.data_ptr(), DRIVER_TYPES[kind], tuple(dims[::-1]), tuple(strides[::-1]), tuple(box[::-1]),
        tuple(steps[::-1]), span, atom, descriptor.padding == "nan", L2_PROMOTION,
    )  # fmt: skip
    if not im2col:
        return encode(TensorMap(*common))
    lower, upper = descriptor.pixel_box_lower_corner, descriptor.pixel_box_upper_corner
    return encode(Im2colMap(*common, tuple(lower[::-1]), tuple(upper[::-1])))


def flattened(signature, args, metas: Iterator[dict] | None) -> Iterator[tuple[str, Any]]:
    """Yield (type, value) of each parameter of the kernel: without constants, descriptors as what they consist of."""
    for kind, arg in zip(signature, args, strict=True):
        if isinstance(kind, tuple):
            yield from flattened(kind, arg, metas)
        elif kind.startswith("tensordesc"):
            sizes = [*(("i32", n) for n in arg.shape), *(("i64", n) for n in arg.strides)]
            if metas is not None:
                yield "nvTmaDesc", tensor_map(arg, next(metas))
            else:  # the kernel makes no tensor map of it
                yield "*" + kind[kind.index("<") + 1 : kind.index("[")], arg.base
                yield from (("i64", n) for n in (*arg.shape, *arg.strides))
                yield "i1", arg.padding == "nan"
                yield "i1", getattr(arg, "round_f32_to_tf32", False)
            yield from sizes
        elif kind != "constexpr":
            yield kind, arg


def packed(kind: str, value, size: int) -> bytes:
    """Return a value of one of Triton's types as a parameter of this many bytes."""
    if kind[0] == "*":
        value = 0 if value is None else value if isinstance(value, int) else value.data_ptr()
    elif kind == "nvTmaDesc":
        return bytes(value)
    elif kind in FLOATS:
        return struct.pack(FLOATS[kind], value)
    elif kind == "bf16":
        return struct.pack("<f", value)[2:]
    return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")


class Launcher:
    """A compiled kernel as Triton's runtime calls it (`launcher_cls`)."""

    def __init__(self, src, metadata):
        self.signature, self.metadata = tuple(src.signature.values()), metadata
        self.metas = getattr(metadata, "tensordesc_meta", None)

    def __call__(self, x, y, z, queue, function, layout, launch_metadata, enter, leave, *args):
        """Launch a grid of x, y, z clusters. layout: warps, CTAs a cluster, dynamic shared memory in bytes."""
        if enter is not None:
            enter(launch_metadata)
        if x * y * z > 0:
            self.launch((x, y, z), function, layout, queue or 0, args)
        if leave is not None:
            leave(launch_metadata)

    def launch(self, grid, function, layout, queue, args) -> None:
        from triton.runtime import _allocation

        metadata, (module, name) = self.metadata, _functions[function]
        warps, ctas, shared, *_ = layout
        scratch = []
        for which, allocator in (("global", "_allocator"), ("profile", "_profile_allocator")):
            size = getattr(metadata, f"{which}_scratch_size", 0)
            if size and which == "profile":
                raise Unsupported("Triton's profiler (proton) inside kernels")
            size *= math.prod(grid) * ctas
            align = getattr(metadata, f"{which}_scratch_align", 1)
            scratch.append(getattr(_allocation, allocator).get()(size, align, queue) if size else None)
        values: list[tuple[str, Any]] = list(flattened(self.signature, args, iter(self.metas) if self.metas else None))
        values += [("*i8", memory) for memory in scratch]
        parameters = module.program(name).kernel.params
        if not len(parameters) <= len(values) <= len(parameters) + len(scratch):
            raise Unsupported(f"{name} takes {len(parameters)} parameters, for which Triton has {len(values)} values")
        block = bytearray(module.program(name).kernel.param_bytes)
        for k, (p, (kind, value)) in enumerate(zip(parameters, values)):
            of_host = value.data_ptr() if getattr(value, "is_cpu", False) else 0
            if of_host and DEVICE.region_at(of_host, 1) is None:
                raise ValueError(f"Pointer argument (at {k}) cannot be accessed from Triton (cpu tensor?)")
            data = packed(kind, value, p.size)
            if len(data) != p.size:
                raise Unsupported(f"{name}: a {kind} of {len(data)} bytes for a parameter of {p.size}")
            block[p.offset : p.offset + p.size] = data
        DEVICE.launch(
            module, name, (grid[0] * ctas, *grid[1:]), (32 * warps, 1, 1), bytes(block),
            cluster=(ctas, 1, 1) if ctas > 1 else None, dynamic_shared=shared, stream=queue,
            pdl=bool(getattr(metadata, "launch_pdl", False)),
            cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        )  # fmt: skip


# -- the driver --------------------------------------------------------------------------------------------------------


class Utils:
    """What Triton calls `driver.active.utils`. Compiled kernels come by `loading`, with their PTX."""

    loading: list = []

    def get_device_properties(self, device) -> dict:
        chip = DEVICE.chip
        return {
            "max_shared_mem": chip.shared_per_cta, "max_num_regs": chip.registers_per_sm, "warpSize": 32,
            "multiprocessor_count": chip.sms, "sm_clock_rate": chip.clock_khz, "mem_clock_rate": chip.memory_clock_khz,
            "mem_bus_width": chip.memory_bus_bits,
        }  # fmt: skip

    def load_binary(self, name, binary, shared, device):
        """Return (module, function, registers, spills, most threads) of a kernel."""
        assembly, handle = self.loading[-1], next(_handles)
        code = assembly.get("cubin")
        code = code if isinstance(code, bytes) else None
        used = cubin.of_kernel(code, name)
        _functions[handle] = DEVICE.module(assembly["ptx"], name, code), name
        DEVICE.compilers[name] = "Triton"
        # Words of 32 bits: a thread's stack holds what is spilled
        return handle, handle, used.get("registers", 0), used.get("frame", 0) // 4, DEVICE.chip.threads_per_cta

    def unload_module(self, module) -> None:
        """It stays, as all modules do."""

    set_printf_fifo_size = unload_module

    def get_device_capability(self, device) -> tuple[int, int]:
        return DEVICE.chip.capability

    def get_default_stream(self, device) -> int:
        return 0

    def is_stream_capturing(self, queue) -> bool:
        return DEVICE.capture is not None and DEVICE.capture.has(int(queue))

    def __getattr__(self, name: str):
        raise Unsupported(f"Triton's driver function {name} on the emulated device")


class Driver:
    """Triton's runtime driver (triton.backends.driver.DriverBase)."""

    launcher_cls = Launcher

    def __init__(self):
        self.utils = Utils()

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        major, minor = DEVICE.chip.capability
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> int:
        return DEVICE.index

    def set_current_device(self, device) -> None:
        DEVICE.index = device

    def get_current_stream(self, device=None) -> int:
        return torch._C._cuda_getCurrentRawStream(DEVICE.index if device is None else device)

    def get_device_capability(self, device=0) -> tuple[int, int]:
        return DEVICE.chip.capability

    def get_active_torch_device(self):
        return torch.device("cuda", DEVICE.index)

    def get_device_interface(self):
        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(kind)

    def get_benchmarker(self):
        return benchmark

    def get_empty_cache_for_benchmark(self):
        return torch.empty(0, dtype=torch.int, device="cuda")

    def clear_cache(self, cache) -> None:
        pass


# -- times -------------------------------------------------------------------------------------------------------------


def milliseconds(call) -> float:
    """Call a function; what its launches take: modelled under `run --timed`, else not a number."""
    start = timed.now()
    call()
    return timed.elapsed(start, timed.now()) if timed.on() else math.nan


def summed_up(ms: float, quantiles, return_mode: str):
    if quantiles is not None:
        return [ms] * len(quantiles) if len(quantiles) > 1 else ms
    return [ms] if return_mode == "all" else ms


def bench_of(name: str):
    """Return a stand-in for a do_bench: one call, modelled under `run --timed`, else left out and not a number."""

    def do_bench(call, *_, quantiles=None, return_mode="mean", **__):
        if not timed.on():
            say(f"{name}: there is no GPU to time; nothing is run; times are nan, or `run --timed` models")
        return summed_up(milliseconds(call) if timed.on() else math.nan, quantiles, return_mode)

    return do_bench


def benchmark(call, *, quantiles=None, **_):
    """Time a configuration for the autotuner: modelled, or zero for the first that runs at all."""
    if timed.on():
        return summed_up(milliseconds(call), quantiles, "mean")
    if Tuning.found:
        return summed_up(math.inf, quantiles, "mean")
    call()
    Tuning.found = True
    return summed_up(0.0, quantiles, "mean")


class Tuning:
    """The search of an autotuner that is under way. found: a configuration runs."""

    found = False


def tuned(run):
    """Return Autotuner.run with a word about what it has chosen, and on what grounds."""

    @functools.wraps(run)
    def run_and_tell(self, *args, **kwargs):
        known, Tuning.found = set(self.cache), False
        self._do_bench, given = None, self._do_bench  # a benchmark of the script's would time with events
        try:
            result = run(self, *args, **kwargs)
        finally:
            self._do_bench = given
        if len(self.configs) > 1 and (new := set(self.cache) - known):
            how = "the fastest by the model" if timed.on() else "the first that runs; `run --timed` asks the model"
            name = getattr(self.base_fn, "__name__", "a kernel")
            say(f"autotuning of {name}: {self.cache[new.pop()]}: {how}")
        return result

    return run_and_tell


# -- installation ------------------------------------------------------------------------------------------------------


class CublasLt:
    """The one class of Triton's binding of cuBLASLt, by torch: C = A B^T, of plain matrices with sums in float32."""

    def __init__(self, workspace):
        pass

    def matmul(self, a, b, c) -> None:
        c.copy_(torch.matmul(a.to(torch.float32), b.to(torch.float32).T))

    def block_scaled_matmul_mxfp8(self, a, b, c, scale_a, scale_b) -> None:
        scales = (scale.contiguous().view(torch.float8_e8m0fnu) for scale in (scale_a, scale_b))
        c.copy_(torch._scaled_mm(a, b.T, *scales, out_dtype=c.dtype))

    def block_scaled_matmul_nvfp4(self, a, b, c, scale_a, scale_b) -> None:
        """a, b: uint8, two elements each."""
        a, b = (x.view(torch.float4_e2m1fn_x2) for x in (a, b))
        c.copy_(torch._scaled_mm(a, b.T, scale_a.contiguous(), scale_b.contiguous(), out_dtype=c.dtype))

    def __getattr__(self, name: str):
        raise Unsupported(f"cublasLt: {name} on the emulated device")


def install() -> None:
    """Make the emulated device Triton's. To be called once Triton has been imported."""
    import triton
    import triton.testing
    from triton._C.libtriton import nvidia
    from triton.backends import backends
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import cache, driver
    from triton.runtime.autotuner import Autotuner

    init_handles = CompiledKernel._init_handles

    @functools.wraps(init_handles)
    def init_handles_of(self):
        Utils.loading.append(self.asm)
        try:
            return init_handles(self)
        finally:
            Utils.loading.pop()

    key = cache.triton_key

    @functools.wraps(key)
    @functools.cache
    def kept_key() -> str:
        """As Triton's own, which reads a library of 0.5 GB for it; kept by the sizes and ages of its files."""
        files = [(str(f), f.stat()) for f in Path(triton.__file__).parent.rglob("*.[ps][yo]")]
        told = sorted((f, of.st_size, of.st_mtime_ns) for f, of in files)
        name = hashlib.sha256(repr(told).encode()).hexdigest()
        return build_cache.taken("triton-key", name, lambda: key().encode()).decode()

    cache.triton_key = kept_key
    CompiledKernel._init_handles = init_handles_of
    Autotuner.run = tuned(Autotuner.run)
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = bench_of("triton.testing.do_bench")
    driver.set_active(Driver())
    driver._default = driver.active
    object.__setattr__(backends["nvidia"], "driver", Driver)  # else Inductor makes one of its own
    if hasattr(nvidia, "cublas"):
        nvidia.cublas.CublasLt = CublasLt
