"""Says what a run is asked for."""

import dataclasses
import secrets

from evaluation.judge.own_task import OwnTask
from evaluation.judge.task import Task


@dataclasses.dataclass
class Options:
    """Says how a case is judged."""

    submission: str
    device: str  # cuda | emulated
    config: dict[str, str] | None = None  # entries of the submission's Config to change, see configs.py; None: no look
    machine: str = "b200"  # which one is emulated: emulated_gpu/machines
    task: Task = OwnTask()
    timed: bool = False  # measured on cuda, else modelled
    priced: bool = False  # calls in which torch computes, too, have a time that is labelled as such (mixed_calls.py)
    profile: str = "b200"  # the machine whose times are modelled: emulated_gpu/model/profiles
    breakdown: bool = False  # with the modelled times, where they go
    extra: bool = True  # one case, which only the judge knows, gets a call more, and other sizes
    calls: int = 2  # calls per case, each with other inputs and, emulated, under another schedule; measured: the task's
    jobs: int = 2  # processes
    events: bool = False  # whether findings come with what happened before them
    strict: bool = False  # whether what is not promised by the PTX ISA, but seen to work, fails
    timeout: float = 300.0  # seconds for one call (all calls of one timing)
    memory: float = 12.0  # GiB of private memory for an emulated case, and of the device's for what it allocates there
    secret: int = dataclasses.field(default_factory=lambda: secrets.randbits(31))
