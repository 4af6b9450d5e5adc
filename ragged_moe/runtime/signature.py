"""`Signature`: what a call takes, declared once. Checks, their sentences, fake kernels and torch's schemas follow.

    Signature("scaled_rows", (Tensor("rows", (BF16,), "T H", aligned=True), Tensor("scale", (F32,), "H/128 T")),
              (Size("T", "rows", 0, 1, 0, 65536), Size("H", "rows", 1, 128, 128, MAX_ROWS)),
              (flag("negate"),), (Result((BF16,), "T H"),))

takes rows bf16 [T, H] and scale f32 [H/128, T], and has the schema
`scaled_rows(Tensor rows, Tensor scale, *, bool negate=False) -> Tensor`.
"""

import dataclasses
import functools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch

from ragged_moe.runtime.device import Device
from ragged_moe.runtime.operands import (
    Operand,
    addresses,
    complain,
    contiguous,
    is_int,
    of_any_strides,
    require,
    require_apart,
    require_together,
    said,
)

# of a shape: "2I/128" is 2 * I / 128, "H^128/2" half of H rounded up to a multiple of 128, "E+1" is E + 1
TERM = re.compile(r"(?P<times>\d*)(?P<letter>[A-Za-z_]*)(\^(?P<up>\d+))?(/(?P<over>\d+))?(\+(?P<plus>\d+))?")


class Tensor(NamedTuple):
    """Declares an operand.

    dtypes: any of them. shape: of sizes by letters, "E 2I/128 H/128"; of several forms, "E | E 2", the one that has as
    many dimensions. aligned: it begins at a multiple of the signature's bytes. any_strides: else it is contiguous.
    because: what its sentences end with.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    shape: str
    aligned: bool = False
    optional: bool = False
    any_strides: bool = False
    because: str = ""

    @property
    def torch_type(self) -> str:
        """As torch's schemas say it."""
        return "Tensor?" if self.optional else "Tensor"

    @property
    def default(self) -> str:
        return "=None" if self.optional else ""

    def form(self, dims: int) -> tuple[str, ...]:
        """The terms of the shape of this many dimensions, else of the first one."""
        forms = [tuple(x.split()) for x in self.shape.split("|")]
        return next((x for x in forms if len(x) == dims), forms[0])


class Size(NamedTuple):
    """Declares the size of a letter: `times / over` of a dimension of an operand, with its limits.

    There is none where an optional operand is not given, or has not as many dimensions.
    """

    letter: str
    operand: str
    dimension: int
    multiple: int
    least: int
    most: int
    times: int = 1
    over: int = 1

    def of(self, operand: torch.Tensor) -> int:
        """The size, of the operand."""
        return operand.shape[self.dimension] * self.times // self.over


class Option(NamedTuple):
    """Declares an argument that is no tensor. must: what its sentence says after "but must be"."""

    name: str
    torch_type: str
    default: str
    must: str
    good: Callable[[object], bool]

    def check(self, x: object) -> None:
        """ValueError unless x is as it must be."""
        if not self.good(x):
            raise self.complaint(x)

    def complaint(self, x: object) -> ValueError:
        """What is said of such an argument."""
        return ValueError(f"{self.name} is {said(x)}, but must be {self.must}")


class Result(NamedTuple):
    """Declares what a call returns."""

    dtype: torch.dtype
    shape: str


def flag(name: str, default: bool = False) -> Option:
    """A bool and nothing else: "no" would count as true."""
    return Option(name, "bool", f"={default}", "True or False", lambda x: type(x) is bool)


def whole(name: str, must: str, default: str = "", least: int | None = None) -> Option:
    """An int; from `least` on, if there is one. It may be None if that is the default."""
    optional = default == "=None"
    return Option(name, "SymInt?" if optional else "SymInt", default, must,
                  lambda x: optional and x is None or is_int(x) and (least is None or x >= least))  # fmt: skip


def number(name: str, default: str, must: str = "a finite number", above: float = -math.inf) -> Option:
    """A finite number of the host's; above `above`. It may be None if that is the default."""
    optional = default == "=None"

    def good(x: object) -> bool:
        is_number = isinstance(x, numbers.Real) and not isinstance(x, bool)
        return optional and x is None or is_number and math.isfinite(x) and x > above

    return Option(name, "float?" if optional else "float", default, must, good)


