"""Profiles scripts beside each other: `compare A.py B.py`, and `sweep` of a script's own parameters.

Each runs in a process of its own, as `python -m emulated_gpu profile` runs it. A signal that ends the command ends
these, too, and leaves what is done.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import Unsupported
from ..model import ranking
from ..page.write import fill, views
from .host.watch import SAYS
from .run import ROOT

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Wanted:
    """How scripts are run. machine: a key of chip.CHIPS. launches: how many are timed. jobs: how many at a time."""

    machine: str = "b200"
    launches: int = 8
    jobs: int = 1


@dataclass
class Variant:
    """A script with its arguments, `words`, and environment variables, `values`. report: as `profile --json` has it.

    view: what a page shows of it. why: in a line, why there is no report. running: the process that runs it.
    """

    name: str
    words: list[str]
    values: dict[str, str] = field(default_factory=dict)
    report: dict | None = None
    view: dict | None = None
    why: str = ""
    running: subprocess.Popen | None = None

    @property
    def us(self) -> float | None:
        """The end of the last launch that was timed, from the start of the first one."""
        return self.report["launches"][-1]["end_us"] if self.report else None

    def process(self, command: list[str]) -> tuple[int, str]:
        """Run `python -m emulated_gpu COMMAND` on it: its exit status, and the last line that is not the emulator's,
        which are passed on."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | self.values | {"PYTHONPATH": path}
        process = subprocess.Popen(
            [sys.executable, "-m", "emulated_gpu", *command, *self.words], env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self.running = process
        if self.why:  # it has been ended before it began
            self.end()
        last = "no output"
        with process:
            try:
                for line in process.stderr or ():
                    if line.startswith(SAYS):
                        print(f"{SAYS}{self.name}: {line.removeprefix(SAYS)}", end="", file=sys.stderr, flush=True)
                    else:
                        last = line.strip() or last
            except BaseException:  # Ctrl-C, which a process of a session of its own does not hear
                self.end()
                raise
        self.running = None
        return process.returncode, last

    def end(self) -> None:
        """End it, and all that it has started, unless it is done."""
        if self.report is None:
            self.why = self.why or INTERRUPTED
        if (process := self.running) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def check(self, wanted: Wanted) -> bool:
        """Run the script as `run` does, with all checks: whether it ended well, without a finding."""
        with tempfile.TemporaryDirectory(prefix="emulated-gpu-run-") as folder:
            report = Path(folder, "report.json")
            status, last = self.process(["run", "--machine", wanted.machine, "--json", str(report)])
            runs = json.loads(report.read_text())["runs"] if report.exists() else []
        wrong = [one for run in runs for one in run["findings"] if one["class"] == "wrong"]
        if status and not self.why:
            self.why = f"{wrong[0]['kind']}: {wrong[0]['message']}" if wrong else f"exit status {status}: {last}"
        return not status

    def profile(self, wanted: Wanted, page: bool) -> None:
        """Model its launches. page: whether to keep what a page shows, too."""
        with tempfile.TemporaryDirectory(prefix="emulated-gpu-profile-") as folder:
            report, html = Path(folder, "report.json"), Path(folder, "page.html")
            command = ["profile", "--no-gains", "--machine", wanted.machine, "--launches", str(wanted.launches)]
            command += ["--out", folder]
            status, last = self.process([*command, "--json", str(report), *(["--html", str(html)] if page else [])])
            if status or self.why:
                self.why = self.why or last
                return
            self.report = json.loads(report.read_text())
            if page:
                (self.view,) = views(html)


class Ended(Exception):
    """Raised where a signal, its argument, asks the command to end."""


def each(variants: list[Variant], jobs: int, do: Callable[[Variant], None]) -> int:
    """Call do(variant) for all of them, this many at a time. Returns 0, or the signal that has ended those not done."""

    def end(number, frame):
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in ENDING}
    pool = ThreadPoolExecutor(jobs)
    try:
        for done in wait([pool.submit(do, variant) for variant in variants]).done:
            done.result()
        return 0
    except Ended as ended:
        for variant in variants:
            variant.end()
        return ended.args[0]
    finally:
        pool.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def compare(sides: tuple[list[str], list[str]], wanted: Wanted, html: Path | None) -> tuple[dict, int]:
    """Profile two command lines, each a script with its arguments: what emulated_gpu/RUN.md says of JSON reports,
    and what `each` returns: of a side that was not done there is no report then.

    html: a file for a page of both. Raises Unsupported where one cannot be timed.
    """
    both = [Variant(name, side) for name, side in zip("AB", sides)]
    ended = each(both, wanted.jobs, lambda side: side.profile(wanted, html is not None))
    for side in both:
        if side.report is None and side.why != INTERRUPTED:
            raise Unsupported(f"{side.name}, {shlex.join(side.words)}: {side.why}")
    a, b = both
    found = {
        "kind": "modelled", "machine": wanted.machine, "us": [a.us, b.us],
        "difference_us": None if a.us is None or b.us is None else b.us - a.us,
        "tells": None if a.us is None or b.us is None or wanted.machine != "b200" else ranking.tells(a.us, b.us),
        "a": a.report, "b": b.report,
    }  # fmt: skip
    if html is not None and not ended:
        pages = [side.view | {"title": f"{side.name}: {side.view['title']}"} for side in both if side.view is not None]
        fill(html, pages, {"said": verdict(found), "rows": rows(found)})
    return found, ended


