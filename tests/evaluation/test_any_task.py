"""`--task-dir`: tasks of others, in folders of the form of gpu-mode/reference-kernels; tests/tasks is one."""

import dataclasses
import importlib
import json
import math
import re
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from evaluation import ROOT
from evaluation.commands import run as running
from evaluation.commands import validate
from evaluation.commands.cli import cli
from evaluation.commands.run import LongCases
from evaluation.judge import folder_on_gpu, library, sandbox
from evaluation.judge.given_task import SAME, GivenTask
from evaluation.judge.judge import Options, judge
from evaluation.judge.verdict import Refused, Verdict
from evaluation.tasks import data as any_data
from evaluation.tasks.estimate import Estimate, size
from evaluation.tasks.folder import TaskFolder, parse_spec
from evaluation.tasks.modules import FolderModules
from evaluation.tasks.read import read
from tests import forked
from tests.thorough import all_but

FOLDER = ROOT / "tests" / "tasks" / "doubled"
DEFINITION = FOLDER.parent / "definition.json"
KERNEL = '''
import emulated_gpu
from task import Options
from utils import make_match_reference  # a submission may import the task's files

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry double(.param .u64 x, .param .u64 y, .param .u64 sum, .param .f32 c)
{
    .reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .f32 %f<3>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mad.lo.u32 %r0, %r0, 32, %r1;
    mul.wide.u32 %rd0, %r0, 4;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f2, [c];
    add.u64 %rd1, %rd1, %rd0;
    add.u64 %rd2, %rd2, %rd0;
    ld.global.f32 %f0, [%rd1];
    fma.rn.f32 %f1, %f0, 0f40000000, %f2;
    st.global.f32 [%rd2], %f1;
    ld.param.u64 %rd3, [sum];
    red.global.add.f32 [%rd3], %f1;
    ret;
}
"""


def custom_kernel(data):
    x, output, options = data
    assert isinstance(options["add"], Options)
    total = output.new_zeros(())
    args = [x, output, total, options["add"].constant]
    emulated_gpu.launch(PTX, "double", grid=(x.numel() // 32, 1, 1), block=32, args=args)
    return output, {"sum": total}
'''
TORCH = """
def custom_kernel(data):
    x, output, options = data
"""
WRONG = {
    "wrong": ("return x * 2, {'sum': (x * 2 + 0.5).sum()}", "mismatch found!"),
    "raises": ("raise ArithmeticError('no')", r"ArithmeticError: no \(line 4 of the submission"),
    "hangs": ("while True: pass", r"slow or endless \(its host code was still computing, .*\): no result within 2 s"),
    "waits": ("import time; time.sleep(9)", "hang: no result within 2 s"),
    "shape": ("return x[1:], {'sum': x.sum()}", "SIZE MISMATCH"),
    "host": ("return (2 * x + 0.5).cpu(), {'sum': x.sum()}", "on cpu, is not in the device's memory"),
    "expanded": ("return x[:1].expand(1 << 40), {'sum': x.sum()}", "1099511627776 elements in 4 bytes"),
    "type": ("return x.numpy", "which is neither|neither a tensor"),
    "nothing": ("x.mul_(2)", "check_implementation: TypeError"),
    "keeps": (
        "kept.append(2 * x + 0.5) if not kept else 0; return kept[0], {'sum': kept[0].sum()}\nkept = []",
        "mismatch found!",
    ),
    "cannot be imported": ("return 1\nimport no_such_module", "no_such_module"),
}


@pytest.fixture
def verdicts(tmp_path):
    """verdicts(submission's text, case's numbers): of the task in tests/tasks."""

    def run(text: str, *numbers: int, program: str = "", **options):
        (tmp_path / "own.py").write_text(text)
        (tmp_path / "eval.py").write_text(program)
        folder = dataclasses.replace(TaskFolder.read(str(FOLDER)), evaluator=str(tmp_path / "eval.py"))
        given = {"jobs": 1, "timeout": 60, "extra": False, **options}
        return judge(
            [folder.tests[number] for number in numbers],
            Options(str(tmp_path / "own.py"), "emulated", task=GivenTask(folder), **given),
        )

    return run


