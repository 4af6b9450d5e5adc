"""`python -m emulated_gpu`: scripts and their child processes on the emulated device, and what a PTX file needs."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import emulated_gpu
from emulated_gpu.__main__ import cli
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault
from emulated_gpu.finding_rows import row_of
from emulated_gpu.serve.host import watch
from emulated_gpu.serve.run import Loud, summary
from tests import forked

ROOT = Path(__file__).resolve().parents[3]

KERNEL = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def double(x: cute.Tensor, y: cute.Tensor, past: cutlass.Constexpr):
    i, _, _ = cute.arch.thread_idx()
    y[i + past] = x[i] * 2

@cute.jit
def run(x: cute.Tensor, y: cute.Tensor, past: cutlass.Constexpr):
    double(x, y, past).launch(grid=[1, 1, 1], block=[64, 1, 1])

def doubled(n, past=0):
    x = torch.arange(64, dtype=torch.int32, device="cuda")
    y = torch.zeros(64, dtype=torch.int32).cuda()
    run(from_dlpack(x), from_dlpack(y), past)
    torch.cuda.synchronize()
    return y.cpu()[n].item()
"""


def python(tmp_path, script: str, *options: str, name: str = "script.py"):
    """Run a script as `python -m emulated_gpu run` does."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    path = tmp_path / name
    path.write_text(script)
    return forked.emulated_gpu("run", *options, path, "--size", 2)


def test_script_and_its_children_use_the_device(tmp_path):
    script = """
import multiprocessing, subprocess, sys, torch

def of_child():
    from kernel import doubled
    return doubled(21)

if __name__ == "__main__":
    assert sys.argv[1:] == ["--size", "2"] and sys.path[0] == __file__.rpartition("/")[0]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(of_child)
    other = "import sys, torch; print(torch.zeros(3, device='cuda').device, torch.cuda.get_device_capability(), "
    other += "'cutlass' in sys.modules)"  # which takes half a second to import
    print(torch.arange(64, device="cuda")[5].item() * 2, found)
    print(subprocess.run([sys.executable, "-c", other], capture_output=True, text=True).stdout)
"""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "script.py").write_text(script)
    done = forked.emulated_gpu("run", tmp_path / "script.py", "--size", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "42", "cuda:0", "(10,", "0)", "False"]


@pytest.mark.thorough
def test_the_machine_is_chosen_for_the_script_and_its_children(tmp_path):
    """And the process keeps it."""
    script = """
import os, subprocess, sys
from kernel import doubled
import emulated_gpu
import torch
import cuda.bindings.driver as driver

what = "import torch; p = torch.cuda.get_device_properties(0); print(p.major, p.multi_processor_count)"
print(doubled(5), os.environ["CUTE_DSL_ARCH"], torch.cuda.get_device_name())
print(driver.cuDeviceGetAttribute(driver.CUdevice_attribute(16), 0)[1])
exec(what)
print(subprocess.run([sys.executable, "-c", what], capture_output=True, text=True).stdout)
try:
    emulated_gpu.install("b200")
except emulated_gpu.Unsupported as error:
    print(error, file=sys.stderr)
