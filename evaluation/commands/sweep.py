"""Does `python eval.py sweep`: judges and times a submission under many Configs, as `benchmark` does, and ranks them.

What is ranked gave exact results on inputs that it had never seen, with all checks, in every case; its time is what
`benchmark` would say. A result is written down as it comes, under a key of all that it depends on: `--resume` runs only
what has no time yet. Configs that come to the same one for a case are run once.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emulated_gpu.grid import parse_config, parse_grid, without_effect
from emulated_gpu.model import ranking
from evaluation import ROOT
from evaluation.commands import interrupt
from evaluation.commands import profile as profiling
from evaluation.commands.devices import OWN
from evaluation.commands.show import Screen, count
from evaluation.judge import modelled
from evaluation.judge.judge import Refused, configs_of, judge, shared_memory
from evaluation.judge.options import Options
from evaluation.judge.statistics import geometric_mean
from evaluation.judge.verdict import Verdict
from task import TestCase

TOO_MUCH = re.compile(r"(\d+) static \+ (\d+) dynamic bytes of shared memory; a block has (\d+)")  # machine/launch.py
RESULT = ("status", "reason", "us", "us_interval", "modelled")  # of an Outcome: what is kept
Cases = dict[str, tuple[int, TestCase]]  # by their spec, with their numbers


@dataclasses.dataclass
class Outcome:
    """Says what a case under a config came to. status: pass, fail, invalid (Config refuses it), or not judged. us:
    microseconds, if it is ranked."""

    spec: str
    change: dict[str, str]
    config: str | None  # all of it
    line: str | None  # the entry of the submission's table
    status: str = "invalid"
    reason: str = ""
    us: float | None = None
    us_interval: list[float] | None = None
    modelled: dict | None = None  # the whole reply

    def take(self, verdict: Verdict) -> None:
        reply = verdict.modelled or {}
        self.status, self.reason = verdict.status, verdict.reason
        self.us = self.us_interval = self.modelled = None
        if self.status in ("pass", profiling.NOT_JUDGED) and not self.reason and "us" in reply:
            self.us, self.us_interval, self.modelled = reply["us"], reply["us_interval"], reply
        elif self.status == "pass":
            self.reason = f"not timed: {reply.get('error')}"

    @property
    def why(self) -> str:
        """Gives the reason in one line."""
        return " ".join(self.reason.split())


@functools.cache
def code_digest() -> str:
    """Digests what judges and models, and the compiler's version."""
    found = hashlib.sha256(importlib.metadata.version("nvidia-cutlass-dsl").encode())
    files = [ROOT / name for name in ("reference.py", "task.py", "utils.py")]
    for folder in ("emulated_gpu", "evaluation"):
        files += [path for kind in ("py", "toml", "json") for path in sorted((ROOT / folder).rglob(f"*.{kind}"))]
    for path in files:
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def key(outcome: Outcome, options: Options, submission: bytes) -> str:
    """Digests all that a result depends on."""
    parts = [code_digest(), hashlib.sha256(submission).hexdigest(), options.profile, outcome.spec, outcome.config]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def kept(file: Path) -> dict[str, dict]:
    """Reads key -> result from a file that may end within a line."""
    found = {}
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
            if row["us"] is not None:  # what failed is tried again: the machine may have been at fault
                found[row.pop("key")] = row
        except (ValueError, KeyError, AttributeError):
            continue
    return found


