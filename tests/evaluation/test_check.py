"""`python eval.py check` names rule, line and column of what would be refused, and passes the submission."""

import ast
import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from evaluation import ROOT
from evaluation.commands.cli import cli
from evaluation.upload import check as checks
from evaluation.upload import compile_time, dsl_api
from evaluation.upload.findings import RULES, Finding

HEADER = "#!POPCORN leaderboard nvfp4_group_gemm\n#!POPCORN gpu B200\n"
KERNEL = "def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n"
WORD = "str" + "eam"

# What is wrong (rule, severity), the text, and what the finding has to point at (the first place where it occurs).
PLANTED = {
    "word in a comment": ("forbidden-word", "error", f"# a second {WORD.upper()} hides here", WORD.upper()),
    "word in a name": ("forbidden-word", "error", f"q = None  # my{WORD}s", WORD),
    "word from pieces": ("hidden-word", "error", "q = getattr(object, 'Str' + 'eam', None)", "'Str' + 'eam'"),
    "word backwards": ("hidden-word", "error", "q = 'maertS'[::-1]", "'maertS'[::-1]"),
    "word joined": ("hidden-word", "error", "q = ''.join(['s', 'tre', chr(97), 'm'])", "''.join"),
    "word from literals side by side": ("hidden-word", "warning", "q = 'Str' 'eam'", "'Str' 'eam'"),
    "word from escapes": ("hidden-word", "warning", "q = '\\x73tream'", "'\\x73tream'"),
    "word from escapes in bytes": ("hidden-word", "warning", "q = b'\\x73tream'", "b'\\x73tream'"),
    "pasted tokens": ("hidden-word", "error", "SOURCE = 'cudaStre##am_t q;'", "'cudaStre"),
    "package that is not there": ("import", "error", "import cupy", "import cupy"),
    "package, deeper": ("import", "error", "from flash_attn.cute import utils as u", "from flash"),
    "module that 3.13 lacks": ("import", "error", "import distutils.util", "import distutils"),
    "relative import": ("import", "error", "from . import helpers", "from ."),
    "repository's own package": ("import", "error", "import emulated_gpu", "import emulated_gpu"),
    "imported by name": (
        "import",
        "error",
        "import importlib\nx = importlib.import_module('cu' + 'py')",
        "importlib.imp",
    ),
    "pip by subprocess": (
        "install",
        "error",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])",
        "subprocess.run",
    ),
    "pip by os.system": ("install", "error", "from os import system\nsystem('uv pip install x')", "system('uv"),
    "pip as a module": ("install", "error", "from pip import main", "from pip"),
    "download": (
        "install",
        "warning",
        "from urllib import request\nrequest.urlopen('https://example.org')",
        "request.urlopen",
    ),
    "other process": ("process", "warning", "import subprocess as sp\nsp.Popen(['ls'])", "sp.Popen"),
    "thread": (
        "second-queue",
        "warning",
        "import threading\nthreading.Thread(target=print).start()",
        "threading.Thread(",
    ),
    "context of its own": (
        "second-queue",
        "error",
        "from cuda.bindings import driver\ndriver.cuCtxCreate(None, 0, 0)",
        "driver.cuCtxCreate",
    ),
    "context in C++": ("second-queue", "error", "SOURCE = 'cuCtxCreate(&c, 0, 0);'", "'cuCtx"),
    "graph class": ("graph", "error", "import torch\ng = torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph"),
    "graph by alias": ("graph", "error", "import torch.cuda as tc\nmake = tc.make_graphed_callables", "tc.make"),
    "graph by getattr": ("graph", "error", "import torch\ng = getattr(torch.cuda, 'CUDA' 'Graph')", "getattr"),
    "graph in C++": ("graph", "error", "SOURCE = '''\ncudaGraphLaunch(graph, 0);'''", "'''"),
    "graph in a comment": ("graph-word", "warning", "# no CUDA GRAPH here", "GRAPH"),
    "graph by torch.compile": (
        "graph",
        "error",
        "import torch\nf = torch.compile(print, mode='reduce-overhead')",
        "torch.compile",
    ),
    "cache by id": ("identity-cache", "error", "known = {}\ndef f(data):\n    return known[id(data)]", "known[id"),
    "cache by a variable": (
        "identity-cache",
        "error",
        "known = {}\ndef f(data):\n    where = (data.data_ptr(), 1)\n    return known.get(where)",
        "known.get",
    ),
    "address remembered": (
        "identity-cache",
        "error",
        "def f(self, t):\n    return self.out if t.data_ptr() == self.last else None",
        "t.data_ptr() ==",
    ),
    "address given to lru_cache": (
        "identity-cache",
        "error",
        "import functools\n@functools.lru_cache\ndef g(p): ...\ndef f(t):\n    return g(t.data_ptr())",
        "g(t.",
    ),
    "address of a set": ("identity-cache", "error", "seen = set()\ndef f(t):\n    return id(t) in seen", "id(t) in"),
    "weak references": ("identity-cache", "error", "import weakref\nw = weakref.WeakKeyDictionary()", "weakref.Weak"),
    "the same object": ("identity-cache", "warning", "last = None\ndef f(data):\n    return data is last", "data is"),
    "frames": ("frame-walk", "error", "import sys\ncaller = sys._getframe(1)", "sys._getframe"),
    "frames by attribute": ("frame-walk", "error", "def f(error):\n    return error.tb_frame", "error.tb_frame"),
    "frames by inspect": ("frame-walk", "error", "import inspect\ns = inspect.stack()", "inspect.stack"),
    "all objects": ("frame-walk", "error", "import gc\no = gc.get_referrers(1)", "gc.get_referrers"),
    "encoded code": ("dynamic-code", "error", "import base64\nexec(base64.b64decode('cGFzcw=='))", "exec("),
    "code from text": ("dynamic-code", "warning", "x = eval('1 + 1')", "eval("),
    "compiled text": ("dynamic-code", "warning", "x = compile('1', '', 'eval')", "compile"),
    "reloaded module": (
        "dynamic-code",
        "warning",
        "import importlib, task\nimportlib.reload(task)",
        "importlib.reload",
    ),
    "marshalled code": ("dynamic-code", "error", "import marshal\nc = marshal.loads(b'')", "marshal.loads"),
    "patched timer": ("patching", "error", "import torch\ntorch.cuda.Event.elapsed_time = None", "torch.cuda.Event"),
    "patched class": ("patching", "error", "from torch.cuda import Event\nEvent.record = None", "Event.record"),
    "patched clock": ("patching", "error", "import time\nsetattr(time, 'perf_counter', int)", "setattr"),
    "patched dictionary": ("patching", "error", "import time\nvars(time)['time'] = int", "vars(time)"),
    "patched reference": ("patching", "error", "import reference\nreference.ref_kernel = print", "reference.ref"),
    "patched builtin": ("patching", "error", "import builtins\nbuiltins.print = None", "builtins.print"),
    "replaced code": ("patching", "error", "def f(): ...\nf.__code__ = None", "f.__code__"),
    "replaced module": ("patching", "error", "import sys\nsys.modules['time'] = None", "sys.modules"),
    "grader's module": ("harness", "error", "import eval", "import eval"),
    "loaded modules": ("harness", "warning", "import sys\nm = sys.modules.get('time')", "sys.modules"),
    "grader's environment": ("harness", "error", "import os\nd = os.getenv('POPCORN_FD')", "'POPCORN_FD'"),
    "grader's arguments": ("harness", "error", "import sys\nmode = sys.argv[1]", "sys.argv"),
    "grader's protocol": ("harness", "error", "print('benchmark.0.mean: 1')", "'benchmark.0"),
    "dsl: newer name": ("dsl-api", "error", "import cutlass.cute as cute\na = cute.arch.no_such_thing", "cute.arch"),
    "dsl: import": ("dsl-api", "error", "from cutlass.cute.nvgpu import tcgen06", "from cutlass"),
    "dsl: enum": (
        "dsl-api",
        "error",
        "from cutlass.cute.nvgpu import tcgen05 as t\nx = t.CtaGroup.THREE",
        "t.CtaGroup",
    ),
    "dsl: argument": (
        "dsl-api",
        "error",
        "from cutlass.cute.runtime import make_ptr\np = make_ptr(None, 16, adress_space=1)",
        "1)",
    ),
    "not Python": ("syntax", "error", "def f(:", ":"),
}


