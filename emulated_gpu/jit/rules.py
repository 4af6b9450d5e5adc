"""Rules: functions of numbers and arrays that run as Python, and as machine code, which comes from the same text.

A rule's arguments are integers of 64 bits without a sign, arrays in memory by their addresses, tuples of those, and
constants. In machine code each set of constants gives a function of its own: what hangs on constants alone is decided
when it is written. There a rule may have `if`, `for k in range(..)`, `for k in ones(mask)`, loops over
constants, which are written turn by turn, `return`, assignments, calls of rules, and of Python that computes with what
it is given. A slice `[a:a + n]` of an array, n constant, is a vector. Both sides of what has no branches (`where`, `&`)
are computed, not of `and`.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import functools
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .llvm import WORD, Code, Untranslated, Value, compiler, type_of, values_of, writer_of


def pointer(array: Any) -> int:
    try:  # a quarter of the time of the other way, but only for what may be written and lies in one piece
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):
        return array.__array_interface__["data"][0]


# -- arrays ------------------------------------------------------------------------------------------------------------
class Kind(NamedTuple):
    """What an array in memory is of. Called with an address, it gives the array."""

    bits: int
    real: bool = False

    def __call__(self, address) -> Array:
        return Array(self, address)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"{'f' if self.real else 'u'}{self.bits // 8}")


int8, int16, int32, int64, float32, float64 = Kind(8), Kind(16), Kind(32), Kind(64), Kind(32, True), Kind(64, True)


class Array:
    """Elements of a kind from an address on. One of them is an int of 64 bits, or a float; several are a vector."""

    __slots__ = ("kind", "address", "_base")

    def __init__(self, kind: Kind, address: Any):
        self.kind, self.address = kind, address
        if isinstance(address, Value):
            self._base = address.code.value(f"inttoptr {address} to ptr", 64, 0).text

    def at(self, index) -> Array:
        """The same from another element on."""
        return Array(self.kind, self.address + index * (self.kind.bits // 8))

    def _memory(self, first: Any, n: int) -> np.ndarray:
        memory: Any = (ctypes.c_char * (n * self.kind.bits // 8)).from_address(int(self.at(int(first)).address))
        return np.frombuffer(memory, self.kind.dtype)

    def _place(self, code: Code, index) -> str:
        bits, real = self.kind
        kind, index = type_of(bits, 0, real), code.shaped(index, WORD)
        return code.value(f"getelementptr {kind}, ptr {self._base}, {index}", 64, 0).text + f", align {bits // 8}"

    def __getitem__(self, index):
        (first, n), (bits, real) = _reach(index), self.kind
        if (code := writer_of(self, first)) is None:
            return self._memory(first, n).copy() if n else self._memory(first, 1)[0].item()
        found = code.value(f"load {type_of(bits, n, real)}, ptr {self._place(code, first)}", bits, n, real)
        return found if n or real else code.cast(found, 64)

    def __setitem__(self, index, value):
        (first, n), (bits, real) = _reach(index), self.kind
        if (code := writer_of(self, first)) is None:
            self._memory(first, n or 1)[:] = value if n or real else value & (1 << bits) - 1
            return
        value = code.shaped(value, Value("", bits, n, real, code))
        code.emit(f"store {value if real else code.cast(value, bits)}, ptr {self._place(code, first)}")


def _reach(index) -> tuple[Any, int]:
    """The first element and how many, 0 of one alone. index: of several a slice, or both of these."""
    if isinstance(index, slice):
        return index.start, index.stop - index.start
    return index if isinstance(index, tuple) else (index, 0)


# -- what rules call, beside operators ---------------------------------------------------------------------------------
def where(p, a, b):
    """p ? a : b, element by element; both are computed."""
    if (code := writer_of(p, a, b)) is None:
        return np.where(p, a, b) if isinstance(p, np.ndarray) else a if p else b
    p = code.constants(p) if isinstance(p, np.ndarray) else p
    if not isinstance(p, Value):
        return a if p else b
    a, b = (code.spread(v, p.vary) for v in code.pair(a, b))
    return code.value(f"select {p}, {a}, {b}", a.bits, a.vary, a.real)


def bits(mask) -> Any:
    """The elements of a mask, a bit each."""
    if isinstance(mask, Value):
        return mask.code.cast(mask.code.lanes_true(mask), 64)
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def real(x):
    """An integer with a sign as a float64."""
    return x.code.convert("sitofp", x, 64, True) if isinstance(x, Value) else float(x)


def trailing_zeros(x) -> Any:
    return count_ones(~x & (x - 1))


def ones(mask: int) -> Iterator[int]:
    """The numbers of the bits of a mask that are 1, to loop over."""
    while mask:
        yield trailing_zeros(mask)
        mask &= mask - 1


def count_ones(x) -> Any:
    if isinstance(x, np.ndarray):
        return np.array([v.bit_count() for v in x.tolist()], x.dtype)
    return x.code.intrinsic("ctpop", x) if isinstance(x, Value) else x.bit_count()


def room(n: int, kind: Kind = int64) -> Array:
    """Room for n elements, until the rule returns."""
    kept = np.zeros(n, kind.dtype)
    array = kind(pointer(kept))
    array._base = kept
    return array


# -- rules -------------------------------------------------------------------------------------------------------------
def _shape(x):
    """What tells arguments apart that need different machine code."""
    if isinstance(x, Value):
        return Value, x.bits, x.vary, x.real
    if isinstance(x, Array):
        return Array, x.kind, _shape(x.address)
    return (type(x), *map(_shape, x)) if isinstance(x, tuple) else (type(x), x)


def _rebuilt(x, values):
    """The same with other Values."""
    if isinstance(x, Value):
        return next(values)
    if isinstance(x, Array):
        return Array(x.kind, _rebuilt(x.address, values))
    if isinstance(x, tuple):
        each = [_rebuilt(e, values) for e in x]
        return type(x)(*each) if hasattr(x, "_fields") else tuple(each)
    return x


@functools.cache
def _functions(file: str) -> dict[str, ast.FunctionDef]:
    """The functions at the top of a file, by name."""
    return {node.name: node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.FunctionDef)}


class Rule:
    """A function as said above. Called with Values it writes a call of its machine code, else it runs."""

    lock = threading.RLock()
    __name__: str

    def __init__(self, function):
        self.function = function
        self.parts: dict[tuple, Writer] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments):
        if (code := writer_of(*arguments)) is None:
            return self.function(*arguments)
        with self.lock:
            if (key := _shape(arguments)) not in self.parts:
                self.parts[key] = Writer(self, arguments, f"{self.__name__}.{len(self.parts)}")
        part = self.parts[key]
        code.helpers.update(part.helpers)
        code.declarations.update(part.declarations)
        given = ", ".join(map(str, values_of(arguments)))
        return code.value(f"call {type_of(*part.result)} @{part.called}({given})", *part.result)

    @functools.cached_property
    def compiled(self) -> Callable[..., int]:
        """Machine code for Python, which gives it ints."""
        code, count = Code(), len(self.tree.args.args)
        code.define("block", (64,) * count, lambda *given: code.cast(self(*given), 64))
        return compiler().function(code.module(), count)

    @functools.cached_property
    def tree(self) -> ast.FunctionDef:
        return _functions(self.function.__code__.co_filename)[self.__name__]

    @functools.cached_property
    def assigned(self) -> dict[str, int]:
        """How often each name is; a parameter once more, by who calls."""
        names = (n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return Counter([n.id for n in names] + [a.arg for a in self.tree.args.args])


rule = Rule
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Div: operator.truediv, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.USub: operator.neg, ast.Invert: operator.invert, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


class Interpreter(Code):
    """Runs Python's text on Values, which writes instructions, and on constants, whose part is done at once. Who
    inherits says what names mean, `named` and `bind`, and what is done where it `returns`."""

    named: Any
    bind: Any
    returns: Any

    def __init__(self):
        super().__init__()
        self.heads: list[str] = []  # of what lies in memory
        self.local: dict[str, Any] = {}
        self.variables: dict[str, tuple[str, tuple[int, int, bool]]] = {}

    # -- statements --------------------------------------------------------------------------------------------
    def block(self, body: list[ast.stmt]) -> bool:
        """Write statements; returns whether what comes behind them is never reached."""
        return any(self.statement(node) for node in body)

    def statement(self, node: Any) -> bool | None:
        match node:
            case ast.Expr():
                self.expression(node.value)
            case ast.Assign(targets=[target]):
                self.assign(target, self.expression(node.value))
            case ast.AugAssign():
                self.assign(node.target, self.expression(ast.BinOp(node.target, node.op, node.value)))
            case ast.Return():
                self.returns(None if node.value is None else self.expression(node.value))
                return True
            case ast.If():
                return self.branches(node)
            case ast.For(iter=ast.Call(func=ast.Name(id="range" | "ones"))):
                self.count_up(node)
            case ast.For():
                for each in self.expression(node.iter):
                    self.local[ast.unparse(node.target)] = each
                    if self.block(node.body):
                        return True
            case _:
                raise Untranslated(ast.unparse(node))
        return None

    def branches(self, node: ast.If) -> bool:
        then, other, end = (self.name(what) for what in ("then", "else", "end"))
        known = self.decide(node.test, then, other)
        if known is not None:
            return self.block(node.body if known else node.orelse)
        gone = []
        for label, body in ((then, node.body), (other, node.orelse)):
            self.label(label)
            gone.append(self.block(body))
            if not gone[-1]:
                self.jump(end)
        if not all(gone):
            self.label(end)
        return all(gone)

    def decide(self, node: ast.expr, yes: str, no: str) -> bool | None:
        """Go to one of two labels; returns the answer instead if it is known. What comes behind `and` or `or` is
        computed only where it decides."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                known = self.decide(node.operand, no, yes)
                return None if known is None else not known
            case ast.BoolOp(op=op, values=[first, *more]):
                stops, on = isinstance(op, ast.Or), self.name("on")
                known = self.decide(first, *((yes, on) if stops else (on, no)))
                rest = ast.BoolOp(op, more) if len(more) > 1 else more[0]
                if known is not None:
                    return known if known == stops else self.decide(rest, yes, no)
                self.label(on)
                if (known := self.decide(rest, yes, no)) is not None:
                    self.jump(yes if known else no)
                return None
        value = self.expression(node)
        if not isinstance(value, Value):
            return bool(value)
        self.branch(value if value.bits == 1 else value != 0, yes, no)
        return None

    def truth(self, node: ast.expr) -> Any:
        """The answer as a value."""
        yes, no, end = (self.name(what) for what in ("yes", "no", "end"))
        known = self.decide(node, yes, no)
        if known is not None:
            return known
        for label in (yes, no):
            self.label(label)
            self.jump(end)
        self.label(end)
        return self.value(f"phi i1 [true, %{yes}], [false, %{no}]", 1, 0)

    def count_up(self, node: Any) -> None:
        """A loop over a range, or over the ones of a mask: what is left of it lies in memory."""
        ends, of_bits = [self.expression(a) for a in node.iter.args], node.iter.func.id == "ones"
        first, end, step = (0, *ends, 1) if len(ends) == 1 and not of_bits else (*ends, 1, 1)[:3]
        left, (head, inside, behind) = self.allocate("i64"), map(self.name, ("head", "body", "end"))
        self.emit(f"store {self.shaped(first, WORD)}, ptr {left}")
        self.jump(head)
        self.label(head)
        now = self.value(f"load i64, ptr {left}", 64, 0)
        self.branch(now != 0 if of_bits else now < end, inside, behind)
        self.label(inside)
        self.local[node.target.id] = trailing_zeros(now) if of_bits else now
        self.emit(f"store {now & (now - 1) if of_bits else now + step}, ptr {left}")
        if not self.block(node.body):
            self.jump(head)
        self.label(behind)

    def allocate(self, what: str) -> str:
        """Have room in memory for something, until the function returns."""
        name = f"%{self.name('a')}"
        self.heads.append(f"  {name} = alloca {what}")
        return name

    def assign(self, target: ast.expr, value) -> None:
        match target:
            case ast.Name(id=name):
                self.bind(name, value)
            case ast.Tuple(elts=each):
                for one, v in zip(each, value, strict=True):
                    self.assign(one, v)
            case ast.Subscript():
                self.expression(target.value)[self.expression(target.slice)] = value
            case _:
                raise Untranslated(ast.unparse(target))

    # -- expressions -------------------------------------------------------------------------------------------
    def expression(self, node: Any) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id=name):
                return self.named(name)
            case ast.Tuple() | ast.List():
                return tuple(map(self.expression, node.elts))
            case ast.Attribute():
                return getattr(self.expression(node.value), node.attr)
            case ast.Subscript():
                return self.expression(node.value)[self.expression(node.slice)]
            case ast.Slice(lower=ast.Constant(value=first), upper=ast.expr() as end):
                return first, self.expression(end) - first
            case ast.Slice(lower=ast.expr() as low, upper=ast.BinOp(left=left, op=ast.Add(), right=size)):
                if ast.dump(low) == ast.dump(left):
                    return self.expression(low), self.expression(size)
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
                return self.truth(node)
            case ast.BinOp(left=a, op=how, right=b) | ast.Compare(left=a, ops=[how], comparators=[b]):
                return OPERATORS[type(how)](self.expression(a), self.expression(b))
            case ast.UnaryOp():
                return OPERATORS[type(node.op)](self.expression(node.operand))
            case ast.IfExp():
                return self.expression(node.body if self.expression(node.test) else node.orelse)
            case ast.Call(func=called):
                function = self.expression(called)
                if function is room:
                    size, kind = (*map(self.expression, node.args), int64)[:2]
                    place = self.allocate(f"[{size} x {type_of(kind.bits, 0, kind.real)}], align 64")
                    return kind(self.value(f"ptrtoint ptr {place} to i64", 64, 0))
                options = {str(k.arg): self.expression(k.value) for k in node.keywords}
                return function(*map(self.expression, node.args), **options)
            case ast.Lambda():
                return functools.partial(self.apply, node)
        raise Untranslated(ast.unparse(node))

    def apply(self, function: ast.Lambda, *values) -> Any:
        outer, self.local = self.local, self.local | dict(zip([a.arg for a in function.args.args], values, strict=True))
        found = self.expression(function.body)
        self.local = outer
        return found


