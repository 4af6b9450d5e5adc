"""Says what a case comes to, and when a result or a time is refused."""

import dataclasses
import math

import torch

import utils
from evaluation.judge.statistics import Stats, geometric_mean

MEMORY_BANDWIDTH = 8e12  # bytes/s of a B200: https://www.nvidia.com/en-us/data-center/dgx-b200/


@dataclasses.dataclass
class Verdict:
    """Says what a case has come to.

    mismatches: elements that differ from the exact result, rounded once, over all calls; None if no result was read.
    ulps: the largest distance of one from it, in float16 numbers; None unless all were within what the task allows.
    modelled: a reply of `modelled`, or {"error": why there is no time}, if times were to be modelled.
    isolation: what kept the submission's process from the judge's, see isolation.py. notes: what its kernels do that
    the PTX ISA does not promise and silicon is seen to do (emulated_gpu/NOT_PROMISED.md); no reason to fail. findings:
    rows (emulated_gpu/finding_rows.py) of what the emulator has found and of the notes, as often as it did, with `of`
    and `events`. limits: sentences about what a pass of this case does not hold.
    """

    spec: str
    status: str = "fail"
    reason: str = "not run"
    mismatches: int | None = None
    ulps: int | None = None
    seconds: float = 0.0
    times: Stats | None = None
    modelled: dict | None = None
    isolation: str | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    findings: list[dict] = dataclasses.field(default_factory=list)
    limits: list[str] = dataclasses.field(default_factory=list)

    def note(self, notes: list) -> None:
        """Keeps notes, each once."""
        self.notes += [text for text in map(legible, notes) if text not in self.notes]

    @property
    def us(self) -> float | None:
        return self.times.mean / 1e3 if self.times else None


def legible(text: str) -> str:
    """Makes a text that the submission may have written fit for a terminal: nothing in it moves the cursor or looks
    like a line of ours."""
    lines = str(text).splitlines() or [""]
    return "\n  | ".join("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line) for line in lines)


class Refused(Exception):
    """The case has failed; the message is the reason."""


def ulps(got: torch.Tensor, want: torch.Tensor) -> int:
    """Finds the largest number of float16 steps between elements of two tensors with NaN in the same places."""
    bits = (t.nan_to_num(0, math.inf, -math.inf).contiguous().view(torch.int16).int() for t in (got, want))
    a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in bits)
    return int((a - b).abs().max())


def compare(group: int, got: torch.Tensor, want: torch.Tensor, exact: bool, poison: float) -> tuple[int, str]:
    """Compares one group's float16 [M, N, L] result: (elements that differ, what is wrong or "").

    exact: none may differ; else they may by the task's tolerance. poison: what was there before.
    """
    differs = (got != want) & ~(got.isnan() & want.isnan())
    count = int(differs.count_nonzero())
    if not count or (not exact and not utils.verbose_allclose(got, want, rtol=1e-3, atol=1e-3)):
        return count, ""
    there, what = got[differs], "NaN" if math.isnan(poison) else f"{poison:g}"
    unwritten = int((there == poison).count_nonzero())
    if nan := int(there.isnan().count_nonzero()):
        unwritten, what = nan, "NaN"
    if unwritten:
        detail = f"{unwritten} of {got.numel()} elements are {what} (never written, or {what} written)"
    else:
        m, n, i = differs.nonzero()[0].tolist()
        detail = f"first at [{m}, {n}{f', {i}' if i else ''}]: {got[m, n, i]:g} instead of {want[m, n, i]:g}"
    return count, f"group {group}: {count} of {got.numel()} elements differ, {detail}"


def check_time(ns, read: int) -> None:
    """Raises Refused for what cannot be the nanoseconds of a call: less than reading `read` bytes once takes."""
    if not isinstance(ns, float) or not math.isfinite(ns):
        raise Refused(f"{ns} is not a time")
    floor = read / MEMORY_BANDWIDTH * 1e9
    if ns < floor:
        raise Refused(f"{ns:.0f} ns is less than the {floor:.0f} ns that reading the inputs at 8 TB/s takes")


def geomean_us(verdicts: list[Verdict]) -> float | None:
    """Takes the geometric mean of the times, in microseconds; None unless every case passed with a time."""
    return geometric_mean(v.us if v.status == "pass" else None for v in verdicts)
