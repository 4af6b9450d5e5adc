"""The picture of README.md: geometric means of the four cases, modelled times apart from published ones."""

from __future__ import annotations

import json

from PIL import Image

from emulated_gpu.model import uncertainty
from worklog import figures

FILE = figures.ROOT / "docs" / "standing.png"
PANELS = {
    "MODELLED for a B200; bars: 9 of 10 known errors of the model": (
        ("ours", "this kernel"),
        ("ours, plain", "this kernel, without PDL"),
        ("v6b, modelled", "gau.nernst, v6b"),
        ("v2, modelled", "NaregAmirianMegan, v2"),
    ),
    "PUBLISHED by their authors, run on a B200": (
        ("", "this kernel"),
        ("rank 1", "gau.nernst, rank 1"),
        ("rank 2", "guaguabear, rank 2"),
        ("v2", "NaregAmirianMegan, v2"),
    ),
}
COLOURS, LIGHT = ("tab:blue", "black"), "tab:green"
BESIDE = {"textcoords": "offset points", "va": "center"}
OURS = ("ours", "ours, plain", "")  # "": which no B200 has run
KEY = "figures"  # of the text in the PNG that says what was drawn


def drawn() -> dict[str, list[float]]:
    """Name -> mean in us of everything that the picture shows; of what is modelled, without the known bias of the
    model, and its interval."""
    rows = figures.group_gemm()
    names = [name for panel in PANELS.values() for name, _ in panel if name] + ["light"]
    return {name: [round(x, 4) for x in shown(rows[name])] for name in names}


def shown(row: figures.Row) -> tuple[float, ...]:
    """Return the mean of a row in us, or what stands for it and its interval."""
    between = row.mean_interval
    return (uncertainty.corrected(between), *between) if between else (row.geomean_us,)


def draw() -> None:
    import matplotlib  # for a second, which tests that read the picture do not have to wait

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = drawn()
    [light] = values["light"]
    heights = [len(panel) for panel in PANELS.values()]
    figure, axes = pyplot.subplots(
        len(PANELS), 1, figsize=(7, 4), sharex=True, layout="constrained", height_ratios=heights
    )
    for axis, colour, (title, panel) in zip(axes, COLOURS, PANELS.items(), strict=True):
        for place, (name, _) in enumerate(panel):
            if not name:
                axis.annotate("no B200 has run it", (light, place), xytext=(7, 0), style="italic", **BESIDE)
                continue
            mean, *interval = values[name]
            if interval:
                axis.hlines(place, *interval, color=colour, lw=7, alpha=0.3)
            axis.plot(mean, place, "o" if interval else "D", color=colour)
            axis.annotate(f"{mean:.1f}", (max(values[name]), place), xytext=(7, 0), **BESIDE)
        axis.axvline(light, color=LIGHT, ls="--")
        axis.set_yticks(range(len(panel)), [label for _, label in panel])
        for label, (name, _) in zip(axis.get_yticklabels(), panel, strict=True):
            label.set_fontweight("bold" if name in OURS else "normal")
        axis.set_ylim(len(panel) - 0.5, -0.5)
        axis.set_title(title, fontsize=9.5, loc="left", color=colour)
        axis.grid(axis="x", alpha=0.3)
    axes[0].annotate(f"speed of light\n{light:.1f}", (light, 1.5), xytext=(7, 0), color=LIGHT, **BESIDE)
    axes[-1].set_xlim(0, 23)
    axes[-1].set_xlabel("microseconds per call, geometric mean of four cases (left is better)", loc="right")
    figure.savefig(FILE, dpi=160, metadata={KEY: json.dumps(values)})
    pyplot.close(figure)


def drawn_in_file() -> dict[str, list[float]]:
    """Read from the picture's file what `drawn` was when it was made."""
    with Image.open(FILE) as image:
        return json.loads(image.text[KEY])
