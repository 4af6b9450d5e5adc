"""Tasks that are definitions of https://github.com/flashinfer-ai/flashinfer-bench: JSON with axes, inputs, outputs and
a reference. A submission has a `run`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from evaluation.tasks.others import Author, OthersTask, close
from task import TestCase

NEEDED = "name", "axes", "inputs", "outputs", "reference"
RTOL = ATOL = 1e-2  # the benchmark's own
INTEGERS = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}  # drawn below it, and not below its negative
SAID = "its sizes are those of --spec, every variable axis and a seed, or of the data set's workloads"


@dataclasses.dataclass(frozen=True)
class Definition(OthersTask):
    """Is a definition. content: what the file has."""

    content: dict = dataclasses.field(default_factory=dict, hash=False)

    @classmethod
    def read(cls, path: str) -> "Definition":
        """Reads a file. Raises ValueError for what is not of that form."""
        try:
            content = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read the task of {path}: {error}") from None
        missing = [name for name in NEEDED if not isinstance(content, dict) or name not in content]
        if missing:
            raise ValueError(f"{path} has no {' and no '.join(missing)}: it is no definition of FlashInfer-Bench")
        file = Path(path).resolve()
        cases = workloads(file, content)
        entry = "run", "run", len(content["inputs"])
        return cls(str(file), str(content["name"]), {}, cases, cases, entry=entry, content=content)

    def tolerance(self) -> str:
        return f"each element within rtol {RTOL:g} or atol {ATOL:g}, FlashInfer-Bench's own; {SAID}"

    def author(self) -> Author:
        import torch

        content = self.content
        space: dict[str, Any] = {}
        exec(compile(content["reference"], f"{self.path}: reference", "exec"), space)
        if not callable(space.get("run")):
            raise ValueError(f"the reference of {self.path} has no run")

        def sized(args: dict) -> dict:
            sizes = {name: axis.get("value", args.get(name)) for name, axis in content["axes"].items()}
            if lacking := sorted(name for name, size in sizes.items() if not isinstance(size, int)):
                raise ValueError(f"the case does not say how large {', '.join(lacking)} is; {SAID}")
            for constraint in content.get("constraints") or ():
                if not eval(constraint, dict(sizes)):
                    raise ValueError(f"the definition's constraint does not hold: {constraint}")
            return sizes

        def shape_of(spec: dict, sizes: dict) -> list[int]:
            return [sizes[axis] for axis in spec["shape"]]

        def drawn(name: str, spec: dict, args: dict, sizes: dict):
            if spec["shape"] is None:
                if name not in args:
                    raise ValueError(f"the case does not give the scalar {name}")
                return args[name]
            dtype, shape = getattr(torch, spec["dtype"], None), shape_of(spec, sizes)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"the input {name} is {spec['dtype']}, which nothing here draws")
            if spec["dtype"] == "bool":
                return torch.randint(0, 2, shape, device="cuda").bool()
            if largest := INTEGERS.get(spec["dtype"]):
                return torch.randint(-largest, largest, shape, device="cuda", dtype=dtype)
            values = torch.randn(shape, device="cuda")
            return (values.clamp(-2.0, 2.0) if dtype.itemsize == 1 else values).to(dtype)

        def generate(seed: int, **args):
            sizes = sized(args)
            inputs = tuple(drawn(name, spec, args, sizes) for name, spec in content["inputs"].items())
            outputs = tuple(
                torch.empty(shape_of(spec, sizes), dtype=getattr(torch, spec["dtype"]), device="cuda")
                for spec in content["outputs"].values()
            )
            return inputs, outputs

        def check(data, returned) -> tuple[bool, str]:
            names, want = [*content["outputs"]], space["run"](*data[0])
            found = []
            for name, one, other in zip(names, each(want, names), each(returned, names), strict=True):
                found.append(within(other, one, f"the output {name}"))
            return not any(found), "; ".join(filter(None, found))

        return Author(generate, check)


def each(returned, names: list[str]) -> list:
    """Lists what a run returned, in the order of the outputs. Raises ValueError."""
    if isinstance(returned, dict) and returned.keys() == {*names}:
        return [returned[name] for name in names]
    listed = [*returned] if isinstance(returned, (tuple, list)) else [returned]
    if isinstance(returned, dict) or len(listed) != len(names):
        raise ValueError(f"run returned {type(returned).__name__}, expected {', '.join(names)}")
    return listed


def within(got, want, what: str) -> str:
    """Compares a tensor by shape, dtype and, element by element, rtol or atol: what is wrong, or ""."""
    if wrong := close(got, want, 0.0, float("inf"), what):
        return wrong if "elements" not in wrong else f"{what} has NaN elsewhere: {wrong}"
    off = (got.float() - want.float()).abs()
    beyond = (off > ATOL) & (off > RTOL * want.float().abs())
    if not beyond.any():
        return ""
    count = f"{int(beyond.count_nonzero())} of {beyond.numel()} elements"
    return f"{count} of {what} are neither within rtol {RTOL:g} nor atol {ATOL:g}: the worst is off by {off.max():g}"


def workloads(file: Path, content: dict) -> list[TestCase]:
    """Lists the cases of the data set's workloads of a definition, where it lies in one: those whose inputs are drawn,
    or numbers. Raises ValueError where all others are all there is."""
    lines = file.parent / ".." / ".." / "workloads" / str(content.get("op_type")) / f"{file.stem}.jsonl"
    if not lines.is_file():
        return []
    found, kinds = [], set()
    for number, line in enumerate(filter(str.strip, lines.read_text().splitlines())):
        try:
            workload = json.loads(line)["workload"]
            given = workload["inputs"]
            kinds |= (kind := {one["type"] for one in given.values()})
            scalars = {name: one["value"] for name, one in given.items() if one["type"] == "scalar"}
            args = {**workload["axes"], **scalars, "seed": number}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{lines}, line {number + 1} is no workload: {type(error).__name__}: {error}") from None
        if kind <= {"random", "scalar"}:
            found.append(TestCase("; ".join(f"{name}: {value}" for name, value in args.items()), args))
    if kinds and not found:
        raise ValueError(f"all workloads of {lines} have inputs of type {', '.join(sorted(kinds))}: none is read here")
    return found
