"""torch's `cuda` device, served by CPU tensors in this process: `install()`.

`torch.device("cuda")` stays what it is; what changes is where such tensors live. A `CudaTensor` is a CPU tensor in an
emulated device's memory (aligned, registered, guarded) that says it is on `cuda:0`. A function mode sees every call of
torch's API: it redirects the device argument, lets torch's own CPU code do the work, and moves what comes out to where
CUDA would have left it. As on a GPU, operands on different devices are an error. One random generator serves both.

Everything else that needs a GPU is refused by name: https://pytorch.org/docs/stable/cuda.html.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
import types

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _device as default_device
from torch.utils._pytree import tree_leaves, tree_map

from ..device import DEVICE, allocate
from ..errors import Unsupported
from ..state.global_memory import HOST
from . import autograd, cuda_bindings, cuda_core, cute_dsl, libcuda, static_runtime, timed, triton_driver
from .after_import import after_import
from .cuda_cpp import extension
from .drawn import DRAWN
from .scaled_mm import scaled_mm

KDL_CPU, KDL_CUDA = 1, 2  # DLDeviceType, https://dmlc.github.io/dlpack/latest/c_api.html
_plain = torch._C.DisableTorchFunctionSubclass


class Absent:
    """An attribute of a base class that a class does not have."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        raise AttributeError(self.name)


class CudaTensor(torch.Tensor):
    """A tensor on an emulated device, of number `index`. Operations on it go through `CudaMode`."""

    index = 0
    device = property(lambda self: torch.device("cuda", self.index))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return self.index

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device not in (None, (KDL_CUDA, self.index)) or copy:
            raise Unsupported(f"DLPack export to device {dl_device}, copy={copy}")
        with _plain():
            capsule = self.as_subclass(torch.Tensor).__dlpack__()
        _device_of(capsule)[:] = KDL_CUDA, self.index
        return capsule

    def __dlpack_device__(self):
        return KDL_CUDA, self.index

    __dlpack_c_exchange_api__ = Absent()  # torch's own, which TVM FFI calls, reads where the tensor really lies

    def numpy(self, *, force=False):
        if not force:
            device = f"can't convert {self.device} device type tensor to numpy"
            raise TypeError(f"{device}. Use Tensor.cpu() to copy it to the host")
        return self.cpu().numpy()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def __array__(self, dtype=None):
        return self.numpy()

    def __deepcopy__(self, memo):
        return self.clone()

    def __reduce_ex__(self, protocol):
        raise Unsupported("pickling a cuda tensor")

    __torch_function__ = torch._C._disabled_torch_function_impl  # the mode has done all there is to do


