"""Runs cases in processes of their own and decides about them: only the judge knows seeds and results.

Nothing partial passes: a case passes only if every call ran, every byte of every result that the judge read itself is
right, and no check had a finding. On the emulator right means equal, on a GPU within the task's tolerance.
"""

import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import secrets
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import reference
import utils
from evaluation import inputs, jobs, worker
from evaluation.statistics import Stats, calculate_stats, geometric_mean, precise_enough
from task import TestCase, combine_seeds

AUDITED = 0.2  # share of the repeats in which every result is taken right after its call; their times do not count
MEMORY_BANDWIDTH = 8e12  # bytes/s of a B200: https://www.nvidia.com/en-us/data-center/dgx-b200/


@dataclasses.dataclass
class Options:
    """What is common to all cases of a run."""

    submission: str
    device: str  # cuda | emulated
    timed: bool = False  # measure, on cuda only
    calls: int = 2  # calls per case that is not timed, each with other inputs and, emulated, under another schedule
    jobs: int = 2  # processes
    timeout: float = 300.0  # seconds for one call (all calls of one timing)
    memory: float = 12.0  # GiB of private memory for an emulated case
    secret: int = dataclasses.field(default_factory=lambda: secrets.randbits(31))


@dataclasses.dataclass
class Verdict:
    """What a case has come to.

    mismatches: elements that differ from the exact result, rounded once, over all calls; None if no result was read.
    ulps: the largest distance of one from it, in float16 numbers; None unless all were within what the task allows.
    """

    spec: str
    status: str = "fail"
    reason: str = "not run"
    mismatches: int | None = None
    ulps: int | None = None
    seconds: float = 0.0
    times: Stats | None = None

    @property
    def us(self) -> float | None:
        return self.times.mean / 1e3 if self.times else None


class Refused(Exception):
    """The case has failed; the message is the reason."""


