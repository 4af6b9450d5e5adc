"""Every fault planted in the kernel is caught by what `python eval.py test` runs by default, and for the right reason.

A fault is the real submission.py with one or two pieces of its text replaced. Each piece has to occur exactly once: a
fault whose text has changed fails here until it is planted again. `evaluation.judge.judge` runs the faulty file.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import task
from evaluation.judge import judge as judging
from tests.thorough import all_but

SUBMISSION = Path(__file__).parents[2] / "submission.py"
DEFAULT = "DEFAULT = Config(gran=32)"

# m, n, k of the groups
SMALL = ((32,), (128,), (64,))
PADDED = ((20,), (128,), (64,))  # fewer tokens than the tile has
WIDE = ((64,), (128,), (64,))  # tokens for both CTAs of a pair
WIDE_K = ((32,), (128,), (320,))  # two ring stages, the second one partly filled
RING = ((32,), (128,), (1024,))  # four ring stages
ROWS = ((32,), (640,), (64,))  # 320 weight rows for each CTA of a pair
SHIFTED = ((384,), (128,), (64,))  # the second of two tiles of 192 tokens begins inside a block of scales
LONG = ((512,), (128,), (64,))  # two token tiles that share tensor memory columns
TILES = ((32,) * 4, (256,) * 4, (64,) * 4)  # four tiles of 128 weight rows for each CTA of a pair
WIDE_TILES = ((192,) * 4, (256,) * 4, (64,) * 4)
RING_TILES = ((32,) * 4, (256,) * 4, (512,) * 4)
TWO_GROUPS = ((32, 32), (128, 128), (64, 64))

PAIR = "gran=32, sms=2"  # one pair of CTAs does everything
TWO_PAIRS = "gran=32, sms=4"
SHORT_RING = PAIR + ", stages=2"
WAVES = PAIR + ", waves=3"
SHARERS = "sharers=2, sms=4"  # two pairs that share weights do everything
TOKEN_SHARERS = "token_sharers=2, sms=4"
SHARERS_SHORT_RING = SHARERS + ", stages=2"

WRONG = "group [01]: .* elements differ"
UNWRITTEN = "elements differ, .*never written"
HANG = "hang: .*mbarrier.try_wait.*waits for mbarrier"
MORE_BYTES = "mbarrier: more bytes have arrived than the phase expects"
FULL = "race: tcgen05.cp .* shared memory .* TMA load .* (has not finished writing|may still write)"
BEYOND = "out-of-bounds: .* past the end of tensor"

ACC_EMPTY = "mbarrier_arrive(cta.leader + ACC_EMPTY + 8 * acc.index)"
ACC_FULL = "mbarrier_wait(cta.header + ACC_FULL + 8 * acc.index, acc.phase)\n"
FULL_WAIT = "mbarrier_wait(cta.header + FULL + 8 * slot.index, slot.phase)"
EMPTY = "mbarrier_wait(cta.header + EMPTY + 8 * slot.index, slot.phase)\n                    mbarrier_expect"
CLUSTER = "(1 << self.config.cluster) - 1"
COMMIT = f"mma_commit(cta.header + EMPTY + 8 * slot.index, {CLUSTER})"
ADVANCE = "\n                slot = PipelineState(index, phase)"
INIT_FENCE = "cute.arch.mbarrier_init_fence()"


class Fault(NamedTuple):
    """`old` becomes `new`. `reason`: a pattern of the judge's reason. `config`: of every problem, else as it is."""

    name: str
    old: str
    new: str
    reason: str
    sizes: tuple = SMALL
    config: str = ""
    also: tuple[tuple[str, str], ...] = ()  # more replacements

    @property
    def edits(self) -> list[tuple[str, str]]:
        return [(self.old, self.new), *self.also, *with_config(self.config)]


def with_config(config: str) -> list[tuple[str, str]]:
    return [(DEFAULT, f"DEFAULT = Config({config})")] if config else []


