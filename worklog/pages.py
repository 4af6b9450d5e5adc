"""Redraws the tables of the pages, between `<!-- name -->` and `<!-- /name -->`, and the picture of README.md.

    python -m worklog.pages           # from the recorded results (worklog/figures.py); nothing is measured or modelled
    python -m worklog.pages --check   # says which are not those of the results, and ends with 1

tests/test_pages.py does the second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from emulated_gpu.model import ranking, uncertainty
from ragged_moe.measure.markdown import markdown
from silicon.whole_kernels import exam, foreign, hopper
from tests.public.case import OTHERS
from tests.public.cases import all_cases
from tests.public.suites import SUITES
from worklog import figures, picture
from worklog.figures import ROOT, Row

MACHINES = {"modelled": "B200", "published": "B200", "measured": "H200", "computed": "B200"}
RECORD = "gau.nernst, "  # beginning of the names of his kernels
LADDER = ("v2", "v0", "sub_v7", "sub_v6", "sub_v6_2", "sub_v6_3_test")  # NaregAmirianMegan's, fastest first
CUTLASS = {
    hopper.DENSE: "dense, a tile a CTA", hopper.PERSISTENT: "dense, persistent",
    hopper.TWO_ACC: "two accumulators (FP8)", hopper.GROUPED: "grouped",
}  # fmt: skip
STEPS = (
    ("sub_v6", "sub_v6_2"), ("sub_v6_2", "sub_v6_3_test"), ("sub_v6_3_test", "sub_v7"), ("sub_v6_2", "v0"),
    ("sub_v7", "v0"), ("v0", "v2"),
)  # fmt: skip


def digits(us: float) -> str:
    """Three digits, one of them behind the point at least: as far as a time means something."""
    return f"{us:.1f}" if us >= 9.95 else f"{us:.2f}"


def cells(row: Row) -> list[str]:
    """The four cases and their geometric mean. Modelled: without the known bias, and the interval; what others
    published stays as it was written."""
    if row.mean_interval:
        return [said(between) for between in (*row.intervals, row.mean_interval)]
    write = str if row.kind in ("published", "computed") else digits
    return [*(map(write, row.us) if row.us else ["-"] * 4), f"{row.geomean_us:.2f}"]


def said(between: tuple[float, float]) -> str:
    """Write a modelled time: the known bias of the model is taken out, in brackets its interval."""
    return "{} ({} to {})".format(*map(digits, (uncertainty.corrected(between), *between)))


def standing(rows: dict[str, Row]) -> str:
    """Kinds of figures, each row with its own, then the kernels."""
    columns = ["kind", "", "case 0", "case 1", "case 2", "case 3", "geometric mean"]
    return markdown(columns, [[f"**{r.kind}**, {MACHINES[r.kind]}", r.what, *cells(r)] for r in rows.values()])


def error(published: float, modelled: float) -> str:
    return f"{modelled / published - 1:+.0%}"


def pair(published: float, modelled: float) -> str:
    return f"{published:g} / {modelled:.1f} ({error(published, modelled)})"


def summary(points: list[tuple[float, float]]) -> str:
    """A sentence about (published, modelled) times."""
    errors = [modelled / published - 1 for published, modelled in points]
    return (
        f"{len(points)} points: median error {statistics.median(map(abs, errors)):.1%}, worst "
        f"{max(errors, key=abs):+.0%}, mean signed {statistics.mean(errors):+.1%}."
    )


def times(points: list[dict]) -> list[tuple[float, float]]:
    """(published, modelled) of points of whole_kernels.json."""
    return [(point["published_us"], point["modelled_us"]) for point in points]


def intervals() -> str:
    """What the brackets rest on, by author, and how many of each author's times lie in those of the others' points."""
    rows = []
    for machine in ("b200", "h200"):
        points = uncertainty.known(machine)
        held = uncertainty.held(points)
        for author, (within, count) in held.items():
            mine = [point for point in points if point.author == author]
            middle = statistics.fmean(math.exp(-point.error) - 1 for point in mine)
            kernels = str(len({point.kernel for point in mine}))
            share = f"{within} ({within / count:.0%})"
            rows.append([machine.upper(), author, str(count), kernels, f"{middle:+.1%}", share])
        within, count = (sum(each) for each in zip(*held.values(), strict=True))
        constant, width = uncertainty.constant(points), uncertainty.width(points)
        bracket = f"{math.exp(-width) - 1:+.1%} to {math.exp(width) - 1:+.1%}"
        if constant:
            bracket = f"model's time, of contests' problems x {math.exp(constant):.3f}, {bracket}"
        share = f"**{within} ({within / count:.0%})**"
        rows.append([machine.upper(), f"**all**: {bracket}", str(count), "", "", share])
    columns = ["", "author (H200: family)", "points", "kernels", "mean error", "held by the others' bracket"]
    return f"{markdown(columns, rows)}\n\nOn a B200 {summary(times(uncertainty.POINTS['plain']))}"


def in_order(kernels: list[list[tuple[float, float]]]) -> tuple[int, int]:
    """(in the right order, all) of pairs of kernels that are more than 5 % apart in a case. Of a kernel its cases."""
    pairs = [
        (a[1] - b[1]) * (a[0] - b[0]) > 0
        for case in zip(*kernels, strict=True)
        for a, b in itertools.combinations(case, 2)
        if max(a[0], b[0]) > 1.05 * min(a[0], b[0])
    ]
    return sum(pairs), len(pairs)


def cases() -> str:
    """The errors by problem and protocol: a bias of one sign there is one that a mean over all hides."""
    problems: dict[str, list[dict]] = {}
    for point in uncertainty.POINTS["plain"]:
        of_groups = isinstance(point["m"], list)
        problems.setdefault(str(point["m"]) if of_groups else "GEMM and dual GEMM", []).append(point)
    number, rows, right, pairs = itertools.count(), [], 0, 0
    for problem, points in problems.items():
        of_groups = problem.startswith("[")
        row = [f"group GEMM, case {next(number)}" if of_groups else problem]
        for in_a_row in (True, False):
            known = times([p for p in points if p["in a row"] == in_a_row])
            errors = [modelled / us - 1 for us, modelled in known]
            means = [f"{statistics.mean(errors):+.1%}", f"{max(errors, key=abs):+.0%}"] if errors else ["-", "-"]
            row += [str(len(errors)), *means]
            if of_groups:
                in_it, of_it = in_order([[each] for each in known])
                right, pairs = right + in_it, pairs + of_it
        rows.append(row)
    columns = ["", "in a row: points", "mean error", "worst", "single calls: points", "mean error", "worst"]
    said = f"Of {pairs} pairs of kernels more than 5 % apart in a case, timed alike, {right} come in the right order."
    return f"{markdown(columns, rows)}\n\n{said}"


def whole_kernels_h200() -> str:
    """CUTLASS's kernels on an H200 by script, the table's and the exam's, held out and not: all by one model."""
    errors: dict[str, dict[bool, list[float]]] = {}
    for kernels, file in ((hopper.KERNELS, hopper.TABLE), (exam.KERNELS, exam.TABLE)):
        measured = json.loads(file.read_text())["points"]
        modelled = json.loads(file.with_name(f"modelled_{file.name}").read_text())
        for name, kernel, _ in hopper.points(kernels):
            if name in modelled and kernel.script in CUTLASS:
                us = [(statistics.median(measured[name][timing]), modelled[name][timing]) for timing in hopper.TIMINGS]
                for of in (CUTLASS[kernel.script], "**all**"):
                    halves = errors.setdefault(of, {True: [], False: []})
                    halves[kernel.held_out] += [modelled / measured - 1 for measured, modelled in us]
    rows = []
    for name, halves in sorted(errors.items(), key=lambda row: row[0] == "**all**"):
        cells = [
            [str(len(half)), f"{statistics.median(map(abs, half)):.1%}", f"{max(half, key=abs):+.0%}",
             f"{statistics.mean(half):+.1%}"]
            for half in (halves[True], halves[False])
        ]  # fmt: skip
        rows.append([name, *cells[0], *cells[1]])
    figures_of = ["median error", "worst", "mean"]
    return markdown(["", "held out: points", *figures_of, "fitted: points", *figures_of], rows)


