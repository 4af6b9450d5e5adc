"""Nodes of CUDA graphs, by the driver's functions in C: added, given other parameters, listed, cloned, updated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ...state.host_order import Place, calling_place
from . import c_calls, cuda_bindings, cuda_modules, launches
from .graph_calls import all_graphs, graph_of, handle_of, keep, known, put, put_int
from .graphs import (
    ALLOCATE,
    CHILD,
    COPY,
    EMPTY,
    FILL,
    FREE,
    HOST_CALL,
    KERNEL,
    RECORD,
    WAIT,
    Graph,
    Node,
    Replays,
    noted,
)

UPDATE_FAILED = 910  # cudaErrorGraphExecUpdateFailure

_clones: dict[tuple[Node, Graph], Node] = {}  # (node, clone of its graph) -> its clone


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, which begins as cudaKernelNodeParams does."""

    _fields_ = [
        ("function", ctypes.c_uint64), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("params", ctypes.c_uint64), ("extra", ctypes.c_uint64),
    ]  # fmt: skip


class FillParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("to", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint), ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class HostParams(ctypes.Structure):
    """CUDA_HOST_NODE_PARAMS."""

    _fields_ = [("function", ctypes.c_uint64), ("data", ctypes.c_uint64)]


# ---- entries of nodes, from parameters as they are now


def kernel(at: int) -> tuple[tuple, Place]:
    p = KernelParams.from_address(at)
    function = p.function or ctypes.c_uint64.from_address(at + ctypes.sizeof(KernelParams)).value  # `kern`
    return noted(lambda: cuda_modules.launch(function, p.grid, p.block, p.shared, p.params, p.extra, stream=0))


def copy(at: int) -> tuple[tuple, Place]:
    held = c_calls.Copy3D.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(c_calls.Copy3D)))
    return work_of(COPY, lambda stream: c_calls.copy_3d(ctypes.addressof(held), stream, False))


def fill(at: int) -> tuple[tuple, Place]:
    p = FillParams.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(FillParams)))
    rows = c_calls.fill_2d(f"u{p.element}")
    return work_of(FILL, lambda stream: rows(p.to, p.pitch, p.value, p.width, p.height, stream))


def host(at: int) -> tuple[tuple, Place]:
    p = HostParams.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(HostParams)))
    called = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(p.function)
    return noted(lambda: cuda_bindings.call_host(lambda: called(p.data)))


def work_of(kind: int, work: Callable[[int], object]) -> tuple[tuple, Place]:
    return ("do", work, kind), calling_place()


MAKERS = {KERNEL: kernel, COPY: copy, FILL: fill, HOST_CALL: host}
SIZES = {
    KERNEL: ctypes.sizeof(KernelParams), COPY: ctypes.sizeof(c_calls.Copy3D), FILL: ctypes.sizeof(FillParams),
    HOST_CALL: ctypes.sizeof(HostParams),
}  # fmt: skip


# ---- functions


def node_of(handle: int) -> Node:
    return known(handle, Node, "a node")


def ready(handle: int) -> Replays:
    return known(handle, Replays, "an executable graph")


def nodes_at(address: int, count: int) -> list[Node]:
    return [node_of(one) for one in (ctypes.c_uint64 * count).from_address(address)] if count else []


def nodes_in(graph: int, address: int, count: int) -> list[Node]:
    """Return nodes that must be a graph's. Raises WrongCall if one is not."""
    found = nodes_at(address, count)
    if not all(one in graph_of(graph).nodes for one in found):
        raise launches.WrongCall("a node of another graph")
    return found


def add(graph: int, before: int, count: int, kind: int, made: tuple[tuple, Place], given: object = None) -> int:
    entry, where = made
    node = Node(entry, nodes_in(graph, before, count), kind, where, given)
    graph_of(graph).nodes.append(node)
    return handle_of(node)


def adding(kind: int):
    """Return cuGraphAddKernelNode or its like."""

    def function(graph: int, before: int, count: int, params: int, *context) -> int:
        return add(graph, before, count, kind, MAKERS[kind](params), ctypes.string_at(params, SIZES[kind]))

    return function


