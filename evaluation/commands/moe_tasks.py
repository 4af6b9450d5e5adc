"""Does `eval.py COMMAND --task fp8_grouped_gemm|fp8_moe`: the checks and the timings of ragged_moe/, which is no
submission.

| task | test | benchmark on a GPU |
|---|---|---|
| fp8_grouped_gemm | ragged_moe check gemm | ragged_moe bench gemm |
| fp8_moe, the DeepSeek-V3 layer | ragged_moe check layer | ragged_moe bench layer |
| nvfp4_grouped_gemm, nvfp4_moe (ragged_moe.experts), on a B200 (W4A4) | only modelled, by `benchmark`, `profile` | |
| mxfp4_grouped_gemm, mxfp4_moe (ragged_moe.experts), on a B200 (W4A8) | likewise | |
| w4a16_grouped_gemm, w4a16_moe (ragged_moe.experts), on a B200 (NVFP4 by bf16) | likewise | |

Without a GPU `benchmark` models times, as `profile` and `sweep` always do: the kernels run on the emulator's timing
model in a process of their own for each case (ragged_moe.measure.modelled), the tensor cores compute nothing unless a
kernel awaits values, and nothing is checked but by `test`, and by `sweep` for what it ranks. Calls are back to back, on
sets of inputs in turn that together do not fit L2.
"""

import dataclasses
import hashlib
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

import emulated_gpu
from emulated_gpu.model import report, uncertainty
from emulated_gpu.model.profile import load
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.trace import Trace
from emulated_gpu.serve.mended import Mended
from evaluation import ROOT
from evaluation.commands import model_process
from evaluation.commands import profile as profiling
from evaluation.commands import sweep as sweeping
from evaluation.commands.show import Screen
from evaluation.judge import configs, modelled
from task import TestCase, parse_case

# Of each task: what checks it, and what times it
TASKS = {
    "fp8_grouped_gemm": (("check", "gemm"), ("bench", "gemm")),
    "fp8_moe": (("check", "layer"), ("bench", "layer")),
}
# Tasks that have modelled times alone
MODELLED = tuple(f"{of}_{what}" for of in ("nvfp4", "mxfp4", "w4a16") for what in ("grouped_gemm", "moe"))
# Likewise, on all GPUs of a machine, a process each; only rented ones, not a task of eval.py
ON_ALL_GPUS = {"moe_parallel": (("check", "parallel"), ("bench", "parallel"))}
# Back to back; a call of the layer takes minutes to simulate
CALLS = {task: 3 if task.endswith("_moe") else 15 for task in (*TASKS, *MODELLED)}
# Cases of a run that names none: minutes
SHORT = {task: (0,) if task.endswith("_moe") else (1, 9, 11) for task in CALLS}
CHECKED = "ragged", "cut into many parts", "shares, then whole tiles"  # ragged_moe check gemm: for swept configs
PEAK_TFLOPS = 148 * 8192 * 2 * 1.85e-3  # profile b200: FP8, dense; e2m1 twice that
NOTE = "No value was checked; what is right is what `test` checks."


# ---- cases


def cases(task: str, case: int | None, spec: tuple[str, ...]) -> list[tuple[int, TestCase]]:
    """Lists (number, case): those of --spec, or the numbered one, or a few. Raises ValueError.

    The grouped GEMMs have the rows of ragged_moe bench gemm; `m: [64, 0, 5]; n: 4096; k: 7168`, m of each
    expert, is any other. The layers have the T of ragged_moe bench layer; `t: 2048` is any other.
    """
    if spec:
        return [(number, valid(task, parse_case(line))) for number, line in enumerate(spec)]
    known = [TestCase(spec, parse_case(spec).args) for spec in specs(task)]
    if case is not None and case >= len(known):
        raise ValueError(f"there is no case {case}: the last is {len(known) - 1}")
    return [(number, known[number]) for number in (SHORT[task] if case is None else (case,))]


def specs(task: str) -> list[str]:
    if task.endswith("_moe"):
        from ragged_moe.measure.layer import TOKENS

        return [f"t: {tokens}" for tokens in TOKENS]
    from ragged_moe.measure.rows import fp8_rows

    return [f"m: {[*row.ms]}; n: {row.n}; k: {row.k}" for row in fp8_rows()]


