"""Runs the submission's host code, on the emulator; what it launches runs in the judge's process."""

import contextlib
import functools
import sys
from collections.abc import Callable

import torch

import emulated_gpu
from emulated_gpu.arena import Arena, Heap
from emulated_gpu.serve.cute import cute_dsl
from emulated_gpu.serve.torch_device.install import install
from evaluation.judge.library import Recorder
from evaluation.judge.shared_tensors import torchs, unplaced
from evaluation.tasks import data as any_data


class EmulatedDevice:
    """Serves host code: torch's `cuda` and CuTe DSL as on a B200, whose launches the judge's process takes and runs.

    Tensors on the device lie in memory that both share, as they would lie in a GPU's.
    """

    def __init__(self, arena: Arena, heap: int, ask, node: tuple[str, int], anew: bool = False):
        """heap: where the submission's part of the memory begins. ask(message): the judge's answer to it. node: the
        name of a machine, and how many of them it is; launches of all of them run where `ask` leads. anew: a call gets
        new objects around its tensors, as from the grader of a task whose data have a state."""
        machine, devices = node
        cute_dsl.choose(machine)
        emulated_gpu.DEVICE.become(devices)
        install()  # before the submission imports the DSL
        self.device, self.arena, self.ask, self.start = emulated_gpu.DEVICE, arena, ask, heap
        self.session, self.error, self.kinds = emulated_gpu.session, emulated_gpu.EmulatorError, {}
        self.guarded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "emulated_gpu"]
        middle = torchs(arena, heap)
        self.device.heap = Heap(arena, heap, middle)
        self.device.allocator.lie_in(middle, arena.end)
        self.device.elsewhere = self.launch
        self.sent: dict[int, int] = {}  # id of a loaded module, which the device keeps -> its number
        self.objects: dict[int, Callable[[], object]] = {}
        self.anew = anew
        self.kept: list = []

    def launch(
        self, module, kernel, grid, block, params, *, cluster=None, dynamic_shared=0, pdl=False, cooperative=False
    ) -> None:
        """Has the judge's device run a launch, whose arguments are as of emulated_gpu.launch; raises what that says."""
        message = {
            "kernel": kernel, "grid": list(grid), "block": list(block), "params": bytes(params).hex(), "pdl": bool(pdl),
            "cluster": list(cluster) if cluster else None, "dynamic_shared": int(dynamic_shared),
            "cooperative": bool(cooperative), "symbols": module.symbols,
            "function": module.module.kernels[kernel].function,
            "regions": [
                [r.start, r.size, str(r.name)[:100], bool(r.read_only)]
                for r in self.device.memory.regions if r.start >= self.start and r.end <= self.arena.end
            ],
        }  # fmt: skip
        if id(module) not in self.sent:
            self.sent[id(module)] = len(self.sent)
            message["text"] = module.text
        answer = self.ask({"launch": message | {"module": self.sent[id(module)]}})
        if answer["error"]:
            error = self.error(answer["error"])
            error.kind = answer["kind"]
            raise error

    def place(self, number: int, spec: dict) -> None:
        """Makes an object, known by its number, that the kernel may be called with. spec: of Placed."""
        for address, size, name, index in spec["storages"]:
            if size:
                self.device.memories[index].register(address, size, name).device = index

        def tensor(item: dict):
            found = any_data.tensor_at(self.arena.view, item)
            return torch.ops.emulated_gpu.to_cuda(found, item["index"]) if item["device"] else found

        make = unplaced(spec, tensor)
        self.objects[number] = make if self.anew else functools.cache(make)

    def call(self, kernel, number: int, schedule: int, record: bool, library: bool = False) -> dict:
        """Calls the kernel on an object: where what it returned lies. record: its launches will run later, and, with
        `library`, torch's operations on the device."""
        given = self.objects[number]()
        self.device.heap.reuse = not record
        self.device.refresh()  # from the first operation on, not from the first launch
        recorder = Recorder(lambda message: self.ask({"launch": {"library": message}}))
        with self.session(schedule=schedule), recorder if library else contextlib.nullcontext():
            returned = kernel(given)
        # As the grader holds both: what one call allocates is no other call's, and what is returned can be read.
        self.kept = [*(self.kept if record else ()), (given, returned)]
        return {"returned": any_data.described(returned)}
