"""`compare` and `sweep` of scripts: what is tried, what is ranked, what is said, and a page of both."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulated_gpu.__main__ import cli
from emulated_gpu.page.write import fill, views
from emulated_gpu.serve import variants
from emulated_gpu.serve.variants import Variant, Wanted

ROOT = Path(__file__).resolve().parents[3]


def report(us: float, title: str = "gemm") -> dict:
    kernel = {"title": title, "us": us, "hbm_bytes": 2e6, "l2_hits": 0.5, "registers": 40}
    breakdown = {"interval_us": us, "shares": {"tensor busy": 0.25, "waiting for loads": 0.75}}
    return {"launches": [{"end_us": us}], "kernels": [kernel], "breakdown": breakdown}


@pytest.fixture
def modelled(monkeypatch):
    """Gives the times that scripts, by their last word, are to take; None fails. No process is started."""
    times = {}

    def profile(self, wanted, page):
        us = times[self.words[-1]]
        self.report, self.why = us and report(us), "" if us else "ValueError: no"
        if page:
            self.view = {"title": Path(self.words[0]).name}

    monkeypatch.setattr(Variant, "profile", profile)
    monkeypatch.setattr(Variant, "check", lambda self, wanted: not self.why)
    return times


def test_compare_says_what_differs_and_whether_the_model_can_tell(modelled, tmp_path):
    script, page = tmp_path / "gemm.py", tmp_path / "page.html"
    script.touch()
    modelled |= {"3": 10.0, "4": 8.0, "5": 9.9, "6": None}
    command = ["compare", "--html", str(page), "--json", str(tmp_path / "out.json"), f"{script} 3"]
    done = CliRunner().invoke(cli, [*command, f"{script} 4"])
    assert done.exit_code == 0 and "A 10.00 us, B 8.00 us (-20.0 %): B is faster by the model\n" in done.output
    assert "all SMs in the mean, us: waiting for loads         7.50         6.00        -1.50" in done.output
    assert [view["title"] for view in views(page)] == ["A: gemm.py", "B: gemm.py"]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["tells"] is True and found["difference_us"] == -2.0 and found["us"] == [10.0, 8.0]
    close = CliRunner().invoke(cli, ["compare", f"{script} 3", f"{script} 5"])
    assert "B is faster by the model, but by less than it can tell (" in close.output
    hopper = CliRunner().invoke(cli, ["compare", "--machine", "h200", f"{script} 3", f"{script} 4"])
    assert "how often it has an order wrong on this machine is not known" in hopper.output
    failed = CliRunner().invoke(cli, ["compare", f"{script} 3", f"{script} 6"])
    assert failed.exit_code == 1 and f"B, {script} 6: ValueError: no" in failed.output
    none = CliRunner().invoke(cli, ["compare", "none.py", str(script)])
    assert none.exit_code == 2 and "File 'none.py' does not exist" in none.output
    unclosed = CliRunner().invoke(cli, ["compare", f"{script} 'x", str(script)])
    assert unclosed.exit_code == 2 and "gemm.py 'x\": No closing quotation" in unclosed.output


def test_other_kernels_are_told():
    found = {"us": [1.0, 1.0], "tells": False, "a": report(1.0), "b": report(1.0, "other")}
    assert variants.rows(found)[-1] == ["they launch other kernels", "1", "1", ""]
    assert variants.verdict(found) == "A and B take 1.00 us"


def test_what_a_sweep_tries(tmp_path):
    script = tmp_path / "gemm.py"
    script.write_text("""'A foo.'\nimport os\nA = foo = 3\nstages = os.environ.get('STAGES', '3')\n""")
    tried = variants.variants([str(script), "x"], [{"STAGES": "2"}, {"STAGES": "4"}])
    assert [(one.name, one.words[1:], one.values) for one in tried] == [
        ("as it is", ["x"], {}), ("STAGES=2", ["x"], {"STAGES": "2"}), ("STAGES=4", ["x"], {"STAGES": "4"}),
    ]  # fmt: skip
    (one,) = variants.variants([str(script), "--box={box}"], [{"box": "64"}])
    assert one.words == [str(script), "--box=64"]  # without a value there is nothing to run
    with pytest.raises(ValueError, match=r"nothing reads foo: no Python file beside .*, and no argument is \{foo\}"):
        variants.variants([str(script)], [{"foo": "1"}])


def test_a_sweep_ranks_what_runs(modelled, tmp_path):
    script = tmp_path / "gemm.py"
    script.touch()
    modelled |= {"2": 10.0, "3": 8.0, "4": None}
    done = CliRunner().invoke(cli, ["sweep", "--grid", "n=2..4", str(script), "{n}"])
    lines = done.output.splitlines()
    assert done.exit_code == 1 and lines[:2] == ["  1      8.00 us  n=3", "  2     10.00 us  n=2"]
    assert lines[2] == "  - not ranked    n=4: ValueError: no" and "modelled, not measured" in lines[3]
    refused = CliRunner().invoke(cli, ["sweep", "--grid", "foo=1", str(script)])
    assert refused.exit_code == 2 and "nothing reads foo" in refused.output


def test_a_sweep_says_what_changes_nothing(modelled, tmp_path):
    """`used` is read by the script, `other` by a file beside it that the script has nothing to do with."""
    script = tmp_path / "gemm.py"
    script.touch()
    (tmp_path / "beside.py").write_text("import os\nother = os.environ['other']\n")
    modelled |= {"2": 10.0, "3": 8.0}

    def swept(grid, *args):
        return CliRunner().invoke(cli, ["sweep", "--grid", grid, str(script), *args])

    alone = swept("other=5,6", "2")
    assert alone.exit_code == 1 and "other changes nothing: the launches and their times are the same" in alone.output
    mixed = swept("used=2,3 other=5,6", "{used}")
    assert mixed.exit_code == 0 and "other changes nothing: " in mixed.output and "used changes" not in mixed.output
    assert "changes nothing" not in swept("used=2,3", "{used}").output + swept("other=5", "2").output


def sleeper(folder: Path) -> str:
    """A program in the place of Python that makes the file `begun` and sleeps, and so does a process that it starts."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho begun > {folder}/begun\nsleep 60 &\nsleep 60\n")
    python.chmod(0o755)
    return str(python)


