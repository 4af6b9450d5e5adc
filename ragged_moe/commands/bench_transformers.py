"""python -m ragged_moe bench transformers: transformers' FP8 experts and ragged_moe.experts in a random model,
on this GPU."""

from ragged_moe.measure.transformers import main

__all__ = ["main"]
