"""Types of the tasks `nvfp4_group_gemm` and `nvfp4_dual_gemm`, and the text form of their cases.

One case per line, as the grader writes it: `m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111` is one of the
group GEMM, `m: 256; n: 512; k: 256; l: 1; seed: 1111` one of the dual GEMM.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import TypedDict, TypeVar

import torch

# (abc, scales, reordered scales, sizes), one entry per group; `reference.generate_input` gives shapes and dtypes.
group_input_t = tuple[
    list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    list[tuple[torch.Tensor, torch.Tensor]],
    list[tuple[torch.Tensor, torch.Tensor]],
    list[tuple[int, int, int, int]],
]
# a, b1, b2, sfa, sfb1, sfb2, sfa_permuted, sfb1_permuted, sfb2_permuted, c; see `reference.generate_dual_input`.
dual_input_t = tuple[(torch.Tensor,) * 10]
input_t = TypeVar("input_t", bound=group_input_t | dual_input_t)
output_t = TypeVar("output_t", bound=list[torch.Tensor] | torch.Tensor)


class TestSpec(TypedDict):
    """Arguments of `generate_input`: m, n and k hold one size per group."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    g: int
    seed: int


class DualTestSpec(TypedDict):
    """Arguments of `generate_dual_input`: l is the number of batches."""

    m: int
    n: int
    k: int
    l: int  # noqa: E741
    seed: int


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the two tasks. `reference.TASKS` has them by name, `reference.task_of` by a case's arguments."""

    name: str  # its leaderboard
    file: str  # its description, with its cases
    spec: type  # TestSpec or DualTestSpec
    check_sizes: Callable[..., None]  # of the arguments but the seed
    generate_input: Callable
    ref_kernel: Callable
    check_implementation: Callable
    on_host: tuple[int, ...]  # items of the data that stay in host memory
    calls: int  # back to back in one timing, each on inputs of its own
    repeats: tuple[int, int, int]  # timings at most: of a benchmark, of a warm-up before the ranked one, of that
    generate_full_range_input: Callable | None = None  # with all numbers of the formats, if results stay exact

    def upload(self, data: tuple, to_device: Callable) -> tuple:
        """The data with its device part copied by `to_device`."""
        return tuple(item if i in self.on_host else to_device(item) for i, item in enumerate(data))


@dataclasses.dataclass
class TestCase:
    """`spec` is the line as it was given (it is echoed in the report), `args` what it says."""

    spec: str
    args: dict


_FIELD = re.compile(r"\s*([a-zA-Z_]+)\s*:\s*(\[[^\]]*\]|\([^)]*\)|[a-zA-Z_]+|[+-]?[0-9]+)\s*")


def parse_case(line: str) -> TestCase:
    """Reads `key: value; key: value ...`; values are integers, words, or lists of integers. Raises ValueError."""
    args = {}
    for part in line.split(";"):
        field = _FIELD.fullmatch(part)
        if field is None:
            raise ValueError(f"invalid test case: '{line}': '{part}'")
        key, value = field.groups()
        if key in args:
            raise ValueError(f"invalid test case: '{line}': {key} is given twice")
        if value[0] in "[(":
            try:
                args[key] = tuple(int(item) for item in value[1:-1].split(",") if item.strip())
            except ValueError:
                raise ValueError(f"invalid test case: '{line}': '{part}' is not a list of integers") from None
        else:
            args[key] = value if value[0].isalpha() or value[0] == "_" else int(value)
    return TestCase(line, args)


def format_case(args: dict) -> str:
    """The line that `parse_case` reads back."""
    fields = {key: list(value) if isinstance(value, (tuple, list)) else value for key, value in args.items()}
    return "; ".join(f"{key}: {value}" for key, value in fields.items())


def combine_seeds(public: int, secret: int) -> int:
    """Cantor pairing: without the secret, the public seed of a case says nothing about the inputs it gets."""
    return public + (public + secret) * (public + secret + 1) // 2


def read_task_yaml(text: str, section: str) -> list[TestCase]:
    """Cases listed under `tests:` or `benchmarks:` of task.yml, each a line `- {json}` (no YAML library needed)."""
    cases = []
    inside = False
    for line in text.splitlines():
        if line and not line[0].isspace():
            inside = line.startswith(section + ":")
        elif inside and line.strip().startswith("- {"):
            args = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(line.strip()[2:]).items()}
            cases.append(TestCase(format_case(args), args))
    return cases
