"""The examples on ragged_moe/'s pages, run as a reader would on a machine without a GPU."""

import re
from pathlib import Path

import torch

MOE = Path(__file__).parents[2] / "ragged_moe"


def run(page: str, machine: str, monkeypatch) -> dict:
    """The names that a page's program leaves, on this emulated machine."""
    (code,) = re.findall(r"```python\n(.*?)```", (MOE / page).read_text(), re.DOTALL)
    assert 'emulated_gpu.install("h200")' in code
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = {}
    exec(compile(code.replace('"h200"', repr(machine)), page, "exec"), names)
    return names
