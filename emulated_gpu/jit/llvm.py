"""LLVM's assembly as text, and what makes machine code of it.

A value is of all lanes (LANES of them, `vary`) or one for all. Integers are unsigned, as NumPy's are: what does not fit
wraps. Python ints are constants of whatever width is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from dataclasses import dataclass

LANES = 32
REALS = {16: "half", 32: "float", 64: "double"}


class Untranslated(Exception):
    """Raised for what has no translation: it stays Python."""


@dataclass(frozen=True, slots=True)
class Value:
    """text: its name or literal in LLVM's assembly; real: a floating point number of so many bits."""

    text: str
    bits: int
    vary: bool
    real: bool = False

    @property
    def type(self) -> str:
        return type_of(self.bits, self.vary, self.real)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def type_of(bits: int, vary: bool, real: bool = False) -> str:
    one = REALS[bits] if real else f"i{bits}"
    return f"<{LANES} x {one}>" if vary else one


class Code:
    """A function that is being written, and what it declares. Operators take Values, and ints for constants."""

    def __init__(self):
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.count = 0

    # -- text --------------------------------------------------------------------------------------------------
    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def value(self, text: str, bits: int, vary: bool, real: bool = False) -> Value:
        name = f"%{self.name()}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, bits, vary, real)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def branch(self, condition: Value, there: str, here: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{there}, label %{here}")

    def jump(self, to: str) -> None:
        self.emit(f"br label %{to}")

    # -- constants, shapes, types ------------------------------------------------------------------------------
    @staticmethod
    def constant(value: int, bits: int, vary: bool = False) -> Value:
        value = int(value) & ((1 << bits) - 1)
        one = str(value) if bits > 1 else ("true" if value else "false")
        return Value(f"splat (i{bits} {one})" if vary else one, bits, vary)

    def real(self, value: float, bits: int, vary: bool) -> Value:
        """A constant number, which a float of so many bits represents exactly."""
        one = f"0x{int.from_bytes(bytes(ctypes.c_double(value)), 'little'):016X}"
        return Value(f"splat ({REALS[bits]} {one})" if vary else one, bits, vary, True)

    def spread(self, v: Value) -> Value:
        """The same value in all lanes."""
        if v.vary:
            return v
        if v.text[0] != "%":
            one = f"{type_of(v.bits, False, v.real)} {v.text}"
            return Value(f"splat ({one})", v.bits, True, v.real)
        wide = type_of(v.bits, True, v.real)
        first = self.value(f"insertelement {wide} poison, {v}, i32 0", v.bits, True, v.real)
        mask = f"<{LANES} x i32> zeroinitializer"
        return self.value(f"shufflevector {first}, {wide} poison, {mask}", v.bits, True, v.real)

    def cast(self, v: Value | int, bits: int, sign: bool = False) -> Value:
        """An integer in another width: cut, or extended by zeros or its sign."""
        if isinstance(v, int):
            return self.constant(v, bits)
        if v.bits == bits:
            return v
        how = "trunc" if bits < v.bits else "sext" if sign else "zext"
        return self.value(f"{how} {v} to {type_of(bits, v.vary)}", bits, v.vary)

    def alike(self, *values: Value | int, bits: int = 0) -> list[Value]:
        """The values in one shape and the width of the widest, or `bits`; of ints alone, 64 bits."""
        known = [v for v in values if isinstance(v, Value)]
        bits = bits or max((v.bits for v in known), default=64)
        vary = any(v.vary for v in known)
        out = [self.cast(v, bits) if isinstance(v, Value) else self.constant(v, bits, vary) for v in values]
        return [self.spread(v) for v in out] if vary else out

    def as_real(self, v: Value) -> Value:
        """Bits as the number that they stand for."""
        return self.value(f"bitcast {v} to {type_of(v.bits, v.vary, True)}", v.bits, v.vary, True)

    def as_bits(self, v: Value) -> Value:
        return self.value(f"bitcast {v} to {type_of(v.bits, v.vary)}", v.bits, v.vary)

    # -- operations --------------------------------------------------------------------------------------------
    def binary(self, what: str, a: Value | int, b: Value | int, bits: int = 0) -> Value:
        """An operation on two integers, or on two numbers: add, sub, mul, and, or, xor, udiv; fadd, fmul, ..."""
        if not (isinstance(a, Value) and a.real):
            a, b = self.alike(a, b, bits=bits)
        elif a.vary != b.vary:
            a, b = self.spread(a), self.spread(b)
        return self.value(f"{what} {a}, {b.text}", a.bits, a.vary, a.real)

    def shift(self, what: str, a: Value | int, n: Value | int) -> Value:
        """shl, lshr or ashr; the amount must be less than the width, but a constant may be anything."""
        if isinstance(n, int) and isinstance(a, Value):
            if n >= a.bits:
                if what != "ashr":
                    return self.constant(0, a.bits, a.vary)
                n = a.bits - 1
            return self.value(f"{what} {a}, {self.constant(n, a.bits, a.vary).text}", a.bits, a.vary)
        a, n = self.alike(a, n)
        return self.value(f"{what} {a}, {n.text}", a.bits, a.vary)

    def compare(self, how: str, a: Value | int, b: Value | int, bits: int = 0) -> Value:
        """icmp eq, ult, slt, ... of integers, fcmp oeq, uno, ... of numbers: one bit."""
        if isinstance(a, Value) and a.real:
            if a.vary != b.vary:
                a, b = self.spread(a), self.spread(b)
            return self.value(f"fcmp {how} {a}, {b.text}", 1, a.vary)
        a, b = self.alike(a, b, bits=bits)
        return self.value(f"icmp {how} {a}, {b.text}", 1, a.vary)

    def choose(self, p: Value, a: Value | int, b: Value | int, bits: int = 0) -> Value:
        """p ? a : b, of all lanes where one of the three is."""
        if not (isinstance(a, Value) and a.real):
            a, b = self.alike(a, b, bits=bits)
        if p.vary or a.vary or b.vary:
            a, b = self.spread(a), self.spread(b)
        return self.value(f"select {p}, {a}, {b}", a.bits, a.vary, a.real)

    def invert(self, p: Value) -> Value:
        return self.binary("xor", p, 1)

    def intrinsic(self, what: str, *values: Value, flags: str = "", result: Value | None = None) -> Value:
        """llvm.WHAT of values of one shape. flags: constant arguments behind them; result: of which type it is."""
        if any(v.vary for v in values):
            values = tuple(self.spread(v) for v in values)
        first = values[0]
        one = ("f" if first.real else "i") + str(first.bits)
        suffix = f"v{LANES}{one}" if first.vary else one
        out = result or first
        if result is not None:  # a conversion names both types
            to = ("f" if out.real else "i") + str(out.bits)
            suffix = (f"v{LANES}{to}" if first.vary else to) + "." + suffix
        name = f"@llvm.{what}.{suffix}"
        kind = type_of(out.bits, first.vary, out.real)
        types = [v.type for v in values] + [f.split()[0] for f in flags.split(", ") if f]
        self.declarations[name] = f"declare {kind} {name}({', '.join(types)})"
        arguments = ", ".join([*map(str, values), *([flags] if flags else [])])
        return self.value(f"call {kind} {name}({arguments})", out.bits, first.vary, out.real)

    def lanes_true(self, p: Value) -> Value:
        """The lanes in which p holds, a bit each."""
        return self.value(f"bitcast {self.spread(p)} to i{LANES}", LANES, False)


# -- the compiler ------------------------------------------------------------------------------------------------------
class Compiler:
    """LLVM for this machine, loaded when the first block is hot."""

    def __init__(self):
        import llvmlite.binding as llvm  # here, as most launches do not need it

        self.llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=1
        )
        self.has_halves = bool(features.get("f16c")) or bool(features.get("fullfp16"))
        self.engines = []

    def function(self, text: str) -> int:
        """Compile a module; returns the address of its function `block`."""
        llvm = self.llvm
        module = llvm.parse_assembly(text)
        module.verify()
        with contextlib.closing(llvm.create_pass_builder(self.machine, llvm.create_pipeline_tuning_options(1))) as b:
            with contextlib.closing(b.getModulePassManager()) as passes:
                passes.run(module, b)
        engine = llvm.create_mcjit_compiler(module, self.machine)
        engine.finalize_object()
        self.engines.append(engine)  # which holds the code
        return engine.get_function_address("block")


@functools.cache
def compiler() -> Compiler | None:
    """The process's compiler; None where llvmlite is not installed, and all blocks stay Python."""
    try:
        return Compiler()
    except ImportError:
        return None
