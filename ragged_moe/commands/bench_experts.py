"""python -m ragged_moe bench experts: ragged_moe.experts and ragged_moe.batched_experts at models' sizes, and
their peers, on this GPU."""

from ragged_moe.measure.experts import main

__all__ = ["main"]
