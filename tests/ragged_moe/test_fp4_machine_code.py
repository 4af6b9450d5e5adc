"""ptxas leaves alone the registers that a wgmma under way reads: what it made of a branch between two of them did not.
It does not await each wgmma either, as where it does not understand a loop, or has too few registers.

PTX has no register that is written too early there, so the emulator finds nothing (worklog/moe.md, F7).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"
TABLES = {"FP4": 7, "FP4_GEMM1": 5, "FP4_BY_E4M3": 4, "FP4_BY_E4M3_GEMM1": 2}
CONFIGS = [f"{table} {i}" for table, count in TABLES.items() for i in range(count)]
COMPILE = """
import ctypes, json, os, sys
os.environ.update(CUTE_DSL_ARCH="sm_90a", CUTE_DSL_KEEP="cubin", CUTE_DSL_KEEP_CUBIN="1")
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr
from tests import quick_dsl
quick_dsl.install()
from ragged_moe.tuning import sm90
from ragged_moe.tuning.back_ends import kernel
folder, *names = sys.argv[1:]
for name in names:
    table, i = name.split()
    found = sm90.FP4["bf16"] if table == "FP4" else getattr(sm90, table)
    made = kernel(found[int(i)] if isinstance(found, tuple) else found)
    words = (ctypes.c_int64 * made.words)()
    pointer = make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic)
    with open(f"{folder}/{name}.cubin", "wb") as file:
        file.write(cute.compile(made, pointer).artifacts.CUBIN)
"""
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
LABEL = re.compile(r"^\s*(\.L\w+):")
NO_RESULT = "ST", "RED", "BRA", "BAR", "SYNCS"


def written(operation: str, operands: str) -> range:
    """Numbers of the registers that an instruction writes."""
    first = re.match(r"R(\d+)\b", operands)
    if first is None or operation.startswith(NO_RESULT):
        return range(0)
    count = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
    return range(int(first[1]), int(first[1]) + count)


def early(sass: str) -> tuple[int, list[str]]:
    """How many HGMMA there are, and the instructions that write registers that one of them may still read.

    Of e4m3 they are QGMMA. A group of HGMMA, whose last one has gsb0, reads until DEPBAR.LE lets no more than those
    after it be under way. Those under way where a loop goes back are so at its head, too.
    """
    lines = [found for line in sass.splitlines() for found in [LABEL.search(line) or INSTRUCTION.search(line)] if found]
    heads = {line[1]: i for i, line in enumerate(lines) if line.re is LABEL}
    count, found, walked, waiting = 0, {}, set(), [(0, [set()], True)]
    while waiting:
        at, groups, first_walk = waiting.pop()
        for i in range(at, len(lines)):
            if lines[i].re is LABEL:
                continue
            operation, operands = lines[i].groups()
            if operation.startswith(("HGMMA", "QGMMA")):
                first = int(re.findall(r"\bR(\d+)", operands)[1])  # behind the sums: four of operand A
                groups[-1] |= set(range(first, first + 4))
                groups += [set()] * ("gsb0" in operands)
                count += first_walk
            elif operation.startswith("WARPGROUP.DEPBAR"):
                groups = groups[-1 - int(operands.split("0x")[1], 16) :]
            elif set().union(*groups) & set(written(operation, operands)):
                found |= {f"{operation} {operands}": None}
            elif operation == "BRA":
                head = heads.get(operands.strip("`()"), i)
                state = head, tuple(frozenset(x) for x in groups)
                if head < i and any(groups) and state not in walked:
                    walked.add(state)
                    waiting.append((head, [set(x) for x in groups], False))
            if not first_walk and not any(groups):
                break
    return count, [*found]


def test_an_early_write_is_seen():
    """Of what ptxas made of the dropped mainloop: R140 is the first of operand A's registers."""
    sass = """
        /*7eb0*/                   HGMMA.64x64x16.F32.BF16 R56, R140, gdesc[UR24], R56, gsb0 ;
        /*8050*/              @!P1 IMAD R140, R140, 0x8800, R8 ;
        /*89e0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*8a30*/                   IMAD.MOV.U32 R141, RZ, RZ, R150 ;
    """
    assert early(sass) == (1, ["IMAD R140, R140, 0x8800, R8"])


LOOP = """
    .L_x_1:
        /*0010*/                   LOP3.LUT R{}, R2, 0x1c001c0, RZ, 0xc0, !PT ;
        /*0020*/                   HGMMA.64x16x16.F32.BF16 R24, R32, gdesc[UR8], R24, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/                   LOP3.LUT R{}, R3, 0x1c001c0, RZ, 0xc0, !PT ;
        /*0050*/                   HGMMA.64x16x16.F32.BF16 R24, R40, gdesc[UR8], R24, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/                   IMAD.MOV.U32 R40, RZ, RZ, R32 ;
"""


@pytest.mark.parametrize("first, second, early_one", [(33, 41, None), (33, 34, "R34, R3"), (42, 41, "R42, R2")])
def test_an_early_write_in_a_loop_is_seen(first, second, early_one):
    """Two sets of registers take turns: the other one is read while one is written, also around the loop."""
    expected = [] if early_one is None else [f"LOP3.LUT {early_one}, 0x1c001c0, RZ, 0xc0, !PT"]
    assert early(LOOP.format(first, second)) == (2, expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "python", [sys.executable, pytest.param(NEWEST, marks=pytest.mark.newest)], ids=["pinned", "newest"]
)
def test_no_register_of_operand_a_is_written_early(python, tmp_path):
    triton = pytest.importorskip("triton")  # whose wheel has nvdisasm
    nvdisasm = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    env = os.environ | {"CUTE_DSL_DUMP_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [str(python), "-c", COMPILE, str(tmp_path), *CONFIGS]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in CONFIGS:
        sass = subprocess.run([nvdisasm, "-c", tmp_path / f"{name}.cubin"], capture_output=True, text=True, check=True)
        count, found = early(sass.stdout)
        assert count >= 8 and not found, json.dumps({name: found[:5]})
        assert 2 * len(re.findall("[HQ]GMMA.*gsb0", sass.stdout)) <= count, f"{name}: each HGMMA is awaited"
