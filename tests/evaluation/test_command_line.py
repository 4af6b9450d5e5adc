"""The command line: cases, devices, table, JSON, exit codes, and one clear sentence for what it cannot do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import utils
from emulated_gpu.__main__ import cli as emulator
from emulated_gpu.page.write import DATA
from emulated_gpu.serve.host.findings import workflow_commands
from evaluation import ROOT
from evaluation.commands import devices, interrupt, model_process, moe_tasks, options
from evaluation.commands import run as running
from evaluation.commands.cases import read_cases, task_cases
from evaluation.commands.cli import cli
from evaluation.judge import gpu_trial, inputs, judge, own_task, sandbox, verdict
from evaluation.judge.statistics import Stats
from evaluation.judge.submission_process import builds
from evaluation.tasks.entry import KERNEL, entry
from reference import DUAL_GEMM, TASKS, generate_dual_input, generate_input
from reference import task_of as task_of_args
from tests import forked

SMALL = "m: [40, 24]; n: [48, 32]; k: [128, 64]; g: 2; seed: 1111"
DUAL = "m: 40; n: 32; k: 128; l: 2; seed: 1111"


def task_of(case):
    return task_of_args(case.args).name


@pytest.fixture
def run(honest):
    """run(*arguments): (exit code, output) of eval.py with the reference as submission."""

    def invoke(*arguments):
        result = CliRunner().invoke(cli, [*arguments[:1], "--submission", str(honest), *arguments[1:]])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return invoke


def test_test_passes_and_writes_json(run, tmp_path):
    files = "--json", str(tmp_path / "out.json"), "--junit", str(tmp_path / "out.xml")
    code, output = run("test", "--spec", SMALL, *files, "--secret", "5")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert suite.attrib == {"name": "tests", "tests": "1", "failures": "0"} and suite[0].get("name") == SMALL
    assert code == 0
    assert re.search(r"0 .*g 2, m 40\+24, n.*pass.*0", output)
    assert "1 case passed" in output
    (head,) = [line for line in output.splitlines() if line.startswith("case")]
    assert head.split() == ["case", "shapes", "result", "mismatches", "ulps", "seconds"]  # no times, no column
    result = json.loads((tmp_path / "out.json").read_text())
    (case,) = result.pop("cases")
    assert case.pop("seconds") >= 0
    assert case == {"spec": SMALL, "status": "pass", "reason": "", "mismatches": 0, "ulps": 0, "us": None, "notes": []}
    assert result.pop("device").startswith("emulated B200")
    assert result.pop("submission").endswith("submission.py")
    assert set(result.pop("versions")) == {"python", "torch", "nvidia-cutlass-dsl"}
    (isolation,) = result.pop("isolation")
    assert "the judge's memory and files out of reach" in isolation
    assert result == {"command": "test", "geomean_us": None, "kind": "none", "secret": 5}


def test_results_on_another_machine(honest, run):
    """With code that runs on no other."""
    ptx = ".version 8.8\\n.target sm_103a\\n.address_size 64\\n.visible .entry one() { ret; }"
    launch = f"import emulated_gpu\n    emulated_gpu.launch('{ptx}', 'one', 1, 32, [])"
    honest.write_text(honest.read_text().replace("    return", f"    {launch}\n    return"))
    done = forked.module("eval", "test", "--submission", honest, "--spec", SMALL, "--machine", "b300")
    assert done.returncode == 0 and "on emulated B300" in done.stderr, done.stdout + done.stderr
    code, output = run("benchmark", "--machine", "b300")
    assert code == 2 and "the judge has times of a B200 alone" in output
    code, output = run("test", "--machine", "nosuch")
    assert code == 2 and "--machine: no machine 'nosuch'; there are a100, b200" in output


def test_code_of_another_target_does_not_run(honest, run):
    honest.write_text((ROOT / "tests" / "tiny_kernel.py").read_text().replace("sm_100a", "sm_90a"))
    code, output = run("test", "--spec", "m: [2]; n: [16]; k: [64]; g: 1; seed: 3")
    assert code == 1 and "code of sm_90a does not run on an NVIDIA B200" in output


def findings_of(page) -> dict:
    return json.loads(DATA.search(page.read_text())[1])


def test_a_page_of_what_was_found(honest, run, tmp_path):
    """Both parties, what happened before, and the submission's text, but of no file that only line info names."""
    page, tiny = tmp_path / "page.html", (ROOT / "tests" / "tiny_kernel.py").read_text()
    lines = ".loc 1 2 0\n    cp.async.bulk", ".loc 2 1 0\n    ld.shared.u32 %r5, [words];"
    for line in lines:
        tiny = tiny.replace(line.partition("\n    ")[2], line, 1)
    files = "}\n.file 1 \"submission.py\"\n.file 2 \"/etc/passwd\"\n\"\"\""
    honest.write_text(tiny.replace("race: bool = False", "race: bool = True").replace('}\n"""', files, 1))
    sizes = "n: [16]; k: [64]; g: 1; seed: 3"
    sarif = tmp_path / "found.sarif"
    files = "--html", str(page), "--sarif", str(sarif), "--github"
    code, output = run("test", "--spec", f"m: [2]; {sizes}", "--spec", f"m: [3]; {sizes}", *files)
    assert code == 1 and "case 0, 1: race" in output
    assert output.count("::error file=/etc/passwd,line=1,title=emulated-gpu%3A race::") == 1  # of both cases
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("race", "error")
    data = findings_of(page)
    (one,) = data["findings"]  # of both cases
    assert data["title"] == "tests of submission.py: 0 of 2 cases passed"
    assert one["of"] == "case 0, schedule 0, launch 0, and 1 time more" and one["where"].startswith("kernel gemm, warp")
    assert (one["here"], one["there"]) == ([[["/etc/passwd", 1]]], [[["submission.py", 2]]])
    assert list(data["sources"]) == ["submission.py"]
    assert [event for event in one["events"] if event[0] == one["other"] and event[2].startswith("bulk copy of warp")]


