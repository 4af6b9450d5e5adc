"""Does `python eval.py test` and `benchmark`: judges cases, times them in the latter, and shows what came out."""

import ast
import dataclasses
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from emulated_gpu.errors import EmulatorError
from emulated_gpu.finding_rows import WRONG, row_of, unique
from emulated_gpu.model import uncertainty
from emulated_gpu.page import findings as page_of_findings
from emulated_gpu.serve.host import findings
from evaluation.commands import interrupt, score
from evaluation.commands.cases import chosen_task
from evaluation.commands.devices import OWN, checked, choose_device, describe_device
from evaluation.commands.show import Failure, Screen, count, dump_json, duration
from evaluation.judge import isolation, modelled
from evaluation.judge.judge import judge
from evaluation.judge.options import Options
from evaluation.judge.verdict import Verdict, geomean_us
from evaluation.tasks.estimate import Estimate
from evaluation.upload.review import review
from task import TestCase

LONG_S = 600.0  # a case that may take longer says so before it starts


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the command line asks of `test` and `benchmark`: what is judged, where, how, and the files to write."""

    submission: str
    task: str | None
    task_dir: str | None
    tests: Any
    case: Any
    spec: Any
    device: str
    machine: str
    json_file: str | None
    schedules: int
    jobs: int
    timeout: float
    memory: Any
    junit: str | None
    sarif: str | None
    github: bool
    strict: bool
    secret: int | None
    html: str | None


def run_section(section: str, asked: RunOptions) -> int:
    """Judges the cases of a section, "tests" or "benchmarks", and shows and writes what came out.

    The exit code: 0 only if every case ran and passed, and has a time if times were to be modelled. Raises Failure.
    """
    of, chosen = chosen_task(
        asked.task_dir, asked.submission, asked.task, asked.case, asked.spec, section, asked.tests
    )
    numbers, cases = zip(*chosen)
    device = choose_device(asked.device, any_gpu=of.graded)
    submission = checked(asked.submission, any_entry=bool(asked.task_dir))
    timed = section == "benchmarks"
    if device == "cuda" and asked.machine != "b200":
        raise Failure(f"--machine {asked.machine} is of the emulator, and this runs on a GPU: see --device emulated")
    if timed and asked.machine != "b200":
        raise Failure(f"the judge has times of a B200 alone: `test` checks results on --machine {asked.machine}")
    options = Options(
        submission=submission,
        device=device,
        machine=asked.machine,
        task=of,
        timed=timed,
        priced=timed,
        calls=max(asked.schedules, 1 if timed else 2),
        jobs=1 if device == "cuda" else asked.jobs,
        timeout=asked.timeout,
        memory=asked.memory,
        strict=asked.strict,
        events=bool(asked.html),
        **({} if asked.secret is None else {"secret": asked.secret}),
    )
    screen = Screen()
    for line in [*of.notes(device), *(isolation.missing() if device != "cuda" else ()), *of_host(submission)]:
        screen.line(line)
    weights = [of.weight(case, timed) for case in cases]
    workers = options.jobs if submission == OWN and device != "cuda" else None
    done: dict[int, Verdict] = {}

    def conclude(which: list[int]) -> int:
        judged = [(numbers[index], cases[index], done[index]) for index in which]
        return show_and_write(screen, section, judged, options, asked)

    def interrupted() -> None:
        screen.line(f"interrupted: {len(done)} of {count(len(cases), 'case')} done")
        if done:
            conclude(sorted(done))

    what = f"{section} of {of.name(cases)} on {describe_device(device, asked.machine)}"
    with interrupt.showing(interrupted), screen.progress(what, weights, workers=workers) as advance:
        small = None if device == "cuda" else of.estimate_from(weights)
        watch = None if small is None else LongCases(screen, numbers, weights, asked.timeout)

        def ended(index: int, verdict: Verdict) -> None:
            done[index] = verdict
            if watch:
                watch.ended(index)
            advance(index)

        if small:
            watch.tries(small, options)
        judge(
            [*cases],
            options,
            on_verdict=ended,
            on_start=watch.started if watch else lambda index: None,
            on_beat=lambda index, text: screen.beat(f"case {numbers[index]}: {text}"),
        )
    return conclude([*range(len(cases))])


def of_host(submission: str) -> list[str]:
    """Says where a submission's text looks at what judges it: what it finds differs from judge to judge."""
    try:
        found = [finding for finding in review(ast.parse(Path(submission).read_text())) if finding.rule == "harness"]
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):  # whoever imports it says so
        return []
    return [f"line {finding.line} of the submission: {finding.message}; the grader's are others" for finding in found]