def sweep(
    screen: Screen, numbered: list[tuple[int, TestCase]], changes: list[dict], options: Options, file: Path,
    resume: bool, wanted: profiling.Wanted,
) -> list[list[Outcome]]:  # fmt: skip
    """Finds an outcome for each (number, case) under each change, and shows them: rows of outcomes, a row a change.

    file: where results are added as they come, and taken from with `resume`. What takes minutes is modelled first,
    unjudged, which is all with `wanted.within`. Raises OSError, Refused, and ValueError if
    the submission has no Config, or one that takes none of the changes.
    """
    numbers, cases = zip(*numbered)
    found = configs_of([(case.args, change) for change in changes for case in cases], options)
    if found and "error" in found[0]:  # of the submission as it is
        raise ValueError(found[0]["error"])
    changed = found[len(cases) :]  # of the first change, {}, there is nothing to learn alone
    if changed and all("error" in reply for reply in changed):
        raise ValueError(f"nothing to try: {changed[0]['error']}")
    replies = iter(found)
    rows: list[list[Outcome]] = []
    first: dict[tuple, Outcome] = {}  # (case, config) -> whose result is that of all that are the same
    for change in changes:
        rows.append([])
        for case in cases:
            reply = next(replies)
            outcome = Outcome(case.spec, change, reply.get("config"), reply.get("line"), reason=reply.get("error", ""))
            rows[-1].append(outcome)
            if outcome.config is not None:
                first.setdefault((case.spec, outcome.config), outcome)

    submission = Path(options.submission).read_bytes()
    keys = {place: key(outcome, options, submission) for place, outcome in first.items()}
    known = kept(file) if resume else {}
    old = [place for place in first if keys[place] in known]
    for place in old:
        for name in RESULT:
            setattr(first[place], name, known[keys[place]][name])
    todo = [place for place in first if keys[place] not in known]
    if resume:
        screen.line(f"{count(len(old), 'result')} taken from {file}, {len(todo)} to run")
    of_spec = {case.spec: (number, case) for number, case in numbered}

    def rank() -> None:
        judged = any(outcome.status == "pass" for outcome in first.values())
        for alone in first.values() if judged else ():
            if alone.status == profiling.NOT_JUDGED and alone.us:
                alone.reason = f"{alone.us:.2f} us, modelled alone: of other calls than what was judged"
                alone.us = None
        for row in rows:
            for outcome in row:
                same = first.get((outcome.spec, outcome.config), outcome)
                for name in RESULT:
                    setattr(outcome, name, getattr(same, name))
        show(screen, rows, numbers)

    if todo and (wanted.within or max(options.task.weight(case, timed=True) for case in cases) > profiling.FIRST_S):
        model_alone(screen, of_spec, {place: first[place] for place in todo}, options, wanted, rank)
        if wanted.within:
            return rows
    if todo:
        judge_and_keep(screen, of_spec, first, todo, keys, options, file, rank)
    for (spec, _), outcome in first.items():
        outcome.reason += what_fits(of_spec[spec][1], outcome, options)
    rank()
    return rows


def model_alone(
    screen: Screen, cases: Cases, todo: dict[tuple, Outcome], options: Options, wanted: profiling.Wanted,
    rank: Callable[[], None],
) -> None:  # fmt: skip
    """Gives outcomes times of which nothing is checked, and has them ranked."""
    named = []
    for (spec, _), outcome in todo.items():
        number, case = cases[spec]
        of = options.submission, case.args, wanted.profile, wanted.calls
        request = profiling.Request(*of, extrapolate=False, config=outcome.change)
        named.append((f"case {number}, {described(outcome.change)}", request))

    def conclude(done: dict[int, dict]) -> None:
        replies = [done.get(at, {"error": "not done"}) for at in range(len(named))]
        for spec in cases:
            each = [(outcome, reply) for (place, outcome), reply in zip(todo.items(), replies) if place[0] == spec]
            alike = profiling.to_the_same_call([reply for _, reply in each])
            for (outcome, _), reply in zip(each, alike, strict=True):
                whole = reply.get("done") == 1.0
                about = f"about {reply['us']:.2f} us: {reply['partial']}" if reply.get("done") and not whole else ""
                outcome.take(Verdict(spec, profiling.NOT_JUDGED, about or profiling.unknown(reply), modelled=reply))
        rank()

    profiling.modelled_unjudged(screen, named, wanted, conclude)


def judge_and_keep(
    screen: Screen, cases: Cases, first: dict, todo: list, keys: dict, options, file: Path,
    rank: Callable[[], None],
):  # fmt: skip
    """Runs what is `todo`, keys of `first`, and adds each result to the file as it comes; ranks what there is on
    Ctrl-C."""
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = [options.task.weight(cases[spec][1], timed=True) for spec, _ in todo]
    workers = options.jobs if options.submission == OWN else None

    def beat(index: int, text: str) -> None:
        number, _ = cases[todo[index][0]]
        screen.beat(f"case {number}, {described(first[todo[index]].change)}: {text}")

    def interrupted() -> None:
        screen.line(f"interrupted: what is done is in {file}; --resume goes on from there")
        rank()

    with (
        file.open("a") as out,
        interrupt.showing(interrupted),
        screen.progress("sweep", weights, "run", workers) as advance,
    ):

        def done(index: int, verdict: Verdict) -> None:
            outcome = first[todo[index]]
            outcome.take(verdict)
            row = {"key": keys[todo[index]], **{name: getattr(outcome, name) for name in RESULT}}
            out.write("\n" + json.dumps(row))  # the file may end within a line
            out.flush()
            advance(index)

        each = [dataclasses.replace(options, config=first[place].change) for place in todo]
        judge([cases[spec][1] for spec, _ in todo], each, done, on_beat=beat)


