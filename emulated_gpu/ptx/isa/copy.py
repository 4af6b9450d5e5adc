"""Asynchronous copies: bulk, tensor (TMA), per-thread, and the tensormaps they use (PTX ISA 9.7.9.25-9.7.9.28)."""

from __future__ import annotations

from ...errors import Unsupported
from ...formats import tensormap
from ..syntax import Vec
from .registry import CACHE_HINTS, SCOPES, Mods, op, width

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

# Costs: the issue alone, as a warp's part of an asynchronous operation (profiles/*.toml: inferred); what units take
# is the clock's. `tensor_copy`, and what edits tensor maps: fitted and measured (hopper.py, mechanisms/maps). No
# measurement of clusterlaunchcontrol: try_cancel as the others, query_cancel as alu, which it is.


def _operands(i, m: Mods) -> list:
    """The operands but for a cache policy, which comes last."""
    return list(i.operands[:-1] if m.take("L2::cache_hint") else i.operands)


def _policy(w, i, m: Mods) -> str:
    """A load's cache policy, or None."""
    return w.read(i.operands[-1], 64) if "L2::cache_hint" in m.left else "None"


def _rank(m: Mods) -> int:
    return int(m.one_of("1d", "2d", "3d", "4d", "5d")[0])


def _coords(w, vector) -> str:
    if not isinstance(vector, Vec):
        raise Unsupported("tensor coordinates")
    return "(" + ", ".join(w.read(o, 32) for o in vector.items) + ",)"


def _offsets(w, vector, rank: int) -> str:
    """The offsets of im2col mode, 16 bits each: of W, H, D."""
    if not isinstance(vector, Vec) or len(vector.items) != rank - 2:
        raise Unsupported("im2col offsets")
    return "(" + ", ".join(w.read(o, 16) for o in vector.items) + ",)"


@op("cp.async.bulk.tensor", cost="tensor_copy", dst=0)
def _tensor_copy(w, i, m):
    rank = _rank(m)
    spaces = [s for s in m.left if s in ("shared::cluster", "shared::cta", "global")]
    mode = m.one_of("tile::gather4", "tile::scatter4", "tile", "im2col", default="tile")
    if found := next((x for x in m.left if x.startswith("im2col")), None):
        raise Unsupported(f".{found} mode")
    for s in spaces:
        m.left.remove(s)
    policy, multicast, operands = _policy(w, i, m), m.take("multicast::cluster"), _operands(i, m)
    pair = m.one_of("cta_group::1", "cta_group::2", default=None)
    if spaces and spaces[-1] == "global" and len(spaces) == 2:  # load: dst, [map, coords], [mbar] {, mask}
        if not m.take("mbarrier::complete_tx::bytes"):
            raise Unsupported("completion mechanism")
        dst, tensor, bar, *rest = operands
        if mode == "tile::scatter4":
            raise Unsupported(".tile::scatter4 mode of a load")
        offsets = "()"
        if mode == "im2col":
            offsets = _offsets(w, rest.pop(0), rank)
        mask = w.read(rest[0], 16) if multicast else "None"
        w.call(
            f"async_copy.tma_load(g, {w.address(dst)}, {w.address(tensor)}, {_coords(w, tensor.extra[0])}, "
            f"{w.address(bar)}, {rank}, {mode!r}, {offsets}, {mask}, {pair == 'cta_group::2'}, {policy}, {w.mask()})"
        )
    elif mode == "im2col":
        raise Unsupported(".im2col mode of a store, which is .im2col_no_offs")
    else:
        _tensor_store(w, m, operands, rank, mode, None)


def _tensor_store(w, m: Mods, operands: list, rank: int, mode: str, reduction: str | None) -> None:
    """Write a tensor store or reduction. operands: [map, coords], [src]."""
    if not m.take("bulk_group"):
        raise Unsupported("completion mechanism")
    tensor, src = operands
    w.call(
        f"async_copy.tma_store(g, {w.address(tensor)}, {_coords(w, tensor.extra[0])}, {w.address(src)}, {rank}, "
        f"{mode!r}, {reduction!r}, {w.mask()})"
    )


