"""The submission's own process. It never holds a reference result, a seed or a case's text, and decides nothing.

Whatever runs here can be replaced by the submission, so nothing that the judge concludes on the emulator rests on it:
the judge writes inputs to, and reads results from, memory that both share, and runs the launches itself. On a GPU the
timer has to be here. What is used after the submission is imported has been taken before, and `Guards` finds
replacements of those and of the evaluator's own functions: an early word with a clear reason. Requests and replies are
lines of JSON.
"""

import importlib.util
import inspect
import io
import json
import os
import resource
import sys
import time
import traceback
import types

import numpy as np
import torch

import reference
import task
import utils
from emulator.arena import Arena, Heap
from evaluation import configs, inputs, isolation
from evaluation.placed import rebuilt, tensor_at

FOREIGN = (  # what the evaluator uses of other people's modules
    (torch, "equal allclose isclose isnan randn empty from_numpy load save"),
    (torch.Tensor, "clone copy_ fill_ view data_ptr cpu numpy __eq__ __ne__ __getitem__ __setitem__"),
    (torch.cuda, "Event synchronize"),
    (torch.cuda.Event, "__new__ record elapsed_time synchronize query wait"),
    (time, "perf_counter perf_counter_ns monotonic time time_ns"),
    (json, "dumps loads"),
    (np, "memmap asarray"),
    (np.memmap, "__setitem__ __getitem__"),
)
METHODS = (types.FunctionType, staticmethod, classmethod, property)


class Guards:
    """Remembers what a submission has no business replacing, and names what it has replaced.

    That is FOREIGN, the functions and classes in `modules`, and the methods of classes defined there.
    """

    def __init__(self, modules):
        places = [(place, names.split()) for place, names in FOREIGN]
        for module in modules:
            package = module.__name__.partition(".")[0]
            inside = {
                name: value
                for name, value in vars(module).items()
                if str(getattr(value, "__module__", "")).partition(".")[0] == package
            }
            places.append((module, list(inside)))
            for value in inside.values():
                if isinstance(value, type):
                    places.append((value, [name for name, item in vars(value).items() if isinstance(item, METHODS)]))
        static = inspect.getattr_static  # not through descriptors: those make a new object at each look
        self.taken = [(place, name, static(place, name, None)) for place, names in places for name in names]

    def replaced(self) -> list[str]:
        return [
            f"the submission replaced {getattr(place, '__name__', place)}.{name}"
            for place, name, original in self.taken
            if inspect.getattr_static(place, name, None) is not original
        ]