def what_fits(case: TestCase, outcome: Outcome, options: Options) -> str:
    """Finds, for a config that needs more shared memory than there is and changes one number, the largest that would
    fit: estimated as if bytes grew in proportion, then tried. "" if there is none, and for other outcomes."""
    found = TOO_MUCH.search(outcome.reason)
    numbers = [name for name, text in outcome.change.items() if text.isdecimal()]
    if not found or len(numbers) != 1:
        return ""
    (name,), (static, dynamic, there) = numbers, map(int, found.groups())
    value = int(outcome.change[name])

    def needed(*values: int) -> list:
        each = [{**outcome.change, name: str(value)} for value in values]
        return shared_memory(case, [dataclasses.replace(options, config=change) for change in each])

    (less,) = needed(value - 1)
    if isinstance(less, Refused) or less >= dynamic:
        return ""
    fits = value - -(-(static + dynamic - there) // (dynamic - less))
    with_it, more = needed(fits, fits + 1)
    if isinstance(with_it, Refused) or isinstance(more, Refused) or not with_it <= there - static < more:
        return ""
    return f"; {name}={fits} would fit"


def changes(configs: tuple[str, ...], grid: str | None) -> list[dict[str, str]]:
    """Lists what is submitted, {}, and the changes of it that --config and --grid name. Raises ValueError."""
    found = [{}, *map(parse_config, configs), *parse_grid(grid)]
    if len(found) == 1:
        raise ValueError("nothing to try: give --config or --grid")
    return found


def described(change: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in change.items()) or "as submitted"


def mean(row: list[Outcome]) -> float | None:
    """Takes the geometric mean over the cases, in microseconds; None unless all may be ranked."""
    return geometric_mean(outcome.us for outcome in row)


def json_of(rows: list[list[Outcome]], submission: str) -> dict:
    """Makes what --json writes."""
    replies = [outcome.modelled for row in rows for outcome in row if outcome.modelled]
    ranked: list[dict[str, Any]] = [{"change": row[0].change, "geomean_us": mean(row)} for row in rows]
    ranked.sort(key=lambda row: row["geomean_us"] or float("inf"))
    result: dict[str, Any] = {"command": "sweep", "kind": "modelled" if replies else "none", "submission": submission}
    result |= {"cases": [dataclasses.asdict(outcome) for row in rows for outcome in row], "ranking": ranked}
    return result | modelled.labelled(replies)


def show(screen: Screen, rows: list[list[Outcome]], numbers: Sequence[int]) -> None:
    """Shows the ranks, why a config has none, and what to paste. numbers: of the cases."""
    merged: dict[tuple, list[list[Outcome]]] = {}  # those that come to the same configs in all cases
    for row in rows:
        configs = tuple(outcome.config for outcome in row)
        merged.setdefault(configs if None not in configs else (id(row),), []).append(row)
    alike = sorted(merged.values(), key=lambda same: mean(same[0]) or float("inf"))
    columns = ["rank", *(f"case {number}" for number in numbers)]
    columns += ["geomean"] if len(numbers) > 1 else []
    lines, failed = [], []
    for rank, same in enumerate(alike, 1):
        row = same[0]
        us = [f"{outcome.us:.2f}" if outcome.us else (outcome.status, "red") for outcome in row]
        total = [f"{mean(row):.3f}" if mean(row) else "-"] if len(numbers) > 1 else []
        name = " = ".join(dict.fromkeys(described(each[0].change) for each in same))
        lines.append([str(rank) if mean(row) else "-", *us, *total, name])
        reasons: dict[str, list[str]] = {}  # -> the cases
        for number, outcome in zip(numbers, row):
            if outcome.us is None:
                reasons.setdefault(outcome.why, []).append(str(number))
        failed += [(name, where, why) for why, where in reasons.items()]
    screen.table([*columns, "<config"], lines, title="us per call, the model's own, as `us` of benchmark's --json")
    for name, where, why in failed:
        of_cases = f" in case {', '.join(where)}" if len(where) < len(numbers) else ""
        shown = why if why.startswith(name) else f"{name}: {why}"
        screen.line(("not ranked", "red"), f"{of_cases}: {shown}")
    for name in without_effect([(row[0].change, [outcome.us for outcome in row]) for row, *_ in alike if mean(row)]):
        screen.line(f"{name} changes nothing: the times are the same whatever it is. What reads it?")
    for number, outcome in zip(numbers, rows[0]):
        screen.line(f"as submitted, case {number}: {outcome.config}")
    if any(outcome.status == profiling.NOT_JUDGED for row in rows for outcome in row):
        screen.line(profiling.ALONE)
    best = alike[0][0]
    if mean(best) is None:
        return
    if rows[0] in alike[0]:
        screen.line("nothing is faster than what is submitted")
    else:
        screen.line(f"fastest: {described(best[0].change)}; to paste into the submission:")
        for outcome in best:
            screen.line(f"    {outcome.line}")
    close = [same[0] for same in alike[1:] if mean(same[0]) and not ranking.tells(mean(best), mean(same[0]))]
    if close:
        screen.line(f"{count(len(close), 'other')} may be as fast or faster. {ranking.basis()}")
    replies = [outcome.modelled for row in rows for outcome in row if outcome.modelled]
    screen.line(f"Times are {modelled.label(replies)}.")
