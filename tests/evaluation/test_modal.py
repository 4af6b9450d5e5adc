"""modal_app.py as far as a machine without Modal can tell: image, requests, every function body, rows, failures."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import modal
import modal._image
import pytest
import torch

import modal_app
from emulated_gpu.model.profile import load
from emulated_gpu.serve.variants import Variant
from evaluation import protocol
from evaluation.gpu import runs, script_times
from reference import TASKS
from silicon import calibrate
from task import read_task_yaml
from tests import forked
from tests.thorough import all_but

ROOT = Path(modal_app.__file__).parent
SPEC = "m: [40]; n: [48]; k: [128]; g: 1; seed: 1111"
HONEST = """from reference import ref_kernel

def custom_kernel(data):
    return ref_kernel(data)
"""
WRONG = HONEST.replace("return ref", "data[0][0][2].zero_()\n    return [data[0][0][2]]\n    return ref")


def request(mode, submission=HONEST, device="emulated", **more):
    cases = {"tests": [SPEC], "benchmarks": [SPEC]}
    return {
        "mode": mode,
        "task": "nvfp4_group_gemm",
        "submission": submission,
        "name": "submission.py",
        "device": device,
        **cases,
        **more,
    }


def test_image_and_function(monkeypatch):
    """The layers that Modal would build, and what it would rent."""
    layers, mounts, make = [], [], modal._image._Image._from_args

    def record(*args, **kwargs):
        layers.append(kwargs.get("dockerfile_function"))
        return make(*args, **kwargs)

    def mounted(image, local, remote, **kwargs):
        mounts.append((Path(local).relative_to(ROOT).as_posix(), remote))
        return image

    monkeypatch.setattr(modal._image._Image, "_from_args", staticmethod(record))
    monkeypatch.setattr(modal.Image, "add_local_dir", mounted)
    monkeypatch.setattr(modal.Image, "add_local_file", mounted)
    spec = importlib.util.spec_from_file_location("fresh_modal_app", modal_app.__file__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    lines = [line for layer in layers if layer for line in layer("2025.06").commands]
    text = "\n".join(lines)
    assert "FROM nvidia/cuda:13.3.0-devel-ubuntu24.04" in lines
    for package in ("nvidia-cutlass-dsl==4.5.2", "'cuda-python[all]==13.0'", "numpy~=2.3", "torch==2.12.0"):
        assert package in text
    assert text.index("torch==") > text.index("cuda-python")  # its CUDA libraries win
    assert "ENV PYTHONPATH=/opt/group-gemm" in lines and "WORKDIR /opt/group-gemm" in lines
    assert dict(mounts) == {name: f"/opt/group-gemm/{name}" for name in modal_app.SOURCES}
    assert all((ROOT / name).exists() for name in modal_app.SOURCES)
    assert {*protocol.FILES, "emulated_gpu", "evaluation", "silicon"} <= set(modal_app.SOURCES)
    assert isinstance(fresh.rented, modal.Function) and fresh.rented._spec_.gpus == "B200"


def test_the_rented_function_is_the_local_one():
    """Through Modal's own wrapper, here, on the emulator: the same row as runs.do_request gives."""
    row, files = modal_app.rented.local(request("test"))
    assert row["passed"] and row["cases"][0] | {"err_us": 0} == {
        "spec": SPEC, "status": "pass", "reason": "", "us": None, "err_us": 0,
    }  # fmt: skip
    assert row["kind"] == "none" and row["geomean_us"] is None and not files
    assert row["versions"]["nvidia-cutlass-dsl"] == "4.5.2" and len(row["sha256"]) == 64
    json.dumps(row)


def test_a_wrong_result_fails_and_says_why():
    row, _ = runs.do_request(request("benchmark", WRONG))
    assert not row["passed"] and row["kind"] == "none" and "elements differ" in row["cases"][0]["reason"]


@pytest.mark.thorough
def test_leaderboard_has_no_times_without_a_b200(capfd):
    row, _ = runs.do_request(request("leaderboard"))
    assert not row["passed"] and row["kind"] == "none" and row["cases"] == []
    assert row["error"].startswith("ranked: times need a B200")
    assert "test.0.status: pass" in capfd.readouterr().out  # live


