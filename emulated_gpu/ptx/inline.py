"""Calls of device functions, expanded in place (PTX ISA 7.1, 9.7.12.5).

A call becomes moves into the function's registers, the function's instructions with registers of their own, and moves
of its results. A call through a pointer becomes one of these for each function that the pointer may be of. A function
that calls itself by its name becomes one that does not (recursion.py). What cannot be expanded stays a `call`: of
vprintf and the like, which units/system_calls.py has, or one that is refused if it is executed, of another function
without a body, or through a pointer of one that is being expanded.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import replace

from ..errors import Unsupported
from . import recursion
from .syntax import SINK, Imm, Instr, Kernel, Mem, Module, Reg, Symbol, Target, Variable, Vec, leaves, rewritten

POINTERS = 1 << 56  # where functions lie, for those who compare their addresses: there is no memory


def link(module: Module) -> None:
    """Give functions their addresses, and expand the calls of all kernels, in place."""
    text = "".join(i.text for f in module.functions.values() for i in f.instrs)
    first = POINTERS + (zlib.crc32(text.encode()) << 16)  # a pointer of another module is of no function here
    module.pointers = {name: first + 16 * i for i, name in enumerate(module.functions)}
    bodies = (*module.functions.values(), *module.kernels.values())
    variables = (v for owner in (module, *bodies) for v in owner.variables.values())
    taken = {name for v in variables for _, name, _ in v.addresses}
    for kernel in bodies:
        for instr in kernel.instrs:
            if not _is(instr, "call"):
                taken |= {o.name for o in _leaves(instr) if isinstance(o, Symbol)}
                pointer = functools.partial(_pointer, pointers=module.pointers, own=kernel.variables)
                instr.operands = tuple(rewritten(o, pointer) for o in instr.operands)
    pointed = {module.pointers[name]: module.functions[name] for name in module.functions if name in taken}
    for kernel in module.kernels.values():
        expand_calls(kernel, module.functions, pointed)


def _leaves(instr: Instr):
    return (leaf for operand in instr.operands for leaf in leaves(operand))


def _pointer(leaf, pointers: dict[str, int], own: dict[str, Variable]):
    """A function's address for its name, which no variable of the kernel's own has."""
    if isinstance(leaf, Symbol) and leaf.name in pointers and leaf.name not in own:
        return Imm(pointers[leaf.name])
    return leaf


def expand_calls(
    kernel: Kernel, functions: dict[str, Kernel], pointed: dict[int, Kernel], active: tuple[str, ...] = ()
) -> None:
    """Replace the calls in `kernel`, in place. pointed: address -> function, of those whose address is taken."""
    if not any(_is(i, "call") for i in kernel.instrs):
        return
    own_tables = list(kernel.branch_tables)
    out: list[Instr] = []
    own: list[int] = []  # where the kernel's own instructions are in `out`
    moved: list[int] = []  # old index -> new index
    for instr in kernel.instrs:
        moved.append(len(out))
        through = _pointer_of(instr) if _is(instr, "call") else None
        callee = functions.get(_callee(instr)) if _is(instr, "call") and through is None else None
        callees = {0: callee} if callee else pointed if through is not None else {}
        callees = {at: f for at, f in callees.items() if f.name not in active and (callee or _fits(kernel, instr, f))}
        for each in callees.values():
            expand_calls(each, functions, pointed, (*active, each.name))
            recursion.with_frames(each)
        if through is not None and callees:
            out += _choice(kernel, instr, through, callees, len(out))
        elif callees:
            out += _expansion(kernel, instr, callee, len(out))
        else:
            own.append(len(out))
            out.append(instr)
    moved.append(len(out))
    for at in own:
        operands = (Target(moved[o.index], o.name) if isinstance(o, Target) else o for o in out[at].operands)
        out[at] = replace(out[at], operands=tuple(operands))
    for name in own_tables:
        kernel.branch_tables[name] = [moved[i] for i in kernel.branch_tables[name]]
    kernel.instrs = out


def _is(instr: Instr, base: str) -> bool:
    return instr.op.split(".")[0] == base


def _callee(instr: Instr) -> str | None:
    """Name of the function: the operand behind the results, if there are any."""
    name = next((o for o in instr.operands if not isinstance(o, Vec)), None)
    return name.name if isinstance(name, Symbol) else None


def _pointer_of(call: Instr) -> Reg | Imm | None:
    """What a call goes through, if that is no name: a register, or the address that stood in it."""
    return next((o for o in call.operands if isinstance(o, Reg | Imm)), None)


def _passed(call: Instr) -> tuple[tuple, tuple]:
    """Results and arguments of a call."""
    at = next(k for k, o in enumerate(call.operands) if not isinstance(o, Vec))
    around = call.operands[:at], call.operands[at + 1 :]
    return tuple(next((o.items for o in part if isinstance(o, Vec)), ()) for part in around)


def _fits(kernel: Kernel, call: Instr, callee: Kernel) -> bool:
    """Whether a call through a pointer may be of this function: it passes as much, of the same sizes."""

    def bits(x, of: Kernel):
        return 8 * of.variables[x.name].size if isinstance(x, Symbol) else getattr(x, "bits", None)

    for given, formal in zip(_passed(call), (callee.results, callee.formals)):
        if len(given) != len(formal):
            return False
        if any(bits(x, kernel) not in (None, bits(f, callee)) for x, f in zip(given, formal)):
            return False
    return True


def _choice(kernel: Kernel, call: Instr, pointer, callees: dict[int, Kernel], start: int) -> list[Instr]:
    """The instructions that a call through a pointer becomes: one of the functions, or else a call that is refused."""
    kernel.registers.append(other := Reg(len(kernel.registers), "other function", 1))
    results, arguments = _passed(call)
    plain = replace(call, guard=None, negated=False)
    out, leave = [], []  # leave: where there are branches to the end
    if call.guard is not None:
        leave.append(0)
        out.append(replace(call, op="bra", negated=not call.negated))
    for address, callee in callees.items():
        test = len(out)
        out += [replace(plain, op="setp.ne.u64", operands=(other, pointer, Imm(address))), plain]
        given = (Vec(results), Symbol(callee.name), Vec(arguments))
        out += _expansion(kernel, replace(plain, operands=given), callee, start + len(out))
        leave.append(len(out))
        out.append(replace(plain, op="bra"))
        after = Target(start + len(out), "next function")
        out[test + 1] = replace(plain, op="bra", operands=(after,), guard=other)
    out.append(plain)
    for at in leave:
        out[at] = replace(out[at], operands=(Target(start + len(out), "after the call"),))
    return out


def _expansion(kernel: Kernel, call: Instr, callee: Kernel, start: int) -> list[Instr]:
    """The instructions that a call becomes, to be placed at index `start`."""
    results, arguments = _passed(call)
    if (len(results), len(arguments)) != (len(callee.results), len(callee.formals)):
        raise Unsupported(f"PTX line {call.line}: a call that does not match its function: {call.text}")

    first = len(kernel.registers)
    kernel.registers += [Reg(first + r.index, r.name, r.bits) for r in callee.registers]
    symbols = {v: f"{callee.name}/{v}" for v in callee.variables}
    for v, name in symbols.items():
        kernel.variables[name] = replace(callee.variables[v], name=name)
    passed = tuple(zip((*callee.formals, *callee.results), (*arguments, *results), strict=True))
    # a .param variable of the caller stands for the function's own
    symbols |= {f.name: a.name for f, a in passed if isinstance(f, Symbol) and isinstance(a, Symbol)}
    tables = {t: f"{callee.name}/{start}/{t}" for t in callee.branch_tables}

    def leaf(x):
        match x:
            case Reg():
                return kernel.registers[first + x.index]
            case Symbol():
                return Symbol((symbols | tables).get(x.name, x.name))
            case Target():
                return Target(begin + x.index, x.name)
        return x

    def here(operand):
        return rewritten(operand, leaf)

    moves_in = [m for f, a in zip(callee.formals, arguments) for m in _move(here(f), a, call, kernel.variables)]
    moves_out = [m for f, a in zip(callee.results, results) for m in _move(a, here(f), call, kernel.variables)]
    begin = start + len(moves_in) + (call.guard is not None)
    end = begin + len(callee.instrs)
    body = []
    for i in callee.instrs:
        guard = here(i.guard) if i.guard else None
        leave = _is(i, "ret")
        operands = (Target(end, "return"),) if leave else tuple(map(here, i.operands))
        body.append(replace(i, op="bra" if leave else i.op, operands=operands, guard=guard))
    for t, name in tables.items():
        kernel.branch_tables[name] = [begin + i for i in callee.branch_tables[t]]
    code = [*moves_in, *body, *moves_out]
    if call.guard is not None:
        around = Target(start + 1 + len(code), "after the call")
        code.insert(0, replace(call, op="bra", operands=(around,), negated=not call.negated))
    return code


def _move(to, source, call: Instr, variables: dict[str, Variable]) -> list[Instr]:
    """Return the moves of `to = source`: none between .param variables, which are one already."""
    if to is SINK or isinstance(to, Symbol) and isinstance(source, Symbol):
        return []
    if isinstance(to, Symbol):
        op, operands = f"st.local.b{8 * variables[to.name].size}", (Mem(to, 0), source)
    elif isinstance(source, Symbol):
        op, operands = f"ld.local.b{8 * variables[source.name].size}", (to, Mem(source, 0))
    else:
        op, operands = "mov.pred" if to.bits == 1 else f"mov.b{to.bits}", (to, source)
    return [replace(call, op=op, operands=operands, guard=None, negated=False)]
