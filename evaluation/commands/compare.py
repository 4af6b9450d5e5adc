"""`python eval.py compare A B`: two submissions, or one under two Configs, case by case.

On a B200 both are measured in one run, in turns whose order is drawn for each round, so that what drifts (clocks, other
tenants) is in both; the difference is that of a round. Elsewhere both are judged and modelled as `benchmark` does it,
with where their time goes; a difference is called one only if it is larger than the model's ranking error.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulated_gpu.grid import parse_config
from emulated_gpu.model import ranking
from emulated_gpu.page.write import fill, views
from emulated_gpu.serve import variants
from evaluation.commands import interrupt
from evaluation.commands import profile as profiling
from evaluation.commands.devices import OWN
from evaluation.commands.show import Screen, count
from evaluation.judge import modelled
from evaluation.judge.judge import configs_of, judge, measure_pairs
from evaluation.judge.options import Options
from evaluation.judge.own_task import OwnTask
from evaluation.judge.statistics import Stats, geometric_mean
from evaluation.judge.verdict import Verdict
from task import TestCase

LEAST = 0.005  # us of a breakdown that are shown
ERRORS = 2.0  # standard errors of a measured difference that count as one, as in the submission's own tuning


@dataclasses.dataclass
class Side:
    """Names one of the two submissions. change: entries of its Config that differ from what is submitted, None for
    none."""

    submission: str
    change: dict[str, str] | None

    @classmethod
    def parse(cls, text: str) -> "Side":
        """Reads `FILE` or `FILE:A=1,B=2`. Raises ValueError."""
        file, colon, change = text.rpartition(":")
        return cls(file, parse_config(change)) if colon and "=" in change else cls(text, None)


@dataclasses.dataclass
class Compared:
    """Holds both verdicts on a case.

    difference_us: the time of B less that of A. error_us: its standard error, if it is measured. tells: whether the
    difference is more than chance or the model's ranking error.
    """

    case: TestCase
    verdicts: tuple[Verdict, Verdict]
    difference_us: float | None = None
    error_us: float | None = None
    tells: bool | None = None

    @property
    def us(self) -> tuple[float | None, float | None]:
        first, second = self.verdicts
        return time_of(first), time_of(second)


def time_of(verdict: Verdict) -> float | None:
    """Returns the microseconds of what passed, or is not judged, and has a time, else None."""
    if verdict.status not in ("pass", profiling.NOT_JUDGED):
        return None
    reply = verdict.modelled or {}
    return verdict.us or (None if reply.get("done", 1.0) is None else reply.get("us"))


def interval_of(verdict: Verdict) -> list[float] | None:
    """Says where the time may lie, in microseconds: a measured one within two standard errors to each side."""
    if time_of(verdict) is None:
        return None
    if verdict.times and verdict.us is not None:
        return [verdict.us - ERRORS * verdict.times.err / 1e3, verdict.us + ERRORS * verdict.times.err / 1e3]
    return (verdict.modelled or {})["us_interval"]


def shown(verdict: Verdict) -> float:
    """Returns the time to print beside its interval: measured as it is, modelled without the model's known bias."""
    if verdict.times and verdict.us is not None:
        return verdict.us
    return (verdict.modelled or {})["us_corrected"]


def why(verdict: Verdict) -> str:
    """Says in one line why a verdict has no time."""
    reason = verdict.reason or f"not timed: {(verdict.modelled or {}).get('error')}"
    return " ".join(reason.split())


def compared(case: TestCase, first: Verdict, second: Verdict, rounds: Stats | None = None) -> Compared:
    """Compares two verdicts. rounds: the differences, if they are measured, in nanoseconds."""
    found = Compared(case, (first, second))
    a, b = found.us
    if a is None or b is None:
        return found
    if rounds is not None:
        found.difference_us, found.error_us = rounds.mean / 1e3, rounds.err / 1e3
        found.tells = abs(rounds.mean) > ERRORS * rounds.err
    else:
        whole = all((verdict.modelled or {}).get("done", 1.0) == 1.0 for verdict in found.verdicts)
        found.difference_us, found.tells = b - a, whole and ranking.tells(a, b)
    return found


