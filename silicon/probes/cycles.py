"""What probes that record cycles of their points share: the recording, and the model's figures beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from silicon import command
from silicon.cuda_driver import Gpu, nvidia_smi

UNKNOWN = float("nan")


def allocated(*sizes: int) -> list[np.ndarray]:
    """Allocates memory of the emulated GPU: an array of zeros, uint8, of each size in bytes."""
    from emulated_gpu.device import DEVICE, allocate  # not needed, and not there, on the machine with the GPU

    arrays = [allocate(size) for size in sizes]
    for array in arrays:
        DEVICE.adopt(array, "data")
    return arrays


def digest(point) -> str:
    """Changes with a point's PTX, its grid and the state of the L2: cycles of another must not be compared."""
    return hashlib.sha256((point.ptx + repr((point.grid, point.cold))).encode()).hexdigest()[:16]


def slowest_and_median(clocks: np.ndarray) -> list[float]:
    """The cycles of the slowest CTA and of the median one, of what CTAs have written, u64 each."""
    cycles = clocks.view(np.uint64)
    return [float(cycles.max()), float(np.median(cycles))]


def measured(gpu: Gpu, out: int, ctas: int, rounds: int, launch: Callable[[int], object]) -> list[float]:
    """The cycles of the slowest CTA and of the median one: medians of this many launches, of which the first is not
    counted. launch(turn) launches what writes u64 [ctas] to `out`, the address.
    """
    seen = []
    for turn in range(rounds):
        launch(turn)
        seen.append(slowest_and_median(gpu.read(out, 8 * ctas)))
    return np.median(seen[1:], axis=0).tolist()


def write_recording(file: Path, gpu: Gpu, found: Mapping) -> None:
    """Writes a recording: the machine, and the cycles of each point by its name."""
    head = {"machine": gpu.describe() | {"nvidia-smi": nvidia_smi()}, "cycles": found}
    file.write_text(json.dumps(head, indent=1) + "\n")


def recorded(table: Path) -> dict:
    """The cycles of a recording by its points' names, none if there is no recording."""
    return json.loads(table.read_text())["cycles"] if table.exists() else {}


def show(name: str, modelled: Sequence[float], measured: Sequence[float] | None) -> None:
    """Prints modelled and measured cycles of a point, and how far the model is off."""
    pairs = zip(modelled, measured or [UNKNOWN] * len(modelled), strict=True)
    print("  ".join(f"{m:7.1f} {v:7.1f} {m / v - 1:+6.1%}" for m, v in pairs) + f"  {name}", flush=True)


def compare(table: Path, points: Mapping[str, object], only: str, on_the_model: Callable) -> None:
    """Shows each point whose name contains `only`. on_the_model(point): its cycles, or a dict of them by launches."""
    known = recorded(table)
    for name, point in points.items():
        if only in name:
            found, of = on_the_model(point), known.get(name)
            if isinstance(found, dict):
                for when, each in found.items():
                    show(f"{name}, {when}", each, (of or {}).get(when))
            else:
                show(name, found, of)


def main(doc: str, table: Path, run: Callable[[Path], None], points: Mapping[str, object], on_the_model: Callable):
    """Runs a probe's command line, as `command.main`. on_the_model(point, profile): a point's cycles."""

    def model(only: str, profile) -> None:
        compare(table, points, only, lambda point: on_the_model(point, profile))

    command.main(doc, table, run, model)
