"""LLVM's assembly as text, and what makes machine code of it.

A value is of all lanes (LANES of them, `vary`) or one for all. Integers are unsigned, as NumPy's are: what does not fit
wraps. Python ints are constants of whatever width is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import build_cache

LANES = 32
# All that pays: with LLVM's own first level (-O1) code is no faster, and a module takes twice as long
PASSES = (
    "sroa", "instruction_combine", "sroa", "simplify_cfg", "loop_rotate", "new_gvn", "instruction_combine",
    "simplify_cfg", "dead_store_elimination",
)  # fmt: skip
REALS = {16: "half", 32: "float", 64: "double"}


class Untranslated(Exception):
    """Raised for what has no translation: it stays Python."""


def _operator(integers: str, reals: str = "", swapped: bool = False) -> Any:
    compares = "cmp" in integers

    def apply(self: Value, other):
        a, b = self.code.pair(*((other, self) if swapped else (self, other)))
        what = reals if a.real else integers
        return self.code.value(f"{what} {a}, {b.text}", 1 if compares else a.bits, a.vary, a.real and not compares)

    return apply


def _both(integers: str, reals: str = "") -> Any:
    """An operator of a Value with something on its right, and with something on its left."""
    return _operator(integers, reals), _operator(integers, reals, swapped=True)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """text: its name or literal in LLVM's assembly; vary: how many values it is of, 0: one; real: a floating point
    number of this many bits; code: what computes it.

    Python's operators write instructions. One value beside a vector takes the width of its elements.
    """

    text: str
    bits: int
    vary: int
    real: bool = False
    code: Any = None

    __array_ufunc__ = None  # a constant array on the left leaves it to us
    __add__, __radd__ = _both("add", "fadd")
    __sub__, __rsub__ = _both("sub", "fsub")
    __mul__, __rmul__ = _both("mul", "fmul")
    __truediv__, __rtruediv__ = _both("", "fdiv")
    __floordiv__, __rfloordiv__ = _both("udiv")
    __mod__, __rmod__ = _both("urem")
    __and__, __rand__ = _both("and")
    __or__, __ror__ = _both("or")
    __xor__, __rxor__ = _both("xor")
    __lshift__, __rlshift__ = _both("shl")
    __rshift__, __rrshift__ = _both("lshr")
    __lt__, __le__ = _operator("icmp ult", "fcmp olt"), _operator("icmp ule", "fcmp ole")
    __gt__, __ge__ = _operator("icmp ugt", "fcmp ogt"), _operator("icmp uge", "fcmp oge")
    __eq__, __ne__ = _operator("icmp eq", "fcmp oeq"), _operator("icmp ne", "fcmp une")
    __hash__ = object.__hash__  # a value is itself alone

    @property
    def type(self) -> str:
        return type_of(self.bits, self.vary, self.real)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def __bool__(self):
        raise Untranslated("a choice that is not known when it is compiled: where() computes both")

    def __getitem__(self, k: int) -> Value:
        one = self.code.value(f"extractelement {self}, i32 {k}", self.bits, 0, self.real)
        return one if self.real else self.code.cast(one, 64)

    def any(self) -> Value:
        return self.code.lanes_true(self) != 0

    def all(self) -> Value:
        return self.code.lanes_true(self) == -1

    def __neg__(self):
        return self.code.value(f"fneg {self}", self.bits, self.vary, True) if self.real else 0 - self

    def __abs__(self):
        return self.code.intrinsic("fabs", self)

    def __invert__(self):
        return self ^ -1


WORD = Value("", 64, 0)  # of whose shape most are


def type_of(bits: int, vary: int, real: bool = False) -> str:
    one = REALS[bits] if real else f"i{bits}"
    return f"<{LANES if vary is True else vary} x {one}>" if vary else one


PLAIN = {int, bool, float, str, type(None), np.ndarray}


def values_of(x) -> Iterator[Value]:
    """The Values in something that may be or hold some."""
    if isinstance(x, Value):
        yield x
    elif isinstance(x, tuple):
        for each in x:
            yield from values_of(each)
    elif isinstance(inner := getattr(x, "address", None), Value):
        yield inner


def writer_of(*things) -> Any:
    """Who computes the Values among things; None where there are none, and Python computes."""
    for x in things:
        if type(x) not in PLAIN:  # in Python every rule and every instruction asks
            for v in values_of(x):
                return v.code
    return None


class Code:
    """A function that is being written, and what it declares. Operators take Values, and ints for constants."""

    def __init__(self):
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.helpers: dict[str, str] = {}  # functions that it calls
        self.count = 0

    # -- text --------------------------------------------------------------------------------------------------
    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def value(self, text: str, bits: int, vary: int, real: bool = False) -> Value:
        name = f"%{self.name()}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, bits, LANES if vary is True else vary, real, self)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def branch(self, condition: Value, there: str, here: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{there}, label %{here}")

    def jump(self, to: str) -> None:
        self.emit(f"br label %{to}")

    def close(self, head: str) -> None:
        """Make a function of this head of the lines so far."""
        self.helpers[head], self.lines = "\n".join([f"{head} {{", *self.lines, "}"]), []

    def define(self, name: str, kinds: Sequence[int], body: Callable[..., Value]) -> None:
        """Make a function that others find, of integers of `kinds` of bits; it returns what `body` gives for them."""
        given = [Value(f"%p{k}", bits, 0, False, self) for k, bits in enumerate(kinds)]
        result = body(*given)
        self.emit(f"ret {result}")
        self.close(f"define {result.type} @{name}({', '.join(map(str, given))})")

    def module(self) -> str:
        """The text of all of it."""
        return "\n".join([*self.declarations.values(), *self.helpers.values()])

    # -- constants, shapes, types ------------------------------------------------------------------------------
    def constant(self, value: Any, bits: int, vary: int = 0, real: bool = False) -> Value:
        """A constant; a real one is represented exactly by floats of this many bits."""
        one = f"0x{struct.pack('>d', value).hex()}" if real else str(int(value) & (1 << bits) - 1)
        return Value(f"splat ({type_of(bits, 0, real)} {one})" if vary else one, bits, vary, real, self)

    def constants(self, array: np.ndarray) -> Value:
        """A vector of known elements."""
        bits, real = 1 if array.dtype == bool else 8 * array.itemsize, array.dtype.kind == "f"
        each = ", ".join(str(self.constant(v, bits, 0, real)) for v in array)
        return Value(f"<{each}>", bits, len(array), real, self)

    def pair(self, *values) -> tuple[Value, ...]:
        """Operands in the type of one of them, constants as words."""
        each = [self.constants(v) if isinstance(v, np.ndarray) else v for v in values]
        given = [v for v in each if isinstance(v, Value)]
        like = max(given, key=lambda v: (v.real, v.vary, v.bits), default=WORD)
        return tuple(self.shaped(v, like) for v in each)

    def shaped(self, v, like: Value) -> Value:
        """A value in the type of another one, or as it is if it is a vector or wider; it becomes no other number."""
        if not isinstance(v, Value):
            return self.constant(v, like.bits, like.vary, like.real)
        if not v.real and not like.real and (like.vary and not v.vary or v.bits < like.bits):
            v = self.cast(v, like.bits)
        return self.spread(v, like.vary)

    def spread(self, v: Value, n: int = LANES) -> Value:
        """The same value in all of n lanes, as it is for none."""
        if v.vary or not n:
            return v
        if v.text[0] != "%":
            one = f"{type_of(v.bits, False, v.real)} {v.text}"
            return Value(f"splat ({one})", v.bits, n, v.real, self)
        wide = type_of(v.bits, n, v.real)
        first = self.value(f"insertelement {wide} poison, {v}, i32 0", v.bits, n, v.real)
        mask = f"<{n} x i32> zeroinitializer"
        return self.value(f"shufflevector {first}, {wide} poison, {mask}", v.bits, n, v.real)

    def cast(self, v: Value | int, bits: int, sign: bool = False) -> Value:
        """An integer in another width: cut, or extended by zeros or its sign."""
        if not isinstance(v, Value):
            return self.constant(v, bits)
        if v.bits == bits:
            return v
        return self.convert("trunc" if bits < v.bits else "sext" if sign else "zext", v, bits)

    def convert(self, how: str, v: Value, bits: int, real: bool = False) -> Value:
        """What LLVM's instruction of this name makes of a value, of this many bits."""
        return self.value(f"{how} {v} to {type_of(bits, v.vary, real)}", bits, v.vary, real)

    # -- operations --------------------------------------------------------------------------------------------
    def intrinsic(self, what: str, *values) -> Value:
        """llvm.WHAT of operands of one shape, as which its result is."""
        out, *_ = values = self.pair(*values)
        name = f"@llvm.{what}.{f'v{out.vary}' if out.vary else ''}{'f' if out.real else 'i'}{out.bits}"
        self.declarations[name] = f"declare {out.type} {name}({', '.join(v.type for v in values)})"
        return self.value(f"call {out.type} {name}({', '.join(map(str, values))})", out.bits, out.vary, out.real)

    def lanes_true(self, p: Value) -> Value:
        """The lanes in which p holds, a bit each."""
        p = self.spread(p)
        return self.value(f"bitcast {p} to i{p.vary}", p.vary, 0)


