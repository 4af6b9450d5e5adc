"""Operations of torch on the device in a recorded call: how the submission's process tells them, how the judge carries
them out itself, and what they cost.

A recorded call is launches and operations, in order. The judge runs both on inputs that nobody has seen: an operation
that was not told, or that is another one, gives another result. What one costs is priced, not modelled: by its bytes
and its arithmetic over rates that others have measured on a B200.
"""

import dataclasses
import math
import sys
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from evaluation.judge.verdict import Refused
from evaluation.tasks import data as any_data

GN = "https://github.com/gau-nernst/gpu-mode-kernels"
AD = "https://github.com/ademeure/QuickRunCUDA"
PEAK = "https://zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html"  # a copy of NVIDIA's table
# Rates of a B200, with who has measured or published them
BYTES_PER_US = 5.9148e6, f"a copy on a B200, {GN}"
LEAST_US = 2.05, f"empty kernels one behind the other, {AD}, b300_clean/10_launch_overhead.md"
HOST_US = 1.85, f"a launch's time on the host, {AD}, b300_clean/10_launch_overhead.md"
FLOPS_PER_US = {  # of a product of matrices, by the type of its factors
    torch.bfloat16: (1.386e9, f"cuBLAS, 4096 x 4096 x 4096 on a B200, {GN}"),
    torch.float16: (1.386e9, f"cuBLAS, 4096 x 4096 x 4096 on a B200 in bfloat16, {GN}"),
    torch.float32: (75e6, f"peak of an HGX B200's GPU, which cuBLAS stays below, {PEAK}"),
    torch.float64: (37e6, f"peak of an HGX B200's GPU, which cuBLAS stays below, {PEAK}"),
}
ONLY_PEAK = {torch.float32, torch.float64}  # what products take at least
MATRIX = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # and which argument the first factor is
# What reads its operands once and writes its result once, element by element or along a dimension
ONCE = set(
    "abs add addcdiv addcmul amax amin any all bitwise_and bitwise_not bitwise_or bitwise_xor cat ceil clamp clamp_max "
    "clamp_min clone constant_pad_nd copy cos div eq erf exp fill floor ge gelu gt index_select le leaky_relu log "
    "log1p logical_and logical_not logical_or lt masked_fill maximum mean minimum mul ne neg pow reciprocal relu "
    "remainder round rsqrt sigmoid sign silu sin sqrt sub sum tanh tril triu where zero _log_softmax _softmax "
    "_to_copy _unsafe_view".split()
)
OVERWRITES = {"copy", "fill", "zero"}  # their first operand is not read
MADE = set("arange eye full full_like new_full new_ones new_zeros ones ones_like zeros zeros_like".split())
# What makes memory without contents, or looks at none
FREE = set("empty empty_like empty_strided new_empty new_empty_strided resize detach alias lift_fresh".split())
WAITS = "aten::_local_scalar_dense"  # and whatever else gives the host what the device computes
MOST = 2**34  # bytes of a tensor of an operation
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
LAYOUT = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}  # options that say where results lie


def short(name: str) -> str:
    """Gives an operation's name without namespace, and without the underscore of one that works in place."""
    bare = name.removeprefix("aten::")
    return bare[:-1] if bare.endswith("_") and not bare.endswith("__") else bare


def known(name: str) -> bool:
    return name.startswith("aten::") and short(name) in ONCE | MADE | MATRIX.keys()


