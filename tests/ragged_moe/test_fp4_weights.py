"""What pack_nvfp4 and pack_mxfp4 refuse, and what they take; nothing is launched."""

import pytest
import torch

from ragged_moe import pack_mxfp4, pack_nvfp4

E4M3 = torch.float8_e4m3fn
NAN, INF = float("nan"), float("inf")


def nvfp4(experts: int = 2, n: int = 128, k: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and their scales as a checkpoint has them."""
    g = torch.Generator().manual_seed(0)
    b = torch.randint(0, 256, (experts, n, k // 2), generator=g, dtype=torch.uint8)
    return b, torch.rand(experts, n, k // 16, generator=g).to(E4M3)


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("name, least", [("weight_scale_2", "not negative"), ("weight_global_scale", "above 0")])
def test_a_global_scale_that_is_none(capability, name, least):
    """Is refused before a weight is written; 0 divides nothing, but may multiply."""
    wrong = [NAN, INF, -INF, -0.5] + [0.0] * (name == "weight_global_scale")
    for x in wrong:
        b, scale = nvfp4()
        before = b.clone()
        with pytest.raises(ValueError, match=f"^{name} has a {x}, but must be finite and {least}$"):
            pack_nvfp4(b, scale, **{name: torch.tensor([1.0, x])}, capability=capability)
        assert torch.equal(b, before)
    packed = pack_nvfp4(*nvfp4(), **{name: torch.tensor([1.0, 0.5])}, capability=capability)
    assert packed[2].tolist() == ([1.0, 0.5] if name == "weight_scale_2" else [1.0, 2.0])
    assert pack_nvfp4(*nvfp4(), weight_scale_2=torch.tensor([1.0, 0.0]), capability=capability)[2][1] == 0


@pytest.mark.parametrize("shape, means", [
    ((), "all"), ((1,), "all"), ((2,), "experts"), ((2, 1), "experts"), ((2, 2), "halves"), ((1, 2), None),
    ((2, 1, 1), None), ((4,), None),
])  # fmt: skip
def test_shapes_of_a_global_scale(shape, means):
    """Two experts: [1, 2] could be of both experts, or of both halves of all."""
    given = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    if means is None:
        with pytest.raises(ValueError, match=r"^weight_scale_2 must be f32 of one element, or of shape \(2,\) or"):
            pack_nvfp4(*nvfp4(), weight_scale_2=given, capability=(9, 0))
        return
    found = pack_nvfp4(*nvfp4(), weight_scale_2=given, capability=(9, 0))[2].tolist()
    assert found == {"all": [1.0, 1.0], "experts": [1.0, 2.0], "halves": [[1.0, 2.0], [3.0, 4.0]]}[means]


def test_weights_that_lie_in_their_scales():
    b, scale = nvfp4()
    room = torch.zeros(b.nbytes + scale.nbytes, dtype=torch.uint8)
    scale = room[b.nbytes - 1 :][: scale.nbytes].view(E4M3).view(scale.shape)
    with pytest.raises(ValueError, match="^b shares memory with b_scale, but must not$"):
        pack_nvfp4(room[: b.nbytes].view(b.shape), scale, capability=(9, 0))
    scale = room[b.nbytes - 1 :][: b.nbytes // 16].view(2, 128, 2)
    for options in ({"capability": (9, 0)}, {"capability": (9, 0), "activation": "fp8"}, {"capability": (10, 0)}):
        with pytest.raises(ValueError, match="^b shares memory with b_scale, but must not$"):
            pack_mxfp4(room[: b.nbytes].view(b.shape), scale, **options)
