"""python -m ragged_moe bench experts: ragged_moe.experts and ragged_moe.batched_experts at models' sizes, and
their peers, on this GPU."""

import random
from pathlib import Path

import click
import torch

from ragged_moe.measure.contest import timed_rows, told
from ragged_moe.measure.experts import DEEPSEEK, LAWS, MODELS, OF_LAYER, OF_ZIPF, TOKENS, Experts, SGLang, experts_table
from ragged_moe.measure.options import Numbers, contest_options
from ragged_moe.measure.timing import need_gpu, record
from ragged_moe.reference.layer import draw


@click.command()
@contest_options(repeats=9)
@click.option("--tokens", type=Numbers(1), help=f"Values of T, instead of {TOKENS}, of DeepSeek-V3 {OF_LAYER}.")
@click.option("--model", default="", help="Only models that have this in their name.")
@click.option("--peers/--no-peers", default=True, show_default=True)
@click.option("--sglang", "folder", type=click.Path(path_type=Path), help="Where sglang's 0.5.23 wheel was unzipped.")
def main(
    file: Path | None, repeats: int, seed: int, tokens: list[int] | None, model: str, peers: bool, folder: Path | None
) -> None:
    """Time the experts of models, and DeepGEMM's grouped GEMMs if sgl-deep-gemm is installed, on this GPU."""
    need_gpu()
    rng = random.Random(seed)

    def rows():
        for name, sizes in ((name, sizes) for name, sizes in MODELS.items() if model in name):
            weights = draw(sizes, 1, device=f"cuda:{torch.cuda.current_device()}").tensors()[4:]
            try:
                sglang = SGLang(folder, weights) if folder else None
            except (ValueError, ImportError) as error:
                raise click.UsageError(f"--sglang: {error}") from error
            uniform = tokens or (OF_LAYER if sizes == DEEPSEEK else TOKENS)
            problems = [(t, law) for law in LAWS for t in (OF_ZIPF if LAWS[law] and not tokens else uniform)]
            yield from timed_rows(Experts(name, weights, peers, sglang), problems, repeats, rng)

    found = told(rows(), experts_table, file, lambda found: record(repeats, found))
    click.echo(f"\n{torch.cuda.get_device_name()}, us\n\n{experts_table(found)}")