class EmulatedDevice:
    """Host code only: torch's `cuda` and CuTe DSL as on a B200, whose launches the judge's process takes and runs.

    Tensors on the device lie in memory that both share, as they would lie in a GPU's.
    """

    def __init__(self, arena: Arena, heap: int, ask):
        """heap: where the submission's part of the memory begins. ask(message): the judge's answer to it."""
        import emulator
        from emulator.serve import torch_cuda

        torch_cuda.install()  # before the submission imports the DSL
        self.device, self.arena, self.ask, self.start = emulator.DEVICE, arena, ask, heap
        self.on_device = torch_cuda.CudaTensor
        self.session, self.error, self.kinds = emulator.session, emulator.EmulatorError, {}
        self.guarded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "emulator"]
        self.device.heap = Heap(arena, heap, arena.end)
        self.device.elsewhere = self.launch
        self.sent: dict[int, int] = {}  # id of a loaded module, which the device keeps -> its number
        self.objects: dict[int, tuple] = {}
        self.kept = []

    def launch(self, module, kernel, grid, block, params, *, cluster=None, dynamic_shared=0, pdl=False) -> None:
        """Has the judge's device run it; raises what it says."""
        message = {
            "kernel": kernel, "grid": list(grid), "block": list(block), "params": bytes(params).hex(), "pdl": bool(pdl),
            "cluster": list(cluster) if cluster else None, "dynamic_shared": int(dynamic_shared),
            "symbols": module.symbols,
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

    def place(self, number: int, spec) -> None:
        """An object that the kernel may be called with."""

        def build(item):
            tensor = tensor_at(self.arena, item)
            if not item["device"]:
                return tensor
            if item["bytes"]:
                self.device.memory.register(item["address"], item["bytes"], item["name"])
            return tensor.as_subclass(self.on_device)

        data = rebuilt(spec, build)
        self.objects[number] = tuple(list(item) if isinstance(item, list) else item for item in data)

    def call(self, kernel, number: int, schedule: int, record: bool) -> dict:
        """One call: what was returned, and where it lies. record: its launches will run later."""
        given = self.objects[number]
        self.device.heap.reuse = not record
        with self.session(schedule=schedule):
            returned = kernel(given)
        # As the grader holds both: what one call allocates is no other call's, and what is returned can be read.
        self.kept = [*(self.kept if record else ()), (given, returned)]
        return described(returned, single=len(given) != 4)


def described(returned, single: bool) -> dict:
    """{"returned": a place for each tensor} or {"wrong": what is wrong with what was returned}."""
    if single and not isinstance(returned, torch.Tensor):
        return {"wrong": f"custom_kernel returned {type(returned).__name__}, not the tensor c"}
    returned = [returned] if single else returned
    if not isinstance(returned, (list, tuple)):
        return {"wrong": f"custom_kernel returned {type(returned).__name__}, not the list of the c tensors"}
    places = []
    for group, tensor in enumerate(returned):
        if not isinstance(tensor, torch.Tensor):
            return {"wrong": f"group {group}: custom_kernel returned {type(tensor).__name__}, not a tensor"}
        places.append(
            {
                "address": tensor.data_ptr(),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "dtype": str(tensor.dtype),
                "device": str(tensor.device),
            }  # fmt: skip
        )
    return {"returned": places}


class CudaDevice:
    """A B200."""

    def __init__(self):
        self.guarded = []
        self._event, self._synchronize = torch.cuda.Event, torch.cuda.synchronize
        self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time

    def upload(self, tensors):
        return inputs.mapped(torch.Tensor.cuda, tensors)

    def run(self, kernel, data, clear_l2, snapshot):
        """(outputs, nanoseconds per call), timed as the grader does: calls back to back between events."""
        outputs = []
        self._synchronize()
        if clear_l2:
            clear_l2()
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._record(start)
        for position, item in enumerate(data):
            outputs.append(kernel(item))
            snapshot(position, outputs[-1])
        self._record(end)
        self._synchronize()
        return outputs, self._elapsed(start, end) / len(data) * 1e6


class Case:
    """Inputs of one case on a GPU: pristine contents from shared memory, and `objects` that the kernel gets to see.

    The objects stay where they are while their contents change, so that a result kept by identity, address or shape is
    a wrong result.
    """

    def __init__(self, device, arena: Arena, kind: task.Task, contents: list, objects: int, results: int):
        """contents: specs of placed data; results: an address for what the judge is to compare, one copy an object."""
        self.device = device
        self.contents = [rebuilt(spec, lambda item: tensor_at(arena, item)) for spec in contents]
        self.objects, self.handed = [], []  # the kernel gets lists of its own: it may edit them, not what is checked
        for i in range(objects):
            own = inputs.mapped(torch.Tensor.clone, self.contents[i % len(contents)])
            self.objects.append(kind.upload(own, device.upload))
            self.handed.append(tuple(list(item) if isinstance(item, list) else item for item in self.objects[-1]))
        elements = sum(c.numel() for c in self.outputs(0))
        view = arena.view(results, 2 * objects * elements)
        self.results = torch.from_numpy(view).view(torch.float16).view(objects, elements) if elements else None

    def tensors(self, data):
        """Input tensors of `data`, in a fixed order; c comes apart."""
        return inputs.operands(data) + inputs.scales(data)

    def refill(self, i: int, content: int, disguise: int | None) -> None:
        """New contents for object i, and NaN in its c."""
        self.write(self.objects[i], content, disguise)
        for c in self.outputs(i):
            c.fill_(float("nan"))

    def write(self, data, content: int, disguise: int | None) -> None:
        for tensor, source in zip(self.tensors(data), self.tensors(self.contents[content])):
            inputs.as_bytes(tensor).copy_(inputs.as_bytes(source))
        if disguise is not None:
            inputs.disguise(data, inputs.draw(disguise, data))

    def changed(self, i: int, content: int, disguise: int | None, equal) -> bool:
        """Whether the inputs of object i are no longer what `refill` wrote."""
        pristine = inputs.mapped(torch.empty_like, self.objects[i])
        self.write(pristine, content, disguise)
        pairs = zip(self.tensors(self.objects[i]), self.tensors(pristine))
        return not all(equal(inputs.as_bytes(t), inputs.as_bytes(source)) for t, source in pairs)

    def outputs(self, i: int) -> list[torch.Tensor]:
        """The c tensors of object i, [M, N, L] each."""
        return inputs.outputs(self.objects[i])

    def store(self, i: int, results: list[torch.Tensor], copy) -> None:
        """Copies results to where the judge reads them."""
        offset = 0
        for c in results:
            if c.numel():
                copy(self.results[i, offset : offset + c.numel()].view(c.shape), c)
            offset += c.numel()


def results_of(returned, outputs: list[torch.Tensor], single: bool) -> list[torch.Tensor] | str:
    """The returned tensors, which may be new ones, on the GPU and like `outputs`, or what is wrong with them."""
    found = described(returned, single)
    if "wrong" in found:
        return found["wrong"]
    if len(found["returned"]) != len(outputs):
        return f"custom_kernel returned {len(found['returned'])} tensors for {len(outputs)} groups"
    returned = [returned] if single else list(returned)
    for group, (got, c) in enumerate(zip(returned, outputs)):
        if (got.shape, got.dtype) != (c.shape, c.dtype):
            return f"group {group}: returned {tuple(got.shape)} {got.dtype}, not {tuple(c.shape)} {c.dtype}"
        if got.device != c.device:
            return f"group {group}: returned a tensor on {got.device}, not on {c.device}"
    return returned


def elsewhere(results: list[torch.Tensor], taken: inputs.Taken, call: int) -> str | None:
    """What is wrong if a result lies where an input or another result does."""
    for group, got in enumerate(results):
        size = inputs.extent(got.shape, got.stride(), got.element_size())
        if there := taken.add(got.data_ptr(), size, f"the result of call {call}, group {group}"):
            return f"call {call}, group {group}: the returned tensor is not new, it lies in {there}"
    return None


def load_submission(path: str):
    """custom_kernel of the file, imported as the module `submission`. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module.custom_kernel


def explain(error: BaseException) -> str:
    """One or a few lines: what was raised and where in the submission."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == "submission.py"]
    where = f" (line {frames[-1].lineno} of the submission)" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def main(options: dict, wire_fd: int, arena_fd: int, log_fd: int) -> None:
    """Serves requests until the judge closes the connection.

    options: submission, config (None, or sizes and changes, of configs.choose), device, memory (bytes), threads,
    scratch (a folder), judges (process ids), size and heap (of the shared memory, and where the submission's part
    begins).
    """
    os.setsid()
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    wire_fd, arena_fd = os.dup2(wire_fd, 100), os.dup2(arena_fd, 101)
    os.closerange(3, 100)
    os.closerange(102, 65536)
    os.set_inheritable(wire_fd, False)
    torch.set_num_threads(options["threads"])
    wire = os.fdopen(wire_fd, "r+b", buffering=0)
    lines = io.BufferedReader(io.FileIO(wire_fd, closefd=False))
    send, receive, dumps, loads = wire.write, lines.readline, json.dumps, json.loads
    equal, clear_l2, copy = torch.equal, utils.clear_l2_cache_large, torch.Tensor.copy_

    def answer(**reply):
        data = memoryview(dumps(reply).encode() + b"\n")
        while data:
            data = data[send(data) :]

    def ask(message) -> dict:
        answer(**message)
        return loads(receive())

    try:
        arena = Arena(arena_fd, options["size"])
        os.environ |= {"TMPDIR": options["scratch"], "HOME": options["scratch"]}
        os.chdir(options["scratch"])
        if folder := os.environ.get("EMULATOR_PTX"):  # which this process, as whoever it will be, is to fill
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o777)
        files = [os.path.realpath(sys.executable), options["submission"], __file__, torch.__file__, np.__file__]
        answer(error=None, isolation=isolation.confine(files, options["judges"]))
        emulated = options["device"] != "cuda"
        device = EmulatedDevice(arena, options["heap"], ask) if emulated else CudaDevice()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash ends at once
        if emulated:  # a GPU's address space would not fit into any limit
            resource.setrlimit(resource.RLIMIT_DATA, (options["memory"],) * 2)
        guards = Guards([reference, task, utils, inputs, sys.modules[__name__], *device.guarded])
        kernel = load_submission(options["submission"])
        if options["config"]:
            configs.choose(sys.modules["submission"], *options["config"])
        problems = guards.replaced()
    except BaseException as error:
        traceback.print_exc()
        return answer(error=explain(error))
    answer(error="; ".join(problems) or None)

    case = None
    while True:
        line = receive()
        if not line:
            return
        try:
            request = loads(line)
            what = request["op"]
            if what == "object":
                device.place(request["number"], request["spec"])
                answer(error=None)
            elif what == "call":
                reply = device.call(kernel, request["number"], request["schedule"], request["record"])
                answer(error="; ".join(guards.replaced()) or None, **reply)
            elif what == "configs":
                answer(error=None, configs=configs.described(sys.modules["submission"], request["asked"]))
            elif what == "case":
                case = None  # release the previous one first
                kind = reference.TASKS[request["task"]]
                case = Case(device, arena, kind, request["contents"], request["objects"], request["results"])
                answer(error=None)
            else:
                answer(**repeat(device, case, kernel, request, guards, equal, clear_l2, copy))
        except BaseException as error:
            traceback.print_exc()
            answer(error=explain(error))


