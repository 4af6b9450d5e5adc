"""Judges a case of a task that others wrote: its reference and its check run in the examiner, on copies.

Nothing is known about such a task but that `check_implementation(data, output)` says whether an output is right. So
results pass by that, not bit by bit; which tensors are outputs, and that inputs come back unchanged, is not checked;
and fresh inputs are the task's own, from a secret seed.
"""

import functools
import random

import numpy as np
import torch

from emulator.arena import Heap
from emulator.serve import torch_cuda
from evaluation.judge.emulated_trial import result_of
from evaluation.judge.loading import explain
from evaluation.judge.recorded_calls import NotTimed, RecordedCalls
from evaluation.judge.verdict import Refused, Verdict
from evaluation.tasks import data as any_data
from evaluation.tasks.folder import FolderModules
from task import TestCase, combine_seeds

SEEN = 1000  # number of the first inputs that recorded calls get


@functools.cache
def modules_of(modules: tuple[tuple[str, str], ...]) -> FolderModules:
    """Makes what a folder's modules are imported with, once in this process, which gets an emulated GPU."""
    torch_cuda.install()
    return FolderModules(dict(modules))


class PlacedAny:
    """Puts data of a task's folder into memory that the submission's process shares; tensors that share a storage do
    so there, too. `spec` tells that process where, `device` has what lies on the GPU."""

    def __init__(self, data, heap: Heap):
        self.heap, self.taken, self.device = heap, [], []
        self.storages: dict[int, dict] = {}  # address of the original -> where its copy is
        pickled = any_data.packed(data, self._place)
        self.spec = {"pickle": any_data.as_text(pickled), "storages": self.device}
        self.fill(data)

    def _place(self, tensor: torch.Tensor) -> dict:
        storage, on_device = tensor.untyped_storage(), tensor.is_cuda
        if storage.data_ptr() not in self.storages:
            address, name = self.heap.take(storage.nbytes()).ctypes.data, f"tensor[{len(self.storages)}]"
            self.taken.append((address, storage.nbytes()))
            self.storages[storage.data_ptr()] = {"address": address, "bytes": storage.nbytes(), "name": name}
            if on_device:
                self.device.append(self.storages[storage.data_ptr()])
        return self.storages[storage.data_ptr()] | {
            "shape": list(tensor.shape), "stride": list(tensor.stride()), "offset": tensor.storage_offset(),
            "dtype": str(tensor.dtype), "device": on_device,
        }  # fmt: skip

    def output_addresses(self) -> set[int]:
        """Gives what kernels may write: all of it, as nobody knows which tensors are outputs."""
        return {spec["address"] for spec in self.device}

    def fill(self, data) -> None:
        """Writes the contents of data like that which was placed."""
        storages = {}
        for tensor in any_data.tensors(data):
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        if [storage.nbytes() for storage in storages.values()] != [size for _, size in self.taken]:
            raise Refused("generate_input gives tensors of other sizes for another seed")
        for storage, (address, size) in zip(storages.values(), self.taken):
            if size:
                source = torch.empty(0, dtype=torch.uint8).set_(storage)
                self.heap.arena.view(address, size)[:] = source.numpy()

    def release(self) -> None:
        for address, size in self.taken:
            self.heap.give(address, size)
        self.taken = []


