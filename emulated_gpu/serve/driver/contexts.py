"""Whether CUDA's driver has been initialised, and which context a thread has: what calls of C fail without.

There is one context, so a thread has a depth of its stack alone. Who has called CUDA's runtime, or works beside torch,
which is one, has its context.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable

from ...errors import WrongCall

CONTEXT = 1  # its handle
NOT_INITIALIZED, INVALID_CONTEXT = 3, 201  # CUresult
# What CUDA's pages say to need cuInit, and a current context (driver API, "Initialization", "Context Management")
AFTER_INIT = re.compile(r"cu(Device|Ctx|DevicePrimaryCtx)[A-Z].*")
OF_CONTEXT = re.compile(
    "cu(Mem(Alloc|Free|cpy|set|Host|GetInfo|GetAddress)|ModuleLoad|LinkCreate|StreamCreate|EventCreate|Launch"
    "|Array(3D)?Create|(Tex|Surf)ObjectCreate|Occupancy|Ctx(Synchronize|SetLimit|EnablePeer"
    "|Get(Device|Limit|Flags|StreamPriorityRange|CacheConfig))).*"
)

_depths: dict[int, int] = {}  # of each thread's stack
initialised: list[bool] = []
runtime_called: list[Callable[[], bool]] = []  # says whether this thread has called the runtime


def has_context() -> bool:
    return bool(_depths.get(threading.get_ident())) or "torch" in sys.modules or any(one() for one in runtime_called)


def need_of(name: str) -> int:
    """Return what a function fails with that is called without what it needs; 0 if it needs nothing."""
    return INVALID_CONTEXT if OF_CONTEXT.fullmatch(name) else NOT_INITIALIZED if AFTER_INIT.fullmatch(name) else 0


def check(name: str, need: int) -> None:
    """Raise WrongCall for a call before cuInit, or without the context that it needs."""
    if has_context():
        return
    if not initialised:
        raise WrongCall(f"{name} before cuInit", NOT_INITIALIZED)
    if need == INVALID_CONTEXT:
        raise WrongCall(f"{name} without a context: cuCtxCreate or cuCtxSetCurrent first", need)


def current() -> int:
    """cuCtxGetCurrent."""
    return CONTEXT if has_context() else 0


def push(context=CONTEXT) -> None:
    """cuCtxPushCurrent."""
    _depths[threading.get_ident()] = _depths.get(threading.get_ident(), 0) + 1


def destroy(context=CONTEXT) -> None:
    """cuCtxDestroy: of the uppermost one."""
    _depths[threading.get_ident()] = max(_depths.get(threading.get_ident(), 0) - 1, 0)


def pop() -> int:
    """cuCtxPopCurrent."""
    if not has_context():
        raise WrongCall("cuCtxPopCurrent where there is no context", INVALID_CONTEXT)
    destroy()
    return CONTEXT


def set_current(context) -> None:
    """cuCtxSetCurrent: instead of the uppermost one; 0: none instead of it."""
    destroy()
    if int(context):
        push()
