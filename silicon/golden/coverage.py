"""Tables of what each instruction of the emulator rests on: a card's recordings, others' kernels, or the text alone.

    python -m silicon.golden.coverage                  prints the tables of emulated_gpu/EVIDENCE.md; --write PAGE
    python -m silicon.golden.coverage --elsewhere LOGS lists the forms of the PTX in LOGS (tests/cutlass_examples.py)

elsewhere.txt holds that list: the instruction forms of kernels that were written elsewhere and agreed with their own
reference checks on the emulator.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from emulated_gpu.ptx import isa
from silicon import command

from .cases import CASES, forms

ELSEWHERE = Path(__file__).with_name("elsewhere.txt")

# family -> the instructions in it: a pattern of the names under which the emulator knows them
FAMILIES = {
    "integer and floating-point arithmetic": "arithmetic",
    "logic, shifts, comparisons, moves": "logic",
    "conversions": "convert",
    "control flow, dependent launches": "control",
    "warps: shuffles, votes, elections": "warp",
    "barriers, fences": "barrier",
    "mbarriers": "barrier: mbarrier",
    "loads, stores, atomics, matrices of a warp": "memory",
    "cp.async": "copy: cp.async",
    "bulk and tensor copies": "copy: cp(.reduce)?.async.bulk",
    "tensor maps": "copy: tensormap",
    "cluster launch control": "copy: clusterlaunchcontrol",
    "tensor memory: alloc, ld, st, wait": "tcgen05: tcgen05.(alloc|dealloc|relinquish|ld|st|wait)",
    "tensor core: mma, cp, shift, commit, fence": "tcgen05: tcgen05.(mma|cp|shift|commit|fence)",
    "tensor core of sm_90: wgmma": "wgmma",
    "tensor cores from registers: mma.sync": "mma_sync",
    "tensor cores from fragments: wmma": "wmma",
    "textures, surfaces": "textures",
}


def family_of(name: str) -> str:
    """The family of an instruction: the last, and so the narrowest, whose pattern fits `module: instruction`."""
    module = isa.HANDLERS[name].emit.__module__.rsplit(".", 1)[1]
    return next(f for f, pattern in reversed(FAMILIES.items()) if re.match(pattern, f"{module}: {name}"))


def refused() -> set[str]:
    """The instructions that the emulator knows by name only, and refuses."""
    return {"tcgen05.mma.sp", "tcgen05.mma.ws", "wgmma.mma_async.sp", "mma.sp"}


def instruction_of(form: str) -> str | None:
    """The instruction under which the emulator knows a form, if it does."""
    handler = isa.lookup(SimpleNamespace(op=form))
    return handler.name if handler else None


def rows() -> list[tuple[str, int, int, list[str]]]:
    """A row a family: its name, forms that a card ran, more forms of others' kernels, instructions with neither."""
    silicon = set().union(*(forms(case.ptx) for case in CASES if not case.faults))
    elsewhere = set(ELSEWHERE.read_text().split()) - silicon
    known = set(isa.HANDLERS) - refused()
    shown = {name: [set(), set()] for name in known}
    for evidence, found in enumerate((silicon, elsewhere)):
        for form in found:
            shown[instruction_of(form)][evidence].add(form)
    result = []
    for family in FAMILIES:
        members = sorted(name for name in known if family_of(name) == family)
        counts = [sum(len(shown[name][evidence]) for name in members) for evidence in (0, 1)]
        result.append((family, *counts, [name for name in members if not any(shown[name])]))
    return result


KINDS = ["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"]
SHAPES = ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]
COPIES = ["128x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4", "4x256b"]
# instruction -> variants, as they stand in its forms; each is to be had for .cta_group::1 and ::2, but ld and st
TENSOR = {
    "tcgen05.mma": [f"kind::{kind}" for kind in KINDS] + ["ashift"],
    "tcgen05.cp": [*COPIES, "b8x16.b4x16_p64", "b8x16.b6x16_p32"],
    "tcgen05.shift": ["down"],
    "tcgen05.commit": ["mbarrier::arrive::one", "multicast::cluster"],
    "tcgen05.ld": [*SHAPES, "pack::16b"],
    "tcgen05.st": [*SHAPES, "unpack::16b"],
}


def tensor_rows() -> list[tuple[str, list[str], list[str]]]:
    """A row a tcgen05 instruction: its name, variants in others' kernels, variants that rest on the ISA's text alone.

    A variant is followed by the CTA groups, 1 and 2, for which that holds.
    """
    ran = [f"{form}." for form in ELSEWHERE.read_text().split()]
    result = []
    for name, variants in TENSOR.items():
        groups = ("",) if name in ("tcgen05.ld", "tcgen05.st") else ("1", "2")
        sides = ([], [])
        for variant in variants:
            seen = [
                any(
                    f.startswith(f"{name}.") and f".{variant}." in f and f".cta_group::{g}." * bool(g) in f for f in ran
                )
                for g in groups
            ]
            for side, wanted in enumerate((True, False)):
                which = [g for g, found in zip(groups, seen) if found is wanted]
                if which:
                    sides[side].append(f"`{variant}`" + (f" {' '.join(which)}" if groups[0] else ""))
        result.append((name, *sides))
    return result


def tables() -> str:
    """Both tables of emulated_gpu/EVIDENCE.md in Markdown."""
    lines = [table(), "", "| variants, and CTA groups | in kernels from elsewhere | from text alone |", "|---|---|---|"]
    lines += [f"| `{name}` | {', '.join(seen)} | {', '.join(rest)} |" for name, seen, rest in tensor_rows()]
    return "\n".join(lines)


def table() -> str:
    """The table by families of instructions in Markdown."""
    columns = ("instructions", "forms run on an H200, mma.sync on an H100", "more in kernels from elsewhere")
    lines = [f"| {' | '.join(columns)} | instructions with neither |"]
    lines.append("|---|---|---|---|")
    for family, silicon, elsewhere, rest in rows():
        lines.append(f"| {family} | {silicon} | {elsewhere} | {', '.join(f'`{name}`' for name in rest)} |")
    return "\n".join(lines)


def split(page: str) -> tuple[str, str, str]:
    """Return what stands before, between and behind the markers of the tables. Raises ValueError without markers."""
    before, begin, rest = page.partition("<!-- coverage -->\n")
    between, end, after = rest.partition("<!-- /coverage -->")
    if not end:
        raise ValueError("the page has no markers <!-- coverage --> and <!-- /coverage -->")
    return before + begin, between, end + after


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--elsewhere", type=command.existing, metavar="LOGS", help="a folder with PTX files somewhere")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables between the page's markers")
    options = parser.parse_args()
    if options.elsewhere:
        texts = (path.read_text().rstrip("\0") for path in options.elsewhere.rglob("*.ptx"))
        found = set().union(*(forms(text) for text in texts))
        print("\n".join(sorted(form for form in found if instruction_of(form))))
    elif options.write:
        before, between, after = split(options.write.read_text())
        options.write.write_text(before + tables() + "\n" + after)
    else:
        print(tables())


if __name__ == "__main__":
    main()