class FolderTrial:
    """Runs a case of Options.folder on the emulator: call by call, each with inputs of its own. examiner: an Examiner,
    for its memory and its process."""

    def __init__(self, case: TestCase, examiner):
        self.examiner, self.options, self.process = examiner, examiner.options, examiner.process
        self.verdict, self.args = Verdict(case.spec), case.args
        self.hidden = combine_seeds(case.args["seed"], self.options.secret) if "seed" in case.args else None
        self.rng = np.random.default_rng(combine_seeds(self.hidden or 0, self.options.secret + 1))

    def run(self, extra: bool) -> None:
        """Raises Refused unless every call was right. extra: with a call more."""
        with modules_of(tuple(self.options.folder.modules.items())) as modules:
            try:
                self.reference = modules.reference()
            except Exception as error:
                raise Refused(f"the task's reference.py: {explain(error)}") from None
            calls = max(2, self.options.calls)
            if self.options.timed:
                try:
                    self.verdict.modelled = RecordedCalls(self).time()
                    calls = 0  # an audit has been right
                except NotTimed as error:
                    self.verdict.modelled = {"error": str(error)}
            self.calls(calls + extra)

    def calls(self, count: int) -> None:
        """Makes the calls. Raises Refused."""
        placed = None
        try:
            for schedule in range(count):
                data = self.generate(schedule)
                if placed is None:
                    if self.process.pid is None:
                        self.process.start()
                    device = self.process.device
                    placed = PlacedAny(data, self.examiner.heap)
                    device.register(placed)
                    number = self.process.place(placed.spec)
                else:
                    placed.fill(data)
                self.call(data, placed, number, schedule)
        finally:
            if placed is not None:
                device.drop(placed)
                placed.release()

    @functools.cached_property
    def timed_calls(self) -> int:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in any_data.tensors(self.generate(SEEN))}
        return self.options.folder.calls(sum(storage.nbytes() for storage in storages.values()))

    def contents(self, count: int) -> "Fresh":
        """Makes what so many recorded calls get."""
        return Fresh(self, count)

    def generate(self, call: int):
        """Makes the inputs of a call: the first has the case's own seed, the others one that nobody knows."""
        args = dict(self.args)
        if call and self.hidden is not None:
            args["seed"] = self.hidden + 42 * call
        seed = int(args.get("seed", 0)) % 2**32
        for seeded in (random.seed, np.random.seed, torch.manual_seed):  # of what a reference draws without a generator
            seeded(seed)
        try:
            return self.reference.generate_input(**args)
        except Exception as error:
            raise Refused(f"generate_input: {explain(error)}") from None

    def call(self, data, placed: PlacedAny, number: int, schedule: int) -> None:
        """Makes one call; raises Refused unless the task's check finds its result right."""
        returned = result_of(self.process, placed, number, schedule, self.verdict, self.copied)
        try:
            self.check(data, returned)
        except Refused:
            self.process.kill()
            raise

    def live(self, spec: dict) -> torch.Tensor:
        """Makes a live view of a returned tensor. Raises Refused, or ValueError for what is none."""
        try:
            return any_data.tensor_at(self.examiner.arena.view, spec)
        except ValueError as error:
            where = str(spec["device"])[:20]
            raise Refused(f"the returned tensor, on {where}, is not in the device's memory: {error}") from None

    def copied(self, returned) -> object:
        """Copies a result, which its process may still change, for a check. Raises Refused, or what garbage raises."""

        def copy(spec: dict) -> torch.Tensor:
            found = self.live(spec)
            return found.cuda() if str(spec["device"]).startswith("cuda") else found.clone()

        return any_data.rebuilt(returned, copy)

    def check(self, data, returned) -> None:
        """Raises Refused unless the task's check_implementation finds a result right."""
        try:
            said = self.reference.check_implementation(any_data.copied(data), returned)
        except Exception as error:
            raise Refused(f"check_implementation: {type(error).__name__}: {str(error)[:1000]}") from None
        good, message = said if isinstance(said, tuple) and len(said) == 2 else (not said, said)
        if isinstance(said, bool):
            good, message = said, ""
        if not isinstance(good, bool) or not isinstance(message, (str, list, type(None))):
            raise Refused(f"check_implementation returned {type(said).__name__}, not (passed, message)")
        if not good:
            raise Refused(" ".join(str(message or "the task's check finds the result wrong").split())[:1000])


class Fresh:
    """Gives each recorded call inputs of its own, from a secret seed; they are made when they are needed."""

    def __init__(self, trial: FolderTrial, calls: int):
        self.trial = trial
        self.host = trial.generate(SEEN)  # what the host code sees, and no launch does
        self.before: dict[int, list] = {}  # id of a call's placed inputs -> what lay where its results are

    def placed(self) -> PlacedAny:
        """Makes room for the data of a call, with other contents."""
        return PlacedAny(self.host, self.trial.examiner.heap)

    def data(self, number: int):
        """Makes the data of a call."""
        return self.trial.generate(SEEN + 1 + number)

    def results(self, returned, held) -> object:
        """Checks that a call's results can be read, and gives their description. Raises Refused."""
        self.trial.copied(returned)
        return returned

    def check(self, number: int, results) -> None:
        """Raises Refused unless these are the results of a call's data, by the task's own check."""
        self.trial.check(self.data(number), self.trial.copied(results))

    def unchanged(self, number: int, placed: PlacedAny) -> bool:
        """Says yes: nobody knows which tensors are outputs."""
        return True

    def clear(self, placed: PlacedAny, results) -> None:
        """Writes over the results of a call what lay there when it was recorded: a launch may add to that."""
        views = []
        any_data.rebuilt(results, lambda spec: views.append(self.trial.live(spec)))
        known = self.before.setdefault(id(placed), [view.clone() for view in views])
        for view, content in zip(views, known, strict=True):
            view.copy_(content)

    def floor(self) -> float:
        """Gives no time that a call takes at least: nobody knows what it has to read."""
        return 0.0
