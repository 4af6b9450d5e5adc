"""`eval.py` as the grader runs it: lines on POPCORN_FD, exit codes, seeds. Without a GPU it refuses to give times."""

import fcntl
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

import eval as grader
import reference
import task

ROOT = Path(grader.__file__).parent
SMALL = "m: [40, 24]; n: [48, 32]; k: [128, 64]; g: 2; seed: 1111"
ONE = "m: [8]; n: [16]; k: [64]; g: 1; seed: 7"
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch", "emulated_gpu"])


@pytest.fixture
def call_grader(honest, monkeypatch, capfd):
    """As run_grader, in this process: importing torch takes seconds. The worker has one of its own all the same, forked
    from one that has torch; fresh: begun anew, with what it prints in this process's output."""

    def call(mode: str, cases: str, fresh: bool = False, **environment):
        monkeypatch.chdir(honest.parent)
        monkeypatch.syspath_prepend(honest.parent)  # of the worker, too
        Path("cases.txt").write_text(cases)
        read, write = os.pipe()
        for name, value in {"POPCORN_FD": str(write), **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["eval.py", mode, "cases.txt"])
        if not fresh:
            monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKED)
        code = grader.grade()
        if code in (grader.BAD_ARGUMENTS, grader.BAD_CASES, grader.NO_PIPE):  # before it had a file to close
            os.close(write)
        os.set_blocking(read, False)  # a grader that leaves its end open fails here and does not hang
        with open(read, "rb", buffering=0) as pipe:
            text = (pipe.read(2**16) or b"").decode()
        lines = dict(line.split(": ", 1) for line in text.splitlines())
        return code, lines, "".join(capfd.readouterr())

    return call


