"""`sweep` and `compare`: what is ranked is right, what is not says why, results are kept, and a difference is one only
if it can be told. The submission is tests/tiny_kernel.py, which takes nothing to compile."""

import contextlib
import json
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner

from emulated_gpu import grid
from emulated_gpu.model import ranking
from emulated_gpu.model.steady import Steady
from emulated_gpu.outputs import duration
from emulated_gpu.page.write import fill, views
from evaluation import ROOT
from evaluation.commands import compare, interrupt, model_process, profile, show, sweep
from evaluation.commands.cli import cli
from evaluation.commands.profile import Wanted
from evaluation.commands.show import Screen
from evaluation.judge import configs, gpu_trial, judge
from evaluation.judge.loading import explain, load_submission
from evaluation.judge.statistics import Stats
from evaluation.judge.verdict import Refused, Verdict
from task import parse_case
from tests import tiny_kernel
from tests.emulated_gpu.serve.test_answers import Timed

TINY = ROOT / "tests" / "tiny_kernel.py"
SPECS = ["m: [2]; n: [16]; k: [64]; g: 1; seed: 3", "m: [1]; n: [32]; k: [64]; g: 1; seed: 3"]


def invoke(*arguments):
    """(exit code, lines of standard output, lines of standard error)."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One sweep over two cases: (exit code, output, progress, JSON, where results are kept)."""
    folder = tmp_path_factory.mktemp("swept")
    kept, file = folder / "new" / "kept.jsonl", folder / "out.json"
    asked = ["wrong=true", "race=true", "wrong=1", "policy=foo", "nope=1", "repeat=2", "wrong=true,race=true"]
    arguments = [part for text in asked for part in ("--config", text)]
    arguments += [part for spec in SPECS for part in ("--spec", spec)]
    arguments += ["--grid", "repeat=1..3", "--jobs", 1, "--results", kept, "--json", file]
    code, output, progress = invoke("sweep", "--submission", TINY, *arguments)
    return code, output, progress, json.loads(file.read_text()), kept


def test_sweep_ranks_what_is_right(swept):
    code, output, _, result, _ = swept
    assert code == 1  # not all could be ranked
    at = output.index(next(line for line in output if line.startswith("rank")))
    assert output[at].split() == ["rank", "case", "0", "case", "1", "geomean", "config"]
    assert re.match(r" +1 +16\.\d\d +16\.\d\d +16\.\d{3}  repeat=1$", output[at + 1])
    assert re.match(r" +2 +29\.\d\d +29\.\d\d +29\.\d{3}  as submitted = repeat=2$", output[at + 2])
    assert re.match(r" +- +fail +fail +-  wrong=true$", output[at + 3])
    assert result["ranking"][0]["change"] == {"repeat": "1"} and result["kind"] == "modelled"
    times = [outcome["us"] for outcome in result["cases"] if outcome["change"] == {"repeat": "1"}]
    assert result["ranking"][0]["geomean_us"] == pytest.approx((times[0] * times[1]) ** 0.5)
    assert [row["change"] for row in result["ranking"] if row["geomean_us"]] == [
        {"repeat": "1"},
        {},
        *[{"repeat": "2"}] * 2,
    ]


def test_sweep_says_in_one_line_why_not(swept):
    _, output, _, result, _ = swept
    reasons = [line for line in output if line.startswith("not ranked")]
    assert reasons[0].startswith("not ranked: wrong=true: group 0: 32 of 32 elements differ") and "NaN" in reasons[0]
    assert reasons[1].startswith("not ranked: race=true: race: read of shared memory ")
    assert reasons[2:] == [
        "not ranked: wrong=1: true or false",
        "not ranked: policy=foo: one of first, last",
        "not ranked: nope=1: Config has no nope; it has repeat, wrong, race, policy, kib",
        "not ranked: wrong=true,race=true: wrong and racing is too much",
        "not ranked: repeat=3: one of 1, 2, 4",
    ]
    status = {json.dumps(outcome["change"]): outcome["status"] for outcome in result["cases"]}
    assert status['{"wrong": "true"}'] == status['{"race": "true"}'] == "fail"
    assert status['{"repeat": "3"}'] == "invalid"
    assert all((outcome["us"] is None) == (outcome["status"] != "pass") for outcome in result["cases"])