@op("cp.reduce.async.bulk.tensor", cost="async", dst=0)
def _tensor_reduce(w, i, m):
    rank = _rank(m)
    what = m.one_of(*REDUCTIONS)
    m.take("global")
    m.take("shared::cta")
    mode = m.one_of("tile", default="tile")
    _tensor_store(w, m, _operands(i, m), rank, mode, what)


@op("cp.async.bulk.prefetch.tensor", cost="async", dst=0)
def _tensor_prefetch(w, i, m):
    rank = _rank(m)
    m.drop("L2", "global", "tile", "L2::cache_hint")
    tensor = i.operands[0]
    w.call(f"async_copy.tma_prefetch(g, {w.address(tensor)}, {_coords(w, tensor.extra[0])}, {rank}, {w.mask()})")


@op("cp.async.bulk.prefetch", cost="async", dst=0)
def _bulk_prefetch(w, i, m):
    m.take("L2")
    m.take("global")
    m.take("L2::cache_hint")
    w.call(f"async_copy.bulk_prefetch(g, {w.address(i.operands[0])}, {w.read(i.operands[1], 32)}, {w.mask()})")


def _ends(m: Mods) -> list[str]:
    """State spaces of destination and source."""
    ends = m.left[:2]
    if not set(ends) <= {"shared::cluster", "shared::cta", "global"} or len(ends) != 2:
        raise Unsupported(f"copy from and to .{'.'.join(ends)}")
    del m.left[:2]
    return ends


@op("cp.async.bulk", cost="async", dst=0)
def _bulk(w, i, m):
    dst, src = _ends(m)
    policy = bar = chosen = "None"
    if m.take("bulk_group"):
        chosen = w.read(i.operands[-1], 16) if m.take("cp_mask") else "None"
        m.drop("L2::cache_hint")
        to, what, size, *_ = i.operands
    elif m.take("mbarrier::complete_tx::bytes"):
        policy = _policy(w, i, m)
        to, what, size, at, *rest = _operands(i, m)
        bar, chosen = w.address(at), w.read(rest[0], 16) if m.take("multicast::cluster") else "None"
    else:
        raise Unsupported("completion mechanism")
    w.call(
        f"async_copy.bulk_copy(g, {dst!r}, {w.address(to)}, {src!r}, {w.address(what)}, {w.read(size, 32)}, {bar}, "
        f"{chosen}, {policy}, {w.mask()})"
    )


@op("cp.reduce.async.bulk", cost="async", dst=0)
def _bulk_reduce(w, i, m):
    dst, src = _ends(m)
    operands, what = _operands(i, m), m.one_of(*REDUCTIONS)
    m.take("noftz")
    to_barrier = m.take("mbarrier::complete_tx::bytes")
    m.take("bulk_group")
    kind = m.type()
    bar = w.address(operands[3]) if to_barrier else "None"
    w.call(
        f"async_copy.bulk_copy(g, {dst!r}, {w.address(operands[0])}, {src!r}, {w.address(operands[1])}, "
        f"{w.read(operands[2], 32)}, {bar}, None, None, {w.mask()}, ({what!r}, {kind!r}))"
    )


@op("cp.async.bulk.commit_group", cost="async", dst=0)
def _bulk_commit(w, i, m):
    w.call(f"async_copy.bulk_commit(g, {w.mask()})")


@op("cp.async.bulk.wait_group", cost="async", dst=0, blocking=True)
def _bulk_wait(w, i, m):
    read = m.take("read")
    w.wait_unless(f"async_copy.bulk_wait(g, {i.operands[0].value}, {read}, {w.mask()})")


