"""Textures and surfaces (PTX ISA 9.7.10, 9.7.11), in the unified mode: an object has its sampler.

There is no measurement of what they cost: a timed run refuses them.
"""

from __future__ import annotations

from ...errors import Unsupported
from ...formats.texels import COORDINATES
from ..syntax import Mem, Symbol, Vec
from .memory import write_loaded
from .registry import CACHE_HINTS, UNTIMED, Mods, flat, op, width

QUERIES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "num_samples")


def _handle(w, base) -> str:
    if isinstance(base, Symbol):
        raise Unsupported(f"{base.name}: a reference to a texture or surface, which CUDA 12 has removed: use objects")
    return w.read(base, 64)


def _place(w, memory: Mem, geometry: str, is_float: bool = False) -> tuple[str, str]:
    """The handle, and the coordinates as a tuple, of an operand [object, {coordinates}]."""
    if len(memory.extra) != 1:
        raise Unsupported("a sampler beside the texture (the independent mode)")
    items = flat(memory.extra[0])
    count = COORDINATES[geometry]
    if len(items) not in (count, 4 if count == 3 else count):
        raise Unsupported(f"{len(items)} coordinates of .{geometry}")
    of_layer = geometry.startswith("a")
    texts = [w.read(o, 32, is_float and not (of_layer and k == 0)) for k, o in enumerate(items[:count])]
    return _handle(w, memory.base), f"({', '.join(texts)},)"


def _form(m: Mods, geometries) -> tuple[str, str, str]:
    """Geometry, type of results and type of coordinates of .geom.v4.dtype.ctype."""
    geometry = m.one_of(*geometries)
    m.one_of("v4")
    coordinates = m.type()
    if coordinates != "f32" and (coordinates != "s32" or geometry.endswith("cube")):
        raise Unsupported(f"coordinates of type .{coordinates}")
    return geometry, m.one_of("u32", "s32", "f32", default="f32" if coordinates == "f32" else "s32"), coordinates


def _results(i) -> list:
    items = list(flat(i.operands[0]))
    if not isinstance(i.operands[0], Vec) or len(items) != 4:
        raise Unsupported("a result that is not four registers")
    return items


@op("tex", cost=UNTIMED, dst=1)
def _tex(w, i, m):
    """Textures have one level here, so those that a level or derivatives choose are it."""
    how = m.one_of("base", "level", "grad", default="")
    geometry, _, coordinates = _form(m, COORDINATES)
    if len(i.operands) != {"level": 3, "grad": 4}.get(how, 2):
        raise Unsupported("an offset, or a value to compare with")
    handle, where = _place(w, i.operands[1], geometry, coordinates == "f32")
    integers = coordinates == "s32"
    w.write_all(_results(i), f"textures.fetch(g, {geometry!r}, {handle}, {where}, {w.mask()}, {integers})")


@op("tld4", cost=UNTIMED, dst=1)
def _tld4(w, i, m):
    component = "rgba".index(m.one_of(*"rgba"))
    geometry, _, coordinates = _form(m, ("2d", "a2d", "cube", "acube"))
    if len(i.operands) != 2 or coordinates != "f32":
        raise Unsupported("an offset, or a value to compare with")
    handle, where = _place(w, i.operands[1], geometry, True)
    w.write_all(_results(i), f"textures.fetch(g, {geometry!r}, {handle}, {where}, {w.mask()}, False, {component})")


@op("txq", "suq", cost=UNTIMED, dst=1)
def _query(w, i, m):
    kind = "surface" if i.parts[0] == "suq" else "texture"
    m.take("level")
    what = m.one_of(*QUERIES)
    m.take("b32")
    w.write(i.operands[0], f"textures.query(g, {what!r}, {kind!r}, {_handle(w, i.operands[1].base)}, {w.mask()})")


def _surface(w, m: Mods, memory: Mem, size: int) -> tuple[str, str]:
    """Write where lanes access a surface; returns names of the addresses, and of the lanes that do."""
    m.drop(*CACHE_HINTS)
    geometry = m.one_of("1d", "2d", "3d", "a1d", "a2d")
    outside = m.one_of("trap", "clamp", "zero", default="trap")
    handle, where = _place(w, memory, geometry)
    address, acts = w.temp(), w.temp()
    call = f"surfaces.texel_addresses(g, {geometry!r}, {handle}, {where}, {size}, {outside!r}, {w.mask()})"
    w.emit(f"{address}, {acts} = {call}" + f" if {w.guard} is not False else (0, False)" * (w.guard is not None))
    return address, acts


def _elements(m: Mods) -> tuple[int, int]:
    """How many elements, and bits of one."""
    m.one_of("b")
    return int(m.one_of("v2", "v4", default="v1")[1:]), width(m.type())


@op("suld", cost=UNTIMED, dst=1)
def _suld(w, i, m):
    count, bits = _elements(m)
    address, acts = _surface(w, m, i.operands[1], count * bits // 8)
    write_loaded(w, i.operands[0], f"access.load(g, 'global', {address}, {bits // 8}, {count}, {acts})", count, bits)


@op("sust", cost=UNTIMED, dst=0)
def _sust(w, i, m):
    count, bits = _elements(m)
    items = flat(i.operands[1])
    if len(items) != count:
        raise Unsupported(f"store of {len(items)} values as {count}")
    address, acts = _surface(w, m, i.operands[0], count * bits // 8)
    values = ", ".join(w.read(o, bits) for o in items)
    w.call(f"access.store(g, 'global', {address}, {bits // 8}, ({values},), {acts})")


@op("sured", cost=UNTIMED, dst=0)
def _sured(w, i, m):
    m.one_of("b")
    what = m.one_of("add", "min", "max", "and", "or")
    kind = m.type()
    bits = width(kind)
    address, acts = _surface(w, m, i.operands[0], bits // 8)
    value = w.read(i.operands[1], bits)
    w.call(f"access.atomic(g, 'global', {what!r}, {kind!r}, {address}, ({value},), 1, {acts}, False, 'gpu')")
