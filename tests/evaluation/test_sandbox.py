"""The judge's nurseries: which processes end with which."""

import os
import time

import pytest

from evaluation.judge.sandbox import Nursery


@pytest.fixture
def nursery():
    nursery = Nursery.spawn()
    yield nursery
    nursery.close()


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_what_is_apart_ends_alone(nursery):
    """An examiner goes on when another one is ended; what a submission has left behind ends with it."""
    apart, other = (nursery.start(time.sleep, 60, apart=True) for _ in range(2))
    left = nursery.start(time.sleep, 60)
    assert nursery.end(other) is None
    assert (alive(apart), alive(other), alive(left)) == (True, False, False)


def test_the_exit_code_of_what_had_ended(nursery):
    pid = nursery.start(os._exit, 3)
    deadline = time.monotonic() + 10
    code = None
    while code is None and time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                code = nursery.end(pid)
    assert code == 3


def test_a_closed_nursery_takes_all_with_it(nursery):
    pids = [nursery.start(time.sleep, 60, apart=apart) for apart in (True, False)]
    nursery.close()
    nursery.process.wait(10)
    assert not any(map(alive, pids))