def _device_of(capsule):
    """Return (type, index) in an unversioned DLPack capsule: DLManagedTensor {void* data; i32 type, index; ...}."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor") + 8)


def _from_dlpack(original):
    """Return torch.from_dlpack for what others have on the emulated device, too, such as arrays of CuPy."""

    @functools.wraps(original)
    def from_dlpack(ext_tensor, *, device=None, copy=None):
        if hasattr(ext_tensor, "__dlpack__"):
            if ext_tensor.__dlpack_device__()[0] != KDL_CUDA:
                return original(ext_tensor, device=device, copy=copy)
            ext_tensor = ext_tensor.__dlpack__()
        place = _device_of(ext_tensor)
        if place[0] != KDL_CUDA:
            return original(ext_tensor)
        place[:] = KDL_CPU, 0
        with _plain():
            made = to_device(torch._C._from_dlpack(ext_tensor))
        made = made if device is None else made.to(device)
        return made.clone() if copy else made

    return from_dlpack


# -- where tensors live ----------------------------------------------------------------------------------------------


def cuda_index(device) -> int | None:
    """Number of the emulated device that a device argument means, or None; raises for one that is not there."""
    if device is None or isinstance(device, bool):
        return None
    if isinstance(device, int):
        device = torch.device("cuda", device)
    elif isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type != "cuda":
        return None
    if (device.index or 0) >= (there := len(DEVICE.memories)):
        more = "is one emulated device, cuda:0" if there == 1 else f"are {there} emulated devices"
        raise Unsupported(f"{device}: there {more} (`run --devices N`)")
    return DEVICE.index if device.index is None else device.index


def check_served(tensor: torch.Tensor) -> None:
    """Raise Unsupported for a tensor that cannot live on the emulated device."""
    if tensor.layout is not torch.strided:
        raise Unsupported(f"{tensor.layout} tensors on the emulated device")


def to_device(tensor: torch.Tensor, index: int | None = None, copy: bool = True) -> torch.Tensor:
    """Any CPU tensor or CudaTensor -> CudaTensor; copies its storage unless that is in device memory already.

    index: the device; without one, whichever it is on, else the current one. copy: whether its data matter; else they
    become zeros, of which a page takes no memory until somebody touches it.
    """
    check_served(tensor)
    storage = tensor.untyped_storage()
    home = DEVICE.home(storage.data_ptr()) if storage.nbytes() else index
    index = (DEVICE.index if home in (None, HOST) else home) if index is None else index
    if storage.nbytes() and not DEVICE.reaches(index, storage.data_ptr()):
        if tensor.requires_grad:
            return autograd.moved(tensor, functools.partial(to_device, index=index))
        with DEVICE.on(index):
            tensor = DEVICE.tensor_like(tensor, f"tensor {tuple(tensor.shape)} {tensor.dtype}", copy)
    tensor = tensor.as_subclass(CudaTensor)
    tensor.index = index
    return tensor


def _await(tensors: list[torch.Tensor], name: str, args: tuple) -> None:
    """Before an operation on tensors of several devices' memory: let these run what was launched before it."""
    is_view = name == "__getitem__" and not any(isinstance(x, torch.Tensor) for x in tree_leaves(args[1:]))
    if is_view or name in _METADATA:
        return
    devices = sorted({tensor.index for tensor in tensors})
    for device in devices:
        DEVICE.synchronize(device, host=name in _NEEDS_DATA)
    if len(devices) > 1:
        DEVICE.node.meet(devices)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().as_subclass(torch.Tensor) if isinstance(tensor, CudaTensor) else tensor


# Calls that take tensors of both devices: copies, and host indices of a device tensor.
_MIXED = {
    "copy_", "__getitem__", "__setitem__", "index_put_", "index_put", "type_as", "_has_compatible_shallow_copy_type",
}  # fmt: skip
_NEEDS_DATA = {"item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__repr__", "__format__"}
# Calls that look at no element: for them nothing needs to have run.
_METADATA = {
    "__get__", "__set__", "__len__", "__hash__", "as_strided", "chunk", "data_ptr", "detach", "dim", "element_size",
    "empty_like", "expand", "expand_as", "get_device", "is_contiguous", "is_floating_point", "movedim", "narrow",
    "ndimension", "nelement", "new_empty", "new_zeros", "numel", "ones_like", "permute", "record_stream", "select",
    "size", "split", "squeeze", "storage_offset", "stride", "swapaxes", "t", "transpose", "unbind", "unflatten",
    "unsqueeze", "untyped_storage", "view", "view_as", "zeros_like",
}  # fmt: skip


# Factories of zeros, and what makes as large a tensor without a look at its memory.
_EMPTY = {"zeros": torch.empty, "zeros_like": torch.empty_like, "new_zeros": torch.Tensor.new_empty}
_NO_CONTENTS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
LARGE = 1 << 20  # bytes; what `torch.empty` finds in smaller ones is whatever lay there, as on a GPU