def test_right_results_pass(verdicts):
    for verdict in verdicts(KERNEL, 0, 1):
        assert (verdict.status, verdict.reason) == ("pass", "")
        assert "the judge's memory and files out of reach" in verdict.isolation


@pytest.mark.parametrize("name", all_but(("wrong", "raises", "hangs", "waits", "shape", "host", "keeps"), WRONG))
def test_what_is_wrong_fails_with_its_reason(verdicts, name):
    body, reason = WRONG[name]
    (verdict,) = verdicts(f"{TORCH}    {body}\n", 1, timeout=2 if name in ("hangs", "waits") else 60)
    assert verdict.status == "fail"
    assert re.search(reason, verdict.reason), verdict.reason


def test_a_finding_fails(verdicts):
    (verdict,) = verdicts(KERNEL.replace("[%rd1];", "[%rd1+128];"), 1)
    assert verdict.status == "fail" and re.search("out-of-bounds: .* past the end of tensor", verdict.reason)


PHASES = """
def squares_forward(x):
    return x.square().sum(1)

def squares_backward(x, gradient):
    return 2 * x * gradient[:, None]
"""
RANKS = """
import torch.distributed as dist

def custom_kernel(data):
    x, rank, count = data
    assert (dist.get_rank(), dist.get_world_size()) == (rank, count)
    dist.all_reduce(x)
    return x
"""
MODEL = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size))

    def forward(self, x):
        return x * self.weight
"""
RUN = "def run(x, factor, y):\n    y.copy_(x * factor)\n"
SPEC = "rows: 3; factor: 2.5; seed: 7"
FORMS = {  # task's path, submission, case, an edit, what is said then
    "phases": ("phases", PHASES, None, ("2 * x", "3 * x"), r"32 of 32 elements of the backward result are not within"),
    "no phase": ("phases", PHASES, None, ("squares_backward", "other"), "has no attribute 'squares_backward'"),
    "ranks": ("ranks", RANKS, None, ("return x", "return x + rank"), "rank 1: not the sum of all ranks"),
    "a rank raises": ("ranks", RANKS, None, ("dist.all_reduce(x)", "1 // rank"), r"ZeroDivisionError: .*\(line 7 of"),
    "model": (
        "model.py",
        MODEL,
        None,
        ("self.weight\n", "self.weight + 1\n"),
        "128 of 128 elements of the result are not",
    ),
    "run": ("definition.json", RUN, SPEC, ("x * factor", "x"), "elements of the output y are neither within"),
    "returns": (
        "definition.json",
        "def run(x, factor, **more):\n    return {'y': x * factor}",
        SPEC,
        ("'y'", "'z'"),
        "run returned dict, expected y",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_tasks(tmp_path, name):
    """What is right passes, and what an edit made wrong fails with its reason."""
    path, right, spec, edit, reason = FORMS[name]
    task = read(str(FOLDER.parent / path))
    case = parse_spec(spec) if spec else task.tests[0]
    for text, status in ((right, "pass"), (right.replace(*edit), "fail")):
        (tmp_path / "own.py").write_text(text)
        options = Options(str(tmp_path / "own.py"), "emulated", task=GivenTask(task), jobs=1, timeout=60, extra=False)
        (verdict,) = judge([case], options)
        assert verdict.status == status, verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason


def test_a_state_of_the_data_is_that_of_a_new_call(verdicts):
    """A task's data may count calls, as a cache of keys and values does."""
    counts = "options['calls'] = options.get('calls', 0) + 1; assert options['calls'] == 1"
    (verdict,) = verdicts(f"{TORCH}    {counts}; return 2 * x + 0.5, {{'sum': (2 * x + 0.5).sum()}}\n", 1)
    assert verdict.status == "pass", verdict.reason


@pytest.mark.thorough  # Inductor compiles
def test_a_compiled_submission_passes(verdicts):
    """In a mode in which a GPU would replay a graph of its kernels."""
    compiled = "double = torch.compile(lambda x: 2 * x + 0.5, mode='reduce-overhead')"
    (verdict,) = verdicts(f"import torch\n{compiled}\n{TORCH}    y = double(x); return y, {{'sum': y.sum()}}\n", 1)
    assert verdict.status == "pass", verdict.reason


