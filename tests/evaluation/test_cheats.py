"""Every cheating or broken submission in tests/cheats fails with its own reason, and honest ones pass.

`# caught: REASON` in a cheat says what the judge's reason has to match, `# benchmark: REASON` what it has to say, or
why there is no time, when times are asked for. Those in tests/cheats work on tensors of the host, so that they run in
a second; those in tests/cheats/kernels are added to a submission that launches a kernel, tests/naive_kernel.py.
"""

import contextlib
import json
import operator
import os
import re
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluation.judge import landlock, submission_process
from evaluation.judge.examiner import Examiner
from evaluation.judge.judge import Options, judge
from evaluation.judge.shared_tensors import OURS
from evaluation.judge.verdict import Verdict
from task import TestCase as Case
from task import format_case
from tests import attacks
from tests.thorough import all_but_every

TESTS = Path(__file__).parents[1]
HOST = [cheat for cheat in attacks.files() if cheat.parent.name == "cheats"]
NAIVE = (TESTS / "naive_kernel.py").read_text()
STEM = operator.attrgetter("stem")
SIZES = ((40, 24), (48, 32), (128, 64))  # m, n, k of two groups
SMALL = ((4, 3), (16, 8), (64, 64))  # where 15 calls are run


def reason(cheat: Path, key: str) -> str | None:
    """What a cheat's line says."""
    return attacks.told(cheat).get(key)


def those(key: str, every: int) -> list:
    """The cheats with such a line; `make test` has one of `every`. Not those that are judged so by their family."""
    chosen = all_but_every(every, [path for path in attacks.files() if reason(path, key)])
    known = [TESTS / "cheats" / f"{name}.py" for name in ACCEPTED.values()]
    known = [path for path in known if (path in HOST) == (key == "caught")]
    return [one for one in chosen if (one if isinstance(one, Path) else one.values[0]) not in known]


@pytest.fixture
def submission(tmp_path):
    """submission(cheat): the file to judge."""

    def make(cheat: Path) -> Path:
        if cheat in HOST:
            return cheat
        path = tmp_path / "submission.py"
        path.write_text(attacks.text(cheat))
        return path

    return make


# Of families that a GPU MODE leaderboard had accepted: https://github.com/gpu-mode/reference-kernels/issues/162
ACCEPTED = {
    "aggregator underflow": "kernels/aggregator_underflow",
    "replay": "address_cache",
    "lazy output": "lazy_output",
    "timer patch": "patched_event_timer",
    # https://github.com/gpu-mode/pygpubench/issues/23
    "memory scan": "scans_its_memory",
    "pipe hijack": "takes_the_connection",
    "native detour": "detours_native_code",
}


@pytest.mark.parametrize("family", ACCEPTED)
def test_what_a_leaderboard_accepted_is_caught(family, submission, judged):
    cheat = TESTS / "cheats" / f"{ACCEPTED[family]}.py"
    (test_cheat_is_caught if cheat in HOST else test_cheat_is_caught_by_the_benchmark)(cheat, submission, judged)


@pytest.mark.parametrize("cheat", those("caught", 5), ids=STEM)
def test_cheat_is_caught(cheat, submission, judged):
    hangs = "hang" in str(reason(cheat, "caught"))
    (verdict,) = judged(submission(cheat), SIZES, timeout=5 if hangs else 60, calls=4)
    assert verdict.status == "fail"
    assert re.search(reason(cheat, "caught"), verdict.reason), verdict.reason


@pytest.mark.parametrize("cheat", those("benchmark", 7), ids=STEM)
def test_cheat_is_caught_by_the_benchmark(cheat, submission, judged):
    """It fails, or its results are right and it gets no time."""
    (verdict,) = judged(submission(cheat), SMALL, timed=True, calls=attacks.timed_calls(cheat))
    assert verdict.status == "fail" or "error" in verdict.modelled
    told = f"{verdict.reason}; {verdict.modelled.get('error')}"
    assert re.search(reason(cheat, "benchmark"), told), told


def test_a_note_is_no_line_of_the_judges():
    """Its text has names of the submission's: of files, of tensors."""
    verdict = Verdict("")
    verdict.note([f"race: read at {name}:3" for name in ("x\x1b[2J\n1 case passed", "y\r1 case passed")])
    lines = "\n".join(verdict.notes).split("\n")
    assert all(line.isprintable() and line.startswith(("race: ", "  | ")) for line in lines)


def test_a_config_is_no_line_of_the_judges():
    """As the submission's process describes it, for `compare` and `sweep`."""
    examiner = Examiner.__new__(Examiner)
    examiner.process = SimpleNamespace(
        ask=lambda *_, **__: {"configs": [{"line": "\x1b[2J"}]}, answering=lambda what: contextlib.nullcontext()
    )
    assert examiner.configs([]) == [{"line": r"\x1b[2J"}]