# -- in the submission's process ---------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Tells each operation on tensors of the device instead of carrying it out: its results have memory and no
    contents, as those of recorded launches. tell(message): sends it."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    _should_skip_dynamo = classmethod(lambda cls: False)  # for which torch would import Dynamo, in a second

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        record = torch.compiler.disable(self.record) if "torch._dynamo" in sys.modules else self.record
        return record(function, args, kwargs or {})

    def record(self, function, args, kwargs):
        """Tell this operation, and return its results."""
        schema, given = function._schema, tree_leaves((args, kwargs))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        there = any(t.is_cuda for t in tensors) or any(getattr(x, "type", "") == "cuda" for x in given)
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        view = not written and any(r.alias_info is not None for r in schema.returns)
        if not there or view or short(schema.name) in FREE:
            return function(*args, **kwargs)
        named = dict(zip((a.name for a in schema.arguments), args)) | kwargs
        to_host = torch.device(kwargs.get("device") or "cuda").type != "cuda"
        if to_host or any(not named[name].is_cuda for name in written if isinstance(named[name], torch.Tensor)):
            self.tell({"unknown": WAITS})
            return function(*args, **kwargs)
        if not known(schema.name) or any(not t.is_cuda and t.dim() for t in tensors):
            self.tell({"unknown": schema.name})
            return function(*args, **kwargs)
        if written:
            results = [named[name] for name in written]
            returned = results[0] if len(results) == 1 else tuple(results)
        else:
            returned = results = self.shaped(function, args, kwargs)
        message = {"name": schema.name, "overload": schema.overload_name or "default", "written": bool(written)}
        message |= {"args": [told(x) for x in args], "results": [told(x) for x in tree_leaves(results)]}
        self.tell(message | {"kwargs": [[k, told(x)] for k, x in kwargs.items() if k not in LAYOUT]})
        return returned

    @staticmethod
    def shaped(function, args, kwargs):
        """Makes room for the results of an operation."""

        def meta(x):
            return x.to("meta") if isinstance(x, torch.Tensor) and x.dim() else x

        def room(x):
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") if x.numel() else x

        def scalar(x):
            return torch.empty((), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) and not x.dim() else x

        kwargs = {k: x for k, x in kwargs.items() if k != "device"}
        args, kwargs = tree_map(scalar, tree_map(meta, (args, kwargs)))
        if any(a.name == "device" for a in function._schema.arguments):
            kwargs["device"] = "meta"
        return tree_map(room, function(*args, **kwargs))


def told(x) -> dict:
    """Describes an argument as JSON."""
    if isinstance(x, torch.Tensor):
        return any_data.described(x) if x.is_cuda else {"value": x.item()}
    if isinstance(x, (list, tuple)):
        return {"list": [told(one) for one in x]}
    if isinstance(x, torch.dtype):
        return {"dtype": str(x)}
    if x is None or type(x) in (bool, int, float, str):
        return {"value": x}
    return {"other": type(x).__name__}


# -- in the judge's process --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operation:
    """Is an operation as it was told, checked to be one of those that are known."""

    name: str
    overload: str
    written: bool
    args: tuple
    kwargs: tuple
    results: tuple

    @property
    def shape(self) -> tuple:
        """Gives all of it that does not depend on where tensors are."""
        return self.name, self.overload, *(_form(x) for x in (*self.args, *dict(self.kwargs).values(), *self.results))

    def places(self, results: bool = False) -> list[tuple[int, int]]:
        """Lists where its tensors are, or its results alone: (address, bytes)."""
        given = () if results else (*self.args, *dict(self.kwargs).values())
        return [(t["address"], t["bytes"]) for x in (*given, *self.results) for t in _tensors(x) if t["bytes"]]

    def run(self, view, may_read, may_write) -> None:
        """Carries it out on live memory. view(address, bytes): uint8 array; may_read, may_write(address, bytes):
        whether that is the call's. Raises Refused."""

        def tensor(spec: dict, write: bool) -> torch.Tensor:
            address, size = int(spec["address"]), int(spec["bytes"])
            found = any_data.tensor_at(view, spec)
            if found.numel() * found.element_size() > MOST:
                raise Refused(f"{self.name} of a tensor of {found.numel()} elements")
            if size and not (may_write if write else may_read)(address, size):
                raise Refused(f"{self.name} touches memory that is not the call's")
            return found

        def made(x: dict, write: bool):
            ((kind, content),) = x.items()
            if kind == "tensor":
                return tensor(content, write)
            if kind in ("list", "tuple"):
                return [made(one, write) for one in content]
            return DTYPES[content] if kind == "dtype" else content

        function = getattr(getattr(torch.ops.aten, self.name.removeprefix("aten::")), self.overload)
        results = [made(x, True) for x in self.results]
        try:
            got = function(*[made(x, False) for x in self.args], **{k: made(x, False) for k, x in self.kwargs})
        except (RuntimeError, NotImplementedError) as error:
            raise Refused(f"{self.name}: {str(error)[:200]}") from None
        for one, result in zip(() if self.written else tree_leaves(got), results, strict=not self.written):
            if one.shape != result.shape or one.dtype != result.dtype:
                raise Refused(f"{self.name} does not give the result that was told")
            result.copy_(one)

    def price(self) -> tuple[float, str]:
        """Says how many microseconds it takes on a B200, and what that is bound by: (us, "bytes", "arithmetic" or
        "launch"). Raises Refused where no rate is known."""
        results = [t for x in self.results for t in _tensors(x)]
        given = [t for x in (*self.args, *dict(self.kwargs).values()) for t in _tensors(x)]
        name = short(self.name)
        read = [t for t in given if name not in MADE and (name not in OVERWRITES or t not in results)]
        # Each element counts as often as it is there: an expanded tensor is read so often
        moved = sum(math.prod(t["shape"]) * DTYPES[t["dtype"]].itemsize for t in read + results)
        bounds = {"bytes": moved / BYTES_PER_US[0], "launch": LEAST_US[0]}
        if name in MATRIX:
            factor = self.args[MATRIX[name]]["tensor"]
            if (dtype := DTYPES.get(factor["dtype"])) not in FLOPS_PER_US:
                raise Refused(f"{self.name} of {factor['dtype']} has no published rate")
            flops = 2 * math.prod(results[0]["shape"]) * factor["shape"][-1]
            bounds["peak arithmetic" if dtype in ONLY_PEAK else "arithmetic"] = flops / FLOPS_PER_US[dtype][0]
        return max((us, bound) for bound, us in bounds.items())