def test_inputs_that_no_seed_changes_are_told(tmp_path):
    (tmp_path / "task.yml").write_text((FOLDER.parent / "phases" / "task.yml").read_text())
    text = (FOLDER.parent / "phases" / "reference.py").read_text()
    (tmp_path / "eval.py").write_text((FOLDER.parent / "phases" / "eval.py").read_text())
    (tmp_path / "own.py").write_text(PHASES)
    for seed, limits in (("seed", []), ("1", [SAME])):
        (tmp_path / "reference.py").write_text(text.replace("manual_seed(seed)", f"manual_seed({seed})"))
        task = TaskFolder.read(str(tmp_path))
        options = Options(str(tmp_path / "own.py"), "emulated", task=GivenTask(task), jobs=1, timeout=60, extra=False)
        (verdict,) = judge(task.tests, options)
        assert (verdict.status, verdict.limits) == ("pass", limits), verdict.reason


def test_workloads_of_a_definition(tmp_path):
    """Those whose inputs are drawn or numbers are cases; where there are only others, their kind is named."""
    definitions, workloads = tmp_path / "definitions" / "test", tmp_path / "workloads" / "test"
    definitions.mkdir(parents=True)
    workloads.mkdir(parents=True)
    shutil.copy(DEFINITION, definitions)
    given = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 2.0}}
    stored = {"x": {"type": "safetensors", "path": "x", "tensor_key": "x"}, "factor": given["factor"]}
    lines = [json.dumps({"workload": {"axes": {"rows": 5}, "inputs": inputs}}) for inputs in (given, stored)]
    (workloads / "definition.jsonl").write_text("\n".join(lines))
    (case,) = read(str(definitions / "definition.json")).tests
    assert case.args == {"rows": 5, "factor": 2.0, "seed": 0} and case.spec == "rows: 5; factor: 2.0; seed: 0"
    (workloads / "definition.jsonl").write_text(lines[1])
    with pytest.raises(ValueError, match="have inputs of type safetensors, scalar: none is read here"):
        read(str(definitions / "definition.json"))


LAZY = """custom_kernel(data, seen=[]):
    seen.append(0)
    if len(seen) == 2:
        return data[1], {"sum": data[0].sum()}
"""
UNTIMED = {
    "host": ("total}", "output.sum()}", "the launches of a call alone do not give its result when timed: mismatch"),
    "torch": ("[x, output, total", "[x.clone(), output, total", "the launches of a call alone do not give its result"),
    "lazy when timed": ("custom_kernel(data):", LAZY, "call 1 does not launch what call 0 launches"),
}


def timed(verdicts, text: str, program: str = "") -> dict:
    """The one benchmark, size 32, of a folder whose grader's program has this text."""
    return verdicts(text, 1, timed=True, calls=1, program=program)[0]


def test_benchmark_is_modelled(verdicts):
    """The calls of the grader, back to back, each on inputs of its own; what was timed is right."""
    verdict = timed(verdicts, KERNEL, "NUM_ITERATIONS_PER_BENCHMARK = 5 * 1")
    assert (verdict.status, verdict.modelled.get("error")) == ("pass", None)
    reply = verdict.modelled
    assert reply["calls"] == 5 and reply["launches"] == 1 and 0 < reply["us"] < 10
    single = timed(verdicts, KERNEL).modelled
    assert single["calls"] == 1 and single["us"] > reply["us"]


def test_what_is_faster_than_its_bytes_has_no_time(verdicts, monkeypatch):
    """The kernel reads x, 32 numbers, and writes as much: at 10^6 bytes a second more than the model's time."""
    spawn = sandbox.Nursery.spawn
    monkeypatch.setattr(sandbox, "_nursery", None)  # another one, whose memory is slow
    monkeypatch.setattr(sandbox.Nursery, "spawn", lambda *modules: spawn(*modules, "tests.slow_memory"))
    verdict = timed(verdicts, KERNEL)
    sandbox.stop()
    assert verdict.status == "pass"
    assert re.search(r"us is less than moving what its kernels touch takes, 128\.000 us", verdict.modelled["error"])


