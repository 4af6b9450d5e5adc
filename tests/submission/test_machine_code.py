"""The submission compiles for sm_100a with the pinned and with the newest CuTe DSL, to machine code without spills."""

import base64
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

import submission
from emulated_gpu.formats.cubin import resources
from emulated_gpu.formats.elf import sections
from tests import forked
from tests.submission.test_host import SCHEDULE

ROOT = pathlib.Path(__file__).parents[2]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"

# Compiles in a process of its own, since what CuTe DSL keeps is set when it is imported: PTX and cubins, in JSON.
COMPILE = """
import base64, json, os, sys
os.environ.update(CUTE_DSL_ARCH="sm_100a", CUTE_DSL_KEEP="ptx,cubin", CUTE_DSL_KEEP_PTX="1", CUTE_DSL_KEEP_CUBIN="1")
import submission
from tests import quick_dsl
quick_dsl.install()
results = []
for kernel, groups, config in json.loads(sys.argv[1]):
    made = submission.compiled(getattr(submission, kernel), groups, submission.Config(**config)).artifacts
    text = made.PTX if isinstance(made.PTX, str) else made.PTX.decode()
    results.append([text.rstrip("\\0"), base64.b64encode(made.CUBIN).decode()])
print(json.dumps(results), file=sys.stderr)
"""

CONFIGS = [(len(ms), config) for (ms, _, _), configs in submission.CONFIG_MAP.items() for config in configs]
CONFIGS = [(2, submission.DEFAULT), *((groups, replace(config, **SCHEDULE)) for groups, config in CONFIGS)]
GUESSES = [(len(ms), replace(configs[0], **SCHEDULE)) for (ms, _, _), configs in submission.CONFIG_MAP.items()]
ONE_SHARER = [(groups, replace(config, sharers=1, sms=148)) for groups, config in GUESSES]
SHIPPED = [(groups, asdict(config)) for groups, config in dict.fromkeys((*CONFIGS, *ONE_SHARER))]
# L2 policies are words that the machine code loads, a longer prefetch is more of the same: one kernel of those that
# differ in nothing else
ALIKE = "weight_policy", "token_policy", "store_policy", "prefetch"
KERNELS = [(n, bool(c["prefetch"]), *(v for k, v in c.items() if k not in ALIKE)) for n, c in SHIPPED]
SHIPPED = list(dict(zip(KERNELS, SHIPPED)).values())
# The first guess of each case; the grader has the pinned DSL, for which `make thorough` has all
FIRST = [(len(ms), asdict(configs[0])) for (ms, _, _), configs in submission.CONFIG_MAP.items()]
DUAL = "DualGemm", 1, asdict(submission.DUAL_DEFAULT)
OTHERS = [
    {"gran": 128, "token_box": 32, "pdl": False},
    {"gran": 64, "tokens": 192, "token_box": 64, "store_boxes": 2},
    {"gran": 128, "token_box": 32, "epilogue_warps": 8, "prefetch": 0},
    {"sharers": 2, "gran": 128, "token_box": 32, "epilogue_warps": 8, "store_boxes": 2},
]


def compile_submission(python, folder, *kernels: tuple[str, int, dict], root=ROOT) -> list[tuple[str, bytes]]:
    """(PTX, cubin) of submission.py in `root` for each (name of the kernel, groups, entries of the Config)."""
    variables = {"CUTE_DSL_DUMP_DIR": str(folder), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    if python == sys.executable:
        done = forked.module("-c", COMPILE, json.dumps(kernels), cwd=root, **variables)
    else:
        command = [str(python), "-c", COMPILE, json.dumps(kernels)]
        env = os.environ | variables
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(ptx, base64.b64decode(cubin)) for ptx, cubin in json.loads(done.stderr.splitlines()[-1])]


def most_used(cubin: bytes) -> dict[str, int]:
    """The most that the kernel, or a function that it calls, has of each: registers, bytes of stack."""
    of_each = resources(cubin).values()
    return {name: max(used.get(name, 0) for used in of_each) for name in ("frame", "min stack", "registers")}


# The lowest 9 bits of a machine instruction of sm_100a, as nvdisasm 13.1 reads these kernels. UTCOMMA: tcgen05.mma of
# 4-bit formats; UTCCP: tcgen05.cp; LDTM: tcgen05.ld; UTMALDG, UTMASTG: copies by TMA; CCTL: prefetch; STSM: stmatrix;
# ACQBULK: griddepcontrol.wait; PREEXIT: griddepcontrol.launch_dependents; LDL, STL: local memory; MUFU: ex2 and rcp.
OPCODES = {
    0x1EA: "UTCOMMA", 0x1E7: "UTCCP", 0x1EE: "LDTM", 0x1B4: "UTMALDG", 0x1B5: "UTMASTG", 0x044: "STSM",
    0x02E: "ACQBULK", 0x02D: "PREEXIT", 0x18F: "CCTL", 0x186: "STG", 0x183: "LDL", 0x187: "STL", 0x108: "MUFU",
}  # fmt: skip


def instructions(cubin: bytes) -> dict[str, int]:
    """How many of each of OPCODES the machine code has."""
    code = [text for name, text in sections(cubin).items() if name.startswith(".text.")]
    words = [struct.unpack_from("<Q", text, at)[0] for text in code for at in range(0, len(text), 16)]
    found = [word & 0x1FF for word in words if word & 0xFF0001FF != 0xFF00018F]  # CCTL of no address empties the L1
    return {name: found.count(opcode) for opcode, name in OPCODES.items() if opcode in found}


