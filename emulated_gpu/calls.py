"""The calls of the package around launches: sessions, times, waits, tensors of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from . import packages
from .device import DEVICE
from .errors import LaunchRefused, Unsupported
from .machine.schedule import Schedule
from .model.node import TimedNode
from .model.profile import Profile, load
from .model.run import TimedRun
from .model.tally import tallied
from .model.trace import Trace
from .sessions import Session
from .state.global_memory import Region
from .state.pdl_dependency import Dependencies


@dataclass
class Timed:
    """Result of a timed block. runs: one a device; run: that of the first."""

    ends_us: list[float] = field(default_factory=list)
    run: TimedRun | None = None
    runs: list[TimedRun] = field(default_factory=list)
    counted: list[dict[str, int]] = field(default_factory=list)  # what launches moved and multiplied, if it is traced


@contextlib.contextmanager
def session(
    schedule: int | str = 0, checks: bool = True, most: int = 1, strict: bool = False, crowded: bool = False,
    explore: int = 0,
):  # fmt: skip
    """Launches in this block run under a schedule (a seed, see machine/schedule.py) and with or without checks.

    explore: in as many other orders each launch is tried, too, on the memory that it had; a finding of one says which
    few delays cause it, and which text, given as `schedule`, is that order again.

    What the PTX ISA does not promise and silicon does (errors.NOTES) is among the session's `notes`; with `strict`, it
    is a failure like any other. crowded: each launch has room for one cluster at a time, unless it is cooperative, as
    where grids of other streams have the rest of the GPU and wait likewise: `residency` of errors.KINDS.

    A failure of a launch that host code swallowed is raised on leaving. With `most` above 1, launches go on, where they
    can, until there are `most` findings; a launch that cannot go on ends without a word to the host.
    """
    order = Schedule.of_text(str(schedule))
    outer, DEVICE.session = DEVICE.session, Session(order, checks, most, strict, crowded, explore)
    DEVICE.order.forget()
    here = DEVICE.session
    here.kept = outer.kept
    try:
        yield here
        DEVICE.synchronize_all()
    except Exception as e:
        if here.failure is not None and e is not here.failure:
            raise here.failure from e  # the host code only saw an error number
        if type(e).__name__ == "DSLCudaRuntimeError" and not DEVICE.served:
            raise Unsupported("CuTe DSL asked a GPU: emulated_gpu.install() must run before cute.compile") from e
        raise
    finally:
        DEVICE.session = outer
        DEVICE.order.forget()
        if DEVICE.node is not None:
            DEVICE.node.forget()
    if here.failure is not None:
        raise here.failure
    refused = [error for error in here.errors if isinstance(error, LaunchRefused)]
    if refused and len(here.errors) >= here.most:  # host code only saw an error number, and others ran behind it
        raise refused[0]


@contextlib.contextmanager
def timing(
    profile: str | Profile = "b200", trace: Trace | None = None, enough=None, compute: bool = False,
    around: Callable[[TimedRun], contextlib.AbstractContextManager] = contextlib.nullcontext,
):  # fmt: skip
    """Launches in this block are recorded; on leaving they run back to back on the modelled machine.

    Yields a Timed whose `ends_us` then holds the end of each launch in microseconds after the first one's start, and
    whose `run` is the TimedRun with all its units. The tensor core computes nothing, and what threads make of its
    results they do not store. All else is as in any run; a tensor copy's bytes move when somebody else looks at them.
    compute: but compute and store all, for kernels that await values; times are the same.
    `enough`: see TimedRun. around: a context manager in which the run takes place, of one device. With
    several devices, each runs its launches back to back, beside the others: see TimedNode;
    `ends_us` has the launches in the order of calls, and there is no trace.
    """
    timed = Timed()
    with session() as here:
        here.recorded = []
        yield timed
        machine = load(profile) if isinstance(profile, str) else profile
        try:
            if DEVICE.node is not None:
                timed.runs = TimedNode(machine, DEVICE.memories, here.recorded, computes_mma=compute).run().runs
            else:
                timed.runs = [TimedRun(machine, DEVICE.memory, here.recorded, trace, enough, compute)]
                timed.counted = [tallied(one.launch) for one in timed.runs[0].launches]
                with around(timed.runs[0]):
                    timed.runs[0].run()
        finally:
            for recorded in here.recorded:
                for region in recorded.held:
                    DEVICE.forget(region)
        timed.run = timed.runs[0]
        rest = [iter(run.ends_us()) for run in timed.runs]
        timed.ends_us = [end for one in here.recorded if (end := next(rest[one.device], None)) is not None]


def synchronize(device: int | None = None) -> None:
    """Wait until a device, or without a number all of them, has run its launches. Raises what has failed.

    With one device, there is nothing to wait for: `launch` has run the kernel when it returns.
    """
    try:
        if device is None:
            DEVICE.synchronize_all()
        else:
            DEVICE.synchronize(device)
    finally:
        DEVICE.session.failure = None  # as behind `launch`


def device_tensors(obj, name: str = "tensor", copy: bool = True):
    """Deep copy of nested lists, tuples and dicts with their CPU torch tensors in memory of the current device.

    Layout is kept; a tensor is named by its place, e.g. `tensor[0][2][1]`, in what the checks report. Without `copy`
    all contents are zero: for timing, where a kernel's course does not depend on them.
    """
    packages.need("device_tensors", "torch")
    import torch

    if isinstance(obj, torch.Tensor):
        return DEVICE.tensor_like(obj, name, copy)
    if isinstance(obj, (list, tuple)):
        return type(obj)(device_tensors(o, f"{name}[{i}]", copy) for i, o in enumerate(obj))
    if isinstance(obj, dict):
        return {k: device_tensors(v, f"{name}[{k!r}]", copy) for k, v in obj.items()}
    return obj


def protect(obj) -> None:
    """Kernels may from now on only read the device tensors in nested lists, tuples and dicts."""
    for region in _regions(obj):
        region.read_only = True


def written(obj) -> None:
    """Count the device tensors in nested lists, tuples and dicts as written by the launch before the next one.

    What a GPU's kernels put into a tensor, the host puts there here. To be called inside of a `session`; with it, a
    dependent launch that touches the tensors before griddepcontrol.wait is a fault, as it is a race on a GPU.
    """
    by = Dependencies.of_writes("the launch that wrote it", DEVICE.memory, _regions(obj))
    DEVICE.session.predecessors[DEVICE.index] = by


def _regions(obj) -> list[Region]:
    """Where the device tensors in nested lists, tuples and dicts lie; tensors of the host are left out."""
    if isinstance(obj, dict):
        obj = list(obj.values())
    if isinstance(obj, (list, tuple)):
        return [region for o in obj for region in _regions(o)]
    if hasattr(obj, "data_ptr") and obj.numel() and DEVICE.memory.covers(obj.data_ptr(), 1):
        return [DEVICE.memory.find(obj.data_ptr(), 1, False)]
    return []