def place(text: str, what: str) -> tuple[int, int]:
    """Line and column, from 1, of the first `what` in text."""
    before = text[: text.index(what)]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


automatic_review = checks.check_automatic_review


@pytest.fixture(autouse=True)
def without_automatic_review(monkeypatch):
    """It takes a second for each text, and has tests of its own."""
    monkeypatch.setattr(checks, "check_automatic_review", lambda text: [])


def found(text: str, tmp_path, name="submission.py") -> list[Finding]:
    path = tmp_path / name
    path.write_text(text)
    return checks.check(path)[0]


@pytest.mark.parametrize("what", PLANTED)
def test_planted_violation(what, tmp_path):
    rule, severity, code, at = PLANTED[what]
    text = HEADER + code + "\n" + KERNEL
    findings = found(text, tmp_path)
    where = place(text, code)[0] - 1, *place(code, at)
    assert [(f.rule, f.severity, f.line, f.column) for f in findings] == [
        (rule, severity, where[0] + where[1], where[2])
    ]
    assert findings[0].link == RULES[rule]


INNOCENT = """
import ctypes, functools, os, subprocess
import torch
from cutlass import Int32
import cutlass.cute as cute
try:
    import kernelguard
except ImportError:
    kernelguard = None

torch.backends.cuda.matmul.allow_tf32 = True
os.environ["CUTE_DSL_LINEINFO"] = "1"
plans = {}

class Plan:
    '''Has a sys._getframe, cuCtxCreate and POPCORN_FD in its documentation only.'''

    def __init__(self, sizes):
        self.sizes = sizes

@functools.lru_cache
def compiled(groups): return cute.arch.thread_idx

def custom_kernel(data, *, plan=None):
    sizes = tuple(map(tuple, data[3]))
    if plans.get(sizes) is None:
        plans[sizes] = Plan(sizes)
    addresses = [t.data_ptr() for group in data[0] for t in group]
    if addresses[0] % 16 != 0:
        raise ValueError("aligned to 16 bytes")
    words = (ctypes.c_int64 * 64)()
    words[: len(addresses)] = addresses
    compiled(len(sizes))
    return [c for _, _, c in data[0]]
"""