def published() -> str:
    """Kernels of other problems than the group GEMM."""
    points = [p for p in uncertainty.POINTS["plain"] if isinstance(p["m"], int)]
    rows = []
    for p in points:
        calls = "in a row" if p["in a row"] else "alone"
        size = f"{p['m']}, {p['n']}, {p['k']}"
        us, modelled = p["published_us"], p["modelled_us"]
        rows.append([p["kernel"], size, calls, f"{us}", f"{modelled:.1f}", error(us, modelled)])
    columns = ["kernel", "M, N, K", "calls", "published us", "modelled us", "error"]
    return f"{markdown(columns, rows)}\n\n{summary(times(points))}"


def of_ladder(kernel: str) -> list[tuple[float, float]]:
    return times(figures.points_of(f"NaregAmirianMegan, {kernel}"))


def ladder() -> str:
    kernels = [of_ladder(kernel) for kernel in LADDER]
    table = markdown(
        ["kernel", "case 0", "case 1", "case 2", "case 3"],
        [[name, *(pair(*point) for point in points)] for name, points in zip(LADDER, kernels)],
    )
    others = [p for p in uncertainty.POINTS["plain"] if not p["kernel"].startswith(RECORD)]
    right, pairs = in_order(kernels)
    return (
        f"{table}\n\n{summary(sum(kernels, []))} Of {pairs} pairs of these kernels that are more than 5 % apart in a "
        f"case {right} come in the right order. With the table above: {summary(times(others))}"
    )