@pytest.mark.parametrize("name", UNTIMED)
def test_what_is_not_timed_says_why(verdicts, name):
    old, new, reason = UNTIMED[name]
    verdict = timed(verdicts, KERNEL.replace(old, new), "NUM_ITERATIONS_PER_BENCHMARK = 3")
    assert reason in verdict.modelled["error"]
    assert verdict.status == ("fail" if name == "lazy when timed" else "pass"), verdict.reason


HIDDEN = "(torch.ops.emulated_gpu.to_cuda(torch.ops.emulated_gpu.to_cpu(x) * 1, 0))"
BESIDE = "untold(lambda: x * 1)"
UNTOLD = """
import torch
from torch.utils._python_dispatch import _disable_current_modes

def untold(work):
    with _disable_current_modes():
        return work()
"""
NO_PRICE = {
    "hidden": (HIDDEN, "nothing to time|the launches of a call alone do not give its result"),
    "beside the recorder": (BESIDE, "the launches of a call alone do not give its result"),
    "sorted": ("x.sort()[0]", "No priced time either: aten::sort has no price"),
    "waits": ("(x * x.sum().item())", "No priced time either: the host waits for a result of the device"),
    "to the host": ("x + float(x.cpu().numpy().sum())", "either: the host waits for a result of the device"),
}


def test_a_call_with_torchs_operations_is_priced(verdicts):
    """Operations are carried out by the judge between launches, and labelled; only where that is asked for."""
    text = KERNEL.replace("args = [x, output", "args = [(x * 2 - x).clone(), output")
    verdict = verdicts(text, 1, timed=True, calls=1, priced=True)[0]
    reply = verdict.modelled
    assert (verdict.status, reply.get("error")) == ("pass", None)
    priced = reply["priced"]
    found = {one["what"]: one["bound_by"] for one in priced["operations"]}
    assert found == dict.fromkeys(("mul 32", "sub 32", "clone 32", "new_zeros 1"), "launch")
    assert priced["us"] == pytest.approx(sum(one["us"] for one in priced["operations"]))
    assert reply["us"] > priced["us"] and priced["share"] == pytest.approx(priced["us"] / reply["us"])
    assert reply["us_interval"] is None and reply["us_corrected"] == reply["us"] and reply["launches"] == 1
    assert "priced" not in (verdicts(text, 1, timed=True, calls=1)[0].modelled or {})


def test_what_torch_alone_computes_is_priced(verdicts):
    text = f"{TORCH}    return x * 2 + 0.5, {{'sum': (x * 2 + 0.5).sum()}}\n"
    reply = verdicts(text, 1, timed=True, calls=1, priced=True)[0].modelled
    assert reply["priced"]["share"] == 1 and reply["launches"] == 0 and reply["us"] == pytest.approx(5 * 2.05)


@pytest.mark.parametrize("name", all_but(("hidden", "sorted", "waits"), NO_PRICE))
def test_what_is_not_told_or_not_known_has_no_price(verdicts, name):
    """The judge computes what was told on inputs of its own."""
    expression, reason = NO_PRICE[name]
    text = UNTOLD + KERNEL.replace("args = [x, output", f"args = [{expression}, output")
    reply = verdicts(text, 1, timed=True, calls=1, priced=True)[0].modelled
    assert re.search(reason, reply["error"]), reply


def test_prices():
    def tensor(shape, dtype="torch.bfloat16", address=0):
        stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        size = math.prod(shape) * library.DTYPES[dtype].itemsize
        numbers = {"address": address, "bytes": size, "offset": 0}
        return {"tensor": numbers | {"shape": shape, "stride": stride, "dtype": dtype}}

    def told(name, args, result, overload="default", **more):
        return {"name": f"aten::{name}", "overload": overload, "written": False, "args": args, "kwargs": [],
                "results": [result], **more}  # fmt: skip

    square = tensor([4096, 4096])
    us, bound = library.understand(told("mm", [square, square], square)).price()
    assert bound == "arithmetic" and us == pytest.approx(2 * 4096**3 / 1.386e9)
    of_32 = tensor([4096, 4096], "torch.float32")
    us, bound = library.understand(told("mm", [of_32, of_32], of_32)).price()
    assert bound == "peak arithmetic" and us == pytest.approx(2 * 4096**3 / 75e6)
    wide = tensor([1 << 28], "torch.float32")
    us, bound = library.understand(told("add", [wide, wide], wide, "Tensor")).price()
    assert bound == "bytes" and us == pytest.approx(3 * 2**30 / 5.9148e6)
    eighth = tensor([64, 64], "torch.float8_e4m3fn")
    with pytest.raises(Refused, match="no published rate"):
        library.understand(told("mm", [eighth, eighth], eighth)).price()
    operation = library.understand(told("neg", [wide], wide))
    with pytest.raises(Refused, match="touches memory that is not the call's"):
        operation.run(lambda address, size: np.zeros(size, np.uint8), lambda *_: False, lambda *_: False)
    for wrong in (
        {"name": "aten::sort"},
        {"args": [{"code": "x"}]},
        {"overload": "none"},
        {"results": [{"tensor": {}}]},
    ):
        with pytest.raises((ValueError, KeyError)):
            library.understand(told("neg", [wide], wide) | wrong)