def signals_when_begun(folder: Path, number: int) -> None:
    """Sends this process a signal when that program has begun, and the main thread has nothing to do but wait for it: a
    KeyboardInterrupt in a callback of the garbage collector's would be lost."""

    def send():
        while not (folder / "begun").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_a_variant_alone_ends_on_ctrl_c(monkeypatch, tmp_path):
    monkeypatch.setattr(variants.sys, "executable", sleeper(tmp_path))
    signals_when_begun(tmp_path, signal.SIGINT)
    alone = Variant("model", ["own.py"])
    with pytest.raises(KeyboardInterrupt):
        alone.process(["profile"])
    assert alone.running.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_done_outlives_the_signal_that_ends_the_command(number, modelled, monkeypatch, tmp_path):
    """The process of the variant that is not done is ended, and all that it has started."""
    script, out = tmp_path / "gemm.py", tmp_path / "out.json"
    script.touch()
    modelled |= {"2": 10.0}
    quick = Variant.profile

    def profile(self, wanted, page):
        if self.words[-1] == "2":
            return quick(self, wanted, page)
        signals_when_begun(tmp_path, number)
        assert self.process(["profile"])[0] == -signal.SIGKILL

    monkeypatch.setattr(variants.sys, "executable", sleeper(tmp_path))
    monkeypatch.setattr(Variant, "profile", profile)
    handlers, begin = [signal.getsignal(each) for each in variants.ENDING], time.monotonic()
    json_ = ["--json", str(out), "--jobs", "1"]
    done = CliRunner().invoke(cli, ["sweep", *json_, "--no-check", "--grid", "n=2..4", str(script), "{n}"])
    assert done.exit_code == 128 + number and "interrupted: 1 of 3 done" in done.output
    assert "  1     10.00 us  n=2\n  - not ranked    n=3: interrupted\n" in done.output
    assert [row["us"] for row in json.loads(out.read_text())["ranking"]] == [10.0, None, None]
    (tmp_path / "begun").unlink()
    compared = CliRunner().invoke(cli, ["compare", *json_, f"{script} 2", f"{script} 3"])
    assert compared.exit_code == 128 + number and "interrupted: A 10.00 us, B is not done (modelled" in compared.output
    found = json.loads(out.read_text())
    assert found["us"] == [10.0, None] and found["a"]["kernels"] and found["b"] is found["difference_us"] is None
    assert [signal.getsignal(each) for each in variants.ENDING] == handlers and time.monotonic() - begin < 20


@pytest.mark.thorough
def test_processes(tmp_path):
    """A script that does as it says, and one that is wrong, with the real commands."""
    good, wrong = Variant("good", [str(ROOT / "docs" / "scale.py")]), Variant("wrong", [str(tmp_path / "wrong.py")])
    Path(wrong.words[0]).write_text("raise ValueError('no')\n")
    ranked, ended = variants.sweep([wrong, good], Wanted(launches=1, jobs=2), checked=True)
    assert ranked == [good, wrong] and not ended and 0.5 < good.us < 3
    assert wrong.why == "exit status 1: ValueError: no"
    good.profile(Wanted(launches=1), page=True)
    fill(tmp_path / "page.html", [good.view, good.view], {"said": "alike", "rows": [["", "A", "B", "B - A"]]})
    assert len(views(tmp_path / "page.html")) == 2
