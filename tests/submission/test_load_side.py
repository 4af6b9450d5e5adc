"""silicon/entry/h200_loads.py compiles the submission's load side for an H200: the same copies in the same order."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.formats import alu
from emulated_gpu.units import async_copy, tma
from emulated_gpu.units.addresses import active, pick, shared_cta
from emulated_gpu.units.tensor_maps import tensor_map
from evaluation.judge.inputs import as_bytes
from reference import generate_input
from silicon.entry import h200_loads
from silicon.entry.h200_loads import arguments
from silicon.timing import points
from task import read_task_yaml

ROOT = pathlib.Path(__file__).parents[2]
SIZES = [(40, 272, 576), (300, 128, 128)]  # (M, N, K): parts of tiles in every dimension, two token tiles

COMPILE = """
import json, sys
from silicon.entry import h200_loads
h200_loads.prepare_dsl()
submission = h200_loads.load_submission()
made = h200_loads.compile_launch(submission, json.loads(sys.argv[1]), submission.DEFAULT)
del made["cubin"]
print(json.dumps(made), file=sys.stderr)
"""

COMPILE_DUAL = """
from silicon.entry import h200_loads
h200_loads.prepare_dsl()
submission = h200_loads.load_submission()
configs = {x[0] for x in submission.DUAL_CONFIG_MAP.values()}
assert {(x.sharers, x.token_sharers) for x in configs} == {(1, 1), (2, 1), (1, 2)}
for config in configs:
    assert submission.compiled(submission.DualGemm, 1, config).artifacts.CUBIN
"""


def for_hopper(tmp_path, text: str, *args: str) -> str:
    """What such a script says on stderr, in a process of its own: CuTe DSL reads the target once."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    env.pop("EMULATED_GPU_PTX", None)
    done = subprocess.run([sys.executable, "-c", text, *args], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.fixture(scope="module")
def for_h200(tmp_path_factory) -> dict:
    """The launch of SIZES that compile_launch makes."""
    return json.loads(for_hopper(tmp_path_factory.mktemp("h200"), COMPILE, json.dumps(SIZES)).splitlines()[-1])


@pytest.mark.thorough
def test_dual_gemm_that_ships_compiles(tmp_path):
    for_hopper(tmp_path, COMPILE_DUAL)


@contextlib.contextmanager
def recorded():
    """Yields {(CTA, warp): [(where in its shared memory, if a load; bytes a row; rows' addresses, sorted), ...]}."""
    copies, functions = {}, (async_copy.tma_load, async_copy.tma_store)

    def tma_load(group, dst, tensor, coords, bar, rank, mode, *rest):
        note(group, dst, tensor, coords, rank, rest[-1])
        functions[0](group, dst, tensor, coords, bar, rank, mode, *rest)

    def tma_store(group, tensor, coords, src, rank, mode, *rest):
        note(group, None, tensor, coords, rank, rest[-1])
        functions[1](group, tensor, coords, src, rank, mode, *rest)

    def note(group, dst, tensor, coords, rank, mask):
        for p in active(group, mask):
            tensormap = tensor_map(group, pick(tensor, p), rank)
            starts, nbytes = tma.row_addresses(tensormap, tuple(alu.signed(pick(c, p), 32) for c in coords))
            where = dst if dst is None else shared_cta(group, pick(dst, p))[1]
            key = group.cta.index, group.warp.index
            copies.setdefault(key, []).append((where, nbytes, sorted(starts.tolist())))

    async_copy.tma_load, async_copy.tma_store = tma_load, tma_store
    try:
        yield copies
    finally:
        async_copy.tma_load, async_copy.tma_store = functions


def test_cases_are_numbered_as_in_task_yml():
    """Here, in the points, and in what was measured: by the bytes that the loads-only kernel loads, rounded up."""
    benchmarks = [case.args for case in read_task_yaml((ROOT / "task.yml").read_text(), "benchmarks")]
    assert [(tuple(x["m"]), {*x["n"]}, {*x["k"]}) for x in benchmarks] == [
        (ms, {n}, {k}) for ms, n, k in h200_loads.CASES
    ]
    loaded = [sum((m + n) * k * 9 // 16 for m, n, k in zip(x["m"], x["n"], x["k"])) for x in benchmarks]
    assert [points.CASES[case].load_bytes for case in range(4)] == loaded
    record = json.loads(h200_loads.RESULTS.read_text())
    for x in record["loads only"]:
        assert 0 <= x["unique bytes"] - loaded[x["case"]] < 128 * 132 and f"/case {x['case']}/" in x["point"]


def test_table_has_what_was_measured():
    rows = [
        line.strip("| ").split(" | ")
        for line in h200_loads.table(json.loads(h200_loads.RESULTS.read_text())).splitlines()
    ]
    assert rows[0] == ["case 0", "case 1", "case 2", "case 3"]
    by_name = {name: cells for name, *cells in rows[2:]}
    assert by_name["PDL, L2 prefetch before the wait: submission"] == [
        "38.53 (97 %)",
        "22.97 (101 %)",
        "6.98 (100 %)",
        "4.84 (91 %)",
    ]
    assert by_name["PDL, L2 prefetch before the wait: submission, inputs in L2"] == ["34.85", "22.08", "5.68", "4.41"]
    assert by_name["prefetch 1, rows cut at 32: submission"][3] == "6.18 (71 %)"
    assert by_name["weights do not wait, prefetch 0, up to 128 tokens a tile: submission"][2] == "9.32 (59 %)"
    assert by_name["MB into the SMs: submission"] == ["222.0", "119.4", "46.4", "22.0"]


@pytest.mark.thorough
def test_copies_are_those_of_the_submission(for_h200):
    emulated_gpu.install()
    import submission

    submission.plan.cache_clear()
    submission.compiled.cache_clear()
    data = emulated_gpu.device_tensors(generate_input(*zip(*SIZES), len(SIZES), 0, device=torch.device("cpu")))
    with recorded() as want, emulated_gpu.session():
        submission.custom_kernel(data)

    outputs = [c for _, _, c in data[0]]
    for c in outputs:
        as_bytes(c).fill_(0xCD)
    tensors = [t for (a, b, c), scales in zip(data[0], data[2]) for t in (a, b, c, *scales)]
    args = arguments(for_h200, [t.data_ptr() for t in tensors])
    assert ".target sm_90a" in for_h200["ptx"] and "tcgen05" not in for_h200["ptx"]
    with recorded() as got, emulated_gpu.DEVICE.as_chip(H200), emulated_gpu.session() as session:
        emulated_gpu.launch(
            for_h200["ptx"], for_h200["kernel"], for_h200["grid"], for_h200["block"], args,
            cluster=for_h200["cluster"], shared=for_h200["shared"], pdl=for_h200["pdl"],
        )  # fmt: skip
    assert not session.report()
    assert sum(map(len, want.values())) > 100 and got == want
    assert all(torch.equal(c, torch.ones_like(c)) for c in outputs)