def test_leaderboard_stops_at_a_failed_test(monkeypatch):
    monkeypatch.setattr(protocol, "call", lambda *args, **kwargs: ({}, ""))
    monkeypatch.setattr(protocol, "evaluate", lambda folder, mode, *rest: ({}, f"{mode} went wrong"))
    row, _ = runs.do_request(request("leaderboard"))
    assert not row["passed"] and row["error"] == "tests: test went wrong"


def test_ranked_times_are_read_from_the_protocol(monkeypatch):
    result = {"check": "pass", "benchmark.0.mean": "4000.0", "benchmark.0.err": "10", "benchmark.1.mean": "9000.0"}
    result |= {"benchmark.1.err": "20"}
    monkeypatch.setattr(protocol, "call", lambda *args, **kwargs: ({}, ""))
    seeds = []

    def evaluate(folder, mode, specs, seed=None):
        seeds.append((mode, seed is not None))
        return result, ""

    monkeypatch.setattr(protocol, "evaluate", evaluate)
    outcome = runs.ranked(request("leaderboard") | {"benchmarks": [SPEC, SPEC]})
    assert [case["us"] for case in outcome["cases"]] == [4.0, 9.0] and outcome["geomean_us"] == pytest.approx(6.0)
    assert seeds == [("test", False), ("leaderboard", True)]


def test_profile_without_a_b200_fails_with_both_reasons():
    row, files = runs.do_request(request("profile"))
    (case,) = row["cases"]
    assert not row["passed"] and case["status"] == "fail" and not files
    assert "times need a B200" in case["reason"]


def test_profile_keeps_what_ncu_writes(monkeypatch, tmp_path):
    """With an `ncu` that writes a report, and one that may not read the counters."""
    fake = tmp_path / "ncu"
    fake.write_text('#!/bin/bash\nwhile [ "$1" != "-o" ]; do [ "$1" = --import ] && echo "$3" && exit; shift; done\n'
                    'echo report > "$2"; echo "check: pass" >&$POPCORN_FD\n')  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    row, files = runs.do_request(request("profile"))
    assert row["passed"] and row["cases"][0]["profiler"] == "ncu"
    texts = {"case0.ncu.txt": b"--print-details\n", "case0.ncu.csv": b"--page\n"}  # of a call each
    assert files == {"case0.ncu-rep": b"report\n"} | texts
    fake.write_text('#!/bin/bash\necho "check: pass" >&$POPCORN_FD\n')
    monkeypatch.setattr(protocol, "evaluate", torch_only(protocol.evaluate))
    row, files = runs.do_request(request("profile"))
    (case,) = row["cases"]
    assert case["profiler"] == "torch" and "does not let it read the counters" in case["reason"]
    assert row["passed"] and files == {"case0.torch.txt": b"a table"}


def torch_only(evaluate):
    def replaced(folder, mode, specs, prefix=(), **environment):
        if prefix:
            return evaluate(folder, mode, specs, prefix=prefix, **environment)
        return {"check": "pass", "benchmark.0.report": "YSB0YWJsZQ=="}, ""

    return replaced


def test_calibration_with_the_model_as_the_card_finds_the_profile():
    row, files = runs.do_request(request("calibrate", figures=("tensor.load_latency", "tma.first_use_cycles")))
    profile = load("b200")
    patch = json.loads(files["b200.patch.json"])
    expected = {"tensor.load_latency": profile["tensor"]["load_latency"]}
    expected["tma.first_use_cycles"] = profile["tma"]["first_use_cycles"]
    assert patch == pytest.approx(expected) and row["kind"] == "none"
    assert [probe["residual"] for probe in row["probes"]] == [0, 0]


TRUTHS = [{"tensor.m128": [50, 55, 60, 65, 70, 130]}]
TRUTHS += [{"tensor.latency_pair_m256": [0.6, 190], "launch.gap_ns": 900, "tma.first_use_cycles": 650}]


@pytest.mark.parametrize("truth", all_but(TRUTHS[1:], TRUTHS), ids=["a list", "others"])
def test_calibration_finds_the_figures_of_another_machine(truth):
    profile = load("b200")
    result = calibrate.calibrate(calibrate.Model(profile.with_(truth)), profile, tuple(truth), log=lambda line: None)
    for figure, value in truth.items():
        assert result["patch"][figure] == pytest.approx(value, rel=0.01), figure
    assert all(probe["residual"] < 0.01 for probe in result["probes"])