def repeat(device, case: Case, kernel, request: dict, guards: Guards, equal, clear_l2, copy) -> dict:
    """The reply to one repeat on a GPU: a call per object, timed."""
    contents, disguises, order = request["contents"], request["disguises"], request["order"]
    for i in order:
        case.refill(i, contents[i], disguises[i])
    snapshots, modes = [], torch._C._len_torch_function_stack()

    def snapshot(position, output):
        """In an audit every result is copied right after its call: work put off to a later call comes too late."""
        if request["audit"]:
            results = results_of(output, case.outputs(order[position]), single=len(case.objects[order[position]]) != 4)
            snapshots.append(results if isinstance(results, str) else [c.clone() for c in results])

    data = [case.handed[i] for i in order]
    returned, ns = device.run(kernel, data, clear_l2 if request["timed"] else None, snapshot)
    problems = guards.replaced()
    if torch._C._len_torch_function_stack() != modes:
        problems.append("the submission left a mode of torch entered")
    taken = inputs.Taken()
    for i in order:
        for t in case.tensors(case.objects[i]):
            taken.add(t.data_ptr(), inputs.extent(t.shape, t.stride(), t.element_size()), "an input")
    for position, i in enumerate(order):
        results = results_of(returned[position], case.outputs(i), single=len(case.objects[i]) != 4)
        if isinstance(results, str) or (results_are := elsewhere(results, taken, position)):
            problems.append(results if isinstance(results, str) else results_are)
            continue
        case.store(i, snapshots[position] if snapshots else results, copy)
        if case.changed(i, contents[i], disguises[i], equal):
            problems.append("the submission changed its inputs")
    return {"error": "; ".join(dict.fromkeys(problems)) or None, "ns": ns}
