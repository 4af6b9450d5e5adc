"""Measures which clock the power limit leaves of an H200 whose tensor cores work for a share of some seconds.

    python3 -m silicon.probes.power_clock run [FILE]      on an H200, with torch
    python -m silicon.probes.power_clock model            the profile's clock, beside power_clock.json

torch.mm of BF16 matrices, N x N x N, follows itself for seconds, with a pause behind each call. Of the second half of
them a row has TFLOPS, and by nvidia-smi the median clock in GHz and the watts. The share for which the tensor cores
multiply is that of the TFLOPS that all 132 would make at this clock: 4096 a cycle each.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from pathlib import Path

from silicon import command
from silicon.cuda_driver import Gpu, nvidia_smi

TABLE = Path(__file__).with_suffix(".json")
SECONDS = 2.4
FLOPS = 132 * 4096  # of a cycle
POINTS = [
    (n, data, pause)
    for n, data, pause in itertools.product((8192, 4096), ("randn", "zeros"), (0, 0.15, 0.4, 1.0, 2.5))
    if data == "randn" or pause in (0, 1.0)
]


def measured(n: int, data: str, pause: float) -> dict[str, float]:
    """Return one row. pause: in what a call takes, about."""
    import torch

    make = torch.randn if data == "randn" else torch.zeros
    a = make(n, n, device="cuda", dtype=torch.bfloat16)
    b = a.clone().t().contiguous()
    cycles = int(pause * 2e6 * (n / 8192) ** 3)
    begin, since, calls, seen = time.time(), 0.0, 0, []
    while time.time() < begin + SECONDS:
        if not since and time.time() > begin + SECONDS / 2:
            torch.cuda.synchronize()
            since, calls = time.time(), 0
        for _ in range(40 if n == 8192 else 300):
            torch.mm(a, b)
            calls += 1
            if cycles:
                torch.cuda._sleep(cycles)
        if since:
            seen.append([float(x.split()[0]) for x in nvidia_smi("clocks.sm,power.draw").split(",")])
        torch.cuda.synchronize()
    tflops = 2 * n**3 * calls / (time.time() - since) / 1e12
    mhz, watts = (statistics.median(column) for column in zip(*seen, strict=True))
    return {"tflops": round(tflops), "ghz": mhz / 1e3, "watts": round(watts)}


def share(row: dict[str, float]) -> float:
    """Return for which share of the time all tensor cores multiply."""
    return row["tflops"] * 1e3 / (FLOPS * row["ghz"])


def measure_all(file: Path) -> None:
    machine = Gpu().describe() | {"power limit": nvidia_smi("power.limit")}
    rows = (f'  "{n} {data}, pause {pause}": {json.dumps(measured(n, data, pause))}' for n, data, pause in POINTS)
    points = ",\n".join(rows)
    file.write_text(f'{{\n "machine": {json.dumps(machine)},\n "points": {{\n{points}\n }}\n}}\n')


def model(only: str, profile) -> None:
    """Prints share, measured and the profile's GHz of each row whose name contains `only`."""
    from emulated_gpu.model.sm_clock import sustained_ghz

    for name, row in json.loads(TABLE.read_text())["points"].items():
        if only in name:
            print(f"{share(row):.3f}  {row['ghz']:.3f}  {sustained_ghz(profile, share(row)):.3f}  {name}")


if __name__ == "__main__":
    command.main(__doc__, TABLE, measure_all, model)
