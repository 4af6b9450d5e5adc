"""Cycles that a warp spends on the instructions of a basic block: in-order issue with register dependences.

PTX is not SASS: register moves vanish, address arithmetic folds into instructions, a division is a routine. The classes
below stand for that; their figures are in the machine profile.
"""

from __future__ import annotations

from ..ptx.program import Program
from ..ptx.syntax import Imm, Symbol

CLASSES = {
    "mov": "move", "cvta": "move", "not": "alu", "mul": "multiply", "mad": "multiply", "div": "divide", "rem": "divide",
    "rcp": "special", "sqrt": "special", "rsqrt": "special", "ex2": "special", "lg2": "special", "tanh": "special",
    "sin": "special", "cos": "special", "cvt": "convert", "shfl": "shuffle", "vote": "vote", "elect": "vote",
    "match": "shuffle", "redux": "shuffle", "bar": "barrier", "barrier": "barrier", "fence": "barrier", "bra": "branch",
    "brx": "branch", "ret": "branch", "exit": "branch", "mbarrier": "shared", "ldmatrix": "shared",
    "stmatrix": "shared", "cp": "async", "tcgen05": "async", "mapa": "alu", "prefetch": "async",
    "griddepcontrol": "branch", "atom": "global_load", "red": "global_store",
}  # fmt: skip
SPECIFIC = (  # (beginning of the operation, what it contains) -> class; the first that fits
    ("mbarrier.try_wait", "", "wait"), ("mbarrier.test_wait", "", "wait"), ("mbarrier.arrive", "", "arrive"),
    ("barrier.cluster.wait", "", "cluster_barrier"), ("barrier.cluster.arrive.relaxed", "", "arrive"),
    ("barrier.cluster.arrive", "", "cluster_release"), ("tcgen05.alloc", "", "tmem_alloc"),
    ("fence.proxy.tensormap", "", "fence_tensormap"), ("tensormap.cp_fenceproxy", "", "publish_tensormap"),
    ("fence.proxy", "", "fence"), ("fence.mbarrier_init", "", "fence"), ("fence", ".cta", "fence"),
    ("fence", "", "fence_gpu"), ("membar.cta", "", "fence"), ("membar", "", "fence_gpu"),
    ("atom", ".shared", "shared_atomic"), ("atom", "", "global_atomic"), ("bar.warp.sync", "", "vote"),
    ("barrier.warp.sync", "", "vote"), ("tensormap.replace", "", "replace_tensormap"),
    ("cp.async.bulk.tensor", "", "tensor_copy"),
    ("fma", ".f32x2", "packed"), ("mul", ".f32x2", "packed"), ("add", ".f32x2", "packed"), ("sub", ".f32x2", "packed"),
    ("wgmma.fence", "", "wgmma_sync"), ("wgmma.commit", "", "wgmma_sync"), ("wgmma.wait", "", "wgmma_sync"),
)  # fmt: skip

OVERLAPPING = {"fence_tensormap", "publish_tensormap"}  # one starts while others of its kind are under way
# What keeps its warp waiting, but not its scheduler
WAITING = {"barrier", "cluster_barrier", "cluster_release", "fence", "fence_gpu", "tmem_alloc"}
UNORDERED = {"alu", "multiply", "move", "constant"}  # what does not wait for them


def kind(instr) -> str:
    """The cost class of an instruction."""
    for begin, part, name in SPECIFIC:
        if instr.op.startswith(begin) and part in instr.op:
            return name
    parts = instr.op.split(".")
    base = parts[0]
    if base in ("ld", "st"):
        space = next(
            (p.split("::")[0] for p in parts[1:] if p.split("::")[0] in ("shared", "local", "param", "const")), "global"
        )
        if space in ("shared", "local"):
            return space
        if space in ("param", "const"):
            return "constant" if isinstance(instr.operands[1].base, Symbol) else "indexed_constant"
        return "global_load" if base == "ld" else "global_store"
    if base in ("div", "rem") and len(instr.operands) > 2 and isinstance(instr.operands[2], Imm):
        return "multiply"  # a division by a constant becomes a multiplication
    return CLASSES.get(base, "alu")


def _on_condition(program: Program, block: int) -> bool:
    """Whether a branch of the block before skips this one, and not for the lane that elect.sync picks (ptxas predicates
    what only that one does)."""
    if not block or program.join[block - 1] == block:
        return False
    before = program.kernel.instrs[program.start[block - 1] : program.end[block - 1]]
    last = before[-1] if before else None
    elects = any(i.op.startswith("elect.sync") for i in before)
    return last is not None and last.op.startswith("bra") and last.guard is not None and not elects


def _shared_address(instr) -> bool:
    """Whether it is `mov` of the address of shared memory, which depends on the CTA's rank in its cluster."""
    return instr.op in ("mov.u32", "mov.b32") and isinstance(instr.operands[1], Symbol)


def block_cycles(program: Program, figures: dict) -> list[tuple[float, float]]:
    """Of each block: its cycles, and those for which it keeps its warp's scheduler or a unit behind it busy.

    figures[class] = (issue, latency).
    """
    out = []
    for block, (start, end) in enumerate(zip(program.start, program.end, strict=True)):
        on_condition = _on_condition(program, block)
        time, slots = 0.0, 0.0
        ready, arithmetic = {}, set()  # cycle a register can be read in; who came from integer units
        under_way, until = "", 0.0  # kind of an overlapping operation, and when the last is complete
        for instr in program.kernel.instrs[start:end]:
            group = kind(instr)
            if on_condition and _shared_address(instr):  # elsewhere ptxas computes it once, ahead
                group = "shared_address"
            issue, latency = figures[group]
            reads, writes = program.reads_writes(instr)
            if group == "global_store":  # ptxas computes the addresses of a row of stores ahead
                reads = [r for r in reads if r not in arithmetic]
            begin = max([time, *(ready[r] for r in reads if r in ready)])
            if group != under_way and group not in UNORDERED:
                begin, under_way = max(begin, until), ""
            if group in OVERLAPPING:
                under_way, until = group, begin + latency
            if issue == 0:  # a move that vanishes passes its source's readiness on
                for r in writes:
                    ready[r] = begin
                continue
            time = begin + issue
            slots += 1 if group in WAITING else issue
            for r in writes:
                ready[r] = begin + latency
                (arithmetic.add if group == "alu" else arithmetic.discard)(r)
        out.append((max(time, until, 1.0), slots))
    return out
