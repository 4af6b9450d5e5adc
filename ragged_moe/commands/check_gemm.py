"""Checks grouped_gemm_fp8, or grouped_gemm_nvfp4, against the exact reference: python -m ragged_moe check gemm
[--format nvfp4]

nvfp4: on Hopper with MXFP4 weights, too, on Blackwell by tokens in e2m1 and by those that stay bf16; mxfp4: these
weights alone, by tokens in 8 bits (W4A8).

On a Hopper or Blackwell GPU if there is one, each case under every config that the GPU's table has
(ragged_moe.tuning). Else on an emulated one, where every access of memory is checked, too: every case once and every
config once, in less than two minutes; with --all as on a GPU.
"""

import click
import torch

from ragged_moe.checks import amount

SECONDS = 4.0  # of an emulated launch


@click.command()
@click.option("--emulated", type=click.Choice(["h200", "b200"]), help="This GPU instead of a real one.")
@click.option("--format", "kind", type=click.Choice(["fp8", "nvfp4", "mxfp4"]), default="fp8", show_default=True)
@click.option("--schedules", type=click.IntRange(1), default=1, show_default=True, help="Orders of events, emulated.")
@amount.ALL
def main(emulated: str | None, kind: str, schedules: int, everything: bool) -> None:
    """Check the cases under the configs of this GPU."""
    device = "cuda" if torch.cuda.is_available() and not emulated else "cpu"
    if device == "cpu":
        import emulated_gpu

        emulated_gpu.install(emulated or "h200")  # before CuTe DSL is imported, which the modules below do
    from ragged_moe.checks import grouped_gemm, grouped_gemm_fp4
    from ragged_moe.runtime.device import device_of
    from ragged_moe.tuning.back_ends import tuning

    of_gpu = tuning(device_of(torch.device(device)).capability)
    if kind == "fp8":
        checks, cases, configs = grouped_gemm, grouped_gemm.CASES, of_gpu.GEMM
    else:
        checks, (cases, configs) = grouped_gemm_fp4, grouped_gemm_fp4.of_machine(of_gpu, kind)
    chosen = amount.pairs(cases, configs, everything or device == "cuda")
    orders = range(schedules if device == "cpu" else 1)
    if device == "cpu":
        amount.say(chosen * len(orders), len(cases) * len(configs) * len(orders), SECONDS)
    worst = 0.0
    for name, config in chosen:
        for schedule in orders:
            found = checks.error_of(cases[name], config, schedule, device)
            worst = max(worst, found)
            if not found <= checks.BOUND:
                what = f"{name}, {config}, schedule {schedule}"
                raise click.ClickException(f"{what}: error {found:.3g} > {checks.BOUND:.3g}")
        click.echo(f"ok {name}, {config}")
    where = torch.cuda.get_device_name() if device == "cuda" else f"an emulated {(emulated or 'h200').upper()}"
    click.echo(
        f"{len(cases)} cases, {len(configs)} configs, {len(chosen)} pairs of them on {where}: "
        f"largest error {worst:.3g}, allowed {checks.BOUND:.3g}"
    )