SCALES = [
    Fault("scale column of another K step", "now[4] + token_shift", "sft_cols + token_shift", WRONG, WIDE_K),
    Fault(
        "scale column not shifted with the token",
        "now[4] + token_shift",
        "now[4]",
        WRONG,
        SHIFTED,
        PAIR + ", tokens=192",
    ),
    Fault("SFA and SFB swapped", "[$4], [$10], add", "[$10], [$4], add", WRONG),
    Fault(
        "second block of scales not copied",
        "two_token_atoms = select((tile.token & 127) + tokens > 128, 1, 0)",
        "two_token_atoms = select((tile.token & 127) + tokens > 512, 1, 0)",
        WRONG,
        LONG,
    ),
]
BARRIERS = [
    Fault(
        "MMA warp begins in the wrong phase",
        "place, slot, acc = cta.start, PipelineState(Int32(0), Int32(0))",
        "place, slot, acc = cta.start, PipelineState(Int32(0), Int32(1))",
        FULL,
    ),
    Fault(
        "producers begin in the wrong phase",
        "slot, first = PipelineState(Int32(0), Int32(1))",
        "slot, first = PipelineState(Int32(0), Int32(0))",
        HANG,
    ),
    Fault(
        "phase not flipped where the ring wraps",
        COMMIT + ADVANCE,
        COMMIT + ADVANCE.replace("phase", "slot.phase"),
        FULL,
        RING,
        SHORT_RING,
    ),
    Fault("no wait for a full stage", FULL_WAIT, "pass", FULL),
    Fault(
        "no wait for an empty stage",
        EMPTY,
        "mbarrier_expect",
        "race: TMA load .* of shared memory .* that .* is still writing",
        RING,
        SHORT_RING,
    ),
    Fault("no wait for a full accumulator", ACC_FULL, "pass\n", "tmem-race: read of .* tcgen05.mma .* may still write"),
    Fault(
        "no wait for an empty accumulator",
        "mbarrier_wait(cta.header + ACC_EMPTY + 8 * acc.index, acc.phase)\n            if",
        "if",
        "tmem-race: tcgen05.mma of warp 4 ",
        WIDE_TILES,
        PAIR,
    ),
    Fault(
        "no wait for the accumulator that overlaps",
        "if previous + tokens > ACC_COLS:",
        "if tokens > ACC_COLS:",
        "tmem-race: read of tensor memory at .* which tcgen05.mma of warp 4 ",
        LONG,
        PAIR,
    ),
    Fault("stage not released", COMMIT, "pass", HANG),
    Fault(
        "no commit of the accumulator",
        "mma_commit(cta.header + ACC_FULL + 8 * acc.index, 3 << cta.sharer * PAIR)",
        "pass",
        HANG,
    ),
    Fault("commit reaches one CTA of the pair", COMMIT, COMMIT.replace(CLUSTER, "1"), HANG),
    Fault("accumulator not released", ACC_EMPTY, "pass", HANG),
    Fault(
        "accumulator released before it is read",
        ACC_FULL,
        f"{ACC_FULL}            if lane == 0:\n                {ACC_EMPTY}\n",
        "tmem-race: tcgen05.mma of warp 4 ",
        WIDE_TILES,
        PAIR,
        also=((f"{ACC_EMPTY}\n            acc =", "pass\n            acc ="),),
    ),
    Fault("bytes of one CTA expected", "PAIR * (1 if box.mask is None else 2)", "1", "race: tcgen05.cp of warp 4 "),
    Fault(
        "full barrier counts one warp",
        "mbarrier_init(header + FULL + 8 * i, 2)",
        "mbarrier_init(header + FULL + 8 * i, 1)",
        "mbarrier: .* arrival of 1 with 0 of 1 pending",
    ),
    Fault(
        "accumulator barrier counts one CTA",
        "mbarrier_init(header + ACC_EMPTY + 8 * i, PAIR * config.epilogue_warps)",
        "mbarrier_init(header + ACC_EMPTY + 8 * i, config.epilogue_warps)",
        HANG,
        RING_TILES,
        SHORT_RING,
    ),
    Fault(
        "no fence.mbarrier_init",
        f"{INIT_FENCE}\n            self.barriers_ready()\n            self.tmem_ready()",
        "pass\n            self.barriers_ready()\n            self.tmem_ready()",
        "used by a warp that has not waited for its init by another",
    ),
    Fault(
        "one accumulator never said to be empty",
        "for i in range_constexpr(2):\n                mbarrier_arrive(cta.leader",
        "for i in range_constexpr(1):\n                mbarrier_arrive(cta.leader",
        HANG,
    ),
    Fault(
        "epilogue does not wait for tensor memory",
        "self.barriers_ready()\n            self.tmem_ready()",
        "self.barriers_ready()",
        "uninitialized-read: read of shared memory .* tcgen05.alloc",
    ),
    Fault(
        "roles begin before the prologue has ended",
        "cute.arch.sync_threads()\n        cute.arch.cluster_arrive_relaxed()\n        cute.arch.cluster_wait()",
        "pass",
        "cluster: access to CTA .* before any barrier of the cluster",
    ),
]
EPILOGUE = [
    Fault(
        "no proxy fence", 'cute.arch.fence_proxy("async.shared", space="cta")', "pass", "missing-proxy-fence: TMA store"
    ),
    Fault(
        "store box reused while it is read",
        "cute.arch.cp_async_bulk_wait_group(config.store_boxes - 1, read=True)",
        "pass",
        "race: write of shared memory .* that TMA store .* still reads",
        WIDE,
    ),
    Fault(
        "accumulator released while columns are loaded",
        "                tmem_load_wait()\n            tcgen05_fence_before()",
        "            tcgen05_fence_before()",
        "tmem-race: (tcgen05.mma .* which tcgen05.ld .* may still read|registers of tcgen05.ld are read)",
        LONG,
        PAIR,
    ),
    Fault(
        "accumulator read a column off",
        "d = tmem + (quarter << 21)",
        "d = tmem + 1 + (quarter << 21)",
        "tmem-uninitialised: ",
    ),
    Fault(
        "accumulator read in another warp's lanes",
        "d = tmem + (quarter << 21)",
        "d = tmem + (quarter << 20)",
        "tmem-lane-access: ",
        TILES,
        PAIR,
    ),
    Fault(
        "output not bounded by M", "output_tensormap(c, m, n, 32)", "output_tensormap(c, m + 1, n, 32)", BEYOND, PADDED
    ),
    Fault(
        "output not bounded by N",
        "output_tensormap(c, m, n, 32)",
        "output_tensormap(c, m, n + 16, 32)",
        BEYOND,
        ((32,), (16,), (64,)),
    ),
]
DESCRIPTORS = [
    Fault("swizzle of the matrix descriptor", "matrix_descriptor(swizzle=2,", "matrix_descriptor(swizzle=4,", WRONG),
    Fault(
        "swizzle of the tensormap",
        "swizzled(128, Float4E2M1FN, box)",
        "swizzled(64, Float4E2M1FN, box)",
        HANG,
    ),
    Fault("N of the instruction", "tokens >> 3 << 17", "tokens >> 4 << 17", "tmem-uninitialised: tcgen05.ld", WIDE),
    Fault("M of the instruction", "PAIR * TILE_M >> 4 << 24", "TILE_M >> 4 << 24", "unsupported: block-scaled 128x"),
    Fault(
        "tensormap of another group",
        "self.tensormap(cta.params, operand + i, tile.group)",
        "self.tensormap(cta.params, operand + i, 0)",
        WRONG,
        TWO_GROUPS,
    ),
]
TILING = [
    Fault(
        "origins of boxes off by one",
        "lambda step: (step * TILE_K + x, y)",
        "lambda step: (step * TILE_K + x, y + 1)",
        WRONG,
    ),
    Fault("origin off by a box", "tensormap, at(y + first)", "tensormap, at(y + first + size)", WRONG),
    Fault("both CTAs load the same tokens", "tile.token + cta.rank *", "tile.token + 0 *", WRONG, WIDE),
    Fault("K tail dropped", "rows, m, k, Place(", "rows, m, k & -TILE_K, Place(", WRONG, WIDE_K),
    Fault(
        "first K block accumulates",
        "const_expr(j > 0) else step",
        "const_expr(j > 0) else Int32(1)",
        "tmem-uninitialised: tcgen05.mma accumulator",
    ),
    Fault(
        "last rows of a range left out",
        "Int32(end) & 0xFFFFFF, limit)",
        "(Int32(end) & 0xFFFFFF) - 32, limit)",
        UNWRITTEN,
        ROWS,
        TWO_PAIRS,
    ),
    Fault(
        "every other wave left out",
        "select(ended, word + 2,",
        "select(ended, word + 4,",
        "out-of-bounds: ld.param",
        TILES,
        WAVES,
    ),
    Fault(
        "a wave after the last",
        "(following >= end) & (position < end)",
        "following >= end",
        "out-of-bounds: ld.param",
        TILES,
        WAVES,
    ),
    Fault("last token tile left out", "following_token < m\n", "following_token + width < m\n", UNWRITTEN, LONG, PAIR),
]
SHARING = [
    Fault("multicast to one pair", "sizes[0], 5 << cta.rank", "sizes[0], 1 << cta.rank", HANG, WIDE, SHARERS),
    Fault(
        "multicast to the other CTA of the pair", "[0], 5 << cta.rank", "[0], 5 << 1 - cta.rank", WRONG, ROWS, SHARERS
    ),
    Fault(
        "stage free when one pair has read it",
        "mbarrier_init(header + EMPTY + 8 * i, config.pairs)",
        "mbarrier_init(header + EMPTY + 8 * i, 1)",
        HANG,
        RING,
        SHARERS_SHORT_RING,
    ),
    Fault(
        "commit reaches one pair",
        COMMIT,
        COMMIT.replace(CLUSTER, "3 << cta.sharer * PAIR"),
        HANG,
        RING,
        SHARERS_SHORT_RING,
    ),
    Fault("both pairs load the same rows", "y + cta.sharer * size", "y", WRONG, WIDE, SHARERS),
    Fault("both pairs load the same scales", "row_at(y >> 7, half >> 3)", "row_at(y >> 7)", WRONG, WIDE_K, SHARERS),
    Fault(
        "both pairs take the same tokens",
        "token = token + cta.sharer * width",
        "pass",
        "race: write of tensor.* which TMA store of warp 0 ",
        WIDE,
        SHARERS,
    ),
    Fault(
        "bytes of one sharer expected",
        "(1 if box.mask is None else 2)",
        "1",
        "race: tcgen05.cp of warp 4 ",
        WIDE,
        SHARERS,
    ),
    Fault("tokens to one pair", "tile.tokens >> 2, 5 <<", "tile.tokens >> 2, 1 <<", HANG, WIDE, TOKEN_SHARERS),
    Fault("both pairs load the same tokens", "y + cta.sharer * share", "y", WRONG, WIDE, TOKEN_SHARERS),
    Fault("half of the tokens' scales", "row_at(block, of_scales >> 3)", "row_at(block)", WRONG, WIDE_K, TOKEN_SHARERS),
    Fault(
        "both pairs multiply the same rows",
        "block + self.blocks_per_pair * cta.sharer",
        "block + 0 * cta.sharer",
        "elements differ|race",
        ROWS,
        TOKEN_SHARERS,
    ),
    Fault("pair without tokens has no tile", "select(tokens > 0, tokens, 32)", "tokens", "shape 256x0", SMALL, SHARERS),
]
RESOURCES = [
    Fault(
        "tensor memory not freed",
        "tmem_dealloc(load_shared(header + TMEM_SLOT))",
        "pass",
        "tmem-leak: ",
    ),
    Fault(
        "tensor memory freed before it is read",
        "mbarrier_wait(header + ACC_READ, Int32(0))",
        "pass",
        "tmem-out-of-bounds: |tmem-race: ",
    ),
    Fault(
        "CTA ends before the other CTA of the pair has arrived",
        "mbarrier_init(header + ACC_READ, PAIR * config.epilogue_warps)",
        "mbarrier_init(header + ACC_READ, config.epilogue_warps)",
        "unfinished: CTA .* exits while the arrival of mbarrier.arrive .* at its mbarrier is under way",
        WIDE,
        PAIR,
    ),
    Fault(
        "CTA ends before its stores have read",
        "cute.arch.cp_async_bulk_wait_group(0, read=True)",
        "pass",
        "unfinished: CTA .* exits and no cp.async.bulk.wait_group has waited for TMA store",
    ),
    Fault(
        "shared memory too small",
        "max(smem, fixed + stages * stage_bytes)",
        "max(smem, stages * stage_bytes)",
        "out-of-bounds: write of shared memory",
        RING,
        SHORT_RING,
    ),
]
INPUTS = [
    Fault(
        "result stored where A lies",
        "output_tensormap(c, m, n, 32)",
        "output_tensormap(a, m, n, 32)",
        r"write-to-input: .* to tensor\[0\]\[0\]\[0\], which the kernel may only read",
        RING,
    ),
    Fault(
        "no griddepcontrol.wait",
        "wait_for_previous_kernel(condition=first)",
        "pass",
        "missing-dependency-wait: read of tensor.*, which the launch that wrote it writes and may still run",
    ),
    Fault(
        "weights loaded before griddepcontrol.wait",
        "if const_expr(self.config.pdl):  # as late",
        "if const_expr(self.config.pdl and is_last):  # as late",
        "missing-dependency-wait: read of tensor.*, before griddepcontrol.wait",
    ),
]
FAULTS = SCALES + BARRIERS + EPILOGUE + DESCRIPTORS + TILING + SHARING + RESOURCES + INPUTS
# One of each part of the kernel, and of each way to be found: wrong, unwritten, a hang, a race, a leak, no wait
KEPT = [SCALES[0], *BARRIERS[::7], EPILOGUE[0], DESCRIPTORS[1], TILING[5], SHARING[0], RESOURCES[0], INPUTS[1]]

