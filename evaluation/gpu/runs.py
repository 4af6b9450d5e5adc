"""Does on the rented machine what `modal run modal_app.py` asks for, in plain functions that run here just as well.

A request is plain data: {"mode", "task", "submission": text, "name", "tests": [spec], "benchmarks": [spec], "device",
"config"}; the answer is (row, files): a row for worklog/results.jsonl and {name: bytes} to be kept beside it.
`python -m evaluation.gpu.runs` prints those rows as a table.
"""

import base64
import hashlib
import importlib.metadata
import json
import platform
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

import utils
from emulated_gpu.model.profile import load
from evaluation import ROOT, protocol
from evaluation.commands import moe_tasks
from evaluation.judge.judge import Options, geomean_us, judge
from evaluation.judge.statistics import geometric_mean
from silicon import calibrate
from task import TestCase, parse_case

MODES = ("test", "benchmark", "leaderboard", "profile", "sweep", "calibrate", "script")
MOE_MODES = ("test", "benchmark")  # of MOE_TASKS
MOE_TASKS = moe_tasks.TASKS | moe_tasks.ON_ALL_GPUS
IN_GRAPHS = "whole, in a graph", "one-sided, in a graph"  # our layers
TORCHRUN = "torch.distributed.run", "--nproc-per-node", "gpu", "-m"
PACKAGES = ("torch", "nvidia-cutlass-dsl", "cuda-python", "numpy")
SMI = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
NCU = "ncu --set full --nvtx --nvtx-include custom_kernel/ --import-source 1 -c 10 -f -o".split()  # as the bot


def nvidia_smi() -> dict[str, str]:
    """Asks the driver about the card, now; empty without one."""
    try:
        command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(SMI.split(","), (value.strip() for value in done.stdout.splitlines()[0].split(","))))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def with_config(submission: str, config: dict | None) -> str:
    """Replaces fields of all the submission's Configs, where there are several those of the first only, for a sweep."""
    if not config:
        return submission
    changed = submission
    for default, table in (("DEFAULT", "CONFIG_MAP"), ("DUAL_DEFAULT", "DUAL_CONFIG_MAP")):
        changed += (
            f"\n\n{default} = Config(**{{**vars({default}), **{config!r}}})\n"
            f"{table} = {{key: (Config(**{{**vars(first), **{config!r}}}),) for key, (first, *_) in {table}.items()}}\n"
        )
    return changed


