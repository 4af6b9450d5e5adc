"""Runs the submission's own host code on a machine with a Hopper GPU: `custom_kernel` with CUDA tensors.

    python -m silicon.entry.h200_real run [FOLDER]     checks and times; prints the tables, writes FOLDER/h200_real.json
    python -m silicon.entry.h200_real table            prints h200_real.json, beside this file

The machine needs CuTe DSL, torch with CUDA, and CUTE_DSL_ARCH=sm_90a. The kernel is that of h200_loads.py: functions of
the PTX layer that sm_90 does not have are replaced, all else is submission.py as it is: the check of the
tensors, packed arguments, tensormaps that the driver encodes, launches with clusters and PDL, the choice among Configs.
`torch.cuda.get_device_capability` says (10, 0). Configs have as many CTAs as the card runs at once.

Checked are every element of C (1, or silu(1) of the dual GEMM, as nothing is multiplied), the memory beside it and the
inputs, which must stay as they were, a thread that has not used CUDA, and what is refused. Times are the grader's: a
fill that flushes the L2, then calls back to back on inputs of their own between two events, over the number of calls.
All that is compared takes its turn in random order; a time is the median of the rounds. What the submission chooses in
its first call is held against those medians.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import random
import statistics
import threading
import time
from pathlib import Path

from silicon import command
from silicon.cuda_driver import NoGpu
from silicon.entry.h200_loads import FIT, ROOT, load_submission

RESULTS = Path(__file__).with_suffix(".json")
GROUP_CALLS, DUAL_CALLS, ROUNDS, TRIALS = 15, 50, 100, 10
MARGIN = 4096  # bytes around each C that nothing may write
FORMS = {"plain launches, no prefetch": {"pdl": False, "prefetch": 0}}  # of the base: without what hides a launch
ODD = [(1, 128, 256), (0, 16, 64), (300, 272, 576), (17, 1040, 320)] * 6  # (M, N, K): 18 groups that are not empty


def fitted(config, **entries):
    """The Config with as many CTAs as run at once; sharers take more tokens a tile, so that it is one round, or go."""
    config = dataclasses.replace(config, **entries)
    if config.sharers == 2 and config.tokens == 96:
        config = dataclasses.replace(config, tokens=160)
    elif config.sms > FIT[config.cluster]:
        config = dataclasses.replace(config, sharers=1, token_sharers=1)
    return dataclasses.replace(config, sms=min(config.sms, FIT[config.cluster]))


def load():
    """The submission module, with Configs for this card."""
    s = load_submission()
    for table in (s.CONFIG_MAP, s.DUAL_CONFIG_MAP):
        for key, configs in table.items():
            table[key] = tuple(dict.fromkeys(map(fitted, configs)))
    s.DEFAULT, s.DUAL_DEFAULT = fitted(s.DEFAULT), fitted(s.DUAL_DEFAULT)
    return s


class Problem:
    """Random tensors as custom_kernel takes them: a group GEMM of (M, N, K) each, or a dual GEMM of (M, N, K, L)."""

    def __init__(self, s, sizes):
        import torch

        self.torch, self.dual = torch, isinstance(sizes[0], int)
        if self.dual:
            m, n, k, l = sizes  # noqa: E741
            *ab, c, sfa, sfb1, sfb2 = s.gemm_operands([*"abcdefg"], m, n, k, l).values()
            ab, scales = [[*map(self.tensor, like)] for like in (ab, (sfa, sfb1, sfb2))]
            self.inputs, self.outputs = ab + scales, [self.output(c)]
            self.data = (*ab, *scales, *scales, self.outputs[0][1])  # nobody reads the scales in the plain order
        else:
            groups = [[*s.gemm_operands([*"abcde"], *size).values()] for size in sizes]
            self.outputs = [self.output(c) for _, _, c, _, _ in groups]
            ab, scales = [[tuple(map(self.tensor, x[part])) for x in groups] for part in (slice(2), slice(3, 5))]
            self.inputs = [t for part in (ab, scales) for group in part for t in group]
            abc = [(a, b, c) for (a, b), (_, c) in zip(ab, self.outputs)]
            self.data = abc, [], scales, [(m, n, k, 1) for m, n, k in sizes]

    def tensor(self, like):
        memory = self.torch.randint(0, 256, (max(like.nbytes, 16),), dtype=self.torch.uint8, device="cuda")
        return memory.view(like.dtype).as_strided(like.shape, like.stride())

    def output(self, like):
        """A C, in the middle of memory whose edges nothing may write: (all of the memory, C)."""
        memory = self.torch.full((like.numel() + MARGIN,), 77.0, dtype=like.dtype, device="cuda")
        return memory, memory[MARGIN // 2 :].as_strided(like.shape, like.stride(), MARGIN // 2)

    def check(self, s) -> int:
        """Calls once; returns the number of elements of C, all right. Raises AssertionError if anything is wrong."""
        torch, before = self.torch, [t.view(self.torch.uint8).clone() for t in self.inputs]
        got = s.custom_kernel(self.data)
        torch.cuda.synchronize()
        got = [got] if self.dual else got
        value = torch.sigmoid(torch.ones(())).half().item() if self.dual else 1.0
        for c, (memory, given) in zip(got, self.outputs, strict=True):
            assert c.shape == given.shape and bool((c == value).all()), "an element of C is wrong"
            edges = [memory[: MARGIN // 2], memory[memory.numel() - MARGIN // 2 :]]
            assert all(bool((edge == 77).all()) for edge in edges), "memory beside C was written"
        for t, was in zip(self.inputs, before):
            assert torch.equal(t.view(torch.uint8), was), "an input was written"
        return sum(c.numel() for c in got)


class Timer:
    """Times calls as the grader does."""

    def __init__(self, torch):
        self.torch, self.flush = torch, torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

    def once(self, calls) -> float:
        """Microseconds per call of one round."""
        cuda, kept = self.torch.cuda, []
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        for i in range(4):
            self.flush.fill_(i)
        start.record()
        for call in calls:
            kept.append(call())
        end.record()
        cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / len(calls)

    def medians(self, compared: dict[str, list], rounds: int = ROUNDS) -> dict[str, float]:
        """Median microseconds per call by name. compared: the calls of a round by name."""
        us, names, draw = {name: [] for name in compared}, list(compared), random.Random(1)
        for _ in range(rounds + 5):
            for name in draw.sample(names, len(names)):
                us[name].append(self.once(compared[name]))
        return {name: statistics.median(of_name[5:]) for name, of_name in us.items()}


def calls_of(s, config, problems: list[Problem]) -> list:
    """Prepared calls of the submission under this Config, one a problem."""
    plans = {}
    for problem in problems:
        if problem.dual:
            a, _, _, _, _, _, _, _, _, c = problem.data
            key = c.shape[0], c.shape[1], 2 * a.shape[1], c.shape[2]
            make, tensors = s.dual_plan, [*problem.inputs[:3], c, *problem.inputs[3:]]
        else:
            key = (tuple(problem.data[3]),)
            make, tensors = s.plan, [t for x, y in zip(problem.data[0], problem.data[2]) for t in (*x, *y)]
        plan = plans.setdefault(key, None) or make(*key, (config,))
        plans[key] = plan
        yield lambda plan=plan, tensors=tensors: plan(tensors)


def in_a_thread(function) -> str:
    """The error that the function raises in a thread that has not used CUDA yet, or "right"."""
    said = []

    def run():
        try:
            function()
            said.append("right")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return said[0]


def refusals(s) -> dict[str, str]:
    """The errors of custom_kernel for tensors that are not as they must be."""
    torch, said = Problem(s, [(64, 128, 256)]).torch, {}
    for name, change in {
        "on the CPU": lambda t: t.cpu(),
        "another type": lambda t: t.view(torch.uint8),
        "other strides": lambda t: t.view(torch.uint8).repeat(1, 2, 1)[:, ::2].view(t.dtype),
    }.items():
        abc, _, scales, sizes = Problem(s, [(64, 128, 256)]).data
        a, b, c = abc[0]
        try:
            s.custom_kernel(([(change(a), b, c)], [], scales, sizes))
            said[name] = "not refused"
        except ValueError as error:
            said[name] = str(error)
    return said


def measure_folder(folder: Path) -> None:
    """Checks, times, and writes the record after each case. Raises NoGpu if torch has none."""
    import torch

    if not torch.cuda.is_available():
        raise NoGpu("torch.cuda.is_available() is False")
    torch.cuda.get_device_capability = lambda *_: (10, 0)  # what the host code asks for
    record = {"machine": machine(torch), "date": datetime.date.today().isoformat(), "checks": {}, "times": []}
    record["sha256 of submission.py"] = hashlib.sha256((ROOT / "submission.py").read_bytes()).hexdigest()

    def write():
        record["seconds"] = round(time.perf_counter() - begin, 1)
        (folder / RESULTS.name).write_text(json.dumps(record, indent=1) + "\n")

    begin, s, timer = time.perf_counter(), load(), Timer(torch)
    checks = record["checks"]
    groups = [(f"case {i}", [(m, n, k) for m in ms]) for i, (ms, n, k) in enumerate(s.CONFIG_MAP)]
    duals = [(f"dual case {i}", (*key, 1)) for i, key in enumerate(s.DUAL_CONFIG_MAP)]

    checks["HardwareInfo in a new thread"] = in_a_thread(lambda: s.HardwareInfo().get_max_active_clusters(4))
    os.environ["GROUP_GEMM_TUNING"] = "off"
    third = Problem(s, groups[2][1])
    checks["case 2 in a new thread"] = in_a_thread(lambda: third.check(s))
    checks["clusters at once"] = {size: s.clusters_at_once(size) for size in (2, 4)}
    checks["refused"] = refusals(s)
    others = [("24 groups", ODD), ("one token", [(1, 16, 64)]), ("3 batches", (72, 96, 320, 3))]
    for name, sizes in others + groups + duals:
        try:
            checks[name] = f"{Problem(s, sizes).check(s)} elements of C right"
        except Exception as error:
            checks[name] = f"{type(error).__name__}: {error}"
        print(name, checks[name], flush=True)
    write()

    for name, sizes in groups + duals:
        try:
            record["times"].append({"case": name, **case(s, timer, name, sizes)})
        except Exception as error:
            record["times"].append({"case": name, "error": f"{type(error).__name__}: {error}"})
        print(json.dumps(record["times"][-1]), flush=True)
        write()
    print(table(record))


def case(s, timer: Timer, name: str, sizes) -> dict:
    """Times all Configs of a case and FORMS, and notes what the submission chooses in its first call, TRIALS times."""
    import torch

    dual = isinstance(sizes[0], int)
    key = sizes[:3] if dual else (tuple(m for m, _, _ in sizes), *sizes[0][1:])
    configs = (s.DUAL_CONFIG_MAP if dual else s.CONFIG_MAP)[key]
    problems = [Problem(s, sizes) for _ in range(DUAL_CALLS if dual else GROUP_CALLS)]
    calls, begin = {}, time.perf_counter()
    for i, config in enumerate(configs):
        calls[f"config {i}"] = list(calls_of(s, config, problems))
    compile_s = time.perf_counter() - begin
    for form, entries in {} if dual else FORMS.items():
        calls[form] = list(calls_of(s, fitted(configs[0], **entries), problems))
    timer.once(calls["config 0"])
    us = timer.medians(calls, 30 if dual else ROUNDS)
    fastest = min(us[f"config {i}"] for i in range(len(configs)))
    os.environ["GROUP_GEMM_TUNING"], chosen, seconds = "show", [], []
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(TRIALS):
        s.plan.cache_clear()
        s.dual_plan.cache_clear()
        begin = time.perf_counter()
        s.custom_kernel(problems[0].data)
        seconds.append(time.perf_counter() - begin)
        tuned = s.dual_plan(*sizes) if dual else s.plan(tuple(problems[0].data[3]))
        chosen.append(tuned.configs.index(tuned.config))
    os.environ["GROUP_GEMM_TUNING"] = "off"
    return {
        "us": us,
        "configs": [changes(configs[0], config) for config in configs],
        "seconds to compile": compile_s,
        "seconds of a first call, compiled before": max(seconds),
        "GB of scratch": (torch.cuda.max_memory_allocated() - held) / 1e9,
        "GB of scratch left": (torch.cuda.memory_allocated() - held) / 1e9,
        "chosen": chosen,
        "within 1 % of the fastest": sum(us[f"config {i}"] <= 1.01 * fastest for i in chosen),
    }


def changes(first, config) -> dict:
    """The entries in which a Config differs from the first; of the first, all."""
    one, other = dataclasses.asdict(first), dataclasses.asdict(config)
    return {name: x for name, x in other.items() if first is config or x != one[name]}


def machine(torch) -> dict:
    """The GPU, and the versions of its driver and libraries."""
    import cutlass

    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name, "SMs": gpu.multi_processor_count, "torch": torch.__version__,
        "python": platform.python_version(), "CUDA": torch.version.cuda,
        "CuTe DSL": getattr(cutlass, "__version__", ""),
    }  # fmt: skip


def table(record: dict) -> str:
    """The record in Markdown: a row of times a case, then what was checked."""
    rows = ["| | as submitted | " + " | ".join(FORMS) + " | other configs | chosen in 10 trials | within 1 % |"]
    rows.append("|---" * (5 + len(FORMS)) + "|")
    for x in record["times"]:
        if "error" in x:
            rows.append(f"| {x['case']} | {x['error']} |")
            continue
        us = {name: f"{value:.2f}" for name, value in x["us"].items()}
        others = ", ".join(
            f"{us[f'config {i}']} {' '.join(f'{k}={v}' for k, v in changed.items())}"
            for i, changed in enumerate(x["configs"])
            if i
        )
        forms = [us.get(form, "–") for form in FORMS]
        cells = [x["case"], us["config 0"], *forms, others, " ".join(map(str, x["chosen"]))]
        rows.append("| " + " | ".join([*cells, f"{x['within 1 % of the fastest']} of {len(x['chosen'])}"]) + " |")
    return "\n".join([*rows, "", *(f"* {name}: {said}" for name, said in record["checks"].items())])


def main() -> None:
    commands = (parser := command.parser(__doc__)).add_subparsers(dest="what", required=True)
    commands.add_parser("run").add_argument("folder", nargs="?", type=Path, default=Path())
    commands.add_parser("table")
    options = parser.parse_args()
    if options.what == "table":
        return print(table(json.loads(RESULTS.read_text())))
    with command.on_gpu():
        measure_folder(options.folder)


if __name__ == "__main__":
    main()
