"""Fixtures of the evaluator's tests: submissions to judge, and how to judge them."""

from pathlib import Path

import pytest

from evaluation.judge import Options, judge
from task import TestCase, format_case

HONEST = """from reference import ref_kernel

def custom_kernel(data):
    return ref_kernel(data)
"""


@pytest.fixture
def honest(tmp_path) -> Path:
    """The reference itself as a submission."""
    path = tmp_path / "submission.py"
    path.write_text(HONEST)
    return path


@pytest.fixture
def judged():
    """judged(submission, *sizes, **options): verdicts on the emulated device, by one process; sizes are (m, n, k)."""

    def run(submission, *sizes, **options):
        cases = []
        for seed, (m, n, k) in enumerate(sizes):
            args = {"m": m, "n": n, "k": k, "g": len(m), "seed": seed}
            cases.append(TestCase(format_case(args), args))
        return judge(cases, Options(str(submission), "emulated", **{"jobs": 1, "timeout": 60, **options}))

    return run
