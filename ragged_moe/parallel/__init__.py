"""Experts over several GPUs of one node.

ExpertParallel is the face; one_sided and collectives are its two ways to exchange tokens.
"""

from ragged_moe.parallel.expert_parallel import ExpertParallel as ExpertParallel
