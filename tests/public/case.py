"""What one public script or program is, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass

BOTH, B200, H200 = ("b200", "h200"), ("b200",), ("h200",)
OTHERS = ("a100", "rtx3090", "rtx4090", "l40s", "rtx5090", "dgx-spark", "h100", "b300", "rubin")


@dataclass(frozen=True)
class Case:
    """A public script, or a program. Paths are those in its repository.

    script: the file, run with `args`, or imported for `code`, Python that asserts what has to hold, without what stands
    from a line that begins with `until` on; of CUDA C++, nvcc builds it, with `options` and the .cpp files beside it;
    edits: what of its text is replaced by what, such as sizes; says: what it has to print; path: folders that are
    importable, or have headers; limit: seconds of CPU time, without nvcc's; explained: why it does not agree, checked
    by hand, with the line.
    """

    group: str
    name: str
    script: str = ""
    args: str = ""
    code: str = ""
    options: str = ""
    machines: tuple[str, ...] = BOTH
    path: tuple[str, ...] = ()
    limit: int = 60
    until: str = ""
    explained: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    says: str = ""
