"""`nvidia-smi` of what `run` starts: scripts and shells that look for a GPU by it find the emulated one."""


import pytest

from emulated_gpu.chip import B200, CHIPS, H200
from emulated_gpu.device import DEVICE
from emulated_gpu.serve.driver.cuda_bindings import attribute
from emulated_gpu.serve.nvidia_smi import answer
from tests import forked


@pytest.mark.parametrize(
    "arguments", ["--query-gpu=name,memory.total --format=csv", "--format csv --query-gpu name,memory.total"]
)
def test_fields_with_head_and_units(arguments):
    assert answer(arguments.split(), H200, 1) == ["name, memory.total [MiB]", "NVIDIA H200 (emulated), 143155 MiB"]


def test_fields_alone_of_each_device():
    arguments = ["--query-gpu=index,compute_cap,memory.used", "--format=csv,noheader,nounits"]
    assert answer(arguments, B200, 2) == ["0, 10.0, 0", "1, 10.0, 0"]
    assert answer(["-i", "1", *arguments], B200, 2) == ["1, 10.0, 0"]
    with pytest.raises(LookupError, match="device 2"):
        answer(["--id=2", *arguments], B200, 2)


def test_lists():
    assert answer(["-L"], B200, 1) == ["GPU 0: NVIDIA B200 (emulated) (UUID: GPU-00000000-0000-0000-0000-000000000000)"]
    assert "Attached GPUs : 2" in answer(["-q"], B200, 2) and "CUDA Version: 13.0" in answer([], B200, 1)[0]


CAPABILITIES = {
    "a100": "8.0", "rtx3090": "8.6", "rtx4090": "8.9", "l40s": "8.9", "h100": "9.0", "h200": "9.0", "b200": "10.0",
    "b300": "10.3", "rubin": "10.7", "rtx5090": "12.0", "dgx-spark": "12.1",
}  # fmt: skip


@pytest.mark.parametrize("machine", CHIPS)
def test_each_machine_says_what_its_file_has(machine):
    chip = CHIPS[machine]
    (line,) = answer(["--query-gpu=clocks.max.mem,clocks.max.memory", "--format=csv,noheader,nounits"], chip, 1)
    assert line.split(", ") == [str(chip.memory_clock_khz // 1000)] * 2
    with DEVICE.as_chip(chip):
        assert attribute(120) == (chip.capability >= (9, 0)) and attribute(18) == (machine == "dgx-spark")


@pytest.mark.parametrize("machine", CHIPS)
def test_each_machine_says_its_own_name_and_capability(machine):
    (line,) = answer(["--query-gpu=name,compute_cap", "--format=csv,noheader"], CHIPS[machine], 1)
    name, capability = line.removesuffix("\n").split(", ")
    words = machine.replace("dgx-spark", "GB10").replace("rtx", "RTX ").replace("rubin", "R200")
    assert words.lower() in name.lower() and name.endswith("(emulated)") and capability == CAPABILITIES[machine]


@pytest.mark.parametrize(
    "arguments, what",
    [
        ("--query-gpu=temperature.gpu --format=csv", "the field temperature.gpu"),
        ("--query-gpu=name --format=xml", "--format=xml"),
        ("dmon -c 1", "dmon -c 1"),
    ],
)
def test_what_it_does_not_know_is_named(arguments, what):
    with pytest.raises(LookupError, match=f"^{what}$"):
        answer(arguments.split(), B200, 1)


def test_a_script_finds_it_on_the_path(tmp_path):
    shell = "nvidia-smi -L; nvidia-smi --query-gpu=fan.speed --format=csv"
    (tmp_path / "x.py").write_text(f"import subprocess; subprocess.run({shell!r}, shell=True)")
    options = "--machine h200 --devices 2 --ranks 1"
    done = forked.emulated_gpu("run", *options.split(), "x.py", cwd=tmp_path)
    assert done.stdout.startswith("GPU 0: NVIDIA H200 (emulated) ") and done.stdout.count("\n") == 2, done.stderr
    assert "nvidia-smi does not know the field fan.speed here" in done.stderr