class Writer(Interpreter):
    """Writes one rule for some constants, behind what it calls. result: its type; what returns nothing returns 0."""

    def __init__(self, rule: Rule, arguments: tuple, called: str):
        super().__init__()
        self.rule, self.called = rule, called
        self.result: Any = None
        given = list(values_of(arguments))
        own = [Value(f"%p{k}", v.bits, v.vary, v.real, self) for k, v in enumerate(given)]
        for parameter, value in zip(rule.tree.args.args, _rebuilt(arguments, iter(own)), strict=True):
            self.bind(parameter.arg, value)
        if not self.block(rule.tree.body):
            self.result = self.result or (64, 0, False)
            self.emit(f"ret {type_of(*self.result)} zeroinitializer")
        self.lines[:0] = ["entry:", *self.heads]
        self.close(f"define internal {type_of(*self.result)} @{called}({', '.join(map(str, own))})")

    def named(self, name: str) -> Any:
        if name in self.local:
            return self.local[name]
        if name in self.variables:
            place, kind = self.variables[name]
            return self.value(f"load {type_of(*kind)}, ptr {place}", *kind)
        outside = self.rule.function.__globals__
        return outside[name] if name in outside else getattr(builtins, name)

    def bind(self, name: str, value: Any) -> None:
        """What is assigned once has its value; what changes lies in memory, of which LLVM makes registers."""
        if isinstance(value, np.ndarray) and self.rule.assigned[name] > 1:
            value = self.constants(value)
        if self.rule.assigned[name] == 1 or not isinstance(value, (int, float, Value)):
            self.local[name] = value
            return
        value, kind = self.typed(value)
        if name not in self.variables:
            self.variables[name] = self.allocate(type_of(*kind)), kind
            self.local.pop(name, None)
        place, before = self.variables[name]
        if before != kind:
            raise Untranslated(f"{name} of two types in {self.rule.__name__}")
        self.emit(f"store {value}, ptr {place}")

    def typed(self, value: Any) -> tuple[Value, tuple[int, int, bool]]:
        if not isinstance(value, Value):
            value = self.constant(value, 1 if isinstance(value, bool) else 64, 0, isinstance(value, float))
        return value, (value.bits, value.vary, value.real)

    def returns(self, value: Any) -> None:
        value, kind = self.typed(0 if value is None else value)
        if self.result not in (None, kind):
            raise Untranslated(f"results of two types of {self.rule.__name__}")
        self.result = kind
        self.emit(f"ret {value}")


class Later:
    """What `make` makes of rules, when what a process does without it has cost more than compiling will."""

    def __init__(self, make, cost: float):
        self.make, self.left = functools.cache(make), cost

    def __call__(self, cost: float = 1) -> Any:
        """It; None as long as it does not pay. cost: of one use in another way."""
        if self.left > 0:
            self.left -= cost
            return None
        return self.make()
