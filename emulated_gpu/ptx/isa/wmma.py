"""Matrices of a warp in opaque fragments: wmma.load, wmma.store, wmma.mma (PTX ISA 9.7.14.4)."""

from __future__ import annotations

import re

from ...errors import Unsupported
from ...formats.wmma_form import TYPES, Fragment, WmmaForm
from .registry import UNTIMED, Mods, flat, op

# Costs. Untimed: neither the tensor cores' time for it was measured, nor into which loads it is made.
_SPACES = ("global", "shared", "shared::cta")


def _shape(m: Mods) -> str:
    shape = next((x for x in m.left if re.fullmatch(r"m\d+n\d+k\d+", x)), None)
    if shape is None:
        raise Unsupported("no shape")
    m.take(shape)
    return shape


def _memory_form(w, i, m: Mods) -> tuple[str, Fragment, str]:
    """The constant that names the fragment of a load or store, the fragment, and the state space."""
    role = i.parts[2]
    row_major = m.one_of("row", "col") == "row"
    shape, space = _shape(m), m.one_of(*_SPACES, default="generic").split("::")[0]
    (kind,), m.left = m.left, []
    fragment = Fragment(role, shape, TYPES[kind], row_major)
    return w.constant(fragment), fragment, space


@op(*(f"wmma.load.{role}.sync.aligned" for role in "abc"), cost=UNTIMED, dst=1, collective=True, tensor_results=True)
def _load(w, i, m):
    name, fragment, space = _memory_form(w, i, m)
    d, memory, *stride = i.operands
    if len(flat(d)) != fragment.registers:
        raise Unsupported(f"{len(flat(d))} registers where {fragment.registers} are due")
    step = w.read(stride[0], 32) if stride else fragment.stride
    w.write_all(flat(d), f"wmma.load(g, {name}, {space!r}, {w.address(memory)}, {step})")


@op("wmma.store.d.sync.aligned", cost=UNTIMED, dst=0, collective=True)
def _store(w, i, m):
    name, fragment, space = _memory_form(w, i, m)
    memory, source, *stride = i.operands
    if len(flat(source)) != fragment.registers:
        raise Unsupported(f"{len(flat(source))} registers where {fragment.registers} are due")
    values = ", ".join(w.read(o, fragment.register_bits, True) for o in flat(source))
    step = w.read(stride[0], 32) if stride else fragment.stride
    w.call(f"wmma.store(g, {name}, {space!r}, {w.address(memory)}, ({values},), {step})")


@op("wmma.mma", cost=UNTIMED, dst=1, collective=True, tensor_results=True)
def _mma(w, i, m):
    bitwise = m.one_of("xor", "and", default="")
    if bitwise and not m.take("popc") or not (m.take("sync") and m.take("aligned")):
        raise Unsupported("modifiers")
    shape, saturate = _shape(m), m.take("satfinite")
    layouts = [x for x in m.left if x in ("row", "col")]
    m.drop("row", "col", "rn")  # rn: of f64, as by default
    if len(layouts) != 2:
        raise Unsupported(f"layouts {layouts}")
    kinds, m.left = [TYPES[name] for name in m.left], []
    if len(kinds) == 2:  # of D and C: A and B are f16
        kinds = [kinds[0], TYPES["f16"], TYPES["f16"], kinds[1]]
    d_type, a_type, b_type, c_type = kinds
    if d_type is not c_type:
        raise Unsupported(f"C of {c_type.name} and D of {d_type.name}")
    form = WmmaForm.of(shape, a_type, b_type, d_type, saturate, bitwise)
    d, *sources = i.operands
    for part, fragment in zip((*sources, d), (form.a, form.b, form.d, form.d), strict=True):
        if len(flat(part)) != fragment.registers:
            raise Unsupported(f"{len(flat(part))} registers where {fragment.registers} are due")
    bits = form.a.register_bits
    parts = ("(" + ", ".join(w.read(o, bits, True) for o in flat(part)) + ",)" for part in sources)
    w.write_all(flat(d), f"wmma.multiply(g, {w.constant(form)}, {', '.join(parts)})")
