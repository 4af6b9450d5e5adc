"""Models whole kernels whose B200 times were published, beside those times. No GPU is needed; nvcc is for CUDA C++.

    git clone https://github.com/gpu-mode/reference-kernels
    git clone https://github.com/teelaitila/nvfp4_gpumode
    git clone https://github.com/NaregAmirianMegan/NVFP4_Kernels
    git clone https://github.com/gau-nernst/gpu-mode-kernels
    python -m silicon.whole_kernels.published CHECKOUT ... [--only WORD] [--sample N] [--write]

Checkouts are known by the names of their folders; of those that are not given no point is run. It prints kernel, M, N,
K, calls, published and modelled us, error, and what the time is made of. --sample: some points, drawn by a hash of
their names. --write: emulated_gpu/model/whole_kernels.json gets the modelled times; `python -m worklog.pages` then
makes the tables and brackets.

Each point runs in a process of its own: the problem's own inputs and a submission's own host code. Modelled is what the
GPU does: "alone" is one call behind the fill that the evaluator writes before each, with the two events around it, as
all single calls are modelled; "in a row" is the second of two calls on two inputs, from the end of the first, with a
clean L2, since the fill touches but the first of many calls. What the host does between launches, and copies that torch
makes, are left out. Nothing of the checkouts is kept in this repository. No figure of the profile was fitted to
these times, but those that silicon/whole_kernels/README.md names, and two choices that were kept because of
guaguabear's: that blocks where lanes part cost nothing, and `tensor.copy_cycles`.
Figures: https://github.com/teelaitila/nvfp4_gpumode (fp4_gemm/benchmarks.md, dual_gemm/benchmarks.md,
group_gemm/worklog.md; head of dual_gemm/others/guag.py), and the READMEs of the others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from emulated_gpu.model.profile import Profile, load
from silicon import command

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = "problems/nvidia"


TABLE = ROOT / "emulated_gpu" / "model" / "whole_kernels.json"
TASKS = "reference-kernels"  # the checkout that has the problems
FILES = {  # beginning of a kernel's name -> checkout, the submission's file in it ({}: the rest of the name), problem
    "GEMM, the task's template": (TASKS, f"{PROBLEMS}/nvfp4_gemm/submission.py", "nvfp4_gemm"),
    "dual GEMM, the task's template": (TASKS, f"{PROBLEMS}/nvfp4_dual_gemm/submission.py", "nvfp4_dual_gemm"),
    "dual GEMM, guaguabear": ("nvfp4_gpumode", "dual_gemm/others/guag.py", "nvfp4_dual_gemm"),
    "NaregAmirianMegan, ": ("NVFP4_Kernels", "nvfp4_grouped_gemm/{}.py", "nvfp4_group_gemm"),
    "gau.nernst, ": ("gpu-mode-kernels", "nvidia/nvfp4_group_gemm/submission_{}.py", "nvfp4_group_gemm"),
}


@dataclass(frozen=True)
class Published:
    """A point of the table: a submission of a problem on one size, and its microseconds on a B200."""

    row: dict

    @property
    def name(self) -> str:
        return self.row["kernel"]

    @property
    def place(self) -> tuple[str, str, str]:
        """The checkout, the file in it, and the problem."""
        beginning = next(beginning for beginning in FILES if self.name.startswith(beginning))
        checkout, path, problem = FILES[beginning]
        return checkout, path.format(self.name.removeprefix(beginning)), problem

    @property
    def sizes(self) -> dict:
        """The sizes as the problem's generate_input wants them."""
        sizes = {size: self.row[size] for size in "mnk"}
        return sizes | ({"l": 1} if isinstance(sizes["m"], int) else {"g": len(sizes["m"])})

    @property
    def us(self) -> float:
        return self.row["published_us"]

    @property
    def calls(self) -> str:
        return "in a row" if self.row["in a row"] else "alone"

    @property
    def lot(self) -> bytes:
        """A key that draws points at random, and the same for ever."""
        return hashlib.sha256(f"{self.name} {self.sizes}".encode()).digest()