# What the emulator does not model and therefore cannot catch. One that is caught some day belongs among the others.
BLIND_SPOTS = [
    Fault(
        "no tcgen05.fence",
        FULL_WAIT + "\n                tcgen05_fence_after()\n",
        FULL_WAIT + "\n",
        "",
    ),
]


def plant(edits: list[tuple[str, str]], directory: Path) -> Path:
    """submission.py with these replacements."""
    text = SUBMISSION.read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"occurs {text.count(old)} times, plant the fault anew: {old!r}"
        text = text.replace(old, new)
    path = directory / "submission.py"
    path.write_text(text)
    return path


def judge(path: Path, *problems):
    """The verdicts of `eval.py test --jobs 1 --secret 1`, one for each (m, n, k)."""
    cases = [{"m": m, "n": n, "k": k, "g": len(m), "seed": 1} for m, n, k in problems]
    options = judging.Options(str(path), "emulated", jobs=1, strict=True, timeout=60, secret=1)
    return judging.judge([task.TestCase(task.format_case(case), case) for case in cases], options)


@pytest.mark.parametrize("fault", all_but(KEPT, FAULTS), ids=lambda fault: fault.name)
def test_fault_is_caught(fault, tmp_path):
    (verdict,) = judge(plant(fault.edits, tmp_path), fault.sizes)
    assert verdict.status == "fail"
    assert re.search(fault.reason, verdict.reason, re.DOTALL), verdict.reason


@pytest.mark.parametrize("fault", BLIND_SPOTS, ids=lambda fault: fault.name)
def test_blind_spots_are_still_blind(fault, tmp_path):
    (verdict,) = judge(plant(fault.edits, tmp_path), fault.sizes)
    assert verdict.status == "pass"


@pytest.mark.parametrize("config", all_but([WAVES], sorted({fault.config for fault in FAULTS})))
def test_without_a_fault_all_pass(config, tmp_path):
    """So that the verdicts above are due to the faults."""
    problems = sorted({fault.sizes for fault in FAULTS + BLIND_SPOTS if fault.config == config})
    for verdict in judge(plant(with_config(config), tmp_path), *problems):
        assert (verdict.status, verdict.reason, verdict.mismatches) == ("pass", "", 0), verdict.spec
