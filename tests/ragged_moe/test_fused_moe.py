"""The peer that is SGLang's fused MoE: the lists of its rows, its configs, and which of them are left out."""

import json
import types

import pytest
import torch

from ragged_moe.measure import experts
from ragged_moe.measure.contest import Contestant

fused_moe = pytest.importorskip("ragged_moe.measure.fused_moe", reason="needs Triton", exc_type=ImportError)
GPU = "NVIDIA H100 80GB HBM3"


def test_lists_are_by_expert_and_padded():
    """First entries of no expert, then each expert's in their order; a tile has rows of one expert."""
    ids = torch.tensor([[2, 0, -1], [2, 1, 2], [-1, 2, 0], [4, 0, 2]])
    order, of_tiles, total = fused_moe.lists(ids, 5, 4)
    flat = ids.flatten().tolist()
    expected = []
    for expert in range(-1, 5):
        mine = [i for i, x in enumerate(flat) if x == expert]
        expected += mine + [len(flat)] * (-len(mine) % 4)
    assert order[: int(total)].tolist() == expected and (order[int(total) :] == len(flat)).all()
    assert of_tiles[: int(total) // 4].tolist() == [-1, 0, 1, 2, 2, 4] and len(order) >= len(of_tiles) * 4 - 3


def test_configs_are_this_gpus(tmp_path, monkeypatch):
    """Those for the number of tokens next to the one asked for; GEMM2's from a file of its own if there is one."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
    folder = tmp_path / "sglang" / fused_moe.CONFIGS / "triton_3_6_0"
    folder.mkdir(parents=True)
    few, many = "E=8,N=128", "E=8,N=256"
    for gpu, name, ends in ((GPU, few, ""), (GPU, many, ""), (GPU, many, "_down"), ("A100", few, "")):
        file = f"{name},device_name={gpu.replace(' ', '_')},dtype=fp8_w8a8,block_shape=[128, 128]{ends}.json"
        (folder / file).write_text(json.dumps({str(m): {"of": f"{gpu} {name}{ends} {m}"} for m in (1, 64, 512)}))
    first, second, *found = fused_moe.configs(tmp_path, 100)
    assert first[0]["BLOCK_SIZE_M"] == 64 and second[0]["BLOCK_SIZE_M"] == 16
    assert [tuple(x["of"] for x in pair) for pair in found] == [
        (f"{GPU} E=8,N=128 64",) * 2, (f"{GPU} E=8,N=256 64", f"{GPU} E=8,N=256_down 64")
    ]  # fmt: skip


def test_a_folder_without_sglang(tmp_path):
    """Nor is one taken without the configs: the peer would be slower than it is."""
    for name in fused_moe.NEEDED:
        with pytest.raises(ValueError, match=f"has no {name}, as sglang"):
            fused_moe.load(tmp_path)
        (tmp_path / name).mkdir(parents=True)


def test_configs_that_are_wrong_are_left_out(monkeypatch):
    """The fastest is 1.3 of the norm away, the next does not compile; the third is taken."""
    us = {"wrong": 1, "broken": 2, "right": 3, "slow": 4}
    monkeypatch.setattr(fused_moe, "configs", lambda *_: [(name, name) for name in us])
    monkeypatch.setattr(fused_moe, "captured", lambda calls: calls)
    monkeypatch.setattr(fused_moe, "elapsed", lambda calls, *_: us[calls[0].pair[0]])
    monkeypatch.setattr(experts, "flushed", lambda: None)

    class Set:
        tokens, out = 3, torch.ones(3, 4)

        def fused_moe(self, sglang, pair):
            def call():
                if pair[0] == "broken":
                    raise RuntimeError("too many indices")

            call.pair = pair
            return Contestant(call, lambda: self.out * (2.3 if pair[0] == "wrong" else 1.01))

    sglang = types.SimpleNamespace(folder=None, of=fused_moe)
    made, found = experts.SGLang.fastest(sglang, [Set()])
    assert found["configs"] == ("right", "right") and len(made) == 1 and abs(found["difference"] - 0.01) < 1e-5
    us = dict.fromkeys(("wrong", "broken"), 1)
    with pytest.raises(ValueError, match="none of its configs compiles, and is right"):
        experts.SGLang.fastest(sglang, [Set()])
