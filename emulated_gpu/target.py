"""What a chip has of PTX: whether code of a .target runs on it, and which instructions a target lacks.

Code of sm_NN runs on NN and later, of sm_NNf on its family from NN on, of sm_NNa on NN alone (PTX ISA, 11.1.2). What
each target has stands in the "Target ISA Notes" of its chapter 9; ptxas is the oracle that the rules are held against
(tests/emulated_gpu/ptx/test_target.py).
"""

from __future__ import annotations

import re
from functools import lru_cache

from .chip import Chip
from .errors import Fault, Unsupported
from .ptx.syntax import Imm, Instr, Special

FAMILIES = {100: (100, 103, 107), 103: (103, 107), 107: (107,), 110: (110,), 120: (120, 121), 121: (121,)}
EVER = range(1000)
DATA_CENTRE = 100, 101, 103, 107, 110  # Blackwell and Rubin with tensor memory
GEFORCE = 120, 121
OF_TENSOR_MEMORY = r"cp\.async\.bulk.*(\.cta_group|scatter4|(shared::cluster|prefetch).*(gather4|im2col::w))"
OF_BLACKWELL = r"cvt.*(e2m1|e2m3|e3m2|ue8m0|ue5m3|s2f6|bf16x2.*\.e[45]m|e[45]m\dx2\.bf16)"
# (a pattern at the beginning of a form, the compute capabilities that have it, their targets in words): the first
# pattern that matches decides, and what matches none every target has
RULES = [
    (r"tcgen05\.mma.*collector::b::", (107,), "sm_107a"),
    (r"tcgen05\.ld\.red", (101, 103, 107, 110), "sm_103a, sm_107a, sm_110a"),
    (r"tcgen05\.mma.*kind::i8", (100, 101, 110), "sm_100a, sm_110a"),
    (r"tcgen05", DATA_CENTRE, "sm_100a, sm_103a, sm_107a, sm_110a"),
    (r"wgmma", (90,), "sm_90a"),
    (r"mma\.s.*\.kind::.*\.e[23]m[123]", GEFORCE, "sm_120a, sm_121a"),
    (r"mma\.s.*\.kind::f8f6f4", (*DATA_CENTRE, *GEFORCE), "sm_100a, sm_103a, sm_120a, sm_121a"),
    (r"mma\.s.*\.kind::", GEFORCE, "sm_120a, sm_121a"),
    (r"mma\.s.*\.(e4m3|e5m2)", EVER[89:], "sm_89 and later"),
    (r"mma\.sync.*m16n8k\d+.*\.f64", EVER[90:], "sm_90 and later"),
    (r"setmaxnreg", (90, *EVER[100:]), "sm_90a, sm_100a and later"),
    (r"clusterlaunchcontrol", EVER[100:], "sm_100 and later"),
    (OF_TENSOR_MEMORY, DATA_CENTRE, "sm_100a, sm_103a, sm_107a, sm_110a"),
    (r"cp\.async\.bulk.*(gather4|im2col::w|\.cp_mask)", EVER[100:], "sm_100 and later"),
    (r"st\.bulk|(st|red)\.async.*\.global", EVER[100:], "sm_100 and later"),
    (r"redux.*\.f32", (100, 103, 107), "sm_100a, sm_103a, sm_107a"),
    (r"multimem.*\.e[45]m[23]", EVER[100:], "sm_100a and later"),
    (r"(atom|red)\b.*\.(bf16|b128|v[248])", EVER[90:], "sm_90 and later"),
    (r".* %((is_explicit_|n)?cluster|aggr_smem)", EVER[90:], "sm_90 and later"),
    (r"cp\.(reduce\.)?async\.bulk|st\.async|red\.async|multimem", EVER[90:], "sm_90 and later"),
    (r"mbarrier\.(try_wait|expect_tx|complete_tx)|mbarrier\.arrive.*expect_tx", EVER[90:], "sm_90 and later"),
    (r"mbarrier.*(\.relaxed|[.:]cluster)|mbarrier\.arrive(?!.*noComplete).* 3", EVER[90:], "sm_90 and later"),
    (r"(fence|membar)\.(proxy\.(async|tens)|mbarrier_init)|elect\.sync|griddepcontrol", EVER[90:], "sm_90 and later"),
    (r"fence\.(acquire|release)|(fence|ld|st|atom|red|isspacep|cvta)\..*cluster", EVER[90:], "sm_90 and later"),
    (r"stmatrix.*\.b8", (*DATA_CENTRE, *GEFORCE), "sm_100a, sm_120a"),
    (r"tensormap.*swizzle_mode.* 4$", (103, 107), "sm_103a, sm_107a"),
    (r"tensormap.*(swizzle_atomicity|elemtype.* 1[345]$)", EVER[100:], "sm_100a and later"),
    (r"mapa|getctarank|barrier\.cluster|stmatrix|tensormap\.|prefetch.*\.tensormap", EVER[90:], "sm_90 and later"),
    (r"ldmatrix.*(\.b8x16|m16n16)", EVER[100:], "sm_100a, sm_120a"),
    (r"(add|sub|mul|fma)\b.*\.f32(x2|\.b?f16)|(min|max)\b.*\.f32 4", EVER[100:], "sm_100 and later"),
    (r"(min|max)\b.*\.xorsign", EVER[86:], "sm_86 and later"),
    (r"(add|sub|mul|setp?|tanh|ex2)\b.*\.bf16|fma.*\.oob", EVER[90:], "sm_90 and later"),
    (r"(add|min|max)\..*[su]16x2|(min|max)\.relu\.s", EVER[90:], "sm_90 and later"),
    (r"cvt.*ue5m3", (107,), "sm_107a"),
    (r"cvt\.rs", (100, 103, 107), "sm_100a, sm_103a, sm_107a"),
    (rf"cvt\.r[nz]\..*satfinite.*\.tf32|{OF_BLACKWELL}", EVER[100:], "sm_100 and later"),
    (r"cvt.*(e4m3|e5m2)", EVER[89:], "sm_89 and later"),
    (r"cvt\.r[nz]\..*tf32|cvt.*\.bf16\.(?!f32)|cvt.*\.(?!f32)\w+\.bf16 ", EVER[90:], "sm_90 and later"),
    (r"(ld|st)\b.*\.global.*\.(v8\.[bfus]32|v4\.[bfus]64)", EVER[100:], "sm_100 and later"),
    (r"cp\.async|redux|mbarrier", EVER[80:], "sm_80 and later"),
]
GROUPS = {"cta_group::1", "cta_group::2"}
# What the targets without an a or f lack, on whatever chip
SPECIFIC = re.compile(
    r"tcgen05|wgmma|setmaxnreg|tensormap\.replace|mma\.s.*\.kind::|(ld|st)matrix.*\.b8|redux.*\.f32|multimem.*\.e[45]m"
    rf"|{OF_BLACKWELL}|clusterlaunchcontrol.*multicast|{OF_TENSOR_MEMORY}"
)
# What those with an f lack, too, behind their compute capability
EXACT = re.compile(
    r"\d+ (tcgen05\.(shift|mma.*kind::i8)|cvt\.rs|cvt.*s2f6|.*mma\.sp.*kind::mxf4|tensormap.*swizzle_mode.* 4$)"
    r"|12\d multimem.*\.e[45]m"
)
_RULES = [(re.compile(pattern), frozenset(have), names) for pattern, have, names in RULES]