def test_corpus_is_complete():
    """Each says of what kind it is, and what the judge has to say; all of them have been recorded, and were held."""
    told = {path.stem: attacks.told(path) for path in attacks.files()}
    assert all("kind" in says and says.keys() & {"caught", "benchmark", "timed"} for says in told.values())
    record = json.loads(attacks.RESULTS.read_text())
    assert record.keys() == told.keys()
    assert all(attacks.held(told[name], each, row[each]) for name, row in record.items() for each in attacks.SIZES)
    assert len(those("caught", 5)) >= 15 and len(those("benchmark", 7)) >= 15


def test_the_reference_itself_passes(honest, judged):
    verdicts = judged(honest, SIZES, ((0, 5), (16, 16), (64, 128)), ((1,), (16,), (64,)))
    assert [(verdict.status, verdict.reason, verdict.mismatches) for verdict in verdicts] == [("pass", "", 0)] * 3


@pytest.mark.thorough  # test_any_task.py has another task's floor
def test_what_is_faster_than_light_has_no_time(tmp_path, judged):
    """A kernel that does nothing, in place of some of benchmark case 1's groups."""
    submission, cheat = tmp_path / "submission.py", TESTS / "cheats" / "kernels" / "empty_kernel.py"
    submission.write_text(NAIVE + cheat.read_text().replace("ref_kernel(data)", "[c for _, _, c in data[0]]"))
    sizes = (40, 76, 168), (7168,) * 3, (2048,) * 3
    (verdict,) = judged(submission, sizes, timed=True, calls=1)
    assert verdict.status == "fail" and "never written" in verdict.reason
    assert re.search(r"us is less than the speed of light, 3\.137 us", verdict.modelled["error"]), verdict.modelled


def test_an_honest_kernel_passes_and_is_timed(tmp_path, judged):
    """The form of the task's template."""
    submission = tmp_path / "submission.py"
    submission.write_text(NAIVE)
    for timed in (False, True):
        (verdict,) = judged(submission, SMALL if timed else SIZES, timed=timed)
        assert (verdict.status, verdict.reason) == ("pass", "")
    assert verdict.modelled["us"] > 1 and verdict.modelled["launches"] == 1


LESS_OF_ZEROS = NAIVE.replace(
    """    if row < m and column < n:
""",
    """    pointer = cute.make_ptr(cutlass.Uint8, table[0, 0], cute.AddressSpace.gmem)
    first = cute.make_tensor(pointer, cute.make_layout(8))
    some = first[0] | first[1] | first[2] | first[3] | first[4] | first[5] | first[6] | first[7]
    if some != 0 and row < m and column < n:
""",
)


def test_what_is_timed_has_the_inputs_of_what_is_checked(tmp_path, judged):
    """A kernel that does nothing where inputs are zero takes as long as one that does not look."""
    submission, times = tmp_path / "submission.py", []
    assert LESS_OF_ZEROS != NAIVE
    for text in (NAIVE, LESS_OF_ZEROS):
        submission.write_text(text)
        (verdict,) = judged(submission, SMALL, timed=True, calls=1)
        times.append(verdict.modelled["us"])
    assert times[1] > 0.9 * times[0]


FRESH = """
honest_kernel = custom_kernel


def custom_kernel(data):
    abc, scales, reordered, sizes = data
    made = [(a, b, torch.empty(c.shape[1] * c.shape[0], dtype=c.dtype, device="cuda").view(c.shape)) for a, b, c in abc]
    return honest_kernel((made, scales, reordered, sizes))
"""


def test_outputs_of_its_own_pass(tmp_path, judged):
    """The grader takes what is returned."""
    submission = tmp_path / "submission.py"
    cloned = (
        "from reference import ref_kernel\ndef custom_kernel(data):\n    return [c.clone() for c in ref_kernel(data)]"
    )
    for text in (cloned, NAIVE + FRESH):
        submission.write_text(text)
        (verdict,) = judged(submission, SIZES)
        assert (verdict.status, verdict.reason) == ("pass", "")
    (verdict,) = judged(submission, SMALL, timed=True, calls=1)
    assert (verdict.status, verdict.reason) == ("pass", "") and "us" in verdict.modelled, verdict.modelled