def steps() -> str:
    rows = []
    for before, after in STEPS:
        points = zip(of_ladder(before), of_ladder(after), strict=True)
        rows.append([f"{before} to {after}", *(f"{b[0] - a[0]:+.1f} / {b[1] - a[1]:+.1f}" for a, b in points)])
    return markdown(["published / modelled us", "case 0", "case 1", "case 2", "case 3"], rows)


def record(in_a_row: bool) -> dict[str, list[dict]]:
    """gau.nernst's kernels, to which no figure was fitted and in whose sight two were chosen: version -> points."""
    kernels: dict[str, list[dict]] = {}
    for p in uncertainty.POINTS["plain"]:
        if p["kernel"].startswith(RECORD) and p["in a row"] == in_a_row:
            kernels.setdefault(p["kernel"].removeprefix(RECORD), []).append(p)
    return kernels


def of_record(in_a_row: bool) -> str:
    """A table of the record's kernels, under one protocol."""
    kernels = {name: times(points) for name, points in record(in_a_row).items()}
    rows = []
    for name, points in kernels.items():
        means = [statistics.geometric_mean(times) for times in zip(*points)]
        mean = f"{means[0]:.2f} / {means[1]:.1f} ({error(*means)})"
        rows.append([name, *(pair(*point) for point in points), mean])
    points = sum(kernels.values(), [])
    right, pairs = in_order(list(kernels.values()))
    return (
        f"{markdown(['kernel', 'case 0', 'case 1', 'case 2', 'case 3', 'geometric mean'], rows)}\n\n"
        f"{summary(points)} Of {pairs} pairs that are more than 5 % apart in a case {right} come in the right order."
    )


def lead() -> str:
    """Write README.md's sentences about the lead and about the model."""
    rows = figures.group_gemm()
    ours, plain, v6b = (
        uncertainty.corrected(rows[name].mean_interval) for name in ("ours", "ours, plain", "v6b, modelled")
    )
    points = [point for kernel in record(in_a_row=True).values() for point in times(kernel)]
    return (
        "* **The lead is modelled, and comes from programmatic dependent launch (PDL) and L2 prefetch:** "
        f"{ours:.1f} us where gau.nernst's v6b has {v6b:.1f}. With plain launches, as all public kernels have them, it "
        f"is {plain:.1f}. Below {ranking.error():.1%} the model cannot tell two kernels apart. What PDL gains on a "
        "B200 nobody has published; an H200 measured it on this kernel's loads and stores "
        "([how](worklog/README.md#the-load-side-on-silicon)).\n"
        f"* **Error of the model** before its bias is taken out, on gau.nernst's kernels: {summary(points)} No figure "
        "was fitted to them; two were chosen after they were known. "
        "[VALIDATION.md](emulated_gpu/VALIDATION.md) has every comparison and miss."
    )


def speed() -> str:
    """How fast the emulator runs, in Python alone and now."""
    record = figures.speed()
    before, now = (record[when]["results"] for when in ("before", "now"))
    rows = []
    for name, found in now.items():
        rows.append([found["what"], found["unit"], f"{before[name]['value']:.3g}", f"{found['value']:.3g}"])
    return markdown(["kernel", "figure", "in Python alone", "now"], rows)


def public_scripts() -> str:
    """Write the table of public scripts on the emulator, group by group."""
    record, rows = figures.scripts(), []
    for group, cases in itertools.groupby(all_cases(record), lambda case: case.group):
        known = [case for case in cases if not {*record.get(case.name, ())} <= {*OTHERS}]
        if not known:
            continue
        verdicts = [r["verdict"] for case in known for m, r in record[case.name].items() if m not in OTHERS]
        rows.append([f"**{group}**: {verdicts.count('agrees')} of {len(verdicts)} agree", "", "", ""])
        for case in known:
            found = record[case.name]
            ran = [f"{r['verdict']}, {r['seconds']:.0f} s" if (r := found.get(m)) else "" for m in ("b200", "h200")]
            why = next((r["why"] for m, r in found.items() if r["verdict"] != "agrees" and m not in OTHERS), "")
            rows.append([case.name, *ran, case.explained or why.replace("|", "\\|")[:160]])
    return markdown(["script", "B200", "H200", "why"], rows)


def other_machines() -> str:
    """Write the table of those that ran on machines that people own."""
    record, rows = figures.scripts(), []
    for case in all_cases(record):
        found = record.get(case.name, {})
        if any(machine in found for machine in OTHERS):
            ran = [f"{r['verdict']}, {r['seconds']:.0f} s" if (r := found.get(m)) else "" for m in OTHERS]
            rows.append([case.name, *ran, case.explained if "finding" in " ".join(ran) else ""])
    return markdown(["program", *OTHERS, "why"], rows)


