"""Tasks that are files of the form of https://github.com/ScalingIntelligence/KernelBench: a module `Model`, and what
makes its inputs. A submission has a `ModelNew`."""

import dataclasses
import importlib
from pathlib import Path

from evaluation.tasks.entry import WEIGHTS
from evaluation.tasks.others import Author, OthersTask, close
from evaluation.tasks.text import defined, tree_of
from task import TestCase

NEEDED = "Model", "get_inputs", "get_init_inputs"
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}  # rtol and atol, as of KernelBench's eval.py
CASE = TestCase(f"seed: {WEIGHTS}", {"seed": WEIGHTS})  # a file is one case: its sizes are constants


@dataclasses.dataclass(frozen=True)
class KernelBench(OthersTask):
    """Is the one case of a file."""

    @classmethod
    def read(cls, path: str) -> "KernelBench":
        """Reads a file. Raises ValueError for what is not of that form."""
        if missing := [name for name in NEEDED if name not in defined(tree_of(path))]:
            raise ValueError(f"{path} has no {' and no '.join(missing)}: it is no task of KernelBench's form")
        file = Path(path).resolve()
        return cls(str(file), file.stem, {"reference": str(file)}, [CASE], [CASE], entry=("model", "ModelNew"))

    def tolerance(self) -> str:
        return "allclose with rtol and atol 1e-4 (float32) or 1e-2 (float16, bfloat16), as KernelBench's eval.py does"

    def author(self) -> Author:
        import torch

        reference = importlib.import_module("reference")
        made: list = []

        def on_device(given):
            return [one.cuda() if isinstance(one, torch.Tensor) else one for one in given]

        def generate(seed: int):
            inputs = on_device(reference.get_inputs())
            torch.manual_seed(WEIGHTS)
            return on_device(reference.get_init_inputs()), inputs

        def check(data, returned) -> tuple[bool, str]:
            initial, given = data
            with torch.no_grad():
                if not made:
                    torch.manual_seed(WEIGHTS)
                    made.append(reference.Model(*initial).cuda())
                want = made[0](*given)
            if not isinstance(want, torch.Tensor):
                raise ValueError(f"Model returned {type(want).__name__}, no tensor")
            allowed = TOLERANCE.get(str(want.dtype).removeprefix("torch."), 0.0)
            wrong = close(returned, want, allowed, allowed)
            return not wrong, wrong

        return Author(generate, check)