def test_a_page_of_results_that_are_wrong_or_right(tmp_path):
    """Without a finding the page has the reason; where all passed, it says so."""
    page, options = tmp_path / "page.html", judge.Options("sub.py", "emulated")
    cases = [SimpleNamespace(spec="m: 1"), SimpleNamespace(spec="m: 2")]
    right, wrong = verdict.Verdict("m: 1", "pass", ""), verdict.Verdict("m: 2", reason="group 0: <b> of 4 differ")
    found = running.rows_of([0, 4], cases, [right, wrong], "sub.py")
    (told,) = workflow_commands(found)
    assert told == "::error file=sub.py,line=1,title=emulated-gpu%3A failed::group 0: <b> of 4 differ"
    running.write_page(str(page), "tests", cases, [right, wrong], found, options)
    (one,) = findings_of(page)["findings"]
    assert (one["kind"], one["message"], one["of"]) == ("failed", "group 0: <b> of 4 differ", "case 4: m: 2")
    assert "<b>" not in page.read_text()  # it stands inside of a script element
    running.write_page(str(page), "tests", cases[:1], [right], [], options)
    assert findings_of(page) | {"title": ""} == {
        "title": "", "findings": [], "none": "tests of sub.py: 1 of 1 case passed; nothing was found", "sources": {},
    }  # fmt: skip


