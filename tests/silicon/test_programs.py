"""The programs of silicon/ without a GPU: --help, the sentence that says so, and the list of them in README.md."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import silicon

FOLDER = Path(silicon.__file__).parent
MAIN = 'if __name__ == "__main__":'
PROGRAMS = sorted(
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if MAIN in path.read_text()
)
RECORDINGS = [path for path in FOLDER.rglob("*") if path.suffix in (".json", ".jsonl", ".npz", ".txt")]
ON_GPU = {  # arguments with which a program measures; FOLDER stands for one with launches
    "silicon.calibrate": [],
    "silicon.entry.h200_loads": ["run", "FOLDER"],
    "silicon.entry.h200_real": ["run", "FOLDER"],
    "silicon.golden.record": ["--only", "add", "--out", "FOLDER/x"],
    "silicon.probes.boxes": ["run", "FOLDER/x"],
    "silicon.probes.gpc_clock": ["run", "FOLDER/x"],
    "silicon.probes.gpcs": ["run", "FOLDER/x"],
    "silicon.probes.halves": [],
    "silicon.probes.in_flight": ["run", "FOLDER/x"],
    "silicon.probes.k_steps": ["run", "FOLDER/x"],
    "silicon.probes.link": ["run", "FOLDER/x"],
    "silicon.probes.map_switches": ["run", "FOLDER/x"],
    "silicon.probes.mma_sync": ["run", "FOLDER/x"],
    "silicon.probes.operands": [],
    "silicon.probes.pdl_chain": ["card"],
    "silicon.probes.policies": [],
    "silicon.probes.power_clock": ["run", "FOLDER/x"],
    "silicon.probes.release": ["run", "FOLDER/x"],
    "silicon.probes.row_stores": ["run", "FOLDER/x"],
    "silicon.probes.rows_of_boxes": ["run", "FOLDER/x"],
    "silicon.probes.accesses": ["run", "FOLDER/x"],
    "silicon.probes.shared_lines": ["run", "FOLDER/x"],
    "silicon.probes.tensor_clock": ["run", "FOLDER/x"],
    "silicon.probes.tiles": ["run", "FOLDER/x"],
    "silicon.probes.wgmma": ["run", "FOLDER/x"],
    "silicon.timing.record": ["--only", "clock/nothing", "--out", "FOLDER/x"],
    "silicon.whole_kernels.exam": ["run", "FOLDER"],
    "silicon.whole_kernels.hopper": ["run", "FOLDER"],
    "silicon.whole_kernels.register_mma": ["run", "FOLDER"],
    "silicon.zoo": ["run", "FOLDER/x"],
}
ON_CPU = {  # programs that need none
    "silicon.entry.host_path", "silicon.golden.cases", "silicon.golden.coverage", "silicon.timing.validate",
    "silicon.whole_kernels.foreign",
    "silicon.whole_kernels.published",
}  # fmt: skip


def test_every_program_is_known():
    assert {*PROGRAMS} == {*ON_GPU, *ON_CPU}


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, name, raising=False)  # runpy warns of a module that has been imported
    with pytest.raises(SystemExit) as done:
        runpy.run_module(name, run_name="__main__")
    assert not done.value.code
    said = capsys.readouterr().out
    assert said.startswith("usage: ") and name in said


@pytest.mark.parametrize(
    "line",
    ["whole_kernels.published nosuch", "whole_kernels.foreign model nosuch", "whole_kernels.hopper compile . nosuch",
     "golden.coverage --elsewhere nosuch", "entry.host_path --template nosuch"],
)  # fmt: skip
def test_what_is_to_be_read_has_to_be_there(line, monkeypatch, capsys):
    name, *arguments = f"silicon.{line}".split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit):
        runpy.run_module(name, run_name="__main__")
    assert capsys.readouterr().err.endswith("there is no nosuch\n")


@pytest.mark.parametrize("name", ON_GPU)
def test_a_machine_without_a_gpu_is_told_so_in_a_sentence(name, tmp_path):
    """CUDA shows no GPU to the program, where this machine has one."""
    launch = {"case": 0, "name": "plain launches", "bytes into SMs": 1 << 20}  # of h200_loads
    (tmp_path / "launches.json").write_text(json.dumps({"launches": [launch]}))
    command = [sys.executable, "-m", name, *(x.replace("FOLDER", str(tmp_path)) for x in ON_GPU[name])]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=FOLDER.parent, env=hidden, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(r"this measures on a GPU, and this machine has none: .+\n", done.stderr), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["launches.json"]


def test_the_readme_names_every_program_and_recording():
    text = (FOLDER / "README.md").read_text()
    missing = [name for name in PROGRAMS if name.removeprefix("silicon.") not in text]
    missing += [str(path) for path in RECORDINGS if str(path.relative_to(FOLDER)) not in text]
    assert not missing
