"""The table of README.md, and its picture, from the measurements in results_h200.json: python -m moe.plot"""

import json
from pathlib import Path

import click
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from moe.measure.grouped_gemm import OURS, PEERS, geomeans, table

RESULTS = Path(__file__).parent / "results" / "grouped_gemm_h200.json"
PICTURE = RESULTS.with_suffix(".png")
EXPERTS, N, K = 8, 7168, 7168


def draw(result: dict) -> None:
    """TFLOPS and TB/s over the rows of an expert, ours and the peers'."""
    rows = [x for x in result["rows"] if (x["experts"], x["n"], x["k"]) == (EXPERTS, N, K) and not x["name"]]
    rows.sort(key=lambda x: x["m"][0])
    figure, (rate, bandwidth) = plt.subplots(1, 2, figsize=(10, 3.6))
    m = [x["m"][0] for x in rows]
    for name in (OURS, *PEERS):
        us = [x["us"].get(name, float("nan")) for x in rows]
        rate.plot(m, [2 * sum(x["m"]) * N * K / t / 1e6 for x, t in zip(rows, us)], "o-", label=name)
        size = [EXPERTS * N * K + sum(x["m"]) * (K + 2 * N) for x in rows]
        bandwidth.plot(m, [s / t / 1e6 for s, t in zip(size, us)], "o-", label=name)
    for axis, unit in ((rate, "TFLOPS"), (bandwidth, "TB/s")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(m, [str(x) for x in m])
        axis.set_xlabel("rows an expert")
        axis.set_ylabel(unit)
        axis.set_ylim(0)
        axis.grid(alpha=0.3)
    rate.legend()
    figure.suptitle(f"{EXPERTS} experts, N = {N}, K = {K}: {result['gpu']}, {result['date']}, measured")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


@click.command()
def main() -> None:
    """Print the table and draw the picture."""
    result = json.loads(RESULTS.read_text())
    click.echo(table(result["rows"]))
    means = ", ".join(f"{name} {x:.3f}" for name, x in geomeans(result["rows"]).items())
    click.echo(f"\nRatio to the best peer, geometric means: {means}.")
    draw(result)


if __name__ == "__main__":
    main()
