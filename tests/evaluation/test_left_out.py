"""What the judge leaves out of a timed call: results of most clusters, if no kernel can tell."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evaluation.judge.timed_calls import SHARE, some_clusters
from tests import tiny_kernel

SIZES = ((8,), (8,), (64,))  # a CTA for each row
# tests/tiny_kernel.py, whose sums are those that it has gotten out of tensor memory, plus itself, less itself
THROUGH = """bar.sync 0;
    .reg .b32 %w, %t, %l, %x, %z; .shared .b32 slots[2];
    shr.u32 %w, %r1, 5; shl.b32 %l, %w, 21; shl.b32 %w, %w, 2; mov.u32 %t, slots; add.u32 %w, %w, %t; mov.u32 %z, 1;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%w], 32; ld.shared.b32 %t, [%w]; bar.sync 0;
    add.u32 %l, %l, %t;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%l], {%z}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%x}, [%l]; tcgen05.wait::ld.sync.aligned;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 32;
    """


def written(path, more: str = "", wrong: str = "") -> str:
    """Writes a submission whose results come from the tensor core. more: what it does before it computes; wrong: behind
    that."""
    text = Path(tiny_kernel.__file__).read_text()
    for old, new in (
        ("bar.sync 0;\n", THROUGH + more + "\n"),
        ("cvt.rn.f32.s32 %f0, %r7;", f"{wrong} add.u32 %r7, %r7, %x; sub.u32 %r7, %r7, 1; cvt.rn.f32.s32 %f0, %r7;"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return str(path)


def test_some_of_the_results_are_compared(tmp_path, judged):
    """Those of a few CTAs, which differ from call to call."""
    (verdict,) = judged(written(tmp_path / "submission.py"), SIZES, timed=True, calls=1, extra=False)
    assert (verdict.status, verdict.reason, verdict.modelled.get("error")) == ("pass", "", None)
    assert verdict.modelled["compared"] == pytest.approx(1 / SHARE)
    assert "all_run" not in verdict.modelled


def test_a_kernel_that_could_tell_gains_nothing(tmp_path, judged):
    """It does less where results are left out, which it has by way of shared memory: none are then."""
    told = """st.shared.b32 [%w], %x; bar.warp.sync -1; ld.shared.b32 %x, [%w]; bar.sync 0;
        setp.eq.u32 p, %x, 0; @p bra END;"""
    (verdict,) = judged(written(tmp_path / "submission.py", told), SIZES, timed=True, calls=1, extra=False)
    assert (verdict.status, verdict.reason) == ("pass", "")
    assert verdict.modelled["compared"] == 1


def test_a_kernel_that_is_wrong_is_found_when_it_is_timed(tmp_path, judged):
    """In every second row; one of eight of these is compared in a call."""
    wrong = "and.b32 %r21, %r0, 1; setp.eq.u32 p, %r21, 1; @p add.u32 %r7, %r7, 4096;"
    cheat = written(tmp_path / "submission.py", "", wrong)
    (verdict,) = judged(cheat, SIZES, timed=True, calls=1, extra=False, secret=5)
    assert verdict.status == "fail" and "do not give its result when timed" in verdict.modelled["error"]


@pytest.mark.parametrize("grid, cluster", [((74, 2, 1), (2, 1, 1)), ((5, 1, 1), None), ((1, 1, 1), None)])
def test_each_cluster_computes_in_one_of_a_few_calls(grid, cluster):
    launch = SimpleNamespace(grid=grid, options={"cluster": cluster})
    functions = some_clusters(np.random.default_rng(1), [launch], 15)
    width = (cluster or (1,))[0]
    firsts = [(x, y, 0) for x in range(0, grid[0], width) for y in range(grid[1])]
    drawn = np.array([[function(first) for first in firsts] for function in functions])
    share = min(SHARE, len(firsts))
    assert (drawn[:share].sum(0) == 1).all() and (drawn[share : 2 * share] == drawn[:share][: 15 - share]).all()
    assert drawn.any(1).all()
