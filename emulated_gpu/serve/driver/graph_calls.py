"""Calls of CUDA that capture streams, make graphs and launch them: what runtime.cpp and the driver's functions ask."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

from ...device import DEVICE
from ...errors import Unsupported
from . import graphs, launches

INVALID_CAPTURE = 901  # cudaErrorStreamCaptureInvalidated

_handles = itertools.count(1 << 32)
_known: dict[int, Any] = {}  # handle -> Graph, Node or Replays


def keep(one: object) -> int:
    handle = next(_handles)
    _known[handle] = one
    return handle


def known(handle: int, kind: type, what: str) -> Any:
    """Return what a handle stands for. Raises WrongCall if it is no `kind`."""
    found = _known.get(handle)
    if not isinstance(found, kind):
        raise launches.WrongCall(f"{what} of {handle:#x}, which is none")
    return found


def begin(stream: int) -> None:
    graphs.begin(stream)


def end(stream: int) -> int:
    """Return the handle of the graph that has been captured."""
    if DEVICE.capture is None or not DEVICE.capture.takes(stream):
        raise launches.WrongCall("the end of a capture of a stream that is not captured", INVALID_CAPTURE)
    return keep(graphs.end(stream))


def capturing(stream: int) -> int:
    """Return a cudaStreamCaptureStatus."""
    return int(DEVICE.capture is not None and DEVICE.capture.takes(stream))


def create() -> int:
    return keep(graphs.Graph())


def add(graph: int, after: int, count: int, work: Callable[[], None] | None) -> int:
    """Return the handle of a node that does what a call would. after: the address of `count` handles of nodes."""
    made = known(graph, graphs.Graph, "a node")
    handles = (ctypes.c_uint64 * count).from_address(after) if count else ()
    before = [known(handle, graphs.Node, "a dependency") for handle in handles]
    return keep(made.add(before, None) if work is None else made.add_noted(before, work))


def depend(first: int, second: int, count: int) -> None:
    """Let nodes, whose handles lie at an address, be done before others."""
    for one, other in zip(*((ctypes.c_uint64 * count).from_address(at) for at in (first, second))) if count else ():
        known(other, graphs.Node, "a dependency").after.append(known(one, graphs.Node, "a dependency"))


def instantiate(graph: int) -> int:
    return keep(known(graph, graphs.Graph, "an executable graph").instantiate())


def launch(executable: int, stream: int) -> None:
    replays = known(executable, graphs.Replays, "a launch")
    if DEVICE.capture is not None and DEVICE.capture.takes(stream):
        raise Unsupported("the launch of a graph inside the capture of another one")
    replays.replay(stream)


def nodes(graph: int, out: int, count: int) -> None:
    """cudaGraphGetNodes: how many there are, and their handles if `out` is an address."""
    made = known(graph, graphs.Graph, "the nodes")
    if made.captured is not None:
        raise Unsupported("the nodes of a captured graph")
    if out:
        room = ctypes.c_uint64.from_address(count).value
        handles = {id(node): handle for handle, node in _known.items()}
        for i, node in enumerate(made.nodes[:room]):
            ctypes.c_uint64.from_address(out + 8 * i).value = handles[id(node)]
    ctypes.c_uint64.from_address(count).value = len(made.nodes)


def forget(handle: int) -> None:
    _known.pop(handle, None)


def driver_calls() -> dict:
    """Return the driver's functions by their names, as `c_calls.calls` has them."""

    def put(out: int, value: int) -> None:
        ctypes.c_uint64.from_address(out).value = value

    def put_state(stream: int, out: int) -> None:
        ctypes.c_int.from_address(out).value = capturing(stream)

    return {
        "cuStreamBeginCapture": lambda stream, mode: begin(launches.handle_of(stream)),
        "cuStreamEndCapture": lambda stream, out: put(out, end(launches.handle_of(stream))),
        "cuStreamIsCapturing": put_state,
        "cuGraphCreate": lambda flags: create(), "cuGraphDestroy": forget, "cuGraphExecDestroy": forget,
        "cuGraphInstantiate": lambda graph, *_: instantiate(graph),
        "cuGraphInstantiateWithFlags": lambda graph, *_: instantiate(graph),
        "cuGraphLaunch": lambda executable, stream: launch(executable, launches.handle_of(stream)),
        "cuGraphUpload": lambda *_: None,
    }  # fmt: skip


def python_calls(module, prefix: str) -> dict:
    """Return the functions of `cuda.bindings.driver` (prefix cu, CU) or `.runtime` (cuda, cuda), by their names."""
    kinds = {"cu": ("CUgraph", "CUgraphExec", "CUstreamCaptureStatus")}
    graph, executable, status = kinds.get(prefix, ("cudaGraph_t", "cudaGraphExec_t", "cudaStreamCaptureStatus"))
    made = {
        "StreamBeginCapture": lambda stream, mode: begin(launches.handle_of(stream)),
        "StreamEndCapture": lambda stream: getattr(module, graph)(end(launches.handle_of(stream))),
        "StreamIsCapturing": lambda stream: getattr(module, status)(capturing(launches.handle_of(stream))),
        "GraphInstantiate": lambda one, flags=0: getattr(module, executable)(instantiate(int(one))),
        "GraphLaunch": lambda one, stream: launch(int(one), launches.handle_of(stream)),
        "GraphUpload": lambda *_: None,
        "GraphDestroy": lambda one: forget(int(one)), "GraphExecDestroy": lambda one: forget(int(one)),
    }  # fmt: skip
    return {prefix + name: call for name, call in made.items()}