M_MAJOR = """
import torch
from reference import ref_kernel

def custom_kernel(data):
    made = []
    for c in ref_kernel(data):
        m, n, _ = c.shape
        made.append(torch.empty((n, -(-m // 16) * 16), dtype=c.dtype, device="cuda").T[:m].unsqueeze(-1).copy_(c))
    return made
"""
IN_AN_INPUT = """
import torch
from reference import ref_kernel

def custom_kernel(data):
    outputs = ref_kernel(data)
    place = data[0][-1][1].view(torch.uint8).flatten().view(torch.float16)
    return outputs[:-1] + [place[: outputs[-1].numel()].view(outputs[-1].shape)]
"""
TWICE = """
import torch
from reference import ref_kernel

def custom_kernel(data):
    outputs = ref_kernel(data)
    memory = torch.empty(sum(c.numel() for c in outputs), dtype=torch.float16, device="cuda")
    return [memory[i : i + c.numel()].view(c.shape).copy_(c) for i, c in enumerate(outputs)]
"""
KEPT = """
kept = {}
honest_kernel = custom_kernel


def custom_kernel(data):
    abc, scales, reordered, sizes = data
    key = tuple(tuple(c.shape) for _, _, c in abc)
    if key not in kept:
        kept[key] = [torch.empty(m * n, dtype=torch.float16, device="cuda").view(m, n, 1) for m, n, _ in key]
    return honest_kernel(([(a, b, mine) for (a, b, _), mine in zip(abc, kept[key])], scales, reordered, sizes))
"""


