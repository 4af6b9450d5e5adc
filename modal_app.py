"""Checks, times, profiles and calibrates on a B200 rented from Modal (https://modal.com), billed by the second.

    modal run modal_app.py                                   # the ten tests
    modal run modal_app.py --mode benchmark --submission FILE --json out.json
    modal run modal_app.py --mode sweep --grid "stages=3,4 store_boxes=1,2"
    modal run modal_app.py --mode benchmark --task nvfp4_dual_gemm
    modal run modal_app.py --mode benchmark --task fp8_moe   # also fp8_grouped_gemm; and --mode test; and --gpu H200
    modal run modal_app.py --mode benchmark --task moe_parallel --gpu H100:2
    modal run modal_app.py --script FILE                     # a script of your own: its kernels, measured and modelled

Modes: test and benchmark as `python eval.py` has them, leaderboard as the bot does it, profile (Nsight Compute or
torch.profiler), sweep (one config per container), calibrate (a patch for the timing model's figures), script (the
kernels of --script FILE, which imports nothing of yours; it is modelled here first, so that what fails rents nothing).
The functions are those of `evaluation.gpu.runs`, on the grader's image. Every run is a row of worklog/results.jsonl;
files go to worklog/runs. `python modal_app.py` takes the same options and says in one sentence why Modal cannot be
reached.
"""

import ast
import contextlib
import dataclasses
import hashlib
import itertools
import json as json_format
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import modal

ROOT = Path(__file__).resolve().parent
REMOTE = "/opt/group-gemm"
SOURCES = (
    "emulated_gpu", "evaluation", "ragged_moe", "silicon",
    "eval.py", "reference.py", "task.py", "utils.py", "submission.py",
)  # fmt: skip
TIMEOUT_S = 1800
CONTAINERS = 8  # B200s that a sweep rents at once
ALONE = {"sharers": 1, "token_sharers": 1, "wide_token_box": 128}  # pairs that share nothing take any other value
# Listed by --help; evaluation.gpu.runs and reference.py have them, too, and take seconds to import.
Mode = Literal["test", "benchmark", "leaderboard", "profile", "sweep", "calibrate", "script"]
# "": that of the submission's header; those of FP8 are the kernels in ragged_moe/, whatever the submission is
TaskName = Literal["", "nvfp4_group_gemm", "nvfp4_dual_gemm", "fp8_grouped_gemm", "fp8_moe", "moe_parallel"]

# The grader's: https://github.com/gpu-mode/kernelbot/blob/4bdd839a/src/runners/modal_runner.py
image = (
    modal.Image.from_registry("nvidia/cuda:13.3.0-devel-ubuntu24.04", add_python="3.13")
    .run_commands("ln -sf $(which python) /usr/local/bin/python3")
    .entrypoint([])
    .uv_pip_install("numpy~=2.3", "nvidia-cutlass-dsl==4.5.2", "cuda-core[cu13]", "cuda-python[all]==13.0")
    .uv_pip_install("click>=8.1", "rich>=13", "threadpoolctl>=3.2")
    .uv_pip_install("torch==2.12.0")  # last: its CUDA libraries win
    .env({"PYTHONPATH": REMOTE, "PYTHONUNBUFFERED": "1"})
    .workdir(REMOTE)
)
if modal.is_local():  # in the container this file is alone
    for source in SOURCES:
        if (ROOT / source).is_dir():
            image = image.add_local_dir(ROOT / source, f"{REMOTE}/{source}", ignore=["**/__pycache__"])
        else:
            image = image.add_local_file(ROOT / source, f"{REMOTE}/{source}")
app = modal.App("nvfp4-group-gemm")


@app.function(image=image, gpu="B200", timeout=TIMEOUT_S, max_containers=CONTAINERS)
def rented(request: dict) -> tuple[dict, dict[str, bytes]]:
    from evaluation.gpu.runs import do_request

    return do_request(request)


