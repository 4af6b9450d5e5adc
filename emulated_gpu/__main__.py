"""`python -m emulated_gpu`: run scripts on the emulated B200 or H200, list what a PTX file needs."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import click

from .chip import CHIPS
from .errors import EmulatorError, Unsupported
from .finding_rows import of_runs
from .grid import parse_grid, without_effect
from .model import profile as profiles
from .model import uncertainty
from .outputs import duration, of_other_commands, to_be_written
from .ptx.control_flow import BlockWriter, ControlFlow
from .ptx.parse import Kernel, parse

MACHINE = click.option(
    "--machine", type=click.Choice(list(CHIPS)), default="b200", show_default=True, help="What it runs on."
)
TIMED_MACHINE = click.option(
    "--machine", type=click.Choice(profiles.names()), default="b200", show_default=True, help="What it is timed for."
)
LAUNCHES = click.option(
    "--launches", type=click.IntRange(1), default=8, show_default=True, help="Time the first N launches."
)
JOBS = click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Processes.")


def written(*names: str, what: str):
    """Make an option that names a file to which something is written."""
    return click.option(
        *names, type=click.Path(dir_okay=False), callback=to_be_written, metavar="FILE", help=f"Write {what} there."
    )


JSON = written("--json", "json_file", what="the report")


class Script(click.Path):
    """What is run: a script or a program. What is plainly neither is refused, with what to do."""

    OTHERS = {
        ".cu": "CUDA C++: make a program of it by `python -m emulated_gpu nvcc {0} -o x`, and run ./x",
        ".ipynb": "a notebook: make a script of it by `jupyter nbconvert --to script {0}`",
        ".ptx": "PTX: `python -m emulated_gpu ptx {0}` lists it, and emulated_gpu.launch runs it from a script",
    }

    def __init__(self):
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value, param, ctx):
        found = os.fsdecode(super().convert(value, param, ctx))
        if what := self.OTHERS.get(Path(found).suffix):
            self.fail(f"{found} is {what.format(found)}", param, ctx)
        return found


class ScriptWithArguments(Script):
    """The same with arguments, in one word: a list."""

    def convert(self, value, param, ctx):
        try:
            script, *args = shlex.split(value) or [""]
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return [super().convert(script, param, ctx), *args]


SCRIPT = click.argument("script", type=Script())


class Commands(click.Group):
    """Commands that end on Ctrl-C as eval.py's do, and of which one that lacks an option names those that have it."""

    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise of_other_commands(error, self) from None
        except KeyboardInterrupt:
            from .serve.run import interrupted

            ctx.exit(interrupted())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli():
    """Emulated GPUs for CuTe DSL, Triton and CUDA C++ scripts, and for PTX."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C ends it all the same
        signal.signal(signal.SIGINT, signal.default_int_handler)


def warn_of_misplaced(script: str, args: tuple[str, ...]) -> None:
    """Says on stderr which options of the command itself stand behind the script, which may have some of that name."""
    context = click.get_current_context()
    own = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)}
    words = dict.fromkeys(word.partition("=")[0] for word in args if word.startswith("--"))
    if found := [word for word in words if word in own]:
        meant = f"{context.info_name} {' .. '.join(found)} .. {script}"
        click.echo(f"emulated-gpu: the script gets {' and '.join(found)}; for the emulator write {meant}", err=True)


def order(_context, _parameter, text: str) -> str:
    """Return an order of events, given as text or in a file."""
    from .machine.schedule import Schedule

    if not text:
        return ""
    try:
        return str(Schedule.of_text(Path(text).read_text() if Path(text).is_file() else text))
    except (ValueError, OSError) as why:
        raise click.BadParameter(str(why)) from None


@cli.command(context_settings={"allow_interspersed_args": False})  # options behind SCRIPT are its own
@click.option("--schedule", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order of events.")
@click.option("--schedules", type=click.IntRange(1), metavar="N", help="Run SCRIPT N times, with seeds 0 to N - 1.")
@click.option("--explore", type=click.IntRange(0), default=0, metavar="N",
              help="Try each launch in N other orders, too; say which few delays cause a finding.")  # fmt: skip
@click.option("--replay", default="", callback=order, metavar="ORDER", help="An order that --explore has found.")
@MACHINE
@click.option("--checks/--no-checks", default=True, show_default=True, help="Look for races and wrong accesses.")
@click.option("--keep-going", "most", type=click.IntRange(1), default=1, metavar="N", help="Stop at the Nth finding.")
@click.option("--timed", is_flag=True, help="Times between events are modelled; else they are nan.")
@written("--json", "json_file", what="the findings")
@written("--sarif", what="the findings as SARIF")
@written("--html", what="a page of the findings")
@click.option("--events", is_flag=True, help="Keep in --json what happened last in launches with findings.")
@click.option("--github", is_flag=True, help="Print the findings as annotations of a GitHub workflow.")
@click.option("--strict", is_flag=True, help="What the PTX ISA does not promise is wrong, though it is seen to work.")
@click.option("--crowded", is_flag=True, help="Launches that are not cooperative have room for one cluster at a time.")
@click.option("--installs", is_flag=True, help="Let SCRIPT install packages; else that is refused.")
@click.option("--timeout", type=click.FloatRange(0), default=0.0, metavar="S", help="Seconds that a launch may take.")
@click.option("--devices", type=click.IntRange(1, 16), default=1, show_default=True, help="GPUs of the node.")
@click.option("--ranks", type=click.IntRange(0), default=0, show_default="one a device, as torchrun starts them",
              help="As how many processes the script runs.")  # fmt: skip
@click.option("--must-launch", is_flag=True, help="Fail if nothing was launched.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default="cores", help="Of --schedules.")
@SCRIPT
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script, args, **given):
    """Run SCRIPT with ARGS: torch's cuda device, cuda.bindings and CuTe DSL launches go to the emulated machine.

    Also in the processes that the script starts. What cannot be served is refused by name. The exit status is the
    script's, or 1 if the emulator found a fault in it or in those. The script runs with your rights: read it first.
    """
    warn_of_misplaced(script, args)
    from .page import findings as page_of_findings
    from .serve.host import findings
    from .serve.profile import sources
    from .serve.run import Options, run_once, run_schedules, summary

    asked = SimpleNamespace(**given)
    if asked.timed and asked.machine not in profiles.names():
        known = ", ".join(profiles.names())
        raise click.UsageError(f"--timed: no profile says how fast a machine {asked.machine} is; there are {known}")
    if asked.ranks > asked.devices:
        raise click.UsageError(f"--ranks {asked.ranks} wants --devices {asked.ranks}: a rank has a device of its own")
    if asked.replay and (asked.schedules or asked.schedule or asked.explore):
        raise click.UsageError("--replay is one order: without --schedule, --schedules and --explore")
    if (asked.explore or asked.replay) and not (asked.checks and asked.devices == 1 and not asked.timed):
        raise click.UsageError("--explore and --replay are for one device, with checks, without --timed")
    own = {field.name: given[field.name] for field in dataclasses.fields(Options) if field.name in given}
    options = Options(**own | {"events": asked.events or bool(asked.html)})
    try:
        if asked.schedules:
            jobs = min(asked.jobs, asked.schedules)
            report = run_schedules(script, list(args), options, asked.installs, asked.schedules, jobs)
        else:
            report = run_once(script, list(args), options, asked.installs)
    except ImportError as why:  # of a package that these options need
        raise click.ClickException(str(why)) from None
    if asked.must_launch and not any(one["launches"] for one in report["runs"]):
        click.echo("emulated-gpu: nothing was launched", err=True)
        report["exit_status"] = report["exit_status"] or 1
    write_json(asked.json_file, report)
    found = of_runs(report["runs"])
    write_json(asked.sarif, findings.sarif(found))
    if asked.html:
        title = f"{' '.join([Path(script).name, *args])}: {summary(report['runs'])}"
        with_events = page_of_findings.of_runs(report["runs"])
        page_of_findings.write_findings(Path(asked.html), title, with_events, sources(script))
    for line in findings.workflow_commands(found) if asked.github else ():
        click.echo(line)
    click.echo(f"emulated-gpu: {summary(report['runs'])}", err=True)
    sys.exit(report["exit_status"])


@cli.command(context_settings={"allow_interspersed_args": False})  # options behind SCRIPT are its own
@TIMED_MACHINE
@LAUNCHES
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("emulated-gpu-profile"), show_default=True,
    callback=to_be_written, metavar="DIR", help="For timeline.json.gz and overview.png.",
)  # fmt: skip
@JSON
@written("--html", what="a page of it")
@click.option("--baseline", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="A page that was written before: --html holds this one against it.")  # fmt: skip
@click.option("--devices", type=click.IntRange(1, 16), default=1, show_default=True,
              help="GPUs of the node, each with a rank of its own.")  # fmt: skip
@click.option("--compute", is_flag=True, help="Compute products, too: for kernels that await values.")
@click.option("--within", callback=duration, metavar="60s", help="Answer by then, with what there is, extrapolated.")
@click.option("--gains/--no-gains", default=True, show_default=True,
              help="Model all again with one thing undone at a time: what mending it would bring.")  # fmt: skip
@JOBS
@SCRIPT
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def profile(script, args, machine, launches, out, json_file, html, **given):
    """Model the times of what SCRIPT launches, what its kernels use, and where the time goes.

    The launches of this process are recorded while SCRIPT runs, and timed back to back when it has ended: a check of
    SCRIPT's own will fail. Products are not computed without --compute; times are the same. On Ctrl-C, and at --within,
    what is done is told, and what is not is extrapolated. timeline.json.gz is for https://ui.perfetto.dev. The script
    runs with your rights: read it first.
    """
    warn_of_misplaced(script, args)
    from .model import report
    from .page.write import views
    from .serve.profile import Wanted, profile, profile_devices
    from .serve.run import Options

    devices, compute, baseline = given.pop("devices"), given.pop("compute"), given.pop("baseline")

    def show(one: dict) -> None:
        for line in report.lines(one):
            click.echo(line)

    if devices > 1 and html:
        raise click.UsageError("--html is for one device")
    if baseline:
        if not html:
            raise click.UsageError("--baseline is for --html")
        try:
            views(Path(baseline))
        except ValueError as why:
            raise click.UsageError(f"--baseline: {why}") from None
    try:
        if devices > 1:
            options = Options(machine=machine, devices=devices)
            found = profile_devices(script, list(args), options, out, launches * devices, compute)
        else:
            page = Path(html) if html else None
            wanted = Wanted(machine, out, launches, page, compute, baseline=baseline and Path(baseline), **given)
            found = profile(script, list(args), wanted, show)
    except EmulatorError as error:
        raise click.ClickException(str(error)) from None
    for number, one in enumerate(found.get("devices", [])):
        click.echo(f"device {number}")
        show(one)
    for line in report.verdict_lines(found.get("verdicts", [])):
        click.echo(line)
    validation = found.get("devices", [found])[0]["validation"]
    click.echo(f"Times are modelled, not measured (profile {machine}; {validation}; VALIDATION.md).")
    click.echo(f"{uncertainty.basis(machine)}.")
    click.echo(f"{out}{'/device*' * (devices > 1)}: timeline.json.gz, overview.png")
    write_json(json_file, found)


@cli.command()
@TIMED_MACHINE
@LAUNCHES
@JOBS
@JSON
@written("--html", what="a page of both")
@click.argument("a", type=ScriptWithArguments())
@click.argument("b", type=ScriptWithArguments())
def compare(machine, launches, jobs, json_file, html, a, b):
    """Model the launches of two scripts: which takes less time, where it goes, and whether the model can tell.

    A and B: a script each, with its arguments in quotes: 'gemm.py --stages 3'. See `profile` for what is timed; what
    they compute is not compared. The scripts run with your rights: read them first.
    """
    from .serve import variants

    try:
        found, ended = variants.compare((a, b), variants.Wanted(machine, launches, min(2, jobs)), html and Path(html))
    except EmulatorError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"A: {shlex.join(a)}\nB: {shlex.join(b)}")
    if found["difference_us"] is None:
        said = (f"{name} {us:.2f} us" if us else f"{name} is not done" for name, us in zip("AB", found["us"]))
        click.echo(f"interrupted: {', '.join(said)} (modelled, profile {machine})")
        write_json(json_file, found)
        sys.exit(128 + ended)
    rows = variants.rows(found)
    width = max(len(row[0]) for row in rows)
    for name, *figures in rows:
        click.echo(f"{name:{width}} " + " ".join(f"{figure:>12}" for figure in figures))
    click.echo(variants.verdict(found))
    click.echo(f"Times are modelled, not measured (profile {machine}; VALIDATION.md).")
    write_json(json_file, found)


@cli.command(context_settings={"allow_interspersed_args": False})  # options behind SCRIPT are its own
@TIMED_MACHINE
@LAUNCHES
@JOBS
@JSON
@click.option("--grid", required=True, metavar="'A=1,2 B=3..5'", help="All combinations; 3..5 is 3, 4 and 5.")
@click.option("--check/--no-check", "checked", default=True, help="Rank only what `run` finds nothing wrong with.")
@SCRIPT
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def sweep(machine, launches, jobs, json_file, grid, checked, script, args):
    """Model SCRIPT's launches under many values of its own parameters, and rank them.

    A parameter is an environment variable that SCRIPT reads, or stands as {NAME} in ARGS. Each combination runs with
    all checks first: one that ends with an error or a finding is not ranked, and the exit status is 1 then.
    """
    from .serve import variants

    try:
        tried = variants.variants([script, *args], parse_grid(grid))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    ranked, ended = variants.sweep(tried, variants.Wanted(machine, launches, min(jobs, len(tried))), checked)
    for place, one in enumerate(ranked, 1):
        click.echo(f"{place:3} {one.us:9.2f} us  {one.name}" if one.us else f"  - not ranked    {one.name}: {one.why}")
    what = "us: to the end of the last launch, the model's own: modelled, not measured"
    click.echo(f"{what} (profile {machine}; VALIDATION.md)")
    reports = [(one.values, one.report) for one in ranked if one.report]
    same = without_effect([(values, (report["launches"], report["kernels"])) for values, report in reports])
    for name in same:
        click.echo(f"{name} changes nothing: the launches and their times are the same whatever it is. What reads it?")
    rows = [{"values": one.values, "us": one.us, "why": one.why, "report": one.report} for one in ranked]
    write_json(json_file, {"kind": "modelled", "script": script, "args": list(args), "ranking": rows})
    if ended:
        done = sum(one.why != variants.INTERRUPTED for one in ranked)
        click.echo(f"interrupted: {done} of {len(ranked)} done", err=True)
    told = all(one.us for one in ranked) and {*same} != {name for one in ranked for name in one.values}
    sys.exit(128 + ended if ended else 0 if told else 1)


def write_json(path: str | None, report: dict) -> None:
    try:
        if path:
            Path(path).write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None


class Probe(BlockWriter):
    """Writes one instruction, to see whether that is refused."""

    reason = None

    def unsupported(self, why: str):
        self.reason = why


def forms(kernel: Kernel) -> tuple[Counter, dict[str, str]]:
    """How often each opcode with its modifiers occurs, and why those that are refused are."""
    program = ControlFlow(kernel)
    count: Counter[str] = Counter()
    refused: dict = {}
    for instr in kernel.instrs:
        count[instr.op] += 1
        probe = Probe(program, 0)
        probe.instruction(instr)
        if probe.reason:
            refused[instr.op] = probe.reason
    return count, refused


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})  # -arch has an h
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def nvcc(args):
    """Run nvcc with ARGS, to make a program that `run` takes: nvcc x.cu -o x.

    It compiles to PTX alone, for a B200 unless ARGS name an architecture, and links with pip's CUDA, too.
    """
    from .serve.cuda_cpp import toolkit

    try:
        command = toolkit.program_command(args)
    except Unsupported as error:
        raise click.ClickException(error.message) from None
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    click.echo(done.stderr, err=True, nl=False)
    if done.returncode and (why := toolkit.why_it_is_not_served(done.stderr)):
        raise click.ClickException(why)
    sys.exit(done.returncode)


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def ptx(file):
    """List the instruction forms in a PTX FILE and how often each occurs; exit status 1 if any is unsupported.

    What depends on values, such as the encoding in a descriptor, shows only in a run.
    """
    try:
        text = file.read_text().rstrip("\0")
        kernels = parse(text).kernels if ".entry" in text else {}
    except Unsupported as e:
        raise click.ClickException(str(e)) from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{file} is no PTX: it is no text") from None
    if not kernels:
        raise click.ClickException(f"{file} has no kernel: no .entry")
    unsupported = False
    for name, kernel in kernels.items():
        count, refused = forms(kernel)
        click.echo(f"{name}: {count.total()} instructions, {len(count)} forms, {len(refused)} unsupported")
        for form, n in sorted(count.items()):
            click.echo(f"{n:7}  {form}" + (f"    UNSUPPORTED: {refused[form]}" if form in refused else ""))
        unsupported |= bool(refused)
    sys.exit(int(unsupported))


if __name__ == "__main__":
    cli(prog_name="python -m emulated_gpu")
