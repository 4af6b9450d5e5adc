"""What an instruction may do to others: other lanes, other warps, other CTAs."""

from __future__ import annotations

from .isa import lookup
from .isa.registry import Handler
from .syntax import Instr, Mem

ATOMICS = ("atom", "red", "multimem", "sured")
STRONG_FORMS = {"volatile", "relaxed", "acquire", "release", "mmio"}  # of ld and st
# What lanes get of other lanes
ACROSS = {"shfl", "vote", "redux", "match", "activemask", "elect", "mma", "wmma", "movmatrix"}


def computes(instr: Instr) -> bool:
    """Whether an instruction makes registers of registers, and nothing else."""
    handler = lookup(instr)
    if handler is None:
        return False
    elsewhere = handler.tensor_results and instr.parts[0] not in ACROSS or instr.parts[0] in ("bar", "barrier")
    return handler.destinations(instr) > 0 and not elsewhere and not any(isinstance(o, Mem) for o in instr.operands)


def computes_alone(instr: Instr) -> bool:
    """Whether an instruction makes registers of the lane's own registers, and nothing else."""
    return computes(instr) and instr.parts[0] not in ACROSS


def is_load(instr: Instr) -> bool:
    """Whether an instruction loads registers from an address."""
    return instr.parts[0] in ("ld", "ldu")


def hands_on(instr: Instr) -> bool:
    """Whether an instruction may release or acquire in global memory, by which clusters learn what others have done."""
    base, *parts = instr.parts
    if any(part.startswith("shared") for part in parts):
        return False
    return base in ATOMICS or base in ("ld", "st") and not STRONG_FORMS.isdisjoint(parts)


def listens(instrs: list[Instr]) -> bool:
    """Whether a kernel may look by strong loads at what it has stored weakly, told so by atomics or strong stores."""
    weak = any(i.parts[0] == "st" and "global" in i.parts and STRONG_FORMS.isdisjoint(i.parts) for i in instrs)
    strong = {i.parts[0] for i in instrs if hands_on(i)}
    return weak and "ld" in strong and len(strong) > 1


def shares(instr: Instr) -> bool:
    """Whether lanes may hand something to each other by this instruction: a load or store of shared memory."""
    return instr.parts[0] in ("ld", "st") and not {"global", "local", "param", "const"} & {*instr.parts}


def shares_global(instrs: list[Instr]) -> bool:
    """Whether lanes may hand something to each other by plain stores and loads of global memory."""
    plain = [i for i in instrs if "global" in i.parts and i.parts[0] in ("ld", "st")]
    stores = any(i.parts[0] == "st" and STRONG_FORMS.isdisjoint(i.parts) for i in plain)
    return stores and any(i.parts[0] == "ld" and "nc" not in i.parts for i in plain)


def meets(instr: Instr, handler: Handler) -> bool:
    """Whether the lanes of a warp wait for each other in this instruction, or may see by it what another one did."""
    strong = {"volatile", "relaxed", "acquire"} & {*instr.parts}
    return handler.collective or handler.waits(instr) or instr.parts[0] in ("atom", "red", "sured") or bool(strong)


def may_stop(instr: Instr, handler: Handler) -> bool:
    """Whether others may learn of a warp by this instruction, or it of them."""
    arrives = instr.parts[0] in ("mbarrier", "bar", "barrier") or instr.op.startswith("tcgen05.commit")
    return meets(instr, handler) or arrives or bool(STRONG_FORMS & {*instr.parts})