def valid(task: str, case: TestCase) -> TestCase:
    """Returns the case, if it is one of the task's. Raises ValueError."""
    args = case.args
    if task.endswith("_moe"):
        if set(args) != {"t"} or not isinstance(args["t"], int) or not 1 <= args["t"] <= 16384:
            raise ValueError(f"'{case.spec}': expected t, from 1 to 16384")
        return case
    if set(args) != {"m", "n", "k"} or not isinstance(args["m"], tuple):
        raise ValueError(f"'{case.spec}': expected m, a list, n and k, got {', '.join(sorted(args))}")
    if not sum(args["m"]) or min(args["m"]) < 0:
        raise ValueError(f"'{case.spec}': m is of each expert, none negative, not all 0")
    for name in "nk":
        if not isinstance(args[name], int) or args[name] < 128 or args[name] % 128:
            raise ValueError(f"'{case.spec}': {name} is a multiple of 128")
    return case


def shapes(args: dict) -> str:
    """Names a case: `8 x 64, n 4096, k 7168`, `8 experts, 512 rows, n ..` or `T 2048`."""
    if "t" in args:
        return f"T {args['t']}"
    m = args["m"]
    of_experts = f"{len(m)} x {m[0]}" if len(set(m)) == 1 else f"{len(m)} experts, {sum(m)} rows"
    return f"{of_experts}, n {args['n']}, k {args['k']}"


def floors(args: dict, task: str = "fp8_grouped_gemm") -> dict[str, float]:
    """Computes the microseconds that moving each byte once, and multiplying, take at the profile's rates."""
    m, n, k = args["m"], args["n"], args["k"]
    bf16 = task in MODELLED  # are the tokens of e2m1 weights
    of = task.partition("_")[0]
    of_weight = {"nvfp4": 4.5 / 8, "mxfp4": 4.25 / 8, "w4a16": 4.5 / 8}.get(of, 1)
    bytes_ = sum(size > 0 for size in m) * n * k * of_weight + sum(m) * (k * (1 + bf16) + 2 * n)
    peak = PEAK_TFLOPS * {"nvfp4": 2, "w4a16": 0.5}.get(of, 1)
    return {"bytes": bytes_ / load("b200")["hbm"]["read_tb_s"] / 1e6, "MMA": flop(args) / peak / 1e6}


def flop(args: dict) -> int:
    return 2 * sum(args["m"]) * args["n"] * args["k"]


# ---- in the child process


@dataclasses.dataclass
class Request:
    """Says what to time."""

    task: str
    args: dict  # m of each expert, n, k; or t
    profile: str = "b200"
    calls: int = 15
    change: dict = dataclasses.field(default_factory=dict)  # entries of the config
    check: bool = False  # first that the config is right, on small cases
    extrapolate: bool = True
    timeline: str | None = None  # where to write one
    memory: float = 12.0  # GiB of private memory
    until: float = math.inf  # time.monotonic() when it is killed

    reads, floor = 0.0, "nothing is known of its time"

    @property
    def size(self) -> float:
        """Estimates how long it takes, in any unit."""
        return self.args["t"] * 1e12 if "t" in self.args else flop(self.args)


def serve(request: Request, show=None) -> dict:
    """Times a request: the reply. Runs in a process of its own."""
    emulated_gpu.install(request.profile)
    from ragged_moe.measure import modelled as launches

    def changed(config):
        config = configs.changed(config, request.change)
        if request.check:
            check_config(config)
        return config

    trace = Trace() if request.timeline else None
    kind = request.task.partition("_")[0]
    calls, each, more, stages, polled = launches.of_problem(kind, request.args, request.calls, changed)
    ends = [each * (i + 1) for i in range(len(calls))]
    steady = Steady(ends)
    enough = steady if request.extrapolate else None
    with emulated_gpu.timing(request.profile, trace, enough, polled, Mended().around) as timed:
        for call in calls:
            call()
    reply = model_process.timed_reply(request, timed, steady, trace, ends)
    if stages:
        last = len(steady.ends) * each
        us = [report.of_launch(launch)["us"] for launch in timed.run.launches[last - each : last]]
        more["stages_us"] = dict(zip(stages, us))
    return reply | more


def check_config(config) -> None:
    """Raises configs.Unusable unless the kernel is right under this config, with all checks of the emulator."""
    from ragged_moe.checks import grouped_gemm as check

    for name in CHECKED:
        error = check.error_of(check.CASES[name], config)
        if not error <= check.BOUND:
            raise configs.Unusable(f"wrong results on '{name}': error {error:.3g}, allowed {check.BOUND:.3g}")


# ---- in the evaluator's process


