"""Seeds, device choice, L2 flush and comparison: what the reference and the evaluator share."""

import random

import numpy as np
import torch


def set_seed(seed: int = 42) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_device() -> torch.device:
    """`cuda` on a machine whose GPU runs sm_100a code (compute capability 10.0: B200), else `cpu`."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (10, 0):
        return torch.device("cuda")
    return torch.device("cpu")


def clear_l2_cache() -> None:
    """Overwrites 256 MiB, twice the L2 of a B200. Nothing to do without a GPU."""
    if torch.cuda.is_available():
        torch.full((32, 1024, 1024), 42, dtype=torch.int64, device="cuda")


def clear_l2_cache_large() -> None:
    """Fills 67 GB with random numbers: besides the L2 it keeps the GPU busy while the host queues its launches."""
    if torch.cuda.is_available():
        torch.randn((16000, 1024, 1024), device="cuda")


@torch.no_grad()
def verbose_allclose(
    received: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, max_print: int = 5
) -> list[str]:
    """Empty list if |received - expected| <= atol + rtol * |expected| everywhere, else one line per finding.

    NaN matches only NaN, an infinity only itself. The difference has the tensors' own dtype, as the grader's has.
    """
    if received.shape != expected.shape:
        return [f"SIZE MISMATCH: got {tuple(received.shape)}, expected {tuple(expected.shape)}"]
    wrong = (received - expected).abs() > atol + rtol * expected.abs()
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong |= special(received) ^ special(expected)
    count = int(wrong.count_nonzero())
    if not count:
        return []
    lines = [f"Number of mismatched elements: {count}"]
    for index in wrong.nonzero()[:max_print].tolist():
        i = tuple(index)
        lines.append(f"ERROR AT {i}: {received[i]} {expected[i]}")
    if count > max_print:
        lines.append(f"... and {count - max_print} more mismatched elements.")
    return lines


def match_reference(data, output, reference, rtol: float = 1e-05, atol: float = 1e-08) -> tuple[bool, str]:
    """(True, "") if `output` matches `reference(data)`, tensor by tensor if that is a list, else (False, why)."""
    expected = reference(data)
    if isinstance(expected, torch.Tensor):
        if not isinstance(output, torch.Tensor):
            return False, f"expected a tensor, got {type(output).__name__}"
        output, expected = [output], [expected]
    if len(output) != len(expected):
        return False, f"output length mismatch: got {len(output)}, expected {len(expected)}"
    for group, (got, want) in enumerate(zip(output, expected)):
        lines = verbose_allclose(got, want, rtol=rtol, atol=atol)
        if lines:
            return False, f"mismatch found! custom implementation doesn't match reference: {group} {lines}"
    return True, ""


def make_match_reference(reference, **tolerances):
    """`check_implementation(data, output)` of a task with the given reference and tolerances."""

    def check_implementation(data, output):
        return match_reference(data, output, reference=reference, **tolerances)

    return check_implementation
