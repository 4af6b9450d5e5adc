"""cvt and its packed and small-float forms (PTX ISA 9.7.9.21, 9.7.9.22)."""

from __future__ import annotations

from ...errors import Unsupported
from .registry import is_float, is_signed, op, width

INTEGER_ROUNDING = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SMALL = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2")

# Costs. `convert`: measured (chain/cvt.f16, cvt.f16x2, issue/cvt.f16x2); no measurement of others.


@op("cvt", cost="convert", leaves_out=True)
def _cvt(w, i, m):
    types = [t for t in m.left if t in (*SMALL, "tf32", "f16x2", "bf16x2") or _is_plain(t)]
    if len(types) != 2:
        raise Unsupported(f"conversion between {types}")
    for t in types:
        m.left.remove(t)
    to, kind = types
    rounding = m.one_of("rna", "rn", "rz", "rm", "rp", *INTEGER_ROUNDING, default=None)
    if rounding is None and _rounds(to, kind) or rounding == "rna" and "relu" in m.left:
        raise Unsupported(f"this rounding from {kind} to {to}")
    d, *sources = i.operands
    if kind == "ue8m0x2":
        w.write(d, f"convert.unpack_ue8m0({w.read(sources[0], 16)})")
    elif to in SMALL:
        scale = to == "ue8m0x2"
        if not m.take("satfinite") and not scale:
            raise Unsupported("conversion without .satfinite")
        if rounding not in (("rz", "rp") if scale else ("rn",)) or scale and kind == "f16x2":
            raise Unsupported(f"this rounding from {kind} to {to}")
        if kind == "f32":
            a, b = (w.read(o, 32, True) for o in sources)
        else:
            a, b = f"{w.read(sources[0], 32)} >> 16", f"{w.read(sources[0], 32)} & 0xffff"
            a, b = f"alu.resize({a}, 16)", f"alu.resize({b}, 16)"
            kind = kind[:-2]
        relu = not scale and m.take("relu")
        w.write(d, f"convert.pack_small({to[:-2]!r}, {a}, {b}, {kind!r}, {rounding!r}, {relu})")
    elif kind in SMALL:
        if to not in ("f16x2", "bf16x2"):
            raise Unsupported(f"{kind} to {to}")
        value = f"{w.read(sources[0], 16)}, {m.take('relu')}, {to[:-2]!r}"
        w.write(d, f"convert.unpack_small({kind[:-2]!r}, {value})")
    elif to == "tf32":
        relu, satfinite = m.take("relu"), m.take("satfinite")
        w.write(d, f"convert.to_tf32({w.read(sources[0], 32, True)}, {rounding!r}, {relu}, {satfinite})")
    elif to in ("f16x2", "bf16x2"):
        if kind != "f32" or rounding not in ("rn", "rz"):
            raise Unsupported(f"this rounding from {kind} to {to}")
        relu, satfinite = m.take("relu"), m.take("satfinite")
        a, b = (w.read(o, 32, True) for o in sources)
        if rounding == "rn" and not relu and not satfinite:  # every epilogue does it
            name = "later_halves" if w.goes_to_stmatrix(d) else "to_halves"
            w.write(d, w.made_of(sources, f"convert.{name}({a}, {b}, {to[:-2]!r})"))
            return
        half = [f"convert.float_to_float({x}, 'f32', {to[:-2]!r}, {rounding!r}, relu={relu})" for x in (b, a)]
        if satfinite:
            half = [f"convert.finite({x}, {to[:-2]!r})" for x in half]
        w.write(d, f"alu.join(16, {half[0]}, {half[1]})")
    elif is_float(to) and is_float(kind):
        ftz, sat, relu = m.take("ftz"), m.take("sat"), m.take("relu")
        integer = INTEGER_ROUNDING.get(rounding)
        mode = rounding if rounding in ("rz", "rm", "rp") else "rn"
        clamps = kind == "f32" and width(to) == 16 and rounding in ("rn", "rz") and not ftz and not sat
        a = w.read(sources[0], width(kind), True)
        text = f"convert.float_to_float({a}, {kind!r}, {to!r}, {mode!r}, {ftz}, {sat}, {relu}, {integer!r})"
        w.write(d, f"convert.finite({text}, {to!r})" if clamps and m.take("satfinite") else text)
    elif is_float(kind):
        a = w.read(sources[0], width(kind), True)
        m.take("sat")  # which changes nothing: these conversions always clamp
        how = INTEGER_ROUNDING[rounding]
        text = f"convert.float_to_int({a}, {kind!r}, {how!r}, {width(to)}, {is_signed(to)}, {m.take('ftz')})"
        w.write(d, _into_register(text, to, d), max(width(to), 16))
    elif is_float(to):
        if rounding in INTEGER_ROUNDING:
            raise Unsupported(f"this rounding from {kind} to {to}")
        a = w.read(sources[0], width(kind))
        w.write(d, f"convert.int_to_float({a}, {width(kind)}, {is_signed(kind)}, {to!r}, {rounding!r})")
    else:
        a = w.read(sources[0], width(kind))
        least = min(to, kind, key=width)
        text = f"alu.extend({a}, {width(least)}, {is_signed(least)}, {max(width(to), 16)})"
        if m.take("sat"):
            text = f"alu.saturated({a}, {width(kind)}, {is_signed(kind)}, {width(to)}, {is_signed(to)})"
        w.write(d, _into_register(text, to, d), max(width(to), 16))


def _rounds(to: str, kind: str) -> bool:
    """Whether a conversion has to say how it rounds."""
    if is_float(to) and is_float(kind):
        return _is_plain(to) and _is_plain(kind) and width(to) < width(kind)
    return _is_plain(to) and _is_plain(kind) and is_float(to) != is_float(kind)


def _into_register(text: str, to: str, d) -> str:
    """A destination register wider than the type is sign- or zero-extended (PTX 9.4.1)."""
    if hasattr(d, "bits") and d.bits > width(to):
        return f"alu.extend({text}, {width(to)}, {is_signed(to)}, {d.bits})"
    return text


def _is_plain(t: str) -> bool:
    return t in ("f16", "bf16", "f32", "f64") or (t[0] in "us" and t[1:] in ("8", "16", "32", "64"))


@op("cvt.pack", cost="convert")
def _cvt_pack(w, i, m):
    if not m.take("sat"):
        raise Unsupported("cvt.pack without .sat")
    to, kind, *third = m.left
    m.left = []
    if kind != "s32" or to[0] not in "us" or to[1:] not in ("16", "8", "4", "2") or third not in ([], ["b32"]):
        raise Unsupported(f"cvt.pack of {kind} to {to}")
    a, b, *c = (w.read(o, 32) for o in i.operands[1:])
    w.write(i.operands[0], f"convert.pack_saturated({a}, {b}, {c[0] if c else 0}, {to[1:]}, {is_signed(to)})")