@functools.cache
def term(text: str) -> Callable[[Mapping[str, int]], int]:
    """The size that a term of a shape stands for, of sizes by letters."""
    part = TERM.fullmatch(text).groupdict()
    times, up, over, plus = (int(part[x] or y) for x, y in (("times", 1), ("up", 1), ("over", 1), ("plus", 0)))
    letter = part["letter"]
    if not letter:
        return lambda of: times
    if up == 1:
        return lambda of: times * of[letter] // over + plus
    return lambda of: times * (-(-of[letter] // up) * up) // over + plus


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """What a call takes. tensors: the operands, of which `leads`, or the first, says on which GPU all are.

    sizes: of letters, from dimensions of operands. positional: options, and operands that may be None, that are given
    without their names. form:
    what the operands are called together, where a call takes several forms. pairs: optional operands that are given
    both or neither. multiple: of how many bytes the addresses of aligned operands are one. out: the argument that may
    be what the result is written to, which may lie in the memory of the operand `overwritable`, in no other's; without
    it a call makes new tensors, if it `makes_results`.
    """

    name: str
    tensors: tuple[Tensor, ...]
    sizes: tuple[Size, ...]
    options: tuple[Option, ...] = ()
    results: tuple[Result, ...] = ()
    positional: tuple[str, ...] = ()
    form: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    multiple: int = 16
    out: str = ""
    overwritable: str = ""
    makes_results: bool = True
    leads: str = ""

    @property
    def first(self) -> str:
        """The operand that says on which GPU all are."""
        return self.leads or self.tensors[0].name

    def replace(self, form: str, sizes: Iterable[Size] = (), leave_out: str = "", multiple: int = 16, **tensors):
        """Return the signature of another form: these operands are declared otherwise, or left out."""
        made = tuple(tensors.get(x.name, x) for x in self.tensors if x.name not in leave_out.split())
        by_letter = {x.letter: x for x in (*self.sizes, *sizes)}
        return dataclasses.replace(self, tensors=made, sizes=tuple(by_letter.values()), form=form, multiple=multiple)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the operands."""
        return tuple(x.name for x in self.tensors)

    @functools.cached_property
    def leading(self) -> tuple[str, ...]:
        """The arguments that may be given without their names, in order."""
        named = [*self.tensors, *self.options]
        return tuple(x.name for x in named if isinstance(x, Tensor) and not x.optional or x.name in self.positional)

    # torch's operator

    def schema(self, out: bool = False) -> str:
        """The operator's, `NAME(arguments) -> results`; the one that writes to `out` has that first."""
        named = [*self.tensors, *self.options]
        keywords = [x for x in named if x.name not in self.leading]
        leading = [x for x in named if x.name in self.leading]
        first = [f"{x.torch_type} {x.name}{x.default * isinstance(x, Option)}" for x in leading]
        said = [first, [f"{x.torch_type} {x.name}{x.default}" for x in keywords]]
        arguments = [*["Tensor(a!) out"] * out, *said[0], *(["*", *said[1]] if said[1] else [])]
        results = ["Tensor"] * len(self.results) * (not out)
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"{self.name}{'_out' * out}({', '.join(arguments)}) -> {returned}"

    def fake(self, *given, to: torch.Tensor | None = None, **options):
        """What the operator returns of tensors that torch traces: new ones. ValueError if one is on another device.

        to: what it writes to, if it returns nothing.
        """
        found = dict(zip(self.leading, given)) | options
        for name, x in (*found.items(), (self.out, to)):
            if isinstance(x, torch.Tensor):
                require_together(name, x, (found[self.first], self.first))
        letters = {x.letter: x.of(found[x.operand]) for x in self.sizes if self.has(found, x)}
        letters |= {x.name: found.get(x.name) for x in self.options if x.name in self.positional}
        made = self.made(letters, found[self.first].device)
        return made if len(made) != 1 else made[0]

    def made(self, letters: Mapping[str, int], device: torch.device) -> tuple[torch.Tensor, ...]:
        """New tensors for the results."""
        return tuple(torch.empty([term(x)(letters) for x in shape.split()], dtype=dtype, device=device)
                     for dtype, shape in self.results)  # fmt: skip

    # checks

    def check_options(self, **given) -> None:
        """ValueError that says which option is not as it must be."""
        for option in self.options:
            if option.name in given:
                option.check(given[option.name])

    def letters(self, given: Mapping[str, torch.Tensor | None]) -> dict[str, int]:
        """The sizes of these operands by letters; ValueError if one is beyond its limits, or cannot be told."""
        there = [x for x in self.sizes if self.has(given, x)]
        for x in there:
            self.check_dims(x.operand, given[x.operand])
        found = {x.letter: x.of(given[x.operand]) for x in there}
        self.require(**found)
        return found

    def has(self, given: Mapping[str, torch.Tensor | None], of: Size) -> bool:
        """Whether these operands have this size: those that must be given are taken to have theirs."""
        declared, tensor = self.tensors[self.names.index(of.operand)], given.get(of.operand)
        if not declared.optional:
            return True
        return tensor is not None and (not isinstance(tensor, torch.Tensor) or tensor.dim() > of.dimension)

    def check_dims(self, name: str, tensor: torch.Tensor | None) -> None:
        """ValueError unless this is a tensor of as many dimensions as the operand has."""
        declared = self.tensors[self.names.index(name)]
        dims = tensor.dim() if isinstance(tensor, torch.Tensor) else -1
        if len(declared.form(dims)) != dims:
            raise ValueError(f"{name} must be a tensor [{', '.join(declared.form(dims))}]{declared.because}")

    def check_dtype(self, name: str, dtype: torch.dtype) -> None:
        """ValueError unless this is a type that the operand may have."""
        declared = self.tensors[self.names.index(name)]
        if dtype not in declared.dtypes:
            must = " or ".join(map(str, declared.dtypes))
            raise ValueError(f"{name} has type {dtype}, but must have {must}{declared.because}")

    def require(self, **letters: int) -> None:
        """ValueError unless these sizes are within their limits."""
        for x in self.sizes:
            if x.letter in letters:
                require(x.operand, x.letter, letters[x.letter], x.multiple, x.least, x.most)

    def expected(self, letters: Mapping[str, int], dims: Mapping[str, int] = {}, **dtypes) -> tuple[Operand, ...]:
        """Say what each operand must be. dims: the number of dimensions of an operand with several forms.

        dtypes: of operands that may have several, and of optional ones; an optional operand without one is left out.
        """
        return expected(self, tuple(letters.items()), tuple(dims.items()), tuple(dtypes.items()))

    def check(self, gpu: Device, given: Mapping[str, torch.Tensor | None]) -> dict[str, int]:
        """The sizes by letters; ValueError that says which operand is not as it must be, or not in the GPU's memory."""
        for name, tensor in given.items():
            if tensor is not None and name not in self.names:
                raise ValueError(f"{name} is given, but {self.form} have no use for it")
        for one, other in self.pairs:
            if (given[one] is None) != (given[other] is None):
                raise ValueError(f"{one} and {other} must be given both or neither")
        letters = self.letters(given)
        there = [x for x in self.tensors if not x.optional or given[x.name] is not None]
        dims, dtypes = {}, {}
        for x in there:
            tensor = given[x.name]
            dtypes[x.name] = getattr(tensor, "dtype", x.dtypes[0])
            self.check_dtype(x.name, dtypes[x.name])
            if x.because and isinstance(tensor, torch.Tensor):
                self.check_dims(x.name, tensor)
            if "|" in x.shape and isinstance(tensor, torch.Tensor):
                dims[x.name] = tensor.dim()
        first = given[self.first], self.first
        rows = dict(zip((x.name for x in there), self.expected(letters, dims, **dtypes)))
        plain = [x for x in there if not x.any_strides]
        tensors, operands = [given[x.name] for x in plain], [rows[x.name] for x in plain]
        complain(tensors, operands, first)
        addresses(gpu, tensors, operands, [i for i, x in enumerate(plain) if x.aligned], self.multiple)
        for x in there:
            if x.any_strides:
                of_any_strides(x.name, given[x.name], rows[x.name].dtype, rows[x.name].shape, first[0], gpu)
        return letters

    def check_out(
        self, gpu: Device, out: torch.Tensor, letters: Mapping[str, int], given: Mapping[str, torch.Tensor | None]
    ) -> None:
        """ValueError unless the result can be written to `out`, and no operand that may still be read lies there."""
        ((dtype, shape),) = self.results
        expected = (contiguous(self.out, dtype, *(term(x)(letters) for x in shape.split())),)
        complain((out,), expected, (given[self.first], self.first))
        addresses(gpu, (out,), expected, (0,))
        require_apart(self.out, out, ((name, x) for name, x in given.items() if name != self.overwritable))

    def check_workspace(
        self, gpu: Device, workspace: torch.Tensor, least: int, given: Mapping[str, torch.Tensor | None]
    ) -> None:
        """ValueError unless a call can use this memory, of this many bytes or more. given: all else that it touches."""
        first = given[self.first], self.first
        if not isinstance(workspace, torch.Tensor):
            raise ValueError(f"workspace is {said(workspace)}, but must be a tensor")
        expected = (contiguous("workspace", torch.uint8, *workspace.shape),)
        complain((workspace,), expected, first)
        if workspace.numel() < least:
            raise ValueError(f"workspace has {workspace.numel()} bytes, but must have {least} for this call")
        addresses(gpu, (workspace,), expected, (0,))
        require_apart("workspace", workspace, given.items())


@functools.lru_cache(maxsize=4096)
def expected(signature: Signature, letters: tuple, dims: tuple, dtypes: tuple) -> tuple[Operand, ...]:
    """`Signature.expected`, of the operands that have a type in `dtypes`, or of all that are not optional."""
    sizes, of_dims, types = dict(letters), dict(dims), dict(dtypes)
    there = [x for x in signature.tensors if x.name in types or not x.optional]
    return tuple(
        contiguous(x.name, types.get(x.name, x.dtypes[0]), *(term(y)(sizes) for y in x.form(of_dims.get(x.name, -1))))
        for x in there
    )