class CudaMode(TorchFunctionMode):
    """Carries out one call of torch's API on behalf of both devices."""

    def __torch_function__(self, function, classes, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in _NEEDS_DATA and isinstance(args[0], CudaTensor):  # the host's memory can be read after a failure
            DEVICE.check()
        if special := _SPECIAL.get(name):
            with _plain():
                return special(function, *args, **kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_device = [t for t in tensors if isinstance(t, CudaTensor)]
        if on_device and name not in _MIXED and any(t.dim() and not isinstance(t, CudaTensor) for t in tensors):
            device = on_device[0].device
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but got {device} and cpu")
        if DEVICE.node is not None and on_device:
            there = sorted({t.index for t in on_device if t.dim()} or {on_device[0].index})
            if len(there) > 1 and name not in _MIXED:
                devices = " and ".join(f"cuda:{k}" for k in there)
                raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but got {devices}")
            _await(on_device, name, args)
        where = on_device[0].index if on_device else None
        default = default_device.CURRENT_DEVICE  # torch.set_default_device, `with torch.device(...)`
        if default is not None and function in default_device._device_constructors():
            kwargs["device"] = kwargs.get("device") or default
        if kwargs.get("device") is not None:
            where = cuda_index(kwargs["device"])
            if where is not None:
                kwargs["device"] = "cpu"
        pinned = kwargs.pop("pin_memory", False)
        with _plain():
            new = where is not None and kwargs.get("out") is None
            zeros, drawn = new and name in _EMPTY, new and name in DRAWN and not kwargs.get("requires_grad")
            if name == "_scaled_mm" and where is not None:
                function = scaled_mm
            generator = kwargs.pop("generator", None) if drawn else None
            result = (_EMPTY[name] if zeros else torch.empty if drawn else function)(*args, **kwargs)
            if pinned and where is None:
                return _pin_memory(function, result)
            if where is None and not on_device or isinstance(result, torch.Size):
                return result
            if DEVICE.capture is not None and any(isinstance(r, torch.Tensor) for r in tree_leaves(result)):
                raise Unsupported(f"{name} inside the capture of a CUDA graph")
            mine = {id(t) for t in tensors}  # what an in-place operation returns stays what and where it was
            copy = not (zeros or drawn or name in _NO_CONTENTS and result.untyped_storage().nbytes() >= LARGE)
            move = to_host if where is None else functools.partial(to_device, index=where, copy=copy)
            result = tree_map(lambda r: move(r) if isinstance(r, torch.Tensor) and id(r) not in mine else r, result)
            if drawn:
                DRAWN[name](result, generator=generator)
            if function == autograd.GRAD and result is not None:
                args[0].grad = result  # in-place operations on it are to last
            return result


def _mode():
    """The mode for code that torch calls from within an operation, as backward does; nothing where it is on."""
    stack = _get_current_function_mode_stack()
    return contextlib.nullcontext() if any(isinstance(mode, CudaMode) for mode in stack) else CudaMode()


def _to(
    function, tensor, *args, device=None, dtype=None, non_blocking=False, copy=False,
    memory_format=torch.preserve_format,
):  # fmt: skip
    """Tensor.to(other), .to(dtype, non_blocking, copy), .to(device, dtype, non_blocking, copy)."""
    args = list(args)
    if args and isinstance(args[0], torch.Tensor):
        other = args.pop(0)
        device, dtype = other.device, other.dtype
    elif args and isinstance(args[0], torch.dtype):
        dtype = args.pop(0)
    elif args:
        device = args.pop(0)
        dtype = args.pop(0) if args and (args[0] is None or isinstance(args[0], torch.dtype)) else dtype
    copy = bool(args[1]) if len(args) > 1 else copy
    was = tensor.index if isinstance(tensor, CudaTensor) else None
    where = was if device is None else cuda_index(device)
    if where is None and device is not None and torch.device(device).type != "cpu":
        raise Unsupported(f"Tensor.to({device!r})")
    if where is not None:
        check_served(tensor)
    if was is not None and where is None:
        DEVICE.synchronize(was)
    elif was is not None and DEVICE.node is not None:
        DEVICE.synchronize(was, host=False)
        DEVICE.node.meet([was, where])
    result = function(
        tensor.as_subclass(torch.Tensor), dtype or tensor.dtype, copy=copy or where != was, memory_format=memory_format
    )
    if where == was and not copy and result.dtype == tensor.dtype and result.stride() == tensor.stride():
        return tensor
    return result if where is None else to_device(result, where)


def _cuda(function, tensor, device=None, non_blocking=False, memory_format=torch.preserve_format):
    return _to(torch.Tensor.to, tensor, "cuda" if device is None else device, memory_format=memory_format)


def _cpu(function, tensor, memory_format=torch.preserve_format):
    return _to(torch.Tensor.to, tensor, "cpu", memory_format=memory_format)


def _pin_memory(function, tensor, device=None):
    if isinstance(tensor, CudaTensor):
        raise RuntimeError(f"cannot pin 'torch.cuda' memory of {tensor.device}: only dense CPU tensors can be pinned")
    if _is_pinned(None, tensor):
        return tensor
    pinned = allocate(tensor.numel() * tensor.element_size())
    if pinned.size:
        DEVICE.pin(pinned)
    pinned = torch.from_numpy(pinned).view(tensor.dtype).view(tensor.shape)
    return pinned.copy_(tensor)


def _is_pinned(function, tensor, device=None) -> bool:
    return tensor.numel() > 0 and DEVICE.home(tensor.untyped_storage().data_ptr()) == HOST


_SPECIAL = {"to": _to, "cuda": _cuda, "cpu": _cpu, "pin_memory": _pin_memory, "is_pinned": _is_pinned}


# -- torch.cuda --------------------------------------------------------------------------------------------------------


class Stream:
    """Everything on a device runs in the order it is called: one stream, under any name."""

    cuda_stream = 0
    priority = 0

    def __init__(self, device=None, priority=0, **_):
        self.device_index = DEVICE.index if device is None else cuda_index(device)
        self.device = torch.device("cuda", self.device_index)

    def synchronize(self):
        DEVICE.synchronize(self.device_index)

    def query(self) -> bool:
        if DEVICE.node is not None:
            DEVICE.synchronize(self.device_index)
        return True

    def wait_stream(self, stream):
        _after(self.device_index, stream.device_index)

    def wait_event(self, event):
        _after(self.device_index, event.device_index)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self):
        self.before, DEVICE.index = DEVICE.index, self.device_index
        return self

    def __exit__(self, *_):
        DEVICE.index = self.before

    def __cuda_stream__(self):
        return 0, 0


def _after(device: int, other: int) -> None:
    """What a device does next is to come after what another one has been given to do."""
    if device != other:
        DEVICE.synchronize(other, host=False)
        DEVICE.node.follow(device, other)


class Event:
    """Recorded and complete at once; `elapsed_time` is modelled or nan, see cuda_bindings.elapsed."""

    cuda_event = 0
    launches: int | None = None  # so many there were
    device_index = 0

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        pass

    def record(self, stream=None):
        self.launches = timed.now()
        self.device_index = DEVICE.index if stream is None else stream.device_index

    def wait(self, stream=None):
        _after(DEVICE.index if stream is None else stream.device_index, self.device_index)

    def query(self) -> bool:
        if DEVICE.node is not None:
            DEVICE.synchronize(self.device_index)
        return True

    def synchronize(self):
        DEVICE.synchronize(self.device_index)

    def elapsed_time(self, end) -> float:
        return cuda_bindings.elapsed(self.launches, end.launches)


class Generator(torch.Generator):
    """A random generator of any device: the numbers are the CPU's."""

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls, "cpu")
        index = cuda_index(torch.device(device))
        generator.where = torch.device("cpu" if index is None else f"cuda:{index}")
        return generator

    device = property(lambda self: self.where)


