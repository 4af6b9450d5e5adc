"""ptxas leaves alone the registers that a wgmma under way reads: what it made of a branch between two of them did not.

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
CONFIGS = [f"{table} {i}" for table, count in (("FP4", 5), ("FP4_GEMM1", 3)) for i in range(count)]
COMPILE = """
import ctypes, json, os, sys
os.environ.update(CUTE_DSL_ARCH="sm_90a", CUTE_DSL_KEEP="cubin", CUTE_DSL_KEEP_CUBIN="1")
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.runtime import make_ptr
from tests import quick_dsl
quick_dsl.install()
from moe.tuning import sm90
from moe.tuning.back_ends import kernel
folder, *names = sys.argv[1:]
for name in names:
    table, i = name.split()
    made = kernel((sm90.FP4["bf16"] if table == "FP4" else sm90.FP4_GEMM1)[int(i)])
    words = (ctypes.c_int64 * made.words)()
    pointer = make_ptr(Int64, ctypes.addressof(words), cute.AddressSpace.generic)
    with open(f"{folder}/{name}.cubin", "wb") as file:
        file.write(cute.compile(made, pointer).artifacts.CUBIN)
"""
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
NO_RESULT = "ST", "RED", "BRA", "BAR", "SYNCS"


def written(operation: str, operands: str) -> range:
    """Numbers of the registers that an instruction writes."""
    first = re.match(r"R(\d+)\b", operands)
    if first is None or operation.startswith(NO_RESULT):
        return range(0)
    count = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
    return range(int(first[1]), int(first[1]) + count)


def early(sass: str) -> tuple[int, list[str]]:
    """How many HGMMA there are, and the instructions that write registers that one of them may still read."""
    reading, count, found = set(), 0, []
    for operation, operands in INSTRUCTION.findall(sass):
        if operation.startswith("HGMMA"):
            first = int(re.findall(r"\bR(\d+)", operands)[1])  # behind the sums: four of operand A
            reading |= set(range(first, first + 4))
            count += 1
        elif operation.startswith("WARPGROUP.DEPBAR"):
            reading = set()
        elif reading & set(written(operation, operands)):
            found.append(f"{operation} {operands}")
    return count, found


def test_an_early_write_is_seen():
    """Of what ptxas made of the dropped mainloop: R140 is the first of operand A's registers."""
    sass = """
        /*7eb0*/                   HGMMA.64x64x16.F32.BF16 R56, R140, gdesc[UR24], R56, gsb0 ;
        /*8050*/              @!P1 IMAD R140, R140, 0x8800, R8 ;
        /*89e0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*8a30*/                   IMAD.MOV.U32 R141, RZ, RZ, R150 ;
    """
    assert early(sass) == (1, ["IMAD R140, R140, 0x8800, R8"])


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