def test(task: str, device: str, schedules: int) -> int:
    """Runs the task's checks; the exit code. Raises ValueError.

    On the GPU of this machine (device "cuda", or "auto" if there is one), else on an emulated H200 and an emulated
    B200, in a process of its own each.
    """
    if task in MODELLED:
        of = task.partition("_")[0]
        checks = {"nvfp4": "w4a4", "mxfp4": "w4a8"}.get(of, of)
        by = f"python -m ragged_moe check gemm --format {of} and by tests/ragged_moe/{checks}_checks.py"
        raise ValueError(f"{task} is tested by {by}")
    check, _ = TASKS[task]
    where = [["--emulated", "h200"], ["--emulated", "b200"]] if is_emulated(device) else [[]]
    command = [sys.executable, "-m", "ragged_moe", *check, "--schedules", str(schedules)]
    commands = [[*command, *option] for option in where]
    return max([subprocess.call(command) != 0 for command in commands])


def benchmark(
    task: str, device: str, case: int | None, spec: tuple[str, ...], json_file: str | None, jobs: int, timeout: float,
    memory: float,
) -> int:  # fmt: skip
    """Times cases on the GPU of this machine, or models a few where there is none; the exit code. Raises ValueError.

    timeout: seconds for a call. memory: GiB of a process that models.
    """
    if is_emulated(device):
        return model(task, cases(task, case, spec), json_file, jobs, timeout, memory)
    if spec:
        raise ValueError("--spec is for modelled times: on a GPU --case numbers the rows that there are")
    if task in MODELLED:
        raise ValueError(f"{task} is modelled alone: --device emulated")
    _, bench = TASKS[task]
    ((_, one),) = cases(task, case, ()) if case is not None else ((0, None),)
    only = [] if one is None else ["--tokens", str(one.args["t"])] if "t" in one.args else ["--rows", str(case)]
    written = ["--json", json_file] if json_file else []
    return subprocess.call([sys.executable, "-m", "ragged_moe", *bench, *only, *written])


def is_emulated(device: str) -> bool:
    """Whether --device asks for an emulated GPU, or there is no other. Raises ValueError if it asks for another."""
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError("--device cuda: there is no CUDA GPU")
    return device == "emulated" or not found


def replies_to(screen: Screen, what: str, requests: list[Request], jobs: int, timeout: float) -> list[dict]:
    """Asks for a reply to each request, with a progress bar called `what`. timeout: seconds for each."""
    with screen.progress(what, [request.size for request in requests], workers=None) as advance:
        return model_process.ask_all(requests, jobs, timeout, lambda index, reply: advance(index))


def model(task: str, chosen: list, json_file: str | None, jobs: int, timeout: float, memory: float) -> int:
    """Models the times of these (number, case); the exit code."""
    screen = Screen()
    requests = [Request(task, case.args, calls=CALLS[task], memory=memory) for _, case in chosen]
    replies = replies_to(screen, f"modelling {task}", requests, jobs, timeout * CALLS[task])
    show(screen, task, chosen, replies)
    if json_file:
        rows = [{"case": number, "spec": case.spec} | reply for (number, case), reply in zip(chosen, replies)]
        Path(json_file).write_text(json.dumps(result("benchmark", task, rows, replies), indent=1) + "\n")
    return int(any("error" in reply for reply in replies))


def result(command: str, task: str, rows: list[dict], replies: list[dict]) -> dict:
    """Makes what --json writes."""
    good = [reply for reply in replies if "error" not in reply]
    kind = {"kind": "modelled", "label": modelled.label(good)} if good else {"kind": "none"}
    return {"command": command, "task": task, "cases": rows} | kind


def show(screen: Screen, task: str, chosen: list, replies: list[dict]) -> None:
    """Shows times, floors and rates, or why there is no time."""
    rows, columns = [], []
    for (number, case), reply in zip(chosen, replies):
        if "error" in reply:
            screen.line((f"case {number} not timed", "red"), f": {reply['error']}")
            continue
        us = reply["us_corrected"]
        row = [str(number), shapes(case.args), f"{us:.2f}", uncertainty.written(reply["us_interval"])]
        row.append(f"{reply['simulated']} of {reply['calls']}")
        if "t" in case.args:
            row += [f"{x:.1f}" for x in reply["stages_us"].values()]
            columns = [*reply["stages_us"]]
        else:
            of = floors(case.args, task)
            row += [f"{flop(case.args) / us / 1e6:.0f}", *(f"{x:.2f}" for x in of.values())]
            row.append(f"{100 * max(of.values()) / us:.0f}")
            columns = ["TFLOPS", *(f"{name} floor" for name in of), "% of the higher"]
        rows.append(row)
    good = [reply for reply in replies if "error" not in reply]
    if good:
        title = f"us per call, {modelled.label(good)}"
        screen.table(["case", "<", "us", "it may be", "calls simulated", *columns], rows, title)
        for (number, _), reply in zip(chosen, replies):
            if reply.get("unlike"):
                screen.line((f"case {number}", "yellow"), f": {reply['unlike']}")
        screen.line(uncertainty.BASIS)
        screen.line(NOTE)


