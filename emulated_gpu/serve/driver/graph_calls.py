"""Calls of CUDA that capture streams, make graphs and launch them, by their functions in C and in Python."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

from ...device import DEVICE
from ...errors import Unsupported
from . import graphs, launches

CAPTURE_MODES = 3  # CUstreamCaptureMode: global, of the thread, relaxed

_handles = itertools.count(1 << 32)
_known: dict[int, Any] = {}  # handle -> Graph, Node or Replays
_handle_of: dict[graphs.Node, int] = {}


def keep(one: object) -> int:
    handle = next(_handles)
    _known[handle] = one
    return handle


def handle_of(node: graphs.Node) -> int:
    if node not in _handle_of:
        _handle_of[node] = keep(node)
    return _handle_of[node]


def known(handle: int, kind: type, what: str) -> Any:
    """Return what a handle stands for. Raises WrongCall if it is no `kind`."""
    found = _known.get(handle)
    if not isinstance(found, kind):
        raise launches.WrongCall(f"{what} of {handle:#x}, which is none")
    return found


def create(flags: int) -> int:
    """cuGraphCreate."""
    launches.check_flags("a graph", flags, 0)
    return keep(graphs.Graph())


def begin_capture(stream, mode=0) -> None:
    """cuStreamBeginCapture."""
    if not 0 <= int(mode) < CAPTURE_MODES:
        raise launches.WrongCall(f"capture mode {int(mode)}")
    graphs.begin_capture(launches.handle_of(stream), int(mode))


def end(stream: int) -> int:
    """Return the handle of the graph that has been captured."""
    if DEVICE.capture is None or not DEVICE.capture.takes(stream):
        raise launches.WrongCall("the end of a capture of a stream that is not captured", graphs.ILLEGAL_STATE)
    return keep(graphs.end(stream))


def capturing(stream: int) -> int:
    """Return a cudaStreamCaptureStatus."""
    capture = DEVICE.capture
    return 0 if capture is None or not capture.has(stream) else 2 if capture.failed else 1


def capture_info(stream: int) -> tuple[int, int]:
    """Return (cudaStreamCaptureStatus, number of the capture)."""
    status = capturing(stream)
    return status, DEVICE.capture.number if status and DEVICE.capture is not None else 0


def put_capture_info(stream: int, status: int, number: int, *graph: int) -> None:
    """cuStreamGetCaptureInfo. graph: where its graph and what comes before the next node would go."""
    now, one = capture_info(launches.handle_of(stream))
    if now and any(graph):
        raise Unsupported("cuStreamGetCaptureInfo for the graph of a capture that is under way")
    put_int(status, now)
    put(number, one)


def info_of(kind: Callable, stream: int) -> tuple:
    """Return what `cuda.bindings` returns of StreamGetCaptureInfo, without the graph and what comes before a node."""
    status, number = capture_info(stream)
    return kind(status), number, None, None, None, 0


def graph_of(handle: int) -> graphs.Graph:
    return known(handle, graphs.Graph, "a call")


def all_graphs() -> list[graphs.Graph]:
    return [one for one in _known.values() if isinstance(one, graphs.Graph)]


def instantiate(graph: int) -> int:
    return keep(known(graph, graphs.Graph, "an executable graph").instantiate())


def launch(executable: int, stream: int) -> None:
    replays = known(executable, graphs.Replays, "a launch")
    if DEVICE.capture is not None and DEVICE.capture.takes(stream):
        raise Unsupported("the launch of a graph inside the capture of another one")
    replays.replay(stream)


def forget(handle: int) -> None:
    _known.pop(handle, None)


def put(out: int, value: int) -> None:
    """Write a word to an address, if there is one."""
    if out:
        ctypes.c_uint64.from_address(out).value = value


def put_int(out: int, value: int) -> None:
    if out:
        ctypes.c_int.from_address(out).value = value


def driver_calls() -> dict:
    """Return those of the driver's functions, by their names, that C asks in another way than Python does."""
    return {
        "cuStreamEndCapture": lambda stream, out: put(out, end(launches.handle_of(stream))),
        "cuStreamIsCapturing": lambda stream, out: put_int(out, capturing(launches.handle_of(stream))),
        "cuStreamGetCaptureInfo": put_capture_info,
        "cuGraphCreate": create, "cuGraphInstantiateWithParams": lambda graph, *_: instantiate(graph),
        "cuDeviceGraphMemTrim": lambda *_: None,
        "cuGraphExecGetFlags": lambda executable, out: put(out, 0),
    }  # fmt: skip


def python_calls(module, prefix: str) -> dict:
    """Return the functions of `cuda.bindings.driver` (prefix cu, CU) or `.runtime` (cuda, cuda), by their names."""
    kinds = {"cu": ("CUgraph", "CUgraphExec", "CUstreamCaptureStatus")}
    graph, executable, status = kinds.get(prefix, ("cudaGraph_t", "cudaGraphExec_t", "cudaStreamCaptureStatus"))
    made = {
        "StreamBeginCapture": begin_capture,
        "StreamEndCapture": lambda stream: getattr(module, graph)(end(launches.handle_of(stream))),
        "StreamIsCapturing": lambda stream: getattr(module, status)(capturing(launches.handle_of(stream))),
        "StreamGetCaptureInfo": lambda stream: info_of(getattr(module, status), launches.handle_of(stream)),
        "GraphInstantiate": lambda one, flags=0: getattr(module, executable)(instantiate(int(one))),
        "GraphLaunch": lambda one, stream: launch(int(one), launches.handle_of(stream)),
        "GraphUpload": lambda *_: None,
        "GraphDestroy": lambda one: forget(int(one)), "GraphExecDestroy": lambda one: forget(int(one)),
    }  # fmt: skip
    return {prefix + name: call for name, call in made.items()}