def compare_sides(
    screen: Screen, sides: list[Side], numbers: Sequence[int], cases: list[TestCase], options: Options,
    wanted: profiling.Wanted,
) -> list[Compared]:  # fmt: skip
    """Judges both sides on all cases, which have these numbers, and shows what comes of it. What takes minutes is
    modelled first, unjudged, which is all with `wanted.within`. If that is interrupted, shows what there is.

    Raises Refused for a submission that cannot be imported, ValueError for a change that its Config refuses.
    """
    each = [dataclasses.replace(options, submission=side.submission, config=side.change) for side in sides]
    for name, side, of_side in zip("AB", sides, each):
        if side.change is not None:
            for reply in configs_of([(case.args, side.change) for case in cases], of_side):
                if "error" in reply:
                    raise ValueError(f"{name}: {reply['error']}")
                screen.line(f"{name}: {reply['config']}")
    weights = [options.task.weight(case, timed=True) for case in cases]
    long = options.device != "cuda" and max(weights) > profiling.FIRST_S
    first = [Compared(case, (Verdict(case.spec), Verdict(case.spec))) for case in cases]
    if wanted.html or wanted.within or long:
        first = unjudged(screen, sides, numbers, cases, wanted)
        if wanted.within:
            return first
        if long:
            screen.line("These are being judged now; Ctrl-C ends with what there is.")
    done: dict[int, dict[int, Any]] = {}  # case -> what there is of it: verdicts, and the rounds' differences

    def interrupted() -> None:
        whole = {index: pair for index, pair in done.items() if len(pair) > 1}
        screen.line(f"interrupted: {len(whole)} of {count(len(cases), 'case')} judged")
        pairs = [
            compared(case, *(whole[index][side] for side in range(len(whole[index])))) if index in whole else one
            for index, (case, one) in enumerate(zip(cases, first, strict=True))
        ]
        show(screen, sides, pairs, numbers)

    if options.device == "cuda":

        def measured(index: int, pair: tuple) -> None:
            done[index] = dict(enumerate(pair))
            advance(index)

        with interrupt.showing(interrupted), screen.progress("pairs", weights, workers=None) as advance:
            pairs = measure_pairs(cases, (each[0], each[1]), measured)
        found = [compared(case, *pair) for case, pair in zip(cases, pairs)]
        show(screen, sides, found, numbers)
        return found

    def ended(index: int, verdict: Verdict) -> None:
        side, case = divmod(index, len(cases))
        done.setdefault(case, {})[side] = verdict
        advance(index)

    def beat(index: int, text: str) -> None:
        side, case = divmod(index, len(cases))
        screen.beat(f"case {numbers[case]} of {'AB'[side]}: {text}")

    workers = options.jobs if all(side.submission == OWN for side in sides) else None
    with interrupt.showing(interrupted), screen.progress("compare", weights * 2, "run", workers) as advance:
        of_each = [of_side for of_side in each for _ in cases]
        verdicts = judge(cases * 2, of_each, ended, on_beat=beat)
    found = [compared(case, a, b) for case, a, b in zip(cases, verdicts[: len(cases)], verdicts[len(cases) :])]
    show(screen, sides, found, numbers)
    return found


def unjudged(
    screen: Screen, sides: list[Side], numbers: Sequence[int], cases: list[TestCase], wanted: profiling.Wanted
) -> list[Compared]:
    """Models some calls of both sides for each case, and shows how they compare; writes a page of both, too, if that is
    wanted."""
    found: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        named = []
        for number, case in zip(numbers, cases):
            for name, side in zip("AB", sides):
                place = f"{folder}/{number}{name}"
                request = profiling.Request(
                    side.submission, case.args, wanted.profile, wanted.calls, extrapolate=False, timeline=place,
                    page=f"{place}.html" if wanted.html else None, config=side.change,
                    title=f"{name}, case {number}: {OwnTask().title(case)}",
                )  # fmt: skip
                named.append((f"case {number} of {name}", request))

        def conclude(done: dict[int, dict]) -> None:
            for at, case in enumerate(cases):
                pair = [done.get(2 * at + side, {"error": "not done"}) for side in (0, 1)]
                each = [
                    Verdict(case.spec, profiling.NOT_JUDGED, profiling.unknown(reply), modelled=reply)
                    for reply in profiling.to_the_same_call(pair)
                ]
                found.append(compared(case, each[0], each[1]))
            show(screen, sides, found, numbers)
            for number, of_case, pages in zip(numbers, found, zip(named[::2], named[1::2])) if wanted.html else ():
                a, b = (verdict.modelled or {} for verdict in of_case.verdicts)
                files = [Path(request.page or "") for _, request in pages]
                if of_case.difference_us is None or not all(file.exists() for file in files):
                    screen.line((f"case {number}, no page", "red"), ": there was no time to model both and write it")
                    continue
                said = {"us": of_case.us, "tells": of_case.tells, "a": a, "b": b}
                file = profiling.page_of(wanted.html or "", number, len(numbers))
                both = [view for one in files for view in views(one)]
                fill(Path(file), both, {"said": variants.verdict(said), "rows": variants.rows(said)})
                screen.line(f"  {file}")

        profiling.modelled_unjudged(screen, named, wanted, conclude)
    return found


def parts(verdict: Verdict) -> dict[str, float]:
    """Splits an interval between launches: us by what the SMs do, in the mean over them, and MB from and to HBM."""
    breakdown = (verdict.modelled or {})["breakdown"]
    interval = breakdown["interval_us"]
    found = {name: share * interval for name, share in breakdown["shares"].items()}
    return found | {f"HBM {name}, MB": rate * interval for name, rate in breakdown["hbm_tb_s"].items()}