def verdict(found: dict) -> str:
    """Say in a sentence which side is faster, and whether the model can tell."""
    a, b = found["us"]
    if a == b:
        return f"A and B take {a:.2f} us"
    faster = "B" if b < a else "A"
    text = f"A {a:.2f} us, B {b:.2f} us ({100 * (b / a - 1):+.1f} %): {faster} is faster by the model"
    if found["tells"] is None:
        return f"{text}; how often it has an order wrong on this machine is not known"
    return text if found["tells"] else f"{text}, but by less than it can tell ({100 * ranking.error():.1f} %)"


def rows(found: dict) -> list[list[str]]:
    """A table: what takes time in A and in B, what differs most first, and what their kernels move.

    found: `a` and `b`, each with `breakdown` and `kernels` of a report.
    """
    a, b = found["a"], found["b"]
    parts = [
        {name: share * side["breakdown"]["interval_us"] for name, share in side["breakdown"]["shares"].items()}
        for side in (a, b)
    ]
    lines = [["", "A", "B", "B - A"]]
    names = sorted({*parts[0], *parts[1]}, key=lambda name: -abs(parts[1].get(name, 0.0) - parts[0].get(name, 0.0)))
    pairs = [(f"all SMs in the mean, us: {name}", parts[0].get(name, 0.0), parts[1].get(name, 0.0)) for name in names]
    for of_a, of_b in zip(a["kernels"], b["kernels"]):
        title = of_a["title"] if of_a["title"] == of_b["title"] else f"{of_a['title']} and {of_b['title']}"
        pairs += [(f"{title}, us", of_a["us"], of_b["us"])]
        pairs += [(f"{title}, HBM MB", of_a["hbm_bytes"] / 1e6, of_b["hbm_bytes"] / 1e6)]
        pairs += [(f"{title}, L2 hits %", 100 * of_a["l2_hits"], 100 * of_b["l2_hits"])]
        pairs += [(f"{title}, registers", of_a["registers"] or 0, of_b["registers"] or 0)]
    lines += [[name, f"{x:.2f}", f"{y:.2f}", f"{y - x:+.2f}"] for name, x, y in pairs if max(x, y) >= 0.005]
    if [k["title"] for k in a["kernels"]] != [k["title"] for k in b["kernels"]]:
        lines.append(["they launch other kernels", *(str(len(side["kernels"])) for side in (a, b)), ""])
    return lines


def words_of(file: Path) -> set[str]:
    """The words in the strings of a Python file, but for its docstrings; all its words if it cannot be read."""
    text = file.read_text(errors="replace")
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):
        return {*re.findall(r"\w+", text)}
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose]
    return {word for string in strings if isinstance(string, str) for word in re.findall(r"\w+", string)}


def variants(words: list[str], changes: list[dict[str, str]]) -> list[Variant]:
    """A script under each change: environment variables, and what stands as `{NAME}` in its arguments. Without a
    change, too, unless its arguments need one. Raises ValueError for a name that nothing in the script's folder has."""
    script, args = words[0], words[1:]
    said = {word for file in Path(script).resolve().parent.glob("*.py") for word in words_of(file)}
    for name in dict.fromkeys(name for change in changes for name in change):
        if not any(f"{{{name}}}" in arg for arg in args) and name not in said:
            raise ValueError(
                f"nothing reads {name}: no Python file beside {script} names it, and no argument is {{{name}}}"
            )
    found = []
    for change in [{}, *changes]:
        filled = list(args)
        for name, value in change.items():
            filled = [arg.replace(f"{{{name}}}", value) for arg in filled]
        if change or filled == args and not any(f"{{{name}}}" in arg for arg in args for name in changes[0]):
            shown = " ".join(f"{name}={value}" for name, value in change.items()) or "as it is"
            found.append(Variant(shown, [script, *filled], change))
    return found


def sweep(tried: list[Variant], wanted: Wanted, checked: bool) -> tuple[list[Variant], int]:
    """Run each variant with all checks, if wanted, and profile those that end well: the fastest come first, and what
    `each` returns."""

    def do(variant: Variant) -> None:
        if not checked or variant.check(wanted):
            variant.profile(wanted, page=False)

    ended = each(tried, wanted.jobs, do)
    return sorted(tried, key=lambda variant: variant.us or float("inf")), ended
