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

Each point runs in a process of its own: the problem's own inputs and a submission's own host code, by the protocol of
the evaluator, which is calls on inputs of their own between two events, behind a fill that the host outlasts. How many
the history of reference-kernels says (`calls_on`): its task.yml and eval.py of the day on which a point was "timed",
today's without one; a point that is not "in a row" is one call. Calls are simulated until they repeat, SIMULATED at
most. What the host does between launches, and copies that torch makes, are left out. Nothing of the checkouts is kept
in this repository. No figure of the profile was fitted to these times, but those that silicon/whole_kernels/README.md
names, and a choice that was kept because of guaguabear's: that blocks where lanes part cost nothing.
Figures: https://github.com/teelaitila/nvfp4_gpumode (fp4_gemm/benchmarks.md, dual_gemm/benchmarks.md,
group_gemm/worklog.md; head of dual_gemm/others/guag.py), and the READMEs of the others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import posixpath
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from silicon import command

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = "problems/nvidia"
EVALUATOR = re.compile(r'"eval\.py", *"source": *"(.+?)"')  # of a task.yml: where its eval.py lies
ROW = re.compile(r"^ *num_iterations_per_benchmark = (\d+)", re.MULTILINE | re.IGNORECASE)  # of an eval.py with rows
SIMULATED = 8
TABLE = ROOT / "emulated_gpu" / "model" / "whole_kernels.json"
TASKS = "reference-kernels"  # the checkout that has the problems
FILES = {  # beginning of a kernel's name -> checkout, the submission's file in it ({}: the rest of the name), problem
    "GEMM, the task's template": (TASKS, f"{PROBLEMS}/nvfp4_gemm/submission.py", "nvfp4_gemm"),
    "dual GEMM, the task's template": (TASKS, f"{PROBLEMS}/nvfp4_dual_gemm/submission.py", "nvfp4_dual_gemm"),
    "dual GEMM, guaguabear": ("nvfp4_gpumode", "dual_gemm/others/guag.py", "nvfp4_dual_gemm"),
    "NaregAmirianMegan, ": ("NVFP4_Kernels", "nvfp4_grouped_gemm/{}.py", "nvfp4_group_gemm"),
    "nvfp4_gemm ": ("gpu-mode-kernels", "nvidia/nvfp4_gemm/submission_{}.py", "nvfp4_gemm"),
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

    def calls(self, tasks: Path) -> int:
        """How many calls lie between the two events that it was timed by. tasks: the checkout of the problems."""
        return calls_on(tasks, self.place[2], self.row.get("timed")) if self.row["in a row"] else 1

    @property
    def lot(self) -> bytes:
        """A key that draws points at random, and the same for ever."""
        return hashlib.sha256(f"{self.name} {self.sizes}".encode()).digest()


def calls_on(tasks: Path, problem: str, day: str | None = None) -> int:
    """Return how many calls a problem's evaluator timed in a row on a day, "2025-11-30", or does by now.

    tasks: a clone of reference-kernels, of which its history is read. Raises ValueError if it lacks the problem then.
    """
    folder, when = f"{PROBLEMS}/{problem}", f"{problem}, {day or 'today'}"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(tasks), *arguments], capture_output=True, text=True)
        if done.returncode or not done.stdout:
            raise ValueError(f"{when}: {done.stderr.strip() or 'nothing is known of it'}")
        return done.stdout

    commit = git("rev-list", "-1", "HEAD", *([f"--before={day}T23:59:59Z"] if day else [])).strip()
    if not (evaluator := EVALUATOR.search(git("show", f"{commit}:{folder}/task.yml"))):
        raise ValueError(f"{when}: its task.yml names no eval.py")
    row = ROW.search(git("show", f"{commit}:{posixpath.normpath(f'{folder}/{evaluator[1]}')}"))
    return int(row[1]) if row else 1


def _points() -> list[Published]:
    table = json.loads(TABLE.read_text())
    return [Published(row) for row in [*table["plain"], *table["strangers"]] if "m" in row]


def write_time(point: Published, us: float, made_of: dict[str, float]) -> None:
    """Puts a modelled time, and what it is made of, into the table, which has a line for each point."""
    lines = TABLE.read_text().splitlines()
    for number, line in enumerate(lines):
        text = line.strip().rstrip(",")
        if text.startswith('{"author"') and json.loads(text) == point.row:
            changed = json.dumps(point.row | {"modelled_us": round(us, 2), "made_of": made_of})
            lines[number] = line.replace(text, changed)
    TABLE.write_text("\n".join(lines) + "\n")


def copied(data):
    """Return the same inputs in tensors of their own."""
    if isinstance(data, (list, tuple)):
        return type(data)(map(copied, data))
    return data.clone() if hasattr(data, "clone") else data


def child(problem: str, submission: str, sizes: dict, calls: int) -> None:
    """Prints what the calls came to (`replied`), as JSON; runs in a process of its own."""
    import emulated_gpu
    from emulated_gpu.model.profile import load
    from emulated_gpu.model.run import TimedRun
    from emulated_gpu.model.steady import Steady
    from emulated_gpu.model.tally import tallied
    from emulated_gpu.model.time_of_call import replied
    from emulated_gpu.serve import run

    run.install()
    sys.path[:0] = [problem, str(Path(problem).parent)]
    import reference  # the problem's

    spec = importlib.util.spec_from_file_location("submission", submission)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    inputs = [reference.generate_input(**sizes, seed=1111)]
    while len(inputs) < min(calls, SIMULATED):
        inputs.append(copied(inputs[0]))
    with emulated_gpu.session() as session:
        session.recorded = []
        for each in inputs:
            module.custom_kernel(each)
        launches = len(session.recorded) // len(inputs)  # of a call
        steady = Steady([launches * (call + 1) for call in range(calls)])
        timed = TimedRun(load("b200"), emulated_gpu.DEVICE.memory, session.recorded, enough=steady)
        for launch in timed.launches:
            tallied(launch.launch)
        timed.run()
    found = replied(timed, steady, launches)
    print(json.dumps({name: found[name] for name in ("us", "made_of")}))


def model(point: Published, checkouts: dict[str, Path]) -> tuple[float, dict[str, float]]:
    """Microseconds of a point's call that the model predicts, and what they are made of."""
    checkout, path, problem = point.place
    places = [checkouts[TASKS] / PROBLEMS / problem, checkouts[checkout] / path]
    request = [*map(str, places), json.dumps(point.sizes), str(point.calls(checkouts[TASKS]))]
    command = [sys.executable, "-W", "ignore", "-m", "silicon.whole_kernels.published", "--child", *request]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{point.name} {point.sizes}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["us"], {name: round(share, 3) for name, share in found["made_of"].items()}


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("checkouts", nargs="+", type=command.existing, help=f"{TASKS} and others")
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
        us, shares = model(p, checkouts)
        size, error = ", ".join(str(p.row[d]) for d in "mnk"), f"{us / p.us - 1:+.0%}"
        calls = p.calls(checkouts[TASKS])
        print(f"| {p.name} | {size} | {calls} | {p.us} | {us:.2f} | {error} | {shares} |", flush=True)
        if options.write:
            write_time(p, us, shares)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