def test_outputs_whose_rows_are_contiguous_pass(tmp_path, judged):
    """As those of the fastest public entries: M contiguous, in multiples of 16."""
    submission = tmp_path / "submission.py"
    submission.write_text(M_MAJOR)
    (verdict,) = judged(submission, SIZES)
    assert (verdict.status, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("text, there", [(IN_AN_INPUT, "an input"), (TWICE, "the result of group 0")])
def test_outputs_that_are_not_new_do_not_pass(tmp_path, judged, text, there):
    submission = tmp_path / "submission.py"
    submission.write_text(text)
    (verdict,) = judged(submission, ((16, 16), (16, 16), (256, 256)))
    assert verdict.status == "fail" and f"group 1: the returned tensor is not new, it lies in {there}" in verdict.reason


@pytest.mark.parametrize("modulo", all_but_every(2, [4, 1000]))
def test_work_that_is_put_off_is_timed(tmp_path, judged, modulo):
    """A counter in memory, also one that is zero again after as many calls as would be simulated: all 15 are, and nine
    of them, or none, take some 20 us more."""
    submission = tmp_path / "submission.py"
    put_off = (TESTS / "cheats" / "kernels" / "work_put_off.py").read_text()
    submission.write_text(NAIVE + put_off.replace("MODULO = 1000", f"MODULO = {modulo}"))
    (verdict,) = judged(submission, SMALL, timed=True, calls=1)
    assert (verdict.status, verdict.reason) == ("pass", "") and "error" not in verdict.modelled, verdict.modelled
    assert verdict.modelled["simulated"] == 15 and "leave something" in verdict.modelled["all_run"]
    ends = verdict.modelled["ends_us"]
    early, late = ends[5] / 6, (ends[14] - ends[5]) / 9
    assert (late > early + 10) == (modulo == 1000) and verdict.modelled["us"] > 0.99 * ends[14] / 15


WITH_TORCH = """
cheat_kernel = custom_kernel


def custom_kernel(data):
    return [c.clone() for c in cheat_kernel(data)]
"""


@pytest.mark.parametrize("name", all_but_every(2, ["prefetches_neighbours", "host_writes"]))
def test_an_operation_of_torchs_buys_no_time(tmp_path, judged, name):
    """What has no time by itself has none as a part of a call, either."""
    submission, cheat = tmp_path / "submission.py", TESTS / "cheats" / "kernels" / f"{name}.py"
    submission.write_text(NAIVE + cheat.read_text() + WITH_TORCH)
    (verdict,) = judged(submission, SMALL, timed=True, calls=1, priced=True)
    assert re.search(f"No priced time either: .*{reason(cheat, 'benchmark')}", verdict.modelled["error"])


@pytest.mark.thorough
def test_work_that_is_put_off_is_timed_in_mixed_calls(tmp_path, judged):
    submission = tmp_path / "submission.py"
    put_off = (TESTS / "cheats" / "kernels" / "work_put_off.py").read_text()
    counter = 'counters = [torch.zeros(1, dtype=torch.int32, device="cuda")]'
    submission.write_text(NAIVE + put_off.replace("counters = []", counter) + WITH_TORCH)
    (verdict,) = judged(submission, SMALL, timed=True, calls=1, priced=True)
    reply = verdict.modelled
    assert (verdict.status, reply.get("error"), reply.get("simulated")) == ("pass", None, 15)
    assert reply["priced"]["us"] > 4 and reply["us"] > 0.99 * (reply["ends_us"][14] / 15 + reply["priced"]["us"])


NO_TAIL = """
from reference import dual_ref_kernel

def custom_kernel(data):
    m, k, _ = data[0].shape
    assert m % 256 == data[1].shape[0] % 128 == 2 * k % 256 == 0, "a part of a tile"
    return dual_ref_kernel(data)
"""


def test_a_dual_gemm_without_a_tail_passes(tmp_path):
    """Its task promises that M is a multiple of a kernel's tile, which may be 256 rows high."""
    submission, args = tmp_path / "submission.py", {"m": 256, "n": 128, "k": 256, "l": 1, "seed": 1}
    submission.write_text(NO_TAIL)
    for secret in range(3):
        options = Options(str(submission), "emulated", jobs=1, secret=secret)
        (verdict,) = judge([Case(format_case(args), args)], options)
        assert (verdict.status, verdict.reason) == ("pass", "")


LOOKS = """
import os
from reference import ref_kernel

def custom_kernel(data):
    for path in PATHS:
        try:
            os.close(os.open(path, os.O_RDONLY))
        except PermissionError:
            continue
        raise AssertionError(f"{path} can be read")
    return ref_kernel(data)
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock: the judge says so")
def test_a_submission_reads_what_python_needs(tmp_path, judged):
    """Not files of others, whatever their mode, nor those of root."""
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0o644)
    paths = [str(tmp_path / "secret"), "/etc/shadow", str(Path.home()), "/dev/shm", str(TESTS.parent / ".git")]
    submission = tmp_path / "submission.py"
    submission.write_text(LOOKS.replace("PATHS", repr(paths)))
    (verdict,) = judged(submission, SIZES)
    assert (verdict.status, verdict.reason) == ("pass", "")
    assert "reads what Python needs, writes to its own folders" in verdict.isolation


def test_no_link_leads_out_of_a_folder_of_builds(tmp_path, monkeypatch):
    """A submission may make any; the judge, who may be root, removes what killed builds have left."""
    monkeypatch.setattr(submission_process, "USERS_CACHE", tmp_path / "cache")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "lock").touch()
    (tmp_path / "submission.py").touch()
    folder = Path(submission_process.builds(str(tmp_path / "submission.py")))
    (folder / "own").mkdir()
    (folder / "own" / "lock").touch()
    (folder / "link").symlink_to(tmp_path / "others")
    assert submission_process.builds(str(tmp_path / "submission.py")) == str(folder)
    assert (tmp_path / "others" / "lock").exists() and not (folder / "own" / "lock").exists()


HANDS_ON = """
import socket
honest_kernel = custom_kernel
addresses = []


def custom_kernel(data):
    addresses.append(data[0][0][0].data_ptr())
    if len(addresses) == 1:
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(NAME)
            socket.send_fds(to, [b"memory"], [FD])
            to.recv(1)
    if len(addresses) == 15:
        assert addresses != sorted(addresses), "in order"
    return honest_kernel(data)
"""


def test_memory_that_was_handed_on_is_not_what_is_timed(tmp_path, judged):
    """By a submission to another process, which overwrites all inputs and results. And that no address tells which call
    comes next: 15 calls come in the order of their addresses once in 15! times."""
    submission, name, done = tmp_path / "submission.py", f"\0{tmp_path}", threading.Event()
    submission.write_text(NAIVE + HANDS_ON.replace("NAME", repr(name)).replace("FD", "101"))

    def overwrite(memory: int) -> None:
        at = 0
        with contextlib.suppress(OSError):  # no more data
            while (at := os.lseek(memory, at, os.SEEK_DATA)) < OURS:
                size = min(os.lseek(memory, at, os.SEEK_HOLE), OURS) - at
                os.pwrite(memory, b"\x11" * size, at)
                at += size

    def serve() -> None:
        connection, _ = server.accept()
        _, (memory,), *_ = socket.recv_fds(connection, 10, 1)
        connection.send(b" ")
        while not done.wait(0.01):
            overwrite(memory)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        other = threading.Thread(target=serve, daemon=True)
        other.start()
        (verdict,) = judged(submission, ((8,), (16,), (64,)), timed=True, calls=1, extra=False)
        done.set()
        other.join(10)
    assert (verdict.status, verdict.reason) == ("pass", "") and "us" in verdict.modelled, verdict.modelled


def test_one_output_for_all_calls_has_no_time(tmp_path, judged):
    """The grader holds the results of all calls, and looks at them afterwards."""
    submission = tmp_path / "submission.py"
    submission.write_text(NAIVE + KEPT)
    (verdict,) = judged(submission, SMALL, timed=True, calls=1)
    assert "the returned tensor is not new, it lies in the result of group 0" in verdict.modelled["error"]


def test_outputs_on_the_host_do_not_pass(tmp_path, judged):
    submission = tmp_path / "submission.py"
    submission.write_text(
        "from reference import ref_kernel\ndef custom_kernel(data):\n    return [c.cpu() for c in ref_kernel(data)]\n"
    )
    (verdict,) = judged(submission, SIZES)
    assert verdict.status == "fail" and "not in the device's memory" in verdict.reason


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
