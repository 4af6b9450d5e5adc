"""Every planted bug is found under the right name; the correct kernels stay silent, and right, in every schedule."""

from pathlib import Path

import numpy as np
import pytest
import torch
from corpus.bugs import BUGS
from corpus.kernels import KERNELS

import emulated_gpu
from emulated_gpu.errors import KINDS, NOTES

SCHEDULES = range(21)
PARTIES = "race", "tmem-race", "wgmma-race", "missing-proxy-fence"  # kinds that name the line of each side
NOTED: list[emulated_gpu.EmulatorError] = []
FOUND: list[emulated_gpu.EmulatorError] = []
NEVER_WRITTEN = {  # bugs that read what nobody comes to write, not even later
    "copy: shared memory read that nothing writes", "store: more bytes stored than written",
    "product: first product accumulates", "product: cells read that the product does not write",
    "tensor_memory: cells read that nothing writes", "pair: a third of the arrivals counted",
}  # fmt: skip


def run(
    kernel, schedule: int, ptx: str = "", launches=(), read_only: str = "", checks: bool = True, **options
) -> np.ndarray:
    """The output of a kernel, or of a variant of it, whose notes are in NOTED. options: of the session."""
    options = {"strict": True, **options}
    zeros = torch.zeros(len(kernel.expected), dtype=torch.int32)
    arguments = [emulated_gpu.device_tensors(zeros, "out")]
    if len(kernel.source):
        source = torch.from_numpy(kernel.source.view(np.int32).copy())
        arguments.append(emulated_gpu.device_tensors(source, "source"))
    if read_only:
        emulated_gpu.protect(arguments[("out", "source").index(read_only)])
    with emulated_gpu.session(schedule, checks, **options) as session, emulated_gpu.DEVICE.as_chip(kernel.chip):
        for name, grid, block, cluster, dependent in launches or kernel.launches:
            text = kernel.header + (ptx or kernel.ptx)
            emulated_gpu.launch(text, name, grid, block, arguments, cluster=cluster, pdl=dependent)
    NOTED[:], FOUND[:] = session.notes, session.errors
    return arguments[0].numpy().view(np.uint32)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_correct_kernel_is_silent_in_every_schedule(kernel):
    for schedule in SCHEDULES:
        assert (run(kernel, schedule) == kernel.expected).all(), schedule


def plant(bug) -> str:
    ptx = KERNELS[bug.kernel].ptx
    for old, new in bug.edits:
        assert ptx.count(old) == 1, f"planted on text that occurs {ptx.count(old)} times: {old!r}"
        ptx = ptx.replace(old, new)
    return ptx


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.kernel}: {bug.name}")
def test_bug_is_found_and_named(bug):
    """By the orderly schedule: it takes no luck."""
    with pytest.raises(emulated_gpu.EmulatorError) as found:
        run(KERNELS[bug.kernel], 0, plant(bug), bug.launches, bug.read_only)
    error = found.value
    assert error.kind in bug.kinds, error
    assert error.kind not in PARTIES or str(error).count("PTX line") >= 2, error
    if error.kind in ("uninitialized-read", "tmem-uninitialised"):
        never = f"{bug.kernel}: {bug.name}" in NEVER_WRITTEN
        assert ("nobody writes later" if never else " yet: ") in error.message, error
    assert "PTX line" in str(error) and "warp" in str(error) or error.kind == "launch", error


BORNE = [b for b in BUGS if "missing-wgmma-fence" in b.kinds or b.name == "all warps read at the first one's lanes"]


@pytest.mark.parametrize("bug", BORNE, ids=lambda bug: bug.name)
def test_a_kernel_goes_on_as_on_silicon(bug):
    """A session that wants more findings gets the results, too: a warp at other lanes gets its own."""
    result = run(KERNELS[bug.kernel], 0, plant(bug), most=9)
    assert {fault.kind for fault in FOUND} == {*bug.kinds} and (result == KERNELS[bug.kernel].expected).all()


