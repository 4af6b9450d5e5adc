"""torch's own samples of its operators (OpInfo), on the device and on the CPU: what agrees, what is refused and why.

    pip install expecttest
    python -m emulated_gpu run tests/emulated_gpu/serve/operator_samples.py [--every N] [--samples N] [NAME...]

A sample agrees if results, and the gradients of float32 ones, are equal as torch.testing.assert_close says, and lie on
the device. Operators that draw are compared by shape and dtype alone. Refused: the error names what is not served.
"""

import argparse
import collections
import itertools
import time

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from emulated_gpu.errors import Unsupported

REFUSED = Unsupported, NotImplementedError
DTYPES = torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64
DRAWS = (
    "bernoulli", "multinomial", "normal", "rand", "uniform", "cauchy", "exponential", "geometric", "log_normal",
    "dropout", "empty", "new_empty", "rrelu", "svd_lowrank", "pca_lowrank",
)  # fmt: skip


def moved(value, device: str):
    """Return a copy of a sample's operands there, which require gradients where those did."""

    def move(x):
        if not isinstance(x, torch.Tensor):
            return torch.device(device) if isinstance(x, torch.device) else x
        return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)

    moved = tree_map(move, value)
    if isinstance(moved, dict) and "device" in moved:
        moved["device"] = device
    return moved


def gradients(result, operands) -> list:
    """Return the gradients of all that floats in a result, summed up."""
    wanted = [x for x in tree_leaves(operands) if isinstance(x, torch.Tensor) and x.requires_grad]
    given = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not wanted or not given:
        return []
    return list(torch.autograd.grad([x.abs().sum() for x in given], wanted, allow_unused=True))


def outcome(op, sample, draws: bool) -> tuple[str, str]:
    """Return "agrees", "refused", "differs" or "fails", and why."""
    made = []
    for device in ("cpu", "cuda"):
        operands = [moved(x, device) for x in (sample.input, sample.args, sample.kwargs)]
        try:
            result = op(operands[0], *operands[1], **operands[2])
            made.append((result, gradients(result, operands)))
        except REFUSED as error:
            return ("no kernel", "") if device == "cpu" else ("refused", str(error).splitlines()[0])
        except Exception as error:
            why = f"{type(error).__name__}: {error}".split("\n")[0]
            if device == "cpu":
                return "no kernel", ""
            return ("wants the host", "") if "to be on cpu" in why else ("fails", why)  # as a GPU does
    here, there = made
    for x, y in zip(tree_leaves(here), tree_leaves(there), strict=True):
        if not isinstance(x, torch.Tensor):
            continue
        if x.device.type == "cpu" and not y.is_cuda and "cpu" not in op.name:
            return "differs", "a result on the CPU"
        if draws or x.is_sparse:
            same = x.shape == y.shape and x.dtype == y.dtype
            if not same:
                return "differs", f"{tuple(y.shape)} {y.dtype}, not {tuple(x.shape)} {x.dtype}"
            continue
        try:
            torch.testing.assert_close(y.cpu(), x, equal_nan=True)
        except AssertionError as error:
            return "differs", str(error).replace("\n", " ")[:150]
    return "agrees", ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1, help="of this many operators, one")
    parser.add_argument("--samples", type=int, default=3, help="of an operator and a dtype, at most")
    asked = parser.parse_args()
    counted, notes = collections.Counter(), {}
    operators = [op for op in op_db if not asked.names or op.name in asked.names][:: asked.every]
    began = time.process_time()
    for op in operators:
        draws = any(name in op.name for name in DRAWS)
        for dtype in DTYPES:
            if dtype not in op.dtypes:
                continue
            torch.manual_seed(0)
            grad = dtype is torch.float32 and op.supports_autograd and not draws
            try:
                made = op.sample_inputs_func(op, "cpu", dtype, grad)  # past a callback that looks at all frames
                samples = list(itertools.islice(made, asked.samples))
            except Exception:  # what torch's samples need is not there
                counted["no sample"] += 1
                continue
            for sample in samples:
                kind, why = outcome(op, sample, draws)
                counted[kind] += 1
                if kind not in ("agrees", "no kernel", "wants the host"):
                    notes.setdefault((kind, op.formatted_name, why[:200]), []).append(str(dtype)[6:])
        for (kind, name, why), dtypes in sorted(notes.items()):
            print(f"{kind}: {name} ({', '.join(sorted({*dtypes}))}): {why}", flush=True)
        notes.clear()
    tried = sum(counted[kind] for kind in ("agrees", "refused", "differs", "fails"))
    print(f"{len(operators)} operators, {tried} samples: " + ", ".join(f"{n} {kind}" for kind, n in counted.items()))
    print(f"{100 * counted['agrees'] / max(1, tried):.1f} % agree; {time.process_time() - began:.0f} CPU s")


if __name__ == "__main__":
    main()
