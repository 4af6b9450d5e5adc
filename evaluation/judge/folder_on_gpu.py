"""Judges a task that others wrote on this machine's GPU as the grader does: by the folder's own eval.py."""

import shutil
import tempfile
from pathlib import Path

from evaluation.judge.options import Options
from evaluation.judge.statistics import Stats
from evaluation.judge.verdict import Refused, Verdict, check_time, legible
from evaluation.protocol import evaluate
from task import TestCase

ISOLATION = "its evaluator's own, as with the grader: nothing is kept from it"
LONGEST = 1000  # of a reason, characters


def judge(cases: list[TestCase], options: Options) -> list[Verdict]:
    """Runs the evaluator of a GivenTask once for all cases, with a secret seed, and returns a verdict for each.

    Options.timeout: seconds a case.
    """
    mode, folder = "benchmark" if options.timed else "test", options.task.of
    if folder.evaluator is None:
        return [Verdict(case.spec, reason=f"the task of {folder.path} names no eval.py") for case in cases]
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        files = folder.modules | {"eval": folder.evaluator, "submission": options.submission}
        for module, path in files.items():
            shutil.copy(path, Path(name, f"{module}.py"))
        specs, timeout = [case.spec for case in cases], options.timeout * len(cases)
        said, problem = evaluate(Path(name), mode, specs, options.secret % 2**31, timeout=timeout, show=False)
    return [verdict(case, f"{mode}.{index}.", said, problem) for index, case in enumerate(cases)]


def verdict(case: TestCase, key: str, said: dict[str, str], problem: str) -> Verdict:
    """Reads what the evaluator has reported of a case, under names that begin with `key`."""
    found = Verdict(case.spec, isolation=ISOLATION)
    passed = said.get(f"{key}status") == "pass" if f"{key}status" in said else f"{key}mean" in said
    if f"{key}mean" in said:
        try:
            values = {name: float(said[f"{key}{name}"]) for name in ("mean", "std", "err", "best", "worst")}
            found.times = Stats(int(said[f"{key}runs"]), **values)
            check_time(found.times.mean, read=0)
        except (KeyError, ValueError, Refused):  # anybody in that process may have written it
            found.times, found.reason = None, "its eval.py has reported no times of this case that are numbers"
            return found
    if passed:
        found.status, found.reason = "pass", ""
    else:
        reason = said.get(f"{key}error") or problem or "its eval.py has reported nothing of this case"
        found.reason = legible(reason)[:LONGEST]
    return found