def test_honest_code_has_no_findings(tmp_path):
    assert found(HEADER + INNOCENT, tmp_path) == []


HEADERS = {
    "unknown leaderboard": ("#!POPCORN leaderboard nvfp4_groups\n", 1, "error", "unknown leaderboard"),
    "other leaderboard": ("#!POPCORN leaderboard nvfp4_gemm\n", 1, "error", "another problem"),
    "unknown gpu": (HEADER.replace("B200", "H100"), 2, "error", "no GPU 'H100': B200, NVIDIA"),
    "second gpu": (HEADER + "#!POPCORN gpus NVIDIA\n", 3, "error", "second value for gpus"),
    "second leaderboard": (HEADER + "#!POPCORN leaderboard nvfp4_group_gemm\n", 3, "error", "second value"),
    "unknown directive": (HEADER + "#!POPCORN mode test\n", 3, "error", "unknown directive 'mode'"),
    "no directive": (HEADER + "#!POPCORN\n", 3, "error", "unknown directive ''"),
    "no value": (HEADER.replace(" B200", ""), 2, "error", "gpus has no value"),
    "late": (HEADER.replace("#!POPCORN gpu", "\n#!POPCORN gpu"), 3, "error", "leading comment block"),
    "misspelt": (HEADER.replace("#!POPCORN gpu", "#!popcorn gpu"), 2, "warning", "looks like a directive"),
    "two gpus": (HEADER.replace("B200", "B200 NVIDIA"), 2, "warning", "first GPU only"),
    "no leaderboard": ("#!POPCORN gpu B200\n", 0, "warning", "needs --leaderboard"),
}


def test_what_python_compiles_is_reviewed_however_deep(tmp_path):
    """A sum of 900 terms is 900 nodes deep, more than Python's limit lets a visitor of the tree go."""
    deep = f"q = {'1 + ' * 899}getattr(object, 'Str' + 'eam', 1)\n"
    (finding,) = found(HEADER + deep + KERNEL, tmp_path)
    assert (finding.rule, finding.line) == ("hidden-word", 3)


def test_what_python_cannot_compile_is_a_finding(tmp_path):
    (finding,) = found(f"{HEADER}q = {'-' * 100_000}1\n{KERNEL}", tmp_path)
    assert (finding.rule, finding.severity) == ("syntax", "error") and "nested too deeply" in finding.message


def test_a_byte_order_mark_is_no_syntax_error(tmp_path):
    """Python skips it; the bot does not, and takes the first line for no directive."""
    findings = found("\N{ZERO WIDTH NO-BREAK SPACE}" + HEADER + KERNEL, tmp_path)
    assert {f.rule for f in findings} == {"header"}
    assert any("byte order mark" in f.message for f in findings)


def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "submission.py")
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "submission.py")])
    assert result.exit_code == 2 and "is not a regular file" in result.output


