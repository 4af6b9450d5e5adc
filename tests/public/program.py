"""Runs a case's lines of Python with the names of a public file, under `python -m emulated_gpu run`.

program.py FILE CODE [UNTIL]  # FILE is imported, so that what stands under `if __name__ == "__main__"` is left out
program.py "" CODE            # UNTIL: and what stands from a line that begins with this on
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import random
import sys
from pathlib import Path

import pytest
import torch

from emulated_gpu.device import DEVICE


def close(got: torch.Tensor, wanted: torch.Tensor, error: float) -> None:
    """Raise AssertionError if `got` has not the shape of `wanted`, or misses it by `error` of its largest magnitude."""
    assert got.shape == wanted.shape, f"shape {tuple(got.shape)}, not {tuple(wanted.shape)}"
    off = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert off <= error, f"off by {off:.3g} of the largest magnitude, {error} allowed"
    print(f"off by {off:.2g} of the largest magnitude")


def judged(kernel, **sizes) -> None:
    """Call a submission of a GPU MODE task as its evaluator does; AssertionError if the task's own check rejects it."""
    from reference import check_implementation, generate_input  # the task's, by the case's path

    data = generate_input(**sizes)
    result = check_implementation(data, kernel(data))
    good, message = result if isinstance(result, tuple) else (not result, result)
    assert good, f"the task's check: {message}"


class Drawn:
    """pytest's plugin that keeps the tests that a seed draws, and tells what became of them."""

    def __init__(self, count: int, seed: int):
        self.count, self.seed = count, seed
        self.all, self.passed = 0, 0
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)  # of those that have the words
    def pytest_collection_modifyitems(self, items):
        self.all = len(items)
        items[:] = random.Random(self.seed).sample(items, min(self.count, len(items)))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(f"{report.nodeid.partition('::')[2]}: {str(report.longrepr).strip().splitlines()[-1]}")
        self.passed += report.when == "call" and report.passed

    def pytest_runtest_teardown(self):
        DEVICE.session.failure = None  # the next one's launches are its own


def own_tests(file: str, count: int, words: str = "", seed: int = 0) -> None:
    """Run tests of a file that a seed draws of those with the words; AssertionError if one fails, or none runs."""
    there = next(Path(folder, file) for folder in sys.path if Path(folder, file).exists())
    drawn = Drawn(count, seed)
    options = "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-k", words
    pytest.main([str(there), *options], plugins=[drawn])
    print(f"{drawn.passed} passed, {len(drawn.failed)} failed, {drawn.all} there are")
    assert not drawn.failed, f"{len(drawn.failed)} of {drawn.passed + len(drawn.failed)} tests: {drawn.failed[0]}"
    assert drawn.passed, "no test has run"


class Beginning(importlib.machinery.SourceFileLoader):
    """Loads a file up to the line that begins with `until`; Triton and inspect see all of its source."""

    until = ""

    def get_code(self, name):
        text = Path(self.path).read_text()
        kept, found, _ = text.partition(f"\n{self.until}")
        if self.until and not found:
            raise ValueError(f"no line of {self.path} begins with {self.until!r}")
        return compile(kept + "\n" if self.until else text, self.path, "exec")


def main(file: str, code: str, until: str = "") -> None:
    names: dict = {"judged": judged, "close": close, "torch": torch, "own_tests": own_tests}
    if file:
        sys.path.insert(0, str(Path(file).parent))
        loader = Beginning("public_file", file)
        loader.until = until
        spec = importlib.util.spec_from_loader("public_file", loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules["public_file"] = module
        spec.loader.exec_module(module)
        names |= vars(module)
    exec(compile(code, "a case of tests/public/cases.py", "exec"), names)


if __name__ == "__main__":
    main(*sys.argv[1:])