"""
    done = python(tmp_path, script, "--machine", "h200")
    assert "set up for an NVIDIA H200" in done.stderr
    assert done.stdout.split() == ["10", "sm_90a", *"NVIDIA H200 (emulated) 132 9 132 9 132".split()], done.stderr
    done = python(tmp_path, script)
    assert done.stdout.split() == ["10", "sm_100a", *"NVIDIA B200 (emulated) 148 10 148 10 148".split()], done.stderr
    assert python(tmp_path, script, "--machine", "v100").returncode == 2


@pytest.mark.parametrize(
    "args, warning",
    [
        (["--json", "f", "--checks"], "the script gets --json and --checks; for the emulator write run --json .."),
        (["--html=f"], "the script gets --html; for the emulator write run --html .. "),
        (["--steps", "3", "json"], ""),
    ],
)
def test_options_behind_the_script_are_its_own_and_ours_are_warned_of(tmp_path, args, warning):
    script = tmp_path / "own.py"
    script.write_text("import sys; print(sys.argv[1:])")
    done = forked.emulated_gpu("run", script, *args)
    assert done.returncode == 0 and str(args) in done.stdout
    assert warning in done.stderr and ("the script gets" in done.stderr) == bool(warning)


@pytest.mark.parametrize("command", ["run", "profile", "sweep"])
def test_an_option_that_there_is_not_is_no_script(command):
    result = CliRunner().invoke(cli, [command, "--machin", "h200", "own.py"])
    assert result.exit_code == 2 and "No such option '--machin'." in result.output


@pytest.mark.parametrize(
    "name, what",
    [("x.cu", "nvcc {} -o x`, and"), ("x.ipynb", "jupyter nbconvert --to script {}`"), ("x.ptx", "ptx {}` lists")],
)
def test_what_is_no_script_is_refused_with_what_to_do(tmp_path, name, what):
    file = tmp_path / name
    file.write_text("{}")  # which is Python, too
    for command in ["run"], ["profile"], ["sweep", "--grid", "A=1"], ["compare", str(file)]:
        result = CliRunner().invoke(cli, [*command, str(file)])
        assert result.exit_code == 2 and what.format(file) in " ".join(result.output.split("\n"))


def test_ctrl_c_ends_a_shells_background_job(tmp_path):
    """Which begins with SIGINT ignored. It ends as eval.py's commands do, and writes what was done."""
    script = tmp_path / "own.py"
    script.write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(90)\n")
    command = f"trap '' INT; exec {sys.executable} -m emulated_gpu run --json {tmp_path}/report.json {script}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    said = "\ninterrupted by SIGINT\nemulated-gpu: 0 launches, 0 findings\n"
    assert done.returncode == 130 and done.stderr.endswith(said), done
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["exit_status"] == 130


def test_exit_status_is_the_scripts(tmp_path):
    ends = ("sys.exit(3)", 3, ""), ("sys.exit('bye')", 1, "bye\n"), ("1 / 0", 1, "ZeroDivision")
    for end, status, said in ends:
        done = python(tmp_path, f"import sys\n{end}\n")
        assert done.returncode == status and said in done.stderr, done.stderr


def test_a_fault_that_the_script_swallows_is_shown_and_fails_the_run(tmp_path):
    script = """
from kernel import doubled
try:
    doubled(0, past=8)
except Exception as e:
    print(type(e).__name__)
"""
    done = python(tmp_path, script)
    assert done.stdout == "DSLCudaRuntimeError\n"  # what a GPU's user would see
    assert done.returncode == 1
    assert "emulated-gpu: out-of-bounds: write of 4 bytes" in done.stderr
    assert "past the end of tensor (64,)" in done.stderr


@pytest.mark.thorough
def test_schedule_reaches_the_children(tmp_path):
    script = """
import subprocess, sys
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Fault
from emulated_gpu.finding_rows import row_of
print(DEVICE.session.schedule.seed, DEVICE.session.checks, flush=True)
subprocess.run([sys.executable, "-c", "import torch\\nfrom emulated_gpu.device import DEVICE\\n"
                "print(DEVICE.session.schedule.seed, DEVICE.session.checks)"])
"""
    done = python(tmp_path, script, "--schedule", "5", "--no-checks")
    assert done.stdout == "5 False\n5 False\n", done.stderr