def adding_work(kind: int, work: Callable[[int, int], object]):
    """Return cuGraphAddEventRecordNode or its like: one argument, and what a stream does with it."""

    def function(graph: int, before: int, count: int, given: int = 0) -> int:
        return add(graph, before, count, kind, work_of(kind, lambda stream: work(stream, given)), given)

    return function


def setting(kind: int):
    """Return cuGraphKernelNodeSetParams or its like."""

    def function(node: int, params: int) -> None:
        one = node_of(node)
        one.entry, one.place = MAKERS[kind](params)
        one.given = ctypes.string_at(params, SIZES[kind])

    return function


def setting_ready(kind: int):
    """Return cuGraphExecKernelNodeSetParams or its like."""

    def function(handle: int, node: int, params: int, *context) -> None:
        of = ready(handle)
        at = entry_at(of, node_of(node))
        entry, of.places[at] = MAKERS[kind](params)
        of.entries[at] = (*entry, of.entries[at][-1])

    return function


def entry_at(of: Replays, node: Node) -> int:
    """Return which entry is a node's. Raises WrongCall for a node of another graph, or of one as it was captured."""
    if node not in of.nodes:
        raise launches.WrongCall("a node that the executable graph has not been made of")
    return of.nodes[node]


def get_params(node: int, out: int) -> None:
    """Return the parameters that a node was made with. Raises WrongCall for one that was captured."""
    given = node_of(node).given
    if not isinstance(given, bytes):
        raise launches.WrongCall("the parameters of a node that a capture has made: they are not kept")
    ctypes.memmove(out, given, len(given))


def add_child(graph: int, before: int, count: int, child: int) -> int:
    inner = graph_of(child).instantiate()
    return add(graph, before, count, CHILD, work_of(CHILD, inner.replay), child)


def child_of(node: int, out: int) -> None:
    child = node_of(node).given
    if not isinstance(child, int):
        raise launches.WrongCall("the graph of a node that has none")
    put(out, child)


def add_allocation(graph: int, before: int, count: int, params: int) -> int:
    """cuGraphAddMemAllocNode: the memory stays where it is as long as the process runs."""
    address = cuda_bindings.allocate_for_graph(ctypes.c_size_t.from_address(params + 104).value)
    put(params + 112, address)
    return add(graph, before, count, ALLOCATE, work_of(ALLOCATE, cuda_bindings.nothing), address)


def clone(graph: int) -> int:
    made = Graph()
    pairs: dict[Node, Node] = {}
    for node in graph_of(graph).in_order():
        copied = Node(node.entry, [pairs[one] for one in node.after], node.kind, node.place, node.given)
        pairs[node] = _clones[node, made] = copied
        made.nodes.append(copied)
    return keep(made)


def in_clone(node: int, graph: int) -> int:
    found = _clones.get((node_of(node), graph_of(graph)))
    if found is None:
        raise launches.WrongCall("a node that has no clone in the graph")
    return handle_of(found)


def update(handle: int, graph: int, *outs: int) -> None:
    """cuGraphExecUpdate, which takes a graph of the same nodes."""
    old, new = ready(handle), graph_of(graph).instantiate()
    shape = [[(what, rest[-1], rest[0] if what == "do" else with_ if what == "after" else 0)
              for what, with_, *rest in one.entries] for one in (old, new)]  # fmt: skip
    if outs:  # CUgraphExecUpdateResultInfo begins with the result, older forms end with it
        put_int(outs[-1], shape[0] != shape[1])
    if shape[0] != shape[1]:
        raise launches.WrongCall("cuGraphExecUpdate of a graph with other nodes", UPDATE_FAILED)
    old.entries, old.places = new.entries, new.places


def listed(nodes: list[Node], out: int, count: int) -> None:
    """Write handles of nodes, as many as there is room for, and how many there are."""
    room = ctypes.c_size_t.from_address(count).value if out else 0
    for i, node in enumerate(nodes[:room]):
        put(out + 8 * i, handle_of(node))
    put(count, min(room, len(nodes)) if out else len(nodes))