def drawn_tests() -> str:
    """Write the table of the tests drawn from suites of others: how many pass, and why the others do not."""
    machines, rows = ("b200", "h200"), []
    for suite in SUITES:
        record = figures.drawn().get(suite.name, {})
        ran, reasons = {}, {}
        for machine, found in record.items():
            counts = found["counts"]
            count = sum(counts.values()) - counts.get("skipped", 0)
            ran[machine] = f"{counts.get('agrees', 0)} of {count}"
            for row in found["others"]:
                why = suite.explanation(row["test"]) or row["why"][:160]
                key = row["test"].partition("[")[0], row["verdict"], why.replace("|", "\\|")
                reasons.setdefault(key, Counter())[machine] += 1
        if ran:
            rows.append([f"**{suite.name}**", *(ran.get(m, "") for m in machines), ""])
        for (test, verdict, why), found in reasons.items():
            rows.append([f"{test}: {verdict}", *(str(found[m]) if m in ran else "" for m in machines), why])
    return markdown(["tests", *(m.upper() for m in machines), "why"], rows)


def any_task() -> str:
    """Write the table of others' tasks: the verdicts on the template, on a right submission, and on an edited one."""
    rows = []
    for task, found in figures.any_task().items():
        ran = [found.get(name) for name in ("template", "right", "wrong")]
        said = [f"{one['status']}, {one['seconds']:.1f} s" if one else "-" for one in ran]
        if missing := re.search(r"No module named '(\w+)'", ran[0]["reason"]):
            said[0] = f"no: `{missing[1]}`"
        rows.append([task, f"`{found['case']}`", said[0], found["door"], *said[1:]])
    return markdown(["task", "case", "template", "own one in", "right", "wrong"], rows)


def attacks() -> str:
    """Write the table of attacks on the judge, by kind: what it says in `test` and in `benchmark`."""
    rows = []
    for name, row in sorted(figures.attacks().items(), key=lambda item: (item[1]["kind"], item[0])):
        test, benchmark = row["test"], row["benchmark"]
        time = f"{benchmark['us']:.1f} us, {benchmark['simulated']} calls simulated" if "us" in benchmark else ""
        why = benchmark["reason"] or benchmark.get("error") or time
        said = [f"{test['status']}: {test['reason']}".removesuffix(": "), why]
        short = [one.partition("\n")[0][:110].replace("|", "\\|") for one in said]
        what = row["what"].partition(".")[0].partition(";")[0].replace("|", "\\|")
        rows.append([row["kind"], f"`{name}`", what, *short])
    return markdown(["kind", "submission", "it", "`test`", "`benchmark`"], rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"standing": lambda: standing(figures.group_gemm()), "exam": lead},
    "emulated_gpu/README.md": {"speed": speed},
    "emulated_gpu/PUBLIC.md": {"public": public_scripts, "machines": other_machines, "drawn": drawn_tests},
    "docs/dual.md": {"standing": lambda: standing(figures.dual_gemm())},
    "docs/any_task.md": {"any_task": any_task},
    "evaluation/ATTACKS.md": {"attacks": attacks},
    "emulated_gpu/VALIDATION.md": {
        "intervals": intervals,
        "foreign": foreign.summary,
        "whole kernels h200": whole_kernels_h200,
        "cases": cases,
    },
    "silicon/whole_kernels/README.md": {
        "published": published,
        "foreign": foreign.table,
        "ladder": ladder,
        "steps": steps,
        "record": lambda: of_record(in_a_row=True),
        "record, single calls": lambda: of_record(in_a_row=False),
    },
}


def parts(page: Path, name: str) -> tuple[str, str, str]:
    """Split a page into what stands before, between and behind the markers of a table."""
    before, begin, rest = page.read_text().partition(f"<!-- {name} -->\n")
    found, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"{page} has no markers of {name}")
    return before + begin, found, end + after


def stale() -> list[str]:
    """The tables and the picture that are not those of the results: `PAGE: NAME`."""
    found = [
        f"{page}: {name}"
        for page, tables in TABLES.items()
        for name, table in tables.items()
        if parts(ROOT / page, name)[1] != table() + "\n"
    ]
    return found + ([f"{picture.FILE.relative_to(ROOT)}"] if picture.drawn_in_file() != picture.drawn() else [])


def write_pages() -> None:
    for page, tables in TABLES.items():
        for name, table in tables.items():
            before, _, after = parts(ROOT / page, name)
            (ROOT / page).write_text(before + table() + "\n" + after)
    picture.draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        write_pages()
    elif found := stale():
        sys.exit("\n".join(f"{what} is not what the results give: run python -m worklog.pages" for what in found))


if __name__ == "__main__":
    main()