class DefaultGenerator(Generator):
    """The generator of a device: torch's for the CPU, with an offset, as a GPU's has, which moves when it is set."""

    offset = 0
    initial_seed = staticmethod(torch.initial_seed)
    manual_seed = staticmethod(torch.manual_seed)
    get_state = staticmethod(torch.get_rng_state)
    set_state = staticmethod(torch.set_rng_state)

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


class CUDAGraph:
    """Kernel launches to repeat. torch's own operations are not collected: inside a capture they are refused."""

    def __init__(self, keep_graph=False):
        self.launches: list[tuple[tuple, dict]] | None = None

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if DEVICE.capture is not None:
            raise RuntimeError("a CUDA graph is being captured already")
        DEVICE.capture = []

    def capture_end(self):
        self.launches, DEVICE.capture = DEVICE.capture, None

    def replay(self):
        for args, options in self.launches:
            DEVICE.launch(*args, **options)

    def reset(self):
        self.launches = None


class graph:  # the name that torch gives it
    """with torch.cuda.graph(g): captures what is launched."""

    def __init__(self, cuda_graph: CUDAGraph, pool=None, stream=None, capture_error_mode="global"):
        self.cuda_graph = cuda_graph

    def __enter__(self):
        self.cuda_graph.capture_begin()

    def __exit__(self, *_):
        self.cuda_graph.capture_end()


class _Context:
    """torch.cuda.device(0), torch.cuda.stream(s): makes the device the current one."""

    def __init__(self, what=None):
        self.idx = what.device_index if isinstance(what, Stream) else cuda_index(what)

    def __enter__(self):
        self.prev_idx = DEVICE.index
        if self.idx is not None:
            DEVICE.index = self.idx
        return self

    def __exit__(self, *_):
        DEVICE.index = self.prev_idx


