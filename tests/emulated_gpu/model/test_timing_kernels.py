"""The timing kernels do what their points say, in small: the emulator runs them, NumPy says what they must write."""

import json
from pathlib import Path

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.formats import tensormap
from silicon.timing import kernels, points
from silicon.timing.expected import loads_output
from silicon.timing.points import CASES, Case, Map, Output, Source


@pytest.fixture(autouse=True)
def small_case(monkeypatch):
    """Case 4: 159 KB in, 20 KB out."""
    monkeypatch.setitem(CASES, 4, Case(m=40, n=256, k=512, groups=1 + 1))


def run(point: points.Point, source: np.ndarray | None = None) -> np.ndarray:
    """Launches a point, returns its output: uint8 [nbytes]."""
    nbytes = next(a.nbytes for a in point.args if isinstance(a, Output) or isinstance(a, Map) and a.of == "output")
    output = allocate(nbytes)
    output[:] = 0xCD
    DEVICE.adopt(output, "output")
    args = []
    for a in point.args:
        if isinstance(a, Map):
            array = source if a.of == "source" else output
            args.append(tensormap.encode(tensormap.TensorMap(
                array.ctypes.data, "u8", (a.pitch, a.rows), (a.pitch,), (128, a.box_rows), (1, 1), swizzle=128
            )))  # fmt: skip
        else:
            args.append(source if isinstance(a, Source) else output if isinstance(a, Output) else a)
    cluster = point.cluster if point.cluster > 1 else None
    ptx = point.ptx.replace("sm_90a", "sm_90", 1)  # a B200 is the machine here
    emulated_gpu.launch(
        ptx, "kernel", point.grid, point.block, args, cluster=cluster, shared=point.shared, pdl=point.pdl
    )
    return output


def read(nbytes: int) -> np.ndarray:
    source = allocate(nbytes)
    source[:] = np.random.default_rng(1).integers(0, 256, nbytes)
    DEVICE.adopt(source, "source")
    return source


LOADS = [
    {"copy": "bulk", "variant": "plain", "depth": 3, "chunk": 2048, "ctas": 4},
    {"copy": "bulk", "variant": "wait", "depth": 1, "chunk": 2048, "ctas": 3, "tiles": 7, "prefetch": 2},
    {"copy": "bulk", "variant": "early issued", "depth": 2, "chunk": 4096, "ctas": 4, "rounds": 2},
    {"copy": "bulk", "variant": "plain", "depth": 3, "chunk": 2048, "ctas": 4, "cluster": 2},
    {
        "copy": "bulk",
        "variant": "plain",
        "depth": 3,
        "chunk": 2048,
        "ctas": 8,
        "cluster": 4,
        "multicast": True,
        "tiles": 5,
    },
    {"copy": "tensor", "variant": "plain", "depth": 3, "chunk": 2048, "ctas": 4},
    {"copy": "tensor", "variant": "early", "depth": 2, "chunk": 4096, "ctas": 3, "tiles": 4, "prefetch": 2},
    {"copy": "tensor", "variant": "plain", "depth": 2, "chunk": 2048, "ctas": 3, "dense": True},
    {"copy": "tensor", "variant": "wait", "depth": 2, "chunk": 4096, "ctas": 4, "cluster": 2, "multicast": True},
]


@pytest.mark.parametrize("options", LOADS, ids=str)
def test_loads(options):
    point = points.loads(case=4, **options)
    source = read(point.args[0].nbytes)
    assert np.array_equal(run(point, source), loads_output(point, source))


@pytest.mark.parametrize("width,warps,pdl", [(2, 4, True), (4, 1, False), (16, 1, False)])
def test_stores_write_the_number_of_their_tile(width, warps, pdl):
    point = points.stores(4, width, warps, rows=8, ctas=3, pdl=pdl)
    across = point.args[2]
    tiles = run(point).view(np.uint16)[:: 1 if width == 2 else 2].reshape(CASES[4].m // 8, 8, across, -1)
    assert np.array_equal(tiles[:, 0, :, 0].ravel(), np.arange(point.args[1]))
    assert (tiles == tiles[:, :1, :, :1]).all()


def test_tensor_stores_write_every_byte_of_their_tiles():
    point = points.tma_stores(4, rows=8, boxes=2, ctas=3, pdl=True)
    across = point.args[2]
    written = run(point).view(np.uint32).reshape(5, 8, across, 2, 8, 4)  # [tile row, row, tile column, box, unit, word]
    # every CTA fills its shared memory with (offset, offset, CTA, CTA) first; units of a row are swizzled
    row, box, unit = np.ix_(range(8), range(2), range(8))
    offset = (box * 1024 + row * 128 + (unit ^ row) * 16)[None, :, None]
    assert (written[..., 0] == offset).all() and (written[..., 1] == offset).all()
    cta = np.arange(5 * across).reshape(5, 1, across, 1, 1, 1) % 3
    assert (written[..., 2:] == cta).all()


def test_the_table_is_of_these_points():
    table = json.loads((Path(points.__file__).with_name("h200.json")).read_text())["points"]
    assert {p.name: p.digest for p in points.POINTS} == {name: result["digest"] for name, result in table.items()}


@pytest.mark.parametrize("params", [64, 4096])
def test_empty_ends(params):
    ptx = kernels.empty(params, pdl=True).replace("sm_90a", "sm_90", 1)
    emulated_gpu.launch(ptx, "kernel", 2, 64, [bytes(params)])