def judged(request: dict, section: str) -> dict:
    """Judges a section, "tests" or "benchmarks", as `python eval.py test` and `benchmark` do."""
    cases = [parse_case(spec) for spec in request[section]]
    timed = section == "benchmarks" and request["device"] == "cuda"

    def show(index, verdict):
        us = f" {verdict.us:.2f} us" if verdict.us else ""
        print(f"case {index}: {verdict.status}{us} {verdict.reason}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "submission.py")
        path.write_text(with_config(request["submission"], request.get("config")))
        calls = 2 if section == "tests" else 1
        options = Options(str(path), request["device"], timed=timed, calls=calls, jobs=1)
        verdicts = judge(cases, options, on_verdict=show)
    rows = [
        {"spec": v.spec, "status": v.status, "reason": v.reason, "us": v.us, "err_us": v.times and v.times.err / 1e3}
        for v in verdicts
    ]
    return {"cases": rows, "passed": all(v.status == "pass" for v in verdicts), "geomean_us": geomean_us(verdicts)}


def ranked(request: dict) -> dict:
    """Does what the bot does for `--mode leaderboard`: import, tests, then the ranked benchmark with a secret seed."""
    with protocol.bot_folder(request["submission"]) as folder:
        steps = [
            (
                "import",
                lambda: protocol.call(folder, [sys.executable, "submission.py"], protocol.TIMEOUTS["compile"], 1),
            )
        ]
        steps += [("tests", lambda: protocol.evaluate(folder, "test", request["tests"]))]
        secret = secrets.randbits(31)
        steps += [("ranked", lambda: protocol.evaluate(folder, "leaderboard", request["benchmarks"], secret))]
        for name, step in steps:
            result, problem = step()
            if problem:
                return {"cases": [], "passed": False, "geomean_us": None, "error": f"{name}: {problem}"}
    rows = []
    for i, spec in enumerate(request["benchmarks"]):
        mean, err = (float(result[f"benchmark.{i}.{key}"]) / 1e3 for key in ("mean", "err"))
        rows.append({"spec": spec, "status": "pass", "reason": "", "us": mean, "err_us": err})
    return {"cases": rows, "passed": True, "geomean_us": geometric_mean(row["us"] for row in rows)}


def profiled(request: dict, files: dict[str, bytes]) -> dict:
    """Makes an Nsight Compute report per case; torch.profiler's table where the machine does not let ncu read
    counters."""
    outcome: dict = {"cases": [], "passed": True, "geomean_us": None}
    with protocol.bot_folder(request["submission"]) as folder:
        for i, spec in enumerate(request["benchmarks"]):
            row = {"spec": spec, "status": "pass", "reason": "", "us": None, "profiler": "ncu"}
            report, problem = folder / f"case{i}.ncu-rep", "there is no ncu"
            if shutil.which("ncu"):
                _, problem = protocol.evaluate(folder, "profile", [spec], prefix=[*NCU, str(report)], POPCORN_NCU="1")
                if not problem and not report.exists():
                    problem = "ncu wrote no report: this machine does not let it read the counters"
            if not problem:
                files[report.name] = report.read_bytes()
                for ending, form in ("txt", ["--print-details", "body"]), ("csv", ["--page", "details", "--csv"]):
                    details = subprocess.run(["ncu", "--import", str(report), *form], capture_output=True, timeout=120)
                    files[f"case{i}.ncu.{ending}"] = details.stdout
            else:
                result, failed = protocol.evaluate(folder, "profile", [spec])
                row |= {"profiler": "torch", "reason": f"no ncu: {problem}"}
                if failed:
                    row |= {"status": "fail", "reason": failed}
                    outcome["passed"] = False
                else:
                    text = result["benchmark.0.report"]
                    files[f"case{i}.torch.txt"] = base64.b64decode(text, b"+*")
            outcome["cases"].append(row)
    return outcome


def calibrated(request: dict, files: dict[str, bytes]) -> dict:
    """Probes the card: makes a profile patch, and says what it rests on."""
    profile = load("b200")
    device = calibrate.Gpu() if request["device"] == "cuda" else calibrate.Model(profile)
    result = calibrate.calibrate(device, profile, **({"figures": request["figures"]} if "figures" in request else {}))
    files["b200.patch.json"] = (json.dumps(result["patch"], indent=1) + "\n").encode()
    return {"cases": [], "passed": True, "geomean_us": None, "probes": result["probes"]}


def named(title: str, name: str) -> bool:
    """Tells whether a card's name of a kernel has what the model calls it: a function, or `Class.method`."""
    return all(word in name for word in title.split("."))


def of_script(request: dict, files: dict[str, bytes]) -> dict:
    """Runs somebody's own script, and measures its kernels, beside what request["modelled"], {name: us}, says of each.

    A case is a kernel: `us` is the median of its launches, `err_us` half of what the middle half of them spans.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, times = Path(folder, request["name"]), Path(folder, "times.json")
        script.write_text(request["submission"])
        command = [sys.executable, "-m", "evaluation.gpu.script_times", str(script), str(times)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        files[f"{script.stem}.txt"] = done.stdout
        launches = json.loads(times.read_text()) if times.exists() else []
    cases = []
    for name in dict.fromkeys(name for name, _ in launches):
        us = sorted(us for kernel, us in launches if kernel == name)
        spread = (us[(3 * len(us)) // 4] - us[len(us) // 4]) / 2
        model = next((us for words, us in request["modelled"].items() if named(words, name)), None)
        row = {"spec": name, "status": "pass", "reason": "", "us": statistics.median(us), "err_us": spread}
        cases.append(row | {"launches": len(us), "modelled_us": model})
    outcome: dict = {"cases": cases, "passed": done.returncode == 0 and bool(cases), "geomean_us": None}
    if not outcome["passed"]:
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        outcome["error"] = (lines or ["no output"])[-1] if done.returncode else "the script launched no kernel"
    return outcome


def of_moe(request: dict, files: dict[str, bytes]) -> dict:
    """Runs ragged_moe/'s own checks or bench, which are no submission; keeps their output, and the bench's rows."""
    checks, bench = MOE_TASKS[request["task"]]
    timed = request["mode"] == "benchmark"
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "rows.json")
        launcher = TORCHRUN if request["task"] in moe_tasks.ON_ALL_GPUS else ()
        words = [*bench, "--json", str(written)] if timed else checks
        command = [sys.executable, "-m", *launcher, "ragged_moe", *words]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        files[f"{request['task']}.txt"] = done.stdout
        print(done.stdout.decode(errors="replace"), flush=True)
        if timed and not done.returncode:
            files[f"{request['task']}.json"] = written.read_bytes()
    passed = done.returncode == 0
    lines = done.stdout.decode(errors="replace").split("\n")
    reason = "" if passed else next((x for x in reversed(lines) if x.strip()), f"exit code {done.returncode}")
    status, spec = "pass" if passed else "fail", bench if timed else checks
    cases: list[dict] = [{"spec": spec, "status": status, "reason": reason, "us": None, "err_us": None}]
    if timed and passed:
        cases = [
            {"spec": spec, "status": "pass", "reason": "", "us": us, "err_us": None}
            for spec, us in moe_times(json.loads(files[f"{request['task']}.json"])["rows"])
        ]
    mean = geometric_mean(case["us"] for case in cases) if timed and passed else None
    return {"cases": cases, "passed": passed, "geomean_us": mean}


def moe_times(rows: list[dict]) -> list[tuple[str, float]]:
    """Lists (case, microseconds a call) of what ragged_moe bench gemm, ragged_moe bench layer or
    ragged_moe bench parallel wrote; layers' are in CUDA graphs.
    """
    return [
        (f"t: {x['T']}", next(x["us"][name] for name in IN_GRAPHS if name in x["us"]))
        if "T" in x
        else (f"m: {x['m']}; n: {x['n']}; k: {x['k']}", x["us"]["this"])
        for x in rows
    ]


def do_request(request: dict) -> tuple[dict, dict[str, bytes]]:
    """Does what the request says. Raises nothing for what a submission or a machine may do: the row has the reason."""
    begin, before = time.monotonic(), nvidia_smi()
    files: dict[str, bytes] = {}
    row = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mode": request["mode"],
        "task": request["task"],
        "submission": request["name"],
        "sha256": hashlib.sha256(request["submission"].encode()).hexdigest(),
        "config": request.get("config"),
        "kind": "none",
        "device": request["device"],
        "card": before.get("name"),
        "versions": versions(),
    }
    found = before.get("name", "no GPU")
    outcome: dict = {"cases": [], "passed": False, "geomean_us": None}
    any_card = request["task"] in MOE_TASKS or request["mode"] == "script"
    there = torch.cuda.is_available() if any_card else utils.get_device().type == "cuda"
    if request["device"] == "cuda" and not there:
        outcome["error"] = f"a {'GPU' if any_card else 'B200'} is needed, this machine has {found}"
    else:
        try:
            mode = request["mode"]
            if request["task"] in MOE_TASKS:
                outcome = of_moe(request, files)
            elif mode == "script":
                outcome = of_script(request, files)
            elif mode == "test":
                outcome = judged(request, "tests")
            elif mode in ("benchmark", "sweep"):
                outcome = judged(request, "benchmarks")
            elif mode == "leaderboard":
                outcome = ranked(request)
            elif mode == "profile":
                outcome = profiled(request, files)
            else:
                outcome = calibrated(request, files)
        except Exception as error:
            outcome["error"] = f"{type(error).__name__}: {error}"
    if request["device"] == "cuda" and outcome["passed"] and request["mode"] != "test":
        row["kind"] = "measured"
    row |= outcome
    row["smi"] = {"before": before, "after": nvidia_smi()}
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row, files


def specs(cases: list[TestCase]) -> list[str]:
    return [case.spec for case in cases]


def table(rows: list[dict]) -> str:
    """Writes the rows in Markdown: microseconds per case, and what each run is worth (`measured` or not)."""
    lines = ["| time | commit | mode | card | config | cases, us | geomean, us | |", "|" + "---|" * 8]
    for row in rows:
        cases = " / ".join(f"{case['us']:.2f}" if case.get("us") else case["status"] for case in row["cases"])
        config = " ".join(f"{name}={value}" for name, value in (row["config"] or {}).items())
        mean = f"{row['geomean_us']:.3f}" if row["geomean_us"] else ""
        verdict = "failed" if not row["passed"] else "measured" if row["kind"] == "measured" else "passed"
        verdict += f": {row['error']}" if row.get("error") else ""
        cells = (row.get("time", "")[:16], row["commit"][:8], row["mode"], row.get("card") or row["device"])
        lines.append(f"| {' | '.join((*cells, config, cases, mean, verdict))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    results = ROOT / "worklog" / "results.jsonl"
    if not results.exists():
        sys.exit("worklog/results.jsonl does not exist: modal_app.py writes it, a row for each run on a B200")
    print(table([json.loads(line) for line in results.read_text().splitlines()]))