def _properties(device=None):
    chip = DEVICE.chip
    return types.SimpleNamespace(
        name=chip.name, major=chip.capability[0], minor=chip.capability[1], multi_processor_count=chip.sms,
        warp_size=32, total_memory=chip.memory, L2_cache_size=chip.l2, regs_per_multiprocessor=chip.registers_per_sm,
        max_threads_per_multi_processor=chip.threads_per_sm, max_threads_per_block=chip.threads_per_cta,
        shared_memory_per_block=chip.shared_by_default, shared_memory_per_block_optin=chip.shared_per_cta,
        shared_memory_per_multiprocessor=chip.shared_per_sm, is_integrated=False, is_multi_gpu_board=False,
    )  # fmt: skip


def _refusal(name: str | None):
    """A function that refuses; without a name, by that of the function which calls it."""

    def refuse(*_, **__):
        raise Unsupported(f"{name or sys._getframe(1).f_code.co_name} on the emulated device")

    return refuse


def _set_current(device) -> None:
    index = cuda_index(device)
    if index is not None:
        DEVICE.index = index


def _can_access_peer(device, peer_device) -> bool:
    return cuda_index(device) != cuda_index(peer_device)


def _manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _memory_allocated(device=None) -> int:
    index = DEVICE.index if device is None else cuda_index(device)
    return sum(r.size for r in DEVICE.memories[index].regions if r.device == index)


def _facade() -> dict:
    """What replaces the names of `torch.cuda`."""
    total = DEVICE.chip.memory
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: len(DEVICE.memories),
        "current_device": lambda: DEVICE.index,
        "set_device": _set_current,
        "can_device_access_peer": _can_access_peer,
        "get_device_capability": lambda device=None: DEVICE.chip.capability,
        "get_device_name": lambda device=None: DEVICE.chip.name,
        "get_device_properties": _properties,
        "get_arch_list": lambda: [DEVICE.chip.arch.rstrip("a")],
        "synchronize": lambda device=None: DEVICE.synchronize(cuda_index(device)),
        "Event": Event,
        "Stream": Stream,
        "ExternalStream": Stream,
        "current_stream": Stream,
        "default_stream": Stream,
        "set_stream": lambda stream: None,
        "stream": _Context,
        "device": _Context,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (total - _memory_allocated(device), total),
        "memory_allocated": _memory_allocated,
        "manual_seed": _manual_seed,
        "default_generators": tuple(DefaultGenerator(f"cuda:{index}") for index in range(len(DEVICE.memories))),
        "manual_seed_all": _manual_seed,
        "is_current_stream_capturing": lambda: DEVICE.capture is not None,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "make_graphed_callables": _refusal("torch.cuda.make_graphed_callables"),
        "_lazy_init": _refusal(None),  # what all the rest of torch.cuda calls first
    }


def _bindings() -> dict:
    """What replaces those names of `torch._C` that libraries call directly, as torch.cuda's own are slower."""
    return {
        "_cuda_getDevice": lambda: DEVICE.index,
        "_cuda_getCurrentRawStream": lambda index: Stream.cuda_stream,
        "_cuda_isCurrentStreamCapturing": lambda: DEVICE.capture is not None,
    }


def _eager(model=None, **options):
    """torch.compile, which Inductor's kernels would be for: what it is given, as it is."""
    return model if model is not None else lambda function: function


@functools.cache
def install() -> None:
    """Serve `cuda` in this process, to torch, `cuda.bindings` and CuTe DSL. It cannot be undone."""
    if torch.cuda.is_available():
        raise Unsupported("this process has a GPU: the emulated one would take its name")
    static_runtime.install()
    libcuda.install()
    cuda_core.install()
    cute_dsl.install()
    refused = {name: _refusal(f"torch.cuda.{name}") for name in torch.cuda.memory.__all__}
    for name, value in (refused | _facade()).items():
        setattr(torch.cuda, name, value)
    for name, value in _bindings().items():
        setattr(torch._C, name, value)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a module's own would stay where they are
    torch.compile = _eager
    torch.Stream = Stream
    torch.Generator = Generator
    torch.version.cuda = "13.0"
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = lambda tensor: tensor.detach().__dlpack__()
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = _from_dlpack(torch.from_dlpack)
    autograd.install(CudaTensor, to_device, _mode)
    CudaMode().__enter__()
    after_import("triton", triton_driver.install)
    after_import("torch.utils.cpp_extension", lambda: extension.install(CudaTensor, to_device))

    bootstrap = threading.Thread._bootstrap_inner  # modes belong to a thread

    def with_mode(self):
        with CudaMode():
            bootstrap(self)

    threading.Thread._bootstrap_inner = with_mode
