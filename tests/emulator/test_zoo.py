"""Each program of the zoo is found as emulator/ZOO.md says, in schedule 0 and others, and silent once it is fixed."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import emulator
from emulator.chip import B200, H200
from emulator.formats.tensormap import TensorMap, encode

ZOO = sorted((Path(__file__).parent / "zoo").glob("*.ptx"))
PAGE = (Path(emulator.__file__).parent / "ZOO.md").read_text()
SCHEDULES = 0, 4, 8


def state(path: Path, fixed: bool) -> tuple[str, list[list[str]]]:
    """The program in one of its states, and its launches: kernel, grid, block, more."""
    text = path.read_text()
    launch = re.findall(r"^// launch when fixed: (.*)", text, re.M) if fixed else []
    launch = launch or re.findall(r"^// launch: (.*)", text, re.M)
    other = "// buggy" if fixed else "// fixed"
    lines = ["" if line.endswith(other) else line for line in text.splitlines()]
    return "\n".join(lines), [one.split() for one in launch[0].split(", ")]


def run(path: Path, fixed: bool, schedule: int) -> list[emulator.EmulatorError]:
    """What is found, and noted."""
    text, launches = state(path, fixed)
    source = emulator.device_tensors(torch.zeros(256, dtype=torch.int32), "in")
    out = np.zeros(256, np.int32)
    if "map" in launches[0]:
        made = encode(TensorMap(source.data_ptr(), "s32", (16,), (), (16,), (1,)))
        out[:32] = np.frombuffer(made, np.int32)
    out = emulator.device_tensors(torch.from_numpy(out), "out")
    chip = H200 if "sm_90a" in text else B200
    with emulator.DEVICE.as_chip(chip), emulator.session(schedule, most=9) as session:
        for kernel, grid, block, *more in launches:
            shared = next((int(word.partition("=")[2]) for word in more if word.startswith("shared=")), 0)
            emulator.launch(text, kernel, int(grid), int(block), [out, source], shared=shared, pdl="pdl" in more)
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
