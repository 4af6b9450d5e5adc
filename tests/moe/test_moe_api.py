"""What grouped_gemm_fp8 refuses: one sentence with operand, dimension and rule, before anything is compiled."""

import pytest
import torch

from moe import api, grouped_gemm_fp8
from moe.check import Case
from moe.kernel import BARRIERS, SMEM, TABLES, Config
from moe.tuning import CONFIGS, FEW, FITTED, HALVED, MANY, MORE, PAIRED, SEVERAL, WIDE, choose


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    def launcher(*_):
        raise AssertionError("it was not refused")

    monkeypatch.setattr(api, "launcher", launcher)


def operands() -> dict[str, torch.Tensor]:
    names = "a", "a_scale", "b", "b_scale", "m_indptr"
    return dict(zip(names, Case((3, 5), 256, 384).draw())) | {"out": torch.empty(8, 256, dtype=torch.bfloat16)}


@pytest.mark.parametrize(
    "name, change, sentence",
    [
        ("a", lambda t: t.float(), "a has type torch.float32, but must have torch.float8_e4m3fn"),
        ("a", lambda t: t[:, :200], "a: dimension K is 200, but must be a multiple of 128 from 128 to 16777216"),
        ("a", lambda t: t[0], "a must be a tensor [total_M, K] and b a tensor [E, N, K]"),
        ("a", lambda t: t.T.contiguous().T, "a: dimension 0 has stride 1, but must have 384: it must be contiguous"),
        ("a_scale", lambda t: t.T, "a_scale: dimension 0 is 8, but must be 3"),
        ("a_scale", lambda t: t.T.contiguous().T, "a_scale: dimension 0 has stride 1, but must have 8"),
        ("a_scale", lambda t: t.double(), "a_scale has type torch.float64, but must have torch.float32"),
        ("b", lambda t: t[:, :200], "b: dimension N is 200, but must be a multiple of 128 from 128 to 16777216"),
        ("b", lambda t: t[:, :, :256], "b: dimension 2 is 256, but must be 384"),
        ("b", lambda t: t[:0], "b: dimension E is 0, but must be from 1 to 512"),
        ("b_scale", lambda t: t[:, :1], "b_scale: dimension 1 is 1, but must be 2"),
        ("b_scale", lambda t: t[0], "b_scale has 2 dimensions, but must have the 3 of (2, 2, 3)"),
        ("m_indptr", lambda t: t[:2], "m_indptr: dimension 0 is 2, but must be 3"),
        ("m_indptr", lambda t: t.long(), "m_indptr has type torch.int64, but must have torch.int32"),
        ("m_indptr", lambda t: [0, 3, 8], "m_indptr is a list, but must be a tensor"),
        ("m_indptr", lambda t: t.to("meta"), "m_indptr is on meta, but must be on cpu, as a is"),
        ("out", lambda t: t.half(), "out has type torch.float16, but must have torch.bfloat16"),
        ("out", lambda t: t[:7], "out: dimension 0 is 7, but must be 8"),
    ],
)
def test_refused(name, change, sentence):
    given = operands()
    given[name] = change(given[name])
    with pytest.raises(ValueError, match="^" + sentence.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")):
        grouped_gemm_fp8(**given)


def test_good_operands_reach_the_launch():
    """The test of the tests above: unchanged operands are not refused, also where a stride does not matter."""
    given = operands()
    given["a"] = given["a"][:1].as_strided((1, 384), (7, 1))
    given |= {"a_scale": given["a_scale"][:, :1].contiguous(), "out": given["out"][:1]}
    given["m_indptr"] = torch.tensor([0, 1, 1], dtype=torch.int32)
    for good in (operands(), given):
        with pytest.raises(AssertionError, match="it was not refused"):
            grouped_gemm_fp8(**good)


def test_no_rows_is_no_launch():
    out = grouped_gemm_fp8(*Case((0, 0), 128, 128).draw())
    assert out.shape == (0, 128) and out.dtype == torch.bfloat16


def test_scratch_memory_of_captured_launches(monkeypatch):
    """Launches that are captured together share scratch memory, and with nothing else: replays fill it."""
    launcher, capture = object.__new__(api.Launcher), [0]
    launcher.scratch, launcher.owned, launcher.index, launcher.grid = {}, {}, 0, 2
    launcher.config, launcher.device = Config(tokens=16), torch.device("cpu")
    info = lambda stream: (0, 1, capture[0], None)  # noqa: E731
    monkeypatch.setattr(api.runtime, "cudaStreamGetCaptureInfo", info)
    launcher.capturing = lambda: capture[0] > 0
    seen = []
    for capture[0] in (0, 1, 1, 2, 0):
        seen.append(launcher.addresses(7))
    eager, first, again, second, later = seen
    assert first == again and eager == later and len({eager, first, second}) == 3


@pytest.mark.parametrize("config", [*CONFIGS, Config(tokens=32), Config(tokens=64), Config(tokens=128)])
def test_shared_memory(config):
    """It fits, with a ring of as many stages as do; whatever is addressed by 1024 bytes or 16 is aligned to them."""
    assert config.smem <= SMEM < config.smem + config.stage_bytes + config.scale_bytes
    assert config.stage_bytes % 1024 == 0 and config.scale_bytes % 16 == 0 and (TABLES + BARRIERS) % 8 == 0


def test_choose():
    """Every config is chosen for some sizes; whole tiles for nearly all SMs where there are such."""
    of_layers = (4096, 7168), (7168, 2048), (7168, 7168)
    sizes = [(e * m, e, n, k) for e in (1, 2, 4, 8, 16, 32) for m in (8, 64, 128, 512) for n, k in of_layers]
    assert {choose(*x) for x in sizes} == set(CONFIGS)
    assert choose(64, 8, 4096, 7168) == FEW
    assert choose(2048, 16, 4096, 7168) == MORE  # 256 tiles of 256 rows for 132 SMs
    assert choose(896, 7, 4096, 7168) == SEVERAL  # 112
    assert choose(512, 4, 7168, 7168) == choose(1024, 8, 7168, 7168) == PAIRED  # 128 and 256 tiles of 224 rows
    assert choose(2048, 4, 7168, 7168) == FITTED  # 512
    assert choose(4096, 8, 7168, 7168) == MANY  # 1024
    assert choose(512, 4, 2560, 7168) == MORE  # 40
    assert choose(4096, 32, 7168, 2048, routed=True) == MANY and choose(2048, 32, 7168, 2048, routed=True) == SEVERAL
    assert choose(512, 32, 7168, 2048, routed=True) == SEVERAL
    assert choose(256, 32, 7168, 2048, routed=True) == choose(512, 32, 7168, 2048) == FEW
    assert choose(4096, 32, 7168, 2048) == choose(4096, 32, 4096, 7168) == SEVERAL
    assert choose(512, 4, 7168, 2048) == FITTED and FITTED.grid(132, 512, 7168, 4) == 128
    assert choose(1024, 2, 4096, 7168) == WIDE and WIDE.grid(132, 1024, 4096, 2) == 128
    assert choose(100, 1, 4096, 7168) == HALVED and HALVED.grid(132, 100, 4096, 1) == 128
    assert FEW.grid(132, 100, 16384, 1) == MORE.grid(132, 1024, 7168, 8) == HALVED.grid(132, 1, 2048, 1) == 132
