"""Runs every golden case on a Hopper GPU and writes what its memory held afterwards.

    python3 -m silicon.golden.record [--of h200 | h100] [--only SUBSTRING] [--out silicon/golden/h200]

Needs python3, numpy and a CUDA driver (libcuda.so.1) that accepts PTX 8.8 for sm_90a; the driver assembles the PTX and
encodes the tensor maps. Each case runs twice, each time in a fresh module with fresh buffers, and must give the same
bytes. Writes OUT.npz (one uint8 array "case/argument" per output and per tensor map, addresses cleared) and OUT.json
(card, driver, date, command, the driver's error for each case that must fault, digest of each case).
"""

from __future__ import annotations

import datetime
import json
import sys

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, nvidia_smi, survey

from .case import DTYPES, Buffer, Case, TensorMap
from .cases import CASES, RECORDINGS

RUNS = 2
SECONDS_PER_CASE = 20


def encode(gpu: Gpu, tmap: TensorMap, buffer: int) -> bytes:
    """The 128 bytes of a tensor map over a buffer at this address, by the driver or of given words."""
    address = buffer + tmap.offset
    if tmap.words:
        return np.array([address, *tmap.words], np.uint64).tobytes()
    return gpu.tensormap(
        address, tmap.dims, tmap.strides, tmap.box, DTYPES[tmap.dtype][0],
        tmap.element_strides, tmap.swizzle, tmap.promotion, tmap.nan_fill,
    )  # fmt: skip


def run_case(gpu: Gpu, case: Case, result: dict[str, np.ndarray]) -> None:
    """Runs a case; adds to `result` the encoded tensor maps before the launch and the written buffers after it."""
    module, args = gpu.module(case.ptx), list(case.args)
    buffers = {i: gpu.allocate(arg.data.nbytes) for i, arg in enumerate(args) if isinstance(arg, Buffer)}
    for i, arg in enumerate(case.args):
        if isinstance(arg, Buffer):
            gpu.write(buffers[i], arg.data)
            args[i] = buffers[i]
        elif isinstance(arg, TensorMap):
            args[i] = encode(gpu, arg, buffers[arg.buffer])
            result[f"{case.name}/{i}"] = np.frombuffer(bytes(8) + args[i][8:], np.uint8)
    for position, name in enumerate(case.kernels):
        kernel = gpu.kernel(module, name, case.shared)
        gpu.launch(kernel, case.grid, case.block, args, case.cluster, case.shared, case.pdl and position > 0)()
    gpu.sync()
    for i, address in buffers.items():
        after = gpu.read(address, case.args[i].data.nbytes)
        gpu.free(address)
        if case.args[i].written:
            result[f"{case.name}/{i}"] = after
        elif not np.array_equal(after, case.args[i].data):
            raise RuntimeError(f"argument {i} is an input and was written")
    gpu.unload(module)


class Bench:
    """Runs cases by name for cuda_driver.survey."""

    def __init__(self):
        self.gpu, self.cases = Gpu(), {case.name: case for case in CASES}

    def machine(self) -> dict:
        return self.gpu.describe()

    def measure(self, name: str, result: dict) -> None:
        run_case(self.gpu, self.cases[name], result)
        for _ in range(RUNS - 1):
            again = {}
            run_case(self.gpu, self.cases[name], again)
            differing = [k for k in result if not np.array_equal(result[k], again[k])]
            if differing:
                raise RuntimeError(f"two runs differ in {differing}")


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--of", choices=RECORDINGS, default="h200", help="the recording whose cases are run")
    parser.add_argument("--out", help="path of the results, without suffix; by default the recording's")
    options = parser.parse_args()
    out = options.out or f"silicon/golden/{options.of}"
    chosen = [case for case in RECORDINGS[options.of] if options.only in case.name]
    with command.on_gpu():
        results, failures, (machine, _) = survey(Bench, [case.name for case in chosen], SECONDS_PER_CASE)
    refused = {case.name: failures.pop(case.name, None) for case in chosen if case.faults}
    failures |= {name: "ran to its end" for name, error in refused.items() if not error}
    passed = {case.name: case.digest for case in chosen if case.name not in failures}
    record = {
        **machine,
        "driver": nvidia_smi("driver_version"),
        "date": datetime.date.today().isoformat(),
        "command": f"python3 -m silicon.golden.record --of {options.of}",
        "runs per case": RUNS,
        "faults": refused,
        "cases": passed,
    }
    arrays = {key: array for each in results.values() for key, array in each.items()}
    np.savez_compressed(out + ".npz", **arrays)
    with open(out + ".json", "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    for name, error in failures.items():
        print(f"FAILED {name}: {error}")
    print(f"{len(passed)} cases recorded, {len(failures)} failed on {machine}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
