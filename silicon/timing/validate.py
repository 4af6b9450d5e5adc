"""Runs the points of h200.json or h100.json on the timing model, prints the error of each family. No GPU is needed.

    python -m silicon.timing.validate [--only SUBSTRING] [--half fitted|held-out] [--sample N] [--list] [--write FILE]
        [--results FILE]    points that the file has, run with this model, are not run again; others are added to it
        [--known]           only points that the results have: none is run

A point's PTX runs on the model as it ran on the card (see points.py): the same launches on the same inputs, the same L2
state before them. Of 15 launches only those are run in which the L2 is replaced, and a few more that stand for the
rest. The names' hash splits every family in two: the figures of the profile were fitted on one half, and the errors
that count are those of the other.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import re
import statistics
import time
from pathlib import Path

import numpy as np

import emulated_gpu
from emulated_gpu.chip import chip_of
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.formats import tensormap
from emulated_gpu.model.profile import Profile
from silicon import command

from . import kernels
from .points import POINTS, Map, MapList, Output, Point, Source, Zeros

TABLE = Path(__file__).with_name("h200.json")
STEADY = {"none": 1, "wait": 2, "early": 4}  # launches beyond those that replace what the L2 held, by what they overlap
FAMILIES = {  # name -> prefixes of the points' names
    "loads, bulk": ("loads/bulk",),
    "loads, tensor": ("loads/tensor",),
    "multicast": (),  # by what the name contains
    "stores": ("stores/",),
    "launches": ("empty/",),
    "tensor maps": ("maps/",),
    "single copies": ("latency/bulk", "latency/tensor"),
    "barriers, fences, loads": ("latency/",),
    "instructions": ("chain/", "issue/", "clock/"),
    "code fetch": ("code/",),
    "sharing, prefetches": ("sharing/", "prefetch/"),
    "whole kernels' mechanisms": ("mechanisms/",),
}
MODEL = (  # what decides how long things take
    "model/clock.py", "model/sm.py", "model/sm_clock.py", "model/memory.py", "model/halves.py", "model/wgmma.py",
    "model/accesses.py", "model/issue.py", "model/machine_code.py", "model/scoreboard.py",
    "model/fences.py", "model/run.py", "machine/placement.py",
    "ptx/isa/arithmetic.py", "ptx/isa/barrier.py", "ptx/isa/control.py", "ptx/isa/convert.py", "ptx/isa/copy.py",
    "ptx/isa/logic.py", "ptx/isa/memory.py", "ptx/isa/registry.py", "ptx/isa/tcgen05.py", "ptx/isa/warp.py",
    "ptx/isa/wgmma.py",
)  # fmt: skip
BARRED = tuple(FAMILIES)[:7]  # median error <= 10 %, worst <= 25 %


def family(point: Point) -> str:
    """The family of FAMILIES that a point belongs to."""
    if point.cluster > 1 and point.name.startswith("loads"):
        return "multicast"
    return next(f for f, prefixes in FAMILIES.items() if point.name.startswith(prefixes))


def lot(name: str, draw: str = "") -> bytes:
    """A key that sorts names at random, and the same for ever.

    It hashes names that count the cases from 1: so they did when the profile was fitted.
    """
    from_1 = re.sub(r"(?<=/case )\d", lambda case: str(int(case[0]) + 1), name)
    return hashlib.sha256((draw + from_1).encode()).digest()


def held_out() -> set[str]:
    """Names of the held-out points: half of each family, by the names' hash.

    The last family has none: all of it was looked at when the model was fitted.
    """
    out = set()
    for f in list(FAMILIES)[:-1]:
        names = [p.name for p in POINTS if family(p) == f]
        names.sort(key=lot)
        out.update(names[::2])
    return out


def sample(count: int) -> list[Point]:
    """Some points of each family that has a bar, by another hash: enough to see an error within minutes."""
    out = []
    for f in BARRED:
        points = [p for p in POINTS if family(p) == f]
        out += sorted(points, key=lambda p: lot(p.name, "sample "))[:count]
    return out


def _map(array: np.ndarray, pitch: int, rows: int, box_rows: int) -> bytes:
    return tensormap.encode(
        tensormap.TensorMap(array.ctypes.data, "u8", (pitch, rows), (pitch,), (128, box_rows), (1, 1), swizzle=128)
    )


def _source_bytes(a) -> int:
    """Bytes of the input that an argument needs."""
    if isinstance(a, MapList):
        return a.count * kernels.MAP_BOX
    return a.nbytes if isinstance(a, Source) or isinstance(a, Map) and a.of == "source" else 0


class Inputs:
    """Arrays in the emulated device's memory for one launch of a point, and the launch's arguments."""

    def __init__(self, point: Point):
        self.keep: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        sizes = [_source_bytes(a) for a in point.args]
        self.source = self._array(max(sizes)) if any(sizes) else None  # of all arguments of a launch, as on the card
        self.args = [self._argument(a, point) for a in point.args]

    def _array(self, nbytes: int, zero: bool = False) -> np.ndarray:
        array = allocate(max(nbytes, 16))
        if zero:
            array[:] = 0
        DEVICE.adopt(array, "input")
        self.keep.append(array)
        return array

    def _argument(self, a, point: Point):
        if isinstance(a, Source):
            return self.source
        if isinstance(a, Output):
            self.outputs.append(self._array(a.nbytes, zero=point.unit == "cycles"))
            return self.outputs[-1]
        if isinstance(a, Map):
            array = self.source if a.of == "source" else self._array(a.nbytes)
            return _map(array, a.pitch, a.rows, a.box_rows)
        if isinstance(a, MapList):
            rows, box = kernels.MAP_BOX // 128, kernels.MAP_BOX
            maps = b"".join(_map(self.source[n * box : (n + 1) * box], 128, rows, rows) for n in range(a.count))
            if a.by_value:
                return maps
            memory = self._array(len(maps))
            memory[:] = np.frombuffer(maps, np.uint8)
            return memory
        if isinstance(a, Zeros):
            return bytes(a.nbytes)
        return a


def model(point: Point, profile: Profile) -> float:
    """A point's time as the model predicts it, in the point's unit: microseconds per launch, or cycles."""
    with DEVICE.as_chip(chip_of(profile.name)):
        value = _model(point, profile)
    gc.collect()  # launches refer to themselves in circles, and hold the shared memory of their CTAs
    return value


def _model(point: Point, profile: Profile) -> float:
    state, _, count = point.timing.partition(" ")
    if state == "clock":
        return _cycles(point, profile, count)
    launches = int(count)
    moved = point.counts.get("unique bytes", 0) + point.counts.get("stored bytes", 0)
    full = -(-profile["l2"]["bytes"] // moved) if moved and point.inputs > 1 else 0
    warm = int(state == "warm")
    ahead = point.options.get("pdl") == "early" or point.options.get("prefetch") or not full
    overlap = "none" if not point.pdl else "early" if ahead else "wait"
    run = min(launches, max(1 + STEADY[overlap] - warm, int(full) + STEADY[overlap]))
    if state != "cold":
        profile = profile.with_({"l2.dirty_at_start": 0.0})
    inputs = [Inputs(point) for _ in range(min(run, point.inputs))]
    with emulated_gpu.timing(profile) as timed:
        for i in range(run + warm):
            _launch(point, inputs[i % len(inputs)])
    ends = timed.ends_us
    first = ends[0] if warm else 0.0
    last = ends[-1]
    if run < launches:
        at = -1 if overlap == "none" else -2  # nothing follows the last one
        back = 2 if overlap == "early" else 1  # those that overlap end in pairs
        last += (launches - run) * (ends[at] - ends[at - back]) / back
    return (last - first + profile["launch"]["events_ns"] / 1e3) / launches


def _launch(point: Point, inputs: Inputs):
    cluster = point.cluster if point.cluster > 1 else None
    emulated_gpu.launch(
        point.ptx, "kernel", point.grid, point.block, inputs.args, cluster=cluster, shared=point.shared, pdl=point.pdl
    )


def _cycles(point: Point, profile: Profile, state: str) -> float:
    inputs = Inputs(point)
    if state == "warm":
        profile = profile.with_({"l2.dirty_at_start": 0.0})
    with emulated_gpu.timing(profile):
        for _ in range(2 if state == "warm" else 1):
            _launch(point, inputs)
    slots = inputs.outputs[0].view(np.uint32).reshape(point.grid, -1)
    return float(np.median(np.median(slots, axis=0)[slice(*point.slots)]) / point.per)


def measured(card: str = "h200") -> dict[str, float]:
    """Values by point's name that were measured on a card: h200 or h100."""
    return {name: p["value"] for name, p in json.loads(TABLE.with_stem(card).read_text())["points"].items()}