def show_and_write(
    screen: Screen, section: str, judged: list[tuple[int, TestCase, Verdict]], options: Options, asked: RunOptions
) -> int:
    """Shows what cases came to, and writes it to the files that are wanted: the exit code. Raises Failure.

    judged: number, case and verdict of each.
    """
    timed, device = options.timed, options.device
    numbers, cases = [number for number, _, _ in judged], [case for _, case, _ in judged]
    verdicts = [verdict for _, _, verdict in judged]
    print_table(screen, numbers, cases, verdicts, options)
    passed = all(verdict.status == "pass" for verdict in verdicts)
    replies = None
    if timed and device != "cuda":
        replies = [verdict.modelled or {"error": verdict.reason} for verdict in verdicts]
        show_modelled(screen, numbers, cases, replies, options)
    if held := {verdict.isolation for verdict in verdicts} - {None}:
        screen.line(f"the submission's process: {'; '.join(sorted(held))}")
    if passed:
        screen.line((f"{count(len(cases), 'case')} passed", "green"))
    else:
        failed = sum(verdict.status != "pass" for verdict in verdicts)
        again = f" (repeat with --secret {options.secret})"
        screen.line((f"{failed} of {count(len(cases), 'case')} failed", "red"), again)
    if asked.junit:
        write_junit(asked.junit, section, cases, verdicts)
    found = rows_of(numbers, cases, verdicts, options.submission)
    if asked.html:
        write_page(asked.html, section, cases, verdicts, found, options)
    if asked.sarif:
        dump_json(asked.sarif, findings.sarif(found), "findings")
    for line in findings.workflow_commands(found) if asked.github else ():
        screen.line(line)
    if asked.json_file:
        dump_json(asked.json_file, json_of(section, verdicts, options, replies))
    return 0 if passed and not (replies and any("error" in reply for reply in replies)) else 1


class LongCases:
    """Says before a case of a task's folder, whose smaller ones come first, that it may take longer than ten minutes.

    sizes: of the cases, in the unit of Estimate. timeout: seconds for a call.
    """

    def __init__(self, screen: Screen, numbers, sizes: list[float], timeout: float):
        self.screen, self.numbers, self.sizes, self.timeout = screen, numbers, sizes, timeout
        self.estimate = Estimate()
        self.begun: dict = {}

    def tries(self, cases: list[TestCase], options: Options) -> None:
        """Judges small cases, whose verdicts are not told, to know how long others may take."""
        told = "; ".join(case.spec for case in cases)
        self.screen.line(f"the task's smallest tests show how long large cases may take: {told}")
        for case, verdict in zip(cases, judge(cases, options), strict=True):
            self.estimate.add(options.task.weight(case, options.timed), verdict.seconds)

    def started(self, index: int) -> None:
        """Is called before a case."""
        expected = self.estimate.seconds(self.sizes[index])
        if expected is not None and expected > LONG_S:
            text = f"case {self.numbers[index]} may take about {duration(expected)}, by the smaller ones"
            limit = f"a call is ended after {self.timeout:g} s (--timeout)"
            self.screen.line((text, "yellow"), f"; {limit}, --case runs one case alone")
        self.begun[index] = time.monotonic()

    def ended(self, index: int) -> None:
        """Is called after it."""
        self.estimate.add(self.sizes[index], time.monotonic() - self.begun[index])