def edges(graph: int, sources: int, targets: int, *rest: int) -> None:
    pairs = [(one, node) for node in graph_of(graph).nodes for one in node.after]
    count = rest[-1]
    room = ctypes.c_size_t.from_address(count).value
    listed([one for one, _ in pairs], sources, count)
    put(count, room)
    listed([one for _, one in pairs], targets, count)


def dependents(node: int) -> list[Node]:
    found = node_of(node)
    owner = next(one for one in all_graphs() if found in one.nodes)
    return [one for one in owner.nodes if found in one.after]


def depend(graph: int, sources: int, targets: int, *rest: int) -> None:
    for one, node in zip(*(nodes_in(graph, at, rest[-1]) for at in (sources, targets))):
        node.after.append(one)


def independent(graph: int, sources: int, targets: int, *rest: int) -> None:
    for one, node in zip(*(nodes_in(graph, at, rest[-1]) for at in (sources, targets))):
        if one not in node.after:
            raise launches.WrongCall("a dependency that there is not")
        node.after.remove(one)


def destroy_node(node: int) -> None:
    gone = node_of(node)
    for graph in all_graphs():
        if graph.captured is None and gone in graph.nodes:
            graph.nodes.remove(gone)
            for one in graph.nodes:
                one.after = [before for before in one.after if before is not gone]


def enable(handle: int, node: int, on: int) -> None:
    of = ready(handle)
    (of.off.discard if on else of.off.add)(entry_at(of, node_of(node)))


def enabled(handle: int, node: int, out: int) -> None:
    of = ready(handle)
    put_int(out, entry_at(of, node_of(node)) not in of.off)


def calls() -> dict:
    """Return the functions by their names, as `cuda_bindings.driver_calls` has them."""
    own: dict[str, Callable] = {}
    for name, kind in {"Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL, "Host": HOST_CALL}.items():
        own[f"cuGraphAdd{name}Node"] = adding(kind)
        own[f"cuGraph{name}NodeSetParams"] = setting(kind)
        own[f"cuGraphExec{name}NodeSetParams"] = setting_ready(kind)
        own[f"cuGraph{name}NodeGetParams"] = get_params
    return own | {
        "cuGraphClone": clone, "cuGraphNodeFindInClone": in_clone, "cuGraphExecUpdate": update,
        "cuGraphAddEmptyNode": adding_work(EMPTY, cuda_bindings.nothing),
        "cuGraphAddEventRecordNode": adding_work(RECORD, lambda stream, event: cuda_bindings.record(event, stream)),
        "cuGraphAddEventWaitNode": adding_work(WAIT, cuda_bindings.wait),
        "cuGraphAddMemFreeNode": adding_work(FREE, cuda_bindings.nothing),
        "cuGraphAddChildGraphNode": add_child, "cuGraphChildGraphNodeGetGraph": child_of,
        "cuGraphAddMemAllocNode": add_allocation,
        "cuGraphNodeGetType": lambda node, out: put_int(out, node_of(node).kind),
        "cuGraphGetNodes": lambda graph, out, count: listed(graph_of(graph).nodes, out, count),
        "cuGraphGetRootNodes": lambda graph, out, count: listed(
            [node for node in graph_of(graph).nodes if not node.after], out, count
        ),
        "cuGraphGetEdges": edges,
        "cuGraphNodeGetDependencies": lambda node, out, *rest: listed(node_of(node).after, out, rest[-1]),
        "cuGraphNodeGetDependentNodes": lambda node, out, *rest: listed(dependents(node), out, rest[-1]),
        "cuGraphAddDependencies": depend, "cuGraphRemoveDependencies": independent,
        "cuGraphDestroyNode": destroy_node, "cuGraphNodeSetEnabled": enable, "cuGraphNodeGetEnabled": enabled,
    }  # fmt: skip
