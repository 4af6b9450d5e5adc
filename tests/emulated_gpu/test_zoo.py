"""Each program of the zoo is found as emulated_gpu/ZOO.md says, in schedule 0 and others, and silent once it is
fixed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import emulated_gpu
from emulated_gpu.chip import B200, H200
from emulated_gpu.formats.tensormap import TensorMap, encode
from silicon import zoo

ZOO = sorted(zoo.ZOO.glob("*.ptx"))
PAGE = (Path(emulated_gpu.__file__).parent / "ZOO.md").read_text()
SCHEDULES = 0, 1, 2


def run(path: Path, fixed: bool, schedule: int) -> list[emulated_gpu.EmulatorError]:
    """What is found, and noted."""
    text, launches = zoo.state(path.read_text(), fixed)
    source = emulated_gpu.device_tensors(torch.zeros(256, dtype=torch.int32), "in")
    out = np.zeros(256, np.int32)
    if "map" in launches[0]:
        made = encode(TensorMap(source.data_ptr(), "s32", (16,), (), (16,), (1,)))
        out[:32] = np.frombuffer(made, np.int32)
    out = emulated_gpu.device_tensors(torch.from_numpy(out), "out")
    chip = H200 if "sm_90a" in text else B200
    with emulated_gpu.DEVICE.as_chip(chip), emulated_gpu.session(schedule, most=9) as session:
        for kernel, grid, block, *more in launches:
            options = {"shared": zoo.shared(more), "pdl": "pdl" in more}
            emulated_gpu.launch(text, kernel, int(grid), int(block), [out, source], **options)
    return [*session.errors, *session.notes]


def row(path: Path) -> list[str]:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| [{path.stem}]"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_a_program_is_found_and_silent_when_fixed(path):
    for schedule in SCHEDULES[: 1 if path.stem == "grid-barrier" else None]:
        found = run(path, False, schedule)
        assert run(path, True, schedule) == []
        assert found, schedule
        if schedule:
            continue  # under which a read may come before anything was written
        kinds = {f"`{getattr(one, 'note', '') or one.kind}`" for one in found}
        assert kinds == set(re.findall("`[a-z0-9-]+`", row(path)[2])), found
        lines = {int(n) for one in found for n in re.findall(r"PTX line (\d+)", str(one))}
        assert {int(n) for n in re.findall(r"\d+", row(path)[3])} <= lines, found


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_a_program_has_the_link_of_its_row(path):
    (link,) = re.findall(r"^// (https://\S+)$", path.read_text(), re.M)
    assert f"({link})" in row(path)[0]


def test_each_row_has_a_program():
    assert sorted(re.findall(r"^\| \[([\w-]+)\]", PAGE, re.M)) == [path.stem for path in ZOO]


def test_what_the_page_says_of_compute_sanitizer():
    """It has reported the control alone; two programs do not end."""
    said = {key: value for key, value in json.loads(zoo.TABLE.read_text()).items() if key.split()[-1] in zoo.TOOLS}
    names = {key.split()[0] for key in said} - {"control"}
    assert len(names) == 9 and len(said) == 3 * 2 * 10 and "The nine programs that a Hopper GPU can run" in PAGE
    silent = {key for key, value in said.items() if "0 errors" in value[-1]}
    assert {key for key in said if key not in silent} == {"control buggy racecheck"} | {
        f"{name} buggy {tool}" for name in ("flashinfer-4531", "grid-barrier") for tool in zoo.TOOLS
    }