@pytest.mark.parametrize(
    ("note", "kernel", "name"),
    [
        ("exit-before-arrival", "pair", "exit before the neighbour's arrivals, which bring nothing"),
        ("exit-before-store", "store", "exit while the buffer is read"),
        ("lanes-wrap", "product", "lanes counted on from 128"),
        ("unfenced-mbarrier", "copy", "init not fenced for the async proxy"),
    ],
)
def test_what_silicon_does_without_a_promise_is_a_note(note, kernel, name):
    """In schedule 0, with the place; and a fault if that is asked for (as all bugs are looked for)."""
    (bug,) = (b for b in BUGS if (b.kernel, b.name) == (kernel, name))
    result = run(KERNELS[kernel], 0, plant(bug), bug.launches, strict=False)
    assert note != "lanes-wrap" or (result == KERNELS[kernel].expected).all()
    assert [one.note for one in NOTED] == [note] and "PTX line" in str(NOTED[0])
    with pytest.raises(emulated_gpu.Fault):
        run(KERNELS[kernel], 0, plant(bug), bug.launches)


def test_every_note_has_a_row_with_its_source():
    page = (Path(emulated_gpu.__file__).parent / "NOT_PROMISED.md").read_text()
    for note in NOTES:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{note}`"))
        assert "https://" in row or "(../" in row, row


@pytest.mark.parametrize(
    "bug", [b for b in BUGS if "tmem-race" in b.kinds], ids=lambda bug: f"{bug.kernel}: {bug.name}"
)
def test_without_checks_no_race_is_reported(bug):
    """What then comes out may be wrong, or a hang, or memory that is not there."""
    for schedule in SCHEDULES:
        try:
            run(KERNELS[bug.kernel], schedule, plant(bug), bug.launches, bug.read_only, checks=False)
        except emulated_gpu.EmulatorError as error:
            assert error.kind in ("hang", "tmem-out-of-bounds", "tmem-alloc", "mbarrier"), error


def test_a_load_that_was_used_may_be_overwritten():
    """Without tcgen05.wait::ld: the stored value depends on the loaded one, so that the load has ended (9.7.16.6)."""
    kernel = KERNELS["tensor_memory"]
    loaded = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r30}, [r21];"
    used = "add.u32 r31, r30, 0;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [r21], {r31};\ntcgen05.wait::st.sync.aligned;"
    ready = "tcgen05.wait::st.sync.aligned;\n"
    assert kernel.ptx.count(ready) == 1
    for schedule in SCHEDULES:
        ptx = kernel.ptx.replace(ready, f"{ready}{loaded}\n{used}\n")
        assert (run(kernel, schedule, ptx, strict=False) == kernel.expected).all()
        unused = ptx.replace("r31, r30, 0", "r31, r4, 0")
        with pytest.raises(emulated_gpu.Fault, match="tmem-race: write of .* may still read"):
            run(kernel, schedule, unused, strict=False)
        run(kernel, schedule, unused, checks=False)


def test_finding_names_the_source_line():
    kernel = KERNELS["plain"]
    ptx = kernel.ptx.replace("ld.global.v2", ".loc 1 7 0\nld.global.v2").replace("t, 8, src", "t, 16, src")
    with pytest.raises(
        emulated_gpu.Fault,
        match=r"out-of-bounds: .*source.*\n  at kernel plain, warp 0 .*PTX line \d+: ld.global.*\(kernel.py:7\)",
    ):
        run(kernel, 0, ptx + '.file 1 "kernel.py"\n')


def test_the_page_for_upstream_names_planted_bugs_of_its_kinds():
    """A row of UPSTREAM.md ends with the smallest program, one of the corpus that ends with the row's kind."""
    page = (Path(emulated_gpu.__file__).parent / "UPSTREAM.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    named = [(row[-1], row[2].strip("`")) for row in rows if len(row) == 5 and ": " in row[-1]]
    kinds = {f"{bug.kernel}: {bug.name}": bug.kinds for bug in BUGS}
    assert len(named) >= 5 and all(kind in kinds[name] for name, kind in named), named


def test_corpus_covers_every_class():
    found = {kind for bug in BUGS for kind in bug.kinds} - {"hang"}
    elsewhere = {"internal", "scale-factors-not-replicated"}  # cannot happen; test_mma.py
    elsewhere |= {"scope", "residency"}  # test_devices.py; test_cooperative.py
    elsewhere |= {"order-dependent"}  # test_explore.py
    elsewhere |= {"stream-race", "read-before-sync", "use-after-free"}  # test_streams.py
    assert found | elsewhere == set(KINDS)
    assert len({(bug.kernel, bug.name) for bug in BUGS}) == len(BUGS) >= 40