class Sandbox:
    """A worker process, started when it is first needed and again after it was killed or died."""

    def __init__(self, options: Options, directory: Path, name: str):
        self.options, self.log = options, directory / f"{name}.log"
        self.process = None

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")  # a server that has imported torch and nothing of this case
        context.set_forkserver_preload(["evaluation.worker"])
        self.connection, theirs = context.Pipe()
        options = self.options
        threads = max(1, (os.cpu_count() or 1) // options.jobs)
        arguments = (theirs, options.submission, options.device, str(self.log), int(options.memory * 2**30), threads)
        self.process = context.Process(target=worker.main, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.receive("import")

    def ask(self, what: str, **request) -> dict:
        """The reply to a request; raises Refused with the reason if there is none, or if it carries an error."""
        if self.process is None:
            self.start()
        with contextlib.suppress(BrokenPipeError):  # a dead process shows when its reply is missing
            os.write(self.connection.fileno(), json.dumps(request).encode() + b"\n")
        return self.receive(what)

    def receive(self, what: str) -> dict:
        """One line of JSON: nothing that the submission may send in its place can block the judge or run code here."""
        deadline, line = time.monotonic() + self.options.timeout, b""
        try:
            while not line.endswith(b"\n") and len(line) < 2**20:
                if not self.connection.poll(max(0, deadline - time.monotonic())):
                    self.kill()
                    raise Refused(f"hang: no {what} within {self.options.timeout:g} s, process killed")
                chunk = os.read(self.connection.fileno(), 2**16)
                if not chunk:
                    raise EOFError
                line += chunk
            reply = json.loads(line)
            error = reply["error"]
        except (EOFError, ConnectionError):
            raise Refused(f"crash during {what}: {self.died()}") from None
        except (ValueError, KeyError, TypeError):
            self.kill()
            raise Refused("the submission's process sent something that is not a reply") from None
        if error:
            self.kill()  # whatever went wrong stays out of the next case
            raise Refused(str(error))
        return reply

    def died(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        self.kill()
        if code is None:
            return "the submission closed the judge's connection"
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        last = next((f", last output '{line.strip()[:200]}'" for line in reversed(lines) if line.strip()), "")
        if code < 0:
            return f"the submission's process was ended by {signal.Signals(-code).name}{last}"
        return f"the submission's process exited with code {code}{last}"

    def kill(self) -> None:
        """Ends the process and everything it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.process.pid) == self.process.pid:  # it leads a session of its own
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process = None


def ulps(got: torch.Tensor, want: torch.Tensor) -> int:
    """The largest number of float16 steps between elements of two tensors with NaN in the same places."""
    bits = (t.nan_to_num(0, math.inf, -math.inf).contiguous().view(torch.int16).int() for t in (got, want))
    a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in bits)
    return int((a - b).abs().max())


def compare(group: int, got: torch.Tensor, want: torch.Tensor, exact: bool) -> tuple[int, str]:
    """(elements that differ, what is wrong or "") for one group's [M, N, L] result."""
    differs = (got != want) & ~(got.isnan() & want.isnan())
    count = int(differs.count_nonzero())
    if not count or (not exact and not utils.verbose_allclose(got, want, rtol=1e-3, atol=1e-3)):
        return count, ""
    unwritten = int(got.isnan().count_nonzero())
    if unwritten:
        detail = f"{unwritten} of {got.numel()} elements are NaN (never written, or NaN written)"
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


class Trial:
    """One case: its inputs in files, their results in memory, and the calls made so far."""

    def __init__(self, case: TestCase, options: Options, sandbox: Sandbox, directory: Path):
        self.options, self.sandbox = options, sandbox
        self.verdict = Verdict(case.spec)
        task = reference.task_of(case.args)
        self.exact = options.device != "cuda" and task is reference.GROUP_GEMM  # whose sums are exact in any order
        self.objects = task.calls if options.timed else 1
        count = task.calls if options.timed else min(2, options.calls)
        # The first contents are the case's own, the others come from a seed that nobody knows.
        hidden = combine_seeds(case.args["seed"], options.secret)
        seeds = [case.args["seed"]] + [hidden + 42 * i for i in range(1, count)]
        self.files, self.results = [], []
        for i, seed in enumerate(seeds):
            data = task.generate_input(**{**case.args, "seed": seed}, device=torch.device("cpu"))
            self.files.append(str(directory / f"contents{i}.pt"))
            torch.save(data, self.files[-1])
            self.data = data  # the last contents: all have the same sizes
            device = "cuda" if options.device == "cuda" else "cpu"
            self.results.append(inputs.Known(inputs.mapped(lambda tensor: tensor.to(device), data)))
        elements = sum(c.numel() for c in inputs.outputs(data))
        path = directory / "results.bin"
        path.write_bytes(b"")
        os.truncate(path, 2 * self.objects * elements)
        self.buffer = np.memmap(path, np.int16, "r", shape=(self.objects, elements)) if elements else None
        sandbox.ask("set-up", op="case", task=task.name, files=self.files, objects=self.objects, results=str(path))
        self.rng = np.random.default_rng(combine_seeds(hidden, 1))

    def call(self, schedule: int, fresh: bool, audit: bool = False) -> float | None:
        """One call per object in a secret order, with fresh signs and contents; returns the nanoseconds per call."""
        count = len(self.files)
        turn = int(self.rng.integers(1, count)) if fresh and count > 1 else 0
        contents = [(i + turn) % count for i in range(self.objects)]
        signs = [int(self.rng.integers(2**31)) if fresh else None for _ in contents]
        order = self.rng.permutation(self.objects).tolist()
        request = {"contents": contents, "signs": signs, "order": order, "schedule": schedule}
        reply = self.sandbox.ask("result", op="repeat", timed=self.options.timed, audit=audit, **request)
        self.verdict.seconds += float(reply["seconds"])
        problems = []
        for i in range(self.objects):
            problems += self.check(i, contents[i], signs[i])
        if problems:
            raise Refused("; ".join(problems[:3]))
        return reply["ns"]

    def check(self, i: int, content: int, signs: int | None) -> list[str]:
        """Problems with the result of object i, read from the shared file."""
        drawn = inputs.draw_signs(signs, self.data) if signs is not None else None
        offset, problems = 0, []
        for group, want in enumerate(self.results[content].outputs(drawn)):
            if want.numel():
                bits = np.array(self.buffer[i, offset : offset + want.numel()])
                got = torch.from_numpy(bits).view(torch.float16).view(want.shape)
                count, problem = compare(group, got, want, self.exact)
                self.verdict.mismatches = (self.verdict.mismatches or 0) + count
                problems += [problem] if problem else []
                if not problems:
                    self.verdict.ulps = max(self.verdict.ulps or 0, ulps(got, want) if count else 0)
            offset += want.numel()
        self.verdict.mismatches = self.verdict.mismatches or 0
        return problems

    def run(self) -> None:
        """Raises Refused unless every call was right."""
        if not self.options.timed:
            for schedule in range(self.options.calls):
                self.call(schedule, fresh=schedule > 0)
            return
        self.call(0, fresh=False, audit=True)  # compiles, too
        durations, begin = [], time.perf_counter_ns()
        while len(durations) < 100 and not precise_enough(durations, time.perf_counter_ns() - begin, 30e9):
            audit = self.rng.random() < AUDITED
            ns = self.call(0, fresh=True, audit=audit)
            check_time(ns, inputs.read_bytes(self.data))
            durations += [] if audit else [ns]
        self.call(0, fresh=True, audit=True)
        self.verdict.times = calculate_stats(durations)


def judge(cases: list[TestCase], options: Options, on_verdict=lambda index, verdict: None) -> list[Verdict]:
    """One verdict per case, in the order of the cases; `on_verdict` is called as they come in."""
    verdicts = [Verdict(case.spec) for case in cases]

    def work(sandbox: Sandbox, index: int) -> Verdict:
        verdict = verdicts[index]
        with tempfile.TemporaryDirectory(dir=root) as directory:
            try:
                trial = Trial(cases[index], options, sandbox, Path(directory))
                verdict = trial.verdict
                trial.run()
                verdict.status, verdict.reason = "pass", ""
            except Refused as error:
                verdict.reason = str(error)
            except Exception as error:  # the judge's own failure is no pass either
                verdict.reason = f"evaluator: {type(error).__name__}: {error}"
                sandbox.kill()
        return verdict

    def done(index: int, verdict: Verdict) -> None:
        verdicts[index] = verdict
        on_verdict(index, verdict)

    order = np.random.default_rng(options.secret).permutation(len(cases)).tolist()
    with tempfile.TemporaryDirectory(prefix="group-gemm-") as root:
        sandboxes = [Sandbox(options, Path(root), f"worker{i}") for i in range(min(options.jobs, len(cases)))]
        try:
            jobs.share(order, sandboxes, work, done)
        finally:
            for sandbox in sandboxes:
                sandbox.kill()
    return verdicts


def geomean_us(verdicts: list[Verdict]) -> float | None:
    """Geometric mean of the times; None unless every case passed with a time."""
    return geometric_mean(v.us if v.status == "pass" else None for v in verdicts)
