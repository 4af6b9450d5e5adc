"""Checks grouped_gemm_fp8 against the exact reference: python -m moe.check

On a Hopper or Blackwell GPU if there is one, else on an emulated one, where every access of memory and every order of
events is checked, too. Each case runs under every config that the GPU's table has (moe.tuning).
"""

import click
import torch


@click.command()
@click.option("--emulated", type=click.Choice(["h200", "b200"]), help="This GPU instead of a real one.")
@click.option("--schedules", type=click.IntRange(1), default=1, show_default=True, help="Orders of events, emulated.")
def main(emulated: str | None, schedules: int) -> None:
    """Check every case under every config."""
    device = "cuda" if torch.cuda.is_available() and not emulated else "cpu"
    if device == "cpu":
        import emulator

        emulator.install(emulated or "h200")  # before CuTe DSL is imported, which the modules below do
    from moe.checks.grouped_gemm import BOUND, CASES, run
    from moe.device import device_of
    from moe.tuning.back_ends import tuning

    configs = tuning(device_of(torch.device(device)).capability).GEMM
    worst = 0.0
    for name, case in CASES.items():
        for config in configs:
            for schedule in range(schedules if device == "cpu" else 1):
                found = run(case, config, schedule, device)
                worst = max(worst, found)
                if not found <= BOUND:
                    raise click.ClickException(
                        f"{name}, {config}, schedule {schedule}: error {found:.3g} > {BOUND:.3g}"
                    )
        click.echo(f"ok {name}")
    where = torch.cuda.get_device_name() if device == "cuda" else f"an emulated {(emulated or 'h200').upper()}"
    click.echo(
        f"{len(CASES)} cases x {len(configs)} configs on {where}: largest error {worst:.3g}, allowed {BOUND:.3g}"
    )


if __name__ == "__main__":
    main()