# -- the compiler ------------------------------------------------------------------------------------------------------
class Compiler:
    """LLVM for this machine, loaded when the first block is hot. What it has compiled it keeps for other processes."""

    def __init__(self):
        import llvmlite  # here, as most launches do not need it
        import llvmlite.binding as llvm

        self.llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=1
        )
        made_by = llvmlite.__version__, llvm.llvm_version_info, llvm.get_host_cpu_name(), features.flatten(), PASSES
        self.folder = f"machine-code-{hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]}"
        self.has_halves = bool(features.get("f16c")) or bool(features.get("fullfp16"))
        self.engines = []

    def function(self, text: str, count: int = 1) -> Callable[..., int]:
        """Compile a module; returns its function `block` of `count` ints: as addresses Python passes them fastest."""
        address = self.loaded(self.compiled(text)).get_function_address("block")
        return ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * count)(address)

    def export(self, name: str, text_of: Callable[[], str]) -> None:
        """Compile a function that all modules behind this one may call by its name. text_of: gives its module, which
        is the same as long as its writers are."""
        engine = self.loaded(self.kept(name, lambda: self.compiled(text_of())))
        self.llvm.add_symbol(name, engine.get_function_address(name))

    def kept(self, what: str, make: Callable[[], bytes]) -> bytes:
        """What `make` gives of `what` and of nothing else but the sources, unless a process has made it before."""
        return build_cache.taken(self.folder, hashlib.sha256(_sources() + what.encode()).hexdigest(), make)

    def compiled(self, text: str) -> bytes:
        """Compile a module, unless a process has before; returns its object file."""
        name = hashlib.sha256(text.encode()).hexdigest()
        return build_cache.taken(self.folder, name, lambda: self.machine_code(text))

    def loaded(self, code: bytes):
        """Return the engine of an object file."""
        engine = self.llvm.create_mcjit_compiler(self.llvm.parse_assembly(""), self.machine)
        engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self.engines.append(engine)  # which holds the code
        return engine

    def machine_code(self, text: str) -> bytes:
        """Return the object file of a module."""
        llvm = self.llvm
        module = llvm.parse_assembly(text)
        module.verify()
        passes = llvm.create_new_module_pass_manager()
        for name in PASSES:
            getattr(passes, f"add_{name}_pass")()
        passes.run(module, llvm.create_pass_builder(self.machine, llvm.create_pipeline_tuning_options(1)))
        return self.machine.emit_object(module)


@functools.cache
def _sources() -> bytes:
    """All that the text of rules depends on, hashed: what is below native/, and that."""
    rooms = (Path(__file__).parents[1] / room for room in ("jit", "formats", "ptx", "state", "native"))
    files = (file.read_bytes() for room in rooms for file in sorted(room.rglob("*.py")))
    return hashlib.sha256(b"\0".join(files)).digest()


@functools.cache
def compiler() -> Compiler:
    """The process's compiler."""
    return Compiler()