def print_table(screen: Screen, numbers, cases, verdicts: list[Verdict], options: Options) -> None:
    """Shows the verdicts, and why what failed did; with a column of times, if any was measured."""
    timed = options.timed and any(verdict.times for verdict in verdicts)
    rows = []
    for number, case, verdict in zip(numbers, cases, verdicts):
        colour = "green" if verdict.status == "pass" else "red"
        counts = ["-" if x is None else str(x) for x in (verdict.mismatches, verdict.ulps)]
        sizes, seconds = options.task.title(case), f"{verdict.seconds:.1f}"
        row = [str(number), sizes, (verdict.status, colour), *counts, seconds]
        if timed:
            row.append(f"{verdict.us:.2f} ± {verdict.times.err / 1e3:.2f}" if verdict.times else "-")
        rows.append(row)
    columns = ["case", "<shapes", "<result", "mismatches", "ulps", "seconds", *(["us"] if timed else [])]
    screen.table(columns, rows)
    reasons = [[verdict.reason] if verdict.reason else [] for verdict in verdicts]
    notes, limits = [verdict.notes for verdict in verdicts], [verdict.limits for verdict in verdicts]
    for head, colour, told in (("", "red", reasons), ("note, ", "yellow", notes), ("not held, ", "yellow", limits)):
        of: dict[str, list[str]] = {}  # what is said -> of which cases
        for number, texts in zip(numbers, told):
            for text in texts:
                of.setdefault(text, []).append(str(number))
        for text, which in of.items():
            screen.line((f"{head}case {', '.join(which)}", colour), f": {text}")
    if any(notes):
        screen.line("notes: not promised by the PTX ISA, seen to work (NOT_PROMISED.md); --strict fails them")
    if any(verdict.ulps for verdict in verdicts):
        screen.line(
            "mismatches: not the exact result, rounded once; ulps: the worst of them; pass: within the tolerance"
        )
    if mean := geomean_us(verdicts):
        screen.line(f"geometric mean: {mean:.3f} us")


def show_modelled(screen: Screen, numbers, cases, replies: list[dict], options: Options) -> None:
    """Shows the modelled times of the cases, or why there are none. replies: of `modelled`, one a case."""
    good = [reply for reply in replies if "error" not in reply]
    if good:
        partly = any("priced" in reply for reply in good)
        columns = ["case", "us", "it may be", *["priced"] * partly, "calls simulated", *options.task.columns]
        rows = []
        for number, case, reply in zip(numbers, cases, replies):
            if "error" not in reply:
                simulated = f"{reply['simulated']} of {reply['calls']}"
                us = reply["us_corrected"]
                row = [str(number), f"{us:.2f}", uncertainty.written(reply["us_interval"]), simulated]
                if partly:
                    row.insert(3, f"{reply['priced']['share']:.0%}" if "priced" in reply else "-")
                rows.append(row + options.task.extra_columns(case, us))
        alone = all("priced" in reply and not reply["launches"] for reply in good)
        screen.table(columns, rows, f"us per call, {'priced at public rates' if alone else modelled.label(good)}")
    for number, reply in zip(numbers, replies):
        if "error" in reply:
            screen.line((f"case {number} not timed", "red"), f": {reply['error']}")
        elif reply["unlike"]:
            screen.line((f"case {number}", "yellow"), f": {reply['unlike']}")
        if "priced" in reply:
            screen.line((f"case {number} priced", "yellow"), f": {modelled.said_of_price(reply['priced'])}")
    if mean := modelled.geomean_us(replies):
        between, best = modelled.geomean_interval(replies), modelled.geomean_corrected(replies)
        how = "priced" if alone else "modelled, in part priced" if partly else "modelled"
        screen.line(
            f"geometric mean: {best:.2f} us ({how}; "
            + (f"it may be {uncertainty.written(between)}; " if between else "")
            + f"the model's own {mean:.3f})"
        )
        screen.line(uncertainty.BASIS)
        if len(replies) > 1:
            times = [reply["us_corrected"] for reply in replies]
            floors = [reply["floor_us"] for reply in replies]
            worth = score.rows(numbers, times, floors, best)
            screen.table(*worth, "which case is worth the time: each counts the same, by percents of its own time")


