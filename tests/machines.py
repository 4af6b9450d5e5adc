"""The emulated device as another machine, for a block."""

import contextlib

from emulator import DEVICE
from emulator.chip import Chip


@contextlib.contextmanager
def machine(chip: Chip):
    before, DEVICE.chip = DEVICE.chip, chip
    try:
        yield
    finally:
        DEVICE.chip = before