def test_children_keep_the_sitecustomize_of_their_machine(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.customized = True")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    script = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import sys; print(sys.customized)'])"
    done = python(tmp_path, script)
    assert done.stdout == "True\n" and done.stderr == "emulated-gpu: 0 launches, 0 findings\n"


PTX = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 p)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.b64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    BODY
    st.global.b32 [%rd1], %r1;
    ret;
}
"""


def test_ptx_lists_forms(tmp_path):
    file = tmp_path / "kernel.ptx"
    file.write_text(PTX.replace("BODY", "add.s32 %r1, %r1, 1; add.s32 %r1, %r1, 2;"))
    result = CliRunner().invoke(cli, ["ptx", str(file)])
    assert result.exit_code == 0, result.output
    assert "kernel: 6 instructions, 5 forms, 0 unsupported" in result.output
    assert "      2  add.s32\n" in result.output


@pytest.mark.parametrize("body", ["frobnicate.s32 %r1, %r1;", "add.sat.magic.s32 %r1, %r1, 1;"])
def test_ptx_names_what_is_unsupported(tmp_path, body):
    file = tmp_path / "kernel.ptx"
    file.write_text(PTX.replace("BODY", body))
    result = CliRunner().invoke(cli, ["ptx", str(file)])
    assert result.exit_code == 1
    assert f"{body.split()[0]}    UNSUPPORTED" in result.output and "1 unsupported" in result.output


def test_ptx_that_does_not_parse(tmp_path):
    file = tmp_path / "kernel.ptx"
    for text, said in ("no ptx", f"{file} has no kernel: no .entry"), ("no ptx: .entry", "PTX line 1"):
        file.write_text(text)
        result = CliRunner().invoke(cli, ["ptx", str(file)])
        assert result.exit_code == 1 and said in result.output
    file.write_bytes(b"\xff\xfe")
    assert CliRunner().invoke(cli, ["ptx", str(file)]).output == f"Error: {file} is no PTX: it is no text\n"


def test_what_a_failed_launch_raises_survives_a_pool_of_processes():
    emulated_gpu.install()
    from cutlass.base_dsl.common import DSLCudaRuntimeError

    error = DSLCudaRuntimeError(719, b"cudaErrorLaunchFailure")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


INSTALLS = (
    "import pip",
    "import ensurepip",
    "subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'x'])",
    "subprocess.run('pip3 install x', shell=True, check=True)",
    "subprocess.run(['bash', '-c', 'cd / && uv pip install x'], check=True)",
    "os.system('python -m pip install x')",
    "subprocess.run([sys.executable, '-c', 'import pip; print(pip)'], capture_output=True, check=True)",
    "os.execvp('pip', ['pip', 'install', 'x'])",
    "subprocess.run(['pip install x'], shell=True, check=True)",
    "subprocess.run(args=iter(['pip', 'install', 'x']), check=True)",
)


def test_installs_are_refused(tmp_path):
    """Each line of a script that goes on; a word is no install."""
    script = f"""
import os, subprocess, sys
for line in {INSTALLS}:
    try:
        exec(line)
        print("went on")
    except Exception as error:
        print(error, getattr(error, "stderr", ""))
subprocess.run(iter(["echo", "pip"]), check=True)
"""
    *refusals, last = python(tmp_path, script).stdout.splitlines()
    assert last == "pip" and len(refusals) == len(INSTALLS), refusals
    assert all("a script may not install packages" in refusal for refusal in refusals), refusals


def test_a_refused_install_ends_a_script(tmp_path):
    done = python(tmp_path, "import pip\nprint('went on')\n")
    assert done.returncode and "a script may not install packages" in done.stderr and not done.stdout


def test_installs_can_be_allowed(tmp_path):
    assert "went on" in python(tmp_path, "import pip\nprint('went on')\n", "--installs").stdout


SPIN = """
import emulated_gpu, numpy as np
emulated_gpu.launch(open(__file__.replace("spin.py", "spin.ptx")).read(), "spin", 1, 32, [np.zeros(4, np.uint32)])
"""
SPIN_PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .pred p; .reg .b32 %r; .reg .b64 %rd;
    ld.param.u64 %rd, [flag];
AGAIN:
    atom.global.add.u32 %r, [%rd], 1;  // memory changes: the emulator may not call it a spin before the time is over
    setp.ne.u32 p, %r, -1;
    @p bra AGAIN;
    ret;
}
"""


def test_a_launch_that_takes_too_long_ends_and_says_where(tmp_path):
    (tmp_path / "spin.ptx").write_text(SPIN_PTX)
    done = python(tmp_path, SPIN, "--timeout", "0.3", name="spin.py")
    assert done.returncode == 1
    assert "hang: spin still runs after 0.3 s" in done.stderr and "PTX line 10 (atom.global.add" in done.stderr
    assert done.stderr.endswith("emulated-gpu: 1 launch, 1 finding\n")


def test_heartbeat(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watch, "FIRST_BEAT_S", 0.1)
    DEVICE.session, before = Loud(timeout=0.4), DEVICE.session
    try:
        with pytest.raises(emulated_gpu.Hang, match="still runs after 0.4 s"):
            emulated_gpu.launch(SPIN_PTX, "spin", 1, 32, [np.zeros(4, np.uint32)])
    finally:
        DEVICE.session = before
    assert "emulated-gpu: 0 s in spin (launch 1), 0 of 1 CTAs done: warp 0 of CTA" in capsys.readouterr().err


