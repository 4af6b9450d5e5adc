"""Where registers hold results of a tensor core, and whether these decide anything but what is stored.

A timed run may leave such results out. That changes nothing else as long as they go from register to register and into
memory: if they are in no address, no guard, no branch, and nothing that other threads, units or barriers see.
"""

from __future__ import annotations

from .isa import lookup
from .syntax import Instr, Mem, Reg, leaves

# Opcodes, as registered, that make registers of registers, and nothing else: no carry, no address, no other lane
CARRY = frozenset(
    "add sub mul mul24 mad mad24 fma div rem abs neg min max sad dp4a dp2a rcp sqrt rsqrt ex2 lg2 sin cos tanh "
    "copysign testp setp set selp slct and or xor not cnot lop3 shl shr shf bfe bfi bmsk szext popc clz bfind brev "
    "prmt mov cvt tcgen05.ld tcgen05.ld.red".split()
)
STORE = frozenset({"st", "stmatrix.sync.aligned"})  # of which a run leaves out what is made of results alone


class Results:
    """Knows of a program: held[i], the registers that at instruction i, if that may leave results out, may hold what
    comes from the tensor core by any way but memory, a bit each; decides: an instruction to which they matter
    otherwise, or None; come: whether the tensor core's results ever reach a register."""

    def __init__(self, program):
        """program: a ControlFlow with its flow of control and the effects of its instructions."""
        self.held: dict[int, int] = {}
        instrs = program.kernel.instrs
        handlers = [lookup(instr) for instr in instrs]
        touching: dict[int, int] = {}  # of instructions that read what may be results: as `held`
        loads = [h is not None and h.tensor_results for h in handlers]
        asking = [h is not None and h.leaves_out for h in handlers]
        self.come = any(loads)

        def step(i: int, now: int) -> int:
            reads, writes = program.masks[i]
            if asking[i]:
                self.held[i] = now
            if reads_results := now & reads:
                touching[i] = now
            return now | writes if loads[i] or reads_results else now & ~writes

        if self.come:
            program.forward(step, range(len(program.start)))
        found = (instrs[i] for i, now in touching.items() if decides(instrs[i], handlers[i], now))
        self.decides: Instr | None = next(found, None)


def decides(instr: Instr, handler, now: int) -> bool:
    """Tells whether an instruction does more with registers than to compute others or to store them. now: which
    registers hold results, a bit each."""

    def held(operand) -> bool:
        return isinstance(operand, Reg) and bool(now >> operand.index & 1)

    if held(instr.guard):
        return True
    if any(held(o) for m in instr.operands if isinstance(m, Mem) for o in leaves(m)):
        return True
    if handler is not None and handler.name in STORE:
        return not all(map(held, leaves(instr.operands[1])))  # it would be stored with zeros beside what is no result
    return handler is None or handler.name not in CARRY or "cc" in instr.parts  # the carry is no register
