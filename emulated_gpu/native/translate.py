"""One instruction: from the Python that its handler wrote to LLVM's assembly.

That Python is assignments of expressions over registers (`r5`), temporaries, constants and calls, `if` for a guard, and
`return` where a block ends. It means here what it means for NumPy's unsigned arrays, as all that handlers write.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formats import alu, convert, lanes, texels
from ..jit.llvm import LANES, Untranslated, Value, type_of, writer_of
from ..jit.rules import Array, Interpreter, float64, int16, int32, rule, where
from ..state.images import OBJECTS
from ..state.lanes import EPOCHS, LANE_BITS, STRIDE
from . import access, textures

FORMATS = {"alu": alu, "convert": convert, "lanes": lanes}
KNOWN = {"select": alu.select, "computes_mma": True}  # machine code does not run where the clock moves no data
ROOM = 32 * LANES  # bytes, of which any access of a warp has place
# State spaces, and the one whose ranges of addresses are looked through: generic addresses elsewhere are left to Python
WINDOWS = {"shared": "shared", "global": "global", "generic": "global", "local": "local"}


# Of ldmatrix, for which lanes load rows of 16 bytes, the lower halves of all, then the upper ones: where among them the
# elements of its registers lie, and of transposed matrices
ROWS = np.arange(2 * LANES * 4, dtype=np.int32).reshape(2, LANES, 4).swapaxes(0, 1).reshape(4, 8, 8)
PLACES = ROWS.ravel(), ROWS.swapaxes(1, 2).ravel()


@dataclass(frozen=True)
class Input:
    """Describes a value that code reads from the group, by its text; what machine code assigns to it goes back."""

    text: str
    bits: int
    vary: bool = False
    real: bool = False

    @property
    def shape(self) -> tuple[int, bool, bool]:
        return self.bits, self.vary, self.real


# What all machine code may ask: where it begins; its time, when it gives up its turn, the block where its lanes meet
# others; lanes here, alive, those here without gaps; the epoch; see Memory.begin
ENTRY, TIME, EPOCH = Input("entry", 64), Input("g.t", 64, real=True), Input("g.warp.actor.epoch", 64)
LIMIT = Input("heap[0][0] + g.clock.quantum if heap else inf", 64, real=True)
MEETING, CONTEXT = Input("join.block if join else 1 << 63", 64), Input("begin(g)", 64)
HERE, ALIVE, ACTIVE = Input("g.lane_mask", 32), Input("g.warp.live_mask", 32), Input("(1 << n) - 1", 32)


def input_of(node: ast.AST) -> Input | None:
    """A special register, the address of a symbol, or a parameter of the kernel."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="g"), attr="special"), args=[ast.Constant(str(name))]):
            if not name.startswith(("clock", "globaltimer")):
                return Input(ast.unparse(node), 32, name.startswith(("tid", "laneid", "lanemask")))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="addresses"), attr="symbol")):
            return Input(ast.unparse(node), 64, False)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="access"), attr="load"),
            args=[_, ast.Constant("param"), at, ast.Constant(int(size)), ast.Constant(1), ast.Constant(True), *_],
        ) if size in (1, 2, 4, 8):
            names = {n.id for n in ast.walk(at) if isinstance(n, ast.Name)}  # not where a register says which one
            if names == {"addresses", "g"}:
                return Input(f"g.launch.params.load({ast.unparse(at)}, {size})", 8 * size, False)
    return None


def register_of(name: str) -> int | None:
    """The register's number where a name is one's: r5."""
    return int(name[1:]) if name[0] == "r" and name[1:].isdigit() else None


# -- instructions ------------------------------------------------------------------------------------------------------
class Unit:
    """What an instruction calls something by: units, the group and files of formats/. Of units and the group it has
    what the translator has methods for, of those files all."""

    def __init__(self, code: Translator, name: str):
        self.code, self.name = code, name

    def __getattr__(self, called: str):
        if (found := getattr(self.code, f"{self.name}_{called}", None)) is not None:
            return found
        if (function := getattr(FORMATS.get(self.name), called, None)) is None:
            raise Untranslated(f"{self.name}.{called}")

        def asked(*arguments, **options):
            if writer_of(*arguments) is None:
                raise Untranslated("a call of constants")
            return function(*arguments, **options)

        return asked


