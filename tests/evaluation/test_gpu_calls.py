"""What the judge and the submission's process do with a GPU, with this processor in its place: contents, disguises,
results, audits. The timer says what it is told to."""

import os
import secrets
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import reference
from emulated_gpu.arena import BASE, PAGE, Arena, Heap
from evaluation.judge import gpu_trial, inputs, judge, worker_gpu
from evaluation.judge.emulated import Device
from evaluation.judge.examiner import Examiner
from evaluation.judge.options import Options
from evaluation.judge.recorded_calls import RecordedCalls
from evaluation.judge.sandbox import Nursery
from evaluation.judge.verdict import Refused
from reference import ref_kernel
from task import TestCase as Case
from task import format_case
from tests import tiny_kernel
from tests.thorough import all_but

ARGS = {"m": (40, 24), "n": (48, 32), "k": (128, 64), "g": 2, "seed": 1}
SIZE = 2**28 // PAGE * PAGE
NS = 1e6


class Gpu(worker_gpu.CudaDevice):
    """Runs and uploads here; a call takes NS."""

    def __init__(self):
        pass

    def upload(self, tensors):
        return inputs.mapped(torch.Tensor.clone, tensors)

    def run(self, kernel, data, clear_l2, snapshot):
        outputs = []
        for position, item in enumerate(data):
            outputs.append(kernel(item))
            snapshot(position, outputs[-1])
        return outputs, NS


class Here:
    """The submission's process, in this one; as SubmissionProcess."""

    pid, isolation = 1, None

    def __init__(self, kernel, arena):
        self.kernel, self.arena, self.device, self.guards = kernel, arena, Gpu(), SimpleNamespace(replaced=lambda: [])

    def ask(self, what, op, **request):
        if op == "case":
            task = reference.TASKS[request.pop("task")]
            self.case = worker_gpu.Case(
                self.device, self.arena, task, request["contents"], request["objects"], request["results"]
            )
            return {"error": None}
        reply = worker_gpu.repeat(
            self.device, self.case, self.kernel, request, self.guards, torch.equal, lambda: None, torch.Tensor.copy_
        )
        if reply["error"]:
            raise Refused(reply["error"])
        return reply


@pytest.fixture(scope="module")
def arena():
    return Arena.create(SIZE)


def test_memory_that_nobody_has_written_stays_so(arena):
    """What the judge does with all that a submission has allocated fills no page of it."""
    calls, pages = RecordedCalls.__new__(RecordedCalls), os.fstat(arena.fd).st_blocks
    calls.arena = arena
    device = Device(arena, BASE)
    before = calls.digest(BASE, SIZE), device.snapshot([(BASE, SIZE)])
    device.restore(before[1])
    arena.renew()
    assert (calls.digest(BASE, SIZE), device.snapshot([(BASE, SIZE)])) == before
    assert os.fstat(arena.fd).st_blocks <= pages


def test_renewed_memory_is_nobody_elses(arena):
    """What was there stays; who had the old memory sees and changes nothing of the new."""
    view, old = arena.view(BASE + PAGE, 3), os.dup(arena.fd)
    view[:] = 1, 2, 3
    held = [*arena.data(BASE, SIZE)]
    arena.renew()
    os.pwrite(old, b"\7\7\7", PAGE)
    assert view.tolist() == [1, 2, 3] and [*arena.data(BASE, SIZE)] == held
    view[:] = 0
    assert os.pread(old, 3, PAGE) == b"\7\7\7"
    os.close(old)


@pytest.fixture
def trial(arena, monkeypatch):
    """trial(kernel): one of it, timed."""
    monkeypatch.setattr(gpu_trial.GpuCase, "device", "cpu")
    heap = Heap(arena, BASE, BASE + SIZE)

    def make(kernel):
        here = SimpleNamespace(
            options=Options("", "cuda", timed=True, secret=secrets.randbits(31)),
            process=Here(kernel, arena), arena=arena, heap=heap,
        )  # fmt: skip
        return gpu_trial.MeasuredTrial(Case(format_case(ARGS), ARGS), here)

    return make


@pytest.fixture
def measured(trial):
    """measured(kernel): the verdict's times, or Refused."""

    def run(kernel):
        made = trial(kernel)
        made.run(extra=True)
        return made.verdict

    return run


def test_two_submissions_are_timed_in_turns(trial):
    """Each with results of its own: what one has wrong is not the other's."""
    first, second = trial(ref_kernel), trial(lambda data: [c.clone() for c in ref_kernel(data)])
    rounds = gpu_trial.measure_in_turns([first, second])
    assert (first.verdict.status, second.verdict.status, rounds.mean) == ("pass", "pass", 0.0)
    assert first.verdict.us == second.verdict.us == NS / 1e3 and rounds.runs == first.verdict.times.runs >= 3
    first, second = trial(ref_kernel), trial(lambda data: [c.clone().fill_(1) for _, _, c in data[0]])
    assert gpu_trial.measure_in_turns([first, second]) is None
    assert first.verdict.reason == "not timed: the other one has failed" and first.verdict.times is None
    assert "elements differ" in second.verdict.reason and second.verdict.status == "fail"


def test_the_reference_is_timed(measured):
    verdict = measured(ref_kernel)
    assert (verdict.mismatches, verdict.us) == (0, NS / 1e3) and verdict.times.runs >= 3


