"""The tables of ragged_moe/'s pages, made from the files in results/; `python -m ragged_moe.measure.plot` puts them on
the pages.

A table's place on a page is between two lines, `<!-- table NAME -->` and `<!-- end -->`; PLACES says which page has it.
"""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

from emulated_gpu.model import uncertainty
from ragged_moe.measure import layer, layer_fp4, parallel
from ragged_moe.measure.contest import FP8, GRAPH, LOADS, OURS, W4A8, W4A16
from ragged_moe.measure.experts import DEEPSEEK, MODELS, experts_table, over_sglang
from ragged_moe.measure.grouped_gemm import FORMATS, GEMM, geomeans
from ragged_moe.measure.humming import HUMMING
from ragged_moe.measure.layer import FEW
from ragged_moe.measure.markdown import markdown, table
from ragged_moe.measure.marlin import BEST

MOE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PLACE = re.compile(r"(<!-- table (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NEAR = 0.75  # of Marlin's time: above that a kernel is near it
PAYS = 128  # tokens an expert, from which on W4A8 is faster than W4A16
STAGES = "routing", "permute", "GEMM1", "GEMM2", "finalise"
OF_TRANSFORMERS = "moe_fp8", "grouped_mm", "batched_mm", "eager"  # implementations of experts, ours first


def load(name: str) -> dict:
    """The results of one run: results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def whence(result: dict) -> str:
    """On what a run was measured, when, and how."""
    how = f"medians of {result['repeats']} timings of {result['calls']} calls back to back after a flush of L2"
    cards = f"{result.get('ranks', 'one')} {result['gpu']}"
    return f"**Measured** in one run on {cards}, {result['date']}, torch {result['torch']}: {how}."


def own(x: dict) -> float:
    """Return the model's own time, in us, of a grouped GEMM or a layer."""
    return x["us"]["whole"] if isinstance(x["us"], dict) else x["us"]


def between(x: dict) -> tuple[float, float] | None:
    """Return between which times, in us, the model's errors known today let a modelled one be: all kernels have PDL.
    None where a time is made of what no known one is (`ragged_moe model` says so)."""
    return None if "no bracket" in x else uncertainty.interval(own(x), pdl=True)


def corrected(x: dict) -> float:
    """Return the middle of that, which is what is printed, or the model's own time."""
    return uncertainty.corrected(of) if (of := between(x)) else own(x)


def interval(x: dict) -> str:
    """Write `between`."""
    return " to ".join(f"{us:.0f}" if us >= 100 else f"{us:.1f}" for us in between(x) or ()) or "no bracket"


# --------------------------------------------------------------------------------------------------------- grouped GEMM


def means(rows: list[dict]) -> str:
    """Geometric means over some rows: time over the best peer's / time over the floor's."""
    ratio = statistics.geometric_mean(x["ratio"] for x in rows)
    return f"{ratio:.2f} / {statistics.geometric_mean(x['us'][OURS] / x['floor us'] for x in rows):.2f}"


def gemm_run(result: dict) -> str:
    """Write what was measured, and the geometric means over all rows."""
    rows = result["rows"]
    few, many = [[x for x in rows if (sum(x["m"]) / x["experts"] <= 128) == few] for few in (True, False)]
    means = geomeans("fp8", rows)
    return (
        f"{whence(result)}\n"
        f"Time over the fastest peer's, geometric means: **{means['all rows']:.3f}** over all {len(rows)} problems, "
        f"{means['mean m <= 128']:.3f} over the {len(few)} of up to 128 tokens an expert, "
        f"{means['mean m > 128']:.3f} over the {len(many)} of more."
    )


def gemm_summary(result: dict) -> str:
    """Write time over the fastest peer's and over the floor's, as `by_spread` does."""
    return by_spread(result, "time over the fastest peer's / over the floor", means)


def by_spread(result: dict, head: str, cell: Callable[[list[dict]], str]) -> str:
    """Write cells of the records of as many experts, whose rows are spread likewise and as many in the mean, of all N
    and K: of rows drawn by a law, even ones, then routed tokens.
    """
    routed, spread = {}, {}
    for x in result["rows"]:
        law, mean, _ = x["name"].partition(", mean ")
        if mean or not law:
            of_spread = spread.setdefault((not mean, x["experts"], law or "even"), {})
            of_spread.setdefault(sum(x["m"]) // x["experts"], []).append(x)
        elif law.startswith("routed"):
            routed.setdefault(law, []).append(x)
    counts, body = sorted({m for of_spread in spread.values() for m in of_spread}), []
    for (_, experts, law), of_spread in sorted(spread.items()):
        cells = [cell(of_spread[m]) if m in of_spread else "" for m in counts]
        body.append([f"{experts} experts, {law}" if experts > 1 else "1 expert", *cells])
    if routed:
        cells = [f"{cell(rows)} ({name})" for name, rows in routed.items()]
        body.append(["32 of 256 experts", *cells, *[""] * (len(counts) - len(cells))])
    return markdown([head, *(f"{m} tokens in the mean" if m > 1 else "1 token" for m in counts)], body)


def gemm_modelled_summary(result: dict) -> str:
    """Rows of a B200 by tokens an expert: between which TFLOPS they lie, and these over the published."""
    body = []
    for m in sorted({x["m"] for x in result["rows"]}):
        rows = [x for x in result["rows"] if x["m"] == m]
        rates, over = [x["TFLOPS"] for x in rows], [round(x["TFLOPS"] / x["published TFLOPS"], 2) for x in rows]
        ends = (dict.fromkeys((min(of), max(of))) for of in (rates, over))
        body.append([f"{m}: {len(rows)}", *(" to ".join(map(str, of)) for of in ends)])
    return markdown(["tokens an expert: problems", "modelled TFLOPS", "over the published"], body)


def gemm_modelled(result: dict) -> str:
    """Rows of a B200 beside what is published for one."""
    head = ["experts x tokens", "N, K", "us", "may be", "the model's own us", "its TFLOPS", "of the bytes' floor",
            "of the MMAs'", "published TFLOPS", "calls"]  # fmt: skip
    body = []
    for x in result["rows"]:
        of_floors = (f"{x[name]:.0%}".replace("%", " %") for name in ("of the bytes floor", "of the MMA floor"))
        us = f"{corrected(x):.1f}", interval(x), x["us"], x["TFLOPS"]
        problem, published = (f"{x['experts']} x {x['m']}", f"{x['n']}, {x['k']}"), f"{x['published TFLOPS']:.0f}"
        body.append([*problem, *map(str, us), *of_floors, published, str(x["calls"])])
    return markdown(head, body)


# -------------------------------------------------------------------------------------------------------- NVFP4 weights


def fp4_run(result: dict) -> str:
    """Write what was measured, the geometric means over all rows, and which are near Marlin's and why."""
    rows, means = result["rows"], result["geomeans"]
    best, of_humming, fp8 = means[BEST], means[HUMMING], means[FP8]
    near, slower = [[x for x in rows if x["us"][OURS] > least * x["us"][BEST]] for least in (NEAR, 1)]
    behind = [x for x in rows if x["us"][OURS] > x["us"][HUMMING]]
    layers = load("layer_nvfp4_h200")["rows"]
    peers = [(layer_fp4.of_humming(x), x["us"][BEST]) for x in layers]
    over = [[x["us"][OURS + GRAPH] / us for us in (of[0], min(of))] for x, of in zip(layers, peers)]
    humming, fastest = map(statistics.geometric_mean, zip(*over))
    return (
        f"{whence(result)}\nTime over Marlin's with the best of its block sizes, geometric mean over all "
        f"{len(rows)} problems: **{best:.3f}**; over Humming's **{of_humming:.3f}**; over FP8's {fp8:.3f}.\n"
        f"Marlin is faster in {len(slower)} of them and Humming in {len(behind)}; above {NEAR} of Marlin's time are "
        f"{len(near)}. Layers, of {len({x['model'] for x in layers})} models with T = 1 to 4096: **{humming:.3f}** of "
        f"the time of Humming's faster form, {fastest:.3f} of the fastest peer's."
    )


def fp4_summary(result: dict) -> str:
    """Write ratios by experts and their tokens, over all N, K: of rows drawn by a law, routed tokens, even experts."""

    def cell(rows: list[dict]) -> str:
        others = [[x["us"][BEST], x["us"][HUMMING], x["loads us"], x["us"][FP8]] for x in rows]
        ratios = [[x["us"][OURS] / us for us in of] for x, of in zip(rows, others)]
        return " / ".join(f"{statistics.geometric_mean(column):.2f}" for column in zip(*ratios))

    return by_spread(result, "time over Marlin's / Humming's / the loads' / FP8's", cell)


def fp4_layer(result: dict) -> str:
    """DeepSeek-V3's layers with NVFP4 weights, with FP8 ones, by Marlin and by Humming, and their loads."""
    others, body = ("FP8", "Marlin", "Humming", "loads"), []
    for x in (x for x in result["rows"] if MODELS[x["model"]] == DEEPSEEK):
        ours, of_humming = x["us"][OURS + GRAPH], layer_fp4.of_humming(x)
        us = [x["us"][FP8 + GRAPH], x["us"][BEST], of_humming, x["us"][LOADS + GRAPH]]
        body.append([str(x["T"]), f"{ours:.1f}", *(f"{t:.1f}" for t in us), *(f"{ours / t:.2f}" for t in us)])
    return markdown(["T", "NVFP4, us", *(f"{x}, us" for x in others), *(f"NVFP4 / {x}" for x in others)], body)


# -------------------------------------------------------------------------------------------------------- MXFP4 weights


def mxfp4_run(result: dict) -> str:
    """Write what was measured, and between which ratios W4A8 is where it pays and where it does not."""
    few, many = [[x["us"][W4A8] / x["us"][W4A16] for x in result["rows"] if (sum(x["m"]) < PAYS * len(x["m"])) == few]
                 for few in (True, False)]  # fmt: skip
    return (
        f"{whence(result)}\nFrom {PAYS} tokens an expert on a call of W4A8, its quantiser included, takes "
        f"{min(many):.2f} to {max(many):.2f} of W4A16's time, geometric mean\n"
        f"**{statistics.geometric_mean(many):.3f}** of {len(many)} problems; with fewer {min(few):.2f} to "
        f"{max(few):.2f}, geometric mean {statistics.geometric_mean(few):.3f} of {len(few)}."
    )


def mxfp4_summary(result: dict) -> str:
    """Ratios to W4A16 by sizes, how rows are spread, and tokens of an expert in the mean."""
    of: dict[tuple, dict[int, dict]] = {}
    for x in result["rows"]:
        spread = x["name"].partition(", mean ")[0] or "even"
        of.setdefault((x["experts"], x["n"], x["k"], spread), {})[sum(x["m"]) // x["experts"]] = x["us"]
    counts, body = sorted({m for of_size in of.values() for m in of_size}), []
    for (e, n, k, spread), us in of.items():
        ratios = [[us[m][name] / us[m][W4A16] for name in (W4A8, GEMM, FP8)] if m in us else [] for m in counts]
        cells = [" / ".join(f"{x:.2f}" for x in of_mean) for of_mean in ratios]
        body.append([f"{e} experts, N = {n}, K = {k}, {spread}", *cells])
    head = "time over W4A16's: W4A8 / its GEMM alone / FP8"
    return markdown([head, *(f"{m} tokens in the mean" for m in counts)], body)


def fp4_modelled(result: dict) -> str:
    """Layers on a B200 with NVFP4 and with MXFP4 weights, beside what is recorded of FP8's."""
    body = []
    for nvfp4, mxfp4, fp8 in zip(*(x["rows"] for x in (result, load("mxfp4_b200"), load("layer_b200"))), strict=True):
        cells, beside = [], corrected(fp8)
        for times in (nvfp4, mxfp4):
            cells += [f"{corrected(times):.1f}", interval(times), f"{corrected(times) / beside:.2f}"]
        body.append([str(fp8["T"]), *cells, f"{beside:.1f}"])
    heads = [head for name in ("NVFP4", "MXFP4") for head in (f"{name}, us", "may be", "over FP8")]
    return markdown(["T", *heads, "FP8, us"], body)


# --------------------------------------------------------------------------------------------------------------- layer


def layer_run(result: dict) -> str:
    """Write what was measured, and the geometric means over all T."""
    few, many = [[x for x in result["rows"] if (x["T"] <= FEW) == few] for few in (True, False)]
    of = {(mode, i): statistics.geometric_mean(x["ratio" + mode] for x in rows)
          for mode in (GRAPH, "") for i, rows in enumerate((few, many))}  # fmt: skip
    return (
        f"{whence(result)}\n"
        f"Time over the fastest peer's, geometric means: up to T = {FEW} **{of[GRAPH, 0]:.3f}** in a CUDA graph, "
        f"{of['', 0]:.3f} as called; above {of[GRAPH, 1]:.3f} and {of['', 1]:.3f}."
    )


def layer_summary(result: dict) -> str:
    """Times of the stages, each alone, and of whole layers."""
    head = ["T", "rows", *STAGES, "in a graph", "/ fastest peer's", "called", "/ peer's", "host"]
    body = []
    for x in result["rows"]:
        us = {name: f"{t:.1f}" for name, t in x["us"].items()}
        for name in ("GEMM1", "GEMM2"):
            us[name] += f" ({x['us'][name] / x['us'][f'floor of {name}']:.2f})"
        ratios = f"{x['ratio' + GRAPH]:.2f}", f"{x['ratio']:.2f}"
        stages = [us.get(name, "") for name in STAGES]
        body.append([str(x["T"]), f"{x['rows']:.0f}", *stages, us["whole" + GRAPH], ratios[0], us["whole"], ratios[1],
                     f"{x['us']['host']:.0f}"])  # fmt: skip
    return markdown(head, body)


def layer_configs(result: dict) -> str:
    """The configs of both GEMMs; consecutive T that have the same ones are one line."""
    lines = []
    for x in result["rows"]:
        configs = x["GEMM1"], x["GEMM2"]
        if lines and lines[-1][1] == configs:
            lines[-1][0].append(x["T"])
        else:
            lines.append(([x["T"]], configs))
    return markdown(["T", "GEMM1", "GEMM2"], [[", ".join(map(str, ts)), *configs] for ts, configs in lines])


def layer_modelled_summary(result: dict) -> str:
    """Whole layers on a B200."""
    return ", ".join(f"T = {x['T']} {corrected(x):.0f} us ({interval(x)})" for x in result["rows"]) + "."


def layer_modelled(result: dict) -> str:
    """Whole layers and their stages on a B200."""
    stages = [name for name in STAGES if name != "permute"]
    body = [[str(x["T"]), f"{corrected(x):.1f}", interval(x), f"{own(x):.1f}",
             *(f"{x['us'][name]:.1f}" for name in stages), str(x["calls"]), x["date"]]
            for x in result["rows"]]  # fmt: skip
    return markdown(["T", "whole, us", "may be", "the model's own", *stages, "calls", "kernels of"], body)


# --------------------------------------------------------------------------------------------------- expert parallelism


def parallel_summary(result: dict) -> str:
    """Times in a graph by tokens a rank, and over the peer's."""
    body, names = [], ("one-sided", "collectives", parallel.MEGA, parallel.SINGLE, parallel.SLOWEST)
    for x in result["rows"]:
        us = {name: x["us"][name + GRAPH] for name in names}
        ratio = us["one-sided"] / us[parallel.MEGA]
        body.append([str(x["T"]), *(f"{t:.1f}" for t in us.values()), f"{ratio:.2f}"])
    return markdown(["tokens a rank", *names, "one-sided / mega MoE"], body)


# -------------------------------------------------------------------------------------------------------------- experts


def experts_run(result: dict) -> str:
    """Write what was measured, and the geometric means over SGLang's experts and over DeepGEMM's GEMMs."""
    rows, mean = result["rows"], statistics.geometric_mean
    of_sglang, of_gemms = [over_sglang(x) for x in rows], mean(x["ratio"] for x in rows)
    us = {x["T"]: x["us"] for x in rows if "layer" + GRAPH in x["us"] and x.get("law", "uniform") == "uniform"}
    of_layer = ", ".join(f"{x['experts' + GRAPH] / x['layer' + GRAPH]:.2f} at T = {t}" for t, x in us.items())
    return (
        f"{whence(result)}\n*Experts* over SGLang's, geometric mean: **{mean(of_sglang):.2f}**, "
        f"from {min(of_sglang):.2f} to {max(of_sglang):.2f}. *Two GEMMs* over the faster of DeepGEMM's: "
        f"**{of_gemms:.2f}**.\n*Experts* over `ragged_moe.run`, the layer, which gets tokens in e4m3, for the "
        f"same rows of DeepSeek-V3: {of_layer}."
    )


def experts_by_model(result: dict) -> str:
    """Write the times of a model's experts by T and law, and in brackets over SGLang's."""
    rows = result["rows"]
    tokens = sorted({x["T"] for x in rows})
    of: dict[tuple[str, str], dict[int, str]] = {}
    for x in rows:
        cell = f"{x['us']['experts' + GRAPH]:.0f} ({over_sglang(x):.2f})"
        of.setdefault((x.get("law", "uniform"), x["model"]), {})[x["T"]] = cell
    body = [[f"{model}{', ' + law if law != 'uniform' else ''}", *(cells.get(t, "") for t in tokens)]
            for (law, model), cells in sorted(of.items(), key=lambda x: x[0][0] != "uniform")]  # fmt: skip
    return markdown(["model", *(f"T = {t}" for t in tokens)], body)


def transformers_run(result: dict) -> str:
    """Write on what transformers' experts were timed, and what these take of its grouped_mm's time."""
    ratios = [x["us"]["moe_fp8"] / x["us"]["grouped_mm"] for x in result["rows"]]
    return (
        f"Experts of Qwen3-30B's sizes take {min(ratios):.2f} to {max(ratios):.2f} of the time of transformers' own "
        "`grouped_mm`, as called, T = "
        f"{result['rows'][0]['T']} to {result['rows'][-1]['T']}. "
        f"**Measured** in one run on one {result['gpu']}, {result['date']}, transformers {result['transformers']}, its "
        f"kernels {result['kernels']}, torch {result['torch']}: medians of {result['calls']} calls, each on its own."
    )


def transformers_layers(result: dict) -> str:
    """Times of a layer's experts as called, in microseconds."""
    rows, names = result["rows"], OF_TRANSFORMERS
    body = [[str(x["T"]), *(f"{x['us'][name]:.0f}" if name in x["us"] else "" for name in names)] for x in rows]
    return markdown(["T", "ragged_moe.experts", *names[1:]], body)


def transformers_generation(result: dict) -> str:
    """Tokens a second of each prompt."""
    body = [[str(x["prompts"]), *(f"{x['rate'][name]:.0f}" for name in OF_TRANSFORMERS)] for x in result["generation"]]
    return markdown(["prompts", "ragged_moe.experts", *OF_TRANSFORMERS[1:]], body)


Table = tuple[Callable[[dict], str], str]  # what makes a table, from which run
PLACES: dict[Path, dict[str, Table]] = {
    MOE / "README.md": {
        "grouped_gemm run": (gemm_run, "grouped_gemm_h200"),
        "grouped_gemm summary": (gemm_summary, "grouped_gemm_h200"),
        "grouped_gemm modelled": (gemm_modelled_summary, "grouped_gemm_b200"),
        "nvfp4 layer": (fp4_layer, "layer_nvfp4_h200"),
    },
    MOE / "NVFP4.md": {
        "nvfp4 run": (fp4_run, "grouped_gemm_nvfp4_h200"),
        "nvfp4 summary": (fp4_summary, "grouped_gemm_nvfp4_h200"),
        "mxfp4 run": (mxfp4_run, "grouped_gemm_mxfp4_h200"),
    },
    MOE / "LAYER.md": {
        "layer run": (layer_run, "layer_h200"),
        "layer summary": (layer_summary, "layer_h200"),
        "layer modelled": (layer_modelled_summary, "layer_b200"),
    },
    MOE / "EXPERTS.md": {
        "experts run": (experts_run, "experts_h200"),
        "experts by model": (experts_by_model, "experts_h200"),
        "transformers run": (transformers_run, "transformers_h200"),
    },
    MOE / "PARALLEL.md": {
        "parallel run": (whence, "parallel_h200"),
        "parallel summary": (parallel_summary, "parallel_h200"),
        "parallel whole": (parallel_summary, "parallel_256_h200"),
    },
    RESULTS / "README.md": {
        "grouped_gemm run": (gemm_run, "grouped_gemm_h200"),
        "grouped_gemm rows": (lambda x: table(FORMATS["fp8"].columns, x["rows"]), "grouped_gemm_h200"),
        "experts summary": (lambda x: experts_table(x["rows"]), "experts_h200"),
        "transformers run": (transformers_run, "transformers_h200"),
        "transformers layers": (transformers_layers, "transformers_h200"),
        "transformers generation": (transformers_generation, "transformers_h200"),
        "nvfp4 run": (fp4_run, "grouped_gemm_nvfp4_h200"),
        "nvfp4 summary": (fp4_summary, "grouped_gemm_nvfp4_h200"),
        "nvfp4 modelled": (fp4_modelled, "nvfp4_b200"),
        "mxfp4 summary": (mxfp4_summary, "grouped_gemm_mxfp4_h200"),
        "nvfp4 rows": (lambda x: table(FORMATS["nvfp4"].columns, x["rows"]), "grouped_gemm_nvfp4_h200"),
        "nvfp4 layer": (lambda x: layer_fp4.nvfp4_table(x["rows"]), "layer_nvfp4_h200"),
        "mxfp4 run": (mxfp4_run, "grouped_gemm_mxfp4_h200"),
        "mxfp4 rows": (lambda x: table(FORMATS["mxfp4"].columns, x["rows"]), "grouped_gemm_mxfp4_h200"),
        "mxfp4 layer": (lambda x: layer_fp4.mxfp4_table(x["rows"]), "layer_mxfp4_h200"),
        "layer run": (layer_run, "layer_h200"),
        "layer stages": (lambda x: layer.stage_table(x["rows"]), "layer_h200"),
        "layer in a graph": (lambda x: layer.peer_table(x["rows"], GRAPH), "layer_h200"),
        "layer called": (lambda x: layer.peer_table(x["rows"], ""), "layer_h200"),
        "layer configs": (layer_configs, "layer_h200"),
        "grouped_gemm modelled": (gemm_modelled, "grouped_gemm_b200"),
        "layer modelled": (layer_modelled, "layer_b200"),
    },
}


def redrawn(page: Path) -> str:
    """The page's text with its tables made anew from the results. ValueError unless its places are those of PLACES."""
    tables, text = PLACES[page], page.read_text()
    found = [match[2] for match in PLACE.finditer(text)]
    if sorted(found) != sorted(tables):
        raise ValueError(f"{page.name} has places for the tables {found}, but must have {list(tables)}, each once")

    def drawn(match: re.Match) -> str:
        make, run = tables[match[2]]
        return f"{match[1]}{make(load(run))}\n{match[4]}"

    return PLACE.sub(drawn, text)