@pytest.mark.parametrize("what", HEADERS)
def test_header(what, tmp_path):
    header, line, severity, message = HEADERS[what]
    (finding,) = found(header + KERNEL, tmp_path)
    assert (finding.rule, finding.line, finding.severity) == ("header", line, severity)
    assert message in finding.message


def test_header_of_comments_may_be_long(tmp_path):
    assert found("# a comment\n#\n" + HEADER + KERNEL, tmp_path) == []


def test_file(tmp_path):
    text = HEADER + KERNEL
    largest = text + "#" * (1_000_000 - len(text))
    assert found(largest, tmp_path) == []
    (finding,) = found(largest + "#", tmp_path)
    assert finding.rule == "size" and "1,000,001 bytes" in finding.message
    assert [f.rule for f in found("", tmp_path)] == ["size"]
    (finding,) = found(text, tmp_path, "submission.txt")
    assert finding.rule == "extension" and ".cuh" in finding.message
    (finding,) = found(text, tmp_path, "submission.cu")
    assert finding.rule == "extension" and "has to be a .py file" in finding.message
    latin = tmp_path / "submission.py"
    latin.write_bytes(text.encode() + b"# \xb5s")
    (finding,), spent = checks.check(latin, ["tests m: [16]"])
    assert (finding.rule, finding.line, finding.column) == ("encoding", text.count("\n") + 1, 3) and not spent


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("def kernel(data): ...\n", "no function"),
        ("def custom_kernel(): ...\n", "one argument"),
        ("def custom_kernel(data, more): ...\n", "one argument"),
        ("def custom_kernel(data, *, more): ...\n", "one argument"),
    ],
)
def test_interface(kernel, message, tmp_path):
    (finding,) = found(HEADER + kernel, tmp_path)
    assert finding.rule == "interface" and message in finding.message


def test_dsl_of_another_version_is_not_compared(monkeypatch):
    monkeypatch.setattr(dsl_api, "VERSION", "4.0.0")
    (finding,) = dsl_api.check_dsl(ast.parse("import cutlass"))
    assert finding.severity == "error" and "needs nvidia-cutlass-dsl 4.0.0" in finding.message
    assert dsl_api.check_dsl(ast.parse("import torch")) == []


def test_a_dsl_argument_that_exists_is_accepted():
    text = "import cutlass.cute as c\nc.arch.fence_proxy('alias', space=None)\nc.arch.fence_proxy('alias', spice=None)"
    (finding,) = dsl_api.check_dsl(ast.parse(text))
    assert (finding.line, finding.message) == (
        3,
        "cutlass.cute.arch.fence_proxy of CuTe DSL 4.5.2 has no argument spice",
    )


CASE = "m: [16]; n: [16]; k: [64]; g: 1; seed: 1"
SLOW = """import time
import torch
def custom_kernel(data):
    time.sleep(torch.tensor(0.6, device="cuda").item())
    if data[3][0][0] == 32:
        raise RuntimeError("no kernel image")
    return [c for _, _, c in data[0]]
"""


def test_compile_time(tmp_path):
    """Half of one limit used up, another passed, and a case that raises."""
    path = tmp_path / "submission.py"
    path.write_text(SLOW)
    cases = [f"tests {CASE}", f"benchmarks {CASE}", f"benchmarks {CASE.replace('m: [16]', 'm: [32]')}"]
    limits, told = {"import": 600, "tests": 1.1, "benchmarks": 0.5}, []
    findings, spent = compile_time.check_compile_time(path, cases, limits, told.append)
    assert told[:1] == [0]  # while the second sleeps
    assert [(f.rule, f.severity, f.line) for f in findings] == [
        ("compile", "error", 6),
        ("compile-time", "warning", 0),
        ("compile-time", "error", 0),
    ]
    assert "benchmarks: RuntimeError: no kernel image" in findings[0].message
    assert "tests: 0." in findings[1].message
    assert "on this machine, the grader allows 0.5 s" in findings[2].message
    assert 0.6 < spent["tests"] and 0.1 < spent["import"]


CANDIDATES = """
import functools
import time

CONFIG_MAP = {((16,), 16, 64): (0.0, 0.3, 0.5)}

@functools.cache
def plan(shape):
    time.sleep(CONFIG_MAP[shape][0])

def custom_kernel(data):
    ((m, n, k, _),) = data[3]
    plan(((m,), n, k))
    return [c for _, _, c in data[0]]
"""