def test_one_wrong_element_in_one_case_fails_the_run(run, honest, tmp_path):
    honest.write_text(
        "from reference import ref_kernel\ndef custom_kernel(data):\n    out = ref_kernel(data)\n"
        "    if len(out) == 2:\n        out[1][3, 4] += 1\n    return out\n"
    )
    cases = tmp_path / "cases.txt"
    cases.write_text(f"# two cases\n{SMALL} # one\n\nm: [8]; n: [16]; k: [64]; g: 1; seed: 3\n")
    code, output = run("test", "--tests", str(cases), "--json", str(tmp_path / "out.json"))
    assert code == 1
    assert re.search(r"case 0: group 1: 1 of 768 elements differ, first at \[3, 4\]: \S+ instead of", output)
    assert "1 of 2 cases failed" in output
    code, output = run("test", "--tests", str(cases), "--case", "1")
    assert code == 0 and re.search(r"\n +1  g 1, m 8, .*\n", output) and "1 case passed" in output
    cases = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [(case["status"], case["mismatches"]) for case in cases] == [("fail", 1), ("pass", 0)]


def test_what_is_true_of_several_cases_is_said_once(capsys):
    of = [verdict.Verdict("", reason=text, limits=["small"]) for text in ("no DSL", "wrong", "no DSL")]
    asked = SimpleNamespace(timed=False, task=SimpleNamespace(title=str))
    running.print_table(running.Screen(), [0, 4, 7], ["a", "b", "c"], of, asked)
    said = [line for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert said == ["case 0, 7: no DSL", "case 4: wrong", "not held, case 0, 4, 7: small"]


def test_benchmark_models_no_times_of_what_runs_on_the_host(run, tmp_path):
    code, output = run("benchmark", "--spec", SMALL, "--json", str(tmp_path / "out.json"))
    assert code == 1
    assert "case 0 not timed: custom_kernel launched no kernel of its own: nothing to time" in " ".join(output.split())
    result = json.loads((tmp_path / "out.json").read_text())
    case = result["cases"][0]
    assert (result["geomean_us"], result["kind"], case["us"], case["status"]) == (None, "none", None, "pass")


@pytest.mark.parametrize("section, count", [("tests", 10), ("benchmarks", 4)])
def test_default_cases_are_those_of_the_header_or_of_the_option(section, count, tmp_path):
    group, dual = ([*map(task_of, task_cases(task, section))] for task in TASKS.values())
    headers = {
        "": group,
        "#!POPCORN leaderboard nvfp4_group_gemm\n": group,
        "#!POPCORN leaderboard nvfp4_dual_gemm\n": dual,
        "#!POPCORN gpu B200\n#!POPCORN leaderboard modal_nvfp4_dual_gemm\n": dual,
    }
    for header, expected in headers.items():
        path = tmp_path / "submission.py"
        path.write_text(header)
        found = [*map(task_of, read_cases(section, None, (), None, str(path)))]
        assert found == expected and len(found) == count, header
        for option, cases in zip(TASKS, (group, dual)):
            assert [*map(task_of, read_cases(section, None, (), option, str(path)))] == cases


def test_dual_gemm_passes_within_the_tolerance_and_says_how_far_off_it_is(run, honest, tmp_path):
    honest.write_text(
        "from reference import dual_ref_kernel\ndef custom_kernel(data):\n    c = dual_ref_kernel(data)\n"
        "    c.view(__import__('torch').int16)[:] += OFF\n    return c\n"
    )
    text = honest.read_text()
    for off, status in ((0, "pass"), (1, "pass"), (400, "fail")):
        honest.write_text(text.replace("OFF", str(off)))
        code, output = run("test", "--spec", DUAL, "--json", str(tmp_path / "out.json"), "--secret", "5")
        assert code == (status == "fail"), output
        assert "m 40, n 32, k 128, l 2" in output
        (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
        assert (case["status"], case["ulps"]) == (status, off if status == "pass" else None)
        # of three calls and one with other sizes, or of the first
        assert case["mismatches"] in {0: [0], 1: range(3 * 2560 + 1, 8 * 2560), 400: [2560]}[off]
    assert "group 0: 2560 of 2560 elements differ, first at [0, 0]: " in " ".join(output.split())


def test_a_dual_gemm_may_return_a_tensor_of_its_own(run, honest):
    honest.write_text(
        "from reference import dual_ref_kernel\ndef custom_kernel(data):\n    return dual_ref_kernel(data).clone()\n"
    )
    code, output = run("test", "--spec", DUAL)
    assert code == 0, output


@pytest.mark.parametrize(
    "body, reason",
    [
        ("return [dual_ref_kernel(data)]", "custom_kernel returned list, not the tensor c"),
        ("data[2].view(__import__('torch').uint8)[5] ^= 0x88; return dual_ref_kernel(data)", "changed its inputs"),
        ("data[8].view(__import__('torch').uint8)[:] = 0; return dual_ref_kernel(data)", "changed its inputs"),
        ("return data[9]", "never written"),
    ],
)
def test_what_a_dual_gemm_may_not_do(run, honest, body, reason):
    honest.write_text(f"from reference import dual_ref_kernel\ndef custom_kernel(data):\n    {body}\n")
    code, output = run("test", "--spec", DUAL)
    assert code == 1 and reason in " ".join(output.split()), output


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--spec", "m: [40; n: 3"], "invalid test case: 'm: [40; n: 3': 'm: [40'"),
        (["--spec", "m: [40]; n: [48]; k: [128]; g: 1"], "expected m, n, k, g and seed, got g, k, m, n"),
        (["--spec", SMALL + "; seed: 2"], "seed is given twice"),
        (["--spec", SMALL + "; x: 1"], "expected m, n, k, g and seed, got g, k, m, n, seed, x"),
        (["--spec", SMALL.replace("1111", "-1")], "g and seed must be non-negative integers"),
        (["--spec", SMALL, "--task", "nvfp4_dual_gemm"], "expected m, n, k, l and seed, got g, k, m, n, seed"),
        (["--spec", "m: 8; n: 32; k: 72; l: 1; seed: 1"], "K = 72 must be a positive multiple of 16"),
        (["--spec", "m: [8]; n: 32; k: 64; l: 1; seed: 1"], "M = (8,) must be a positive integer"),
        (["--spec", "m: 8; n: 32; k: 64; l: 0; seed: 1"], "L = 0 must be a positive integer"),
        (["--spec", SMALL.replace("g: 2", "g: two")], "g and seed must be non-negative integers"),
        (["--spec", SMALL.replace("[128, 64]", "[128, 72]")], "group 1: K = 72 must be a positive multiple of 16"),
        (["--spec", SMALL.replace("[40, 24]", "[-40, 24]")], "group 0: M = -40 must be at least 0"),
        (["--spec", SMALL.replace("[48, 32]", "[48, 0]")], "group 1: N = 0 must be at least 1"),
        (["--spec", SMALL.replace("[48, 32]", "48")], "n = 48: one size for each of the g = 2 groups"),
        (["--spec", SMALL.replace("g: 2", "g: 3")], "one size for each of the g = 3 groups is needed"),
        (["--tests", "no-such-file"], "cannot read the cases: [Errno 2]"),
        (["--tests", "/dev/null"], "no cases in /dev/null"),
        (["--case", "10"], "there is no case 10: the last is 9"),
        (["--tests", "x", "--spec", SMALL], "--tests and --spec exclude each other"),
        (["--device", "cuda"], "--device cuda needs a GPU of compute capability 10.0 (B200); found: "),
        (["--submission", "no-such-file.py"], "there is no submission no-such-file.py"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cuda', 'emulated'"),
    ],
)
def test_one_sentence_for_bad_input(run, arguments, sentence):
    if utils.get_device().type == "cuda" and "cuda" in arguments:
        pytest.skip("this machine has a B200")
    code, output = run("test", *arguments)
    assert code == 2
    assert sentence in " ".join(output.split()), output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "command, name, text, sentence",
    [
        (["test"], "README.md", "# Words", "README.md is no submission: that is a Python file,"),
        (["profile"], "x", "", "x is no submission"),
        (["test"], "own.py", "def kernel(x):\n    return x\n", "own.py has no custom_kernel; the judge calls def"),
        (["test"], "own.py", "def custom_kernel(data)\n", "own.py, line 1: expected ':': def custom_kernel(data)"),
        (["test"], "own.py", "\0", "own.py, source code string cannot contain null bytes"),
        (["test", str(ROOT)], None, "", f"{ROOT} is a folder; a submission is a Python file"),
        (["test", "--task-dir", "nosuch"], None, "", "nosuch is no task: there is nothing there"),
        *(
            ([name, "--profile", "nosuch"], None, "", "times of 'nosuch': no profile says how fast it is; there are")
            for name in ("profile", "sweep")
        ),
    ],
)
def test_what_is_no_submission_task_or_profile_is_said_in_one_sentence(tmp_path, command, name, text, sentence):
    """Once, before any case is judged; without a name the submission is this repository's."""
    files = [str(tmp_path / name)] if name else []
    for file in files:
        Path(file).write_text(text)
    result = CliRunner().invoke(cli, [*command, *files])
    assert result.exit_code == 2 and sentence in " ".join(result.output.split()), result.output
    assert "case 0" not in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("line", ["globals()['custom_' + 'kernel'] = print", "from reference import *"])
def test_a_custom_kernel_may_come_by_other_means(tmp_path, line):
    file = tmp_path / "own.py"
    file.write_text(line)
    assert devices.checked(str(file)) == str(file)


def test_what_is_no_function_is_said():
    with pytest.raises(TypeError, match="custom_kernel of the submission is 5, no function"):
        entry(SimpleNamespace(custom_kernel=5), KERNEL)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["test", option] for option in ("--json", "--junit", "--html", "--sarif")),
        ["check", "--json"],
        ["profile", "--out"],
        ["sweep", "--results"],
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(run, honest, arguments):
    honest.unlink()  # which the work would miss
    code, output = run(*arguments, "/proc/none")
    assert code == 2 and "cannot write /proc/none: No such file or directory" in output


