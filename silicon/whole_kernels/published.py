"""Models whole kernels whose B200 times were published, beside those times. No GPU is needed.

    git clone https://github.com/gpu-mode/reference-kernels
    git clone https://github.com/teelaitila/nvfp4_gpumode
    python -m silicon.whole_kernels.published reference-kernels nvfp4_gpumode [--only WORD]

It prints kernel, M, N, K, calls, published and modelled us, and error. emulated_gpu/model/whole_kernels.json keeps the
modelled times; `python -m worklog.pages` makes the table of silicon/whole_kernels/README.md of it.

Each point runs in a process of its own: the problem's own inputs and a submission's own host code. Modelled is what the
GPU does: "alone" is one call behind the fill that the evaluator writes before each, with the two events around it, as
all single calls are modelled; "in a row" is the second of two calls on two inputs, from the end of the first, with a
clean L2, since the fill touches but the first of many calls. What the host does between launches, and copies that torch
makes, are left out. Nothing of the two checkouts is kept in this repository. No figure of the profile was fitted to
these times, but two choices were kept because of guaguabear's: that blocks where lanes part cost nothing, and
`tensor.copy_cycles`.
Figures: https://github.com/teelaitila/nvfp4_gpumode (fp4_gemm/benchmarks.md, dual_gemm/benchmarks.md,
group_gemm/worklog.md; head of dual_gemm/others/guag.py).
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Published:
    """A submission of a problem on one size: microseconds on a B200, of calls "in a row" or "alone"."""

    name: str
    checkout: int  # 0: reference-kernels, 1: nvfp4_gpumode
    path: str
    problem: str
    sizes: dict
    us: float
    calls: str


def _points() -> list[Published]:
    def sizes(m, n, k):
        return {"m": m, "n": n, "k": k, "l": 1}

    points = []
    for size, us in (((128, 7168, 2048), 36.9), ((128, 4096, 7168), 51.6), ((128, 7168, 16384), 96.5)):
        path = f"{PROBLEMS}/nvfp4_gemm/submission.py"
        points.append(Published("GEMM, the task's template", 0, path, "nvfp4_gemm", sizes(*size), us, "alone"))
    dual = [(256, 4096, 7168), (512, 4096, 7168), (256, 3072, 4096), (512, 3072, 7168)]
    for size, us in zip(dual, (12.4, 15.3, 10.0, 14.4), strict=True):
        path = "dual_gemm/others/guag.py"
        points.append(Published("dual GEMM, guaguabear", 1, path, "nvfp4_dual_gemm", sizes(*size), us, "in a row"))
    for size, us in zip(dual, (73.7, 74.0, 62.8, 79.3), strict=True):
        path = f"{PROBLEMS}/nvfp4_dual_gemm/submission.py"
        name = "dual GEMM, the task's template"
        points.append(Published(name, 0, path, "nvfp4_dual_gemm", sizes(*size), us, "alone"))
    return points


def protocol(calls: str) -> tuple[Profile, int]:
    """Return the profile of points whose calls were timed so, with what a fill has left in the L2, and how many run."""
    profile = load("b200")
    return (profile, 1) if calls == "alone" else (profile.with_({"l2.dirty_at_start": 0.0}), 2)


def child(problem: str, submission: str, sizes: dict, calls: str) -> None:
    """Prints the ends of the modelled calls, in microseconds, as JSON; runs in a process of its own."""
    import emulated_gpu
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
    with emulated_gpu.timing(profile) as timed:
        for each in inputs:
            module.custom_kernel(each)
            ends.append(len(emulated_gpu.DEVICE.session.recorded))
    print(json.dumps([timed.ends_us[n - 1] for n in ends]))


def model(point: Published, checkouts: list[Path], events_us: float) -> float:
    """Microseconds of a point's call that the model predicts. events_us: of the two events around it."""
    folder, submission = checkouts[0] / PROBLEMS / point.problem, checkouts[point.checkout] / point.path
    request = [str(folder), str(submission), json.dumps(point.sizes), point.calls]
    command = [sys.executable, "-W", "ignore", "-m", "silicon.whole_kernels.published", "--child", *request]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{point.name} {point.sizes}: {done.stderr.strip().splitlines()[-1]}")
    first, *second = json.loads(done.stdout.splitlines()[-1])
    return second[0] - first if second else first + events_us


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path, help="of reference-kernels and nvfp4_gpumode")
    parser.add_argument("--only", default="", help="points whose name contains this")
    options = parser.parse_args()
    checkouts = [c.resolve() for c in options.checkouts]
    for p in _points():
        if options.only in p.name:
            us = model(p, checkouts, load("b200")["launch"]["events_ns"] / 1e3)
            size = ", ".join(str(p.sizes[d]) for d in "mnk")
            print(f"| {p.name} | {size} | {p.calls} | {p.us} | {us:.2f} | {us / p.us - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5])
    else:
        main()
