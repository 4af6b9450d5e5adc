"""Every cheating or broken submission in tests/cheats fails with its own reason, and honest ones pass.

The second line of a cheat says what the judge's reason has to match. All of them work on tensors of the host, so that
the corpus runs in a minute; the judge knows no difference.
"""

import re
from pathlib import Path

import pytest

CHEATS = sorted((Path(__file__).parents[1] / "cheats").glob("*.py"))
SIZES = ((40, 24), (48, 32), (128, 64))  # m, n, k of two groups


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda path: path.stem)
def test_cheat_is_caught(cheat, judged):
    reason = re.search(r"^# caught: (.*)$", cheat.read_text(), re.MULTILINE)[1]
    hangs = cheat.stem.startswith("hangs")
    (verdict,) = judged(cheat, SIZES, timeout=12 if hangs else 60, calls=4)
    assert verdict.status == "fail"
    assert re.search(reason, verdict.reason), verdict.reason


def test_corpus_is_complete():
    assert len(CHEATS) >= 15


def test_the_reference_itself_passes(honest, judged):
    verdicts = judged(honest, SIZES, ((0, 5), (16, 16), (64, 128)), ((1,), (16,), (64,)))
    assert [(verdict.status, verdict.reason, verdict.mismatches) for verdict in verdicts] == [("pass", "", 0)] * 3


def test_torch_finds_a_gpu(tmp_path, judged):
    """A submission may use torch as on a GPU, as the task's own template does: its inputs are on `cuda`, as is what it
    makes there."""
    submission = tmp_path / "submission.py"
    submission.write_text(
        "import torch\nfrom reference import ref_kernel\n"
        "def custom_kernel(data):\n"
        "    assert torch.cuda.get_device_capability() == (10, 0)\n"
        "    tensors = [t for part in (data[0], data[2]) for group in part for t in group]\n"
        "    assert all(t.device == torch.device('cuda', 0) for t in tensors)\n"
        "    table = torch.tensor([[t.data_ptr() for t in group] for group in data[0]], device='cuda')\n"
        "    assert table.is_cuda and table.cpu().tolist()[-1][2] == data[0][-1][2].data_ptr()\n"
        "    return ref_kernel(data)\n"
    )
    (verdict,) = judged(submission, SIZES)
    assert (verdict.status, verdict.reason) == ("pass", "")


def test_a_failed_case_leaves_the_next_one_alone(tmp_path, judged):
    """Right for one group, a crash for two, and a new process for each case after a crash."""
    submission = tmp_path / "submission.py"
    submission.write_text(
        "import os\nfrom reference import ref_kernel\n"
        "def custom_kernel(data):\n    return ref_kernel(data) if len(data[3]) == 1 else os._exit(3)\n"
    )
    one = ((8,), (16,), (64,))
    verdicts = judged(submission, one, SIZES, one)
    assert [verdict.status for verdict in verdicts] == ["pass", "fail", "pass"]
    assert "exited with code 3" in verdicts[1].reason
