"""Asynchronous warpgroup matrix multiplication of sm_90a: wgmma (PTX ISA 9.7.15)."""

from __future__ import annotations

import re

from ...errors import Unsupported
from ...formats.wgmma_form import TYPES, WgmmaForm
from ..syntax import Vec
from .registry import UNTIMED, Mods, flat, op

# Costs. `wgmma_sync`: measured (wgmma.py). mma_async as alu: no measurement of its issue alone, which the figures of
# whole wgmmas contain; what the tensor core takes is the clock's (model/wgmma.py). Untimed: not executed.


def _aligned(m: Mods) -> None:
    m.drop("sync", "aligned")


@op("wgmma.fence", cost="wgmma_sync", dst=0, collective=True, starts_block=True)
def _fence(w, i, m):
    _aligned(m)
    w.call("wgmma.fence(g)")


@op("wgmma.commit_group", cost="wgmma_sync", dst=0, collective=True)
def _commit(w, i, m):
    _aligned(m)
    w.call("wgmma.commit(g)")


@op("wgmma.wait_group", cost="wgmma_sync", dst=0, blocking=True, collective=True, ends_block=True)
def _wait(w, i, m):
    _aligned(m)
    w.wait_unless(f"wgmma.wait(g, {i.operands[0].value})")


@op("wgmma.mma_async", cost="alu", dst=1, collective=True, in_place=True, tensor_results=True)
def _mma(w, i, m):
    """Registers of D, and of A if it has some, are used in place, by their numbers."""
    _aligned(m)
    shape = next((x for x in m.left if re.fullmatch(r"m64n\d+k\d+", x)), None)
    if shape is None:
        raise Unsupported("no shape")
    m.take(shape)
    n, k = map(int, shape.removeprefix("m64n").split("k"))
    saturate = m.take("satfinite")
    kinds, m.left = [TYPES.get(name) for name in m.left], []
    if len(kinds) != 3 or None in kinds:
        raise Unsupported("types")
    d_type, a_type, b_type = kinds
    d, a, b, scale_d, *rest = i.operands
    in_registers = isinstance(a, Vec)
    scales, transposes = [o.value for o in rest[:2]], [o.value for o in rest[2:]]
    wanted = 0 if d_type is TYPES["s32"] else 4 - in_registers if a_type.bits == 16 else 2
    if len(rest) != wanted or not set(scales) <= {1, -1} or not set(transposes) <= {0, 1}:
        raise Unsupported(f"immediate operands {rest}")
    transposes = [0] * (2 - len(transposes)) + transposes
    form = WgmmaForm(
        n, a_type, b_type, d_type, in_registers, -1 in scales[:1], -1 in scales[1:], bool(transposes[0]),
        bool(transposes[1]), saturate,
    )  # fmt: skip
    registers = tuple(r.index for r in flat(d))
    if k != form.k or len(registers) != form.d_registers or in_registers and len(a.items) != 4:
        raise Unsupported("shape, or number of registers")
    a_text = tuple(r.index for r in a.items) if in_registers else w.read(a, 64)
    values = f"{w.constant(registers)}, {a_text}, {w.read(b, 64)}, {w.read(scale_d, 1)}"
    w.call(f"wgmma.mma_async(g, {w.constant(form)}, {values}, {i.line})")


@op("wgmma.mma_async.sp", cost=UNTIMED, dst=1, tensor_results=True)
def _sparse(w, i, m):
    raise Unsupported("sparse wgmma")
