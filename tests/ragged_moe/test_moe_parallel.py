"""ragged_moe.parallel.expert_parallel: two emulated GPUs compute what one would, say who is lost, and what cannot be is
refused."""

from pathlib import Path

import pytest
import torch.distributed as dist

from ragged_moe.parallel import expert_parallel
from tests import forked

HERE = Path(__file__).parent


@pytest.mark.slow
def test_two_ranks():
    """Uneven tokens, entries of no expert, and calls in the same memory, without a finding; then a rank ends."""
    options = ["--machine", "h200", "--devices", "2"]
    done = forked.emulated_gpu("run", *options, HERE / "two_ranks.py")
    lost = "ragged_moe.parallel, rank 0: rank 1 has not sent its tokens within 2e-05 s"
    assert done.stdout.splitlines() == ["right", "right", lost], done.stdout + done.stderr[-3000:]
    assert done.stderr.count("emulated-gpu: trap: the kernel executed trap") == 1 and ", 1 finding" in done.stderr


WRONG = {
    "num_experts is 0, but must be an int that is at least 1": {"num_experts": 0},
    "max_tokens is 1.5, but must be an int that is at least 1": {"max_tokens": 1.5},
    "num_experts is True, but must be an int that is at least 1": {"num_experts": True},
    "num_experts is 9, but must be a multiple of the group's 2 ranks": {"num_experts": 9},
    "max_tokens is 40000, but must be at most 32768 for 2 ranks": {"max_tokens": 40000},
    "hidden: dimension H is 100, but must be a multiple of 128": {"hidden_size": 100},
    "topk_ids: dimension k is 17, but must be from 1 to 16": {"top_k": 17},
    "topk_ids: dimension k is True, but must be from 1 to 16": {"top_k": True},
    "timeout is True, but must be a finite number above 0": {"timeout": True},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_refused(monkeypatch, sentence):
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    arguments = {"num_experts": 8, "max_tokens": 16, "hidden_size": 256, "top_k": 4} | WRONG[sentence]
    with pytest.raises(ValueError) as refused:
        expert_parallel.ExpertParallel(None, **arguments)
    assert str(refused.value).startswith(sentence)
