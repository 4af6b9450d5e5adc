"""Matrix multiplication by the registers of a warp: mma.sync (PTX ISA 9.7.14.5)."""

from __future__ import annotations

import re

from ...errors import Unsupported
from ...formats.mma_scaled_form import KINDS, MmaScaledForm
from ...formats.mma_sync_form import TYPES, MmaSyncForm
from .registry import UNTIMED, flat, op, width

# Costs: by shape and type (silicon/probes/mma_sync.py). Untimed: what the tensor cores take for it was not measured.
WIDTHS = {"f16": "16", "bf16": "16", "tf32": "32", "s8": "8", "u8": "8", "s4": "4", "u4": "4", "b1": "1", "f64": "64"}


def _cost(i) -> str:
    """The class of a form, mma_SHAPE_BITS of A; of FP8, which sm_90 converts to f16, with the type of D."""
    shape = next((x for x in i.parts if re.fullmatch(r"m\d+n8k\d+", x)), "")
    types = [x for x in i.parts if x in TYPES]
    if "kind" in i.op or len(types) < 2:
        return UNTIMED
    return f"mma_{shape}_{WIDTHS.get(types[1]) or f'fp8_{types[0]}'}"


@op("mma.sync.aligned", cost=_cost, dst=1, collective=True, tensor_results=True)
def _mma(w, i, m):
    shape = next((x for x in m.left if re.fullmatch(r"m\d+n8k\d+", x)), None)
    if shape is None:
        raise Unsupported("no shape")
    m.take(shape)
    layouts = [x for x in m.left if x in ("row", "col")]
    m.drop("row", "col")
    if layouts != ["row", "col"]:
        raise Unsupported(f"layouts {layouts}")
    if kind := m.one_of(*(f"kind::{kind}" for kind in KINDS), default=None):
        return _of_kind(w, i, m, shape, kind.removeprefix("kind::"))
    saturate, bitwise = m.take("satfinite"), m.one_of("xor", "and", default="")
    if bitwise and not m.take("popc"):
        raise Unsupported("no modifier .popc")
    kinds, m.left = [TYPES.get(name) for name in m.left], []
    if len(kinds) != 4 or None in kinds or kinds[0] is not kinds[3]:
        raise Unsupported("types")
    form = MmaSyncForm(shape, kinds[1], kinds[2], kinds[0], saturate, bitwise)
    d, *sources = i.operands
    counts = tuple(len(flat(part)) for part in sources)
    if counts != form.registers or len(flat(d)) != counts[2]:
        raise Unsupported(f"{counts} registers of A, B and C where {form.registers} are due")
    bits = width("f64") if kinds[1].name == "f64" else 32
    parts = ("(" + ", ".join(w.read(o, bits, True) for o in flat(part)) + ",)" for part in sources)
    w.write_all(flat(d), f"mma_sync.multiply(g, {w.constant(form)}, {', '.join(parts)})")


def _of_kind(w, i, m, shape, kind):
    """Write a form of sm_120: A, B, C, then a register of A's scale factors, who holds them (byte, thread), and B's."""
    scaled = m.take("block_scale")
    vec = m.one_of("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", default=None)
    names, m.left = m.left, []
    form = MmaScaledForm.of(shape, kind, names, scaled, vec and int(vec[-2]))
    d, a, b, c, *scales = i.operands
    counts = tuple(len(flat(part)) for part in (a, b, c))
    if counts != form.registers or len(flat(d)) != counts[2] or len(scales) != 4 * scaled:
        raise Unsupported(f"{counts} registers of A, B and C where {form.registers} are due")
    parts = ["(" + ", ".join(w.read(o, 32, True) for o in flat(part)) + ",)" for part in (a, b, c)]
    for words, selectors in zip(scales[::2], scales[1::2]):
        (word,), (byte, thread) = flat(words), flat(selectors)
        parts.append(f"({w.read(word, 32)}, {w.read(byte, 16)}, {w.read(thread, 16)})")
    w.write_all(flat(d), f"mma_sync.multiply_kind(g, {w.constant(form)}, {', '.join(parts)})")


@op("mma.sp", cost=UNTIMED, dst=1, tensor_results=True)
def _sparse(w, i, m):
    raise Unsupported("sparse mma")