def test_fresh_outputs_are_read(measured):
    assert measured(lambda data: [c.clone() for c in ref_kernel(data)]).mismatches == 0


def m_major(c):
    """A new tensor like c whose M is contiguous, with rows of 16 elements, as the record's are."""
    m, n, _ = c.shape
    return torch.empty(n, -(-m // 16) * 16, dtype=c.dtype).T[:m].unsqueeze(-1).copy_(c)


def test_fresh_outputs_in_another_order_are_read(measured):
    assert measured(lambda data: [m_major(c) for c in ref_kernel(data)]).mismatches == 0


def test_fresh_outputs_that_are_written_later_are_seen(measured):
    waiting = []

    def kernel(data):
        if data[3][0][0] != ARGS["m"][0]:
            return ref_kernel(data)
        outputs = [torch.full_like(c, float("nan")) for _, _, c in data[0]]
        waiting.append((data, outputs))
        if len(waiting) == 15:
            for late, results in waiting:
                for result, c in zip(results, ref_kernel(late)):
                    result.copy_(c)
            waiting.clear()
        return outputs

    with pytest.raises(Refused, match="never written|elements differ"):
        measured(kernel)


def test_one_output_for_all_calls_is_seen(measured):
    kept = {}

    def kernel(data):
        outputs = kept.setdefault("outputs", [torch.empty_like(c) for _, _, c in data[0]])
        return [mine.copy_(c) for mine, c in zip(outputs, ref_kernel(data))]

    with pytest.raises(
        Refused, match="call 1, group 0: the returned tensor is not new, it lies in the result of call 0"
    ):
        measured(kernel)


def test_an_output_in_an_input_is_seen(measured):
    """The scales in the plain order, which nobody reads again."""

    def kernel(data):
        outputs = ref_kernel(data)
        where = data[1][0][1].view(torch.uint8).flatten()[:64].view(torch.float16)
        return [where.as_strided(outputs[0].shape, (0, 0, 0)), outputs[1]]

    with pytest.raises(Refused, match="call 0, group 0: the returned tensor is not new, it lies in an input"):
        measured(kernel)


@pytest.mark.parametrize("key", all_but(["address"], ["address", "magnitudes", "scales"]))
def test_a_kept_result_is_a_wrong_result(measured, key):
    kept = {}
    keys = {
        "address": lambda data: data[0][0][0].data_ptr(),
        "magnitudes": lambda data: tuple((t.view(torch.uint8) & 0x77).sum().item() for t in data[0][0][:2]),
        "scales": lambda data: (data[1][0][0].view(torch.uint8) & 7).sum().item(),
    }

    def kernel(data):
        name = keys[key](data)
        if name not in kept:
            kept[name] = [c.clone() for c in ref_kernel(data)]
        return [c.copy_(result) for (_, _, c), result in zip(data[0], kept[name])]

    with pytest.raises(Refused, match="elements differ"):
        measured(kernel)


def test_work_put_off_to_the_last_call_is_seen(measured):
    waiting = []

    def kernel(data):
        waiting.append(data)
        if len(waiting) == 15:
            for late in waiting:
                ref_kernel(late)
            waiting.clear()
        return [c for _, _, c in data[0]]

    with pytest.raises(Refused, match="never written"):
        measured(kernel)


def test_changed_inputs_are_seen(measured):
    def kernel(data):
        outputs = ref_kernel(data)
        data[2][0][0].view(torch.uint8).fill_(0x38)
        return outputs

    with pytest.raises(Refused, match="changed its inputs"):
        measured(kernel)


def test_a_mode_left_entered_is_seen(measured):
    modes = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def kernel(data):
        if not modes:
            modes.append(Mode())
            modes[0].__enter__()
        return ref_kernel(data)

    try:
        with pytest.raises(Refused, match="left a mode of torch entered"):
            measured(kernel)
    finally:
        modes[0].__exit__(None, None, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs it")
def test_without_a_gpu_no_pair_passes(honest):
    options = Options(str(honest), "cuda", timed=True, jobs=1)
    ((first, second, rounds),) = judge.measure_pairs([Case(format_case(ARGS), ARGS)], (options, options))
    assert rounds is None and first.status == second.status == "fail"
    assert first.reason == second.reason and first.reason.startswith("evaluator: "), first.reason


def test_two_submissions_have_processes_at_once(arena, tmp_path):
    """And one that ends takes nothing of the other's with it."""
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents:  # up to the folder of all users, which stays as it is
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    case, examiners, nurseries = tiny_kernel.CASE, [], [Nursery.spawn() for _ in range(2)]
    for name, nursery in zip("ab", nurseries):
        (tmp_path / name).mkdir()
        options = Options(tiny_kernel.__file__, "cuda", jobs=1)
        heap = Heap(arena, BASE, BASE + SIZE)
        examiners.append(Examiner(options, nursery, str(tmp_path / name), [], arena, heap, print))
    try:
        first, second = examiners
        for one in (first, second, first):
            assert one.configs([(case, {"repeat": "4"})])[0]["config"].startswith("repeat=4,")
        assert first.process.pid != second.process.pid and not second.process.dead()
        first.process.kill()
        assert not second.process.dead() and "error" not in second.configs([(case, {})])[0]
    finally:
        for one, nursery in zip(examiners, nurseries):
            one.process.kill()
            nursery.close()