def test_calls_in_a_row_are_those_of_the_graders_program(tmp_path):
    folder = TaskFolder.read(str(FOLDER))
    text = "MAX_ITERATIONS_PER_BENCHMARK = 50\nBENCHMARK_INPUT_BYTES_TARGET = 4 * 1024\nother = max(1, 2)"
    (tmp_path / "eval.py").write_text(text)
    folder = dataclasses.replace(folder, evaluator=str(tmp_path / "eval.py"))
    assert [folder.calls(size) for size in (1, 1000, 4096, 10000)] == [50, 4, 1, 1]
    assert dataclasses.replace(folder, evaluator=None).calls(1) == 1


@pytest.mark.thorough  # another process imports torch and all doors
def test_profile(tmp_path):
    (tmp_path / "own.py").write_text(KERNEL)
    arguments = "profile", "--task-dir", FOLDER, "--submission", tmp_path / "own.py", "--out", tmp_path / "timelines"
    result = CliRunner().invoke(cli, [*map(str, arguments), "--spec", "size: 64; seed: 1; signed: True"])
    assert result.exit_code == 0 and "case 0: size: 64; seed: 1; signed: True" in result.output, result.output
    assert (tmp_path / "timelines" / "case0" / "timeline.json.gz").exists()


def test_check_takes_any_leaderboard(tmp_path):
    (tmp_path / "own.py").write_text("#!POPCORN leaderboard doubled\n" + TORCH + "    return x\n")
    file, anywhere = str(tmp_path / "own.py"), ("--task-dir", str(FOLDER))
    result = CliRunner().invoke(cli, ["check", "--submission", file, *anywhere])
    assert result.exit_code == 0 and "unknown leaderboard" not in result.output, result.output
    assert CliRunner().invoke(cli, ["check", "--no-compile", file]).exit_code == 1