def write_junit(path: str, section: str, cases, verdicts: list[Verdict]) -> None:
    """Writes a test suite in JUnit's XML: a test for each case, its notes as output. Raises Failure."""
    failed = sum(verdict.status != "pass" for verdict in verdicts)
    suite = ElementTree.Element("testsuite", name=section, tests=str(len(verdicts)), failures=str(failed))
    for case, verdict in zip(cases, verdicts):
        seconds = f"{verdict.seconds:.3f}"
        test = ElementTree.SubElement(suite, "testcase", classname=section, name=case.spec, time=seconds)
        if verdict.status != "pass":
            ElementTree.SubElement(test, "failure", message=verdict.reason.partition("\n")[0]).text = verdict.reason
        if verdict.notes:
            ElementTree.SubElement(test, "system-out").text = "\n".join(verdict.notes)
    try:
        ElementTree.ElementTree(suite).write(path, "utf-8", xml_declaration=True)
    except OSError as error:
        raise Failure(f"cannot write the verdicts: {error}") from None


def rows_of(numbers, cases, verdicts: list[Verdict], submission: str) -> list[dict]:
    """Makes a row of each thing that the emulator found, and of why other cases failed, each mistake once."""
    found = []
    for number, case, verdict in zip(numbers, cases, verdicts):
        rows = [{**one, "of": f"case {number}, {one['of']}"} for one in verdict.findings]
        if verdict.status != "pass" and all(one["class"] != WRONG for one in rows):
            row = row_of(WRONG, EmulatorError(verdict.reason)) | {"kind": "failed"}
            rows.append(row | {"of": f"case {number}: {case.spec}", "events": [], "file": submission})
        found += rows
    return unique(found)


def write_page(
    path: str, section: str, cases, verdicts: list[Verdict], found: list[dict], options: Options
) -> None:
    """Writes a page of what was found: of `rows_of`. Raises Failure.

    Of source files it has the submission alone: line info may name any file of this machine.
    """
    passed = sum(verdict.status == "pass" for verdict in verdicts)
    title = f"{section} of {Path(options.submission).name}: {passed} of {count(len(cases), 'case')} passed"
    none = f"{title}; nothing was found"
    sources = {Path(options.submission).name: Path(options.submission)}
    try:
        page_of_findings.write_findings(Path(path), title, found, sources, elsewhere=False, none=none)
    except OSError as error:
        raise Failure(f"cannot write the page: {error}") from None


def json_of(section: str, verdicts: list[Verdict], options: Options, replies: list[dict] | None = None) -> dict:
    """Makes what --json writes. replies: what was modelled, if times are not measured."""
    mean = modelled.geomean_us(replies) if replies else geomean_us(verdicts)
    rows = []
    for i, verdict in enumerate(verdicts):
        row: dict[str, Any] = {"spec": verdict.spec, "status": verdict.status, "reason": verdict.reason}
        row |= {
            "mismatches": verdict.mismatches,
            "ulps": verdict.ulps,
            "seconds": round(verdict.seconds, 3),
            "notes": verdict.notes,
            **({"limits": verdict.limits} if verdict.limits else {}),
            "us": verdict.us,
        }
        if replies:
            row |= {key: replies[i].get(key) for key in ("us", "us_corrected", "us_interval")}
            row["modelled"] = replies[i]
        rows.append(row)
    modelled_any = replies and any("us" in reply for reply in replies)
    priced_any = replies and any("priced" in reply for reply in replies)
    result: dict[str, Any] = {
        "command": section.removesuffix("s"),
        "cases": rows,
        "geomean_us": mean,
        "kind": ("priced" if priced_any else "modelled") if modelled_any else "measured" if mean else "none",
        "device": describe_device(options.device, options.machine),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torch", "nvidia-cutlass-dsl")},
        "submission": options.submission,
        "secret": options.secret,
        **options.task.described(),
        "isolation": sorted({verdict.isolation for verdict in verdicts if verdict.isolation is not None}),
    }
    if replies and modelled_any:
        result |= modelled.labelled([reply for reply in replies if "error" not in reply])
        between = modelled.geomean_interval(replies) if mean else None
        result["geomean_us_corrected"] = modelled.geomean_corrected(replies) if mean else None
        result["geomean_us_interval"] = between
    return result
