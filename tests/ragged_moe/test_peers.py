"""`check peers` without peers: a package and tests of our own in their places, and what is said of each test.

What peers' real tests say is on ragged_moe/PEERS.md.
"""

import json
import sys
from pathlib import Path

import pytest

from ragged_moe.checks.peers.stand_ins import Absent, Finder, NotServed
from tests import forked

ROOT = Path(__file__).parents[2]
ENUMS = """
from enum import IntEnum
from .api_logging import flashinfer_api

class ActivationType(IntEnum):
    Geglu, Swiglu = 4, 3
"""
TESTS = """
import pytest, signal, time, torch
import flashinfer.other as other
from flashinfer.cute_dsl import is_cute_dsl_available
from flashinfer.fused_moe import cutlass_fused_moe
from flashinfer.fused_moe.core import ActivationType

LEVEL = other.level("x") | other.LOWEST  # harmless here
if other.count() < 4 or not other:
    class Config(other.Base): ...


@other.decorated
def helper(): ...


def call(w13=2, **options):
    x, w = torch.ones(3, 128).half(), torch.ones(2, 256, 128).half()
    ids = torch.zeros(3, 1).int()
    return cutlass_fused_moe(x, ids, torch.ones(3, 1), w * w13, w[:, :128], x.dtype, None, **options)[0]

@pytest.mark.parametrize("m", [4, 2, 3, 1000])
def test_passes(m):
    assert call().shape == (3, 128) and call().dtype is torch.float16

def test_fails():
    assert call().sum() == 0

def test_is_refused():
    call(activation_type=ActivationType.Geglu)

def test_expects_a_refusal():
    with pytest.raises(Exception):
        call(activation_type=ActivationType.Geglu)

def test_calls_what_is_not_served():
    with pytest.raises(Exception):
        other.quantise(1)

def test_asks_what_is_not_served():
    call()
    assert other.available or True

@pytest.mark.skipif(torch.cuda.get_device_capability() == (9, 0), reason="Blackwell alone")
def test_skips(): ...

def test_calls_nothing(): ...

@pytest.mark.skipif(not is_cute_dsl_available(), reason="CuteDSL not available")
def test_has_cute_dsl():
    other.cute_dsl_fused_moe()

def test_takes_long():
    call()
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    signal.setitimer(signal.ITIMER_REAL, 0.01)  # the rest of the 60 s
    try:
        time.sleep(100)
    except BaseException:
        raise RuntimeError  # as a launch that is interrupted

def test_needs_something():
    torch.ops.flashinfer.kernel(1)
"""
RUN = """
import sys, torch, ragged_moe
torch.cuda.get_device_capability = lambda *_: (9, 0)
def experts(hidden, *operands, **options):
    assert hidden.dtype is torch.bfloat16 and options["num_experts"] == 2
    return torch.ones_like(hidden)
ragged_moe.experts = experts
from ragged_moe.checks.peers import suite
suite.main(sys.argv[1:], standalone_mode=False)
"""
MUST = {
    "test_passes": ("passes", "experts"), "test_fails": ("fails", "AssertionError"),
    "test_is_refused": ("refused", "the activation Geglu"),
    "test_expects_a_refusal": ("not applicable", "it calls nothing that is served here"),
    "test_calls_what_is_not_served": ("not applicable", "it calls flashinfer.other.quantise"),
    "test_asks_what_is_not_served": ("not applicable", "it calls flashinfer.other.available"),
    "test_skips": ("not applicable", "it says: Blackwell alone"),
    "test_calls_nothing": ("not applicable", "it calls nothing that is served here"),
    "test_has_cute_dsl": ("not applicable", "it calls flashinfer.other.cute_dsl_fused_moe"),
    "test_takes_long": ("not applicable", "it takes more than 60 s here"),
    "test_needs_something": ("not applicable", "it needs what is not here: AttributeError"),
}  # fmt: skip


def test_what_is_said_of_each_test(tmp_path):
    """Of one that passes the smallest parameter and another; of a file that cannot be imported its name."""
    for name, text in (("flashinfer/tllm_enums.py", ENUMS), ("tests/moe/test_them.py", TESTS),
                       ("tests/moe/test_broken.py", "import no_such_module\n")):  # fmt: skip
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_text(text)
    table = tmp_path / "table.json"
    options = ["--each", "2", "--most", "100", "--seconds", "60", "--table", str(table)]
    done = forked.module("-c", RUN, "flashinfer", tmp_path, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["test"].rpartition("::")[2]: row for row in json.loads(table.read_text())}
    broken = rows.pop("tests/moe/test_broken.py")
    assert "No module named 'no_such_module'" in broken["why"] and rows.keys() == MUST.keys()
    for name, (outcome, why) in MUST.items():
        assert (rows[name]["outcome"], rows[name]["why"][: len(why)]) == (outcome, why), rows[name]
    assert rows["test_passes"]["of"] == 4 and rows["test_passes"]["run"] == {"passes": 2}


def test_sources_of_a_peer(tmp_path, monkeypatch):
    """A module of its own is executed, with what is served in the place of something of it."""
    path, modules = list(sys.path), dict(sys.modules)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "own.py").write_text("from peer.other import thing\ndef add(x): return x + 1\nTEN = 10\n")
    finder = Finder(tmp_path, ("peer",), ("peer.own",), {"TEN": 11})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import peer.own as own

    monkeypatch.delitem(sys.modules, "peer.own")
    assert own.add(1) == 2 and own.TEN == 11 and own.thing.name == "peer.other.thing"
    assert sys.path == path and set(modules) <= set(sys.modules)
    for name in ("peer", "peer.other"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("use", [lambda x: x(), lambda x: bool(x), lambda x: list(x), lambda x: x[0], lambda x: x.y()])
def test_a_placeholder_is_refused_in_a_test_alone(monkeypatch, use):
    use(Absent("peer.thing"))
    monkeypatch.setattr(Absent, "in_test", True)
    with pytest.raises(NotServed, match="peer.thing"):
        use(Absent("peer.thing"))