def _points() -> list[Published]:
    return [Published(row) for row in json.loads(TABLE.read_text())["plain"]]


def write_time(point: Published, us: float, made_of: dict[str, float]) -> None:
    """Puts a modelled time, and what it is made of, into the table, which has a line for each point."""
    lines = TABLE.read_text().splitlines()
    for number, line in enumerate(lines):
        text = line.strip().rstrip(",")
        if text.startswith('{"author"') and json.loads(text) == point.row:
            changed = json.dumps(point.row | {"modelled_us": round(us, 2), "made_of": made_of})
            lines[number] = line.replace(text, changed)
    TABLE.write_text("\n".join(lines) + "\n")


def protocol(calls: str) -> tuple[Profile, int]:
    """Return the profile of points whose calls were timed so, with what a fill has left in the L2, and how many run."""
    profile = load("b200")
    return (profile, 1) if calls == "alone" else (profile.with_({"l2.dirty_at_start": 0.0}), 2)


def child(problem: str, submission: str, sizes: dict, calls: str) -> None:
    """Prints the ends of the modelled calls, in microseconds, as JSON; runs in a process of its own."""
    import emulated_gpu
    from emulated_gpu.model.made_of import made_of
    from emulated_gpu.model.run import TimedRun
    from emulated_gpu.model.tally import tallied
    from emulated_gpu.serve import run

    run.install()
    sys.path[:0] = [problem, str(Path(problem).parent)]
    import reference  # the problem's

    spec = importlib.util.spec_from_file_location("submission", submission)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    profile, count = protocol(calls)
    inputs = [reference.generate_input(**sizes, seed=1111 + i) for i in range(count)]
    ends = []
    with emulated_gpu.session() as session:
        session.recorded = []
        for each in inputs:
            module.custom_kernel(each)
            ends.append(len(session.recorded))
        timed = TimedRun(profile, emulated_gpu.DEVICE.memory, session.recorded)
        for launch in timed.launches:
            tallied(launch.launch)
        timed.run()
    shares = made_of(timed, ends[-1] - 1, ends[-1] - (ends[-2] if count > 1 else 0))
    ends_us = timed.ends_us()
    print(json.dumps({"ends_us": [ends_us[n - 1] for n in ends], "made_of": shares.rounded()}))


def model(point: Published, checkouts: dict[str, Path], events_us: float) -> tuple[float, dict[str, float]]:
    """Microseconds of a point's call that the model predicts, and what they are made of. events_us: of the two events
    around it."""
    checkout, path, problem = point.place
    places = [checkouts[TASKS] / PROBLEMS / problem, checkouts[checkout] / path]
    request = [*map(str, places), json.dumps(point.sizes), point.calls]
    command = [sys.executable, "-W", "ignore", "-m", "silicon.whole_kernels.published", "--child", *request]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{point.name} {point.sizes}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    first, *second = found["ends_us"]
    return second[0] - first if second else first + events_us, found["made_of"]


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, help=f"{TASKS} and others")
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--sample", type=int, help="how large a sample, drawn by a hash")
    parser.add_argument("--write", action="store_true", help="keep what comes out in whole_kernels.json")
    options = parser.parse_args()
    checkouts = {folder.resolve().name: folder.resolve() for folder in options.checkouts}
    if TASKS not in checkouts:
        parser.error(f"{TASKS} has the problems: it must be one of the checkouts")
    points = [p for p in _points() if options.only in p.name and p.place[0] in checkouts]
    if options.sample:
        points = sorted(points, key=lambda p: p.lot)[: options.sample]
    for p in points:
        us, shares = model(p, checkouts, load("b200")["launch"]["events_ns"] / 1e3)
        size, error = ", ".join(str(p.row[d]) for d in "mnk"), f"{us / p.us - 1:+.0%}"
        print(f"| {p.name} | {size} | {p.calls} | {p.us} | {us:.2f} | {error} | {shares} |", flush=True)
        if options.write:
            write_time(p, us, shares)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5])
    else:
        main()
