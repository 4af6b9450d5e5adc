"""All golden cases, in the order in which they run.

    python3 -m silicon.golden.cases        lists the instruction forms that each file's cases execute
"""

from __future__ import annotations

import re

from silicon import command

from . import (
    barrier,
    bulk,
    cluster,
    control,
    faults,
    floats,
    integer,
    memory,
    mma_sync,
    tensormap,
    tma,
    warp,
    wgmma,
)  # fmt: skip
from .case import Case

GROUPS = {
    m.__name__.rsplit(".", 1)[1]: m.CASES
    for m in (integer, floats, warp, memory, control, barrier, cluster, bulk, tma, tensormap, wgmma, faults, mma_sync)
}
# The card that ran them, whose name their recording has -> cases
RECORDINGS = {"h200": [case for name in GROUPS if name != "mma_sync" for case in GROUPS[name]], "h100": mma_sync.CASES}
CASES: list[Case] = [case for group in GROUPS.values() for case in group]
assert len({case.name for case in CASES}) == len(CASES)


def forms(ptx: str) -> set[str]:
    """The instruction forms of a PTX text: opcodes with all their modifiers, "add.sat.s32"."""
    statements = re.split(r"[;{}\n]", re.sub(r"[\w$]+:(?!:)", "", ptx))
    found = {
        m[1] for s in statements if (m := re.match(r"\s*(?:@!?\S+\s+)?([a-z][a-z0-9_]*(?:(?:\.|::)\w+)*)(?=\s|$)", s))
    }
    return {form for form in found if "." in form or form in ("bra", "call", "exit", "ret")}


if __name__ == "__main__":
    command.parser(__doc__).parse_args()
    for group, cases in GROUPS.items():
        found = sorted(set().union(*(forms(case.ptx) for case in cases)))
        print(f"{group}: {len(cases)} cases, {len(found)} forms")
        print("  " + "\n  ".join(found))