def profile(
    task: str, case: int | None, spec: tuple[str, ...], profile: str, calls: int, out: str, jobs: int, timeout: float,
    json_file: str | None,
) -> int:  # fmt: skip
    """Shows where the modelled time of cases goes, and writes a timeline of each below `out`; the exit code.

    profile: the modelled machine. timeout: seconds for a case. Raises ValueError.
    """
    chosen = cases(task, case, spec)
    screen = Screen()
    folders = [str(Path(out).absolute() / f"{task}{number}") for number, _ in chosen]
    requests = [
        Request(task, case.args, profile, calls, extrapolate=False, timeline=folder)
        for (_, case), folder in zip(chosen, folders)
    ]
    replies = replies_to(screen, "modelling profiles", requests, jobs, timeout)
    for (number, of_case), reply, folder in zip(chosen, replies, folders):
        if "error" not in reply:
            profiling.show(screen, f"case {number}: {shapes(of_case.args)}", reply, folder, page=None)
    show(screen, task, chosen, replies)
    if json_file:
        rows = [{"case": number, "spec": case.spec} | reply for (number, case), reply in zip(chosen, replies)]
        Path(json_file).write_text(json.dumps(result("profile", task, rows, replies), indent=1) + "\n")
    return int(any("error" in reply for reply in replies))


def sweep(
    task: str, case: int | None, spec: tuple[str, ...], configs: tuple[str, ...], grid: str | None, results: str,
    resume: bool, profile: str, jobs: int, timeout: float, memory: float, json_file: str | None,
) -> int:  # fmt: skip
    """Times cases under each change of their configs and ranks them; the exit code. Raises ValueError, and OSError of
    the file `results`.

    What is ranked gave right results on small cases, with all checks of the emulator. A result is added to the file as
    it comes, under a key of all that it depends on.
    """
    changes, chosen, file = sweeping.changes(configs, grid), cases(task, case, spec), Path(results)
    if task != "fp8_grouped_gemm":
        raise ValueError(f"sweep does not know {task}: its stages have tables of their own")
    screen, known = Screen(), sweeping.kept(file) if resume else {}
    rows = [[sweeping.Outcome(case.spec, change, None, None, reason="") for _, case in chosen] for change in changes]
    places = [(i, j) for i in range(len(changes)) for j in range(len(chosen))]
    requests = [
        Request(task, chosen[j][1].args, profile, CALLS[task], changes[i], check=True, memory=memory) for i, j in places
    ]
    keys = [key(request) for request in requests]
    todo = [place for place in range(len(places)) if keys[place] not in known]
    file.parent.mkdir(parents=True, exist_ok=True)

    def done(index: int, reply: dict) -> None:
        place = todo[index]
        known[keys[place]] = row = {"us": reply.get("us"), "us_interval": reply.get("us_interval"), "modelled": reply}
        with file.open("a") as out:
            out.write("\n" + json.dumps({"key": keys[place]} | row))
        advance(index)

    with screen.progress("sweep", [requests[place].size for place in todo], "run", None) as advance:
        model_process.ask_all([requests[place] for place in todo], jobs, timeout, done)
    for (i, j), of in zip(places, keys):
        outcome, reply = rows[i][j], known[of]["modelled"]
        outcome.config = outcome.line = reply.get("config")
        outcome.status, outcome.reason = ("fail", reply["error"]) if "error" in reply else ("pass", "")
        if "error" not in reply:
            outcome.us, outcome.us_interval, outcome.modelled = reply["us"], reply["us_interval"], reply
    sweeping.show(screen, rows, [number for number, _ in chosen])
    if json_file:
        outcomes = [dataclasses.asdict(outcome) for row in rows for outcome in row]
        replies = [outcome.modelled for row in rows for outcome in row if outcome.modelled]
        Path(json_file).write_text(json.dumps(result("sweep", task, outcomes, replies), indent=1) + "\n")
    return 0 if all(sweeping.mean(row) for row in rows) else 1


def key(request: Request) -> str:
    """Digests all that a result depends on."""
    found = hashlib.sha256(json.dumps([sweeping.code_digest(), dataclasses.asdict(request)]).encode())
    for path in sorted((ROOT / "ragged_moe").rglob("*.py")):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


COMMANDS = {"test": test, "benchmark": benchmark, "profile": profile, "sweep": sweep}  # arguments: options they take


if __name__ == "__main__":
    own = importlib.import_module("evaluation.commands.moe_tasks")  # under its own name, which pickles know
    model_process.child(own.Request, own.serve)
