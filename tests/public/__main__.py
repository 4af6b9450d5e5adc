"""Run public scripts from fetched repositories on the emulator, and record what became of each.

    python -m tests.public FOLDER... [--cases FILE] [--only WORD]... [--list]

A FOLDER is a checkout of one of the repositories that cases.py names; cases whose files are in none of them keep what
is recorded. No part of `make test`: the scripts are others' and stay in their repositories. What scripts import beside
torch, triton and CuTe DSL (pandas and tabulate for Triton's tutorials, ...) has to be installed. `python -m
worklog.pages` then redraws emulated_gpu/PUBLIC.md. Exit status 1 if a case neither agrees nor has a word of
explanation.

What is not to be built by this repository has its cases elsewhere: --cases takes a file of Python with CASES, and their
rows of the record say their group and what is known of them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from emulated_gpu.chip import chip_of
from emulated_gpu.serve.cuda_cpp import toolkit

from .case import Case
from .cases import CASES

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("record.json")
PROGRAM = Path(__file__).with_name("program.py")
PATIENCE = 5  # seconds on the clock for one of CPU time: others may need the cores
PLACE = re.compile(r"/\S*/(?=[^/\s]+:\d)")  # the folders of a source line
MAIN = re.compile(r"\bmain\s*\(")
PACKAGES = ("triton", "nvidia-cutlass-dsl", "torch", "cupy-cuda13x")


class DoesNotCompile(Exception):
    """nvcc's words."""


def found(name: str, folders: Sequence[Path]) -> Path | None:
    """Where the first of the folders has a file or folder of that name."""
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def built(source: Path, options: Sequence[str], includes: Sequence[Path], machine: str, program: Path) -> None:
    """Compile and link a program of CUDA C++, as `python -m emulated_gpu nvcc` does. Raises DoesNotCompile.

    Those of C++ in the first of the folders belong to it that are no programs themselves.
    """
    line = [f"-arch={chip_of(machine).arch}", "-std=c++17", *options, "-o", program, source]
    beside = [one for one in sorted(includes[0].glob("*.cpp")) if not MAIN.search(one.read_text(errors="replace"))]
    line += [*beside, *(f"-I{folder}" for folder in includes)]
    done = subprocess.run(toolkit.program_command([str(one) for one in line]), capture_output=True, text=True)
    if done.returncode:
        raise DoesNotCompile(done.stdout + done.stderr)


def edited(source: Path, edits: Sequence[tuple[str, str]], report: Path) -> Path:
    """Where a program's source is with other sizes: beside the report. SystemExit if it has not what is replaced."""
    if not edits:
        return source
    text = source.read_text()
    for old, new in edits:
        if old not in text:
            sys.exit(f"{source} has no {old!r}")
        text = text.replace(old, new)
    made = report.with_name(source.name)
    made.write_text(text)
    return made


def command(case: Case, machine: str, folders: Sequence[Path], report: Path) -> tuple[list[str], str] | None:
    """The command line of a case and its PYTHONPATH; None if the folders lack what it needs. A program is built beside
    the report."""
    needs = [found(name, folders) for name in (case.script, *case.path) if name]
    if None in needs:
        return None
    script = str(needs.pop(0)) if case.script else ""
    if script.endswith(".cu"):
        source, script = edited(Path(script), case.edits, report), str(report.with_name("program"))
        built(source, case.options.split(), [Path(found(case.script, folders)).parent, *needs], machine, Path(script))
    what = [str(PROGRAM), script, case.code, *filter(None, [case.until])] if case.code else [script, *case.args.split()]
    line = [sys.executable, "-m", "emulated_gpu", "run", "--machine", machine, "--json", str(report), *what]
    return line, os.pathsep.join(map(str, (*needs, ROOT, *filter(None, [os.environ.get("PYTHONPATH")]))))


def verdict(status: int, report: dict, said: str, wanted: str = "") -> dict[str, str]:
    """Whether a run `agrees`, or has a `finding`, was `refused`, took `too long` or `fails`; and the words for it.

    wanted: what it has to say.
    """
    if status in (-signal.SIGXCPU, 128 + signal.SIGXCPU, -signal.SIGKILL):  # 128: of a program that the script runs
        return {"verdict": "too long", "why": ""}
    findings = [one for run in report.get("runs", []) for one in run["findings"] if one["class"] == "wrong"]
    if status == 0 and not findings and wanted not in said:
        return {"verdict": "fails", "why": f"it does not say {wanted!r}"}
    if status == 0 and not findings:
        return {"verdict": "agrees", "why": ""}
    if findings:
        first = findings[0]
        kind = "refused" if first["kind"] == "unsupported" else "finding"
        return {"verdict": kind, "why": PLACE.sub("", f"{first['kind']}: {first['message'].splitlines()[0]}")}
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("emulated-gpu: ")]
    why = lines[-1] if lines else f"exit status {status}"
    kind = "refused" if "Unsupported: " in why else "fails"
    return {"verdict": kind, "why": why.rpartition("Unsupported: ")[2]}