def test_sweep_says_at_once_that_there_is_nothing_to_try(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "judge", lambda *_: pytest.fail("it was run"))
    replies = [{"config": "Config()", "line": ""}, {"error": "Config has no foo; it has stages"}]
    monkeypatch.setattr(sweep, "configs_of", lambda *_: replies)
    options, case = judge.Options(str(TINY), "emulated"), type("Case", (), {"args": {}, "spec": "m: 1"})
    with pytest.raises(ValueError, match="nothing to try: Config has no foo"):
        sweep.sweep(None, [(0, case)], [{}, {"foo": "1"}], options, tmp_path / "kept", False, Wanted("b200", 1, 9.0))


def test_sweep_shows_what_is_submitted_and_what_to_paste(swept):
    _, output, _, result, _ = swept
    assert "as submitted, case 0: repeat=2,wrong=False,race=False,policy=first,kib=0" in output
    at = output.index("fastest: repeat=1; to paste into the submission:")
    assert output[at + 1 : at + 3] == [
        "    ((2,), 16, 64): (Config(repeat=1), Config(), Config(kib=8)),",
        "    DEFAULT = Config(repeat=1)",
    ]
    of = tiny_kernel.Config
    entry = eval(f"{{{output[at + 1]}}}", {"Config": tiny_kernel.Config})
    assert entry == {((2,), 16, 64): tuple(map(of, (1, 2))) + (of(kib=8),)}
    assert "Times are modelled (profile b200;" in output[-1]


def test_sweep_runs_the_same_config_once_and_goes_on(swept, tmp_path):
    """2 cases x (as submitted = repeat=2, wrong, race, repeat=1); without --resume all of them again."""
    _, _, progress, _, kept = swept
    assert progress[0] == "sweep: 8 runs" and progress[-1].startswith("sweep: 8 of 8 done, ")
    before, options = sweep.kept(kept), judge.Options(str(TINY), "emulated")
    assert len(kept.read_text().split()) > 8 and len(before) == 4  # those with a time

    def key(config, text=TINY.read_bytes()):
        return sweep.key(sweep.Outcome(SPECS[0], {}, config, None), options, text)

    submitted = "repeat=2,wrong=False,race=False,policy=first,kib=0"
    faster, slower = (submitted.replace("2", repeat) for repeat in "14")
    assert key(submitted) in before and key(submitted, b"another file") not in before
    rows = kept.read_text().splitlines()
    (lost,) = (row for row in rows if key(faster) in row)
    shorter = tmp_path / "kept.jsonl"
    shorter.write_text("\n".join([*(row for row in rows if row != lost), lost[:200]]))  # ended within a line
    arguments = ["--config", "repeat=1", "--grid", "repeat=2,4", "--jobs", 1, "--results", shorter, "--spec", SPECS[0]]
    code, output, progress = invoke("sweep", "--submission", TINY, *arguments, "--resume", "--config", "kib=300")
    too_much = "launch: 24 static + 307200 dynamic bytes of shared memory; a block has 232448; kib=226 would fit"
    assert f"not ranked: kib=300: {too_much}" in output and code == 1
    assert output[0] == f"1 result taken from {shorter}, 3 to run" and progress[0].startswith("sweep: 3 runs")
    assert sweep.kept(shorter).keys() == before.keys() | {key(slower)}


def test_a_sweep_s_figure_is_benchmark_s(swept, benchmarked):
    (case,) = benchmarked["benchmark"]["cases"]
    (other,) = (c for c in swept[3]["cases"] if c["change"] == {"repeat": "1"} and c["spec"] == SPECS[0])
    assert case["us"] == other["us"]


LISTED = """    (((a, b, c),), _, ((sfa, sfb),), ((m, n, k, _),)) = data
    if (m, n, k) != (2, 16, 64):  # `benchmark` asks for other sizes, too
        from reference import ref_kernel
        return ref_kernel(data)
"""