def test_a_figure_that_the_model_cannot_follow_is_rejected(monkeypatch):
    """A probe that the figure does not move, and one that the card refuses."""
    profile = load("b200")

    def refused(device, profile):
        if device is card:
            raise RuntimeError("cuLaunchKernelEx: CUDA_ERROR_INVALID_PTX")
        return 1.0

    card = calibrate.Model(profile)
    monkeypatch.setitem(calibrate.FIGURES, "tma.first_use_cycles", lambda device, p: 100.0 if device is card else 50.0)
    monkeypatch.setitem(calibrate.FIGURES, "launch.gap_ns", refused)
    result = calibrate.calibrate(card, profile, ("tma.first_use_cycles", "launch.gap_ns"), log=lambda line: None)
    assert result["patch"] == {}
    assert "50% away" in result["probes"][0]["rejected"] and "INVALID_PTX" in result["probes"][1]["rejected"]


def test_a_machine_without_a_b200_says_so():
    row, _ = runs.do_request(request("benchmark", device="cuda"))
    assert not row["passed"] and row["error"].startswith("a B200 is needed, this machine has ")


def test_a_submission_past_the_bot_s_limit_is_killed(monkeypatch):
    monkeypatch.setitem(protocol.TIMEOUTS, "compile", 1)
    row, _ = runs.do_request(request("leaderboard", "import time\ntime.sleep(60)\n"))
    assert row["error"] == "import: killed after 1 s, the bot's limit"


def test_sweep_changes_one_field_at_a_time():
    configs, alone = modal_app.sweep_configs(), modal_app.ALONE
    assert configs[0] == {} and all(len(config | alone) <= 1 + len(alone) for config in configs[1:])
    assert modal_app.sweep_configs("pdl=false stages=3,4") == [
        {}, {"pdl": False, "stages": 3}, {"pdl": False, "stages": 4},
    ]  # fmt: skip
    assert modal_app.sweep_configs("store_policy=evict_last")[1] == {"store_policy": "evict_last"}
    assert {"sharers": 1} in configs and {"prefetch": 0} in configs and len(configs) < 30
    assert {"gran": 32} | alone in configs  # without sharers, which share whole tiles
    text = (ROOT / "submission.py").read_text()
    module = {"__name__": "swept"}
    sys.modules["swept"] = type(sys)("swept")  # dataclasses look their module up
    exec(compile(runs.with_config(text, {"prefetch": 3}), "swept", "exec"), module)
    configs = [module["DEFAULT"], module["DUAL_DEFAULT"]]
    configs += [one for table in ("CONFIG_MAP", "DUAL_CONFIG_MAP") for (one,) in module[table].values()]
    assert {c.prefetch for c in configs} == {3}
    assert runs.with_config(text, {}) == text


def answers(*given):
    return lambda wanted: iter(given)


def test_rows_survive_the_death_of_a_container(tmp_path, capsys):
    good = runs.do_request(request("test", "raise ValueError('broken')"))[0] | {
        "passed": True,
        "geomean_us": 12.5,
        "mode": "sweep",
    }
    wanted = [request("sweep", config={"stages": n}) for n in range(4)]
    dead = modal.exception.FunctionTimeoutError("took too long")
    code = modal_app.drive(
        wanted,
        answers((good, {"a.txt": b"x"}), dead, (good, {})),
        tmp_path / "results.jsonl",
        str(tmp_path / "out.json"),
    )
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert code == 1 and [row["passed"] for row in rows] == [True, False, True, False]
    assert rows[1]["error"] == "container died: FunctionTimeoutError: took too long"
    assert rows[1]["config"] == {"stages": 1} and rows[3]["error"].endswith("no answer")
    assert json.loads((tmp_path / "out.json").read_text()) == rows
    assert {row["commit"][:40] for row in rows} == {rows[0]["commit"][:40]} and len(rows[0]["commit"]) in (40, 41)
    (kept,) = (tmp_path / "runs").glob("*/a.txt")
    assert kept.read_bytes() == b"x" and rows[0]["files"] == ["a.txt"]
    output = capsys.readouterr().out
    assert "geomean 12.500 us" in output and "FAILED  container died" in output and "ValueError: broken" in output