def test_command(tmp_path):
    """Tables, JSON and exit codes are those of the other tasks; small cases come first."""
    submission = tmp_path / "own.py"
    submission.write_text(KERNEL)
    arguments = "test", "--task-dir", str(FOLDER), "--submission", str(submission), "--json", str(tmp_path / "out.json")
    result = CliRunner().invoke(cli, [*arguments, "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "doubled, compared by its check_implementation: rtol 0.001, atol 0.001 (line 23)\nheld: " in result.output
    assert "\n2 cases passed\n" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert [case["spec"] for case in written["cases"]] == [case.spec for case in TaskFolder.read(FOLDER).tests]
    assert written["task_dir"] == str(FOLDER) and written["compared_by"].startswith("its check_implementation")
    submission.write_text(KERNEL.replace("0f40000000", "0f40400000"))
    result = CliRunner().invoke(cli, [*arguments, "--spec", "size: 64; seed: 3; signed: False"])
    assert result.exit_code == 1 and "mismatch found!" in result.output and "1 of 1 case failed" in result.output


REFUSED = {
    "no folder": (lambda path: ("--task-dir", path / "none"), "none is no task: there is nothing there; a task is "),
    "no task": (lambda path: ("--task-dir", path / ".."), "is no task: it has no task.yml; a task is a folder of "),
    "no Model": (
        lambda path: ("--task-dir", path / "task.py"),
        "has no Model and no get_inputs and no get_init_inputs",
    ),
    "no form": (lambda path: ("--task-dir", path / "task.yml"), "is no task: its form is not known"),
    "no cases": (lambda path: ("--task-dir", DEFINITION), "has no tests: give --spec or --tests"),
    "no submission": (lambda path: ("--task-dir", path, "--submission", ROOT / "submission.py"), "needs --submission"),
    "two tasks": (lambda path: ("--task-dir", path, "--task", "nvfp4_dual_gemm"), "exclude each other"),
    "no such case": (lambda path: ("--task-dir", path, "--case", "7"), "there is no case 7: the last is 1"),
    "spec": (lambda path: ("--task-dir", path, "--spec", "size 3"), "invalid test case: 'size 3'"),
    "another leaderboard": (lambda path: ("--spec", "m: 64; n: 64; k: 256; l: 1; seed: 1"), "names nvfp4_gemm, no"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_gets_one_sentence(tmp_path, name):
    (tmp_path / "own.py").write_text("#!POPCORN leaderboard nvfp4_gemm\n")
    arguments, sentence = REFUSED[name]
    given = [*map(str, ("test", "--submission", tmp_path / "own.py", *arguments(FOLDER)))]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 2 and sentence in result.output and "Traceback" not in result.output, result.output


BROKEN = {
    "YAML": ("task.yml", "files: [", "is not YAML"),
    "form": ("task.yml", "- 1", "has no list of files"),
    "file": ("task.yml", "files: [{name: utils.py, source: ../none.py}]", "names utils.py, and there is no file"),
    "entry": ("task.yml", "files: [submission.py]", "a file has a name and a source"),
    "reference": ("task.yml", "files: []", "names no reference.py"),
    "GPUs": (
        "task.yml",
        "files: [{name: reference.py, source: reference.py}]\nmulti_gpu: true\ntests: [{seed: 1}]",
        "its cases have no one world_size",
    ),
    "cases": ("task.yml", "files: [{name: reference.py, source: reference.py}]\ntests: [1]", "is not a list of cases"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_task_is_said_in_a_sentence(tmp_path, name):
    folder = tmp_path / "task"
    shutil.copytree(FOLDER, folder)
    file, text, sentence = BROKEN[name]
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        TaskFolder.read(str(folder))


def test_a_reference_without_its_functions_is_refused(tmp_path):
    (tmp_path / "reference.py").write_text("generate_input = 3\n")
    (tmp_path / "task.yml").write_text("files: [{name: reference.py, source: reference.py}]\n")
    folder = TaskFolder.read(str(tmp_path))
    with FolderModules(folder.modules):
        with pytest.raises(ValueError, match="has no generate_input and no check_implementation"):
            folder.author()
        with pytest.raises(ModuleNotFoundError, match="the task names none"):
            importlib.import_module("utils")
    import reference

    assert hasattr(reference, "TASKS")  # this repository's again


def test_cases_are_those_of_the_grader():
    """It writes them as text, and reads back numbers alone."""
    case = parse_spec("size: 32; m: [1, 2]; flag: False; case: band; eps: 0.5")
    assert case.args == {"size": 32, "m": (1, 2), "flag": "False", "case": "band", "eps": 0.5}
    assert case.spec == "size: 32; m: [1, 2]; flag: False; case: band; eps: 0.5"
    assert size(case.args) == 32 * 3 * 0.5


def test_data_of_any_form():
    x = torch.arange(12.0)
    data = {"views": [x[2:8].view(2, 3), x], "module": torch.nn.Linear(2, 2), "none": None, "same": (x, x)}
    copy = any_data.copied(data)
    assert torch.equal(copy["views"][0], x[2:8].view(2, 3)) and torch.equal(copy["same"][1], x)
    assert copy["views"][1].data_ptr() != x.data_ptr() and len(any_data.tensors(data)) == 4
    returned = ([x, 1.5], {"a": None, "b": (True, "text")})
    described = json.loads(json.dumps(any_data.described(returned)))
    assert any_data.rebuilt(described, lambda spec: x) == returned
    deep = None
    for _ in range(any_data.DEPTH + 2):
        deep = [deep]
    for wrong, said in ((deep, "what is nested"), ({1: x}, "dict"), ([object()], "object")):
        with pytest.raises(any_data.NoResult, match=f"custom_kernel returned {said}"):
            any_data.rebuilt(any_data.described(wrong), lambda spec: x)
    for wrong in ({"value": [1]}, {"code": 1}, {}, {"list": [], "tuple": []}):
        with pytest.raises((ValueError, KeyError)):
            any_data.rebuilt(wrong, lambda spec: x)
    with pytest.raises(ValueError, match="cannot be sent"):
        any_data.packed(lambda: 0, id)


def test_a_long_case_says_so_before_it_starts():
    estimate = Estimate()
    assert estimate.seconds(100) is None
    estimate.add(100, 2.0)
    assert estimate.seconds(1000) == pytest.approx(200.0)  # squared, as long as nothing else is known
    estimate.add(200, 4.0)
    assert estimate.seconds(1000) == pytest.approx(20.0)
    said = []
    screen = type("Screen", (), {"line": lambda self, *parts: said.append(parts)})()
    watch = LongCases(screen, (0, 1, 2), [1.0, 2.0, 3000.0], 300.0)
    for index in (0, 1, 2):
        watch.started(index)
        if index < 2:
            watch.begun[index] -= index + 1
            watch.ended(index)
    ((text, rest),) = said
    assert text[0] == "case 2 may take about 50 min, by the smaller ones" and "after 300 s (--timeout)" in rest


def test_a_large_case_alone_says_so_too(monkeypatch):
    """The folder's smallest tests run before it, and only where all cases are large."""
    judged = []

    def judge_slowly(cases, options, on_start=lambda index: None, on_verdict=lambda index, verdict: None, **_):
        verdicts = []
        for index, case in enumerate(cases):
            on_start(index)
            judged.append(case.args["size"])
            verdicts.append(Verdict(case.spec, "pass", "", seconds=case.args["size"] ** 2 / 512))
            on_verdict(index, verdicts[-1])
        return verdicts

    monkeypatch.setattr(running, "judge", judge_slowly)
    command = ["test", "--task-dir", str(FOLDER), str(FOLDER / "task.py"), "--spec"]
    output = CliRunner().invoke(cli, [*command, "size: 2048; seed: 1; signed: True"]).output
    assert judged == [32, 96, 2048]
    assert "the task's smallest tests show how long large cases may take: size: 32;" in output
    said = f"case 0 may take about {2048**2 / 512 / 60:.0f} min, by the smaller ones; a call is ended after 300 s"
    assert said in output
    output = CliRunner().invoke(cli, [*command, "size: 1024; seed: 1; signed: True"]).output
    assert judged[3:] == [1024] and "smallest tests" not in output


TRAINING = """
import json, os
import torch
from submission import custom_kernel

config = json.loads(os.environ["KERNELBOT_VALIDATION_CONFIG"])
x = torch.ones(4, device="cuda")
passed = bool((custom_kernel(x) == 2 * x).all())
print("a line of its own")
row = {"n": 4, "passed": passed, "sync_wall_speedup": 1.5}
said = {"results": [row], "passed_shapes": int(passed), "total_shapes": 1, "contract_version": config["version"]}
print(json.dumps(said))
"""


def test_a_folders_mini_training(tmp_path, monkeypatch):
    """It runs with the submission, on the emulated GPU; what its clock says is left out."""

    def run(command, cwd, env, **options):
        return forked.module(*command[2:], cwd=cwd, **env)

    of = {"run": run, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(validate, "subprocess", SimpleNamespace(**of))
    folder = tmp_path / "task"
    shutil.copytree(FOLDER, folder)
    (folder / "task.yml").write_text(
        (folder / "task.yml").read_text().replace("../utils.py", str(FOLDER.parent / "utils.py"))
    )
    own = tmp_path / "own.py"
    command = ["validate", "--task-dir", str(folder), str(own)]
    own.write_text("def custom_kernel(x):\n    return x * 2\n")
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2 and "names no validation with a version and a script" in result.output
    with (folder / "task.yml").open("a") as file:
        file.write("\nvalidation: {version: two-of-ones-v1, script: training.py}\n")
    with pytest.raises(ValueError, match="validation names training.py, and there is no such file"):
        read(str(folder))
    (folder / "training.py").write_text(TRAINING)
    result = CliRunner().invoke(cli, [*command, "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0 and "0: n 4, passed True\n" in result.output, result.output
    assert "1 of 1 shapes validated" in result.output and "its times are those of this CPU" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["validation"]["contract_version"] == "two-of-ones-v1"
    own.write_text("def custom_kernel(x):\n    return x * 3\n")
    assert CliRunner().invoke(cli, command).exit_code == 1
    own.write_text("1 / 0\n")
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2 and "has written no line of JSON" in result.output, result.output
    monkeypatch.setattr(validate, "of_program", lambda *given: ({"passed": True}, 0))
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2 and "training.py counts nothing: its JSON has no passed_shapes" in result.output


EVALUATOR = """
import os, sys
from reference import generate_input
from submission import custom_kernel

seed = int(os.environ["POPCORN_SEED"])
with os.fdopen(int(os.environ["POPCORN_FD"]), "w") as out:
    for i, line in enumerate(open(sys.argv[2])):
        assert line.startswith("size: ") and callable(generate_input)
        if sys.argv[1] == "benchmark":
            stats = {"runs": 3, "mean": 2500.0, "std": 2.0, "err": 1.0, "best": 2400.0, "worst": 2600.0}
            print(*(f"benchmark.{i}.{key}: {value}" for key, value in stats.items()), sep="\\n", file=out)
        else:
            status = custom_kernel(i)
            print(f"test.{i}.status: {status}", file=out)
            if status == "fail":
                print(f"test.{i}.error: mismatch\\x1b[2J", file=out)
    print("check: pass", file=out)
"""


def on_gpu(tmp_path, text: str, timed: bool = False) -> list:
    """Verdicts of a folder's own evaluator, which needs no GPU here."""
    (tmp_path / "eval.py").write_text(EVALUATOR)
    (tmp_path / "submission.py").write_text(text)
    (tmp_path / "reference.py").write_text("def generate_input(): ...\n")  # torch would take two seconds
    files = {"modules": {"reference": str(tmp_path / "reference.py")}, "evaluator": str(tmp_path / "eval.py")}
    folder = dataclasses.replace(TaskFolder.read(str(FOLDER)), **files)
    task = GivenTask(folder)
    options = Options(str(tmp_path / "submission.py"), "cuda", task=task, timed=timed, timeout=20)
    return folder_on_gpu.judge(folder.tests, options)


def test_on_a_gpu_the_folders_evaluator_judges(tmp_path):
    verdicts = on_gpu(tmp_path, "def custom_kernel(i):\n    return 'fail' if i else 'pass'\n")
    assert [(v.status, v.reason) for v in verdicts] == [("pass", ""), ("fail", r"mismatch\x1b[2J")]
    verdicts = on_gpu(tmp_path, "def custom_kernel(i):\n    if i:\n        raise SystemExit(5)\n    return 'pass'\n")
    assert [(v.status, v.reason) for v in verdicts] == [("pass", ""), ("fail", "exit code 5")]
    assert [v.us for v in on_gpu(tmp_path, "def custom_kernel(i): ...", timed=True)] == [2.5, 2.5]


FORGED = """import os

def write(text):
    os.write(int(os.environ["POPCORN_FD"]), text)

def custom_kernel(i): ...

"""


@pytest.mark.parametrize("mean", all_but(("\\xff",), ("fast", "nan", "\\xff")))
def test_on_a_gpu_a_forged_report_is_no_time(tmp_path, mean):
    forged = f"write(b'benchmark.0.mean: {mean}\\n' + b'x' * (1 << 22))\nos._exit(0)\n"
    verdict, _ = on_gpu(tmp_path, FORGED + forged, timed=True)
    assert (verdict.status, verdict.times) == ("fail", None) and "no times of this case" in verdict.reason


def test_on_a_gpu_a_folder_without_an_evaluator_fails(tmp_path):
    folder = TaskFolder.read(str(FOLDER))
    verdicts = folder_on_gpu.judge(folder.tests, Options(submission="none.py", device="cuda", task=GivenTask(folder)))
    assert {(v.status, v.reason.partition(f"{FOLDER} ")[2]) for v in verdicts} == {("fail", "names no eval.py")}
