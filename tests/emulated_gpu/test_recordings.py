"""Replays in the emulator what a real GPU ran (silicon/golden/README.md) and compares memory bit for bit."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.chip import H200
from emulated_gpu.errors import Fault
from silicon.golden.case import Buffer, Case, Result, TensorMap
from silicon.golden.cases import CASES, RECORDINGS
from silicon.golden.coverage import rows, split, tables

HERE = pathlib.Path(__file__).parents[2] / "silicon" / "golden"
RECORDS = {card: json.loads((HERE / f"{card}.json").read_text()) for card in RECORDINGS}
GOLDEN = {key: array for card in RECORDINGS for key, array in np.load(HERE / f"{card}.npz").items()}
ALIGNMENT = 512  # of every allocation, as cuMemAlloc gives


def device_memory(data: np.ndarray) -> np.ndarray:
    """A copy of `data` at an aligned address."""
    room = np.empty(data.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    memory = room[start : start + data.nbytes]
    memory[:] = data
    return memory


def arguments(case: Case) -> list:
    buffers = {i: device_memory(arg.data) for i, arg in enumerate(case.args) if isinstance(arg, Buffer)}
    args = []
    for i, arg in enumerate(case.args):
        if isinstance(arg, TensorMap):
            address = np.array([buffers[arg.buffer].ctypes.data + arg.offset], np.uint64)
            args.append(address.tobytes() + GOLDEN[f"{case.name}/{i}"][8:].tobytes())
        else:
            args.append(buffers.get(i, arg))
    return args


def ordered(bits: np.ndarray, width: int) -> np.ndarray:
    """Float bit patterns as integers in which neighbours differ by one; NaN (any) far from every number."""
    sign = 1 << (8 * width - 1)
    magnitude = (bits & (sign - 1)).astype(np.int64)
    return np.where(bits & sign, -magnitude, magnitude)


def mismatches(result: Result, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Indices of the threads whose result is not the GPU's (or, with a tolerance, not near it)."""
    wrong = actual != expected
    if result.tolerance:
        distance = np.abs(ordered(actual, result.width) - ordered(expected, result.width))
        wrong = distance > result.tolerance
    return np.flatnonzero(wrong)


def explain(case: Case, index: int, actual: np.ndarray, expected: np.ndarray) -> str:
    """The first differences of one output, by instruction where the case has one result per thread, else by byte."""
    if not (case.results and index == 0):
        at = np.flatnonzero(actual != expected)
        if not len(at):
            return ""
        shown = ", ".join(f"[{i}] {actual[i]:#04x} (GPU {expected[i]:#04x})" for i in at[:8])
        return f"argument {index}: {len(at)} of {len(actual)} bytes differ: {shown}"
    lines = []
    ends = [*(r.offset for r in case.results[1:]), len(actual)]
    threads = int(np.prod(case.grid) * np.prod(case.block))
    inputs = [
        arg.data
        for arg in case.args[1:]
        if isinstance(arg, Buffer) and not arg.written and arg.data.nbytes % threads == 0
    ]
    for result, end in zip(case.results, ends):
        size = result.width * threads
        assert end - result.offset >= size
        values = [a[result.offset : result.offset + size].view(f"u{result.width}") for a in (actual, expected)]
        at = mismatches(result, *values)
        if len(at):
            t = at[0]
            given = [hex(int.from_bytes(x.reshape(threads, -1)[t].tobytes(), "little")) for x in inputs]
            lines.append(
                f"{result.text}\n    {len(at)} threads, first {t}: {values[0][t]:#x} (GPU {values[1][t]:#x}), inputs"
                f" {given}"
            )
    return "\n".join(lines)


def test_goldens_are_of_these_cases():
    """Every declared case was recorded with this very text, launch and input."""
    for card, cases in RECORDINGS.items():
        assert RECORDS[card]["cases"] == {case.name: case.digest for case in cases}
    assert len(CASES) >= 60


def launch(case: Case, args: list) -> None:
    for position, kernel in enumerate(case.kernels):
        options = {"cluster": case.cluster, "shared": case.shared, "pdl": case.pdl and position > 0}
        with emulated_gpu.DEVICE.as_chip(H200):
            emulated_gpu.launch(case.ptx, kernel, case.grid, case.block, args, **options)


@pytest.mark.parametrize("case", [case for case in CASES if not case.faults], ids=lambda case: case.name)
def test_replay(case: Case):
    args = arguments(case)
    launch(case, args)
    found = []
    for i, (arg, memory) in enumerate(zip(case.args, args)):
        if isinstance(arg, Buffer):
            expected = GOLDEN[f"{case.name}/{i}"] if arg.written else arg.data
            found.append(explain(case, i, memory, expected))
    assert not any(found), "\n".join(["", *filter(None, found)])


@pytest.mark.parametrize("case", [case for case in CASES if case.faults], ids=lambda case: case.name)
def test_fault(case: Case):
    """What the GPU stopped with an error, the emulator stops with a fault."""
    assert RECORDS["h200"]["faults"][case.name]
    with pytest.raises(Fault):
        launch(case, arguments(case))


def test_the_page_says_what_is_proven():
    """The tables of emulated_gpu/EVIDENCE.md are those of silicon/golden/coverage.py, and leave no instruction out."""
    assert split((HERE.parents[1] / "emulated_gpu" / "EVIDENCE.md").read_text())[1] == tables() + "\n"
    proven = {name: silicon for name, silicon, *_ in rows()}
    assert proven["tensor memory: alloc, ld, st, wait"] == 0 == proven["cluster launch control"]
    assert proven["integer and floating-point arithmetic"] > 300
