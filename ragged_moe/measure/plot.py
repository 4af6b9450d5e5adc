"""Redraws ragged_moe/'s pages from the files in results/, their tables and their pictures: python -m
ragged_moe.measure.plot"""

import click
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ragged_moe.measure.contest import GRAPH, OURS
from ragged_moe.measure.gemm_peers import PEERS
from ragged_moe.measure.pages import PLACES, RESULTS, load, redrawn

EXPERTS = 1, 8, 32  # a panel each
N = K = 7168
WIDTH, DPI = 7, 200  # inches, dots: twice the 700 pixels that a page shows
STAGES = "dispatch", "assign", "permute", "GEMM1", "GEMM2", "combine"
COLOURS = "#0b5fa5", "#e08214"  # of one call and the next
THIS = "these kernels"
STYLE = {  # colour, marker; distinct without colour, too
    THIS: ("#0b5fa5", "o"), "DeepGEMM masked": ("#e08214", "s"), "DeepGEMM contiguous": ("#1b9e77", "^"),
    "torch._scaled_mm": ("#7a7a7a", "v"), "SGLang": ("#9b3fa0", "D"),
}  # fmt: skip


def line(axis, name: str, y: list[float]) -> None:
    """One contestant over the panel's problems, which are evenly spaced."""
    colour, marker = STYLE[name]
    mine = name == THIS
    axis.plot(y, color=colour, marker=marker, label=name, linewidth=2.2 if mine else 1.3, markersize=6 if mine else 5,
              zorder=3 if mine else 2)  # fmt: skip


def finish(figure, axis, title: str, name: str) -> None:
    """Give the figure its title and a legend of this axis below, and write it to results/NAME.png."""
    handles, labels = axis.get_legend_handles_labels()
    figure.suptitle(title, fontsize=10, y=0.97)
    figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(RESULTS / f"{name}.png", dpi=DPI)
    plt.close(figure)


def draw_grouped_gemm(result: dict) -> None:
    """How near each contestant is to the floor: the floor's time over its own, over the tokens of an expert."""
    figure, axes = plt.subplots(1, len(EXPERTS), figsize=(WIDTH, 3.6), sharey=True)
    for axis, experts in zip(axes, EXPERTS):
        of = lambda x, experts=experts: (x["experts"], x["n"], x["k"], x["name"]) == (experts, N, K, "")  # noqa: E731
        rows = sorted(filter(of, result["rows"]), key=lambda x: x["m"][0])
        for name in (OURS, *PEERS):
            share = [100 * x["floor us"] / x["us"].get(name, float("nan")) for x in rows]
            line(axis, THIS if name == OURS else name, share)
        axis.axhline(100, color="black", linestyle="--", linewidth=1, label="floor: loads alone, or MMAs alone")
        axis.set_xticks(range(len(rows)), [f"{x['m'][0]}\n{x['floor']}" for x in rows], fontsize=9)
        axis.set_title(f"{experts} expert{'s' * (experts > 1)}", fontsize=10)
        axis.set_ylim(0, 110)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("floor's time / time, %", fontsize=9)
    axes[1].set_xlabel("tokens of each expert; what the floor is", fontsize=9)
    finish(figure, axes[0], f"N = K = {N}: {result['gpu']}, {result['date']}, measured", "grouped_gemm_h200")


def draw_layer(result: dict) -> None:
    """Whole layers in a CUDA graph: time over this layer's, and the part of it that the GEMMs' loads alone take."""
    figure, axis = plt.subplots(figsize=(WIDTH, 3.4))
    rows = result["rows"]
    own = [x["us"]["whole" + GRAPH] for x in rows]
    line(axis, THIS, [1.0] * len(rows))
    for name in dict.fromkeys(name for x in rows for name in x["peers"]):
        line(axis, name, [x["us"].get(name + GRAPH, float("nan")) / t for x, t in zip(rows, own)])
    loads = [(x["us"]["floor of GEMM1"] + x["us"]["floor of GEMM2"]) / t for x, t in zip(rows, own)]
    axis.plot(loads, color="black", linestyle="--", linewidth=1, label="loads of both GEMMs alone")
    axis.set_xticks(range(len(rows)), [str(x["T"]) for x in rows], fontsize=9)
    axis.set_xlabel("T, tokens of the layer", fontsize=9)
    axis.set_ylabel("time / these kernels'", fontsize=9)
    axis.set_ylim(0, 2.2)
    axis.grid(axis="y", alpha=0.3)
    finish(figure, axis, f"the layer in a CUDA graph: {result['gpu']}, {result['date']}, measured", "layer_h200")


def draw_parallel(result: dict) -> None:
    """When each kernel of a few calls of the parallel layer ran on each rank."""
    (row,) = (x for x in result["rows"] if "timeline" in x)
    figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
    bars = row["timeline"]
    for x in bars:
        y = -(len(STAGES) + 1) * x["rank"] - STAGES.index(x["stage"])
        style = {"color": COLOURS[x["call"]], "edgecolor": "black", "linewidth": 0.4}
        axis.barh(y, x["end"] - x["start"], left=x["start"], height=0.8, **style)
    ranks = range(result["ranks"])
    names = [[f"rank {rank}: {STAGES[0]}", *STAGES[1:], ""] for rank in ranks]
    axis.set_yticks([-i for i in range(len(ranks) * len(names[0]))], sum(names, []), fontsize=8)
    axis.set_xlabel("us; both ranks' clocks are taken to agree, on average, when combine ends", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    title = f"{len(COLOURS)} calls, {row['T']} tokens a rank: {result['gpu']}, {result['date']}, traced"
    figure.suptitle(title, fontsize=10, y=0.97)
    figure.tight_layout()
    figure.savefig(RESULTS / "parallel_h100.png", dpi=DPI)
    plt.close(figure)


@click.command()
def main() -> None:
    """Make the tables of ragged_moe/'s pages and their pictures anew."""
    for page in PLACES:
        page.write_text(redrawn(page))
        click.echo(page)
    draw_grouped_gemm(load("grouped_gemm_h200"))
    draw_layer(load("layer_h200"))
    draw_parallel(load("parallel_h100"))


if __name__ == "__main__":
    main()
