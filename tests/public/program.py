"""Runs a case's lines of Python with the names of a public file, under `python -m emulated_gpu run`.

program.py FILE CODE [UNTIL]  # FILE is imported, so that what stands under `if __name__ == "__main__"` is left out
program.py "" CODE            # UNTIL: and what stands from a line that begins with this on
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch


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
    names: dict = {"judged": judged, "close": close, "torch": torch}
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
