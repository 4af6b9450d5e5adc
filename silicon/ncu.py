"""Nsight Compute's CSV of a kernel beside what the model says of it: where the model was wrong for this kernel.

    ncu --import profile.ncu-rep --page details --csv > details.csv  # or ncu-details.csv of `popcorn submit --profile`
    python -m emulated_gpu profile --json model.json SCRIPT.py           # or: eval.py profile --case 2 --json
    model.json python -m silicon.calibrate --ncu details.csv --model model.json

Nsight runs a launch alone, with the SM clock locked to its base and caches flushed, unless told otherwise. So time is
compared in cycles of the SM clock, with that of the kernel's first launch on the model, in which nothing overlaps; HBM
runs at its own clock, and takes fewer SM cycles on the card than at the model's clock if that is higher.
"""

import csv
import io
from dataclasses import dataclass

TIMES_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
RATES = {"byte/s": 1.0, "Kbyte/s": 1e3, "Mbyte/s": 1e6, "Gbyte/s": 1e9, "Tbyte/s": 1e12}
RATES |= {name.replace("/s", "/second"): factor for name, factor in RATES.items()}
COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
DIFFERS = 0.1  # from there on a figure is named as wrong: what the model's microbenchmarks agree within


@dataclass(frozen=True)
class Figure:
    """A figure of a kernel on the card and on the model, in `unit`."""

    name: str
    unit: str
    measured: float
    modelled: float

    @property
    def error(self) -> float:
        """The model's relative error: 0.1 is a figure that is 10 % too large."""
        return self.modelled / self.measured - 1 if self.measured else 0.0


def read(text: str) -> list[dict]:
    """Read the details page as CSV: {"kernel", metric: [(value, unit)]} of each launch. Raises ValueError.

    Two sections may have a metric of one name, in different units. Lines of ncu's own before the header are skipped; so
    is a metric that has no number.
    """
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), None)
    if start is None:
        raise ValueError("this is no CSV of ncu's details page: no line begins with \"ID\"")
    rows = csv.DictReader(io.StringIO("".join(lines[start:]).lstrip("\ufeff")))
    if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise ValueError(f"no column {', '.join(missing)}: `ncu --import FILE --page details --csv` writes them")
    launches: dict[str, dict] = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (ValueError, AttributeError):
            continue  # a rule's row, or n/a
        launch.setdefault(row["Metric Name"], []).append((value, row["Metric Unit"]))
    if not launches:
        raise ValueError("it has no launch")
    return [*launches.values()]


def figures(launch: dict, kernel: dict, clock_ghz: float) -> list[Figure]:
    """Compare a launch of `read` with a row of `kernels` of a profile's report. clock_ghz: the model's SM clock."""
    found = []

    def add(name: str, unit: str, measured: float | None, modelled: float | None) -> None:
        if measured is not None and modelled is not None:
            found.append(Figure(name, unit, measured, modelled))

    def value(name: str, units: dict[str, float] | None = None) -> float | None:
        for number, unit in launch.get(name, ()):
            if units is None or unit in units:
                return number * (units[unit] if units else 1.0)
        return None

    us, rate = value("Duration", TIMES_US), value("Memory Throughput", RATES)
    hits = value("L2 Hit Rate")
    add("time", "SM cycles", value("Elapsed Cycles"), kernel["first_us"] * clock_ghz * 1e3)
    add("HBM traffic", "MB", us and rate and us * rate / 1e12, kernel["hbm_bytes"] / 1e6)
    add("L2 hits", "%", hits, 100 * kernel["l2_hits"])
    add("registers", "a thread", value("Registers Per Thread"), kernel["registers"])
    return found


def pairs(launches: list[dict], kernels: list[dict]) -> list[tuple[dict, dict]]:
    """The first launch of each kernel on the card, with the model's row of it. Raises ValueError if none has one.

    Names are compared as they are; where there is one kernel on each side, these are it.
    """
    first: dict[str, dict] = {}
    for launch in launches:
        first.setdefault(launch["kernel"], launch)
    if len(first) == len(kernels) == 1:
        return [(*first.values(), kernels[0])]
    found = [
        (launch, kernel)
        for name, launch in first.items()
        for kernel in kernels
        if kernel["kernel"] in name or name.partition("(")[0] in (kernel["kernel"], kernel["title"])
    ]
    if not found:
        names = ", ".join(kernel["kernel"] for kernel in kernels)
        raise ValueError(f"none of the card's kernels ({', '.join(first)}) is one of the model's ({names})")
    return found


def told(kernel: str, compared: list[Figure]) -> list[str]:
    """A table of the figures, and a sentence for each that is wrong, the worst first."""
    lines = [f"{kernel}:", f"  {'':12} {'measured':>12} {'modelled':>12} {'error':>8}"]
    for one in compared:
        lines.append(
            f"  {one.name:12} {one.measured:12.4g} {one.modelled:12.4g} {100 * one.error:+7.1f} %  {one.unit}"
        )
    wrong = sorted((one for one in compared if abs(one.error) > DIFFERS), key=lambda one: -abs(one.error))
    for one in wrong:
        size = "large" if one.error > 0 else "small"
        lines.append(f"  the model's {one.name} is {100 * abs(one.error):.0f} % too {size}: {WHERE[one.name]}")
    if not wrong:
        lines.append(f"  every figure is within {100 * DIFFERS:.0f} %")
    return lines


WHERE = {  # what to look at
    "time": "if traffic, hits and registers agree, latencies or the tensor core's rate (`calibrate` probes those)",
    "HBM traffic": "the L2 (model/memory.py): what it keeps between launches, and between SMs",
    "L2 hits": "the L2 (model/memory.py), or what ncu's flush leaves in it",
    "registers": "another ptxas made the machine code",
}


def report(text: str, model: dict, case: int, clock_ghz: float) -> list[str]:
    """Compare a CSV with `profile --json` of the emulator or of eval.py, there of a case. Raises ValueError."""
    if "cases" in model:
        if not 0 <= case < len(model["cases"]):
            raise ValueError(f"the model's report has no case {case}: it has {len(model['cases'])}")
        model = model["cases"][case]
    if "kernels" not in model:
        raise ValueError(f"the model's report has no kernels: {model.get('error', 'is it of `profile --json`?')}")
    lines = []
    for launch, kernel in pairs(read(text), model["kernels"]):
        lines += told(kernel["title"], figures(launch, kernel, clock_ghz))
    return lines