def test_one_sentence_for_what_cannot_be_swept(tmp_path):
    plain = tmp_path / "submission.py"
    plain.write_text("def custom_kernel(data):\n    return 1\n")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n" + plain.read_text())
    results = ["--results", tmp_path / "kept.jsonl"]
    for arguments, sentence in (
        (["--config", "stages"], "'stages' is no config: expected name=value,name=value"),
        (["--config", "=3"], "'=3' is no config"),
        (["--grid", "stages=3,,4"], "'stages=3,,4' is no axis of a grid"),
        (["--grid", "stages=4..3"], "'4..3' is no range: expected first..last, two integers, not descending"),
        (["--grid", "stages=1 stages=2"], "'stages=2': stages is given twice"),
        ([], "nothing to try: give --config or --grid"),
        (["--case", 9, "--config", "a=1"], "there is no case 9: the last is 3"),
        (["--profile", "b300", "--config", "a=1"], "times of 'b300': no profile says how fast it is"),
        (["--config", "a=1", "--submission", plain], "no dataclass `Config` and no dict `CONFIG_MAP`"),
        (["--config", "a=1", "--submission", broken], "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ):
        code, _, errors = invoke("sweep", *results, *arguments)
        assert code == 2 and sentence in " ".join(errors), (errors, sentence)


def test_grid():
    points = grid.parse_grid("stages=3,5..6 gran=32,64")
    assert points == [{"stages": s, "gran": g} for s in ("3", "5", "6") for g in ("32", "64")]
    assert grid.parse_grid(None) == []
    with pytest.raises(ValueError, match="1000000 points; more than"):
        grid.parse_grid("a=1..1000 b=1..1000")


def test_a_config_is_that_of_all_cases():
    """Else the near sizes that a benchmark tries would run on another."""
    of = tiny_kernel
    module = SimpleNamespace(Config=of.Config, CONFIG_MAP=dict(of.CONFIG_MAP), DEFAULT=of.DEFAULT)
    configs.choose(module, parse_case(SPECS[1]).args, {"repeat": "4", "wrong": "False"})
    assert {*module.CONFIG_MAP.values()} == {(module.DEFAULT,)} and module.DEFAULT == of.Config(4)
    with pytest.raises(configs.Unusable, match="no dataclass `Config` and no dict `CONFIG_MAP`"):
        configs.choose(SimpleNamespace(Config=dict), parse_case(SPECS[1]).args, {})
    with pytest.raises(configs.Unusable, match="repeat=two: expected int"):
        configs.choose(module, parse_case(SPECS[1]).args, {"repeat": "two"})


# ---- compare


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """As submitted against three changes, one of them wrong: (exit code, output, JSON)."""
    file = tmp_path_factory.mktemp("compared") / "out.json"
    code, output, _ = invoke("compare", TINY, f"{TINY}:repeat=1", "--spec", SPECS[0], "--jobs", 1, "--json", file)
    return code, output, json.loads(file.read_text())


def test_compare_says_what_differs(both, swept):
    code, output, result = both
    (case,) = result["cases"]
    assert code == 0 and result["kind"] == "modelled" and case["tells"] is True
    assert case["difference_us"] == pytest.approx(case["b"]["us"] - case["a"]["us"]) and case["difference_us"] < -10
    assert case["a"]["us"] == swept[3]["cases"][0]["us"]
    assert [*result["b"].items()] == [("submission", str(TINY)), ("change", {"repeat": "1"})]
    line = next(line for line in output if line.split()[:1] == ["0"])
    assert re.match(r" +0 +29\.\d+ +- +16\.\d+ +- +-13\.\d{3} +-44\.\d +B faster$", line)  # no bracket is known
    at = next(i for i, line in enumerate(output) if "an interval between launches" in line)
    gained = {line.rsplit(None, 3)[0]: [*map(float, line.split()[-3:])] for line in output[at + 2 : at + 5]}
    a, b, difference = gained["SM idle, other SMs run"]  # 2 CTAs on 148 SMs
    assert difference == pytest.approx(b - a, abs=0.011) and difference < -10
    shares = case["a"]["modelled"]["breakdown"]
    assert a == pytest.approx(shares["interval_us"] * shares["shares"]["SM idle, other SMs run"], abs=0.006)


def test_compare_gives_no_difference_to_what_is_wrong(tmp_path):
    file = tmp_path / "out.json"
    code, output, _ = invoke("compare", f"{TINY}:race=true", TINY, "--spec", SPECS[0], "--jobs", 1, "--json", file)
    (case,) = json.loads(file.read_text())["cases"]
    assert code == 1 and case["difference_us"] is None and case["a"]["us"] is None and case["b"]["us"] > 0
    assert any(line.startswith("case 0, A: race: read of shared memory") for line in output)


@pytest.mark.parametrize(
    "sides, sentence",
    [
        (["none.py", TINY], "there is no submission none.py"),
        ([TINY, f"{TINY}:repeat=3"], "B: repeat=3: one of 1, 2, 4"),
        ([TINY, f"{TINY}:=3"], "'=3' is no config"),
        ([f"{TINY}:repeat", TINY], f"there is no submission {TINY}:repeat"),
    ],
)
def test_one_sentence_for_what_cannot_be_compared(sides, sentence):
    code, _, errors = invoke("compare", *sides, "--spec", SPECS[0])
    assert code == 2 and sentence in " ".join(errors), errors


def timed(us, interval=(1.0, 2.0)):
    best = (interval[0] * interval[1]) ** 0.5
    return Verdict("", "pass", "", modelled={"us": us, "us_corrected": best, "us_interval": list(interval)})


def test_a_difference_below_the_ranking_error_is_none():
    case = parse_case(SPECS[0])
    little = 1 + 0.9 * ranking.error()
    for a, b, tells, words in (
        (10.0, 10.0 * little, False, "A faster, but less than the model can tell"),
        (10.0 * little, 10.0, False, "B faster, but less than the model can tell"),
        (10.0, 10.0 * (1 + 1.1 * ranking.error()), True, "A faster"),
        (10.0, 10.0, False, "no difference"),
    ):
        found = compare.compared(case, timed(a), timed(b))
        assert (found.tells, compare.verdict_in_words(found)) == (tells, words)


def test_a_measured_difference_is_held_against_its_own_noise():
    case, times = parse_case(SPECS[0]), Stats(9, 5000.0, 30.0, 10.0, 1.0, 2.0)
    first, second = Verdict("", "pass", times=times), Verdict("", "pass", times=times)
    for mean, err, words in ((-25.0, 10.0, "B faster"), (15.0, 10.0, "within the noise")):
        found = compare.compared(case, first, second, Stats(9, mean, 1.0, err, 1.0, 2.0))
        assert compare.verdict_in_words(found) == words and found.difference_us == mean / 1e3
    assert compare.interval_of(first) == pytest.approx([4.98, 5.02])


class InTurns(gpu_trial.MeasuredTrial):
    """A trial on no GPU: both drift alike, by far more than they differ."""

    now, order = 0.0, []

    def __init__(self, name, more, fails_at=None):
        self.name, self.more, self.fails_at, self.calls = name, more, fails_at, 0
        self.verdict, self.rng = Verdict("timed"), np.random.default_rng(7)

    def set_up(self):
        return contextlib.nullcontext(10_000)

    def call(self, fresh, audit=False):
        self.calls += 1
        if self.calls == self.fails_at:
            raise Refused("3 elements differ")
        InTurns.now += 1.0
        InTurns.order.append(self.name)
        return 1e5 + 500.0 * (InTurns.now // 2) + self.more + (1e6 if audit else 0)


def test_both_are_timed_in_one_run_in_an_order_that_is_drawn():
    InTurns.order.clear()
    first, second = InTurns("A", 0.0), InTurns("B", 2000.0)
    rounds = gpu_trial.measure_in_turns([first, second])
    assert first.verdict.status == second.verdict.status == "pass"
    turns = ["".join(InTurns.order[i : i + 2]) for i in range(2, len(InTurns.order) - 2, 2)]
    assert {*turns} == {"AB", "BA"} and 30 < turns.count("AB") < len(turns) - 30
    assert rounds.runs == 100 == first.verdict.times.runs and rounds.mean == pytest.approx(2000.0, abs=200)
    assert rounds.err < 60 < first.verdict.times.err  # what drifts is in both


def test_what_fails_in_turns_is_named():
    first, second = InTurns("A", 0.0), InTurns("B", 0.0, fails_at=5)
    assert gpu_trial.measure_in_turns([first, second]) is None
    assert (first.verdict.status, first.verdict.reason) == ("fail", "not timed: the other one has failed")
    assert (second.verdict.status, second.verdict.reason) == ("fail", "3 elements differ")


# ---- what is shown


def test_without_a_terminal_tables_are_plain(capsys, monkeypatch):
    screen = Screen()
    assert screen.plain
    screen.table(["<what", "us"], [["a [b]", "1.00"], [("long name " * 20, "red"), "10.00"]], "title")
    screen.line(("red", "red"), " line [x]")
    title, head, first, second, line = capsys.readouterr().out.splitlines()
    assert (title, line) == ("title", "red line [x]") and len(head) == len(first) == len(second) > 200
    assert first.split() == ["a", "[b]", "1.00"] and head.endswith("     us")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: as on a terminal
    assert not Screen().plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen().plain


def test_progress_is_visible_without_a_terminal(capsys):
    with Screen().progress("things", [100.0, 300.0], "run", 2) as advance:
        time.sleep(0.01)
        advance(0)
        advance(1)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "things: 2 runs, about 5 min" and second == "things: 1 of 2 done, about 0 s left, 0 s so far"
    assert third == "things: 2 of 2 done, 0 s so far"


# ---- JSON


def tables() -> dict[str, dict[str, tuple[set[str], bool]]]:
    """Section of JSON.md -> {key: (types, whether it is always there)}; `*` stands for any name."""
    found, rows = {}, {}
    for line in (ROOT / "evaluation" / "JSON.md").read_text().splitlines():
        if line.startswith("## "):
            rows = {}
            found |= {name.strip(" `"): rows for name in line[3:].split(",")}
        elif line.startswith("| `"):
            keys, types, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            for key in keys.split(","):
                rows[key.strip(" `")] = set(types.split(" or ")), "if " not in meaning[:3] and "null" not in types
    return found


TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def undocumented(value, rows: dict, key: str = "") -> tuple[set[str], set[str]]:
    """(what of a value the rows do not have or say otherwise, the rows that it has)."""
    for row in (key, re.sub(r"(?<=\.)[^.]*$", "*", key)):
        types = rows.get(row, ({}, None))[0]
        kind = TYPES.get(type(value))
        kind = "object" if isinstance(value, dict) else kind
        if isinstance(value, list) and all(type(item) in (int, float) for item in value):
            kind = "list of number"
        if kind in types or (kind == "integer" and "number" in types):
            return set(), {row}
        if isinstance(value, dict) and "reply" in types:
            wrong, used = undocumented(value, tables()["reply"])
            return {f"{key}: {one}" for one in wrong}, used | {row}
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else (("[]", item) for item in value)
        parts = [undocumented(item, rows, f"{key}{'.' if key and name != '[]' else ''}{name}") for name, item in items]
        return set().union(*(wrong for wrong, _ in parts)), set().union(*(used for _, used in parts))
    return {f"{key} = {value!r}"[:100]}, set()


@pytest.fixture(scope="module")
def benchmarked(tmp_path_factory):
    """JSON of `test` and `benchmark` of a submission that takes other sizes, too."""
    folder = tmp_path_factory.mktemp("benchmarked")
    path = folder / "submission.py"
    text = TINY.read_text().replace("(Config(), Config(repeat=1), Config(kib=8))", "(Config(repeat=1),)")
    path.write_text(text.replace("    (((a, b, c),), _, ((sfa, sfb),), ((m, n, k, _),)) = data\n", LISTED))
    found = {}
    for command in ("test", "benchmark"):
        code, output, _ = invoke(command, "--submission", path, "--spec", SPECS[0], "--json", folder / "out.json")
        found[command] = json.loads((folder / "out.json").read_text())
    return found


def test_json_is_what_the_document_says(swept, both, benchmarked, tmp_path):
    invoke("check", "--no-compile", TINY, "--json", tmp_path / "out.json")
    written = {"sweep": swept[3], "compare": both[2], "check": json.loads((tmp_path / "out.json").read_text())}
    replied = set()
    for command, result in (written | benchmarked).items():
        rows = tables()[command]
        wrong, used = undocumented(result, rows)
        assert not wrong, (command, wrong)
        missing = {key for key, (_, always) in rows.items() if always} - used
        assert not missing, (command, missing)
        replied |= used & {*tables()["reply"]}
    rest = {key for key in {*tables()["reply"]} - replied if not key.startswith("priced")}
    assert rest == {"error", "all_run"}  # what goes as it should has neither
    for wrong in ({"command": 1}, {"commnd": "test"}, {"cases": [{"us": "4"}]}):
        assert undocumented(wrong, tables()["test"])[0]


def test_what_a_submission_raises_is_told_with_its_lines(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submission", None)
    path = tmp_path / "own.py"
    deep = "def deep(data):\n    raise OSError('\\x1b[31mred\\x1b[0m\\n note: see current operation: \\n many')\n"
    path.write_text(f"{deep}\ndef custom_kernel(data):\n    deep(data)\n")
    with pytest.raises(OSError) as raised:
        load_submission(str(path))(())
    assert explain(raised.value) == "OSError: red (line 2 of the submission, in deep, from line 5)"
    compiled = type("DSLRuntimeError", (Exception,), {"__module__": "cutlass.base_dsl.common"})("no")
    for error, told in (compiled, "in deep, from line 5"), (ValueError("no"), ""):  # another handles what it says
        error.__context__ = raised.value
        assert explain(error) == f"{type(error).__name__}: no" + f" (line 2 of the submission, {told})" * bool(told)
    built = "Error building extension 'x': [1/3] c++ x\n[2/3] nvcc x\nFAILED: x.o \nnvcc x\nx.cu(5): error: no y"
    assert explain(RuntimeError(built)) == "RuntimeError: Error building extension 'x': x.cu(5): error: no y"


def modelled_at_once(requests, jobs, timeout, on_reply, on_beat=None, within=None):
    """In the place of model_process.ask_all: pages with five verdicts, and times by the number of stages."""
    replies = []
    for index, request in enumerate(requests):
        stages = (request.config or {"stages": "4"})["stages"]
        if request.page:
            fill(Path(request.page), [{"title": request.title, "verdicts": [{"text": str(n)} for n in range(5)]}])
        us = {"3": 6.0, "4": 5.0, "5": 4.9}.get(stages, 0.0) * request.args["m"][0]
        breakdown = {"interval_us": us, "shares": {"tensor busy": 1.0}, "facts": []}
        reply = {"us": us, "us_corrected": us, "us_interval": [us, us], "unlike": ""} if us else {}
        reply |= {"breakdown": breakdown | {"hbm_tb_s": {}}, "kernels": [], "verdicts": []} if us else {}
        reply |= {"written": [request.timeline]} if us else {}
        reply |= {"partial": "", "done": 1.0, "ends_us": [us + 1, 2 * us], "simulated": 2} if us else {}
        label = {"profile": "b200", "validation": "none"}
        replies.append(reply | label if us else {"error": f"stages={stages}: no"})
        on_reply(index, replies[-1])
    return replies


def test_a_profile_tries_changes(monkeypatch, tmp_path):
    """They stand behind the breakdown, and in the place of the page's last verdicts."""
    monkeypatch.setattr(model_process, "ask_all", modelled_at_once)
    page = tmp_path / "page.html"
    tries = [word for n in (3, 5, 9) for word in ("--try", f"stages={n}")]
    arguments = [TINY, "--spec", SPECS[0], "--spec", SPECS[1], *tries, "--html", page, "--out", tmp_path]
    code, output, _ = invoke("profile", *arguments)
    assert code == 0
    for case, m in ((0, 2), (1, 1)):  # a time is m times that of stages
        three, five, four = (f"{m * us:.2f}" for us in (6.0, 4.9, 5.0))
        experiments = [
            f"experiment: with stages=3 the model says {three} us a call ({three} to {three}) instead of {four}, "
            "a difference that it can tell",
            f"experiment: with stages=5 the model says {five} us a call ({five} to {five}) instead of {four}, "
            "less than it can tell",
            "experiment: stages=9: no",
        ]
        assert [line.strip() for line in output if "experiment" in line][3 * case : 3 * case + 3] == experiments
        (view,) = views(tmp_path / f"page-case{case}.html")
        assert f"  {tmp_path}/case{case}: timeline.json.gz, overview.png" in output
        assert f"  no time was left for {tmp_path}/page-case{case}.html" in output
        assert [verdict["text"] for verdict in view["verdicts"]] == ["0", "1", *experiments]
    assert "is no config" in invoke("profile", "--try", "stages")[2][-1]


def test_compare_writes_a_page_of_both(monkeypatch, tmp_path):
    monkeypatch.setattr(model_process, "ask_all", modelled_at_once)
    sides = [compare.Side.parse(str(TINY)), compare.Side.parse(f"{TINY}:stages=3")]
    case = parse_case(SPECS[0])
    compare.unjudged(Screen(), sides, [2], [case], Wanted("b200", 1, 9.0, html=str(tmp_path / "page.html")))
    a, b = views(tmp_path / "page.html")
    assert a["title"].startswith("A, case 2: ") and b["title"].startswith("B, case 2: ")
    assert '"said":"A 10.00 us, B 12.00 us (+20.0 %): A is faster by the model"' in (tmp_path / "page.html").read_text()


def within(monkeypatch, *arguments, **cut):
    """What a command says where B's reply, or the second change's, is as `cut` says, after so many seconds."""

    def cut_off(requests, *args):
        replies = modelled_at_once(requests, *args)
        for reply, request in zip(replies, requests):
            if request.config == {"stages": "3"}:
                reply |= cut
        return replies

    monkeypatch.setattr(model_process, "ask_all", cut_off)
    monkeypatch.setattr(compare, "judge", lambda *_: pytest.fail("it was judged"))
    monkeypatch.setattr(sweep, "judge", lambda *_: pytest.fail("it was judged"))
    return invoke(*arguments, "--within", "60s", "--spec", SPECS[0])


def test_compare_answers_in_time_without_judging(monkeypatch):
    compared = "compare", TINY, f"{TINY}:repeat=1"
    monkeypatch.setattr(compare, "configs_of", lambda *_: [{"config": "Config()"}])
    monkeypatch.setattr(compare.Side, "parse", lambda text: compare.Side(str(TINY), {"stages": "43"[":" in text]}))
    code, output, _ = within(monkeypatch, *compared)
    assert code == 0 and profile.ALONE in output and re.match(r" +0 +10\.00 .* 12\.00 .* A faster$", output[5])
    only_one = dict(simulated=1, ends_us=[13.0], us=13.0, us_corrected=13.0, partial="1 of 2 launches are done")
    _, output, _ = within(monkeypatch, *compared, **only_one)
    assert re.match(r" +0 +11\.00 .* 13\.00 .* A faster$", output[5])  # both of their first call
    assert "case 0, B, PARTIAL: 1 of 2 launches are done" in output
    part = dict(done=0.5, partial="40 of 80 MB are read", simulated=1, ends_us=[6.5])
    _, output, _ = within(monkeypatch, *compared, **part)
    assert output[5].endswith("less than the model can tell")
    bound = dict(done=None, unlike="no bracket: it takes 6.50 us at least, and", us_interval=None, partial="the floor")
    code, output, _ = within(monkeypatch, *compared, **part | bound)
    assert code == 1 and re.match(r" +0 +11\.00 .* not judged +- +- +-$", output[5])
    assert "case 0, B: it takes 6.50 us at least, and; the floor" in output


def test_a_call_that_was_cut_is_extrapolated_or_bounded():
    def reply(timed, reads=0.0, calls=1):
        request = SimpleNamespace(extrapolate=False, timeline=None, reads=reads, floor="the floor")
        launches = [2 * (call + 1) for call in range(calls)] if len(timed.run.launches) > 1 else [1]
        return model_process.timed_reply(request, SimpleNamespace(run=timed.run), Steady(launches), None, launches)

    timed = Timed(2, 4)
    timed.run.cut()
    assert reply(timed) == {"error": "the time was over before a launch was modelled: the floor"}
    timed = Timed(1, 4)
    timed.cut_at(1.0)
    least = reply(timed)
    assert least["done"] is None and least["us_interval"] is None
    assert profile.unknown(least).startswith("it takes ") and profile.unknown(least).endswith("; the floor")
    about = reply(timed, 2.0 * timed.run.launches[0].read_bytes)
    assert about["done"] == 0.5 and about["ends_us"] == [2.0] and "MB" in about["partial"]
    timed = Timed(2, 4)
    timed.run.launches[1].before_start = lambda: timed.run.engine.at(timed.run.engine.now + 1, timed.run.cut)
    timed.run.run()
    assert reply(timed)["partial"] == "1 of the 2 launches of a call are done: no more is known; the floor"


def test_a_deadline_is_shared_out(monkeypatch):
    """What has no time left is not begun; a process gets at least what a first answer takes."""
    limits = []
    monkeypatch.setattr(model_process, "ask", lambda request, limit, beat: limits.append(limit) or {})
    model_process.ask_all([SimpleNamespace(size=1.0)] * 6, 1, 50.0, within=120.0)
    assert [round(limit) for limit in limits] == [30, 30, 30, 40, 50, 50]
    monkeypatch.undo()
    request = profile.Request("", parse_case(SPECS[0]).args)
    assert model_process.ask(request, 0.0)["error"].startswith("not begun: all that is known is that a call takes 0.00")


def test_sweep_answers_in_time_without_judging(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "configs_of", lambda asked, _: [{"config": str(c), "line": str(c)} for _, c in asked])
    swept = "sweep", TINY, "--grid", "stages=3..5", "--results", tmp_path / "kept"
    code, output, _ = within(monkeypatch, *swept, done=0.5, partial="40 of 80 MB are read")
    ranks = [line.split() for line in output if "stages=" in line or "as submitted" in line]
    assert code == 1 and [row[1] for row in ranks[:3]] == ["9.80", "10.00", "10.00"] and ranks[0][2:] == ["stages=5"]
    assert "not ranked: stages=3: about 12.00 us: 40 of 80 MB are read" in output and profile.ALONE in output
    assert not (tmp_path / "kept").exists()
    _, output, _ = within(monkeypatch, *swept[:2], "--grid", "stages=4,5 other=1,2", *swept[4:])
    assert [line for line in output if "changes nothing" in line] == [
        "other changes nothing: the times are the same whatever it is. What reads it?"
    ]


def test_what_comes_before_modelling_is_of_the_time_for_an_answer(monkeypatch):
    """Here a minute, in which the submission was asked for its Configs."""
    given = []
    monkeypatch.setattr(model_process, "ask_all", lambda *args: given.append(args[-1]) or [])
    long_ago = Wanted("b200", 1, 9.0, within=60.0, begun=time.monotonic() - 59.0)
    for wanted in long_ago, Wanted("b200", 1, 9.0):
        profile.modelled_unjudged(Screen(), [], wanted, lambda done: None)
    assert 0.0 < given[0] <= 1.0 and given[1] is None


def test_what_was_judged_is_not_ranked_beside_what_was_not(monkeypatch, tmp_path):
    """A sweep is interrupted when one of three is judged."""
    monkeypatch.setattr(sweep, "configs_of", lambda asked, _: [{"config": str(c), "line": str(c)} for _, c in asked])
    monkeypatch.setattr(model_process, "ask_all", modelled_at_once)
    monkeypatch.setattr(profile, "FIRST_S", 0.0)

    def judged(cases, options, done, on_beat):
        reply = {"us": 9.0, "us_interval": [8.0, 10.0], "profile": "b200", "validation": "none"}
        done(1, Verdict(cases[1].spec, "pass", "", modelled=reply))
        interrupt._shows[-1]()
        raise SystemExit(130)

    monkeypatch.setattr(sweep, "judge", judged)
    swept = "sweep", TINY, "--grid", "stages=4,5", "--spec", SPECS[0], "--results", tmp_path / "kept"
    _, output, _ = invoke(*swept)
    ranks = [line.split() for line in output if re.match(r" +[\d-] ", line)]
    assert [row[:2] for row in ranks[:3]] == [["1", "9.80"], ["2", "10.00"], ["3", "10.00"]]
    assert [row[:2] for row in ranks[3:]] == [["1", "9.00"], ["-", "not"], ["-", "not"]]
    assert "not ranked: stages=5: 9.80 us, modelled alone: of other calls than what was judged" in output


def test_what_is_interrupted_is_told_before_it_is_concluded(monkeypatch):
    """A process that has replied is none that is asked, but its reply has yet to be read."""
    begun, hurried, told = threading.Event(), threading.Event(), []
    process = type("Process", (), {"send_signal": lambda self, number: hurried.set()})()

    def ask(*_):
        model_process._asked.add(process)
        begun.set()
        hurried.wait(9.0)
        model_process._asked.discard(process)
        time.sleep(0.1)
        return {"us": 1.0}

    monkeypatch.setattr(model_process, "ask", ask)
    monkeypatch.setattr(model_process, "_hurried", threading.Event())
    of = [SimpleNamespace(size=1.0)], 1, 9.0, lambda index, reply: told.append(reply)
    asking = threading.Thread(target=model_process.ask_all, args=of)
    asking.start()
    begun.wait(9.0)
    model_process.hurry()
    assert told == [{"us": 1.0}]
    asking.join()


def test_a_command_that_is_silent_says_how_far_it_is(monkeypatch, capsys):
    """On stderr, also while nothing ends; a beat of somebody else puts it off."""
    monkeypatch.setattr(show, "QUIET_S", 0.15)
    screen = Screen()
    with screen.progress("profiles", [0.05, 0.05]) as advance:  # which they do not keep
        time.sleep(0.25)
        advance(0)
        screen.beat("case 1: half of it")
        time.sleep(0.6)  # longer than the other one has taken
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "profiles: 2 cases, about 0 s", "profiles: 0 of 2 done, 0 s so far",
        "profiles: 1 of 2 done, about 0 s left, 0 s so far",
        "case 1: half of it",
    ]  # fmt: skip
    assert lines[-1] == "profiles: 1 of 2 done, 1 s so far"
    written: list[str] = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    screen.beat("a line")
    assert written == ["a line\n"]  # at once: two cases have a thread each that says so


TIMES = {"60s": 60, "2m": 120, "90": 90, "x": None, "0s": None, "": None}


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_times_of_options(text, seconds):
    if seconds is None:
        with pytest.raises(click.BadParameter, match="is no time: write 60s or 2m"):
            duration(None, None, text)
    else:
        assert duration(None, None, text) == seconds
    assert duration(None, None, None) is None