def test_a_heartbeat_counts_the_seconds_of_the_launch_that_it_tells_of(monkeypatch):
    for name in "FIRST_BEAT_S", "BEAT_S":
        monkeypatch.setattr(watch, name, 0.05)
    monkeypatch.setattr(watch, "describe", lambda launches, seconds: (launches[0], seconds))
    told: list = []
    running = ["first"]
    with watch.watched(lambda: running, say=told.append):
        time.sleep(0.3)
        running[:] = ["second"]
        time.sleep(0.15)
    first, second = ([seconds for name, seconds in told if name == of] for of in ("first", "second"))
    assert max(first) > 0.2 and min(second) < 0.2


LAST_WINS = """
import emulated_gpu, numpy as np, sys
out = np.zeros(1, np.uint32)
emulated_gpu.launch(open(sys.argv[0].replace("last.py", "last.ptx")).read(), "last", 1, 64, [out])
"""
LAST_WINS_PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry last(.param .u64 out)
{
    .reg .b32 %r; .reg .b64 %rd;
    ld.param.u64 %rd, [out];
    mov.u32 %r, %tid.x;
    atom.global.exch.b32 %r, [%rd], %r;
    ret;
}
"""


def test_outputs_of_schedules_are_compared(tmp_path):
    """Who comes last wins: no finding in any schedule, since atomics do not race, and yet another result."""
    (tmp_path / "last.ptx").write_text(LAST_WINS_PTX)
    done = python(tmp_path, LAST_WINS, "--schedules", "2", name="last.py")
    said = "outputs DIFFER: argument 0 after launch 1 (last), under schedules 0 and"
    assert f"emulated-gpu: 1 launch, 2 schedules, 0 findings, {said}" in done.stderr
    assert done.returncode == 0


def test_summary():
    launch = {"kernel": "k", "wrote": [["out", "12"]]}
    runs = [{"schedule": seed, "findings": [], "launches": [launch] * 3} for seed in range(8)]
    assert summary(runs) == "3 launches, 8 schedules, 0 findings, outputs equal in all"
    runs[3]["findings"] = [row_of("not promised", Fault("race", "m")) | {"schedule": 3, "launch": 1}]
    assert summary(runs) == "3 launches, 8 schedules, 0 findings, 1 note, outputs equal in all"
    runs[4]["launches"] = [launch, {"kernel": "k", "wrote": [["out", "13"]]}, launch]
    assert summary(runs).endswith("outputs DIFFER: out after launch 2 (k), under schedules 0 and 4")
    race = row_of("wrong", Fault("race", "m")) | {"launch": 1}
    runs[4]["launches"] = [launch]
    for seed in (5, 6):  # one mistake
        runs[seed]["findings"] = [race | {"schedule": seed}]
    assert summary(runs) == "1 to 3 launches, 8 schedules, 1 finding, 1 note"


def test_a_script_that_launches_nothing_can_be_told_to_fail(tmp_path):
    done = python(tmp_path, "", "--must-launch")
    assert done.returncode == 1 and "emulated-gpu: nothing was launched\n" in done.stderr


@pytest.mark.parametrize("command", (["run", "--json", "/proc/none"], ["profile", "--json", "/proc/none"],
                                     ["profile", "--out", "/proc/none"], ["run", "--html", "-"]))  # fmt: skip
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, command):
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('it ran')")
    done = CliRunner().invoke(cli, [*command, str(script)])
    why = "it would be a file of that name" if command[-1] == "-" else "No such file or directory"
    assert done.exit_code == 2 and f"cannot write {command[-1]}: {why}" in done.output


def test_errors_of_the_script_and_of_the_dsl_are_short_and_have_no_colours_in_a_pipe(tmp_path):
    hopper = "class OpError(Exception): pass\nraise OpError('expects arch to be Arch.sm_90a \x1b[91mred')"
    assert "`run --machine h200` is a Hopper GPU" in python(tmp_path, hopper).stderr
    assert "ValueError: red\n" in python(tmp_path, "raise ValueError('\x1b[91mred\x1b[0m')").stderr
