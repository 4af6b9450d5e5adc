"""What tests of the timing model share."""

import pytest

from emulated_gpu.device import DEVICE
from emulated_gpu.machine.engine import Engine, collecting
from emulated_gpu.model.memory import MemoryModel
from emulated_gpu.model.profile import load


@pytest.fixture
def memory() -> MemoryModel:
    """An H200's, whose L2 has nothing to be written back."""
    return MemoryModel(load("h200").with_({"l2.dirty_at_start": 0.0}), DEVICE.memory, Engine())


@pytest.fixture
def launches_are_freed():
    """They refer to themselves in circles, and hold the shared memory of all their CTAs. What was there before the
    test, torch above all, is not looked through."""
    with collecting():
        yield