def test_help_and_mistakes_do_not_wait_for_torch():
    code = (
        "import sys\nfrom evaluation.commands.cli import cli\nfor words in [], ['sweep', '-h'], ['test', '--no']:\n"
        "    try: cli(words)\n    except SystemExit: pass\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "False" and "No such option '--no" in done.stderr, done.stderr
    of_moe = *moe_tasks.TASKS, *moe_tasks.MODELLED
    assert (options.TASKS, options.MOE_TASKS) == ((*TASKS,), of_moe)  # which it cannot import


@pytest.mark.parametrize("of, words, owner", [
    (cli, "test --grid a=1", "sweep"), (emulator, "run --within 5s x.py", "profile"),
    (emulator, "compare --no-gains a.py b.py", "profile"),
])  # fmt: skip
def test_an_option_of_another_command_names_it(of, words, owner):
    result = CliRunner().invoke(of, words.split())
    said = f"No such option {words.split()[1]!r}: it is an option of {owner}."
    assert result.exit_code == 2 and said in result.output


def test_a_submission_may_be_named_without_its_option(honest):
    result = CliRunner().invoke(cli, ["test", str(honest), "--spec", SMALL])
    assert result.exit_code == 0 and "1 case passed" in result.output
    two = "FILE is a.py and --submission b.py: give one"
    for wrong, sentence in (["none.py"], "there is no submission"), (["a.py", "--submission", "b.py"], two):
        result = CliRunner().invoke(cli, ["test", *wrong, "--spec", SMALL])
        assert result.exit_code == 2 and sentence in result.output


def test_an_interrupted_command_shows_and_writes_what_is_done(run, monkeypatch, tmp_path):
    def judged(cases, options, on_verdict, **_):
        for index in (1, 2):
            on_verdict(index, verdict.Verdict(cases[index].spec, "pass", "", 0, 0))
        interrupt._shows[-1]()  # as the handler of the signal does
        raise SystemExit(130)

    monkeypatch.setattr(running, "judge", judged)
    other = SMALL.replace("40", "48")
    specs = ("--spec", SMALL, "--spec", other, "--spec", other)
    code, output = run("test", *specs, "--json", str(tmp_path / "out.json"))
    assert code == 130 and "interrupted: 2 of 3 cases done" in output and "\n2 cases passed" in output
    rows = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [row["spec"] for row in rows] == [other, other] and not interrupt._shows


def test_a_case_that_takes_long_says_how_far_it_is(monkeypatch, tmp_path):
    """What the examiner says before its verdict, and what the process that models says to its log."""
    one = object.__new__(judge.ExaminerProcess)
    replies, told = [sandbox.Beat("half of it"), "verdict"], []
    one.channel = SimpleNamespace(send=lambda request: None, receive=lambda: (replies.pop(0), []))
    one.on_beat = told.append
    assert one.ask("case", died=None) == "verdict" and told == ["half of it"]
    monkeypatch.setattr(model_process, "BEAT_S", 0.02)
    log = tmp_path / "log"
    log.write_text("noise\nemulated-gpu: all of it\n")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        assert not model_process.ends(process, 0.05, log, told.append)
    finally:
        process.kill()
    assert model_process.ends(process, 10.0, log, told.append) and told == ["half of it", "all of it"]


def test_hidden_inputs_follow_the_secret(judged, tmp_path):
    """The first call has the case's own inputs, the others different ones: the same for the same secret. One call has
    other sizes, one all codes and scales, and the case is called once more than it would be."""
    submission = tmp_path / "submission.py"
    submission.write_text(
        "import os\nimport torch\nfrom reference import ref_kernel\n"
        "LOG = os.path.join(os.environ['TORCH_EXTENSIONS_DIR'], 'log')\n"
        "def custom_kernel(data):\n"
        "    sums = [t.view(torch.uint8).double().sum().item() for t in data[0][0][:2]]\n"
        "    print(data[3], sums, file=open(LOG, 'a'))\n    return ref_kernel(data)\n"
    )
    log = Path(builds(str(submission)), "log")  # a submission writes nowhere else
    log.unlink(missing_ok=True)
    size, runs = ((8,), (16,), (64,)), []
    for secret in (1, 1, 2):
        (verdict,) = judged(submission, size, secret=secret)
        assert verdict.status == "pass", verdict.reason
        runs.append(log.read_text().splitlines())
        log.unlink()
    sums = [t.view(torch.uint8).double().sum().item() for t in generate_input(*size, 1, 0)[0][0][:2]]
    assert runs[0] == runs[1] != runs[2]
    for lines in runs:
        listed = [line for line in lines if line.startswith("[(8, 16, 64, 1)]")]
        assert (len(lines), len(listed), len({*lines})) == (5, 4, 5)
        assert listed[0] == lines[0] == f"[(8, 16, 64, 1)] {sums}"


@pytest.mark.parametrize("seed", range(20))
def test_near_sizes_are_other_sizes_of_the_same_kind(seed):
    rng = np.random.default_rng(seed)
    for task in TASKS.values():
        for section in ("tests", "benchmarks"):
            for case in task_cases(task, section):
                for smaller in (False, True):
                    near = own_task.near(case.args, rng, smaller)
                    sizes = {name: value for name, value in near.items() if name != "seed"}
                    task.check_sizes(**sizes)
                    assert near != case.args and near["seed"] == case.args["seed"]
                    assert not smaller or all(np.less_equal(near[name], case.args[name]).all() for name in "nk")
                    assert task is not DUAL_GEMM or near["m"] % 256 == 0  # its text: M is divisible by the tile
    assert own_task.near({"m": (0,), "n": (16,), "k": (64,), "g": 1, "seed": 1}, rng)["m"] == (0,)


@pytest.mark.parametrize(
    "data",
    [
        lambda: generate_input((40, 0), (48, 16), (128, 64), 2, 1),
        lambda: generate_dual_input(40, 48, 128, 2, 1),
    ],
    ids=["group", "dual"],
)
def test_a_disguise_is_known_and_hides(data):
    """The result follows exactly, and signs, magnitudes with scales, and the order of rows are others."""
    data = data()
    known = inputs.Known(data)
    plain = [c.clone() for c in known.outputs(None)]
    before = [t.clone() for t in inputs.operands(data) + inputs.scales(data)]
    drawn = inputs.draw(9, data)
    inputs.disguise(data, drawn)
    after = [*inputs.Known(data).outputs(None)]
    assert not torch.equal(plain[0], after[0])
    assert len(after) == len(plain) == len(inputs.outputs(data))
    assert all(map(torch.equal, known.outputs(drawn), after))
    assert all(map(torch.equal, known.outputs(None), plain))
    for old, new in zip(before, inputs.operands(data) + inputs.scales(data)):
        old, new = (t.view(torch.uint8) for t in (old, new))
        assert not old.numel() or not torch.equal(old & 0x77, new & 0x77)


@pytest.mark.parametrize("ns", [0.0, -1.0, 1830.0, float("nan"), float("inf"), None, "7"])
def test_times_that_cannot_be(ns):
    read = 15_335_424  # 1.9 us at 8 TB/s
    verdict.check_time(1950.0, read)
    with pytest.raises(judge.Refused, match="is not a time|reading the inputs at 8 TB/s takes"):
        verdict.check_time(ns, read)


class Repeats(gpu_trial.MeasuredTrial):
    """A timed trial whose calls are made up: 100, 101, 102, ... us, and a millisecond more in audits."""

    def __init__(self, ns=100e3):
        self.verdict, self.rng = judge.Verdict("timed"), np.random.default_rng(1)
        self.ns, self.calls = ns, []

    def call(self, fresh, audit=False):
        self.calls.append((fresh, audit))
        return self.ns + 1e3 * len(self.calls) + (1e6 if audit else 0)


def test_timed_repeats_are_fresh_and_audited_at_random():
    trial = Repeats()
    gpu_trial.measure([trial], read=10_000)
    assert trial.calls[0] == (False, True)
    assert all(fresh for fresh, _ in trial.calls[1:])
    audits = [audit for _, audit in trial.calls]
    assert audits[-1]
    assert 10 < sum(audits) < 40
    assert trial.verdict.times.runs == audits.count(False) == 100
    assert 100e3 < trial.verdict.us * 1e3 < 250e3  # no audited repeat among them


def test_impossible_time_is_refused():
    with pytest.raises(judge.Refused, match="is not a time"):
        gpu_trial.measure([Repeats(float("nan"))], read=10_000)


def test_geometric_mean_needs_every_case():
    times = Stats(3, 4000.0, 1.0, 0.5, 1.0, 3.0)
    good = judge.Verdict("", "pass", times=times)
    better = judge.Verdict("", "pass", times=Stats(3, 9000.0, 1.0, 0.5, 1.0, 3.0))
    assert judge.geomean_us([good, better]) == pytest.approx(6.0)
    assert judge.geomean_us([good, judge.Verdict("", "fail", times=times)]) is None
    assert judge.geomean_us([good, judge.Verdict("", "pass")]) is None
    assert judge.geomean_us([]) is None


def test_without_the_environment_it_says_what_to_do(tmp_path):
    """-S: without the packages that are installed for this Python."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", str(ROOT / "eval.py"), "test"]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr == (
        f"{sys.executable} has no torch: run `make setup` once, then `.venv/bin/python {ROOT / 'eval.py'} test`\n"
    )