def understand(message) -> Operation:
    """Reads what the submission's process has told. Raises Refused where that has no price, or what garbage does."""
    if "unknown" in message:
        name = str(message["unknown"])[:60]
        if name == WAITS:
            raise Refused("the host waits for a result of the device: how long that takes is not known")
        raise Refused(f"{name} has no price: no public figure of it on a B200 is known here")
    name, overload = str(message["name"]), str(message["overload"])
    if not known(name) or not hasattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload):
        raise ValueError(f"{name} is no operation")
    kwargs = tuple((str(k), _checked(x)) for k, x in message["kwargs"])
    args, results = (tuple(map(_checked, message[key])) for key in ("args", "results"))
    return Operation(name, overload, bool(message["written"]), args, kwargs, results)


def _checked(x: dict) -> dict:
    ((kind, content),) = x.items()
    if kind in ("list", "tuple"):
        return {"list": [_checked(one) for one in content]}
    if kind == "tensor":
        numbers = {key: int(content[key]) for key in ("address", "bytes", "offset")}
        sizes = {key: [int(n) for n in content[key]] for key in ("shape", "stride")}
        if str(content["dtype"]) not in DTYPES or min([*numbers.values(), *sizes["shape"], *sizes["stride"]]) < 0:
            raise ValueError("no tensor")
        return {"tensor": numbers | sizes | {"dtype": str(content["dtype"])}}
    if kind == "dtype" and content in DTYPES or kind == "value" and (
        content is None or type(content) in (bool, int, float, str)
    ):  # fmt: skip
        return {kind: content}
    raise ValueError(f"an operation of {kind}")


def _tensors(x: dict) -> list[dict]:
    ((kind, content),) = x.items()
    return [content] if kind == "tensor" else [t for one in content for t in _tensors(one)] if kind == "list" else []


def _form(x: dict) -> object:
    ((kind, content),) = x.items()
    if kind == "tensor":
        return tuple(content["shape"]), tuple(content["stride"]), content["dtype"]
    return tuple(map(_form, content)) if kind == "list" else content


def priced(operations: list[Operation], launches: int) -> dict:
    """Says what the operations of a call come to (`priced` of a reply, ../JSON.md). Raises Refused."""
    found: dict[str, float] = {}
    count: Counter[str] = Counter()
    bound: dict[str, str] = {}
    for one in operations:
        us, by = one.price()
        name = one.name.removeprefix("aten::")
        largest = max((t["shape"] for x in one.results for t in _tensors(x)), key=math.prod, default=[])
        key = f"{name} {' x '.join(map(str, largest)) or '1'}"
        found[key] = found.get(key, 0.0) + us
        count[key] += 1
        bound[key] = by
    return {
        "us": sum(found.values()),
        "host_us": HOST_US[0] * (len(operations) + launches),
        "operations": [
            {"what": key, "count": count[key], "us": us, "bound_by": bound[key]}
            for key, us in sorted(found.items(), key=lambda item: -item[1])
        ],
    }