def parts(target: str) -> tuple[int, str]:
    """Return the number and the suffix, "", "a" or "f", of a .target sm_NN. Raises Unsupported for another form."""
    found = re.fullmatch(r"sm_(\d+)([af]?)", target)
    if found is None:
        raise Unsupported(f".target {target!r}")
    return int(found[1]), found[2]


def runs_on(target: str, chip: Chip) -> bool:
    """Return whether PTX of this .target can be loaded on the chip."""
    number, suffix = parts(target)
    if suffix == "a":
        return number == chip.compute
    if suffix == "f":
        return chip.compute in FAMILIES.get(number, (number,))
    return number <= chip.compute


def form_of(one: Instr) -> str:
    """Return an opcode with what else tells targets apart: how many operands it has, which special registers, and what
    is put into a tensor map."""
    special = "".join(f" %{operand.name}" for operand in one.operands if isinstance(operand, Special))
    put = [operand.value for operand in one.operands[-1:] if one.parts[0] == "tensormap" and isinstance(operand, Imm)]
    return f"{one.op} {len(one.operands)}{special}" + "".join(f" {value}" for value in put)


@lru_cache(maxsize=4096)
def lacks(form: str, compute: int, suffix: str = "a") -> str | None:
    """Return in words which targets have this form (`form_of`), where sm_`compute``suffix` has not; else None."""
    if not suffix and SPECIFIC.match(form):
        return "targets that end in a or f"
    if suffix != "a" and EXACT.match(f"{compute} {form}"):
        return "targets that end in a"
    for pattern, have, names in _RULES:
        if pattern.match(form):
            return None if compute in have else names
    return None


def check(target: str, instructions: list[Instr], chip: Chip) -> None:
    """Check that code of this .target runs on the chip and has its instructions, as ptxas and the driver do.

    Raises a Fault: "launch" for code of another chip, "tmem-alloc" for a kernel whose tcgen05 instructions are of
    one CTA and of a pair; Unsupported for an instruction; each in a sentence.
    """
    if not runs_on(target, chip):
        raise Fault("launch", f"code of {target} does not run on an {chip.name}, which is {chip.arch}")
    number, suffix = parts(target)
    for one in instructions:
        if names := lacks(form_of(one), number, suffix):
            raise Unsupported(f"{one.op} in code of {target} ({source_line(one)}): {names} have it")
    of_tensor_memory = (one for one in instructions if one.parts[0] == "tcgen05")
    groups = {part: one for one in of_tensor_memory for part in GROUPS.intersection(one.parts)}
    if len(groups) > 1:
        both = " and ".join(f"{one.op} ({source_line(one)})" for _, one in sorted(groups.items()))
        raise Fault("tmem-alloc", f"{both} in one kernel: all its tcgen05 instructions are of the same .cta_group")


def source_line(instr: Instr) -> str:
    """Say where an instruction is: in the source, if lines are known."""
    return instr.loc or f"PTX line {instr.line}"