def gains(of_case: Compared) -> list[tuple[str, float, float]]:
    """Lists (part, A, B) of both breakdowns, what differs most first, megabytes last."""
    a, b = (parts(verdict) for verdict in of_case.verdicts)
    rows = [(name, a.get(name, 0.0), b.get(name, 0.0)) for name in dict.fromkeys([*a, *b])]
    rows = [row for row in rows if max(row[1:]) >= LEAST]
    return sorted(rows, key=lambda row: (row[0].endswith("MB"), -abs(row[2] - row[1])))


def replies(found: list[Compared]) -> list[dict]:
    """Lists the replies of `modelled` that have times."""
    every = (verdict.modelled or {} for of_case in found for verdict in of_case.verdicts)
    return [reply for reply in every if "us" in reply]


def json_of(sides: list[Side], found: list[Compared], device: str) -> dict:
    """Makes what --json writes. device: its name."""
    timed = replies(found)
    measured = any(verdict.times for of_case in found for verdict in of_case.verdicts)
    result: dict[str, Any] = {"command": "compare", "kind": "modelled" if timed else "measured" if measured else "none"}
    result |= {name: dataclasses.asdict(side) for name, side in zip("ab", sides)}
    rows = []
    for of_case in found:
        row: dict[str, Any] = {"spec": of_case.case.spec}
        for name, verdict in zip("ab", of_case.verdicts):
            row[name] = {"status": verdict.status, "reason": verdict.reason, "us": time_of(verdict)}
            row[name] |= {"us_interval": interval_of(verdict), "modelled": verdict.modelled}
        row |= {"difference_us": of_case.difference_us, "error_us": of_case.error_us, "tells": of_case.tells}
        rows.append(row)
    result |= {"cases": rows, "device": device}
    return result | modelled.labelled(timed) | ({"ranking_error": ranking.error()} if timed else {})


def verdict_in_words(of_case: Compared) -> str:
    measured = of_case.error_us is not None
    if not of_case.difference_us:
        return "no difference"
    faster = "B faster" if of_case.difference_us < 0 else "A faster"
    if of_case.tells:
        return faster
    return "within the noise" if measured else f"{faster}, but less than the model can tell"


def show(screen: Screen, sides: list[Side], found: list[Compared], numbers: Sequence[int]) -> None:
    """Shows times, differences and where they come from. numbers: those of the cases."""
    for name, side in zip("AB", sides):
        screen.line(f"{name}: {side.submission}", *(f" {k}={v}" for k, v in (side.change or {}).items()))
    rows = []
    for number, of_case in zip(numbers, found):
        row: list[str | tuple[str, str]] = [str(number)]
        for verdict in of_case.verdicts:
            between = interval_of(verdict)
            row += [
                (verdict.status, "red") if time_of(verdict) is None else f"{shown(verdict):.2f}",
                "{:.2f} to {:.2f}".format(*between) if between else "-",
            ]
        difference, error = of_case.difference_us, of_case.error_us
        if difference is None or of_case.us[0] is None:
            row += ["-", "-", ""]
        else:
            more = f" ± {error:.3f}" if error is not None else ""
            percent = f"{100 * difference / of_case.us[0]:+.1f}"
            row += [f"{difference:+.3f}{more}", percent, verdict_in_words(of_case)]
        rows.append(row)
    screen.table(["case", "A, us", "may be", "B, us", "may be", "B - A, us", "%", "<"], rows)
    for number, of_case in zip(numbers, found):
        for name, verdict in zip("AB", of_case.verdicts):
            if time_of(verdict) is None:
                screen.line((f"case {number}, {name}", "red"), f": {why(verdict)}")
            elif partial := (verdict.modelled or {}).get("partial"):
                screen.line((f"case {number}, {name}, PARTIAL", "red"), f": {partial}")
    a, b = (geometric_mean(of_case.us[i] for of_case in found) for i in (0, 1))
    if a is not None and b is not None:
        whose = ", the model's own" if replies(found) else ""
        screen.line(f"geometric mean{whose}: A {a:.3f} us, B {b:.3f} us: {100 * (b / a - 1):+.1f} %")
    for number, of_case in zip(numbers, found):
        if of_case.difference_us is None or not all("breakdown" in (v.modelled or {}) for v in of_case.verdicts):
            continue
        intervals = [(verdict.modelled or {})["breakdown"]["interval_us"] for verdict in of_case.verdicts]
        title = "case {}: where {:.2f} us of A and {:.2f} us of B go, an interval between launches, mean over all SMs"
        rows = [[name, f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}"] for name, a, b in gains(of_case)]
        screen.table(["<us", "A", "B", "B - A"], rows, title.format(number, *intervals))
    if any(verdict.status == profiling.NOT_JUDGED for of_case in found for verdict in of_case.verdicts):
        screen.line(profiling.ALONE)
    if timed := replies(found):
        screen.line(
            "A, B, may be: without a bias that is known of such kernels, of each by the errors of its kind. B - A, %: "
            "of the model's own times, by which it is known what the model can tell."
        )
        screen.line(f"Times are {modelled.label(timed)}. {ranking.basis()}.")