def run(case: Case, machine: str, folders: Sequence[Path], logs: Path | None) -> dict | None:
    """Run a case in a process of its own; returns its row of the record, or None if its files are not there."""
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        report, output = Path(folder, "report.json"), Path(folder, "output")
        try:
            made = command(case, machine, folders, report)
        except DoesNotCompile as why:
            errors = [one for one in str(why).splitlines() if "error" in one or "undefined" in one] or ["nvcc fails"]
            refused = toolkit.why_it_is_not_served(str(why))
            row = {"verdict": "refused" if refused else "fails", "why": refused or PLACE.sub("", errors[0])}
            return row | {"seconds": 0.0, "launches": 0}
        if made is None:
            return None
        line, path = made
        with output.open("w") as file:
            process = subprocess.Popen(
                line, cwd=folder, env=os.environ | {"PYTHONPATH": path, "TMPDIR": folder}, stdout=file, stderr=file,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (case.limit, case.limit + 1)),
            )  # fmt: skip
            end, done = time.monotonic() + PATIENCE * case.limit, 0
            while not done:
                done, status, used = os.wait4(process.pid, os.WNOHANG)
                if not done:
                    time.sleep(0.1)
                    if time.monotonic() > end:
                        os.killpg(process.pid, signal.SIGKILL)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = output.read_text(errors="replace")
        for prefix in (*folders, sys.prefix):  # a record does not depend on where things lie
            said = said.replace(f"{prefix}/", "")
        if logs:
            (logs / f"{case.name}, {machine}.log".replace("/", "_")).write_text(said)
        known = json.loads(report.read_text()) if report.exists() and report.stat().st_size else {}
    launches = sum(len(each["launches"]) for each in known.get("runs", []))
    seconds = round(used.ru_utime + used.ru_stime, 1)
    return verdict(process.returncode, known, said, case.says) | {"seconds": seconds, "launches": launches}


def versions() -> dict[str, str]:
    """Versions of the packages that compile the cases, as far as they are installed."""
    installed = {package.metadata["Name"] for package in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in PACKAGES if name in installed}


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--cases", "other", type=click.Path(dir_okay=False, path_type=Path), help="A file with other CASES.")
@click.option("--only", multiple=True, metavar="WORD", help="Cases whose group, name or machine has these words.")
@click.option("--list", "show", is_flag=True, help="Say which there are, and run nothing.")
@click.option("--logs", type=click.Path(file_okay=False, path_type=Path), help="Keep what the cases print there.")
@click.option("--record", default=RECORD, type=click.Path(dir_okay=False, path_type=Path), help="Where results go.")
def main(
    folders: tuple[Path, ...], other: Path | None, only: tuple[str, ...], show: bool, logs: Path | None, record: Path
):
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
    folders = tuple(folder.resolve() for folder in folders)
    cases = runpy.run_path(str(other))["CASES"] if other else CASES
    asked = [
        (case, machine) for case in cases for machine in case.machines
        if all(word in f"{case.group}: {case.name}, {machine}" for word in only)
    ]  # fmt: skip
    unexplained = done = 0
    for case, machine in asked:
        if show:
            print(f"{case.group}: {case.name}, {machine}")
        elif row := run(case, machine, folders, logs):
            known_by = {"group": case.group, "explained": case.explained, "file": case.script, "args": case.args}
            known = json.loads(record.read_text()) if record.exists() else {}
            known.setdefault(case.name, {})[machine] = row | {"versions": versions()} | (known_by if other else {})
            record.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            done, unexplained = done + 1, unexplained + (row["verdict"] != "agrees" and not case.explained)
            said = f"{row['verdict']:9} {row['seconds']:6.1f} s  {case.name}, {machine}"
            print(f"{said}  {row['why'][:150]}", flush=True)
    if not asked or not (show or done):
        lack = f"No folder has the files of any of {len(asked)} cases." if asked else f"No case has {', '.join(only)}."
        raise click.UsageError(lack)
    sys.exit(int(unexplained > 0))


if __name__ == "__main__":
    main()