def run_grader(folder: Path, mode: str, cases: str, **environment):
    """(exit code, lines on the pipe as the grader's dict, stdout + stderr), in a folder laid out as the grader does."""
    for name in ("eval.py", "task.py", "utils.py", "reference.py"):
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "cases.txt").write_text(cases)
    read, low = os.pipe()
    write = fcntl.fcntl(low, fcntl.F_DUPFD, 64)  # a number that no other file of the grader's processes has
    os.close(low)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POPCORN_FD": str(write), **environment}
    process = subprocess.run(
        [sys.executable, "eval.py", mode, "cases.txt"],
        cwd=folder,
        env=environment,
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        lines = dict(line.split(": ", 1) for line in pipe.read().splitlines())
    return process.returncode, lines, process.stdout


def test_test_mode(honest):
    code, lines, _ = run_grader(honest.parent, "test", f"{SMALL}\n{ONE}\n")
    assert code == 0
    assert lines == {
        "test-count": "2",
        "test.0.spec": SMALL,
        "test.0.status": "pass",
        "test.1.spec": ONE,
        "test.1.status": "pass",
        "check": "pass",
    }


def test_dual_gemm(honest, call_grader):
    dual = "m: 40; n: 32; k: 128; l: 2; seed: 1111"
    honest.write_text("from reference import dual_ref_kernel as custom_kernel\n")
    code, lines, _ = call_grader("test", f"{dual}\n{dual}\n")
    assert (code, lines["test.1.spec"], lines["test.1.status"], lines["check"]) == (0, dual, "pass", "pass")
    honest.write_text(
        "from reference import dual_ref_kernel\ndef custom_kernel(data):\n    return dual_ref_kernel(data) * 1.01\n"
    )
    code, lines, _ = call_grader("test", dual)
    assert (code, lines["test.0.status"], lines["check"]) == (112, "fail", "fail")
    assert "mismatch found! custom implementation doesn't match reference: 0" in lines["test.0.error"]


def test_wrong_results_fail_their_case_only(honest, call_grader):
    honest.write_text(honest.read_text() + "\nright = custom_kernel\n" + "def custom_kernel(data):\n"
                      "    return [c + len(data[3]) - 1 for c in right(data)]\n")  # fmt: skip
    code, lines, _ = call_grader("test", f"{SMALL}\n{ONE}\n")
    assert code == 112
    assert lines["test.0.status"] == "fail"
    assert "mismatch found! custom implementation doesn't match reference: 0" in lines["test.0.error"]
    assert lines["test.1.status"] == "pass"
    assert lines["check"] == "fail"


@pytest.mark.parametrize(
    "body, error",
    [
        ("raise ValueError('group 0:\\ncheck: pass')", "ValueError: group 0: check: pass"),
        ("import os; os._exit(0)", "BrokenProcessPool: "),
        ("return []", "output length mismatch: got 0, expected 1"),
    ],
)
def test_a_submission_that_raises_or_exits_fails(honest, call_grader, body, error):
    honest.write_text(f"def custom_kernel(data):\n    {body}\n")
    code, lines, _ = call_grader("test", ONE)
    assert code == 112
    assert lines["test.0.error"].startswith(error)
    assert (lines["test.0.status"], lines["check"]) == ("fail", "fail")


def test_a_submission_cannot_write_to_the_grader(honest):
    """It knows the number of the descriptor, but has not inherited it."""
    honest.write_text(
        "import os\ntry:\n    os.write(int(os.environ['POPCORN_FD']), b'check: pass\\n')\n"
        "except OSError:\n    print('no such descriptor')\nprint('check: pass')\n"
        "def custom_kernel(data):\n    return [c.zero_() for _, _, c in data[0]]\n"
    )
    code, lines, printed = run_grader(honest.parent, "test", ONE)
    assert (code, lines["check"]) == (112, "fail")
    assert "no such descriptor\ncheck: pass" in printed


def test_secret_seed_changes_the_inputs_and_stays_secret(honest, call_grader):
    honest.write_text(
        "import os\nfrom reference import ref_kernel\n"
        "def custom_kernel(data):\n"
        "    assert 'POPCORN_SEED' not in os.environ\n"
        "    digest = data[0][0][1].view(__import__('torch').uint8).double().sum().item()\n"
        "    print('digest', digest, file=open('said', 'w'))\n"
        "    return ref_kernel(data)\n"
    )
    for seed, env in ((task.combine_seeds(7, 123456), {"POPCORN_SEED": "123456"}), (7, {})):
        call_grader("test", ONE, fresh=bool(env), **env)  # a fresh one has the environment
        text = honest.with_name("said").read_text()
        (((_, b, _),), *_) = reference.generate_input((8,), (16,), (64,), 1, seed)
        assert f"digest {b.view(reference.torch.uint8).double().sum().item()}" in text


@pytest.mark.parametrize("mode", ["benchmark", "leaderboard", "profile"])
def test_no_times_without_a_gpu(call_grader, mode):
    code, lines, _ = call_grader(mode, f"{SMALL}\n{ONE}\n")
    assert code == 112
    assert lines["benchmark-count"] == "2"
    assert lines["benchmark.1.spec"] == ONE
    assert lines["benchmark.1.status"] == "fail"
    assert lines["benchmark.1.error"] == "times need a B200: this machine has no GPU that runs sm_100a code"
    assert lines["check"] == "fail"
    assert not any(key.endswith(("mean", "best")) for key in lines)


@pytest.mark.parametrize(
    "mode, cases, environment, code",
    [
        ("test", "m: [1; n: 2", {}, 113),
        ("test", "m: 1\n\nm: 2", {}, 113),
        ("race", ONE, {}, 2),
        ("test", ONE, {"POPCORN_FD": "no number"}, 111),
        ("test", ONE, {"POPCORN_FD": "987"}, 111),
    ],
)
def test_exit_codes(call_grader, mode, cases, environment, code):
    assert call_grader(mode, cases, **environment)[0] == code


def test_missing_case_file(honest):
    (honest.parent / "cases.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        run_grader(honest.parent, "test", ONE)
    assert grader.BAD_CASES == 113


# ---- timing modes with the worker's answers made up: what is logged, in which order, and when it stops


class Pipe(grader.Report):
    def __init__(self):
        self.lines = []

    def log(self, key, value):
        self.lines.append(f"{key}: {value}")


class Answers:
    """Stands in for the worker process."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def run(self, function, *arguments):
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


STATS = grader.Stats(3, 2.0, 1.0, 0.5, 1.0, 3.0)
LINES = ["runs: 3", "mean: 2.0", "std: 1.0", "err: 0.5", "best: 1.0", "worst: 3.0"]


def cases():
    return [task.parse_case(SMALL), task.parse_case(ONE)]


def test_benchmark_mode():
    pipe, answers = Pipe(), Answers(STATS, "wrong", STATS)
    assert grader.run_benchmarks(pipe, answers, cases(), ranked=False) == 112
    expected = [
        "benchmark-count: 2",
        f"benchmark.0.spec: {SMALL}",
        "benchmark.0.status: fail",
        "benchmark.0.error: wrong",
    ]
    expected += [f"benchmark.1.spec: {ONE}", *(f"benchmark.1.{line}" for line in LINES), "check: fail"]
    assert pipe.lines == expected
    assert [asked[1:] for asked in answers.asked] == [(False, 100, 10e7)] + [(False, 100, 10e9)] * 2


def test_leaderboard_mode():
    pipe, answers = Pipe(), Answers(*[STATS] * 4)
    assert grader.run_benchmarks(pipe, answers, cases(), ranked=True) == 0
    assert pipe.lines[-1] == "check: pass"
    assert [asked[1:] for asked in answers.asked] == [(False, 50, 5e8)] * 2 + [(True, 100, 30e9)] * 2
    pipe, answers = Pipe(), Answers(STATS, STATS, "wrong")
    assert grader.run_benchmarks(pipe, answers, cases(), ranked=True) == 112
    assert pipe.lines[-3:] == ["benchmark.0.status: fail", "benchmark.0.error: wrong", "check: fail"]


def test_each_task_has_its_grader_s_numbers_of_timings():
    pipe, answers = Pipe(), Answers(*[STATS] * 4)
    dual = [task.parse_case("m: 40; n: 32; k: 128; l: 2; seed: 1111")]
    assert grader.run_benchmarks(pipe, answers, dual, ranked=False) == 0
    assert grader.run_benchmarks(pipe, answers, dual, ranked=True) == 0
    expected = [(False, 200, 10e7), (False, 200, 10e9), (False, 1000, 5e8), (True, 1000, 30e9)]
    assert [asked[1:] for asked in answers.asked] == expected
    assert {name: kind.calls for name, kind in reference.TASKS.items()} == {
        "nvfp4_group_gemm": 15,
        "nvfp4_dual_gemm": 50,
    }


def test_profile_mode():
    pipe = Pipe()
    assert grader.run_profiles(pipe, Answers("table", ""), cases()) == 0
    assert pipe.lines[2] == "benchmark.0.report: dGFibGU="


def test_a_worker_that_fails_is_no_pass():
    for error in (RuntimeError("CUDA error: an illegal memory access"), grader.CaseTimeout("killed")):
        pipe = Pipe()
        with pytest.raises(type(error)):
            grader.run_tests(pipe, Answers(error), cases())
        assert pipe.lines[-2] == "test.0.status: fail"


@pytest.mark.parametrize(
    "error, code", [(RuntimeError("CUDA error: launch failure"), 110), (grader.CaseTimeout("killed"), 114)]
)
def test_exit_codes_of_a_failing_worker(monkeypatch, tmp_path, error, code):
    class Failing(Answers):
        def __init__(self, emulated):
            super().__init__(error)

        def close(self):
            pass

    (tmp_path / "cases.txt").write_text(ONE)
    read, write = os.pipe()
    monkeypatch.setenv("POPCORN_FD", str(write))
    monkeypatch.setattr(grader, "Worker", Failing)
    monkeypatch.setattr(sys, "argv", ["eval.py", "test", str(tmp_path / "cases.txt")])
    assert grader.grade() == code
    with os.fdopen(read) as pipe:
        assert pipe.read().splitlines()[-1] == "check: fail"


def test_hanging_worker_is_killed(monkeypatch):
    monkeypatch.setattr(grader, "CASE_TIMEOUT_S", 6)
    worker = grader.Worker(emulated=False)
    with pytest.raises(grader.CaseTimeout, match="no result within 6 s: killed"):
        worker.run(grader.time.sleep, 100)
    worker.close()


def test_statistics():
    stats = grader.calculate_stats([1.0, 2.0, 6.0])
    assert (stats.runs, stats.mean, stats.best, stats.worst) == (3, 3.0, 1.0, 6.0)
    assert stats.std == pytest.approx(7**0.5)
    assert stats.err == pytest.approx((7 / 3) ** 0.5)


@pytest.mark.parametrize(
    "durations, elapsed_ns, max_time_ns, enough",
    [
        ([5.0] * 2, 1e12, 1e9, False),  # never before three
        ([5.0] * 3, 1e8, 1e9, False),  # never before 0.1 s
        ([5.0] * 3, 2e8, 1e9, True),  # no error left
        ([1.0, 5.0, 9.0], 2e8, 1e9, False),
        ([1.0, 5.0, 9.0], 2e8, 14.0, True),  # measured for long enough
        ([1.0, 5.0, 9.0], 121e9, 1e9, True),  # two minutes have passed
    ],
)
def test_stopping_rule(durations, elapsed_ns, max_time_ns, enough):
    assert grader.precise_enough(durations, elapsed_ns, max_time_ns) == enough
