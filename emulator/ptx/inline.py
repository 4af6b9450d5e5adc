"""Calls of device functions, expanded in place (PTX ISA 7.1, 9.7.12.5).

A call becomes moves into the function's registers, the function's instructions with registers of their own, and moves
of its results. What cannot be expanded stays a `call`: of vprintf and __assertfail, which units/system_calls.py has, or
one that is refused if it is executed, through a pointer, of another function without a body, or of one that is being
expanded (recursion).
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import Unsupported
from .syntax import SINK, Instr, Kernel, Mem, Reg, Symbol, Target, Variable, Vec, rewritten


def expand_calls(kernel: Kernel, functions: dict[str, Kernel], active: tuple[str, ...] = ()) -> None:
    """Replace the calls in `kernel`, in place."""
    if not any(_is(i, "call") for i in kernel.instrs):
        return
    own_tables = list(kernel.branch_tables)
    out: list[Instr] = []
    own: list[int] = []  # where the kernel's own instructions are in `out`
    moved: list[int] = []  # old index -> new index
    for instr in kernel.instrs:
        moved.append(len(out))
        callee = functions.get(_callee(instr)) if _is(instr, "call") else None
        if callee is None or callee.name in active:
            own.append(len(out))
            out.append(instr)
        else:
            expand_calls(callee, functions, (*active, callee.name))
            out += _expansion(kernel, instr, callee, len(out))
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


def _expansion(kernel: Kernel, call: Instr, callee: Kernel, start: int) -> list[Instr]:
    """The instructions that a call becomes, to be placed at index `start`."""
    at = next(k for k, o in enumerate(call.operands) if not isinstance(o, Vec))
    results, arguments = (tuple(x.items for x in part) for part in (call.operands[:at], call.operands[at + 1 :]))
    results, arguments = (part[0] if part else () for part in (results, arguments))
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