class Translator(Interpreter):
    """Writes the instructions of a function. Registers and the like are variables in memory, which LLVM removes."""

    def __init__(self, bits: dict[int, int], varying: set[int]):
        super().__init__()
        self.bits, self.varying = bits, varying  # which only grows
        self.alike: set[int] = set()  # registers that were taken for one value
        self.registers: set[int] = set()  # that are used
        self.inputs: dict[str, Input] = {}  # numbered as registers, behind these
        self.asked: set[int] = set()  # such numbers, of what the instruction reads
        self.outputs: set[int] = set()  # such numbers, of what is assigned
        self.scratch: set[str] = set()  # names of memory, of ROOM bytes each
        self.bail_to: Callable[[], str]
        self.leave_to: Callable[[int], None]
        self.index = 0  # of the instruction in its program
        self.forms: set[access.Form | textures.Fetch] = set()  # of accesses

    def instruction(self, body: list[ast.stmt], bail_to: Callable[[], str], leave_to: Callable[[int], None]) -> bool:
        """Write one instruction; returns whether it ends its block. bail_to: names, and so makes, the place where
        Python takes over from it; leave_to: writes the way to another block."""
        self.lines, self.local, self.asked, self.bail_to, self.leave_to = [], {}, set(), bail_to, leave_to
        return self.block(body)

    def returns(self, value: int | None) -> None:
        if value is None:
            self.emit("unreachable")
        else:
            self.leave_to(value)

    def decide(self, node: ast.expr, yes: str, no: str) -> bool | None:
        """Where lanes may part, whether a guard holds in all of them, or fails in all."""
        match node:
            case ast.Compare(left=guard, ops=[ast.Is()], comparators=[ast.Constant(bool(every))]):
                if isinstance(p := self.expression(guard), Value):
                    p = self.lanes_true(p) == -every if p.vary else p ^ (not every)
                    return self.branch(p, yes, no)
        return super().decide(node, yes, no)

    # -- names -------------------------------------------------------------------------------------------------
    def statement(self, node: ast.stmt):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            return None  # of the end of a block: registers go back where machine code ends
        return super().statement(node)

    def named(self, name: str):
        if (number := register_of(name)) is None:
            return self.local[name] if name in self.local else KNOWN.get(name) or Unit(self, name)
        bits, vary = self.bits[number], self.varies(number)
        if bits == 128:
            raise Untranslated("128 bits")
        self.registers.add(number)
        return self.value(f"load {type_of(bits, vary)}, ptr %r{number}", bits, vary)

    def bind(self, name: str, value) -> None:
        if (number := register_of(name)) is None:
            self.local[name] = value
            return
        bits = self.bits[number]
        value = self.constants(value) if isinstance(value, np.ndarray) else value
        if bits == 128 or not isinstance(value, (int, Value)):
            raise Untranslated("this value of a register")
        value = self.cast(value, bits)
        if value.vary:
            self.varying.add(number)
        if self.varies(number):
            value = self.spread(value)
        self.registers.add(number)
        self.emit(f"store {value}, ptr %r{number}")

    def varies(self, register: int) -> bool:
        if register not in self.varying:
            self.alike.add(register)
        return register in self.varying

    def leave(self, body: list[ast.stmt], written: set[int]) -> None:
        """Leave an instruction to Python, which writes arrays if it reads one, or a unit delivers one."""
        for node in (node for statement in body for node in ast.walk(statement)):
            match node:
                case ast.Name(ctx=ast.Load()):
                    differs = (number := register_of(node.id)) is not None and self.varies(number)
                case ast.Call():
                    given = input_of(node)
                    differs = given.vary if given else ast.unparse(node.func) in ("g.elect", "lanes.shuffle")
                case _:
                    differs = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
            if differs:
                self.varying |= written
                return

    def expression(self, node: ast.expr):
        if (found := input_of(node)) is None:
            return super().expression(node)
        value = self.given(found)
        return (self.cast(value, max(found.bits, 16)),) if found.text.startswith("g.launch.params") else value

    def number_of(self, what: Input) -> int:
        self.inputs[what.text] = what
        number = len(self.bits) + list(self.inputs).index(what.text)
        self.asked.add(number)
        return number

    def given(self, what: Input) -> Value:
        return self.value(f"load {type_of(*what.shape)}, ptr %r{self.number_of(what)}", *what.shape)

    def give(self, what: Input, value: Value) -> None:
        self.outputs.add(number := self.number_of(what))
        self.emit(f"store {value}, ptr %r{number}")

    # -- what instructions call: see Unit --------------------------------------------------------------------------
    def fences_meet(self, _) -> None:
        """The next epoch of the warp: Actor.meet."""
        self.give(EPOCH, self.given(EPOCH) + STRIDE & EPOCHS - 1)

    def access_load(self, _, space, address, size, count, mask, *strong, nc=False):
        if strong:
            raise Untranslated("a strong load")
        vary = space == "local" or any(isinstance(v, Value) and v.vary for v in (address, mask))
        values = self.access(access.Form(False, WINDOWS.get(space, ""), size, count, nc), address, mask, vary)
        found = [values[k * LANES, LANES * vary] for k in range(count)]
        return tuple(self.cast(v, max(8 * size, 16)) for v in found)

    def access_store(self, _, space, address, size, given, mask, *_results, sync=""):
        if sync:
            raise Untranslated("a strong store")
        self.access(access.Form(True, WINDOWS.get(space, ""), size, len(given)), address, mask, True, given)

    def access(self, form, address, mask, vary: bool, given=()) -> Array:
        """A weak load or store of shared, global or local memory; returns where its values lie."""
        if not form.space or form.size not in (1, 2, 4, 8) or form.bytes > 32 or not isinstance(address, Value):
            raise Untranslated("this access")
        if form.shared and not address.vary and address.bits == 64:
            address = self.cast(address, 32)
        active = self.given(ACTIVE) if form.write else self.constant(access.FULL if vary else 1, 32)
        active = self.guarded(active, mask)
        addresses = self.kept(self.spread(self.cast(address, 64)), "s64.0")
        values = form.kind(self.room("values"))
        for k in range(form.elements):
            values[k * LANES, LANES] = self.cast(given[k], 8 * form.size) if form.write else 0
        self.ask(form, addresses, active, one=not vary)
        return values

    def guarded(self, active: Value, mask) -> Value:
        """The lanes of some that a guard lets through."""
        if not isinstance(mask, Value):
            return active
        return active & self.lanes_true(mask) if mask.vary else where(mask, active, 0)

    def ask(self, form, addresses: Value, active: Value, sizes: Value | None = None, one: bool = False) -> None:
        """Do what a form says at addresses, with `values`, and for copies with sizes; or leave it to Python."""
        self.forms.add(form)
        self.declarations[str(form)] = f"declare i1 @{form}({', '.join(f'i{bits}' for bits in access.ARGUMENTS)})"
        if sizes is None:
            sizes = self.cast(self.cast(self.given(EPOCH) << LANE_BITS, 32), 64)
        given = f"{self.given(CONTEXT)}, {addresses}, {self.cast(active, 64)}, {self.room('values')}, i64 {self.index}"
        self.bail_where(self.value(f"call i1 @{form}({given}, {sizes}, {self.constant(one, 1)})", 1, 0))

    def async_copy_cp_async_commit(self, _) -> None:
        zero = self.constant(0, 64)
        self.ask(access.copy_of(0), zero, zero, zero)

    def async_copy_cp_async(self, _, to, source, size, some, mask) -> None:
        if not all(isinstance(at, Value) for at in (to, source)):
            raise Untranslated("a constant address")
        active = self.guarded(self.given(ACTIVE), mask)
        rows = [self.spread(self.cast(v, 64)) for v in (to, source, some)]
        to, source, sizes = (self.kept(v, name) for v, name in zip(rows, ("s64.0", "values", "s64.1"), strict=True))
        self.ask(access.copy_of(size), to, active, sizes)

    def access_ldmatrix(self, _, address, count, bits, trans) -> tuple:
        """A load of rows of 16 bytes, whose parts change lanes: 8 x 8 elements of 16 bits each."""
        if bits != 16 or not isinstance(address, Value):
            raise Untranslated("matrices of bytes, or at a constant address")
        self.need_whole_warp()
        addresses = self.kept(self.spread(self.cast(address, 64)), "s64.0")
        self.ask(access.Form(False, "shared", 8, 2, rows=True), addresses, self.constant((1 << 8 * count) - 1, 64))
        out, count_of_halves = self.room("matrices"), 2 * LANES * count
        places = self.kept(self.constants(PLACES[trans][:count_of_halves]), "places")
        gathered(int16, self.room("values"), out, places, count_of_halves)
        return tuple(int32(out)[k * LANES, LANES] for k in range(count))

    def textures_fetch(self, _, geometry, handle, where, mask, integers, component=None) -> tuple:
        """A fetch from one texture, at places that differ."""
        differ = [v.vary for v in (*where, mask) if isinstance(v, Value)]
        if component is not None or not isinstance(handle, Value) or handle.vary or not any(differ):
            raise Untranslated("this fetch")
        active = self.guarded(self.given(ACTIVE), mask)
        self.bail_where(handle >= OBJECTS.ROOM)
        coordinates = self.room("coordinates")
        for k, v in enumerate(where):
            int32(coordinates)[k * LANES, LANES] = self.cast(v, 32)
        row = handle * (8 * texels.FIELDS) + self.given(Input("textures.rows()", 64, False))
        self.ask(textures.Fetch(geometry, integers), coordinates, active, row)
        return tuple(int32(self.room("values"))[k * LANES, LANES] for k in range(4))

    g_lanes = np.arange(LANES, dtype=np.uint32)

    @property
    def g_lane_mask(self) -> Value:
        return self.given(HERE)

    def g_converged(self, members) -> bool:
        """Python waits where lanes that an instruction needs are elsewhere. A guard that fails makes no difference."""
        if isinstance(members, Value) and members.vary:
            raise Untranslated("masks that differ")
        members = self.cast(members, 32)
        here, alive = self.given(HERE), self.given(ALIVE)
        self.bail_where((here & ~members | members & alive & ~here) != 0)
        return True

    def g_uniform(self, guard):
        if isinstance(guard, bool) or not guard.vary:
            return guard
        bits = self.lanes_true(guard)
        every = bits == -1
        self.bail_where(~every & (bits != 0))
        return every

    def g_branch(self, guard, _there, _here, _join, together) -> int | None:
        """The block to which lanes go together that part at a guard, if there is one; else Python parts them."""
        if guard.vary and together is None:
            self.bail_where(self.constant(True, 1))
        return together if guard.vary else None

    # -- what formats/ asks for of a warp --------------------------------------------------------------------------
    def bail_where(self, condition: Value) -> None:
        """Leave the instruction to Python if the condition holds in any lane."""
        if condition.vary:
            condition = condition.any()
        on = self.name("on")
        self.branch(condition, self.bail_to(), on)
        self.label(on)

    def need_whole_warp(self) -> None:
        """Leave the instruction to Python unless all lanes are here."""
        self.bail_where(self.given(HERE) != access.FULL)

    def across(self, what: str, a: Value) -> Value:
        """Reduce a over the lanes."""
        name = f"@llvm.vector.reduce.{what}.v{LANES}i{a.bits}"
        self.declarations[name] = f"declare i{a.bits} {name}({a.type})"
        return self.value(f"call i{a.bits} {name}({a})", a.bits, False)

    def permute(self, a: Value, source: Value | np.ndarray) -> Value:
        """a[source], lane by lane."""
        if isinstance(source, np.ndarray):
            text = f"shufflevector {a}, {a.type} poison, {self.constants(source.astype(np.uint32))}"
            return self.value(text, a.bits, LANES)
        places = self.kept(source, "s32.1")
        gathered(int32, self.kept(a, "s32.0"), places, places, LANES)
        return int32(places)[0:LANES]

    def library(self, name: str, x: Value) -> Value:
        """A function of the C library of a double, or of each lane's."""
        apply_each(values := self.kept(self.spread(x), "s64.0"), name, x.vary or 1)
        return float64(values)[0, x.vary]

    def kept(self, v: Value, name: str) -> Value:
        """Store a vector in scratch memory; returns its address."""
        place = self.room(name)
        self.emit(f"store {v}, ptr %{name}")
        return place

    def room(self, name: str) -> Value:
        """The address of scratch memory."""
        self.scratch.add(name)
        return self.value(f"ptrtoint ptr %{name} to i64", 64, 0)


@rule
def gathered(kind, values, out, places, count):
    """Elements by their places, which they may replace."""
    for k in range(count):
        kind(out)[k] = kind(values)[int32(places)[k]]


def c_function(name: str, x: Value) -> Value:
    x.code.declarations[f"@{name}"] = f"declare double @{name}(double)"
    return x.code.value(f"call double @{name}({x})", 64, 0, True)


@rule
def apply_each(values, name, count):
    """Numbers become a function's of the C library."""
    for k in range(count):
        float64(values)[k] = c_function(name, float64(values)[k])
