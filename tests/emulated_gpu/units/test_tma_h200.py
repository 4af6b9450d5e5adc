"""TMA against `silicon/golden/tma_h200.json`: what an H200 (driver 580.159) did with 194 random tensor copies.

Each case is one `cp(.reduce).async.bulk.tensor` of one box by a kernel of its own, through a tensor map that
`cuTensorMapEncodeTiled` made (`raw`, its first 64 bytes, with the address zeroed), over memory filled by `memory`.
`sha256` is that of the 24 KiB of shared memory after a load (filled with 0xAB before), of the first 256 KiB of the
global buffer after a store or a reduction, or null where the GPU stopped with an illegal instruction.
That sm_100 does the same is an assumption: it adds 4-bit types and gather4, and the ISA's text on the rest is shared.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.formats import swizzle, tensormap
from emulated_gpu.units import tma
from silicon import golden

CASES = json.loads((Path(golden.__file__).parent / "tma_h200.json").read_text())
TENSOR = 4096  # offset of the tensor in the global buffer
BASE = 1 << 32  # address given to that buffer
SMEM = 24576
# Bit patterns that make up a quarter of the data: zeros, subnormals, infinities, NaNs, the largest numbers, ties
SPECIAL = {
    16: "0 8000 1 8001 3ff 400 7c00 fc00 7c01 fe55 7e00 7bff fbff 7f80 ff80 7f81 ffff 7f7f 7f 80",
    32: "0 80000000 1 80000001 7fffff 807fffff 800000 7f800000 ff800000 7f800001 ffc12345 7fc00000 7f7fffff ff7fffff "
        "ffffffff 3f801000 3f803000 1000 1001 7f7ff000",
    64: "0 8000000000000000 1 8000000000000001 7ff0000000000000 fff0000000000000 7ff0000000000001 7ff8000000000123 "
        "fffffffffffff 7fefffffffffffff ffffffffffffffff",
}  # fmt: skip
NEAR_ONE = {16: (0x3800, 0x7FF), 32: (0x3F000000, 0xFFFFFF), 64: (0x3FE0000000000000, 0x1FFFFFFFFFFFFF)}


def memory(nbytes: int, seed: int, bits: int) -> np.ndarray:
    """Hashed words of `bits`: a quarter special values, a quarter near one, the rest random (bytes: all)."""
    plain, bits, u = bits == 8, max(bits, 16), np.uint64
    h = (np.arange(nbytes * 8 // bits, dtype=u) + u(seed * 1000003)) * u(0x9E3779B97F4A7C15)
    h = (h ^ h >> u(29)) * u(0xBF58476D1CE4E5B9)
    h ^= h >> u(32)
    value = (h >> u(2)) * u(0x94D049BB133111EB)
    value ^= value >> u(31)
    special = np.array([int(x, 16) for x in SPECIAL[bits].split()], u)
    base, mask = NEAR_ONE[bits]
    near = u(base) + (value & u(mask)) | (value >> u(40) & u(1)) << u(bits - 1)
    special = special[(value % u(len(special))).astype(int)]
    words = value if plain else np.where(h & u(3) == 0, special, np.where(h & u(3) == 1, near, value))
    return words.astype(f"uint{bits}").view(np.uint8).copy()


def run(case: dict) -> np.ndarray:
    """What the emulator makes of the case: the memory whose digest the fixture holds."""
    raw = bytearray.fromhex(case["raw"])
    raw[:8] = (BASE + TENSOR).to_bytes(8, "little")
    tm = tensormap.decode(bytes(raw))
    bits = tensormap.BITS[case["elem"]]
    gmem = memory(1 << 18, case["seed"], bits)

    def view(addr, nbytes, write):
        assert BASE <= addr and addr + nbytes <= BASE + gmem.size and write == (case["kind"] != "load")
        return gmem[addr - BASE : addr - BASE + nbytes]

    if case["kind"] == "load":
        smem = np.full(SMEM, 0xAB, np.uint8)
        image = tma.load_box(tm, tuple(case["coords"]), view)
        assert image.size == tm.box_bytes
        swizzle.scatter(smem, case["base"], image, tm.swizzle, tm.atom, tm.row_bytes)
        return smem
    smem = memory(SMEM, case["seed"] + 1, bits)
    image = swizzle.gather(smem, case["base"], tm.box_bytes, tm.swizzle, tm.atom, tm.row_bytes)
    if case["kind"] == "store":
        tma.store_box(tm, tuple(case["coords"]), image, view)
    else:
        tma.reduce_box(tm, tuple(case["coords"]), image, case["op"], view)
    return gmem


def name(case: dict) -> str:
    return f"{case['kind']}-{case['op'] or case['swizzle']}-{case['elem']}-{'x'.join(map(str, case['box']))}"


def f64_add(case: dict) -> bool:
    """The H200 adds f64 through a tensor map although the ISA's table lacks it; the emulator keeps to the table."""
    return case["op"] == "add" and case["elem"] == "f64"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_case(case):
    if f64_add(case):
        with pytest.raises(Unsupported):
            run(case)
    elif case["sha256"] is None:
        with pytest.raises((Fault, Unsupported)):
            run(case)
    else:
        assert hashlib.sha256(run(case).tobytes()).hexdigest()[:16] == case["sha256"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_driver_words(case):
    """decode() reads the driver's words as the arguments they were made from, and encode() writes the same words."""
    raw = bytes.fromhex(case["raw"])
    tm = tensormap.TensorMap(
        address=0,
        elem=case["elem"],
        dims=tuple(case["dims"]),
        strides_bytes=tuple(case["strides"]),
        box=tuple(case["box"]),
        element_strides=tuple(case["steps"]),
        swizzle=case["swizzle"],
        oob_nan=bool(case["nan"]),
        l2_promotion=(0, 64, 128, 256)[case["l2"]],
    )
    assert tensormap.decode(raw) == tm
    ours, driver = (int.from_bytes(x[:64], "little") for x in (tensormap.encode(tm), raw))
    assert ours ^ driver == 2 << 64, "only the version nibble may differ"
