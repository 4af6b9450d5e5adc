"""What the options of `python -m ragged_moe bench gemm`, `layer` and `experts` ask for, and what is wrong with them."""

import functools
from collections.abc import Callable
from pathlib import Path

import click
import torch

from ragged_moe.layers.signatures import HOPPER
from ragged_moe.measure import humming, marlin
from ragged_moe.measure.contest import Peers
from ragged_moe.measure.timing import need_gpu

FORMATS = "fp8", "nvfp4", "mxfp4"


class Numbers(click.ParamType):
    """Numbers from `least` on, separated by commas."""

    name = "numbers"

    def __init__(self, least: int):
        self.least = least

    def convert(self, value: str, param, ctx) -> list[int]:
        """Return the numbers; click's error if a part is no number, or too small."""
        texts = value.split(",")
        if not all(x.isdecimal() and int(x) >= self.least for x in texts):
            self.fail(f"{value!r} must be numbers from {self.least} on, separated by commas", param, ctx)
        return [int(x) for x in texts]


def given(*options: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """Return what gives a command all of these options."""
    return lambda command: functools.reduce(lambda of, option: option(of), reversed(options), command)


def contest_options(repeats: int) -> Callable[[Callable], Callable]:
    """Return what gives a command the options that all contests have. repeats: the default."""
    return given(
        click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there."),
        click.option("--repeats", type=click.IntRange(1), default=repeats, show_default=True,
                     help="Timings at most, of 15 calls each."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the order of contestants."),
    )  # fmt: skip


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
format_options = given(  # of which format weights are, and which peers take part
    click.option("--format", "kind", type=click.Choice(FORMATS), default="fp8", show_default=True,
                 help="Of the weights; MXFP4: W4A16 beside W4A8, on Hopper."),
    click.option("--peers/--no-peers", default=None, help="FP8: those that are installed, by default, or none."),
    click.option("--marlin", type=FOLDER, help="NVFP4: an unzipped sglang 0.5.23 wheel, whose Marlin is the peer."),
    click.option("--humming", type=FOLDER, help="NVFP4: the folder of humming-kernels 0.1.19, a peer, too."),
)  # fmt: skip


def chosen_peers(kind: str, peers: bool | None, of_marlin: Path | None, of_humming: Path | None) -> Peers:
    """Return who takes part; click's errors for what does not fit the format or this GPU.

    peers: --peers or --no-peers, None if neither was given. of_marlin, of_humming: the folders of --marlin, --humming.
    """
    if peers is not None and kind != "fp8":
        raise click.UsageError("--peers and --no-peers are of --format fp8")
    of_nvfp4 = [
        loaded(kind, *of) for of in (("--marlin", marlin.load, of_marlin), ("--humming", humming.load, of_humming))
    ]
    need_gpu()
    if kind == "mxfp4" and torch.cuda.get_device_capability() != HOPPER:
        raise click.ClickException(f"--format mxfp4 needs a Hopper GPU: this is a {torch.cuda.get_device_name()}")
    return Peers(kind == "fp8" and peers is not False, *of_nvfp4)


def loaded(kind: str, option: str, load: Callable[[Path], Callable], folder: Path | None) -> Callable | None:
    """Load a peer from the folder that an option names, None without it; click's errors."""
    if folder is None:
        return None
    if kind != "nvfp4":
        raise click.UsageError(f"{option} is a peer of --format nvfp4")
    try:
        return load(folder)
    except (ValueError, ImportError) as error:
        raise click.UsageError(f"{option}: {error}") from error