def literal(text: str):
    """`4`, `true`, `tma` as Python values."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval({"true": "True", "false": "False"}.get(text.lower(), text))
    return text


def sweep_configs(grid: str = "") -> list[dict]:
    """No change, and all points of `grid`; without one every change of a single field that Config accepts.

    Sharers go their own ways where they must for it.
    """
    if grid:
        from emulated_gpu.grid import parse_grid

        try:
            points = parse_grid(grid)
        except ValueError as error:
            raise SystemExit(str(error)) from None
        return [{}] + [{name: literal(value) for name, value in point.items()} for point in points]
    import submission

    values = {
        "sharers": (1,),
        "token_sharers": (1,),
        "gran": (32, 128),
        "token_box": (16, 32, 64),
        "stages": (3, 4, 5),
        "store_boxes": (1, 2),
        "epilogue_warps": (4, 8),
        "weight_policy": tuple(submission.CACHE_POLICY),
        "token_policy": tuple(submission.CACHE_POLICY),
        "store_policy": tuple(submission.CACHE_POLICY),
        "pdl": (False, True),
        "prefetch": (0, 2, 4, 8),
    }
    tables = submission.CONFIG_MAP, submission.DUAL_CONFIG_MAP
    bases, configs = [first for table in tables for first, *_ in table.values()], [{}]
    for field, value in ((name, value) for name in values for value in values[name]):
        for change in ({field: value}, {field: value} | ALONE):
            try:
                changed = [dataclasses.replace(base, **change) for base in bases]
            except AssertionError:
                continue
            if changed != bases:
                configs.append(change)
            break
    return configs


def commit() -> str:
    """Commit of the checkout, with + if files that are rented with it differ."""
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", *SOURCES], capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def requests(mode: str, submission: str, task: str, device: str, grid: str = "") -> list[dict]:
    """Return the runs of a mode; task "": that of its header. SystemExit with a sentence if there are none."""
    from evaluation.gpu.runs import MODES, MOE_MODES, MOE_TASKS, specs
    from evaluation.upload.check import task_of_file
    from reference import TASKS
    from task import read_task_yaml

    if mode not in MODES:
        raise SystemExit(f"unknown mode '{mode}': there are {', '.join(MODES)}")
    if mode == "script":
        raise SystemExit("mode script needs --script FILE")
    if task and task not in (*TASKS, *MOE_TASKS):
        raise SystemExit(f"unknown task '{task}': there are {', '.join((*TASKS, *MOE_TASKS))}")
    if task in MOE_TASKS:
        if mode not in MOE_MODES:
            raise SystemExit(f"--task {task} has no mode '{mode}': there are {', '.join(MOE_MODES)}")
        return [{"mode": mode, "task": task, "submission": "", "name": "ragged_moe", "device": device, "config": None}]
    try:
        text = Path(submission).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"cannot read the submission: {error}") from None
    chosen = TASKS[task] if task else task_of_file(Path(submission))
    cases = (ROOT / chosen.file).read_text()
    sections = {name: specs(read_task_yaml(cases, name)) for name in ("tests", "benchmarks")}
    request = {"mode": mode, "task": chosen.name, "submission": text, "name": Path(submission).name}
    request |= {"device": device, **sections}
    return [{**request, "config": config} for config in sweep_configs(grid)] if mode == "sweep" else [request]


def script_request(script: str, gpu: str) -> dict:
    """What to run for --script, with its modelled times. Raises SystemExit where it cannot be modelled."""
    from emulated_gpu.serve.variants import Variant, Wanted

    if not Path(script).is_file():
        raise SystemExit(f"there is no script {script}")
    machine = "h200" if gpu.startswith("H") else "b200"
    one = Variant("model", [script])
    one.profile(Wanted(machine), page=False)
    if one.report is None:
        raise SystemExit(f"{script} cannot be modelled, so nothing is rented: {one.why}")
    modelled = {}  # by the name of the function, which the card's names have in them
    for kernel in one.report["kernels"]:
        modelled.setdefault(kernel["title"], kernel["us"])
    request = {"mode": "script", "task": "", "submission": Path(script).read_text(), "name": Path(script).name}
    return request | {"device": "cuda", "config": None, "modelled": modelled}


def drive(wanted: list[dict], answers: Callable, results: Path, json_file: str = "") -> int:
    """Sends the requests, appends a row per answer to `results` as it comes, keeps files; returns the exit code.

    `answers(wanted)` yields (row, files) or the exception that ended a container, in the order of the requests.
    """
    rows, at = [], commit()
    incoming = answers(wanted)
    for request in wanted:
        try:
            answer = next(incoming)
        except StopIteration:
            answer = RuntimeError("no answer")
        except Exception as error:  # the connection is gone: so are all further answers
            answer, incoming = error, itertools.repeat(error)
        if isinstance(answer, BaseException):
            digest = hashlib.sha256(request["submission"].encode()).hexdigest()
            answer = (
                {key: request.get(key) for key in ("mode", "config", "device")}
                | {"submission": request["name"], "sha256": digest, "kind": "none", "passed": False}
                | {"cases": [], "geomean_us": None, "error": f"container died: {type(answer).__name__}: {answer}"},
                {},
            )
        row, files = answer
        row = {**row, "commit": at, "files": sorted(files)}
        folder = results.parent / "runs" / f"{row.get('time', 'none').replace(':', '')}-{row['mode']}"
        for name, content in files.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            print(f"wrote {folder / name}")
        rows.append(row)
        with results.open("a") as file:
            file.write(json_format.dumps(row) + "\n")
        times = " ".join(f"{case['us']:.2f}" for case in row["cases"] if case.get("us"))
        mean = f", geomean {row['geomean_us']:.3f} us" if row["geomean_us"] else ""
        verdict = "passed" if row["passed"] else "FAILED"
        print(f"{row['mode']} {row['config'] or ''} {verdict} {times}{mean} {row.get('error', '')}".strip())
        for case in row["cases"]:
            if "modelled_us" in case:
                model = f"{case['modelled_us']:.2f} us" if case["modelled_us"] else "not"
                measured = f"{case['us']:.2f} us measured, of {case['launches']} launches"
                print(f"  {case['spec']}: {measured}; {model} modelled")
            if case["status"] != "pass":
                print(f"  {case['spec']}: {case['reason']}")
    if json_file:
        Path(json_file).write_text(json_format.dumps(rows, indent=1) + "\n")
    return 0 if all(row["passed"] for row in rows) else 1


def rent(gpu: str) -> Callable:
    """Answers from rented containers: one request waits for its answer, several fan out."""
    function = rented if gpu == "B200" else rented.with_options(gpu=gpu)
    return lambda wanted: iter(function.map(wanted, return_exceptions=True, wrap_returned_exceptions=False))


@app.local_entrypoint()
def main(
    mode: Mode = "test",
    submission: str = str(ROOT / "submission.py"),
    task: TaskName = "",
    gpu: str = "B200",
    json: str = "",
    grid: str = "",
    script: str = "",
):
    wanted = [script_request(script, gpu)] if script else requests(mode, submission, task, "cuda", grid)
    code = drive(wanted, rent(gpu), ROOT / "worklog" / "results.jsonl", json)
    if code:
        raise SystemExit(code)


def command_line() -> None:
    """`python modal_app.py`: main with one sentence for each way in which Modal cannot be reached."""
    import click

    def start(**options):
        if not options["script"]:  # mistakes cost no container
            requests(options["mode"], options["submission"], options["task"], "cuda", options["grid"])
        try:
            with modal.enable_output(), app.run():
                main(**options)
        except modal.exception.AuthError as error:
            raise SystemExit(f"Modal does not know you: run `modal setup` once ({error})") from None
        except modal.exception.ConnectionError as error:
            raise SystemExit(f"Modal cannot be reached, is there a network? ({error})") from None
        except modal.exception.Error as error:
            raise SystemExit(f"Modal: {type(error).__name__}: {error}") from None

    wanted = {
        "mode": ("test", click.Choice(get_args(Mode)), "What to do."),
        "submission": (str(ROOT / "submission.py"), str, "The file to run."),
        "task": ("", click.Choice(get_args(TaskName)), "Instead of the task that the submission's header names."),
        "gpu": ("B200", str, "Modal's name of the GPU to rent."),
        "json": ("", str, "A file for the rows, too."),
        "grid": ("", str, "sweep: 'A=1,2 B=3..5', all combinations."),
        "script": ("", str, "A script of your own instead of a submission: its kernels, measured and modelled."),
    }
    text = __doc__.replace("\n\n    modal", "\n\n\b\n    modal", 1)  # lines as they are
    options = [
        click.Option([f"--{name}"], default=default, show_default=True, type=kind, help=what)
        for name, (default, kind, what) in wanted.items()
    ]
    click.Command(
        "modal_app.py", params=options, callback=start, help=text, context_settings={"max_content_width": 120}
    )()


if __name__ == "__main__":
    sys.exit(command_line())