@pytest.mark.thorough
def test_compile_time_of_all_configs_of_a_case(tmp_path):
    """Among which a submission would choose on a GPU."""
    path, limits = tmp_path / "submission.py", {"import": 600, "tests": 600, "benchmarks": 600}
    path.write_text(CANDIDATES)
    findings, spent = compile_time.check_compile_time(path, [f"benchmarks {CASE}"], limits)
    assert not findings and 0.8 < spent["benchmarks"] < 10


@pytest.mark.parametrize(
    ("text", "limits", "message"),
    [
        ("import os\nprint('bye')\nos._exit(0)\n", compile_time.LIMITS, "the process ended early: bye"),
        ("import time\ntime.sleep(60)\n", {"import": 0.2}, "not done after 0.2 s on this machine, killed"),
    ],
    ids=["exits", "hangs"],
)
def test_what_cannot_be_measured_is_an_error(text, limits, message, tmp_path):
    path = tmp_path / "submission.py"
    path.write_text(text)
    findings, _ = compile_time.check_compile_time(path, [f"tests {CASE}"], limits)
    assert [f.message for f in findings if f.severity == "error"] == [message]


def test_waiting_for_a_core_counts_for_nobody(monkeypatch):
    waited = SimpleNamespace(read_text=lambda: "0 5000000000 1\n")
    monkeypatch.setattr(compile_time, "Path", lambda of: waited)
    assert time.perf_counter() - compile_time.clock() == pytest.approx(5.0, abs=0.01)


def test_only_clean_code_is_run(tmp_path, monkeypatch):
    ran = []
    timed = [], {"tests": 1.0}
    monkeypatch.setattr(checks, "check_compile_time", lambda path, cases, done: ran.append(path) or timed)
    path = tmp_path / "submission.py"
    path.write_text(HEADER + KERNEL)
    assert checks.check(path, [CASE])[1] == {"tests": 1.0}
    path.write_text(HEADER + "import cupy\n" + KERNEL)
    assert checks.check(path, [CASE])[1] == {} and len(ran) == 1


@pytest.mark.skipif(not checks.review_available(), reason="KernelGuard needs Python 3.11")
def test_automatic_review():
    text = "import torch\ntorch.cuda.Event.elapsed_time = lambda self, end: 1e-3\n" + KERNEL
    assert any(f.severity == "error" and "TIMER_MONKEYPATCH" in f.message for f in automatic_review(text))
    assert automatic_review(HEADER + INNOCENT) == []


@pytest.mark.skipif(not checks.review_available(), reason="KernelGuard needs Python 3.11")
def test_a_review_without_a_verdict_is_an_error(monkeypatch):
    done = subprocess.CompletedProcess([], 3, "oops\n", "broken")
    monkeypatch.setattr(checks.subprocess, "run", lambda *args, **kwargs: done)
    (finding,) = automatic_review(KERNEL)
    assert finding.severity == "error" and "exit code 3" in finding.message
    monkeypatch.undo()
    monkeypatch.setattr(checks, "REVIEW_S", 0.01)
    (finding,) = automatic_review(KERNEL)
    assert finding.severity == "error" and "not done after 0.01 s" in finding.message


def test_command_line(tmp_path, monkeypatch):
    path = tmp_path / "submission.py"
    path.write_text(HEADER + "import cupy\n" + KERNEL)
    monkeypatch.setattr(checks, "review_available", lambda: False)
    result = CliRunner().invoke(cli, ["check", str(path), "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 1
    assert f"{path}:3:1: error [import] the grader's image has no package cupy\n    {RULES['import']}" in result.output
    assert "Nothing was compiled" in result.output and "1 error, 0 warnings" in result.output
    (row,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert (row["rule"], row["line"], row["link"]) == ("import", 3, RULES["import"])
    missing = CliRunner().invoke(cli, ["check", str(tmp_path / "none.py")])
    assert missing.exit_code == 2 and "cannot read the submission" in missing.output


def test_the_submission_has_no_findings(tmp_path):
    assert found((ROOT / "submission.py").read_text(), tmp_path) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_the_submission_passes(tmp_path):
    """With the first guess of each case: all are 44 kernels; test_machine_code.py has those of the group GEMM."""
    path = tmp_path / "submission.py"
    lines = [f"for _ in {name}:\n    {name}[_] = {name}[_][:1]" for name in ("CONFIG_MAP", "DUAL_CONFIG_MAP")]
    path.write_text("\n".join([(ROOT / "submission.py").read_text(), *lines, ""]))
    command = [sys.executable, "eval.py", "check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout
    assert re.search(r"measured on this machine .*: import [\d.]+ s \(limit 120 s\), tests [\d.]+ s", done.stdout)
