"""What tests of the timing model share, and those of what machine code does as Python does."""

import pytest

from emulated_gpu.device import DEVICE
from emulated_gpu.machine.engine import Engine, collecting
from emulated_gpu.model.memory import MemoryModel
from emulated_gpu.model.profile import load
from emulated_gpu.native import hot_blocks
from emulated_gpu.native.region import Region


@pytest.fixture
def memory() -> MemoryModel:
    """An H200's, whose L2 has nothing to be written back."""
    return MemoryModel(load("h200").with_({"l2.dirty_at_start": 0.0}), DEVICE.memory, Engine())


@pytest.fixture
def soon_hot(monkeypatch) -> list[Region]:
    """Blocks become machine code after tens or hundreds of instructions in Python, not thousands; those that have."""
    made: list[Region] = []
    compile_region = Region.compile
    monkeypatch.setattr(hot_blocks, "START", 1000.0)
    monkeypatch.setattr(hot_blocks, "COMPILED", 0.0)
    monkeypatch.setattr(Region, "compile", lambda region: (compile_region(region), made.append(region))[0])
    return made


@pytest.fixture
def launches_are_freed():
    """They refer to themselves in circles, and hold the shared memory of all their CTAs. What was there before the
    test, torch above all, is not looked through."""
    with collecting():
        yield
