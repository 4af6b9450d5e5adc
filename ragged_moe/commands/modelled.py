"""What `python -m ragged_moe model` says of a problem."""

import click

import emulated_gpu
from emulated_gpu.model import report, uncertainty
from emulated_gpu.model.steady import Steady
from emulated_gpu.model.time_of_call import replied
from emulated_gpu.serve.host.timed_run import answering

FORMAT = click.option(
    "--format", "kind", type=click.Choice(["fp8", "nvfp4", "mxfp4", "w4a16"]), default="fp8", show_default=True
)
MACHINE = click.option("--machine", type=click.Choice(["b200", "h200"]), default="b200", show_default=True)


def say(kind: str, args: dict, machine: str, count: int) -> None:
    """Say the modelled time of a call, back to back with as many as count, and of each launch of a layer.

    kind, args: as of ragged_moe.measure.modelled.of_problem. UsageError for FP4 on another machine than a B200,
    ClickException if Ctrl-C comes before a call has ended; else the answer is of those that have.
    """
    if kind != "fp8" and machine != "b200":
        raise click.UsageError(f"--format {kind} is modelled on a b200 alone")
    emulated_gpu.install(machine)  # before CuTe DSL is imported, which the module below does
    from ragged_moe.measure import modelled

    calls, each, more, stages, polled = modelled.of_problem(kind, args, count, lambda config: config)
    steady = Steady([each * (i + 1) for i in range(count)])
    with emulated_gpu.timing(machine, None, steady, polled, answering) as timed:
        for call in calls:
            call()
    if not steady.ends:
        raise click.ClickException("interrupted before a call had ended: nothing is known of what it takes")
    found = replied(timed.run, steady, each)
    between = found["us_interval"]
    may_be = f"it may be {between[0]:.2f} to {between[1]:.2f}" if between else found["unlike"]
    of_config = f", {more['config']}" if "config" in more else ""
    click.echo(
        f"{found['us_corrected']:.2f} us a call, {may_be} (modelled, profile {machine}; "
        f"{found['simulated']} of {found['calls']} calls simulated){of_config}"
    )
    last = len(steady.ends) * each
    for name, launch in zip(stages, timed.run.launches[last - each : last]):
        click.echo(f"  {name}: {report.of_launch(launch)['us']:.1f} us")
    if partial := report.partial(timed.run):
        click.echo(f"interrupted: {partial}")
    click.echo(uncertainty.basis(machine))
    click.echo("No value was checked: that is what check does.")
