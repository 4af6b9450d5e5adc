"""Control flow and odds and ends (PTX ISA 9.7.12, 9.7.19)."""

from __future__ import annotations

from ...errors import Unsupported
from ..recursion import DEEPER, DEPTH
from ..syntax import Imm, Reg, Symbol, Target, Vec
from .registry import UNTIMED, flat, op

# Costs. `branch`: read off ptxas's machine code (profiles/*.toml); of griddepcontrol only what its issue takes, with
# no measurement. `alu`: no measurement of trap, setmaxnreg, pmevent, nor of nanosleep, which then sleeps for as long
# as it says. Untimed: what stops for a debugger, and what is not executed at all.


@op("bra", cost="branch", dst=0, ends_block=True)
def _bra(w, i, m):
    m.take("uni")
    target = i.operands[0]
    if not isinstance(target, Target):
        raise Unsupported("branch to an unknown label")
    there = w.program.block_of[target.index]
    w.save()
    if w.guard is None:
        w.emit(f"return {there}")
    else:
        together = w.program.together.get(w.program.end[w.index] - 1)
        _part(w, there, w.program.join[w.index], together and w.program.block_of[together])
    return True


def _part(w, there: int, join: int, together: int | None = None) -> None:
    """Lanes of the guard go to block `there`, the others on; they meet again at block `join`. together: the block to
    which all go if they part, unless that is None."""
    here = w.index + 1
    w.emit(f"if {w.guard} is True: return {there}")
    w.emit(f"if {w.guard} is False: return {here}")
    w.emit(f"return g.branch({w.guard}, {there}, {here}, {join}, {together})")


@op("brx.idx", cost="branch", dst=0, ends_block=True)
def _brx(w, i, m):
    m.take("uni")
    if w.guard is not None:
        raise Unsupported("guarded brx")
    table = [w.program.block_of[t] for t in w.program.kernel.branch_tables[i.operands[1].name]]
    w.save()
    w.emit(f"return g.branch_table({w.read(i.operands[0], 32)}, {table}, {w.program.join[w.index]})")
    return True


@op("ret", "exit", cost="branch", dst=0, ends_block=True)
def _exit(w, i, m):
    m.take("uni")
    if w.guard is None:
        w.emit("return -2")
        return True
    w.save()
    _part(w, -2, -1)
    return True


@op("trap", cost="alu", dst=0, ends_block=True)
def _trap(w, i, m):
    w.call("g.trap()")
    w.leave(w.index + 1)
    return True


@op("nanosleep", cost="alu", dst=0, blocking=True)
def _nanosleep(w, i, m):
    m.type()
    w.wait_unless(f"g.sleep({w.read(i.operands[0], 32)})")


@op("pmevent", cost="alu", dst=0)
@op("brkpt", cost=UNTIMED, dst=0)
def _nothing(w, i, m):
    m.take("mask")


@op("setmaxnreg", cost="alu", dst=0, waits_untimed=True)
def _setmaxnreg(w, i, m):
    what = m.one_of("inc", "dec")
    m.drop("sync", "aligned", "u32")
    w.wait_unless(f"g.set_max_registers({what!r}, {i.operands[0].value})")


@op("griddepcontrol.wait", cost="branch", dst=0, blocking=True, collective=True)
def _griddepcontrol_wait(w, i, m):
    w.wait_unless("barriers.grid_dependency_wait(g)")


@op("griddepcontrol.launch_dependents", cost="branch", dst=0)
def _launch_dependents(w, i, m):
    w.call("barriers.grid_launch_dependents(g)")


@op("call", cost=UNTIMED, dst=0, starts_block=True)
def _call(w, i, m):
    """Emit a call that ptx/inline.py has not expanded: of one of units/system_calls.py; all else is refused."""
    m.take("uni")
    groups = [tuple(o.name for o in flat(part)) for part in i.operands if isinstance(part, Vec)]
    callee = next((o.name for o in i.operands if isinstance(o, Symbol)), None)
    if callee == "vprintf":
        result = groups[0][0] if len(groups) == 2 else None
        w.call(f"system_calls.vprintf(g, {result!r}, {groups[-1]!r}, {w.mask()})")
    elif callee == "__assertfail":
        w.call(f"system_calls.assertion_failed(g, {groups[-1]!r}, {w.mask()})")
    elif callee == "malloc":
        w.call(f"system_calls.malloc(g, {groups[0][0]!r}, {groups[-1]!r}, {w.mask()})")
    elif callee == "free":
        w.call(f"system_calls.free(g, {groups[-1]!r}, {w.mask()})")
    else:
        if any(isinstance(o, Reg | Imm) for o in i.operands):
            raise Unsupported("call through a pointer: of no function that it could be, or of one that calls itself")
        if callee.startswith(DEEPER):
            name = callee.removeprefix(DEEPER)
            raise Unsupported(f"{name} calls itself more than {DEPTH - 1} times, and a stack has {DEPTH} frames here")
        raise Unsupported(f"call of {callee}, which has no body here, or calls itself")
