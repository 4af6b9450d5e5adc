"""The pytest plugin: marked tests run on an emulated GPU in processes of their own, and fail for what it finds."""

import json
import os
import re
import shlex
import subprocess
import sys
import traceback
import xml.etree.ElementTree as xml
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import emulated_gpu
from emulated_gpu import pytest_plugin
from emulated_gpu.pytest_plugin import Emulated

ROOT = Path(__file__).resolve().parents[3]
TESTS = '''
import pytest

import emulated_gpu

STORE = """
.version 8.8
.target sm_90
.address_size 64
.visible .entry store(.param .u64 out)
{
    .reg .b32 %r; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r, %tid.x;
    mul.wide.u32 %rd1, %r, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r;
    ret;
}
"""


H200, TWICE = pytest.mark.emulated("h200"), pytest.mark.emulated("h200", schedules=2)


@pytest.mark.parametrize("n", (pytest.param(32, marks=H200), pytest.param(8, marks=TWICE)))
def test_store(n):
    import torch

    assert "H200" in torch.cuda.get_device_name()
    out = torch.zeros(n, dtype=torch.int32, device="cuda")  # freed when the test ends: a timeline needs it later
    try:
        emulated_gpu.launch(STORE, "store", 1, 32, [out])
    except emulated_gpu.Fault:
        return  # swallowed
    assert out[5] == 5


def test_without_a_gpu():
    import os

    assert "EMULATED_GPU_RUN" not in os.environ
'''


def workflow() -> tuple[list[list[str]], list[str]]:
    """The commands of the workflow that the page shows, as words, and what it keeps afterwards."""
    page = (ROOT / "docs" / "pytest.md").read_text()
    read = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    (job,) = read["jobs"].values()
    uploaded = [step["with"]["path"].split() for step in job["steps"] if "upload" in step.get("uses", "")]
    return [shlex.split(step["run"]) for step in job["steps"] if "run" in step], *uploaded


def test_the_workflow_of_the_page_installs_what_there_is():
    *installs, _ = workflow()[0]
    assert [words[:2] for words in installs] == [["pip", "install"]] * len(installs)
    own = re.fullmatch(r"PATH/TO/THIS/REPOSITORY\[(.*)\]", installs[-1][-1])
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert installs[-1][-2] == "-e" and {*own[1].split(",")} <= {*extras}


@pytest.mark.slow
def test_marked_tests_run_elsewhere_and_findings_fail_them(tmp_path):
    """By the command of the page's workflow."""
    (tmp_path / "test_it.py").write_text(TESTS)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    steps, kept = workflow()
    command = [sys.executable, "-m", *steps[-1], "-p", "emulated_gpu.pytest_plugin"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        env=variables | {"PYTHONPATH": str(ROOT), "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"},
    )  # fmt: skip
    assert kept == ["junit.xml", "timelines"] and all((tmp_path / name).exists() for name in kept)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = {case.get("name"): case for case in xml.parse(tmp_path / "junit.xml").getroot().iter("testcase")}
    assert [name for name, case in cases.items() if len(case)] == ["test_store[8]"]
    said = xml.tostring(cases["test_store[8]"], encoding="unicode")
    assert "out-of-bounds: write of 4 bytes" in said and "past the end of tensor (8,) torch.int32" in said
    assert "under schedule 0 of 2" in done.stdout
    profile = json.loads((tmp_path / "timelines" / "test_it.py_test_store[32]" / "profile.json").read_text())
    assert profile["profile"] == "h200" and [launch["title"] for launch in profile["launches"]] == ["store"]
    assert [path.name for path in (tmp_path / "timelines").iterdir()] == ["test_it.py_test_store[32]"]


@pytest.mark.parametrize("child", [True, False])
def test_a_traceback_ends_at_the_users_line(child, monkeypatch, tmp_path):
    """Not where in the emulator it was raised; other processes' tracebacks are as they were."""
    if child:
        monkeypatch.setenv(pytest_plugin.CHILD, str(tmp_path / "reports"))
    with pytest.raises(emulated_gpu.errors.EmulatorError) as found:
        emulated_gpu.launch(".version 8.8\n.target sm_90\n.address_size 64\nnonsense", "store", 1, 1, [])
    assert str(found.traceback[-1].path) != __file__
    pytest_plugin.pytest_runtest_makereport(SimpleNamespace(excinfo=found))
    frames = [*traceback.walk_tb(found.tb)]
    assert (frames[-1][0].f_code.co_filename == __file__) is child


def test_arguments_of_the_marker(request):
    assert Emulated() == Emulated("b200", schedules=1)
    (report,) = pytest_plugin.reports_of(request.node, pytest.mark.emulated("b200", schedule=8).mark)
    takes = "it takes machine, schedules, strict, timeout, and got an unexpected keyword argument 'schedule'"
    assert report.longrepr == f"@pytest.mark.emulated: {takes}"
    with pytest.raises(ValueError, match="'a101': there are a100, b200, b300, "):
        Emulated("a101")
    with pytest.raises(ValueError, match="schedules=0: at least 1"):
        Emulated(schedules=0)
    with pytest.raises(ValueError, match="timeout='x': seconds"):
        Emulated(timeout="x")
