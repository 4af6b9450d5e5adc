"""What the options of ragged_moe bench gemm and ragged_moe bench layer ask for, and what is wrong
with them."""

from pathlib import Path

import click
import torch

from ragged_moe.layers.signatures import HOPPER
from ragged_moe.measure.marlin import load_marlin
from ragged_moe.measure.timing import need_gpu

FORMATS = "fp8", "nvfp4", "mxfp4"


class Numbers(click.ParamType):
    """Numbers from `least` on, separated by commas."""

    name = "numbers"

    def __init__(self, least: int):
        self.least = least

    def convert(self, value: str, param, ctx) -> list[int]:
        """Return the numbers; click's error if one is none, or less."""
        texts = value.split(",")
        if not all(x.isdecimal() and int(x) >= self.least for x in texts):
            self.fail(f"{value!r} must be numbers from {self.least} on, separated by commas", param, ctx)
        return [int(x) for x in texts]


def contestants(kind: str, peers: bool | None, marlin: Path | None) -> tuple:
    """What a measurement of this format takes beside its problems; click's errors for what does not fit the format or
    this GPU. peers: --peers or --no-peers, None if neither was given.
    """
    if peers is not None and kind != "fp8":
        raise click.UsageError("--peers and --no-peers are of --format fp8")
    gemm = load_marlin(kind, marlin)
    need_gpu()
    if kind == "mxfp4" and torch.cuda.get_device_capability() != HOPPER:
        raise click.ClickException(f"--format mxfp4 needs a Hopper GPU: this is a {torch.cuda.get_device_name()}")
    return {"fp8": (peers is not False,), "nvfp4": (gemm,), "mxfp4": ()}[kind]
