"""What the emulator says when a kernel cannot go on: every refusal and every finding is one of these."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

KINDS = {
    # memory
    "uninitialized-read": "Shared memory is read that nothing has written since the CTA started.",
    "uninitialized-register": "An instruction computes with a register that nothing has written.",
    "out-of-bounds": "An access outside global allocations, the CTA's shared memory, local memory or the parameters.",
    "misaligned": "An address or a size that is not the multiple that the instruction requires.",
    "address-space": "A generic address that is not in the state space the instruction works on.",
    "write-to-input": "A write to memory that the kernel may only read.",
    "race": "Shared memory is touched while an asynchronous operation works on it, or before its work was waited for.",
    "scope": "Devices use a flag or counter together, and one of them at a scope narrower than the system's (.sys).",
    "missing-proxy-fence": "The async or tensormap proxy reads what generic stores wrote, with no proxy fence between.",
    "missing-dependency-wait": "Memory of a previous launch that may still run is touched before griddepcontrol.wait.",
    # order on the host
    "stream-race": "Two streams touch the same memory, one of them writes, and no event or wait orders them.",
    "read-before-sync": "The host reads, or overwrites, what a stream may still write, or read, without a wait.",
    "use-after-free": "Memory is used that has been freed, or is freed while another stream may still use it.",
    # tensor memory
    "tmem-uninitialised": "Cells of tensor memory are read that nothing has written since their allocation.",
    "tmem-out-of-bounds": "Tensor memory is accessed outside an allocation.",
    "tmem-lane-access": "A warp accesses lanes of tensor memory that are not its own, or an operand starts at a "
    "wrong lane.",
    "tmem-alloc": "Tensor memory is allocated or freed against the rules.",
    "tmem-leak": "A CTA exits with tensor memory allocated.",
    "tmem-shape": "A shape or repetition of tcgen05.ld, .st or .cp that does not exist.",
    "tmem-race": "Tensor memory or a register of tcgen05.ld is touched before the operation on it was waited for.",
    # registers of wgmma
    "wgmma-race": "A register is touched while an unfinished wgmma uses it, before wgmma.wait_group.",
    "missing-wgmma-fence": "A wgmma uses a register that was written with no wgmma.fence since.",
    # synchronisation
    "mbarrier": "An mbarrier is misused: not initialised or not visibly so, initialised twice, overwritten, read, "
    "freed in use, more arrivals or more transaction bytes than its phase expects.",
    "barrier": "The threads at a named barrier do not match its count; or a grid leaves arrivals in its own.",
    "order-dependent": "What a launch leaves differs between orders, and no sum of floats, ticket or time explains it.",
    "residency": "A CTA spins on what one writes that need not run beside it: a grid of another stream has the room.",
    "divergence": "A .sync or .aligned instruction is executed without lanes that it needs.",
    "cluster": "Another CTA of the cluster is accessed before it is known to run, or after it has exited.",
    "unfinished": "A CTA exits while asynchronous work is, or may still be, under way in its memory.",
    # encodings and limits
    "launch": "A launch that the driver would refuse: geometry, attributes, too much shared memory.",
    "tensormap": "A tensor map that is malformed or does not fit the instruction.",
    "matrix-descriptor": "A malformed shared memory matrix descriptor.",
    "instruction-descriptor": "A malformed tcgen05.mma instruction descriptor.",
    "scale-factors-not-replicated": "The four 32-lane partitions hold different scale factors.",
    "setmaxnreg": "A register count that setmaxnreg does not accept.",
    "trap": "The kernel executed trap.",
    "internal": "The emulator contradicts itself.",
}


# What the PTX ISA does not promise and silicon is seen to do: a note, unless --strict makes it a fault. NOT_PROMISED.md
NOTES = {
    "allocation-between": "Nothing but cudaMalloc or cudaMallocHost stands between works of two streams.",
    "arrives-twice": "Warps arrive at a named barrier and then wait at it, and count twice in one phase.",
    "cas-guess": "A plain load races with an atomic, and atom.cas at the same address compares its value.",
    "dependency-alone": "A store comes behind a load since its value has let it go, and nothing releases the load.",
    "exit-before-arrival": "A CTA exits before an arrival of another CTA at its mbarrier, for which nobody waits.",
    "exit-before-store": "A CTA exits before its bulk stores have read its shared memory.",
    "identical-stores": "Bulk or tensor stores that nothing orders write the same bytes to one place.",
    "lanes-apart": "A lane touches what another one of its warp wrote or read, and they have not met since.",
    "lanes-wrap": "tcgen05.ld or .st is at a lane of tensor memory from 128 to 255, which is taken for that less 128.",
    "non-coherent-load": "ld.global.nc or a texture reads what the same launch has written.",
    "relaxed-init": "An mbarrier's init is known to a warp of its cluster by a relaxed barrier alone.",
    "rounded-stores": "Warps store floats that differ in rounding alone to one shared word by one instruction.",
    "selected-away": "Shared or local memory is read that nothing has written; the value goes to a selp alone.",
    "never-written": "Global memory is read that nothing has written since it was allocated.",
    "swizzle-phase": "A tile with a swizzle is copied to where the pattern of its addresses does not begin.",
    "unused-load": "Memory is loaded while another warp writes it; nothing comes of the value.",
    "unwaited-load": "Registers of tcgen05.ld are used before tcgen05.wait::ld.",
    "unfenced-overwrite": "The async proxy overwrites what threads have used with no fence.proxy.async since.",
    "unfenced-mbarrier": "An mbarrier is used by the async proxy with no fence.mbarrier_init since its init.",
}


class EmulatorError(Exception):
    """Base class. `where` is filled in by the executing warp: kernel, CTA, warp, PTX line, Python line.

    before: of each party, a line that says what it had waited for last. event: number of the last one of its launch
    until then (state/order.py), 0 where that was the launch's last; other: that of the other party, 0 if there is none.
    order: lines that say which delays cause it, where that was looked for (machine/explore.py).
    """

    kind = "error"
    before: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    event, other = 0, 0

    def __init__(self, message: str, where: str = ""):
        super().__init__(message)
        self.message = message
        self.where = where

    @property
    def lines(self) -> tuple[str, ...]:
        """Its kind, kernel and the lines of both parties, in the source if they are known: alike for what one mistake
        does again and again, whoever comes first. Of a hang all lines."""
        if self.kind == "hang":
            return self.kind, *re.findall(r"(?:kernel|PTX line) ([^\s,:]+)", self.where or self.message)
        kernel = re.findall(r"kernel ([^\s,:]+)", self.where)
        place = r"PTX line (\d+)(?:, ([^)]+)\))?"  # of a party; of the place itself, the source comes last
        here = re.findall(r"\((\S+:\d+(?: > \S+)*)\)$", self.where) or re.findall(r"PTX line (\d+)", self.where)
        others = [source or line for line, source in re.findall(place, self.message)]
        return getattr(self, "note", "") or self.kind, *kernel, *sorted({*here, *others})

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}", *([f"at {self.where}"] if self.where else ())]
        return "\n  ".join([*lines, *self.before, *self.order])


class ResultsDecide(Exception):
    """Raised in a run that leaves out results of some clusters, where more than results depends on these."""


class Unsupported(EmulatorError):
    """A PTX instruction, modifier, encoding or host call that this emulator does not implement."""

    kind = "unsupported"


class Fault(EmulatorError):
    """The kernel did something that a GPU forbids; `kind` is a key of KINDS."""

    def __init__(self, kind: str, message: str, where: str = "", note: str = "", other: int = 0):
        """note: a key of NOTES, if silicon is seen to do what is meant. other: the event of the other party."""
        assert kind in KINDS and (not note or note in NOTES), (kind, note)
        super().__init__(message, where)
        self.kind, self.note, self.other = kind, note, other
        # If something was read too early: by now, who has written it, or None
        self.written_by: Callable[[], str | None] | None = None
        # Of a load of what nothing has written: which elements, bool; None if the value is used, or is not followed
        self.elements: Any = None
        # Of a race that is wrong only if something comes of what is loaded: the events of the loads
        self.loads: tuple[int, ...] = ()


class HostOrderFault(Fault):
    """What the host has given to streams contradicts itself. parties: what is alike when one mistake is made again."""

    def __init__(self, kind: str, message: str, where: str, parties: tuple[str, ...], note: str = ""):
        super().__init__(kind, message, where, note)
        self.parties = parties

    @property
    def lines(self) -> tuple[str, ...]:
        return self.kind, *self.parties


class LaunchRefused(Fault):
    """A launch that the driver refuses, and of which nothing has run. status: the cudaError_t of CUDA."""

    def __init__(self, message: str, status: int = 9):  # cudaErrorInvalidConfiguration
        super().__init__("launch", message)
        self.status = status

    @property
    def lines(self) -> tuple[str, ...]:
        return self.kind, self.message


class WrongCall(Exception):
    """A call that CUDA answers with an error, and that has no effect. status: the cudaError_t."""

    def __init__(self, message: str, status: int = 1):  # cudaErrorInvalidValue
        super().__init__(message)
        self.status = status


class AssertionFailed(Fault):
    """A device function has called what assert() calls: host code gets another error than after a trap."""


def stop(fault: Fault) -> None:
    """Raise a fault: what launches do with one outside of a session that collects them."""
    raise fault


class Hang(EmulatorError):
    """No warp can run and no asynchronous operation is in flight; the message lists who waits where for what.

    polls: whether they look for what nobody has written.
    """

    kind = "hang"
    polls = False