def model_digest(profile: Profile) -> str:
    """Changes with the figures of a profile and with the model's code, not with its layout, comments and docstrings."""
    digest = hashlib.sha256(repr({k: v for k, v in profile.items() if k != "validation"}).encode())
    for file in MODEL:
        digest.update(code((Path(emulated_gpu.__file__).parent / file).read_text()).encode())
    return digest.hexdigest()[:16]


def code(text: str) -> str:
    """Python source as what it does: without layout, comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


class Results:
    """Modelled values by point, kept in a file line by line: a run that was cut off goes on where it stopped."""

    def __init__(self, file: Path | None, profile: Profile):
        self.file, self.profile, self.digest = file, profile, model_digest(profile)
        lines = file.read_text().splitlines() if file and file.exists() else []
        found = [json.loads(line) for line in lines]
        self.known = {(r["name"], r["point"]): r["value"] for r in found if r["model"] == self.digest}

    def has(self, point: Point) -> bool:
        """Whether the file has this point by this model."""
        return (point.name, point.digest) in self.known

    def __call__(self, point: Point) -> float:
        """The modelled value of a point, from the file or run now."""
        key = point.name, point.digest
        if key not in self.known:
            start = time.time()
            self.known[key] = value = model(point, self.profile)
            line = {"name": point.name, "point": point.digest, "model": self.digest, "value": round(value, 4)}
            if self.file:
                with self.file.open("a") as out:
                    out.write(json.dumps(line | {"seconds": round(time.time() - start, 1)}) + "\n")
        return self.known[key]


def summary(rows: list[tuple[str, str, float, float, bool]]) -> str:
    """Errors by family, held-out and fitted half, in Markdown. rows: (family, name, modelled, measured, held out)."""
    lines = [
        "| family | points run | of | held out: points, median error, worst | fitted half: points, median, worst |",
        "|---|---|---|---|---|",
    ]
    for f in FAMILIES:
        errors = {half: [abs(m / v - 1) for g, _, m, v, o in rows if g == f and o == half] for half in (True, False)}
        if not errors[True] and not errors[False]:
            continue
        cells = [
            f"{len(e)}, {statistics.median(e):.1%}, {max(e):.1%}" if e else "-" for e in (errors[True], errors[False])
        ]
        known = sum(family(p) == f for p in POINTS)
        lines.append(f"| {f} | {len(errors[True]) + len(errors[False])} | {known} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="points whose name contains one of these")
    parser.add_argument("--half", choices=("fitted", "held-out"), help="only this half")
    parser.add_argument("--sample", type=int, help="this many points of each family that has a bar")
    parser.add_argument("--list", action="store_true", help="a line for each point")
    command.add_set(parser)
    parser.add_argument("--write", type=Path, help="the file whose table is replaced")
    parser.add_argument("--results", type=Path, help="a line for each point that has been run, by model")
    parser.add_argument("--known", action="store_true", help="only points that the results have")
    parser.add_argument("--profile", choices=("h200", "h100"), default="h200", help="whose figures, and whose points")
    options = parser.parse_args()
    profile = command.profile_with(options.set, options.profile)
    results = Results(options.results, profile)
    values, out, rows = measured(options.profile), held_out(), []
    start = time.time()
    for p in sample(options.sample) if options.sample else POINTS:
        half = "held-out" if p.name in out else "fitted"
        if not any(s in p.name for s in options.only) or options.half not in (None, half):
            continue
        if options.known and not results.has(p):
            continue
        rows.append((family(p), p.name, results(p), values[p.name], p.name in out))
        if options.list:
            _, name, m, v, held = rows[-1]
            print(f"{m:9.2f} {v:9.2f} {m / v - 1:+7.1%} {'held out' if held else 'fitted  '} {name}", flush=True)
    if not rows:
        parser.error("no point is left: --known leaves out those that this version of the model has not run")
    print(summary(rows))
    print(f"{len(rows)} points in {time.time() - start:.0f} s")
    if options.write:
        command.write_table(options.write, "h200", summary(rows))


if __name__ == "__main__":
    main()