def check_sass(cubin: bytes, ptx: str, config: dict) -> None:
    """As many of the instructions that the kernel is about as its PTX has: no copy of a loop, no detour."""
    found = instructions(cubin)
    assert found.pop("UTCOMMA") == 4 and found.pop("UTCCP") == 12
    assert found.pop("UTMALDG") == len(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.shared", ptx))
    assert found.pop("LDTM") == ptx.count("tcgen05.ld.")
    assert found.pop("MUFU", 0) == ptx.count("ex2.approx") + ptx.count("rcp.approx")
    stores = {"UTMASTG": 1, "STSM": ptx.count("stmatrix.")}
    lines = config.get("prefetch", 1) if config.get("pdl", True) else 0
    assert found.pop("CCTL", 0) == lines * (2 if "ex2.approx" in ptx else 1)  # of a row of either B if dual
    pdl = {"ACQBULK": 2, "PREEXIT": 1} if config.get("pdl", True) else {}
    assert found == stores | pdl, found


def check_ptx(ptx: str, groups: int, config: dict) -> None:
    """One copy of each hot loop, and parameters where GroupGemm.tensormap and GroupGemm.word look for them."""
    assert ".target sm_100a" in ptx and ".local" not in ptx
    assert ptx.count("tcgen05.mma.") == 4
    weight_boxes = len(submission.GroupGemm(groups, submission.Config(**config)).weight_sizes)
    narrow, wide = config.get("token_box", 16), config.get("wide_token_box", 128)
    token_boxes = [wide, *(rows for rows in (64, 32, 16) if narrow <= rows < wide)]
    boxes = weight_boxes + 1 + 128 // wide - 1 + len(token_boxes) + 2  # token scales of one block or of two
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared", ptx)) == boxes
    assert ("griddepcontrol.wait" in ptx) == config.get("pdl", True)

    params = re.findall(r"\.param \.align (\d+) \.b8 \w+\[(\d+)\]", ptx)
    tensormaps = groups * (weight_boxes + len(token_boxes) + 4)
    assert params[:-1] == [("64", "128")] * tensormaps and params[-1][0] == "8"
    assert 128 * tensormaps + int(params[-1][1]) <= 32764


def check_dual_ptx(ptx: str) -> None:
    """The dual GEMM's loops, too, are there once."""
    assert ".local" not in ptx and ptx.count("tcgen05.mma.") == 4
    assert ptx.count("ex2.approx") == 16  # one for each element that a lane has at a time
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.4d\.shared", ptx)) == 3  # both B, and the scales of each


def check_code(cubin: bytes, ptx: str, config: dict) -> None:
    """Nothing is spilled."""
    used = most_used(cubin)
    assert used["frame"] == used["min stack"] == 0, config
    assert used["registers"] <= 80, config
    check_sass(cubin, ptx, config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "python, kernels",
    [
        pytest.param(sys.executable, FIRST[::2], id="pinned"),
        pytest.param(sys.executable, SHIPPED, id="all", marks=pytest.mark.thorough),
        pytest.param(NEWEST, FIRST, id="newest", marks=[pytest.mark.newest, pytest.mark.thorough]),
    ],
)
def test_shipped_configs_do_not_spill(tmp_path, python, kernels):
    group_gemms = [("GroupGemm", *kernel) for kernel in kernels]
    *compiled, (ptx, cubin) = compile_submission(python, tmp_path, *group_gemms, DUAL)
    check_dual_ptx(ptx)
    check_code(cubin, ptx, DUAL[-1])
    for (groups, config), (ptx, cubin) in zip(kernels, compiled, strict=True):
        check_ptx(ptx, groups, config)
        check_code(cubin, ptx, config)


@pytest.mark.parametrize(
    "python, configs",
    [
        pytest.param(sys.executable, OTHERS, id="pinned"),
        pytest.param(NEWEST, OTHERS[-1:], id="newest", marks=pytest.mark.newest),
    ],
)
@pytest.mark.thorough
def test_other_configs_compile(tmp_path, python, configs):
    compiled = compile_submission(python, tmp_path, *(("GroupGemm", 2, config) for config in configs))
    for config, (ptx, cubin) in zip(configs, compiled, strict=True):
        check_ptx(ptx, 2, config)
        used = most_used(cubin)
        assert used["frame"] == 0, config
        check_sass(cubin, ptx, config)


LOCAL_MEMORY = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr

@cute.kernel
def kernel(p: cute.Pointer):
    t = cute.make_tensor(p, cute.make_layout(4096))
    r = cute.make_rmem_tensor(512, cutlass.Int32)
    for i in cutlass.range_constexpr(512):
        r[i] = t[i]
    t[0] = r[t[512]]

@cute.jit
def host(p: cute.Pointer):
    kernel(p).launch(grid=(1, 1, 1), block=(32, 1, 1))

Config = dict
GroupGemm = None

def compiled(kernel, groups, config):
    return cute.compile(host, make_ptr(cutlass.Int32, 16, cute.AddressSpace.gmem))
"""


def test_local_memory_would_be_seen(tmp_path):
    """An array indexed at run time needs a stack frame."""
    (tmp_path / "submission.py").write_text(LOCAL_MEMORY)
    ((ptx, cubin),) = compile_submission(sys.executable, tmp_path, ("GroupGemm", 1, {}), root=tmp_path)
    used = most_used(cubin)
    assert ".local" in ptx and used["frame"] >= 2048
    assert instructions(cubin).keys() >= {"LDL", "STL"}
