"""A script as several ranks, as `torchrun --nproc-per-node N` starts it, each a thread of this process.

Threads, since all ranks' devices are one emulated node with one memory. What a process has of its own is put in place
when a rank's turn begins (machine/hosts.py): torchrun's environment variables, `__main__`, what torch.distributed has,
random numbers, operators of its own. Modules are shared, so that what one keeps for its process it keeps for all ranks.
"""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ...device import DEVICE
from ...machine.hosts import Host
from . import custom_operators, distributed, symmetric_memory

PORT = "29500"  # torchrun's


class Process:
    """Holds what a rank would have as a process of its own: environment variables and its __main__ module."""

    def __init__(self, rank: int, count: int):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
        self.environment = {name: str(value) for name, value in numbers.items()} | address
        self.main = types.ModuleType("__main__")
        self.distributed = distributed.fresh()
        self.random = _random_state()
        self.operators = custom_operators.Operators()

    def begin(self) -> None:
        """Put it in place."""
        os.environ.update(self.environment)
        sys.modules["__main__"] = self.main
        distributed.put_back(self.distributed)
        self.operators.begin()
        host, devices, python, numpy = self.random
        torch.set_rng_state(host)
        torch.cuda.set_rng_state_all(devices)
        random.setstate(python)
        np.random.set_state(numpy)

    def end(self) -> None:
        """Keep what it has become."""
        self.environment = {name: os.environ[name] for name in self.environment if name in os.environ}
        self.distributed, self.random = distributed.kept(), _random_state()
        self.operators.end()


def _random_state() -> tuple:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all(), random.getstate(), np.random.get_state()


def run_ranks(count: int, program: Callable[[types.ModuleType], None]) -> list[BaseException | None]:
    """Run a program as this many ranks, with as many devices. Returns what each has raised, or None.

    program: gets its rank's `__main__`.
    """
    distributed.install()
    symmetric_memory.install()
    custom_operators.install()
    outside = Process(0, count)
    outside.main, outside.environment = sys.modules["__main__"], {}
    processes = [Process(rank, count) for rank in range(count)]

    def process(host: Host) -> Process:
        return processes[host.rank] if host in ranks else outside

    def switched(before: Host, after: Host) -> None:
        process(before).end()
        process(after).begin()

    _, hosts = DEVICE.together()
    ranks: list[Host] = hosts.ranks(count)
    hosts.switched = switched
    try:
        raised = hosts.run(ranks, lambda host: program(processes[host.rank].main))
        lost = None if any(raised) else distributed.unreceived()
        return raised if lost is None else [hosts.failed(lost)]
    finally:
        for name in processes[0].environment:
            os.environ.pop(name, None)


def run_script(script: str, count: int) -> list[BaseException | None]:
    """Run a Python script as this many ranks, as `python script` would. Returns what each has raised, or None."""
    code = compile(Path(script).read_bytes(), script, "exec")

    def program(main: types.ModuleType) -> None:
        main.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
        exec(code, main.__dict__)
        DEVICE.synchronize()  # what nobody has waited for is checked, too

    return run_ranks(count, program)