def test_rows_before_the_connection_went_are_kept(tmp_path):
    row = runs.do_request(request("test", device="cuda"))[0] | {"passed": True}

    def lost(wanted):
        yield row, {}
        raise modal.exception.ConnectionError("gone")

    code = modal_app.drive([request("test")] * 3, lost, tmp_path / "results.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert code == 1 and [r["passed"] for r in rows] == [True, False, False]
    assert all("ConnectionError: gone" in r["error"] for r in rows[1:])


def test_rows_make_a_table(tmp_path):
    """`python -m evaluation.gpu.runs` prints a line for a measured run, a failed one, and a dead container."""
    results = tmp_path / "worklog" / "results.jsonl"
    results.parent.mkdir()
    case = {"spec": SPEC, "status": "pass", "reason": "", "us": 12.345, "err_us": 0.1}
    row = {"time": "2026-01-02T03:04:05+00:00", "mode": "benchmark", "config": {"stages": 3}, "device": "cuda"}
    row |= {"card": "NVIDIA B200", "kind": "measured", "passed": True, "geomean_us": 8.5, "cases": [case] * 2}
    wrong = {**row, "mode": "test", "kind": "none", "passed": False, "geomean_us": None, "config": None}
    wrong["cases"] = [{**case, "us": None}, {**case, "status": "fail", "us": None, "reason": "5 elements differ"}]
    answers = [(row, {}), (wrong, {}), RuntimeError("gone")]
    modal_app.drive([request("benchmark")] * 3, lambda wanted: iter(answers), results)
    head, rule, *lines = runs.table([json.loads(line) for line in results.read_text().splitlines()]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(line) for line in cells} == {head.count("|") - 1} == {rule.count("---")}
    assert cells[0][0] == "2026-01-02T03:04" and cells[0][2:] == [
        "benchmark", "NVIDIA B200", "stages=3", "12.35 / 12.35", "8.500", "measured",
    ]  # fmt: skip
    assert cells[1][2:] == ["test", "NVIDIA B200", "", "pass / fail", "", "failed"]
    assert cells[2][-1] == "failed: container died: RuntimeError: gone"


def test_all_passed_is_exit_code_0(tmp_path):
    row = runs.do_request(request("test", device="cuda"))[0] | {"passed": True}
    assert modal_app.drive([request("test")], answers((row, {})), tmp_path / "results.jsonl") == 0


def test_requests_hold_the_task_s_cases(tmp_path):
    submission = str(ROOT / "submission.py")
    (only,) = modal_app.requests("test", submission, "", "cuda")
    assert len(only["tests"]) == 10 and len(only["benchmarks"]) == 4 and only["device"] == "cuda"
    assert only["tests"][0] == read_task_yaml((ROOT / "task.yml").read_text(), "tests")[0].spec
    assert len(modal_app.requests("sweep", submission, "", "cuda")) == len(modal_app.sweep_configs())
    dual = tmp_path / "submission.py"
    dual.write_text("#!POPCORN leaderboard nvfp4_dual_gemm\n")
    for path, task in ((submission, "nvfp4_dual_gemm"), (str(dual), "")):
        (only,) = modal_app.requests("benchmark", path, task, "cuda")
        assert only["task"] == "nvfp4_dual_gemm"
        assert only["benchmarks"][2] == "m: 256; n: 3072; k: 4096; l: 1; seed: 1111" and len(only["tests"]) == 10
    for arguments, message in (
        (("speed", submission, ""), "unknown mode 'speed': there are test, benchmark"),
        (("test", str(tmp_path / "none.py"), ""), "cannot read the submission"),
        (("test", submission, "nvfp4_gemv"), "unknown task 'nvfp4_gemv': there are nvfp4_group_gemm, nvfp4_dual_gemm"),
        (("sweep", submission, "fp8_moe"), "--task fp8_moe has no mode 'sweep': there are test, benchmark"),
    ):
        with pytest.raises(SystemExit, match=message):
            modal_app.requests(*arguments, "cuda")


MOE_ROWS = {
    "fp8_moe": [{"T": 7, "us": {"whole, in a graph": 100.0, "whole": 110.0}}],
    "moe_parallel": [{"T": 7, "us": {"one-sided, in a graph": 100.0, "collectives, in a graph": 110.0}}],
    "fp8_grouped_gemm": [{"m": [8, 8], "n": 4096, "k": 7168, "us": {"this": 100.0}}],
}


SPECS = {"fp8_moe": "t: 7", "moe_parallel": "t: 7", "fp8_grouped_gemm": "m: [8, 8]; n: 4096; k: 7168"}


@pytest.mark.parametrize("task, spec", SPECS.items())
def test_moe_is_checked_and_timed_by_its_own_commands(monkeypatch, task, spec):
    """Whose output and rows are kept; what they print last is the reason of a failure."""
    commands, code = [], 0

    def command(arguments, **options):
        if arguments[0] == "nvidia-smi":
            raise FileNotFoundError
        commands.append(arguments[2:])
        if "--json" in arguments:
            Path(arguments[-1]).write_text(json.dumps({"rows": MOE_ROWS[task]}))
        return subprocess.CompletedProcess(arguments, code, b"one\nError: two\n\n")

    monkeypatch.setattr(subprocess, "run", command)
    for mode in runs.MOE_MODES:
        (wanted,) = modal_app.requests(mode, "none", task, "emulated")
        row, files = runs.do_request(wanted)
        assert row["passed"] and row["task"] == task and files[f"{task}.txt"].startswith(b"one")
    assert [(x["spec"], x["us"]) for x in row["cases"]] == [(spec, 100.0)] and row["geomean_us"] == pytest.approx(100)
    words = [tuple(x[i + 1 : i + 3]) for x in commands for i, name in enumerate(x) if name == "ragged_moe"]
    ranks = [x[:4] == ["torch.distributed.run", "--nproc-per-node", "gpu", "-m"] for x in commands if "-m" in x]
    assert all(ranks) and bool(ranks) == (task == "moe_parallel")  # a process for each rented GPU
    assert words == list(runs.MOE_TASKS[task]) and json.loads(files[f"{task}.json"])["rows"] == MOE_ROWS[task]
    code = 1
    row, files = runs.do_request(wanted)
    assert not row["passed"] and row["cases"][0]["reason"] == "Error: two" and row["geomean_us"] is None


def test_moe_and_scripts_run_on_any_card(monkeypatch):
    """As `--gpu H100:2` rents one."""
    (wanted,) = modal_app.requests("test", "none", "moe_parallel", "cuda")
    row, _ = runs.do_request(wanted)
    assert row["error"].startswith("a GPU is needed, this machine has ")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(runs.utils, "get_device", lambda: torch.device("cpu"))  # it is no B200
    monkeypatch.setattr(runs, "of_moe", lambda request, files: {"cases": [], "passed": True, "geomean_us": None})
    assert runs.do_request(wanted)[0]["passed"]


def test_a_script_is_measured_beside_the_model(monkeypatch, tmp_path, capsys):
    """From the request, with a model and a card that are made up, to the row and what is printed."""
    script = tmp_path / "own.py"
    script.write_text("print('it ran')\n")

    def profile(variant, wanted, page):
        assert wanted.machine == "h200"
        kernels = [{"title": "gemm", "us": 4.0}, {"title": "gemm", "us": 9.0}, {"title": "Ring.kern", "us": 1.0}]
        variant.report = {"kernels": kernels}

    monkeypatch.setattr(Variant, "profile", profile)
    wanted = modal_app.script_request(str(script), "H200")
    ring = "kernel_cutlass_kern___main__Ring_object_at__0"
    run = subprocess.run

    def command(arguments, **options):
        if arguments[0] == "nvidia-smi":
            raise FileNotFoundError
        if "evaluation.gpu.script_times" not in arguments:
            return run(arguments, **options)
        assert Path(arguments[3]).read_text() == script.read_text()
        times = [["void gemm<2>()", 5.0], ["fill", 1.0], ["void gemm<2>()", 6.0], [ring, 2.0]]
        Path(arguments[4]).write_text(json.dumps(times))
        return subprocess.CompletedProcess(arguments, 0, b"it ran\n")

    monkeypatch.setattr(subprocess, "run", command)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert modal_app.drive([wanted], lambda wanted: map(runs.do_request, wanted), tmp_path / "results.jsonl") == 0
    printed = capsys.readouterr().out
    assert "void gemm<2>(): 5.50 us measured, of 2 launches; 4.00 us modelled" in printed
    assert "fill: 1.00 us measured, of 1 launches; not modelled" in printed
    assert f"{ring}: 2.00 us measured, of 1 launches; 1.00 us modelled" in printed
    row = json.loads((tmp_path / "results.jsonl").read_text())
    assert (row["mode"], row["kind"], row["submission"], row["files"]) == ("script", "measured", "own.py", ["own.txt"])


def test_a_script_that_fails_is_told(monkeypatch, tmp_path):
    wanted = {"mode": "script", "task": "", "submission": "", "name": "own.py", "modelled": {}, "device": "cuda"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for code, output, error in (1, b"Traceback\nValueError: no\n", "ValueError: no"), (0, b"", "the script launched"):
        done = subprocess.CompletedProcess([], code, output)
        monkeypatch.setattr(runs, "nvidia_smi", dict)
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        row, files = runs.do_request(wanted)
        assert not row["passed"] and row["error"].startswith(error) and files["own.txt"] == output
    with pytest.raises(SystemExit, match="there is no script"):
        modal_app.script_request(str(tmp_path / "none.py"), "B200")
    with pytest.raises(SystemExit, match="mode script needs --script FILE"):
        modal_app.requests("script", "none", "", "cuda")
    monkeypatch.setattr(Variant, "profile", lambda variant, *_, **__: setattr(variant, "why", "ValueError: no"))
    with pytest.raises(SystemExit, match="cannot be modelled, so nothing is rented: ValueError: no"):
        modal_app.script_request(__file__, "B200")


def test_kernels_of_a_trace_are_told_from_copies():
    def event(name, start, us, where="CUDA"):
        time = SimpleNamespace(start=start, elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=SimpleNamespace(name=where), time_range=time)

    events = [event("b", 5, 2.0), event("a", 1, 3.0), event("Memcpy HtoD", 0, 9.0), event("aten::add", 0, 9.0, "CPU")]
    assert script_times.kernels(events) == [["a", 3.0], ["b", 2.0]]


def test_another_gpu_is_asked_for(monkeypatch):
    asked = []

    class Function:
        def with_options(self, gpu):
            asked.append(gpu)
            return self

        def map(self, wanted, **options):
            asked.append(options)
            return [(request["mode"], {}) for request in wanted]

    monkeypatch.setattr(modal_app, "rented", Function())
    assert list(modal_app.rent("H100")([request("test")])) == [("test", {})]
    assert asked == ["H100", {"return_exceptions": True, "wrap_returned_exceptions": False}]


def test_no_credentials_is_one_sentence(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("MODAL_")]:
        monkeypatch.delenv(name)
    done = forked.module("modal_app", MODAL_CONFIG_PATH=str(tmp_path / "none.toml"))
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert done.returncode == 1 and line.startswith("Modal does not know you: run `modal setup` once")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (modal.exception.ConnectionError("no route"), "Modal cannot be reached, is there a network? (no route)"),
        (modal.exception.ResourceExhaustedError("limit"), "Modal: ResourceExhaustedError: limit"),
    ],
)
def test_modal_out_of_reach_is_one_sentence(error, message, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(modal_app.app, "run", fail)
    monkeypatch.setattr(sys, "argv", ["modal_app.py", "--mode", "benchmark"])
    with pytest.raises(SystemExit) as ended:
        modal_app.command_line()
    assert ended.value.code == message


def test_modal_run_knows_the_options():
    text = forked.module("modal", "run", "modal_app.py", "--help").stdout
    assert all(f"--{option} " in text for option in ("mode", "submission", "task", "gpu", "json", "grid", "script"))
    assert "[test|benchmark|leaderboard|profile|sweep|calibrate|script]" in "".join(text.split())


def test_help_lists_the_choices_that_there_are(monkeypatch, capsys):
    assert get_args(modal_app.Mode) == runs.MODES and get_args(modal_app.TaskName) == ("", *TASKS, *runs.MOE_TASKS)
    for arguments, code, expected in (
        (["--help"], 0, "[test|benchmark|leaderboard|profile|sweep|calibrate|script]"),
        (["--mode", "speed"], 2, "'speed' is not one of 'test', 'benchmark'"),
        (["--mode", "sweep", "--grid", "stages=4..3"], "'4..3' is no range", ""),
    ):
        monkeypatch.setattr(sys, "argv", ["modal_app.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            modal_app.command_line()
        assert str(ended.value.code).startswith(str(code))
        output = capsys.readouterr()
        assert expected in "".join((output.out + output.err).split()) or expected in output.err
