"""Fixtures: submissions to judge and how to judge them, and submission.py on the emulated B200.

What imports torch is imported in them: pytest's first process, for which the others wait, needs none of it.
"""

import ctypes
import itertools
import os
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: pytest has a process for each core

import pytest

import emulated_gpu
from tests import quick_dsl

quick_dsl.collect_garbage_rarely()
HONEST = """from reference import ref_kernel

def custom_kernel(data):
    return ref_kernel(data)
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run those marked thorough, too")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &`: a shell's background jobs ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests come first in each process's share, a run of neighbours (xdist's worksteal): none is begun last.

    Those that share a process's results are in one share: another would make them again.
    """
    if not config.getoption("--thorough"):
        config.hook.pytest_deselected(items=[x for x in items if x.get_closest_marker("thorough")])
        items[:] = [x for x in items if not x.get_closest_marker("thorough")]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    slow, quick = [[x for x in items if bool(x.get_closest_marker("slow")) == y] for y in (True, False)]
    together: dict[object, list[pytest.Item]] = {}
    for item in slow:
        together.setdefault(item.path if "results" in item.fixturenames else item, []).append(item)
    shares = [[*itertools.chain(*list(together.values())[i::workers])] for i in range(workers)]
    left, items[:] = len(items), []
    for i, share in enumerate(shares):  # filled up to what xdist gives a process
        missing = max(0, left // (workers - i) - len(share))
        items += [*share, *quick[:missing]]
        quick, left = quick[missing:], left - len(share) - missing


@pytest.fixture(scope="module", autouse=True)
def freed_memory_is_given_back():
    """glibc keeps what was freed: 10 GB in a process that has modelled many launches."""
    yield
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


@pytest.fixture(scope="session", autouse=True)
def preloaded():
    """The judge's processes are forked from one that has the DSL and the emulator: half a second less for each."""
    from evaluation.judge import sandbox

    with pytest.MonkeyPatch.context() as patch:
        spawn = sandbox.Nursery.spawn
        # One that is to import nothing, as those of test_sandbox.py, forks what needs neither
        patch.setattr(sandbox.Nursery, "spawn", lambda *modules: spawn(*modules, *["tests.preload"] * bool(modules)))
        yield


@pytest.fixture
def honest(tmp_path) -> Path:
    """The reference itself as a submission."""
    path = tmp_path / "submission.py"
    path.write_text(HONEST)
    return path


@pytest.fixture
def judged():
    """judged(submission, *sizes, **options): verdicts on the emulated device, by one process; sizes are (m, n, k)."""
    from evaluation.judge.judge import Options, judge
    from task import TestCase, format_case

    def run(submission, *sizes, **options):
        cases = []
        for seed, (m, n, k) in enumerate(sizes):
            args = {"m": m, "n": n, "k": k, "g": len(m), "seed": seed}
            cases.append(TestCase(format_case(args), args))
        return judge(cases, Options(str(submission), "emulated", **{"jobs": 1, "timeout": 60, **options}))

    return run


@pytest.fixture(scope="module")
def submission():
    """The module, its kernels compiled into the emulator."""
    emulated_gpu.install()
    quick_dsl.install()
    import submission

    submission.plan.cache_clear()
    submission.dual_plan.cache_clear()
    submission.compiled.cache_clear()
    return submission