# -- per-thread cp.async -----------------------------------------------------------------------------------------------
@op("cp.async", cost="async_load", dst=0)
def _cp_async(w, i, m):
    m.take("ca", "cg")
    m.take("shared", "shared::cta")
    m.take("global")
    operands = _operands(i, m)
    m.drop(*CACHE_HINTS)
    size = operands[2].value
    source = repr(size)
    if len(operands) > 3:
        _, _, _, last = operands  # one of src-size and ignore-src
        source = w.read(last, 32)
        if getattr(getattr(last, "second", last), "bits", 32) == 1:  # p or !p
            source = f"({source} ^ True) * {size}"
    w.call(f"async_copy.cp_async(g, {w.address(operands[0])}, {w.address(operands[1])}, {size}, {source}, {w.mask()})")


@op("cp.async.commit_group", cost="async", dst=0, collective=True)
def _cp_async_commit(w, i, m):
    w.call("async_copy.cp_async_commit(g)")


@op("cp.async.wait_group", "cp.async.wait_all", cost="async", dst=0, blocking=True, collective=True)
def _cp_async_wait(w, i, m):
    w.wait_unless(f"async_copy.cp_async_wait(g, {i.operands[0].value if i.operands else None})")


@op("cp.async.mbarrier.arrive", cost="async", dst=0)
def _cp_async_arrive(w, i, m):
    noinc = m.take("noinc")
    m.take("shared", "shared::cta")
    m.take("b64")
    w.call(f"async_copy.cp_async_arrive(g, {w.address(i.operands[0])}, {noinc}, {w.mask()})")


# -- tensormaps --------------------------------------------------------------------------------------------------------
@op("tensormap.replace.tile", cost="replace_tensormap", dst=0)
def _tensormap_replace(w, i, m):
    field = m.one_of(*tensormap.REPLACEABLE)
    space = m.one_of("shared::cta", "global", default="generic").split("::")[0]
    m.take("b1024")
    bits = width(m.type())
    operands = list(i.operands)
    address = w.address(operands.pop(0))
    value = operands.pop()
    order = operands[0].value if operands else None
    w.call(f"tensor_maps.replace(g, {space!r}, {address}, {field!r}, {order}, {w.read(value, bits)}, {w.mask()})")


@op("tensormap.cp_fenceproxy", cost="publish_tensormap", dst=0)
def _tensormap_copy(w, i, m):
    m.take("global")
    m.take("shared::cta")
    if not m.take("tensormap::generic") or not m.take("release"):
        raise Unsupported("this form of tensormap.cp_fenceproxy")
    m.take(*SCOPES)
    m.take("sync")
    m.take("aligned")
    dst, src, size = i.operands
    if size.value != 128:
        raise Unsupported(f"tensormap of {size.value} bytes")
    w.call(f"tensor_maps.copy(g, {w.address(dst)}, {w.address(src)})")


@op("clusterlaunchcontrol.try_cancel.async", cost="async", dst=0)
def _try_cancel(w, i, m):
    m.take("shared::cta")
    if not m.take("mbarrier::complete_tx::bytes"):
        raise Unsupported("completion mechanism")
    multicast = m.take("multicast::cluster::all")
    m.take("b128")
    to, bar = (w.address(o) for o in i.operands)
    w.call(f"async_copy.cluster_launch_cancel(g, {to}, {bar}, {multicast}, {w.mask()})")


@op("clusterlaunchcontrol.query_cancel.is_canceled", cost="alu", dst=1)
def _is_canceled(w, i, m):
    m.drop("pred", "b128")
    w.write(i.operands[0], f"async_copy.is_canceled({w.read(i.operands[1], 128)})")


@op(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid",
    *(f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{x}" for x in "xyz"),
    cost="alu",
    dst=1,
)
def _first_ctaid(w, i, m):
    m.drop("b32", "b128")
    value = w.read(i.operands[1], 128)
    if m.take("v4"):
        w.write_all(i.operands[0].items, f"async_copy.first_ctaid({value})")
    else:
        dimension = i.parts[2].removeprefix("get_first_ctaid::")
        w.write(i.operands[0], f"async_copy.first_ctaid({value})[{'xyz'.index(dimension)}]")
